//! Where an image is written.
//!
//! An image becomes visible whole or not at all: [`FileOutput`] writes a temporary file in the same directory, makes
//! it durable, and only then gives it its name. [`Output`] is a trait so that tests can run out of space at any byte.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::PackError;

/// Takes the bytes of an image.
pub trait Output {
    /// Appends to what was written so far.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Writes over the first bytes.
    fn write_start(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything durable and visible. An output dropped without this leaves nothing behind.
    fn commit(&mut self) -> io::Result<()>;

    /// What to call it in messages.
    fn path(&self) -> &Path;
}

/// A file that replaces `path` when it is complete.
pub struct FileOutput {
    path: PathBuf,
    directory: PathBuf,
    /// Gone once committed.
    file: Option<NamedTempFile>,
}

impl FileOutput {
    /// Starts a temporary file beside `path`.
    ///
    /// # Errors
    /// `path` is a directory, or its directory cannot be written.
    pub fn create(path: &Path) -> Result<FileOutput, PackError> {
        // A finished image replaces what has its name; a device, a pipe or a link must not go that way.
        match fs::symlink_metadata(path) {
            Ok(about) if about.is_dir() => return Err(PackError::write(path, io::ErrorKind::IsADirectory.into())),
            Ok(about) if !about.is_file() => {
                let source = io::Error::new(io::ErrorKind::AlreadyExists, "it is there and not a regular file");
                return Err(PackError::write(path, source));
            }
            _ => {}
        }
        let name = path.file_name().ok_or_else(|| PackError::write(path, io::ErrorKind::InvalidFilename.into()))?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        // The permissions of any new file: what the umask leaves of these.
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".part")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(&directory)
            .map_err(|source| PackError::write(path, source))?;
        Ok(FileOutput { path: path.to_owned(), directory, file: Some(file) })
    }

    /// Device and inode number of the temporary file, and of what it will replace.
    pub(crate) fn identities(&self) -> Vec<(u64, u64)> {
        let of = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
        let temporary = self.file.as_ref().and_then(|file| of(file.path()));
        temporary.into_iter().chain(of(&self.path)).collect()
    }

    fn file(&mut self) -> io::Result<&mut NamedTempFile> {
        self.file.as_mut().ok_or_else(|| io::Error::other("the output is complete already"))
    }
}

impl Output for FileOutput {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_all(bytes)
    }

    fn write_start(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file()?.as_file().write_all_at(bytes, 0)
    }

    fn commit(&mut self) -> io::Result<()> {
        self.file()?.as_file().sync_all()?;
        if let Some(file) = self.file.take() {
            file.persist(&self.path).map_err(|failed| failed.error)?;
        }
        // The new name itself is durable only once the directory is.
        File::open(&self.directory)?.sync_all()
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
