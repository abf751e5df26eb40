//! Attributes that the server's file system cannot hold without privileges: owner, group, set-id
//! bits, and special files. An extended attribute of the plain file holds them. QEMU does the same
//! for its 9p file systems and calls it `mapped-xattr`.
//!
//! A file or folder with the attribute shows what the attribute says. One without it shows what the
//! file system says. A special file is an empty plain file with the attribute. A symbolic link of
//! another owner is one too, with its target as content, since symbolic links cannot have such
//! attributes. So nobody but the owner of the folder can make a device node or a set-id program of
//! the server.
//!
//! The module is pure: `real` and `simulated` read and write the bytes.

use crate::disk::{FileStat, Kind, Owner};
use crate::format::*;

/// Permission bits that give a program the rights of its file's owner or group. They are never set
/// on the server's file.
pub(crate) const SET_ID: u16 = 0o6000;

/// What the attribute of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What it is; never [`Kind::Special`].
    pub kind: Kind,
    /// Permission bits (07777).
    pub mode: u16,
    /// Whose it is.
    pub owner: Owner,
    /// The device that it stands for, if it is one: as `st_rdev`.
    pub rdev: u32,
}

impl Inode {
    /// What a file shows.
    pub(crate) fn of(stat: &FileStat) -> Inode {
        Inode { kind: stat.kind, mode: stat.mode, owner: stat.owner, rdev: stat.rdev }
    }

    /// Whether a plain file or folder of this owner shows the same without the attribute.
    pub(crate) fn is_plain(&self, owner: Owner) -> bool {
        matches!(self.kind, Kind::File | Kind::Folder) && self.owner == owner && self.mode & SET_ID == 0
    }

    /// Permission bits of the server's file below the attribute: the server can always read and
    /// change it.
    pub(crate) fn host_mode(&self) -> u16 {
        match self.kind {
            Kind::Folder => self.mode & 0o1777 | 0o700,
            Kind::File => self.mode & 0o1777 | 0o600,
            _ => 0o600,
        }
    }

    /// The value of the attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![INODE_VERSION, to_number(self.kind)];
        out.extend(self.mode.to_le_bytes());
        for number in [self.owner.uid, self.owner.gid, self.rdev] {
            out.extend(number.to_le_bytes());
        }
        debug_assert_eq!(out.len(), INODE_BYTES);
        out
    }

    /// Reads what [`Inode::encode`] writes.
    fn parse(value: &[u8]) -> Option<Inode> {
        let value: &[u8; INODE_BYTES] = value.try_into().ok()?;
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| value[at + index]));
        let mode = u16::from_le_bytes([value[2], value[3]]);
        let kind = from_number(value[1])?;
        (value[0] == INODE_VERSION && mode <= 0o7777).then_some(Inode {
            kind,
            mode,
            owner: Owner { uid: number(4), gid: number(8) },
            rdev: number(12),
        })
    }
}

/// What the file system says of a file, and its attribute if it has one: what is shown. A value
/// that makes no sense, or that does not fit its file, makes it one that is not served.
pub(crate) fn shown(plain: FileStat, value: Option<&[u8]>) -> FileStat {
    let Some(value) = value else { return plain };
    let inode = Inode::parse(value);
    let fits = |inode: &Inode| match plain.kind {
        Kind::Folder => inode.kind == Kind::Folder,
        Kind::File => inode.kind != Kind::Folder,
        _ => false,
    };
    let Some(inode) = inode.filter(fits) else { return FileStat { kind: Kind::Special, ..plain } };
    // Somebody beside the server changed the bits of the file: these hold.
    let changed = matches!(inode.kind, Kind::File | Kind::Folder) && plain.mode != inode.host_mode();
    let mode = if changed { plain.mode & 0o1777 | inode.mode & SET_ID } else { inode.mode };
    FileStat { kind: inode.kind, mode, owner: inode.owner, rdev: inode.rdev, ..plain }
}

/// The number of a kind in the attribute and in the journal.
pub(crate) fn to_number(kind: Kind) -> u8 {
    match kind {
        // Nothing of an unknown kind is ever in a transaction.
        Kind::File | Kind::Special => KIND_FILE,
        Kind::Folder => KIND_FOLDER,
        Kind::Symlink => KIND_SYMLINK,
        Kind::Fifo => KIND_FIFO,
        Kind::Socket => KIND_SOCKET,
        Kind::CharDevice => KIND_CHAR_DEVICE,
        Kind::BlockDevice => KIND_BLOCK_DEVICE,
    }
}

/// The other way round.
pub(crate) fn from_number(number: u8) -> Option<Kind> {
    Some(match number {
        KIND_FILE => Kind::File,
        KIND_FOLDER => Kind::Folder,
        KIND_SYMLINK => Kind::Symlink,
        KIND_FIFO => Kind::Fifo,
        KIND_SOCKET => Kind::Socket,
        KIND_CHAR_DEVICE => Kind::CharDevice,
        KIND_BLOCK_DEVICE => Kind::BlockDevice,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: FileStat = FileStat { mode: 0o644, links: 1, ..FileStat::EMPTY };

    fn inode(kind: Kind, mode: u16) -> Inode {
        Inode { kind, mode, owner: Owner { uid: 7, gid: 8 }, rdev: 0x103 }
    }

    #[test]
    fn values_come_back_and_others_are_not_served() {
        for kind in [Kind::File, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice] {
            let wanted = inode(kind, 0o4755);
            let plain = FileStat { mode: wanted.host_mode(), ..PLAIN };
            assert_eq!(Inode::of(&shown(plain, Some(&wanted.encode()))), wanted);
            let folder = FileStat { kind: Kind::Folder, ..plain };
            assert_eq!(shown(folder, Some(&wanted.encode())).kind, Kind::Special, "a folder is no {kind:?}");
        }
        let good = inode(Kind::File, 0o644).encode();
        for at in 0..good.len() {
            assert_eq!(shown(PLAIN, Some(&good[..at])).kind, Kind::Special);
        }
        for (at, wrong) in [(0, 9), (1, 7), (3, 0x10)] {
            let mut bad = good.clone();
            bad[at] = wrong;
            assert_eq!(shown(PLAIN, Some(&bad)).kind, Kind::Special);
        }
        assert_eq!(shown(PLAIN, None), PLAIN);
    }

    #[test]
    fn bits_that_others_changed_hold() {
        let wanted = inode(Kind::File, 0o4440);
        let shown = |mode| shown(FileStat { mode, ..PLAIN }, Some(&wanted.encode())).mode;
        assert_eq!(shown(0o640), 0o4440, "as the server left it");
        assert_eq!(shown(0o600), 0o4600);
    }
}
