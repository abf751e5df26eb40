//! An estimate of the link, made from the answers to requests.
//!
//! The round trip is the shortest time from request to answer seen so far. The rate is measured
//! over answers that are large enough to tell: all bytes that arrived between request and answer,
//! divided by the time beyond the round trip if nothing else was under way, else by the whole
//! time, in which bytes came all along. The best of the last few samples counts: a busy server or
//! device makes a sample too low, but nothing makes a thin link fast.

use std::collections::VecDeque;
use std::time::Duration;

use units::Moment;

/// Samples that the rate is taken from; a link that became worse is noticed after so many.
const SAMPLES: usize = 8;

/// Shorter times are not told apart.
const TIME_MIN: Duration = Duration::from_micros(20);

/// A running estimate of one direction of a link.
#[derive(Clone, Debug)]
pub struct LinkEstimate {
    /// Answers below this size say little about the rate.
    sample_bytes_min: u64,
    round_trip: Option<Duration>,
    /// The last samples, oldest first, in bytes a second.
    rates: VecDeque<f64>,
}

impl LinkEstimate {
    /// Nothing was measured yet; answers of fewer bytes do not tell the rate.
    pub fn new(sample_bytes_min: u64) -> LinkEstimate {
        LinkEstimate { sample_bytes_min, round_trip: None, rates: VecDeque::new() }
    }

    /// `bytes` arrived (or left) between `sent` and `now`; `pipelined`: something else was under
    /// way too. Returns whether they tell the rate.
    pub fn sample(&mut self, sent: Moment, now: Moment, bytes: u64, pipelined: bool) -> bool {
        let elapsed = now.since(sent);
        let round_trip = self.took(elapsed);
        if bytes < self.sample_bytes_min {
            return false;
        }
        // An answer as quick as the quickest tells only that the link is fast: count a tenth of the
        // round trip.
        let beyond = if pipelined { elapsed } else { elapsed - round_trip };
        self.note(bytes, beyond.max(round_trip / 10));
        true
    }

    /// A request and its answer took so long. Returns the shortest such time.
    pub fn took(&mut self, elapsed: Duration) -> Duration {
        let round_trip = self.round_trip.map_or(elapsed, |shortest| shortest.min(elapsed));
        self.round_trip = Some(round_trip);
        round_trip
    }

    /// A sample of the rate: so many bytes in that time.
    pub fn note(&mut self, bytes: u64, time: Duration) {
        if self.rates.len() == SAMPLES {
            self.rates.pop_front();
        }
        self.rates.push_back(LinkEstimate::rate_of(bytes, time));
    }

    /// Bytes a second.
    pub fn rate_of(bytes: u64, time: Duration) -> f64 {
        bytes as f64 / time.max(TIME_MIN).as_secs_f64()
    }

    /// The shortest time from request to answer, once something was measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Bytes per second, once something was measured.
    pub fn rate(&self) -> Option<f64> {
        self.rates.iter().copied().reduce(f64::max)
    }

    /// Samples of the rate that count.
    pub fn samples(&self) -> usize {
        self.rates.len()
    }
}
