//! Where an image is written.
//!
//! An image becomes visible whole or not at all. [`FileOutput`] writes a file without a name in the
//! same directory, makes it durable, and only then names it. [`Output`] is a trait so that tests
//! can run out of space at any byte.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use tempfile::NamedTempFile;

use crate::PackError;

/// Takes the bytes of an image.
pub trait Output {
    /// Appends to what was written so far.
    ///
    /// # Errors
    /// The system refuses the write, such as for lack of room.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Writes over the first bytes.
    ///
    /// # Errors
    /// As [`Output::append`].
    fn write_start(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything durable and visible. An output dropped without this leaves nothing behind.
    ///
    /// # Errors
    /// The file cannot be synced or given its name.
    fn commit(&mut self) -> io::Result<()>;

    /// What to call it in messages.
    fn path(&self) -> &Path;
}

/// A file that replaces `path` when it is complete.
pub struct FileOutput {
    path: PathBuf,
    directory: PathBuf,
    /// Gone once committed.
    file: Option<Temporary>,
}

/// A file that is not there yet.
enum Temporary {
    /// Without a name, so that nothing is left of it however the process ends.
    Unnamed(File),
    /// With a name, on a file system that has no files without names.
    Named(NamedTempFile),
}

impl Temporary {
    fn create(directory: &Path, prefix: &OsStr) -> io::Result<Temporary> {
        // Its name comes through here in the end.
        if Path::new(DESCRIPTORS).is_dir()
            && let Ok(file) = rustix::fs::open(
                directory,
                OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
                Mode::from_raw_mode(PERMISSIONS),
            )
        {
            return Ok(Temporary::Unnamed(file.into()));
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix).suffix(SUFFIX).permissions(Permissions::from_mode(PERMISSIONS));
        builder.tempfile_in(directory).map(Temporary::Named).map_err(without_path)
    }

    fn file(&self) -> &File {
        match self {
            Temporary::Unnamed(file) => file,
            Temporary::Named(file) => file.as_file(),
        }
    }

    /// Gives it the name `path`, in place of what has it.
    fn persist(self, directory: &Path, prefix: &OsStr, path: &Path) -> io::Result<()> {
        match self {
            Temporary::Named(file) => file.persist(path).map(drop).map_err(|failed| failed.error),
            Temporary::Unnamed(file) => {
                // A link replaces nothing, a rename does: so by way of a name that nobody has.
                let mut builder = tempfile::Builder::new();
                builder.prefix(prefix).suffix(SUFFIX);
                let from = format!("{DESCRIPTORS}/{}", file.as_raw_fd());
                let link = |name: &Path| Ok(linkat(CWD, from.as_str(), CWD, name, AtFlags::SYMLINK_FOLLOW)?);
                builder
                    .make_in(directory, link)
                    .map_err(without_path)?
                    .into_temp_path()
                    .persist(path)
                    .map_err(|failed| failed.error)
            }
        }
    }
}

/// Links to the files that this process has open.
const DESCRIPTORS: &str = "/proc/self/fd";
/// End of the name of an unfinished file.
const SUFFIX: &str = ".part";
/// Permissions of a new file, before the umask.
const PERMISSIONS: u32 = 0o666;

impl FileOutput {
    /// Starts a temporary file beside `path`.
    ///
    /// # Errors
    /// `path` is a directory, or its directory cannot be written.
    pub fn create(path: &Path) -> Result<FileOutput, PackError> {
        // A finished image replaces what has its name; a device, a pipe or a link must not go that
        // way.
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
        if !directory.exists() {
            let problem = format!("the folder {} does not exist; make it first", directory.display());
            return Err(PackError::write(path, io::Error::new(io::ErrorKind::NotFound, problem)));
        }
        let file = Temporary::create(&directory, &prefix(name)).map_err(|source| PackError::write(path, source))?;
        Ok(FileOutput { path: path.to_owned(), directory, file: Some(file) })
    }

    /// Device and inode number of the temporary file, and of what it will replace.
    pub(crate) fn identities(&self) -> Vec<(u64, u64)> {
        let of = |about: io::Result<fs::Metadata>| about.ok().map(|about| (about.dev(), about.ino()));
        let temporary = self.file.as_ref().and_then(|file| of(file.file().metadata()));
        temporary.into_iter().chain(of(fs::metadata(&self.path))).collect()
    }

    fn file(&self) -> io::Result<&File> {
        let file = self.file.as_ref().ok_or_else(|| io::Error::other("the output is complete already"))?;
        Ok(file.file())
    }
}

/// The error without the path of the temporary file, which says nothing to whoever named another
/// one.
fn without_path(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((reason, _)) => io::Error::new(error.kind(), reason),
        None => error,
    }
}

/// Start of the name of an unfinished file.
fn prefix(name: &OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix
}

impl Output for FileOutput {
    ///
    /// # Errors
    /// The system refuses the write, such as for lack of room.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_all(bytes)
    }

    ///
    /// # Errors
    /// As [`Output::append`].
    fn write_start(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_all_at(bytes, 0)
    }

    ///
    /// # Errors
    /// The file cannot be synced or given its name.
    fn commit(&mut self) -> io::Result<()> {
        self.file()?.sync_all()?;
        if let Some(file) = self.file.take() {
            let name = self.path.file_name().unwrap_or_default();
            file.persist(&self.directory, &prefix(name), &self.path)?;
        }
        // The new name itself is durable only once the directory is.
        File::open(&self.directory)?.sync_all()
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
