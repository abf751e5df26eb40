//! The possible values of a register: a few numbers, anything but zero, or anything.

use std::sync::Arc;

/// Numbers that are told apart; flags and commands that a function is called with are seldom more.
pub(crate) const NUMBERS_MAX: usize = 16;

/// What something may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Anything.
    Any,
    /// Anything but zero, in all 64 bits.
    NonZero,
    /// This number.
    One(u64),
    /// One of these: at least two, sorted, each once.
    Few(Arc<[u64]>),
    /// The address of the registers that a program had at its system call.
    Saved,
}

impl Value {
    /// One of `numbers`.
    pub fn of(mut numbers: Vec<u64>) -> Value {
        numbers.sort_unstable();
        numbers.dedup();
        match numbers[..] {
            [number] => Value::One(number),
            [_, ..] if numbers.len() <= NUMBERS_MAX => Value::Few(numbers.into()),
            [first, ..] if first != 0 => Value::NonZero,
            _ => Value::Any,
        }
    }

    /// The numbers; `None` if they are not known.
    pub fn numbers(&self) -> Option<&[u64]> {
        match self {
            Value::One(number) => Some(std::slice::from_ref(number)),
            Value::Few(numbers) => Some(numbers),
            Value::Any | Value::NonZero | Value::Saved => None,
        }
    }

    /// Whether it cannot be zero.
    pub fn is_nonzero(&self) -> bool {
        match self {
            Value::Any => false,
            Value::NonZero | Value::Saved => true,
            Value::One(number) => *number != 0,
            Value::Few(numbers) => !numbers.contains(&0),
        }
    }

    /// What may be the one or the other.
    pub fn join(&self, other: &Value) -> Value {
        if self == other {
            return self.clone();
        }
        match (self.numbers(), other.numbers()) {
            (Some(one), Some(two)) => Value::of([one, two].concat()),
            _ if self.is_nonzero() && other.is_nonzero() => Value::NonZero,
            _ => Value::Any,
        }
    }

    /// Applies `change` to each number.
    pub fn map(&self, change: impl Fn(u64) -> u64) -> Value {
        match self {
            Value::One(number) => Value::One(change(*number)),
            Value::Few(numbers) => Value::of(numbers.iter().map(|number| change(*number)).collect()),
            Value::Any | Value::NonZero | Value::Saved => Value::Any,
        }
    }

    /// Applies `change` to each pair of numbers.
    pub fn with(&self, other: &Value, change: impl Fn(u64, u64) -> u64) -> Value {
        let (Some(one), Some(two)) = (self.numbers(), other.numbers()) else { return Value::Any };
        Value::of(one.iter().flat_map(|one| two.iter().map(|two| change(*one, *two))).collect())
    }

    /// The low bytes, zeros above.
    pub fn low(&self, bytes: usize) -> Value {
        if bytes >= 8 { self.clone() } else { self.map(|number| number & mask(bytes)) }
    }
}

/// All bits of so many bytes.
pub(crate) fn mask(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 }
}

/// General registers that are followed.
pub(crate) const REGISTERS: usize = 16;

/// What the flags were last made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// The first operand.
    pub left: Value,
    /// The second.
    pub right: Value,
    /// Bytes that were compared.
    pub bytes: usize,
    /// Whether the flags are those of the bits that both have; else of the difference.
    pub is_test: bool,
    /// The register that still holds the first operand.
    pub register: Option<u8>,
}

/// What is known before one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// By the processor's number.
    pub registers: [Value; REGISTERS],
    /// `None` if the flags may be anything.
    pub comparison: Option<Comparison>,
}

impl State {
    /// Nothing is known.
    pub fn unknown() -> State {
        State { registers: [const { Value::Any }; REGISTERS], comparison: None }
    }

    /// Takes in what holds where another way leads to the same instruction; true if something
    /// changed.
    pub fn join(&mut self, other: &State) -> bool {
        let mut has_changed = false;
        for (register, value) in self.registers.iter_mut().zip(&other.registers) {
            if register != value {
                let joined = register.join(value);
                has_changed |= joined != *register;
                *register = joined;
            }
        }
        if self.comparison.is_some() && self.comparison != other.comparison {
            self.comparison = None;
            has_changed = true;
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_join_to_sets_and_then_to_what_is_not_zero() {
        let one = |number| Value::One(number);
        assert_eq!(one(1).join(&one(1)), one(1));
        assert_eq!(one(1).join(&one(0)).numbers(), Some(&[0, 1][..]));
        assert_eq!(one(1).join(&Value::NonZero), Value::NonZero);
        assert_eq!(one(0).join(&Value::NonZero), Value::Any);
        let many = (1..=NUMBERS_MAX as u64 + 1).fold(one(1), |value, number| value.join(&one(number)));
        assert_eq!(many, Value::NonZero);
        assert_eq!(many.join(&one(0)), Value::Any);
        assert_eq!(Value::Few([1, 0x1_0000_0001].into()).low(4), one(1));
        assert_eq!(Value::NonZero.low(4), Value::Any, "the low half may be zero");
    }
}
