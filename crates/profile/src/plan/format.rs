//! Bytes of a plan file: constants and the header struct. Described in docs/formats/plan.md.
//!
//! Two numbers for each limit: a writer stays below `WRITTEN_`, a reader takes up to four times
//! that (`ACCEPTED_`), which leaves room for a later program and still bounds what a foreign file
//! costs.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of every plan.
pub const MAGIC: [u8; 8] = *b"RNLLPLAN";

/// The version of a plan whose groups have no libraries.
pub const VERSION_BARE: u16 = 1;
/// The version of a plan in which at least one group has a library. It is the newest one.
pub const VERSION: u16 = 2;

/// The file header, 32 bytes at offset 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FileHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION_BARE`] or [`VERSION`].
    pub version: U16,
    /// Zero.
    pub reserved: U16,
    /// Learning runs that it was made from.
    pub runs: U32,
    /// Files in it.
    pub file_count: U32,
    /// Groups in it.
    pub group_count: U32,
    /// Bytes between this header and the hash.
    pub payload_bytes: U64,
}

const _: () = assert!(size_of::<FileHeader>() == 32);

/// Bytes of the hash at the end: BLAKE3 over all bytes before it.
pub const HASH_BYTES: usize = 32;

/// A file without an identity: a directory, or a path where nothing was found.
pub const FILE_BARE: u64 = 0;
/// A file with an identity.
pub const FILE_KNOWN: u64 = 1;

/// Trigger: the start of the program.
pub const TRIGGER_LAUNCH: u64 = 0;
/// Trigger: a breakpoint.
pub const TRIGGER_BREAKPOINT: u64 = 1;
/// Trigger: that of an earlier group.
pub const TRIGGER_WITH: u64 = 2;

/// No library announces the group.
pub const LIBRARY_NONE: u64 = 0;
/// A library announces the group.
pub const LIBRARY_KNOWN: u64 = 1;

/// Longest build id, written and accepted. Linkers write 20 bytes (SHA-1), some 16 or 8; 32 would
/// be SHA-256.
pub const BUILD_ID_BYTES_MAX: usize = 32;

/// Files that we write. Python with six large packages opens 2,222; an office suite 1,700.
pub const WRITTEN_FILES_MAX: usize = 65_536;
/// Files that we accept.
pub const ACCEPTED_FILES_MAX: usize = 4 * WRITTEN_FILES_MAX;

/// Groups that we write: a program that loads a level every minute for half a day.
pub const WRITTEN_GROUPS_MAX: usize = 1024;
/// Groups that we accept.
pub const ACCEPTED_GROUPS_MAX: usize = 4 * WRITTEN_GROUPS_MAX;

/// Extents of all groups that we write. A large program touches 45,000 pages in about 10,000 runs.
pub const WRITTEN_EXTENTS_MAX: usize = 262_144;
/// Extents of all groups that we accept: 12 MB in memory.
pub const ACCEPTED_EXTENTS_MAX: usize = 4 * WRITTEN_EXTENTS_MAX;

/// Opens of all groups that we write: each file once.
pub const WRITTEN_OPENS_MAX: usize = WRITTEN_FILES_MAX;
/// Opens of all groups that we accept.
pub const ACCEPTED_OPENS_MAX: usize = 4 * WRITTEN_OPENS_MAX;

/// Bytes of all paths that we write: 65,536 of 256 bytes. What is shared with the path before
/// counts again, since it takes memory again.
pub const WRITTEN_PATH_BYTES_MAX: usize = 16 << 20;
/// Bytes of all paths that we accept.
pub const ACCEPTED_PATH_BYTES_MAX: usize = 4 * WRITTEN_PATH_BYTES_MAX;
