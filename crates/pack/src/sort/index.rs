//! Which chunks of a group hold which shingles, both ways, without the shingles that distinguish
//! nothing.

use std::ops::Range;

use super::Group;

/// Chunks a shingle may occur in before it is taken for noise (padding, common idioms). Its exact
/// value hardly matters.
const CHUNKS_MAX: usize = 1000;
/// Bits of the sets of shingles seen once and twice, for each sampled shingle.
const SET_BITS: usize = 8;

/// Lists of numbers, one after the other.
pub(super) struct Lists {
    starts: Vec<u32>,
    values: Vec<u32>,
}

impl Lists {
    pub(super) fn len(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    pub(super) fn range(&self, list: u32) -> Range<usize> {
        self.starts[list as usize] as usize..self.starts[list as usize + 1] as usize
    }

    pub(super) fn value(&self, at: usize) -> u32 {
        self.values[at]
    }

    pub(super) fn list(&self, list: u32) -> &[u32] {
        &self.values[self.range(list)]
    }

    pub(super) fn list_mut(&mut self, list: u32) -> &mut [u32] {
        let range = self.range(list);
        &mut self.values[range]
    }

    /// For each of `values` values, the lists that hold it.
    fn invert(&self, values: usize) -> Lists {
        let mut ends = vec![0u32; values + 1];
        self.values.iter().for_each(|value| ends[*value as usize + 1] += 1);
        for value in 0..values {
            ends[value + 1] += ends[value];
        }
        let mut inverse = Lists { starts: ends.clone(), values: vec![0; self.values.len()] };
        for list in 0..self.len() {
            for &value in self.list(list) {
                inverse.values[ends[value as usize] as usize] = list;
                ends[value as usize] += 1;
            }
        }
        inverse
    }
}

/// The shingles that at least two chunks share, and at most [`CHUNKS_MAX`], numbered anew. Chunks
/// are numbered by their place in the group.
pub(super) struct Index {
    /// Shingles of each chunk.
    pub(super) shingles: Lists,
    /// Chunks of each shingle.
    pub(super) chunks: Lists,
}

impl Index {
    /// The index of the chunks of a group.
    pub(super) fn new(group: Group<'_>) -> Index {
        Index::of(repeated(group), group.members.len())
    }

    /// The index of pairs of shingle (high half) and chunk.
    pub(super) fn of(mut pairs: Vec<u64>, chunks: usize) -> Index {
        pairs.sort_unstable();
        pairs.dedup();
        let mut holders = Lists { starts: vec![0], values: Vec::new() };
        let same = pairs.chunk_by(|a, b| a >> 32 == b >> 32);
        for pairs in same.filter(|pairs| (2..=CHUNKS_MAX).contains(&pairs.len())) {
            holders.values.extend(pairs.iter().map(|pair| *pair as u32));
            holders.starts.push(holders.values.len() as u32);
        }
        drop(pairs);
        Index { shingles: holders.invert(chunks), chunks: holders }
    }

    /// Number of shingles.
    pub(super) fn len(&self) -> u32 {
        self.chunks.len()
    }
}

/// Pairs of shingle (high half) and chunk, of those shingles that may occur twice. Most occur once:
/// two bit sets drop nearly all of these before they cost memory.
fn repeated(group: Group<'_>) -> Vec<u64> {
    let total: usize = group.members.iter().map(|member| group.features.of(*member).len()).sum();
    let slots = (total * SET_BITS).next_power_of_two().max(64) as u64;
    let mut once = vec![0u64; (slots / 64) as usize];
    let mut twice = once.clone();
    let slot = |shingle: u32| (((u64::from(shingle) & (slots - 1)) / 64) as usize, 1u64 << (shingle % 64));
    let members = || group.members.iter().enumerate();
    for (_, member) in members() {
        for &shingle in group.features.of(*member) {
            let (word, bit) = slot(shingle);
            twice[word] |= once[word] & bit;
            once[word] |= bit;
        }
    }
    drop(once);
    let mut pairs = Vec::new();
    for (number, member) in members() {
        for &shingle in group.features.of(*member) {
            let (word, bit) = slot(shingle);
            if twice[word] & bit != 0 {
                pairs.push(u64::from(shingle) << 32 | number as u64);
            }
        }
    }
    pairs
}
