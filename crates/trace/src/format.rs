//! Bytes of a trace file: constants and the header struct. Described in docs/formats/trace.md.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of every trace.
pub const MAGIC: [u8; 8] = *b"RNLTRACE";

/// The version that is written. Version 2 added the file record, version 3 the look-up and code
/// records and three sources; all else is as in version 1.
pub const VERSION: u16 = 3;

/// The oldest version that is read.
pub const VERSION_MIN: u16 = 1;

/// The first version with file records.
pub const VERSION_WITH_FILES: u16 = 2;

/// The first version with look-up and code records.
pub const VERSION_WITH_CODE: u16 = 3;

/// Records between two seals. A seal is 20 bytes at most, so 4096 records of about 3 bytes pay 0.2
/// %; a crash leaves at most this many records without a verified hash.
pub const SECTION_RECORDS: u32 = 4096;

/// Longest name of an executable, written and accepted: PATH_MAX of Linux.
pub const NAME_BYTES_MAX: usize = 4096;

/// Longest path of a file, written and accepted: PATH_MAX of Linux. A file with a longer one stays
/// without a record.
pub const PATH_BYTES_MAX: usize = 4096;

/// Tokens open at one time, written and accepted: more than a device has processes, and 24 bytes
/// each for a reader.
pub const TOKENS_OPEN_MAX: usize = 65536;

/// Bytes of a hash in a seal. It guards against accident, and sixteen bytes also stop a deliberate
/// second preimage.
pub const SEAL_HASH_BYTES: usize = 16;

/// The file header, 48 bytes at offset 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FileHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION_MIN`] to [`VERSION`].
    pub version: U16,
    /// Who recorded: see the `SOURCE_` constants.
    pub source: u8,
    /// Zero.
    pub reserved: u8,
    /// Zero.
    pub reserved_too: U32,
    /// The image whose inodes the page numbers are of.
    pub image: [u8; 32],
}

const _: () = assert!(size_of::<FileHeader>() == 48);

/// Source: the FUSE mount of a client.
pub const SOURCE_MOUNT: u8 = 0;
/// Source: a server, from what its clients asked for.
pub const SOURCE_SERVER: u8 = 1;
/// Source: a tracer beside the program.
pub const SOURCE_PTRACE: u8 = 2;
/// Source: page faults as perf events, and reads as a tracer saw them.
pub const SOURCE_PERF: u8 = 3;
/// Source: the kernel's `filemap` trace points.
pub const SOURCE_FILEMAP: u8 = 4;
/// Source: what of the files was in memory afterwards; the order is unknown.
pub const SOURCE_RESIDENCY: u8 = 5;

/// Bits 0-1 of a record's first byte: its kind.
pub const KIND_MASK: u8 = 0b0000_0011;
/// Kind: a seal closes a section.
pub const KIND_SEAL: u8 = 0;
/// Kind: a program starts, or what [`START_MASK`] says.
pub const KIND_START: u8 = 1;
/// Kind: a page is touched.
pub const KIND_TOUCH: u8 = 2;
/// Kind: a program ends.
pub const KIND_END: u8 = 3;

/// Beside [`KIND_START`]: the record names a file. It has no token and no time.
pub const FLAG_FILE: u8 = 0b0000_0100;
/// Beside [`KIND_START`]: a path was looked up.
pub const FLAG_LOOKUP: u8 = 0b0000_1000;
/// Beside [`KIND_START`]: code ran for the first time.
pub const FLAG_CODE: u8 = 0b0000_1100;
/// The bits of [`FLAG_FILE`], [`FLAG_LOOKUP`] and [`FLAG_CODE`]; none of them is a start.
pub const START_MASK: u8 = 0b0000_1100;

/// A look-up found a file that was then opened.
pub const FOUND_FILE: u8 = 0;
/// A look-up found a directory, whose names were then read.
pub const FOUND_DIRECTORY: u8 = 1;
/// A look-up found nothing.
pub const FOUND_NOTHING: u8 = 2;

/// Bits 2-3 of a touch: how the page was got (0 demand, 1 local, 2 pushed; 3 is invalid).
pub const HOW_SHIFT: u32 = 2;
/// Mask of the two bits at [`HOW_SHIFT`], in place.
pub const HOW_MASK: u8 = 0b0000_1100;
/// Touch, end, look-up and code: the token is that of the record before; its slot number is left
/// out.
pub const FLAG_SAME_TOKEN: u8 = 0b0001_0000;
/// Touch: the file is that of this token's last touch; the inode difference is left out.
pub const FLAG_SAME_INODE: u8 = 0b0010_0000;
/// Touch: the page follows this token's last one; the index difference is left out.
pub const FLAG_NEXT_INDEX: u8 = 0b0100_0000;
/// Seal: the last record of a complete file.
pub const FLAG_FINAL: u8 = 0b0001_0000;
