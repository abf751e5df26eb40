//! Locks of byte ranges across devices, as fcntl(2) and flock(2) have them within one. They are
//! advisory: only other locks respect them. They are in memory only. After a restart of the server
//! devices lock again what they held.
//!
//! A device that has left keeps its locks for [`LEASE_GRACE`]. A file is locked by its id, whether
//! it exists or not, so each holder and each peer has a share of all ranges, as with leases.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use units::{LockKind, LockRange, LockRanges, Moment};

use crate::{FileId, Holder, LEASE_GRACE, Peer, Volume, VolumeError};

/// Locked ranges at one time, over all files; about 200 bytes each.
pub const LOCKS_MAX: usize = 65_536;

/// Locked ranges of one holder.
pub const LOCKS_HOLDER_MAX: usize = 4096;

/// A peer holds no more than this part of what is free.
const PEER_SHARE: usize = 8;

/// Which of a device's programs holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The device.
    pub holder: Holder,
    /// It is a lock of flock(2), which has nothing to do with those of fcntl(2).
    pub is_flock: bool,
    /// Number of the owner on the device.
    pub number: u64,
}

/// A lock that is in the way of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The locked range.
    pub range: LockRange,
    /// Its owner.
    pub holder: Holder,
    /// Number of the process, as its device calls it.
    pub pid: u32,
}

/// The locks of one owner in a file.
struct Owned {
    pid: u32,
    ranges: LockRanges,
}

/// What is counted of a holder.
struct Count {
    peer: Peer,
    ranges: usize,
    files: HashSet<FileId>,
    /// When its locks end, if it has left.
    ends: Option<Moment>,
}

/// All locks of a volume.
#[derive(Default)]
pub struct Locks {
    inner: Mutex<Inner>,
}

impl Volume {
    /// The locks of its files.
    pub fn locks(&self) -> &Locks {
        &self.shared.locks
    }
}

/// Every range is in `files` and counts in `holders`, `peers` and `ranges`; nothing there is empty.
#[derive(Default)]
struct Inner {
    files: HashMap<FileId, BTreeMap<LockOwner, Owned>>,
    holders: HashMap<Holder, Count>,
    peers: BTreeMap<Peer, usize>,
    ranges: usize,
    ends: BTreeSet<(Moment, Holder)>,
}

impl Locks {
    /// The lock that would keep `owner` from locking this range.
    pub fn test(&self, file: FileId, owner: LockOwner, range: LockRange, now: Moment) -> Option<HeldLock> {
        let mut inner = self.locked();
        inner.expire(now);
        inner.excluding(file, owner, range)
    }

    /// Locks a range, or says which lock is in the way. `pid` is for [`HeldLock`].
    ///
    /// # Errors
    /// [`VolumeError::TooLarge`] if the holder, or all holders of the peer, have too many.
    pub fn lock(
        &self,
        file: FileId,
        owner: LockOwner,
        (peer, pid): (Peer, u32),
        range: LockRange,
        now: Moment,
    ) -> Result<Option<HeldLock>, VolumeError> {
        let mut inner = self.locked();
        inner.expire(now);
        if let Some(held) = inner.excluding(file, owner, range) {
            return Ok(Some(held));
        }
        inner.check_share(owner.holder, peer)?;
        inner.set(file, owner, (peer, pid), range.start, range.end, Some(range.kind));
        Ok(None)
    }

    /// Unlocks from byte `start` to byte `end`.
    ///
    /// # Errors
    /// [`VolumeError::TooLarge`] as [`Locks::lock`], for a part in the middle of a range, which
    /// leaves two. The whole of a range can be unlocked always.
    pub fn unlock(&self, file: FileId, owner: LockOwner, start: u64, end: u64) -> Result<(), VolumeError> {
        let mut inner = self.locked();
        let Some(owned) = inner.files.get(&file).and_then(|owners| owners.get(&owner)) else { return Ok(()) };
        if owned.ranges.as_slice().iter().any(|range| range.start < start && end < range.end) {
            let peer = inner.holders.get(&owner.holder).map_or(Peer::UNKNOWN, |count| count.peer);
            inner.check_share(owner.holder, peer)?;
        }
        inner.set(file, owner, (Peer::UNKNOWN, 0), start, end, None);
        Ok(())
    }

    /// A holder has no connection any more: its locks end in [`LEASE_GRACE`].
    pub fn left(&self, holder: Holder, now: Moment) {
        self.locked().set_ends(holder, Some(now.after(LEASE_GRACE)));
    }

    /// A holder is back: the locks that have not ended hold on.
    pub fn returned(&self, holder: Holder, now: Moment) {
        let mut inner = self.locked();
        inner.expire(now);
        inner.set_ends(holder, None);
    }

    /// Whether there is none, and nothing is counted.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.locked();
        inner.files.is_empty()
            && inner.holders.is_empty()
            && inner.peers.is_empty()
            && inner.ends.is_empty()
            && inner.ranges == 0
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn excluding(&self, file: FileId, owner: LockOwner, range: LockRange) -> Option<HeldLock> {
        let others = self.files.get(&file)?.iter().filter(|(other, _)| **other != owner);
        others.filter(|(other, _)| other.is_flock == owner.is_flock).find_map(|(other, owned)| {
            let range = owned.ranges.excluding(&range)?;
            Some(HeldLock { range, holder: other.holder, pid: owned.pid })
        })
    }

    fn check_share(&self, holder: Holder, peer: Peer) -> Result<(), VolumeError> {
        let refused = |what, held: usize, limit: usize| {
            Err(VolumeError::TooLarge { what, found: held as u64 + 1, limit: limit as u64 })
        };
        let held = self.holders.get(&holder).map_or(0, |count| count.ranges);
        if held >= LOCKS_HOLDER_MAX {
            return refused("locks of one device", held, LOCKS_HOLDER_MAX);
        }
        let held = self.peers.get(&peer).copied().unwrap_or(0);
        let share = LOCKS_MAX.saturating_sub(self.ranges) / PEER_SHARE;
        if held >= share { refused("locks of all devices of one peer", held, share) } else { Ok(()) }
    }

    fn set(
        &mut self,
        file: FileId,
        owner: LockOwner,
        (peer, pid): (Peer, u32),
        start: u64,
        end: u64,
        kind: Option<LockKind>,
    ) {
        let owners = self.files.entry(file).or_default();
        let owned = owners.entry(owner).or_insert_with(|| Owned { pid, ranges: LockRanges::default() });
        let before = owned.ranges.as_slice().len();
        owned.ranges.set(start, end, kind);
        let after = owned.ranges.as_slice().len();
        if after == 0 {
            owners.remove(&owner);
        }
        let still =
            owners.range(first_of(owner.holder)..).next().is_some_and(|(other, _)| other.holder == owner.holder);
        if owners.is_empty() {
            self.files.remove(&file);
        }
        let new = || Count { peer, ranges: 0, files: HashSet::new(), ends: None };
        let count = self.holders.entry(owner.holder).or_insert_with(new);
        count.ranges = count.ranges + after - before;
        if still {
            count.files.insert(file);
        } else {
            count.files.remove(&file);
        }
        let (peer, ends, gone) = (count.peer, count.ends, count.ranges == 0);
        let of_peer = self.peers.entry(peer).or_default();
        *of_peer = *of_peer + after - before;
        if *of_peer == 0 {
            self.peers.remove(&peer);
        }
        self.ranges = self.ranges + after - before;
        if gone {
            self.holders.remove(&owner.holder);
            if let Some(ends) = ends {
                self.ends.remove(&(ends, owner.holder));
            }
        }
    }

    fn set_ends(&mut self, holder: Holder, ends: Option<Moment>) {
        let Some(count) = self.holders.get_mut(&holder) else { return };
        if let Some(before) = std::mem::replace(&mut count.ends, ends) {
            self.ends.remove(&(before, holder));
        }
        self.ends.extend(ends.map(|ends| (ends, holder)));
    }

    fn expire(&mut self, now: Moment) {
        while let Some((_, holder)) = self.ends.first().copied().filter(|(ends, _)| *ends <= now) {
            let files = self.holders.get(&holder).map(|count| count.files.clone()).unwrap_or_default();
            for file in files {
                let owners = self.files.get(&file).into_iter().flat_map(|owners| owners.range(first_of(holder)..));
                let theirs: Vec<LockOwner> =
                    owners.map(|(owner, _)| *owner).take_while(|owner| owner.holder == holder).collect();
                for owner in theirs {
                    self.set(file, owner, (Peer::UNKNOWN, 0), 0, u64::MAX, None);
                }
            }
        }
    }
}

/// The least owner of a holder.
fn first_of(holder: Holder) -> LockOwner {
    LockOwner { holder, is_flock: false, number: 0 }
}
