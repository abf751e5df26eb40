//! A store in a folder of the local disk: one file per object, its path the key.
//!
//! To write an object, its bytes go to a temporary file, which is synced and renamed to its path;
//! then the folder is synced. Folders that are made for it are synced into their parents first. So
//! a power cut at any point leaves the old object or the new one.
//!
//! Temporary files lie in `.tmp/<n>/`: each open store has such a folder, and an advisory lock on
//! it. Opening a store removes every such folder whose owner is gone. So `kill -9` leaves nothing
//! that outlives the next start, and several processes may share one store.
//!
//! The version of an object is the hash of its bytes. Whoever puts by a version holds an advisory
//! lock on the file `.versions` from the look to the rename.

mod upload;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Access, Advice, AtFlags, CWD, FlockOperation, OFlags, accessat, fadvise, flock};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use self::upload::LocalUpload;
use crate::error::UPLOAD;
use crate::key::check_folder;
use crate::{LIST_ENTRIES_MAX, Listed, Object, Store, StoreError, Upload, Version, check_key};

/// The folder of temporaries; hidden, so that no key can name it.
const STAGING: &str = ".tmp";

/// The file whose lock is a server's claim, with its process number; hidden, so that no key can
/// name it.
const CLAIM: &str = ".serving";

/// The file whose lock is held by who puts an object if it has a version; hidden, too.
const VERSIONS: &str = ".versions";

/// Largest object that has a version. Those that are changed so are small: names, metadata, what
/// is learned.
const VERSIONED_BYTES_MAX: u64 = 64 << 20;

/// Longest process number, with its line end.
const HOLDER_BYTES_MAX: u64 = 16;

/// Which other servers a server gets along with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// None: it writes images, tags and what it learns.
    Alone,
    /// Those that change nothing but bundles, which are made of the rest and replaced whole.
    Readers,
}

/// A server's claim on the folder of its store.
#[derive(Debug)]
pub struct Claim {
    /// Holds the lock.
    _file: File,
}

/// Stores that may have one folder open at once; only a bound on the search for a free number.
const OPEN_STORES_MAX: u32 = 4096;

/// Objects as files below a root folder.
pub struct Local {
    root: Arc<PathBuf>,
    /// `None` if the folder is on a read-only medium.
    staging: Option<Arc<Staging>>,
}

/// This store's own folder of temporaries, removed on drop.
struct Staging {
    folder: PathBuf,
    /// Holds the advisory lock for as long as the store is open.
    _lock: File,
    next: AtomicU64,
    #[cfg(test)]
    steps: tests::Steps,
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The next open removes it if this fails.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Local {
    /// Opens the store in `root`, making the folder if it is missing, and removes what crashed
    /// writers left.
    ///
    /// A folder that cannot be written is opened for reading only.
    ///
    /// # Errors
    /// [`StoreError::Io`] if `root` cannot be made or is no folder.
    pub fn open(root: impl AsRef<Path>) -> Result<Local, StoreError> {
        let root = root.as_ref();
        let failed = |what: &'static str, source| StoreError::Io { what, key: root.display().to_string(), source };
        fs::create_dir_all(root).map_err(|error| failed("make the folder of the store", error))?;
        let root = root.canonicalize().map_err(|error| failed("find the folder of the store", error))?;
        // One that cannot be read would look empty.
        fs::read_dir(&root).map_err(|error| failed("read the folder of the store", error))?;
        let staging = match check_writable(&root).and_then(|()| Staging::open(&root.join(STAGING))) {
            Ok(staging) => Some(Arc::new(staging)),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
            {
                None
            }
            Err(error) => return Err(failed("make temporary files in the store", error)),
        };
        Ok(Local { root: Arc::new(root), staging })
    }

    /// Claims the store for a server: one that changes it is alone. The claim is an advisory lock
    /// on a file in the folder, and ends with the process however that ends. A folder that cannot
    /// be written needs none.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process has a claim that this one does not go with.
    pub fn claim(&self, sharing: Sharing) -> Result<Option<Claim>, StoreError> {
        if self.staging.is_none() {
            return Ok(None);
        }
        let folder = || self.root.display().to_string();
        let failed = |source| StoreError::Io { what: "lock", key: folder(), source };
        let path = self.root.join(CLAIM);
        let mut options = fs::OpenOptions::new();
        // No link is followed: whoever may write here could point it at a file of ours.
        options.read(true).write(true).create(true).truncate(false).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let mut file = options.open(&path).map_err(failed)?;
        let wanted = match sharing {
            Sharing::Alone => FlockOperation::NonBlockingLockExclusive,
            Sharing::Readers => FlockOperation::NonBlockingLockShared,
        };
        match flock(&file, wanted) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // Only for the message; whoever has the lock may be about to write it.
                let _ = (&file).take(HOLDER_BYTES_MAX).read_to_string(&mut holder);
                return Err(StoreError::InUse { folder: folder(), holder: holder.trim().parse().ok() });
            }
            Err(error) => return Err(failed(error.into())),
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(Some(Claim { _file: file }))
    }

    /// Holds the lock of [`VERSIONS`] until it is dropped. Who has it writes one small object, so
    /// this ends soon.
    fn lock_versions(&self, key: &str) -> Result<File, StoreError> {
        if self.staging.is_none() {
            return Err(StoreError::ReadOnly { key: key.to_owned() });
        }
        let mut options = fs::OpenOptions::new();
        // No link is followed, as for the claim.
        options.write(true).create(true).truncate(false).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let locked = options.open(self.root.join(VERSIONS)).and_then(|file| {
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        });
        locked.map_err(|error| self.missing("write", key, error))
    }

    /// The folder of the store, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// As [`StoreError::from_io`]; that nothing is there may be because the whole store is gone.
    fn missing(&self, what: &'static str, key: &str, error: io::Error) -> StoreError {
        match error.kind() {
            io::ErrorKind::NotFound => self.gone().unwrap_or_else(|| StoreError::from_io(what, key, error)),
            _ => StoreError::from_io(what, key, error),
        }
    }

    /// The error of a folder that is gone, if it is.
    fn gone(&self) -> Option<StoreError> {
        let is_there = self.root.is_dir() && self.staging.as_ref().is_none_or(|staging| staging.folder.is_dir());
        (!is_there).then(|| gone(&self.root))
    }
}

fn version_of(bytes: &[u8]) -> Version {
    Version::new(blake3::hash(bytes).to_hex().as_str())
}

fn gone(root: &Path) -> StoreError {
    StoreError::Gone { folder: root.display().to_string() }
}

/// Whether files can be made in a folder: the one of temporaries may be left from when they could.
fn check_writable(folder: &Path) -> io::Result<()> {
    match accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Err(error @ (Errno::ACCESS | Errno::ROFS)) => Err(error.into()),
        // Who cannot tell finds out by writing.
        _ => Ok(()),
    }
}

/// Removes a folder of temporaries, or whatever else lies there, unless its owner lives. It may be
/// gone meanwhile: an owner that ends removes it, too.
fn remove_left(path: &Path) -> io::Result<()> {
    if flock(&File::open(path)?, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(());
    }
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

impl Staging {
    fn open(parent: &Path) -> io::Result<Staging> {
        fs::create_dir_all(parent)?;
        // Held while opening only: otherwise another opener could remove our folder before we lock
        // it.
        let gate = File::open(parent)?;
        flock(&gate, FlockOperation::LockExclusive)?;
        for entry in fs::read_dir(parent)? {
            if let Err(error) = remove_left(&entry?.path())
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
        }
        for number in 0..OPEN_STORES_MAX {
            let folder = parent.join(number.to_string());
            match fs::create_dir(&folder) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            let lock = File::open(&folder)?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            return Ok(Staging {
                folder,
                _lock: lock,
                next: AtomicU64::new(0),
                #[cfg(test)]
                steps: tests::Steps::default(),
            });
        }
        Err(io::Error::other("too many processes have this store open"))
    }

    /// A crash test stops the world here; otherwise nothing happens.
    #[cfg(test)]
    fn step(&self, name: &'static str) -> io::Result<()> {
        self.steps.take(name)
    }

    #[cfg(not(test))]
    #[inline]
    fn step(&self, _name: &'static str) -> io::Result<()> {
        Ok(())
    }

    /// Whether clean-up may run: a crashed process cleans nothing.
    #[cfg(test)]
    fn alive(&self) -> bool {
        self.steps.alive()
    }

    #[cfg(not(test))]
    fn alive(&self) -> bool {
        true
    }
}

impl Store for Local {
    fn open(&self, key: &str) -> Result<Arc<dyn Object>, StoreError> {
        check_key(key)?;
        let path = self.root.join(key);
        let failed = |error: io::Error| match error.kind() {
            // A folder of that name, or a file where the key has a folder: no such object either
            // way.
            io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => StoreError::NotFound { key: key.to_owned() },
            // A socket.
            _ if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                StoreError::NotFound { key: key.to_owned() }
            }
            _ => self.missing("read", key, error),
        };
        // Without this flag, which files ignore, a fifo would block for ever.
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let file = fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(StoreError::NotFound { key: key.to_owned() });
        }
        let bytes = metadata.len();
        Ok(Arc::new(LocalObject { key: key.to_owned(), file, bytes }))
    }

    fn put_if(&self, key: &str, bytes: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        check_key(key)?;
        let _one_at_a_time = self.lock_versions(key)?;
        let found = match self.get_versioned(key, VERSIONED_BYTES_MAX) {
            Ok((_, version)) => Some(version),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        if found.as_ref() != expected {
            return Err(StoreError::Changed { key: key.to_owned() });
        }
        self.put_atomic(key, bytes)?;
        Ok(version_of(bytes))
    }

    fn get_versioned(&self, key: &str, limit: u64) -> Result<(Vec<u8>, Version), StoreError> {
        let bytes = self.get(key, limit)?;
        let version = version_of(&bytes);
        Ok((bytes, version))
    }

    fn create(&self) -> Result<Box<dyn Upload>, StoreError> {
        let Some(staging) = self.staging.clone() else { return Err(StoreError::ReadOnly { key: UPLOAD.to_owned() }) };
        let path = staging.folder.join(staging.next.fetch_add(1, Ordering::Relaxed).to_string());
        // Reading back is part of an upload, so the file is opened for both.
        let file = staging
            .step("create")
            .and_then(|()| fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path))
            .map_err(|error| self.missing("write", UPLOAD, error))?;
        Ok(Box::new(LocalUpload { root: self.root.clone(), staging, path, file, bytes: 0, done: false }))
    }

    fn is_read_only(&self) -> bool {
        self.staging.is_none()
    }

    fn check(&self) -> Result<(), StoreError> {
        self.gone().map_or(Ok(()), Err)
    }

    fn free_bytes(&self) -> Option<u64> {
        let about = rustix::fs::statvfs(&*self.root).ok()?;
        Some(about.f_bavail.saturating_mul(about.f_frsize))
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError> {
        check_folder(folder)?;
        let failed = |error| StoreError::from_io("list", folder, error);
        let entries = match fs::read_dir(self.root.join(folder)) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return self.check().map(|()| Vec::new());
            }
            Err(error) => return Err(failed(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let key = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            // What has no valid key cannot be asked for: temporaries, editors' backups, odd names.
            if check_key(&key).is_err() {
                continue;
            }
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                found.push(Listed::Folder(key));
            } else if kind.is_file() || fs::metadata(entry.path()).is_ok_and(|target| target.is_file()) {
                found.push(Listed::Object(key));
            }
            if found.len() > LIST_ENTRIES_MAX {
                return Err(StoreError::TooMany { folder: folder.to_owned() });
            }
        }
        found.sort_by(|a, b| listed_key(a).cmp(listed_key(b)));
        Ok(found)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        if self.staging.is_none() {
            return Err(StoreError::ReadOnly { key: key.to_owned() });
        }
        match fs::remove_file(self.root.join(key)) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Ok(()),
            Err(error) => return Err(StoreError::from_io("delete", key, error)),
        }
        let parent = self.root.join(key).parent().map(Path::to_path_buf).unwrap_or_default();
        sync_folder(&parent).map_err(|error| StoreError::from_io("delete", key, error))
    }
}

fn listed_key(entry: &Listed) -> &str {
    match entry {
        Listed::Object(key) | Listed::Folder(key) => key,
    }
}

struct LocalObject {
    key: String,
    file: File,
    bytes: u64,
}

impl Object for LocalObject {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.file
            .read_exact_at(buf, offset)
            .map_err(|error| read_failed(&self.key, offset, buf.len(), self.bytes, error))
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<bool, StoreError> {
        Ok(read_cached(&self.file, offset, buf))
    }

    fn advise_whole(&self) {
        for advice in [Advice::Sequential, Advice::WillNeed] {
            // A file system that takes no advice is as good as one that does not follow it.
            let _ = fadvise(&self.file, 0, None, advice);
        }
    }
}

/// Whether the page cache had the bytes. Errors are for the read that may wait.
fn read_cached(file: &File, offset: u64, buf: &mut [u8]) -> bool {
    let wanted = buf.len();
    preadv2(file, &mut [io::IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT) == Ok(wanted)
}

fn read_failed(key: &str, offset: u64, wanted: usize, found: u64, error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            StoreError::Truncated { key: key.to_owned(), expected: offset.saturating_add(wanted as u64), found }
        }
        _ => StoreError::Io { what: "read", key: key.to_owned(), source: error },
    }
}

/// Makes renames and removals in a folder durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests;
