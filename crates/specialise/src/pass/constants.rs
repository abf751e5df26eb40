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
use crate::pass::entries::{self, Program, Routines};
use crate::pass::variables;
use crate::routine::{ARGUMENTS, Outcome};
use crate::value::Value;

/// Rounds after which what is known is enough.
const ROUNDS_MAX: usize = 6;

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
    let mut current: Option<Liveness> = None;
    let handlers = handlers(graph, arguments);
    for _ in 0..ROUNDS_MAX {
        let live = current.as_ref().unwrap_or(liveness);
        let mut constants = variables::constants(graph, live, changes);
        constants.extend(fixed.iter().map(|(id, value)| (*id, Value::One(*value))));
        found.variables = constants.len();
        entries::update(graph, live, changes, &mut routines);
        let mut next = Known::default();
        for routine in routines.values().filter(|routine| live.is_live(routine.id)) {
            let section = graph.atoms.atoms[routine.id as usize].section;
            let handler = handlers.get(&routine.id);
            let program = Program { graph, changes, arch, routine, constants: &constants, known: &known, handler };
            let mut entered = known.arguments.get(&routine.id).filter(|_| !routine.is_open).cloned();
            if handler.is_some() {
                let mut saved = [const { Value::Any }; ARGUMENTS];
                saved[0] = Value::Saved;
                entered = Some(saved);
            }
            let object = &graph.object.sections[section as usize];
            match routine.evaluate(object, arch, entered.as_ref(), &program) {
                Some(outcome) => {
                    next.take(routine.id, &outcome, &overridden);
                    found.decide(routine.id, outcome);
                }
                None => next.is_partial = true,
            }
        }
        next.finish();
        let before = changes.dead.values().map(Vec::len).sum::<usize>();
        entries::bury(graph, &routines, &found.decisions, changes);
        let after = changes.dead.values().map(Vec::len).sum::<usize>();
        let walked = graph.walk(changes);
        let is_last = before == after && next.arguments == known.arguments && next.returned == known.returned;
        known = next;
        current = Some(walked);
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
    /// Takes what a round found in; what an earlier one decided holds as well.
    fn decide(&mut self, id: AtomId, outcome: Outcome) {
        match self.decisions.get_mut(&id) {
            Some(known) => {
                known.lives.iter_mut().zip(&outcome.visited).for_each(|(known, lives)| *known &= lives);
                known.ways.iter_mut().zip(&outcome.ways).for_each(|(known, ways)| *known &= ways);
            }
            None => {
                self.decisions.insert(id, Decisions { lives: outcome.visited, ways: outcome.ways });
            }
        }
    }
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
