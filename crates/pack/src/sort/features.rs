//! The content of chunks, described by sampled shingles.
//!
//! A shingle is a window of 8 bytes, hashed. Those whose hash falls below a bound are kept, so that
//! the same content yields the same sample wherever it lies (sampling by value, as in Manber's
//! "Finding similar files", 1994). Two chunks that share `n` sampled shingles share about `n <<
//! sampling` bytes.

use super::Sorter;
use crate::Options;

/// Bytes of a window: what zstd and LZ4 gain from, and long enough not to meet by chance.
const WINDOW_BYTES: usize = size_of::<u64>();
/// Sampling of small inputs: one window in 16. One in 8 gains 0.2 % for twice the work.
const SAMPLING_MIN: u32 = 4;
/// Input up to which the sampling is the densest; above, it is halved for every doubling, which
/// bounds the memory.
const DENSE_BYTES: u64 = 512 << 20;

/// How chunks are described to what sorts them.
#[derive(Clone, Copy)]
pub(crate) enum Describer<'a> {
    /// By shingles, sampled so.
    Shingles(u32),
    /// By what a sorter of the caller wants to know.
    Given(&'a dyn Sorter),
}

impl Describer<'_> {
    /// For so many bytes of chunks; none if nothing is sorted by content.
    pub(crate) fn new(options: &Options, bytes: u64) -> Option<Describer<'_>> {
        let sampled = || Describer::Shingles(sampling(bytes));
        options.stages.needs_features().then(|| options.sorter.as_deref().map_or_else(sampled, Describer::Given))
    }

    /// Replaces `out` by the description of a chunk.
    pub(crate) fn describe(&self, bytes: &[u8], out: &mut Vec<u32>) {
        match self {
            Describer::Shingles(sampling) => shingles(bytes, *sampling, out),
            Describer::Given(sorter) => {
                out.clear();
                sorter.features(bytes, out);
            }
        }
    }
}

/// The sampling for so many bytes of chunks: one window in `1 << sampling` is kept.
pub(crate) fn sampling(bytes: u64) -> u32 {
    let excess = bytes.div_ceil(DENSE_BYTES).max(1);
    SAMPLING_MIN + excess.next_power_of_two().ilog2()
}

/// Replaces `out` by the sampled shingles of a chunk, ascending and without repetitions.
pub(crate) fn shingles(bytes: &[u8], sampling: u32, out: &mut Vec<u32>) {
    out.clear();
    // The bound is on the top bits and the value below them, so a value is as good a hash as any.
    let shift = u64::BITS - sampling;
    let windows = bytes.windows(WINDOW_BYTES).filter_map(|window| window.first_chunk());
    for window in windows {
        let hash = u64::from_le_bytes(*window).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if hash >> shift == 0 {
            out.push((hash >> (shift - u32::BITS)) as u32);
        }
    }
    out.sort_unstable();
    out.dedup();
}

/// The shingles of all items, item after item.
#[derive(Default)]
pub(crate) struct Features {
    shingles: Vec<u32>,
    /// End of each item in `shingles`.
    ends: Vec<usize>,
}

impl Features {
    /// Adds the next item.
    pub(crate) fn push(&mut self, shingles: &[u32]) {
        self.shingles.extend_from_slice(shingles);
        self.ends.push(self.shingles.len());
    }

    /// Those of some items.
    pub(crate) fn of_items(&self, items: &[u32]) -> Features {
        let mut some = Features::default();
        items.iter().for_each(|&item| some.push(self.of(item)));
        some
    }

    /// Shingles of all items together.
    pub(crate) fn shingle_count(&self) -> u64 {
        self.shingles.len() as u64
    }

    /// Items so far.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The shingles of an item.
    pub(super) fn of(&self, item: u32) -> &[u32] {
        let item = item as usize;
        let start = if item == 0 { 0 } else { self.ends[item - 1] };
        &self.shingles[start..self.ends[item]]
    }
}
