//! Round trips, cuts, corruption, golden dump, fuzzing.

use proptest::prelude::*;
use units::{ImageId, InodeId, Moment, PageId, Rng, SplitMix64, Token};

use super::*;

const HEADER: Header = Header { image: ImageId([0xab; 32]), source: Source::Mount };

fn write(header: &Header, events: &[Event]) -> Vec<u8> {
    let mut writer = Writer::new(header);
    for event in events {
        writer.push(event).unwrap();
    }
    writer.finish().unwrap();
    writer.take()
}

fn read_all(bytes: &[u8]) -> Result<Trace, TraceError> {
    read(bytes, &Limits::default())
}

fn file(inode: u32, size: u64, path: &[u8]) -> Event {
    Event::File { inode: InodeId(inode), size, path: path.to_vec() }
}

/// [`version_2`] with every kind of look-up, and code in a file that is touched, and in one that
/// never is.
fn sample() -> Vec<Event> {
    let lookup = |token, at, found, path: &[u8]| Event::Lookup { token, at: Moment(at), found, path: path.to_vec() };
    let code = |at, inode, offset| Event::Code { token: Token(1), at: Moment(at), inode: InodeId(inode), offset };
    let mut events = version_2();
    events.splice(
        4..4,
        [
            lookup(Token(1), 1_000_901, Found::Nothing, b"usr/lib/python3.11/\xffsite.py"),
            lookup(Token(1), 1_000_902, Found::Directory, b"usr/lib"),
            code(1_000_950, 7, 0x1234),
            code(1_000_940, 77, u64::MAX),
        ],
    );
    events.insert(12, lookup(Token(u128::MAX), 1_001_110, Found::File, b"etc/x"));
    events
}

/// [`version_1`] with three of its files named: the first, one between two touches of another, and
/// an empty one that nobody touches.
fn version_2() -> Vec<Event> {
    let mut events = version_1();
    events.insert(5, file(9, 1 << 40, b"usr/lib/\xe4 b\".so"));
    events.insert(1, file(7, 8191, b"usr/bin/python3"));
    events.push(file(1000, 0, b"x"));
    events
}

/// Two programs at once, every kind of touch, names that are no UTF-8, time that goes back, a token
/// that starts twice.
fn version_1() -> Vec<Event> {
    let (one, two) = (Token(1), Token(u128::MAX));
    let touch = |token, at, inode, index, how| Event::Touch {
        token,
        at: Moment(at),
        page: PageId::new(InodeId(inode), index),
        how,
    };
    vec![
        Event::Start { token: one, at: Moment(1_000_000), name: b"/usr/bin/python3".to_vec() },
        touch(one, 1_000_250, 7, 0, How::Demand),
        touch(one, 1_000_900, 7, 1, How::Local),
        Event::Start { token: two, at: Moment(1_001_000), name: b"\xff\"x\n".to_vec() },
        touch(two, 1_001_100, 7, 0, How::Pushed),
        touch(one, 1_001_050, 9, 4000, How::Demand),
        touch(one, 1_001_060, 9, 3999, How::Demand),
        touch(one, 1_001_070, 8, u32::MAX, How::Demand),
        touch(one, 1_001_080, 8, 0, How::Demand),
        Event::End { token: two, at: Moment(2_000_000) },
        Event::Start { token: two, at: Moment(2_000_001), name: Vec::new() },
        touch(two, 2_000_002, u32::MAX, 5, How::Demand),
        Event::End { token: one, at: Moment(2_000_003) },
    ]
}

#[test]
fn events_come_back_as_written() {
    let trace = read_all(&write(&HEADER, &sample())).unwrap();
    assert_eq!(trace, Trace { header: HEADER, events: sample(), tail: Tail::Whole });
}

#[test]
fn an_empty_trace_is_a_header_and_a_seal() {
    let bytes = write(&HEADER, &[]);
    assert_eq!(bytes.len(), 48 + 18);
    assert_eq!(read_all(&bytes).unwrap().events, []);
}

#[test]
fn a_sequential_touch_takes_few_bytes() {
    let mut events = vec![Event::Start { token: Token(1), at: Moment(0), name: Vec::new() }];
    events.extend((0..1000).map(|index| Event::Touch {
        token: Token(1),
        at: Moment(u64::from(index) * 50),
        page: PageId::new(InodeId(3), index),
        how: How::Demand,
    }));
    assert!(write(&HEADER, &events).len() < 3 * 1000 + 100);
}

#[test]
fn bytes_can_be_taken_at_any_time() {
    let events = sample();
    let mut writer = Writer::new(&HEADER);
    let mut bytes = Vec::new();
    for event in &events {
        writer.push(event).unwrap();
        bytes.append(&mut writer.take());
    }
    assert_eq!(writer.open_tokens(), 1);
    writer.finish().unwrap();
    bytes.append(&mut writer.take());
    assert_eq!(bytes, write(&HEADER, &events));
}

#[test]
fn a_cut_file_is_readable_up_to_its_last_whole_record() {
    let events = sample();
    let mut writer = Writer::new(&HEADER);
    let mut ends = vec![48];
    let mut bytes = writer.take();
    for (position, event) in events.iter().enumerate() {
        writer.push(event).unwrap();
        bytes.append(&mut writer.take());
        ends.push(bytes.len());
        if position == 4 {
            writer.seal().unwrap();
            bytes.append(&mut writer.take());
        }
    }
    for cut in 48..bytes.len() {
        let trace = read_all(&bytes[..cut]).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
        assert_eq!(trace.events, events[..whole], "cut at {cut}");
        let Tail::Cut { offset, ignored, unverified } = trace.tail else { panic!("cut at {cut} goes unnoticed") };
        assert_eq!(offset + ignored, cut);
        let sealed = if offset > ends[5] { 5 } else { 0 };
        assert_eq!(unverified, whole - sealed, "cut at {cut}");
    }
    for cut in 0..48 {
        assert_eq!(read_all(&bytes[..cut]), Err(TraceError::Short { bytes: cut, expected: 48 }));
    }
}

#[test]
fn sections_are_sealed_on_their_own() {
    let mut writer = Writer::new(&HEADER);
    writer.push(&Event::Start { token: Token(5), at: Moment(0), name: Vec::new() }).unwrap();
    for index in 0..SECTION_RECORDS {
        let page = PageId::new(InodeId(1), index);
        writer.push(&Event::Touch { token: Token(5), at: Moment(0), page, how: How::Demand }).unwrap();
    }
    let trace = read_all(&writer.take()).unwrap();
    assert!(matches!(trace.tail, Tail::Cut { unverified: 1, ignored: 0, .. }), "{:?}", trace.tail);
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut writer = Writer::new(&HEADER);
    let start = |token, name: &[u8]| Event::Start { token: Token(token), at: Moment(0), name: name.to_vec() };
    let end = Event::End { token: Token(1), at: Moment(0) };
    assert_eq!(writer.push(&end), Err(TraceError::NotStarted(Token(1))));
    let long = vec![b'x'; NAME_BYTES_MAX + 1];
    assert!(matches!(writer.push(&start(1, &long)), Err(TraceError::Name { bytes: 4097, .. })));
    writer.push(&start(1, &long[1..])).unwrap();
    assert_eq!(writer.push(&start(1, b"")), Err(TraceError::Started(Token(1))));
    writer.push(&end).unwrap();
    assert_eq!(writer.push(&end), Err(TraceError::NotStarted(Token(1))));
    for token in 0..TOKENS_OPEN_MAX as u128 {
        writer.push(&start(token, b"")).unwrap();
    }
    assert!(matches!(writer.push(&start(u128::MAX, b"")), Err(TraceError::Limit { .. })));
    writer.finish().unwrap();
    assert_eq!(writer.push(&end), Err(TraceError::Finished));
    assert_eq!(writer.seal(), Err(TraceError::Finished));
    assert_eq!(writer.finish(), Err(TraceError::Finished));
    assert_eq!(read_all(&writer.take()).unwrap().events.len(), TOKENS_OPEN_MAX + 2);
}

#[test]
fn errors_name_what_is_wrong() {
    let good = write(&HEADER, &sample());
    let with = |offset: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[offset] = byte;
        read_all(&bytes)
    };
    assert!(matches!(with(0, b'X'), Err(TraceError::Magic { .. })));
    assert_eq!(with(8, 4), Err(TraceError::Version { found: 4, expected: 3 }));
    assert_eq!(with(8, 0), Err(TraceError::Version { found: 0, expected: 3 }));
    let early = "a look-up or code in a trace before version 3";
    assert!(matches!(with(8, 2), Err(TraceError::Record { what, .. }) if what == early));
    assert!(matches!(with(8, 1), Err(TraceError::Record { what: "a file in a trace of version 1", .. })));
    assert_eq!(with(10, 9), Err(TraceError::HeaderField { field: "source", found: 9 }));
    assert_eq!(with(11, 1), Err(TraceError::HeaderField { field: "reserved", found: 1 }));
    assert!(matches!(with(20, 0), Err(TraceError::Seal { .. })), "the image id is under the hash");
    let mut longer = good.clone();
    longer.push(0);
    assert_eq!(read_all(&longer), Err(TraceError::Trailing { offset: good.len(), bytes: 1 }));
    let limits = Limits { files_max: 1, ..Limits::default() };
    assert!(matches!(read(&good, &limits), Err(TraceError::Limit { what: "files", limit: 1, .. })));
    let limits = Limits { events_max: 3, ..Limits::default() };
    assert!(matches!(read(&good, &limits), Err(TraceError::Limit { what: "events", limit: 3, .. })));
    let text = read_all(&good[..good.len() - 1]).unwrap().tail.to_string();
    assert!(text.starts_with("cut at offset ") && text.contains("21 events are not covered"), "{text}");
}

#[test]
fn every_flipped_bit_is_noticed() {
    let good = write(&HEADER, &sample());
    let whole = read_all(&good).unwrap();
    for offset in 0..good.len() {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[offset] ^= 1 << bit;
            let noticed = read_all(&bytes).map_or(true, |trace| trace.tail != Tail::Whole);
            assert!(noticed, "bit {bit} of byte {offset} can change unnoticed");
        }
    }
    assert_eq!(whole.tail, Tail::Whole);
}

#[test]
fn golden_dump() {
    let trace = read_all(&write(&HEADER, &sample())).unwrap();
    let mut text = String::new();
    dump(&trace, &mut text).unwrap();
    assert_eq!(text, include_str!("../testdata/sample.dump"));
}

#[test]
fn golden_bytes_of_version_1() {
    // A file as version 1 wrote it must open for ever, and equal input must give equal bytes.
    let stored = include_bytes!("../testdata/sample-v1.trace");
    assert_eq!(read_all(stored).unwrap().events, version_1());
}

#[test]
fn golden_bytes_of_version_2() {
    let stored = include_bytes!("../testdata/sample-v2.trace");
    assert_eq!(read_all(stored).unwrap().events, version_2());
}

#[test]
fn golden_bytes_of_version_3() {
    let stored = include_bytes!("../testdata/sample-v3.trace");
    assert_eq!(read_all(stored).unwrap().events, sample());
    assert_eq!(write(&HEADER, &sample()), stored);
}

/// The bytes of a whole trace with one record more, which no writer would write, after a good
/// start, file and touch.
fn forged(record: &[u8]) -> Vec<u8> {
    let touch = Event::Touch { token: Token(1), at: Moment(0), page: PageId::new(InodeId(5), 0), how: How::Demand };
    let start = Event::Start { token: Token(1), at: Moment(0), name: Vec::new() };
    let mut writer = Writer::new(&HEADER);
    for event in [start, file(3, 1, b"a"), touch] {
        writer.push(&event).unwrap();
    }
    let mut bytes = writer.take();
    bytes.extend_from_slice(record);
    bytes.extend_from_slice(&[format::KIND_SEAL | format::FLAG_FINAL, 4]);
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(&hash.as_bytes()[..16]);
    bytes
}

#[test]
fn bad_file_records_are_refused_with_their_place() {
    assert_eq!(read_all(&forged(b"\x05\x04\x00\x03a/b")).unwrap().events.len(), 4);
    let long = [&b"\x05\x04\x00\x81\x20"[..], &[b'x'; 4097]].concat();
    let cases: [(&[u8], &str); 13] = [
        (b"\x05\x03\x00\x01b", "a file that has been named or touched before"),
        (b"\x05\x05\x00\x01b", "a file that has been named or touched before"),
        (b"\x05\x04\x00\x00", "a path with an empty part"),
        (b"\x05\x04\x00\x02/b", "a path with an empty part"),
        (b"\x05\x04\x00\x02b/", "a path with an empty part"),
        (b"\x05\x04\x00\x04b//c", "a path with an empty part"),
        (b"\x05\x04\x00\x05../../", "a path with a part . or .."),
        (b"\x05\x04\x00\x03b/.", "a path with a part . or .."),
        (b"\x05\x04\x00\x03b\x00c", "a path with a zero byte"),
        (&long, "a path over 4096 bytes"),
        (b"\x05\x80\x80\x80\x80\x10\x00\x01b", "an inode over 32 bits"),
        (b"\x15\x04\x00\x01b", "a file with unknown flags"),
        (b"\x05\x84\x00\x00\x01b", "a number that is not in its shortest form or has over 64 bits"),
    ];
    let place = forged(b"").len() - 18;
    for (record, what) in cases {
        assert_eq!(read_all(&forged(record)), Err(TraceError::Record { offset: place, what }), "{record:02x?}");
    }
}

#[test]
fn bad_lookups_and_code_are_refused_with_their_place() {
    let place = forged(b"").len() - 18;
    let good: [&[u8]; 2] = [b"\x19\x00\x02\x03a/b", b"\x1d\x00\x05\x81\x01"];
    for record in good {
        assert_eq!(read_all(&forged(record)).unwrap().events.len(), 4);
    }
    let cases: [(&[u8], &str); 8] = [
        (b"\x39\x00\x02\x01b", "a look-up or code with unknown flags"),
        (b"\x9d\x00\x05\x01", "a look-up or code with unknown flags"),
        (b"\x19\x00\x03\x01b", "a look-up that found no known thing"),
        (b"\x19\x00\x02\x00", "a path with an empty part"),
        (b"\x19\x00\x02\x02..", "a path with a part . or .."),
        (b"\x09\x00\x00\x02\x01b", "a token that is not in its shortest form"),
        (b"\x09\x00\x01\x02\x01b", "a token that is not running"),
        (b"\x1d\x00\x80\x80\x80\x80\x10\x00", "an inode over 32 bits"),
    ];
    for (record, what) in cases {
        assert_eq!(read_all(&forged(record)), Err(TraceError::Record { offset: place, what }), "{record:02x?}");
    }
    let mut writer = Writer::new(&HEADER);
    let lookup =
        |path: &[u8]| Event::Lookup { token: Token(1), at: Moment(0), found: Found::File, path: path.to_vec() };
    assert_eq!(writer.push(&lookup(b"a")), Err(TraceError::NotStarted(Token(1))));
    writer.push(&Event::Start { token: Token(1), at: Moment(0), name: Vec::new() }).unwrap();
    assert_eq!(writer.push(&lookup(b"/a")), Err(TraceError::Lookup("a path with an empty part")));
    let code = Event::Code { token: Token(1), at: Moment(0), inode: InodeId(4), offset: 1 };
    writer.push(&code).unwrap();
    assert_eq!(writer.push(&file(4, 1, b"a")), Err(TraceError::Named(InodeId(4))), "code counts as a touch");
}

#[test]
fn the_writer_names_a_file_once_and_before_its_first_touch() {
    let touch = |inode| {
        let page = PageId::new(InodeId(inode), 0);
        Event::Touch { token: Token(1), at: Moment(0), page, how: How::Local }
    };
    let mut writer = Writer::new(&HEADER);
    writer.push(&Event::Start { token: Token(1), at: Moment(0), name: Vec::new() }).unwrap();
    for inode in [0, 7] {
        writer.push(&touch(inode)).unwrap();
        assert_eq!(writer.push(&file(inode, 1, b"a")), Err(TraceError::Named(InodeId(inode))));
    }
    writer.push(&file(8, u64::MAX, b"a")).unwrap();
    assert_eq!(writer.push(&file(8, u64::MAX, b"a")), Err(TraceError::Named(InodeId(8))));
    assert!(writer.knows(InodeId(8)) && !writer.knows(InodeId(9)));
    for path in [&b""[..], b"/a", b"a/../b", b"a\0", &[b'x'; PATH_BYTES_MAX + 1]] {
        assert!(matches!(writer.push(&file(9, 1, path)), Err(TraceError::Path { inode: InodeId(9), .. })));
    }
    writer.push(&file(9, 1, &[b'x'; PATH_BYTES_MAX])).unwrap();
    assert!(writer.is_running(Token(1)) && writer.running() == [Token(1)]);
    writer.finish().unwrap();
    assert_eq!(read_all(&writer.take()).unwrap().events.len(), 5);
}

#[test]
fn varints_have_one_form() {
    for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let mut bytes = Vec::new();
        varint::put(&mut bytes, value);
        let mut at = 0;
        assert_eq!(varint::get(&bytes, &mut at), Ok(value));
        assert_eq!(at, bytes.len());
        assert_eq!(varint::get(&bytes[..at - 1], &mut 0), Err(varint::VarintError::Short));
        *bytes.last_mut().unwrap() |= 0x80;
        bytes.push(0);
        assert_eq!(varint::get(&bytes, &mut 0), Err(varint::VarintError::Malformed), "{value} with a zero behind it");
    }
    let over = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
    assert_eq!(varint::get(&over, &mut 0), Err(varint::VarintError::Malformed));
    for difference in [0, 1, -1, i64::MAX, i64::MIN] {
        assert_eq!(varint::unzigzag(varint::zigzag(difference)), difference);
    }
    assert_eq!((varint::zigzag(-1), varint::zigzag(1)), (1, 2));
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let raw = (0..6u8, 0..5u128, any::<u64>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..9));
    prop::collection::vec(raw, 0..200).prop_map(|raw| {
        let mut running = std::collections::BTreeSet::new();
        let mut known = std::collections::BTreeSet::new();
        let mut events = Vec::new();
        for (kind, token, at, page, name) in raw {
            let (token, at) = (Token(token), Moment(if kind % 2 == 0 { at } else { at % 1000 }));
            let page = PageId::from_u64(if name.len() > 4 { page } else { page & 0x1_0000_0003 });
            let how = [How::Demand, How::Local, How::Pushed][name.len() % 3];
            if kind == 3 && name.len() < 5 && known.insert(page.inode) {
                let path = format!("{:x}/{token}", name.len()).into_bytes();
                events.push(Event::File { inode: page.inode, size: at.0, path });
            } else if running.insert(token) {
                events.push(Event::Start { token, at, name });
            } else if kind == 0 {
                running.remove(&token);
                events.push(Event::End { token, at });
            } else if kind == 4 {
                let found = [Found::File, Found::Directory, Found::Nothing][name.len() % 3];
                events.push(Event::Lookup { token, at, found, path: format!("{:x}", name.len()).into_bytes() });
            } else if kind == 5 {
                known.insert(page.inode);
                events.push(Event::Code { token, at, inode: page.inode, offset: at.0 });
            } else {
                known.insert(page.inode);
                events.push(Event::Touch { token, at, page, how });
            }
        }
        events
    })
}

proptest! {
    #[test]
    fn prop_any_events_come_back(events in any_events(), source in 0..6u8) {
        let header = Header { image: ImageId([7; 32]), source: Source::from_u8(source).unwrap() };
        let trace = read_all(&write(&header, &events)).unwrap();
        prop_assert_eq!(trace, Trace { header, events, tail: Tail::Whole });
    }
}

/// The invariant: no bytes make the reader panic; what it accepts as whole is exactly what the
/// writer would have written; what it accepts as cut is well-formed, so the writer takes it.
/// Returns whether the bytes were a whole trace.
fn fuzz_one(bytes: &[u8]) -> bool {
    let Ok(trace) = read(bytes, &Limits { events_max: 10_000, files_max: 1000 }) else { return false };
    let mut writer = Writer::new(&trace.header);
    for event in &trace.events {
        writer.push(event).expect("what the reader accepts the writer accepts");
    }
    trace.tail == Tail::Whole
}

fn mutate(bytes: &mut Vec<u8>, rng: &mut SplitMix64) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.next_u64() as u8),
            2 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            _ if at < bytes.len() => bytes[at] = rng.next_u64() as u8,
            _ => {}
        }
    }
}

/// What the fuzzer looks for: changed bytes that still pass as a whole trace.
fn passes_unnoticed(bytes: &[u8], good: &[u8]) -> bool {
    fuzz_one(bytes) && bytes != good
}

#[test]
fn fuzz_reader() {
    let good = write(&HEADER, &sample());
    let mut rng = SplitMix64(1);
    for round in 0..30_000 {
        let mut bytes = good.clone();
        if round % 4 == 0 {
            bytes.truncate(48);
            bytes.extend((0..rng.below(200)).map(|_| rng.next_u64() as u8));
        } else {
            mutate(&mut bytes, &mut rng);
        }
        assert!(!passes_unnoticed(&bytes, &good), "round {round}: {bytes:02x?}");
    }
}

#[test]
fn fuzz_canary() {
    // A change that no hash covers is what a reader without a check would let through. The fuzzer
    // must see it: here the seal is made anew over a changed name.
    let good = write(&HEADER, &sample());
    let mut forged = good.clone();
    let name = forged.windows(4).position(|window| window == b"/usr").unwrap();
    forged[name] = b'!';
    assert!(!passes_unnoticed(&forged, &good), "the seal catches it");
    let seal = forged.len() - 16;
    let hash = blake3::hash(&forged[..seal]);
    forged[seal..].copy_from_slice(&hash.as_bytes()[..16]);
    assert!(passes_unnoticed(&forged, &good), "the fuzzer is blind");
}
