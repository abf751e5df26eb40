//! Locks of byte ranges: what excludes what, when they end, and how many there are.

use units::{LockKind, LockRange, Moment, Rng, SplitMix64};

use crate::{FileId, Holder, LEASE_GRACE, LOCKS_HOLDER_MAX, LOCKS_MAX, LockOwner, Locks, Peer, VolumeError};

const FILE: FileId = FileId(7);

fn owner(device: u128, number: u64) -> LockOwner {
    LockOwner { holder: Holder(device), is_flock: false, number }
}

fn shared(start: u64, end: u64) -> LockRange {
    LockRange { start, end, kind: LockKind::Shared }
}

fn exclusive(start: u64, end: u64) -> LockRange {
    LockRange { kind: LockKind::Exclusive, ..shared(start, end) }
}

/// Whether it was locked.
fn lock(locks: &Locks, owner: LockOwner, range: LockRange, now: Moment) -> bool {
    locks.lock(FILE, owner, (Peer(1), 40), range, now).unwrap().is_none()
}

#[test]
fn owners_of_one_and_of_several_devices_exclude_each_other() {
    let (locks, now) = (Locks::default(), Moment(5));
    let (one, two, far) = (owner(1, 1), owner(1, 2), owner(2, 1));
    assert!(lock(&locks, one, exclusive(10, 19), now));
    let held = locks.test(FILE, far, shared(0, 10), now).unwrap();
    assert_eq!((held.range, held.holder, held.pid), (exclusive(10, 19), Holder(1), 40));
    assert!(!lock(&locks, two, shared(19, 30), now) && lock(&locks, two, exclusive(20, 30), now));
    assert!(lock(&locks, far, exclusive(0, 9), now));
    // Locks of flock are others, and so are those of another file.
    let flock = LockOwner { is_flock: true, ..far };
    assert!(lock(&locks, flock, exclusive(0, u64::MAX), now));
    assert_eq!(locks.test(FileId(8), far, exclusive(0, u64::MAX), now), None);
    // One's own lock becomes another.
    assert!(lock(&locks, one, shared(12, 15), now) && lock(&locks, far, shared(13, 14), now));
    assert!(!lock(&locks, far, shared(11, 14), now) && !lock(&locks, one, exclusive(10, 19), now));
    locks.unlock(FILE, far, 13, 14).unwrap();
    assert!(lock(&locks, one, exclusive(10, 19), now));
    locks.unlock(FILE, far, 0, u64::MAX).unwrap();
    assert_eq!(locks.test(FILE, two, exclusive(0, 9), now), None);
}

#[test]
fn locks_end_some_time_after_their_device_has_left() {
    let locks = Locks::default();
    assert!(
        lock(&locks, owner(1, 1), exclusive(0, 9), Moment(0)) && lock(&locks, owner(1, 2), shared(20, 29), Moment(0))
    );
    locks.left(Holder(1), Moment(100));
    locks.returned(Holder(1), Moment(200));
    let far = |range, now| lock(&locks, owner(2, 1), range, now);
    assert!(!far(shared(0, 0), Moment(300).after(2 * LEASE_GRACE)));
    locks.left(Holder(1), Moment(400));
    let ends = Moment(400).after(LEASE_GRACE);
    assert!(!far(shared(0, 0), Moment(ends.0 - 1)) && far(exclusive(0, u64::MAX), ends));
    // It is too late to come back.
    locks.returned(Holder(1), ends);
    assert!(!lock(&locks, owner(1, 1), shared(0, 9), ends));
}

#[test]
fn devices_and_peers_have_shares_of_all_locks() {
    let (locks, now) = (Locks::default(), Moment(0));
    let take = |device: u128, peer: u64, index: u64| {
        locks.lock(FileId(index), owner(device, index % 3), (Peer(peer), 1), shared(2 * index, 2 * index), now)
    };
    let most = (0..).find(|index| take(1, 1, *index).is_err()).unwrap();
    assert_eq!(most, LOCKS_HOLDER_MAX as u64);
    assert!(take(1, 1, 0).is_err(), "as many as it may have");
    let mut all = most;
    for device in 2..200 {
        all += (0..).find(|index| take(device, 1, *index).is_err()).unwrap();
    }
    assert!((all as usize) < LOCKS_MAX / 8 && matches!(take(300, 1, 0), Err(VolumeError::TooLarge { .. })));
    assert!(take(300, 2, 0).is_ok(), "another peer");
    for device in 1..=300 {
        locks.left(Holder(device), now);
    }
    let after = now.after(LEASE_GRACE);
    assert_eq!(locks.test(FileId(0), owner(900, 0), exclusive(0, u64::MAX), after), None);
    assert!(locks.is_empty());
}

#[test]
fn unlocking_makes_no_more_ranges_than_locking() {
    let (locks, now) = (Locks::default(), Moment(0));
    assert!(lock(&locks, owner(1, 1), exclusive(0, u64::MAX), now));
    let unlock = |byte: u64| locks.unlock(FILE, owner(1, 1), byte, byte);
    let most = (0..).find(|index| unlock(2 * index + 1).is_err()).unwrap();
    assert_eq!(most, LOCKS_HOLDER_MAX as u64 - 1, "each leaves one more");
    assert!(matches!(unlock(2 * most + 1), Err(VolumeError::TooLarge { .. })));
    // What was refused is locked as before; what leaves no more is not refused.
    assert!(!lock(&locks, owner(2, 1), shared(2 * most + 1, 2 * most + 1), now));
    unlock(0).unwrap();
    unlock(2 * most + 1).unwrap();
    locks.unlock(FILE, owner(1, 1), 0, u64::MAX).unwrap();
    assert!(locks.is_empty());
}

/// Against a table of bytes, over several files, owners and devices that come and go.
#[test]
fn ref_locks_agree_with_a_table_of_bytes() {
    let (locks, mut rng) = (Locks::default(), SplitMix64(3));
    let mut held: Vec<(FileId, LockOwner, u64, LockKind)> = Vec::new();
    for step in 0..4000u64 {
        let now = Moment(step);
        let file = FileId(rng.below(2));
        let who = LockOwner {
            holder: Holder(1 + u128::from(rng.below(2))),
            is_flock: rng.below(4) == 0,
            number: rng.below(2),
        };
        let start = rng.below(8);
        let end = start + rng.below(8 - start);
        let kind = if rng.below(2) == 0 { LockKind::Shared } else { LockKind::Exclusive };
        if rng.below(3) == 0 {
            locks.unlock(file, who, start, end).unwrap();
            held.retain(|(of, owner, byte, _)| (*of, *owner) != (file, who) || !(start..=end).contains(byte));
            continue;
        }
        let range = LockRange { start, end, kind };
        let excluded = held.iter().any(|(of, owner, byte, other)| {
            *of == file
                && *owner != who
                && owner.is_flock == who.is_flock
                && (start..=end).contains(byte)
                && (kind == LockKind::Exclusive || *other == LockKind::Exclusive)
        });
        assert_eq!(locks.test(file, who, range, now).is_some(), excluded, "step {step}");
        let refused = locks.lock(file, who, (Peer(1), 1), range, now).unwrap().is_some();
        assert_eq!(refused, excluded, "step {step}");
        if !refused {
            held.retain(|(of, owner, byte, _)| (*of, *owner) != (file, who) || !(start..=end).contains(byte));
            held.extend((start..=end).map(|byte| (file, who, byte, kind)));
        }
    }
}
