//! The bytes of EROFS that we write: constants and structures of the Linux header
//! fs/erofs/erofs_fs.h, by their names there. Only the uncompressed half of the format appears; all
//! numbers are little-endian.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block, the only size that every kernel accepts on every machine.
pub const BLOCK_BYTES: usize = 4096;
/// Base-2 logarithm of the same (`blkszbits`).
pub const BLOCK_SHIFT: u8 = 12;

/// `EROFS_SUPER_OFFSET`: where the superblock starts; room for a boot sector.
pub const SUPER_OFFSET: usize = 1024;
/// `EROFS_SUPER_MAGIC_V1`.
pub const MAGIC: u32 = 0xe0f5_e1e2;
/// `EROFS_FEATURE_COMPAT_MTIME`: the times of inodes are modification times.
pub const COMPAT_MTIME: u32 = 0x2;
/// `EROFS_FEATURE_INCOMPAT_CHUNKED_FILE`: layout 4 is used.
pub const INCOMPAT_CHUNKED_FILE: u32 = 0x4;
/// `EROFS_FEATURE_INCOMPAT_DEVICE_TABLE`: there are further devices.
pub const INCOMPAT_DEVICE_TABLE: u32 = 0x8;

/// Unit of inode numbers: the number of an inode (`nid`) is its offset divided by this.
pub const INODE_SLOT_BYTES: u64 = 32;
/// Alignment of the index array behind an inode.
pub const INDEX_ALIGN: u64 = 8;

/// `EROFS_INODE_LAYOUT_EXTENDED`, bit 0 of `i_format`: 64 bytes, with 32-bit owners and a time of
/// its own.
pub const FORMAT_EXTENDED: u16 = 1;
/// Where the layout of the data starts in `i_format` (`EROFS_I_DATALAYOUT_BIT`).
pub const FORMAT_LAYOUT_SHIFT: u16 = 1;
/// `EROFS_INODE_FLAT_PLAIN`: whole blocks from `raw_blkaddr` on.
pub const LAYOUT_PLAIN: u16 = 0;
/// `EROFS_INODE_FLAT_INLINE`: the same, but what fills no whole block stands behind the inode,
/// inside one block.
pub const LAYOUT_INLINE: u16 = 2;
/// `EROFS_INODE_CHUNK_BASED`: an index behind the inode says where each chunk lies.
pub const LAYOUT_CHUNKED: u16 = 4;
/// `EROFS_CHUNK_FORMAT_INDEXES`: entries of the index have 8 bytes and name a device. The lower
/// five bits hold the size of a chunk as a power of two of blocks: 0, one block.
pub const CHUNK_FORMAT_INDEXES: u32 = 0x20;
/// `EROFS_NULL_ADDR`: a chunk that is a hole.
pub const NULL_ADDRESS: u32 = u32::MAX;
/// Number of the one extra device; 0 would be the file with the metadata.
pub const BLOB_DEVICE: u16 = 1;

/// `EROFS_XATTR_INDEX_*` with the prefix that each stands for; a name is stored without it. The two
/// of access control lists are whole names.
pub const XATTR_PREFIXES: [(u8, &[u8]); 5] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
];
/// Bytes of `erofs_xattr_ibody_header`; ids of shared attributes, 4 bytes each, follow it.
pub const XATTR_HEADER_BYTES: usize = 12;
/// Attributes of one inode that can be shared: `h_shared_count` has 8 bits.
pub const XATTRS_SHARED_MAX: usize = 255;
/// Bytes of a value: `e_value_size` has 16 bits. Linux itself allows one byte more.
pub const XATTR_VALUE_BYTES_MAX: usize = u16::MAX as usize;

/// `struct erofs_super_block`.
#[derive(IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SuperBlock {
    pub magic: U32,
    pub checksum: U32,
    pub feature_compat: U32,
    pub blkszbits: u8,
    pub sb_extslots: u8,
    pub root_nid: U16,
    pub inos: U64,
    pub build_time: U64,
    pub build_time_nsec: U32,
    pub blocks: U32,
    pub meta_blkaddr: U32,
    pub xattr_blkaddr: U32,
    pub uuid: [u8; 16],
    pub volume_name: [u8; 16],
    pub feature_incompat: U32,
    pub compression: U16,
    pub extra_devices: U16,
    /// In units of 128 bytes.
    pub devt_slotoff: U16,
    pub reserved: [u8; 38],
}

/// `struct erofs_deviceslot`.
#[derive(IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DeviceSlot {
    pub tag: [u8; 64],
    pub blocks: U32,
    pub mapped_blkaddr: U32,
    pub reserved: [u8; 56],
}

/// `struct erofs_inode_extended`.
#[derive(IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Inode {
    pub format: U16,
    /// 0, or 1 and the number of 4-byte units behind the header of the attributes.
    pub xattr_icount: U16,
    pub mode: U16,
    pub reserved: U16,
    pub size: U64,
    /// First block, device number, or chunk format, by layout and type.
    pub union: U32,
    pub ino: U32,
    pub uid: U32,
    pub gid: U32,
    pub mtime: U64,
    pub mtime_nsec: U32,
    pub nlink: U32,
    pub reserved2: [u8; 16],
}

/// `struct erofs_inode_chunk_index`.
#[derive(IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChunkIndex {
    /// Upper bits of the address in volumes larger than 16 TiB: 0.
    pub advise: U16,
    pub device_id: U16,
    pub blkaddr: U32,
}

/// `struct erofs_dirent`.
#[derive(IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Dirent {
    pub nid: U64,
    /// Where the name starts in the block; it ends where the next one starts.
    pub nameoff: U16,
    pub file_type: u8,
    pub reserved: u8,
}

/// `struct erofs_xattr_entry`; name and value follow, then zeros up to a multiple of 4 bytes.
#[derive(IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct XattrEntry {
    pub name_len: u8,
    pub name_index: u8,
    pub value_size: U16,
}

const _: () = assert!(size_of::<SuperBlock>() == 128);
const _: () = assert!(size_of::<DeviceSlot>() == 128);
const _: () = assert!(size_of::<Inode>() == 64);
const _: () = assert!(size_of::<ChunkIndex>() == 8);
const _: () = assert!(size_of::<Dirent>() == 12);
const _: () = assert!(size_of::<XattrEntry>() == 4);

/// `file_type` of a directory entry: the `FT_*` numbers that Linux file systems share.
pub fn file_type(kind: image::Kind) -> u8 {
    match kind {
        image::Kind::File => 1,
        image::Kind::Dir => 2,
        image::Kind::Char => 3,
        image::Kind::Block => 4,
        image::Kind::Fifo => 5,
        image::Kind::Socket => 6,
        image::Kind::Symlink => 7,
    }
}
