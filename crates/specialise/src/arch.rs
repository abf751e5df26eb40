//! What differs between processors: relocations, and what instructions say about the references in them.

mod x86_64;

use std::ops::Range;

use crate::SpecialiseError;
use crate::object::Section;

/// The field that a relocation writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Bytes; none for a relocation that does nothing.
    pub bytes: u8,
    /// Whether the value counts from the field's own place.
    pub relative: bool,
}

/// How an instruction, or data, uses a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Control goes there, and nothing else learns the address.
    Branch,
    /// The address is taken or memory there is used, and nothing is added to it.
    Address,
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

/// A processor.
pub(crate) trait Architecture: Sync {
    /// The field of a relocation of `kind`; `None` if the kind is unknown.
    fn field(&self, kind: u32) -> Option<Field>;

    /// Kind of a relocation that a [`LocalReference`] of four bytes becomes when both ends move.
    fn relative_kind(&self) -> u32;

    /// Decodes `ranges` of `section`, which do not overlap and ascend.
    fn decode(&self, section: &Section<'_>, ranges: &[Range<u64>]) -> Code;

    /// Whether `bytes` of code only fill.
    fn is_padding(&self, bytes: &[u8]) -> bool;

    /// Whether a return is among the instructions of a function.
    fn returns(&self, bytes: &[u8]) -> bool;

    /// Addresses that go into argument registers and from there to a call, and nowhere else: the field of each, and that of
    /// the call.
    fn arguments(&self, section: &Section<'_>, range: Range<u64>) -> Vec<(u64, u64)>;

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
        x86_64::MACHINE => Ok(&x86_64::X86_64),
        found => Err(SpecialiseError::Machine { found }),
    }
}
