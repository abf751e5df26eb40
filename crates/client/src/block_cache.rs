//! A bounded cache of decoded blocks, least recently used out first.
//!
//! A block holds pages beside the one that was asked for, and the next READs often want those. Each entry remembers
//! which parts were taken, so that on its way out the pages nobody asked for yet can be stored into the page cache
//! instead of being thrown away: their bytes were paid for. The cache does not do this itself; it hands evicted blocks
//! back to the session.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use units::BlockId;

/// Bytes of a block that one bit of the record of taken parts stands for: the smallest chunk an image may have. Two
/// tail chunks in one cell make each other count as taken, which only means that one of them is not stored early.
const CELL_BYTES: usize = 256;

/// A decoded block, shared with whoever is copying from it.
pub(crate) type BlockBytes = Arc<Vec<u8>>;

/// The cache.
#[derive(Debug)]
pub(crate) struct BlockCache {
    capacity_bytes: usize,
    used_bytes: usize,
    entries: HashMap<BlockId, Entry>,
    /// Time of last use -> block; times are unique.
    order: BTreeMap<u64, BlockId>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    bytes: BlockBytes,
    taken: Taken,
    speculated: bool,
    used: bool,
    used_at: u64,
}

/// Which parts of a block were taken by READs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken(Vec<u64>);

/// A block that left the cache.
#[derive(Debug)]
pub(crate) struct Evicted {
    pub block: BlockId,
    pub bytes: BlockBytes,
    pub taken: Taken,
    /// Readahead asked for it.
    pub speculated: bool,
    /// At least one page of it was read.
    pub used: bool,
}

impl BlockCache {
    /// An empty cache for at most `capacity_bytes` of decoded blocks.
    pub fn new(capacity_bytes: usize) -> BlockCache {
        BlockCache { capacity_bytes, used_bytes: 0, entries: HashMap::new(), order: BTreeMap::new(), clock: 0 }
    }

    pub fn contains(&self, block: BlockId) -> bool {
        self.entries.contains_key(&block)
    }

    #[cfg(test)]
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// The block, which becomes the most recently used one.
    pub fn get(&mut self, block: BlockId) -> Option<BlockBytes> {
        let entry = self.entries.get_mut(&block)?;
        self.clock += 1;
        self.order.remove(&entry.used_at);
        entry.used_at = self.clock;
        self.order.insert(self.clock, block);
        Some(Arc::clone(&entry.bytes))
    }

    /// Notes that `bytes` bytes at `offset` of the block were taken. True at the first use of a block that readahead
    /// brought: the moment to read on.
    pub fn take(&mut self, block: BlockId, offset: usize, bytes: usize) -> bool {
        let Some(entry) = self.entries.get_mut(&block) else { return false };
        entry.taken.mark(offset, bytes);
        let first_use = !entry.used;
        entry.used = true;
        first_use && entry.speculated
    }

    /// Adds a block; it replaces an older copy of itself. What had to leave is returned, oldest first: the new block
    /// itself if it is larger than the cache.
    pub fn insert(&mut self, block: BlockId, bytes: BlockBytes, speculated: bool) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        let taken = Taken::of(bytes.len());
        if let Some(old) = self.remove(block) {
            // Same contents; only the record of what was taken goes on.
            let entry = Entry { bytes, taken: old.taken, speculated: old.speculated, used: old.used, used_at: 0 };
            self.add(block, entry);
            return evicted;
        }
        self.add(block, Entry { bytes, taken, speculated, used: false, used_at: 0 });
        while self.used_bytes > self.capacity_bytes {
            let Some((_, oldest)) = self.order.first_key_value() else { break };
            evicted.extend(self.remove(*oldest));
        }
        evicted
    }

    fn add(&mut self, block: BlockId, mut entry: Entry) {
        self.clock += 1;
        entry.used_at = self.clock;
        self.used_bytes += entry.bytes.len();
        self.order.insert(self.clock, block);
        self.entries.insert(block, entry);
    }

    fn remove(&mut self, block: BlockId) -> Option<Evicted> {
        let Entry { bytes, taken, speculated, used, used_at } = self.entries.remove(&block)?;
        self.order.remove(&used_at);
        self.used_bytes -= bytes.len();
        Some(Evicted { block, bytes, taken, speculated, used })
    }
}

impl Taken {
    fn of(block_bytes: usize) -> Taken {
        Taken(vec![0; block_bytes.div_ceil(CELL_BYTES).div_ceil(64)])
    }

    /// Whether any byte of the range shares a cell with bytes that were taken.
    pub fn any(&self, offset: usize, bytes: usize) -> bool {
        Taken::cells(offset, bytes).any(|cell| self.0.get(cell / 64).is_some_and(|word| word >> (cell % 64) & 1 == 1))
    }

    fn mark(&mut self, offset: usize, bytes: usize) {
        for cell in Taken::cells(offset, bytes) {
            if let Some(word) = self.0.get_mut(cell / 64) {
                *word |= 1 << (cell % 64);
            }
        }
    }

    fn cells(offset: usize, bytes: usize) -> std::ops::Range<usize> {
        offset / CELL_BYTES..(offset + bytes).div_ceil(CELL_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(bytes: usize) -> BlockBytes {
        Arc::new(vec![bytes as u8; bytes])
    }

    #[test]
    fn taken_parts_are_remembered_by_cells() {
        let mut cache = BlockCache::new(100_000);
        cache.insert(BlockId(1), block(20_000), true);
        assert!(cache.take(BlockId(1), 4096, 4096), "first use of a speculated block");
        assert!(!cache.take(BlockId(1), 0, 1), "only the first");
        cache.insert(BlockId(1), block(20_000), false);
        let gone = cache.insert(BlockId(2), block(90_000), false).remove(0);
        assert!(gone.used && gone.speculated);
        assert!(gone.taken.any(4096, 4096) && gone.taken.any(8191, 1) && gone.taken.any(0, 256));
        assert!(!gone.taken.any(8192, 11_808) && !gone.taken.any(256, 3840));
    }

    #[test]
    fn a_block_larger_than_the_cache_passes_through() {
        let mut cache = BlockCache::new(1000);
        cache.insert(BlockId(1), block(900), false);
        let evicted = cache.insert(BlockId(2), block(1001), false);
        assert_eq!(evicted.iter().map(|gone| gone.block.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(cache.used_bytes(), 0);
    }

    /// The same cache as a list, oldest first.
    struct Model {
        capacity_bytes: usize,
        entries: Vec<(u32, usize)>,
    }

    impl Model {
        fn touch(&mut self, block: u32) -> Option<usize> {
            let at = self.entries.iter().position(|entry| entry.0 == block)?;
            let entry = self.entries.remove(at);
            self.entries.push(entry);
            Some(entry.1)
        }

        fn insert(&mut self, block: u32, bytes: usize) -> Vec<u32> {
            if self.touch(block).is_some() {
                self.entries.last_mut().unwrap().1 = bytes;
                return Vec::new();
            }
            self.entries.push((block, bytes));
            let mut evicted = Vec::new();
            while self.entries.iter().map(|entry| entry.1).sum::<usize>() > self.capacity_bytes {
                evicted.push(self.entries.remove(0).0);
            }
            evicted
        }
    }

    proptest! {
        #[test]
        fn ref_cache_behaves_like_a_list(steps in prop::collection::vec((any::<bool>(), 0u32..12), 1..300)) {
            let mut cache = BlockCache::new(10_000);
            let mut model = Model { capacity_bytes: 10_000, entries: Vec::new() };
            for (insert, id) in steps {
                // A block's size never changes: blocks are immutable.
                let bytes = (id as usize * 977) % 6000 + 1;
                if insert {
                    let evicted: Vec<u32> =
                        cache.insert(BlockId(id), block(bytes), false).iter().map(|gone| gone.block.0).collect();
                    prop_assert_eq!(evicted, model.insert(id, bytes));
                } else {
                    prop_assert_eq!(cache.get(BlockId(id)).map(|found| found.len()), model.touch(id));
                }
                prop_assert_eq!(cache.used_bytes(), model.entries.iter().map(|entry| entry.1).sum::<usize>());
                prop_assert_eq!(cache.order.len(), cache.entries.len());
            }
        }
    }
}
