//! Changes of a file that are in no transaction yet.

use serde::{Deserialize, Serialize};
use units::Moment;
use wire::volume::{Change, Owner, Seen};

/// The version on which a change is based.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Base {
    /// On whatever is there.
    Free,
    /// On this version.
    Known(Seen),
    /// On what this transaction makes of the file.
    Chain(u64),
}

/// Changes that no transaction has yet, beside the open extents of the overlay.
#[derive(Debug, Serialize, Deserialize)]
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
    /// No changes yet, of a file that is as `base` says; `appends`: it will be appended to.
    pub fn new(base: Base, appends: bool, now: Moment, wall_ns: i64) -> Dirty {
        Dirty {
            base,
            create: None,
            replaces: false,
            unasked: false,
            appends,
            cut: None,
            extended: false,
            atime: None,
            mtime: None,
            mode: None,
            owner: (None, None),
            wrote_ns: wall_ns,
            since: now,
        }
    }

    /// Whether the content is as it was, apart from what lies in the overlay.
    pub fn is_of_attributes(&self) -> bool {
        self.create.is_none() && self.cut.is_none() && !self.extended
    }

    /// The content was written.
    pub fn wrote(&mut self, now_ns: i64) {
        self.wrote_ns = now_ns;
        self.mtime = None;
    }

    /// The file was cut or extended.
    pub fn resized(&mut self, old: u64, size: u64, now_ns: i64) {
        self.wrote_ns = now_ns;
        // A cut sets the time by itself; what changes nothing does not.
        self.mtime = (size == old).then_some(now_ns);
        if size < old {
            self.cut = Some(self.cut.map_or(size, |cut| cut.min(size)));
        }
        self.extended |= size > old;
    }

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
