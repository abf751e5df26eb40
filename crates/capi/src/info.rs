//! Attributes of files as C programs see them.

use stream::{FileInfo, FileKind};

/// What is known of a file, folder or symbolic link.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct runnel_info {
    /// Which file, whatever its name; 0 for one that the server has not got yet.
    pub file: u64,
    /// Grows with every change of the file that the server takes.
    pub version: u64,
    /// Bytes.
    pub size: u64,
    /// Time of the last change of the content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Kind and permission bits, as st_mode of <sys/stat.h>: S_ISREG, S_ISDIR and S_ISLNK tell the
    /// kind.
    pub mode: u32,
    /// 0.
    pub reserved: u32,
}

impl From<FileInfo> for runnel_info {
    fn from(info: FileInfo) -> runnel_info {
        let kind = match info.kind {
            FileKind::File => libc::S_IFREG,
            FileKind::Folder => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::CharDevice => libc::S_IFCHR,
            FileKind::BlockDevice => libc::S_IFBLK,
        };
        runnel_info {
            file: info.seen.file,
            version: info.seen.version,
            size: info.size,
            mtime_ns: info.mtime_ns,
            mode: kind | u32::from(info.mode),
            reserved: 0,
        }
    }
}
