//! Encoding and decoding: identity, canonical form, splits, sizes.

use bytes::Bytes;
use proptest::prelude::*;
use units::{BlockId, InodeId, Moment, PageId, RequestId, SegmentIndex, SplitMix64, Token};

use super::samples::{Samples, flat};
use crate::coding::{Reader, Writer};
use crate::format::{ClientKind, FRAME_HEADER_BYTES, KIND_HASHED, ServerKind, TOUCH_PAGES_MAX};
use crate::message::{ClientMessage, Notice, ServerMessage};
use crate::{
    BlockRange, ClientConfig, ClientConnection, Reply, Request, ServerConfig, ServerConnection, WireError, decode,
    encode,
};

fn decode_client(bytes: &[u8]) -> Result<ClientMessage, WireError> {
    let kind = ClientKind::from_u8(bytes[4]).unwrap();
    decode::client(kind, Bytes::copy_from_slice(&bytes[FRAME_HEADER_BYTES..]))
}

fn decode_server(bytes: &[u8]) -> Result<ServerMessage, WireError> {
    let kind = ServerKind::from_u8(bytes[4]).unwrap();
    decode::server(kind, Bytes::copy_from_slice(&bytes[FRAME_HEADER_BYTES..]))
}

fn pages_round(pages: &[PageId]) -> (Vec<PageId>, usize) {
    let bytes = flat(&Writer::new(0).pages(pages).finish());
    let payload = Bytes::copy_from_slice(&bytes[FRAME_HEADER_BYTES..]);
    let length = payload.len();
    (Reader::new("test", payload).pages(TOUCH_PAGES_MAX).unwrap(), length)
}

proptest! {
    #[test]
    fn prop_messages_come_back_as_they_went(seed: u64) {
        let mut samples = Samples(SplitMix64(seed));
        for _ in 0..8 {
            let message = samples.client();
            let bytes = flat(&encode::client(&message));
            prop_assert_eq!(bytes.len(), 5 + u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize);
            prop_assert_eq!(decode_client(&bytes), Ok(message));
            let message = samples.server();
            let bytes = flat(&encode::server(&message));
            prop_assert_eq!(decode_server(&bytes), Ok(message));
        }
    }

    #[test]
    fn prop_truncated_messages_are_errors_or_shorter_bulk(seed: u64) {
        let mut samples = Samples(SplitMix64(seed));
        let message = samples.client();
        let bytes = flat(&encode::client(&message));
        for end in FRAME_HEADER_BYTES..bytes.len() {
            match decode_client(&bytes[..end]) {
                Err(WireError::Truncated { .. } | WireError::BadValue { .. } | WireError::Magic { .. }) => {}
                Err(WireError::Damaged { .. }) if bytes[4] & KIND_HASHED != 0 => {}
                Err(other) => prop_assert!(false, "{other}"),
                Ok(ClientMessage::PutMeta { .. } | ClientMessage::PutBlock { .. }) => {}
                Ok(shorter) => prop_assert!(false, "{shorter:?} from {end} bytes of {message:?}"),
            }
        }
    }

    /// Whatever bit of a hashed frame is damaged, nothing is taken for said.
    #[test]
    fn prop_damaged_frames_are_noticed(seed: u64) {
        let mut samples = Samples(SplitMix64(seed));
        let frames = [encode::client(&samples.client()), encode::server(&samples.server())];
        for bytes in frames.iter().map(flat).filter(|bytes| bytes[4] & KIND_HASHED != 0) {
            for bit in 0..(bytes.len() - FRAME_HEADER_BYTES) * 8 {
                let mut damaged = bytes.clone();
                damaged[FRAME_HEADER_BYTES + bit / 8] ^= 1 << (bit % 8);
                let noticed = match ClientKind::from_u8(bytes[4]) {
                    Some(kind) => decode_client(&damaged) == Err(WireError::Damaged { kind: kind.name() }),
                    None => matches!(decode_server(&damaged), Err(WireError::Damaged { .. })),
                };
                prop_assert!(noticed, "bit {bit}");
            }
            // The same bytes as of another kind.
            for kind in 0..8 {
                let mut damaged = bytes.clone();
                damaged[4] ^= 1 << kind;
                let client = ClientKind::from_u8(damaged[4]).map(|_| decode_client(&damaged).is_ok());
                let server = ServerKind::from_u8(damaged[4]).map(|_| decode_server(&damaged));
                // A piece of an image in a stream of a volume; see the test of streams.
                let piece = matches!(server, Some(Ok(ServerMessage::Push(_))));
                let noticed = client != Some(true) && (piece || !matches!(server, Some(Ok(_))));
                prop_assert!(noticed, "kind {:#x} as {:#x}", bytes[4], damaged[4]);
            }
        }
    }

    #[test]
    fn prop_page_lists_come_back(pages in prop::collection::vec((any::<u32>(), any::<u32>()), 1..100)) {
        let pages: Vec<_> = pages.into_iter().map(|(inode, index)| PageId::new(InodeId(inode), index)).collect();
        let (decoded, bytes) = pages_round(&pages);
        prop_assert_eq!(&decoded, &pages);
        prop_assert!(bytes <= 2 + 10 * pages.len());
    }

    /// However TCP cuts the stream, each side sees the same events.
    #[test]
    fn prop_splits_make_no_difference(seed: u64, cuts in prop::collection::vec(1usize..400, 1..60)) {
        let (up, down) = recorded_session(seed);
        let whole = server_sees(&up, &[usize::MAX]);
        prop_assert!(whole.len() > 3);
        prop_assert_eq!(server_sees(&up, &cuts), whole);
        let whole = client_sees(seed, &down, &[usize::MAX]);
        prop_assert!(whole.len() > 3);
        prop_assert_eq!(client_sees(seed, &down, &cuts), whole);
    }
}

/// The client's half of a session: always the same for a seed.
fn client_of(seed: u64) -> (ClientConnection, Vec<(RequestId, Request)>) {
    let mut samples = Samples(SplitMix64(seed));
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    let mut asked = Vec::new();
    for _ in 0..10 {
        let ask = samples.request();
        if let Ok(request) = client.request(Moment(0), ask.clone()) {
            asked.push((request, ask));
        }
        client.touch(Default::default(), Token(1), samples.pages(50)).unwrap();
    }
    (client, asked)
}

/// The bytes of a session both ways.
fn recorded_session(seed: u64) -> (Vec<u8>, Vec<u8>) {
    let (mut client, asked) = client_of(seed);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    client.transmit(Moment(1), &mut up, usize::MAX);
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    server.receive(Moment(1), &up).unwrap();
    let mut samples = Samples(SplitMix64(seed ^ 1));
    let stream = server.push_start(samples.push_header()).unwrap();
    for (request, ask) in asked {
        let reply = match ask {
            Request::MetaRead { offset, bytes, .. } => {
                Reply::MetaData { offset, bytes: Bytes::from(vec![7; bytes as usize % 5000 + 1]) }
            }
            Request::PullBlock { block, .. } => Reply::Block { block, bytes: samples.bytes(1, 3000) },
            Request::PullPages { .. } => Reply::Pages { codec: 1, bytes: samples.bytes(1, 3000) },
            _ => Reply::error(crate::ErrorCode::NotFound, samples.text(0, 200)),
        };
        // a shorter MetaData than asked for is refused; that request goes without answer
        let _ = server.reply(request, reply);
        let (segment, pages) = (SegmentIndex(1), samples.pages(32));
        server.push(crate::PushPiece { stream, segment, pages, bytes: samples.bytes(1, 2000) }).unwrap();
    }
    server.push_end(stream, crate::PushEndReason::Complete).unwrap();
    server.transmit(Moment(2), &mut down, usize::MAX);
    (up, down)
}

fn pieces<'a>(mut bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for cut in cuts.iter().cycle() {
        let (piece, rest) = bytes.split_at((*cut).min(bytes.len()));
        pieces.push(piece);
        bytes = rest;
        if bytes.is_empty() {
            break;
        }
    }
    pieces
}

fn server_sees(bytes: &[u8], cuts: &[usize]) -> Vec<crate::ServerEvent> {
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    for piece in pieces(bytes, cuts) {
        server.receive(Moment(1), piece).unwrap();
    }
    std::iter::from_fn(|| server.poll_event()).collect()
}

fn client_sees(seed: u64, bytes: &[u8], cuts: &[usize]) -> Vec<crate::ClientEvent> {
    let (mut client, _) = client_of(seed);
    client.transmit(Moment(1), &mut Vec::new(), usize::MAX);
    for piece in pieces(bytes, cuts) {
        client.receive(Moment(2), piece).unwrap();
    }
    std::iter::from_fn(|| client.poll_event()).collect()
}

#[test]
fn pages_that_lie_together_cost_a_byte_each() {
    let pages: Vec<_> = (0..32).map(|index| PageId::new(InodeId(1000), 500 + index)).collect();
    let (decoded, bytes) = pages_round(&pages);
    assert_eq!(decoded, pages);
    // a count, a new inode (two bytes), an index (two bytes), 31 steps
    assert_eq!(bytes, 1 + 2 + 2 + 31);
}

#[test]
fn extreme_pages_come_back() {
    let corners = [0, 1, u32::MAX - 1, u32::MAX];
    let pages: Vec<_> =
        corners.iter().flat_map(|inode| corners.iter().map(|index| PageId::new(InodeId(*inode), *index))).collect();
    assert_eq!(pages_round(&pages).0, pages);
}

#[test]
fn second_spellings_of_a_list_are_rejected() {
    // a varint with a superfluous byte; another inode that is the same; an index beyond 32 bits; an
    // inode below 0
    for payload in [&[1u8, 0x80, 0][..], &[1, 1, 5], &[1, 2], &[1, 0x07, 0], &[1, 0xfe, 0xff, 0xff, 0xff, 0xff, 0x7f]] {
        let result = Reader::new("test", Bytes::copy_from_slice(payload)).pages(32);
        assert!(matches!(result, Err(WireError::BadValue { .. })), "{payload:?} gave {result:?}");
    }
}

#[test]
fn counts_are_checked_before_anything_is_allocated() {
    let mut payload = vec![0xff, 0xff, 0xff, 0xff, 0x0f];
    let result = Reader::new("test", Bytes::copy_from_slice(&payload)).pages(TOUCH_PAGES_MAX);
    assert!(matches!(result, Err(WireError::BadValue { field: "page count", .. })));
    payload = vec![0x80, 0x08, 0, 0];
    let result = Reader::new("test", Bytes::from(payload)).pages(TOUCH_PAGES_MAX);
    assert!(matches!(result, Err(WireError::Truncated { field: "page count", .. })));
}

#[test]
fn block_ranges_reach_to_the_last_block_and_not_beyond() {
    let ranges = vec![
        BlockRange { first: BlockId(0), count: 1 },
        BlockRange { first: BlockId(1), count: u32::MAX - 2 },
        BlockRange { first: BlockId(u32::MAX - 1), count: 1 },
    ];
    let message = ServerMessage::PutNeed { request: RequestId(1), ranges, last: true };
    let mut bytes = flat(&encode::server(&message));
    assert_eq!(decode_server(&bytes), Ok(message));
    *bytes.last_mut().unwrap() = 2;
    assert!(matches!(decode_server(&bytes), Err(WireError::BadValue { field: "range length", .. })));
}

#[test]
fn bytes_of_a_pull_are_pinned() {
    let ask = Request::PullBlock {
        image: crate::ImageHandle(2),
        token: Token(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100),
        page: PageId::new(InodeId(0x11), 0x22),
        block: BlockId(0x33),
        force: true,
        speculative: false,
    };
    let bytes = flat(&encode::client(&ClientMessage::Request { request: RequestId(1), ask: ask.clone() }));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let fields = ["25000000", "12", "01000000", "02000000", "000102030405060708090a0b0c0d0e0f", "2200000011000000"];
    assert_eq!(hex, fields.concat() + "33000000" + "01");
    let mut ask = ask;
    if let Request::PullBlock { speculative, .. } = &mut ask {
        *speculative = true;
    }
    let mut bytes = flat(&encode::client(&ClientMessage::Request { request: RequestId(1), ask }));
    assert_eq!(bytes.last(), Some(&3));
    *bytes.last_mut().unwrap() = 4;
    assert!(matches!(decode_client(&bytes), Err(WireError::BadValue { field: "flags", .. })));
}

#[test]
fn bytes_of_a_hint_are_pinned() {
    let pages = vec![PageId::new(InodeId(0x11), 0x22), PageId::new(InodeId(0x11), 0x23), PageId::new(InodeId(0x10), 3)];
    let hint = ClientMessage::Notice(Notice::Hint {
        image: crate::ImageHandle(2),
        token: Token(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100),
        pages,
    });
    let mut bytes = flat(&encode::client(&hint));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    // three pages: inode + 17 and an index; one page on; inode - 1 and an index
    let fields = ["1a000000", "24", "02000000", "000102030405060708090a0b0c0d0e0f", "03", "4522", "04", "0303"];
    assert_eq!(hex, fields.concat());
    bytes.push(0);
    assert!(matches!(decode_client(&bytes), Err(WireError::TrailingBytes { kind: "Hint", .. })));
}

#[test]
fn kinds_have_one_number_each_and_directions_do_not_overlap() {
    for number in 0..=255u8 {
        let kinds = (ClientKind::from_u8(number), ServerKind::from_u8(number));
        assert!(kinds.0.is_none() || kinds.1.is_none());
        assert!(kinds.0.is_none_or(|kind| kind as u8 == number && number < 0x80));
        assert!(kinds.1.is_none_or(|kind| kind as u8 == number && number >= 0x80));
    }
    assert_eq!(ClientKind::ALL.len() + ServerKind::ALL.len(), 40 + 38);
}
