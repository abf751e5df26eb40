//! Extended attributes of the files of this machine.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::RealDisk;
use super::found::Found;
use crate::format::INODE_NAME;
use crate::inode::Inode;
use crate::path::OWN_FOLDER;
use crate::xattrs::{XATTR_VALUE_BYTES_MAX, Xattrs, served, shown_name, stored_name};
use crate::{Disk, Kind, Owner};

/// Room for the names that a file has: most have none, or a few of the system.
const NAMES_BYTES: usize = 1024;

/// Names at most, bytes: Linux lists no more.
const NAMES_BYTES_MAX: usize = 64 << 10;

/// What the names of a file's attributes tell.
pub(super) struct Named {
    /// It has the one that says what the file system cannot.
    pub inode: bool,
    /// It has some that devices see.
    pub served: bool,
}

impl Found {
    /// Which kinds of attributes there are, by their names.
    pub(super) fn named(&self) -> Result<Named, Errno> {
        let mut names = [0; NAMES_BYTES];
        let listed = match self.opened {
            true => rustix::fs::flistxattr(&self.fd, &mut names[..]),
            false => rustix::fs::listxattr(self.name(), &mut names[..]),
        };
        match listed {
            Ok(bytes) => {
                let each = || names[..bytes].split(|byte| *byte == 0);
                Ok(Named {
                    inode: each().any(|name| name == INODE_NAME.as_bytes()),
                    served: each().any(|name| shown_name(name).is_some()),
                })
            }
            // Many: whoever looks for one finds out.
            Err(Errno::RANGE) => Ok(Named { inode: true, served: true }),
            Err(Errno::OPNOTSUPP | Errno::ACCESS) => Ok(Named { inode: false, served: false }),
            Err(error) => Err(error),
        }
    }

    fn xattrs(&self) -> io::Result<Xattrs> {
        let mut names = vec![0; NAMES_BYTES_MAX];
        let listed = match self.opened {
            true => rustix::fs::flistxattr(&self.fd, &mut names[..]),
            false => rustix::fs::listxattr(self.name(), &mut names[..]),
        };
        let bytes = match listed {
            Err(Errno::OPNOTSUPP | Errno::ACCESS) => 0,
            other => other?,
        };
        let (mut all, mut room) = (Vec::new(), Vec::new());
        let names = names[..bytes].split(|byte| *byte == 0);
        for (name, shown) in names.filter_map(|name| Some((name, shown_name(name)?))) {
            room.resize(XATTR_VALUE_BYTES_MAX, 0);
            let got = match self.opened {
                true => rustix::fs::fgetxattr(&self.fd, name, &mut room[..]),
                false => rustix::fs::getxattr(self.name(), name, &mut room[..]),
            };
            match got {
                Ok(bytes) => all.push((shown.to_vec(), room[..bytes].to_vec())),
                // Removed meanwhile, or none of ours to read.
                Err(Errno::NODATA | Errno::ACCESS | Errno::RANGE) => {}
                Err(error) => return Err(error.into()),
            }
        }
        all.sort_unstable();
        Ok(served(all))
    }

    /// Sets an attribute, or removes it.
    fn set_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        let flags = XattrFlags::empty();
        let done = match (value, self.opened) {
            (Some(value), true) => rustix::fs::fsetxattr(&self.fd, name, value, flags),
            (Some(value), false) => rustix::fs::setxattr(self.name(), name, value, flags),
            (None, true) => rustix::fs::fremovexattr(&self.fd, name),
            (None, false) => rustix::fs::removexattr(self.name(), name),
        };
        match done {
            Err(Errno::NODATA) if value.is_none() => Ok(()),
            other => other,
        }
    }
}

impl RealDisk {
    pub(super) fn read_xattrs(&self, path: &[u8]) -> io::Result<Xattrs> {
        self.find(path)?.xattrs()
    }

    pub(super) fn change_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let (found, name) = (self.find(path)?, stored_name(name));
        let plain = found.plain()?;
        // A link that took the place of the file is not followed, nor given anything.
        if !matches!(plain.kind, Kind::File | Kind::Folder) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        match found.set_xattr(name, value) {
            // Who may write a file may give it attributes. That a device may was found out before;
            // the bits of a read-only file keep the server from it.
            Err(Errno::ACCESS) => {
                found.set_host_mode(plain.mode | 0o200)?;
                let done = found.set_xattr(name, value);
                found.set_host_mode(plain.mode)?;
                Ok(done?)
            }
            other => Ok(other?),
        }
    }

    /// Tries it on a file without a name: how much there is room for only the file system knows.
    pub(super) fn try_xattrs(&self, all: &Xattrs) -> io::Result<bool> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.root, c".", flags | OFlags::TMPFILE, Mode::from(0o600)) {
            Ok(fd) => fd,
            // A file system that has none without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let path = [OWN_FOLDER, b"/attributes"].concat();
                let fd = self.resolve(&path, flags | OFlags::CREATE, Mode::from(0o600))?;
                self.unlink(&path)?;
                fd
            }
            Err(error) => return Err(error.into()),
        };
        let inode = Inode { kind: Kind::File, mode: 0, owner: Owner::default(), rdev: 0 }.encode();
        let own = (INODE_NAME.as_bytes(), &inode);
        for (name, value) in all.iter().map(|(name, value)| (stored_name(name), value)).chain([own]) {
            match rustix::fs::fsetxattr(fd.as_fd(), name, value, XattrFlags::empty()) {
                // The last two are what some file systems say of a value that is too large for
                // them.
                Err(Errno::NOSPC | Errno::DQUOT | Errno::TOOBIG | Errno::RANGE) => return Ok(false),
                other => other?,
            }
        }
        Ok(true)
    }
}
