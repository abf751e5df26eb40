//! Peers that break the rules, each way. Every one of them gets a typed error and costs bounded
//! memory.

use bytes::Bytes;
use units::{BlockId, InodeId, Moment, PageId, RequestId, SegmentIndex, StreamId, Token};

use super::samples::{Samples, flat, header};
use crate::format::{
    ClientKind, EVENTS_MAX, FEATURE_TOKENS, FEATURES, FRAME_BYTES_MAX, PINGS_MAX, PROOF_BYTES_MAX, REQUESTS_MAX,
    SMALL_FRAME_BYTES_MAX, START_BYTES_MAX, STREAMS_MAX, ServerKind,
};
use crate::message::{ClientMessage, Notice, ServerMessage};
use crate::server::MEMORY_PER_BYTE;
use crate::{
    Bearer, BlockRange, ClientConfig, ClientConnection, ClientEvent, ErrorCode, Hello, HelloReply, ImageHandle,
    PushEncoding, PushEndReason, PushHeader, PushPiece, Refused, Reply, Request, ServerConfig, ServerConnection,
    ServerEvent, WireError, encode,
};

fn hello() -> ClientMessage {
    let (version, window_log_max, push_bytes_max) = (crate::format::VERSION, 20, 1 << 20);
    let frame_bytes_max = FRAME_BYTES_MAX as u32;
    ClientMessage::Hello(Hello { version, device: 7, features: 0, frame_bytes_max, window_log_max, push_bytes_max })
}

fn list(request: u32) -> ClientMessage {
    ClientMessage::Request { request: RequestId(request), ask: Request::List }
}

/// What a server says to this client.
fn server_gets(messages: &[ClientMessage]) -> Result<ServerConnection, WireError> {
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    for message in messages {
        server.receive(Moment(1), &flat(&encode::client(message)))?;
    }
    Ok(server)
}

fn pull(force: bool) -> Request {
    let page = PageId::new(InodeId(1), 1);
    Request::PullBlock { image: ImageHandle(1), token: Token(1), page, block: BlockId(1), force, speculative: false }
}

/// A client past its handshake, with requests 1 (List), 2 (PullBlock, forced), 3 (MetaRead) and 4
/// (PutOpen).
fn client() -> ClientConnection {
    let config = ClientConfig { push_bytes_max: 100_000, window_log_max: 20, ..Default::default() };
    let mut client = ClientConnection::new(config, Moment(0));
    client.request(Moment(0), Request::List).unwrap();
    client.request(Moment(0), pull(true)).unwrap();
    client.request(Moment(0), Request::MetaRead { image: ImageHandle(1), offset: 0, bytes: 100 }).unwrap();
    let put = Request::PutOpen { name: "n".into(), file_bytes: 9999, metadata_offset: 5000, metadata_bytes: 10 };
    client.request(Moment(0), put).unwrap();
    client.transmit(Moment(0), &mut Vec::new(), usize::MAX);
    let (version, features) = (crate::format::VERSION, crate::format::FEATURE_DECODED);
    let hello = HelloReply { version, features, frame_bytes_max: FRAME_BYTES_MAX as u32 };
    client.receive(Moment(1), &flat(&encode::server(&ServerMessage::Hello(hello)))).unwrap();
    assert_eq!(client.poll_event(), Some(ClientEvent::Ready(hello)));
    client
}

fn client_gets(messages: &[ServerMessage]) -> Result<ClientConnection, WireError> {
    let mut client = client();
    for message in messages {
        client.receive(Moment(2), &flat(&encode::server(message)))?;
    }
    Ok(client)
}

fn start(stream: u32) -> ServerMessage {
    let push = PushHeader {
        image: ImageHandle(1),
        token: Token(1),
        action: Default::default(),
        encoding: PushEncoding::ZstdStream,
        window_log: 20,
        audit: false,
    };
    ServerMessage::PushStart { stream: StreamId(stream), push }
}

fn push(stream: u32, bytes: usize) -> ServerMessage {
    let (stream, segment, pages) = (StreamId(stream), SegmentIndex(0), vec![PageId::default()]);
    ServerMessage::Push(PushPiece { stream, segment, pages, bytes: Bytes::from(vec![0; bytes]) })
}

fn end(stream: u32) -> ServerMessage {
    ServerMessage::PushEnd { stream: StreamId(stream), reason: PushEndReason::Complete }
}

#[test]
fn strangers_are_recognised_by_their_first_bytes() {
    for stranger in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01\x02\x00", b"SSH-2.0-x", &[0; 64]] {
        let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
        let error = server.receive(Moment(1), stranger).unwrap_err();
        assert!(matches!(error, WireError::UnknownKind { .. } | WireError::WrongOrder { .. }), "{error}");
        assert_eq!(server.poll_event(), Some(ServerEvent::Closed(error.clone())));
        assert_eq!(server.receive(Moment(1), b"more"), Err(error));
        assert!(server.queued_bytes() + server.received_bytes() < 500);
    }
    let mut bytes = flat(&encode::client(&hello()));
    bytes[5] ^= 1;
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    assert_eq!(server.receive(Moment(1), &bytes), Err(WireError::Magic { found: *b"SNLW" }));
}

#[test]
fn a_length_alone_costs_nothing_and_too_much_is_an_error() {
    let mut server = server_gets(&[hello()]).unwrap();
    server.transmit(Moment(1), &mut Vec::new(), usize::MAX);
    server.receive(Moment(1), &header(ClientKind::PutBlock as u8, FRAME_BYTES_MAX as u32)).unwrap();
    assert!(server.queued_bytes() + server.received_bytes() <= 64 << 10);
    for (kind, length, max) in [
        (ClientKind::PutBlock, FRAME_BYTES_MAX + 1, FRAME_BYTES_MAX),
        (ClientKind::Touch, SMALL_FRAME_BYTES_MAX + 1, SMALL_FRAME_BYTES_MAX),
        (ClientKind::PutMeta, u32::MAX as usize, FRAME_BYTES_MAX),
    ] {
        let mut server = server_gets(&[hello()]).unwrap();
        let error = server.receive(Moment(1), &header(kind as u8, length as u32)).unwrap_err();
        assert_eq!(error, WireError::FrameTooLarge { kind: kind.name(), found: length as u64, max });
        let mut out = Vec::new();
        server.transmit(Moment(1), &mut out, usize::MAX);
        let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
        assert!(matches!(client.receive(Moment(1), &out), Err(WireError::Peer { code: ErrorCode::TooLarge, .. })));
    }
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    let error = server.receive(Moment(1), &header(ClientKind::Hello as u8, 1025)).unwrap_err();
    assert!(matches!(error, WireError::FrameTooLarge { .. }));
    let error = client().receive(Moment(2), &header(ServerKind::Block as u8, u32::MAX)).unwrap_err();
    assert!(matches!(error, WireError::FrameTooLarge { .. }));
}

#[test]
fn unknown_kinds_and_kinds_of_the_other_side_are_errors() {
    for kind in [0u8, 0x05, 0x34, 0x81, 0xff] {
        let mut server = server_gets(&[hello()]).unwrap();
        assert_eq!(server.receive(Moment(1), &header(kind, 0)), Err(WireError::UnknownKind { kind }));
    }
    for kind in [0u8, 0x01, 0x84, 0xb3, 0xff] {
        assert_eq!(client().receive(Moment(2), &header(kind, 0)), Err(WireError::UnknownKind { kind }));
    }
}

#[test]
fn a_client_must_begin_with_one_hello() {
    assert!(matches!(server_gets(&[list(1)]), Err(WireError::WrongOrder { kind: "List", .. })));
    assert!(matches!(server_gets(&[hello(), hello()]), Err(WireError::WrongOrder { kind: "Hello", .. })));
    assert!(server_gets(&[hello(), list(1)]).is_ok());
}

#[test]
fn a_server_must_begin_with_one_hello() {
    let reply = ServerMessage::Reply { request: RequestId(1), reply: Reply::Listing { json: Bytes::new() } };
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    client.request(Moment(0), Request::List).unwrap();
    let error = client.receive(Moment(1), &flat(&encode::server(&reply))).unwrap_err();
    assert!(matches!(error, WireError::WrongOrder { kind: "Listing", .. }));
    let error = ServerMessage::Reply { request: RequestId(1), reply: Reply::error(ErrorCode::Busy, "") };
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    client.request(Moment(0), Request::List).unwrap();
    let error = client.receive(Moment(1), &flat(&encode::server(&error))).unwrap_err();
    assert!(matches!(error, WireError::WrongOrder { kind: "Error", .. }));
    let hello = HelloReply { version: crate::format::VERSION, features: 0, frame_bytes_max: FRAME_BYTES_MAX as u32 };
    let error = client_gets(&[ServerMessage::Hello(hello)]).unwrap_err();
    assert!(matches!(error, WireError::WrongOrder { kind: "HelloReply", .. }));
}

#[test]
fn too_many_requests_close_the_connection() {
    assert_eq!(
        server_gets(&[hello(), list(1), list(1)]).err(),
        Some(WireError::RequestNumber { request: RequestId(1) })
    );
    let mut server = server_gets(&[hello()]).unwrap();
    for request in 1..=REQUESTS_MAX as u32 {
        server.receive(Moment(1), &flat(&encode::client(&list(request)))).unwrap();
    }
    // Bytes that are small requests take many times as much memory, which counts until they are
    // answered.
    let bytes = flat(&encode::client(&list(1))).len() * REQUESTS_MAX;
    let events = server.received_bytes();
    assert!(events > 200 * REQUESTS_MAX && events <= MEMORY_PER_BYTE * bytes, "{events}");
    while server.poll_event().is_some() {}
    assert!((100 * REQUESTS_MAX..events).contains(&server.received_bytes()));
    let error = server.receive(Moment(1), &flat(&encode::client(&list(9999)))).unwrap_err();
    assert_eq!(error, WireError::TooMany { what: "requests in flight", max: REQUESTS_MAX as u64 });
    let open = |request| ClientMessage::Request {
        request: RequestId(request),
        ask: Request::PutOpen { name: "n".into(), file_bytes: 9, metadata_offset: 0, metadata_bytes: 9 },
    };
    let error = server_gets(&[hello(), open(1), open(2), open(3), open(4), open(5)]).err();
    assert_eq!(error, Some(WireError::TooMany { what: "puts in flight", max: 4 }));
}

#[test]
fn a_client_that_never_reads_its_pongs_is_cut_off() {
    let mut server = server_gets(&[hello()]).unwrap();
    let ping = flat(&encode::client(&ClientMessage::Ping { nonce: 1 }));
    let at = |second| Moment(0).after(std::time::Duration::from_secs(second));
    let error = (0..100_000).find_map(|second| server.receive(at(second), &ping).err()).expect("an end");
    assert!(matches!(error, WireError::TooMany { what: "answers the client did not read", .. }));
    // Faster than any client of ours.
    let mut server = server_gets(&[hello()]).unwrap();
    let pings = (0..100_000).position(|_| server.receive(at(1), &ping).is_err());
    assert_eq!(pings, Some(PINGS_MAX as usize));
    // the same by cancels
    let mut server = server_gets(&[hello()]).unwrap();
    let error = (1..100_000).find_map(|request| {
        let cancel = ClientMessage::Cancel { request: RequestId(request) };
        let bytes = [flat(&encode::client(&list(request))), flat(&encode::client(&cancel))].concat();
        while server.poll_event().is_some() {}
        server.receive(Moment(1), &bytes).err()
    });
    assert!(matches!(error, Some(WireError::TooMany { .. })), "{error:?}");
}

#[test]
fn a_flood_of_touches_holds_the_socket_back() {
    let mut server = server_gets(&[hello()]).unwrap();
    let mut samples = Samples(units::SplitMix64(1));
    let pages = samples.pages(5);
    let touch =
        flat(&encode::client(&ClientMessage::Notice(Notice::Touch { image: ImageHandle(1), token: Token(1), pages })));
    let taken = (0..10_000).take_while(|_| server.wants_bytes() && server.receive(Moment(1), &touch).is_ok()).count();
    assert_eq!(taken, EVENTS_MAX - 1);
    while server.poll_event().is_some() {}
    assert!(server.wants_bytes());
}

#[test]
fn hints_need_the_feature() {
    let hint =
        ClientMessage::Notice(Notice::Hint { image: ImageHandle(1), token: Token(1), pages: vec![PageId::default()] });
    let error = server_gets(&[hello(), hint]).err();
    assert_eq!(error, Some(WireError::WrongOrder { kind: "Hint", when: "without the feature" }));
}

#[test]
fn tokens_need_the_feature_and_a_server_that_knows_them() {
    let token = || Notice::Bearer(Bearer::received("rnl_x".to_owned()));
    let error = server_gets(&[hello(), ClientMessage::Notice(token())]).err();
    assert_eq!(error, Some(WireError::WrongOrder { kind: "Bearer", when: "without the feature" }));
    let config = ClientConfig { features: FEATURES, ..ClientConfig::default() };
    let mut client = ClientConnection::new(config, Moment(0));
    client.request(Moment(0), Request::List).unwrap();
    client.notify(token()).unwrap();
    let (mut sent, mut server) = (Vec::new(), ServerConnection::new(ServerConfig::default(), Moment(0)));
    client.transmit(Moment(0), &mut sent, usize::MAX);
    server.receive(Moment(0), &sent).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| server.poll_event()).collect();
    assert!(matches!(&events[1..], [ServerEvent::Request { .. }, ServerEvent::Notice(notice)] if *notice == token()));
    // One from before there were tokens.
    let features = FEATURES & !FEATURE_TOKENS;
    let reply = HelloReply { version: crate::format::VERSION, features, frame_bytes_max: 1 << 20 };
    let error = client.receive(Moment(1), &flat(&encode::server(&ServerMessage::Hello(reply)))).unwrap_err();
    assert_eq!(error, WireError::Lacks { what: "tokens" });
}

#[test]
fn credit_and_stop_need_a_stream() {
    let stream = StreamId(1);
    let error = server_gets(&[hello(), ClientMessage::Notice(Notice::Credit { stream, bytes: 1 })]).err();
    assert_eq!(error, Some(WireError::UnknownStream { kind: "Credit", stream }));
    let error = server_gets(&[hello(), ClientMessage::Notice(Notice::StopPush { stream })]).err();
    assert_eq!(error, Some(WireError::UnknownStream { kind: "StopPush", stream }));
    for (bytes, overrun) in [(1, false), (1_000_000, true), (u32::MAX, true)] {
        let mut server = server_gets(&[hello()]).unwrap();
        let ServerMessage::PushStart { push, .. } = start(1) else { unreachable!() };
        server.push_start(push).unwrap();
        let pages = vec![PageId::default()];
        server.push(PushPiece { stream, segment: SegmentIndex(0), pages, bytes: Bytes::from_static(b"x") }).unwrap();
        server.transmit(Moment(1), &mut Vec::new(), usize::MAX);
        let credit = flat(&encode::client(&ClientMessage::Notice(Notice::Credit { stream, bytes })));
        let result = server.receive(Moment(2), &credit);
        assert_eq!(matches!(result, Err(WireError::CreditOverrun { .. })), overrun, "{result:?}");
        // an ended stream, credited in full, takes no more
        if !overrun {
            let rest = server.in_flight_push_bytes() as u32;
            server.cancel_push(stream, PushEndReason::Mismatch);
            let credit = |bytes| flat(&encode::client(&ClientMessage::Notice(Notice::Credit { stream, bytes })));
            server.receive(Moment(2), &credit(rest)).unwrap();
            let result = server.receive(Moment(2), &credit(1));
            assert_eq!(result, Err(WireError::CreditOverrun { stream, found: 1, expected: 0 }));
        }
    }
}

#[test]
fn uploads_nobody_opened_are_errors() {
    let request = RequestId(1);
    let bytes = Bytes::from_static(b"x");
    for (message, kind) in [
        (ClientMessage::PutMeta { request, offset: 0, bytes: bytes.clone() }, "PutMeta"),
        (ClientMessage::PutBlock { request, block: BlockId(0), bytes }, "PutBlock"),
        (ClientMessage::PutCommit { request }, "PutCommit"),
    ] {
        let unknown = Some(WireError::UnknownRequest { kind, request });
        assert_eq!(server_gets(&[hello(), message.clone()]).err(), unknown);
        assert_eq!(server_gets(&[hello(), list(1), message]).err(), unknown, "request 1 is no put");
    }
}

#[test]
fn replies_nobody_asked_for_are_errors() {
    let reply = |request, reply| ServerMessage::Reply { request: RequestId(request), reply };
    let listing = Reply::Listing { json: Bytes::new() };
    let error = client_gets(&[reply(99, listing.clone())]).unwrap_err();
    assert_eq!(error, WireError::UnknownRequest { kind: "Listing", request: RequestId(99) });
    let error = client_gets(&[reply(1, listing.clone()), reply(1, listing)]).unwrap_err();
    assert_eq!(error, WireError::UnknownRequest { kind: "Listing", request: RequestId(1) });
    let bytes = Bytes::from_static(b"x");
    for (request, wrong) in [
        (1, Reply::Status { json: Bytes::new() }),
        (2, Reply::Block { block: BlockId(2), bytes: bytes.clone() }),
        (2, Reply::Pages { codec: 0, bytes: bytes.clone() }),
        // It was forced.
        (2, Reply::Decoded { block: BlockId(1), bytes: bytes.clone() }),
        (3, Reply::MetaData { offset: 0, bytes: Bytes::from(vec![0; 101]) }),
        (3, Reply::MetaData { offset: 0, bytes: Bytes::from(vec![0; 99]) }),
        (3, Reply::MetaData { offset: 1, bytes: Bytes::from(vec![0; 100]) }),
        (4, Reply::PutDone { id: Default::default() }),
    ] {
        let error = client_gets(&[reply(request, wrong.clone())]).unwrap_err();
        let (request, found) = (RequestId(request), wrong.name());
        assert!(
            matches!(&error, WireError::WrongReply { request: number, found: name, .. }
            if *number == request && *name == found),
            "{error}"
        );
    }
    let on_the_way = |stream| reply(2, Reply::OnTheWay { stream: StreamId(stream) });
    assert!(matches!(client_gets(&[on_the_way(1)]), Err(WireError::UnknownStream { .. })));
    assert!(matches!(client_gets(&[start(1), on_the_way(1)]), Err(WireError::WrongReply { .. })), "it was forced");
    let error = client_gets(&[ServerMessage::Pong { nonce: 0 }]).unwrap_err();
    assert!(matches!(error, WireError::WrongOrder { kind: "Pong", .. }));
}

#[test]
fn pushes_nobody_announced_are_errors() {
    let unknown = |kind, stream| Some(WireError::UnknownStream { kind, stream: StreamId(stream) });
    assert_eq!(client_gets(&[push(1, 1)]).err(), unknown("Push", 1));
    assert_eq!(client_gets(&[end(1)]).err(), unknown("PushEnd", 1));
    assert_eq!(client_gets(&[start(2)]).err(), unknown("PushStart", 2));
    assert_eq!(client_gets(&[start(1), start(1)]).err(), unknown("PushStart", 1));
    assert_eq!(client_gets(&[start(1), end(1), push(1, 1)]).err(), unknown("Push", 1));
    assert_eq!(client_gets(&[start(1), end(1), end(1)]).err(), unknown("PushEnd", 1));
    assert!(client_gets(&[start(1), push(1, 1), end(1), start(2), push(2, 1)]).is_ok());
    let starts: Vec<_> = (1..=STREAMS_MAX as u32 + 1).map(start).collect();
    assert_eq!(client_gets(&starts).err(), Some(WireError::TooMany { what: "push streams", max: STREAMS_MAX as u64 }));
    let ServerMessage::PushStart { stream, mut push } = start(1) else { unreachable!() };
    push.window_log = 21;
    assert!(matches!(client_gets(&[ServerMessage::PushStart { stream, push }]), Err(WireError::TooMany { .. })));
}

#[test]
fn a_server_that_ignores_credit_is_cut_off() {
    let flood: Vec<_> = std::iter::once(start(1)).chain((0..1000).map(|_| push(1, 30_000))).collect();
    let error = client_gets(&flood).unwrap_err();
    assert_eq!(error, WireError::TooMany { what: "uncredited push bytes", max: 100_000 });
    // the bound holds over all streams together
    let flood: Vec<_> = (1..=20).flat_map(|stream| [start(stream), push(stream, 30_000), end(stream)]).collect();
    assert!(matches!(client_gets(&flood), Err(WireError::TooMany { what: "uncredited push bytes", .. })));
}

#[test]
fn an_upload_is_not_kept_alive_by_nothing() {
    let request = RequestId(4);
    let need = |ranges, last| ServerMessage::PutNeed { request, ranges, last };
    let range = |first| vec![BlockRange { first: BlockId(first), count: 1 }];
    let progress = |bytes| ServerMessage::PutProgress { request, bytes };
    assert!(client_gets(&[need(range(1), false), need(range(2), true), progress(1), progress(9999)]).is_ok());
    for wrong in [
        vec![need(vec![], false)],
        vec![need(range(1), true), need(range(2), true)],
        vec![need(range(5), false), need(range(5), false)],
        vec![progress(0)],
        vec![progress(5), progress(5)],
        vec![progress(10_000)],
    ] {
        assert!(matches!(client_gets(&wrong), Err(WireError::WrongOrder { .. })), "{wrong:?}");
    }
    let unknown = ServerMessage::PutProgress { request: RequestId(1), bytes: 1 };
    assert!(matches!(client_gets(&[unknown]), Err(WireError::UnknownRequest { .. })));
    let endless = (0..2000u32).map(|frame| {
        let ranges = (0..1000).map(|range| BlockRange { first: BlockId((frame * 1000 + range) * 2), count: 1 });
        need(ranges.collect(), false)
    });
    assert!(matches!(client_gets(&endless.collect::<Vec<_>>()), Err(WireError::TooMany { .. })));
}

#[test]
fn nobody_is_sent_what_it_did_not_say_it_takes() {
    let (image, bytes) = (ImageHandle(1), Bytes::from_static(b"bytes"));
    let hashes = ServerMessage::Hashes { image, proof: bytes.clone() };
    let start = ServerMessage::Start { image, offset: 0, bytes: bytes.clone() };
    for message in [hashes, start] {
        let error = client_gets(&[message]).unwrap_err();
        assert!(matches!(error, WireError::WrongOrder { when: "without the feature", .. }), "{error}");
    }
    let mut server = server_gets(&[hello()]).unwrap();
    assert_eq!(server.hashes(image, bytes.clone()), Err(Refused::NoFeature("proofs")));
    assert_eq!(server.start(image, 0, bytes), Err(Refused::NoFeature("start")));
    // A server that agrees to what nobody stated is not believed.
    let config = ClientConfig { features: 0, ..ClientConfig::default() };
    let mut client = ClientConnection::new(config, Moment(0));
    let hello = HelloReply { version: crate::format::VERSION, features: FEATURES, frame_bytes_max: 1 << 20 };
    client.receive(Moment(1), &flat(&encode::server(&ServerMessage::Hello(hello)))).unwrap();
    assert_eq!(client.hello().map(|hello| hello.features), Some(0));
}

#[test]
fn what_is_sent_unasked_goes_before_what_is_queued_after_it_and_before_pushes() {
    let mut stated = hello();
    if let ClientMessage::Hello(hello) = &mut stated {
        hello.features = FEATURES;
    }
    let mut server = server_gets(&[stated, list(1)]).unwrap();
    let image = ImageHandle(1);
    let header = PushHeader {
        image,
        token: Token(1),
        action: Default::default(),
        encoding: PushEncoding::Stored,
        window_log: 0,
        audit: false,
    };
    let stream = server.push_start(header).unwrap();
    let piece = PushPiece { stream, segment: SegmentIndex(0), pages: vec![PageId::default()], bytes: vec![1].into() };
    server.push(piece).unwrap();
    server.hashes(image, Bytes::from(vec![0; PROOF_BYTES_MAX])).unwrap();
    server.start(image, 0, Bytes::from(vec![0; START_BYTES_MAX])).unwrap();
    server.reply(RequestId(1), Reply::Listing { json: Bytes::new() }).unwrap();
    assert!(matches!(server.hashes(image, Bytes::new()), Err(Refused::Limit { .. })));
    assert!(matches!(server.start(image, 0, vec![0; START_BYTES_MAX + 1].into()), Err(Refused::Limit { .. })));
    let mut out = Vec::new();
    server.transmit(Moment(2), &mut out, usize::MAX);
    let mut kinds = Vec::new();
    let mut rest = out.as_slice();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        kinds.push(ServerKind::from_u8(after[0]).unwrap());
        rest = &after[1 + u32::from_le_bytes(*length) as usize..];
    }
    use ServerKind::{Hashes, HelloReply, Listing, Push, PushStart, Start};
    assert_eq!(kinds, [HelloReply, PushStart, Hashes, Start, Listing, Push]);
}
