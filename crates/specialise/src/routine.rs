//! Functions whose control flow is wholly understood, and the evaluation of their instructions.
//!
//! A function is decoded from its start to its end. Calls enter it at its start. Side tables,
//! replaced instructions and split-off cold parts enter it elsewhere, where nothing is known of
//! registers. [`Routine::evaluate`] is conditional constant propagation (Wegman and Zadeck 1991).
//! It visits a block only when control can come there, given what is known. A block that is never
//! visited is never executed.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::arch::{Architecture, Step, Surroundings, Transfer};
use crate::atom::AtomId;
use crate::object::Section;
use crate::value::{State, Value};

/// Arguments that are followed from calls into functions.
pub(crate) const ARGUMENTS: usize = 6;

/// Visits of blocks of one function, of which each may only widen what is known a few times.
const VISITS_MAX: usize = 200_000;

/// A function.
#[derive(Debug)]
pub(crate) struct Routine {
    /// Its atom.
    pub id: AtomId,
    /// Where calls enter it.
    pub entry: u64,
    /// Its instructions, by offset in the section.
    pub steps: Vec<Step>,
    /// For each instruction where its branch or call goes.
    pub goals: Vec<Where>,
    /// For each instruction whether control may come there at all.
    pub reached: Vec<bool>,
    /// Where else control enters it.
    pub entries: BTreeSet<u64>,
    /// Somebody may call it who is not looked at.
    pub is_open: bool,
    /// Instructions that are rewritten when the kernel runs.
    pub altered: Vec<Range<u64>>,
    /// Targets of jumps through tables, in the order of the entries, by the offset of the jump.
    pub tables: HashMap<u64, Vec<u64>>,
}

/// Where a direct branch really goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// In the same function.
    Inside(u64),
    /// To the start of another one.
    Function(AtomId),
    /// To the caller, by way of a thunk.
    Return,
    /// To a mark for tracing, which changes nothing.
    Mark,
    /// Elsewhere.
    Unknown,
}

/// What a function's surroundings say.
pub(crate) trait Program: Surroundings {
    /// What a function returns.
    fn returned(&self, callee: AtomId) -> Value;
}

/// What [`Routine::evaluate`] found.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// For each step whether it is executed.
    pub visited: Vec<bool>,
    /// For each step that is a conditional branch whether it goes on at the next one (1), at its
    /// goal (2), or both (3).
    pub ways: Vec<u8>,
    /// Who is called, with which arguments.
    pub calls: Vec<(AtomId, [Value; ARGUMENTS])>,
    /// What it returns; `None` if it does not.
    pub returned: Option<Value>,
}

impl Routine {
    /// The number of the step at an offset.
    pub fn at(&self, offset: u64) -> Option<usize> {
        self.steps.binary_search_by_key(&offset, |step| step.start).ok()
    }

    /// Whether a step may be other instructions when the kernel runs.
    pub fn is_altered(&self, step: &Step) -> bool {
        self.altered.iter().any(|range| range.start < step.end && step.start < range.end)
    }

    /// The offsets behind a step, whatever is known; `None` if one of them is no instruction.
    fn successors(&self, index: usize) -> Option<Vec<u64>> {
        let step = &self.steps[index];
        let goes_on = match step.transfer {
            Transfer::Jump(_) | Transfer::JumpAny | Transfer::Table { .. } | Transfer::Return => self.is_altered(step),
            _ => true,
        };
        let mut next = match step.transfer {
            Transfer::Jump(_) | Transfer::Branch(_) | Transfer::Call(_) => match self.goals[index] {
                Where::Inside(offset) => vec![offset],
                _ => Vec::new(),
            },
            Transfer::Table { .. } => self.tables.get(&step.start).cloned().unwrap_or_default(),
            _ => Vec::new(),
        };
        if goes_on && step.end < self.steps.last()?.end {
            next.push(step.end);
        }
        next.iter().all(|offset| self.at(*offset).is_some()).then_some(next)
    }

    /// Which steps can be reached at all; `None` if control goes where no instruction is.
    pub fn reach(&self) -> Option<Vec<bool>> {
        let mut visited = vec![false; self.steps.len()];
        let mut waiting = Vec::new();
        for entry in self.entries.iter().chain([&self.entry]) {
            waiting.push(self.at(*entry)?);
        }
        while let Some(index) = waiting.pop() {
            if std::mem::replace(&mut visited[index], true) {
                continue;
            }
            for next in self.successors(index)? {
                waiting.push(self.at(next)?);
            }
        }
        Some(visited)
    }

    /// Follows what is known from the entries on; `None` if that is too much.
    pub fn evaluate(
        &self,
        section: &Section<'_>,
        arch: &dyn Architecture,
        arguments: Option<&[Value; ARGUMENTS]>,
        program: &dyn Program,
    ) -> Option<Outcome> {
        let mut entered = State::unknown();
        if let Some(arguments) = arguments {
            for (register, value) in arch.argument_registers().into_iter().zip(arguments) {
                entered.registers[register] = value.clone();
            }
        }
        let mut walk = Walk {
            routine: self,
            outcome: Outcome {
                visited: vec![false; self.steps.len()],
                ways: vec![0; self.steps.len()],
                ..Outcome::default()
            },
            states: HashMap::new(),
            waiting: BTreeSet::new(),
            leaders: self.leaders(),
        };
        walk.enter(self.entry, &entered)?;
        for entry in &self.entries {
            walk.enter(*entry, &State::unknown())?;
        }
        let mut visits = 0;
        while let Some(index) = walk.waiting.pop_first() {
            visits += 1;
            if visits > VISITS_MAX {
                return None;
            }
            walk.block(index, section, arch, program)?;
        }
        Some(walk.outcome)
    }

    /// Steps that several ways may lead to.
    fn leaders(&self) -> Vec<bool> {
        let mut leaders = vec![false; self.steps.len()];
        let mut lead = |offset: u64| {
            if let Some(index) = self.at(offset) {
                leaders[index] = true;
            }
        };
        self.entries.iter().chain([&self.entry]).for_each(|entry| lead(*entry));
        for (step, goal) in self.steps.iter().zip(&self.goals) {
            match step.transfer {
                Transfer::Jump(_) | Transfer::Branch(_) | Transfer::Call(_) => {
                    if let Where::Inside(offset) = *goal {
                        lead(offset);
                    }
                }
                Transfer::Table { .. } => {
                    self.tables.get(&step.start).into_iter().flatten().for_each(|offset| lead(*offset));
                }
                _ => {}
            }
        }
        leaders
    }
}

/// One evaluation.
struct Walk<'r> {
    routine: &'r Routine,
    outcome: Outcome,
    states: HashMap<usize, State>,
    waiting: BTreeSet<usize>,
    leaders: Vec<bool>,
}

impl Walk<'_> {
    /// Control comes to an offset.
    fn enter(&mut self, offset: u64, state: &State) -> Option<()> {
        let index = self.routine.at(offset)?;
        self.merge(index, state);
        Some(())
    }

    fn merge(&mut self, index: usize, state: &State) {
        match self.states.get_mut(&index) {
            Some(known) => {
                if known.join(state) {
                    self.waiting.insert(index);
                }
            }
            None => {
                self.states.insert(index, state.clone());
                self.waiting.insert(index);
            }
        }
    }

    /// Runs from a leader to the next one or to where control leaves.
    fn block(
        &mut self,
        first: usize,
        section: &Section<'_>,
        arch: &dyn Architecture,
        program: &dyn Program,
    ) -> Option<()> {
        let routine = self.routine;
        let mut state = self.states.get(&first)?.clone();
        let mut index = first;
        loop {
            if index > first && self.leaders[index] {
                self.merge(index, &state);
                return Some(());
            }
            let step = &routine.steps[index];
            self.outcome.visited[index] = true;
            if routine.is_altered(step) {
                self.altered(index, &mut state, arch, program)?;
            } else if !self.step(index, &mut state, section, arch, program)? {
                return Some(());
            }
            index += 1;
            if index >= routine.steps.len() {
                // Behind a call that does not return.
                return Some(());
            }
        }
    }

    /// Instructions that may be others: control goes as they say and on, and nothing is known
    /// behind them.
    fn altered(
        &mut self,
        index: usize,
        state: &mut State,
        arch: &dyn Architecture,
        program: &dyn Program,
    ) -> Option<()> {
        let (step, goal) = (&self.routine.steps[index], self.routine.goals[index]);
        *state = State::unknown();
        match step.transfer {
            Transfer::Jump(_) | Transfer::Branch(_) | Transfer::Call(_) => {
                self.leave(goal, state, arch, program, !matches!(step.transfer, Transfer::Call(_)))?;
            }
            Transfer::Table { .. } => {
                for target in routine_targets(self.routine, step) {
                    self.enter(target, state)?;
                }
            }
            Transfer::JumpAny | Transfer::Return => self.outcome.returned = Some(Value::Any),
            Transfer::Next | Transfer::CallAny | Transfer::Foreign => {}
        }
        Some(())
    }

    /// One step; false if control does not come to the next one.
    fn step(
        &mut self,
        index: usize,
        state: &mut State,
        section: &Section<'_>,
        arch: &dyn Architecture,
        program: &dyn Program,
    ) -> Option<bool> {
        let (step, goal) = (&self.routine.steps[index], self.routine.goals[index]);
        let result = arch.result_register();
        match step.transfer {
            Transfer::Next | Transfer::CallAny | Transfer::Foreign => {
                arch.transfer(section, step, state, program);
            }
            Transfer::Call(_) if goal == Where::Mark => {}
            Transfer::Call(_) => {
                self.leave(goal, state, arch, program, false)?;
                let returned = match goal {
                    Where::Function(callee) => program.returned(callee),
                    _ => Value::Any,
                };
                arch.transfer(section, step, state, program);
                state.registers[result] = returned;
            }
            Transfer::Jump(_) => {
                self.leave(goal, state, arch, program, true)?;
                return Some(false);
            }
            Transfer::Branch(_) => {
                arch.transfer(section, step, state, program);
                let [fall, taken] = arch.decide(section, step, state);
                self.outcome.ways[index] |= u8::from(fall.is_some()) | u8::from(taken.is_some()) << 1;
                if let Some(taken) = taken {
                    self.leave(goal, &taken, arch, program, true)?;
                }
                match fall {
                    Some(fall) => *state = fall,
                    None => return Some(false),
                }
            }
            Transfer::Table { index: register, .. } => {
                let targets = routine_targets(self.routine, step);
                let numbers = state.registers[usize::from(register)].numbers();
                let chosen: Option<Vec<u64>> = numbers.and_then(|numbers| {
                    numbers.iter().map(|number| targets.get(usize::try_from(*number).ok()?).copied()).collect()
                });
                for target in chosen.unwrap_or(targets) {
                    self.enter(target, state)?;
                }
                if !self.routine.tables.contains_key(&step.start) {
                    self.returns(Value::Any);
                }
                return Some(false);
            }
            Transfer::JumpAny => {
                self.returns(Value::Any);
                return Some(false);
            }
            Transfer::Return => {
                self.returns(state.registers[result].clone());
                return Some(false);
            }
        }
        Some(true)
    }

    fn returns(&mut self, value: Value) {
        self.outcome.returned = Some(match &self.outcome.returned {
            Some(known) => known.join(&value),
            None => value,
        });
    }

    /// Control goes to the goal of a branch or call; for good if it is a tail call.
    fn leave(
        &mut self,
        goal: Where,
        state: &State,
        arch: &dyn Architecture,
        program: &dyn Program,
        is_tail: bool,
    ) -> Option<()> {
        match goal {
            Where::Inside(offset) if is_tail => self.enter(offset, state)?,
            // A call of a place inside: the stack tells where it comes from, which is all that is
            // known.
            Where::Inside(offset) => self.enter(offset, &State::unknown())?,
            Where::Function(callee) => {
                let arguments = arch.argument_registers().map(|register| state.registers[register].clone());
                self.outcome.calls.push((callee, arguments));
                if is_tail {
                    self.returns(program.returned(callee));
                }
            }
            Where::Return if is_tail => self.returns(state.registers[arch.result_register()].clone()),
            Where::Return => {}
            Where::Unknown | Where::Mark if is_tail => self.returns(Value::Any),
            Where::Unknown | Where::Mark => {}
        }
        Some(())
    }
}

/// The targets of a jump through a table.
fn routine_targets(routine: &Routine, step: &Step) -> Vec<u64> {
    routine.tables.get(&step.start).cloned().unwrap_or_default()
}
