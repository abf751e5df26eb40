//! Requests about ranges of open files.

use crate::{FileHandle, INodeNo};

/// The arguments of FALLOCATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    /// Of the open file.
    pub handle: FileHandle,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// That of fallocate(2).
    pub mode: i32,
}

/// The arguments of COPY_FILE_RANGE. The inode of the request is the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// Of the open file that is read.
    pub handle: FileHandle,
    /// First byte there.
    pub offset: u64,
    /// Of the open file that is written, which may be the same one.
    pub to_handle: FileHandle,
    /// Its inode.
    pub to_inode: INodeNo,
    /// First byte there.
    pub to_offset: u64,
    /// Bytes.
    pub length: u64,
}
