//! All file operations of a volume, as a small trait: the real disk ([`crate::RealDisk`]) and one in memory that loses on
//! a crash what was not synced ([`crate::SimulatedDisk`]).
//!
//! Paths are bytes from the root of the disk, already checked; the empty path is the root. No operation follows a
//! symbolic link, leaves the root, or crosses into another file system. Errors are those of the system, by
//! [`io::ErrorKind`]. What the volume's recovery relies on: a rename is atomic, also on a crash, and a crash loses
//! changes of folders but never brings them into an order in which a file that was never unlinked has no name.

use std::io;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link; shown, never followed.
    Symlink,
    /// Anything else; not served.
    Special,
}

/// Which inode: its number, and when it was born, since numbers are used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Inode number.
    pub inode: u64,
    /// Time of birth in nanoseconds since 1970; 0 where the file system keeps none.
    pub born_ns: i64,
}

/// What changes when a file is changed behind our back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Time of the last change of the content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change of content or attributes, nanoseconds since 1970.
    pub ctime_ns: i64,
}

/// What the system knows of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// What it is.
    pub kind: Kind,
    /// Which one.
    pub identity: Identity,
    /// When it was changed.
    pub stamp: Stamp,
    /// Permission bits (07777).
    pub mode: u16,
    /// Number of names.
    pub links: u32,
}

/// What room a file system has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub all_bytes: u64,
    /// Bytes free for us.
    pub bytes: u64,
    /// Files in all; `u64::MAX` where there is no such limit.
    pub all_files: u64,
    /// Files that can be made; `u64::MAX` where there is no such limit.
    pub files: u64,
}

/// An open regular file.
pub trait DiskFile: Send + Sync {
    /// What it is now.
    ///
    /// # Errors
    /// Those of the system; so for all calls here.
    fn stat(&self) -> io::Result<FileStat>;

    /// Reads from `offset`; returns how many bytes there were, less than asked for only at the end of the file.
    ///
    /// # Errors
    /// Those of the system.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// Those of the system; a part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts or extends with a hole.
    ///
    /// # Errors
    /// Those of the system.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Makes the file `size` bytes long with room for all of them.
    ///
    /// # Errors
    /// Those of the system; the size may have changed, the content not.
    fn reserve(&self, size: u64) -> io::Result<()>;

    /// The first bytes from `offset` on that are not a hole: start and end; `None` if only holes follow.
    ///
    /// # Errors
    /// Those of the system.
    fn data_after(&self, offset: u64) -> io::Result<Option<(u64, u64)>>;

    /// Brings content and size to stable storage.
    ///
    /// # Errors
    /// Those of the system. What was written before may be lost then, whatever a second call says.
    fn sync(&self) -> io::Result<()>;

    /// Locks the file against other processes until it is closed, and writes the number of this
    /// process into it.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another holds it.
    fn lock(&self) -> io::Result<()>;
}

/// A folder and all below it.
pub trait Disk: Send + Sync {
    /// What is at `path`; a symbolic link is itself.
    ///
    /// # Errors
    /// Those of the system; so for all calls here.
    fn stat(&self, path: &[u8]) -> io::Result<FileStat>;

    /// Calls `each` for every entry of a folder, in any order, until it returns false.
    ///
    /// # Errors
    /// Those of the system.
    fn list(&self, path: &[u8], each: &mut dyn FnMut(&[u8], Kind) -> bool) -> io::Result<()>;

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// Those of the system.
    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>>;

    /// Opens a regular file.
    ///
    /// # Errors
    /// Those of the system.
    fn open(&self, path: &[u8], write: bool) -> io::Result<Box<dyn DiskFile>>;

    /// Makes a file and opens it for writing; fails if there is something of this name.
    ///
    /// # Errors
    /// Those of the system.
    fn create(&self, path: &[u8], mode: u16) -> io::Result<Box<dyn DiskFile>>;

    /// Makes a folder.
    ///
    /// # Errors
    /// Those of the system.
    fn make_folder(&self, path: &[u8], mode: u16) -> io::Result<()>;

    /// Makes a symbolic link; fails if there is something of this name.
    ///
    /// # Errors
    /// Those of the system.
    fn make_link(&self, path: &[u8], target: &[u8]) -> io::Result<()>;

    /// Renames, replacing a file or an empty folder.
    ///
    /// # Errors
    /// Those of the system.
    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()>;

    /// Removes a file or a symbolic link.
    ///
    /// # Errors
    /// Those of the system.
    fn unlink(&self, path: &[u8]) -> io::Result<()>;

    /// Removes an empty folder.
    ///
    /// # Errors
    /// Those of the system.
    fn remove_folder(&self, path: &[u8]) -> io::Result<()>;

    /// Sets the time of the last change of the content, nanoseconds since 1970.
    ///
    /// # Errors
    /// Those of the system.
    fn set_mtime(&self, path: &[u8], mtime_ns: i64) -> io::Result<()>;

    /// Sets the permission bits.
    ///
    /// # Errors
    /// Those of the system.
    fn set_mode(&self, path: &[u8], mode: u16) -> io::Result<()>;

    /// Whether we may write this file, or make and remove names in this folder.
    ///
    /// # Errors
    /// Those of the system.
    fn check_writable(&self, path: &[u8], kind: Kind) -> io::Result<()>;

    /// Brings the names in a folder to stable storage.
    ///
    /// # Errors
    /// As [`DiskFile::sync`].
    fn sync_folder(&self, path: &[u8]) -> io::Result<()>;

    /// Brings everything of this file system to stable storage.
    ///
    /// # Errors
    /// As [`DiskFile::sync`].
    fn sync_all(&self) -> io::Result<()>;

    /// What room there is.
    ///
    /// # Errors
    /// Those of the system.
    fn space(&self) -> io::Result<Space>;
}

/// Whether an error means that the disk or somebody's quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
