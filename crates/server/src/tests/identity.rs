//! A device is the one that it shows to be: no stranger speaks for it, silences it, or keeps what
//! it held.

use tempfile::TempDir;
use wire::ErrorCode;
use wire::volume::{LeaseKind, Secret, VolumeAsk, VolumeReply};

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
