//! Fuzzers: random and mutated bytes against both decoders, random and mutated sessions against
//! both machines.
//!
//! What must hold: no panic; what is accepted is exactly what the encoder writes; memory stays
//! within bounds; a closed connection stays closed with the same error. `RUNNEL_FUZZ_ROUNDS` makes
//! a run longer.

use std::panic::catch_unwind;
use std::time::Duration;

use bytes::Bytes;
use units::{Moment, Rng, SplitMix64, StreamId};

use super::samples::{Samples, flat};
use crate::coding::frame_hash;
use crate::format::{ClientKind, FRAME_HASH_BYTES, FRAME_HEADER_BYTES, KIND_HASHED, ServerKind};
use crate::message::{ClientMessage, Notice, ServerMessage};
use crate::{
    ClientConfig, ClientConnection, ClientEvent, ErrorCode, PushEndReason, PushPiece, Reply, Request, ServerConfig,
    ServerConnection, ServerEvent, decode, encode,
};

/// More than any machine may hold of one session here: queues of 4 MiB for replies and push, and a
/// frame each way.
const HELD_BYTES_MAX: usize = 12 << 20;

fn rounds(usual: u64) -> u64 {
    std::env::var("RUNNEL_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}

/// Changes a few bytes: flips, overwrites with telling values, cuts, repeats.
fn mutate(rng: &mut SplitMix64, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(5) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, rng.next_u64() as u8),
            _ => bytes.extend_from_within(at..),
        }
    }
}

/// Decodes a payload for each side that knows the kind; whether either accepted it.
fn decode_both(kind: u8, payload: &[u8]) -> bool {
    let payload = Bytes::copy_from_slice(payload);
    let mut accepted = false;
    if let Some(Ok(message)) = ClientKind::from_u8(kind).map(|kind| decode::client(kind, payload.clone())) {
        assert_eq!(flat(&encode::client(&message))[FRAME_HEADER_BYTES..], payload, "{message:?}");
        accepted = true;
    }
    if let Some(Ok(message)) = ServerKind::from_u8(kind).map(|kind| decode::server(kind, payload.clone())) {
        // a long error text is accepted and would be written shorter, one that cannot be printed is
        // taken as one that can
        let changed = |text: &str| text.len() > 256 || !payload.windows(text.len()).any(|part| part == text.as_bytes());
        let is_changed = match &message {
            ServerMessage::Reply { reply: Reply::Error { text, .. }, .. } => !text.is_empty() && changed(text),
            ServerMessage::VolumeError { text, .. } => !text.is_empty() && changed(text),
            _ => false,
        };
        if !is_changed {
            assert_eq!(flat(&encode::server(&message))[FRAME_HEADER_BYTES..], payload, "{message:?}");
        }
        accepted = true;
    }
    accepted
}

/// A frame of either side.
fn frame(samples: &mut Samples) -> Vec<u8> {
    match samples.below(2) {
        0 => flat(&encode::client(&samples.client())),
        _ => flat(&encode::server(&samples.server())),
    }
}

#[test]
fn fuzz_decoders() {
    let mut rng = SplitMix64(11);
    let mut samples = Samples(SplitMix64(12));
    let mut accepted = 0;
    for _ in 0..rounds(30_000) {
        let mut bytes = if rng.below(4) == 0 { samples.bytes(0, 100).to_vec() } else { frame(&mut samples) };
        let kind = bytes.get(4).copied().unwrap_or(rng.next_u64() as u8);
        let mut payload = bytes.split_off(bytes.len().min(FRAME_HEADER_BYTES));
        mutate(&mut rng, &mut payload);
        accepted += u64::from(decode_both(kind, &payload));
        if kind & KIND_HASHED != 0 {
            // From somebody who means it: the hash is right.
            payload.truncate(payload.len().saturating_sub(FRAME_HASH_BYTES));
            payload.extend(frame_hash(kind, &payload, &[]));
            accepted += u64::from(decode_both(kind, &payload));
        }
    }
    assert!(accepted > 0, "mutations this light leave some messages valid");
}

/// Sends a session of mostly sensible, partly mutated messages to a server that answers some
/// requests and pushes. Whether the server closed the connection.
fn server_session(seed: u64, mutations: bool) -> bool {
    let mut rng = SplitMix64(seed);
    let mut samples = Samples(SplitMix64(rng.next_u64()));
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    let mut now = Moment(0);
    let mut hello = ClientConnection::new(ClientConfig::default(), now);
    let mut bytes = Vec::new();
    hello.transmit(now, &mut bytes, usize::MAX);
    let mut requests = 0;
    for _ in 0..30 {
        let mut message = samples.client();
        match &mut message {
            // numbers that are in turn get further than random ones
            ClientMessage::Request { request, .. } => {
                requests += 1;
                request.0 = requests;
            }
            ClientMessage::PutMeta { request, .. }
            | ClientMessage::PutBlock { request, .. }
            | ClientMessage::PutCommit { request }
            | ClientMessage::Hurry { request }
            | ClientMessage::Cancel { request } => request.0 = 1 + rng.below(u64::from(requests) + 1) as u32,
            ClientMessage::Notice(Notice::Credit { stream, bytes }) => {
                (*stream, *bytes) = (StreamId(1), 1 + *bytes % 300)
            }
            ClientMessage::Notice(Notice::StopPush { stream }) => *stream = StreamId(1),
            ClientMessage::Hello(_) if !mutations => continue,
            _ => {}
        }
        let mut frame = flat(&encode::client(&message));
        if mutations && rng.below(6) == 0 {
            mutate(&mut rng, &mut frame);
        }
        bytes.extend(frame);
    }
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((1 + rng.below(300) as usize).min(rest.len()));
        rest = after;
        now = now.after(Duration::from_millis(rng.below(50)));
        let result = server.receive(now, piece);
        serve(&mut rng, &mut samples, &mut server);
        let mut out = Vec::new();
        server.transmit(now, &mut out, rng.below(5000) as usize);
        assert!(server.queued_bytes() + server.received_bytes() <= HELD_BYTES_MAX);
        if let Err(error) = result.and_then(|()| server.tick(now)) {
            assert_eq!(server.receive(now, b"x"), Err(error));
            assert_eq!(server.deadline(), None);
            return true;
        }
    }
    false
}

/// Answers and pushes something, whatever was asked.
fn serve(rng: &mut SplitMix64, samples: &mut Samples, server: &mut ServerConnection) {
    while let Some(event) = server.poll_event() {
        let ServerEvent::Request { request, ask } = event else { continue };
        let _ = match (ask, rng.below(3)) {
            (_, 0) => server.reply_error(request, ErrorCode::Busy, "busy"),
            (Request::PutOpen { .. }, _) => server.put_need(request, samples.ranges(), true),
            (Request::PullBlock { block, .. }, 1) => {
                server.reply(request, Reply::Block { block, bytes: samples.bytes(1, 5000) })
            }
            (_, _) => server.reply(request, samples.reply()),
        };
    }
    let _ = server.push_start(samples.push_header());
    let stream = StreamId(1 + rng.below(3) as u32);
    let (pages, bytes) = (samples.pages(32), samples.bytes(1, 3000));
    let _ = server.push(PushPiece { stream, segment: Default::default(), pages, bytes });
    match rng.below(10) {
        0 => server.cancel_push(stream, PushEndReason::Wasteful),
        1 => drop(server.push_end(stream, PushEndReason::Complete)),
        _ => {}
    }
}

/// Sends a session of mostly sensible, partly mutated messages to a client with requests of all
/// kinds.
fn client_session(seed: u64, mutations: bool) -> bool {
    let mut rng = SplitMix64(seed);
    let mut samples = Samples(SplitMix64(rng.next_u64()));
    let mut client = ClientConnection::new(ClientConfig::default(), Moment(0));
    let mut server = ServerConnection::new(ServerConfig::default(), Moment(0));
    let mut now = Moment(0);
    for _ in 0..20 {
        let _ = client.request(now, samples.request());
    }
    let mut bytes = Vec::new();
    client.transmit(now, &mut bytes, usize::MAX);
    server.receive(now, &bytes).expect("what a client writes is valid");
    for _ in 0..5 {
        serve(&mut rng, &mut samples, &mut server);
    }
    bytes.clear();
    server.transmit(now, &mut bytes, usize::MAX);
    if mutations {
        for _ in 0..rng.below(4) {
            mutate(&mut rng, &mut bytes);
        }
        bytes.extend(flat(&encode::server(&samples.server())));
    }
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((1 + rng.below(2000) as usize).min(rest.len()));
        rest = after;
        now = now.after(Duration::from_millis(rng.below(50)));
        let result = client.receive(now, piece);
        while let Some(event) = client.poll_event() {
            if let ClientEvent::Push { piece, credit } = event
                && !client.is_closed()
            {
                client.credit(piece.stream, credit).expect("what came as an event may be credited");
            }
        }
        client.transmit(now, &mut Vec::new(), usize::MAX);
        if let Err(error) = result.and_then(|()| client.tick(now)) {
            assert_eq!(client.receive(now, b"x"), Err(error));
            assert!(client.is_closed() && client.deadline().is_none());
            return true;
        }
    }
    false
}

#[test]
fn fuzz_server_sessions() {
    let closed = (0..rounds(600)).filter(|seed| server_session(*seed, true)).count() as u64;
    assert!(closed > rounds(600) / 4, "only {closed} sessions were refused: the mutations do not bite");
}

#[test]
fn fuzz_client_sessions() {
    let closed = (0..rounds(600)).filter(|seed| client_session(*seed, true)).count() as u64;
    assert!(closed > rounds(600) / 4, "only {closed} sessions were refused: the mutations do not bite");
    for seed in 0..rounds(200) {
        assert!(!client_session(seed, false), "a client must take all that a server of ours writes; seed {seed}");
    }
}

/// The fuzzer must notice a decoder that lets a second spelling through. Here one is let through on
/// purpose: a byte behind the last field is cut off before decoding, as a decoder would that forgot
/// to look for it.
#[test]
fn fuzz_canary_a_lenient_decoder_is_noticed() {
    let lenient = |kind: ClientKind, payload: &[u8]| {
        let message = (0..=payload.len().min(1))
            .find_map(|cut| decode::client(kind, Bytes::copy_from_slice(&payload[..payload.len() - cut])).ok());
        if let Some(message) = message {
            assert_eq!(flat(&encode::client(&message))[FRAME_HEADER_BYTES..], *payload);
        }
    };
    let noticed = catch_unwind(|| {
        let mut rng = SplitMix64(11);
        let mut samples = Samples(SplitMix64(12));
        for _ in 0..30_000 {
            let mut payload = flat(&encode::client(&samples.client()));
            let kind = ClientKind::from_u8(payload[4]).unwrap();
            payload.drain(..FRAME_HEADER_BYTES);
            mutate(&mut rng, &mut payload);
            lenient(kind, &payload);
        }
    });
    assert!(noticed.is_err());
}
