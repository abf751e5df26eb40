//! Push streams whose pieces say how they are encoded, and who may use them.

use units::{ActionId, Moment, Token};

use super::rig::{LinkConfig, Pair};
use super::samples::flat;
use crate::format::{FEATURE_PIECES, FEATURES, VERSION};
use crate::message::{ClientMessage, ServerMessage};
use crate::{
    ClientConfig, ClientConnection, ClientEvent, Hello, HelloReply, ImageHandle, Notice, PushEncoding, PushHeader,
    Refused, ServerConfig, ServerConnection, ServerEvent, WireError, encode,
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
