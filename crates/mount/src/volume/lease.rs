//! Leases as an extended attribute: `user.runnel.lease` is "exclusive 60", "shared 60" (seconds) or
//! "none".
//!
//! Setting it takes or renews the lease for this device. Reading it tells the lease of this mount
//! and how many seconds are left. It is not listed, so that programs that copy attributes do not
//! copy it.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use stream::LeaseKind;

use super::record::Record;

/// Name of the attribute.
pub(super) const NAME: &str = "user.runnel.lease";

/// Longest lease that can be asked for; the server may give a shorter one.
const SECONDS_MAX: u64 = 24 * 3600;

/// Leases remembered; those that ended go first.
const LEASES_MAX: usize = 4096;

/// Parses the attribute's value: a kind and a duration, or `None` to release the lease. The outer
/// `None` is an invalid value.
pub(super) fn parse(value: &[u8]) -> Option<Option<(LeaseKind, Duration)>> {
    let text = std::str::from_utf8(value).ok()?.trim_end_matches(['\0', '\n']);
    if text == "none" {
        return Some(None);
    }
    let (kind, seconds) = text.split_once(' ')?;
    let kind = match kind {
        "exclusive" => LeaseKind::Exclusive,
        "shared" => LeaseKind::Shared,
        _ => return None,
    };
    let seconds = seconds.parse::<u64>().ok().filter(|seconds| (1..=SECONDS_MAX).contains(seconds))?;
    Some(Some((kind, Duration::from_secs(seconds))))
}

/// The leases that this mount took, by inode number.
#[derive(Debug, Default)]
pub(super) struct Leases {
    held: HashMap<u64, (LeaseKind, Instant)>,
    /// What has changed since it was last written to the journal.
    changed: BTreeSet<u64>,
}

impl Leases {
    /// A lease was given, or given back.
    pub fn put(&mut self, inode: u64, kind: Option<LeaseKind>, until: Instant, now: Instant) {
        self.changed.insert(inode);
        if self.held.len() >= LEASES_MAX {
            self.held.retain(|_, (_, until)| *until > now);
        }
        match kind {
            Some(kind) if self.held.len() < LEASES_MAX => drop(self.held.insert(inode, (kind, until))),
            _ => drop(self.held.remove(&inode)),
        }
    }

    /// Adds what has changed since the last call.
    pub fn take_changes(&mut self, records: &mut Vec<Record>) {
        let changed = std::mem::take(&mut self.changed);
        records.extend(changed.into_iter().map(|inode| self.record(inode)));
    }

    /// All that is true.
    pub fn all(&self, records: &mut Vec<Record>) {
        records.extend(self.held.keys().map(|inode| self.record(*inode)));
    }

    fn record(&self, inode: u64) -> Record {
        let lease = self.held.get(&inode).map(|(kind, until)| {
            let left = until.saturating_duration_since(Instant::now());
            (*kind == LeaseKind::Exclusive, (clock() + left).as_nanos() as u64)
        });
        Record::Lease { number: inode, lease }
    }

    /// Takes a record of an earlier daemon.
    pub fn replay(&mut self, inode: u64, lease: Option<(bool, u64)>) {
        self.held.remove(&inode);
        if let Some((is_exclusive, until)) = lease {
            let kind = if is_exclusive { LeaseKind::Exclusive } else { LeaseKind::Shared };
            let left = Duration::from_nanos(until).saturating_sub(clock());
            self.held.insert(inode, (kind, Instant::now() + left));
        }
    }

    /// The attribute's value.
    pub fn value(&self, inode: u64, now: Instant) -> String {
        let held = self.held.get(&inode).filter(|(_, until)| *until > now);
        let Some((kind, until)) = held else { return "none".into() };
        let kind = match kind {
            LeaseKind::Exclusive => "exclusive",
            LeaseKind::Shared => "shared",
        };
        format!("{kind} {}", until.duration_since(now).as_secs())
    }
}

/// The time that processes of this machine share, and that `Instant` has too.
fn clock() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        assert_eq!(parse(b"none"), Some(None));
        assert_eq!(parse(b"exclusive 60\n"), Some(Some((LeaseKind::Exclusive, Duration::from_secs(60)))));
        assert_eq!(parse(b"shared 1"), Some(Some((LeaseKind::Shared, Duration::from_secs(1)))));
        for wrong in [&b""[..], b"shared", b"shared 0", b"shared 86401", b"both 3", b"exclusive -1", b"\xff 3"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_held_is_told_until_it_ends() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        leases.put(7, Some(LeaseKind::Shared), now + Duration::from_secs(60), now);
        assert_eq!(leases.value(7, now + Duration::from_secs(18)), "shared 42");
        assert_eq!(leases.value(7, now + Duration::from_secs(60)), "none");
        assert_eq!(leases.value(8, now), "none");
        leases.put(7, None, now, now);
        assert_eq!(leases.value(7, now), "none");
    }
}
