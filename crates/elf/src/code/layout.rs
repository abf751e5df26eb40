//! The memory of an object, as far as following its code needs it.

use std::collections::BTreeMap;

use super::{Extents, Space};

/// A word that a relocation fills before the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// An address of the same object.
    Address(u64),
    /// A symbol by its index among the object's imports, and what is added to its address.
    Symbol(u32, i64),
    /// What the function at this address returns when the object is loaded (IFUNC).
    Resolver(u64),
}

/// What lies where.
#[derive(Clone, Debug, Default)]
pub struct Layout<'a> {
    /// Memory. Relocations inside instructions must have been applied to its bytes; words are
    /// looked up in `words` first.
    pub space: Space<'a>,
    /// Known functions.
    pub extents: Extents,
    /// Words of 8 bytes that relocations fill, by address.
    pub words: BTreeMap<u64, Word>,
    /// Whether instructions may hold absolute addresses as plain numbers: code that runs only where
    /// it was linked.
    pub is_absolute: bool,
    /// Whether execution goes on behind `ud2`, as in a kernel that makes warnings of them.
    pub traps_return: bool,
    /// Whether functions keep no registers for their callers, as Go's do.
    pub keeps_no_registers: bool,
}

impl Layout<'_> {
    /// The address that the word at `address` holds when the program runs, if it is one of this
    /// object.
    pub fn pointer(&self, address: u64) -> Option<u64> {
        match self.words.get(&address) {
            Some(Word::Address(target)) => Some(*target),
            Some(_) => None,
            None => self.space.number(address, 8),
        }
    }

    /// The known function that holds `address`, or what lies between two known ones.
    pub fn extent(&self, address: u64) -> (u64, u64) {
        if let Some(extent) = self.extents.holding(address) {
            return (extent.start, extent.end);
        }
        let end = self.space.region(address).map_or(address, |region| region.address + region.bytes.len() as u64);
        (address, end.min(self.extents.next_start(address).unwrap_or(u64::MAX)))
    }
}
