//! Waits between attempts to connect.

use std::time::Duration;

use units::{Rng, SplitMix64};

/// First wait.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);

/// Longest wait: a server that is back is found within ten seconds.
const BACK_OFF_MAX: Duration = Duration::from_secs(10);

/// Growing waits with jitter, so that the devices of a restarted server do not all come at the same
/// instant.
pub struct BackOff {
    rng: SplitMix64,
    longest: Duration,
}

impl BackOff {
    /// Begins with the shortest wait; `seed` is for the jitter.
    pub fn new(seed: u64) -> BackOff {
        BackOff { rng: SplitMix64(seed), longest: BACK_OFF_MIN }
    }

    /// The connection was of use: the next wait is short again.
    pub fn reset(&mut self) {
        self.longest = BACK_OFF_MIN;
    }

    /// The next wait: between half of the longest and all of it. The longest doubles each time.
    pub fn wait(&mut self) -> Duration {
        let micros = self.longest.as_micros() as u64;
        self.longest = (self.longest * 2).min(BACK_OFF_MAX);
        Duration::from_micros(micros / 2 + self.rng.below(micros / 2 + 1))
    }
}
