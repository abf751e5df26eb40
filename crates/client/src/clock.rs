//! The session's clock: moments since it was opened.

use std::time::Instant;

use units::Moment;

/// A start; all threads of a session share one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(&self) -> Moment {
        Moment(self.0.elapsed().as_micros() as u64)
    }
}
