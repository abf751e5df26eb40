//! The block table as readers keep it, and the hashes of blocks, which may come later.
//!
//! A reader of a file loads all hashes. One that is served by a peer takes them leaf by leaf with
//! proofs, before the blocks that they are for (`proof`).
//!
//! Memory: 32 bytes a block once all are loaded, else those of the leaves that came.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use units::BlockId;
use zerocopy::{FromBytes, IntoBytes};

use crate::format::{self, Block, BlockAndHash, BlockSizes, SUPERBLOCK_BYTES};
use crate::proof::{self, LEAF_BYTES};
use crate::section::read_stored;
use crate::table::Table;
use crate::{ImageError, Metadata, ReadAt, Superblock};

/// Hashes in a leaf.
const LEAF_HASHES: u32 = (LEAF_BYTES / blake3::OUT_LEN) as u32;

/// The hashes of the blocks of an image, as far as they are here.
pub(crate) struct BlockHashes {
    /// Those of all blocks.
    whole: OnceLock<Box<[u8]>>,
    /// Until then, those that were proven.
    leaves: Box<[OnceLock<Box<[u8]>>]>,
    /// Proofs come with blocks.
    expected: AtomicBool,
}

/// Makes the table of blocks with their places from the decoded section of the block table, and
/// gives the hashes that the section holds, if it does.
pub(crate) fn split(superblock: &Superblock, raw: &[u8]) -> (Table<Block>, Box<[u8]>) {
    let mut blocks: Vec<Block> = Vec::with_capacity(superblock.block_count as usize);
    let mut hashes = Vec::new();
    if superblock.has(format::FEATURE_BLOCK_HASHES) {
        let (mut file_end, mut raw_end) = (SUPERBLOCK_BYTES as u64, 0u64);
        let sizes = raw.chunks_exact(size_of::<BlockSizes>()).filter_map(|raw| BlockSizes::ref_from_bytes(raw).ok());
        for sizes in sizes {
            blocks.push(sizes.at(file_end, raw_end));
            // Bounded when the table is validated.
            file_end = file_end.saturating_add(sizes.stored_bytes.get().into());
            raw_end = raw_end.saturating_add(sizes.raw_bytes.get().into());
        }
    } else {
        let whole =
            raw.chunks_exact(size_of::<BlockAndHash>()).filter_map(|raw| BlockAndHash::ref_from_bytes(raw).ok());
        for BlockAndHash { block, hash } in whole {
            blocks.push(*block);
            hashes.extend_from_slice(hash);
        }
    }
    (Table::new(blocks.as_bytes().into()), hashes.into_boxed_slice())
}

impl BlockSizes {
    fn at(&self, file_offset: u64, raw_start: u64) -> Block {
        Block {
            file_offset: file_offset.into(),
            raw_start: raw_start.into(),
            stored_bytes: self.stored_bytes,
            raw_bytes: self.raw_bytes,
            codec: self.codec,
            filter: self.filter,
            dictionary: self.dictionary,
            reserved: self.reserved,
            expansion_bytes: self.expansion_bytes,
        }
    }

    #[cfg(feature = "build")]
    pub(crate) fn of(block: &Block) -> BlockSizes {
        BlockSizes {
            stored_bytes: block.stored_bytes,
            raw_bytes: block.raw_bytes,
            codec: block.codec,
            filter: block.filter,
            dictionary: block.dictionary,
            reserved: block.reserved,
            expansion_bytes: block.expansion_bytes,
        }
    }
}

impl BlockHashes {
    /// Those that the block table held: all, or none.
    pub(crate) fn of(superblock: &Superblock, hashes: Box<[u8]>) -> BlockHashes {
        if !superblock.has(format::FEATURE_BLOCK_HASHES) {
            return BlockHashes {
                whole: OnceLock::from(hashes),
                leaves: Box::default(),
                expected: AtomicBool::new(false),
            };
        }
        let leaves = superblock.block_count.div_ceil(LEAF_HASHES);
        let leaves = (0..leaves).map(|_| OnceLock::new()).collect();
        BlockHashes { whole: OnceLock::new(), leaves, expected: AtomicBool::new(false) }
    }

    fn get(&self, block: BlockId) -> Option<[u8; 32]> {
        let (bytes, index) = match self.whole.get() {
            Some(whole) => (whole, block.0),
            None => (self.leaves.get((block.0 / LEAF_HASHES) as usize)?.get()?, block.0 % LEAF_HASHES),
        };
        bytes.as_chunks().0.get(index as usize).copied()
    }

    pub(crate) fn expect_proofs(&self, expected: bool) {
        self.expected.store(expected, Ordering::Relaxed);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let leaves: usize = self.leaves.iter().filter_map(OnceLock::get).map(|leaf| leaf.len()).sum();
        self.whole.get().map_or(0, |whole| whole.len()) + leaves + size_of_val(&*self.leaves)
    }

    /// The most that this takes for so many blocks: all leaves came, and then all hashes.
    pub(crate) fn memory_bytes_max(block_count: u32) -> u64 {
        let leaves = u64::from(block_count.div_ceil(LEAF_HASHES)) * size_of::<OnceLock<Box<[u8]>>>() as u64;
        2 * u64::from(block_count) * blake3::OUT_LEN as u64 + leaves
    }
}

impl Metadata {
    /// BLAKE3 of the stored bytes of a block; `None` if there is no such block, or its hash has not
    /// come yet.
    pub fn block_hash(&self, block: BlockId) -> Option<[u8; 32]> {
        self.block_hashes.get(block)
    }

    /// Whether the hashes of all blocks are here.
    pub fn has_block_hashes(&self) -> bool {
        self.block_hashes.whole.get().is_some()
    }

    /// Whether blocks can be verified when they come: the hashes are here, or come before them.
    pub fn takes_blocks(&self) -> bool {
        self.has_block_hashes() || self.block_hashes.expected.load(Ordering::Relaxed)
    }

    /// The hashes of all blocks as their section holds them, once they are loaded.
    pub fn block_hash_bytes(&self) -> Option<&[u8]> {
        self.block_hashes.whole.get().map(|whole| &**whole)
    }

    /// Whether hashes of blocks can be proven leaf by leaf: they have a section of their own.
    pub fn proves_block_hashes(&self) -> bool {
        self.superblock.has(format::FEATURE_BLOCK_HASHES)
    }

    /// The leaf of the hashes of blocks that holds that of `block`.
    pub fn leaf_of_block(&self, block: BlockId) -> u32 {
        block.0 / LEAF_HASHES
    }

    /// How many leaves the hashes of blocks have.
    pub fn block_leaf_count(&self) -> u32 {
        self.block_count().div_ceil(LEAF_HASHES)
    }

    /// Reads and verifies the hashes of all blocks, if they are not loaded yet.
    ///
    /// # Errors
    /// The source fails, or the section is damaged: it can be tried again.
    pub fn load_block_hashes(&self, source: &dyn ReadAt) -> Result<(), ImageError> {
        let section = self.superblock.section(format::SECTION_BLOCK_HASHES).filter(|_| !self.has_block_hashes());
        let Some(section) = section else { return Ok(()) };
        let mut stored = Vec::new();
        read_stored(source, section, &mut stored)?;
        self.block_hashes.whole.get_or_init(|| stored.into_boxed_slice());
        Ok(())
    }

    /// Verifies some hashes of blocks that came with a proof.
    pub(crate) fn load_block_proof(&self, proof: &[u8]) -> Result<(), ImageError> {
        let Some(section) = self.superblock.section(format::SECTION_BLOCK_HASHES) else {
            return Err(ImageError::Proof { what: "section, which is not there" });
        };
        for (leaf, at) in proof::verify(&section.hash, section.stored_bytes as usize, proof)? {
            if let Some(slot) = self.block_hashes.leaves.get(leaf as usize) {
                slot.get_or_init(|| proof.get(at).unwrap_or_default().into());
            }
        }
        Ok(())
    }
}
