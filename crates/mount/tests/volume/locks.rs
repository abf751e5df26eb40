//! Locks of fcntl(2) and flock(2) on mounts of two devices: what they exclude, what is read under
//! them, and when they end.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::FlockOperation;

use crate::world::{Mount, Proxy, World, close, errno, need_fuse, pattern};

/// A range from its start, as long as it says; 0 is all.
fn range(kind: i32, start: i64, bytes: i64) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: bytes, l_pid: 0 }
}

const ALL: (i64, i64) = (0, 0);

fn try_lock(file: &File, kind: i32, (start, bytes): (i64, i64)) -> nix::Result<i32> {
    fcntl(file, FcntlArg::F_SETLK(&range(kind, start, bytes)))
}

/// Waits for it.
fn lock(file: &File, kind: i32, (start, bytes): (i64, i64)) {
    fcntl(file, FcntlArg::F_SETLKW(&range(kind, start, bytes))).expect("locked");
}

fn unlock(file: &File) {
    try_lock(file, libc::F_UNLCK, ALL).expect("unlocked");
}

/// What is in the way of a lock for writing.
fn in_the_way(file: &File, (start, bytes): (i64, i64)) -> libc::flock {
    let mut asked = range(libc::F_WRLCK, start, bytes);
    fcntl(file, FcntlArg::F_GETLK(&mut asked)).expect("told");
    asked
}

fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("told").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

/// Two devices with an open file each.
fn devices(world: &World) -> ([Mount; 2], [File; 2]) {
    fs::write(world.at("f"), pattern(10_000, 1)).expect("written");
    let mounts = [world.mount(), world.mount()];
    let files = [mounts[0].open("f"), mounts[1].open("f")];
    (mounts, files)
}

#[test]
fn fuse_ranges_locked_on_one_device_exclude_the_other() {
    need_fuse!();
    let world = World::new();
    let (_mounts, [one, two]) = devices(&world);
    try_lock(&one, libc::F_WRLCK, (10, 10)).expect("locked");
    assert_eq!(try_lock(&two, libc::F_RDLCK, (0, 11)), Err(nix::Error::EAGAIN));
    let held = in_the_way(&two, ALL);
    assert_eq!((i32::from(held.l_type), held.l_start, held.l_len, held.l_pid), (libc::F_WRLCK, 10, 10, 0));
    assert_eq!(i32::from(in_the_way(&one, ALL).l_type), libc::F_UNLCK, "its own is not in the way");
    try_lock(&two, libc::F_RDLCK, (0, 10)).expect("locked");
    try_lock(&two, libc::F_WRLCK, (20, 0)).expect("locked");
    try_lock(&one, libc::F_RDLCK, (0, 10)).expect("both read");
    let held = in_the_way(&one, (1 << 40, 1));
    assert_eq!((held.l_start, held.l_len), (20, 0), "to the end of whatever it becomes");
    assert_eq!(try_lock(&one, libc::F_WRLCK, (0, 1)), Err(nix::Error::EAGAIN));
    try_lock(&two, libc::F_UNLCK, (0, 10)).expect("unlocked");
    lock(&one, libc::F_WRLCK, (0, 1));
    // Locks of flock have nothing to do with them.
    rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive).expect("locked");
    assert_eq!(rustix::fs::flock(&one, FlockOperation::NonBlockingLockShared), Err(rustix::io::Errno::WOULDBLOCK));
    rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared).expect("others may read");
    rustix::fs::flock(&one, FlockOperation::LockShared).expect("locked");
}

#[test]
fn fuse_who_locks_a_file_reads_what_was_written_under_the_lock_before() {
    need_fuse!();
    for direct in [false, true] {
        let world = World::new();
        fs::write(world.at("f"), pattern(10_000, 1)).expect("written");
        let mount = || world.mount_with(stream::Options::default(), |options| options.direct = direct);
        let mounts = [mount(), mount()];
        let files = [mounts[0].open("f"), mounts[1].open("f")];
        // The kernel has the pages of both, and their sizes.
        assert!(files.iter().all(|file| read(file) == pattern(10_000, 1)));
        for (round, bytes) in [10_000, 50_000, 100, 4096, 4096, 20_000].into_iter().enumerate() {
            let content = pattern(bytes, 2 + round as u32);
            let [one, two] = if round % 2 == 0 { [&files[0], &files[1]] } else { [&files[1], &files[0]] };
            lock(one, libc::F_WRLCK, ALL);
            one.set_len(bytes as u64).expect("cut");
            one.write_all_at(&content, 0).expect("written");
            // Nobody syncs or closes.
            unlock(one);
            lock(two, libc::F_RDLCK, ALL);
            assert!(read(two) == content, "round {round}, direct {direct}");
            unlock(two);
        }
    }
}

#[test]
fn fuse_closing_a_descriptor_ends_the_locks_of_its_process() {
    need_fuse!();
    let world = World::new();
    let (mounts, [one, two]) = devices(&world);
    lock(&one, libc::F_WRLCK, ALL);
    assert_eq!(try_lock(&two, libc::F_RDLCK, ALL), Err(nix::Error::EAGAIN));
    one.write_all_at(b"under the lock", 0).expect("written");
    close(File::open(mounts[0].at("f")).expect("another descriptor, for reading")).expect("closed");
    lock(&two, libc::F_WRLCK, ALL);
    assert!(read(&two).starts_with(b"under the lock"));
}

#[test]
fn fuse_locks_of_open_files_end_with_their_last_descriptor() {
    need_fuse!();
    let world = World::new();
    let (mounts, [one, two]) = devices(&world);
    rustix::fs::flock(&one, FlockOperation::LockExclusive).expect("locked");
    let clone = one.try_clone().expect("a second descriptor");
    drop(one);
    assert_eq!(rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive), Err(rustix::io::Errno::WOULDBLOCK));
    drop(clone);
    rustix::fs::flock(&two, FlockOperation::LockExclusive).expect("locked");
    // Those of fcntl that belong to an open file, of which the kernel does not tell that they end.
    let one = mounts[0].open("f");
    fcntl(&one, FcntlArg::F_OFD_SETLK(&range(libc::F_WRLCK, 5, 1))).expect("locked");
    let again = mounts[0].open("f");
    let asked = range(libc::F_WRLCK, 0, 0);
    assert_eq!(fcntl(&again, FcntlArg::F_OFD_SETLK(&asked)), Err(nix::Error::EAGAIN), "of the same device");
    drop(one);
    fcntl(&again, FcntlArg::F_OFD_SETLKW(&asked)).expect("locked");
}

/// Adds one to the number in a file, under its lock, some times.
fn add(file: &File, times: u64) {
    for _ in 0..times {
        fcntl(file, FcntlArg::F_OFD_SETLKW(&range(libc::F_WRLCK, 0, 0))).expect("locked");
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).expect("read");
        file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0).expect("written");
        fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, 0, 0))).expect("unlocked");
    }
}

#[test]
fn fuse_a_counter_under_a_lock_misses_no_step() {
    need_fuse!();
    let world = World::new();
    fs::write(world.at("counter"), 0u64.to_le_bytes()).expect("written");
    let mounts = [world.mount(), world.mount()];
    thread::scope(|scope| {
        for worker in 0..6 {
            let file = mounts[worker % 2].open("counter");
            scope.spawn(move || add(&file, 30));
        }
    });
    assert_eq!(fs::read(world.at("counter")).expect("read"), 180u64.to_le_bytes());
}

#[test]
fn fuse_a_lock_that_a_device_lost_while_it_was_away_is_told() {
    need_fuse!();
    let world = World::new();
    fs::write(world.at("f"), "at first").expect("written");
    let proxy = Proxy::new(&world);
    let (away, here) = (world.mount_through(&proxy), world.mount());
    let (one, two) = (away.open("f"), here.open("f"));
    lock(&one, libc::F_WRLCK, ALL);
    proxy.cut();
    // As soon as the server has given up waiting for the first.
    lock(&two, libc::F_WRLCK, ALL);
    two.write_all_at(b"meanwhile", 0).expect("written");
    two.sync_all().expect("synced");
    proxy.restore();
    // Asked after its lock was claimed again.
    assert_eq!(i32::from(in_the_way(&one, ALL).l_type), libc::F_WRLCK);
    const EIO: i32 = 5;
    assert_eq!(errno(one.write_all_at(b"too late", 0)), EIO);
    assert_eq!(errno(one.sync_all()), EIO);
    assert_eq!(try_lock(&one, libc::F_WRLCK, ALL), Err(nix::Error::EIO));
    unlock(&one);
    unlock(&two);
    lock(&one, libc::F_WRLCK, ALL);
    assert_eq!(read(&one), b"meanwhile");
    one.write_all_at(b"at last", 0).expect("written");
    close(one).expect("closed");
    lock(&two, libc::F_RDLCK, ALL);
    assert_eq!(read(&two), b"at lastle");
}

#[test]
fn fuse_locks_of_a_volume_for_reading_are_of_one_device() {
    need_fuse!();
    let world = World::with(|config| config.writable = false);
    fs::write(world.at("f"), "read me").expect("written");
    let (one, two) = (world.mount(), world.mount());
    let files = [&one, &two].map(|mount| File::open(mount.at("f")).expect("opens"));
    for file in &files {
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).expect("locked");
    }
    let again = File::open(one.at("f")).expect("opens");
    assert_eq!(rustix::fs::flock(&again, FlockOperation::NonBlockingLockShared), Err(rustix::io::Errno::WOULDBLOCK));
    // Who only reads a volume that others write has locks with them.
    let world = World::new();
    let (_mounts, [one, _two]) = devices(&world);
    let reader = world.mount_with(stream::Options::default(), |options| options.read_only = true);
    let reading = File::open(reader.at("f")).expect("opens");
    lock(&one, libc::F_WRLCK, ALL);
    assert_eq!(try_lock(&reading, libc::F_RDLCK, ALL), Err(nix::Error::EAGAIN));
    unlock(&one);
    lock(&reading, libc::F_RDLCK, ALL);
    assert_eq!(try_lock(&one, libc::F_WRLCK, ALL), Err(nix::Error::EAGAIN));
}
