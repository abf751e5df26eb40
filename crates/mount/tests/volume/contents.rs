//! Contents: written, read, cut, appended, sparse; and a mounted file against a plain one.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use stream::Options;
use units::{Rng, SplitMix64};

use crate::world::{World, close, errno, need_fuse, pattern};

#[test]
fn fuse_a_close_that_succeeds_means_that_the_server_has_it() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    let bytes = pattern(1_000_001, 1);
    let mut file = fs::File::create(mount.at("f")).expect("created");
    file.write_all(&bytes).expect("written");
    assert!(fs::read(mount.at("f")).expect("read") == bytes, "another descriptor sees it before");
    close(file).expect("closed");
    assert!(fs::read(world.at("f")).expect("there") == bytes, "the server has something else");

    let file = mount.open("f");
    file.write_all_at(b"fsynced", 500_000).expect("written");
    file.sync_all().expect("synced");
    let mut there = [0; 7];
    fs::File::open(world.at("f")).expect("there").read_exact_at(&mut there, 500_000).expect("read");
    assert_eq!(&there, b"fsynced");
    file.write_all_at(b"later", 0).expect("written");
    close(file).expect("closed");
    assert_eq!(&fs::read(world.at("f")).expect("there")[..5], b"later");
}

#[test]
fn fuse_files_are_read_from_the_server_and_kept() {
    need_fuse!();
    let world = World::new();
    let bytes = pattern(300_000, 2);
    fs::write(world.at("f"), &bytes).expect("written");
    let mount = world.mount();
    assert!(fs::read(mount.at("f")).expect("read") == bytes);
    let asked = mount.volume.status().blocks.blocks_asked;
    let reads = mount.mounted.fuse_counters().read;
    assert!(asked > 0 && reads > 0);
    // Opened again, the version is the same: the kernel has kept the pages.
    assert!(fs::read(mount.at("f")).expect("read") == bytes);
    assert_eq!(mount.volume.status().blocks.blocks_asked, asked);
    assert_eq!(mount.mounted.fuse_counters().read, reads, "the kernel asked again for what it had");
    // Somewhere in the middle, and behind the end.
    let mut file = mount.open("f");
    file.seek(SeekFrom::Start(123_456)).expect("sought");
    let mut some = [0; 777];
    file.read_exact(&mut some).expect("read");
    assert!(some[..] == bytes[123_456..124_233]);
    assert_eq!(file.read_at(&mut some, 300_000).expect("read"), 0);
    assert_eq!(file.read_at(&mut some, 299_990).expect("read"), 10);
}

#[test]
fn fuse_files_are_cut_and_extended() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    fs::write(mount.at("f"), pattern(10_000, 3)).expect("written");
    let file = mount.open("f");
    file.set_len(100).expect("cut");
    file.set_len(5000).expect("extended");
    close(file).expect("closed");
    let mut expected = pattern(10_000, 3)[..100].to_vec();
    expected.resize(5000, 0);
    assert!(fs::read(world.at("f")).expect("there") == expected);
    assert!(fs::read(mount.at("f")).expect("read") == expected);
    // By path, and by opening.
    nix::unistd::truncate(&mount.at("f"), 10).expect("cut");
    assert_eq!(fs::read(world.at("f")).expect("there"), expected[..10]);
    fs::write(mount.at("f"), "new").expect("written");
    assert_eq!(fs::read(world.at("f")).expect("there"), b"new");
    let file = mount.open("f");
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4096).expect("made longer");
    assert_eq!(file.metadata().expect("there").len(), 4096);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 10).expect("is that long");
    let refused = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
    close(file).expect("closed");
    assert_eq!(fs::metadata(world.at("f")).expect("there").len(), 4096);
}

#[test]
fn fuse_appending_goes_to_the_end() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    let mut log = mount.append("log");
    for line in 0..200 {
        writeln!(log, "line {line}").expect("written");
    }
    close(log).expect("closed");
    let mut again = mount.append("log");
    writeln!(again, "more").expect("written");
    close(again).expect("closed");
    let text = fs::read_to_string(world.at("log")).expect("there");
    assert_eq!(text.lines().count(), 201);
    assert!(text.starts_with("line 0\nline 1\n") && text.ends_with("line 199\nmore\n"));
}

#[test]
fn fuse_a_sparse_file_of_4_gib_costs_what_is_in_it() {
    need_fuse!();
    let world = World::new();
    let far = (4 << 30) + 12_345;
    let file = fs::File::create(world.at("sparse")).expect("created");
    file.write_all_at(b"far away", far).expect("written");
    file.set_len(5 << 30).expect("long");
    let mount = world.mount();
    let file = mount.open("sparse");
    assert_eq!(file.metadata().expect("there").len(), 5 << 30);
    let mut some = [1; 8];
    file.read_exact_at(&mut some, far).expect("read");
    assert_eq!(&some, b"far away");
    file.read_exact_at(&mut some, 3 << 30).expect("read");
    assert_eq!(some, [0; 8]);
    file.write_all_at(b"here", (2 << 30) - 2).expect("written");
    close(file).expect("closed");
    let mut there = [0; 4];
    let served = fs::File::open(world.at("sparse")).expect("there");
    served.read_exact_at(&mut there, (2 << 30) - 2).expect("read");
    assert_eq!(&there, b"here");
    let held = std::os::unix::fs::MetadataExt::blocks(&served.metadata().expect("there"));
    assert!(held < 200, "{held} units of 512 bytes are held");
    assert!(mount.volume.status().bytes_received < 100_000);
}

#[test]
fn fuse_room_is_reserved_and_holes_are_made_and_found() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    let blocks = |path: &Path| MetadataExt::blocks(&fs::metadata(path).expect("there"));
    let file = mount.open_created("f");
    file.write_all_at(&pattern(1 << 20, 5), 0).expect("written");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Not sent yet: it is sent first.
    rustix::fs::fallocate(&file, punch, 4096, (1 << 19) - 100).expect("punched");
    let mut expected = pattern(1 << 20, 5);
    expected[4096..4096 + (1 << 19) - 100].fill(0);
    assert!(fs::read(mount.at("f")).expect("read") == expected, "the device");
    assert!(fs::read(world.at("f")).expect("there") == expected, "the server");
    let seek = |whence| rustix::fs::seek(&file, whence);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok((1 << 19) & !4095));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 19)), Ok(1 << 20));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(1 << 20)), Err(rustix::io::Errno::NXIO));
    file.write_all_at(b"in the hole", 100_000).expect("written");
    assert_eq!(seek(rustix::fs::SeekFrom::Data(5000)), Ok(100_000));
    close(file).expect("closed");

    let file = mount.open("f");
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 8192).expect("zeros");
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).expect("room");
    let held = blocks(&world.at("f")) * 512;
    assert!(held >= 3 << 19, "the server keeps no room behind the end: {held}");
    assert_eq!(file.metadata().expect("there").len(), 1 << 20);
    assert!(fs::read(world.at("f")).expect("there")[..8192] == [0; 8192]);
    close(file).expect("closed");
    // What is told is at most as old as names are believed.
    let give_up = Instant::now() + Duration::from_secs(10);
    while blocks(&mount.at("f")) != blocks(&world.at("f")) {
        assert!(Instant::now() < give_up, "{} and {}", blocks(&mount.at("f")), blocks(&world.at("f")));
        std::thread::yield_now();
    }
}

#[test]
fn fuse_a_copy_within_a_volume_moves_no_bytes_over_the_link() {
    need_fuse!();
    let world = World::new();
    let mut bytes = pattern(5 << 20, 6);
    bytes[1 << 20..3 << 20].fill(0);
    let served = fs::File::create(world.at("f")).expect("made");
    served.write_all_at(&bytes[..1 << 20], 0).expect("written");
    served.write_all_at(&bytes[3 << 20..], 3 << 20).expect("written");
    let mount = world.mount();
    let (from, to) = (mount.open("f"), mount.open_created("g"));
    let received = mount.volume.status().bytes_received;
    let (mut read_at, mut write_at) = (0, 0);
    loop {
        let copied = rustix::fs::copy_file_range(&from, Some(&mut read_at), &to, Some(&mut write_at), 1 << 30);
        if copied.expect("copied") == 0 {
            break;
        }
    }
    assert_eq!((read_at, write_at), (5 << 20, 5 << 20));
    assert!(mount.volume.status().bytes_received - received < 100_000, "the bytes went over the link");
    close(to).expect("closed");
    assert!(fs::read(world.at("g")).expect("there") == bytes);
    assert!(MetadataExt::blocks(&fs::metadata(world.at("g")).expect("there")) <= 7 << 20 >> 10, "the hole was filled");
    // A file that has no name any more is this device's alone: its bytes go through here.
    fs::remove_file(mount.at("f")).expect("removed");
    let to = mount.open_created("h");
    from.write_all_at(b"unsent", 5 << 20).expect("written");
    let mut read_at = 5 << 20;
    assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut read_at), &to, None, 100), Ok(6));
    close(to).expect("closed");
    assert_eq!(fs::read(world.at("h")).expect("there"), b"unsent");
}

#[test]
fn fuse_a_new_file_is_made_once() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    let exclusive = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(mount.at("f"));
    close(exclusive().expect("made")).expect("closed");
    assert_eq!(errno(exclusive()), 17, "EEXIST");
    assert!(world.at("f").is_file());
    // A file that is made and left alone is there too.
    close(fs::File::create(mount.at("g")).expect("made")).expect("closed");
    assert!(world.at("g").is_file());
}

#[test]
fn fuse_an_open_file_is_written_on_after_its_name_and_attributes_changed() {
    need_fuse!();
    let world = World::new();
    let mount = world.mount();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.at("f")).expect("made");
    fs::set_permissions(mount.at("f"), fs::Permissions::from_mode(0o640)).expect("chmod");
    file.write_all(b"one").expect("written");
    file.sync_all().expect("synced");
    file.set_modified(std::time::UNIX_EPOCH).expect("set");
    file.write_all(b"two").expect("written");
    fs::rename(mount.at("f"), mount.at("g")).expect("renamed");
    file.write_all(b"three").expect("written");
    file.sync_all().expect("synced");
    fs::set_permissions(mount.at("g"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let mut text = String::new();
    file.rewind().expect("sought");
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "onetwothree");
    file.write_all(b"four").expect("written");
    close(file).expect("closed");
    assert_eq!(fs::read_to_string(world.at("g")).expect("there"), "onetwothreefour");
    assert_eq!(fs::metadata(world.at("g")).expect("there").permissions().mode() & 0o7777, 0o600);
    assert!(mount.volume.status().lost.is_empty());
}

#[test]
fn fuse_direct_reads_ask_for_exactly_their_bytes() {
    need_fuse!();
    let bytes = pattern(200_000, 4);
    for direct in [false, true] {
        // Another server for each: one that learned from the first would push.
        let world = World::with(|config| config.block_bytes = 1024);
        fs::write(world.at("f"), &bytes).expect("written");
        let mount = world.mount_with(Options::default(), |options| options.direct = direct);
        let file = mount.open("f");
        let mut some = [0; 1024];
        for block in [150usize, 7, 90] {
            file.read_exact_at(&mut some, block as u64 * 1024).expect("read");
            assert!(some[..] == bytes[block * 1024..(block + 1) * 1024]);
        }
        // A page holds four blocks. What the server pushes because they look like the beginning of
        // a scan comes on top.
        assert_eq!(mount.volume.status().blocks.blocks_asked, if direct { 3 } else { 12 }, "direct: {direct}");
        file.write_all_at(b"written", 1500).expect("written");
        file.read_exact_at(&mut some[..7], 1500).expect("read");
        assert_eq!(&some[..7], b"written");
        file.write_all_at(&bytes[1500..1507], 1500).expect("written");
        close(file).expect("closed");
        assert!(fs::read(world.at("f")).expect("there") == bytes);
    }
}

/// Random reads, writes, cuts and syncs on a mounted file and on a plain one, with a small memory:
/// the same bytes.
#[test]
fn fuse_ref_a_mounted_file_equals_a_plain_one() {
    need_fuse!();
    let plain_folder = tempfile::tempdir().expect("tempdir");
    for seed in 0..6 {
        let world = World::with(|config| config.block_bytes = if seed % 2 == 0 { 4096 } else { 512 });
        let options = Options { memory_bytes: 64 << 10, ..Options::default() };
        let mount = world.mount_with(options, |options| options.direct = seed % 3 == 2);
        let start = pattern(200_000, seed);
        fs::write(world.at("f"), &start).expect("written");
        let plain_path = plain_folder.path().join(format!("{seed}"));
        fs::write(&plain_path, &start).expect("written");
        let plain = OpenOptions::new().read(true).write(true).open(&plain_path).expect("opens");
        let mut file = mount.open("f");
        let mut rng = SplitMix64(u64::from(seed));
        for step in 0..250u32 {
            let (at, count) = (rng.below(300_000), rng.below(20_000) as usize + 1);
            match rng.below(10) {
                0..=3 => {
                    let (mut ours, mut theirs) = (vec![0; count], vec![0; count]);
                    let (got, expected) = (file.read_at(&mut ours, at), plain.read_at(&mut theirs, at));
                    assert_eq!(got.expect("read"), expected.expect("read"), "seed {seed} step {step}");
                    assert!(ours == theirs, "seed {seed} step {step}: {count} bytes at {at} differ");
                }
                4..=7 => {
                    let bytes = pattern(count, step);
                    file.write_all_at(&bytes, at).expect("written");
                    plain.write_all_at(&bytes, at).expect("written");
                }
                8 => {
                    file.set_len(at).expect("cut");
                    plain.set_len(at).expect("cut");
                }
                _ if rng.below(2) == 0 => file.sync_data().expect("synced"),
                _ => {
                    close(file).expect("closed");
                    file = mount.open("f");
                }
            }
            assert_eq!(
                file.metadata().expect("there").len(),
                plain.metadata().expect("there").len(),
                "seed {seed} step {step}"
            );
        }
        close(file).expect("closed");
        let expected = fs::read(&plain_path).expect("read");
        assert!(fs::read(world.at("f")).expect("there") == expected, "seed {seed}: the server has other bytes");
        assert!(fs::read(mount.at("f")).expect("read") == expected, "seed {seed}: the mount has other bytes");
    }
}
