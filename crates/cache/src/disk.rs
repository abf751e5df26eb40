//! The calls that change files, in one place, so that tests can let them fail.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

/// Opens a file, which `is_made` if it is not there, to be read and written; of a file system that
/// is read-only, to be read.
pub(crate) fn open(path: &Path, is_made: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let mut writing = options.clone();
    match writing.write(true).create(is_made).truncate(false).mode(0o600).open(path) {
        Err(error) if is_read_only(&error) => options.open(path),
        opened => opened,
    }
}

/// Whether the file system is read-only: what it has can be used, and nothing is added.
pub(crate) fn is_read_only(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

/// Makes a file longer, with room on the disk for all of it if the file system can promise that.
pub(crate) fn grow(file: &File, from: u64, to: u64) -> io::Result<()> {
    #[cfg(test)]
    crate::tests::fault::before(to - from)?;
    match fallocate(file, FallocateFlags::empty(), from, to - from) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(to),
        other => Ok(other?),
    }
}

/// Writes bytes into room that the file has.
pub(crate) fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(test)]
    let bytes = match crate::tests::fault::before(bytes.len() as u64) {
        Ok(()) => bytes,
        Err(error) => {
            // A disk fails in the middle.
            file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(error);
        }
    };
    file.write_all_at(bytes, offset)
}
