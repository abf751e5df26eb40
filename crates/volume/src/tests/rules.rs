//! What is refused, what is seen, and what a version means; on the simulated disk.

use std::time::Duration;

use units::Moment;

use super::*;
use crate::table::Table;

fn volume(disk: &SimulatedDisk) -> Volume {
    open(disk, SMALL).unwrap()
}

/// Commits operations that must succeed; what the last one saw.
fn done(volume: &Volume, operations: Vec<Operation>) -> Seen {
    *volume.commit(transaction(operations)).unwrap().versions.last().unwrap()
}

fn refused(volume: &Volume, operations: Vec<Operation>) -> VolumeError {
    volume.commit(transaction(operations)).unwrap_err()
}

#[test]
fn paths_stay_inside() {
    for bad in ["/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\0b", ".runnel", ".runnel/journal"] {
        assert!(matches!(VolumePath::new(bad.as_bytes()), Err(VolumeError::InvalidPath { .. })), "{bad:?}");
    }
    assert!(VolumePath::new(&[b'x'; NAME_BYTES_MAX + 1]).is_err());
    assert!(VolumePath::new(&[&[b'x'; NAME_BYTES_MAX][..], b"/y"].concat()).is_ok());
    assert!(VolumePath::new("x/".repeat(PATH_BYTES_MAX).as_bytes()).is_err());
    assert!(path("a").join(b"..").is_err() && path("a").join(b"b/c").is_err() && path("a").join(b"").is_err());
    assert!(VolumePath::top().join(OWN_FOLDER).is_err());
    // Below the top it is a name like others.
    assert_eq!(path("a").join(OWN_FOLDER).unwrap(), path("a/.runnel"));
}

#[test]
fn of_two_writers_the_one_who_saw_less_gets_a_conflict() {
    let volume = volume(&SimulatedDisk::new(1));
    let seen = done(&volume, vec![create("f"), write("f", None, 0, b"first")]);
    let after = done(&volume, vec![write("f", Some(seen), 0, b"SECOND")]);
    assert_eq!((after.file, after.version), (seen.file, seen.version + 1));
    // Nothing of the refused transaction is applied, also not what came before the conflict in it.
    match refused(&volume, vec![create("g"), write("f", Some(seen), 0, b"third")]) {
        VolumeError::Conflict { path, found } => assert_eq!((path.as_str(), found), ("f", Some(after))),
        other => panic!("{other}"),
    }
    assert!(matches!(volume.stat(&path("g")), Err(VolumeError::NotFound { .. })));
    assert_eq!(content(&volume, &path("f")).unwrap(), (after, b"SECOND".to_vec()));
    // Each operation of a transaction names what was seen before it.
    let twice = vec![write("f", Some(after), 0, b"x"), write("f", Some(after), 1, b"y")];
    assert_eq!(done(&volume, twice).version, after.version + 1);
    // A file that was replaced is another one.
    done(&volume, vec![unlink("f"), create("f")]);
    let found = volume.stat(&path("f")).unwrap().seen;
    assert_ne!(found.file, seen.file);
    let base = Some(Seen { file: seen.file, version: found.version });
    assert!(matches!(refused(&volume, vec![write("f", base, 0, b"")]), VolumeError::Conflict { .. }));
    done(&volume, vec![unlink("f")]);
    let gone = refused(&volume, vec![write("f", base, 0, b"")]);
    assert!(matches!(gone, VolumeError::Conflict { found: None, .. }));
}

#[test]
fn ids_and_versions_outlive_renames_and_restarts() {
    let disk = SimulatedDisk::new(2);
    let before = volume(&disk);
    let seen = done(&before, vec![create("f"), write("f", None, 0, b"x")]);
    done(&before, vec![Operation::MakeFolder { path: path("d"), mode: 0o755, owner: None }, rename("f", "d/g")]);
    assert_eq!(before.stat(&path("d/g")).unwrap().seen, seen);
    drop(before);
    let after = volume(&disk);
    assert_eq!(after.recovered().groups, 0);
    assert_eq!(after.stat(&path("d/g")).unwrap().seen, seen);
    let other = done(&after, vec![create("other")]);
    assert!(other.file.0 > seen.file.0);
}

#[test]
fn a_change_behind_the_back_is_a_new_version() {
    let disk = SimulatedDisk::new(3);
    let first = volume(&disk);
    let seen = done(&first, vec![create("f"), write("f", None, 0, b"ours")]);
    disk.open(b"f", true).unwrap().write_at(0, b"mine").unwrap();
    let changed = first.stat(&path("f")).unwrap().seen;
    assert!(changed.file == seen.file && changed.version > seen.version);
    assert!(matches!(refused(&first, vec![write("f", Some(seen), 0, b"x")]), VolumeError::Conflict { .. }));
    let seen = done(&first, vec![write("f", Some(changed), 4, b"!")]);
    assert_eq!(content(&first, &path("f")).unwrap(), (seen, b"mine!".to_vec()));
    // While the server is down.
    drop(first);
    disk.set_mtime(b"f", 5).unwrap();
    let second = volume(&disk);
    let changed = second.stat(&path("f")).unwrap().seen;
    assert!(changed.file == seen.file && changed.version > seen.version);
    // A file that was put in its place is another one; one that we never changed has an id and a
    // version too.
    disk.create(b"new", 0o600).unwrap().write_at(0, b"1").unwrap();
    let foreign = second.stat(&path("new")).unwrap().seen;
    assert_eq!(second.stat(&path("new")).unwrap().seen, foreign);
    disk.rename(b"new", b"f").unwrap();
    let replaced = second.stat(&path("f")).unwrap().seen;
    assert_eq!(replaced.file, foreign.file);
    assert!(matches!(refused(&second, vec![write("f", Some(changed), 0, b"x")]), VolumeError::Conflict { .. }));
    let seen = done(&second, vec![write("f", Some(replaced), 0, b"2")]);
    assert!(seen.file == replaced.file && seen.version > replaced.version);
}

#[test]
fn symbolic_links_are_shown_and_never_followed() {
    let disk = SimulatedDisk::new(4);
    let volume = volume(&disk);
    disk.make_link(b"link", b"/etc").unwrap();
    assert_eq!(volume.stat(&path("link")).unwrap().kind, Kind::Symlink);
    assert_eq!(volume.read_link(&path("link")).unwrap(), b"/etc");
    assert!(matches!(volume.read(&path("link"), None, 0, 1), Err(VolumeError::NotFile { .. })));
    assert!(volume.stat(&path("link/passwd")).is_err());
    assert!(matches!(refused(&volume, vec![create("link/f")]), VolumeError::NotFolder { .. }));
    assert!(matches!(refused(&volume, vec![write("link", None, 0, b"x")]), VolumeError::NotFile { .. }));
    let link = |at: &str, target: &[u8]| Operation::MakeLink { path: path(at), target: target.to_vec(), owner: None };
    for target in [&b""[..], b"a\0b", &[b'a'; LINK_BYTES_MAX + 1]] {
        assert!(matches!(refused(&volume, vec![link("other", target)]), VolumeError::Invalid { .. }));
    }
    assert!(matches!(refused(&volume, vec![link("link", b"x")]), VolumeError::Exists { .. }));
    done(&volume, vec![link("other", &[b'a'; LINK_BYTES_MAX])]);
    done(&volume, vec![rename("link", "moved")]);
    assert_eq!(volume.read_link(&path("moved")).unwrap(), b"/etc");
    done(&volume, vec![unlink("moved")]);
    assert!(volume.stat(&path("moved")).is_err());
}

#[test]
fn leases_exclude_others_until_they_end() {
    let volume = volume(&SimulatedDisk::new(5));
    let file = done(&volume, vec![create("f")]).file;
    let (one, two, second) = (Holder(1), Holder(2), Duration::from_secs(1));
    let by = |holder, now| Transaction { holder, now, ..transaction(vec![write("f", None, 0, b"x")]) };
    let lease = |holder, kind, now| volume.leases().take(file, (holder, Peer(9)), kind, second, Moment(now));
    assert_eq!(lease(one, LeaseKind::Exclusive, 10).unwrap(), Moment(1_000_010));
    assert!(matches!(lease(two, LeaseKind::Shared, 11), Err(VolumeError::Leased { .. })));
    assert!(matches!(volume.commit(by(two, Moment(12))), Err(VolumeError::Leased { .. })));
    volume.commit(by(one, Moment(12))).unwrap();
    // A rename over the file destroys it too.
    let over = Transaction { holder: two, now: Moment(12), ..transaction(vec![create("g"), rename("g", "f")]) };
    assert!(matches!(volume.commit(over), Err(VolumeError::Leased { .. })));
    volume.commit(by(two, Moment(1_000_010))).unwrap();
    lease(two, LeaseKind::Shared, 1_000_010).unwrap();
    lease(one, LeaseKind::Shared, 1_000_010).unwrap();
    assert!(lease(one, LeaseKind::Exclusive, 1_000_011).is_err());
    volume.commit(by(Holder(3), Moment(1_000_011))).unwrap();
    volume.leases().release(file, two);
    lease(one, LeaseKind::Exclusive, 1_000_012).unwrap();
    volume.leases().release(file, one);
    lease(two, LeaseKind::Exclusive, 1_000_013).unwrap();
}

#[test]
fn leases_are_shared_by_devices_and_peers() {
    let volume = volume(&SimulatedDisk::new(5));
    let second = Duration::from_secs(1);
    let take = |file, device, peer, now| {
        let holder = (Holder(device), Peer(peer));
        volume.leases().take(FileId(file), holder, LeaseKind::Exclusive, second, Moment(now)).map(drop)
    };
    // One device, on files that need not exist.
    let granted = (0..LEASES_MAX as u64).filter(|file| take(*file, 1, 1, 0).is_ok()).count();
    assert_eq!(granted, LEASES_HOLDER_MAX);
    assert!(matches!(take(u64::MAX, 1, 1, 0), Err(VolumeError::TooLarge { .. })));
    take(5, 1, 1, 0).expect("renewing needs no room");
    take(100_000, 2, 1, 0).expect("another device of the same peer");
    // One peer with any number of devices.
    let granted = (0..LEASES_MAX as u64).filter(|file| take(1 << 32 | file, u128::from(*file), 1, 0).is_ok()).count();
    assert!(granted < LEASES_MAX / 8, "{granted}");
    // Thirty more of that kind, and there still is room for others.
    for peer in 2..32 {
        (0..LEASES_MAX as u64 / 8).for_each(|file| drop(take(peer << 33 | file, u128::from(file), peer, 0)));
    }
    (0..100).for_each(|file| take(1 << 60 | file, 3, 99, 0).unwrap());
    // What has ended makes room.
    take(1 << 61, 1, 1, 1_000_001).unwrap();
}

#[test]
fn leases_end_soon_after_their_holder_left_unless_it_comes_back() {
    let volume = volume(&SimulatedDisk::new(5));
    let minute = Duration::from_secs(60);
    let take = |device, now: u64| {
        let kind = LeaseKind::Exclusive;
        volume.leases().take(FileId(7), (Holder(device), Peer(device as u64)), kind, minute, Moment(now * 1_000_000))
    };
    let at = |seconds: u64| Moment(seconds * 1_000_000);
    take(1, 0).unwrap();
    volume.leases().left(Holder(1), at(1));
    assert!(take(2, 10).is_err());
    volume.leases().returned(Holder(1), at(10));
    assert!(take(2, 59).is_err(), "it came back in time");
    volume.leases().left(Holder(1), at(40));
    take(2, 50).expect("it has ended");
    volume.leases().returned(Holder(1), at(51));
    assert!(take(1, 51).is_err(), "another one has it now");
    // One that ends anyway does not last longer.
    volume.leases().left(Holder(2), at(109));
    take(1, 110).unwrap();
}

#[test]
fn blocks_are_whole_and_holes_are_known() {
    let volume = volume(&SimulatedDisk::new(6));
    done(&volume, vec![create("f"), write("f", None, 0, &[1; 512]), write("f", None, 4 << 30, b"end")]);
    let info = volume.stat(&path("f")).unwrap();
    assert_eq!((info.size, info.block_bytes), ((4 << 30) + 3, 512));
    let last = (4u64 << 30) / 512;
    let end = volume.read(&path("f"), None, last, 4).unwrap();
    assert_eq!((end.seen, &end.bytes[..]), (info.seen, &b"end"[..]));
    assert_eq!(volume.read(&path("f"), None, 1, 2).unwrap().bytes, [0; 1024]);
    assert_eq!(volume.read(&path("f"), None, last + 1, 1).unwrap().bytes, []);
    assert!(matches!(volume.read(&path("f"), None, 0, u32::MAX), Err(VolumeError::TooLarge { .. })));
    let table = volume.block_table(&path("f"), None, 0, 4).unwrap();
    assert_eq!((table.seen, &table.present[..]), (info.seen, &[true, false, false, false][..]));
    assert_eq!(volume.block_table(&path("f"), None, last - 1, 9).unwrap().present, [false, true]);
    assert_eq!(volume.block_table(&path("f"), None, last + 9, 9).unwrap().present, []);
}

#[test]
fn reading_only_changes_nothing_and_waits_for_a_recovery() {
    let disk = SimulatedDisk::new(7);
    let reading = Options { mode: Mode::ReadOnly, ..SMALL };
    let bare = Volume::on(Arc::new(disk.clone()), None, reading).unwrap();
    assert!(matches!(bare.commit(transaction(vec![create("f")])), Err(VolumeError::ReadOnly)));
    let writing = volume(&disk);
    assert!(matches!(open(&disk, SMALL), Err(VolumeError::InUse { .. })));
    let seen = done(&writing, vec![create("f")]);
    assert!(matches!(open(&disk, reading), Err(VolumeError::NeedsRecovery)));
    drop(writing);
    let changes = disk.changes();
    assert_eq!(open(&disk, reading).unwrap().stat(&path("f")).unwrap().seen, seen);
    assert_eq!(disk.changes(), changes);
}

#[test]
fn many_writers_share_syncs_and_readers_see_whole_blocks() {
    let disk = SimulatedDisk::new(8);
    let volume = volume(&disk);
    done(&volume, vec![create("shared"), write("shared", None, 0, &[0; 2048])]);
    std::thread::scope(|scope| {
        for writer in 1..=4u8 {
            let volume = &volume;
            scope.spawn(move || {
                for round in 0..50 {
                    let name = format!("{writer}-{round}");
                    done(volume, vec![create(&name), write("shared", None, 0, &[writer; 2048])]);
                }
            });
        }
        for _ in 0..200 {
            let bytes = volume.read(&path("shared"), None, 0, 4).unwrap().bytes;
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn read");
        }
    });
    assert_eq!(volume.list(&VolumePath::top(), b"", 1000).unwrap().entries.len(), 201);
}

#[test]
fn the_table_forgets_the_oldest_first() {
    let disk = SimulatedDisk::new(9);
    let volume = open(&disk, Options { files_max: 3, ..SMALL }).unwrap();
    let seen: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| done(&volume, vec![create(name)])).collect();
    volume.checkpoint().unwrap();
    assert_ne!(volume.stat(&path("a")).unwrap().seen.file, seen[0].file);
    assert_eq!(volume.stat(&path("d")).unwrap().seen, seen[3]);
    let table = Table::load(&disk.folder(OWN_FOLDER)).unwrap().unwrap();
    assert!(table.get(FileId::TOP).is_some() && table.get(seen[3].file).is_some());
}

/// A folder is made under a short path, and then moved to where nothing in it can be named.
#[test]
fn names_whose_paths_would_be_too_long_cost_a_page_and_no_more() {
    let disk = SimulatedDisk::new(1);
    let volume = open(&disk, SMALL).unwrap();
    let folder = |at: &str| Operation::MakeFolder { path: path(at), mode: 0o755, owner: None };
    volume.commit(transaction(vec![folder("short"), create("short/s")])).unwrap();
    volume.commit(transaction((0..30).map(|index| create(&format!("short/{index:0200}"))).collect())).unwrap();
    let mut long = String::new();
    while long.len() + 200 < PATH_BYTES_MAX {
        long = format!("{long}{}{}", if long.is_empty() { "" } else { "/" }, "x".repeat(180));
        volume.commit(transaction(vec![folder(&long)])).unwrap();
    }
    let (last, long) = (format!("{long}/y"), long);
    assert!(last.len() + 201 > PATH_BYTES_MAX && long.len() < PATH_BYTES_MAX);
    volume.commit(transaction(vec![rename("short", &last)])).unwrap();
    let before = disk.listings();
    let listing = volume.list(&path(&last), b"", 1).unwrap();
    let names: Vec<_> = listing.entries.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!((names, listing.more), (vec![&b"s"[..]], false));
    assert_eq!(disk.listings(), before + 1);
}
