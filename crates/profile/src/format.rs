//! Bytes of an actions file: constants and the header struct. Described in docs/formats/actions.md.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of every actions file.
pub const MAGIC: [u8; 8] = *b"RNLACTNS";

/// The only version there is.
pub const VERSION: u16 = 1;

/// The file header, 112 bytes at offset 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FileHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U16,
    /// Zero.
    pub reserved: U16,
    /// Actions in the file.
    pub action_count: U32,
    /// The image whose inodes the page numbers are of.
    pub image: [u8; 32],
    /// The number that the next new action gets; greater than every id in the file.
    pub next_id: U64,
    /// The set's use counter; no action was used later.
    pub clock: U64,
    /// Bytes that follow the header.
    pub payload_bytes: U64,
    /// Zero.
    pub reserved_too: U64,
    /// BLAKE3 of the header with this field zero, then the payload.
    pub hash: [u8; 32],
}

const _: () = assert!(size_of::<FileHeader>() == 112);

/// Largest `next_id` and `clock`: they count events of the real world, and must not overflow when
/// counting on.
pub const COUNTER_MAX: u64 = (1 << 63) - 1;

/// Bit of an action's flag byte: it is stable.
pub const FLAG_STABLE: u8 = 1;

/// Bit of an action's flag byte: its teacher follows the number of runs.
pub const FLAG_TEACHER: u8 = 2;

/// Bit of a page mark: the page is an extra.
pub const MARK_EXTRA: u64 = 1;
/// Bit of a page mark: the number of exact runs that missed the page follows, 1 to 255; without it
/// that number is 0.
pub const MARK_MISSED: u64 = 2;
/// The runs that touched the page stand above the two bits.
pub const MARK_RUNS_SHIFT: u32 = 2;

/// Actions accepted in one file. We keep 4096 (`MergeConfig`); four times as many leave room for a
/// later program.
pub const ACCEPTED_ACTIONS_MAX: usize = 4 * 4096;
/// Pages accepted in one action: four times the 65536 that we write.
pub const ACCEPTED_ACTION_PAGES_MAX: usize = 4 * 65536;
/// Pages accepted in all actions of a file: four times what we write; about 70 MB in memory.
pub const ACCEPTED_PAGES_TOTAL_MAX: usize = 4 << 20;
