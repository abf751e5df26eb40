//! Constants: finds branches that always go the same way, and code inside functions that is
//! therefore never executed.
//!
//! These are known: variables that nothing writes and whose address nobody takes, variables that
//! the caller fixes, arguments of functions all of whose calls are seen, results of functions, and
//! arguments of system calls. Functions are evaluated in rounds. Each round uses the results of the
//! round before, so every round alone is sound. Code that is never executed keeps nothing alive.

mod known;
mod variables;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::{Context, Pass};
use crate::analysis::Analysis;
use crate::arch::{Architecture, Goal, Transfer};
use crate::atom::AtomId;
use crate::decisions::Decisions;
use crate::edit::Edit;
use crate::entries::{self, Routines, is_unwinder, keys};
use crate::graph::{Changes, Graph, Liveness};
use crate::options::Arguments;
use crate::routine::{ARGUMENTS, Outcome, Routine};
use crate::value::Value;
use crate::{Options, SpecialiseError};

use known::{Asked, Known, Program};

pub(super) const PASS: Pass = Pass { name: "constants", is_on: Options::decides_branches, run };

/// Rounds after which what is known is enough.
const ROUNDS_MAX: usize = 4;

/// Decides branches. Code that is never executed then keeps nothing alive; unless another pass cuts
/// it out, it traps.
fn run(context: &Context<'_, '_>, analysis: &mut Analysis) -> Result<(), SpecialiseError> {
    let graph = context.graph;
    let fixed = variables::fixed(graph, analysis.removals.liveness(), &analysis.changes, &context.options.fixed)?;
    let (routines, decisions, liveness) = find(context, analysis, &fixed);
    if let Some(liveness) = liveness {
        analysis.removals.take(liveness);
    }
    if !context.options.cuts_blocks() {
        analysis.edits = fill(graph, &routines, &decisions, context.arch, &analysis.changes);
    }
    analysis.initial = variables::differing(graph, fixed);
    analysis.routines = Some(routines);
    analysis.decisions = decisions;
    Ok(())
}

/// Finds what is never executed and puts it into the changes; gives the liveness that follows.
fn find(
    context: &Context<'_, '_>,
    analysis: &mut Analysis,
    fixed: &HashMap<AtomId, u64>,
) -> (Routines, HashMap<AtomId, Decisions>, Option<Liveness>) {
    let (graph, arch) = (context.graph, context.arch);
    let (liveness, changes) = (analysis.removals.liveness(), &mut analysis.changes);
    let mut routines = entries::routines(graph, liveness, changes, arch);
    let mut decisions: HashMap<AtomId, Decisions> = HashMap::new();
    let overridden = overridden(graph);
    let mut known = Known::default();
    let mut lasts: HashMap<AtomId, Last> = HashMap::new();
    let mut current: Option<Liveness> = None;
    let handlers = handlers(graph, &context.options.arguments);
    for _ in 0..ROUNDS_MAX {
        let live = current.as_ref().unwrap_or(liveness);
        let mut constants = variables::constants(graph, live, changes);
        constants.extend(fixed.iter().map(|(id, value)| (*id, Value::One(*value))));
        entries::update(graph, live, changes, &mut routines);
        let mut next = Known::default();
        let mut decided = Vec::new();
        for routine in routines.values().filter(|routine| live.is_live(routine.id)) {
            let section = graph.atoms.atoms[routine.id as usize].section;
            let handler = handlers.get(&routine.id);
            let mut entered = known.arguments.get(&routine.id).filter(|_| !routine.is_open).cloned();
            if handler.is_some() {
                let mut saved = [const { Value::Any }; ARGUMENTS];
                saved[0] = Value::Saved;
                entered = Some(saved);
            }
            let is_same = |last: &Last| {
                last.entered == entered && last.entries == routine.entries && !last.asked.is_old(&constants, &known)
            };
            if !lasts.get(&routine.id).is_some_and(is_same) {
                let program = Program { handler, ..Program::new(graph, routine, &constants, &known) };
                let object = &graph.object.sections[section as usize];
                let outcome = routine.evaluate(object, arch, entered.as_ref(), &program);
                let (asked, entries) = (program.asked.into_inner(), routine.entries.clone());
                lasts.insert(routine.id, Last { entered, entries, asked, outcome });
            }
            match lasts.get(&routine.id).and_then(|last| last.outcome.as_ref()) {
                Some(outcome) => {
                    next.add(routine.id, outcome, &overridden);
                    if decide(&mut decisions, routine.id, outcome) {
                        decided.push(routine.id);
                    }
                }
                None => next.add_unknown(),
            }
        }
        next.finish();
        remove_dead(graph, &routines, &decisions, &decided, changes);
        let is_last = decided.is_empty() && next.arguments == known.arguments && next.returned == known.returned;
        if !is_last {
            current = Some(graph.walk(changes));
        }
        known = next;
        if is_last {
            break;
        }
    }
    if let Some(live) = &current {
        decisions.retain(|id, _| live.is_live(*id));
    }
    (routines, decisions, current)
}

/// Takes what a round found of a function in; true if something is decided that was not.
fn decide(decisions: &mut HashMap<AtomId, Decisions>, id: AtomId, outcome: &Outcome) -> bool {
    match decisions.get_mut(&id) {
        Some(known) => known.narrow(outcome),
        None => {
            let known = Decisions::new(outcome);
            let is_any = known.is_any();
            decisions.insert(id, known);
            is_any
        }
    }
}

/// Dead code stays where it is, and traps.
fn fill(
    graph: &Graph<'_, '_>,
    routines: &Routines,
    decisions: &HashMap<AtomId, Decisions>,
    arch: &dyn Architecture,
    changes: &Changes,
) -> HashMap<AtomId, Edit> {
    let mut edits = HashMap::new();
    for (id, decisions) in decisions {
        let dead = changes.dead_in(&graph.atoms.atoms[*id as usize]);
        let Some(routine) = routines.get(id).filter(|_| !dead.is_empty()) else { continue };
        let mut edit = Edit::default();
        for (step, lives) in routine.steps.iter().zip(&decisions.lives) {
            if !dead.iter().any(|range| range.contains(&step.start)) {
                continue;
            }
            match lives {
                // Each instruction for itself: control may come to any.
                false => edit.filled.push(step.start..step.end),
                true => edit.patches.extend((step.start..step.end).map(|at| (at, arch.nothing()))),
            }
        }
        edits.insert(*id, edit);
    }
    edits
}

/// Takes what is never executed out of the graph, with the entries of tables that describe it.
fn remove_dead(
    graph: &Graph<'_, '_>,
    routines: &Routines,
    decisions: &HashMap<AtomId, Decisions>,
    decided: &[AtomId],
    changes: &mut Changes,
) {
    changes.dead.resize(graph.object.sections.len(), Vec::new());
    for id in decided {
        let (Some(routine), Some(decisions)) = (routines.get(id), decisions.get(id)) else { continue };
        let section = graph.atoms.atoms[*id as usize].section;
        let dead = dead(routine, decisions, &keys(graph, *id));
        let ranges = &mut changes.dead[section as usize];
        let atom = &graph.atoms.atoms[*id as usize];
        ranges.retain(|range| range.start < atom.start || range.start >= atom.end);
        ranges.extend(dead.iter().cloned());
        ranges.sort_unstable_by_key(|range| range.start);
        for entry in graph.dependents.of(*id) {
            // What holds from its place on is needed as long as the place is there.
            if !is_unwinder(graph, *entry)
                && let Some((_, offset)) = graph.key(*entry)
                && dead.iter().any(|range| range.contains(&(offset as u64)))
            {
                changes.dropped.insert(*entry);
            }
        }
    }
}

/// The runs of instructions of a function that are never executed.
fn dead(routine: &Routine, decisions: &Decisions, keys: &[u64]) -> Vec<Range<u64>> {
    let mut dead: Vec<Range<u64>> = Vec::new();
    for (index, ((step, lives), way)) in routine.steps.iter().zip(&decisions.lives).zip(&decisions.ways).enumerate() {
        // A branch to another function that is never taken refers to it no more.
        let leaves = matches!(step.transfer, Transfer::Branch(Goal::Reference(_))) && *way == 1;
        let is_fixed = || routine.is_altered(step) || keys.iter().any(|key| (step.start..step.end).contains(key));
        if leaves && *lives && !is_fixed() {
            dead.push(step.start..step.end);
            continue;
        }
        let follows = dead.last().is_some_and(|range| range.end == step.start);
        // What fills gaps goes with what it fills.
        if *lives || step.start < routine.entry || (!routine.reached[index] && !follows) {
            continue;
        }
        match dead.last_mut() {
            Some(range) if follows => range.end = step.end,
            _ => dead.push(step.start..step.end),
        }
    }
    dead
}

/// The last look at a function, and what it depends on.
struct Last {
    entered: Option<[Value; ARGUMENTS]>,
    entries: BTreeSet<u64>,
    asked: Asked,
    outcome: Option<Outcome>,
}

/// Tables of functions whose result may be replaced while the kernel runs.
const OVERRIDDEN: &[u8] = b"_error_injection_whitelist";

/// Functions of this kind may get other results from programs that the kernel is given.
const HOOKS: &[u8] = b"security_";

/// Functions whose result may be another one than they give.
fn overridden(graph: &Graph<'_, '_>) -> HashSet<AtomId> {
    let mut found = HashSet::new();
    for (index, symbol) in graph.object.symbols.iter().enumerate().filter(|(_, symbol)| symbol.name.starts_with(HOOKS))
    {
        if symbol.size > 0 {
            found.extend(graph.atom_of_symbol(index as u32));
        }
    }
    for (section, range) in graph.object.sections.iter().zip(&graph.atoms.of_section) {
        if section.name == OVERRIDDEN {
            found.extend(range.clone().filter_map(|entry| {
                let (section, offset) = graph.key(entry)?;
                graph.atoms.at(section, offset)
            }));
        }
    }
    found
}

/// The handlers of system calls whose arguments are known, by atom.
fn handlers<'a>(
    graph: &Graph<'_, '_>,
    arguments: &'a Arguments,
) -> HashMap<AtomId, &'a BTreeMap<usize, BTreeSet<u64>>> {
    let mut found = HashMap::new();
    for (index, symbol) in graph.object.symbols.iter().enumerate() {
        let Some(name) = symbol.name.strip_prefix(b"__x64_") else { continue };
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if let (Some(arguments), Some(id)) = (arguments.get(name), graph.atom_of_symbol(index as u32)) {
            found.insert(id, arguments);
        }
    }
    found
}
