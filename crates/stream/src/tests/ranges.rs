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
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
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
}
