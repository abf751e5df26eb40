//! One instruction, as far as control flow and addresses go, on any processor.

/// How an instruction enters the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Gate {
    /// The processor's own way: `syscall`, `svc #0`.
    Native,
    /// `int 0x80`: calls are numbered as on a 32-bit processor.
    Interrupt,
    /// `sysenter`, which serves 32-bit programs alone.
    Sysenter,
}

/// Where the target of an indirect call or jump comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetSource {
    /// The word at a fixed address.
    Word(u64),
    /// A register or computed place.
    Computed,
}

/// What comes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The next instruction.
    Next,
    /// The instruction there.
    Jump(u64),
    /// The instruction there or the next.
    Branch(u64),
    /// The function there, then the next instruction.
    Call(u64),
    /// Some instruction.
    JumpTo(TargetSource),
    /// Some function, then the next instruction.
    CallTo(TargetSource),
    /// The caller.
    Return,
    /// Nothing: a trap, or no instruction at all.
    Stop,
    /// The kernel, then the next instruction.
    System(Gate),
}

/// How an instruction uses an address that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// Takes the address itself.
    Take,
    /// Reads what lies there.
    Read,
    /// Writes what lies there, perhaps after reading it.
    Write,
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where it lies.
    pub address: u64,
    /// Its length in bytes; at least 1.
    pub bytes: u8,
    /// What comes after it.
    pub action: Action,
    /// Whether it does nothing, as what compilers put between functions.
    pub pads: bool,
    /// Addresses that its operands name, other than targets.
    pub names: [Option<(u64, Use)>; 2],
}

impl Step {
    /// The address behind the instruction.
    pub fn next(&self) -> u64 {
        self.address.wrapping_add(self.bytes.into())
    }
}
