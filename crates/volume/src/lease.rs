//! Leases: who may write a file for a while, for advisory locks across devices. In memory only; after a restart of the
//! server all are gone, and devices ask again. Time comes from the caller.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use units::Moment;

use crate::{FileId, Holder, VolumeError};

/// Leases at one time, over all files: what keeps memory bounded.
pub const LEASES_MAX: usize = 65_536;

/// Longest time of a lease; whoever needs it longer renews it.
pub const LEASE_DURATION_MAX: Duration = Duration::from_secs(3600);

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
    kind: LeaseKind,
    until: Moment,
}

/// All leases of a volume.
#[derive(Default)]
pub(crate) struct Leases {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    files: HashMap<FileId, Vec<Lease>>,
    count: usize,
}

impl Leases {
    /// Takes, renews or changes the lease of `holder`; returns when it ends.
    pub fn take(
        &self,
        file: FileId,
        holder: Holder,
        kind: LeaseKind,
        duration: Duration,
        now: Moment,
    ) -> Result<Moment, VolumeError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.expire(file, now);
        let leases = inner.files.get(&file).map_or(&[][..], Vec::as_slice);
        let mut others = leases.iter().filter(|lease| lease.holder != holder);
        if others.any(|lease| lease.kind == LeaseKind::Exclusive || kind == LeaseKind::Exclusive) {
            return Err(VolumeError::Leased { file });
        }
        let renewed = leases.iter().any(|lease| lease.holder == holder);
        if !renewed && inner.count >= LEASES_MAX {
            inner.expire_all(now);
            if inner.count >= LEASES_MAX {
                let (found, limit) = (inner.count as u64 + 1, LEASES_MAX as u64);
                return Err(VolumeError::TooLarge { what: "leases", found, limit });
            }
        }
        let until = now.after(duration.min(LEASE_DURATION_MAX));
        let leases = inner.files.entry(file).or_default();
        leases.retain(|lease| lease.holder != holder);
        leases.push(Lease { holder, kind, until });
        inner.count += usize::from(!renewed);
        Ok(until)
    }

    /// Gives a lease back.
    pub fn release(&self, file: FileId, holder: Holder) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).retain(file, |lease| lease.holder != holder);
    }

    /// Gives all leases of a holder back, when its device is gone.
    pub fn release_all(&self, holder: Holder) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.retain_all(|lease| lease.holder != holder);
    }

    /// Whether `holder` may change the file.
    pub fn check(&self, file: FileId, holder: Holder, now: Moment) -> Result<(), VolumeError> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let leases = inner.files.get(&file).map_or(&[][..], Vec::as_slice);
        let excludes =
            |lease: &Lease| lease.kind == LeaseKind::Exclusive && lease.holder != holder && lease.until > now;
        if leases.iter().any(excludes) { Err(VolumeError::Leased { file }) } else { Ok(()) }
    }
}

impl Inner {
    fn expire(&mut self, file: FileId, now: Moment) {
        self.retain(file, |lease| lease.until > now);
    }

    fn expire_all(&mut self, now: Moment) {
        self.retain_all(|lease| lease.until > now);
    }

    fn retain(&mut self, file: FileId, keep: impl Fn(&Lease) -> bool) {
        if let Some(leases) = self.files.get_mut(&file) {
            let before = leases.len();
            leases.retain(keep);
            self.count -= before - leases.len();
            if leases.is_empty() {
                self.files.remove(&file);
            }
        }
    }

    fn retain_all(&mut self, keep: impl Fn(&Lease) -> bool) {
        self.files.retain(|_, leases| {
            leases.retain(&keep);
            !leases.is_empty()
        });
        self.count = self.files.values().map(Vec::len).sum();
    }
}
