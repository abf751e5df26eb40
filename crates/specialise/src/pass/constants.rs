//! Constants: branches that always go the same way, and with them code inside functions that is never executed.
//!
//! What is known: variables that nothing writes and whose address nobody takes, variables that the caller fixes, arguments
//! of functions all of whose calls are seen, what functions return, and arguments of system calls. Functions are looked at
//! over and over, each round with what the round before found, so that every round alone is sound. Code that is then never
//! executed keeps nothing alive.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::arch::Architecture;
use crate::atom::AtomId;
use crate::graph::{Changes, Graph, Liveness};
use crate::pass::entries::{self, Asked, Program, Routines};
use crate::pass::variables;
use crate::routine::{ARGUMENTS, Outcome};
use crate::value::Value;

/// Rounds after which what is known is enough.
const ROUNDS_MAX: usize = 4;

/// Arguments of system calls: entry point (`sys_…`), number of the argument, values.
pub(crate) type Arguments = BTreeMap<String, BTreeMap<usize, BTreeSet<u64>>>;

/// What the last round found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Variables that are constant, by atom.
    pub variables: usize,
    /// Conditional branches that always go the same way.
    pub branches: usize,
    /// The functions.
    pub routines: Routines,
    /// Decisions by function.
    pub decisions: HashMap<AtomId, Decisions>,
}

/// What is known of the instructions of one function.
#[derive(Debug)]
pub(crate) struct Decisions {
    /// For each step whether it may be executed.
    pub lives: Vec<bool>,
    /// For each step: 1 if its branch is never taken, 2 if it always is.
    pub ways: Vec<u8>,
}

/// Finds what is never executed and puts it into `changes`; gives the liveness that follows.
pub(crate) fn find(
    graph: &Graph<'_, '_>,
    liveness: &Liveness,
    changes: &mut Changes,
    arch: &dyn Architecture,
    fixed: &HashMap<AtomId, u64>,
    arguments: &Arguments,
) -> (Found, Option<Liveness>) {
    let mut routines = entries::routines(graph, liveness, changes, arch);
    let mut found = Found::default();
    let overridden = overridden(graph);
    let mut known = Known::default();
    let mut lasts: HashMap<AtomId, Last> = HashMap::new();
    let mut current: Option<Liveness> = None;
    let handlers = handlers(graph, arguments);
    for _ in 0..ROUNDS_MAX {
        let live = current.as_ref().unwrap_or(liveness);
        let mut constants = variables::constants(graph, live, changes);
        constants.extend(fixed.iter().map(|(id, value)| (*id, Value::One(*value))));
        found.variables = constants.len();
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
                    next.take(routine.id, outcome, &overridden);
                    if found.decide(routine.id, outcome) {
                        decided.push(routine.id);
                    }
                }
                None => next.is_partial = true,
            }
        }
        next.finish();
        entries::bury(graph, &routines, &found.decisions, &decided, changes);
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
        found.decisions.retain(|id, _| live.is_live(*id));
    }
    let is_decided = |way: &u8| *way == 1 || *way == 2;
    found.branches =
        found.decisions.values().map(|decisions| decisions.ways.iter().filter(|way| is_decided(way)).count()).sum();
    found.routines = routines;
    (found, current)
}

impl Found {
    /// Takes what a round found in; what an earlier one decided holds as well. True if something is decided that was not.
    fn decide(&mut self, id: AtomId, outcome: &Outcome) -> bool {
        let is_decided = |way: &u8| matches!(way, 1 | 2);
        match self.decisions.get_mut(&id) {
            Some(known) => {
                let mut has_changed = false;
                for (known, lives) in known.lives.iter_mut().zip(&outcome.visited) {
                    has_changed |= *known && !lives;
                    *known &= lives;
                }
                for (known, ways) in known.ways.iter_mut().zip(&outcome.ways) {
                    has_changed |= *known & ways != *known;
                    *known &= ways;
                }
                has_changed
            }
            None => {
                let (lives, ways) = (outcome.visited.clone(), outcome.ways.clone());
                let has_decided = lives.contains(&false) || ways.iter().any(is_decided);
                self.decisions.insert(id, Decisions { lives, ways });
                has_decided
            }
        }
    }
}

/// The last look at a function, and what it depends on.
struct Last {
    entered: Option<[Value; ARGUMENTS]>,
    entries: BTreeSet<u64>,
    asked: Asked,
    outcome: Option<Outcome>,
}

/// What rounds tell each other.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Arguments that a function is called with.
    pub arguments: HashMap<AtomId, [Value; ARGUMENTS]>,
    /// What a function returns.
    pub returned: HashMap<AtomId, Value>,
    /// A function was too much to look at: those whom it calls may get anything.
    is_partial: bool,
}

impl Known {
    fn take(&mut self, id: AtomId, outcome: &Outcome, overridden: &HashSet<AtomId>) {
        for (callee, arguments) in &outcome.calls {
            match self.arguments.get_mut(callee) {
                Some(known) => {
                    for (known, argument) in known.iter_mut().zip(arguments) {
                        if known != argument {
                            *known = known.join(argument);
                        }
                    }
                }
                None => drop(self.arguments.insert(*callee, arguments.clone())),
            }
        }
        if let Some(value) = outcome.returned.clone().filter(|value| *value != Value::Any && !overridden.contains(&id))
        {
            self.returned.insert(id, value);
        }
    }

    /// Ends a round.
    fn finish(&mut self) {
        if self.is_partial {
            self.arguments.clear();
        }
        self.arguments.retain(|_, arguments| arguments.iter().any(|value| *value != Value::Any));
    }
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
