//! Checking an image from end to end: all metadata, every block, every chunk.

use crate::format::CHUNK_HASH_BYTES;
use crate::page::short_hash;
use crate::{ImageError, Limits, Metadata, ReadAt};
use units::{BlockId, ImageId};

/// What a check went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Identity of the image.
    pub id: ImageId,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of the metadata region.
    pub metadata_bytes: u64,
    /// Inodes.
    pub inodes: u32,
    /// Chunks whose hash was compared.
    pub chunks: u32,
    /// Blocks whose hash was compared.
    pub blocks: u32,
    /// Bytes of all blocks as stored.
    pub stored_bytes: u64,
    /// Bytes of all blocks decoded.
    pub raw_bytes: u64,
}

/// Checks every byte of `source`: the metadata as [`Metadata::open`] does, then the hash of every block, that it
/// decodes, and the hash of every chunk in it. `progress` is told the bytes done and the bytes of the file, after the
/// metadata and after each block. Holds one block at a time.
///
/// # Errors
/// The first thing wrong, with its place.
pub fn check(source: &dyn ReadAt, limits: &Limits, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, ImageError> {
    let metadata = Metadata::open(source, limits)?;
    let total = metadata.file_bytes();
    let mut report = Report {
        id: metadata.id(),
        file_bytes: total,
        metadata_bytes: metadata.superblock().metadata_bytes,
        inodes: metadata.inode_count(),
        chunks: 0,
        blocks: 0,
        stored_bytes: 0,
        raw_bytes: 0,
    };
    let mut done = total - (metadata.superblock().metadata_offset - crate::format::SUPERBLOCK_BYTES as u64);
    progress(done, total);
    let (mut stored, mut raw) = (Vec::new(), Vec::new());
    let derives = metadata.derives_chunk_hashes();
    let mut derived = vec![0; if derives { metadata.chunk_count() as usize * CHUNK_HASH_BYTES } else { 0 }];
    for id in (0..metadata.block_count()).map(BlockId) {
        let Some(block) = metadata.block(id) else { break };
        stored.clear();
        stored.resize(block.stored_bytes as usize, 0);
        source.read_exact_at(block.file_offset, &mut stored).map_err(|source| ImageError::Read {
            what: "block",
            offset: block.file_offset,
            source,
        })?;
        metadata.decode_block(id, &stored, &mut raw)?;
        report.chunks +=
            if derives { hash_chunks(&metadata, id, &raw, &mut derived) } else { check_chunks(&metadata, id, &raw)? };
        report.blocks += 1;
        report.stored_bytes += u64::from(block.stored_bytes);
        report.raw_bytes += u64::from(block.raw_bytes);
        done += u64::from(block.stored_bytes);
        progress(done, total);
    }
    if derives {
        metadata.adopt_chunk_hashes(derived)?;
    }
    Ok(report)
}

/// The chunk hashes of an image that does not store them, from its blocks, as the bytes of the section. Reads and
/// decodes the whole image, a block at a time. [`Metadata::adopt_chunk_hashes`] checks them.
///
/// # Errors
/// The source fails, or a block is damaged.
pub fn chunk_hashes(source: &dyn ReadAt, metadata: &Metadata) -> Result<Vec<u8>, ImageError> {
    let mut derived = vec![0; metadata.chunk_count() as usize * CHUNK_HASH_BYTES];
    let (mut stored, mut raw) = (Vec::new(), Vec::new());
    for id in (0..metadata.block_count()).map(BlockId) {
        let Some(block) = metadata.block(id) else { break };
        stored.clear();
        stored.resize(block.stored_bytes as usize, 0);
        let read = source.read_exact_at(block.file_offset, &mut stored);
        read.map_err(|source| ImageError::Read { what: "block", offset: block.file_offset, source })?;
        metadata.decode_block(id, &stored, &mut raw)?;
        hash_chunks(metadata, id, &raw, &mut derived);
    }
    Ok(derived)
}

/// Writes the hashes of the chunks in a decoded block to their places; returns how many there are.
fn hash_chunks(metadata: &Metadata, block: BlockId, raw: &[u8], derived: &mut [u8]) -> u32 {
    let mut count = 0;
    for chunk in metadata.block_chunks(block) {
        let Some(place) = metadata.chunk(chunk) else { continue };
        let start = place.offset as usize;
        let hash = short_hash(raw.get(start..start + place.bytes as usize).unwrap_or(b""));
        let at = chunk.0 as usize * CHUNK_HASH_BYTES;
        if let Some(slot) = derived.get_mut(at..at + CHUNK_HASH_BYTES) {
            slot.copy_from_slice(&hash);
        }
        count += 1;
    }
    count
}

/// Compares the hashes of the chunks in a decoded block; returns how many there are.
fn check_chunks(metadata: &Metadata, block: BlockId, raw: &[u8]) -> Result<u32, ImageError> {
    let mut count = 0;
    for chunk in metadata.block_chunks(block) {
        let (Some(place), Some(expected)) = (metadata.chunk(chunk), metadata.chunk_hash(chunk)) else { continue };
        let start = place.offset as usize;
        let found = short_hash(raw.get(start..start + place.bytes as usize).unwrap_or(b""));
        if found != expected {
            return Err(ImageError::ChunkHash { chunk, block, expected, found });
        }
        count += 1;
    }
    Ok(count)
}
