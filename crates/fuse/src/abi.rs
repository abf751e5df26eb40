//! Structs and constants of the kernel's interface, as in include/uapi/linux/fuse.h, in the byte
//! order of the machine.
//!
//! All structs are padded to 8 bytes by the kernel's own rule, so they are the same for programs of
//! 32 bits.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The major version that all kernels since 2.6 speak.
pub(crate) const VERSION: u32 = 7;

/// The minor version that these structs are of: Linux 6.12. Newer kernels speak it too.
pub(crate) const MINOR: u32 = 41;

/// The oldest minor version that is served: Linux 5.4.
pub(crate) const MINOR_MIN: u32 = 31;

/// Set in the number of an INTERRUPT; the other bits are those of the request that it is about.
#[cfg(test)]
pub(crate) const INTERRUPT_BIT: u64 = 1;

/// Smallest buffer with which the device may be read, bytes.
pub(crate) const READ_BUFFER_BYTES_MIN: usize = 8192;

/// Numbers of operations.
pub(crate) mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
}

/// Which members of [`SetAttrIn`] count.
pub(crate) mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
}

/// GETATTR names a handle.
pub(crate) const GETATTR_HANDLE: u32 = 1;

/// A write of pages from the page cache: programs changed them in a mapping.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;

/// READ says whose file table it comes from: the kernel does so for reads past the page cache only.
pub(crate) const READ_LOCK_OWNER: u32 = 1 << 1;

/// GETLK, SETLK and SETLKW are of flock(2).
pub(crate) const LK_FLOCK: u32 = 1;

/// RELEASE unlocks what its owner has locked by flock(2).
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;

/// FSYNC is fdatasync(2).
pub(crate) const FSYNC_DATA: u32 = 1;

/// Makes a struct of the interface, and checks its size in bytes when it is compiled.
macro_rules! wire {
    ($(#[$doc:meta])* $name:ident $bytes:literal { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
        #[repr(C)]
        pub(crate) struct $name { $(pub $field: $kind),* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

wire! {
    /// Begins each request. `extension_words` of 8 bytes behind the arguments are not looked at.
    InHeader 40 {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32, extension_words: u16, padding: u16,
    }
}
wire! {
    /// Begins each answer.
    OutHeader 16 { len: u32, error: i32, unique: u64 }
}
wire! { Attr 88 {
    ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atime_nsec: u32, mtime_nsec: u32, ctime_nsec: u32,
    mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
} }
wire! { EntryOut 128 {
    node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
} }
wire! { AttrOut 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr } }
wire! { ForgetIn 8 { lookups: u64 } }
wire! { BatchForgetIn 8 { count: u32, dummy: u32 } }
wire! { ForgetOne 16 { node: u64, lookups: u64 } }
wire! { GetAttrIn 16 { flags: u32, dummy: u32, handle: u64 } }
wire! { MknodIn 16 { mode: u32, rdev: u32, umask: u32, padding: u32 } }
wire! { MkdirIn 8 { mode: u32, umask: u32 } }
wire! { RenameIn 8 { new_parent: u64 } }
wire! { Rename2In 16 { new_parent: u64, flags: u32, padding: u32 } }
wire! { LinkIn 8 { old_node: u64 } }
wire! { SetAttrIn 88 {
    valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atime_nsec: u32,
    mtime_nsec: u32, ctime_nsec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
} }
wire! { OpenIn 8 { flags: u32, open_flags: u32 } }
wire! { CreateIn 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 } }
wire! { OpenOut 16 { handle: u64, open_flags: u32, padding: u32 } }
wire! { ReleaseIn 24 { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 } }
wire! { FlushIn 24 { handle: u64, unused: u32, padding: u32, lock_owner: u64 } }
wire! {
    /// Also of READDIR and READDIRPLUS.
    ReadIn 40 { handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
}
wire! {
    WriteIn 40 { handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
}
wire! { WriteOut 8 { size: u32, padding: u32 } }
wire! { StatfsOut 80 {
    blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32,
    spare: [u32; 6],
} }
wire! { FsyncIn 16 { handle: u64, flags: u32, padding: u32 } }
wire! {
    /// `FUSE_SETXATTR_EXT` adds [`SetXattrMore`] behind it.
    SetXattrIn 8 { size: u32, flags: u32 }
}
wire! { SetXattrMore 8 { flags: u32, padding: u32 } }
/// Of [`SetXattrMore`].
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
wire! { GetXattrIn 8 { size: u32, padding: u32 } }
wire! { GetXattrOut 8 { size: u32, padding: u32 } }
wire! {
    /// The end is the last byte; the kind is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`, the same on all
    /// architectures that we build for.
    FileLock 24 { start: u64, end: u64, kind: u32, pid: u32 }
}
wire! { LkIn 48 { handle: u64, owner: u64, lock: FileLock, flags: u32, padding: u32 } }
wire! { AccessIn 8 { mask: u32, padding: u32 } }
wire! { InitIn 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] } }
wire! { InitOut 64 {
    major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32,
    time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, unused: [u32; 6],
} }
wire! { InterruptIn 8 { unique: u64 } }
wire! { FallocateIn 32 { handle: u64, offset: u64, length: u64, mode: u32, padding: u32 } }
wire! { LseekIn 24 { handle: u64, offset: u64, whence: u32, padding: u32 } }
wire! { LseekOut 8 { offset: u64 } }
wire! { CopyFileRangeIn 56 {
    handle: u64, offset: u64, to_node: u64, to_handle: u64, to_offset: u64, length: u64, flags: u64,
} }
wire! {
    /// Begins an entry of a listing; the name follows, filled up with zeros to a multiple of 8
    /// bytes.
    Dirent 24 { ino: u64, next: u64, name_bytes: u32, kind: u32 }
}
