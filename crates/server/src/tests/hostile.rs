//! Clients that mean harm: each loses its own connection and nothing else.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use units::{PageId, Rng, SplitMix64, Token};
use wire::fixture::ClientMessage;
use wire::{ClientConfig, ClientConnection, ImageHandle, Reply, Request};

use super::client::{Client, stream_from};
use super::rig::{Rig, config, image, noise, program};
use crate::config::RECEIVED_FREE_BYTES;
use crate::upload::UPLOADS_MAX;
use crate::{Config, Level, Logger};

/// The bytes of a client's first words: hello and some requests.
fn first_words() -> Vec<u8> {
    let now = units::Moment(0);
    let mut wire = ClientConnection::new(ClientConfig::default(), now);
    let pages: Vec<PageId> = (0..20).map(|index| PageId::new(units::InodeId(3), index)).collect();
    let image = ImageHandle(0);
    wire.request(now, Request::Open { name: "app".to_owned() }).unwrap();
    wire.request(now, Request::MetaRead { image, offset: 0, bytes: 4096 }).unwrap();
    wire.request(now, Request::PullPages { image, token: Token(1), pages: pages.clone(), force: false }).unwrap();
    wire.request(now, Request::List).unwrap();
    wire.touch(image, Token(1), pages).unwrap();
    wire.token_end(image, Token(1)).unwrap();
    let put = Request::PutOpen { name: "x".to_owned(), file_bytes: 9000, metadata_offset: 4096, metadata_bytes: 4904 };
    wire.request(now, put).unwrap();
    let mut out = Vec::new();
    while wire.transmit(now, &mut out, 1 << 20) > 0 {}
    out
}

/// Sends `bytes`, closes the writing side, and returns what the server says until it closes.
fn say(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may close in the middle; that is its right.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut said = Vec::new();
    let mut part = [0; 65536];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return said,
            Ok(bytes) => said.extend_from_slice(&part[..bytes]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return said,
            Err(error) => panic!("the server neither speaks nor closes: {error}"),
        }
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn garbage_and_oversized_frames_close_only_their_own_connection_with_one_log_line() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = lines.clone();
    let log = Logger::new(move |level, line| {
        if level == Level::Warning {
            sink.lock().unwrap().push(line.to_owned());
        }
    });
    let (rig, _) = Rig::with_image(&image(1), |config: &mut Config| config.log = log);
    let mut good = Client::connect(rig.address, 1);
    let handle = good.open("app");
    let hello = first_words()[..5 + u32::from_le_bytes(first_words()[..4].try_into().unwrap()) as usize].to_vec();
    let after_hello = |bytes: Vec<u8>| [hello.clone(), bytes].concat();
    let attacks = [
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        frame(0x01, &[0; 39]),
        after_hello(frame(0x7f, b"no such kind")),
        after_hello([&u32::MAX.to_le_bytes()[..], &[0x10]].concat()),
        after_hello(frame(0x10, &[0xff; 300])),
        after_hello(hello.clone()),
        after_hello(frame(0x32, &[1; 64])),
    ];
    let count = attacks.len();
    for (number, bytes) in attacks.into_iter().enumerate() {
        let said = say(rig.address, &bytes);
        assert!(said.len() > 5, "attack {number}: the client is told why");
    }
    let page = PageId::new(good.metadata(handle).resolve(b"/lib/m0.so").unwrap(), 0);
    assert!(matches!(good.pull(handle, Token(1), page), Reply::Block { .. }));
    good.status_until(|status| status["metrics"]["connections_failed"] == count as u64 && status["connections"] == 1);
    assert_eq!(lines.lock().unwrap().len(), count, "{:#?}", lines.lock().unwrap());
}

#[test]
fn fuzz_mutated_conversations_never_harm_the_server() {
    let (rig, store) = Rig::with_image(&image(1), |_| {});
    let valid = first_words();
    // The canary: these words do reach the server's inside when they are not mutated.
    let mut canary = TcpStream::connect(rig.address).unwrap();
    canary.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    canary.write_all(&valid).unwrap();
    let mut client = Client::connect(rig.address, 1);
    client.status_until(|status| status["metrics"]["requests"].as_u64().unwrap() > 6);
    canary.read_exact(&mut [0; 100]).unwrap();
    drop((canary, client));
    let failed_before = rig.metrics.connections_failed.get();

    let mut rng = SplitMix64(0x0dd5);
    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < Duration::from_millis(1500) && rounds < 400 {
        let mut bytes = valid.clone();
        for _ in 0..=rng.below(6) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = rng.next_u64() as u8,
                2 => bytes.truncate(at.max(1)),
                _ => {
                    let copy = bytes[at..].to_vec();
                    bytes.extend_from_slice(&copy[..copy.len().min(600)]);
                }
            }
        }
        say(rig.address, &bytes);
        rounds += 1;
    }
    let mut client = Client::connect(rig.address, 1);
    client.open("app");
    assert!(rig.metrics.connections_failed.get() > failed_before, "some of {rounds} mutations were noticed");
    let status = client.status_until(|status| status["connections"] == 1);
    assert_eq!(status["memory"]["pushes_bytes"], 0);
    assert_eq!(store::Store::list(&store, "tags").unwrap(), [], "nothing was published");
    rig.stop();
}

#[test]
fn uploads_without_end_are_bounded() {
    let rig = Rig::start(config(crate::StoreAt::Open(Arc::new(store::Memory::new()))));
    let image = image(1);
    let begin = |source, number: u128, parts: bool| {
        let mut client = Client::connect_from(source, rig.address, number);
        client.until(|client| client.wire.hello().is_some());
        let puts: Vec<_> = (0..wire::format::PUTS_MAX)
            .map(|put| {
                let request = client.request(Request::PutOpen {
                    name: format!("app{put}"),
                    file_bytes: 10_000,
                    metadata_offset: 4096,
                    metadata_bytes: 5904,
                });
                if parts {
                    client.put_meta(request, &image, 0..100);
                }
                request
            })
            .collect();
        (client, puts)
    };
    // What is only announced takes nothing.
    let _announced: Vec<_> = (0..40).map(|number| begin([127, 0, 0, 1], number, false)).collect();
    // One machine gets half of the slots.
    let mut clients: Vec<_> = (40..52).map(|number| begin([127, 0, 0, 1], number, true)).collect();
    let refused = |(client, puts): &mut (Client, Vec<_>)| {
        client.status();
        puts.iter().filter(|put| client.has_reply(**put)).count()
    };
    let begun = std::time::Instant::now();
    while clients.iter_mut().map(refused).sum::<usize>() < clients.len() * wire::format::PUTS_MAX - UPLOADS_MAX / 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "too many are taken");
    }
    let told = |(mut client, puts): (Client, Vec<_>)| {
        for put in puts {
            if client.has_reply(put) {
                let reply = client.reply(put);
                assert!(matches!(reply, Reply::Error { code: wire::ErrorCode::Busy, .. }), "{reply:?}");
            }
        }
    };
    // Others push meanwhile.
    let mut other = Client::connect_from([127, 0, 0, 2], rig.address, 9);
    assert!(matches!(other.upload("app", &image).0, Reply::PutDone { .. }));
    clients.into_iter().for_each(told);
    other.status_until(|status| status["metrics"]["uploads_failed"] == 12 * wire::format::PUTS_MAX);
    // Their slots are free again.
    assert!(matches!(Client::connect(rig.address, 100).upload("app", &image).0, Reply::PutDone { .. }));
}

#[test]
fn clients_that_never_read_make_nobody_else_wait() {
    let image = noise(400);
    let mut share = 0;
    let (rig, _) = Rig::with_image(&image, |config| {
        config.memory_bytes_max = 32 << 20;
        share = config.shares().replies as u64;
        // Nobody is cut off: what the others get must not depend on it.
        config.wire.stall_max = Duration::from_secs(3600);
    });
    let mut good = Client::connect_from([127, 0, 0, 2], rig.address, 1);
    let handle = good.open("app");
    let page = |number: u32| PageId::new(good.metadata(handle).resolve(b"/noise").unwrap(), number * 16);
    let pages: Vec<PageId> = (0..400).map(page).collect();
    let bad: Vec<Client> = (0..10)
        .map(|number| {
            let mut bad = Client::connect_from([127, 0, 0, 1], rig.address, 100 + number);
            let handle = bad.open("app");
            for page in &pages {
                let ask = bad.pull_request(handle, Token(1), *page, true);
                bad.request(ask);
            }
            bad.send();
            bad
        })
        .collect();
    // About what ten connections of one peer may hold: half.
    good.status_until(|status| status["memory"]["replies_bytes"].as_u64().unwrap() > share / 8 * 3);
    for page in &pages[..40] {
        assert!(matches!(good.pull(handle, Token(1), *page), Reply::Block { .. }));
    }
    let mut same_address = Client::connect(rig.address, 2);
    let handle = same_address.open("app");
    assert!(matches!(same_address.pull(handle, Token(1), pages[0]), Reply::Block { .. }));
    drop(bad);
    good.status_until(|status| status["connections"] == 2u64);
}

#[test]
fn regress_clients_of_many_addresses_that_never_read_give_way() {
    let image = noise(400);
    let (rig, _) = Rig::with_image(&image, |config| {
        config.memory_bytes_max = 32 << 20;
        // The wire ends nobody.
        (config.wire.stall_max, config.wire.idle_max) = (Duration::from_secs(3600), Duration::from_secs(3600));
    });
    let mut good = Client::connect_from([127, 0, 0, 2], rig.address, 1);
    let handle = good.open("app");
    let file = good.metadata(handle).resolve(b"/noise").unwrap();
    let pages: Vec<PageId> = (0..400).map(|number| PageId::new(file, number * 16)).collect();
    let bad: Vec<Client> = (0..60)
        .map(|number| {
            let mut bad = Client::connect_from([127, 0, 3, number + 1], rig.address, 100 + u128::from(number));
            let handle = bad.open("app");
            for page in &pages[..100] {
                let ask = bad.pull_request(handle, Token(1), *page, true);
                bad.request(ask);
            }
            for _ in 0..8 {
                bad.request(Request::Status);
            }
            bad.send();
            bad
        })
        .collect();
    for page in &pages[..40] {
        assert!(matches!(good.pull(handle, Token(1), *page), Reply::Block { .. }));
        good.status();
    }
    // Without need nobody has to go.
    drop(bad);
    good.status_until(|status| status["connections"] == 1u64);
}

#[test]
fn regress_frames_that_never_end_take_their_share_and_no_more() {
    let image = noise(40);
    let mut share = 0;
    let (rig, _) = Rig::with_image(&image, |config| {
        config.memory_bytes_max = 32 << 20;
        share = config.shares().received as u64;
    });
    let mut good = Client::connect_from([127, 0, 0, 2], rig.address, 1);
    let handle = good.open("app");
    let hello = first_words();
    // Each begins a frame of a MiB and leaves out its last byte.
    let put = wire::fixture::encode(&ClientMessage::PutMeta {
        request: units::RequestId(1),
        offset: 0,
        bytes: vec![7; 1 << 20].into(),
    });
    let mut bad: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = stream_from([127, 0, 0, 1], rig.address);
            stream.set_nonblocking(true).unwrap();
            stream.write_all(&hello[..hello_bytes()]).unwrap();
            stream
        })
        .collect();
    let mut written = vec![0; bad.len()];
    let mut most = 0;
    let page = |number: u32| PageId::new(good.metadata(handle).resolve(b"/noise").unwrap(), number * 16);
    let pages: Vec<PageId> = (0..40).map(page).collect();
    for page in &pages {
        for (stream, written) in bad.iter_mut().zip(&mut written) {
            // What the server does not read stays in the socket.
            *written += stream.write(&put[*written..put.len() - 1]).unwrap_or(0);
        }
        // Small requests go on.
        assert!(matches!(good.pull(handle, Token(1), *page), Reply::Block { .. }));
        most = most.max(good.status()["memory"]["received_bytes"].as_u64().unwrap());
    }
    assert!((share / 3..=share).contains(&most), "{most} of {share}");
    let written: usize = written.iter().sum();
    let read = (written as u64).saturating_sub(unread_bytes(rig.address, &bad));
    let free = (bad.len() * RECEIVED_FREE_BYTES) as u64;
    assert!(read <= share + free, "{read} bytes were read, with memory for {share} + {free}");
    // Another peer's large frame finds room.
    let mut other = Client::connect_from([127, 0, 0, 3], rig.address, 3);
    assert!(matches!(other.upload("other", &image).0, Reply::PutDone { .. }));
    drop(bad);
    good.status_until(|status| status["memory"]["received_bytes"] == 0);
}

/// Frames of many addresses that never end take all memory for what arrives. They end when somebody
/// waits, long before their own deadline.
#[test]
fn regress_frames_of_many_addresses_that_never_end_give_way() {
    let (rig, _) = Rig::with_image(&image(1), |config| {
        config.memory_bytes_max = 64 << 20;
        config.wire.idle_max = Duration::from_secs(3600);
    });
    let hello = first_words();
    let put = wire::fixture::encode(&ClientMessage::PutMeta {
        request: units::RequestId(1),
        offset: 0,
        bytes: vec![7; 1 << 20].into(),
    });
    let bad: Vec<TcpStream> = (0..8)
        .map(|number| {
            let mut stream = stream_from([127, 0, 3, number + 1], rig.address);
            stream.write_all(&hello[..hello_bytes()]).unwrap();
            stream.write_all(&put[..RECEIVED_FREE_BYTES / 2]).unwrap();
            stream
        })
        .collect();
    let mut good = Client::connect_from([127, 0, 0, 2], rig.address, 1);
    let share = 4 << 20;
    good.status_until(|status| status["memory"]["received_bytes"].as_u64() >= Some(share - (64 << 10)));
    assert!(matches!(good.upload("other", &noise(40)).0, Reply::PutDone { .. }));
    // When they come again they go last.
    let slow = good.status()["slow_peers"].as_u64();
    assert!((1..=bad.len() as u64).contains(&slow.unwrap()), "{slow:?}");
    drop(bad);
}

/// Memory is taken in pages. A frame that needs whole pages of it left none over, and was never
/// read to its end.
#[test]
fn regress_a_frame_of_whole_pages_is_read_to_its_end() {
    let (rig, _) = Rig::with_image(&image(1), |_| {});
    let mut stream = stream_from([127, 0, 0, 1], rig.address);
    let hello = first_words();
    stream.write_all(&hello[..hello_bytes()]).unwrap();
    let header = 4 + 8;
    let bytes = vec![7; RECEIVED_FREE_BYTES + 40 * 4096 - header];
    let put =
        wire::fixture::encode(&ClientMessage::PutMeta { request: units::RequestId(1), offset: 0, bytes: bytes.into() });
    assert_eq!(put.len(), 5 + RECEIVED_FREE_BYTES + 40 * 4096, "the payload needs whole pages");
    let until = Instant::now() + Duration::from_secs(20);
    for piece in put.chunks(24 << 10) {
        stream.write_all(piece).unwrap();
        while unread_bytes(rig.address, std::slice::from_ref(&stream)) > 0 {
            assert!(Instant::now() < until, "the server does not read on");
            std::thread::yield_now();
        }
    }
}

/// Bytes that the clients wrote and `server` did not read, by the kernel's word. What is on its way
/// may count twice, so it is at least the truth.
fn unread_bytes(server: SocketAddr, clients: &[TcpStream]) -> u64 {
    let ports: HashSet<u16> = clients.iter().map(|stream| stream.local_addr().unwrap().port()).collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let port = |address: &str| number(address.split_once(':').unwrap().1) as u16;
    let unread = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (from, to) = (port(words[1]), port(words[2]));
        let (unsent, received) = words[4].split_once(':').unwrap();
        match () {
            () if ports.contains(&from) && to == server.port() => number(unsent),
            () if from == server.port() && ports.contains(&to) => number(received),
            () => 0,
        }
    };
    table.lines().skip(1).map(unread).sum()
}

/// Bytes of the hello among the first words.
fn hello_bytes() -> usize {
    let words = first_words();
    5 + u32::from_le_bytes([words[0], words[1], words[2], words[3]]) as usize
}

#[test]
fn regress_who_knows_the_token_of_another_peer_cannot_speak_for_it() {
    let bytes = image(4);
    let (rig, _) = Rig::with_image(&bytes, |_| {});
    let program = program(&bytes, 5, 100);
    let token = Token(77);
    let mut victim = Client::connect_from([127, 0, 0, 1], rig.address, 1);
    let theirs = victim.open("app");
    victim.run(theirs, token, &program[..50]);
    // The same token, and the same device number.
    let mut stranger = Client::connect_from([127, 0, 0, 2], rig.address, 1);
    let ours = stranger.open("app");
    stranger.touch(ours, token, &program[97..99]);
    stranger.end(ours, token);
    stranger.status();
    victim.run(theirs, token, &program[50..]);
    victim.end(theirs, token);
    let status = victim.status();
    assert_eq!((&status["images"][0]["actions"], &status["images"][0]["action_pages"]), (&1.into(), &100.into()));
}

#[test]
fn regress_what_touches_teach_stays_within_its_memory() {
    let bytes = noise(400);
    let mut shares = crate::Shares::default();
    let (rig, _) = Rig::with_image(&bytes, |config| {
        config.memory_bytes_max = 32 << 20;
        config.upkeep_every = Duration::from_millis(50);
        shares = config.shares();
    });
    let mut bad = Client::connect_from([127, 0, 0, 1], rig.address, 1);
    let handle = bad.open("app");
    let file = bad.metadata(handle).resolve(b"/noise").unwrap();
    let mut pages: Vec<PageId> = (0..6000).map(|index| PageId::new(file, index)).collect();
    let mut rng = SplitMix64(3);
    let mut most = 0;
    // Uncounted, their runs would take some 19 MB.
    for token in 1..=100u128 {
        (1..pages.len()).rev().for_each(|at| pages.swap(at, rng.below(at as u64 + 1) as usize));
        for part in pages.chunks(1000) {
            bad.touch(handle, Token(token), part);
        }
        let memory = &bad.status()["memory"];
        most = most.max(memory["learned_bytes"].as_u64().unwrap());
        assert!(memory["learned_bytes"].as_u64().unwrap() <= shares.learned as u64, "{memory}");
        assert!(memory["devices_bytes"].as_u64().unwrap() <= shares.devices as u64, "{memory}");
    }
    assert!(most > shares.learned as u64 / 2, "{most}");
    // What others run is learned all the same.
    let program: Vec<PageId> = (6000..6100).map(|index| PageId::new(file, index)).collect();
    let connect = |device: u128| {
        let mut good = Client::connect_from([127, 0, 0, 2], rig.address, device);
        let handle = good.open("app");
        (good, handle)
    };
    let (mut first, handle) = connect(2);
    first.run(handle, Token(2), &program);
    first.end(handle, Token(2));
    first.status();
    let (mut second, handle) = connect(3);
    second.pull(handle, Token(3), program[0]);
    second.until(|client| program.iter().all(|page| client.have.contains(page)));
}

#[test]
fn touches_of_pages_and_images_that_do_not_exist_teach_nothing() {
    let (rig, _) = Rig::with_image(&image(1), |_| {});
    let mut client = Client::connect(rig.address, 1);
    let handle = client.open("app");
    let nowhere: Vec<PageId> = (0..1000).map(|index| PageId::new(units::InodeId(70), index)).collect();
    client.touch(handle, Token(1), &nowhere);
    client.touch(ImageHandle(5), Token(1), &nowhere);
    client.end(handle, Token(1));
    client.end(ImageHandle(5), Token(2));
    let status = client.status();
    assert_eq!(status["images"][0]["actions"], 0);
    assert_eq!(status["metrics"]["pages_touched"], 0);
}
