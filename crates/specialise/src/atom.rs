//! Atoms: the smallest parts of the kernel that are kept or removed.
//!
//! An atom is a run of bytes in a section: a function, a variable, an entry of a side table, a
//! string. Most functions and variables have a section of their own. But `ld -r` merges sections of
//! the same name (inline functions that were compiled many times), and `__init`, `__sched` or
//! `__read_mostly` name one section for many functions. Those sections are divided at symbols. An
//! atom that may depend on its neighbour stays with it: code that runs into the next function, data
//! that is reached from a neighbour's address.

/// Number of an atom.
pub(crate) type AtomId = u32;

/// A run of bytes that lives or goes as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Atom {
    /// Index of its section.
    pub section: u32,
    /// Where it starts in the section.
    pub start: u64,
    /// Where its contents end; filling up to the next atom is left out.
    pub end: u64,
    /// Alignment of its start in bytes, a power of two.
    pub align: u64,
}
