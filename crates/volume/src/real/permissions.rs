//! Checks what the system lets the server do, before a transaction is promised. A refusal while a
//! transaction is applied comes too late: the transaction is in the journal by then.

use rustix::fs::{Access, AtFlags, Mode, OFlags, StatxAttributes, accessat, fcntl_setfl, statx};
use rustix::io::Errno;

use super::RealDisk;
use super::found::{Found, STATX};
use crate::disk::Kind;

/// Files and folders with one of these can be removed, renamed and linked by nobody, nor get other
/// attributes.
const FIXED: StatxAttributes = StatxAttributes::IMMUTABLE.union(StatxAttributes::APPEND);

/// In a folder with this permission bit only who owns it, or the file, may remove and rename the
/// file.
const STICKY: u16 = 0o1000;

impl RealDisk {
    pub(super) fn may_write(&self, path: &[u8], kind: Kind) -> Result<(), Errno> {
        match kind {
            Kind::File => {
                // Also finds immutable files and running programs.
                self.resolve(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
            }
            Kind::Folder => {
                let folder = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
                accessat(&folder, c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?;
            }
            Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice | Kind::Special => {}
        }
        Ok(())
    }

    pub(super) fn may_set_attributes(&self, path: &[u8]) -> Result<(), Errno> {
        let found = Found { fd: self.resolve(path, OFlags::PATH, Mode::empty())?, opened: false };
        if found.is_fixed()? {
            return Err(Errno::PERM);
        }
        match self.is_owned(path, &found)? {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    pub(super) fn may_remove(&self, folder: Option<&[u8]>, file: Option<&[u8]>) -> Result<(), Errno> {
        let find = |path: &[u8]| -> Result<Found, Errno> {
            Ok(Found { fd: self.resolve(path, OFlags::PATH, Mode::empty())?, opened: false })
        };
        let in_folder = folder.map(find).transpose()?;
        let found = file.map(find).transpose()?;
        for found in in_folder.iter().chain(&found) {
            if found.is_fixed()? {
                return Err(Errno::PERM);
            }
        }
        let (Some(folder), Some(path), Some(found)) = (in_folder, file, found) else { return Ok(()) };
        let folder = folder.plain()?;
        let is_ours = folder.owner.uid == rustix::process::geteuid().as_raw();
        match is_ours || folder.mode & STICKY == 0 || self.is_owned(path, &found)? {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    /// Whether the system takes us for the owner of what is at `path`, which is `found`.
    fn is_owned(&self, path: &[u8], found: &Found) -> Result<bool, Errno> {
        match self.find(path) {
            // Of this flag Linux asks what it asks of times and permission bits, capabilities, user
            // name spaces and mapped mounts included.
            Ok(Found { fd, opened: true }) => match fcntl_setfl(&fd, OFlags::NOATIME | OFlags::NONBLOCK) {
                Err(Errno::PERM) => Ok(false),
                other => other.map(|()| true),
            },
            // What cannot be opened, such as a symbolic link.
            Ok(_) | Err(Errno::NOTDIR) => {
                let user = rustix::process::geteuid();
                Ok(user.is_root() || found.plain()?.owner.uid == user.as_raw())
            }
            Err(error) => Err(error),
        }
    }
}

impl Found {
    fn is_fixed(&self) -> Result<bool, Errno> {
        Ok(statx(&self.fd, c"", AtFlags::EMPTY_PATH, STATX)?.stx_attributes.intersects(FIXED))
    }
}
