//! Peers that ask for much and hardly read.

use std::io;
use std::time::{Duration, Instant};

use units::Token;
use wire::format::REQUESTS_MAX;
use wire::{ClientConfig, ImageHandle, Request};

use super::{Attack, TURN};
use crate::hostile::connection::{Connection, Reading};
use crate::hostile::content::IMAGE;

/// Bytes of what is not read that the kernel keeps: little, so that the rest stays with the server.
const RECEIVE_BYTES: usize = 16 << 10;

/// How often a slow reader reads, and how much: 1 KiB a second.
const READ_PERIOD: Duration = Duration::from_millis(125);
const READ_BYTES: usize = 128;

/// The handle that a server gives to the first image of a connection: requests need not wait for
/// it.
const FIRST: ImageHandle = ImageHandle(0);

/// A connection that has asked for as many blocks as it may.
fn ask_for_much(attack: &mut Attack) -> io::Result<Connection> {
    let mut connection = attack.connect(ClientConfig::default(), Some(RECEIVE_BYTES))?;
    connection.request(Request::Open { name: IMAGE.to_owned() })?;
    // Blocks of an image that is not open yet are refused, so the first answer is waited for.
    let pulls = attack.content.pull_block(FIRST, Token(1), &mut attack.rng);
    while connection.wire.hello().is_none() || connection.wire.requests_in_flight() > 0 {
        connection.turn(Instant::now() + TURN, Reading::Events)?;
    }
    connection.request(pulls)?;
    for _ in 1..REQUESTS_MAX {
        let ask = attack.content.pull_block(FIRST, Token(1), &mut attack.rng);
        connection.request(ask)?;
    }
    attack.acted(REQUESTS_MAX as u64);
    Ok(connection)
}

/// Asks and never reads.
pub(super) fn never_read(attack: &mut Attack) -> io::Result<()> {
    let mut connection = ask_for_much(attack)?;
    while !attack.is_over() {
        connection.turn(Instant::now() + TURN, Reading::Nothing)?;
    }
    Ok(())
}

/// Asks and reads slowly.
pub(super) fn read_slowly(attack: &mut Attack) -> io::Result<()> {
    let mut connection = ask_for_much(attack)?;
    while !attack.is_over() {
        let next = Instant::now() + READ_PERIOD;
        while Instant::now() < next {
            connection.turn(next, Reading::Nothing)?;
        }
        connection.turn(next, Reading::Discard(READ_BYTES))?;
    }
    Ok(())
}
