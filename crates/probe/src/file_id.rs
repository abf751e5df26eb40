//! The identity of a file: device and inode.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Which file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// `st_dev` of stat.
    pub device: u64,
    /// `st_ino` of stat.
    pub inode: u64,
}

impl FileId {
    /// The identity of the file that `path` leads to, as `stat` gives it.
    ///
    /// # Errors
    /// Those of `stat(2)`.
    pub fn of(path: &Path) -> io::Result<FileId> {
        Ok(FileId::of_metadata(&fs::metadata(path)?))
    }

    /// The identity of an open file.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub fn of_open(file: &File) -> io::Result<FileId> {
        Ok(FileId::of_metadata(&file.metadata()?))
    }

    fn of_metadata(metadata: &Metadata) -> FileId {
        FileId { device: metadata.dev(), inode: metadata.ino() }
    }
}
