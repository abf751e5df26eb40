//! Orders similar files one after the other: the idea of DwarFS, with min-hash sketches instead of
//! its nilsimsa.
//!
//! A file is described by its smallest shingles (bottom-k sketch; Broder, "On the resemblance and
//! containment of documents", 1997). After a file comes the one that shares most of its sketch,
//! else the next in the order of the tree.

use super::Group;
use super::index::Index;

/// Shingles of a sketch.
const SKETCH: usize = 64;

/// The members of the group, files in the order of similarity.
pub(super) fn order(group: Group<'_>) -> Vec<u32> {
    let file = |member: &u32| group.items[*member as usize].file;
    let files: Vec<&[u32]> = group.members.chunk_by(|a, b| file(a) == file(b)).collect();
    let index = Index::of(sketches(group, &files), files.len());
    let mut placed = vec![false; files.len()];
    let mut shared = vec![0u32; files.len()];
    let mut order = Vec::with_capacity(group.members.len());
    let mut cursor = 0;
    let mut next = None;
    loop {
        while placed.get(cursor) == Some(&true) {
            cursor += 1;
        }
        if cursor == files.len() {
            return order;
        }
        let file = next.unwrap_or(cursor as u32);
        placed[file as usize] = true;
        order.extend_from_slice(files[file as usize]);
        next = nearest(file, &index, &placed, &mut shared);
    }
}

/// The file that shares most with `file`, the lowest of equals.
fn nearest(file: u32, index: &Index, placed: &[bool], shared: &mut [u32]) -> Option<u32> {
    let others = || index.shingles.list(file).iter().flat_map(|shingle| index.chunks.list(*shingle)).copied();
    others().for_each(|other| shared[other as usize] += 1);
    let free = others().filter(|other| !placed[*other as usize]);
    let best = free.max_by_key(|other| (shared[*other as usize], std::cmp::Reverse(*other)));
    others().for_each(|other| shared[other as usize] = 0);
    best
}

/// Pairs of shingle (high half) and file of all sketches.
fn sketches(group: Group<'_>, files: &[&[u32]]) -> Vec<u64> {
    let mut pairs = Vec::new();
    let mut all = Vec::new();
    for (number, members) in files.iter().enumerate() {
        all.clear();
        members.iter().for_each(|member| all.extend_from_slice(group.features.of(*member)));
        all.sort_unstable();
        all.dedup();
        pairs.extend(all.iter().take(SKETCH).map(|shingle| u64::from(*shingle) << 32 | number as u64));
    }
    pairs
}
