//! Attributes of files that this device made: told at once, sent with what follows.

use units::Rng;

use super::sim::{Faults, Sim, options, set};
use super::writers::{WRITE, close, device, open, sync, write};
use crate::call::Call;
use crate::{ErrorKind, FileRef, Handle, OpenHow, SetAttributes, StreamError};

/// Longer than attributes wait.
const WAITED: u64 = 150_000;

fn at(path: &str) -> FileRef {
    FileRef::Path(path.into())
}

fn change(sim: &mut Sim, device: usize, path: &str, wanted: SetAttributes) {
    sim.wait(device, |done| set(at(path), wanted, done)).unwrap();
}

fn mode(mode: u16) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn time(mtime_ns: i64) -> SetAttributes {
    SetAttributes { mtime_ns: Some(mtime_ns), ..SetAttributes::default() }
}

fn rename(sim: &mut Sim, device: usize, from: &str, to: &str, replace: bool) -> Result<(), StreamError> {
    sim.wait(device, |done| Call::Rename { from: from.into(), to: to.into(), replace, done })
}

/// Mode and time of the last change, as a device tells them.
fn shown(sim: &mut Sim, device: usize, path: &str) -> (u16, i64) {
    let of = at(path);
    let info = sim.wait(device, |done| Call::Stat { of, done }).unwrap();
    (info.mode, info.mtime_ns)
}

fn committed(sim: &Sim, device: usize) -> u64 {
    sim.devices[device].engine.status().committed
}

/// A new file, as programs make one that must not be there.
fn new(sim: &mut Sim, device: usize, path: &str) -> Handle {
    open(sim, device, path, OpenHow { create: Some(0o600), exclusive: true, ..WRITE }).unwrap()
}

fn pass(sim: &mut Sim, micros: u64) {
    let until = sim.now + micros;
    sim.until(|sim| sim.now >= until);
}

#[test]
fn a_file_that_is_copied_takes_three_transactions() {
    let mut sim = Sim::new(1, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let before = committed(&sim, one);
    let file = new(&mut sim, one, ".f.tmp");
    change(&mut sim, one, ".f.tmp", mode(0o640));
    write(&mut sim, one, file, 0, b"text".to_vec()).unwrap();
    close(&mut sim, one, file).unwrap();
    assert_eq!(committed(&sim, one) - before, 2, "made, and closed");
    change(&mut sim, one, ".f.tmp", time(1_000_000_007));
    change(&mut sim, one, ".f.tmp", mode(0o444));
    assert_eq!(shown(&mut sim, one, ".f.tmp"), (0o444, 1_000_000_007));
    assert_eq!(committed(&sim, one) - before, 2);
    rename(&mut sim, one, ".f.tmp", "f", true).unwrap();
    assert_eq!(committed(&sim, one) - before, 3, "all of it with the name");
    for device in [one, two] {
        assert_eq!(shown(&mut sim, device, "f"), (0o444, 1_000_000_007));
    }
    assert_eq!(sim.on_server(b"f"), Some(b"text".to_vec()));
}

#[test]
fn rights_of_a_closed_file_change_at_once() {
    let mut sim = Sim::new(5, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let file = new(&mut sim, one, "f");
    close(&mut sim, one, file).unwrap();
    change(&mut sim, one, "f", mode(0o444));
    assert_eq!(shown(&mut sim, two, "f").0, 0o444);
}

#[test]
fn attributes_that_nothing_follows_are_sent_soon() {
    let mut sim = Sim::new(2, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let file = new(&mut sim, one, "f");
    close(&mut sim, one, file).unwrap();
    change(&mut sim, one, "f", time(1_000_000_007));
    let before = committed(&sim, one);
    pass(&mut sim, WAITED);
    sim.until(|sim| committed(sim, one) > before);
    assert_eq!(shown(&mut sim, two, "f"), (0o600, 1_000_000_007));
    // At once where somebody asks for that.
    let file = new(&mut sim, one, "g");
    change(&mut sim, one, "g", mode(0o444));
    sync(&mut sim, one, file).unwrap();
    assert_eq!(shown(&mut sim, two, "g").0, 0o444);
    close(&mut sim, one, file).unwrap();
}

#[test]
fn a_rename_that_is_refused_loses_no_attributes() {
    let mut sim = Sim::new(3, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    for name in ["f", "there"] {
        let file = new(&mut sim, one, name);
        close(&mut sim, one, file).unwrap();
    }
    change(&mut sim, one, "f", time(1_000_000_007));
    let refused = rename(&mut sim, one, "f", "there", false);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(shown(&mut sim, one, "f").1, 1_000_000_007);
    pass(&mut sim, WAITED);
    sim.until(|sim| sim.devices[one].engine.status().unsent.unsent_transactions == 0);
    assert_eq!(shown(&mut sim, two, "f").1, 1_000_000_007);
    assert!(sim.devices[one].engine.status().lost.is_empty());
}

/// What another device has made of the file meanwhile is kept, and so are the attributes.
#[test]
fn attributes_are_of_whatever_the_file_is_by_then() {
    let mut sim = Sim::new(4, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let file = new(&mut sim, one, "f");
    close(&mut sim, one, file).unwrap();
    let other = open(&mut sim, two, "f", WRITE).unwrap();
    write(&mut sim, two, other, 0, b"of another".to_vec()).unwrap();
    close(&mut sim, two, other).unwrap();
    change(&mut sim, one, "f", time(1_000_000_007));
    pass(&mut sim, WAITED);
    sim.until(|sim| sim.devices[one].engine.status().unsent.unsent_transactions == 0);
    assert!(sim.devices[one].engine.status().lost.is_empty());
    assert_eq!(sim.on_server(b"f"), Some(b"of another".to_vec()));
    assert_eq!(shown(&mut sim, two, "f").1, 1_000_000_007);
    // And what is written here afterwards is based on what is known here.
    let file = open(&mut sim, one, "f", WRITE).unwrap();
    write(&mut sim, one, file, 2, b" one".to_vec()).unwrap();
    close(&mut sim, one, file).unwrap();
    assert_eq!(sim.on_server(b"f"), Some(b"of onether".to_vec()));
}

/// The link breaks at any point of all this.
#[test]
fn sim_attributes_survive_lost_connections() {
    for seed in 0..200 {
        let mut sim = Sim::new(seed, Faults::default());
        let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
        let file = new(&mut sim, one, ".f");
        write(&mut sim, one, file, 0, vec![7; 5000]).unwrap();
        close(&mut sim, one, file).unwrap();
        change(&mut sim, one, ".f", time(1_000_000_000 + seed as i64));
        change(&mut sim, one, ".f", mode(0o440));
        let renamed =
            sim.call(one, |done| Call::Rename { from: b".f".to_vec(), to: b"f".to_vec(), replace: true, done });
        for _ in 0..sim.rng.below(40) {
            sim.step();
        }
        sim.devices[one].cut();
        sim.until(|sim| sim.devices[one].engine.status().connected);
        sim.until(|sim| sim.devices[one].engine.status().unsent.unsent_transactions == 0);
        pass(&mut sim, WAITED);
        assert!(super::sim::taken(&renamed).is_some_and(|outcome| outcome.is_ok()), "seed {seed}");
        assert_eq!(shown(&mut sim, two, "f"), (0o440, 1_000_000_000 + seed as i64), "seed {seed}");
        assert_eq!(sim.on_server(b"f"), Some(vec![7; 5000]), "seed {seed}");
    }
}

/// Waiting for an end of the session is as good as a sync.
#[test]
fn the_end_brings_attributes_to_the_server() {
    let mut sim = Sim::new(6, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let file = new(&mut sim, one, "f");
    close(&mut sim, one, file).unwrap();
    change(&mut sim, one, "f", time(1_000_000_007));
    sim.wait(one, |done| Call::SyncAll { done }).unwrap();
    assert_eq!(shown(&mut sim, two, "f").1, 1_000_000_007);
}

/// Found by a trial: the time that was put off was sent behind the cut, or instead of it.
#[test]
fn regress_a_cut_sets_the_time_that_was_put_off() {
    let mut sim = Sim::new(7, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    for (name, size) in [("grown", 5000), ("cut", 3), ("same", 10)] {
        let file = new(&mut sim, one, name);
        write(&mut sim, one, file, 0, vec![7; 10]).unwrap();
        sync(&mut sim, one, file).unwrap();
        change(&mut sim, one, name, time(1_000_000_007));
        sim.wait(one, |done| Call::SetSize { of: file.into(), size, done }).unwrap();
        close(&mut sim, one, file).unwrap();
        let (_, there) = shown(&mut sim, two, name);
        assert_ne!(there, 1_000_000_007, "{name}");
        assert_eq!(shown(&mut sim, one, name).1, there, "{name}");
    }
}

#[test]
fn regress_attributes_that_nobody_gets_are_told_at_the_end() {
    let mut sim = Sim::new(8, Faults::default());
    let one = device(&mut sim, options());
    let file = new(&mut sim, one, "f");
    close(&mut sim, one, file).unwrap();
    change(&mut sim, one, "f", time(1_000_000_007));
    sim.devices[one].cut();
    let time = sim.time();
    let engine = &mut sim.devices[one].engine;
    engine.shut_down(time);
    let lost = engine.take_unkept();
    assert_eq!(lost.iter().map(|lost| lost.path.as_str()).collect::<Vec<_>>(), ["f"]);
}

#[test]
fn regress_a_folder_in_the_place_of_a_removed_file_takes_attributes() {
    use bytes::Bytes;
    use wire::volume::XattrHow;

    use crate::call::XattrChange;

    let mut sim = Sim::new(9, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let file = new(&mut sim, one, "f");
    close(&mut sim, one, file).unwrap();
    sim.wait(two, |done| Call::Remove { path: b"f".to_vec(), done }).unwrap();
    sim.wait(one, |done| super::sim::folder(b"f".to_vec(), done)).unwrap();
    let change = XattrChange::Set(Bytes::from_static(b"1"), XattrHow::Any);
    sim.wait(one, |done| Call::ChangeXattr { of: at("f"), name: b"user.a".to_vec(), change, done }).unwrap();
}

#[test]
fn regress_a_new_file_has_one_time_on_all_devices() {
    let mut sim = Sim::new(10, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    let file = new(&mut sim, one, "f");
    close(&mut sim, one, file).unwrap();
    assert_eq!(shown(&mut sim, one, "f"), shown(&mut sim, two, "f"));
}
