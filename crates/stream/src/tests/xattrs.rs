//! Extended attributes: how often the server is asked, and what becomes of what is written at the
//! same time.

use bytes::Bytes;
use units::Rng;
use wire::volume::XattrHow;

use super::sim::{Faults, Sim, options, set, taken, with_outbox};
use super::writers::{WRITE, close, device, open, write};
use crate::call::{Call, XattrChange};
use crate::{ErrorKind, FileRef, OpenHow, Options, SetAttributes, StreamError};

fn change(of: impl Into<FileRef>, name: &str, value: Option<&str>) -> impl FnOnce(crate::Done<()>) -> Call {
    let (of, name) = (of.into(), name.into());
    let change = value
        .map_or(XattrChange::Remove, |value| XattrChange::Set(Bytes::copy_from_slice(value.as_bytes()), XattrHow::Any));
    move |done| Call::ChangeXattr { of, name, change, done }
}

fn set_xattr(sim: &mut Sim, at: usize, of: impl Into<FileRef>, name: &str, value: &str) -> Result<(), StreamError> {
    sim.wait(at, change(of, name, Some(value)))
}

/// Names and values as text.
fn shown(sim: &mut Sim, at: usize, of: impl Into<FileRef>) -> Vec<(String, String)> {
    let of = of.into();
    let xattrs = sim.wait(at, |done| Call::Xattrs { of, done }).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    xattrs.iter().map(|xattr| (text(&xattr.name), text(&xattr.value))).collect()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.into(), value.into())
}

/// Whether a call is answered without the server.
fn is_known(sim: &mut Sim, at: usize, path: &str) -> bool {
    let of = FileRef::Path(path.into());
    let outcome = sim.call(at, |done| Call::Xattrs { of, done });
    taken(&outcome).is_some()
}

#[test]
fn a_file_without_attributes_is_not_asked_for_them() {
    let mut sim = Sim::new(1, Faults::default());
    let one = device(&mut sim, options());
    let handle = open(&mut sim, one, "f", WRITE).unwrap();
    close(&mut sim, one, handle).unwrap();
    assert!(is_known(&mut sim, one, "f"), "this device made it");
    set_xattr(&mut sim, one, b"f".as_slice(), "user.a", "1").unwrap();
    assert_eq!(shown(&mut sim, one, b"f".as_slice()), [pair("user.a", "1")]);
    let two = device(&mut sim, options());
    assert_eq!(shown(&mut sim, two, b"f".as_slice()), [pair("user.a", "1")]);
    assert!(is_known(&mut sim, two, "f"), "it was asked for just now");
    sim.wait(two, change(b"f".as_slice(), "user.a", None)).unwrap();
    assert_eq!(shown(&mut sim, two, b"f".as_slice()), []);
    let gone = sim.wait(two, change(b"f".as_slice(), "user.a", None));
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::NoAttribute);
}

#[test]
fn what_is_unsent_of_a_file_is_sent_before_its_attributes() {
    let mut sim = Sim::new(2, Faults::default());
    let one = device(&mut sim, options());
    for (name, how) in [("f", WRITE), ("g", OpenHow { truncate: true, ..WRITE })] {
        let handle = open(&mut sim, one, name, how).unwrap();
        assert_eq!(shown(&mut sim, one, name.as_bytes()), []);
        write(&mut sim, one, handle, 0, b"text".to_vec()).unwrap();
        set_xattr(&mut sim, one, handle, "user.a", "1").unwrap();
        assert_eq!(sim.on_server(name.as_bytes()), Some(b"text".to_vec()));
        write(&mut sim, one, handle, 4, b" and more".to_vec()).unwrap();
        assert_eq!(shown(&mut sim, one, handle), [pair("user.a", "1")]);
        close(&mut sim, one, handle).unwrap();
        assert_eq!(sim.on_server(name.as_bytes()), Some(b"text and more".to_vec()));
    }
}

/// A change of attributes of which the device never learns that the server made it, content that
/// was written behind it, and an end of the device before that was sent.
#[test]
fn regress_content_behind_a_change_of_attributes_outlives_the_device() {
    for seed in 0..60 {
        let mut sim = Sim::new(seed, Faults::default());
        let one = device(&mut sim, with_outbox(options()));
        let handle = open(&mut sim, one, "f", WRITE).unwrap();
        write(&mut sim, one, handle, 0, b"first".to_vec()).unwrap();
        close(&mut sim, one, handle).unwrap();
        let handle = open(&mut sim, one, "f", WRITE).unwrap();
        let path = || FileRef::Path(b"f".to_vec());
        let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let asked = [sim.call(one, change(path(), "user.a", Some("1"))), sim.call(one, |done| set(path(), mode, done))];
        // So that it has gone any part of the way.
        for _ in 0..sim.rng.below(30) {
            sim.step();
        }
        sim.devices[one].cut();
        sim.until(|sim| !sim.devices[one].engine.status().connected);
        sim.devices[one].hold_off(u64::MAX);
        write(&mut sim, one, handle, 0, b"second".to_vec()).unwrap();
        drop(sim.call(one, |done| Call::Sync { handle, done }));
        sim.until(|sim| sim.devices[one].idle() && sim.devices[one].engine.status().unsent.stored_transactions > 0);
        let is_answered = asked.iter().all(|asked| taken(asked).is_some());
        if seed % 2 == 0 {
            sim.restart_device(one);
        } else {
            let now = sim.now;
            sim.devices[one].hold_off(now);
        }
        sim.until(|sim| sim.devices[one].engine.status().connected);
        sim.until(|sim| sim.devices[one].engine.status().unsent.unsent_transactions == 0);
        assert!(sim.devices[one].storage.lost.is_empty(), "seed {seed}: {:?}", sim.devices[one].storage.lost);
        assert_eq!(sim.on_server(b"f"), Some(b"second".to_vec()), "seed {seed}, answered: {is_answered}");
        sim.until(|sim| sim.devices[one].idle());
        assert!(sim.devices[one].storage.stored.is_empty(), "seed {seed}");
    }
}

/// The server refuses the change of attributes: what was written behind it is sent all the same.
#[test]
fn content_behind_a_refused_change_of_attributes_is_sent() {
    for outbox in [false, true] {
        let mut sim = Sim::new(7, Faults::default());
        let one = device(&mut sim, if outbox { with_outbox(options()) } else { Options { ..options() } });
        let handle = open(&mut sim, one, "f", WRITE).unwrap();
        write(&mut sim, one, handle, 0, b"first".to_vec()).unwrap();
        close(&mut sim, one, handle).unwrap();
        let handle = open(&mut sim, one, "f", WRITE).unwrap();
        sim.devices[one].cut();
        sim.until(|sim| !sim.devices[one].engine.status().connected);
        sim.devices[one].hold_off(u64::MAX);
        let refused = sim.call(one, change(b"f".as_slice(), "user.a", None));
        write(&mut sim, one, handle, 0, b"second".to_vec()).unwrap();
        let synced = sim.call(one, |done| Call::Sync { handle, done });
        sim.until(|sim| sim.devices[one].idle());
        let now = sim.now;
        sim.devices[one].hold_off(now);
        sim.until(|sim| sim.devices[one].engine.status().unsent.unsent_transactions == 0);
        assert_eq!(taken(&refused).unwrap().unwrap_err().kind(), ErrorKind::NoAttribute);
        taken(&synced).unwrap().unwrap();
        assert_eq!(sim.on_server(b"f"), Some(b"second".to_vec()));
        assert!(sim.devices[one].storage.lost.is_empty());
        sim.until(|sim| sim.devices[one].idle());
        assert!(sim.devices[one].storage.stored.is_empty());
    }
}
