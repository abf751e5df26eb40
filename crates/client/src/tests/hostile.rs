//! A server that lies at random: whatever it does, an application gets right bytes or an error, and
//! the page cache gets right bytes or nothing.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use units::{ActionId, InodeId, PAGE_BYTES, PageId, Rng, SegmentIndex, SplitMix64, StreamId, Token};
use wire::format::{FEATURE_PROOFS, FEATURES};
use wire::{ErrorCode, PieceForm, PushEncoding, PushHeader, PushPiece, Reply, Request, ServerConnection, ServerEvent};

use super::fake_server::{FakeServer, HANDLE, greeting, honest_reply, is_pull};
use super::fake_sink::FakeSink;
use super::tree::Tree;
use super::{HANG, open, plain, read};
use crate::{Config, Granularity};
use connection::{Connection, Waiting};

/// Bytes with a few of them changed, or cut, or extended.
fn spoil(rng: &mut SplitMix64, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match rng.below(4) {
        0 => bytes.truncate(rng.below(bytes.len() as u64) as usize),
        1 => bytes.push(rng.next_u64() as u8),
        2 => bytes.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8),
        _ => {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
    }
    bytes
}

/// The bytes of a piece that says how it is encoded.
fn in_form(rng: &mut SplitMix64, raw: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    let form = match rng.below(4) {
        0 => PieceForm::Stored,
        1 => PieceForm::Lz4,
        2 => PieceForm::ZstdBegins,
        _ => PieceForm::ZstdContinues,
    };
    match form {
        PieceForm::Stored => stored.extend_from_slice(raw),
        PieceForm::Lz4 => codec::encode(codec::Codec::Lz4, 0, raw, &mut stored).unwrap(),
        _ => codec::StreamEncoder::new(3, 17).unwrap().piece(raw, &mut stored).unwrap(),
    }
    [&[form as u8], &stored[..]].concat()
}

/// Proves the chunk hashes of pages to a device that takes proofs, mostly as they are.
fn prove_something(rng: &mut SplitMix64, tree: &Tree, machine: &mut ServerConnection, pages: &[PageId]) {
    let pages: Vec<PageId> = pages.iter().copied().filter(|page| page.index <= 100).collect();
    if !machine.takes_proofs() || pages.is_empty() || rng.below(8) == 0 {
        return;
    }
    let proof = tree.proof(&pages);
    let proof = if rng.below(8) == 0 { spoil(rng, &proof) } else { proof };
    // Nothing is refused, unless nothing is left of it.
    let _ = machine.hashes(HANDLE, proof.into());
}

/// Pushes pages, of which some do not exist, some are wrong and some are right.
fn push_something(rng: &mut SplitMix64, tree: &Tree, machine: &mut ServerConnection) -> Option<StreamId> {
    let encodings = [PushEncoding::Stored, PushEncoding::ZstdStream, PushEncoding::Pieces];
    let encoding = encodings[rng.below(3) as usize];
    let window_log = if encoding == PushEncoding::Stored { 0 } else { 1 + rng.below(21) as u8 };
    let (image, token, action) = (HANDLE, Token(rng.below(3).into()), ActionId(1));
    let push = PushHeader { image, token, action, encoding, window_log, audit: rng.below(3) == 0 };
    let stream = machine.push_start(push).ok()?;
    for segment in 0..rng.below(4) as u32 {
        let first = rng.below(100) as u32;
        let pages: Vec<PageId> = (first..first + 1 + rng.below(8) as u32).map(|i| PageId::new(tree.big(), i)).collect();
        let real: Vec<u8> =
            pages.iter().filter(|page| page.index <= 100).flat_map(|p| tree.page(*p).to_vec()).collect();
        let real = if encoding == PushEncoding::Pieces { in_form(rng, &real) } else { real };
        let bytes = if rng.below(2) == 0 { real } else { spoil(rng, &real) };
        prove_something(rng, tree, machine, &pages);
        if !bytes.is_empty() {
            // The server's own window may be full; then there is nothing to try here.
            let _ = machine.push(PushPiece { stream, segment: SegmentIndex(segment), pages, bytes: bytes.into() });
        }
    }
    Some(stream)
}

fn lie(rng: &mut SplitMix64, tree: &Tree, machine: &mut ServerConnection, ask: &Request) -> Option<Reply> {
    let honest = honest_reply(tree, ask)?;
    if let Request::PullPages { pages, .. } = ask {
        prove_something(rng, tree, machine, pages);
    }
    Some(match (rng.below(10), honest) {
        (0..3, Reply::Block { block, bytes }) => Reply::Block { block, bytes: spoil(rng, &bytes).into() },
        (0..3, Reply::Pages { bytes, .. }) => {
            Reply::Pages { codec: rng.below(6) as u8, bytes: spoil(rng, &bytes).into() }
        }
        (3, _) => Reply::error(ErrorCode::Storage, "no"),
        (4, _) => Reply::error(ErrorCode::Busy, "not now"),
        (5..7, honest) => match push_something(rng, tree, machine) {
            Some(stream) if rng.below(2) == 0 => Reply::OnTheWay { stream },
            _ => honest,
        },
        (_, honest) => honest,
    })
}

#[test]
fn fuzz_a_lying_server_is_never_believed() {
    let tree = Arc::new(Tree::plain());
    let (mut right, mut wrong, mut stored) = (0, 0, 0);
    for seed in 0..8 {
        let features = if seed < 4 { FEATURES & !FEATURE_PROOFS } else { FEATURES };
        let server = FakeServer::start_with(&tree, features);
        let granularity = if seed % 2 == 0 { Granularity::Block } else { Granularity::Page };
        let waiting = Waiting::Soft(std::time::Duration::from_secs(3));
        let session =
            open(&server, Config { granularity, waiting, cache_bytes: 96 << 10, stored_bytes: 32 << 10, ..plain() });
        let sink = Arc::new(FakeSink::default());
        session.attach(sink.clone());
        let (mut rng, liar) = (SplitMix64(seed), Arc::clone(&tree));
        let lies = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&lies);
        server.policy(move |_, machine, event| {
            let ServerEvent::Request { request, ask } = event else { return false };
            if !is_pull(ask) {
                return false;
            }
            told.fetch_add(1, Ordering::SeqCst);
            if rng.below(40) == 0 {
                machine.shut_down(ErrorCode::Internal, "lying down");
                return true;
            }
            let reply = lie(&mut rng, &liar, machine, ask);
            // A reply that our own state machine refuses is none.
            let _ = reply.map(|reply| machine.reply(*request, reply));
            true
        });
        let mut rng = SplitMix64(seed + 1000);
        let reads: Vec<(InodeId, u64, _)> = (0..120)
            .map(|_| {
                let offset = rng.below(101) * PAGE_BYTES as u64;
                (tree.big(), offset, read(&session, rng.below(3).into(), tree.big(), offset, 8192))
            })
            .collect();
        for (inode, offset, read) in reads {
            match read.wait() {
                Ok(bytes) => {
                    assert!(bytes == tree.range(inode, offset, 8192), "seed {seed}: wrong bytes at {offset}");
                    right += 1;
                }
                Err(_) => wrong += 1,
            }
        }
        for page in sink.pages() {
            assert!(sink.page(page).unwrap() == tree.page(page), "seed {seed}: wrong page {page} stored");
            stored += 1;
        }
        assert!(lies.load(Ordering::SeqCst) > 0);
    }
    // The canary: lies were told and noticed, truths were believed, and pushes came through.
    assert!(right > 50 && wrong > 0 && stored > 0, "{right} {wrong} {stored}");
}

/// What `runnel images` says of a service that sends this to whoever connects, and then closes or
/// stays silent.
fn said_of(greeting: &'static [u8], closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(greeting).unwrap();
        if closes {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        // Until the client goes.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let server = connection::Server { scheme: connection::Scheme::Runnel, host: "127.0.0.1".into(), port };
    let time = if greeting.is_empty() && !closes { Duration::from_millis(20) } else { HANG };
    let said = crate::admin::list(&server, &connection::Trust::default(), time).unwrap_err().to_string();
    service.join().unwrap();
    assert!(said.contains(&format!("check the port {port}")) && said.contains("runnels://"), "{said}");
    said
}

#[test]
fn a_service_that_is_no_runnel_server_is_described() {
    for (greeting, closes, found) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            true,
            "does not speak Runnel's protocol: it answers as a web server",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", false, "does not speak Runnel's protocol: it greets as an SSH server"),
        (b"220 mail \x1b[2J\r\n", false, "does not speak Runnel's protocol: it begins with \"220 mail \""),
        (&[21, 3, 3, 0, 2, 2, 40], true, "does not speak Runnel's protocol: it answers in TLS"),
        (&[0xff; 16], false, "does not speak Runnel's protocol: it begins with \"\\xff\\xff"),
        (b"", true, "no greeting of a Runnel server: the connection was closed"),
        (b"", false, "no greeting of a Runnel server: none came within 20ms"),
    ] {
        let said = said_of(greeting, closes);
        assert!(said.contains(found), "{said}");
    }
}

/// Why a connection ends on which a greeting came first and then the end, or nothing.
fn end_after_greeting(closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = connection::Server { scheme: connection::Scheme::Runnel, host: "127.0.0.1".into(), port };
    let dialer = connection::Dialer::new(&server, &connection::Trust::default()).unwrap();
    let config = wire::ClientConfig { silence_max: Duration::from_millis(50), ..wire::ClientConfig::default() };
    let mut connection = Connection::connect(&dialer, config, connection::Clock::start(), HANG).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(&greeting()).unwrap();
    if closes {
        // The end comes as a reset, so that already the client's first words cannot be sent.
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
    }
    connection.machine.request(connection.now(), wire::Request::List).unwrap();
    loop {
        match connection.event(units::Moment(u64::MAX)) {
            Ok(event) => assert!(matches!(event, wire::ClientEvent::Ready(_)), "{event:?}"),
            Err(error) => return error.to_string(),
        }
    }
}

#[test]
fn what_ends_after_the_greeting_is_not_said_to_be_without_one() {
    let said = end_after_greeting(true);
    assert!(said.contains(": the connection was lost: "), "{said}");
    let said = end_after_greeting(false);
    assert!(said.contains(": the server sent nothing within 50ms"), "{said}");
}
