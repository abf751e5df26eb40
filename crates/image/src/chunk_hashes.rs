//! Chunk hashes: loads them, and compares decoded blocks with them.
//!
//! An image has one content: the bytes of its decoded blocks, and the chunk hashes are those of
//! these bytes. A page may reach a reader inside its block or by itself, so a reader that believed
//! both without comparing them could see two contents under one id. So every decoded block passes
//! through here. If the hashes are loaded, those of its chunks are compared. If they are not, the
//! hashes of its chunks are kept, and compared when the hashes come. Hashes that the file does not
//! store are complete once every block was decoded, and are then compared with their hash in the
//! superblock. An image that fails is refused from then on, all of it.
//!
//! Hashes may also come a few at a time, with proofs (`proof`). Then those that are proven count as
//! loaded, one by one.
//!
//! Memory: 16 bytes a chunk while the hashes are not loaded, as much as they will take (of proven
//! hashes only the pages of memory that hold some), and a bit a block.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use units::{BlockId, ChunkId};

use crate::format::{self, CHUNK_HASH_BYTES};
use crate::hash_many::hash_many;
use crate::page::short;
use crate::proof::LEAF_HASHES;
use crate::section::{decode, read_stored};
use crate::table::Table;
use crate::{ImageError, Metadata, ReadAt, proof};

/// The chunk hashes of an image, and what blocks said of them so far.
#[derive(Default)]
pub(crate) struct ChunkHashes {
    /// Empty until loaded.
    loaded: OnceLock<Table<format::ChunkHash>>,
    /// Proofs come with single pages.
    expected: AtomicBool,
    seen: Mutex<Seen>,
    contradiction: OnceLock<Contradiction>,
}

/// What was decoded.
#[derive(Default)]
struct Seen {
    /// A bit for each block whose chunks were hashed: its bytes are verified, so they are the same
    /// the next time.
    blocks: Vec<u64>,
    /// Until the hashes are loaded, by chunk: those that are proven, and those of the chunks of
    /// these blocks.
    hashes: Vec<u8>,
    /// How many chunks of blocks that is.
    chunks: u32,
    /// A bit for each leaf of the section whose hashes are proven.
    leaves: Vec<u64>,
}

/// Where an image contradicts itself.
#[derive(Clone, Copy)]
enum Contradiction {
    Chunk { chunk: ChunkId, block: BlockId, expected: [u8; CHUNK_HASH_BYTES], found: [u8; CHUNK_HASH_BYTES] },
    Derived { expected: [u8; 32], found: [u8; 32] },
}

impl From<Contradiction> for ImageError {
    fn from(contradiction: Contradiction) -> ImageError {
        match contradiction {
            Contradiction::Chunk { chunk, block, expected, found } => {
                ImageError::ChunkHash { chunk, block, expected, found }
            }
            Contradiction::Derived { expected, found } => ImageError::DerivedHashes { expected, found },
        }
    }
}

impl Seen {
    fn has(&self, block: BlockId) -> bool {
        is_set(&self.blocks, block.0)
    }

    fn mark(&mut self, block: BlockId, count: u32) {
        set(&mut self.blocks, block.0, count);
    }

    fn hash(&self, chunk: ChunkId) -> Option<[u8; CHUNK_HASH_BYTES]> {
        let start = chunk.0 as usize * CHUNK_HASH_BYTES;
        self.hashes.get(start..)?.first_chunk().copied()
    }

    fn proven(&self, chunk: ChunkId) -> Option<[u8; CHUNK_HASH_BYTES]> {
        self.hash(chunk).filter(|_| is_set(&self.leaves, chunk.0 / LEAF_HASHES))
    }

    /// The hashes of `count` chunks, to write to. Zeros from the system: only what is written takes
    /// memory.
    fn hashes_mut(&mut self, count: u32) -> &mut [u8] {
        if self.hashes.is_empty() {
            self.hashes = vec![0; count as usize * CHUNK_HASH_BYTES];
        }
        &mut self.hashes
    }
}

fn is_set(bits: &[u64], index: u32) -> bool {
    bits.get(index as usize / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}

/// Sets one of `count` bits.
fn set(bits: &mut Vec<u64>, index: u32, count: u32) {
    bits.resize(count.div_ceil(64) as usize, 0);
    if let Some(word) = bits.get_mut(index as usize / 64) {
        *word |= 1 << (index % 64);
    }
}

impl ChunkHashes {
    /// Nothing is left half changed by a panic.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let seen = self.seen();
        let bits = (seen.blocks.len() + seen.leaves.len()) * size_of::<u64>();
        self.loaded.get().map_or(0, Table::byte_len) + seen.hashes.len() + bits
    }

    pub(crate) fn get(&self, chunk: ChunkId) -> Option<[u8; CHUNK_HASH_BYTES]> {
        let loaded = || self.loaded.get().map(|loaded| loaded.get(chunk.0).map(|hash| hash.0));
        loaded().unwrap_or_else(|| {
            let seen = self.seen();
            // Those that were proven are dropped when all are loaded, which may be just now.
            loaded().unwrap_or_else(|| seen.proven(chunk))
        })
    }

    fn refuse<T>(&self, contradiction: Contradiction) -> Result<T, ImageError> {
        // The first one found is enough.
        Err((*self.contradiction.get_or_init(|| contradiction)).into())
    }
}

impl Metadata {
    /// Reads and verifies the chunk hashes, if they are not loaded yet, and compares them with all
    /// blocks that were decoded before. Several threads may try at once.
    ///
    /// # Errors
    /// The source fails, or the section is damaged: it can be tried again. Or the image contradicts
    /// itself, see [`Metadata::contradiction`].
    pub fn load_chunk_hashes(&self, source: &dyn ReadAt) -> Result<(), ImageError> {
        if self.has_chunk_hashes() {
            return Ok(());
        }
        let Some(section) = self.superblock.section(format::SECTION_CHUNK_HASHES) else { return Ok(()) };
        let mut stored = Vec::new();
        read_stored(source, section, &mut stored)?;
        self.adopt(Table::new(decode(section, &stored)?), &mut self.hashes.seen())
    }

    /// Verifies some hashes of chunks or of blocks that came with a proof, and compares those of
    /// chunks with the blocks that were decoded before. Pages and blocks whose hashes were proven
    /// can be verified from then on.
    ///
    /// # Errors
    /// The proof is wrong, and nothing has changed. Or the image contradicts itself.
    pub fn load_proof(&self, proof: &[u8]) -> Result<(), ImageError> {
        if proof::is_of_blocks(proof) {
            return self.load_block_proof(proof);
        }
        let Some(section) = self.superblock.section(format::SECTION_CHUNK_HASHES) else { return Ok(()) };
        if !self.proves_chunk_hashes() {
            return Err(ImageError::Proof { what: "section, which is compressed" });
        }
        let proven = proof::verify(&section.hash, section.stored_bytes as usize, proof)?;
        self.check_consistent()?;
        if self.has_chunk_hashes() {
            return Ok(());
        }
        let mut seen = self.hashes.seen();
        for (leaf, at) in proven {
            let hashes = proof.get(at).unwrap_or_default();
            self.adopt_leaf(leaf, hashes, &mut seen)?;
        }
        Ok(())
    }

    /// Takes the verified hashes of a leaf, if no block that was decoded before contradicts them.
    fn adopt_leaf(&self, leaf: u32, hashes: &[u8], seen: &mut Seen) -> Result<(), ImageError> {
        if is_set(&seen.leaves, leaf) {
            return Ok(());
        }
        let first = leaf * LEAF_HASHES;
        for (chunk, expected) in (first..).map(ChunkId).zip(hashes.as_chunks().0) {
            let Some(place) = self.chunk(chunk).filter(|place| seen.has(place.block)) else { continue };
            if let Some(found) = seen.hash(chunk) {
                self.compare(Some(*expected), chunk, place.block, found)?;
            }
        }
        let start = first as usize * CHUNK_HASH_BYTES;
        if let Some(slot) = seen.hashes_mut(self.chunk_count()).get_mut(start..start + hashes.len()) {
            slot.copy_from_slice(hashes);
            set(&mut seen.leaves, leaf, self.hash_leaf_count());
        }
        Ok(())
    }

    /// Whether the chunk hashes are not in the file, but follow from the blocks
    /// ([`Metadata::derive_chunk_hashes`]).
    pub fn derives_chunk_hashes(&self) -> bool {
        self.superblock.has(format::FEATURE_DERIVED_HASHES)
    }

    /// Makes the chunk hashes of an image that does not store them, from its blocks: decodes those
    /// that were not decoded before, one at a time. Does nothing if the hashes are loaded.
    ///
    /// # Errors
    /// The source fails, a block is damaged, or the image contradicts itself.
    pub fn derive_chunk_hashes(&self, source: &dyn ReadAt) -> Result<(), ImageError> {
        let (mut stored, mut raw) = (Vec::new(), Vec::new());
        for id in (0..self.block_count()).map(BlockId) {
            if self.has_chunk_hashes() {
                return Ok(());
            }
            if !self.hashes.seen().has(id) {
                self.read_block(source, id, &mut stored, &mut raw)?;
            }
        }
        // An image without blocks has no chunks.
        self.settle(&mut self.hashes.seen())
    }

    /// Whether pages can be verified: after [`Metadata::open`] of an image that stores the chunk
    /// hashes, or once they are loaded or derived.
    pub fn has_chunk_hashes(&self) -> bool {
        self.hashes.loaded.get().is_some()
    }

    /// Says whether the hashes of single pages and of blocks come with a proof before these, from
    /// now on.
    pub fn expect_proofs(&self, expected: bool) {
        self.block_hashes.expect_proofs(expected);
        self.hashes.expected.store(expected && self.proves_chunk_hashes(), Ordering::Relaxed);
    }

    /// Whether single pages can be verified when they come: the hashes are here, or come before
    /// them.
    pub fn takes_pages(&self) -> bool {
        self.has_chunk_hashes() || self.hashes.expected.load(Ordering::Relaxed)
    }

    /// The chunk hashes as their section holds them, once they are loaded or derived.
    pub fn chunk_hash_bytes(&self) -> Option<&[u8]> {
        self.hashes.loaded.get().map(Table::bytes)
    }

    /// Why nothing of this image may be used any more: a block and the chunk hashes say different
    /// things. Blocks and pages are refused with this error once it was found.
    pub fn contradiction(&self) -> Option<ImageError> {
        self.hashes.contradiction.get().map(|contradiction| (*contradiction).into())
    }

    /// Fails if a contradiction was found.
    pub(crate) fn check_consistent(&self) -> Result<(), ImageError> {
        self.contradiction().map_or(Ok(()), Err)
    }

    /// Compares a decoded block with the chunk hashes, or keeps its hashes until they are loaded.
    /// `raw` was decoded from verified bytes.
    pub(crate) fn check_chunks(&self, block: BlockId, raw: &[u8]) -> Result<(), ImageError> {
        if self.hashes.seen().has(block) {
            return Ok(());
        }
        let (mut chunks, mut parts) = (Vec::new(), Vec::new());
        for chunk in self.block_chunks(block) {
            let Some(place) = self.chunk(chunk) else { continue };
            let start = place.offset as usize;
            chunks.push(chunk);
            parts.push(raw.get(start..start + place.bytes as usize).unwrap_or(b""));
        }
        let hashes = hash_many(&parts);
        let found = chunks.into_iter().zip(hashes.iter().map(short));
        let mut seen = self.hashes.seen();
        if seen.has(block) {
            return Ok(());
        }
        if let Some(loaded) = self.hashes.loaded.get() {
            for (chunk, found) in found {
                self.compare(loaded.get(chunk.0).map(|hash| hash.0), chunk, block, found)?;
            }
            seen.mark(block, self.block_count());
            return Ok(());
        }
        let found: Vec<_> = found.collect();
        for (chunk, found) in &found {
            self.compare(seen.proven(*chunk), *chunk, block, *found)?;
        }
        seen.mark(block, self.block_count());
        for (chunk, hash) in found {
            let start = chunk.0 as usize * CHUNK_HASH_BYTES;
            if let Some(slot) = seen.hashes_mut(self.chunk_count()).get_mut(start..start + CHUNK_HASH_BYTES) {
                slot.copy_from_slice(&hash);
            }
            seen.chunks += 1;
        }
        self.settle(&mut seen)
    }

    /// Derived hashes are complete when those of all chunks were seen.
    fn settle(&self, seen: &mut Seen) -> Result<(), ImageError> {
        if !self.derives_chunk_hashes() || seen.chunks < self.chunk_count() || self.has_chunk_hashes() {
            return Ok(());
        }
        let Some(section) = self.superblock.section(format::SECTION_CHUNK_HASHES) else { return Ok(()) };
        let (expected, found) = (section.hash, *blake3::hash(&seen.hashes).as_bytes());
        if found != expected {
            return self.hashes.refuse(Contradiction::Derived { expected, found });
        }
        let derived = std::mem::take(&mut seen.hashes);
        self.adopt(Table::new(derived.into_boxed_slice()), seen)
    }

    /// Takes verified hashes, if no block that was decoded before contradicts them.
    fn adopt(&self, table: Table<format::ChunkHash>, seen: &mut Seen) -> Result<(), ImageError> {
        self.check_consistent()?;
        if self.has_chunk_hashes() {
            return Ok(());
        }
        let blocks = if seen.hashes.is_empty() { 0 } else { self.block_count() };
        for block in (0..blocks).map(BlockId).filter(|block| seen.has(*block)) {
            for chunk in self.block_chunks(block) {
                if let Some(found) = seen.hash(chunk) {
                    self.compare(table.get(chunk.0).map(|hash| hash.0), chunk, block, found)?;
                }
            }
        }
        self.hashes.loaded.get_or_init(|| table);
        (seen.hashes, seen.leaves) = (Vec::new(), Vec::new());
        Ok(())
    }

    fn compare(
        &self,
        expected: Option<[u8; CHUNK_HASH_BYTES]>,
        chunk: ChunkId,
        block: BlockId,
        found: [u8; CHUNK_HASH_BYTES],
    ) -> Result<(), ImageError> {
        match expected {
            Some(expected) if expected != found => {
                self.hashes.refuse(Contradiction::Chunk { chunk, block, expected, found })
            }
            _ => Ok(()),
        }
    }
}
