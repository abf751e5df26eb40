//! An open file of the machine.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, SeekFrom};
use rustix::io::Errno;

use super::found::{STATX, from_statx};
use crate::disk::{DiskFile, FileStat};

/// An open file of this machine.
pub(super) struct RealFile(pub OwnedFd);

impl DiskFile for RealFile {
    fn stat(&self) -> io::Result<FileStat> {
        Ok(from_statx(&rustix::fs::statx(&self.0, c"", AtFlags::EMPTY_PATH, STATX)?))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match rustix::io::pread(&self.0, &mut buf[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match rustix::io::pwrite(&self.0, &bytes[written..], offset + written as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(&self.0, size)?)
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        if size == 0 {
            return self.set_size(0);
        }
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, size) {
            // A file system that cannot promise room: zeros are the next best.
            Err(Errno::OPNOTSUPP) => {
                static ZEROS: [u8; 65536] = [0; 65536];
                let mut at = self.stat()?.stamp.size;
                while at < size {
                    let step = (size - at).min(ZEROS.len() as u64);
                    self.write_at(at, &ZEROS[..step as usize])?;
                    at += step;
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    fn zero(&self, offset: u64, length: u64, reserved: bool) -> io::Result<()> {
        let how = if reserved { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        Ok(rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE | how, offset, length)?)
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        let size = self.stat()?.stamp.size;
        match rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, offset, length) {
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => {
                // ext4 keeps what it found until then, and the disk would stay full.
                let behind = offset.max(size);
                if let Some(length) = (offset + length).checked_sub(behind).filter(|length| *length > 0) {
                    let _ = self.zero(behind, length, false);
                }
                Err(error.into())
            }
            other => Ok(other?),
        }
    }

    fn data_after(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let start = match rustix::fs::seek(&self.0, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // A file system that does not know its holes: all is data.
            Err(Errno::INVAL) => {
                let size = self.stat()?.stamp.size;
                return Ok((offset < size).then_some((offset, size)));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Some((start, rustix::fs::seek(&self.0, SeekFrom::Hole(start))?)))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.0)?)
    }

    fn lock(&self) -> io::Result<()> {
        rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockExclusive)?;
        // Only for the message of whoever finds it locked: on a full disk that goes without.
        let _ = self.set_size(0).and_then(|()| self.write_at(0, format!("{}\n", std::process::id()).as_bytes()));
        Ok(())
    }
}
