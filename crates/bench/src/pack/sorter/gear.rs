//! Features by a gear hash, and sorting by equal ones: no graph, one pass over the chunks.
//!
//! A gear hash rolls over a chunk. Twelve linear functions of it have a maximum each, which are the
//! features: two chunks share each with a probability that is their resemblance. A chunk joins the
//! cluster of the first chunk with which it shares a feature; clusters come in the order of their
//! first chunks, and are cut into blocks.

use std::collections::HashMap;

use pack::{Sortable, Sorter};
use units::{Rng, SplitMix64};

/// Features of a chunk.
pub const FEATURES: usize = 12;
/// Bytes that the hash depends on: it moves by a bit for each.
const WINDOW_BYTES: usize = u64::BITS as usize;
/// Any number: it makes the table and the functions.
const SEED: u64 = 1;

/// The hash and its functions.
#[derive(Debug)]
pub struct Hash {
    table: Vec<u64>,
    factors: [u32; FEATURES],
}

impl Default for Hash {
    fn default() -> Hash {
        let mut rng = SplitMix64(SEED);
        let table = (0..=u8::MAX).map(|_| rng.next_u64()).collect();
        Hash { table, factors: [(); FEATURES].map(|()| rng.next_u64() as u32 | 1) }
    }
}

impl Hash {
    /// Writes the features of a chunk.
    pub fn features(&self, bytes: &[u8], out: &mut Vec<u32>) {
        let (mut hash, mut highest) = (0u64, [0u32; FEATURES]);
        let whole = WINDOW_BYTES.min(bytes.len());
        for (at, byte) in bytes.iter().enumerate() {
            hash = (hash << 1).wrapping_add(self.table[usize::from(*byte)]);
            if at + 1 >= whole {
                let value = (hash >> 32) as u32;
                for (highest, factor) in highest.iter_mut().zip(self.factors) {
                    // The upper half of the product alone depends on all of the value.
                    *highest = (*highest).max(value.wrapping_mul(factor));
                }
            }
        }
        out.extend(highest);
    }
}

/// Sorts by equal features.
#[derive(Debug, Default)]
pub struct Gear(Hash);

impl Sorter for Gear {
    fn features(&self, bytes: &[u8], out: &mut Vec<u32>) {
        self.0.features(bytes, out);
    }

    fn blocks(&self, chunks: &[Sortable<'_>], block_bytes: u32) -> Vec<Vec<u32>> {
        let mut first: HashMap<(usize, u32), u32> = HashMap::new();
        let mut clusters: Vec<Vec<u32>> = Vec::new();
        for (number, chunk) in (0..).zip(chunks) {
            let keys = || chunk.features.iter().copied().enumerate();
            let known = keys().find_map(|key| first.get(&key).copied());
            let cluster = known.unwrap_or(clusters.len() as u32);
            keys().for_each(|key| {
                first.entry(key).or_insert(cluster);
            });
            match known {
                Some(cluster) => clusters[cluster as usize].push(number),
                None => clusters.push(vec![number]),
            }
        }
        cut(clusters.into_iter().flatten(), chunks, block_bytes)
    }
}

/// Blocks of chunks in this order, each as many as fit.
pub fn cut(order: impl Iterator<Item = u32>, chunks: &[Sortable<'_>], block_bytes: u32) -> Vec<Vec<u32>> {
    let mut blocks: Vec<Vec<u32>> = Vec::new();
    let mut room = 0;
    for chunk in order {
        let bytes = chunks[chunk as usize].bytes;
        match blocks.last_mut() {
            Some(open) if bytes <= room => open.push(chunk),
            _ => {
                blocks.push(vec![chunk]);
                room = block_bytes;
            }
        }
        room -= bytes;
    }
    blocks
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Features of chunks, for [`sortable`].
    pub fn described(chunks: &[&[u8]]) -> Vec<Vec<u32>> {
        let features = |bytes: &&[u8]| {
            let mut out = Vec::new();
            Hash::default().features(bytes, &mut out);
            out
        };
        chunks.iter().map(features).collect()
    }

    /// Chunks of 1000 bytes, each of a file of its own.
    pub fn sortable(features: &[Vec<u32>]) -> Vec<Sortable<'_>> {
        (0..).zip(features).map(|(file, features)| Sortable { features, file, bytes: 1000 }).collect()
    }

    #[test]
    fn features_are_shared_as_far_as_content_is() {
        let mut rng = SplitMix64(7);
        let mut noise = |bytes: usize| -> Vec<u8> { (0..bytes).map(|_| rng.next_u64() as u8).collect() };
        let (one, other) = (noise(4096), noise(4096));
        let moved = [&one[700..], &noise(700)[..]].concat();
        let found = described(&[&one, &moved, &other, b"", b"x"]);
        let shared = |a: usize, b: usize| found[a].iter().zip(&found[b]).filter(|(a, b)| a == b).count();
        assert!(found.iter().all(|features| features.len() == FEATURES));
        assert!((5..FEATURES).contains(&shared(0, 1)) && shared(0, 2) == 0, "{} {}", shared(0, 1), shared(0, 2));
    }

    #[test]
    fn chunks_that_share_a_feature_follow_one_another() {
        let features = [vec![1, 9], vec![2, 2], vec![3, 9], vec![3, 4], vec![9, 1], vec![5, 4]];
        // The third has a feature of the first, the fourth one of the third. Equal values of
        // different features say nothing.
        let chunks = sortable(&features);
        assert_eq!(Gear::default().blocks(&chunks, 2000), [vec![0, 2], vec![3, 5], vec![1, 4]]);
        assert_eq!(Gear::default().blocks(&chunks, 5000), [vec![0, 2, 3, 5, 1], vec![4]]);
        assert!(Gear::default().blocks(&[], 5000).is_empty());
    }
}
