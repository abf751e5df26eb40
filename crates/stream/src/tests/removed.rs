//! Files that are removed or replaced while they are open, folders with files that are only here,
//! and changes that the server refuses for a while.

use std::time::Duration;

use bytes::Bytes;
use units::Rng;
use wire::volume::{Change, LeaseKind};

use super::sim::{Faults, Sim, options, with_outbox};
use super::writers::{WRITE, close, device, fill, open, read, sync, write};
use crate::call::Call;
use crate::{ErrorKind, FileRef, Handle, OpenHow, Options, SetAttributes, StreamError};

fn remove(sim: &mut Sim, at: usize, path: &str) -> Result<(), StreamError> {
    sim.wait(at, |done| Call::Remove { path: path.into(), done })
}

fn remove_folder(sim: &mut Sim, at: usize, path: &str) -> Result<(), StreamError> {
    sim.wait(at, |done| Call::RemoveFolder { path: path.into(), done })
}

fn make_folder(sim: &mut Sim, at: usize, path: &str) {
    sim.wait(at, |done| super::sim::folder(path.as_bytes().to_vec(), done)).unwrap();
}

fn rename(sim: &mut Sim, at: usize, from: &str, to: &str, replace: bool) -> Result<(), StreamError> {
    sim.wait(at, |done| Call::Rename { from: from.into(), to: to.into(), replace, done })
}

fn lease(sim: &mut Sim, at: usize, path: &str, seconds: u64) {
    let (of, kind, duration) = (FileRef::Path(path.into()), Some(LeaseKind::Exclusive), Duration::from_secs(seconds));
    sim.wait(at, |done| Call::Lease { of, kind, duration, done }).unwrap();
}

/// Lets so many microseconds pass.
fn pass(sim: &mut Sim, micros: u64) {
    let until = sim.now + micros;
    sim.until(|sim| sim.now >= until);
}

fn one_device(seed: u64) -> (Sim, usize) {
    let mut sim = Sim::new(seed, Faults::default());
    let one = device(&mut sim, options());
    (sim, one)
}

/// A file with a few bytes that the server has, open for writing.
fn synced(sim: &mut Sim, at: usize, path: &str) -> Handle {
    let file = open(sim, at, path, WRITE).unwrap();
    write(sim, at, file, 0, vec![1; 1000]).unwrap();
    sync(sim, at, file).unwrap();
    file
}

#[test]
fn regress_a_folder_with_unsent_files_is_not_empty() {
    let (mut sim, one) = one_device(20);
    make_folder(&mut sim, one, "d");
    make_folder(&mut sim, one, "e");
    let file = open(&mut sim, one, "d/x", WRITE).unwrap();
    write(&mut sim, one, file, 0, vec![7; 900]).unwrap();
    assert_eq!(remove_folder(&mut sim, one, "d").unwrap_err().kind(), ErrorKind::NotEmpty);
    assert_eq!(rename(&mut sim, one, "e", "d", true).unwrap_err().kind(), ErrorKind::NotEmpty);
    rename(&mut sim, one, "d", "d", true).unwrap();
    sync(&mut sim, one, file).unwrap();
    assert_eq!(sim.on_server(b"d/x"), Some(vec![7; 900]), "what was acknowledged is there");
    close(&mut sim, one, file).unwrap();
    // What is removed first, sent or not, is in the way of nothing.
    remove(&mut sim, one, "d/x").unwrap();
    let file = open(&mut sim, one, "d/y", WRITE).unwrap();
    write(&mut sim, one, file, 0, vec![7; 900]).unwrap();
    remove(&mut sim, one, "d/y").unwrap();
    remove_folder(&mut sim, one, "d").unwrap();
    close(&mut sim, one, file).unwrap();
    let status = sim.devices[one].engine.status();
    assert!(status.lost.is_empty() && status.unsent.unsent_bytes == 0, "{status:?}");
}

#[test]
fn regress_unsent_files_are_in_the_way_of_what_may_not_replace_them() {
    let (mut sim, one) = one_device(21);
    let other = synced(&mut sim, one, "other");
    close(&mut sim, one, other).unwrap();
    let file = open(&mut sim, one, "x", WRITE).unwrap();
    write(&mut sim, one, file, 0, vec![7; 900]).unwrap();
    assert_eq!(rename(&mut sim, one, "other", "x", false).unwrap_err().kind(), ErrorKind::Exists);
    let made = sim.wait(one, |done| super::sim::folder(b"x".to_vec(), done));
    assert_eq!(made.unwrap_err().kind(), ErrorKind::Exists);
    let change = Change::MakeLink { path: b"x".to_vec(), target: b"y"[..].into(), owner: None };
    let made = sim.wait(one, |done| Call::Make { path: b"x".to_vec(), change, done });
    assert_eq!(made.unwrap_err().kind(), ErrorKind::Exists);
    close(&mut sim, one, file).unwrap();
    assert_eq!(sim.on_server(b"x"), Some(vec![7; 900]));
}

/// How a file loses its name while it is open.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loses {
    Unsent,
    Sent,
    /// Half of it is on its way.
    Changed,
    Replaced,
}

#[test]
fn regress_a_file_removed_while_it_is_open_goes_on_here() {
    for (seed, how) in [(22, Loses::Unsent), (23, Loses::Sent), (24, Loses::Changed), (25, Loses::Replaced)] {
        let (mut sim, one) = one_device(seed);
        let other = synced(&mut sim, one, "other");
        let file = open(&mut sim, one, "f", WRITE).unwrap();
        write(&mut sim, one, file, 0, vec![1; 1000]).unwrap();
        if how != Loses::Unsent {
            sync(&mut sim, one, file).unwrap();
        }
        if how == Loses::Changed {
            write(&mut sim, one, file, 500, vec![2; 100]).unwrap();
        }
        match how {
            Loses::Replaced => {
                close(&mut sim, one, other).unwrap();
                rename(&mut sim, one, "other", "f", true).unwrap();
            }
            _ => remove(&mut sim, one, "f").unwrap(),
        }
        let there = sim.on_server(b"f");
        // Eight times what may be unsent.
        for part in 0..16 {
            write(&mut sim, one, file, 1000 + part * 32_768, vec![3; 32_768]).unwrap();
        }
        let found = read(&mut sim, one, file, 0, 2000).unwrap();
        let mut expected = [vec![1; 1000], vec![3; 1000]].concat();
        if how == Loses::Changed {
            expected[500..600].fill(2);
        }
        assert!(found == expected, "{how:?}");
        let info = sim.wait(one, |done| Call::Stat { of: file.into(), done }).unwrap();
        assert_eq!(info.size, 1000 + 16 * 32_768, "{how:?}");
        let status = sim.devices[one].engine.status();
        assert_eq!(status.unsent.unsent_bytes, 0, "{how:?}: nothing of it is ever sent");
        // Others have all the room that there is.
        let more = open(&mut sim, one, "more", WRITE).unwrap();
        write(&mut sim, one, more, 0, vec![4; 60_000]).unwrap();
        close(&mut sim, one, more).unwrap();
        sync(&mut sim, one, file).unwrap();
        sim.wait(one, |done| Call::SetSize { of: file.into(), size: 10, done }).unwrap();
        assert_eq!(read(&mut sim, one, file, 0, 2000).unwrap(), vec![1; 10], "{how:?}");
        close(&mut sim, one, file).unwrap();
        assert_eq!(sim.on_server(b"f"), there, "{how:?}: what has the name now is not touched");
        assert!(sim.devices[one].engine.status().lost.is_empty(), "{how:?}");
    }
}

#[test]
fn regress_attributes_of_a_removed_file_are_not_those_of_the_next_one() {
    let (mut sim, one) = one_device(26);
    let file = synced(&mut sim, one, "f");
    remove(&mut sim, one, "f").unwrap();
    let next = synced(&mut sim, one, "f");
    close(&mut sim, one, next).unwrap();
    sim.wait(one, |done| super::sim::set(file.into(), SetAttributes { mode: Some(0o600), ..Default::default() }, done))
        .unwrap();
    sim.wait(one, |done| super::sim::set(file.into(), SetAttributes { mtime_ns: Some(5), ..Default::default() }, done))
        .unwrap();
    let info = sim.wait(one, |done| Call::Stat { of: file.into(), done }).unwrap();
    assert_eq!((info.mode, info.mtime_ns), (0o600, 5));
    let info = sim.wait(one, |done| Call::Stat { of: FileRef::Path(b"f".to_vec()), done }).unwrap();
    assert_eq!(info.mode, 0o644);
    assert_ne!(info.mtime_ns, 5);
    close(&mut sim, one, file).unwrap();
}

#[test]
fn regress_removing_a_file_whose_changes_are_refused_makes_room() {
    let mut sim = Sim::new(27, Faults::default());
    let one = device(&mut sim, Options { dirty_bytes: 16 << 20, ..options() });
    let file = synced(&mut sim, one, "f");
    let new = open(&mut sim, one, "new", WRITE).unwrap();
    fill(&sim);
    write(&mut sim, one, file, 0, vec![2; 3 << 20]).unwrap();
    write(&mut sim, one, new, 0, vec![2; 2 << 20]).unwrap();
    assert_eq!(sync(&mut sim, one, file).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(sync(&mut sim, one, new).unwrap_err().kind(), ErrorKind::NoSpace);
    write(&mut sim, one, file, 4 << 20, vec![3; 1000]).unwrap();
    // Neither a name that depends on what is refused nor one that does not waits for ever.
    assert_eq!(rename(&mut sim, one, "new", "newer", true).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(rename(&mut sim, one, "f", "g", true).unwrap_err().kind(), ErrorKind::NoSpace);
    remove(&mut sim, one, "f").unwrap();
    remove(&mut sim, one, "new").unwrap();
    assert_eq!((sim.on_server(b"f"), sim.on_server(b"new")), (None, None));
    assert_eq!(read(&mut sim, one, file, (4 << 20) - 1, 2).unwrap(), vec![0, 3]);
    assert_eq!(sim.devices[one].engine.status().unsent.unsent_bytes, 0);
    close(&mut sim, one, file).unwrap();
    close(&mut sim, one, new).unwrap();
    assert!(sim.devices[one].engine.status().lost.is_empty());
}

#[test]
fn regress_a_folder_moves_with_changes_that_are_refused() {
    let mut sim = Sim::new(28, Faults::default());
    let one = device(&mut sim, Options { dirty_bytes: 16 << 20, ..options() });
    make_folder(&mut sim, one, "d");
    let file = synced(&mut sim, one, "d/f");
    fill(&sim);
    write(&mut sim, one, file, 0, vec![2; 3 << 20]).unwrap();
    assert_eq!(sync(&mut sim, one, file).unwrap_err().kind(), ErrorKind::NoSpace);
    rename(&mut sim, one, "d", "e", true).unwrap();
    sim.disk.set_capacity(None);
    // Tried again by itself.
    sim.until(|sim| sim.devices[one].engine.status().unsent.unsent_bytes == 0);
    let lost = sim.devices[one].engine.status().lost;
    assert!(lost.is_empty(), "{lost:?}");
    let found = sim.on_server(b"e/f").map(|found| (found.len(), found.iter().all(|byte| *byte == 2)));
    assert_eq!(found, Some((3 << 20, true)));
    close(&mut sim, one, file).unwrap();
}

#[test]
fn regress_changes_go_on_when_a_lease_of_somebody_else_ends() {
    let mut sim = Sim::new(29, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let file = synced(&mut sim, one, "f");
    let gone = synced(&mut sim, one, "gone");
    lease(&mut sim, two, "f", 60);
    lease(&mut sim, two, "gone", 60);
    write(&mut sim, one, file, 0, vec![2; 100]).unwrap();
    write(&mut sim, one, gone, 0, vec![2; 100]).unwrap();
    assert_eq!(sync(&mut sim, one, file).unwrap_err().kind(), ErrorKind::Leased);
    assert_eq!(sync(&mut sim, one, gone).unwrap_err().kind(), ErrorKind::Leased);
    assert_eq!(remove(&mut sim, one, "gone").unwrap_err().kind(), ErrorKind::Leased, "it does not wait");
    // Other files have room in spite of it.
    let other = open(&mut sim, one, "other", WRITE).unwrap();
    for part in 0..20 {
        write(&mut sim, one, other, part * 10_000, vec![3; 10_000]).unwrap();
    }
    close(&mut sim, one, other).unwrap();
    pass(&mut sim, 61_000_000);
    sim.until(|sim| sim.devices[one].engine.status().unsent.unsent_bytes == 0);
    assert_eq!(sim.on_server(b"f").unwrap()[..100], [2; 100]);
    remove(&mut sim, one, "gone").unwrap();
    for handle in [file, gone] {
        close(&mut sim, one, handle).unwrap();
    }
    assert!(sim.devices[one].engine.status().lost.is_empty());
}

#[test]
fn regress_changes_of_a_file_that_another_device_took_away_are_told() {
    for replaced in [false, true] {
        let mut sim = Sim::new(30, Faults::default());
        let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
        let (file, clean) = (synced(&mut sim, one, "f"), synced(&mut sim, one, "clean"));
        write(&mut sim, one, file, 0, vec![2; 50_000]).unwrap();
        for name in ["f", "clean"] {
            remove(&mut sim, two, name).unwrap();
            if replaced {
                let theirs = open(&mut sim, two, name, WRITE).unwrap();
                close(&mut sim, two, theirs).unwrap();
                // Now this device knows.
                let theirs = open(&mut sim, one, name, WRITE).unwrap();
                close(&mut sim, one, theirs).unwrap();
            }
        }
        assert_eq!(sync(&mut sim, one, file).unwrap_err().kind(), ErrorKind::Stale, "replaced: {replaced}");
        let status = sim.devices[one].engine.status();
        assert!(status.lost.len() == 1 && status.unsent.unsent_bytes == 0, "{status:?}");
        let written = write(&mut sim, one, clean, 0, vec![2; 100]);
        let outcome = written.and_then(|()| sync(&mut sim, one, clean));
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Stale, "replaced: {replaced}");
        // They stand in nobody's way.
        let other = open(&mut sim, one, "other", WRITE).unwrap();
        write(&mut sim, one, other, 0, vec![3; 60_000]).unwrap();
        close(&mut sim, one, other).unwrap();
        close(&mut sim, one, file).unwrap_err();
        close(&mut sim, one, clean).unwrap_err();
    }
}

#[test]
fn regress_of_two_devices_that_make_and_empty_a_file_the_last_one_wins() {
    for (first, second) in [(0, 1), (1, 0)] {
        let mut sim = Sim::new(31, Faults::default());
        let devices = [device(&mut sim, options()), device(&mut sim, options())];
        let emptied = OpenHow { truncate: true, ..WRITE };
        let mut handles = [Handle(0); 2];
        for at in devices {
            // Both know that there is nothing.
            sim.wait(at, |done| Call::Stat { of: FileRef::Path(b"f".to_vec()), done }).unwrap_err();
            handles[at] = open(&mut sim, at, "f", emptied).unwrap();
            write(&mut sim, at, handles[at], 0, vec![at as u8; 500 + at]).unwrap();
        }
        for at in [first, second] {
            close(&mut sim, at, handles[at]).unwrap();
        }
        assert_eq!(sim.on_server(b"f"), Some(vec![second as u8; 500 + second]));
        assert!(devices.iter().all(|at| sim.devices[*at].engine.status().lost.is_empty()));
    }
}

#[test]
fn regress_a_file_can_be_emptied_by_who_opens_it_for_reading() {
    let (mut sim, one) = one_device(32);
    let file = synced(&mut sim, one, "f");
    close(&mut sim, one, file).unwrap();
    let emptied = open(&mut sim, one, "f", OpenHow { truncate: true, ..OpenHow::READ }).unwrap();
    assert_eq!(read(&mut sim, one, emptied, 0, 10).unwrap(), Bytes::new());
    assert_eq!(write(&mut sim, one, emptied, 0, vec![1]).unwrap_err().kind(), ErrorKind::BadHandle);
    close(&mut sim, one, emptied).unwrap();
    assert_eq!(sim.on_server(b"f"), Some(Vec::new()), "the close brings it to the server");
    let made = open(&mut sim, one, "g", OpenHow { create: Some(0o644), ..OpenHow::READ }).unwrap();
    close(&mut sim, one, made).unwrap();
    assert_eq!(sim.on_server(b"g"), Some(Vec::new()), "and so it does a file that was made");
}

#[test]
fn regress_the_time_of_a_folder_is_that_of_its_last_unsent_change() {
    let (mut sim, one) = one_device(33);
    make_folder(&mut sim, one, "d");
    let time =
        |sim: &mut Sim| sim.wait(one, |done| Call::Stat { of: FileRef::Path(b"d".to_vec()), done }).unwrap().mtime_ns;
    let before = time(&mut sim);
    pass(&mut sim, 1_000_000);
    let file = open(&mut sim, one, "d/x", WRITE).unwrap();
    let made = time(&mut sim);
    assert!(made > before, "{made} {before}");
    pass(&mut sim, 1_000_000);
    remove(&mut sim, one, "d/x").unwrap();
    close(&mut sim, one, file).unwrap();
    assert!(time(&mut sim) > made);
    let listed = sim.wait(one, |done| Call::List { path: Vec::new(), done }).unwrap();
    assert!(listed[0].info.mtime_ns > made, "a listing says the same");
    // Whoever sets it has the last word.
    sim.wait(one, |done| {
        super::sim::set(FileRef::Path(b"d".to_vec()), SetAttributes { mtime_ns: Some(5), ..Default::default() }, done)
    })
    .unwrap();
    assert_eq!(time(&mut sim), 5);
}

#[test]
fn regress_what_follows_a_renumbered_transaction_is_sent_after_a_restart() {
    let mut sim = Sim::new(34, Faults::default());
    let (one, two) = (device(&mut sim, with_outbox(options())), device(&mut sim, options()));
    let file = synced(&mut sim, one, "f");
    lease(&mut sim, two, "f", 3600);
    sim.devices[one].cut();
    sim.until(|sim| !sim.devices[one].engine.status().connected);
    sim.devices[one].hold_off(u64::MAX);
    for value in 2..5 {
        write(&mut sim, one, file, 0, vec![value; 5000]).unwrap();
        drop(sim.call(one, |done| Call::Sync { handle: file, done }));
    }
    sim.until(|sim| sim.devices[one].engine.status().unsent.stored_transactions == 3);
    let stored: Vec<u64> = sim.devices[one].storage.stored.keys().copied().collect();
    // The first one is refused, so it gets another number when it is sent again.
    let now = sim.now;
    sim.devices[one].hold_off(now);
    sim.until(|sim| sim.devices[one].engine.status().connected);
    pass(&mut sim, 500_000);
    let (of, duration) = (FileRef::Path(b"f".to_vec()), Duration::ZERO);
    sim.wait(two, |done| Call::Lease { of, kind: None, duration, done }).unwrap();
    drop(sim.call(one, |done| Call::Sync { handle: file, done }));
    sim.until(|sim| !sim.devices[one].storage.stored.contains_key(&stored[0]));
    let now: Vec<u64> = sim.devices[one].storage.stored.keys().copied().collect();
    assert!(now.len() == 3 && now[..2] == stored[1..], "the others were not sent yet: {now:?} {stored:?}");
    sim.restart_device(one);
    sim.until(|sim| sim.devices[one].engine.status().connected);
    sim.wait(one, |done| Call::SyncAll { done }).unwrap();
    assert!(sim.devices[one].storage.lost.is_empty(), "{:?}", sim.devices[one].storage.lost);
    assert!(sim.devices[one].engine.status().lost.is_empty());
    assert_eq!(sim.on_server(b"f"), Some(vec![4; 5000]));
    sim.until(|sim| sim.devices[one].idle());
    assert!(sim.devices[one].storage.stored.is_empty());
}

/// Whatever the server refuses meanwhile, no call waits for ever, what a sync acknowledged is
/// there, and what is lost was told by a close.
#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
fn sim_refusals_hang_nobody_and_lose_nothing_in_silence() {
    const NAMES: [&str; 4] = ["a", "b", "d/c", "d/e"];
    super::model::seeds(20, |seed| {
        let cuts = if seed % 2 == 0 { 0 } else { 3 };
        let mut sim = Sim::new(seed, Faults { cuts, ..Faults::default() });
        let own = Options { dirty_bytes: 2 << 20, ..options() };
        let one = device(&mut sim, if seed % 3 == 0 { with_outbox(own) } else { own });
        let two = device(&mut sim, options());
        make_folder(&mut sim, one, "d");
        let mut handles: Vec<Handle> = Vec::new();
        let mut failed_closes = 0;
        let refused = |error: &StreamError| matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Leased);
        for _ in 0..150 {
            let name = NAMES[sim.rng.below(4) as usize];
            let some = sim.rng.below(handles.len().max(1) as u64) as usize;
            let handle = handles.get(some).copied();
            match (sim.rng.below(16), handle) {
                (0 | 1, _) if handles.len() < 8 => {
                    let how = OpenHow { truncate: sim.rng.below(4) == 0, ..WRITE };
                    match open(&mut sim, one, name, how) {
                        Ok(handle) => handles.push(handle),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
                    }
                }
                (2..=6, Some(handle)) => {
                    let most = if sim.rng.below(3) == 0 { 3 << 20 } else { 20_000 };
                    let (offset, length) = (sim.rng.below(9000), 1 + sim.rng.below(most) as usize);
                    let value = sim.rng.next_u64() as u8;
                    if let Err(error) = write(&mut sim, one, handle, offset, vec![value; length]) {
                        assert!(refused(&error) || error.kind() == ErrorKind::OutboxFull, "{error}");
                    }
                }
                (7 | 8, Some(handle)) => match sync(&mut sim, one, handle) {
                    Ok(()) => sees_what_the_server_has(&mut sim, one, handle),
                    Err(error) => assert!(refused(&error), "{error}"),
                },
                (9, Some(handle)) => {
                    handles.swap_remove(some);
                    if let Err(error) = close(&mut sim, one, handle) {
                        assert!(refused(&error), "{error}");
                        failed_closes += 1;
                    }
                }
                (10, _) => {
                    let to = NAMES[sim.rng.below(4) as usize];
                    let replace = sim.rng.below(2) == 0;
                    drop(rename(&mut sim, one, name, to, replace));
                }
                (11, _) => drop(remove(&mut sim, one, name)),
                (12, _) => {
                    if remove_folder(&mut sim, one, "d").is_ok() {
                        sim.disk.set_capacity(None);
                        make_folder(&mut sim, one, "d");
                    }
                }
                (13, _) if sim.rng.below(2) == 0 => fill(&sim),
                (13, _) => sim.disk.set_capacity(None),
                (14, _) => {
                    let seconds = 1 + sim.rng.below(20);
                    let (of, kind) = (FileRef::Path(name.into()), Some(LeaseKind::Exclusive));
                    let duration = Duration::from_secs(seconds);
                    drop(sim.wait(two, |done| Call::Lease { of, kind, duration, done }));
                }
                _ => {
                    let micros = sim.rng.below(5_000_000);
                    pass(&mut sim, micros);
                }
            }
            let lost = sim.devices[one].engine.status().lost;
            assert!(failed_closes > 0 || lost.is_empty(), "{lost:?}");
        }
        sim.disk.set_capacity(None);
        // All leases have ended.
        pass(&mut sim, 25_000_000);
        sim.until(|sim| sim.devices[one].engine.status().unsent.unsent_transactions == 0);
        for handle in handles {
            sync(&mut sim, one, handle).unwrap();
            sees_what_the_server_has(&mut sim, one, handle);
            close(&mut sim, one, handle).unwrap();
        }
        let status = sim.devices[one].engine.status();
        assert!(status.unsent.unsent_bytes == 0 && status.unsent.unsent_transactions == 0, "{status:?}");
        sim.until(|sim| sim.devices[one].idle());
        assert!(sim.devices[one].storage.stored.is_empty());
    });
}

/// A file that has a name holds on the server what this device reads of it.
fn sees_what_the_server_has(sim: &mut Sim, at: usize, handle: Handle) {
    let Some(path) = sim.devices[at].engine.path_of_handle(handle) else { return };
    let mut found = Vec::new();
    loop {
        let part = read(sim, at, handle, found.len() as u64, crate::READ_BYTES_MAX).unwrap();
        if part.is_empty() {
            break;
        }
        found.extend(part);
    }
    let there = sim.on_server(&path);
    assert!(there.as_deref() == Some(&found[..]), "{} of {:?}", found.len(), there.map(|there| there.len()));
}
