//! Owners of files that are made here, with and without a server.

use wire::volume::{Change, FileInfo, FileKind, Owner};

use super::sim::{Faults, Sim, options, with_outbox};
use super::writers::{WRITE, close, device, open, write};
use crate::call::Call;
use crate::{FileRef, OpenHow, SetAttributes};

const SOMEBODY: Owner = Owner { uid: 1000, gid: 100 };

const OWNED: OpenHow = OpenHow { owner: Some(SOMEBODY), ..WRITE };

fn stat(sim: &mut Sim, at: usize, of: impl Into<FileRef>) -> FileInfo {
    let of = of.into();
    sim.wait(at, |done| Call::Stat { of, done }).unwrap()
}

fn chown(sim: &mut Sim, at: usize, of: impl Into<FileRef>, uid: Option<u32>, gid: Option<u32>) {
    let of = of.into();
    sim.wait(at, |done| Call::SetAttributes { of, wanted: SetAttributes { uid, gid, ..Default::default() }, done })
        .unwrap();
}

fn make(sim: &mut Sim, at: usize, path: &str, change: Change) {
    sim.wait(at, |done| Call::Make { path: path.into(), change, done }).unwrap();
}

fn owner(info: &FileInfo) -> (u32, u32) {
    (info.owner.uid, info.owner.gid)
}

#[test]
fn a_file_has_the_same_owner_before_and_after_it_is_sent() {
    let mut sim = Sim::new(1, Faults::default());
    let one = device(&mut sim, options());
    for (name, how) in [("f", OWNED), ("g", OpenHow { exclusive: true, ..OWNED })] {
        let handle = open(&mut sim, one, name, how).unwrap();
        write(&mut sim, one, handle, 0, b"text".to_vec()).unwrap();
        assert_eq!(owner(&stat(&mut sim, one, handle)), (1000, 100));
        chown(&mut sim, one, handle, None, Some(7));
        assert_eq!(owner(&stat(&mut sim, one, name.as_bytes())), (1000, 7), "not sent yet");
        chown(&mut sim, one, handle, Some(8), None);
        close(&mut sim, one, handle).unwrap();
        assert_eq!(owner(&stat(&mut sim, one, name.as_bytes())), (8, 7));
        chown(&mut sim, one, name.as_bytes(), Some(9), Some(10));
        assert_eq!(owner(&stat(&mut sim, one, name.as_bytes())), (9, 10));
    }
    let two = device(&mut sim, options());
    assert_eq!(owner(&stat(&mut sim, two, b"f".as_slice())), (9, 10));
}

#[test]
fn a_folder_with_the_set_group_id_bit_gives_its_group() {
    let mut sim = Sim::new(2, Faults::default());
    let one = device(&mut sim, options());
    let group = Some(Owner { uid: 0, gid: 50 });
    make(&mut sim, one, "d", Change::MakeFolder { path: b"d".to_vec(), mode: 0o2775, owner: group });
    stat(&mut sim, one, b"d".as_slice());
    let handle = open(&mut sim, one, "d/f", OWNED).unwrap();
    assert_eq!(owner(&stat(&mut sim, one, handle)), (1000, 50), "the server does not know it yet");
    close(&mut sim, one, handle).unwrap();
    assert_eq!(owner(&stat(&mut sim, one, b"d/f".as_slice())), (1000, 50));
}

#[test]
fn special_files_are_made_told_and_renamed_and_never_opened() {
    let mut sim = Sim::new(3, Faults::default());
    let one = device(&mut sim, options());
    let (path, owner) = (b"p".to_vec(), Some(SOMEBODY));
    make(&mut sim, one, "p", Change::MakeNode { path, kind: FileKind::CharDevice, mode: 0o600, rdev: 0x501, owner });
    sim.wait(one, |done| Call::Rename { from: b"p".to_vec(), to: b"q".to_vec(), replace: true, done }).unwrap();
    let info = stat(&mut sim, one, b"q".as_slice());
    assert_eq!((info.kind, info.rdev, info.mode), (FileKind::CharDevice, 0x501, 0o600));
    assert!(open(&mut sim, one, "q", OpenHow::READ).is_err());
    assert!(open(&mut sim, one, "q", WRITE).is_err());
}

/// What an outbox keeps says whose a file becomes.
#[test]
fn owners_of_unsent_files_outlive_the_process() {
    let mut sim = Sim::new(4, Faults::default());
    let one = device(&mut sim, with_outbox(options()));
    sim.devices[one].hold_off(u64::MAX);
    sim.devices[one].cut();
    sim.until(|sim| !sim.devices[one].engine.status().connected);
    let handle = open(&mut sim, one, "f", OpenHow { truncate: true, ..OWNED }).unwrap();
    write(&mut sim, one, handle, 0, b"text".to_vec()).unwrap();
    chown(&mut sim, one, handle, None, Some(7));
    drop(sim.call::<()>(one, |done| Call::Sync { handle, done }));
    sim.until(|sim| sim.devices[one].idle() && sim.devices[one].engine.status().unsent.stored_transactions > 0);
    sim.restart_device(one);
    sim.until(|sim| sim.devices[one].engine.status().connected);
    sim.until(|sim| sim.devices[one].engine.status().unsent.unsent_transactions == 0);
    let info = stat(&mut sim, one, b"f".as_slice());
    assert_eq!((owner(&info), info.size), ((1000, 7), 4));
}
