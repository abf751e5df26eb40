//! A worker's view of its client: the next command, or the reason why there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use wire::ErrorCode;
use wire::format::PUT_DEADLINE;

use super::Command;
use crate::accept::Shared;
use crate::budget::Room;
use crate::error::Failure;

/// An upload that waits for its client gives its place to one that waits for a place, after this
/// time without [`STILL_BYTES`] of uploads on its connection. Other frames do not count.
const STILL: Duration = Duration::from_secs(2);

/// A slow link brings them: 2 KiB a second.
const STILL_BYTES: u64 = 4 << 10;

/// How often an upload that waits for its client looks whether that is so.
const STILL_CHECK: Duration = Duration::from_millis(500);

/// What a worker waits for.
pub(super) enum Next {
    Command(Command),
    /// The connection is gone.
    Gone,
    /// The upload stood still, and has given its place to another one.
    Yield,
}

/// A worker's view of its client.
pub(super) struct Client<'a> {
    pub shared: &'a Shared,
    pub commands: mpsc::Receiver<Command>,
    /// Bytes of uploads that its connection has brought.
    arrived: Arc<AtomicU64>,
    /// How many they were when the waiting was counted from the start.
    seen: u64,
    /// Time that the upload has waited for its client since then.
    waited: Duration,
    /// Its place among the uploads at once.
    pub place: Room,
}

impl<'a> Client<'a> {
    pub fn new(
        shared: &'a Shared,
        commands: mpsc::Receiver<Command>,
        arrived: Arc<AtomicU64>,
        place: Room,
    ) -> Client<'a> {
        Client { shared, commands, seen: arrived.load(Ordering::Relaxed), arrived, waited: Duration::ZERO, place }
    }

    /// The next command.
    ///
    /// # Errors
    /// None came for [`PUT_DEADLINE`].
    pub fn next(&mut self) -> Result<Next, Failure> {
        tokio::runtime::Handle::current().block_on(async {
            let deadline = tokio::time::Instant::now() + PUT_DEADLINE;
            while tokio::time::Instant::now() < deadline {
                if self.is_still() && self.place.give_way() {
                    return Ok(Next::Yield);
                }
                let begun = tokio::time::Instant::now();
                let command = tokio::time::timeout(STILL_CHECK, self.commands.recv()).await;
                self.waited += begun.elapsed();
                match command {
                    Ok(Some(command)) => return Ok(Next::Command(command)),
                    Ok(None) => return Ok(Next::Gone),
                    Err(_) => {}
                }
            }
            Err(Failure::new(ErrorCode::Busy, format!("the upload stood still for {PUT_DEADLINE:?}")))
        })
    }

    fn is_still(&mut self) -> bool {
        let arrived = self.arrived.load(Ordering::Relaxed);
        if arrived - self.seen >= STILL_BYTES {
            (self.seen, self.waited) = (arrived, Duration::ZERO);
        }
        self.waited >= STILL
    }
}

/// What its client is told after [`Next::Yield`].
pub(super) fn yielded() -> Failure {
    Failure::new(
        ErrorCode::Busy,
        format!("the upload stood still for {STILL:?} while another one waited for its place"),
    )
}
