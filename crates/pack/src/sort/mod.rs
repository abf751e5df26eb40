//! Similarity sorter: which chunks share a block, and in which order they lie in it.
//!
//! A codec finds repetitions only inside a block, so a block should hold chunks that repeat each
//! other. Chunks are described by sampled shingles ([`Features`]), and [`blocks`] fills the blocks
//! by one of several [`Method`]s, each group of chunks (code, text, ...) by itself. The price is
//! locality: a file whose chunks are spread over many blocks costs many blocks to read, and
//! [`Config::locality`] weighs one against the other. A [`Sorter`] of the caller takes the place of
//! both, so that other ways can be compared with ours.
//!
//! Pure functions in integer arithmetic: the result depends on the arguments alone, not on the
//! number of threads. Memory: 4 bytes for each sampled shingle (a quarter byte for each byte of
//! input at most, at most 128 MiB), and while a group is sorted about 20 bytes for each of its
//! shingles that repeat and 2 to 4 for the others.

mod features;
mod files;
mod given;
mod greedy;
mod index;
mod ranking;
mod rests;
#[cfg(test)]
mod tests;

#[cfg(test)]
use features::shingles;
pub(crate) use features::{Describer, Features};
pub use given::{Sortable, Sorter};

use rayon::prelude::*;

/// The default of [`Config::locality`], at the knee. Debian minbase with python3, code filtered,
/// zstd 5, 64 and 128 KiB blocks: 0 gives 52.02 and 51.00 MB at 3.42 and 3.07 blocks a file; 100
/// gives 52.12 and 51.08 MB at 2.45 and 2.15; 330 gives 54.4 and 52.8 MB at 1.97 and 1.78.
pub(crate) const LOCALITY_DEFAULT: u32 = 100;

/// The bit of a group that says that its chunks are hot.
pub(crate) const HOT: u16 = 1 << 15;

/// One distinct chunk to be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// Kind of its content in the low byte; the high byte says what must never share a block with
    /// what.
    pub(crate) group: u16,
    /// Number of the file that uses it first, in the order of the tree.
    pub(crate) file: u32,
    /// Index of the chunk in that file.
    pub(crate) position: u32,
    /// Its size, at least 1 and at most that of a block.
    pub(crate) bytes: u32,
}

/// How chunks are sorted inside their group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Not at all: in the order of the tree.
    None,
    /// Similar files one after the other, the chunks of a file in order; the idea of DwarFS.
    Files,
    /// Blocks filled one after the other, always with what shares most with the block.
    Greedy,
}

/// Options of [`blocks`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config<'a> {
    /// The method.
    pub(crate) method: Method,
    /// Size of a block in bytes.
    pub(crate) block_bytes: u32,
    /// Size of a block of hot chunks in bytes.
    pub(crate) hot_block_bytes: u32,
    /// Weight of keeping the chunks of a file together, in percent of the default; 0 sorts by
    /// similarity alone, which is not the smallest: neighbours in a file resemble each other in
    /// ways that shingles do not show.
    pub(crate) locality: u32,
    /// What sorts in place of the method, unless that is [`Method::None`].
    pub(crate) sorter: Option<&'a dyn Sorter>,
}

/// The blocks, each the list of the items in it in their order. Groups do not share blocks, except
/// that the last, partial blocks of groups with the same high byte are joined.
///
/// `sorted` is called with the number of items of each group when that group is done, from any
/// thread.
pub(crate) fn blocks(
    items: &[Item],
    features: &Features,
    config: &Config<'_>,
    sorted: &(dyn Fn(u64) + Sync),
) -> Vec<Vec<u32>> {
    assert_eq!(items.len(), features.len(), "every item has its features");
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    let key = |&item: &u32| {
        let Item { group, file, position, .. } = items[item as usize];
        (group, file, position, item)
    };
    order.par_sort_unstable_by_key(key);
    let groups: Vec<&[u32]> = order.chunk_by(|a, b| items[*a as usize].group == items[*b as usize].group).collect();
    let sort = |members: &&[u32]| {
        let kind = members.first().map_or(0, |item| items[*item as usize].group);
        let group = Group { items, features, members };
        let filled = group.fill(&Config { block_bytes: config.bytes_for(kind), ..*config });
        sorted(members.len() as u64);
        filled
    };
    rests::join(groups.par_iter().map(sort).collect(), items, config)
}

impl Config<'_> {
    /// Size of a block of this group.
    fn bytes_for(&self, group: u16) -> u32 {
        if group & HOT != 0 { self.hot_block_bytes } else { self.block_bytes }
    }
}

/// The chunks of one group in the order of the tree, which is what a method sorts.
#[derive(Clone, Copy)]
struct Group<'a> {
    items: &'a [Item],
    features: &'a Features,
    members: &'a [u32],
}

impl Group<'_> {
    /// Size of the member with this number.
    fn bytes(self, member: u32) -> u32 {
        self.items[self.members[member as usize] as usize].bytes
    }

    /// File of the member with this number.
    fn file(self, member: usize) -> u32 {
        self.items[self.members[member] as usize].file
    }

    fn fill(self, config: &Config<'_>) -> Vec<Vec<u32>> {
        match (config.method, config.sorter) {
            (Method::None, _) => rests::cut(self.members, self.items, config.block_bytes),
            (_, Some(sorter)) => given::fill(self, sorter, config.block_bytes),
            (Method::Files, None) => rests::cut(&files::order(self), self.items, config.block_bytes),
            (Method::Greedy, None) => greedy::fill(self, config),
        }
    }
}
