//! The locks of each owner, and the handles that they were taken through. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fuse::INodeNo;
use stream::{Handle, LockOwner};
use units::{LockPiece, LockRanges};

use crate::volume::record::Record;

/// The locks of one owner on a file.
#[derive(Clone, Default)]
struct Owned {
    ranges: LockRanges,
    /// Those that a range was locked through.
    handles: Vec<Handle>,
}

/// All locks of a mount; no entry is empty. The server limits how many there are.
#[derive(Default)]
pub(in crate::volume) struct Held {
    files: HashMap<u64, BTreeMap<LockOwner, Owned>>,
    /// What has changed since it was last written to the journal.
    changed: BTreeSet<(u64, LockOwner)>,
}

impl Held {
    /// Whether an owner has locked anything of a file.
    pub fn has(&self, number: INodeNo, owner: LockOwner) -> bool {
        self.owned(number, owner).is_some()
    }

    /// The owners of locks on a file that were taken through a handle.
    pub fn owners(&self, number: INodeNo, handle: Handle) -> Vec<LockOwner> {
        let owners = self.files.get(&number.0).into_iter().flatten();
        owners.filter(|(_, owned)| owned.handles.contains(&handle)).map(|(owner, _)| *owner).collect()
    }

    /// How all of a range is locked by an owner.
    pub fn pieces(&self, number: INodeNo, owner: LockOwner, start: u64, end: u64) -> Vec<LockPiece> {
        let none = LockRanges::default();
        self.owned(number, owner).map_or(&none, |owned| &owned.ranges).pieces(start, end)
    }

    /// Notes how a range is locked from now on.
    pub fn note(&mut self, number: INodeNo, owner: LockOwner, handle: Handle, piece: LockPiece) {
        self.changed.insert((number.0, owner));
        let owners = self.files.entry(number.0).or_default();
        let owned = owners.entry(owner).or_default();
        owned.ranges.set(piece.start, piece.end, piece.kind);
        if piece.kind.is_some() && !owned.handles.contains(&handle) {
            owned.handles.push(handle);
        }
        if owned.ranges.as_slice().is_empty() {
            owners.remove(&owner);
        }
        if owners.is_empty() {
            self.files.remove(&number.0);
        }
    }

    /// Adds what has changed since the last call.
    pub fn take_changes(&mut self, records: &mut Vec<Record>) {
        let changed = std::mem::take(&mut self.changed);
        records.extend(changed.into_iter().map(|(number, owner)| self.record(number, owner)));
    }

    /// All that is true.
    pub fn all(&self, records: &mut Vec<Record>) {
        let files = self.files.iter().flat_map(|(number, owners)| owners.keys().map(|owner| (*number, *owner)));
        records.extend(files.map(|(number, owner)| self.record(number, owner)));
    }

    fn record(&self, number: u64, owner: LockOwner) -> Record {
        let Owned { ranges, handles } = self.owned(INodeNo(number), owner).cloned().unwrap_or_default();
        Record::Locks { number, owner, ranges, handles }
    }

    /// Takes a record of an earlier daemon.
    pub fn replay(&mut self, number: u64, owner: LockOwner, ranges: LockRanges, handles: Vec<Handle>) {
        let owners = self.files.entry(number).or_default();
        match ranges.as_slice() {
            [] => drop(owners.remove(&owner)),
            _ => drop(owners.insert(owner, Owned { ranges, handles })),
        }
        if owners.is_empty() {
            self.files.remove(&number);
        }
    }

    fn owned(&self, number: INodeNo, owner: LockOwner) -> Option<&Owned> {
        self.files.get(&number.0)?.get(&owner)
    }
}

#[cfg(test)]
mod tests {
    use units::LockKind;

    use super::*;

    const FILE: INodeNo = INodeNo(7);
    const OWNER: LockOwner = LockOwner { is_flock: false, number: 3 };

    fn piece(start: u64, end: u64, kind: Option<LockKind>) -> LockPiece {
        LockPiece { start, end, kind }
    }

    #[test]
    fn what_was_locked_before_can_be_brought_back() {
        let (shared, exclusive) = (Some(LockKind::Shared), Some(LockKind::Exclusive));
        let mut held = Held::default();
        assert_eq!(held.pieces(FILE, OWNER, 0, u64::MAX), [piece(0, u64::MAX, None)]);
        held.note(FILE, OWNER, Handle(1), piece(10, 19, shared));
        held.note(FILE, OWNER, Handle(2), piece(30, u64::MAX, exclusive));
        let before = held.pieces(FILE, OWNER, 15, u64::MAX);
        assert_eq!(before, [piece(15, 19, shared), piece(20, 29, None), piece(30, u64::MAX, exclusive)]);
        let all = held.pieces(FILE, OWNER, 0, u64::MAX);
        held.note(FILE, OWNER, Handle(1), piece(15, u64::MAX, shared));
        before.into_iter().for_each(|piece| held.note(FILE, OWNER, Handle(1), piece));
        assert_eq!(held.pieces(FILE, OWNER, 0, u64::MAX), all);
        assert_eq!(held.pieces(FILE, OWNER, 5, 9), [piece(5, 9, None)]);
        assert_eq!(held.pieces(FILE, OWNER, 12, 12), [piece(12, 12, shared)]);
    }

    #[test]
    fn handles_are_known_until_all_is_unlocked() {
        let mut held = Held::default();
        let exclusive = Some(LockKind::Exclusive);
        held.note(FILE, OWNER, Handle(1), piece(0, 9, exclusive));
        held.note(FILE, OWNER, Handle(2), piece(5, 19, exclusive));
        let flock = LockOwner { is_flock: true, ..OWNER };
        held.note(FILE, flock, Handle(2), piece(0, u64::MAX, exclusive));
        assert_eq!(held.owners(FILE, Handle(1)), [OWNER]);
        assert_eq!(held.owners(FILE, Handle(2)), [OWNER, flock]);
        held.note(FILE, OWNER, Handle(2), piece(0, 9, None));
        assert!(held.has(FILE, OWNER) && !held.has(INodeNo(8), OWNER));
        held.note(FILE, OWNER, Handle(3), piece(0, u64::MAX, None));
        assert!(!held.has(FILE, OWNER) && held.has(FILE, flock));
        held.note(FILE, flock, Handle(2), piece(0, u64::MAX, None));
        assert!(held.files.is_empty());
    }
}
