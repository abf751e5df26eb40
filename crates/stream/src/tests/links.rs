//! Files with several names: one file here too, whatever is not sent yet.

use units::Rng;
use wire::volume::FileInfo;

use super::sim::{Faults, Sim, options};
use super::writers::{WRITE, close, device, fill, open, read, sync, write};
use crate::call::Call;
use crate::{ErrorKind, FileRef, OpenHow, Options, SetAttributes};

fn stat(sim: &mut Sim, at: usize, path: &str) -> FileInfo {
    sim.wait(at, |done| Call::Stat { of: FileRef::Path(path.into()), done }).unwrap()
}

fn link(sim: &mut Sim, at: usize, from: &str, to: &str) {
    sim.wait(at, |done| Call::Link { from: from.into(), to: to.into(), done }).unwrap();
}

fn remove(sim: &mut Sim, at: usize, path: &str) {
    sim.wait(at, |done| Call::Remove { path: path.into(), done }).unwrap();
}

fn rename(sim: &mut Sim, at: usize, from: &str, to: &str) {
    sim.wait(at, |done| Call::Rename { from: from.into(), to: to.into(), replace: true, done }).unwrap();
}

/// A file with the names `a` and `b`.
fn linked(sim: &mut Sim, at: usize) {
    let handle = open(sim, at, "a", WRITE).unwrap();
    write(sim, at, handle, 0, b"one".to_vec()).unwrap();
    close(sim, at, handle).unwrap();
    link(sim, at, "a", "b");
}

#[test]
fn what_is_written_under_one_name_is_seen_under_the_others() {
    let mut sim = Sim::new(51, Faults::default());
    let one = device(&mut sim, options());
    linked(&mut sim, one);
    let (by_a, by_b) = (open(&mut sim, one, "a", WRITE).unwrap(), open(&mut sim, one, "b", WRITE).unwrap());
    write(&mut sim, one, by_a, 3, b"two".to_vec()).unwrap();
    assert_eq!(read(&mut sim, one, by_b, 0, 100).unwrap(), b"onetwo"[..]);
    for name in ["a", "b"] {
        let info = stat(&mut sim, one, name);
        assert_eq!((info.size, info.links), (6, 2), "{name}");
    }
    let listed = sim.wait(one, |done| Call::List { path: Vec::new(), done }).unwrap();
    assert_eq!(listed.iter().map(|entry| entry.info.size).collect::<Vec<_>>(), [6, 6]);
    let wanted = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    sim.wait(one, |done| Call::SetAttributes { of: FileRef::Path(b"b".to_vec()), wanted, done }).unwrap();
    write(&mut sim, one, by_b, 6, b"three".to_vec()).unwrap();
    sync(&mut sim, one, by_a).unwrap();
    assert_eq!(sim.on_server(b"b"), Some(b"onetwothree".to_vec()));
    assert_eq!((stat(&mut sim, one, "a").mode, stat(&mut sim, one, "b").mode), (0o600, 0o600));
    close(&mut sim, one, by_a).unwrap();
    close(&mut sim, one, by_b).unwrap();
}

#[test]
fn a_file_goes_on_under_another_name_when_one_is_removed_or_replaced() {
    let mut sim = Sim::new(52, Faults::default());
    let one = device(&mut sim, options());
    linked(&mut sim, one);
    let file = open(&mut sim, one, "a", WRITE).unwrap();
    write(&mut sim, one, file, 3, b"unsent".to_vec()).unwrap();
    remove(&mut sim, one, "a");
    write(&mut sim, one, file, 9, b"later".to_vec()).unwrap();
    sync(&mut sim, one, file).unwrap();
    assert_eq!((sim.on_server(b"a"), sim.on_server(b"b")), (None, Some(b"oneunsentlater".to_vec())));
    assert_eq!(stat(&mut sim, one, "b").links, 1);
    link(&mut sim, one, "b", "c");
    let other = open(&mut sim, one, "d", WRITE).unwrap();
    close(&mut sim, one, other).unwrap();
    sim.wait(one, |done| Call::Rename { from: b"d".to_vec(), to: b"b".to_vec(), replace: true, done }).unwrap();
    write(&mut sim, one, file, 0, b"ONE".to_vec()).unwrap();
    sync(&mut sim, one, file).unwrap();
    assert_eq!((sim.on_server(b"b"), sim.on_server(b"c")), (Some(Vec::new()), Some(b"ONEunsentlater".to_vec())));
    remove(&mut sim, one, "c");
    // Its last name: now it is a file of this device alone.
    write(&mut sim, one, file, 0, b"two".to_vec()).unwrap();
    sync(&mut sim, one, file).unwrap();
    let info = sim.wait(one, |done| Call::Stat { of: FileRef::Handle(file), done }).unwrap();
    assert_eq!(info.links, 0);
    close(&mut sim, one, file).unwrap();
    assert!(sim.devices[one].engine.status().lost.is_empty());
}

/// The other name was never seen here: what is written cannot get there, and that is told.
#[test]
fn a_file_whose_other_names_are_unknown_is_lost_with_an_error() {
    let mut sim = Sim::new(53, Faults::default());
    let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
    linked(&mut sim, one);
    let file = open(&mut sim, two, "a", WRITE).unwrap();
    write(&mut sim, two, file, 0, b"two".to_vec()).unwrap();
    remove(&mut sim, two, "a");
    assert_eq!(sim.on_server(b"b"), Some(b"two".to_vec()), "what was written before is sent before");
    write(&mut sim, two, file, 0, b"lost".to_vec()).unwrap_err();
    assert_eq!(sync(&mut sim, two, file).unwrap_err().kind(), ErrorKind::Stale);
}

/// Another device gives a file one more name while it is open here with changes that are not sent.
/// Here it seems to lose its only name: they must get to the other one.
#[test]
fn regress_changes_get_to_the_name_that_another_device_gave() {
    for (seed, replaced) in [(54, false), (55, true)] {
        let mut sim = Sim::new(seed, Faults::default());
        let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
        for name in ["a", "c"] {
            let made = open(&mut sim, one, name, WRITE).unwrap();
            close(&mut sim, one, made).unwrap();
        }
        let file = open(&mut sim, two, "a", WRITE).unwrap();
        write(&mut sim, two, file, 0, b"unsent".to_vec()).unwrap();
        link(&mut sim, one, "a", "b");
        match replaced {
            true => rename(&mut sim, two, "c", "a"),
            false => remove(&mut sim, two, "a"),
        }
        assert_eq!(sim.on_server(b"b"), Some(b"unsent".to_vec()), "replaced: {replaced}");
        assert_eq!(sim.on_server(b"a"), replaced.then(Vec::new));
        // No name of it is known here: whoever writes on hears of that.
        write(&mut sim, two, file, 0, b"lost".to_vec()).unwrap_err();
        assert_eq!(close(&mut sim, two, file).unwrap_err().kind(), ErrorKind::Stale);
        let status = sim.devices[two].engine.status();
        assert!(status.lost.is_empty() && status.unsent.unsent_bytes == 0, "{status:?}");
    }
}

/// The same while a part of the changes is on its way, and the server is full or the link is cut.
#[test]
fn regress_a_name_is_not_removed_before_what_the_other_one_needs() {
    let mut sim = Sim::new(56, Faults::default());
    let roomy = || Options { dirty_bytes: 16 << 20, ..options() };
    let (one, two) = (device(&mut sim, roomy()), device(&mut sim, roomy()));
    let file = open(&mut sim, two, "a", WRITE).unwrap();
    sync(&mut sim, two, file).unwrap();
    link(&mut sim, one, "a", "b");
    fill(&sim);
    write(&mut sim, two, file, 0, vec![2; 3 << 20]).unwrap();
    assert_eq!(sync(&mut sim, two, file).unwrap_err().kind(), ErrorKind::NoSpace);
    let removed = sim.wait(two, |done| Call::Remove { path: b"a".to_vec(), done });
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::NoSpace, "the changes cannot get to the other name");
    sim.disk.set_capacity(None);
    remove(&mut sim, two, "a");
    assert_eq!(sim.on_server(b"b"), Some(vec![2; 3 << 20]));
    assert!(sim.devices[two].engine.status().lost.is_empty());
}

/// Another device moved the file away and made another one, which this device removes: its own file
/// is still there, and whoever has it open hears that its changes got nowhere.
#[test]
fn regress_a_file_that_was_moved_away_is_not_taken_for_a_removed_one() {
    for (seed, replaced) in [(57, false), (58, true)] {
        let mut sim = Sim::new(seed, Faults::default());
        let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
        for name in ["a", "c"] {
            let made = open(&mut sim, one, name, WRITE).unwrap();
            close(&mut sim, one, made).unwrap();
        }
        let file = open(&mut sim, two, "a", WRITE).unwrap();
        write(&mut sim, two, file, 0, b"unsent".to_vec()).unwrap();
        rename(&mut sim, one, "a", "moved");
        let other = open(&mut sim, one, "a", WRITE).unwrap();
        close(&mut sim, one, other).unwrap();
        match replaced {
            true => rename(&mut sim, two, "c", "a"),
            false => remove(&mut sim, two, "a"),
        }
        assert_eq!(sync(&mut sim, two, file).unwrap_err().kind(), ErrorKind::Stale, "replaced: {replaced}");
        let status = sim.devices[two].engine.status();
        assert!(status.lost.len() == 1 && status.unsent.unsent_bytes == 0, "{status:?}");
        close(&mut sim, two, file).unwrap_err();
    }
}

/// Two devices write, give and take names: what was written and not reported as lost is there,
/// under whatever name is left.
#[test]
fn sim_nothing_is_lost_in_silence_while_others_give_names() {
    super::model::seeds(24, |seed| {
        let cuts = if seed % 2 == 0 { 0 } else { 3 };
        let mut sim = Sim::new(seed, Faults { cuts, ..Faults::default() });
        let (one, two) = (device(&mut sim, options()), device(&mut sim, options()));
        let made = open(&mut sim, one, "a", WRITE).unwrap();
        close(&mut sim, one, made).unwrap();
        let mut text = Vec::new();
        for round in 0..12u8 {
            // It has one name when it is opened, and two when that one goes.
            let file = open(&mut sim, two, "a", WRITE).unwrap();
            let value = vec![round; 1 + sim.rng.below(3000) as usize];
            write(&mut sim, two, file, text.len() as u64, value.clone()).unwrap();
            text.extend(value);
            let synced = sim.rng.below(2) == 0;
            if synced {
                sync(&mut sim, two, file).unwrap();
            }
            link(&mut sim, one, "a", "keep");
            if synced {
                let value = vec![round; 1 + sim.rng.below(3000) as usize];
                write(&mut sim, two, file, text.len() as u64, value.clone()).unwrap();
                text.extend(value);
            }
            remove(&mut sim, two, "a");
            assert_eq!(sim.on_server(b"keep"), Some(text.clone()), "round {round}");
            close(&mut sim, two, file).unwrap_err();
            rename(&mut sim, one, "keep", "a");
        }
        assert!(sim.devices[two].engine.status().lost.is_empty());
    });
}

#[test]
fn sim_links_survive_cuts_and_crashes() {
    for seed in 0..12 {
        let mut sim = Sim::new(seed, Faults { cuts: 2, crashes: 1, flips: 0, pushes: true, late: 0 });
        let one = device(&mut sim, options());
        let file = open(&mut sim, one, "n0", WRITE).unwrap();
        let mut text = Vec::new();
        for round in 0..12u8 {
            write(&mut sim, one, file, u64::from(round) * 100, vec![round; 100]).unwrap();
            text.extend([round; 100]);
            link(&mut sim, one, &format!("n{round}"), &format!("n{}", round + 1));
            if round % 3 == 1 {
                remove(&mut sim, one, &format!("n{round}"));
            }
        }
        sync(&mut sim, one, file).unwrap();
        for name in ["n0", "n12"] {
            assert_eq!(sim.on_server(name.as_bytes()), Some(text.clone()), "seed {seed}, {name}");
        }
        let reader = open(&mut sim, one, "n12", OpenHow::READ).unwrap();
        assert_eq!(read(&mut sim, one, reader, 0, 2000).unwrap(), text);
        assert_eq!((stat(&mut sim, one, "n12").links, sim.on_server(b"n1")), (9, None));
        assert!(sim.devices[one].engine.status().lost.is_empty(), "seed {seed}");
    }
}
