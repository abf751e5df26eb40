//! What the link is like, from the answers themselves: how much to ask for at once, and how long to wait for what is on its way.
//! The same idea as in `client`: the shortest round trip counts, and the best of the last few rates.

use std::collections::VecDeque;
use std::time::Duration;

use units::Moment;

/// Answers below this size say little about the rate.
const SAMPLE_BYTES_MIN: u64 = 2 << 10;

/// Samples that the rate is taken from.
const SAMPLES: usize = 8;

/// Before anything was measured.
const ROUND_TRIP_START: Duration = Duration::from_millis(50);

/// Before anything was measured: 1 Mbit/s.
const RATE_START: f64 = 125_000.0;

/// Time that one answer may take of the link, so that what somebody waits for next need not wait long.
const ANSWER_TIME: f64 = 0.25;

/// Pushed bytes that may stand before a block that is on its way, at least.
const AHEAD_BYTES: f64 = 16_384.0;

/// A running estimate of one direction of a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimate {
    round_trip: Option<Duration>,
    rates: VecDeque<f64>,
}

impl Estimate {
    /// `bytes` arrived (or left) between `sent` and `now`; `pipelined`: something else was under way too.
    pub fn sample(&mut self, sent: Moment, now: Moment, bytes: u64, pipelined: bool) {
        let elapsed = now.since(sent);
        let round_trip = self.round_trip.map_or(elapsed, |least| least.min(elapsed));
        self.round_trip = Some(round_trip);
        if bytes < SAMPLE_BYTES_MIN {
            return;
        }
        let beyond = if pipelined { elapsed } else { elapsed - round_trip };
        let time = beyond.max(round_trip / 10).max(Duration::from_micros(20));
        if self.rates.len() == SAMPLES {
            self.rates.pop_front();
        }
        self.rates.push_back(bytes as f64 / time.as_secs_f64());
    }

    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Bytes per second, once something was measured.
    pub fn rate(&self) -> Option<f64> {
        self.rates.iter().copied().reduce(f64::max)
    }

    /// Bytes that one request should ask for.
    pub fn answer_bytes(&self) -> usize {
        (self.rate().unwrap_or(RATE_START) * ANSWER_TIME) as usize
    }

    /// How long to wait for what is on its way: twice what it should take.
    pub fn patience(&self) -> Duration {
        let round_trip = self.round_trip.unwrap_or(ROUND_TRIP_START).as_secs_f64();
        let rate = self.rate().unwrap_or(RATE_START);
        let ahead = AHEAD_BYTES + 1.5 * rate * round_trip;
        Duration::from_secs_f64((2.0 * (round_trip + ahead / rate)).clamp(0.1, 10.0))
    }
}
