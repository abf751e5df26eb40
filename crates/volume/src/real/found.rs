//! An open path of the machine, with its attributes as they are shown and as the file system holds
//! them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Statx, StatxFlags, StatxTimestamp, XattrFlags};
use rustix::io::Errno;

use crate::disk::{FileStat, Identity, Kind, Owner, Stamp};
use crate::format::{INODE_BYTES, INODE_NAME};
use crate::inode::{Inode, SET_ID, shown};

/// What is asked of a file.
pub(super) const STATX: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// What is at a path, to be looked at and changed.
pub(crate) struct Found {
    /// The descriptor.
    pub fd: OwnedFd,
    /// Not with `O_PATH`, which is for descriptors of what may be opened neither for reading nor
    /// for writing. Most calls refuse such a descriptor, but its name in /proc stands for that very
    /// file, whatever became of its path.
    pub opened: bool,
}

impl Found {
    /// What the file system says.
    pub fn plain(&self) -> Result<FileStat, Errno> {
        Ok(from_statx(&rustix::fs::statx(&self.fd, c"", AtFlags::EMPTY_PATH, STATX)?))
    }

    /// What is shown.
    pub fn stat(&self) -> io::Result<FileStat> {
        let plain = self.plain()?;
        match plain.kind {
            Kind::File | Kind::Folder => {
                let named = self.named()?;
                let value = if named.inode { self.attribute()? } else { None };
                let stat = shown(plain, value.as_deref());
                let has_xattrs = named.served && stat.kind != Kind::Symlink;
                Ok(FileStat { has_xattrs, ..stat })
            }
            _ => Ok(plain),
        }
    }

    pub fn name(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    pub fn attribute(&self) -> Result<Option<Vec<u8>>, Errno> {
        let mut value = vec![0; INODE_BYTES];
        let found = match self.opened {
            true => rustix::fs::fgetxattr(&self.fd, INODE_NAME, &mut value[..]),
            false => rustix::fs::getxattr(self.name(), INODE_NAME, &mut value[..]),
        };
        match found {
            Ok(length) => {
                value.truncate(length);
                Ok(Some(value))
            }
            // One with the attribute can be read: see `Inode::host_mode`.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::ACCESS) => Ok(None),
            // Longer than any that we made.
            Err(Errno::RANGE) => Ok(Some(Vec::new())),
            Err(error) => Err(error),
        }
    }

    /// Sets the permission bits; the owner stays.
    pub fn set_mode(&self, mode: u16) -> io::Result<()> {
        let plain = self.plain()?;
        let value = self.attribute()?;
        if value.is_none() && mode & SET_ID == 0 {
            check_has_mode(plain.kind)?;
            return Ok(self.set_host_mode(mode)?);
        }
        self.set_inode(&plain, &Inode { mode, ..Inode::of(&shown(plain, value.as_deref())) })
    }

    /// Makes the file show all that `inode` says, of which the kind stays.
    pub fn set_inode(&self, plain: &FileStat, inode: &Inode) -> io::Result<()> {
        check_has_mode(plain.kind)?;
        if inode.kind == Kind::Special {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if inode.is_plain(plain.owner) {
            let removed = match self.opened {
                true => rustix::fs::fremovexattr(&self.fd, INODE_NAME),
                false => rustix::fs::removexattr(self.name(), INODE_NAME),
            };
            match removed {
                // Without permission to write it has none.
                Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::ACCESS) => {}
                other => other?,
            }
            return Ok(self.set_host_mode(inode.mode)?);
        }
        // First, since only who may write a file may give it attributes.
        self.set_host_mode(inode.host_mode())?;
        let (value, flags) = (inode.encode(), XattrFlags::empty());
        match self.opened {
            true => rustix::fs::fsetxattr(&self.fd, INODE_NAME, &value, flags)?,
            false => rustix::fs::setxattr(self.name(), INODE_NAME, &value, flags)?,
        }
        Ok(())
    }

    pub fn set_host_mode(&self, mode: u16) -> Result<(), Errno> {
        let mode = Mode::from(u32::from(mode));
        match self.opened {
            true => rustix::fs::fchmod(&self.fd, mode),
            false => rustix::fs::chmodat(CWD, self.name(), mode, AtFlags::empty()),
        }
    }
}

/// Only files and folders have permission bits that we set; a link, a pipe or a device has taken
/// their place.
fn check_has_mode(kind: Kind) -> io::Result<()> {
    if matches!(kind, Kind::File | Kind::Folder) { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

pub(super) fn from_file_type(kind: FileType) -> Kind {
    match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Special,
    }
}

pub(super) fn from_statx(stat: &Statx) -> FileStat {
    let nanoseconds =
        |time: &StatxTimestamp| time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec));
    let born = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    FileStat {
        kind: from_file_type(FileType::from_raw_mode(u32::from(stat.stx_mode))),
        identity: Identity { inode: stat.stx_ino, born_ns: if born { nanoseconds(&stat.stx_btime) } else { 0 } },
        stamp: Stamp {
            size: stat.stx_size,
            mtime_ns: nanoseconds(&stat.stx_mtime),
            ctime_ns: nanoseconds(&stat.stx_ctime),
        },
        mode: stat.stx_mode & 0o7777,
        links: stat.stx_nlink,
        owner: Owner { uid: stat.stx_uid, gid: stat.stx_gid },
        // No device is served.
        rdev: 0,
        atime_ns: nanoseconds(&stat.stx_atime),
        stored_bytes: stat.stx_blocks.saturating_mul(512),
        has_xattrs: false,
    }
}
