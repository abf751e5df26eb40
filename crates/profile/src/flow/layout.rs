//! How a data file is cut into blocks.

use std::ops::Range;

use super::{FlowError, format};

/// A data file as fixed blocks, numbered from 0 in file order; the last one may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    block_bytes: u32,
    file_bytes: u64,
}

impl Layout {
    /// A file of `file_bytes` in blocks of `block_bytes`.
    ///
    /// # Errors
    /// A block size that is no power of two from 512 to 1 MiB; more blocks than
    /// [`format::BLOCKS_MAX`].
    pub fn new(block_bytes: u32, file_bytes: u64) -> Result<Layout, FlowError> {
        let sizes = format::BLOCK_BYTES_MIN..=format::BLOCK_BYTES_MAX;
        if !sizes.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            return Err(FlowError::BlockBytes { found: block_bytes.into() });
        }
        let found = file_bytes.div_ceil(block_bytes.into());
        if found > format::BLOCKS_MAX.into() {
            return Err(FlowError::Blocks { found, block_bytes, limit: format::BLOCKS_MAX });
        }
        Ok(Layout { block_bytes, file_bytes })
    }

    /// Bytes of every block but the last.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Length of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Blocks of the file.
    pub fn blocks(&self) -> u32 {
        self.file_bytes.div_ceil(self.block_bytes.into()) as u32
    }

    /// The bytes of a block; empty behind the end of the file.
    pub fn range(&self, block: u32) -> Range<u64> {
        let at = |block: u64| (block * u64::from(self.block_bytes)).min(self.file_bytes);
        at(block.into())..at(u64::from(block) + 1)
    }

    /// The block that byte `offset` lies in, if the file has it.
    pub fn block_at(&self, offset: u64) -> Option<u32> {
        (offset < self.file_bytes).then(|| (offset / u64::from(self.block_bytes)) as u32)
    }
}
