//! A bounded cache of blocks in two levels, least recently used out first.
//!
//! A block holds pages beside the one that was asked for, and the next READs often want those. The first level keeps few
//! blocks decoded. The second keeps many as they were stored, verified and still compressed: for the memory of one
//! decoded block it holds three, and a block is decoded again when it is wanted. That matters most in a run which the
//! server learns from: as long as a block is here, every touch of its pages is seen. Blocks of which every part was taken
//! have nothing more to tell and leave the second level first. It lives in one piece of memory (`slab`), and buffers for
//! decoded blocks are used again, so that the cache costs what its budgets say.
//!
//! Each entry remembers which parts were taken, so that on its way out of both levels the pages nobody asked for yet can
//! be stored into the page cache instead of being thrown away: their bytes were paid for. The cache does not do this
//! itself; it hands evicted blocks back to the session.
//!
//! A block that was inserted without its stored bytes (those of a local file, which can be read again) lives in the
//! first level alone. Sizes are in bytes; the second level counts stored bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use image::Metadata;
use units::BlockId;

use crate::slab::{Slab, Slots};

/// Bytes of a block that one bit of the record of taken parts stands for: the smallest chunk an image may have. Two
/// tail chunks in one cell make each other count as taken, which only means that one of them is not stored early.
const CELL_BYTES: usize = 256;

/// A decoded block, shared with whoever is copying from it.
pub(crate) type BlockBytes = Arc<Vec<u8>>;

/// Buffers of decoded blocks kept for the next ones: two connections, and a READ at the same time.
const SPARES_MAX: usize = 3;

/// How a stored block is decoded.
#[derive(Clone, Debug)]
enum Coding {
    /// As the image says of this block.
    Block(Arc<Metadata>, BlockId),
    /// By a codec alone.
    #[cfg(test)]
    Plain(codec::Codec),
}

impl Coding {
    /// Decodes `stored` into `raw`; `None` only if the bytes were never verified.
    fn decode(&self, stored: &[u8], _raw_bytes: usize, raw: &mut Vec<u8>) -> Option<()> {
        match self {
            Coding::Block(metadata, block) => metadata.decode_verified(*block, stored, raw).ok(),
            #[cfg(test)]
            Coding::Plain(codec) => codec::decode(*codec, stored, _raw_bytes, raw).ok(),
        }
    }
}

/// A block as it lies in the image, its hash checked.
#[derive(Clone, Debug)]
pub(crate) struct StoredBlock {
    coding: Coding,
    pub raw_bytes: usize,
    pub bytes: Bytes,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct BlockCache {
    decoded: Level,
    stored: Level,
    entries: HashMap<BlockId, Entry>,
    clock: u64,
    decodes: u64,
    slab: Slab,
    spares: Vec<Vec<u8>>,
    /// The stored bytes of the block that is being decoded, in one piece.
    joined: Vec<u8>,
}

/// One level: its budget, and its blocks by time of last use (times are unique).
#[derive(Debug)]
struct Level {
    capacity_bytes: usize,
    used_bytes: usize,
    order: BTreeMap<u64, BlockId>,
}

/// A block in one level or both.
#[derive(Debug)]
struct Entry {
    decoded: Option<BlockBytes>,
    stored: Option<Kept>,
    raw_bytes: usize,
    taken: Taken,
    speculated: bool,
    used: bool,
    used_at: u64,
}

/// A stored block in the slab.
#[derive(Debug)]
struct Kept {
    coding: Coding,
    slots: Slots,
}

/// Which parts of a block were taken by READs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken(Vec<u64>);

/// A block that left the cache.
#[derive(Debug)]
pub(crate) struct Evicted {
    pub block: BlockId,
    pub taken: Taken,
    /// Readahead asked for it.
    pub speculated: bool,
    /// At least one page of it was read.
    pub used: bool,
    decoded: Option<BlockBytes>,
    stored: Option<StoredBlock>,
}

impl StoredBlock {
    /// The stored bytes of a block that were checked against its hash.
    pub fn of(metadata: &Arc<Metadata>, block: BlockId, bytes: Bytes) -> Option<StoredBlock> {
        let entry = metadata.block(block)?;
        let coding = Coding::Block(Arc::clone(metadata), block);
        Some(StoredBlock { coding, raw_bytes: entry.raw_bytes as usize, bytes })
    }

    /// Decodes the block; `None` only if its bytes were never verified.
    fn decode(&self) -> Option<BlockBytes> {
        let mut raw = Vec::new();
        self.coding.decode(&self.bytes, self.raw_bytes, &mut raw)?;
        Some(Arc::new(raw))
    }
}

impl Evicted {
    /// Its bytes, decoded again if only the stored ones were kept.
    pub fn bytes(&self) -> Option<BlockBytes> {
        let decoded = self.decoded.clone();
        decoded.or_else(|| self.stored.as_ref().and_then(StoredBlock::decode))
    }

    /// Memory it holds.
    pub fn held_bytes(&self) -> usize {
        let decoded = self.decoded.as_ref().map_or(0, |bytes| bytes.len());
        decoded + self.stored.as_ref().map_or(0, |stored| stored.bytes.len())
    }
}

impl Level {
    fn new(capacity_bytes: usize) -> Level {
        Level { capacity_bytes, used_bytes: 0, order: BTreeMap::new() }
    }

    fn add(&mut self, at: u64, block: BlockId, bytes: usize) {
        self.order.insert(at, block);
        self.used_bytes += bytes;
    }

    fn remove(&mut self, at: u64, bytes: usize) {
        self.order.remove(&at);
        self.used_bytes -= bytes;
    }

    fn used(&mut self, before: u64, now: u64) {
        if let Some(block) = self.order.remove(&before) {
            self.order.insert(now, block);
        }
    }

    /// The block that has to leave next, if one has to.
    fn surplus(&self) -> Option<BlockId> {
        let over = self.used_bytes > self.capacity_bytes;
        self.order.first_key_value().filter(|_| over).map(|(_, block)| *block)
    }
}

impl BlockCache {
    /// An empty cache for at most `decoded_bytes` of decoded blocks and `stored_bytes` of blocks as they are stored.
    pub fn new(decoded_bytes: usize, stored_bytes: usize) -> BlockCache {
        let slab = Slab::new(stored_bytes);
        BlockCache {
            decoded: Level::new(decoded_bytes),
            stored: Level::new(slab.capacity_bytes()),
            entries: HashMap::new(),
            clock: 0,
            decodes: 0,
            slab,
            spares: Vec::new(),
            joined: Vec::new(),
        }
    }

    /// Whether [`BlockCache::get`] would find the block.
    pub fn contains(&self, block: BlockId) -> bool {
        self.entries.contains_key(&block)
    }

    /// Bytes of decoded blocks, and of stored ones with what the slab adds.
    #[cfg(test)]
    pub fn used_bytes(&self) -> (usize, usize) {
        (self.decoded.used_bytes, self.stored.used_bytes)
    }

    /// Blocks that were decoded again so far.
    pub fn decodes(&self) -> u64 {
        self.decodes
    }

    /// A buffer to decode a block into, one that was used before if there is one.
    pub fn spare(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// The block, which becomes the most recently used one. It is decoded if need be: a tenth of a millisecond for a
    /// block of 64 KiB, spent by the caller.
    pub fn get(&mut self, block: BlockId) -> Option<BlockBytes> {
        self.clock += 1;
        let entry = self.entries.get_mut(&block)?;
        self.decoded.used(entry.used_at, self.clock);
        self.stored.used(entry.used_at, self.clock);
        entry.used_at = self.clock;
        if let Some(bytes) = &entry.decoded {
            return Some(Arc::clone(bytes));
        }
        // Room first: the block that leaves gives its buffer. Of what leaves here nothing is lost: a session has either
        // only blocks with stored bytes, or only blocks without, and then none is decoded again.
        let raw_bytes = entry.raw_bytes;
        self.decoded.used_bytes += raw_bytes;
        self.shed_decoded();
        self.decoded.used_bytes -= raw_bytes;
        let mut raw = self.spare();
        let kept = self.entries.get(&block)?.stored.as_ref()?;
        self.slab.read(&kept.slots, &mut self.joined);
        kept.coding.decode(&self.joined, raw_bytes, &mut raw)?;
        self.decodes += 1;
        let bytes = Arc::new(raw);
        self.entries.get_mut(&block)?.decoded = Some(Arc::clone(&bytes));
        self.decoded.add(self.clock, block, bytes.len());
        Some(bytes)
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

    /// Notes that the whole block will have been handed on, and returns it as if it left, with what was taken before.
    pub fn hand_on(&mut self, block: BlockId, bytes: &BlockBytes) -> Option<Evicted> {
        let entry = self.entries.get_mut(&block)?;
        let taken = entry.taken.clone();
        entry.taken.mark(0, entry.raw_bytes);
        let (speculated, used) = (entry.speculated, entry.used);
        Some(Evicted { block, taken, speculated, used, decoded: Some(Arc::clone(bytes)), stored: None })
    }

    /// Adds a block to the first level, and to the second if `stored` is given and has room there; it replaces an older
    /// copy of itself. What had to leave both levels is returned, oldest first: the new block itself if it is too large.
    pub fn insert(
        &mut self,
        block: BlockId,
        bytes: BlockBytes,
        stored: Option<StoredBlock>,
        speculated: bool,
    ) -> Vec<Evicted> {
        self.clock += 1;
        let stored = stored.filter(|stored| Slab::held_bytes(stored.bytes.len()) <= self.stored.capacity_bytes);
        let raw_bytes = bytes.len();
        let taken = Taken::of(raw_bytes);
        let mut entry =
            Entry { decoded: None, stored: None, raw_bytes, taken, speculated, used: false, used_at: self.clock };
        if let Some(old) = self.remove(block) {
            // Same contents; only the record of what was taken goes on.
            (entry.taken, entry.speculated, entry.used) = (old.taken, old.speculated, old.used);
        }
        let mut evicted = Vec::new();
        if let Some(stored) = stored {
            let wanted = Slab::held_bytes(stored.bytes.len());
            while self.stored.used_bytes + wanted > self.stored.capacity_bytes {
                let Some(next) = self.least_wanted() else { break };
                evicted.extend(self.remove(next));
            }
            if let Some(slots) = self.slab.put(&stored.bytes) {
                self.stored.add(self.clock, block, wanted);
                entry.stored = Some(Kept { coding: stored.coding, slots });
            }
        }
        entry.decoded = Some(bytes);
        self.decoded.add(self.clock, block, raw_bytes);
        self.entries.insert(block, entry);
        evicted.extend(self.shed_decoded());
        evicted
    }

    /// The block of the second level that leaves next: the oldest that was taken wholly, else the oldest.
    fn least_wanted(&self) -> Option<BlockId> {
        let spent = |block: &&BlockId| self.entries.get(block).is_some_and(|entry| entry.taken.is_all(entry.raw_bytes));
        let oldest = || self.stored.order.values().next();
        self.stored.order.values().find(spent).or_else(oldest).copied()
    }

    /// Brings the first level within its budget; returns the blocks that were in no other.
    fn shed_decoded(&mut self) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        while let Some(oldest) = self.decoded.surplus() {
            match self.entries.get_mut(&oldest) {
                Some(Entry { decoded, stored: Some(_), used_at, raw_bytes, .. }) => {
                    self.decoded.remove(*used_at, *raw_bytes);
                    if let Some(raw) = decoded.take().and_then(Arc::into_inner)
                        && self.spares.len() < SPARES_MAX
                    {
                        self.spares.push(raw);
                    }
                }
                _ => evicted.extend(self.remove(oldest)),
            }
        }
        evicted
    }

    fn remove(&mut self, block: BlockId) -> Option<Evicted> {
        let Entry { decoded, stored, raw_bytes, taken, speculated, used, used_at } = self.entries.remove(&block)?;
        if decoded.is_some() {
            self.decoded.remove(used_at, raw_bytes);
        }
        let stored = stored.map(|Kept { coding, slots }| {
            self.stored.remove(used_at, Slab::held_bytes(slots.bytes()));
            let mut bytes = Vec::with_capacity(slots.bytes());
            self.slab.read(&slots, &mut bytes);
            self.slab.free(slots);
            StoredBlock { coding, raw_bytes, bytes: bytes.into() }
        });
        Some(Evicted { block, taken, speculated, used, decoded, stored })
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

    /// Whether every part of a block of this size was taken.
    fn is_all(&self, block_bytes: usize) -> bool {
        Taken::cells(0, block_bytes).all(|cell| self.0.get(cell / 64).is_some_and(|word| word >> (cell % 64) & 1 == 1))
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
    use crate::slab::SLOT_BYTES;
    use codec::Codec;
    use proptest::prelude::*;

    fn block(bytes: usize) -> BlockBytes {
        Arc::new(vec![bytes as u8; bytes])
    }

    /// The same block as it might be stored: a few bytes.
    fn stored(bytes: usize) -> StoredBlock {
        let mut out = Vec::new();
        codec::encode(Codec::Zstd, 1, &block(bytes), &mut out).unwrap();
        StoredBlock { coding: Coding::Plain(Codec::Zstd), raw_bytes: bytes, bytes: out.into() }
    }

    #[test]
    fn taken_parts_are_remembered_by_cells() {
        let mut cache = BlockCache::new(100_000, 0);
        cache.insert(BlockId(1), block(20_000), None, true);
        assert!(cache.take(BlockId(1), 4096, 4096), "first use of a speculated block");
        assert!(!cache.take(BlockId(1), 0, 1), "only the first");
        cache.insert(BlockId(1), block(20_000), None, false);
        let gone = cache.insert(BlockId(2), block(90_000), None, false).remove(0);
        assert!(gone.used && gone.speculated);
        assert!(gone.taken.any(4096, 4096) && gone.taken.any(8191, 1) && gone.taken.any(0, 256));
        assert!(!gone.taken.any(8192, 11_808) && !gone.taken.any(256, 3840));
    }

    #[test]
    fn a_block_larger_than_the_cache_passes_through() {
        let mut cache = BlockCache::new(1000, 0);
        cache.insert(BlockId(1), block(900), None, false);
        let evicted = cache.insert(BlockId(2), block(1001), Some(stored(1001)), false);
        assert_eq!(evicted.iter().map(|gone| gone.block.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(cache.used_bytes(), (0, 0));
    }

    #[test]
    fn what_leaves_the_first_level_is_decoded_again() {
        let mut cache = BlockCache::new(11_000, 5 * SLOT_BYTES);
        for id in 1..=5 {
            assert!(
                cache
                    .insert(BlockId(id), block(5000 + id as usize), Some(stored(5000 + id as usize)), false)
                    .is_empty()
            );
        }
        assert_eq!((cache.used_bytes(), cache.decodes()), ((10_009, 5 * SLOT_BYTES), 0));
        for id in [1, 2, 1, 5] {
            assert_eq!(cache.get(BlockId(id)), Some(block(5000 + id as usize)));
            assert!(cache.used_bytes().0 <= 11_000);
        }
        assert_eq!(cache.decodes(), 3, "two fit at a time");
    }

    #[test]
    fn a_block_that_leaves_both_levels_still_has_its_bytes_and_its_record() {
        let mut cache = BlockCache::new(6100, 2 * SLOT_BYTES);
        cache.insert(BlockId(1), block(6000), Some(stored(6000)), true);
        cache.take(BlockId(1), 4096, 1904);
        cache.insert(BlockId(2), block(6001), Some(stored(6001)), false);
        let gone = cache.insert(BlockId(3), block(6002), Some(stored(6002)), false);
        assert_eq!(gone.len(), 1);
        assert_eq!((gone[0].block, gone[0].bytes()), (BlockId(1), Some(block(6000))));
        assert!(gone[0].taken.any(4096, 1) && !gone[0].taken.any(0, 4096) && gone[0].used);
        assert_eq!(gone[0].held_bytes(), stored(6000).bytes.len(), "no longer decoded");
        assert!(!cache.contains(BlockId(1)));
    }

    #[test]
    fn blocks_that_were_taken_wholly_leave_first() {
        let mut cache = BlockCache::new(20_000, 3 * SLOT_BYTES);
        for id in 1..=3 {
            cache.insert(BlockId(id), block(5000), Some(stored(5000)), false);
        }
        cache.take(BlockId(2), 0, 5000);
        cache.take(BlockId(1), 0, 4096);
        let leaves =
            |cache: &mut BlockCache, id| cache.insert(BlockId(id), block(5000), Some(stored(5000)), false)[0].block;
        assert_eq!((leaves(&mut cache, 4), leaves(&mut cache, 5)), (BlockId(2), BlockId(1)));
    }

    /// The same cache as a list, oldest first: block, raw size, stored size, whether decoded.
    struct Model {
        decoded: usize,
        stored: usize,
        entries: Vec<(u32, usize, usize, bool)>,
    }

    impl Model {
        fn touch(&mut self, block: u32) -> Option<usize> {
            let at = self.entries.iter().position(|entry| entry.0 == block)?;
            let mut entry = self.entries.remove(at);
            entry.3 = true;
            self.entries.push(entry);
            self.shed();
            Some(entry.1)
        }

        fn insert(&mut self, block: u32, raw: usize, stored: usize) -> Vec<u32> {
            self.entries.retain(|entry| entry.0 != block);
            self.entries.push((block, raw, stored, true));
            let mut evicted = Vec::new();
            while self.entries.iter().map(|entry| entry.2).sum::<usize>() > self.stored {
                let oldest = self.entries.iter().position(|entry| entry.2 > 0).unwrap();
                evicted.push(self.entries.remove(oldest).0);
            }
            evicted.extend(self.shed());
            evicted
        }

        fn shed(&mut self) -> Vec<u32> {
            let mut evicted = Vec::new();
            while self.used().0 > self.decoded {
                let oldest = self.entries.iter().position(|entry| entry.3).unwrap();
                if self.entries[oldest].2 > 0 {
                    self.entries[oldest].3 = false;
                } else {
                    evicted.push(self.entries.remove(oldest).0);
                }
            }
            evicted
        }

        fn used(&self) -> (usize, usize) {
            let decoded = self.entries.iter().filter(|entry| entry.3).map(|entry| entry.1).sum();
            (decoded, self.entries.iter().map(|entry| entry.2).sum())
        }
    }

    proptest! {
        #[test]
        fn ref_cache_behaves_like_a_list(
            two_levels in any::<bool>(),
            steps in prop::collection::vec((any::<bool>(), 0u32..12), 1..300)
        ) {
            let capacity = if two_levels { 5 * SLOT_BYTES } else { 0 };
            let mut cache = BlockCache::new(10_000, capacity);
            let mut model = Model { decoded: 10_000, stored: capacity, entries: Vec::new() };
            for (insert, id) in steps {
                // A block's size never changes: blocks are immutable.
                let bytes = (id as usize * 977) % 6000 + 1000;
                let as_stored = Some(stored(bytes)).filter(|_| two_levels);
                if insert {
                    let size = as_stored.as_ref().map_or(0, |stored| Slab::held_bytes(stored.bytes.len()));
                    let evicted: Vec<u32> =
                        cache.insert(BlockId(id), block(bytes), as_stored, false).iter().map(|gone| gone.block.0).collect();
                    prop_assert_eq!(evicted, model.insert(id, bytes, size));
                } else {
                    prop_assert_eq!(cache.get(BlockId(id)).map(|found| found.len()), model.touch(id));
                }
                prop_assert_eq!(cache.used_bytes(), model.used());
                prop_assert!(cache.used_bytes().0 <= 10_000 && cache.used_bytes().1 <= capacity);
                prop_assert_eq!(cache.slab.free_bytes(), cache.slab.capacity_bytes() - cache.used_bytes().1);
            }
        }
    }
}
