//! Time: deadlines, keepalive, dead peers, slow peers.

use std::time::Duration;

use bytes::Bytes;
use units::{BlockId, InodeId, Moment, PageId, Token};

use super::rig::{LinkConfig, Pair};
use super::samples::{flat, header};
use crate::format::{ClientKind, ServerKind};
use crate::message::{ClientMessage, Notice, ServerMessage};
use crate::{
    ClientConfig, ClientConnection, ClientEvent, ErrorCode, HelloReply, ImageHandle, Reply, Request, ServerConfig,
    ServerConnection, ServerEvent, WireError, encode,
};

const LINK: fn() -> LinkConfig = || LinkConfig::new(20, 25);

fn pull() -> Request {
    let (token, page) = (Token(1), PageId::new(InodeId(1), 1));
    Request::PullBlock { image: ImageHandle(1), token, page, block: BlockId(1), force: false, speculative: false }
}

fn seconds(moment: Moment) -> u64 {
    moment.0 / 1_000_000
}

#[test]
fn an_idle_connection_stays_alive_for_an_hour() {
    let mut pair = Pair::ready(LINK(), 1);
    pair.pass(Duration::from_secs(3600));
    assert_eq!((pair.client_events(), pair.server_events()), (vec![], vec![]));
    let received = pair.server.traffic().frames_received;
    // one ping each 15 s and the hello
    assert!((230..=241).contains(&received), "{received} frames");
}

#[test]
fn a_request_expires_and_its_late_answer_is_dropped() {
    let mut pair = Pair::ready(LINK(), 1);
    let due = pair.now.after(Duration::from_secs(3));
    let request = pair.client.request_until(pair.now, pull(), due).unwrap();
    pair.settle();
    pair.server_events();
    pair.pass(Duration::from_millis(2_900));
    assert_eq!(pair.client_events(), []);
    pair.pass(Duration::from_millis(200));
    assert_eq!(pair.client_events(), [ClientEvent::Expired { request }]);
    assert_eq!(pair.server_events(), [ServerEvent::Cancelled { request }]);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.client_events(), []);
    assert_eq!(pair.client.requests_in_flight(), 0);
}

#[test]
fn a_request_that_expires_unsent_is_forgotten() {
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    let request = client.request_until(Moment(0), pull(), Moment(5)).unwrap();
    assert_eq!(client.deadline(), Some(Moment(5)));
    client.tick(Moment(5)).unwrap();
    assert_eq!(client.poll_event(), Some(ClientEvent::Expired { request }));
    assert_eq!(client.requests_in_flight(), 0);
}

#[test]
fn a_silent_server_is_dead_a_slow_one_is_not() {
    let mut pair = Pair::ready(LINK(), 1);
    let asked = pair.now;
    let request = pair.client.request_until(pair.now, pull(), Moment(u64::MAX)).unwrap();
    // a store may take a minute: the server still answers pings
    pair.pass(Duration::from_secs(60));
    assert_eq!(pair.client_events(), []);
    pair.server_events();
    pair.server.reply_error(request, ErrorCode::Storage, "slow").unwrap();
    pair.settle();
    assert!(matches!(pair.client_events()[..], [ClientEvent::Reply { .. }]));

    pair.client.request_until(pair.now, pull(), Moment(u64::MAX)).unwrap();
    pair.up.dead = true;
    pair.down.dead = true;
    let cut = pair.now;
    while !pair.client.is_closed() {
        assert!(pair.step(Moment(u64::MAX)), "no further deadline");
    }
    let noticed = pair.now.since(cut).as_secs();
    assert!((9..=16).contains(&noticed), "noticed after {noticed} s");
    let events = pair.client_events();
    assert!(matches!(&events[..], [ClientEvent::Closed(WireError::Deadline { .. })]), "{events:?}");
    assert_eq!(pair.client.unanswered().count(), 1);
    assert!(cut > asked);
}

#[test]
fn an_idle_client_notices_a_dead_server_by_its_ping() {
    let mut pair = Pair::ready(LINK(), 1);
    pair.down.dead = true;
    while !pair.client.is_closed() {
        assert!(pair.step(Moment(u64::MAX)), "no further deadline");
    }
    assert_eq!(seconds(pair.now), 25);
}

#[test]
fn a_server_drops_a_client_that_went_away() {
    let mut pair = Pair::ready(LINK(), 1);
    pair.up.dead = true;
    let error = loop {
        pair.step(Moment(u64::MAX));
        if let Some(ServerEvent::Closed(error)) = pair.server.poll_event() {
            break error;
        }
    };
    assert!(matches!(error, WireError::Deadline { what: "the client sent nothing", .. }));
    assert_eq!(seconds(pair.now), 60);
}

#[test]
fn hello_has_a_deadline_on_both_sides() {
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    assert_eq!(client.deadline(), Some(Moment(10_000_000)));
    assert!(matches!(client.tick(Moment(10_000_000)), Err(WireError::Deadline { .. })));
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    // a drop of bytes now and then does not put it off
    server.receive(Moment(9_000_000), &[39]).unwrap();
    assert_eq!(server.deadline(), Some(Moment(10_000_000)));
    assert!(matches!(server.tick(Moment(10_000_000)), Err(WireError::Deadline { .. })));
}

#[test]
fn a_frame_that_trickles_in_is_cut_off() {
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    let mut out = Vec::new();
    client.transmit(Moment(0), &mut out, usize::MAX);
    server.receive(Moment(0), &out).unwrap();
    server.transmit(Moment(0), &mut Vec::new(), usize::MAX);
    let mut now = Moment(0);
    server.receive(now, &header(ClientKind::Touch as u8, 10_000)).unwrap();
    let error = loop {
        now = now.after(Duration::from_secs(1));
        if server.deadline().is_some_and(|deadline| now >= deadline)
            && let Err(error) = server.tick(now)
        {
            break error;
        }
        server.receive(now, &[0]).unwrap();
    };
    assert!(matches!(error, WireError::Deadline { what: "a frame that had begun was not completed", .. }));
    assert_eq!(seconds(now), 31);
    assert!(server.queued_bytes() + server.received_bytes() < 20_000);
}

#[test]
fn a_large_frame_on_a_thin_link_has_the_time_it_needs() {
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    client.transmit(Moment(0), &mut Vec::new(), usize::MAX);
    let hello = HelloReply { version: crate::format::VERSION, features: 0, frame_bytes_max: 2 << 20 };
    client.receive(Moment(0), &flat(&encode::server(&ServerMessage::Hello(hello)))).unwrap();
    client.request_until(Moment(0), pull(), Moment(u64::MAX)).unwrap();
    client.receive(Moment(0), &header(ServerKind::Block as u8, 1 << 20)).unwrap();
    let mut now = Moment(0);
    for second in 0..128 {
        now = now.after(Duration::from_secs(1));
        let mut bytes = vec![0; 8 << 10];
        if second == 0 {
            // the request and the block number
            bytes[0] = 1;
            bytes[4] = 1;
        }
        client.receive(now, &bytes).unwrap();
        client.tick(now).unwrap();
    }
    let reply = client.poll_event().into_iter().chain(std::iter::from_fn(|| client.poll_event())).last();
    assert!(matches!(reply, Some(ClientEvent::Reply { reply: Reply::Block { .. }, .. })), "{reply:?}");
}

#[test]
fn a_client_that_takes_nothing_is_dropped() {
    let mut pair = Pair::ready(LINK(), 1);
    let request = pair.client.request(pair.now, pull()).unwrap();
    pair.settle();
    let bytes = Bytes::from(vec![0; 1 << 20]);
    pair.server.reply(request, Reply::Block { block: BlockId(1), bytes }).unwrap();
    let mut out = Vec::new();
    let mut now = pair.now;
    pair.server.transmit(now, &mut out, 100_000);
    let ping = flat(&encode::client(&ClientMessage::Ping { nonce: 1 }));
    let error = loop {
        now = now.after(Duration::from_secs(5));
        pair.server.receive(now, &ping).unwrap();
        if let Err(error) = pair.server.tick(now) {
            break error;
        }
    };
    assert!(matches!(error, WireError::Deadline { what: "the client hardly reads its answers", .. }));
    assert_eq!(now.since(pair.now).as_secs(), 30);
}

/// A server that took one byte a second for a sign of life would keep a megabyte for weeks.
#[test]
fn a_client_that_reads_slower_than_any_link_is_dropped_and_one_on_a_thin_link_is_not() {
    let survives = |bytes_per_second: usize, limit: u64| {
        let mut pair = Pair::ready(LINK(), 1);
        let request = pair.client.request(pair.now, pull()).unwrap();
        pair.settle();
        let bytes = Bytes::from(vec![0; 1 << 20]);
        pair.server.reply(request, Reply::Block { block: BlockId(1), bytes }).unwrap();
        let ping = flat(&encode::client(&ClientMessage::Ping { nonce: 1 }));
        let mut now = pair.now;
        pair.server
            .receive(now, &flat(&encode::client(&ClientMessage::Notice(Notice::RateLimit { bytes_per_second: limit }))))
            .unwrap();
        (0..200).all(|_| {
            now = now.after(Duration::from_secs(1));
            pair.server.receive(now, &ping).unwrap();
            while pair.server.poll_event().is_some() {}
            pair.server.transmit(now, &mut Vec::new(), bytes_per_second);
            pair.server.tick(now).is_ok()
        })
    };
    assert!(survives(1100, 0));
    assert!(!survives(900, 0));
    assert!(survives(300, 256), "as slow as it wants it");
}
