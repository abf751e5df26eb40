//! Pushes: what reaches the kernel, what never does, and what the server is told.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use units::PageId;
use wire::{Notice, PieceForm, PushEncoding, Reply, Request, ServerEvent};

use super::fake_server::{FakeServer, is_pull};
use super::fake_sink::FakeSink;
use super::{open, plain, read_page, tree::Tree};
use crate::job::UNDIGESTED_BYTES_MAX;
use crate::{Config, Session};

mod promises;

struct Rig {
    tree: Arc<Tree>,
    server: FakeServer,
    session: Arc<Session>,
    sink: Arc<FakeSink>,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(plain())
    }

    fn with(config: Config) -> Rig {
        let tree = Arc::new(Tree::plain());
        let server = FakeServer::start(&tree);
        let session = open(&server, config);
        let sink = Arc::new(FakeSink::default());
        session.attach(sink.clone());
        Rig { tree, server, session, sink }
    }

    fn page(&self, index: u32) -> PageId {
        PageId::new(self.tree.big(), index)
    }

    fn pages(&self, range: std::ops::Range<u32>) -> Vec<PageId> {
        range.map(|index| self.page(index)).collect()
    }

    fn start(&self, audit: bool) -> units::StreamId {
        self.server.push_start(0, 1, PushEncoding::Stored, audit)
    }

    fn read(&self, index: u32) {
        let bytes = read_page(&self.session, 1, self.tree.big(), index).wait().unwrap();
        assert_eq!(bytes, self.tree.page(self.page(index)));
    }
}

#[test]
fn a_segment_is_stored_but_for_its_sentinel_which_tells_of_its_use() {
    let rig = Rig::new();
    let stream = rig.start(false);
    let pages = rig.pages(70..101);
    rig.server.push(0, stream, 0, &pages, |_| ());
    rig.sink.wait_stored(rig.page(100));
    assert_eq!(rig.sink.pages(), rig.pages(71..101), "all but the first");
    assert_eq!(rig.sink.page(rig.page(100)).unwrap().len(), 123, "not beyond the end of the file");
    assert_eq!(rig.session.counters().pushes.pages_push_hit, 0);
    rig.read(70);
    rig.server.wait_touched(1, &[rig.page(70)]);
    assert!(rig.server.pulls().is_empty());
    // The count follows the call.
    while rig.session.counters().stores.pages_stored < 30 {
        std::thread::yield_now();
    }
    let counters = rig.session.counters();
    assert_eq!(
        (counters.pushes.pages_pushed, counters.pushes.pages_push_hit, counters.pushes.pages_wasted),
        (31, 31, 0)
    );
    assert_eq!((counters.stores.pages_stored, counters.pushes.pages_held), (30, 1));
}

#[test]
fn a_compressed_stream_is_decoded_piece_by_piece() {
    let rig = Rig::new();
    let stream = rig.server.push_start(0, 1, PushEncoding::ZstdStream, false);
    let mut encoder = codec::StreamEncoder::new(3, 17).unwrap();
    for (segment, pages) in [rig.pages(0..32), rig.pages(32..64)].into_iter().enumerate() {
        let raw: Vec<u8> = pages.iter().flat_map(|page| rig.tree.page(*page).to_vec()).collect();
        let mut stored = Vec::new();
        encoder.piece(&raw, &mut stored).unwrap();
        rig.server.push_bytes(0, stream, segment as u32, &pages, stored);
    }
    rig.sink.wait_stored(rig.page(63));
    for page in rig.sink.pages() {
        assert_eq!(rig.sink.page(page).unwrap(), rig.tree.page(page));
    }
    assert_eq!(rig.sink.pages().len(), 62);
}

/// A piece of `pages` in this form; zstd goes on with `encoder`.
fn in_form(rig: &Rig, form: PieceForm, pages: &[PageId], encoder: &mut codec::StreamEncoder) -> Vec<u8> {
    let raw: Vec<u8> = pages.iter().flat_map(|page| rig.tree.page(*page).to_vec()).collect();
    let mut stored = Vec::new();
    match form {
        PieceForm::Stored => stored = raw,
        PieceForm::Lz4 => codec::encode(codec::Codec::Lz4, 9, &raw, &mut stored).unwrap(),
        PieceForm::ZstdBegins => {
            encoder.restart().unwrap();
            encoder.piece(&raw, &mut stored).unwrap();
        }
        PieceForm::ZstdContinues => encoder.piece(&raw, &mut stored).unwrap(),
    }
    [&[form as u8], &stored[..]].concat()
}

#[test]
fn pieces_of_all_forms_are_decoded_and_the_server_is_told_how_near_and_fast() {
    let rig = Rig::new();
    let near = |event: &ServerEvent| matches!(event, ServerEvent::Notice(Notice::DeviceSpeed { round_trip: 1.., .. }));
    rig.server.wait(|log| log.iter().any(|(_, event)| near(event)).then_some(()));
    let stream = rig.server.push_start(0, 1, PushEncoding::Pieces, false);
    let mut encoder = codec::StreamEncoder::new(3, 17).unwrap();
    let forms = [
        (PieceForm::ZstdBegins, 0..20),
        (PieceForm::Lz4, 20..30),
        (PieceForm::ZstdContinues, 30..50),
        (PieceForm::ZstdBegins, 50..60),
        (PieceForm::Stored, 60..70),
        (PieceForm::ZstdContinues, 70..100),
    ];
    for (segment, (form, range)) in forms.into_iter().enumerate() {
        let pages = rig.pages(range);
        let piece = in_form(&rig, form, &pages, &mut encoder);
        rig.server.push_bytes(0, stream, segment as u32, &pages, piece);
    }
    rig.sink.wait_stored(rig.page(99));
    for page in rig.sink.pages() {
        assert_eq!(rig.sink.page(page).unwrap(), rig.tree.page(page));
    }
    assert_eq!(rig.sink.pages().len(), 100 - 6);
    let told = |event: &ServerEvent| matches!(event, ServerEvent::Notice(Notice::DeviceSpeed { zstd: 1.., .. }));
    rig.server.wait(|log| log.iter().any(|(_, event)| told(event)).then_some(()));
}

#[test]
fn regress_streams_without_zstd_take_no_room_for_windows() {
    let rig = Rig::new();
    let mut encoder = codec::StreamEncoder::new(3, 17).unwrap();
    // Windows of all these streams would take more than decoders may.
    let streams: Vec<_> = (0..40).map(|_| rig.server.push_start(0, 1, PushEncoding::Pieces, false)).collect();
    for (page, stream) in (0..).zip(&streams) {
        let pages = rig.pages(page..page + 1);
        let piece = in_form(&rig, PieceForm::Lz4, &pages, &mut encoder);
        rig.server.push_bytes(0, *stream, 0, &pages, piece);
    }
    let pages = rig.pages(50..52);
    let piece = in_form(&rig, PieceForm::ZstdBegins, &pages, &mut encoder);
    rig.server.push_bytes(0, streams[39], 1, &pages, piece);
    rig.sink.wait_stored(rig.page(51));
    assert_eq!(rig.session.counters().pushes.pages_pushed, 42);
}

#[test]
fn a_piece_that_its_stream_does_not_allow_condemns_it() {
    for case in 0..3 {
        let rig = Rig::new();
        let piece = match case {
            0 => vec![4; 5000],
            1 => {
                let mut encoder = codec::StreamEncoder::new(3, 17).unwrap();
                in_form(&rig, PieceForm::ZstdContinues, &rig.pages(10..20), &mut encoder)
            }
            _ => vec![PieceForm::Lz4 as u8],
        };
        let stream = rig.server.push_start(0, 1, PushEncoding::Pieces, false);
        rig.server.push_bytes(0, stream, 0, &rig.pages(10..20), piece);
        rig.server
            .wait(|log| log.iter().any(|(_, event)| matches!(event, ServerEvent::PushStopped { .. })).then_some(()));
        assert!(rig.sink.pages().is_empty());
    }
}

#[test]
fn a_piece_with_a_wrong_page_condemns_its_stream_and_nothing_of_it_is_stored() {
    let flip: fn(&mut Vec<u8>) = |bytes| bytes[9 * 4096 + 5] ^= 1;
    let shorten: fn(&mut Vec<u8>) = |bytes| bytes.truncate(bytes.len() - 1);
    let lengthen: fn(&mut Vec<u8>) = |bytes| bytes.push(0);
    for spoil in [flip, shorten, lengthen] {
        let rig = Rig::new();
        let stream = rig.start(false);
        rig.server.push(0, stream, 0, &rig.pages(0..4), |_| ());
        rig.server.push(0, stream, 1, &rig.pages(10..20), spoil);
        rig.server
            .wait(|log| log.iter().any(|(_, event)| matches!(event, ServerEvent::PushStopped { .. })).then_some(()));
        assert_eq!(rig.sink.pages(), rig.pages(1..4));
        assert_eq!(rig.session.counters().demand.verify_failures, 1);
        rig.read(12);
        assert_eq!(rig.server.pulls().len(), 1, "the page is demanded as ever");
    }
}

#[test]
fn pages_beyond_a_file_are_never_stored() {
    let rig = Rig::new();
    let stream = rig.start(false);
    let beyond = vec![rig.page(99), PageId::new(rig.tree.big(), 101)];
    rig.server.push_bytes(0, stream, 0, &beyond, vec![0; 8192]);
    rig.server.wait(|log| log.iter().any(|(_, event)| matches!(event, ServerEvent::PushStopped { .. })).then_some(()));
    assert!(rig.sink.pages().is_empty());
}

#[test]
fn an_inode_the_kernel_does_not_know_is_looked_up_first() {
    let rig = Rig::new();
    rig.sink.forget(rig.tree.big(), false);
    let stream = rig.start(false);
    rig.server.push(0, stream, 0, &rig.pages(0..4), |_| ());
    rig.sink.wait_stored(rig.page(3));
    assert_eq!(rig.session.counters().stores.looked_up, 1);
}

#[test]
fn pages_of_an_inode_that_stays_unknown_are_held_and_served() {
    let rig = Rig::new();
    rig.sink.forget(rig.tree.big(), true);
    let stream = rig.start(false);
    rig.server.push(0, stream, 0, &rig.pages(0..8), |_| ());
    rig.sink.wait_offered(rig.page(7));
    // The storer is done with the piece when it has digested the next one.
    rig.server.push(0, stream, 1, &[PageId::new(rig.tree.files[2].0, 0), PageId::new(rig.tree.files[2].0, 1)], |_| ());
    rig.sink.wait_stored(PageId::new(rig.tree.files[2].0, 1));
    for index in [3, 7, 0, 1] {
        rig.read(index);
    }
    assert!(rig.server.pulls().is_empty(), "served from the holding area");
    assert_eq!(rig.session.counters().pushes.pages_held, 9);
}

#[test]
fn an_audit_run_sees_every_first_touch_in_order() {
    let rig = Rig::new();
    let stream = rig.start(true);
    rig.server.push(0, stream, 0, &rig.pages(0..10), |_| ());
    rig.server.push(0, stream, 1, &[PageId::new(rig.tree.files[2].0, 0)], |_| ());
    // Pieces are digested in order: the last page is held when all are.
    let small = rig.tree.files[2].0;
    while rig.session.counters().pushes.pages_held < 11 {
        std::thread::yield_now();
    }
    for index in [4, 2, 9] {
        rig.read(index);
    }
    read_page(&rig.session, 1, small, 0).wait().unwrap();
    rig.server.wait_touched(1, &[rig.page(4), rig.page(2), rig.page(9), PageId::new(small, 0)]);
    assert!(rig.sink.pages().is_empty() && rig.server.pulls().is_empty());
    rig.session.end(units::Token(1));
    let counters = rig.session.counters();
    assert_eq!(
        (counters.pushes.pages_pushed, counters.pushes.pages_push_hit, counters.pushes.pages_wasted),
        (11, 4, 7)
    );
}

#[test]
fn an_audit_reports_the_pages_it_had_no_room_to_watch_as_touched_in_the_order_of_the_push() {
    let rig = Rig::with(Config { holding: crate::Holding { audit_bytes: 3 * 4096, ..plain().holding }, ..plain() });
    let stream = rig.start(true);
    let pages: Vec<PageId> = [9, 3, 20, 7, 40, 8, 1].map(|index| rig.page(index)).to_vec();
    rig.server.push(0, stream, 0, &pages, |_| ());
    rig.sink.wait_stored(rig.page(40));
    // Of the three that are held, one is read; it is told of behind what was reported before.
    rig.read(3);
    rig.session.end(units::Token(1));
    rig.server.wait_touched(1, &[7, 40, 8, 1, 3].map(|index| rig.page(index)));
    let counters = rig.session.counters();
    assert_eq!((counters.pushes.pages_held, counters.pushes.pages_push_hit, counters.pushes.pages_wasted), (3, 5, 2));
}

#[test]
fn an_audit_that_goes_on_after_its_stream_sees_what_evicted_blocks_hold() {
    let rig = Rig::with(Config { cache_bytes: 128 << 10, stored_bytes: 0, ..plain() });
    let stream = rig.start(true);
    rig.server.push(0, stream, 0, &rig.pages(80..82), |_| ());
    rig.server.push_end(0, stream);
    while rig.session.counters().pushes.pages_held < 2 {
        std::thread::yield_now();
    }
    for index in [0, 16, 32, 48] {
        rig.read(index);
    }
    // The storer has seen the evicted blocks when it has digested a push that came behind them.
    let stream = rig.start(false);
    rig.server.push(0, stream, 0, &rig.pages(90..92), |_| ());
    rig.sink.wait_stored(rig.page(91));
    assert_eq!(rig.sink.pages(), [rig.page(91)]);
}

#[test]
fn unread_sentinels_count_their_segments_as_wasted() {
    let rig = Rig::new();
    let stream = rig.start(false);
    rig.server.push(0, stream, 0, &rig.pages(0..10), |_| ());
    rig.server.push(0, stream, 1, &rig.pages(20..25), |_| ());
    rig.sink.wait_stored(rig.page(24));
    rig.read(20);
    rig.session.end(units::Token(1));
    let counters = rig.session.counters();
    assert_eq!((counters.pushes.pages_push_hit, counters.pushes.pages_wasted), (5, 10));
}

#[test]
fn a_segment_whose_first_page_was_read_before_it_came_is_in_use() {
    let rig = Rig::new();
    rig.read(0);
    let stream = rig.start(false);
    rig.server.push(0, stream, 0, &rig.pages(0..10), |_| ());
    rig.server.push(0, stream, 1, &rig.pages(20..25), |_| ());
    rig.sink.wait_stored(rig.page(24));
    rig.session.end(units::Token(1));
    let counters = rig.session.counters();
    assert_eq!((counters.pushes.pages_push_hit, counters.pushes.pages_wasted), (10, 5));
}

#[test]
fn reads_of_pages_that_are_being_stored_are_answered_at_once() {
    let rig = Rig::new();
    let stream = rig.start(false);
    rig.sink.stick(true);
    rig.server.push(0, stream, 0, &rig.pages(0..32), |_| ());
    rig.sink.wait_offered(rig.page(20));
    // The kernel makes the store wait for exactly such READs; the store returns only after them.
    for index in [20, 31, 1] {
        rig.read(index);
    }
    assert!(rig.server.pulls().is_empty());
    rig.sink.stick(false);
    rig.sink.wait_stored(rig.page(31));
}

#[test]
fn a_read_of_a_page_in_a_piece_that_waits_for_the_storer_waits_too() {
    let rig = Rig::new();
    let stream = rig.start(false);
    rig.sink.stick(true);
    rig.server.push(0, stream, 0, &rig.pages(0..4), |_| ());
    rig.sink.wait_offered(rig.page(1));
    rig.server.push(0, stream, 1, &rig.pages(10..14), |_| ());
    // Answered on the connection behind the piece, so the piece was received by then.
    rig.read(50);
    let waiting = read_page(&rig.session, 1, rig.tree.big(), 12);
    rig.sink.stick(false);
    assert_eq!(waiting.wait().unwrap(), rig.tree.page(rig.page(12)));
    assert_eq!(rig.server.pulls().len(), 1, "only page 50 was demanded");
    rig.sink.wait_stored(rig.page(13));
    assert!(rig.sink.page(rig.page(12)).is_none());
}

#[test]
fn credit_is_given_for_every_piece() {
    let rig = Rig::new();
    let stream = rig.start(false);
    for segment in 0..3 {
        rig.server.push(0, stream, segment, &rig.pages(segment * 32..segment * 32 + 32), |_| ());
    }
    rig.sink.wait_stored(rig.page(95));
    while rig.server.ask(0, |machine| machine.in_flight_push_bytes() + machine.queued_push_bytes() as u64) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn credit_is_held_back_while_the_storer_is_stuck() {
    let rig = Rig::new();
    let stream = rig.start(false);
    rig.sink.stick(true);
    // A page in the kernel's hands, so that the storer is stuck before the rest comes.
    rig.server.push(0, stream, 0, &rig.pages(96..101), |_| ());
    rig.sink.wait_offered(rig.page(100));
    for segment in 1..9 {
        rig.server.push(0, stream, segment, &rig.pages(0..32), |_| ());
    }
    while rig.session.shared.undigested_bytes.load(Ordering::SeqCst) <= UNDIGESTED_BYTES_MAX {
        std::thread::yield_now();
    }
    // What comes after the last credit that was given at once.
    rig.session.end(units::Token(77));
    rig.server.wait(|log| {
        log.iter().any(|(_, event)| matches!(event, ServerEvent::Notice(Notice::TokenEnd { .. }))).then_some(())
    });
    assert!(rig.server.ask(0, |machine| machine.in_flight_push_bytes()) >= 32 * 4096);
    rig.sink.stick(false);
    while rig.server.ask(0, |machine| machine.in_flight_push_bytes() + machine.queued_push_bytes() as u64) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn evicted_blocks_leave_their_untouched_pages_to_the_kernel() {
    // Two blocks of 64 KiB fit.
    let rig = Rig::with(Config { cache_bytes: 128 << 10, stored_bytes: 0, ..plain() });
    for index in [0, 5, 16, 32] {
        rig.read(index);
    }
    rig.sink.wait_stored(rig.page(15));
    let stored: Vec<u32> = rig.sink.pages().iter().map(|page| page.index).collect();
    let expected: Vec<u32> = (0..16).filter(|index| ![0, 5].contains(index)).collect();
    assert_eq!(stored, expected);
    for page in rig.sink.pages() {
        assert_eq!(rig.sink.page(page).unwrap(), rig.tree.page(page));
    }
    let off = Rig::with(Config { cache_bytes: 128 << 10, stored_bytes: 0, store_evicted: false, ..plain() });
    for index in [0, 5, 16, 32, 48, 64] {
        off.read(index);
    }
    assert!(off.sink.pages().is_empty());
}

#[test]
fn a_file_that_the_kernel_does_not_know_takes_what_evicted_blocks_hold() {
    let rig = Rig::with(Config { cache_bytes: 128 << 10, stored_bytes: 0, ..plain() });
    rig.sink.forget(rig.tree.big(), false);
    [0, 16, 32].into_iter().for_each(|index| rig.read(index));
    rig.sink.wait_stored(rig.page(15));
    assert_eq!(rig.session.counters().stores.looked_up, 1);
}

#[test]
fn a_page_the_kernel_dropped_is_demanded_by_force() {
    let rig = Rig::new();
    let stream = rig.start(false);
    rig.server.push(0, stream, 0, &rig.pages(0..4), |_| ());
    rig.sink.wait_stored(rig.page(3));
    // The count follows the call.
    while rig.session.counters().stores.pages_stored < 3 {
        std::thread::yield_now();
    }
    rig.read(2);
    assert!(matches!(rig.server.pulls().as_slice(), [Request::PullBlock { force: true, .. }]));
}

#[test]
fn a_device_that_wants_no_push_says_so() {
    let rig = Rig::with(Config {
        connection: connection::Config { push: false, ..connection::Config::default() },
        ..plain()
    });
    let push = wire::PushHeader {
        image: super::fake_server::HANDLE,
        token: units::Token(1),
        action: units::ActionId(1),
        encoding: PushEncoding::Stored,
        window_log: 0,
        audit: false,
    };
    assert!(rig.server.ask(0, move |machine| machine.push_start(push).is_err()));
}
