//! The server's clock.

use std::time::Duration;

use tokio::time::Instant;
use units::Moment;

/// Time since the server started, as the pure crates count it. It is the runtime's clock, which
/// tests can stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    /// The present moment.
    pub fn now(self) -> Moment {
        Moment(self.started.elapsed().as_micros() as u64)
    }

    /// When `moment` is, for the runtime's timers.
    pub fn instant(self, moment: Moment) -> Instant {
        self.started + Duration::from_micros(moment.0)
    }
}
