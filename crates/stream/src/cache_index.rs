//! Which block is in which slot of the disk cache. Slots are written in turn, which suits flash;
//! the block that was written longest ago goes first.

use std::collections::HashMap;

use crate::job::BlockKey;

/// The blocks in the slots of the disk cache.
#[derive(Debug, Default)]
pub(crate) struct CacheIndex {
    slots: Vec<Option<BlockKey>>,
    index: HashMap<BlockKey, u32>,
    /// The slot that is written next.
    next: usize,
}

impl CacheIndex {
    pub fn new(slots: u32) -> CacheIndex {
        CacheIndex { slots: vec![None; slots as usize], ..CacheIndex::default() }
    }

    pub fn find(&self, key: &BlockKey) -> Option<u32> {
        self.index.get(key).copied()
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// A slot for a block that has none; `None` if there is no cache.
    pub fn assign(&mut self, key: BlockKey) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let slot = self.next;
        self.next = (self.next + 1) % self.slots.len();
        self.put(slot as u32, key);
        Some(slot as u32)
    }

    /// Notes a block that was found at the start.
    pub fn put(&mut self, slot: u32, key: BlockKey) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        if let Some(old) = entry.replace(key) {
            self.index.remove(&old);
        }
        if let Some(other) = self.index.insert(key, slot) {
            self.slots[other as usize] = None;
        }
    }

    /// A slot does not hold this block after all.
    pub fn forget(&mut self, key: &BlockKey) {
        if let Some(slot) = self.index.remove(key) {
            self.slots[slot as usize] = None;
        }
    }
}
