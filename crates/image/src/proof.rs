//! Proofs for parts of the hashes of chunks and of blocks: a device takes the hashes of what it is
//! sent, and verifies them without the others.
//!
//! The hash of a section is the root of a tree, since BLAKE3 is one: *leaves* of 1024 bytes, which
//! are 64 chunk hashes, and above them nodes of 32 bytes that are each the hash of two. A proof
//! holds the leaves that are wanted, and of the rest of the tree only the topmost nodes without a
//! wanted leaf below them: a reader computes the root from these, and compares it with the hash in
//! the superblock. One proof for many leaves shares the nodes that they share. The bytes are
//! explained in docs/formats/image.md.
//!
//! `bao` and `bao-tree` make proofs of the same tree, for one range and with both children of each
//! node on the way, as streams with a length before them: twice the nodes for scattered leaves, and
//! more code on a device than there is here.

use std::ops::Range;

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use units::{BlockId, PageId};

use crate::format::{self, CHUNK_HASH_BYTES};
use crate::hash_many::{leaf_values, parent_values};
use crate::{Codec, ImageError, Metadata};

/// Bytes of a leaf; the last one may be shorter.
pub(crate) const LEAF_BYTES: usize = blake3::CHUNK_LEN;

/// Chunk hashes in a leaf.
pub(crate) const LEAF_HASHES: u32 = (LEAF_BYTES / CHUNK_HASH_BYTES) as u32;

/// Leaves of one proof at most, so that it fits a small frame: 64 KiB, and for each leaf at most 10
/// nodes that it does not share with others.
pub const PROOF_LEAVES_MAX: usize = 64;

/// Set in the number of leaves of a proof of hashes of blocks.
const OF_BLOCKS: u32 = 1 << 31;

/// Bytes of a node.
const NODE_BYTES: usize = 32;

/// The nodes of the tree over the bytes of a section, to make proofs with. Takes about a sixteenth
/// of the bytes.
pub struct HashTree {
    /// The nodes above leaves, then those above these, up to the last level that has two nodes.
    /// The node i of a level is above the nodes 2i and 2i + 1 of the one below, or is the same as
    /// the first of them if there is no second.
    levels: Vec<Vec<ChainingValue>>,
    /// [`OF_BLOCKS`], or 0 for a tree of chunk hashes.
    of: u32,
}

impl HashTree {
    /// The tree of these hashes of blocks.
    pub fn of_blocks(bytes: &[u8]) -> HashTree {
        HashTree { of: OF_BLOCKS, ..HashTree::of(bytes) }
    }

    /// The tree of these chunk hashes.
    pub fn of(bytes: &[u8]) -> HashTree {
        let mut levels = vec![leaf_values(bytes)];
        while let Some(above) = levels.last().filter(|level| level.len() > 2).map(|level| parent_values(level)) {
            levels.push(above);
        }
        HashTree { levels, of: 0 }
    }

    /// Bytes of memory that the tree of so many bytes takes, at most.
    pub fn memory_bytes(bytes: usize) -> usize {
        (2 * bytes.div_ceil(LEAF_BYTES) + 32) * NODE_BYTES
    }

    /// A proof of some leaves of the bytes of which this is the tree: numbers ascend. `None` if
    /// there are none, too many, or not all exist.
    pub fn proof(&self, bytes: &[u8], leaves: &[u32]) -> Option<Vec<u8>> {
        let tree = Shape { bytes: bytes.len() };
        tree.check(leaves).ok()?;
        let mut out = Vec::with_capacity(4 + leaves.len() * (4 + LEAF_BYTES + 4 * NODE_BYTES));
        out.extend_from_slice(&(leaves.len() as u32 | self.of).to_le_bytes());
        leaves.iter().for_each(|leaf| out.extend_from_slice(&leaf.to_le_bytes()));
        self.write(tree, bytes, tree.root(), leaves, &mut out)?;
        Some(out)
    }

    fn write(&self, tree: Shape, bytes: &[u8], node: Node, leaves: &[u32], out: &mut Vec<u8>) -> Option<()> {
        if leaves.is_empty() {
            out.extend_from_slice(self.levels.get(node.level as usize)?.get(node.index as usize)?);
            return Some(());
        }
        if tree.is_whole(node, leaves) {
            out.extend_from_slice(bytes.get(tree.span(node))?);
            return Some(());
        }
        let (left, right) = node.children()?;
        let (first, second) = leaves.split_at(leaves.partition_point(|leaf| *leaf < tree.leaves(right).start));
        self.write(tree, bytes, left, first, out)?;
        if tree.has(right) { self.write(tree, bytes, right, second, out) } else { Some(()) }
    }
}

/// A node above the leaves from `index << level` up to `(index + 1) << level`, as far as they
/// exist.
#[derive(Clone, Copy)]
struct Node {
    level: u32,
    index: u32,
}

impl Node {
    fn children(self) -> Option<(Node, Node)> {
        let (level, index) = (self.level.checked_sub(1)?, self.index.checked_mul(2)?);
        Some((Node { level, index }, Node { level, index: index + 1 }))
    }
}

/// The tree over so many bytes.
#[derive(Clone, Copy)]
struct Shape {
    bytes: usize,
}

impl Shape {
    fn leaf_count(self) -> u32 {
        self.bytes.div_ceil(LEAF_BYTES) as u32
    }

    fn root(self) -> Node {
        Node { level: self.leaf_count().max(1).next_power_of_two().trailing_zeros(), index: 0 }
    }

    fn leaves(self, node: Node) -> Range<u32> {
        let start = u64::from(node.index) << node.level;
        let end = (start + (1 << node.level)).min(self.leaf_count().into());
        start.min(end) as u32..end as u32
    }

    fn span(self, node: Node) -> Range<usize> {
        let leaves = self.leaves(node);
        leaves.start as usize * LEAF_BYTES..(leaves.end as usize * LEAF_BYTES).min(self.bytes)
    }

    fn has(self, node: Node) -> bool {
        !self.leaves(node).is_empty()
    }

    /// Whether `leaves`, some of those below the node, are all of them: their bytes lie side by
    /// side then, and can be hashed at once.
    fn is_whole(self, node: Node, leaves: &[u32]) -> bool {
        node.level == 0 || self.leaves(node).len() == leaves.len()
    }

    fn check(self, leaves: &[u32]) -> Result<(), &'static str> {
        if leaves.is_empty() || leaves.len() > PROOF_LEAVES_MAX {
            return Err("number of leaves");
        }
        if !leaves.is_sorted_by(|one, next| one < next) || leaves.last().is_some_and(|last| *last >= self.leaf_count())
        {
            return Err("numbers of leaves");
        }
        Ok(())
    }
}

/// The leaves of a proof, and where each lies in it.
pub(crate) type Proven = Vec<(u32, Range<usize>)>;

/// Whether a proof is one of hashes of blocks.
pub(crate) fn is_of_blocks(proof: &[u8]) -> bool {
    proof.first_chunk().is_some_and(|count| u32::from_le_bytes(*count) & OF_BLOCKS != 0)
}

/// Verifies a proof for a section of `bytes` bytes with the hash `root`.
pub(crate) fn verify(root: &[u8; 32], bytes: usize, proof: &[u8]) -> Result<Proven, ImageError> {
    let damaged = |what| ImageError::Proof { what };
    let tree = Shape { bytes };
    let count = proof.first_chunk().map_or(0, |count| u32::from_le_bytes(*count) & !OF_BLOCKS) as usize;
    if count > PROOF_LEAVES_MAX {
        return Err(damaged("number of leaves"));
    }
    let (numbers, content) =
        proof.get(4..).and_then(|rest| rest.split_at_checked(4 * count)).ok_or(damaged("length"))?;
    let leaves: Vec<u32> = numbers.as_chunks().0.iter().map(|number| u32::from_le_bytes(*number)).collect();
    tree.check(&leaves).map_err(damaged)?;
    let mut reader = Verifier { tree, content, place: 0, proven: Vec::with_capacity(count) };
    let found = reader.root(&leaves).ok_or(damaged("length"))?;
    if reader.place != content.len() {
        return Err(damaged("length"));
    }
    if found != blake3::Hash::from_bytes(*root) {
        return Err(damaged("hash"));
    }
    let start = proof.len() - content.len();
    Ok(reader.proven.into_iter().map(|(leaf, at)| (leaf, at.start + start..at.end + start)).collect())
}

struct Verifier<'a> {
    tree: Shape,
    content: &'a [u8],
    place: usize,
    proven: Proven,
}

impl<'a> Verifier<'a> {
    /// The root of the tree; `None` if bytes are missing.
    fn root(&mut self, leaves: &[u32]) -> Option<blake3::Hash> {
        let root = self.tree.root();
        if self.tree.is_whole(root, leaves) {
            return Some(blake3::hash(self.subtree(root)?));
        }
        let (left, right) = self.both(root, leaves)?;
        Some(merge_subtrees_root(&left, &right?, Mode::Hash))
    }

    fn node(&mut self, node: Node, leaves: &[u32]) -> Option<ChainingValue> {
        if leaves.is_empty() {
            return self.take(NODE_BYTES)?.try_into().ok();
        }
        if self.tree.is_whole(node, leaves) {
            let offset = self.tree.span(node).start as u64;
            let bytes = self.subtree(node)?;
            return Some(blake3::Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root());
        }
        let (left, right) = self.both(node, leaves)?;
        Some(right.map_or(left, |right| merge_subtrees_non_root(&left, &right, Mode::Hash)))
    }

    /// The children of a node; some have no second one.
    fn both(&mut self, node: Node, leaves: &[u32]) -> Option<(ChainingValue, Option<ChainingValue>)> {
        let (left, right) = node.children()?;
        let (first, second) = leaves.split_at(leaves.partition_point(|leaf| *leaf < self.tree.leaves(right).start));
        let left = self.node(left, first)?;
        let right = if self.tree.has(right) { Some(self.node(right, second)?) } else { None };
        Some((left, right))
    }

    /// All bytes below a node.
    fn subtree(&mut self, node: Node) -> Option<&'a [u8]> {
        let start = self.place;
        let bytes = self.take(self.tree.span(node).len())?;
        let parts = self.tree.leaves(node).zip((0..bytes.len()).step_by(LEAF_BYTES));
        self.proven.extend(parts.map(|(leaf, at)| (leaf, start + at..start + (at + LEAF_BYTES).min(bytes.len()))));
        Some(bytes)
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let taken = self.content.get(self.place..self.place.checked_add(bytes)?)?;
        self.place += bytes;
        Some(taken)
    }
}

impl Metadata {
    /// The leaves of the chunk hashes that hold those of `pages`, ascending, each once. Pages that
    /// do not exist have none.
    pub fn hash_leaves(&self, pages: &[PageId]) -> Vec<u32> {
        let chunks = pages.iter().filter_map(|page| self.page_chunks(*page));
        let mut leaves: Vec<u32> = Vec::new();
        for chunks in chunks {
            for leaf in chunks.chunks().map(|chunk| chunk.0 / LEAF_HASHES) {
                if leaves.last() != Some(&leaf) {
                    leaves.push(leaf);
                }
            }
        }
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    }

    /// The leaves that hold the hashes of the chunks of a block, ascending, each once.
    pub fn block_hash_leaves(&self, block: BlockId) -> Vec<u32> {
        let mut leaves: Vec<u32> = self.block_chunks(block).map(|chunk| chunk.0 / LEAF_HASHES).collect();
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    }

    /// Whether the chunk hashes can be proven leaf by leaf: the section holds them as they are. One
    /// that was compressed can only be read whole.
    pub fn proves_chunk_hashes(&self) -> bool {
        let section = self.superblock.section(format::SECTION_CHUNK_HASHES);
        section.is_some_and(|it| it.codec == Codec::Stored.to_u8() && it.filter == format::FILTER_NONE)
    }

    /// How many leaves the chunk hashes have.
    pub fn hash_leaf_count(&self) -> u32 {
        self.chunk_count().div_ceil(LEAF_HASHES)
    }
}

#[cfg(test)]
mod tests {
    use units::{Rng, SplitMix64};

    use super::*;

    fn bytes(length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        blake3::Hasher::new().finalize_xof().fill(&mut out);
        out
    }

    /// Checks that a proof gives the leaves and nothing else.
    fn proves(bytes: &[u8], leaves: &[u32]) -> Vec<u8> {
        let tree = HashTree::of(bytes);
        let proof = tree.proof(bytes, leaves).unwrap();
        let proven = verify(blake3::hash(bytes).as_bytes(), bytes.len(), &proof).unwrap();
        assert_eq!(proven.iter().map(|(leaf, _)| *leaf).collect::<Vec<_>>(), leaves, "{} bytes", bytes.len());
        for (leaf, at) in proven {
            let start = leaf as usize * LEAF_BYTES;
            assert_eq!(proof[at], bytes[start..(start + LEAF_BYTES).min(bytes.len())]);
        }
        proof
    }

    #[test]
    fn every_set_of_leaves_of_a_small_tree_is_proven() {
        for count in 1..=9u32 {
            for length in [count as usize * LEAF_BYTES, count as usize * LEAF_BYTES - 1008] {
                let bytes = bytes(length);
                for set in 1u32..1 << count {
                    let leaves: Vec<u32> = (0..count).filter(|leaf| set >> leaf & 1 == 1).collect();
                    proves(&bytes, &leaves);
                }
            }
        }
    }

    #[test]
    fn a_proof_holds_one_node_for_each_level() {
        let bytes = bytes(1000 * LEAF_BYTES);
        assert_eq!(proves(&bytes, &[500]).len(), 4 + 4 + LEAF_BYTES + 10 * NODE_BYTES);
        let side_by_side: Vec<u32> = (512..576).collect();
        assert_eq!(proves(&bytes, &side_by_side).len(), 4 + 64 * (4 + LEAF_BYTES) + 4 * NODE_BYTES);
    }

    #[test]
    fn lists_that_break_a_rule_get_no_proof() {
        let bytes = bytes(100 * LEAF_BYTES);
        let tree = HashTree::of(&bytes);
        let many: Vec<u32> = (0..=PROOF_LEAVES_MAX as u32).collect();
        for leaves in [&[][..], &[100], &[2, 1], &[1, 1], &many] {
            assert!(tree.proof(&bytes, leaves).is_none());
        }
        assert!(HashTree::of(b"").proof(b"", &[0]).is_none());
        assert!(verify(blake3::hash(b"").as_bytes(), 0, &[0; 4]).is_err());
    }

    #[test]
    fn fuzz_no_other_bytes_pass_and_none_panic() {
        let mut rng = SplitMix64(23);
        for round in 0..3000 {
            let bytes = bytes(16 * (1 + rng.below(5000) as usize));
            let count = bytes.len().div_ceil(LEAF_BYTES) as u64;
            let mut leaves: Vec<u32> = (0..1 + rng.below(20)).map(|_| rng.below(count) as u32).collect();
            leaves.sort_unstable();
            leaves.dedup();
            let good = proves(&bytes, &leaves);
            let root = blake3::hash(&bytes);
            let mut bad = good.clone();
            let at = rng.below(bad.len() as u64) as usize;
            match rng.below(6) {
                0 => bad[at] ^= 1 << rng.below(8),
                1 => bad.truncate(at),
                2 => bad.insert(at, 7),
                3 => bad.extend_from_within(at..),
                4 => bad[..4].copy_from_slice(&(rng.next_u64() as u32).to_le_bytes()),
                _ => bad.drain(at / 2..at).for_each(drop),
            }
            if bad != good {
                assert!(verify(root.as_bytes(), bytes.len(), &bad).is_err(), "round {round}");
            }
            // A peer that is wrong about the size, too.
            let size = 16 * (1 + rng.below(5000) as usize);
            let _ = verify(root.as_bytes(), size, &good);
        }
    }
}
