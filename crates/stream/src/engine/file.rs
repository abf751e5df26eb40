//! One file as this device knows it: its blocks of the server's version, and the changes that were
//! made here.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use units::Token;
use wire::volume::{FileInfo, FileKind, Owner, Seen};

use super::attributes::Attributes;
use super::numbering::Numbering;
use super::table::BlockTable;
use super::unsent::Unsent;
use crate::StreamError;

/// Bytes in whole blocks of most file systems, for what a file takes on the server before that
/// tells. Sizes are whatever the server says.
pub(super) fn whole_blocks(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}

/// A file.
///
/// Invariant: with a version all its clean blocks are of that one; without one nothing of it is on
/// the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct File {
    pub path: Vec<u8>,
    /// Removed, replaced or overtaken: it is not at its path any more, and nothing that is written
    /// to it from now on is sent.
    pub gone: bool,
    /// The version to which the blocks belong; `None`: the file is not on the server yet.
    pub seen: Option<Seen>,
    pub size: u64,
    /// With what was changed here.
    pub attributes: Attributes,
    #[serde(skip)]
    pub handles: usize,
    /// How the server knows it while it is open here.
    pub numbering: Numbering,
    /// Its blocks on this device.
    #[serde(skip)]
    pub table: BlockTable,
    /// All that was handed out since this version was opened is still true.
    #[serde(skip)]
    pub kernel: Option<Seen>,
    /// Size and version must be asked for before anything is read.
    pub unsure: bool,
    /// The changes that were made here.
    pub unsent: Unsent,
    /// Another device had made it when this one was to, with this mode and owner: whoever opened it
    /// here has rights to such a file only.
    pub taken: Option<(u16, Option<Owner>)>,
    /// Its changes were refused.
    pub stale: Option<StreamError>,
    #[serde(skip)]
    pub reads: BTreeSet<u64>,
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
            numbering: Numbering::new(token),
            table: BlockTable::default(),
            kernel: None,
            unsure: false,
            unsent: Unsent::default(),
            taken: None,
            stale: None,
            reads: BTreeSet::new(),
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
        self.unsent.size().unwrap_or(self.size)
    }

    /// Bytes of the server's blocks from here on are not to be seen: the file was cut here.
    pub fn zero_from(&self) -> u64 {
        self.unsent.cut_below(self.size)
    }

    /// Whether this device took its name while somebody has it open here. Until the last handle is
    /// closed it is a file of this device alone: what is written lies in the overlay and is never
    /// sent.
    pub fn is_nameless(&self) -> bool {
        self.gone && self.stale.is_none()
    }

    /// Whether something of it is not on the server.
    pub fn is_changed(&self) -> bool {
        self.unsent.is_dirty() || !self.unsent.sealed().is_empty()
    }

    /// The bytes that it will take on the server's disk, roughly, with the writes of this device.
    fn stored_bytes(&self) -> u64 {
        let stored = self.attributes.stored_bytes;
        let whole = whole_blocks(self.effective_size());
        stored.saturating_add(whole_blocks(self.unsent.overlay().bytes())).min(whole.max(stored))
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
        // Overwriting takes no more room.
        let more = stored.saturating_add(whole_blocks(bytes));
        self.attributes.stored_bytes = more.min(whole_blocks(self.size).max(stored));
    }

    /// The next bytes from `at` on that may be no zeros, first and one behind the last. Blocks of
    /// `block` bytes.
    pub fn data_after(&self, at: u64, block: u64) -> Option<(u64, u64)> {
        let end = self.effective_size();
        let blocks = self.table.present().data_after(at / block);
        let blocks = blocks.map(|(first, until)| {
            ((first.saturating_mul(block)).max(at), until.saturating_mul(block).min(self.zero_from()))
        });
        let blocks = blocks.filter(|(from, until)| from < until);
        let written = self.unsent.overlay().extent_after(at);
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
        self.seen.is_none() && self.unsent.sealed().is_empty()
    }
}
