//! Push streams: windows, priorities, cancels, credits.

use std::time::Duration;

use bytes::Bytes;
use units::{ActionId, BlockId, InodeId, Moment, PageId, SegmentIndex, StreamId, Token};

use super::rig::{LinkConfig, Pair};
use crate::format::{PUSH_FRAMES_MAX, STREAMS_MAX, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, WINDOW_BYTES_START};
use crate::{
    ClientConfig, ClientEvent, ImageHandle, PushEncoding, PushEndReason, PushHeader, PushPiece, PushPosition, Refused,
    Reply, Request, ServerConfig, ServerEvent,
};

/// A segment compressed to a third.
const PIECE_BYTES: usize = 40 << 10;

fn header() -> PushHeader {
    let (image, token, action) = (ImageHandle(1), Token(1), ActionId(1));
    PushHeader { image, token, action, encoding: PushEncoding::ZstdStream, window_log: 20, audit: false }
}

fn piece(stream: StreamId, segment: u32, bytes: usize) -> PushPiece {
    let pages = (0..32).map(|page| PageId::new(InodeId(1), segment * 32 + page)).collect();
    PushPiece { stream, segment: SegmentIndex(segment), pages, bytes: Bytes::from(vec![1; bytes]) }
}

/// A server that always has more to push, and a client that takes it at once.
struct Streaming {
    pair: Pair,
    stream: StreamId,
    segment: u32,
    piece_bytes: usize,
    taken: u64,
    replies: Vec<(Moment, Reply)>,
}

impl Streaming {
    fn new(link: LinkConfig) -> Streaming {
        Streaming::with(Pair::ready(link, 3))
    }

    fn with(mut pair: Pair) -> Streaming {
        let stream = pair.server.push_start(header()).unwrap();
        Streaming { pair, stream, segment: 0, piece_bytes: PIECE_BYTES, taken: 0, replies: Vec::new() }
    }

    fn run(&mut self, time: Duration) {
        let until = self.pair.now.after(time);
        loop {
            while self.pair.server.push_room() > 0 {
                self.pair.server.push(piece(self.stream, self.segment, self.piece_bytes)).unwrap();
                self.segment += 1;
            }
            let more = self.pair.step(until);
            for event in self.pair.client_events() {
                match event {
                    ClientEvent::Push { piece, credit } => {
                        self.pair.client.credit(piece.stream, credit).unwrap();
                        self.taken += u64::from(credit);
                    }
                    ClientEvent::Reply { reply, .. } => self.replies.push((self.pair.now, reply)),
                    ClientEvent::PushStart { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            for event in self.pair.server_events() {
                let ServerEvent::Request { request, .. } = event else { panic!("{event:?}") };
                let bytes = Bytes::from(vec![2; 20_000]);
                self.pair.server.reply(request, Reply::Block { block: BlockId(1), bytes }).unwrap();
            }
            if !more {
                return;
            }
        }
    }

    /// Bytes a second taken in the next `time`.
    fn rate(&mut self, time: Duration) -> u64 {
        let before = self.taken;
        self.run(time);
        (self.taken - before) * 1000 / time.as_millis() as u64
    }
}

#[test]
fn sim_the_window_finds_the_link() {
    let links = [(20, 25), (200, 10), (20, 2), (2, 100), (1, 1000), (100, 100)];
    let links = links.into_iter().flat_map(|link| [16 << 10, 4 << 20].map(|socket_bytes| (link, socket_bytes)));
    for ((round_trip, megabits), socket_bytes) in links {
        let link = LinkConfig { socket_bytes, ..LinkConfig::new(round_trip, megabits) };
        let mut streaming = Streaming::new(link);
        // small pieces, so that the link's product is what counts and not the size of a piece
        streaming.piece_bytes = 4 << 10;
        streaming.run(Duration::from_secs(if megabits < 1000 { 3 } else { 1 }));
        // long enough for two measurements of the round trip, unless that were very many bytes
        let seconds = ((48 << 20) / link.bytes_per_second()).clamp(1, 30);
        let rate = streaming.rate(Duration::from_secs(seconds));
        assert!(rate * 10 >= link.bytes_per_second() * 9, "{link:?}: {rate} bytes a second");
        let window = streaming.pair.server.push_window_bytes();
        // one piece and what a small socket holds are under way, too
        let product = link.product() + (16 << 10) + streaming.piece_bytes as u64;
        let (low, high) = (product.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX), (product * 2).max(WINDOW_BYTES_MIN));
        assert!(window >= low * 8 / 10 && window <= high, "{link:?}: window {window}, product {product}");
        let found = streaming.pair.server.push_rate().unwrap();
        assert!(found.abs_diff(link.bytes_per_second()) * 10 <= link.bytes_per_second(), "{link:?}: rate {found}");
    }
}

#[test]
fn sim_whole_segments_fill_the_link_and_losses_only_delay() {
    for loss_permille in [0, 10] {
        let link = LinkConfig { loss_permille, ..LinkConfig::new(20, 25) };
        let mut streaming = Streaming::new(link);
        streaming.run(Duration::from_secs(2));
        let rate = streaming.rate(Duration::from_secs(10));
        assert!(rate * 10 >= link.bytes_per_second() * 9, "{link:?}: {rate} bytes a second");
    }
}

#[test]
fn sim_the_window_follows_a_route_that_grows_longer() {
    let mut streaming = Streaming::new(LinkConfig::new(10, 50));
    streaming.run(Duration::from_secs(5));
    let longer = LinkConfig::new(100, 50);
    streaming.pair.set_link(longer);
    streaming.run(Duration::from_secs(30));
    let rate = streaming.rate(Duration::from_secs(10));
    assert!(rate * 10 >= longer.bytes_per_second() * 9, "{rate} bytes a second");
}

#[test]
fn sim_a_trickle_does_not_shrink_the_window() {
    let link = LinkConfig::new(50, 50);
    let mut streaming = Streaming::new(link);
    streaming.run(Duration::from_secs(5));
    let window = streaming.pair.server.push_window_bytes();
    for _ in 0..100 {
        // a small piece twice a second is all there is to push
        let (stream, until) = (streaming.stream, streaming.pair.now.after(Duration::from_millis(500)));
        streaming.pair.server.push(piece(stream, 0, 1000)).unwrap();
        while streaming.pair.step(until) {
            for event in streaming.pair.client_events() {
                let ClientEvent::Push { piece, credit } = event else { panic!("{event:?}") };
                streaming.pair.client.credit(piece.stream, credit).unwrap();
            }
        }
    }
    // the round trip is that of small pieces now, the rate is what it was
    let trickled = streaming.pair.server.push_window_bytes();
    assert!(trickled >= link.product() && trickled * 2 >= window, "{window} became {trickled}");
}

#[test]
fn sim_an_hour_of_streaming_does_not_swell_the_window() {
    // a socket that takes whatever the window allows, so that our own queue is part of what is
    // measured
    let link = LinkConfig { socket_bytes: 4 << 20, ..LinkConfig::new(50, 1) };
    let mut streaming = Streaming::new(link);
    streaming.run(Duration::from_secs(3600));
    assert!(streaming.pair.server.push_window_bytes() <= 2 * WINDOW_BYTES_MIN);
    assert!(streaming.taken * 10 >= link.bytes_per_second() * 3600 * 9);
}

#[test]
fn sim_demand_overtakes_push() {
    let link = LinkConfig { socket_bytes: 4 << 20, ..LinkConfig::new(20, 25) };
    let mut streaming = Streaming::new(link);
    for _ in 0..50 {
        streaming.run(Duration::from_millis(137));
        let window = streaming.pair.server.push_window_bytes();
        let asked = streaming.pair.now;
        let page = PageId::new(InodeId(9), 9);
        let pull = Request::PullBlock {
            image: ImageHandle(1),
            token: Token(1),
            page,
            block: BlockId(1),
            force: true,
            speculative: false,
        };
        streaming.pair.client.request(asked, pull).unwrap();
        streaming.run(Duration::from_millis(300));
        let (answered, _) = streaming.replies.pop().expect("an answer within 300 ms");
        // what is queued of the window, the piece that may exceed it, and the answer itself pass
        // the link before it; a product of the window is on the wire or credited by the time the
        // request arrives
        let passes = window - link.product().min(window) + (PIECE_BYTES + 100 + 20_100) as u64;
        let bound = link.round_trip + link.time(passes) + Duration::from_millis(1);
        assert!(answered.since(asked) <= bound, "{:?} with window {window}, bound {bound:?}", answered.since(asked));
    }
}

#[test]
fn sim_a_slow_reader_holds_the_push_back_not_the_replies() {
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    let stream = pair.server.push_start(header()).unwrap();
    let mut segment = 0;
    while pair.server.push_room() > 0 {
        pair.server.push(piece(stream, segment, PIECE_BYTES)).unwrap();
        segment += 1;
    }
    // nobody credits: the window closes
    pair.pass(Duration::from_secs(5));
    let in_flight = pair.server.in_flight_push_bytes();
    assert!((WINDOW_BYTES_START..WINDOW_BYTES_START + (PIECE_BYTES + 100) as u64).contains(&in_flight));
    assert!(pair.server.queued_push_bytes() > 0);
    let request = pair.client.request(pair.now, Request::List).unwrap();
    pair.settle();
    pair.server.reply(request, Reply::Listing { json: Bytes::from_static(b"[]") }).unwrap();
    pair.settle();
    let events = pair.client_events();
    assert!(matches!(events.last(), Some(ClientEvent::Reply { .. })));
    // credit opens it again, though so slow a reader is given less at once
    let mut events = events;
    for _ in 0..10 {
        for event in std::mem::take(&mut events) {
            if let ClientEvent::Push { piece, credit } = event {
                pair.client.credit(piece.stream, credit).unwrap();
            }
        }
        pair.settle();
        events = pair.client_events();
        assert!(events.iter().any(|event| matches!(event, ClientEvent::Push { .. })));
        if pair.server.queued_push_bytes() == 0 {
            return;
        }
    }
    panic!("{} bytes never left", pair.server.queued_push_bytes());
}

#[test]
fn cancel_drops_what_is_queued_and_ends_the_stream() {
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    let (first, second) = (pair.server.push_start(header()).unwrap(), pair.server.push_start(header()).unwrap());
    pair.server.push(piece(first, 0, PIECE_BYTES)).unwrap();
    pair.server.push(piece(second, 0, 100)).unwrap();
    pair.server.push(piece(first, 1, PIECE_BYTES)).unwrap();
    // a socket takes the start of the first piece; that piece must be finished
    let mut out = Vec::new();
    pair.server.transmit(pair.now, &mut out, 10_000);
    pair.server.cancel_push(first, PushEndReason::Mismatch);
    pair.server.cancel_push(first, PushEndReason::Mismatch);
    assert_eq!(pair.server.push(piece(first, 2, 100)), Err(Refused::UnknownStream(first)));
    pair.server.transmit(pair.now, &mut out, usize::MAX);
    assert!(out.len() < PIECE_BYTES + 1000, "{} bytes", out.len());
    assert!(pair.server.traffic().push_bytes_dropped > PIECE_BYTES as u64);
    pair.client.receive(pair.now, &out).unwrap();
    let events: Vec<_> = pair.client_events().into_iter().skip(2).collect();
    let [ClientEvent::Push { piece: one, credit }, ClientEvent::PushEnd { stream, reason }, ClientEvent::Push { .. }] =
        &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((one.stream, *stream, *reason), (first, first, PushEndReason::Mismatch));
    // the piece that could not be recalled is credited after the end of its stream
    pair.client.credit(first, *credit).unwrap();
    pair.settle();
    assert!(pair.server.in_flight_push_bytes() < 1000);
}

#[test]
fn a_stopped_stream_gives_no_more_pieces_and_its_credit_comes_by_itself() {
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    let stream = pair.server.push_start(header()).unwrap();
    for segment in 0..3 {
        pair.server.push(piece(stream, segment, PIECE_BYTES)).unwrap();
    }
    pair.pass(Duration::from_millis(11));
    assert!(matches!(pair.client_events()[..], [ClientEvent::PushStart { .. }]));
    pair.client.stop_push(stream).unwrap();
    pair.client.stop_push(stream).unwrap();
    pair.settle();
    assert_eq!(pair.server_events(), [ServerEvent::PushStopped { stream }]);
    assert_eq!(pair.client_events(), [ClientEvent::PushEnd { stream, reason: PushEndReason::Stopped }]);
    assert_eq!(pair.server.in_flight_push_bytes(), 0);
    assert!(pair.client.traffic().push_bytes_dropped > 0);
}

#[test]
fn the_end_follows_the_last_piece() {
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    let stream = pair.server.push_start(header()).unwrap();
    pair.server.push(piece(stream, 0, 1000)).unwrap();
    pair.server.push(piece(stream, 1, 1000)).unwrap();
    pair.server.push_end(stream, PushEndReason::Complete).unwrap();
    assert_eq!(pair.server.push_end(stream, PushEndReason::Complete), Err(Refused::UnknownStream(stream)));
    pair.settle();
    let events = pair.client_events();
    let [ClientEvent::PushStart { push, .. }, ClientEvent::Push { .. }, ClientEvent::Push { .. }, end] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(*push, header());
    assert_eq!(*end, ClientEvent::PushEnd { stream, reason: PushEndReason::Complete });
    // an empty stream ends at once
    let stream = pair.server.push_start(header()).unwrap();
    pair.server.push_end(stream, PushEndReason::Failed).unwrap();
    pair.settle();
    assert_eq!(pair.client_events().len(), 2);
}

#[test]
fn the_place_of_a_page_in_a_stream_is_known() {
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    let stream = pair.server.push_start(header()).unwrap();
    let other = pair.server.push_start(header()).unwrap();
    let page = |segment: u32| PageId::new(InodeId(1), segment * 32 + 5);
    pair.server.push(piece(stream, 0, 1000)).unwrap();
    let mut out = Vec::new();
    pair.server.transmit(pair.now, &mut out, usize::MAX);
    pair.server.push(piece(other, 1, 1000)).unwrap();
    pair.server.push(piece(stream, 2, 1000)).unwrap();
    assert_eq!(pair.server.push_position(stream, page(0)), PushPosition::Sent);
    let queued = pair.server.queued_push_bytes();
    assert_eq!(pair.server.push_position(stream, page(2)), PushPosition::Queued { bytes_ahead: queued });
    assert_eq!(pair.server.push_position(stream, page(1)), PushPosition::Absent);
    assert_eq!(pair.server.push_position(StreamId(9), page(1)), PushPosition::Absent);
    pair.client.receive(pair.now, &out).unwrap();
    let Some(ClientEvent::Push { credit, .. }) = pair.client_events().pop() else { panic!("no piece") };
    pair.client.credit(stream, credit).unwrap();
    pair.settle();
    assert_eq!(pair.server.push_position(stream, page(0)), PushPosition::Absent);
}

#[test]
fn a_device_without_room_gets_no_push() {
    let client = ClientConfig { push_bytes_max: 0, window_log_max: 17, ..Default::default() };
    let mut pair = Pair::with(LinkConfig::new(20, 25), 1, Moment(0), client, ServerConfig::default());
    assert_eq!(pair.server.push_start(header()), Err(Refused::NotReady));
    pair.settle();
    assert_eq!(pair.server.push_room(), 0);
    assert_eq!(pair.server.push_start(header()), Err(Refused::NoPush));

    let client = ClientConfig { push_bytes_max: 60_000, window_log_max: 17, ..Default::default() };
    let mut pair = Pair::with(LinkConfig::new(20, 25), 1, Moment(0), client, ServerConfig::default());
    pair.settle();
    assert_eq!(pair.server.push_start(header()), Err(Refused::NoPush), "a window of 2^20 is too large");
    let stream = pair.server.push_start(PushHeader { window_log: 17, ..header() }).unwrap();
    for segment in 0..5 {
        pair.server.push(piece(stream, segment, PIECE_BYTES)).unwrap();
    }
    pair.settle();
    // 60,000 bytes are passed by the second piece; the third has to wait
    assert_eq!(pair.client_events().iter().filter(|event| matches!(event, ClientEvent::Push { .. })).count(), 2);
}

#[test]
fn streams_and_pieces_are_bounded() {
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    let streams: Vec<_> = (0..STREAMS_MAX).map(|_| pair.server.push_start(header()).unwrap()).collect();
    let full = Refused::Full { what: "push streams", max: STREAMS_MAX };
    assert_eq!(pair.server.push_start(header()), Err(full));
    pair.server.cancel_push(streams[0], PushEndReason::Wasteful);
    assert_eq!(pair.server.push_start(header()), Ok(StreamId(STREAMS_MAX as u32 + 1)));
    for _ in 0..PUSH_FRAMES_MAX {
        pair.server.push(piece(streams[1], 0, 1)).unwrap();
    }
    assert!(matches!(pair.server.push(piece(streams[1], 0, 1)), Err(Refused::Full { .. })));
    assert_eq!(pair.server.push_room(), 0);
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    let stream = pair.server.push_start(header()).unwrap();
    let pushed = (0..).take_while(|_| pair.server.push(piece(stream, 0, 100_000)).is_ok()).count();
    assert_eq!(pushed, (4 << 20) / 100_000 + 1);
    assert!(pair.server.queued_bytes() < (4 << 20) + 110_000);
    let empty = PushPiece { bytes: Bytes::new(), ..piece(stream, 0, 1) };
    assert!(matches!(pair.server.push(empty), Err(Refused::Limit { .. })));
}

#[test]
fn a_caller_cannot_credit_what_never_came() {
    let mut pair = Pair::ready(LinkConfig::new(20, 25), 1);
    assert_eq!(pair.client.credit(StreamId(1), 1), Err(Refused::UnknownStream(StreamId(1))));
    let stream = pair.server.push_start(header()).unwrap();
    pair.settle();
    assert!(matches!(pair.client.credit(stream, 1), Err(Refused::Limit { .. })));
}

/// Blocks of a volume on a link of 128 kbit/s: the link is full, and a demand waits for two frames
/// at most.
#[test]
fn blocks_of_volumes_fill_a_thin_link_and_leave_room_for_demands() {
    const BLOCK_BYTES: usize = 4096;
    let thin = LinkConfig { bits_per_second: 128_000, ..LinkConfig::new(40, 1) };
    let mut pair = Pair::ready(thin, 3);
    let header = PushHeader { encoding: PushEncoding::Volume, window_log: 0, ..header() };
    let stream = pair.server.push_start(header).unwrap();
    let (mut index, mut taken, mut in_flight_max) = (0, 0, 0);
    let mut run = |pair: &mut Pair, time: Duration| {
        let until = pair.now.after(time);
        let before: u64 = taken;
        loop {
            while pair.server.volume_push_room() > 0 {
                let (pages, bytes) = (vec![PageId::new(InodeId(2), index)], Bytes::from(vec![3; BLOCK_BYTES]));
                index += 1;
                pair.server.push(PushPiece { stream, segment: SegmentIndex(0), pages, bytes }).unwrap();
            }
            in_flight_max = in_flight_max.max(pair.server.in_flight_push_bytes());
            let more = pair.step(until);
            for event in pair.client_events() {
                if let ClientEvent::Push { piece, credit } = event {
                    pair.client.credit(piece.stream, credit).unwrap();
                    taken += u64::from(credit);
                }
            }
            assert!(pair.server_events().is_empty());
            if !more {
                return taken - before;
            }
        }
    };
    run(&mut pair, Duration::from_secs(5));
    let bytes = run(&mut pair, Duration::from_secs(40));
    assert!(bytes >= 16_000 * 40 * 95 / 100, "{bytes} bytes in 40 s");
    assert!(in_flight_max <= 3 * (BLOCK_BYTES as u64 + 100), "{in_flight_max} bytes under way");
}

#[test]
fn what_is_not_wanted_any_more_is_dropped_from_the_queue() {
    let mut pair = Pair::ready(LinkConfig::new(10, 10), 3);
    let header = PushHeader { encoding: PushEncoding::Volume, window_log: 0, ..header() };
    let stream = pair.server.push_start(header).unwrap();
    let page = |index| PageId::new(InodeId(2), index);
    for index in 0..6 {
        let (pages, bytes) = (vec![page(index)], Bytes::from(vec![3; 1000]));
        pair.server.push(PushPiece { stream, segment: SegmentIndex(0), pages, bytes }).unwrap();
    }
    pair.server.retain_pushes(stream, |pages| pages[0].index % 2 == 0);
    let kept: Vec<bool> =
        (0..6).map(|index| pair.server.push_position(stream, page(index)) != PushPosition::Absent).collect();
    assert_eq!(kept, [true, false, true, false, true, false]);
    pair.server.push_end(stream, PushEndReason::Complete).unwrap();
    let mut came = Vec::new();
    let until = pair.now.after(Duration::from_secs(5));
    while pair.step(until) {
        for event in pair.client_events() {
            match event {
                ClientEvent::Push { piece, credit } => {
                    pair.client.credit(piece.stream, credit).unwrap();
                    came.push(piece.pages[0].index);
                }
                ClientEvent::PushEnd { reason, .. } => assert_eq!((reason, came.len()), (PushEndReason::Complete, 3)),
                ClientEvent::PushStart { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((came, pair.server.queued_push_bytes()), (vec![0, 2, 4], 0));
}

#[test]
fn sim_frames_in_a_row_tell_a_thin_link_from_a_long_one() {
    for (round_trip, megabits, piece_bytes) in [(40, 1, 4000), (200, 1, 4000), (100, 2, 5000)] {
        let link = LinkConfig::new(round_trip, megabits);
        let mut pair = Pair::ready(link, 1);
        pair.server.share_pushes();
        let stream = pair.server.push_start(header()).unwrap();
        assert_eq!(pair.server.push_path(), None);
        for number in 0..4 {
            for part in 0..2 {
                pair.server.push(piece(stream, number * 2 + part, piece_bytes)).unwrap();
            }
            let until = pair.now.after(Duration::from_secs(2));
            while pair.step(until) {
                for event in pair.client_events() {
                    if let ClientEvent::Push { piece, credit } = event {
                        pair.client.credit(piece.stream, credit).unwrap();
                    }
                }
            }
        }
        let (rate, found) = pair.server.push_path().expect("frames left in a row");
        assert!(rate.abs_diff(link.bytes_per_second()) * 4 <= link.bytes_per_second(), "{link:?}: rate {rate}");
        let (low, high) = (link.round_trip * 3 / 4, link.round_trip * 5 / 4);
        assert!((low..=high).contains(&found), "{link:?}: round trip {found:?}");
    }
}

#[test]
fn pages_begin_with_one_frame_where_volumes_are_open() {
    let mut pair = Pair::ready(LinkConfig::new(40, 1), 1);
    pair.server.share_pushes();
    let stream = pair.server.push_start(header()).unwrap();
    assert_eq!(pair.server.push_room(), 1, "one frame, and none that stands ready");
    for number in 0..3 {
        pair.server.push(piece(stream, number, 40_000)).unwrap();
    }
    pair.pass(Duration::from_secs(5));
    assert!((40_000..41_000).contains(&pair.server.in_flight_push_bytes()));
}
