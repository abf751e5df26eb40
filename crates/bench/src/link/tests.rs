//! The model is checked with simulated time; real sockets only for data integrity and counting.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use proptest::prelude::*;
use units::{Rng, SplitMix64};

use super::{Flow, Lane, Link, ShapedLink, Upstream};

fn link(text: &str) -> Link {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error:#}"))
}

#[test]
fn links_parse_by_name_and_by_value() {
    let named = link("thin");
    assert_eq!((named.name(), named.rtt, named.rate), ("thin", Duration::from_millis(40), 128_000));
    let lossy = link("3ms-50mbit-1%");
    assert_eq!((lossy.rtt, lossy.rate, lossy.loss), (Duration::from_millis(3), 50_000_000, 0.01));
    assert_eq!(link("lan").rtt, Duration::from_micros(200));
    assert_eq!(link("1s-1gbit-0.5").loss, 0.5);
    for (name, _) in Link::NAMED {
        assert_eq!(link(name).to_string(), name);
    }
}

#[test]
fn bad_links_are_refused_with_the_offending_part() {
    let cases = [
        ("", "expected lan"),
        ("fast", "expected lan"),
        ("20ms", "expected lan"),
        ("20-25mbit", "round-trip time '20'"),
        ("20ms-25", "rate '25'"),
        ("20ms-0kbit", "1kbit to"),
        ("60s-1mbit", "at most"),
        ("1ms-1mbit-60%", "at most 50%"),
        ("1ms-1mbit-x", "loss 'x'"),
        ("1ms-1mbit-0-0", "expected lan"),
        ("1.2.3ms-1mbit", "round-trip"),
    ];
    for (text, expected) in cases {
        let error = format!("{:#}", text.parse::<Link>().expect_err(text));
        assert!(error.contains(expected), "'{text}': {error}");
    }
}

#[test]
fn a_single_byte_takes_half_the_round_trip() {
    let mut lane = Lane::new(&link("20ms-1gbit"), 1);
    let arrival = lane.admit(Duration::from_secs(1), 1, &mut Flow::default());
    assert_eq!(arrival, Duration::from_secs(1) + Duration::from_millis(10) + Duration::from_nanos(8));
}

#[test]
fn a_megabyte_takes_the_time_of_its_rate_whatever_the_connections() {
    let link = link("20ms-25mbit");
    let mut lane = Lane::new(&link, 1);
    let mut flows = [Flow::default(), Flow::default(), Flow::default()];
    let (mut now, mut sent, mut last) = (Duration::ZERO, 0, Duration::ZERO);
    let mut turn = 0;
    while sent < 1_000_000 {
        if !lane.has_room(now) {
            assert!(lane.room_at() > now, "a full lane must name a later time");
            now = lane.room_at();
            assert!(lane.has_room(now), "the lane must have room when it said so");
        }
        last = lane.admit(now, 1000, &mut flows[turn % 3]);
        sent += 1000;
        turn += 1;
    }
    // 8 Mbit at 25 Mbit/s and half a round trip.
    let expected = Duration::from_millis(320 + 10);
    assert!(last.abs_diff(expected) < Duration::from_millis(1), "{last:?} instead of {expected:?}");
}

#[test]
fn the_queue_is_bounded() {
    let link = link("20ms-25mbit");
    let mut lane = Lane::new(&link, 1);
    let mut admitted = 0;
    while lane.has_room(Duration::ZERO) {
        lane.admit(Duration::ZERO, link.chunk_bytes(), &mut Flow::default());
        admitted += link.chunk_bytes();
    }
    assert_eq!(link.product_bytes(), 62_500);
    assert!(admitted >= link.queue_bytes() && admitted <= link.queue_bytes() + link.chunk_bytes());
}

#[test]
fn chunks_are_about_a_millisecond_of_the_rate() {
    assert_eq!(link("20ms-25mbit").chunk_bytes(), 3125);
    assert_eq!(link("thin").chunk_bytes(), 1448);
    assert_eq!(link("lan").chunk_bytes(), 16 * 1024);
}

#[test]
fn losses_come_at_the_stated_rate_and_delay_only_their_connection() {
    let link = link("20ms-1gbit-10%");
    let mut lane = Lane::new(&link, 7);
    let (mut hurt, mut calm) = (Flow::default(), Flow::default());
    let mut late = 0;
    for step in 0..10_000u32 {
        let now = Duration::from_secs(u64::from(step));
        let before = lane.segments_lost();
        let arrival = lane.admit(now, 1000, &mut hurt) - now;
        if lane.segments_lost() > before {
            late += 1;
            assert!(arrival > Duration::from_millis(30), "a lost segment costs a round trip more: {arrival:?}");
            let lost = lane.segments_lost();
            let other = lane.admit(now, 100, &mut calm) - now;
            assert!(
                lane.segments_lost() > lost || other < Duration::from_millis(11),
                "other connections go on: {other:?}"
            );
        }
    }
    assert!((800..1200).contains(&late), "{late} of 10000 lost at 10 %");
}

proptest! {
    #[test]
    fn prop_a_connection_never_sees_its_bytes_out_of_order(seed in any::<u64>(), sizes in prop::collection::vec((1u64..16_384, 0u64..3_000), 1..200)) {
        let mut lane = Lane::new(&link("5ms-10mbit-20%"), seed);
        let mut flow = Flow::default();
        let (mut now, mut last, mut total) = (Duration::ZERO, Duration::ZERO, 0);
        for (bytes, gap) in sizes {
            now += Duration::from_micros(gap);
            let arrival = lane.admit(now, bytes, &mut flow);
            total += bytes;
            prop_assert!(arrival >= last && arrival >= now + Duration::from_micros(2_500));
            // Never faster than the line.
            prop_assert!(arrival + Duration::from_micros(1) >= Duration::from_nanos(total * 800));
            last = arrival;
        }
    }
}

/// Reads `length:u32` and answers with that many bytes of the seeded sequence, until the client
/// closes.
fn echo_server(listener: TcpListener) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut request = [0; 4];
        while stream.read_exact(&mut request).is_ok() {
            stream.write_all(&sequence(u32::from_le_bytes(request))).expect("the client reads");
        }
    })
}

fn sequence(length: u32) -> Vec<u8> {
    let mut random = SplitMix64(u64::from(length));
    (0..length).map(|_| random.next_u64() as u8).collect()
}

#[test]
fn bytes_pass_unchanged_and_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let upstream = Upstream::Tcp(listener.local_addr().expect("an address"));
    let server = echo_server(listener);
    let proxy = ShapedLink::start(&link("1ms-1gbit-1%"), upstream, 3).expect("a proxy");
    let mut client = TcpStream::connect(proxy.address()).expect("a connection");
    let lengths = [1u32, 1448, 1449, 100_000, 3_000_000];
    for length in lengths {
        client.write_all(&length.to_le_bytes()).expect("the proxy reads");
        let mut answer = vec![0; length as usize];
        client.read_exact(&mut answer).expect("the whole answer");
        assert!(answer == sequence(length), "{length} bytes changed on the way");
    }
    let traffic = proxy.traffic();
    assert_eq!(traffic.up_bytes, 4 * lengths.len() as u64);
    assert_eq!(traffic.down_bytes, lengths.iter().map(|&length| u64::from(length)).sum::<u64>());
    assert_eq!((traffic.turns, traffic.connections), (lengths.len() as u64, 1));
    drop(client);
    server.join().expect("the server saw the end of the connection");
}

#[test]
fn a_server_that_is_gone_closes_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let proxy = ShapedLink::start(&link("lan"), Upstream::Tcp(address), 1).expect("a proxy");
    let mut client = TcpStream::connect(proxy.address()).expect("the proxy accepts");
    let mut byte = [0];
    assert!(!matches!(client.read(&mut byte), Ok(1)), "no byte can come from a server that is gone");
}

#[test]
fn dropping_the_link_closes_its_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let upstream = Upstream::Tcp(listener.local_addr().expect("an address"));
    let server = echo_server(listener);
    let proxy = ShapedLink::start(&link("lan"), upstream, 1).expect("a proxy");
    let mut client = TcpStream::connect(proxy.address()).expect("a connection");
    client.write_all(&3u32.to_le_bytes()).expect("the proxy reads");
    let mut answer = [0; 3];
    client.read_exact(&mut answer).expect("an answer");
    drop(proxy);
    assert!(!matches!(client.read(&mut answer), Ok(1..)), "the connection must be closed");
    server.join().expect("the server saw the end of the connection");
}
