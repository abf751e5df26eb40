//! Inodes, decoded from their records.

use crate::{Metadata, format};
use std::ops::Range;
use units::InodeId;

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Character device.
    Char,
    /// Block device.
    Block,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl Kind {
    /// The kind in the type bits of a POSIX mode, or `None` if there is no such type.
    pub const fn from_mode(mode: u16) -> Option<Kind> {
        match mode & format::MODE_TYPE {
            format::MODE_FILE => Some(Kind::File),
            format::MODE_DIR => Some(Kind::Dir),
            format::MODE_SYMLINK => Some(Kind::Symlink),
            format::MODE_CHAR => Some(Kind::Char),
            format::MODE_BLOCK => Some(Kind::Block),
            format::MODE_FIFO => Some(Kind::Fifo),
            format::MODE_SOCKET => Some(Kind::Socket),
            _ => None,
        }
    }

    /// The type bits of a POSIX mode.
    pub const fn mode_bits(self) -> u16 {
        match self {
            Kind::File => format::MODE_FILE,
            Kind::Dir => format::MODE_DIR,
            Kind::Symlink => format::MODE_SYMLINK,
            Kind::Char => format::MODE_CHAR,
            Kind::Block => format::MODE_BLOCK,
            Kind::Fifo => format::MODE_FIFO,
            Kind::Socket => format::MODE_SOCKET,
        }
    }

    /// The letter `ls -l` prints.
    pub const fn letter(self) -> char {
        match self {
            Kind::File => '-',
            Kind::Dir => 'd',
            Kind::Symlink => 'l',
            Kind::Char => 'c',
            Kind::Block => 'b',
            Kind::Fifo => 'p',
            Kind::Socket => 's',
        }
    }
}

/// An inode's attributes, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    id: InodeId,
    kind: Kind,
    mode: u16,
    uid: u32,
    gid: u32,
    nlink: u32,
    rdev: u32,
    mtime_ns: u32,
    mtime_sec: i64,
    size: u64,
    has_xattrs: bool,
}

impl Inode {
    /// Its number.
    pub fn id(&self) -> InodeId {
        self.id
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Type and permission bits, as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.mode.into()
    }

    /// The lower twelve bits of the mode: permissions, setuid, setgid, sticky.
    pub fn permissions(&self) -> u16 {
        self.mode & !format::MODE_TYPE
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Bytes of a file or of a symbolic link's target; 0 for all else.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Modification time: seconds since 1970, which may be negative, and nanoseconds to add.
    pub fn mtime(&self) -> (i64, u32) {
        (self.mtime_sec, self.mtime_ns)
    }

    /// Modification time: seconds since 1970, may be negative.
    pub fn mtime_sec(&self) -> i64 {
        self.mtime_sec
    }

    /// Modification time: nanoseconds to add to the seconds.
    pub fn mtime_ns(&self) -> u32 {
        self.mtime_ns
    }

    /// Directory entries that name it; for a directory 2 and one for each subdirectory.
    pub fn nlink(&self) -> u32 {
        self.nlink
    }

    /// Device number as Linux encodes it in 32 bits (see [`device_parts`]); 0 if it is no device.
    pub fn rdev(&self) -> u32 {
        self.rdev
    }

    /// Whether it has extended attributes.
    pub fn has_xattrs(&self) -> bool {
        self.has_xattrs
    }
}

/// Packs a device number the way Linux passes it in 32 bits: 12 bits of major, 20 bits of minor,
/// the minor's upper bits on top. `None` if it does not fit.
pub const fn device_number(major: u32, minor: u32) -> Option<u32> {
    if major >= 1 << 12 || minor >= 1 << 20 {
        return None;
    }
    Some((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// Major and minor of a number packed by [`device_number`].
pub const fn device_parts(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

impl Metadata {
    /// The inode with this number, or `None` if there is none.
    pub fn inode(&self, id: InodeId) -> Option<Inode> {
        let raw = self.raw_inode(id)?;
        let mode = raw.mode.get();
        let kind = Kind::from_mode(mode)?;
        let is_device = matches!(kind, Kind::Char | Kind::Block);
        Some(Inode {
            id,
            kind,
            mode,
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            nlink: raw.nlink.get(),
            rdev: if is_device { raw.payload.get() } else { 0 },
            mtime_ns: raw.mtime_ns.get(),
            mtime_sec: raw.mtime_sec.get(),
            size: raw.size.get(),
            has_xattrs: raw.xattr_set.get() != 0,
        })
    }

    /// The target of a symbolic link; `None` if `id` is none.
    pub fn symlink(&self, id: InodeId) -> Option<&[u8]> {
        let raw = self.raw_inode(id)?;
        if raw.mode.get() & format::MODE_TYPE != format::MODE_SYMLINK {
            return None;
        }
        let start = raw.payload.get() as usize;
        self.tables.targets.get(start..start.checked_add(raw.size.get() as usize)?)
    }

    pub(crate) fn raw_inode(&self, id: InodeId) -> Option<&format::Inode> {
        self.tables.inodes.get(id.0.checked_sub(1)?)
    }

    pub(crate) fn is_kind(&self, id: InodeId, kind: Kind) -> bool {
        self.raw_inode(id).is_some_and(|raw| raw.mode.get() & format::MODE_TYPE == kind.mode_bits())
    }

    /// Indices of the entries of a directory; empty for anything else.
    pub(crate) fn entry_range(&self, id: InodeId) -> Range<u32> {
        let Some(raw) = self.raw_inode(id) else { return 0..0 };
        let end = self.tables.inodes.get(id.0).map_or(self.tables.entries.len(), |next| next.entry_first.get());
        raw.entry_first.get()..end
    }

    /// Indices of the extents of a file; empty for anything else.
    pub(crate) fn extent_range(&self, id: InodeId) -> Range<u32> {
        let Some(raw) = self.raw_inode(id) else { return 0..0 };
        let end = self.tables.inodes.get(id.0).map_or(self.tables.extents.len(), |next| next.extent_first.get());
        raw.extent_first.get()..end
    }
}
