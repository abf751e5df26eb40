//! Devices that repeat transactions: each happens once, and the answer stays the same.

use super::*;
use crate::answers::Answers;

fn by(device: u128, number: u64, operations: Vec<Operation>) -> Transaction {
    Transaction { writer: Some(Writer { device, number }), ..transaction(operations) }
}

fn append(at: &str, bytes: &[u8]) -> Operation {
    Operation::Append { path: path(at), base: None, bytes: bytes.to_vec() }
}

fn log(volume: &Volume) -> Vec<u8> {
    content(volume, &path("log")).unwrap().1
}

#[test]
fn a_repeated_transaction_gets_the_same_answer() {
    let disk = SimulatedDisk::new(1);
    let volume = open(&disk, SMALL).unwrap();
    let first = volume.commit(by(7, 1, vec![create("log"), append("log", b"a")])).unwrap();
    let third = volume.commit(by(7, 3, vec![append("log", b"c")])).unwrap();
    // Another device counts by itself, and changes what the first one saw.
    volume.commit(by(8, 1, vec![append("log", b"x")])).unwrap();
    let changes = disk.changes();
    let check = |volume: &Volume| {
        // Whatever the repeated one says: it is known by its number.
        assert_eq!(volume.commit(by(7, 1, vec![])).unwrap(), first);
        assert_eq!(volume.commit(by(7, 3, vec![append("log", b"c")])).unwrap(), third);
        match volume.commit(by(7, 2, vec![append("log", b"b")])) {
            Err(VolumeError::Outdated { number: 2, last: 3 }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(log(volume), b"acx");
    };
    check(&volume);
    assert_eq!(disk.changes(), changes);
    // From the table, and from the journal.
    volume.checkpoint().unwrap();
    check(&volume);
    volume.commit(by(7, 4, vec![append("log", b"d")])).unwrap();
    disk.crash_at(Some(disk.changes() + 1));
    drop(volume);
    disk.restart();
    let volume = open(&disk, SMALL).unwrap();
    assert_eq!(volume.recovered().groups, 1);
    assert_eq!(volume.commit(by(7, 3, vec![])).unwrap(), third);
    volume.commit(by(7, 4, vec![append("log", b"d")])).unwrap();
    assert_eq!(log(&volume), b"acxd");
}

#[test]
fn a_refused_number_is_not_used_up() {
    let volume = open(&SimulatedDisk::new(2), SMALL).unwrap();
    let add = || by(1, 1, vec![append("log", b"a")]);
    for _ in 0..2 {
        assert!(matches!(volume.commit(add()), Err(VolumeError::NotFound { .. })));
    }
    volume.commit(transaction(vec![create("log")])).unwrap();
    let committed = volume.commit(add()).unwrap();
    volume.commit(transaction(vec![unlink("log")])).unwrap();
    assert_eq!(volume.commit(add()).unwrap(), committed);
    // One that changes nothing has an answer too.
    let nothing = volume.commit(by(1, 2, vec![])).unwrap();
    assert_eq!(volume.commit(by(1, 2, vec![create("log")])).unwrap(), nothing);
}

#[test]
fn one_group_may_hold_several_of_a_device_and_the_same_twice() {
    let volume = open(&SimulatedDisk::new(3), SMALL).unwrap();
    let add = |number, byte: u8| by(1, number, vec![append("log", &[byte])]);
    let group = [
        by(1, 1, vec![create("log")]),
        add(2, b'2'),
        add(2, b'2'),
        add(4, b'4'),
        add(3, b'3'),
        by(1, 5, vec![append("missing", b"5")]),
        add(6, b'6'),
        by(1, 1, vec![create("log")]),
    ];
    let results = volume.commit_all(group.to_vec());
    assert_eq!(results[1].as_ref().unwrap(), results[2].as_ref().unwrap());
    assert_eq!(results[0].as_ref().unwrap(), results[7].as_ref().unwrap());
    assert!(matches!(results[4], Err(VolumeError::Outdated { number: 3, last: 4 })), "{:?}", results[4]);
    assert!(matches!(results[5], Err(VolumeError::NotFound { .. })));
    assert_eq!(log(&volume), b"246");
}

/// A client that reconnected repeats what its old connection still works on.
#[test]
fn threads_that_repeat_each_other_wait_for_one_outcome() {
    let volume = open(&SimulatedDisk::new(4), SMALL).unwrap();
    volume.commit(transaction(vec![create("log")])).unwrap();
    for number in 1..=40 {
        let add = || volume.commit(by(1, number, vec![append("log", &[number as u8])])).unwrap();
        let answers: Vec<Committed> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|answer| *answer == answers[0]));
    }
    assert_eq!(log(&volume), (1..=40).collect::<Vec<u8>>());
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut answers = Answers::default();
    let seen = Seen { file: FileId(2), version: 1 };
    for number in 0..100u64 {
        answers.insert(Writer { device: 1, number }, Peer(1), vec![seen]);
    }
    let find = |answers: &Answers, device, number| answers.find(Writer { device, number });
    for number in 0..100 {
        let known = number >= 100 - ANSWERS_MAX as u64;
        assert_eq!(find(&answers, 1, number).is_ok(), known, "{number}");
    }
    // Devices: the one that was used longest ago goes first.
    for device in 2..=DEVICES_MAX as u128 {
        answers.insert(Writer { device, number: 5 }, Peer(1), vec![]);
    }
    answers.insert(Writer { device: 1, number: 100 }, Peer(1), vec![]);
    answers.insert(Writer { device: u128::MAX, number: 0 }, Peer(1), vec![]);
    assert!(find(&answers, 2, 5).unwrap().is_none());
    assert!(find(&answers, 3, 5).unwrap().is_some());
    assert!(find(&answers, 1, 99).unwrap().is_some());
    // Bytes: answers go, the last numbers stay.
    for device in 0..2 * ANSWERS_BYTES_MAX / (16 * OPERATIONS_MAX) {
        let writer = Writer { device: 10_000 + device as u128, number: 9 };
        answers.insert(writer, Peer(1), vec![seen; OPERATIONS_MAX]);
    }
    assert!(matches!(find(&answers, 10_000, 9), Err(VolumeError::Outdated { number: 9, last: 9 })));
    assert!(find(&answers, 10_000, 10).unwrap().is_none());
    assert!(find(&answers, 10_300, 9).unwrap().is_some());
}

/// A peer with more devices, or larger answers, than there is room for loses its own.
#[test]
fn a_peer_with_any_number_of_devices_does_not_evict_those_of_others() {
    let volume = open(&SimulatedDisk::new(8), SMALL).unwrap();
    let from = |peer, device, number, operations| Transaction { peer: Peer(peer), ..by(device, number, operations) };
    volume.commit(transaction(vec![create("log")])).unwrap();
    let first = volume.commit(from(1, 7, 5, vec![append("log", b"a")])).unwrap();
    for device in 1000..1000 + 4200 {
        volume.commit(from(2, device, 1, vec![])).unwrap();
    }
    let large: Vec<_> = (0..OPERATIONS_MAX).map(|_| append("missing", b"")).collect();
    assert!(volume.commit(from(2, 999, 1, large)).is_err());
    assert_eq!(volume.commit(from(1, 7, 5, vec![append("log", b"a")])).unwrap(), first);
    // It moved: the record is that of its new peer from then on.
    volume.commit(from(3, 7, 6, vec![append("log", b"b")])).unwrap();
    assert_eq!(volume.commit(from(1, 7, 5, vec![append("log", b"a")])).unwrap(), first);
    assert_eq!(log(&volume), b"ab");

    let mut answers = Answers::default();
    let seen = Seen { file: FileId(2), version: 1 };
    answers.insert(Writer { device: 7, number: 5 }, Peer(1), vec![seen; 100]);
    for device in 1000..1000 + 2 * ANSWERS_BYTES_MAX / (16 * OPERATIONS_MAX) {
        let writer = Writer { device: device as u128, number: 9 };
        answers.insert(writer, Peer(2), vec![seen; OPERATIONS_MAX]);
        assert!(answers.find(writer).unwrap().is_some(), "the newest is known");
    }
    assert!(answers.find(Writer { device: 7, number: 5 }).unwrap().is_some());
    assert!(answers.find(Writer { device: 1000, number: 9 }).is_err());
    // As many peers as there is room for devices: the oldest goes, never the newest.
    let mut answers = Answers::default();
    for device in 0..DEVICES_MAX as u128 + 1 {
        answers.insert(Writer { device, number: 9 }, Peer(device as u64 + 1), vec![seen; 1000]);
        assert!(answers.find(Writer { device, number: 9 }).unwrap().is_some(), "{device}");
    }
    assert!(answers.find(Writer { device: 0, number: 9 }).unwrap().is_none());
}

/// Numbers from before they were given out with a secret: who goes on with one gets its answers,
/// and it keeps them.
#[test]
fn a_device_goes_on_with_the_answers_of_an_old_number() {
    let disk = SimulatedDisk::new(9);
    let volume = open(&disk, SMALL).unwrap();
    volume.commit(transaction(vec![create("log")])).unwrap();
    let old = volume.commit(by(7, 5, vec![append("log", b"a")])).unwrap();
    let inherit = |volume: &Volume, device| {
        let inherits = Some((device, 7));
        volume.commit(Transaction { peer: Peer(4), inherits, ..Transaction::default() }).unwrap();
    };
    let again = |volume: &Volume, device| {
        let again = Transaction { peer: Peer(4), ..by(device, 5, vec![append("log", b"a")]) };
        assert_eq!(volume.commit(again).unwrap(), old);
        assert_eq!(log(volume), b"a");
    };
    inherit(&volume, 1007);
    again(&volume, 1007);
    again(&volume, 7);
    // Once is enough, and what happened since stays; also after a crash, from the journal and from
    // the table.
    volume.commit(Transaction { peer: Peer(4), ..by(1007, 6, vec![append("log", b"b")]) }).unwrap();
    inherit(&volume, 1007);
    disk.crash_at(Some(disk.changes() + 1));
    drop(volume);
    disk.restart();
    for _ in 0..2 {
        let volume = open(&disk, SMALL).unwrap();
        let again = Transaction { peer: Peer(4), ..by(1007, 6, vec![append("log", b"b")]) };
        volume.commit(again).unwrap();
        assert_eq!(log(&volume), b"ab");
        assert!(matches!(volume.commit(by(1007, 4, vec![])), Err(VolumeError::Outdated { last: 6, .. })));
        // Records of devices that proved their number are for nobody else.
        let inherits = Some((2000, 1007));
        volume.commit(Transaction { peer: Peer(4), inherits, ..Transaction::default() }).unwrap();
        volume.commit(Transaction { peer: Peer(4), ..by(2000, 1, vec![]) }).unwrap();
        volume.checkpoint().unwrap();
    }
}

#[test]
fn numbers_of_devices_are_given_out_with_a_secret_that_lasts() {
    let disk = SimulatedDisk::new(10);
    let volume = open(&disk, SMALL).unwrap();
    let (one, secret) = volume.enrol().unwrap();
    let (two, other) = volume.enrol().unwrap();
    assert!(one != two && secret != other);
    drop(volume);
    let volume = open(&disk, SMALL).unwrap();
    assert_eq!(volume.secret(one).unwrap(), secret);
    // Another volume has another key.
    assert_ne!(open(&SimulatedDisk::new(10), SMALL).unwrap().secret(one).unwrap(), secret);
    drop(volume);
    let reading = open(&disk, Options { mode: Mode::ReadOnly, ..SMALL }).unwrap();
    assert!(matches!(reading.enrol(), Err(VolumeError::ReadOnly)));
}

#[test]
fn a_read_of_another_file_is_stale() {
    let volume = open(&SimulatedDisk::new(5), SMALL).unwrap();
    let seen = volume.commit(transaction(vec![create("f"), write("f", None, 0, b"old")])).unwrap().versions[1];
    assert_eq!(volume.read(&path("f"), Some(seen.file), 0, 1).unwrap().bytes, b"old");
    volume.commit(transaction(vec![create("new"), rename("new", "f")])).unwrap();
    let stale = |at: &str| volume.read(&path(at), Some(seen.file), 0, 1);
    for at in ["f", "new", "f/below"] {
        assert!(matches!(stale(at), Err(VolumeError::Stale { .. })), "{at}");
    }
    assert!(matches!(volume.block_table(&path("f"), Some(seen.file), 0, 1), Err(VolumeError::Stale { .. })));
    assert_eq!(volume.read(&path("f"), None, 0, 1).unwrap().bytes, b"");
}

#[test]
fn blocks_are_read_one_by_one_and_a_volume_keeps_its_id() {
    let disk = SimulatedDisk::new(7);
    let volume = open(&disk, SMALL).unwrap();
    let bytes: Vec<u8> = (0..1300u32).map(|index| (index / 512) as u8).collect();
    let seen = volume.commit(transaction(vec![create("f"), write("f", None, 0, &bytes)])).unwrap().versions[1];
    let read = volume.read_each(&path("f"), Some(seen.file), &[2, 0, 1, 7, u64::MAX]).unwrap();
    assert_eq!((read.seen, read.size, read.bytes.len()), (seen, 1300, 1300));
    assert_eq!(read.bytes, [&bytes[1024..], &bytes[..1024]].concat());
    assert!(matches!(volume.read_each(&path("f"), None, &[0; 1 << 14]), Err(VolumeError::TooLarge { .. })));
    let id = volume.id();
    drop(volume);
    let reading = Options { mode: Mode::ReadOnly, ..SMALL };
    assert_eq!(open(&disk, reading).unwrap().id(), id);
    let bare = Volume::on(Arc::new(disk.clone()), None, reading).unwrap();
    assert_eq!(bare.id(), id);
    let other = SimulatedDisk::new(7);
    drop(other.create(b"first", 0o600).unwrap());
    other.make_folder(b"d", 0o700).unwrap();
    assert_ne!(open(&other.folder(b"d"), SMALL).unwrap().id(), id);
}

#[test]
fn a_listing_tells_what_stat_tells() {
    let disk = SimulatedDisk::new(6);
    let volume = open(&disk, SMALL).unwrap();
    let folder = Operation::MakeFolder { path: path("d"), mode: 0o750, owner: None };
    volume.commit(transaction(vec![folder, create("a"), write("a", None, 0, b"abc"), create("d/x")])).unwrap();
    disk.make_link(b"link", b"a").unwrap();
    let whole = volume.list_infos(&VolumePath::top(), b"", 9).unwrap();
    assert_eq!(whole.seen, volume.stat(&VolumePath::top()).unwrap().seen);
    assert_eq!(whole.entries.len(), 3);
    for (name, info) in &whole.entries {
        assert_eq!(*info, volume.stat(&VolumePath::new(name).unwrap()).unwrap());
    }
    let page = volume.list_infos(&VolumePath::top(), b"a", 1).unwrap();
    assert_eq!((&page.entries[..], page.more), (&whole.entries[1..2], true));
    assert!(matches!(volume.list_infos(&path("a"), b"", 9), Err(VolumeError::NotFolder { .. })));
}

/// Somebody beside the server moves away what devices make, again and again: the journal then tells
/// of several files at one place.
#[test]
fn regress_names_that_were_moved_away_beside_the_server_are_recovered() {
    let folder = |at: &str| Operation::MakeFolder { path: path(at), mode: 0o755, owner: None };
    for again in 0..2 {
        let disk = SimulatedDisk::new(9);
        let volume = open(&disk, SMALL).unwrap();
        volume.commit(transaction(vec![folder("old"), create("old/f")])).unwrap();
        volume.checkpoint().unwrap();
        for round in 0..3 {
            volume.commit(transaction(vec![folder("d"), folder("d/e"), create("d/e/f"), create("g")])).unwrap();
            volume
                .commit(transaction(vec![write("d/e/f", None, 0, &[round; 600]), write("old/f", None, 0, &[round; 9])]))
                .unwrap();
            let aside = |name: &str| format!("{name}{round}").into_bytes();
            let moved = if again == 0 { "d" } else { "d/e" };
            disk.rename(moved.as_bytes(), &aside("aside")).unwrap();
            if again > 0 {
                volume.commit(transaction(vec![Operation::RemoveFolder { path: path("d") }])).unwrap();
            }
            disk.rename(b"g", &aside("g")).unwrap();
            if round == 1 {
                // What was there at the checkpoint, too.
                disk.rename(b"old", b"older").unwrap();
                volume.commit(transaction(vec![folder("old"), create("old/f")])).unwrap();
            }
        }
        volume
            .commit(transaction(vec![folder("d"), create("d/last"), create("g"), write("d/last", None, 0, b"here")]))
            .unwrap();
        // The machine stops before the next checkpoint.
        disk.crash_at(Some(disk.changes() + 1));
        drop(volume);
        assert!(disk.is_down());
        disk.restart();
        let volume = open(&disk, SMALL).unwrap();
        assert_eq!(content(&volume, &path("d/last")).unwrap().1, b"here");
        assert!(volume.stat(&path("g")).is_ok());
        assert_eq!(content(&volume, &path("old/f")).unwrap().1, [2; 9]);
    }
}

/// What devices write to a file that somebody moved beside the server is there after a crash, under
/// its new name.
#[test]
fn regress_writes_to_files_that_were_moved_beside_the_server_survive() {
    let folder = |at: &str| Operation::MakeFolder { path: path(at), mode: 0o755, owner: None };
    for young in [false, true] {
        for seed in 0..20 {
            let disk = SimulatedDisk::new(seed);
            let volume = open(&disk, SMALL).unwrap();
            volume
                .commit(transaction(vec![folder("d"), create("d/f"), create("f"), write("f", None, 0, b"old")]))
                .unwrap();
            if !young {
                volume.checkpoint().unwrap();
            }
            volume.commit(transaction(vec![write("f", None, 0, b"one"), write("d/f", None, 0, b"one")])).unwrap();
            disk.rename(b"f", b"g").unwrap();
            disk.rename(b"d", b"e").unwrap();
            volume.commit(transaction(vec![write("g", None, 0, b"two"), write("e/f", None, 0, b"two")])).unwrap();
            disk.crash_at(Some(disk.changes() + 1));
            drop(volume);
            disk.restart();
            let volume = open(&disk, SMALL).unwrap();
            for name in ["g", "e/f"] {
                assert_eq!(content(&volume, &path(name)).unwrap().1, b"two", "{name}, seed {seed}, young: {young}");
            }
        }
    }
}
