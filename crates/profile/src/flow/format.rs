//! Bytes of a flow graph file: constants and the header struct. Described in docs/formats/flow.md.
//!
//! Each limit is one number for writing and for reading: the text form spells every graph that a
//! file can hold, and both are held to the same bounds, so that export and import never refuse each
//! other's work.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of every flow graph file.
pub const MAGIC: [u8; 8] = *b"RNLFLOWG";

/// The only version there is.
pub const VERSION: u16 = 1;

/// The file header, 48 bytes at offset 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FileHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U16,
    /// [`FLAG_LIVE`] or zero.
    pub flags: U16,
    /// Bytes of a block.
    pub block_bytes: U32,
    /// Length of the data file in bytes.
    pub file_bytes: U64,
    /// Edges that lead to first blocks.
    pub entry_count: U32,
    /// Blocks that are used.
    pub node_count: U32,
    /// Stages.
    pub stage_count: U32,
    /// Zero.
    pub reserved: U32,
    /// Bytes between this header and the hash.
    pub payload_bytes: U64,
}

const _: () = assert!(size_of::<FileHeader>() == 48);

/// Bytes of the hash at the end: BLAKE3 over all bytes before it.
pub const HASH_BYTES: usize = 32;

/// Bit of the flags: live use updates the weights.
pub const FLAG_LIVE: u16 = 1;

/// Share of a stage: what others leave.
pub const SHARE_REST: u64 = 0;
/// Share of a stage: percent of the link.
pub const SHARE_PERCENT: u64 = 1;
/// Share of a stage: bytes per second.
pub const SHARE_RATE: u64 = 2;

/// Smallest block: a sector.
pub const BLOCK_BYTES_MIN: u32 = 512;
/// Largest block: at 128 kbit/s it takes a minute.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// The usual block: a page.
pub const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// Blocks of a file: 4 GiB in blocks of 4 KiB, 1 TiB in the largest. With every block used and four
/// edges each it takes about 90 MB in memory.
pub const BLOCKS_MAX: u32 = 1 << 20;
/// Edges kept of a block; beyond, the lightest go. A step of a binary search has three: left,
/// right, and the next search.
pub const EDGES_MAX: usize = 4;
/// First blocks kept: more than of other edges, since an index may be entered at any of its parts.
pub const ENTRIES_MAX: usize = 64;
/// Greatest weight. A counter that would go over it halves all counters of its block, so that what
/// is new counts: a habit of 4096 uses is outweighed after as many others and one. Parts in 4096
/// are finer than any order of blocks needs.
pub const WEIGHT_MAX: u32 = 4096;

/// Stages: more than a game has scenes.
pub const STAGES_MAX: usize = 256;
/// Ranges of all stages: a stage of every sixteenth block.
pub const RANGES_MAX: usize = 65_536;
/// Bytes of the name of a stage.
pub const STAGE_NAME_BYTES_MAX: usize = 64;
/// Greatest rate of a stage, bytes per second: 1 TB/s, so that sums of rates fit.
pub const RATE_MAX: u64 = 1_000_000_000_000;

/// Bytes of a text form that are read. The largest graph takes 106 MB, one of a scan a few lines.
pub const TEXT_BYTES_MAX: usize = 128 << 20;
/// Blocks that all lines of a text form walk through: both ends of every edge of the largest graph,
/// and each block once more. Ranges make many steps of few letters.
pub const TEXT_STEPS_MAX: usize = 2 * (BLOCKS_MAX as usize * EDGES_MAX + ENTRIES_MAX) + BLOCKS_MAX as usize;
