//! Uploads: their order, their bounds, giving up early.

use std::time::Duration;

use bytes::Bytes;
use units::{BlockId, ImageId, RequestId};

use super::rig::{LinkConfig, Pair};
use super::samples::flat;
use crate::format::PUT_QUEUE_BYTES_MAX;
use crate::message::ClientMessage;
use crate::{BlockRange, ClientEvent, ErrorCode, Refused, Reply, Request, ServerEvent, WireError, encode};

const FILE_BYTES: u64 = 10_000_000;

fn open() -> Request {
    Request::PutOpen {
        name: "app:1".into(),
        file_bytes: FILE_BYTES,
        metadata_offset: FILE_BYTES - 5000,
        metadata_bytes: 5000,
    }
}

fn range(first: u32, count: u32) -> BlockRange {
    BlockRange { first: BlockId(first), count }
}

/// A pair with an upload whose PutOpen arrived.
fn opened(link: LinkConfig) -> (Pair, RequestId) {
    let mut pair = Pair::ready(link, 1);
    let request = pair.client.request(pair.now, open()).unwrap();
    pair.settle();
    assert_eq!(pair.server_events(), [ServerEvent::Request { request, ask: open() }]);
    (pair, request)
}

fn send(pair: &mut Pair, message: ClientMessage) -> Result<(), WireError> {
    let now = pair.now;
    pair.server.receive(now, &flat(&encode::client(&message)))
}

#[test]
fn an_upload_goes_through_its_stages() {
    let (mut pair, request) = opened(LinkConfig::new(20, 25));
    pair.client.put_meta(request, 0, Bytes::from(vec![1; 4096])).unwrap();
    pair.client.put_meta(request, FILE_BYTES - 5000, Bytes::from(vec![2; 5000])).unwrap();
    pair.settle();
    assert_eq!(pair.server_events().len(), 2);
    assert_eq!(pair.server.reply(request, Reply::PutDone { id: ImageId([1; 32]) }), Err(Refused::WrongReply(request)));
    pair.server.put_need(request, vec![range(0, 2)], false).unwrap();
    pair.server.put_need(request, vec![range(7, 1)], true).unwrap();
    pair.settle();
    assert_eq!(
        pair.client_events(),
        [
            ClientEvent::PutNeed { request, ranges: vec![range(0, 2)], last: false },
            ClientEvent::PutNeed { request, ranges: vec![range(7, 1)], last: true }
        ]
    );
    for (stored, block) in [0, 1, 7].into_iter().enumerate() {
        pair.client.put_block(request, BlockId(block), Bytes::from(vec![3; 1 << 20])).unwrap();
        pair.settle();
        assert!(matches!(pair.server_events()[..], [ServerEvent::PutBlock { .. }]));
        pair.server.put_progress(request, (stored as u64 + 1) << 20).unwrap();
        pair.settle();
        assert!(matches!(pair.client_events()[..], [ClientEvent::PutProgress { .. }]));
    }
    pair.client.put_commit(request).unwrap();
    assert_eq!(pair.client.put_commit(request), Err(Refused::WrongReply(request)));
    pair.settle();
    assert_eq!(pair.server_events(), [ServerEvent::PutCommit { request }]);
    let reply = Reply::PutDone { id: ImageId([1; 32]) };
    pair.server.reply(request, reply.clone()).unwrap();
    pair.settle();
    assert_eq!(pair.client_events(), [ClientEvent::Reply { request, reply }]);
}

#[test]
fn a_server_that_gives_up_drops_what_is_still_on_its_way() {
    let (mut pair, request) = opened(LinkConfig::new(20, 25));
    pair.server.put_need(request, vec![range(0, 100)], true).unwrap();
    pair.settle();
    for block in 0..4 {
        pair.client.put_block(request, BlockId(block), Bytes::from(vec![3; 500_000])).unwrap();
    }
    pair.pass(Duration::from_millis(200));
    pair.server.reply_error(request, ErrorCode::NoSpace, "disk full").unwrap();
    pair.settle();
    let events = pair.client_events();
    assert!(matches!(events.last(), Some(ClientEvent::Reply { reply: Reply::Error { .. }, .. })), "{events:?}");
    assert!(!pair.client.is_closed());
    assert!(pair.client.traffic().bytes_sent < 1_600_000, "the rest of the upload must not be sent");
    assert_eq!(
        pair.client.put_block(request, BlockId(9), Bytes::from_static(b"x")),
        Err(Refused::UnknownRequest(request))
    );
    let late = ClientMessage::PutBlock { request, block: BlockId(1), bytes: Bytes::from_static(b"late") };
    assert_eq!(send(&mut pair, late), Ok(()));
}

#[test]
fn the_wrong_order_closes_the_connection() {
    let request = RequestId(1);
    let bytes = Bytes::from_static(b"bytes");
    let block = ClientMessage::PutBlock { request, block: BlockId(0), bytes: bytes.clone() };
    let meta = |offset| ClientMessage::PutMeta { request, offset, bytes: bytes.clone() };
    let commit = ClientMessage::PutCommit { request };
    // before any PutNeed
    for (message, kind) in [(block.clone(), "PutBlock"), (commit.clone(), "PutCommit"), (meta(FILE_BYTES), "PutMeta")] {
        let (mut pair, _) = opened(LinkConfig::new(20, 25));
        let error = send(&mut pair, message).unwrap_err();
        assert!(matches!(error, WireError::WrongOrder { kind: found, .. } if found == kind), "{error}");
    }
    // after the last
    for (message, kind) in [(meta(0), "PutMeta"), (commit, "PutCommit")] {
        let (mut pair, request) = opened(LinkConfig::new(20, 25));
        pair.server.put_need(request, vec![range(0, 1)], true).unwrap();
        let error = send(&mut pair, message).unwrap_err();
        assert!(matches!(error, WireError::WrongOrder { kind: found, .. } if found == kind), "{error}");
    }
    // one block more than was asked for
    let (mut pair, request) = opened(LinkConfig::new(20, 25));
    pair.server.put_need(request, vec![range(0, 1)], true).unwrap();
    assert_eq!(send(&mut pair, block.clone()), Ok(()));
    assert!(matches!(send(&mut pair, block), Err(WireError::WrongOrder { kind: "PutBlock", .. })));
}

#[test]
fn endless_metadata_is_cut_off() {
    let (mut pair, request) = opened(LinkConfig::new(20, 25));
    let part = ClientMessage::PutMeta { request, offset: 0, bytes: Bytes::from(vec![0; 1000]) };
    let taken = (0..100).take_while(|_| send(&mut pair, part.clone()).is_ok()).count();
    assert_eq!(taken, 9, "4096 bytes of superblock and 5000 of metadata were announced");
}

#[test]
fn the_queue_of_an_upload_is_bounded() {
    let (mut pair, request) = opened(LinkConfig::new(20, 25));
    pair.server.put_need(request, vec![range(0, 100)], true).unwrap();
    pair.settle();
    let blocks = (0..100).take_while(|block| {
        let room = pair.client.put_room();
        let taken = pair.client.put_block(request, BlockId(*block), Bytes::from(vec![3; 1 << 20]));
        assert_eq!(room, taken.is_ok(), "{taken:?}");
        room
    });
    assert_eq!(blocks.count(), PUT_QUEUE_BYTES_MAX >> 20);
    let large = pair.client.put_block(request, BlockId(50), Bytes::from(vec![3; 2 << 20]));
    assert!(matches!(large, Err(Refused::Limit { .. })));
    // a demand for pages is not kept waiting behind it for more than what is in the socket
    let list = pair.client.request(pair.now, Request::List).unwrap();
    pair.settle();
    let events = pair.server_events();
    assert!(matches!(&events[0], ServerEvent::Request { request, .. } if *request == list), "{events:?}");
}

#[test]
fn uploaded_data_that_waits_holds_the_socket_back() {
    let (mut pair, request) = opened(LinkConfig::new(20, 25));
    pair.server.put_need(request, vec![range(0, 100)], true).unwrap();
    let block =
        |block| ClientMessage::PutBlock { request, block: BlockId(block), bytes: Bytes::from(vec![0; 1 << 20]) };
    let mut taken = 0;
    while pair.server.wants_bytes() {
        send(&mut pair, block(taken)).unwrap();
        taken += 1;
    }
    assert_eq!(taken, 4);
    assert!(pair.server.queued_bytes() + pair.server.received_bytes() >= 4 << 20);
    while pair.server.poll_event().is_some() {}
    assert!(pair.server.wants_bytes());
    assert!(pair.server.queued_bytes() + pair.server.received_bytes() < 1000);
}

#[test]
fn an_upload_on_a_thin_link_lives_while_it_moves() {
    // a megabyte takes 84 s: longer than both the silence limit and the deadline of a put
    let (mut pair, request) = opened(LinkConfig { bits_per_second: 100_000, ..LinkConfig::new(200, 1) });
    pair.server.put_need(request, vec![range(0, 3)], true).unwrap();
    pair.settle();
    pair.client_events();
    for block in 0..3u32 {
        pair.client.put_block(request, BlockId(block), Bytes::from(vec![3; 1 << 20])).unwrap();
        pair.settle();
        pair.server.put_progress(request, u64::from(block + 1) * 1000).unwrap();
        pair.settle();
    }
    assert!(!pair.client.is_closed());
    let events = pair.client_events();
    assert!(events.iter().all(|event| matches!(event, ClientEvent::PutProgress { .. })), "{events:?}");
    // a server that stores nothing more lets it expire
    pair.pass(Duration::from_secs(61));
    assert!(pair.client_events().contains(&ClientEvent::Expired { request }));
}

#[test]
fn a_server_asks_for_blocks_in_order_only() {
    let (mut pair, request) = opened(LinkConfig::new(20, 25));
    assert_eq!(pair.server.put_need(RequestId(99), vec![], true), Err(Refused::UnknownRequest(RequestId(99))));
    pair.server.put_need(request, vec![range(5, 5)], false).unwrap();
    for wrong in [vec![range(9, 1)], vec![range(20, 0)], vec![range(20, 1), range(20, 1)], vec![range(u32::MAX, 1)]] {
        assert!(matches!(pair.server.put_need(request, wrong, true), Err(Refused::Limit { .. })));
    }
    assert!(matches!(pair.server.put_need(request, vec![], false), Err(Refused::Limit { .. })));
    let many = (0..1025).map(|block| range(100 + 2 * block, 1)).collect();
    assert!(matches!(pair.server.put_need(request, many, true), Err(Refused::Limit { .. })));
    assert_eq!(pair.server.put_need(request, vec![range(10, 1)], true), Ok(()));
    assert_eq!(pair.server.put_need(request, vec![range(90, 1)], true), Err(Refused::WrongReply(request)));
}
