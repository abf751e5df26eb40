//! What workloads see of a file, whoever delivers it: a mount, a folder of the device, or a library
//! without a mount.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// An open file. Dropping it closes it.
pub trait DataFile {
    /// Its size, bytes.
    fn size(&mut self) -> io::Result<u64>;

    /// Reads from byte `at`; returns how much, 0 at the end.
    fn read_at(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` from byte `at`.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Returns when what was written is on stable storage of the server.
    fn sync(&mut self) -> io::Result<()>;
}

/// A folder with files.
pub trait DataFolder {
    /// Opens a file for reading.
    fn open(&self, name: &str) -> io::Result<Box<dyn DataFile>>;

    /// Makes a file, as `fopen(name, "w")` does: what is there is cut to nothing.
    fn create(&self, name: &str) -> io::Result<Box<dyn DataFile>>;
}

/// A folder of the file system: plain POSIX input and output.
#[derive(Clone, Debug)]
pub struct Plain(pub PathBuf);

impl DataFolder for Plain {
    fn open(&self, name: &str) -> io::Result<Box<dyn DataFile>> {
        Ok(Box::new(File::open(self.0.join(name))?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DataFile>> {
        Ok(Box::new(File::create(self.0.join(name))?))
    }
}

impl DataFile for File {
    fn size(&mut self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buffer, at)
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// The folder that `target` names.
pub fn folder(target: &str) -> anyhow::Result<Box<dyn DataFolder>> {
    if target.contains("://") {
        return super::library::folder(target);
    }
    Ok(Box::new(Plain(PathBuf::from(target))))
}
