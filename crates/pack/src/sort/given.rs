//! A sorter that the caller brings.

use std::fmt::Debug;

use super::Group;

/// A chunk as a [`Sorter`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sortable<'a> {
    /// What the sorter found in its content.
    pub features: &'a [u32],
    /// Number of the file that uses it first, in the order of the tree.
    pub file: u32,
    /// Its size.
    pub bytes: u32,
}

/// Another way to sort than [`super::Method`] has. Called from several threads at once.
pub trait Sorter: Debug + Send + Sync {
    /// Writes to `out`, which is empty, what [`Sorter::blocks`] has to know of a chunk. `bytes` is
    /// what will be compressed, after the filter.
    fn features(&self, bytes: &[u8], out: &mut Vec<u32>);

    /// The blocks of a group of `chunks`, which come in the order of the tree: each block the list
    /// of the numbers of its chunks, in their order. Every chunk is in one block, and no block has
    /// more than `block_bytes`.
    fn blocks(&self, chunks: &[Sortable<'_>], block_bytes: u32) -> Vec<Vec<u32>>;
}

/// The blocks of a group.
///
/// # Panics
/// The sorter broke its promise.
pub(super) fn fill(group: Group<'_>, sorter: &dyn Sorter, block_bytes: u32) -> Vec<Vec<u32>> {
    let chunk = |member: &u32| {
        let item = group.items[*member as usize];
        Sortable { features: group.features.of(*member), file: item.file, bytes: item.bytes }
    };
    let chunks: Vec<Sortable<'_>> = group.members.iter().map(chunk).collect();
    let mut blocks = sorter.blocks(&chunks, block_bytes);
    let mut placed = vec![false; chunks.len()];
    for block in &mut blocks {
        let bytes: u64 = block.iter().map(|chunk| u64::from(chunks[*chunk as usize].bytes)).sum();
        assert!((1..=block_bytes.into()).contains(&bytes), "{sorter:?} made a block of {bytes} bytes");
        for chunk in block {
            let again = std::mem::replace(&mut placed[*chunk as usize], true);
            assert!(!again, "{sorter:?} placed a chunk twice");
            *chunk = group.members[*chunk as usize];
        }
    }
    assert!(placed.iter().all(|placed| *placed), "{sorter:?} left out a chunk");
    blocks
}
