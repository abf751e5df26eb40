//! The calls that change files, in one place, so that tests can let them fail.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

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
