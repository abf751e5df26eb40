//! A device is the one that it shows to be: no stranger speaks for it, silences it, or keeps what
//! it held.

use tempfile::TempDir;
use units::LockKind;
use wire::ErrorCode;
use wire::volume::{LeaseKind, LockAsk, Secret, VolumeAsk, VolumeReply};

use super::client::Client;
use super::volumes::{Data, append, create, serve, transaction};

#[test]
fn a_number_without_its_secret_silences_nobody() {
    let folder = TempDir::new().unwrap();
    let (rig, _) = serve(folder.path(), |_| {});
    let mut victim = Data::open(&rig, 7);
    victim.commit(1, vec![create("log")]);
    let (number, secret) = victim.who;
    // The number of the connection is the same, and that of the device is known.
    let mut stranger = Data::nobody(Client::connect(rig.address, 7));
    let silencing = || transaction(1 << 63, vec![append("log", b"x")]);
    stranger.refused(silencing(), ErrorCode::Unproven);
    let guessed = stranger.proof((number, Secret([0; 32])));
    stranger.refused(guessed, ErrorCode::Unproven);
    // Heard on the victim's connection.
    let heard = victim.proof((number, secret));
    stranger.refused(heard, ErrorCode::Unproven);
    stranger.refused(silencing(), ErrorCode::Unproven);
    let VolumeReply::Enrolled { number: own, secret: theirs } = stranger.ask(VolumeAsk::Enrol) else { panic!("none") };
    let ask = VolumeAsk::Prove {
        number: own,
        proof: theirs.proof(stranger.id, stranger.nonce, own),
        // A number that a server gave out is nobody's to go on with.
        previous: number,
    };
    assert_eq!(stranger.ask(ask), VolumeReply::Proven);
    stranger.commit(1 << 63, vec![append("log", b"theirs")]);
    victim.commit(2, vec![append("log", b" and mine")]);
    assert_eq!(std::fs::read(folder.path().join("log")).unwrap(), b"theirs and mine");
    // One handle, one device.
    let other = stranger.ask(VolumeAsk::Enrol);
    let VolumeReply::Enrolled { number, secret } = other else { panic!("{other:?}") };
    let ask = stranger.proof((number, secret));
    stranger.refused(ask, ErrorCode::BadRequest);
}

#[test]
fn leases_are_for_devices_that_are_known_and_end_with_their_last_connection() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("f"), b"x").unwrap();
    let (rig, _) = serve(folder.path(), |_| {});
    let (mut owner, mut other) = (Data::open(&rig, 1), Data::open(&rig, 2));
    let file = owner.stat("f").seen.file;
    let lease = VolumeAsk::Lease { file, kind: Some(LeaseKind::Exclusive), duration_ms: 3_600_000 };
    let mut nobody = Data::nobody(Client::connect(rig.address, 3));
    nobody.refused(lease.clone(), ErrorCode::Unproven);
    assert_eq!(owner.ask(lease.clone()), VolumeReply::Leased { duration_ms: 3_600_000 });
    let second = Data::again(&rig, owner.who);
    drop(owner);
    other.refused(lease.clone(), ErrorCode::Leased);
    drop(second);
    // Soon after, since a device may come back over another connection.
    while !matches!(other.reply(lease.clone()), wire::Reply::Volume(VolumeReply::Leased { .. })) {}
}

#[test]
fn locks_of_a_device_end_some_time_after_its_last_connection() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("f"), b"12345").unwrap();
    let (rig, _) = serve(folder.path(), |_| {});
    let (mut owner, mut other) = (Data::open(&rig, 1), Data::open(&rig, 2));
    let VolumeReply::Attributes(info) = owner.ask(VolumeAsk::FileStat { path: b"f".into() }) else { panic!("no file") };
    let lock = |kind, test| {
        let (file, owner, pid) = (info.seen.file, 9, 77);
        VolumeAsk::Lock(LockAsk { file, owner, is_flock: false, test, start: 10, end: 19, kind, pid })
    };
    let exclusive = Some(LockKind::Exclusive);
    assert_eq!(owner.ask(lock(exclusive, false)), VolumeReply::Locked(None));
    // The same owner on another device is another.
    let VolumeReply::Locked(Some(held)) = other.ask(lock(Some(LockKind::Shared), true)) else { panic!("it is free") };
    assert_eq!(
        (held.range.start, held.range.end, held.range.kind, held.pid, held.is_own),
        (10, 19, LockKind::Exclusive, 77, false)
    );
    assert_eq!(other.ask(lock(exclusive, false)), VolumeReply::Locked(Some(held)));
    assert_eq!(owner.ask(lock(None, false)), VolumeReply::Locked(None));
    assert_eq!(other.ask(lock(exclusive, false)), VolumeReply::Locked(None));
    assert!(matches!(owner.ask(lock(exclusive, true)), VolumeReply::Locked(Some(_))));
    drop(other);
    // After the time that a device has to come back.
    while owner.ask(lock(exclusive, false)) != VolumeReply::Locked(None) {}
}
