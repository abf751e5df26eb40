//! What differs between processors: relocations, and what instructions say about the references in
//! them.

mod aarch64;
mod x86_64;

use std::ops::Range;

use crate::SpecialiseError;
use crate::object::Section;
use crate::value::{State, Value};

pub(crate) use aarch64::MACHINE as AARCH64;
pub(crate) use x86_64::MACHINE as X86_64;

/// The field that a relocation writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Bytes; none for a relocation that does nothing.
    pub bytes: u8,
    /// Whether the value counts from the field's own place.
    pub relative: bool,
    /// Bits of the field that stay as they are: the rest of the instruction.
    pub kept: u32,
}

/// How an instruction, or data, uses a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Control goes there, and nothing else learns the address.
    Branch,
    /// The address is taken or memory there is written, and nothing is added to it.
    Address,
    /// So many bytes at the address are read, and nothing else is done with it.
    Read(u8),
    /// A register is added, so that what is used may lie beside the address.
    Indexed,
    /// No instruction was found around it.
    Unmatched,
}

/// What decoding says of a relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    /// From the field to the end of its instruction: by so much a relative field counts too short.
    pub to_end: u8,
    /// How it is used.
    pub how: Use,
}

/// A reference without a relocation: the assembler knew the distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalReference {
    /// The field, in bytes from the start of the section.
    pub offset: u64,
    /// Bytes of the field.
    pub bytes: u8,
    /// End of the instruction.
    pub end: u64,
    /// What it refers to, in bytes from the start of the section.
    pub target: u64,
    /// Whether control goes there.
    pub branch: bool,
}

/// What decoding says of a section of code.
#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    /// One for each relocation of the section, in their order.
    pub operands: Vec<Operand>,
    /// References that leave the range in which they were found, by offset.
    pub locals: Vec<LocalReference>,
    /// Ends of ranges over which control may run into what follows.
    pub falls: Vec<u64>,
}

/// Where a direct branch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// To this offset of the section, in the range that was decoded.
    Inside(u64),
    /// Where the reference of the field at this offset says.
    Reference(u64),
}

/// What comes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// The next one.
    Next,
    /// The goal.
    Jump(Goal),
    /// The goal or the next one.
    Branch(Goal),
    /// A function, then the next one.
    Call(Goal),
    /// Some function, then the next one.
    CallAny,
    /// Some function, for good.
    JumpAny,
    /// What an entry of 8 bytes of the table says that the displacement at `field` refers to.
    Table {
        /// The displacement.
        field: u64,
        /// The register with the number of the entry.
        index: u8,
    },
    /// The caller.
    Return,
    /// The next one, but registers may have changed in ways that are not known.
    Foreign,
}

/// An instruction, as far as control goes. Offsets count from the start of the section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Its first byte.
    pub start: u64,
    /// The byte behind it.
    pub end: u64,
    /// Field of a direct branch or of a displacement.
    pub field: u64,
    /// Bytes of the field of a direct branch; else 0.
    pub field_bytes: u8,
    /// What comes after it.
    pub transfer: Transfer,
    /// Whether it does nothing, as what fills gaps.
    pub is_filling: bool,
}

/// A branch in another form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoded {
    /// Bytes that go.
    pub cut: Vec<Range<u64>>,
    /// Bytes that are others.
    pub patches: Vec<(u64, u8)>,
    /// Where the distance is.
    pub field: u64,
    /// Its bytes.
    pub field_bytes: u8,
}

/// What instructions learn from outside.
pub(crate) trait Surroundings {
    /// What so many bytes hold at the place that the field at this offset refers to.
    fn load(&self, field: u64, bytes: usize) -> Value;

    /// The address that the field at this offset refers to; `None` if there is no reference.
    fn address(&self, field: u64) -> Option<Value>;

    /// The argument of this number of the system call.
    fn argument(&self, number: usize) -> Value;
}

/// A processor.
pub(crate) trait Architecture: Sync {
    /// The field of a relocation of `kind`; `None` if the kind is unknown.
    fn field(&self, kind: u32) -> Option<Field>;

    /// Kind of a relocation that a [`LocalReference`] of four bytes becomes when both ends move.
    fn relative_kind(&self) -> u32;

    /// Whether instructions are followed one by one ([`Architecture::steps`] and what works on
    /// steps): for the passes that decide branches, cut blocks, and count.
    fn follows_control(&self) -> bool;

    /// Decodes `ranges` of `section`, which do not overlap and ascend.
    fn decode(&self, section: &Section<'_>, ranges: &[Range<u64>]) -> Code;

    /// Whether `bytes` of code only fill.
    fn is_padding(&self, bytes: &[u8]) -> bool;

    /// Whether a return is among the instructions of a function.
    fn returns(&self, bytes: &[u8]) -> bool;

    /// Addresses that go into argument registers and from there to a call, and nowhere else: the
    /// field of each, and that of the call.
    fn arguments(&self, section: &Section<'_>, range: Range<u64>) -> Vec<(u64, u64)>;

    /// The instructions in `range` one after the other; `None` if a part of it is none.
    fn steps(&self, section: &Section<'_>, range: Range<u64>) -> Option<Vec<Step>>;

    /// Changes `state`, which holds before a step, to what holds behind it.
    fn transfer(&self, section: &Section<'_>, step: &Step, state: &mut State, around: &dyn Surroundings);

    /// The states with which the conditional branch of a step goes on at the next one and at its
    /// goal; `None`: it never does.
    fn decide(&self, section: &Section<'_>, step: &Step, state: &State) -> [Option<State>; 2];

    /// A branch that is always taken (`is_always`) or that does not go far (`is_short`) in less
    /// bytes; `None` if it has a form that is not known, and stays.
    fn encode(&self, section: &Section<'_>, step: &Step, is_always: bool, is_short: bool) -> Option<Encoded>;

    /// Registers in which functions get their first arguments.
    fn argument_registers(&self) -> [usize; 6];

    /// The register in which functions return.
    fn result_register(&self) -> usize;

    /// The function that every function ends in where returns are mitigated.
    fn return_thunk(&self) -> &'static [u8];

    /// The function that is called first in functions that may be traced, and leaves everything as
    /// it is.
    fn trace_marker(&self) -> &'static [u8];

    /// What a place that indirect branches may come to begins with, where they are checked.
    fn landing(&self) -> &'static [u8];

    /// A store of 1 into a byte that changes nothing else, and where the field of its address is.
    fn counting(&self) -> (&'static [u8], u64);

    /// A short branch, or what stands in its place while it is not taken, in the form that goes
    /// `distance` far from its end; `None` if it has none.
    fn widen(&self, bytes: &[u8], distance: i32) -> Option<Vec<u8>>;

    /// The instruction of one byte that does nothing.
    fn nothing(&self) -> u8;

    /// What the linker fills gaps in code with.
    fn filler(&self) -> u8;

    /// Fills `bytes` with instructions that trap, from the start on.
    fn fill_trap(&self, bytes: &mut [u8]);
}

/// The processor of an object by its machine number.
///
/// # Errors
/// None of ours.
pub(crate) fn of_machine(machine: u16) -> Result<&'static dyn Architecture, SpecialiseError> {
    match machine {
        X86_64 => Ok(&x86_64::X86_64),
        AARCH64 => Ok(&aarch64::Aarch64),
        found => Err(SpecialiseError::Machine { found }),
    }
}
