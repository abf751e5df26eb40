//! A run of blocks.

use units::BlockId;

/// A run of blocks. `first + count` does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub first: BlockId,
    /// Number of blocks, at least 1.
    pub count: u32,
}
