//! Blocks: the unit of storage and of a pull. A block is verified by its hash before anything
//! decodes it.

use crate::{Codec, ImageError, Metadata, ReadAt};
use codec::filter::{self, Filter};
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
    /// What its chunks went through before that.
    pub filter: Filter,
    /// Index of the dictionary it was compressed with.
    pub dictionary: Option<u8>,
    /// With [`Filter::Deflate`]: bytes that the codec decodes to; else 0.
    pub expansion_bytes: u32,
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
            filter: Filter::from_u8(raw.filter)?,
            dictionary: raw.dictionary.checked_sub(1),
            expansion_bytes: raw.expansion_bytes.get(),
        })
    }

    /// Checks the length and the hash of the stored bytes of a block.
    ///
    /// # Errors
    /// No such block, wrong length, wrong hash, or the hash has not come yet.
    pub fn verify_block(&self, id: BlockId, stored: &[u8]) -> Result<BlockEntry, ImageError> {
        let block = self.block(id).ok_or(ImageError::NoBlock { block: id, count: self.block_count() })?;
        let (offset, expected, found) = (block.file_offset, u64::from(block.stored_bytes), stored.len() as u64);
        if expected != found {
            return Err(ImageError::BlockLength { block: id, offset, expected, found });
        }
        let expected = self.block_hash(id).ok_or(ImageError::NoBlockHash { block: id })?;
        let found = *blake3::hash(stored).as_bytes();
        if found != expected {
            return Err(ImageError::BlockHash { block: id, offset, expected, found });
        }
        Ok(block)
    }

    /// Checks the stored bytes of a block, then decodes them into `out`, which is cleared first.
    ///
    /// # Errors
    /// As [`Metadata::verify_block`], or the block was written wrongly and does not decode.
    pub fn decode_block(&self, id: BlockId, stored: &[u8], out: &mut Vec<u8>) -> Result<(), ImageError> {
        out.clear();
        self.verify_block(id, stored)?;
        self.decode_verified(id, stored, out)
    }

    /// Reads a block from `source` into `stored`, checks it and decodes it into `out`.
    ///
    /// # Errors
    /// The source fails, or as [`Metadata::decode_block`].
    pub fn read_block(
        &self,
        source: &dyn ReadAt,
        id: BlockId,
        stored: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<BlockEntry, ImageError> {
        let block = self.block(id).ok_or(ImageError::NoBlock { block: id, count: self.block_count() })?;
        stored.clear();
        stored.resize(block.stored_bytes as usize, 0);
        let read = source.read_exact_at(block.file_offset, stored);
        read.map_err(|source| ImageError::Read { what: "block", offset: block.file_offset, source })?;
        self.decode_block(id, stored, out)?;
        Ok(block)
    }

    /// Decodes the stored bytes of a block, which were verified before, into `out`, which is
    /// cleared first. The first time its chunks are held to the chunk hashes; if those are not
    /// loaded, that is made up for when they are.
    ///
    /// # Errors
    /// No such block, it was written wrongly and does not decode, or the image contradicts itself
    /// ([`Metadata::contradiction`]). `out` is empty then.
    pub fn decode_verified(&self, id: BlockId, stored: &[u8], out: &mut Vec<u8>) -> Result<(), ImageError> {
        out.clear();
        self.check_consistent()?;
        let block = self.block(id).ok_or(ImageError::NoBlock { block: id, count: self.block_count() })?;
        let dictionary = block.dictionary.and_then(|index| self.tables.dictionaries.get(usize::from(index)));
        let raw_bytes = block.raw_bytes as usize;
        let decoded = if block.filter == Filter::Deflate {
            let mut expansion = Vec::new();
            codec::decode_with(block.codec, dictionary, stored, block.expansion_bytes as usize, &mut expansion)
                .and_then(|()| codec::deflate::contract(&expansion, raw_bytes, out))
        } else {
            codec::decode_with(block.codec, dictionary, stored, raw_bytes, out)
        };
        decoded.map_err(|source| ImageError::BlockCodec { block: id, offset: block.file_offset, source })?;
        if block.filter.is_of_chunks() {
            self.unfilter(id, &block, out);
        }
        self.check_chunks(id, out).inspect_err(|_| out.clear())
    }

    /// Undoes the filter of a block, chunk by chunk: each depends on where it lies in the first
    /// file that has it.
    fn unfilter(&self, id: BlockId, block: &BlockEntry, raw: &mut [u8]) {
        for chunk in self.block_chunks(id) {
            let (Some(entry), Some((_, index))) = (self.tables.chunks.get(chunk.0), self.chunk_reference(chunk)) else {
                continue;
            };
            let start = (entry.position() - block.raw_start) as usize;
            if let Some(bytes) = raw.get_mut(start..start + entry.bytes() as usize) {
                filter::decode(block.filter, u64::from(index) * self.chunk_bytes() as u64, bytes);
            }
        }
    }
}
