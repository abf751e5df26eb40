//! The disk of the machine. Every path is resolved below the root by `openat2`. Where the kernel or
//! a sandbox does not allow that call, the names of the path are opened one by one.

mod file;
mod found;
mod permissions;
mod xattrs;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, RenameFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::disk::{Disk, DiskFile, FileStat, Kind, Owner, Space};
use crate::format::{INODE_BYTES, INODE_NAME};
use crate::inode::{Inode, shown};
use crate::path::split;
use crate::transaction::LINK_BYTES_MAX;
use crate::xattrs::Xattrs;

use file::RealFile;
pub(crate) use found::Found;
use found::from_file_type;

/// Room for entries of a folder that are read at once: hundreds of names of usual length.
const LIST_ROOM_BYTES: usize = 32 << 10;

/// A folder of this machine. It stays the same folder if it is renamed.
pub struct RealDisk {
    root: OwnedFd,
    /// `openat2` is not there.
    walk: AtomicBool,
    /// Files can have attributes of users.
    attributes: OnceLock<bool>,
}

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// In the place of a time that stays.
const KEPT_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };

fn time(nanoseconds: i64) -> Timespec {
    Timespec { tv_sec: nanoseconds.div_euclid(1_000_000_000), tv_nsec: nanoseconds.rem_euclid(1_000_000_000) as _ }
}

impl RealDisk {
    /// Opens a folder as the root; here, and only here, symbolic links are followed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(folder: &Path) -> io::Result<RealDisk> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
        Ok(RealDisk { root, walk: AtomicBool::new(false), attributes: OnceLock::new() })
    }

    /// A folder below the root as a disk of its own, made if it is not there.
    ///
    /// # Errors
    /// Those of the system.
    pub fn folder(&self, path: &[u8], make: bool) -> io::Result<RealDisk> {
        if make {
            match self.make_folder(path, 0o700) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => self.sync_folder(split(path).0)?,
            }
        }
        let root = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(RealDisk { root, walk: AtomicBool::new(self.walk.load(Ordering::Relaxed)), attributes: OnceLock::new() })
    }

    /// Does without `openat2` from now on.
    #[cfg(test)]
    pub(crate) fn set_walk(&self, walk: bool) {
        self.walk.store(walk, Ordering::Relaxed);
    }

    fn resolve(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if path.is_empty() {
            return rustix::fs::openat(&self.root, c".", flags, mode);
        }
        if !self.walk.load(Ordering::Relaxed) {
            match rustix::fs::openat2(&self.root, path, flags, mode, RESOLVE) {
                Err(Errno::NOSYS | Errno::PERM) => self.walk.store(true, Ordering::Relaxed),
                // A symbolic link where a folder should be.
                Err(Errno::LOOP) => return Err(Errno::NOTDIR),
                other => return other,
            }
        }
        self.resolve_by_names(path, flags, mode)
    }

    /// What `openat2` does with [`RESOLVE`], name by name. Paths hold no `..`, so none leads up.
    fn resolve_by_names(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let device = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
        let (folders, name) = split(path);
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut at = rustix::fs::openat(&self.root, c".", step, Mode::empty())?;
        for folder in folders.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            at = rustix::fs::openat(&at, folder, step, Mode::empty())?;
        }
        let found = match rustix::fs::openat(&at, name, flags, mode) {
            Err(Errno::LOOP) => return Err(Errno::NOTDIR),
            other => other?,
        };
        if device(found.as_fd())? != device(self.root.as_fd())? {
            return Err(Errno::XDEV);
        }
        Ok(found)
    }

    /// Opens what is at `path` in whatever way its permission bits allow, to change its attributes.
    fn find(&self, path: &[u8]) -> Result<Found, Errno> {
        // NONBLOCK: a pipe in the place of the file must not hold us.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = match self.resolve(path, OFlags::RDONLY | flags, Mode::empty()) {
            // A file without permission to read is still ours to change.
            Err(Errno::ACCESS) => self.resolve(path, OFlags::WRONLY | flags, Mode::empty()),
            other => other,
        };
        match opened {
            Err(Errno::ACCESS) => Ok(Found { fd: self.resolve(path, OFlags::PATH, Mode::empty())?, opened: false }),
            other => Ok(Found { fd: other?, opened: true }),
        }
    }

    fn set_times(&self, path: &[u8], times: Timestamps) -> io::Result<()> {
        let (folder, name) = self.parent(path)?;
        Ok(rustix::fs::utimensat(&folder, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The folder of `path`, for the calls that take a folder and a name.
    fn parent<'a>(&self, path: &'a [u8]) -> Result<(OwnedFd, &'a [u8]), Errno> {
        let (folder, name) = split(path);
        Ok((self.resolve(folder, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?, name))
    }
}

impl Disk for RealDisk {
    fn stat(&self, path: &[u8]) -> io::Result<FileStat> {
        Found { fd: self.resolve(path, OFlags::PATH, Mode::empty())?, opened: false }.stat()
    }

    fn list(&self, path: &[u8], each: &mut dyn FnMut(&[u8], Kind) -> bool) -> io::Result<()> {
        let folder = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        // `Dir` copies each name.
        let mut room = [MaybeUninit::uninit(); LIST_ROOM_BYTES];
        let mut entries = RawDir::new(&folder, &mut room);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match kind_of(&folder, name) {
                    Err(Errno::NOENT) => continue,
                    kind => kind?,
                },
                known => from_file_type(known),
            };
            if !each(name.to_bytes(), kind) {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let (folder, name) = self.parent(path)?;
        match rustix::fs::readlinkat(&folder, name, Vec::new()) {
            Err(Errno::INVAL) => {}
            other => return Ok(other?.into_bytes()),
        }
        // No link of the file system: the content of the file that stands for one.
        let found = Found { fd: self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?, opened: true };
        if found.stat()?.kind != Kind::Symlink {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut target = vec![0; LINK_BYTES_MAX];
        let length = RealFile(found.fd).read_at(0, &mut target)?;
        target.truncate(length);
        Ok(target)
    }

    fn open(&self, path: &[u8], write: bool) -> io::Result<Box<dyn DiskFile>> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        // NONBLOCK: a pipe that took the place of a file must not hold us.
        let fd = self.resolve(path, access | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
        let found = Found { fd, opened: true };
        match found.stat()?.kind {
            Kind::File => Ok(Box::new(RealFile(found.fd))),
            Kind::Folder => Err(io::ErrorKind::IsADirectory.into()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn create(&self, path: &[u8], mode: u16) -> io::Result<Box<dyn DiskFile>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let fd = self.resolve(path, flags, Mode::from(0o600))?;
        // Not by the mode of the call, from which the umask is taken.
        let found = Found { fd, opened: true };
        found.set_mode(mode)?;
        Ok(Box::new(RealFile(found.fd)))
    }

    fn make_folder(&self, path: &[u8], mode: u16) -> io::Result<()> {
        let (folder, name) = self.parent(path)?;
        rustix::fs::mkdirat(&folder, name, Mode::from(0o700))?;
        // Not by the mode of the call, from which the umask is taken.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&folder, name, flags, Mode::empty())?;
        Found { fd, opened: true }.set_mode(mode)
    }

    fn make_link(&self, path: &[u8], target: &[u8]) -> io::Result<()> {
        let (folder, name) = self.parent(path)?;
        Ok(rustix::fs::symlinkat(target, &folder, name)?)
    }

    fn make_node(&self, path: &[u8], inode: &Inode, content: &[u8]) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = RealFile(self.resolve(path, flags, Mode::from(0o600))?);
        file.write_at(0, content)?;
        let found = Found { fd: file.0, opened: true };
        found.set_inode(&found.plain()?, inode)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let (from_folder, from_name) = self.parent(from)?;
        let (to_folder, to_name) = self.parent(to)?;
        Ok(rustix::fs::renameat_with(&from_folder, from_name, &to_folder, to_name, RenameFlags::empty())?)
    }

    fn hard_link(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let (from_folder, from_name) = self.parent(from)?;
        let (to_folder, to_name) = self.parent(to)?;
        Ok(rustix::fs::linkat(&from_folder, from_name, &to_folder, to_name, AtFlags::empty())?)
    }

    fn unlink(&self, path: &[u8]) -> io::Result<FileStat> {
        let (folder, name) = self.parent(path)?;
        let found = Found { fd: self.resolve(path, OFlags::PATH, Mode::empty())?, opened: false };
        rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
        found.stat()
    }

    fn sync_file(&self, path: &[u8]) -> io::Result<()> {
        // What cannot be opened, such as a symbolic link, has no content, and attributes keep their
        // order.
        match self.find(path) {
            Ok(Found { fd, opened: true }) => Ok(rustix::fs::fsync(&fd)?),
            Ok(_) | Err(Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn remove_folder(&self, path: &[u8]) -> io::Result<()> {
        let (folder, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR)?)
    }

    fn set_mtime(&self, path: &[u8], mtime_ns: i64) -> io::Result<()> {
        self.set_times(path, Timestamps { last_access: KEPT_TIME, last_modification: time(mtime_ns) })
    }

    fn set_atime(&self, path: &[u8], atime_ns: i64) -> io::Result<()> {
        self.set_times(path, Timestamps { last_access: time(atime_ns), last_modification: KEPT_TIME })
    }

    fn set_mode(&self, path: &[u8], mode: u16) -> io::Result<()> {
        // By a descriptor: chmod by name would look the name up again, and follow a link that came
        // in between.
        self.find(path)?.set_mode(mode)
    }

    fn set_owner(&self, path: &[u8], owner: Owner, mode: u16) -> io::Result<()> {
        let found = self.find(path)?;
        let plain = found.plain()?;
        let inode = Inode::of(&shown(plain, found.attribute()?.as_deref()));
        found.set_inode(&plain, &Inode { owner, mode, ..inode })
    }

    fn owner(&self) -> Owner {
        Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    fn has_attributes(&self) -> bool {
        *self.attributes.get_or_init(|| {
            !matches!(rustix::fs::fgetxattr(&self.root, INODE_NAME, &mut [0; INODE_BYTES]), Err(Errno::OPNOTSUPP))
        })
    }

    fn xattrs(&self, path: &[u8]) -> io::Result<Xattrs> {
        self.read_xattrs(path)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        self.change_xattr(path, name, value)
    }

    fn fits_xattrs(&self, all: &Xattrs) -> io::Result<bool> {
        self.try_xattrs(all)
    }

    fn check_writable(&self, path: &[u8], kind: Kind) -> io::Result<()> {
        Ok(self.may_write(path, kind)?)
    }

    fn check_owned(&self, path: &[u8]) -> io::Result<()> {
        Ok(self.may_set_attributes(path)?)
    }

    fn check_removable(&self, folder: Option<&[u8]>, file: Option<&[u8]>) -> io::Result<()> {
        Ok(self.may_remove(folder, file)?)
    }

    fn sync_folder(&self, path: &[u8]) -> io::Result<()> {
        let folder = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(rustix::fs::fsync(&folder)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    fn space(&self) -> io::Result<Space> {
        let stat = rustix::fs::fstatvfs(&self.root)?;
        let (all_files, files) = if stat.f_files == 0 { (u64::MAX, u64::MAX) } else { (stat.f_files, stat.f_favail) };
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space { all_bytes: bytes(stat.f_blocks), bytes: bytes(stat.f_bavail), all_files, files })
    }
}

fn kind_of(folder: &OwnedFd, name: impl rustix::path::Arg) -> Result<Kind, Errno> {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(from_file_type(FileType::from_raw_mode(stat.st_mode)))
}
