//! The server's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use trust::UnixTime;
use units::Moment;

/// Time since the server started, as the pure crates count it. It is the runtime's clock, which
/// tests can stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    #[cfg(test)]
    is_stopped: bool,
    /// What the calendar said then.
    #[cfg(test)]
    started_utc: UnixTime,
}

/// Seconds since 1970; 0 while the machine's clock is before that.
pub(crate) fn unix_seconds() -> u64 {
    system_utc().0.cast_unsigned()
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
            #[cfg(test)]
            started_utc: system_utc(),
        }
    }

    /// The present moment.
    pub fn now(self) -> Moment {
        Moment(self.present().duration_since(self.started).as_micros() as u64)
    }

    /// The calendar, which may be set while the server runs. In tests it goes on with the clock.
    #[cfg_attr(not(test), allow(clippy::unused_self))]
    pub fn utc(self) -> UnixTime {
        #[cfg(test)]
        return UnixTime(self.started_utc.0 + (self.now().0 / 1_000_000) as i64);
        #[cfg(not(test))]
        system_utc()
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

/// A clock that stands before 1970 is one that was never set.
fn system_utc() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed())
}
