//! The state before one instruction: registers, and slots of the function's own stack.

use std::collections::{BTreeMap, BTreeSet};

use super::value::{Atom, Input, Origin, Value, Width};
use super::{Layout, Word};

/// General registers of a processor that are followed.
pub const REGISTERS: usize = 32;

/// Places on the stack that are followed at once.
const SLOTS_MAX: usize = 512;

/// Values before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    registers: Vec<Value>,
    /// Places on the stack by their offset from the stack pointer at the entry; with their bytes.
    /// Below 0 what is not here is unknown; from 0 on, where the caller's frame is, it is what the
    /// caller left there.
    slots: BTreeMap<i64, (Value, u8)>,
    /// Above here others may have pointers to the stack.
    shared_from: Option<i64>,
}

impl State {
    /// At the entry of a function that is called: nothing but inputs. `stack` is the number of the
    /// stack pointer.
    pub fn entry(stack: usize) -> State {
        let input = |number: usize| Value::of(Atom::Input(Input::of(Origin::Register(number as u8))));
        let mut registers: Vec<Value> = (0..REGISTERS).map(input).collect();
        registers[stack] = Value::of(Atom::Frame(0));
        State { registers, slots: BTreeMap::new(), shared_from: None }
    }

    /// Where control comes from nobody knows where.
    pub fn unknown() -> State {
        State { registers: vec![Value::UNKNOWN; REGISTERS], slots: BTreeMap::new(), shared_from: Some(i64::MIN) }
    }

    /// What a register holds.
    pub fn register(&self, number: usize) -> &Value {
        self.registers.get(number).unwrap_or(&Value::UNKNOWN)
    }

    /// Changes a register.
    pub fn set(&mut self, number: usize, value: Value) {
        if let Some(register) = self.registers.get_mut(number) {
            *register = value;
        }
    }

    /// What `bytes` bytes on the stack hold.
    pub fn slot(&self, offset: i64, bytes: u8) -> Value {
        match self.slots.range(..=offset).next_back() {
            Some((at, (value, stored))) if *at == offset && bytes <= *stored => cut(value, bytes),
            Some((at, (_, stored))) if *at + i64::from(*stored) > offset => Value::UNKNOWN,
            _ if self.slots.range(offset..offset.saturating_add(bytes.into())).next().is_some() => Value::UNKNOWN,
            _ if offset < 0 || self.shared_from.is_some_and(|from| offset >= from) => Value::UNKNOWN,
            _ => cut(&Value::of(Atom::Input(Input::of(Origin::Stack(offset)))), bytes),
        }
    }

    /// What `bytes` bytes at `address` hold; the layout tells of constants and relocations.
    pub fn load(&self, layout: &Layout<'_>, address: &Value, bytes: u8) -> Value {
        address.spread(|atom| match atom {
            Atom::Frame(offset) => self.slot(offset, bytes),
            Atom::Constant(address) | Atom::Address(address) => global(layout, address, bytes),
            Atom::Input(input) => {
                input.load(0).map_or(Value::UNKNOWN, |input| cut(&Value::of(Atom::Input(input)), bytes))
            }
            Atom::Import(_) => Value::UNKNOWN,
        })
    }

    /// Stores `value` at `address`.
    pub fn store(&mut self, address: &Value, bytes: u32, value: Value) {
        self.share(&value);
        match address.frame() {
            Some(offset) => {
                self.forget(offset, offset.saturating_add(bytes.into()));
                let is_followed = matches!(bytes, 4 | 8) && (offset >= 0 || value != Value::UNKNOWN);
                if is_followed && self.slots.len() < SLOTS_MAX {
                    self.slots.insert(offset, (value, bytes as u8));
                } else if offset >= 0 {
                    self.slots.insert(offset, (Value::UNKNOWN, bytes.min(255) as u8));
                }
            }
            None => {
                let frames = address.atoms().into_iter().flatten().filter_map(|atom| match atom {
                    Atom::Frame(offset) => Some(*offset),
                    _ => None,
                });
                // Of several places any may be meant.
                for offset in frames.collect::<Vec<i64>>() {
                    self.forget(offset, offset.saturating_add(bytes.into()));
                }
                let is_elsewhere = address
                    .atoms()
                    .is_some_and(|atoms| atoms.iter().all(|atom| matches!(atom, Atom::Constant(_) | Atom::Address(_))));
                if !is_elsewhere {
                    self.disturb();
                }
            }
        }
    }

    /// Others learn an address: if it is one of the stack, all above it is theirs to change.
    pub fn share(&mut self, value: &Value) {
        for atom in value.atoms().into_iter().flatten() {
            if let Atom::Frame(offset) = atom {
                self.shared_from = Some(self.shared_from.map_or(*offset, |from| from.min(*offset)));
            }
        }
    }

    /// Somebody else writes where they can.
    pub fn disturb(&mut self) {
        if let Some(from) = self.shared_from {
            self.forget(from, i64::MAX);
        }
    }

    /// What lies below the stack pointer is anyone's.
    pub fn drop_below(&mut self, offset: i64) {
        self.slots.retain(|at, _| *at >= offset);
    }

    fn forget(&mut self, from: i64, to: i64) {
        let first = self.slots.range(..from).next_back().filter(|(at, (_, bytes))| **at + i64::from(*bytes) > from);
        let touched: Vec<i64> = first.into_iter().chain(self.slots.range(from..to)).map(|(at, _)| *at).collect();
        for at in touched {
            if at < 0 {
                self.slots.remove(&at);
            } else if let Some((value, _)) = self.slots.get_mut(&at) {
                *value = Value::UNKNOWN;
            }
        }
    }

    /// Takes in what holds where another way leads to the same instruction; true if something
    /// changed. If it `widens`, what changes becomes unknown: so that loops end.
    pub fn join(&mut self, other: &State, widens: bool) -> bool {
        let mut has_changed = false;
        for (register, value) in self.registers.iter_mut().zip(&other.registers) {
            let joined = register.join(value);
            if joined != *register {
                *register = if widens { Value::UNKNOWN } else { joined };
                has_changed = true;
            }
        }
        let slots: BTreeSet<i64> = self.slots.keys().chain(other.slots.keys()).copied().collect();
        let mut changed = Vec::new();
        for at in slots {
            let (one, two) = (self.slots.get(&at), other.slots.get(&at));
            if one == two {
                continue;
            }
            let bytes = one.or(two).map_or(8, |slot| slot.1);
            let is_same_size = one.is_none_or(|slot| slot.1 == bytes) && two.is_none_or(|slot| slot.1 == bytes);
            let before = self.slot(at, bytes);
            let joined = if is_same_size { before.join(&other.slot(at, bytes)) } else { Value::UNKNOWN };
            // A place that has no entry and means what it would mean without.
            if joined != before || (one.is_none() && joined == Value::UNKNOWN && at >= 0) {
                changed.push((at, bytes, if widens { Value::UNKNOWN } else { joined }));
            }
        }
        for (at, bytes, value) in changed {
            has_changed = true;
            if at < 0 && value == Value::UNKNOWN {
                self.slots.remove(&at);
            } else {
                self.slots.insert(at, (value, bytes));
            }
        }
        let shared_from = match (self.shared_from, other.shared_from) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        has_changed |= shared_from != self.shared_from;
        self.shared_from = shared_from;
        has_changed
    }

    /// What an input of a function is, called from here. `stack` is where its stack pointer is at
    /// its entry.
    pub fn input(&self, layout: &Layout<'_>, stack: &Value, input: &Input) -> Value {
        let value = match input.origin {
            Origin::Register(number) => self.register(number.into()).clone(),
            Origin::Stack(offset) => self.load(layout, &stack.plus(offset), 8),
            Origin::Global(address) => Value::of(Atom::Input(Input::of(Origin::Global(address)))),
        };
        self.through(layout, value, input)
    }

    /// What an input is whose origin holds `value`: its loads, its sum, its width.
    pub fn through(&self, layout: &Layout<'_>, value: Value, input: &Input) -> Value {
        let mut value = value;
        for (number, offset) in input.loads.iter().take(input.depth.into()).enumerate() {
            let is_last = number + 1 == usize::from(input.depth);
            let bytes = if is_last && input.width != Width::Full { 4 } else { 8 };
            value = self.load(layout, &value.plus((*offset).into()), bytes);
        }
        value.plus(input.add).narrow(input.width)
    }
}

/// What lies at a fixed address.
fn global(layout: &Layout<'_>, address: u64, bytes: u8) -> Value {
    match layout.words.get(&address) {
        Some(Word::Address(target)) if bytes == 8 => return Value::address(*target, layout.is_absolute),
        Some(Word::Symbol(number, 0)) if bytes == 8 => return Value::of(Atom::Import(*number)),
        Some(_) => return Value::UNKNOWN,
        None => {}
    }
    let Some(region) = layout.space.region(address) else { return Value::UNKNOWN };
    if region.writable {
        return cut(&Value::of(Atom::Input(Input::of(Origin::Global(address)))), bytes);
    }
    layout.space.number(address, bytes.into()).map_or(Value::UNKNOWN, Value::constant)
}

/// The low bytes of a value, as a load of so many gives them.
fn cut(value: &Value, bytes: u8) -> Value {
    match bytes {
        8 => value.clone(),
        4 => value.narrow(Width::Zero32),
        1 | 2 => value.map(|atom| match atom {
            Atom::Constant(number) => Some(Atom::Constant(number & ((1 << (bytes * 8)) - 1))),
            _ => None,
        }),
        _ => Value::UNKNOWN,
    }
}
