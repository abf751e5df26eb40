//! Locks across devices: what they exclude, what who has one sees, and what becomes of them when
//! connections and servers go.

use units::{LockKind, Rng};
use wire::volume::HeldLock;

use super::sim::{Faults, Outcome, Sim, options, taken};
use super::writers::{WRITE, device, open, read, sync, write};
use crate::call::{Call, Opened};
use crate::{ErrorKind, Handle, LockOwner, LockWish, OpenHow, SetAttributes, StreamError};

fn wish(number: u64, start: u64, end: u64, kind: Option<LockKind>) -> LockWish {
    LockWish { owner: LockOwner { is_flock: false, number }, start, end, kind, test: false, pid: number as u32 }
}

fn lock(sim: &mut Sim, at: usize, handle: Handle, wish: LockWish) -> Result<Option<HeldLock>, StreamError> {
    sim.wait(at, |done| Call::Lock { handle, wish, done })
}

fn exclusive(sim: &mut Sim, at: usize, handle: Handle) -> Result<bool, StreamError> {
    lock(sim, at, handle, ALL).map(|held| held.is_none())
}

fn unlock(sim: &mut Sim, at: usize, handle: Handle) {
    assert_eq!(lock(sim, at, handle, wish(1, 0, u64::MAX, None)).unwrap(), None);
}

fn look(sim: &mut Sim, at: usize, handle: Handle) -> Opened {
    sim.wait(at, |done| Call::Look { handle, done }).unwrap()
}

/// Tries until it is locked; what happens meanwhile takes time.
fn lock_soon(sim: &mut Sim, at: usize, handle: Handle, wish: LockWish) {
    while lock(sim, at, handle, wish).unwrap().is_some() {
        let later = sim.now + 500_000;
        sim.until(|sim| sim.now >= later);
    }
}

const ALL: LockWish = LockWish {
    owner: LockOwner { is_flock: false, number: 1 },
    start: 0,
    end: u64::MAX,
    kind: Some(LockKind::Exclusive),
    test: false,
    pid: 1,
};

/// Two devices with a file open that the server has.
fn two_devices(seed: u64) -> (Sim, [Handle; 2]) {
    let mut sim = Sim::new(seed, Faults::default());
    let at = [device(&mut sim, options()), device(&mut sim, options())];
    let first = open(&mut sim, at[0], "f", WRITE).unwrap();
    write(&mut sim, at[0], first, 0, vec![1; 1000]).unwrap();
    sync(&mut sim, at[0], first).unwrap();
    let second = open(&mut sim, at[1], "f", WRITE).unwrap();
    (sim, [first, second])
}

#[test]
fn who_locks_a_file_sees_what_the_one_before_wrote() {
    let (mut sim, [one, two]) = two_devices(1);
    assert_eq!(read(&mut sim, 1, two, 0, 10).unwrap(), [1; 10].as_slice());
    assert!(exclusive(&mut sim, 0, one).unwrap() && !exclusive(&mut sim, 1, two).unwrap());
    let test = LockWish { test: true, ..wish(7, 5, 5, Some(LockKind::Shared)) };
    let held = lock(&mut sim, 1, two, test).unwrap().unwrap();
    assert_eq!((held.range.start, held.range.end, held.pid, held.is_own), (0, u64::MAX, 1, false));
    let unchanged = look(&mut sim, 1, two);
    assert!(unchanged.unchanged);
    write(&mut sim, 0, one, 0, vec![2; 2000]).unwrap();
    sync(&mut sim, 0, one).unwrap();
    unlock(&mut sim, 0, one);
    // It is told to the server without waiting for its answer.
    lock_soon(&mut sim, 1, two, ALL);
    let opened = look(&mut sim, 1, two);
    assert_eq!((opened.info.size, opened.unchanged), (2000, false));
    assert_eq!(read(&mut sim, 1, two, 0, 3000).unwrap(), [2; 2000].as_slice());
    assert!(look(&mut sim, 1, two).unchanged);
    // Ranges of several owners, on one device and on two.
    unlock(&mut sim, 1, two);
    let part = |owner, start, end| wish(owner, start, end, Some(LockKind::Exclusive));
    lock_soon(&mut sim, 0, one, part(1, 0, 9));
    assert_eq!(lock(&mut sim, 0, one, part(2, 10, 19)).unwrap(), None);
    assert!(lock(&mut sim, 0, one, part(2, 9, 9)).unwrap().unwrap().is_own);
    assert_eq!(lock(&mut sim, 1, two, part(1, 20, 29)).unwrap(), None);
    // The last handle takes them with it.
    sim.wait(0, |done| Call::Close { handle: one, done }).unwrap();
    lock_soon(&mut sim, 1, two, part(1, 0, 29));
}

#[test]
fn a_lock_outlives_a_connection_and_a_server_and_is_lost_to_who_comes_later() {
    let (mut sim, [one, two]) = two_devices(2);
    assert!(exclusive(&mut sim, 0, one).unwrap());
    sim.devices[0].cut();
    for _ in 0..20 {
        assert!(!exclusive(&mut sim, 1, two).unwrap());
    }
    // The server's machine stops, and with it all that it knew of locks.
    sim.devices[1].cut();
    sim.until(|sim| !sim.devices[1].engine.status().connected);
    sim.devices[1].hold_off(u64::MAX);
    sim.volume = None;
    sim.until(|sim| !sim.devices[0].engine.status().connected);
    sim.until(|sim| sim.devices[0].engine.status().connected && sim.volume.is_some());
    sync(&mut sim, 0, one).unwrap();
    assert!(exclusive(&mut sim, 0, one).unwrap());
    sim.devices[1].hold_off(0);
    sim.until(|sim| sim.devices[1].engine.status().connected);
    assert!(!exclusive(&mut sim, 1, two).unwrap(), "the first has claimed it");
    // Away for longer than the server waits.
    let back = sim.now + 60_000_000;
    sim.devices[0].cut();
    sim.until(|sim| !sim.devices[0].engine.status().connected);
    sim.devices[0].hold_off(back);
    lock_soon(&mut sim, 1, two, ALL);
    write(&mut sim, 1, two, 0, vec![3; 1000]).unwrap();
    sync(&mut sim, 1, two).unwrap();
    sim.until(|sim| sim.devices[0].engine.status().connected && sim.now > back);
    let later = sim.now + 1_000_000;
    sim.until(|sim| sim.now >= later);
    let text = write(&mut sim, 0, one, 0, vec![4; 10]).unwrap_err();
    assert!(text.kind() == ErrorKind::Failed && text.to_string().contains("lost"), "{text}");
    assert!(sync(&mut sim, 0, one).is_err() && exclusive(&mut sim, 0, one).is_err());
    let (of, name) = (one.into(), b"user.a".to_vec());
    let set = sim.wait(0, |done| Call::ChangeXattr { of, name, change: crate::XattrChange::Remove, done });
    assert_eq!(set.unwrap_err().kind(), ErrorKind::Failed, "as a write");
    unlock(&mut sim, 0, one);
    unlock(&mut sim, 1, two);
    lock_soon(&mut sim, 0, one, ALL);
}

/// Who was away for too long does not write under the lock that somebody else has by then.
#[test]
fn what_was_written_under_a_lost_lock_is_not_sent() {
    let (mut sim, [one, two]) = two_devices(4);
    assert!(exclusive(&mut sim, 0, one).unwrap());
    sim.devices[0].cut();
    sim.until(|sim| !sim.devices[0].engine.status().connected);
    let back = sim.now + 60_000_000;
    sim.devices[0].hold_off(back);
    write(&mut sim, 0, one, 0, vec![7; 10]).unwrap();
    lock_soon(&mut sim, 1, two, ALL);
    look(&mut sim, 1, two);
    sim.until(|sim| sim.now > back && !sim.devices[0].engine.status().lost.is_empty());
    assert_eq!(sim.devices[0].engine.status().lost.len(), 1);
    assert!(sync(&mut sim, 0, one).is_err());
    // The other one goes on as if nobody had been there.
    assert_eq!(read(&mut sim, 1, two, 0, 10).unwrap(), [1; 10].as_slice());
    write(&mut sim, 1, two, 0, vec![3; 10]).unwrap();
    sync(&mut sim, 1, two).unwrap();
    unlock(&mut sim, 1, two);
    unlock(&mut sim, 0, one);
    let _ = sim.wait(0, |done| Call::Close { handle: one, done });
    let again = open(&mut sim, 0, "f", WRITE).unwrap();
    lock_soon(&mut sim, 0, again, ALL);
    assert_eq!(read(&mut sim, 0, again, 0, 10).unwrap(), [3; 10].as_slice());
}

/// A lock is of the file, under each of its names and also when one of them is gone.
#[test]
fn a_lock_belongs_to_the_file_and_not_to_a_name() {
    let (mut sim, [one, two]) = two_devices(5);
    sim.wait(0, |done| Call::Link { from: b"f".to_vec(), to: b"g".to_vec(), done }).unwrap();
    let theirs = open(&mut sim, 1, "g", WRITE).unwrap();
    let mine = open(&mut sim, 0, "g", WRITE).unwrap();
    assert!(exclusive(&mut sim, 0, one).unwrap() && !exclusive(&mut sim, 1, theirs).unwrap());
    let held = lock(&mut sim, 0, mine, wish(2, 5, 5, Some(LockKind::Shared))).unwrap().unwrap();
    assert!(held.is_own && held.pid == 1);
    // A handle that is not the last one takes nothing with it, and a name neither.
    sim.wait(0, |done| Call::Close { handle: mine, done }).unwrap();
    write(&mut sim, 0, one, 0, vec![2; 10]).unwrap();
    sync(&mut sim, 0, one).unwrap();
    sim.wait(1, |done| Call::Remove { path: b"f".to_vec(), done }).unwrap();
    assert!(!exclusive(&mut sim, 1, two).unwrap());
    unlock(&mut sim, 0, one);
    lock_soon(&mut sim, 1, two, ALL);
    look(&mut sim, 1, theirs);
    assert_eq!(read(&mut sim, 1, theirs, 0, 10).unwrap(), [2; 10].as_slice());
    // The last name neither.
    sim.wait(1, |done| Call::Remove { path: b"g".to_vec(), done }).unwrap();
    assert!(!exclusive(&mut sim, 0, one).unwrap());
    unlock(&mut sim, 1, theirs);
    lock_soon(&mut sim, 0, one, ALL);
}

/// A file that two devices make to lock it is one file; who writes to it first is not overtaken by
/// who makes it later.
#[test]
fn a_file_that_two_devices_make_without_writing_is_the_same() {
    let mut sim = Sim::new(3, Faults::default());
    let at = [device(&mut sim, options()), device(&mut sim, options())];
    let how = OpenHow { create: Some(0o644), ..WRITE };
    let files = at.map(|at| open(&mut sim, at, "new", how).unwrap());
    for (at, file) in at.into_iter().zip(files) {
        // As touch(1) does.
        let wanted = SetAttributes { mtime_ns: Some(7), atime_ns: Some(8), ..SetAttributes::default() };
        sim.wait(at, |done| super::sim::set(file.into(), wanted, done)).unwrap();
        sync(&mut sim, at, file).unwrap();
    }
    assert!(exclusive(&mut sim, 0, files[0]).unwrap() && !exclusive(&mut sim, 1, files[1]).unwrap());
    assert_eq!(look(&mut sim, 0, files[0]).info.mtime_ns, 7);
    write(&mut sim, 0, files[0], 0, vec![1; 9000]).unwrap();
    sync(&mut sim, 0, files[0]).unwrap();
    unlock(&mut sim, 0, files[0]);
    lock_soon(&mut sim, 1, files[1], ALL);
    assert_eq!(look(&mut sim, 1, files[1]).info.size, 9000);
    write(&mut sim, 1, files[1], 0, vec![2; 10]).unwrap();
    sync(&mut sim, 1, files[1]).unwrap();
    let expected = [vec![2; 10], vec![1; 8990]].concat();
    assert_eq!(read(&mut sim, 1, files[1], 0, 10_000).unwrap(), expected);
    // One that makes it when it has content, and writes at once without having asked.
    let late = device(&mut sim, options());
    let made = open(&mut sim, late, "other", how).unwrap();
    let other = open(&mut sim, 0, "other", how).unwrap();
    write(&mut sim, 0, other, 0, vec![3; 9000]).unwrap();
    sync(&mut sim, 0, other).unwrap();
    sync(&mut sim, late, made).unwrap();
    write(&mut sim, late, made, 0, vec![4; 10]).unwrap();
    sync(&mut sim, late, made).unwrap();
    assert_eq!(read(&mut sim, late, made, 0, 10_000).unwrap(), [vec![4; 10], vec![3; 8990]].concat());
}

/// What a device is doing.
enum Doing {
    Locks(Outcome<Option<HeldLock>>),
    Looks(Outcome<Opened>),
    Reads(Outcome<bytes::Bytes>),
    Writes(u64, Outcome<()>),
    Syncs(u64, Outcome<()>),
}

/// Four devices add to a counter, each under its lock. Every value was written by one, also if
/// connections are cut and the server's machine stops; without such faults nothing ever fails.
#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
fn sim_a_counter_under_a_lock_misses_no_step() {
    for seed in 0..12 {
        let faults =
            if seed % 3 == 0 { Faults::default() } else { Faults { cuts: 2, crashes: 1, ..Faults::default() } };
        let mut sim = Sim::new(seed, Faults::default());
        let first = device(&mut sim, options());
        let file = open(&mut sim, first, "f", WRITE).unwrap();
        write(&mut sim, first, file, 0, 0u64.to_le_bytes().to_vec()).unwrap();
        sync(&mut sim, first, file).unwrap();
        let mut handles = vec![file];
        for _ in 1..4 {
            let at = device(&mut sim, options());
            handles.push(open(&mut sim, at, "f", WRITE).unwrap());
        }
        sim.faults = faults;
        let all = Some(LockKind::Exclusive);
        let begin = |sim: &mut Sim, at: usize, handle| {
            Doing::Locks(sim.call(at, |done| Call::Lock { handle, wish: wish(1, 0, u64::MAX, all), done }))
        };
        let mut doing: Vec<Doing> = (0..4).map(|at| begin(&mut sim, at, handles[at])).collect();
        let (mut written, mut refused, mut failed) = (Vec::new(), 0, 0);
        while written.len() < 60 {
            sim.step();
            if faults.crashes > 0 && sim.rng.below(2000) == 0 {
                let crash = sim.disk.changes() + 1 + sim.rng.below(60);
                sim.disk.crash_at(Some(crash));
            }
            for at in 0..4 {
                let handle = handles[at];
                let next = match &doing[at] {
                    Doing::Locks(outcome) => match taken(outcome) {
                        None => continue,
                        Some(Ok(None)) => Some(Doing::Looks(sim.call(at, |done| Call::Look { handle, done }))),
                        Some(Ok(Some(_))) => {
                            refused += 1;
                            Some(begin(&mut sim, at, handle))
                        }
                        Some(Err(_)) => None,
                    },
                    Doing::Looks(outcome) => match taken(outcome) {
                        None => continue,
                        Some(Ok(_)) => {
                            let token = super::writers::TOKEN;
                            Some(Doing::Reads(sim.call(at, |done| Call::Read {
                                handle,
                                token,
                                offset: 0,
                                bytes: 8,
                                done,
                            })))
                        }
                        Some(Err(_)) => None,
                    },
                    Doing::Reads(outcome) => match taken(outcome) {
                        None => continue,
                        Some(Ok(bytes)) => {
                            let value = u64::from_le_bytes(bytes.as_ref().try_into().unwrap()) + 1;
                            let bytes = bytes::Bytes::copy_from_slice(&value.to_le_bytes());
                            let write = |done| Call::Write { handle, offset: 0, bytes, done };
                            Some(Doing::Writes(value, sim.call(at, write)))
                        }
                        Some(Err(_)) => None,
                    },
                    Doing::Writes(value, outcome) => match taken(outcome) {
                        None => continue,
                        Some(Ok(())) => Some(Doing::Syncs(*value, sim.call(at, |done| Call::Sync { handle, done }))),
                        Some(Err(_)) => None,
                    },
                    Doing::Syncs(value, outcome) => match taken(outcome) {
                        None => continue,
                        Some(Ok(())) => {
                            written.push(*value);
                            drop(sim.call(at, |done| Call::Lock { handle, wish: wish(1, 0, u64::MAX, None), done }));
                            Some(begin(&mut sim, at, handle))
                        }
                        Some(Err(_)) => None,
                    },
                };
                doing[at] = match next {
                    Some(next) => next,
                    None => {
                        failed += 1;
                        drop(sim.call(at, |done| Call::Lock { handle, wish: wish(1, 0, u64::MAX, None), done }));
                        // What was refused is let go with the handle.
                        let _ = sim.wait(at, |done| Call::Close { handle, done });
                        handles[at] = open(&mut sim, at, "f", WRITE).unwrap();
                        begin(&mut sim, at, handles[at])
                    }
                };
            }
        }
        // An answer may come late, so that others went on meanwhile; but no value was written
        // twice.
        written.sort_unstable();
        assert!(written.windows(2).all(|pair| pair[0] < pair[1]), "seed {seed}: {written:?}");
        if faults.crashes == 0 {
            assert_eq!((failed, *written.last().unwrap()), (0, written.len() as u64), "seed {seed}");
            assert!(refused > 10, "seed {seed}: {refused}");
        }
    }
}

#[test]
fn a_lock_that_comes_when_the_file_is_closed_is_given_back() {
    for steps in 0..30 {
        let (mut sim, [first, second]) = two_devices(steps);
        let locking = sim.call(0, |done| Call::Lock { handle: first, wish: ALL, done });
        for _ in 0..steps {
            sim.step();
        }
        sim.wait(0, |done| Call::Close { handle: first, done }).unwrap();
        sim.until(|_| taken(&locking).is_some());
        let later = sim.now + 1_000_000;
        sim.until(|sim| sim.now >= later);
        assert!(exclusive(&mut sim, 1, second).unwrap(), "after {steps} steps");
    }
}

#[test]
fn who_looks_while_the_file_changes_or_goes_gets_an_answer() {
    for seed in 0..200 {
        let (mut sim, [first, _]) = two_devices(seed);
        sim.faults = Faults { late: 2, ..Faults::default() };
        let other = open(&mut sim, 0, "f", WRITE).unwrap();
        let connection = sim.devices[0].generation;
        let looking = sim.call(0, |done| Call::Look { handle: first, done });
        for _ in 0..seed % 10 {
            sim.step();
        }
        write(&mut sim, 0, other, 0, vec![2; 2000]).unwrap();
        let syncing = sim.call(0, |done| Call::Sync { handle: other, done });
        for _ in 0..seed / 4 {
            sim.step();
        }
        let removing = sim.call(0, |done| Call::Remove { path: b"f".to_vec(), done });
        sim.until(|_| taken(&syncing).is_some());
        sim.until(|_| taken(&looking).is_some());
        sim.until(|_| taken(&removing).is_some());
        assert_eq!(sim.devices[0].generation, connection, "seed {seed}: only a new connection helped");
    }
}

/// A process that is killed leaves its locks to the next one, and no lock that it had released.
#[test]
fn locks_outlive_a_process_and_what_was_unlocked_stays_unlocked() {
    for seed in 0..40 {
        let (mut sim, [one, two]) = two_devices(seed);
        sim.keep_records(0);
        assert!(exclusive(&mut sim, 0, one).unwrap(), "{seed}");
        sim.restart_device(0);
        assert!(!exclusive(&mut sim, 1, two).unwrap(), "{seed}");
        write(&mut sim, 0, one, 0, vec![3; 10]).unwrap();
        sync(&mut sim, 0, one).unwrap();
        let unlocked = sim.call(0, |done| Call::Lock { handle: one, wish: wish(1, 0, u64::MAX, None), done });
        assert!(taken(&unlocked).is_some(), "nobody waits for it");
        for _ in 0..seed {
            sim.step();
        }
        sim.restart_device(0);
        sim.until(|sim| sim.devices[0].engine.status().connected);
        let tries = (0..40).position(|_| {
            let later = sim.now + 100_000;
            sim.until(|sim| sim.now >= later);
            exclusive(&mut sim, 1, two).unwrap()
        });
        assert!(tries.is_some(), "{seed}: it is still locked");
        assert_eq!(read(&mut sim, 1, two, 0, 10).unwrap(), [3; 10].as_slice(), "{seed}");
    }
}
