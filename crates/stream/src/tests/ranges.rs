//! Ranges that the server changes, beside what is written to the same file.

use super::sim::{Faults, Sim, options, taken};
use super::writers::{WRITE, close, device, open, read, sync, write};
use crate::call::Call;
use crate::{Allocation, ErrorKind, FileRef, Handle, OpenHow, SetAttributes};

const PUNCH: Allocation = Allocation { zero: true, reserve: false, extend: false };

fn copy(sim: &mut Sim, at: usize, from: (Handle, u64), to: (Handle, u64), length: u64) -> Result<u64, ErrorKind> {
    sim.wait(at, |done| Call::Copy { from, to, length, done }).map_err(|error| error.kind())
}

/// A file of 4,000 bytes that the server has.
fn file(sim: &mut Sim, at: usize, path: &str) -> Handle {
    let handle = open(sim, at, path, WRITE).unwrap();
    write(sim, at, handle, 0, vec![7; 4000]).unwrap();
    sync(sim, at, handle).unwrap();
    handle
}

#[test]
fn what_is_written_while_a_change_of_our_own_is_on_its_way_is_sent_after_it() {
    for seed in 0..40 {
        let mut sim = Sim::new(seed, Faults::default());
        let one = device(&mut sim, options());
        let handle = file(&mut sim, one, "f");
        let of = FileRef::Path(b"f".to_vec());
        let wanted = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let changing = sim.call(one, |done| Call::SetAttributes { of, wanted, done });
        let punching = sim.call(one, |done| Call::Allocate { handle, range: (0, 1000), allocation: PUNCH, done });
        for _ in 0..seed {
            sim.step();
        }
        write(&mut sim, one, handle, 1000, b"written".to_vec()).unwrap();
        sync(&mut sim, one, handle).unwrap();
        sim.until(|_| taken(&changing).is_some());
        sim.until(|_| taken(&punching).is_some());
        let expected = [&[0; 1000][..], b"written", &[7; 2993]].concat();
        assert_eq!(sim.on_server(b"f"), Some(expected.clone()), "{seed}");
        assert_eq!(read(&mut sim, one, handle, 0, 5000).unwrap(), expected, "{seed}");
        close(&mut sim, one, handle).unwrap();
    }
}

#[test]
fn a_copy_is_made_by_the_server_and_not_of_what_another_device_changed() {
    let mut sim = Sim::new(61, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let source = file(&mut sim, one, "f");
    let target = open(&mut sim, one, "g", WRITE).unwrap();
    assert_eq!(copy(&mut sim, one, (source, 1000), (target, 10), 10_000), Ok(3000));
    assert_eq!(copy(&mut sim, one, (source, 4000), (target, 10), 10_000), Ok(0));
    assert_eq!(sim.on_server(b"g"), Some([&[0; 10][..], &[7; 3000]].concat()));
    assert_eq!(read(&mut sim, one, target, 0, 5000).unwrap().len(), 3010);
    // Not sent yet, and changed by somebody else: the caller has to read and write.
    write(&mut sim, one, source, 0, b"new".to_vec()).unwrap();
    assert_eq!(copy(&mut sim, one, (source, 0), (target, 0), 10), Err(ErrorKind::Unsupported));
    sync(&mut sim, one, source).unwrap();
    let other = open(&mut sim, two, "f", WRITE).unwrap();
    write(&mut sim, two, other, 0, b"other".to_vec()).unwrap();
    close(&mut sim, two, other).unwrap();
    assert_eq!(copy(&mut sim, one, (source, 0), (target, 0), 10), Err(ErrorKind::Unsupported));
    let reader = open(&mut sim, one, "g", OpenHow::READ).unwrap();
    assert_eq!(copy(&mut sim, one, (target, 0), (reader, 0), 10), Err(ErrorKind::BadHandle));
}

#[test]
fn an_empty_file_is_new_unless_another_device_made_it_first() {
    let mut sim = Sim::new(62, Faults::default());
    let one = device(&mut sim, options());
    // It believes for long that there is no file of a name.
    let two = device(&mut sim, crate::Options { names_ttl: std::time::Duration::from_secs(3600), ..options() });
    let stat = |sim: &mut Sim, at, path: &str| {
        sim.wait(at, |done| Call::Stat { of: FileRef::Path(path.into()), done }).unwrap()
    };
    let handle = open(&mut sim, one, "f", WRITE).unwrap();
    let made = stat(&mut sim, one, "f");
    close(&mut sim, one, handle).unwrap();
    // It was this device that made it, so its times stay as they were told.
    assert_eq!(stat(&mut sim, one, "f").ctime_ns, made.ctime_ns);

    let (first, second) = (open(&mut sim, one, "lock", WRITE).unwrap(), open(&mut sim, two, "lock", WRITE).unwrap());
    close(&mut sim, one, first).unwrap();
    sync(&mut sim, two, second).unwrap();
    let seen = [one, two].map(|at| stat(&mut sim, at, "lock").seen.file);
    assert_eq!(seen[0], seen[1], "both have the file that came first");

    // With other permission bits it is a file that nobody was asked whether he may open.
    for (name, reads_first) in [("own", true), ("mine", false)] {
        let (first, second) = (open(&mut sim, one, name, WRITE).unwrap(), open(&mut sim, two, name, WRITE).unwrap());
        let wanted = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        sim.wait(one, |done| Call::SetAttributes { of: first.into(), wanted, done }).unwrap();
        write(&mut sim, one, first, 0, b"secret".to_vec()).unwrap();
        close(&mut sim, one, first).unwrap();
        sync(&mut sim, two, second).unwrap();
        if reads_first {
            let found = read(&mut sim, two, second, 0, 100);
            assert!(found.as_ref().is_err_and(|error| error.kind() == ErrorKind::Stale), "{found:?}");
        }
        let written = write(&mut sim, two, second, 0, b"other".to_vec()).and_then(|()| sync(&mut sim, two, second));
        assert_eq!(written.unwrap_err().kind(), ErrorKind::Stale);
        assert_eq!(sim.on_server(name.as_bytes()), Some(b"secret".to_vec()));
        assert_ne!(read(&mut sim, two, second, 0, 100).ok(), Some("secret".into()));
    }

    // Who has written something by then has a conflict, also if that was not to be sent yet.
    let missing = sim.wait(two, |done| Call::Stat { of: FileRef::Path(b"log".to_vec()), done });
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let first = open(&mut sim, one, "log", WRITE).unwrap();
    write(&mut sim, one, first, 0, b"first".to_vec()).unwrap();
    close(&mut sim, one, first).unwrap();
    let second = open(&mut sim, two, "log", WRITE).unwrap();
    let making = sim.call(two, |done| Call::Sync { handle: second, done });
    write(&mut sim, two, second, 0, b"SECOND".to_vec()).unwrap();
    sim.until(|_| taken(&making).is_some());
    assert_eq!(sync(&mut sim, two, second).unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(sim.on_server(b"log"), Some(b"first".to_vec()));
}

#[test]
fn what_is_done_by_a_handle_is_done_to_its_file_and_no_other() {
    let mut sim = Sim::new(63, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let handle = file(&mut sim, one, "f");
    let source = file(&mut sim, one, "g");
    let other = open(&mut sim, two, "new", WRITE).unwrap();
    write(&mut sim, two, other, 0, b"another file".to_vec()).unwrap();
    close(&mut sim, two, other).unwrap();
    let rename = |done| Call::Rename { from: b"new".to_vec(), to: b"f".to_vec(), replace: true, done };
    sim.wait(two, rename).unwrap();
    let punched = sim.wait(one, |done| Call::Allocate { handle, range: (0, 1000), allocation: PUNCH, done });
    assert_eq!(punched.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(copy(&mut sim, one, (source, 0), (handle, 0), 10), Err(ErrorKind::Unsupported));
    let wanted = SetAttributes { mode: Some(0o666), ..SetAttributes::default() };
    // Attributes of a file that was made here are sent later.
    sim.wait(one, |done| Call::SetAttributes { of: handle.into(), wanted, done }).unwrap();
    assert_eq!(sync(&mut sim, one, handle).unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(sim.on_server(b"f"), Some(b"another file".to_vec()));
    // So it is by path, for whoever had the file in mind.
    let stat = |done| Call::Stat { of: FileRef::Path(b"f".to_vec()), done };
    let id = sim.wait(one, |done| Call::Stat { of: source.into(), done }).unwrap().seen.file;
    let of = || FileRef::File { path: b"f".to_vec(), id };
    let changed = sim.wait(one, |done| Call::SetAttributes { of: of(), wanted, done });
    assert_eq!(changed.unwrap_err().kind(), ErrorKind::Stale);
    let cut = sim.wait(one, |done| Call::SetSize { of: of(), size: 0, done });
    assert_eq!(cut.unwrap_err().kind(), ErrorKind::Stale);
    let info = sim.wait(two, stat).unwrap();
    assert_eq!((info.mode, info.size), (0o644, 12));
    let of = || FileRef::File { path: b"f".to_vec(), id: info.seen.file };
    sim.wait(one, |done| Call::SetAttributes { of: of(), wanted, done }).unwrap();
    sim.wait(one, |done| Call::SetSize { of: of(), size: 7, done }).unwrap();
    assert_eq!(sim.on_server(b"f"), Some(b"another".to_vec()));

    // A file that another device has written meanwhile is still the file.
    let handle = file(&mut sim, one, "h");
    let other = open(&mut sim, two, "h", WRITE).unwrap();
    write(&mut sim, two, other, 2000, b"other".to_vec()).unwrap();
    close(&mut sim, two, other).unwrap();
    sim.wait(one, |done| Call::Allocate { handle, range: (0, 2000), allocation: PUNCH, done }).unwrap();
    assert_eq!(sim.on_server(b"h"), Some([&[0; 2000][..], b"other", &[7; 1995]].concat()));
}

#[test]
fn a_file_is_read_on_when_the_name_by_which_it_was_opened_is_removed() {
    let mut sim = Sim::new(64, Faults::default());
    let one = device(&mut sim, crate::Options { memory_bytes: 0, ..options() });
    let handle = file(&mut sim, one, "a");
    sim.wait(one, |done| Call::Link { from: b"a".to_vec(), to: b"b".to_vec(), done }).unwrap();
    assert_eq!(read(&mut sim, one, handle, 0, 10).unwrap().len(), 10);
    sim.wait(one, |done| Call::Remove { path: b"a".to_vec(), done }).unwrap();
    assert_eq!(read(&mut sim, one, handle, 3000, 1000).unwrap(), vec![7; 1000]);
}

#[test]
fn a_file_without_a_name_keeps_its_last_block_when_it_grows() {
    let mut sim = Sim::new(65, Faults::default());
    let one = device(&mut sim, options());
    let handle = open(&mut sim, one, "f", WRITE).unwrap();
    write(&mut sim, one, handle, 0, vec![7; 100]).unwrap();
    sync(&mut sim, one, handle).unwrap();
    sim.wait(one, |done| Call::Remove { path: b"f".to_vec(), done }).unwrap();
    sim.wait(one, |done| Call::SetSize { of: handle.into(), size: 20_000, done }).unwrap();
    let read = read(&mut sim, one, handle, 0, 20_000).unwrap();
    assert!(read[..100] == [7; 100] && read[100..] == [0; 19_900], "{}", read.len());
}

/// Cutting a file to the size that it has changes only its time. Once that was sent, the size is
/// the server's again.
#[test]
fn regress_a_cut_that_changes_nothing_does_not_hold_the_size() {
    let mut sim = Sim::new(62, Faults::default());
    let one = device(&mut sim, options());
    let handle = file(&mut sim, one, "f");
    let extended = Allocation { zero: false, reserve: true, extend: true };
    sim.wait(one, |done| Call::SetSize { of: handle.into(), size: 4000, done }).unwrap();
    sim.wait(one, |done| Call::Allocate { handle, range: (0, 5000), allocation: extended, done }).unwrap();
    let info = sim.wait(one, |done| Call::Stat { of: handle.into(), done }).unwrap();
    assert_eq!(info.size, 5000);
}

/// A time that was told to be set is on its way when this device removes the file: nothing is lost
/// with it.
#[test]
fn regress_a_time_of_a_file_that_was_removed_is_not_lost() {
    for seed in 0..60 {
        let mut sim = Sim::new(seed, Faults { late: 2, ..Faults::default() });
        let one = device(&mut sim, options());
        let handle = file(&mut sim, one, "f");
        let wanted = SetAttributes { mtime_ns: Some(7), ..SetAttributes::default() };
        let removing = sim.call(one, |done| Call::Remove { path: b"f".to_vec(), done });
        sim.wait(one, |done| Call::SetAttributes { of: handle.into(), wanted, done }).unwrap();
        let synced = sim.call(one, |done| Call::Sync { handle, done });
        sim.until(|_| taken(&removing).is_some());
        sim.until(|_| taken(&synced).is_some());
        sim.wait(one, |done| Call::SyncAll { done }).unwrap();
        let lost = sim.devices[one].engine.status().lost;
        assert!(lost.is_empty(), "{seed}: {lost:?}");
    }
}
