//! Errors of a run.

use std::fmt;

/// Why an object is refused. Offsets are bytes from the start of the section, or of the file where
/// no section is named.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecialiseError {
    /// Not a relocatable ELF object of 64 bits, little endian.
    #[error("not a relocatable ELF object of 64 bits in little endian: {found}")]
    NotRelocatable {
        /// What the header says instead.
        found: String,
    },
    /// The object is for a processor that no module of `arch` supports.
    #[error("machine {found} is not supported: only x86-64 (62) and AArch64 (183) are")]
    Machine {
        /// The machine number of the header.
        found: u16,
    },
    /// Headers, tables or contents lie outside the file, or contradict each other.
    #[error("{what}{}: {reason}", InSection(section))]
    Damaged {
        /// The part of the object.
        what: &'static str,
        /// The section it belongs to; empty for the file itself.
        section: String,
        /// What is wrong.
        reason: String,
    },
    /// A count or size is over our limit.
    #[error("{what}: found {found}, at most {limit} accepted")]
    TooLarge {
        /// The counted thing.
        what: &'static str,
        /// What the object says.
        found: u64,
        /// What we accept.
        limit: u64,
    },
    /// Blocks are to be counted on a processor whose instructions are not followed.
    #[error("--instrument is for x86-64 only: record on AArch64 with QEMU (runnel record --kernel)")]
    Uncounted,
    /// The object has no symbol table.
    #[error("the object has no symbols: it was stripped")]
    Stripped,
    /// The object was built without one section for each function.
    #[error(
        "the object has no section for each function ({functions} functions, {sections} code sections): build it with \
         CONFIG_LD_DEAD_CODE_DATA_ELIMINATION"
    )]
    NoFunctionSections {
        /// Functions with a size.
        functions: usize,
        /// Sections that hold code.
        sections: usize,
    },
    /// A relocation of a kind that we do not know how to move.
    #[error("relocation of unknown kind {kind} in {section} at offset {offset:#x}")]
    Relocation {
        /// Number of the kind in the processor's ABI.
        kind: u32,
        /// The section that is relocated.
        section: String,
        /// Offset in it.
        offset: u64,
    },
    /// No side tables are known for this release of the kernel.
    #[error("no side tables are known for kernel {release}; known: {known}")]
    Release {
        /// What the kernel says.
        release: String,
        /// The releases that are known.
        known: &'static str,
    },
    /// A variable that cannot be fixed.
    #[error("variable '{name}' cannot be fixed: {reason}")]
    Fixed {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A name that the caller asked for is not in the object.
    #[error("{what} '{name}' is not in the object")]
    NotFound {
        /// The kind of thing.
        what: &'static str,
        /// The name.
        name: String,
    },
}

struct InSection<'a>(&'a str);

impl fmt::Display for InSection<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(formatter, " of section {}", self.0) }
    }
}
