//! The parts of a coverage: scenarios, functions, blocks.

use std::fmt;

/// [`Function::order`] where the order is not known: behind all others.
pub const ORDER_UNKNOWN: u32 = u32::MAX;

/// What was executed in some scenarios, of one release of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Release of the kernel, as `uname -r` says it.
    pub release: String,
    /// Where this is known from, by name.
    pub scenarios: Vec<Scenario>,
    /// Functions that ran, by name, each name once.
    pub functions: Vec<Function>,
}

/// One recording.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scenario {
    /// What it was called.
    pub name: String,
    /// How it was recorded.
    pub how: How,
    /// Functions that ran in it.
    pub functions: u32,
    /// Blocks that ran in it: runs of bytes that were executed in the same phases.
    pub blocks: u32,
}

/// How a scenario was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// By QEMU's log: all blocks, and the order of functions.
    Qemu,
    /// By an instrumented kernel: all blocks, no order.
    Instrumented,
    /// By a device with frozen code: functions that had to be thawed, as a whole, no order.
    Thawed,
}

impl How {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Qemu, Self::Instrumented, Self::Thawed];

    /// As the file says it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Instrumented => "instrumented",
            Self::Thawed => "thawed",
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// A part of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the device's service began.
    Boot,
    /// From then on.
    Service,
    /// Both, which cannot be told apart.
    Whole,
}

impl Phase {
    /// Whether it may be before the service began.
    pub(crate) fn boot(self) -> bool {
        self != Self::Service
    }

    /// Whether it may be after.
    pub(crate) fn service(self) -> bool {
        self != Self::Boot
    }
}

/// A function that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its symbol. Several functions of one kernel may have it: then this stands for all of them.
    pub name: String,
    /// Its size in the kernel that it was recorded in (of several, the largest); 0 if that is not
    /// known.
    pub bytes: u64,
    /// Its rank: first those that ran in service by their first execution there, then the others by
    /// their first execution. [`ORDER_UNKNOWN`] if it is not known.
    pub order: u32,
    /// Whether it ran before the service began.
    pub boot: bool,
    /// Whether it ran after.
    pub service: bool,
    /// What of it ran, by offset, without overlaps; the whole function where functions of its name
    /// have different sizes.
    pub blocks: Vec<Block>,
}

/// A run of bytes of a function that were executed in the same phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// From the start of the function.
    pub offset: u32,
    /// How many.
    pub bytes: u32,
    /// Whether it ran before the service began.
    pub boot: bool,
    /// Whether it ran after.
    pub service: bool,
}

impl Block {
    /// Where it ends.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.bytes)
    }
}

impl Function {
    /// Bytes that were executed.
    pub fn executed(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.bytes)).sum()
    }

    /// Bytes that were executed after the service began.
    pub fn executed_in_service(&self) -> u64 {
        self.blocks.iter().filter(|block| block.service).map(|block| u64::from(block.bytes)).sum()
    }
}

impl Coverage {
    /// The function of this name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        let found = self.functions.binary_search_by(|function| function.name.as_str().cmp(name)).ok()?;
        self.functions.get(found)
    }
}
