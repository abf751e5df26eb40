//! An image in a file on disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use image::ReadAt;

use crate::PackError;

/// An image file opened for reading.
#[derive(Debug)]
pub struct FileImage {
    file: File,
}

impl FileImage {
    /// Opens the file at `path`; whether it is an image is found by [`image::Metadata::open`].
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<FileImage, PackError> {
        host::file::open(path).map(FileImage::from).map_err(|source| PackError::read(path, source))
    }
}

impl From<File> for FileImage {
    fn from(file: File) -> FileImage {
        FileImage { file }
    }
}

impl ReadAt for FileImage {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}
