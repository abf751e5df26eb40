//! The image format: little-endian structs and constants, nothing else. Explained in
//! docs/formats/image.md, which stores the hash of this file.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every image. The high bit and the line feed show a transfer that was not binary.
pub const MAGIC: [u8; 8] = [0x89, b'R', b'U', b'N', b'N', b'E', b'L', 0x0a];

/// The version this code writes and the only one it reads.
pub const VERSION: u16 = 1;

/// Bytes of the superblock, which starts the file; blocks follow at once.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// Entries of the section table in the superblock: what fills the superblock after its header.
pub const SECTIONS_MAX: usize = 62;

/// Feature: the chunks of some blocks went through a branch filter before compression
/// (`Block::filter`).
pub const FEATURE_FILTERS: u32 = 1;
/// Feature: there is a section of dictionaries, and blocks that need them (`Block::dictionary`).
pub const FEATURE_DICTIONARIES: u32 = 2;
/// Feature: the first blocks are hot (`Superblock::hot_blocks`).
pub const FEATURE_HOT: u32 = 4;
/// Feature: the chunk hashes are not in the file; whoever needs them derives them from the blocks
/// ([`SECTION_DERIVED`]).
pub const FEATURE_DERIVED_HASHES: u32 = 8;

/// Feature: the deflate streams of some blocks are kept as their texts ([`FILTER_DEFLATE`],
/// `Block::expansion_bytes`).
pub const FEATURE_DEFLATE: u32 = 16;

/// Feature: the block table holds [`BlockSizes`], and the hashes of the blocks have a section of
/// their own. Not together with [`FEATURE_DERIVED_HASHES`].
pub const FEATURE_BLOCK_HASHES: u32 = 32;
/// Features a reader must know (`Superblock::features`).
pub const FEATURES_KNOWN: u32 = FEATURE_FILTERS
    | FEATURE_DICTIONARIES
    | FEATURE_HOT
    | FEATURE_DERIVED_HASHES
    | FEATURE_DEFLATE
    | FEATURE_BLOCK_HASHES;

/// Required section: inode records, inode 1 first.
pub const SECTION_INODES: u32 = 1;
/// Required section: directory entries, grouped by directory.
pub const SECTION_ENTRIES: u32 = 2;
/// Required section: names of the directory entries, concatenated in entry order.
pub const SECTION_NAMES: u32 = 3;
/// Required section: targets of symbolic links.
pub const SECTION_TARGETS: u32 = 4;
/// Required section: for each set of extended attributes, its first attribute.
pub const SECTION_XATTR_SETS: u32 = 5;
/// Required section: extended attributes, grouped by set.
pub const SECTION_XATTRS: u32 = 6;
/// Required section: names and values of the extended attributes, concatenated in order.
pub const SECTION_XATTR_BYTES: u32 = 7;
/// Required section: extents, grouped by file.
pub const SECTION_EXTENTS: u32 = 8;
/// Required section: where each chunk lies.
pub const SECTION_CHUNKS: u32 = 9;
/// Required section: the block table, [`BlockSizes`] or [`BlockAndHash`] by
/// [`FEATURE_BLOCK_HASHES`].
pub const SECTION_BLOCKS: u32 = 10;
/// Required section: first 16 bytes of the BLAKE3 hash of each chunk. Last, because it is the
/// largest and a mount does not need it to start.
pub const SECTION_CHUNK_HASHES: u32 = 11;
/// Section of images with [`FEATURE_DICTIONARIES`]: a count (u32), so many lengths (u32), and the
/// zstd dictionaries back to back. Stands before the chunk hashes in the file, since a mount needs
/// it to start.
pub const SECTION_DICTIONARIES: u32 = 12;
/// Section of images with [`FEATURE_BLOCK_HASHES`]: the BLAKE3 hash of the stored bytes of each
/// block. Stands right before the chunk hashes: who gets hashes with proofs needs neither to start.
pub const SECTION_BLOCK_HASHES: u32 = 13;
/// Optional section: a profile that travels with the image, an actions file that names no image.
pub const SECTION_PROFILE: u32 = 32;
/// Optional section, reserved: a signature of the superblock with `check` and this section's table
/// entry zeroed.
pub const SECTION_SIGNATURE: u32 = 33;

/// Kinds of the required sections; each stands exactly once in every image.
pub const SECTIONS_REQUIRED: [u32; 11] = [
    SECTION_INODES,
    SECTION_ENTRIES,
    SECTION_NAMES,
    SECTION_TARGETS,
    SECTION_XATTR_SETS,
    SECTION_XATTRS,
    SECTION_XATTR_BYTES,
    SECTION_EXTENTS,
    SECTION_CHUNKS,
    SECTION_BLOCKS,
    SECTION_CHUNK_HASHES,
];

/// Where a kind of section stands among the others: by number, except that the hashes of blocks and
/// of chunks come last of those that are required.
pub const fn section_rank(kind: u32) -> u32 {
    match kind {
        SECTION_DICTIONARIES => 11,
        SECTION_BLOCK_HASHES => 12,
        SECTION_CHUNK_HASHES => 13,
        kind => kind,
    }
}

/// Most dictionaries of an image: `Block::dictionary` is a byte, and 0 means none.
pub const DICTIONARIES_MAX: usize = 255;

/// Section flag: a reader that does not know the kind skips the section.
pub const SECTION_OPTIONAL: u8 = 1;

/// Section flag: the section is not in the file but follows from the blocks. Its offset is the end
/// of the file, its hash that of the bytes it would have. Only the chunk hashes, with
/// [`FEATURE_DERIVED_HASHES`].
pub const SECTION_DERIVED: u8 = 2;

/// `Section::filter`: the decoded bytes are the section.
pub const FILTER_NONE: u8 = 0;
/// `Section::filter`: the decoded bytes are the section column by column: the first byte of every
/// record, then the second byte of every record, and so on. Like bytes stand together, which
/// compresses better. Only for sections of records.
pub const FILTER_COLUMNS: u8 = 1;
/// `Section::filter`: columns, and numbers that mostly grow from record to record are differences
/// to the record before, which are small and repeat. Only for inodes, entries, extents and chunks.
pub const FILTER_DIFFERENCES: u8 = 2;

/// `Block::filter`: what the codec decodes to is an expansion, from which the bytes of the block
/// are made.
pub const FILTER_DEFLATE: u8 = 5;

/// `Extent::chunk_first` of a hole; so no image has this many chunks.
pub const HOLE: u32 = u32::MAX;

/// `Inode::entry` of the root directory, which no entry names.
pub const NO_ENTRY: u32 = u32::MAX;

/// Bytes of a chunk hash: half a BLAKE3 hash. A second preimage still takes 2^128 work, and the
/// bytes are the largest incompressible part of what a device reads at mount time.
pub const CHUNK_HASH_BYTES: usize = 16;

/// Bit at which the length of a chunk starts in `Chunk::place`; the position is below it.
pub const CHUNK_LENGTH_SHIFT: u32 = 48;

/// Mask of the file type in `Inode::mode`, and the types, as POSIX has them.
pub const MODE_TYPE: u16 = 0o170000;
/// Named pipe.
pub const MODE_FIFO: u16 = 0o010000;
/// Character device.
pub const MODE_CHAR: u16 = 0o020000;
/// Directory.
pub const MODE_DIR: u16 = 0o040000;
/// Block device.
pub const MODE_BLOCK: u16 = 0o060000;
/// Regular file.
pub const MODE_FILE: u16 = 0o100000;
/// Symbolic link.
pub const MODE_SYMLINK: u16 = 0o120000;
/// Socket.
pub const MODE_SOCKET: u16 = 0o140000;

/// The first 4096 bytes of the file. Its BLAKE3 hash is the identity of the image.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U16,
    /// Base-2 logarithm of the chunk size.
    pub chunk_shift: u8,
    /// Zero.
    pub reserved_a: u8,
    /// Bits of features a reader must know.
    pub features: U32,
    /// Bytes of the whole file.
    pub file_bytes: U64,
    /// Where the metadata region starts: the end of the last block.
    pub metadata_offset: U64,
    /// Bytes of the metadata region, which ends the file.
    pub metadata_bytes: U64,
    /// Largest raw size of a block, 0 if there is none.
    pub block_bytes: U32,
    /// Records in the inode section.
    pub inode_count: U32,
    /// Records in the entry section.
    pub entry_count: U32,
    /// Records in the extent section.
    pub extent_count: U32,
    /// Records in the chunk section.
    pub chunk_count: U32,
    /// Records in the block section.
    pub block_count: U32,
    /// Used entries of the section table.
    pub section_count: U32,
    /// Zero.
    pub reserved_b: U32,
    /// With [`FEATURE_HOT`]: the blocks before this one hold what programs read when they start;
    /// else 0.
    pub hot_blocks: U32,
    /// Zero.
    pub reserved_c: [u8; 20],
    /// BLAKE3 of the superblock with this field zero. Not needed for trust, since the identity of
    /// the image covers it too, but it distinguishes a damaged superblock from one that was written
    /// wrongly.
    pub check: [u8; 32],
    /// Sections in file order, kinds ascending; unused entries are zero.
    pub sections: [Section; SECTIONS_MAX],
}

/// One section of the metadata region.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Section {
    /// What it holds, one of the `SECTION_` constants.
    pub kind: U32,
    /// Codec number.
    pub codec: u8,
    /// [`SECTION_OPTIONAL`] or 0.
    pub flags: u8,
    /// [`FILTER_NONE`], [`FILTER_COLUMNS`] or [`FILTER_DIFFERENCES`].
    pub filter: u8,
    /// Zero.
    pub reserved: u8,
    /// Where it starts in the file: the end of the previous section.
    pub offset: U64,
    /// Bytes in the file.
    pub stored_bytes: U64,
    /// Bytes after decoding.
    pub raw_bytes: U64,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
}

/// An inode. Three fields (`extent_first`, `entry_first`, and the sections' ends) make runs: what
/// belongs to inode i ends where that of inode i + 1 starts.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Inode {
    /// File type and permissions, as in `st_mode`.
    pub mode: U16,
    /// Zero.
    pub reserved: U16,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Directory entries that name it; for a directory 2 and one for each subdirectory.
    pub nlink: U32,
    /// Bytes of a file or of a link target; 0 for all else.
    pub size: U64,
    /// Modification time, seconds since 1970, may be negative.
    pub mtime_sec: I64,
    /// Nanoseconds to add to it, below 10^9.
    pub mtime_ns: U32,
    /// 0 for no extended attributes, else 1 + the index of their set.
    pub xattr_set: U32,
    /// Index of the first of its extents.
    pub extent_first: U32,
    /// Index of the first of its directory entries.
    pub entry_first: U32,
    /// Index of the first directory entry that names it; [`NO_ENTRY`] for the root.
    pub entry: U32,
    /// Symbolic link: offset of the target in its section. Device: number as Linux encodes it in 32
    /// bits. Else 0.
    pub payload: U32,
}

/// A directory entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Entry {
    /// Offset of the name in its section; it ends where the next one starts.
    pub name: U32,
    /// The inode it names.
    pub inode: U32,
}

/// An extended attribute.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Xattr {
    /// Offset of the name in its section; it ends where the value starts.
    pub name: U32,
    /// Offset of the value; it ends where the next attribute's name starts.
    pub value: U32,
}

/// A run of chunks of one file, or a hole in it. It ends where the file's next extent starts.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Extent {
    /// Position in the file, in chunks.
    pub file_chunk: U32,
    /// The first chunk; the others have the numbers after it. [`HOLE`] for a hole.
    pub chunk_first: U32,
}

/// Where a chunk lies.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Chunk {
    /// Bits 0..48: position in the concatenation of all decoded blocks; bits 48..64: length in
    /// bytes.
    pub place: U64,
}

/// The first half of the BLAKE3 hash of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkHash(pub [u8; CHUNK_HASH_BYTES]);

/// A block. The first starts at byte 4096 of the file, each other at the end of the one before.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Block {
    /// Where it starts in the file.
    pub file_offset: U64,
    /// Where it starts in the concatenation of all decoded blocks.
    pub raw_start: U64,
    /// Bytes in the file, at most `raw_bytes`.
    pub stored_bytes: U32,
    /// Bytes after decoding, at least 1.
    pub raw_bytes: U32,
    /// Codec number.
    pub codec: u8,
    /// With [`FEATURE_FILTERS`]: number of the filter that each chunk of the block went through;
    /// with [`FEATURE_DEFLATE`]: [`FILTER_DEFLATE`]; else 0.
    pub filter: u8,
    /// With [`FEATURE_DICTIONARIES`]: 0 for none, else 1 + index of the dictionary it was
    /// compressed with; else 0.
    pub dictionary: u8,
    /// Zero.
    pub reserved: u8,
    /// With [`FILTER_DEFLATE`]: bytes that the codec decodes to; else 0.
    pub expansion_bytes: U32,
}

/// A record of the block table without [`FEATURE_BLOCK_HASHES`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockAndHash {
    /// The block.
    pub block: Block,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
}

/// A record of the block table with [`FEATURE_BLOCK_HASHES`]: a [`Block`] without the places, which
/// are the sums of the sizes before it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BlockSizes {
    /// As [`Block::stored_bytes`].
    pub stored_bytes: U32,
    /// As [`Block::raw_bytes`].
    pub raw_bytes: U32,
    /// As [`Block::codec`].
    pub codec: u8,
    /// As [`Block::filter`].
    pub filter: u8,
    /// As [`Block::dictionary`].
    pub dictionary: u8,
    /// Zero.
    pub reserved: u8,
    /// As [`Block::expansion_bytes`].
    pub expansion_bytes: U32,
}

const _: () = assert!(size_of::<Superblock>() == SUPERBLOCK_BYTES);
const _: () = assert!(size_of::<Section>() == 64);
const _: () = assert!(size_of::<Inode>() == 56);
const _: () = assert!(size_of::<Entry>() == 8);
const _: () = assert!(size_of::<Xattr>() == 8);
const _: () = assert!(size_of::<Extent>() == 8);
const _: () = assert!(size_of::<Chunk>() == 8);
const _: () = assert!(size_of::<ChunkHash>() == 16);
const _: () = assert!(size_of::<BlockAndHash>() == 64);
const _: () = assert!(size_of::<BlockSizes>() == 16);
