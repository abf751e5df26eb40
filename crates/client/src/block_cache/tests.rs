//! The cache against a list, and its single rules.

use super::*;
use crate::slab::SLOT_BYTES;
use codec::Codec;
use proptest::prelude::*;

fn block(bytes: usize) -> BlockBytes {
    Arc::new(Decoded::Here(vec![bytes as u8; bytes]))
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
    cache.insert(BlockId(1), Some(block(20_000)), None, true);
    assert!(cache.take(BlockId(1), 4096, 4096), "first use of a speculated block");
    assert!(!cache.take(BlockId(1), 0, 1), "only the first");
    cache.insert(BlockId(1), Some(block(20_000)), None, false);
    let gone = cache.insert(BlockId(2), Some(block(90_000)), None, false).remove(0);
    assert!(gone.used && gone.speculated);
    assert!(gone.taken.any(4096, 4096) && gone.taken.any(7936, 256) && gone.taken.any(0, 256));
    assert!(!gone.taken.any(8192, 11_808) && !gone.taken.any(256, 3840));
}

#[test]
fn a_block_larger_than_the_cache_passes_through() {
    let mut cache = BlockCache::new(1000, 0);
    cache.insert(BlockId(1), Some(block(900)), None, false);
    let evicted = cache.insert(BlockId(2), Some(block(1001)), Some(stored(1001)), false);
    assert_eq!(evicted.iter().map(|gone| gone.block.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(cache.used_bytes(), (0, 0));
}

#[test]
fn what_leaves_the_first_level_is_decoded_again() {
    let mut cache = BlockCache::new(11_000, 5 * SLOT_BYTES);
    for id in 1..=5 {
        assert!(
            cache
                .insert(BlockId(id), Some(block(5000 + id as usize)), Some(stored(5000 + id as usize)), false)
                .is_empty()
        );
    }
    assert_eq!((cache.used_bytes(), cache.decodes), ((10_009, 5 * SLOT_BYTES), 0));
    for id in [1, 2, 1, 5] {
        assert_eq!(cache.get(BlockId(id)), Some(block(5000 + id as usize)));
        assert!(cache.used_bytes().0 <= 11_000);
    }
    assert_eq!(cache.decodes, 3, "two fit at a time");
}

#[test]
fn a_block_that_nobody_waits_for_is_decoded_when_it_is_wanted() {
    let mut cache = BlockCache::new(11_000, 5 * SLOT_BYTES);
    assert!(cache.insert(BlockId(1), None, Some(stored(5000)), true).is_empty());
    assert_eq!((cache.used_bytes(), cache.decodes), ((0, SLOT_BYTES), 0));
    assert!(cache.contains(BlockId(1)));
    for _ in 0..2 {
        assert_eq!(cache.get(BlockId(1)), Some(block(5000)));
    }
    assert_eq!((cache.used_bytes(), cache.decodes), ((5000, SLOT_BYTES), 1));
    // Without a second level nothing is kept, and what passes through has its bytes.
    let gone = BlockCache::new(11_000, 0).insert(BlockId(2), None, Some(stored(5000)), true);
    assert_eq!((gone.len(), gone[0].bytes()), (1, Some(block(5000))));
}

#[test]
fn what_the_second_level_does_not_use_is_lent_to_the_first() {
    let mut cache = BlockCache::new(5000, 12 * SLOT_BYTES);
    for id in 1..=12 {
        cache.insert(BlockId(id), Some(block(5000)), Some(stored(5000)), false);
        let lent = (12 - id as usize) * SLOT_BYTES / 2;
        assert_eq!(cache.used_bytes().0, (id as usize).min((5000 + lent) / 5000) * 5000);
    }
}

#[test]
fn where_decoded_blocks_are_preferred_each_is_in_one_level() {
    let mut cache = BlockCache::new(5000, 16 * SLOT_BYTES);
    cache.prefer_decoded(true);
    for id in 1..=2 {
        cache.insert(BlockId(id), None, Some(stored(5000)), true);
    }
    assert_eq!(cache.used_bytes(), (0, 2 * SLOT_BYTES), "an eighth");
    let gone = cache.insert(BlockId(3), None, Some(stored(5000)), true);
    assert_eq!((gone[0].block, gone[0].is_decoded()), (BlockId(1), false));
    for id in 2..=3 {
        assert_eq!(cache.get(BlockId(id)), Some(block(5000)));
    }
    assert_eq!(cache.used_bytes(), (10_000, 0));
    // 5000 bytes and seven eighths of the second level: three blocks.
    assert!(cache.insert(BlockId(4), Some(block(5000)), Some(stored(5000)), false).is_empty());
    cache.insert(BlockId(5), None, Some(stored(5000)), true);
    assert_eq!(cache.get(BlockId(5)), Some(block(5000)));
    // What left meanwhile is told with the next block.
    let gone = cache.insert(BlockId(6), None, Some(stored(5000)), true);
    assert_eq!((gone.len(), gone[0].block, gone[0].bytes()), (1, BlockId(2), Some(block(5000))));
    assert_eq!((cache.used_bytes(), cache.decodes), ((15_000, SLOT_BYTES), 3));
}

#[test]
fn a_block_that_leaves_both_levels_still_has_its_bytes_and_its_record() {
    let mut cache = BlockCache::new(6100, 2 * SLOT_BYTES);
    cache.insert(BlockId(1), Some(block(6000)), Some(stored(6000)), true);
    cache.take(BlockId(1), 4096, 1904);
    cache.insert(BlockId(2), Some(block(6001)), Some(stored(6001)), false);
    let gone = cache.insert(BlockId(3), Some(block(6002)), Some(stored(6002)), false);
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
        cache.insert(BlockId(id), Some(block(5000)), Some(stored(5000)), false);
    }
    cache.take(BlockId(2), 0, 5000);
    cache.take(BlockId(1), 0, 4096);
    let leaves =
        |cache: &mut BlockCache, id| cache.insert(BlockId(id), Some(block(5000)), Some(stored(5000)), false)[0].block;
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
        while self.used().0 > self.decoded + (self.stored - self.used().1) / 2 {
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
                    cache.insert(BlockId(id), Some(block(bytes)), as_stored, false).iter().map(|gone| gone.block.0).collect();
                prop_assert_eq!(evicted, model.insert(id, bytes, size));
            } else {
                prop_assert_eq!(cache.get(BlockId(id)).map(|found| found.len()), model.touch(id));
            }
            prop_assert_eq!(cache.used_bytes(), model.used());
            let (decoded, kept) = cache.used_bytes();
            prop_assert!(kept <= capacity && decoded <= 10_000 + (capacity - kept) / 2);
            prop_assert_eq!(cache.slab.free_bytes(), cache.slab.capacity_bytes() - cache.used_bytes().1);
        }
    }
}
