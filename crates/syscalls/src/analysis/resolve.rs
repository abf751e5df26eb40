//! Numbers and arguments at the places where a program enters the kernel.
//!
//! A value that comes from a caller is looked up at every call of the function, and so on up the
//! callers. So functions that take the number of a call are found whatever their names (as in
//! B-Side, Middleware 2024). A value that comes from a variable at a fixed place is one that the
//! program's stores put there, if its address is never taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use elf::code::{Architecture, Atom, Gate, Input, Origin, State, Value, Width};

use super::object::ARCHITECTURE;
use super::reach::{Caller, FunctionId, Reach, Scope};

/// Calls that are looked through, one above the other.
const DEPTH_MAX: usize = 12;

/// Values that are told apart; more of one argument are any.
const CONSTANTS_MAX: usize = 512;

/// Values of one argument that are told.
const ARGUMENT_CONSTANTS_MAX: usize = 16;

/// Look-ups for one place; what takes more stays unresolved.
const WORK_MAX: usize = 100_000;

/// Why a number is not known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// It is computed in ways that are not followed.
    Computed,
    /// It comes from the caller of a function that is called through a pointer.
    Pointer,
    /// It comes from memory that others may write.
    Memory,
    /// It is passed through more functions, or the function is larger, than is followed.
    TooMuch,
    /// The kernel is entered by `int 0x80`, whose calls are those of 32-bit programs.
    Interrupt,
    /// The kernel is entered by `sysenter`, for 32-bit programs.
    Sysenter,
}

impl std::fmt::Display for Why {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Why::Computed => "computed",
            Why::Pointer => "pointer",
            Why::Memory => "memory",
            Why::TooMuch => "too-much",
            Why::Interrupt => "interrupt",
            Why::Sysenter => "sysenter",
        })
    }
}

/// Constants of the six arguments; `None` is any.
pub(super) type Arguments = [Option<BTreeSet<u64>>; 6];

/// What is known of one place where the kernel is entered.
#[derive(Default)]
pub(super) struct Outcome {
    /// Calls by number, with their arguments and the functions that chose them.
    pub(super) calls: BTreeMap<u32, (Arguments, BTreeSet<FunctionId>)>,
    /// Why there may be others, and the function in which that was found.
    pub(super) why: Option<(Why, FunctionId)>,
}

pub(super) struct Solver<'a> {
    scope: &'a Scope<'a>,
    reach: &'a Reach,
    /// Whether to look for arguments as well.
    with_arguments: bool,
    /// Whether an address counts as a number: for arguments that point to something.
    takes_addresses: bool,
    known: HashMap<(FunctionId, Input), Result<BTreeSet<u64>, Why>>,
    open: BTreeSet<(FunctionId, Input)>,
    work: usize,
}

impl<'a> Solver<'a> {
    pub(super) fn new(scope: &'a Scope<'a>, reach: &'a Reach, with_arguments: bool) -> Solver<'a> {
        let (known, open) = (HashMap::new(), BTreeSet::new());
        Solver { scope, reach, with_arguments, takes_addresses: false, known, open, work: 0 }
    }

    /// One for [`Solver::argument`], where arguments are addresses in the object of the caller.
    pub(super) fn of_addresses(scope: &'a Scope<'a>, reach: &'a Reach) -> Solver<'a> {
        Solver { takes_addresses: true, ..Solver::new(scope, reach, false) }
    }

    /// The calls made at `at` in the function at `place`.
    pub(super) fn gate(&mut self, place: FunctionId, at: u64, gate: Gate) -> Outcome {
        let mut outcome = Outcome::default();
        match gate {
            Gate::Native => {}
            Gate::Interrupt => outcome.why = Some((Why::Interrupt, place)),
            Gate::Sysenter => outcome.why = Some((Why::Sysenter, place)),
        }
        if outcome.why.is_some() {
            return outcome;
        }
        self.work = 0;
        let Some(values) = self.scope.objects[place.0].values(place.1) else {
            outcome.why = Some((Why::TooMuch, place));
            return outcome;
        };
        // No state: no way leads here.
        let Some(state) = values.get(&at) else { return outcome };
        let (number, arguments) = ARCHITECTURE.call_registers();
        let number = state.register(number).narrow(Width::Zero32);
        let arguments = arguments.map(|register| state.register(register).clone());
        self.calls(place, &number, &arguments, 0, &mut outcome);
        outcome
    }

    /// What the callers of the function at `place` pass in the argument `number`, from 0: the
    /// caller and its constants, or why they are not known.
    pub(super) fn argument(
        &mut self,
        place: FunctionId,
        number: usize,
    ) -> Vec<(FunctionId, Result<BTreeSet<u64>, Why>)> {
        let Some(register) = ARCHITECTURE.argument_registers().get(number).copied() else { return Vec::new() };
        let mut all = Vec::new();
        for caller in self.callers_of(place) {
            self.work = 0;
            let found = match self.scope.objects[caller.from.0].values(caller.from.1) {
                None => Err(Why::TooMuch),
                Some(values) => match values.get(&caller.at) {
                    Some(state) => self.solve(caller.from, &state.register(register).clone(), 0),
                    None => Ok(BTreeSet::new()),
                },
            };
            all.push((caller.from, found));
        }
        all
    }

    /// Adds the calls that `number` may mean in the function at `place`.
    fn calls(
        &mut self,
        place: FunctionId,
        number: &Value,
        arguments: &[Value; 6],
        depth: usize,
        outcome: &mut Outcome,
    ) {
        let Some(atoms) = number.atoms() else {
            outcome.why = Some((Why::Computed, place));
            return;
        };
        for atom in atoms {
            match atom {
                Atom::Constant(number) => self.call(place, *number as u32, arguments, depth, outcome),
                Atom::Input(input) if matches!(input.origin, Origin::Register(_) | Origin::Stack(_)) => {
                    self.callers(place, input, arguments, depth, outcome);
                }
                Atom::Input(input) => match self.input(place, *input, depth) {
                    Ok(numbers) => {
                        for number in numbers {
                            self.call(place, number as u32, arguments, depth, outcome);
                        }
                    }
                    Err(why) => outcome.why = Some((why, place)),
                },
                Atom::Address(_) | Atom::Frame(_) | Atom::Import(_) => outcome.why = Some((Why::Computed, place)),
            }
        }
    }

    /// Adds the calls that callers of the function at `place` choose by `input`.
    fn callers(
        &mut self,
        place: FunctionId,
        input: &Input,
        arguments: &[Value; 6],
        depth: usize,
        outcome: &mut Outcome,
    ) {
        if let Err(why) = self.spend(depth) {
            outcome.why = Some((why, place));
            return;
        }
        if self.reach.taken.contains(&place) {
            outcome.why = Some((Why::Pointer, place));
        }
        // A function that passes its own number on to itself adds none.
        if !self.open.insert((place, *input)) {
            return;
        }
        for caller in self.callers_of(place) {
            let Some(values) = self.scope.objects[caller.from.0].values(caller.from.1) else {
                outcome.why = Some((Why::TooMuch, place));
                continue;
            };
            let Some(state) = values.get(&caller.at) else { continue };
            let number = self.at_call(caller, state, input).narrow(Width::Zero32);
            let passed = arguments.clone().map(|value| self.value_at_call(caller, state, &value));
            self.calls(caller.from, &number, &passed, depth + 1, outcome);
        }
        self.open.remove(&(place, *input));
    }

    fn call(&mut self, place: FunctionId, number: u32, arguments: &[Value; 6], depth: usize, outcome: &mut Outcome) {
        let known = match self.with_arguments {
            true => arguments.clone().map(|value| {
                let found = self.solve(place, &value, depth + DEPTH_MAX / 2).ok();
                found.filter(|numbers| numbers.len() <= ARGUMENT_CONSTANTS_MAX)
            }),
            false => Arguments::default(),
        };
        match outcome.calls.entry(number) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert((known, BTreeSet::from([place])));
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let (all, places) = entry.get_mut();
                join(all, &known);
                places.insert(place);
            }
        }
    }

    fn callers_of(&self, place: FunctionId) -> Vec<Caller> {
        self.reach.callers.get(&place).into_iter().flatten().copied().collect()
    }

    fn at_call(&self, caller: Caller, state: &State, input: &Input) -> Value {
        let layout = &self.scope.objects[caller.from.0].linked.layout;
        let stack = ARCHITECTURE.callee_stack(state, caller.is_tail);
        state.input(layout, &stack, input)
    }

    /// What a value of a callee is in its caller.
    fn value_at_call(&self, caller: Caller, state: &State, value: &Value) -> Value {
        value.spread(|atom| match atom {
            Atom::Constant(_) | Atom::Address(_) => Value::of(atom),
            Atom::Input(input) => self.at_call(caller, state, &input),
            Atom::Frame(_) | Atom::Import(_) => Value::UNKNOWN,
        })
    }

    fn spend(&mut self, depth: usize) -> Result<(), Why> {
        self.work += 1;
        if depth >= DEPTH_MAX || self.work > WORK_MAX { Err(Why::TooMuch) } else { Ok(()) }
    }

    /// The numbers that a value may be.
    fn solve(&mut self, place: FunctionId, value: &Value, depth: usize) -> Result<BTreeSet<u64>, Why> {
        let mut all = BTreeSet::new();
        for atom in value.atoms().ok_or(Why::Computed)? {
            match atom {
                Atom::Constant(number) => {
                    all.insert(*number);
                }
                Atom::Input(input) => all.extend(self.input(place, *input, depth)?),
                Atom::Address(address) if self.takes_addresses => {
                    all.insert(*address);
                }
                Atom::Address(_) | Atom::Frame(_) | Atom::Import(_) => return Err(Why::Computed),
            }
            if all.len() > CONSTANTS_MAX {
                return Err(Why::TooMuch);
            }
        }
        Ok(all)
    }

    fn input(&mut self, place: FunctionId, input: Input, depth: usize) -> Result<BTreeSet<u64>, Why> {
        if let Some(known) = self.known.get(&(place, input)) {
            return known.clone();
        }
        self.spend(depth)?;
        if !self.open.insert((place, input)) {
            return Ok(BTreeSet::new());
        }
        let found = match input.origin {
            Origin::Global(address) => self.global(place, address, input, depth),
            Origin::Register(_) | Origin::Stack(_) => self.passed(place, input, depth),
        };
        self.open.remove(&(place, input));
        // What was found below an open question may lack its part.
        if self.open.is_empty() {
            self.known.insert((place, input), found.clone());
        }
        found
    }

    /// What all callers pass.
    fn passed(&mut self, place: FunctionId, input: Input, depth: usize) -> Result<BTreeSet<u64>, Why> {
        if self.reach.taken.contains(&place) {
            return Err(Why::Pointer);
        }
        let mut all = BTreeSet::new();
        for caller in self.callers_of(place) {
            let values = self.scope.objects[caller.from.0].values(caller.from.1).ok_or(Why::TooMuch)?;
            let Some(state) = values.get(&caller.at) else { continue };
            if self.takes_addresses && caller.from.0 != place.0 {
                // An address of another object.
                return Err(Why::Computed);
            }
            let value = self.at_call(caller, state, &input);
            all.extend(self.solve(caller.from, &value, depth + 1)?);
        }
        Ok(all)
    }

    /// What a variable at a fixed place may hold.
    fn global(&mut self, place: FunctionId, address: u64, input: Input, depth: usize) -> Result<BTreeSet<u64>, Why> {
        let object = &self.scope.objects[place.0];
        let writes = object.writes();
        let is_exported = object.linked.exports.iter().any(|export| !export.is_code && export.address == address);
        if is_exported || writes.taken.contains(&address) {
            return Err(Why::Memory);
        }
        let layout = &object.linked.layout;
        let initial = layout.space.number(address, 8).ok_or(Why::Memory)?;
        let mut all = BTreeSet::new();
        match (input.depth, initial) {
            (0, initial) => {
                all.insert(input.width.of(initial.wrapping_add_signed(input.add)));
            }
            // A null pointer is not followed by the program either.
            (_, 0) => {}
            _ => return Err(Why::Memory),
        }
        for (at, function) in writes.stores.get(&address).into_iter().flatten() {
            let from = (place.0, *function);
            if !self.reach.functions.contains(&from) {
                continue;
            }
            let values = object.values(*function).ok_or(Why::TooMuch)?;
            let Some(state) = values.get(at) else { continue };
            let stored = ARCHITECTURE.stored(layout, *at, state);
            let value = state.through(layout, stored, &input);
            all.extend(self.solve(from, &value, depth + 1)?);
        }
        Ok(all)
    }
}

/// Takes in arguments of another place.
pub(super) fn join(all: &mut Arguments, more: &Arguments) {
    for (known, new) in all.iter_mut().zip(more) {
        *known = match (known.take(), new) {
            (Some(mut known), Some(new)) => {
                known.extend(new);
                (known.len() <= ARGUMENT_CONSTANTS_MAX).then_some(known)
            }
            _ => None,
        };
    }
}
