//! The clean blocks in memory, over all files, and which goes first when there is no room.
//!
//! Used blocks go first, the least recently used one before others. Pushed blocks that nobody has
//! used come in the order in which they will be needed, so a new one never replaces an older one:
//! when they fill their part of the budget, further ones are not kept.

use std::collections::BTreeMap;

/// Of the budget, what pushed blocks that were not used yet may take: three fourths.
const FRESH_PART: (usize, usize) = (3, 4);

/// A block of a file that is known here: its key, and the index of the block.
pub(crate) type BlockPlace = (u64, u32);

/// When a block was put or used last; names it in here.
pub(crate) type Stamp = u64;

/// The order of blocks in memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    bytes_max: usize,
    used_bytes: usize,
    fresh_bytes: usize,
    clock: Stamp,
    used: BTreeMap<Stamp, (BlockPlace, usize)>,
    fresh: BTreeMap<Stamp, (BlockPlace, usize)>,
}

impl Memory {
    pub fn new(bytes_max: usize) -> Memory {
        Memory { bytes_max, ..Memory::default() }
    }

    pub fn bytes(&self) -> usize {
        self.used_bytes + self.fresh_bytes
    }

    /// Whether pushed blocks of so many bytes may be kept.
    pub fn takes_fresh(&self, bytes: usize) -> bool {
        self.fresh_bytes + bytes <= self.bytes_max / FRESH_PART.1 * FRESH_PART.0
    }

    /// A block came in; `fresh`: nobody waits for it.
    pub fn insert(&mut self, place: BlockPlace, bytes: usize, fresh: bool) -> Stamp {
        self.clock += 1;
        if fresh {
            self.fresh_bytes += bytes;
            self.fresh.insert(self.clock, (place, bytes));
        } else {
            self.used_bytes += bytes;
            self.used.insert(self.clock, (place, bytes));
        }
        self.clock
    }

    /// A block was used: its new stamp.
    pub fn touch(&mut self, stamp: Stamp) -> Stamp {
        match self.remove(stamp) {
            Some((place, bytes)) => self.insert(place, bytes, false),
            None => stamp,
        }
    }

    /// A block went away.
    pub fn remove(&mut self, stamp: Stamp) -> Option<(BlockPlace, usize)> {
        if let Some((place, bytes)) = self.used.remove(&stamp) {
            self.used_bytes -= bytes;
            return Some((place, bytes));
        }
        let (place, bytes) = self.fresh.remove(&stamp)?;
        self.fresh_bytes -= bytes;
        Some((place, bytes))
    }

    /// The next block that must go, if there are too many.
    pub fn pop_excess(&mut self) -> Option<BlockPlace> {
        if self.bytes() <= self.bytes_max {
            return None;
        }
        let stamp = *self.used.first_key_value().or(self.fresh.first_key_value())?.0;
        self.remove(stamp).map(|(place, _)| place)
    }
}
