//! Zeros, room, and copies; on the simulated disk and a real one.

use super::*;

fn allocate(at: &str, offset: u64, length: u64, allocation: Allocation) -> Operation {
    Operation::Allocate { path: path(at), base: None, offset, length, allocation }
}

fn copy(from: &str, from_base: Option<Seen>, at: &str, offset: u64, from_offset: u64, length: u32) -> Operation {
    Operation::Copy { path: path(at), base: None, offset, from: path(from), from_base, from_offset, length }
}

const PUNCH: Allocation = Allocation { zero: true, reserve: false, extend: false };
const ROOM: Allocation = Allocation { zero: false, reserve: true, extend: false };

#[test]
fn room_is_there_before_it_is_promised() {
    let disk = SimulatedDisk::new(1);
    let volume = open(&disk, SMALL).unwrap();
    volume.commit(transaction(vec![create("f"), write("f", None, 0, b"content")])).unwrap();
    disk.set_capacity(Some(16 << 20));
    let reserve = |bytes| volume.commit(transaction(vec![allocate("f", 0, bytes, ROOM)])).map(drop);
    assert!(matches!(reserve(16 << 20), Err(VolumeError::NoSpace { .. })));
    reserve(1 << 20).unwrap();
    let info = volume.stat(&path("f")).unwrap();
    assert!(info.size == 7 && info.stored_bytes >= 1 << 20, "{info:?}");
    // Others take all that is left; what was reserved can still be written.
    let hog = disk.create(b"hog", 0o600).unwrap();
    let mut at = 0;
    while hog.write_at(at, &[1; 512]).is_ok() {
        at += 512;
    }
    for index in 0..128 {
        volume.commit(transaction(vec![write("f", None, index << 13, &[2; 1 << 13])])).unwrap();
    }
    let extend = Allocation { extend: true, ..ROOM };
    for (offset, length, how) in [(0, 1 << 50, extend), (u64::MAX, 2, PUNCH), (1 << 62, 1 << 62, ROOM)] {
        let refused = volume.commit(transaction(vec![allocate("f", offset, length, how)]));
        assert!(matches!(refused, Err(VolumeError::TooLarge { .. })), "{offset} {length}: {refused:?}");
    }
}

#[test]
fn room_that_a_quota_cannot_count_is_not_kept() {
    let options = Options { quota_bytes: Some(1 << 20), ..SMALL };
    let volume = open(&SimulatedDisk::new(3), options).unwrap();
    let commit = |operations| volume.commit(transaction(operations)).map(drop);
    commit(vec![create("f"), write("f", None, 0, b"content")]).unwrap();
    assert!(matches!(commit(vec![allocate("f", 0, 4096, ROOM)]), Err(VolumeError::OverQuota { .. })));
    commit(vec![allocate("f", 0, 4096, Allocation { extend: true, ..ROOM })]).unwrap();
}

#[test]
fn copies_are_of_the_version_that_was_seen() {
    let volume = open(&SimulatedDisk::new(2), SMALL).unwrap();
    let made = vec![create("f"), write("f", None, 5000, b"behind a hole"), create("g")];
    let seen = volume.commit(transaction(made)).unwrap().versions[1];
    volume.commit(transaction(vec![copy("f", Some(seen), "g", 100, 0, COPY_BYTES_MAX)])).unwrap();
    let (_, bytes) = content(&volume, &path("g")).unwrap();
    assert!(bytes.len() == 5113 && bytes.ends_with(b"\0behind a hole"), "{}", bytes.len());
    assert!(volume.stat(&path("g")).unwrap().stored_bytes < 2048, "the hole was filled");
    let commit = |operations| volume.commit(transaction(operations)).map(drop);
    commit(vec![write("f", None, 0, b"x")]).unwrap();
    assert!(matches!(commit(vec![copy("f", Some(seen), "g", 0, 0, 1)]), Err(VolumeError::Conflict { .. })));
    let twice = vec![write("f", None, 0, b"y"), copy("f", None, "g", 0, 0, 1)];
    assert!(matches!(commit(twice), Err(VolumeError::Invalid { .. })));
    let long = || copy("f", None, "g", 0, 0, COPY_BYTES_MAX);
    assert!(matches!(commit(vec![long(), long()]), Err(VolumeError::TooLarge { .. })));
    // Of a file that another transaction of the same group writes: that one is applied before.
    let group = [transaction(vec![write("f", None, 0, b"z")]), transaction(vec![copy("f", None, "g", 0, 0, 1)])];
    let done = volume.commit_all(group.to_vec());
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    assert_eq!(content(&volume, &path("g")).unwrap().1[0], b'z');
}

#[test]
fn holes_are_made_on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let volume = Volume::open(folder.path(), None, Options::default()).unwrap();
    volume.commit(transaction(vec![create("f"), write("f", None, 0, &[5; 1 << 18])])).unwrap();
    let full = volume.stat(&path("f")).unwrap();
    volume.commit(transaction(vec![allocate("f", 5000, 100_000, PUNCH)])).unwrap();
    let (_, bytes) = content(&volume, &path("f")).unwrap();
    let expected = [&[5; 5000][..], &[0; 100_000], &[5; (1 << 18) - 105_000]].concat();
    assert!(bytes == expected);
    let punched = volume.stat(&path("f")).unwrap();
    assert!(punched.size == full.size && punched.stored_bytes < full.stored_bytes, "{full:?} {punched:?}");
    let zeros = Allocation { zero: true, reserve: true, extend: true };
    volume.commit(transaction(vec![allocate("f", 200_000, 100_000, zeros)])).unwrap();
    let (_, bytes) = content(&volume, &path("f")).unwrap();
    assert!(bytes[..200_000] == expected[..200_000] && bytes[200_000..] == [0; 100_000]);
}
