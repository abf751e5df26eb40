//! Checks an image from end to end: all metadata, every block, every chunk.

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

/// Checks every byte of `source`: the metadata as [`Metadata::open`] does, then the hash of every
/// block, that it decodes, and the hash of every chunk in it, stored or derived. `progress` gets
/// the bytes done and the bytes of the file, after the metadata and after each block. Holds one
/// block at a time.
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
    for id in (0..metadata.block_count()).map(BlockId) {
        let block = metadata.read_block(source, id, &mut stored, &mut raw)?;
        report.chunks += metadata.block_chunks(id).count() as u32;
        report.blocks += 1;
        report.stored_bytes += u64::from(block.stored_bytes);
        report.raw_bytes += u64::from(block.raw_bytes);
        done += u64::from(block.stored_bytes);
        progress(done, total);
    }
    metadata.derive_chunk_hashes(source)?;
    Ok(report)
}
