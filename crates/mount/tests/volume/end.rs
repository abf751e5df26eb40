//! Volumes that cannot be written, servers that go away, and what a mount says when it ends.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::thread;

use stream::{Options, Room};

use crate::world::{World, close, errno, need_fuse, pattern, soft};

const READ_ONLY: i32 = 30;

#[test]
fn fuse_a_volume_for_reading_is_not_written() {
    need_fuse!();
    let world = World::with(|config| config.writable = false);
    fs::write(world.at("f"), "read me").expect("written");
    let writable = World::new();
    fs::write(writable.at("f"), "read me").expect("written");
    for mount in [world.mount(), writable.mount_with(Options::default(), |options| options.read_only = true)] {
        assert_eq!(fs::read(mount.at("f")).expect("read"), b"read me");
        assert_eq!(errno(fs::write(mount.at("f"), "x")), READ_ONLY);
        assert_eq!(errno(fs::write(mount.at("g"), "x")), READ_ONLY);
        assert_eq!(errno(fs::create_dir(mount.at("d"))), READ_ONLY);
        assert_eq!(errno(fs::remove_file(mount.at("f"))), READ_ONLY);
        assert_eq!(errno(fs::rename(mount.at("f"), mount.at("g"))), READ_ONLY);
    }
}

#[test]
fn fuse_a_hard_mount_waits_for_its_server() {
    need_fuse!();
    let mut world = World::new();
    let mount = world.mount();
    let mut file = mount.open_created("during");
    world.stop();
    file.write_all(b"2").expect("taken");
    let (said, hears) = mpsc::channel();
    let waiting = thread::spawn(move || said.send(close(file)).expect("listened to"));
    assert!(hears.try_recv().is_err(), "the close cannot be over without a server");
    world.start();
    hears.recv().expect("it ends").expect("closed");
    waiting.join().expect("no panic");
    assert_eq!(fs::read(world.at("during")).expect("there"), b"2");
    assert_eq!(mount.mounted.unmount().expect("unmounts"), mount::UnmountReport::default());
}

#[test]
fn fuse_a_soft_mount_fails_without_its_server() {
    need_fuse!();
    let mut world = World::new();
    fs::write(world.at("f"), pattern(100_000, 1)).expect("written");
    let mount = world.mount_with(soft(), |_| {});
    let file = mount.open("f");
    let mut some = [0; 100];
    file.read_exact_at(&mut some, 0).expect("read");
    world.stop();
    assert_eq!(errno(file.read_at(&mut some, 90_000)), 110, "ETIMEDOUT");
    file.read_exact_at(&mut some, 0).expect("what is here can be read");
    world.start();
    // A read may still run out of its time while the connection is made again.
    while let Err(error) = file.read_exact_at(&mut some, 90_000) {
        assert_eq!(error.raw_os_error(), Some(110), "ETIMEDOUT");
    }
    assert!(some[..] == pattern(100_000, 1)[90_000..90_100]);
}

#[test]
fn fuse_unsent_changes_stay_in_their_folder_and_are_sent_by_the_next_mount() {
    need_fuse!();
    let mut world = World::new();
    let unsent = tempfile::tempdir().expect("tempdir");
    let room = || Some(Room { folder: unsent.path().join("unsent"), bytes: 1 << 20 });
    let mount = world.mount_with(Options { outbox: room(), ..soft() }, |_| {});
    fs::write(mount.at("f"), "before").expect("written");
    let file = mount.open("f");
    world.stop();
    file.write_all_at(b"unsent", 0).expect("taken");
    assert_eq!(errno(file.sync_all()), 110, "ETIMEDOUT");
    drop(file);
    let report = mount.mounted.unmount().expect("unmounts");
    assert!(report.unsent_transactions > 0 && report.lost.is_empty(), "{report:?}");
    drop(mount);
    world.start();
    assert_eq!(fs::read(world.at("f")).expect("there"), b"before");
    let mount = world.mount_with(Options { outbox: room(), ..soft() }, |_| {});
    assert_eq!(fs::read(mount.at("f")).expect("read"), b"unsent");
    assert_eq!(mount.mounted.unmount().expect("unmounts"), mount::UnmountReport::default());
    assert_eq!(fs::read(world.at("f")).expect("there"), b"unsent");
}

#[test]
fn fuse_without_a_folder_unsent_changes_are_lost_and_it_says_so() {
    need_fuse!();
    let mut world = World::new();
    let mount = world.mount_with(soft(), |_| {});
    fs::write(mount.at("f"), "before").expect("written");
    let file = mount.open("f");
    world.stop();
    file.write_all_at(b"unsent", 0).expect("taken");
    // The mount is in use, and its server away: it ends all the same.
    let report = mount.mounted.unmount().expect("unmounts");
    assert_eq!((report.unsent_transactions, report.lost.len()), (0, 1), "{report:?}");
    assert!(report.lost[0].path.contains('f'), "{report:?}");
    drop(file);
}

#[test]
fn fuse_a_file_that_was_removed_is_read_as_far_as_it_is_here() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    fs::write(mount.at("f"), pattern(10_000, 5)).expect("written");
    assert_eq!(fs::read(mount.at("f")).expect("read").len(), 10_000);
    let file = mount.open("f");
    fs::remove_file(mount.at("f")).expect("removed");
    assert_eq!(file.metadata().expect("still known").len(), 10_000);
    let mut some = [0; 5000];
    file.read_exact_at(&mut some, 5000).expect("read");
    assert!(some[..] == pattern(10_000, 5)[5000..]);
    // Its name is free.
    fs::write(mount.at("f"), "another").expect("written");
    assert_eq!(fs::read(mount.at("f")).expect("read"), b"another");
}
