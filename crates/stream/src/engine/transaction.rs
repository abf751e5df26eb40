//! One transaction: changes that the server makes all of or none, once.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use bytes::Bytes;
use units::Moment;
use wire::volume::{Change, Owner, Seen};

use super::dirty::Base;
use super::files::Files;
use super::kept::Kept;
use super::sending::Sending;

/// The effect of a transaction on the content of its file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Effect {
    pub created: bool,
    /// It found a file in the place of the one that it was to make.
    pub taken: bool,
    pub cut: Option<u64>,
    #[serde(skip)]
    pub writes: Vec<(u64, Bytes)>,
    pub extended: Option<u64>,
    pub appended: u64,
}

impl Effect {
    /// Size of a file of `old` bytes after it.
    pub fn new_size(&self, old: u64) -> u64 {
        let ends = self.writes.iter().map(|(offset, bytes)| offset + bytes.len() as u64);
        ends.chain(self.extended).fold(self.cut.unwrap_or(old), u64::max)
    }

    /// Which blocks it changed: also the last one of the file, if the file grew behind it.
    pub fn touched_blocks(&self, old_size: u64, block: u64) -> impl Fn(u32) -> bool + use<> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        ranges.extend(self.cut.map(|cut| (cut / block, u64::MAX)));
        let writes = self.writes.iter();
        ranges.extend(writes.map(|(at, bytes)| (at / block, (at + bytes.len() as u64).div_ceil(block))));
        ranges.push((old_size / block, old_size / block + 1));
        move |index| ranges.iter().any(|(first, end)| (*first..*end).contains(&u64::from(index)))
    }

    /// What those have seen of the file who changed it before they knew of this version. Of one
    /// that somebody else had made they have seen nothing: it is a conflict.
    pub fn seen_before(&self, to: Seen) -> Seen {
        if self.taken { Seen { version: u64::MAX, ..to } } else { to }
    }
}

/// A transaction without an answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Transaction {
    pub sending: Sending,
    pub kept: Kept,
    /// The file whose data it has; `None` for changes of names, and for what an outbox held.
    pub file: Option<u64>,
    /// The path that it changes, for people.
    pub path: Vec<u8>,
    #[serde(skip)]
    pub changes: Vec<Change>,
    pub mtime_ns: i64,
    pub base: Base,
    /// Transactions that must be answered before it is sent.
    pub after: BTreeSet<u64>,
    /// Volume that it was made for, if it comes from an outbox.
    pub replayed: Option<u128>,
    /// The file known here whose name it takes away.
    pub unnames: Option<u64>,
    /// The file that it is to change on the server, and no other one that may be at its path by
    /// then.
    pub changes_file: Option<u64>,
    /// The call that asked for it was told that it is done.
    pub told: bool,
    pub effect: Effect,
    /// Bytes of its data.
    pub bytes: u64,
    /// The request that it does; 0: none with a number.
    pub request: u64,
}

impl Transaction {
    pub fn new(path: &[u8], changes: Vec<Change>, mtime_ns: i64) -> Transaction {
        let bytes = changes.iter().map(|change| change.encoded_bytes() as u64).sum();
        Transaction {
            sending: Sending::default(),
            kept: Kept::default(),
            file: None,
            path: path.to_vec(),
            changes,
            mtime_ns,
            base: Base::Free,
            after: BTreeSet::new(),
            replayed: None,
            unnames: None,
            changes_file: None,
            told: false,
            effect: Effect::default(),
            bytes,
            request: 0,
        }
    }

    /// A transaction of changes of one file.
    pub fn of_file(path: &[u8], changes: Vec<Change>, mtime_ns: i64, effect: Effect) -> Transaction {
        Transaction { effect, ..Transaction::new(path, changes, mtime_ns) }
    }

    /// The mode and the owner of a file that it makes with nothing in it.
    pub fn makes_empty(&self) -> Option<(u16, Option<Owner>)> {
        match &self.changes[..] {
            [Change::Create { mode, exclusive: true, owner, .. }, others @ ..]
                if self.is_data() && others.iter().all(is_of_attributes) =>
            {
                Some((*mode, *owner))
            }
            _ => None,
        }
    }

    /// Takes the file that is there in the place of the empty one that it was to make. Its
    /// attributes are for whoever made it.
    pub fn take_existing(&mut self, now: Moment) {
        self.changes.truncate(1);
        if let [Change::Create { exclusive, .. }] = &mut self.changes[..] {
            *exclusive = false;
        }
        (self.effect.created, self.effect.taken) = (false, true);
        // Its number says that it was refused.
        self.sending.queue_anew(now);
    }

    /// Its changes, with the present path of its file and the version on which they are based.
    pub fn present_changes(&self, files: &Files) -> Vec<Change> {
        if let Some(file) = self.changes_file.and_then(|key| files.get(&key)) {
            let base = file.seen.map(|seen| Seen::of_file(seen.file));
            return self.changes.iter().map(|change| present(change, Some(&file.path), base)).collect();
        }
        if !self.is_data() {
            return self.changes.clone();
        }
        let path = self.file.and_then(|key| files.get(&key)).map(|file| file.path.as_slice());
        let base = if let Base::Known(seen) = self.base { Some(seen) } else { None };
        self.changes.iter().map(|change| present(change, path, base)).collect()
    }

    /// Whether it has what was written to a file, rather than a change of names that somebody waits
    /// for.
    pub fn is_data(&self) -> bool {
        self.file.is_some() || self.replayed.is_some()
    }

    /// Whether it changes nothing but attributes of what is at this path, asked for by path.
    pub fn is_attributes_of(&self, path: &[u8]) -> bool {
        !self.is_data() && self.changes.iter().all(|change| is_of_attributes(change) && path_of(change) == path)
    }

    /// Whether it renames a file that gets attributes at the same time.
    pub fn renames_with_attributes(&self) -> bool {
        matches!(self.changes.last(), Some(Change::Rename { .. })) && self.changes.iter().any(is_of_attributes)
    }

    /// Whether it is about exactly this path.
    pub fn names(&self, path: &[u8]) -> bool {
        self.changes.iter().flat_map(paths_of).any(|named| named == path)
    }

    /// Whether it is about this path or one above it.
    pub fn concerns(&self, path: &[u8]) -> bool {
        let above = |other: &[u8]| other == path || crate::names::is_below(path, other);
        self.changes.iter().flat_map(paths_of).any(above)
    }
}

/// Whether it changes nothing that is in a file.
pub(super) fn is_of_attributes(change: &Change) -> bool {
    matches!(
        change,
        Change::SetMode { .. }
            | Change::SetOwner { .. }
            | Change::SetTime { .. }
            | Change::SetAccessTime { .. }
            | Change::SetXattr { .. }
            | Change::RemoveXattr { .. }
    )
}

/// Bytes that a change copies on the server.
pub(super) fn copied_by(change: &Change) -> u64 {
    if let Change::Copy { length, .. } = change { u64::from(*length) } else { 0 }
}

/// The path whose file has no name any more when these changes are made.
pub(super) fn unnamed_path(changes: &[Change]) -> Option<&[u8]> {
    let (last, before) = changes.split_last()?;
    match last {
        Change::Unlink { path, .. } if before.is_empty() => Some(path),
        Change::Rename { from, to, replace: true, .. } if from != to && before.iter().all(is_of_attributes) => Some(to),
        _ => None,
    }
}

/// Which file a change is about; of a rename, what is renamed.
pub(super) fn path_of(change: &Change) -> &[u8] {
    match change {
        Change::Write { path, .. }
        | Change::Append { path, .. }
        | Change::Truncate { path, .. }
        | Change::Allocate { path, .. }
        | Change::Copy { path, .. }
        | Change::Create { path, .. }
        | Change::MakeFolder { path, .. }
        | Change::MakeLink { path, .. }
        | Change::MakeNode { path, .. }
        | Change::Unlink { path, .. }
        | Change::OnlyName { path }
        | Change::RemoveFolder { path }
        | Change::SetTime { path, .. }
        | Change::SetOwner { path, .. }
        | Change::SetAccessTime { path, .. }
        | Change::SetXattr { path, .. }
        | Change::RemoveXattr { path, .. }
        | Change::SetMode { path, .. } => path,
        Change::Link { from, .. } | Change::Rename { from, .. } => from,
    }
}

/// The paths that a change is about.
pub(super) fn paths_of(change: &Change) -> Vec<&[u8]> {
    match change {
        Change::Link { from, to, .. } | Change::Rename { from, to, .. } => vec![from, to],
        Change::Copy { path, from, .. } => vec![path, from],
        other => vec![path_of(other)],
    }
}

/// The change with the present path of its file, and what it is based on. Not for changes of names.
fn present(change: &Change, path: Option<&[u8]>, seen: Option<Seen>) -> Change {
    let mut change = change.clone();
    match &mut change {
        Change::Write { path: at, base, .. }
        | Change::Append { path: at, base, .. }
        | Change::Truncate { path: at, base, .. }
        | Change::Allocate { path: at, base, .. }
        | Change::Copy { path: at, base, .. }
        | Change::SetTime { path: at, base, .. }
        | Change::SetOwner { path: at, base, .. }
        | Change::SetAccessTime { path: at, base, .. }
        | Change::SetXattr { path: at, base, .. }
        | Change::RemoveXattr { path: at, base, .. }
        | Change::SetMode { path: at, base, .. } => {
            *base = seen;
            if let Some(path) = path {
                *at = path.to_vec();
            }
        }
        Change::Create { path: at, .. } => {
            if let Some(path) = path {
                *at = path.to_vec();
            }
        }
        _ => {}
    }
    change
}
