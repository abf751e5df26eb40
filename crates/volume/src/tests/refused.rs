//! What the file system refuses when a transaction is applied is that transaction's failure alone.

use super::*;

/// Numbers of errors on Linux.
const EPERM: i32 = 1;
const EFBIG: i32 = 27;
const EMLINK: i32 = 31;

fn link(from: &str, to: &str) -> Operation {
    Operation::Link { from: path(from), base: None, to: path(to) }
}

fn of_device(number: u64, operations: Vec<Operation>) -> Transaction {
    Transaction { writer: Some(Writer { device: 1, number }), ..transaction(operations) }
}

/// One group, of which the file system refuses the second transaction.
fn group() -> Vec<Transaction> {
    vec![
        of_device(1, vec![create("a"), write("a", None, 0, b"text")]),
        of_device(2, vec![create("b"), link("b", "c"), write("b", None, 0, b"late")]),
        of_device(3, vec![create("d"), write("a", None, 4, b"more")]),
    ]
}

fn is_refused<T>(result: &Result<T, VolumeError>) -> bool {
    matches!(result, Err(VolumeError::Refused { .. }))
}

fn check(volume: &Volume) {
    assert_eq!(content(volume, &path("a")).unwrap().1, b"textmore");
    assert!(volume.stat(&path("d")).is_ok() && volume.stat(&path("c")).is_err());
}

#[test]
fn a_transaction_that_the_file_system_refuses_fails_alone() {
    for (call, operation, number) in [
        ("hard_link", link("old", "new"), EMLINK),
        ("make_link", Operation::MakeLink { path: path("new"), target: b"x".to_vec(), owner: None }, EPERM),
        ("rename", rename("old", "new"), EPERM),
        ("write_at", write("old", None, 1 << 41, b"x"), EFBIG),
        ("set_mtime", Operation::SetTime { path: path("old"), base: None, mtime_ns: 7 }, EPERM),
    ] {
        let disk = SimulatedDisk::new(1);
        let volume = open(&disk, SMALL).unwrap();
        volume.commit(transaction(vec![create("old")])).unwrap();
        disk.refuse(Some((call, number)));
        let refused = volume.commit(transaction(vec![operation]));
        assert!(is_refused(&refused) && !volume.is_broken(), "{call}: {refused:?}");
        disk.crash_at(Some(disk.changes() + 1));
        drop(volume);
        disk.restart();
        let volume = open(&disk, SMALL).unwrap();
        assert!(volume.stat(&path("old")).is_ok() && volume.stat(&path("new")).is_err(), "{call}");
    }
}

#[test]
fn the_others_of_its_group_are_committed() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(seed);
        let volume = open(&disk, SMALL).unwrap();
        disk.refuse(Some(("hard_link", EPERM)));
        let results = volume.commit_all(group());
        assert!(results[0].is_ok() && is_refused(&results[1]) && results[2].is_ok(), "{results:?}");
        check(&volume);
        disk.crash_at(Some(disk.changes() + 1));
        drop(volume);
        disk.restart();
        let volume = open(&disk, SMALL).unwrap();
        check(&volume);
        let again = volume.commit_all(group());
        assert_eq!((again[0].as_ref().unwrap(), again[2].as_ref().unwrap()), {
            (results[0].as_ref().unwrap(), results[2].as_ref().unwrap())
        });
        assert!(matches!(again[1], Err(VolumeError::Outdated { .. })));
    }
}

/// A part of what is refused may stay, and a quota counts it.
#[test]
fn a_quota_counts_what_a_refused_transaction_leaves() {
    let disk = SimulatedDisk::new(3);
    let volume = open(&disk, Options { quota_bytes: Some(1000), ..SMALL }).unwrap();
    disk.refuse(Some(("hard_link", EPERM)));
    let mut taken = 0;
    for index in 0..10 {
        let (name, other) = (format!("f{index}"), format!("g{index}"));
        let made = vec![create(&name), write(&name, None, 0, &[1; 300]), link(&name, &other), unlink(&name)];
        match volume.commit(transaction(made)) {
            Err(VolumeError::OverQuota { .. }) => break,
            other => assert!(is_refused(&other), "{other:?}"),
        }
        taken += 300;
        assert_eq!(volume.space().unwrap().bytes, 1000 - taken);
    }
    assert_eq!(taken, 900);
}

/// Where the journal cannot be written either, nobody knows what is so.
#[test]
fn a_refused_transaction_that_stays_in_the_journal_stops_the_volume() {
    let disk = SimulatedDisk::new(1);
    let volume = open(&disk, SMALL).unwrap();
    volume.commit(transaction(vec![create("f")])).unwrap();
    let before = disk.changes();
    volume.commit(transaction(vec![unlink("f")])).unwrap();
    let usual = disk.changes() - before;
    volume.commit(transaction(vec![create("f")])).unwrap();
    disk.refuse(Some(("hard_link", EFBIG)));
    // The journal is written, synced, and the link refused; then the frame is taken back.
    assert!(usual >= 3);
    disk.fail_at(Some(disk.changes() + 3));
    let stopped = volume.commit(transaction(vec![link("f", "g")]));
    assert!(matches!(stopped, Err(VolumeError::Broken { .. })) && volume.is_broken(), "{stopped:?}");
}

/// A crash while a transaction is refused: what was acknowledged is there, and what the file system
/// has done by then of the others.
#[test]
fn sim_a_crash_while_a_transaction_is_refused_loses_nothing() {
    for at in 1..30 {
        for seed in 0..10 {
            let disk = SimulatedDisk::new(at * 100 + seed);
            let volume = open(&disk, SMALL).unwrap();
            volume.commit(transaction(vec![create("first"), write("first", None, 0, b"text")])).unwrap();
            disk.refuse(Some(("hard_link", EPERM)));
            disk.crash_at(Some(disk.changes() + at));
            let results = volume.commit_all(group());
            drop(volume);
            disk.restart();
            // A crash before the journal is mended needs a file system that allows it.
            disk.refuse(None);
            let volume = open(&disk, SMALL).unwrap();
            assert_eq!(content(&volume, &path("first")).unwrap().1, b"text", "{at} {seed}");
            for (result, name) in results.iter().zip(["a", "b", "d"]) {
                assert!(result.is_err() || volume.stat(&path(name)).is_ok(), "{at} {seed}: {name}");
            }
        }
    }
}
