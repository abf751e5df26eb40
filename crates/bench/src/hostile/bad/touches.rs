//! Peers that make the server predict and push for nothing.

use std::io;
use std::time::{Duration, Instant};

use units::{PageId, Rng, Token};
use wire::{ClientConfig, ClientEvent, ImageHandle, Reply, Request};

use super::{Attack, CONNECT_TIME, TURN};
use crate::hostile::connection::{Connection, Reading};
use crate::hostile::content::IMAGE;

/// Pages of the action that is taught.
const ACTION_PAGES: usize = 400;

/// Runs that teach it.
const LESSONS: u128 = 3;

/// Rounds over one connection; the next one is a device that has nothing yet.
const ROUNDS: usize = 200;

/// Pages touched at the start of a round.
const FIRST_PAGES: usize = 4;

/// Time to wait for the push of a round.
const PUSH_TIME: Duration = Duration::from_millis(200);

/// Lets the server learn an action, then touches its first pages again and again, and stops each
/// push that follows.
pub(super) fn stop_and_touch(attack: &mut Attack) -> io::Result<()> {
    let mut connection = attack.connect(ClientConfig::default(), None)?;
    let deadline = Instant::now() + CONNECT_TIME;
    let reply = connection.ask(Request::Open { name: IMAGE.to_owned() }, deadline)?;
    let Reply::Opened { image, .. } = reply else { return Err(io::Error::other("no image")) };
    let start = attack.rng.below(16) as usize * ACTION_PAGES;
    let pages = attack.content.run(start, ACTION_PAGES);
    let first = u128::from(attack.rng.next_u64()) << 32;
    for lesson in 1..=LESSONS {
        let token = Token(first + lesson);
        connection.wire.touch(image, token, pages.clone()).map_err(io::Error::other)?;
        connection.wire.token_end(image, token).map_err(io::Error::other)?;
    }
    for round in 0..ROUNDS {
        if attack.is_over() {
            return Ok(());
        }
        let token = Token(first + LESSONS + 1 + round as u128);
        run(attack, &mut connection, image, token, &pages)?;
    }
    Ok(())
}

/// One round: touches, the push that follows, and its end.
fn run(
    attack: &Attack,
    connection: &mut Connection,
    image: ImageHandle,
    token: Token,
    pages: &[PageId],
) -> io::Result<()> {
    // Told apart from a warm device by demands, as a cold one makes them.
    for page in &pages[..FIRST_PAGES] {
        connection.request(Request::PullPages { image, token, pages: vec![*page], force: false })?;
    }
    let end = Instant::now() + PUSH_TIME;
    let mut stopped = false;
    while !stopped && Instant::now() < end && !attack.is_over() {
        connection.turn(end.min(Instant::now() + TURN), Reading::Events)?;
        while let Some(event) = connection.wire.poll_event() {
            match event {
                ClientEvent::PushStart { stream, .. } => {
                    connection.wire.stop_push(stream).map_err(io::Error::other)?;
                    attack.acted(1);
                    stopped = true;
                }
                ClientEvent::Push { piece, credit } => {
                    connection.wire.credit(piece.stream, credit).map_err(io::Error::other)?;
                }
                ClientEvent::Reply { reply: Reply::Error { .. }, .. } => attack.refused(),
                ClientEvent::Closed(error) => return Err(io::Error::other(error)),
                _ => {}
            }
        }
    }
    let touched = pages[FIRST_PAGES..2 * FIRST_PAGES].to_vec();
    connection.wire.touch(image, token, touched).map_err(io::Error::other)?;
    connection.wire.token_end(image, token).map_err(io::Error::other)
}
