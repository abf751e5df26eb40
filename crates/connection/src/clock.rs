//! The clock of a session or a connection.

use std::time::Instant;

use units::Moment;

/// Tells moments since its start. All threads of a session share one.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts one.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        Moment(self.0.elapsed().as_micros() as u64)
    }
}
