//! The server's clock.

use std::time::Duration;

use tokio::time::Instant;
use units::Moment;

/// Time since the server started, as the pure crates count it. It is the runtime's clock, which
/// tests can stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    #[cfg(test)]
    is_stopped: bool,
}

/// Seconds since 1970; 0 while the machine's clock is before that.
pub(crate) fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
thread_local! {
    /// Clocks that this thread starts stand still while the runtime's timers run: links seem to
    /// take no time, however busy the machine is.
    pub(crate) static STOPPED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        Clock {
            started: Instant::now(),
            #[cfg(test)]
            is_stopped: STOPPED.get(),
        }
    }

    /// The present moment.
    pub fn now(self) -> Moment {
        Moment(self.present().duration_since(self.started).as_micros() as u64)
    }

    /// When `moment` is, for the runtime's timers.
    pub fn instant(self, moment: Moment) -> Instant {
        #[cfg(test)]
        if self.is_stopped {
            // It never comes, or a connection would wake for its deadline again and again.
            return Instant::now() + Duration::from_micros(moment.0);
        }
        self.started + Duration::from_micros(moment.0)
    }

    fn present(self) -> Instant {
        #[cfg(test)]
        if self.is_stopped {
            return self.started;
        }
        Instant::now()
    }
}
