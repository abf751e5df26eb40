//! All file operations of a volume, as a trait. [`crate::RealDisk`] is the disk of the machine.
//! [`crate::SimulatedDisk`] is in memory and loses on a crash what was not synced.
//!
//! Paths are bytes from the root of the disk, already checked. The empty path is the root. No
//! operation follows a symbolic link, leaves the root, or crosses into another file system. Errors
//! are those of the system, by [`io::ErrorKind`].
//!
//! Recovery relies on two promises. A rename is atomic, also on a crash. A crash loses changes of
//! folders, but never leaves a file without a name that always had one.

use std::io;

use crate::Inode;
use crate::xattrs::Xattrs;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link; shown, never followed.
    Symlink,
    /// A FIFO that a device made: no more than its inode is here.
    Fifo,
    /// A Unix domain socket, as a FIFO.
    Socket,
    /// A character device, as a FIFO.
    CharDevice,
    /// A block device, as a FIFO.
    BlockDevice,
    /// Anything else, such as a device of the server itself; not served.
    Special,
}

/// The owner of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Number of the user.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
}

/// Which inode: its number, and when it was born, since numbers are used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Inode number.
    pub inode: u64,
    /// Time of birth in nanoseconds since 1970; 0 where the file system keeps none.
    pub born_ns: i64,
}

/// Size and times, which show a change behind our back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Time of the last change of the content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change of content or attributes, nanoseconds since 1970.
    pub ctime_ns: i64,
}

impl Stamp {
    /// Of a file that a recovery did not find, because the name that the journal had for it is gone
    /// and it has others: it is as it will be found.
    pub(crate) const UNKNOWN: Stamp = Stamp { size: u64::MAX, mtime_ns: 0, ctime_ns: 0 };
}

/// The attributes of a file.
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
    /// Number of names; of a folder, that of the file system.
    pub links: u32,
    /// Its owner.
    pub owner: Owner,
    /// The device that it stands for, if it is one: as `st_rdev`.
    pub rdev: u32,
    /// When it was last read, nanoseconds since 1970.
    pub atime_ns: i64,
    /// Bytes that it takes on the disk.
    pub stored_bytes: u64,
    /// It may have extended attributes that devices see; otherwise it has none.
    pub has_xattrs: bool,
}

#[cfg(test)]
impl FileStat {
    /// An empty file of nobody.
    pub(crate) const EMPTY: FileStat = FileStat {
        kind: Kind::File,
        identity: Identity { inode: 0, born_ns: 0 },
        stamp: Stamp { size: 0, mtime_ns: 0, ctime_ns: 0 },
        mode: 0,
        links: 0,
        owner: Owner { uid: 0, gid: 0 },
        rdev: 0,
        atime_ns: 0,
        stored_bytes: 0,
        has_xattrs: false,
    };
}

/// The room of a file system.
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
    /// What the file system says of it now, without what its attribute says ([`crate::Inode`]).
    ///
    /// # Errors
    /// Those of the system; so for all calls here.
    fn stat(&self) -> io::Result<FileStat>;

    /// Reads from `offset`; returns how many bytes there were, less than asked for only at the end
    /// of the file.
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

    /// Makes zeros of a range; with `reserved` it has room afterwards, else it gives its room back.
    /// The size stays.
    ///
    /// # Errors
    /// Those of the system; a part may be done. [`io::ErrorKind::Unsupported`] where a file system
    /// cannot do it.
    fn zero(&self, offset: u64, length: u64, reserved: bool) -> io::Result<()>;

    /// Keeps room for a range, also behind the end of the file; content and size stay.
    ///
    /// # Errors
    /// Those of the system; what it took behind the end is free again then.
    /// [`io::ErrorKind::Unsupported`] where a file system cannot promise room.
    fn allocate(&self, offset: u64, length: u64) -> io::Result<()>;

    /// The first bytes from `offset` on that are not a hole: start and end; `None` if only holes
    /// follow.
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

    /// Where a symbolic link points, also one that is a plain file here.
    ///
    /// # Errors
    /// Those of the system.
    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>>;

    /// Opens a regular file; never the plain file that stands for something else.
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

    /// Makes what only an attribute can say: a special file or, with its target as `content`, a
    /// symbolic link. Fails if there is something of this name.
    ///
    /// # Errors
    /// Those of the system; [`io::ErrorKind::Unsupported`] where files cannot have attributes. What
    /// was made may be there in part.
    fn make_node(&self, path: &[u8], inode: &Inode, content: &[u8]) -> io::Result<()>;

    /// Gives a file or symbolic link one more name; fails if there is something of this name.
    ///
    /// # Errors
    /// Those of the system.
    fn hard_link(&self, from: &[u8], to: &[u8]) -> io::Result<()>;

    /// Renames, replacing a file or an empty folder.
    ///
    /// # Errors
    /// Those of the system.
    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()>;

    /// Removes a name of a file or a symbolic link, and tells what the file is from then on.
    ///
    /// # Errors
    /// Those of the system.
    fn unlink(&self, path: &[u8]) -> io::Result<FileStat>;

    /// Brings content and attributes of a file to stable storage.
    ///
    /// # Errors
    /// As [`DiskFile::sync`].
    fn sync_file(&self, path: &[u8]) -> io::Result<()>;

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

    /// Sets the time of the last access, nanoseconds since 1970.
    ///
    /// # Errors
    /// Those of the system.
    fn set_atime(&self, path: &[u8], atime_ns: i64) -> io::Result<()>;

    /// Sets the permission bits of anything but a symbolic link.
    ///
    /// # Errors
    /// Those of the system; [`io::ErrorKind::Unsupported`] for set-id bits where files cannot have
    /// attributes.
    fn set_mode(&self, path: &[u8], mode: u16) -> io::Result<()>;

    /// Sets owner and permission bits of anything but a symbolic link of the file system.
    ///
    /// # Errors
    /// As [`Disk::set_mode`], unless the owner is the one that the file has anyway.
    fn set_owner(&self, path: &[u8], owner: Owner, mode: u16) -> io::Result<()>;

    /// The owner of files and folders that are made here.
    fn owner(&self) -> Owner;

    /// Whether files can have attributes, so that they can have other owners than the server's
    /// user.
    fn has_attributes(&self) -> bool;

    /// The extended attributes of a file or folder that devices see; none where files cannot have
    /// attributes.
    ///
    /// # Errors
    /// Those of the system.
    fn xattrs(&self, path: &[u8]) -> io::Result<Xattrs>;

    /// Gives a file or folder an extended attribute; without a value, takes it away if it has it.
    ///
    /// # Errors
    /// Those of the system; so where there is no room for it, see [`Disk::fits_xattrs`].
    fn set_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> io::Result<()>;

    /// Whether a file can have all of these: most file systems have a limit of their own, such as
    /// one block.
    ///
    /// # Errors
    /// Those of the system.
    fn fits_xattrs(&self, all: &Xattrs) -> io::Result<bool>;

    /// Whether we may write this file, or make and remove names in this folder.
    ///
    /// # Errors
    /// Those of the system.
    fn check_writable(&self, path: &[u8], kind: Kind) -> io::Result<()>;

    /// Whether we may set the times, permission bits and owner of what is here, and give it more
    /// names: only its owner may, whoever can write it.
    ///
    /// # Errors
    /// Those of the system.
    fn check_owned(&self, path: &[u8]) -> io::Result<()>;

    /// Whether we may remove this file from this folder, or rename it, as far as
    /// [`Disk::check_writable`] of the folder does not tell: attributes and sticky folders may
    /// forbid it. `None` is what a transaction makes before, which is ours.
    ///
    /// # Errors
    /// Those of the system.
    fn check_removable(&self, folder: Option<&[u8]>, file: Option<&[u8]>) -> io::Result<()>;

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

    /// The room that there is.
    ///
    /// # Errors
    /// Those of the system.
    fn space(&self) -> io::Result<Space>;
}

/// Whether an error means that the disk or somebody's quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
