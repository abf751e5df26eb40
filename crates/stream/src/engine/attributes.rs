//! The attributes of a file besides its size.

use serde::{Deserialize, Serialize};
use units::Acl;
use wire::volume::{Change, FileInfo, Owner};

use crate::call::ACL_ACCESS;

/// The attributes of a file besides its size.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
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
