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

/// Time without a byte of its connection after which an upload gives its place to one that waits.
const STILL: Duration = Duration::from_secs(2);

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
    /// When the connection last brought bytes, in microseconds of the server's clock.
    pub heard: Arc<AtomicU64>,
    /// Its place among the uploads at once.
    pub place: Room,
}

impl Client<'_> {
    /// The next command.
    ///
    /// # Errors
    /// None came for [`PUT_DEADLINE`].
    pub fn next(&mut self) -> Result<Next, Failure> {
        tokio::runtime::Handle::current().block_on(async {
            let deadline = tokio::time::Instant::now() + PUT_DEADLINE;
            while tokio::time::Instant::now() < deadline {
                match tokio::time::timeout(STILL_CHECK, self.commands.recv()).await {
                    Ok(Some(command)) => return Ok(Next::Command(command)),
                    Ok(None) => return Ok(Next::Gone),
                    Err(_) if self.is_still() && self.place.give_way() => return Ok(Next::Yield),
                    Err(_) => {}
                }
            }
            Err(Failure::new(ErrorCode::Busy, format!("the upload stood still for {PUT_DEADLINE:?}")))
        })
    }

    fn is_still(&self) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        u128::from(self.shared.now().0.saturating_sub(heard)) >= STILL.as_micros()
    }
}

/// What its client is told after [`Next::Yield`].
pub(super) fn yielded() -> Failure {
    Failure::new(
        ErrorCode::Busy,
        format!("the upload stood still for {STILL:?} while another one waited for its place"),
    )
}
