//! Two devices with the same volume: who opens sees what was closed, and who is late is told.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::thread;

use rustix::fs::XattrFlags;

use crate::world::{Mount, World, close, errno, need_fuse, pattern};

const STALE: i32 = 116;

#[test]
fn fuse_opening_sees_what_others_closed() {
    need_fuse!();
    let world = World::new();
    let (one, two) = (world.mount(), world.mount());
    // The same size, longer, shorter: pages, and the size that the kernel goes by.
    for (round, bytes) in [10_000, 10_000, 50_000, 100, 4096].into_iter().enumerate() {
        let content = pattern(bytes, round as u32);
        let written = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        fs::write(written.0.at("f"), &content).expect("written");
        assert!(fs::read(written.1.at("f")).expect("read") == content, "round {round}");
        assert!(fs::read(written.0.at("f")).expect("read") == content, "round {round}");
    }
    // What an editor does: a new file over the old name, at once after it was read.
    fs::write(one.at("f.new"), "replaced").expect("written");
    fs::rename(one.at("f.new"), one.at("f")).expect("renamed");
    assert_eq!(fs::read(two.at("f")).expect("read"), b"replaced");
}

#[test]
fn fuse_fsynced_writes_are_seen_before_the_close() {
    need_fuse!();
    let world = World::new();
    let (one, two) = (world.mount(), world.mount());
    fs::write(one.at("f"), "before").expect("written");
    let file = one.open("f");
    file.write_all_at(b"synced", 0).expect("written");
    file.sync_data().expect("synced");
    assert_eq!(fs::read(two.at("f")).expect("read"), b"synced");
}

#[test]
fn fuse_one_of_two_makes_a_file_first() {
    need_fuse!();
    let world = World::new();
    let mounts = [world.mount(), world.mount()];
    for round in 0..20 {
        let barrier = Barrier::new(2);
        let make = |mount: &Mount| {
            barrier.wait();
            OpenOptions::new().write(true).create_new(true).open(mount.at(&format!("lock {round}"))).is_ok()
        };
        let made = thread::scope(|scope| {
            let other = scope.spawn(|| make(&mounts[1]));
            [make(&mounts[0]), other.join().expect("no panic")]
        });
        assert_eq!(made.iter().filter(|made| **made).count(), 1, "round {round}");
    }
}

#[test]
fn fuse_a_stale_writer_is_told() {
    need_fuse!();
    let world = World::new();
    let (one, two) = (world.mount(), world.mount());
    fs::write(one.at("f"), "original").expect("written");
    let late = two.open("f");
    late.write_all_at(b"LATE", 0).expect("written");
    fs::write(one.at("f"), "quicker").expect("written");
    assert_eq!(errno(late.sync_all()), STALE);
    let told = close(late);
    assert!(told.as_ref().is_ok() || told.as_ref().is_err_and(|error| error.raw_os_error() == Some(STALE)), "{told:?}");
    assert_eq!(fs::read(world.at("f")).expect("there"), b"quicker", "nothing of it was applied");
    assert_eq!(fs::read(two.at("f")).expect("read"), b"quicker");
    // Opened again, it writes.
    fs::write(two.at("f"), "again").expect("written");
    assert_eq!(fs::read(one.at("f")).expect("read"), b"again");
    let report = two.mounted.unmount().expect("unmounts");
    assert_eq!(report.lost.len(), 1, "{report:?}");
    assert!(report.lost[0].path.contains('f') && report.unsent_transactions == 0, "{report:?}");
}

#[test]
fn fuse_two_append_to_one_file() {
    need_fuse!();
    let world = World::new();
    let mounts = [world.mount(), world.mount()];
    for round in 0..10 {
        for mount in &mounts {
            let mut log = mount.append("log");
            writeln!(log, "round {round}").expect("written");
            close(log).expect("closed");
        }
    }
    let expected: String = (0..10).map(|round| format!("round {round}\nround {round}\n")).collect();
    assert_eq!(fs::read_to_string(world.at("log")).expect("there"), expected);
}

#[test]
fn fuse_a_lease_keeps_others_away() {
    need_fuse!();
    let world = World::new();
    let (one, two) = (world.mount(), world.mount());
    fs::write(one.at("f"), "mine").expect("written");
    let set = |mount: &Mount, value: &str| {
        rustix::fs::setxattr(mount.at("f"), "user.runnel.lease", value.as_bytes(), XattrFlags::empty())
    };
    let get = |mount: &Mount| {
        let mut value = [0; 64];
        let count = rustix::fs::getxattr(mount.at("f"), "user.runnel.lease", &mut value[..]).expect("told");
        String::from_utf8(value[..count].to_vec()).expect("text")
    };
    assert_eq!(get(&one), "none");
    set(&one, "exclusive 60").expect("taken");
    assert!(get(&one).starts_with("exclusive "), "{}", get(&one));
    assert_eq!(get(&two), "none");
    assert_eq!(set(&two, "shared 60"), Err(rustix::io::Errno::BUSY));
    let file = two.open("f");
    file.write_all_at(b"yours", 0).expect("written");
    assert_eq!(errno(file.sync_all()), 16, "EBUSY");
    drop(file);
    fs::write(one.at("f"), "still mine").expect("written");
    set(&one, "none").expect("given back");
    assert_eq!(get(&one), "none");
    fs::write(two.at("f"), "yours now").expect("written");
    assert_eq!(fs::read(one.at("f")).expect("read"), b"yours now");
}
