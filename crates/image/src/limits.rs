//! How large an image may be: once for what we write, once for what we accept.
//!
//! A writer stays well inside what readers accept, so that images can grow with later versions and
//! old readers still take them. A reader's limits are what a hostile image can cost it.

/// Bounds on an image. [`Limits::default`] is what a device accepts; a server with more memory may
/// raise them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all decoded sections together, and of the metadata region. This is what opening an
    /// image allocates.
    pub metadata_bytes_max: u64,
    /// Inodes.
    pub inodes_max: u32,
    /// Directory entries: more than inodes where hard links are used.
    pub entries_max: u32,
    /// Chunks.
    pub chunks_max: u32,
    /// Blocks.
    pub blocks_max: u32,
    /// Decoded bytes of a block. Decoding one takes this much.
    pub block_bytes_max: u32,
    /// Directories between the root and a file.
    pub depth_max: u32,
}

/// Accepted: 64 MiB of metadata is 800,000 small files or 10 GB of distinct data, and a quarter of
/// the memory of the smallest device we care about.
pub const METADATA_BYTES_ACCEPTED: u64 = 64 << 20;
/// Written: the eighth that is left is for sections of later versions.
pub const METADATA_BYTES_WRITTEN: u64 = 56 << 20;

/// Accepted: 64 MiB of metadata hold no more inodes than this anyway (56 bytes each).
pub const INODES_ACCEPTED: u32 = 1 << 20;
/// Written: as accepted; the metadata bytes bound it first.
pub const INODES_WRITTEN: u32 = INODES_ACCEPTED;

/// Accepted: 64 MiB hold no more chunks than this anyway (24 bytes each).
pub const CHUNKS_ACCEPTED: u32 = 1 << 22;
/// Written: as accepted; the metadata bytes bound it first.
pub const CHUNKS_WRITTEN: u32 = CHUNKS_ACCEPTED;

/// Accepted: a block decodes into at most 4 MiB, which a device with 16 MiB of free memory can
/// still hold.
pub const BLOCK_BYTES_ACCEPTED: u32 = 4 << 20;
/// Written: beyond 1 MiB the ratio gains nothing and each pull costs more than it saves.
pub const BLOCK_BYTES_WRITTEN: u32 = 1 << 20;

/// Accepted: who decodes a block holds this beside it, and makes 4 MiB/s of it on a slow device.
pub const EXPANSION_BYTES_ACCEPTED: u32 = 8 << 20;
/// Written: texts are three to four times as large as their deflate streams.
pub const EXPANSION_BYTES_WRITTEN: u32 = 4 << 20;
/// Accepted: bytes of an expansion for each byte of the block, so that no small block costs much;
/// deflate could do 1032.
pub const EXPANSION_RATIO_ACCEPTED: u32 = 32;
/// Written: what is denser gains little, since it is small already.
pub const EXPANSION_RATIO_WRITTEN: u32 = 16;

/// Accepted: deeper paths cannot be named in one system call, since a path has at most 4096 bytes.
pub const DEPTH_ACCEPTED: u32 = 4096;
/// Written: 2047 one-letter directories fill a path of 4096 bytes.
pub const DEPTH_WRITTEN: u32 = 2048;

/// Bytes of a name, accepted and written: Linux allows no more in any file system.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a symbolic link's target, accepted and written: one less than a Linux path with its
/// NUL.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Bytes of the name of an extended attribute, accepted and written: Linux's XATTR_NAME_MAX.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Bytes of the value of an extended attribute, accepted and written: Linux's XATTR_SIZE_MAX.
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;

/// Chunk sizes accepted: a page must be a whole number of chunks, and 16 chunks a page are the most
/// we index.
pub const CHUNK_SHIFT_ACCEPTED: std::ops::RangeInclusive<u8> = 8..=12;
/// Chunk size written: one chunk a page makes the smallest tables.
pub const CHUNK_SHIFT_WRITTEN: u8 = 12;

/// Symbolic links followed while resolving one path: what Linux allows.
pub const SYMLINKS_FOLLOWED_MAX: u32 = 40;

impl Limits {
    /// What a device accepts.
    pub const ACCEPTED: Limits = Limits {
        metadata_bytes_max: METADATA_BYTES_ACCEPTED,
        inodes_max: INODES_ACCEPTED,
        entries_max: 2 * INODES_ACCEPTED,
        chunks_max: CHUNKS_ACCEPTED,
        blocks_max: CHUNKS_ACCEPTED,
        block_bytes_max: BLOCK_BYTES_ACCEPTED,
        depth_max: DEPTH_ACCEPTED,
    };

    /// What the packer writes by default.
    pub const WRITTEN: Limits = Limits {
        metadata_bytes_max: METADATA_BYTES_WRITTEN,
        inodes_max: INODES_WRITTEN,
        entries_max: 2 * INODES_WRITTEN,
        chunks_max: CHUNKS_WRITTEN,
        blocks_max: CHUNKS_WRITTEN,
        block_bytes_max: BLOCK_BYTES_WRITTEN,
        depth_max: DEPTH_WRITTEN,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::ACCEPTED
    }
}
