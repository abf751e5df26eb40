//! Push streams whose pieces say how they are encoded, decoded blocks, and who may use them.

use bytes::Bytes;
use units::{ActionId, BlockId, Moment, PageId, RequestId, Token};

use super::rig::{LinkConfig, Pair};
use super::samples::flat;
use crate::format::{FEATURE_DECODED, FEATURE_LONE_PAGES, FEATURE_PIECES, FEATURES, VERSION};
use crate::message::{ClientMessage, ServerMessage};
use crate::{
    ClientConfig, ClientConnection, ClientEvent, Hello, HelloReply, ImageHandle, Notice, PushEncoding, PushHeader,
    Refused, Reply, Request, ServerConfig, ServerConnection, ServerEvent, WireError, encode,
};

#[test]
fn pieces_that_say_their_form_are_for_those_who_know_them() {
    let push = PushHeader {
        image: ImageHandle(1),
        token: Token(1),
        action: ActionId(1),
        encoding: PushEncoding::Pieces,
        window_log: 20,
        audit: false,
    };
    let rate = Notice::DeviceSpeed { round_trip: 3, zstd: 5, lz4: 7 };
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    pair.client.notify(rate.clone()).unwrap();
    let stream = pair.server.push_start(push).unwrap();
    pair.settle();
    assert_eq!(pair.server_events(), [ServerEvent::Notice(rate.clone())]);
    assert_eq!(pair.client_events(), [ClientEvent::PushStart { stream, push }]);

    // An old device, and an old server.
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    let old = Hello {
        version: VERSION,
        device: 7,
        features: FEATURES & !FEATURE_PIECES,
        frame_bytes_max: 1 << 20,
        window_log_max: 20,
        push_bytes_max: 1 << 20,
    };
    server.receive(Moment(1), &flat(&encode::client(&ClientMessage::Hello(old)))).unwrap();
    assert_eq!(server.push_start(push), Err(Refused::NoFeature("pieces")));
    let refused = server.receive(Moment(2), &flat(&encode::client(&ClientMessage::Notice(rate.clone()))));
    assert!(matches!(refused, Err(WireError::WrongOrder { kind: "DeviceSpeed", .. })), "{refused:?}");
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    let reply = HelloReply { version: VERSION, features: FEATURES & !FEATURE_PIECES, frame_bytes_max: 1 << 20 };
    client.receive(Moment(1), &flat(&encode::server(&ServerMessage::Hello(reply)))).unwrap();
    assert_eq!(client.notify(rate), Err(Refused::NoFeature("pieces")));
    let refused = client.receive(Moment(2), &flat(&encode::server(&ServerMessage::PushStart { stream, push })));
    assert!(matches!(refused, Err(WireError::WrongOrder { kind: "PushStart", .. })), "{refused:?}");
}

#[test]
fn decoded_blocks_are_for_those_who_know_them_and_did_not_insist_on_stored_ones() {
    let (block, bytes) = (BlockId(3), Bytes::from_static(b"decoded"));
    let pull = |force| Request::PullBlock {
        image: ImageHandle(1),
        token: Token(1),
        page: PageId::default(),
        block,
        force,
        speculative: false,
    };
    let decoded = Reply::Decoded { block, bytes };
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    let request = pair.client.request(pair.now, pull(false)).unwrap();
    let forced = pair.client.request(pair.now, pull(true)).unwrap();
    pair.settle();
    assert!(pair.server.takes_decoded());
    assert!(pair.server.reply(forced, decoded.clone()).is_err(), "it was to be as stored");
    pair.server.reply(request, decoded.clone()).unwrap();
    pair.settle();
    assert_eq!(pair.client_events(), [ClientEvent::Reply { request, reply: decoded.clone() }]);

    // An old device, and an old server.
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    let old = Hello {
        version: VERSION,
        device: 7,
        features: FEATURES & !FEATURE_DECODED,
        frame_bytes_max: 1 << 20,
        window_log_max: 20,
        push_bytes_max: 1 << 20,
    };
    server.receive(Moment(1), &flat(&encode::client(&ClientMessage::Hello(old)))).unwrap();
    let request = RequestId(1);
    let asked = ClientMessage::Request { request, ask: pull(false) };
    server.receive(Moment(2), &flat(&encode::client(&asked))).unwrap();
    assert_eq!(server.reply(request, decoded.clone()), Err(Refused::NoFeature("decoded blocks")));
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    let hello = HelloReply { version: VERSION, features: FEATURES & !FEATURE_DECODED, frame_bytes_max: 1 << 20 };
    client.receive(Moment(1), &flat(&encode::server(&ServerMessage::Hello(hello)))).unwrap();
    let request = client.request(Moment(2), pull(false)).unwrap();
    let reply = ServerMessage::Reply { request, reply: decoded };
    let refused = client.receive(Moment(3), &flat(&encode::server(&reply)));
    assert!(matches!(refused, Err(WireError::WrongOrder { kind: "Decoded", .. })), "{refused:?}");
}

#[test]
fn a_lone_page_answers_a_demand_of_a_block_where_both_know_the_feature() {
    let pull = |force, speculative| Request::PullBlock {
        image: ImageHandle(1),
        token: Token(1),
        page: PageId::default(),
        block: BlockId(4),
        force,
        speculative,
    };
    let lone = Reply::Pages { codec: 0, bytes: Bytes::from_static(b"page") };
    let (client, server) = (ClientConfig { features: FEATURES, ..ClientConfig::default() }, ServerConfig::default());
    let mut pair = Pair::with(LinkConfig::new(20, 25), 1, Moment(0), client, server);
    pair.settle();
    pair.client_events();
    let [request, forced, guessed] = [(false, false), (true, false), (false, true)]
        .map(|(force, speculative)| pair.client.request(pair.now, pull(force, speculative)).unwrap());
    pair.settle();
    assert!(pair.server.takes_lone_pages());
    assert!(pair.server.reply(forced, lone.clone()).is_err() && pair.server.reply(guessed, lone.clone()).is_err());
    pair.server.reply(request, lone.clone()).unwrap();
    pair.settle();
    assert_eq!(pair.client_events(), [ClientEvent::Reply { request, reply: lone.clone() }]);

    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    let request = pair.client.request(pair.now, pull(false, false)).unwrap();
    pair.settle();
    assert_eq!(pair.server.reply(request, lone.clone()), Err(Refused::NoFeature("lone pages")));
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    let hello = HelloReply { version: VERSION, features: FEATURES & !FEATURE_LONE_PAGES, frame_bytes_max: 1 << 20 };
    client.receive(Moment(1), &flat(&encode::server(&ServerMessage::Hello(hello)))).unwrap();
    let request = client.request(Moment(2), pull(false, false)).unwrap();
    let reply = ServerMessage::Reply { request, reply: lone };
    let refused = client.receive(Moment(3), &flat(&encode::server(&reply)));
    assert!(matches!(refused, Err(WireError::WrongOrder { kind: "Pages", .. })), "{refused:?}");
}
