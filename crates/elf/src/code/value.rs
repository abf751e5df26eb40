//! The possible values of a register or a place in memory: a few, or anything.

use std::sync::Arc;

/// Possibilities that are told apart; more of them are anything. Dispatchers of system calls in
/// libraries have about ten.
pub const POSSIBILITIES_MAX: usize = 32;

/// Loads that one possibility may go through: a pointer to a structure that holds a pointer.
pub const LOADS_MAX: usize = 2;

/// Where a value comes from that a function did not make itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// A register at the entry of the function, by the number that the processor gives it.
    Register(u8),
    /// The place on the stack so many bytes above the stack pointer at the entry of the function.
    Stack(i64),
    /// The word of writable memory at a fixed address.
    Global(u64),
}

/// How many bits of a value are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Width {
    /// All 64.
    #[default]
    Full,
    /// The low 32, zeros above.
    Zero32,
    /// The low 32, their sign above.
    Sign32,
}

impl Width {
    /// What is left of a number.
    pub fn of(self, number: u64) -> u64 {
        match self {
            Width::Full => number,
            Width::Zero32 => u64::from(number as u32),
            Width::Sign32 => i64::from(number as i32) as u64,
        }
    }
}

/// A value from outside: what `origin` held, then for each load what lay there at an offset, then
/// `width` of that plus `add`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Input {
    /// Where it comes from.
    pub origin: Origin,
    /// Offsets of loads; the first `depth` count.
    pub loads: [i32; LOADS_MAX],
    /// How many loads.
    pub depth: u8,
    /// What is added at the end.
    pub add: i64,
    /// How much of it is used.
    pub width: Width,
}

impl Input {
    /// What `origin` held.
    pub fn of(origin: Origin) -> Input {
        Input { origin, loads: [0; LOADS_MAX], depth: 0, add: 0, width: Width::Full }
    }

    /// What lies `offset` bytes behind where this points; `None` if that is too deep.
    pub fn load(self, offset: i64) -> Option<Input> {
        let offset = i32::try_from(self.add.checked_add(offset)?).ok()?;
        let mut deeper = Input { add: 0, depth: self.depth + 1, ..self };
        *deeper.loads.get_mut(usize::from(self.depth))? = offset;
        (self.width == Width::Full).then_some(deeper)
    }
}

/// One possibility.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Atom {
    /// A number; in code that runs only where it was linked, perhaps an address.
    Constant(u64),
    /// An address of an object that may be loaded anywhere, as the file has it: no number.
    Address(u64),
    /// An address on the function's own stack: so many bytes above the stack pointer at its entry.
    Frame(i64),
    /// Something from outside.
    Input(Input),
    /// The address of a symbol, by its index among the imports.
    Import(u32),
}

/// What something may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Value {
    /// Sorted, each once; `None` is anything. Shared, since states are copied often.
    atoms: Option<Arc<[Atom]>>,
}

impl Value {
    /// Anything.
    pub const UNKNOWN: Value = Value { atoms: None };

    /// A number.
    pub fn constant(number: u64) -> Value {
        Value::of(Atom::Constant(number))
    }

    /// An address of an object, which is a number where `is_absolute`.
    pub fn address(address: u64, is_absolute: bool) -> Value {
        Value::of(if is_absolute { Atom::Constant(address) } else { Atom::Address(address) })
    }

    /// One possibility.
    pub fn of(atom: Atom) -> Value {
        Value { atoms: Some(Arc::new([atom])) }
    }

    /// Several possibilities; anything if they are too many.
    pub fn any_of(atoms: impl IntoIterator<Item = Atom>) -> Value {
        let mut found: Vec<Atom> = Vec::new();
        for atom in atoms {
            if let Err(at) = found.binary_search(&atom) {
                if found.len() >= POSSIBILITIES_MAX {
                    return Value::UNKNOWN;
                }
                found.insert(at, atom);
            }
        }
        Value { atoms: Some(found.into()) }
    }

    /// The possibilities, sorted; `None` if it may be anything.
    pub fn atoms(&self) -> Option<&[Atom]> {
        self.atoms.as_deref()
    }

    /// The numbers, sorted; `None` if it may be anything but a number.
    pub fn constants(&self) -> Option<Vec<u64>> {
        let numbers = self.atoms.as_ref()?.iter().map(|atom| match atom {
            Atom::Constant(number) => Some(*number),
            _ => None,
        });
        numbers.collect()
    }

    /// The one number that it is.
    pub fn number(&self) -> Option<u64> {
        match self.atoms.as_deref() {
            Some([Atom::Constant(number)]) => Some(*number),
            _ => None,
        }
    }

    /// The one place on the stack that it points to.
    pub fn frame(&self) -> Option<i64> {
        match self.atoms.as_deref() {
            Some([Atom::Frame(offset)]) => Some(*offset),
            _ => None,
        }
    }

    /// What may be the one or the other.
    pub fn join(&self, other: &Value) -> Value {
        match (&self.atoms, &other.atoms) {
            (Some(one), Some(two)) if Arc::ptr_eq(one, two) || one == two => self.clone(),
            (Some(one), Some(two)) => Value::any_of(one.iter().chain(two.iter()).copied()),
            _ => Value::UNKNOWN,
        }
    }

    /// Applies `change` to each possibility; one that it does not know makes anything of all.
    pub fn map(&self, change: impl Fn(Atom) -> Option<Atom>) -> Value {
        let Some(atoms) = &self.atoms else { return Value::UNKNOWN };
        if let [atom] = &**atoms {
            return change(*atom).map_or(Value::UNKNOWN, Value::of);
        }
        let changed: Option<Vec<Atom>> = atoms.iter().map(|atom| change(*atom)).collect();
        changed.map_or(Value::UNKNOWN, Value::any_of)
    }

    /// Applies `change` to each possibility, which may make several of one.
    pub fn spread(&self, change: impl Fn(Atom) -> Value) -> Value {
        let Some(atoms) = &self.atoms else { return Value::UNKNOWN };
        if let [atom] = &**atoms {
            return change(*atom);
        }
        let mut all = Value::any_of([]);
        for atom in atoms.iter() {
            all = all.join(&change(*atom));
        }
        all
    }

    /// Applies `change` to each pair of possibilities.
    pub fn with(&self, other: &Value, change: impl Fn(Atom, Atom) -> Option<Atom>) -> Value {
        self.spread(|one| other.map(|two| change(one, two)))
    }

    /// The value with a number added.
    pub fn plus(&self, number: i64) -> Value {
        if number == 0 {
            return self.clone();
        }
        self.map(|atom| match atom {
            Atom::Constant(constant) => Some(Atom::Constant(constant.wrapping_add_signed(number))),
            Atom::Address(address) => Some(Atom::Address(address.wrapping_add_signed(number))),
            Atom::Frame(offset) => offset.checked_add(number).map(Atom::Frame),
            Atom::Input(input) if input.width == Width::Full => {
                Some(Atom::Input(Input { add: input.add.checked_add(number)?, ..input }))
            }
            _ => None,
        })
    }

    /// The low half of the value.
    pub fn narrow(&self, width: Width) -> Value {
        if width == Width::Full {
            return self.clone();
        }
        self.map(|atom| match atom {
            Atom::Constant(number) => Some(Atom::Constant(width.of(number))),
            // What was added counts after the cut as well, except for a carry, which numbers of
            // calls do not have.
            Atom::Input(input) => Some(Atom::Input(Input { width, ..input })),
            _ => None,
        })
    }

    /// Without the possibility of being `number`.
    pub fn without(&self, number: u64) -> Value {
        let atoms = self
            .atoms
            .as_ref()
            .map(|atoms| atoms.iter().copied().filter(|atom| *atom != Atom::Constant(number)).collect::<Arc<[Atom]>>());
        Value { atoms }
    }
}
