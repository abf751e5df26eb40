//! What lies in which slot of the disk cache. Slots are used in turn, which flash likes; the one written longest ago goes first.

use std::collections::HashMap;

use crate::job::BlockKey;

/// Slots of the disk cache.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    slots: Vec<Option<BlockKey>>,
    index: HashMap<BlockKey, u32>,
    hand: usize,
}

impl Shelf {
    pub fn new(slots: u32) -> Shelf {
        Shelf { slots: vec![None; slots as usize], ..Shelf::default() }
    }

    pub fn find(&self, key: &BlockKey) -> Option<u32> {
        self.index.get(key).copied()
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// A slot for a block that has none; `None` if there is no cache.
    pub fn place(&mut self, key: BlockKey) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let slot = self.hand;
        self.hand = (self.hand + 1) % self.slots.len();
        self.put(slot as u32, key);
        Some(slot as u32)
    }

    /// What was found at the start.
    pub fn put(&mut self, slot: u32, key: BlockKey) {
        let Some(place) = self.slots.get_mut(slot as usize) else { return };
        if let Some(old) = place.replace(key) {
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
