//! Blocks: the unit of storage and of a pull. A block is verified by its hash before anything decodes it.

use crate::{Codec, ImageError, Metadata};
use units::BlockId;

/// A block as the block table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// Where it starts in the file.
    pub file_offset: u64,
    /// Where it starts in the concatenation of all decoded blocks.
    pub raw_start: u64,
    /// Bytes in the file.
    pub stored_bytes: u32,
    /// Bytes after decoding.
    pub raw_bytes: u32,
    /// How it is compressed.
    pub codec: Codec,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
}

impl Metadata {
    /// The block with this number, or `None` if there is none.
    pub fn block(&self, id: BlockId) -> Option<BlockEntry> {
        let raw = self.tables.blocks.get(id.0)?;
        Some(BlockEntry {
            file_offset: raw.file_offset.get(),
            raw_start: raw.raw_start.get(),
            stored_bytes: raw.stored_bytes.get(),
            raw_bytes: raw.raw_bytes.get(),
            codec: Codec::from_u8(raw.codec)?,
            hash: raw.hash,
        })
    }

    /// Checks the length and the hash of the stored bytes of a block.
    ///
    /// # Errors
    /// No such block, wrong length, wrong hash.
    pub fn verify_block(&self, id: BlockId, stored: &[u8]) -> Result<BlockEntry, ImageError> {
        let block = self.block(id).ok_or(ImageError::NoBlock { block: id, count: self.block_count() })?;
        let (offset, expected, found) = (block.file_offset, u64::from(block.stored_bytes), stored.len() as u64);
        if expected != found {
            return Err(ImageError::BlockLength { block: id, offset, expected, found });
        }
        let found = *blake3::hash(stored).as_bytes();
        if found != block.hash {
            return Err(ImageError::BlockHash { block: id, offset, expected: block.hash, found });
        }
        Ok(block)
    }

    /// Checks the stored bytes of a block, then decodes them into `out`, which is cleared first.
    ///
    /// # Errors
    /// As [`Metadata::verify_block`], or the block was written wrongly and does not decode.
    pub fn decode_block(&self, id: BlockId, stored: &[u8], out: &mut Vec<u8>) -> Result<(), ImageError> {
        out.clear();
        let block = self.verify_block(id, stored)?;
        codec::decode(block.codec, stored, block.raw_bytes as usize, out).map_err(|source| ImageError::BlockCodec {
            block: id,
            offset: block.file_offset,
            source,
        })
    }
}
