//! Requests to volumes on a connection: their place in the queues, what is remembered, and what is
//! refused.

use bytes::Bytes;
use units::{InodeId, Moment, PageId, Token};

use super::samples::flat;
use crate::encode;
use crate::format::EVENT_BYTES_MAX;
use crate::message::ServerMessage;
use crate::volume::{Change, FileInfo, Seen, Share, VolumeAsk, VolumePiece, VolumeReply, XattrHow};
use crate::{
    ClientConfig, ClientConnection, ClientEvent, ErrorCode, ImageHandle, Notice, PushEncoding, PushHeader, PushPiece,
    Refused, Reply, Request, ServerConfig, ServerConnection, ServerEvent, WireError,
};

const NOW: Moment = Moment(1000);
const VOLUME: ImageHandle = ImageHandle(3);

fn commit(number: u64, bytes: usize) -> Request {
    let bytes = Bytes::from(vec![7; bytes]);
    let change = Change::Write { path: b"a/b".to_vec(), base: None, offset: 5, bytes };
    Request::Volume { volume: VOLUME, ask: VolumeAsk::Commit { number, mtime_ns: -1, changes: vec![change] } }
}

fn pull() -> Request {
    let blocks = vec![PageId::new(InodeId(2), 9), PageId::new(InodeId(2), 4)];
    Request::Volume { volume: VOLUME, ask: VolumeAsk::PullBlocks { token: Token(1), blocks, force: false } }
}

/// Both ends after the handshake.
fn pair() -> Result<(ClientConnection, ServerConnection), WireError> {
    let mut client = ClientConnection::new(ClientConfig::default(), NOW);
    let mut server = ServerConnection::new(ServerConfig::default(), NOW);
    exchange(&mut client, &mut server)?;
    while client.poll_event().is_some() || server.poll_event().is_some() {}
    Ok((client, server))
}

fn exchange(client: &mut ClientConnection, server: &mut ServerConnection) -> Result<(), WireError> {
    let mut bytes = Vec::new();
    client.transmit(NOW, &mut bytes, usize::MAX);
    server.receive(NOW, &bytes)?;
    bytes.clear();
    server.transmit(NOW, &mut bytes, usize::MAX);
    client.receive(NOW, &bytes)
}

#[test]
fn demands_overtake_transactions_and_all_are_answered() -> Result<(), WireError> {
    let (mut client, mut server) = pair()?;
    let first = client.request(NOW, commit(1, 100)).expect("room");
    let second = client.request(NOW, commit(2, 100)).expect("room");
    let demand = client.request(NOW, pull()).expect("room");
    exchange(&mut client, &mut server)?;
    let asked = |event| match event {
        Some(ServerEvent::Request { request, .. }) => Some(request),
        _ => None,
    };
    let order = [asked(server.poll_event()), asked(server.poll_event()), asked(server.poll_event())];
    assert_eq!(order, [Some(demand), Some(first), Some(second)]);
    let seen = Seen { file: 8, version: 9 };
    let two = VolumeReply::Committed { versions: vec![seen, seen] };
    server.reply(first, Reply::Volume(VolumeReply::Committed { versions: vec![seen] })).expect("it fits");
    server.reply(demand, Reply::error(ErrorCode::Stale, "gone")).expect("errors always fit");
    exchange(&mut client, &mut server)?;
    let replied = |event| match event {
        Some(ClientEvent::Reply { request, reply }) => Some((request, reply)),
        _ => None,
    };
    assert!(matches!(replied(client.poll_event()), Some((request, Reply::Volume(_))) if request == first));
    let error = replied(client.poll_event());
    assert!(matches!(error, Some((_, Reply::Error { code: ErrorCode::Stale, .. }))), "{error:?}");
    assert_eq!(server.reply(second, Reply::Volume(two)), Err(Refused::WrongReply(second)), "one change, one version");
    Ok(())
}

#[test]
fn a_transaction_that_was_not_sent_is_forgotten_when_it_expires() -> Result<(), WireError> {
    let (mut client, mut server) = pair()?;
    let deadline = Moment(NOW.0 + 10);
    let request = client.request_until(NOW, commit(1, 100), deadline).expect("room");
    client.tick(deadline)?;
    assert_eq!(client.poll_event(), Some(ClientEvent::Expired { request }));
    exchange(&mut client, &mut server)?;
    assert_eq!(server.poll_event(), None);
    assert_eq!(client.unanswered().count(), 0);
    Ok(())
}

#[test]
fn transactions_in_events_hold_the_reader_up() -> Result<(), WireError> {
    let (mut client, mut server) = pair()?;
    let mut number = 0;
    while server.wants_bytes() {
        number += 1;
        assert!(number < 10, "four of a MiB are enough");
        client.request(NOW, commit(number, (1 << 20) - 100)).expect("room");
        exchange(&mut client, &mut server)?;
    }
    assert!(server.queued_bytes() + server.received_bytes() >= EVENT_BYTES_MAX);
    while server.poll_event().is_some() {}
    assert!(server.wants_bytes());
    assert!(
        server.queued_bytes() + server.received_bytes() < 4096,
        "what is left of requests without an answer holds no data"
    );
    Ok(())
}

fn set_xattr(name: Vec<u8>, bytes: usize) -> Request {
    let (path, value, how) = (b"a".to_vec(), vec![7; bytes].into(), XattrHow::Any);
    let changes = vec![Change::SetXattr { path, base: None, name, value, how }];
    Request::Volume { volume: VOLUME, ask: VolumeAsk::Commit { number: 1, mtime_ns: 0, changes } }
}

#[test]
fn limits_are_looked_at_before_anything_is_sent() -> Result<(), WireError> {
    let (mut client, _) = pair()?;
    let ask = |ask| Request::Volume { volume: VOLUME, ask };
    let mixed = vec![PageId::new(InodeId(2), 9), PageId::new(InodeId(3), 4)];
    for bad in [
        commit(0, 1),
        commit(1, 2 << 20),
        ask(VolumeAsk::Commit { number: 1, mtime_ns: 0, changes: Vec::new() }),
        ask(VolumeAsk::FileStat { path: vec![b'a'; 4096] }),
        ask(VolumeAsk::XattrsRead { path: vec![b'a'; 4096] }),
        set_xattr(vec![b'n'; 256], 1),
        set_xattr(Vec::new(), 1),
        set_xattr(b"user.a".to_vec(), (64 << 10) + 1),
        ask(VolumeAsk::PullBlocks { token: Token(1), blocks: Vec::new(), force: false }),
        ask(VolumeAsk::PullBlocks { token: Token(1), blocks: mixed, force: false }),
        ask(VolumeAsk::FolderList { path: Vec::new(), after: Vec::new(), limit: 0 }),
        Request::VolumeOpen { name: String::new() },
    ] {
        assert!(matches!(client.request(NOW, bad.clone()), Err(Refused::Limit { .. })), "{bad:?}");
    }
    Ok(())
}

#[test]
fn what_is_said_of_volumes_needs_a_server_that_has_them() -> Result<(), WireError> {
    let (mut client, mut server) = pair()?;
    client
        .notify(Notice::FileShare { volume: VOLUME, file: InodeId(2), share: Share::Percent(30) })
        .expect("the feature is there");
    client.notify(Notice::RateLimit { bytes_per_second: 16_000 }).expect("the feature is there");
    client.notify(Notice::FileClose { volume: VOLUME, file: InodeId(2) }).expect("the feature is there");
    exchange(&mut client, &mut server)?;
    let share = ServerEvent::Notice(Notice::FileShare { volume: VOLUME, file: InodeId(2), share: Share::Percent(30) });
    assert_eq!(server.poll_event(), Some(share));
    assert_eq!(server.poll_event(), Some(ServerEvent::Notice(Notice::RateLimit { bytes_per_second: 16_000 })));
    assert_eq!(server.poll_event(), Some(ServerEvent::Notice(Notice::FileClose { volume: VOLUME, file: InodeId(2) })));
    let mut early = ClientConnection::new(ClientConfig::default(), NOW);
    assert_eq!(early.notify(Notice::RateLimit { bytes_per_second: 1 }), Err(Refused::NotReady));
    Ok(())
}

#[test]
fn pieces_of_volumes_say_what_they_belong_to() {
    let piece = VolumePiece { version: 7, size: 1 << 40, codec: 1, bytes: Bytes::from_static(b"blocks") };
    assert_eq!(VolumePiece::parse(piece.to_bytes()), Some(piece.clone()));
    for bytes in 0..17 {
        assert_eq!(VolumePiece::parse(piece.to_bytes().slice(..bytes)), None);
    }
}

#[test]
fn an_open_file_is_a_regular_one() {
    let open = VolumeAsk::FileOpen { token: Token(1), path: b"a".to_vec() };
    let info = FileInfo { kind: crate::volume::FileKind::Folder, ..FileInfo::default() };
    let reply = VolumeReply::FileOpened { file: InodeId(2), info, profiled: false, present: Vec::new(), cut: false };
    assert!(!open.accepts(&reply));
}

/// What of volumes comes in a frame without a hash, because a bit of its kind was damaged or the
/// peer is none of ours.
#[test]
fn answers_of_volumes_come_with_a_hash_or_not_at_all() -> Result<(), WireError> {
    // An error whose number or code was damaged.
    let (mut client, mut server) = pair()?;
    let request = client.request(NOW, commit(1, 10)).expect("room");
    exchange(&mut client, &mut server)?;
    let reply = Reply::error(ErrorCode::NotFound, "gone");
    let plain = flat(&encode::server(&ServerMessage::Reply { request, reply }));
    let refused = client.receive(NOW, &plain);
    assert_eq!(refused, Err(WireError::WrongReply { request, asked: "Commit", found: "Error" }));

    // The same from a server of ours; and what was cancelled may fail either way.
    let (mut client, mut server) = pair()?;
    let request = client.request(NOW, commit(1, 10)).expect("room");
    let other = client.request(NOW, pull()).expect("room");
    exchange(&mut client, &mut server)?;
    server.reply_error(request, ErrorCode::Conflict, "changed").expect("in flight");
    client.cancel(NOW, other).expect("in flight");
    exchange(&mut client, &mut server)?;
    let reply = Reply::error(ErrorCode::Conflict, "changed");
    assert_eq!(client.poll_event(), Some(ClientEvent::Reply { request, reply }));
    assert_eq!((client.poll_event(), client.requests_in_flight()), (None, 0));

    // A piece of a stream of a volume.
    let push = PushHeader {
        image: VOLUME,
        token: Token(1),
        action: units::ActionId(1),
        encoding: PushEncoding::Volume,
        window_log: 0,
        audit: false,
    };
    let stream = server.push_start(push).expect("room");
    exchange(&mut client, &mut server)?;
    let pages = vec![PageId::new(InodeId(2), 9)];
    let piece = PushPiece { stream, segment: units::SegmentIndex(0), pages, bytes: Bytes::from_static(b"piece") };
    let plain = flat(&encode::server(&ServerMessage::Push(piece)));
    assert_eq!(client.receive(NOW, &plain), Err(WireError::UnknownStream { kind: "Push", stream }));
    Ok(())
}
