//! Peers that send much, or half of something.

use std::io;
use std::time::{Duration, Instant};

use units::Rng;
use wire::ClientConfig;
use wire::format::ClientKind;

use super::{Attack, TURN};
use crate::hostile::connection::{Connection, Reading};

/// Pings sent at a time.
const PINGS: usize = 256;

/// Pings without an answer: a server ends connections that have more.
const UNANSWERED_MAX: usize = 2048;

/// Frames of garbage that one connection sends at most, and their largest payload.
const GARBAGE_FRAMES: u64 = 20;
const GARBAGE_BYTES: u64 = 300;

/// Time for the server to throw out who sends garbage.
const GARBAGE_TIME: Duration = Duration::from_secs(1);

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u32).to_le_bytes()[..], &[kind], payload].concat()
}

/// Sends pings as fast as the server answers them.
pub(super) fn ping(attack: &mut Attack) -> io::Result<()> {
    let mut connection = attack.connect(ClientConfig::default(), None)?;
    let ping = frame(ClientKind::Ping as u8, &[7; 8]);
    let pings = ping.repeat(PINGS);
    // A pong is as long as a ping.
    let (mut sent_bytes, mut answered_bytes) = (0, 0);
    while !attack.is_over() {
        if connection.queued_bytes() == 0 && sent_bytes - answered_bytes < UNANSWERED_MAX * ping.len() {
            connection.queue(&pings);
            sent_bytes += pings.len();
            attack.acted(PINGS as u64);
        }
        let read = connection.turn(Instant::now() + TURN, Reading::Discard(usize::MAX))?;
        answered_bytes = sent_bytes.min(answered_bytes + read);
    }
    Ok(())
}

/// Connects and leaves.
pub(super) fn connect_and_leave(attack: &mut Attack) -> io::Result<()> {
    let connection = attack.connect(ClientConfig::default(), None)?;
    attack.acted(1);
    drop(connection);
    Ok(())
}

/// Sends half of a hello and waits to be thrown out.
pub(super) fn say_half_a_hello(attack: &mut Attack) -> io::Result<()> {
    let mut connection = attack.connect(ClientConfig::default(), None)?;
    let mut hello = Vec::new();
    let now = connection.now();
    connection.wire.transmit(now, &mut hello, usize::MAX);
    connection.queue(&hello[..hello.len() / 2]);
    attack.acted(1);
    while !attack.is_over() {
        connection.turn(Instant::now() + TURN, Reading::Discard(usize::MAX))?;
    }
    Ok(())
}

/// Sends random frames behind a hello, until the server ends the connection.
pub(super) fn send_garbage(attack: &mut Attack) -> io::Result<()> {
    let mut connection: Connection = attack.connect(ClientConfig::default(), None)?;
    for _ in 0..=attack.rng.below(GARBAGE_FRAMES) {
        let kind = match attack.rng.below(4) {
            0 => attack.rng.next_u64() as u8,
            _ => ClientKind::ALL[attack.rng.below(ClientKind::ALL.len() as u64) as usize] as u8,
        };
        let bytes = attack.rng.below(GARBAGE_BYTES);
        let payload: Vec<u8> = (0..bytes).map(|_| attack.rng.next_u64() as u8).collect();
        connection.queue(&frame(kind, &payload));
        attack.acted(1);
    }
    let end = Instant::now() + GARBAGE_TIME;
    while !attack.is_over() && Instant::now() < end {
        connection.turn(Instant::now() + TURN, Reading::Discard(usize::MAX))?;
    }
    Ok(())
}
