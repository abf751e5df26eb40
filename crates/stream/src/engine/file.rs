//! One file as this device knows it: its blocks of the server's version, and what was changed here.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use units::{Acl, InodeId, Moment, StreamId, Token};
use wire::volume::{Change, FileInfo, FileKind, Owner, Seen, Share};

use super::arrival::Arrival;
use crate::StreamError;
use crate::call::ACL_ACCESS;
use crate::memory::Stamp;
use crate::overlay::Overlay;
use crate::present::Present;

/// Bytes in whole blocks of most file systems, for what a file takes on the server before that
/// tells. Sizes are whatever the server says.
pub(super) fn whole_blocks(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}

/// An entry of the data block table. A block without one is absent, or a hole; what was written here lies in the overlay.
#[derive(Debug)]
pub(super) enum Block {
    /// The server was asked for it.
    Asked,
    /// A push brings it: the server said so (`told`), or it is the next one of a row.
    OnTheWay { stream: StreamId, until: Moment, told: bool },
    /// It is being read from the disk cache, as of this version.
    Reading { version: u64 },
    /// Here it is; `fresh`: it was pushed and nobody used it yet.
    Memory { bytes: Bytes, stamp: Stamp, fresh: bool },
}

/// What a change is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// On whatever is there.
    Free,
    /// On this version.
    Known(Seen),
    /// On what this transaction makes of the file.
    Chain(u64),
}

/// Changes that no sync asks for are sent after this time, as kernels do with their pages.
const DIRTY_TIME: Duration = Duration::from_secs(30);

/// The same of attributes alone: longer than a program takes to set one after the other and to
/// rename the file, and less than others believe what they know of it.
const ATTRIBUTES_TIME: Duration = Duration::from_millis(100);

/// Changes that no transaction carries yet, beside the open extents of the overlay.
#[derive(Debug)]
pub(super) struct Dirty {
    pub base: Base,
    /// The file is to be made, with these permission bits and this owner.
    pub create: Option<(u16, Option<Owner>)>,
    /// If there is one when it is made, that one is emptied.
    pub replaces: bool,
    /// Nobody asked the server whether there is one.
    pub unasked: bool,
    /// All open extents are appends.
    pub appends: bool,
    /// The least size the file was cut to.
    pub cut: Option<u64>,
    /// It was extended.
    pub extended: bool,
    pub atime: Option<i64>,
    pub mtime: Option<i64>,
    pub mode: Option<u16>,
    /// The user and the group that it gets.
    pub owner: (Option<u32>, Option<u32>),
    /// Time of the last write, nanoseconds since 1970.
    pub wrote_ns: i64,
    pub since: Moment,
}

impl Dirty {
    /// Takes a change of attributes; of a file that is to be made, what can be made so is.
    pub fn change(&mut self, change: &Change) {
        match (change, &mut self.create) {
            (Change::SetMode { mode, .. }, Some((made, _))) if !self.replaces => *made = *mode,
            (Change::SetMode { mode, .. }, _) => self.mode = Some(*mode),
            (Change::SetOwner { uid, gid, .. }, Some((_, Some(owner))))
                if !self.replaces && self.owner == (None, None) =>
            {
                // Not the group alone: that of its folder may go before.
                match gid {
                    None => owner.uid = uid.unwrap_or(owner.uid),
                    Some(_) => self.owner = (*uid, *gid),
                }
            }
            (Change::SetOwner { uid, gid, .. }, _) => self.owner = (uid.or(self.owner.0), gid.or(self.owner.1)),
            (Change::SetTime { mtime_ns, .. }, _) => self.mtime = Some(*mtime_ns),
            (Change::SetAccessTime { atime_ns, .. }, _) => self.atime = Some(*atime_ns),
            _ => {}
        }
    }
}

/// What is told of a file besides its size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attributes {
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub atime_ns: i64,
    pub mode: u16,
    pub owner: Owner,
    pub links: u32,
    /// Bytes that it takes on the server's disk.
    pub stored_bytes: u64,
    pub has_xattrs: bool,
    /// This device made the file, and knows of nobody who changed it since.
    pub made_here: bool,
}

impl Attributes {
    /// Those that the server tells.
    pub fn of(info: &FileInfo) -> Attributes {
        let FileInfo { mtime_ns, ctime_ns, atime_ns, mode, owner, links, stored_bytes, has_xattrs, .. } = *info;
        Attributes { mtime_ns, ctime_ns, atime_ns, mode, owner, links, stored_bytes, has_xattrs, made_here: false }
    }

    /// Those of a file that is made here now.
    pub fn new(mode: u16, owner: Option<Owner>, now_ns: i64) -> Attributes {
        let (mode, owner) = (mode & 0o7777, owner.unwrap_or_default());
        let times = Attributes { mtime_ns: now_ns, ctime_ns: now_ns, atime_ns: now_ns, ..Attributes::default() };
        Attributes { mode, owner, links: 1, made_here: true, ..times }
    }

    /// The content was changed.
    pub fn wrote(&mut self, now_ns: i64) {
        self.mtime_ns = now_ns;
        self.touch(now_ns);
    }

    /// Something of the file was changed. The time of that grows, also where the server's clock is
    /// ahead of ours.
    pub fn touch(&mut self, now_ns: i64) {
        self.ctime_ns = now_ns.max(self.ctime_ns.saturating_add(1));
    }

    /// The content was read. As Linux does it by default (`relatime`): told once after each change,
    /// and once a day.
    pub fn read(&mut self, now_ns: i64) {
        const DAY_NS: i64 = 24 * 3600 * 1_000_000_000;
        let changed = self.mtime_ns.max(self.ctime_ns);
        if self.atime_ns <= changed || now_ns.saturating_sub(self.atime_ns) >= DAY_NS {
            self.atime_ns = now_ns;
        }
    }

    /// Does a change of attributes; others change nothing.
    pub fn change(&mut self, change: &Change, now_ns: i64) {
        match change {
            Change::SetMode { mode, .. } => self.mode = *mode,
            Change::SetTime { mtime_ns, .. } => self.mtime_ns = *mtime_ns,
            Change::SetAccessTime { atime_ns, .. } => self.atime_ns = *atime_ns,
            Change::SetOwner { uid, gid, .. } => {
                let Owner { uid: user, gid: group } = self.owner;
                self.owner = Owner { uid: uid.unwrap_or(user), gid: gid.unwrap_or(group) };
            }
            Change::SetXattr { name, value, .. } => {
                self.has_xattrs = true;
                if let Some(acl) = Some(name).filter(|name| *name == ACL_ACCESS).and_then(|_| Acl::parse(value)) {
                    self.mode = self.mode & 0o7000 | acl.mode();
                }
            }
            // It may have others.
            Change::RemoveXattr { .. } => {}
            _ => return,
        }
        self.touch(now_ns);
    }
}

/// A file.
#[derive(Debug)]
pub(super) struct File {
    pub path: Vec<u8>,
    /// Removed, replaced or overtaken: it is not at its path any more, and nothing that is written
    /// to it from now on is sent.
    pub gone: bool,
    /// What of the server the blocks belong to; `None`: it is not on the server yet.
    pub seen: Option<Seen>,
    pub size: u64,
    /// With what was changed here.
    pub attributes: Attributes,
    pub handles: usize,
    /// How the present connection calls it.
    pub number: Option<InodeId>,
    /// It is being opened on the present connection.
    pub opening: bool,
    pub token: Token,
    pub share: Option<Share>,
    pub present: Present,
    pub blocks: HashMap<u32, Block>,
    /// What the last push brought in a row.
    pub arrival: Option<Arrival>,
    /// All that was handed out since this version was opened is still true.
    pub kernel: Option<Seen>,
    /// Size and version must be asked for before anything is read.
    pub unsure: bool,
    pub overlay: Overlay,
    pub dirty: Option<Dirty>,
    /// Size with what was changed here.
    pub local_size: Option<u64>,
    /// Cuts that the server does not know of, with the transaction that carries each; 0: none yet.
    pub cuts: Vec<(u64, u64)>,
    /// Transactions of it that are not answered, in order.
    pub sealed: Vec<u64>,
    /// Another device had made it when this one was to, with this mode and owner: whoever opened it
    /// here has rights to such a file only.
    pub taken: Option<(u16, Option<Owner>)>,
    /// Its changes were refused.
    pub stale: Option<StreamError>,
    pub reads: BTreeSet<u64>,
    /// The last block that was touched, so that reading a block in pieces is one touch.
    pub touched: Option<(Token, u32)>,
    /// When it was used last, counted.
    pub used: u64,
}

impl File {
    pub fn new(path: &[u8], token: Token) -> File {
        File {
            path: path.to_vec(),
            gone: false,
            seen: None,
            size: 0,
            attributes: Attributes { mode: 0o644, links: 1, ..Attributes::default() },
            handles: 0,
            number: None,
            opening: false,
            token,
            share: None,
            present: Present::nothing(),
            blocks: HashMap::new(),
            arrival: None,
            kernel: None,
            unsure: false,
            overlay: Overlay::default(),
            dirty: None,
            local_size: None,
            cuts: Vec::new(),
            sealed: Vec::new(),
            taken: None,
            stale: None,
            reads: BTreeSet::new(),
            touched: None,
            used: 0,
        }
    }

    /// Whether what the server says can be the file that was made here, if another device has made
    /// one before.
    pub fn may_be(&mut self, info: &FileInfo) -> bool {
        self.taken.take().is_none_or(|(mode, owner)| info.mode == mode && owner.is_none_or(|owner| owner == info.owner))
    }

    /// Size as readers here see it.
    pub fn effective_size(&self) -> u64 {
        self.local_size.unwrap_or(self.size)
    }

    /// Bytes of the server's blocks from here on are not to be seen: the file was cut here.
    pub fn zero_from(&self) -> u64 {
        self.cuts.iter().map(|(_, cut)| *cut).fold(self.size, u64::min)
    }

    /// Whether this device took its name while somebody has it open here. Until the last handle is
    /// closed it is a file of this device alone: what is written lies in the overlay and is never
    /// sent.
    pub fn is_nameless(&self) -> bool {
        self.gone && self.stale.is_none()
    }

    /// Whether something of it is not on the server.
    pub fn is_changed(&self) -> bool {
        self.dirty.is_some() || !self.sealed.is_empty()
    }

    /// Whether nothing but its attributes was changed since the last transaction.
    pub fn has_only_attributes(&self) -> bool {
        let only = |dirty: &Dirty| dirty.create.is_none() && dirty.cut.is_none() && !dirty.extended;
        self.dirty.as_ref().is_some_and(only) && self.overlay.open_bytes() == 0
    }

    /// When its changes are sent though nobody asks for that.
    pub fn write_back_due(&self) -> Option<Moment> {
        let time = if self.has_only_attributes() { ATTRIBUTES_TIME } else { DIRTY_TIME };
        self.dirty.as_ref().map(|dirty| dirty.since.after(time))
    }

    /// What it will take on the server's disk, roughly, with what was written here.
    fn stored_bytes(&self) -> u64 {
        let stored = self.attributes.stored_bytes;
        let whole = whole_blocks(self.effective_size());
        stored.saturating_add(whole_blocks(self.overlay.bytes())).min(whole.max(stored))
    }

    pub fn info(&self) -> FileInfo {
        let Attributes { mtime_ns, ctime_ns, atime_ns, mode, owner, links, has_xattrs, .. } = self.attributes;
        FileInfo {
            seen: self.seen.unwrap_or_default(),
            kind: FileKind::File,
            size: self.effective_size(),
            mtime_ns,
            ctime_ns,
            atime_ns,
            mode,
            owner,
            rdev: 0,
            links,
            stored_bytes: self.stored_bytes(),
            has_xattrs,
        }
    }

    /// The server has so many bytes more of it, after it was cut if it was.
    pub fn note_stored(&mut self, bytes: u64, cut: Option<u64>) {
        let stored = self.attributes.stored_bytes.min(cut.map_or(u64::MAX, whole_blocks));
        // What is written over takes no more room.
        let more = stored.saturating_add(whole_blocks(bytes));
        self.attributes.stored_bytes = more.min(whole_blocks(self.size).max(stored));
    }

    /// The next bytes from `at` on that may be no zeros, first and one behind the last. Blocks of
    /// `block` bytes.
    pub fn data_after(&self, at: u64, block: u64) -> Option<(u64, u64)> {
        let end = self.effective_size();
        let blocks = self.present.data_after(at / block);
        let blocks = blocks.map(|(first, until)| {
            ((first.saturating_mul(block)).max(at), until.saturating_mul(block).min(self.zero_from()))
        });
        let blocks = blocks.filter(|(from, until)| from < until);
        let written = self.overlay.extent_after(at);
        let first = blocks.into_iter().chain(written).min_by_key(|(from, _)| *from);
        first.map(|(from, until)| (from, until.min(end))).filter(|(from, until)| from < until)
    }

    /// The first byte from `at` on that lies in a hole, or the end; `None` behind it.
    pub fn hole_after(&self, at: u64, block: u64) -> Option<u64> {
        let end = self.effective_size();
        let mut hole = at;
        while let Some((from, until)) = self.data_after(hole, block) {
            if from > hole {
                break;
            }
            hole = until;
        }
        (at < end).then_some(hole.min(end))
    }

    /// Whether the file is only here so far, and nothing of it was sent.
    pub fn is_only_here(&self) -> bool {
        self.seen.is_none() && self.sealed.is_empty()
    }
}
