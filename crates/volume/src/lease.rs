//! Leases: who may write a file for a while, for advisory locks across devices. They are in memory
//! only. After a restart of the server all are gone, and devices ask again. The caller gives the
//! time.
//!
//! A lease ends after the time for which it was taken, or [`LEASE_GRACE`] after its holder has
//! left. A file need not exist to be leased, so each holder and each peer has a share of all
//! leases.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use units::Moment;

use crate::{FileId, Holder, Peer, VolumeError};

/// Leases at one time, over all files; about 250 bytes each.
pub const LEASES_MAX: usize = 65_536;

/// Leases of one holder: more files than a program locks at once.
pub const LEASES_HOLDER_MAX: usize = 1024;

/// A peer holds no more than this part of what is free: alone about 7,000, and whoever comes next a
/// little less. So it takes dozens of peers to leave nothing.
const PEER_SHARE: usize = 8;

/// Longest time of a lease; whoever needs it longer renews it.
pub const LEASE_DURATION_MAX: Duration = Duration::from_secs(3600);

/// Time in which a holder that has left may come back to its leases: a device connects again within
/// a few seconds.
pub const LEASE_GRACE: Duration = Duration::from_secs(10);

/// What a lease excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// Others may hold shared leases too; it keeps exclusive ones away.
    Shared,
    /// Nobody else holds a lease, and commits of others to the file are refused.
    Exclusive,
}

#[derive(Clone, Copy)]
struct Lease {
    holder: Holder,
    /// The peer whose share it uses.
    peer: Peer,
    kind: LeaseKind,
    /// As it was taken.
    until: Moment,
    /// Earlier than `until` if the holder has left.
    ends: Moment,
}

/// All leases of a volume.
#[derive(Default)]
pub struct Leases {
    inner: Mutex<Inner>,
}

/// Every lease is in `files`, in `holders` and in `ends`, and counts in `peers`; nothing there is
/// empty.
#[derive(Default)]
struct Inner {
    files: HashMap<FileId, Vec<Lease>>,
    holders: HashMap<Holder, HashSet<FileId>>,
    peers: BTreeMap<Peer, usize>,
    ends: BTreeSet<(Moment, FileId, Holder)>,
}

impl Leases {
    /// Leases a file to a holder until the moment returned; taking it again renews or changes it.
    ///
    /// # Errors
    /// [`VolumeError::Leased`] by somebody else; [`VolumeError::TooLarge`] if the holder, or all
    /// holders of the peer, have too many.
    pub fn take(
        &self,
        file: FileId,
        (holder, peer): (Holder, Peer),
        kind: LeaseKind,
        duration: Duration,
        now: Moment,
    ) -> Result<Moment, VolumeError> {
        let mut inner = self.locked();
        inner.expire(now);
        let leases = inner.files.get(&file).map_or(&[][..], Vec::as_slice);
        let mut others = leases.iter().filter(|lease| lease.holder != holder);
        if others.any(|lease| lease.kind == LeaseKind::Exclusive || kind == LeaseKind::Exclusive) {
            return Err(VolumeError::Leased { file });
        }
        if inner.remove(file, holder).is_none() {
            inner.check_share(holder, peer)?;
        }
        let until = now.after(duration.min(LEASE_DURATION_MAX));
        inner.insert(file, Lease { holder, peer, kind, until, ends: until });
        Ok(until)
    }

    /// Gives a lease back.
    pub fn release(&self, file: FileId, holder: Holder) {
        self.locked().remove(file, holder);
    }

    /// A holder has no connection any more: its leases end in [`LEASE_GRACE`].
    pub fn left(&self, holder: Holder, now: Moment) {
        self.locked().set_ends(holder, |lease| lease.until.min(now.after(LEASE_GRACE)));
    }

    /// A holder is back: the leases that have not ended hold on.
    pub fn returned(&self, holder: Holder, now: Moment) {
        let mut inner = self.locked();
        inner.expire(now);
        inner.set_ends(holder, |lease| lease.until);
    }

    /// Whether `holder` may change the file.
    pub(crate) fn check(&self, file: FileId, holder: Holder, now: Moment) -> Result<(), VolumeError> {
        let inner = self.locked();
        let leases = inner.files.get(&file).map_or(&[][..], Vec::as_slice);
        let excludes = |lease: &Lease| lease.kind == LeaseKind::Exclusive && lease.holder != holder && lease.ends > now;
        if leases.iter().any(excludes) { Err(VolumeError::Leased { file }) } else { Ok(()) }
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn check_share(&self, holder: Holder, peer: Peer) -> Result<(), VolumeError> {
        let refused = |what, held: usize, limit: usize| {
            Err(VolumeError::TooLarge { what, found: held as u64 + 1, limit: limit as u64 })
        };
        let held = self.holders.get(&holder).map_or(0, HashSet::len);
        if held >= LEASES_HOLDER_MAX {
            return refused("leases of one device", held, LEASES_HOLDER_MAX);
        }
        let held = self.peers.get(&peer).copied().unwrap_or(0);
        let share = (LEASES_MAX - self.ends.len()) / PEER_SHARE;
        if held >= share { refused("leases of all devices of one peer", held, share) } else { Ok(()) }
    }

    fn insert(&mut self, file: FileId, lease: Lease) {
        self.ends.insert((lease.ends, file, lease.holder));
        self.holders.entry(lease.holder).or_default().insert(file);
        *self.peers.entry(lease.peer).or_default() += 1;
        self.files.entry(file).or_default().push(lease);
    }

    fn remove(&mut self, file: FileId, holder: Holder) -> Option<Lease> {
        let leases = self.files.get_mut(&file)?;
        let lease = leases.swap_remove(leases.iter().position(|lease| lease.holder == holder)?);
        if leases.is_empty() {
            self.files.remove(&file);
        }
        self.ends.remove(&(lease.ends, file, holder));
        if let Some(files) = self.holders.get_mut(&holder) {
            files.remove(&file);
            if files.is_empty() {
                self.holders.remove(&holder);
            }
        }
        if let Some(count) = self.peers.get_mut(&lease.peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&lease.peer);
            }
        }
        Some(lease)
    }

    fn expire(&mut self, now: Moment) {
        while let Some((_, file, holder)) = self.ends.first().copied().filter(|(ends, ..)| *ends <= now) {
            self.remove(file, holder);
        }
    }

    fn set_ends(&mut self, holder: Holder, ends: impl Fn(&Lease) -> Moment) {
        for file in self.holders.get(&holder).cloned().unwrap_or_default() {
            if let Some(lease) = self.remove(file, holder) {
                self.insert(file, Lease { ends: ends(&lease), ..lease });
            }
        }
    }
}
