//! How many push bytes may be under way: enough to fill the link, not much more, so that a demand reply never queues
//! long behind them.
//!
//! The model is that of BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016): the best delivery rate
//! of the last rounds and the least round trip of the last seconds; their product is what the link holds. Each frame is
//! stamped when it is handed out; its credit gives one sample of both. The window is 1.5 times the product: while the
//! window is what limits the rate, each round trip raises it by half; once the link is full it stops there.
//!
//! Samples taken while there was nothing to push say nothing about the link and never lower the rate. A round trip
//! measured while pushing includes our own queue, so when the least one is old the window is set to half the product
//! for about one round trip and the least value seen then is taken.
//!
//! Data blocks of volumes have a window of their own: without a least size, since a demand must not wait behind it on a thin
//! link, and with two frames at least.
//!
//! Units: bytes of whole frames, microseconds. Called by the push queue of `ServerConnection`.

use std::collections::VecDeque;
use std::time::Duration;

use units::Moment;

use crate::format::{VOLUME_WINDOW_BYTES_START, WINDOW_BYTES_MIN, WINDOW_BYTES_START};

/// Rounds (window after window) over which the best rate counts: long enough to bridge a burst of demand replies.
const RATE_ROUNDS: u64 = 10;
/// Age at which the least round trip is measured anew: routes change, and a probe each ten seconds costs under 1 %.
const ROUND_TRIP_AGE_MAX: Duration = Duration::from_secs(10);

/// What is remembered of a frame when it is handed out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    sent: Moment,
    /// Bytes credited by then, and when the last of them was.
    delivered: u64,
    delivered_at: Moment,
    /// When the frame was sent whose credit came last.
    first_sent: Moment,
    /// Nothing was under way before this frame.
    alone: bool,
    /// The sender had run out of data; the sample is a lower bound.
    idle: bool,
}

/// The estimator.
#[derive(Debug)]
pub(crate) struct Window {
    bytes_max: u64,
    delivered: u64,
    delivered_at: Moment,
    first_sent: Moment,
    /// Samples are lower bounds until so many bytes are credited.
    idle_until: u64,
    round: u64,
    /// The round ends when a frame is credited that was sent after so many bytes were.
    round_ends: u64,
    /// Best rates, falling, with their rounds, at most one a round; bytes a second.
    rates: VecDeque<(u64, u64)>,
    round_trip: Option<(Duration, Moment)>,
    probe: Option<Probe>,
}

/// A measurement of the round trip at a low window.
#[derive(Debug)]
struct Probe {
    least: Option<Duration>,
    /// Ends when a frame is credited that was sent after this moment; unset until the excess has drained.
    since: Option<Moment>,
}

impl Window {
    /// An estimator whose window never exceeds `bytes_max`.
    pub fn new(bytes_max: u64) -> Window {
        Window {
            bytes_max,
            delivered: 0,
            delivered_at: Moment(0),
            first_sent: Moment(0),
            idle_until: 0,
            round: 0,
            round_ends: 0,
            rates: VecDeque::new(),
            round_trip: None,
            probe: None,
        }
    }

    /// Bytes that may be under way.
    pub fn bytes(&self) -> u64 {
        let (Some(rate), Some((round_trip, _))) = (self.rate(), self.round_trip) else {
            return WINDOW_BYTES_START.min(self.bytes_max);
        };
        let product = (rate as u128 * round_trip.as_micros() / 1_000_000) as u64;
        if self.probe.is_some() {
            // one frame may always go, and its round trip is what is wanted
            return (product / 2).clamp(1, self.bytes_max.max(1));
        }
        (product + product / 2).max(WINDOW_BYTES_MIN).min(self.bytes_max)
    }

    /// Bytes of volumes that may be under way, while `frame_bytes_max` is the largest frame there: on a thin link no more than the
    /// link holds, so that a demand waits for a frame or two, and at least two frames, so that the link never idles between them.
    pub fn volume_bytes(&self, frame_bytes_max: u64) -> u64 {
        let (Some(rate), Some((round_trip, _))) = (self.rate(), self.round_trip) else {
            return VOLUME_WINDOW_BYTES_START.min(self.bytes_max);
        };
        let product = (rate as u128 * round_trip.as_micros() / 1_000_000) as u64;
        let wanted = if self.probe.is_some() { product / 2 } else { (product + product / 2).max(frame_bytes_max + 1) };
        wanted.clamp(1, self.bytes_max.max(1))
    }

    /// Best delivery rate of the last rounds, in bytes a second.
    pub fn rate(&self) -> Option<u64> {
        self.rates.front().map(|(_, rate)| *rate)
    }

    /// Least time from handing out a frame to its credit.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip.map(|(round_trip, _)| round_trip)
    }

    /// A frame is handed out while `in_flight` bytes are under way.
    pub fn sent(&mut self, now: Moment, in_flight: u64) -> Stamp {
        if in_flight == 0 {
            (self.first_sent, self.delivered_at) = (now, now);
        }
        Stamp {
            sent: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            alone: in_flight == 0,
            idle: self.delivered < self.idle_until,
        }
    }

    /// There is room in the window and nothing to send.
    pub fn idle(&mut self, in_flight: u64) {
        self.idle_until = self.delivered + in_flight.max(1);
    }

    /// A frame of `bytes` bytes with this stamp was credited; `in_flight` bytes are still under way.
    pub fn credited(&mut self, now: Moment, stamp: Stamp, bytes: u64, in_flight: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        self.first_sent = stamp.sent;
        if stamp.delivered >= self.round_ends {
            self.round_ends = self.delivered;
            self.round += u64::from(!stamp.idle);
        }
        let credit_time = now.since(stamp.delivered_at);
        let send_time = stamp.sent.since(stamp.first_sent);
        let micros = credit_time.max(send_time).as_micros().max(1);
        let rate = ((self.delivered - stamp.delivered) as u128 * 1_000_000 / micros).min(u64::MAX as u128) as u64;
        self.add_rate(rate);
        self.add_round_trip(now, stamp, in_flight);
    }

    /// Keeps the best rate of each round that no later round has reached. Idle samples begin no round, so a low one
    /// changes nothing.
    fn add_rate(&mut self, rate: u64) {
        while self.rates.back().is_some_and(|(_, older)| *older <= rate) {
            self.rates.pop_back();
        }
        if self.rates.back().is_none_or(|(round, _)| *round < self.round) {
            self.rates.push_back((self.round, rate));
        }
        while self.rates.front().is_some_and(|(round, _)| round + RATE_ROUNDS < self.round) {
            self.rates.pop_front();
        }
    }

    fn add_round_trip(&mut self, now: Moment, stamp: Stamp, in_flight: u64) {
        let sample = now.since(stamp.sent);
        let Some((least, measured)) = self.round_trip else {
            self.round_trip = Some((sample, now));
            return;
        };
        let old = now.since(measured) >= ROUND_TRIP_AGE_MAX;
        if sample <= least || (old && stamp.alone) {
            self.round_trip = Some((sample, now));
            self.probe = None;
        } else if old && self.probe.is_none() {
            self.probe = Some(Probe { least: None, since: None });
        }
        let low = self.bytes();
        if let Some(probe) = &mut self.probe {
            match probe.since {
                None if in_flight <= low => probe.since = Some(now),
                Some(since) if stamp.sent >= since => {
                    let least = probe.least.map_or(sample, |least| least.min(sample));
                    self.round_trip = Some((least, now));
                    self.probe = None;
                }
                _ => probe.least = Some(probe.least.map_or(sample, |least| least.min(sample))),
            }
        }
    }
}
