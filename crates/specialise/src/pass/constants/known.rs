//! Results that one round of evaluations passes to the next.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::arch::Surroundings;
use crate::atom::AtomId;
use crate::entries::at;
use crate::graph::Graph;
use crate::reference::{self, Reference};
use crate::routine::{ARGUMENTS, Outcome, Program as Around, Routine};
use crate::value::Value;

/// What rounds tell each other.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Arguments that a function is called with.
    pub arguments: HashMap<AtomId, [Value; ARGUMENTS]>,
    /// What a function returns.
    pub returned: HashMap<AtomId, Value>,
    /// A function was too much to evaluate: those that it calls may get any arguments.
    is_partial: bool,
}

impl Known {
    /// Adds what the evaluation of a function found. The result of a function in `overridden` may
    /// be another one than it gives.
    pub fn add(&mut self, id: AtomId, outcome: &Outcome, overridden: &HashSet<AtomId>) {
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

    /// Adds a function that was too much to evaluate.
    pub fn add_unknown(&mut self) {
        self.is_partial = true;
    }

    /// Ends a round.
    pub fn finish(&mut self) {
        if self.is_partial {
            self.arguments.clear();
        }
        self.arguments.retain(|_, arguments| arguments.iter().any(|value| *value != Value::Any));
    }
}

/// What one function's evaluation learns from the kernel around it.
pub(crate) struct Program<'p, 'o, 'a> {
    /// The graph.
    pub graph: &'p Graph<'o, 'a>,
    /// The function.
    pub routine: &'p Routine,
    /// Variables that never change.
    pub constants: &'p HashMap<AtomId, Value>,
    /// What the round before found.
    pub known: &'p Known,
    /// The function handles a system call, whose arguments are these.
    pub handler: Option<&'p &'p BTreeMap<usize, BTreeSet<u64>>>,
    /// What was asked of the round before and of variables, with the answers.
    pub asked: RefCell<Asked>,
}

/// What an evaluation depends on beside the arguments.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    returned: Vec<(AtomId, Value)>,
    variables: Vec<AtomId>,
}

impl Asked {
    /// Whether the answers would be others now. Variables that were constant stay so.
    pub fn is_old(&self, constants: &HashMap<AtomId, Value>, known: &Known) -> bool {
        self.variables.iter().any(|id| constants.contains_key(id))
            || self.returned.iter().any(|(id, value)| known.returned.get(id).unwrap_or(&Value::Any) != value)
    }
}

impl<'p, 'o, 'a> Program<'p, 'o, 'a> {
    /// What is known of a function that handles no system call.
    pub fn new(
        graph: &'p Graph<'o, 'a>,
        routine: &'p Routine,
        constants: &'p HashMap<AtomId, Value>,
        known: &'p Known,
    ) -> Self {
        Self { graph, routine, constants, known, handler: None, asked: RefCell::default() }
    }

    fn section(&self) -> u32 {
        self.graph.atoms.atoms[self.routine.id as usize].section
    }

    fn reference(&self, field: u64) -> Option<&Reference> {
        at(self.graph, self.section(), field)
    }
}

impl Surroundings for Program<'_, '_, '_> {
    fn load(&self, field: u64, bytes: usize) -> Value {
        let place = self.reference(field).and_then(|reference| reference::exact(self.graph.object, reference));
        let Some((section, offset)) = place else { return Value::Any };
        let Some(id) = self.graph.atoms.at(section, offset) else { return Value::Any };
        let atom = &self.graph.atoms.atoms[id as usize];
        if offset != atom.start as i64 || bytes as u64 > atom.end - atom.start {
            return Value::Any;
        }
        match self.constants.get(&id) {
            Some(value) => value.low(bytes),
            None => {
                self.asked.borrow_mut().variables.push(id);
                Value::Any
            }
        }
    }

    fn address(&self, field: u64) -> Option<Value> {
        let reference = self.reference(field)?;
        // Places that the linker makes, and variables of each processor, may lie at zero.
        let place = reference::place(self.graph.object, reference);
        let is_somewhere = place.is_some_and(|(section, _)| {
            let name = self.graph.object.sections[section as usize].name;
            [&b".text"[..], b".data.", b".bss.", b".rodata", b".init."].iter().any(|class| name.starts_with(class))
                && !name.starts_with(b".data..percpu")
        });
        Some(if is_somewhere { Value::NonZero } else { Value::Any })
    }

    fn argument(&self, number: usize) -> Value {
        let values = self.handler.and_then(|arguments| arguments.get(&number));
        values.map_or(Value::Any, |values| Value::of(values.iter().copied().collect()))
    }
}

impl Around for Program<'_, '_, '_> {
    fn returned(&self, callee: AtomId) -> Value {
        let value = self.known.returned.get(&callee).cloned().unwrap_or(Value::Any);
        self.asked.borrow_mut().returned.push((callee, value.clone()));
        value
    }
}
