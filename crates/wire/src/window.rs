//! The push window: how many push bytes may be in flight. Enough to fill the link and not much
//! more, so that a demand reply never queues long behind them.
//!
//! The model is that of BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016). It
//! keeps the best delivery rate of the last rounds and the least round trip of the last seconds;
//! the link holds their product. Each frame gets a stamp when it is sent, and its credit gives one
//! sample of both. The window is 1.5 times the product. While the window limits the rate, each
//! round trip raises it by half; once the link is full it stops there.
//!
//! Samples that were taken while there was nothing to push never lower the rate: they say nothing
//! about the link. A round trip that was measured while pushing includes our own queue. So when the
//! least one is old, the window is set to half the product for about one round trip, and the least
//! value of that time is taken.
//!
//! Data blocks of volumes have a window of their own. It has no least size, since a demand must not
//! wait behind it on a thin link, and it holds at least two frames. Where volumes are open, pages
//! of images begin with one frame: 128 KiB of them would take seconds on a thin link, while data is
//! waited for.
//!
//! Units: bytes of whole frames, microseconds.

use std::collections::VecDeque;
use std::time::Duration;

use units::Moment;

use crate::format::{VOLUME_WINDOW_BYTES_START, WINDOW_BYTES_MIN, WINDOW_BYTES_START};

/// Rounds (window after window) over which the best rate counts: long enough to bridge a burst of
/// demand replies.
const RATE_ROUNDS: u64 = 10;
/// Age at which the least round trip is measured anew, since routes change; and the same in round
/// trips: a probe leaves the link idle for a part of one or two, so that it costs under 1 %. On a
/// link of 128 kbit/s each ten seconds would cost 1.5 %.
const ROUND_TRIP_AGE_MAX: Duration = Duration::from_secs(10);
const ROUND_TRIPS_AGE_MAX: u32 = 128;
/// Longest round trip that is believed to be the link's: more is a queue, such as behind a large
/// frame on a thin link.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(1);
/// Rates of frames in a row that are remembered.
const PAIRS: usize = 8;
/// The least window holds no more than this part of a second, so that it stays small on a thin
/// link.
const LEAST_PER_SECOND: u64 = 4;

/// The state when a frame was sent.
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
    /// Not only images are pushed: they begin with one frame.
    shared: bool,
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
    /// Bytes of the frame with that round trip.
    round_trip_bytes: u64,
    /// Rates of the last frames that left right behind another one, bytes a second.
    pairs: VecDeque<u64>,
    probe: Option<Probe>,
}

/// A measurement of the round trip at a low window.
#[derive(Debug)]
struct Probe {
    least: Option<Duration>,
    /// Ends when a frame is credited that was sent after this moment; unset until the excess has
    /// drained.
    since: Option<Moment>,
}

impl Window {
    /// An estimator whose window never exceeds `bytes_max`.
    pub fn new(bytes_max: u64) -> Window {
        Window {
            bytes_max,
            shared: false,
            delivered: 0,
            delivered_at: Moment(0),
            first_sent: Moment(0),
            idle_until: 0,
            round: 0,
            round_ends: 0,
            rates: VecDeque::new(),
            round_trip: None,
            round_trip_bytes: 0,
            pairs: VecDeque::new(),
            probe: None,
        }
    }

    /// Volumes are pushed, too.
    pub fn share(&mut self) {
        self.shared = true;
    }

    /// Whether volumes are pushed, too.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// The bytes that the link holds, and its rate, once they are known.
    fn product(&self) -> Option<(u64, u64)> {
        let (rate, (round_trip, _)) = self.rate().zip(self.round_trip)?;
        let micros = round_trip.min(ROUND_TRIP_MAX).as_micros();
        Some(((u128::from(rate) * micros / 1_000_000) as u64, rate))
    }

    /// Bytes that may be in flight.
    pub fn bytes(&self) -> u64 {
        let Some((product, rate)) = self.product() else {
            let start = if self.shared { 1 } else { WINDOW_BYTES_START };
            return start.min(self.bytes_max);
        };
        if self.probe.is_some() {
            // one frame may always go, and its round trip is what is wanted
            return (product / 2).clamp(1, self.bytes_max.max(1));
        }
        let least = WINDOW_BYTES_MIN.min(rate / LEAST_PER_SECOND);
        (product + product / 2).max(least).clamp(1, self.bytes_max.max(1))
    }

    /// Bytes of volumes that may be in flight, while `frame_bytes_max` is the largest frame there:
    /// on a thin link no more than the link holds, so that a demand waits for a frame or two, and
    /// at least two frames, so that the link never idles between them.
    pub fn volume_bytes(&self, frame_bytes_max: u64) -> u64 {
        let Some((product, _)) = self.product() else { return VOLUME_WINDOW_BYTES_START.min(self.bytes_max) };
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

    /// Rate of the link in bytes a second, and the round trip without the time that a frame takes
    /// of it. The rate of single frames holds their round trip, too; that of two in a row is what
    /// the link does (packet pairs, Keshav, "A Control-Theoretic Approach to Flow Control", 1991).
    /// `None` before there were two.
    pub fn path(&self) -> Option<(u64, Duration)> {
        let (rate, (round_trip, _)) = self.rate().zip(self.round_trip)?;
        let mut pairs: Vec<u64> = self.pairs.iter().copied().collect();
        pairs.sort_unstable();
        // Credits that came together tell too high a rate, but seldom twice.
        let best = pairs.len().checked_sub(if pairs.len() > 2 { 2 } else { 1 })?;
        let rate = rate.max(pairs[best]).max(1);
        let micros = u128::from(self.round_trip_bytes) * 1_000_000 / u128::from(rate);
        let own = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        Some((rate, round_trip.min(ROUND_TRIP_MAX).saturating_sub(own)))
    }

    /// A frame is sent while `in_flight` bytes are in flight.
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

    /// A frame of `bytes` bytes with this stamp was credited; `in_flight` bytes are still in
    /// flight.
    pub fn credited(&mut self, now: Moment, stamp: Stamp, bytes: u64, in_flight: u64) {
        if stamp.sent <= self.delivered_at && self.delivered > 0 {
            let gap = now.since(self.delivered_at).max(stamp.sent.since(self.first_sent));
            let micros = gap.as_micros().max(1);
            let rate = (u128::from(bytes) * 1_000_000 / micros).min(u128::from(u64::MAX)) as u64;
            if self.pairs.len() == PAIRS {
                self.pairs.pop_front();
            }
            self.pairs.push_back(rate);
        }
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
        self.add_round_trip(now, stamp, bytes, in_flight);
    }

    /// Keeps the best rate of each round that no later round has reached. Idle samples begin no
    /// round, so a low one changes nothing.
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

    fn add_round_trip(&mut self, now: Moment, stamp: Stamp, bytes: u64, in_flight: u64) {
        let sample = now.since(stamp.sent);
        let Some((least, measured)) = self.round_trip else {
            (self.round_trip, self.round_trip_bytes) = (Some((sample, now)), bytes);
            return;
        };
        let old = now.since(measured) >= ROUND_TRIP_AGE_MAX.max(least.min(ROUND_TRIP_MAX) * ROUND_TRIPS_AGE_MAX);
        if sample <= least || (old && stamp.alone) {
            (self.round_trip, self.round_trip_bytes) = (Some((sample, now)), bytes);
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
                    (self.round_trip, self.round_trip_bytes) = (Some((least, now)), bytes);
                    self.probe = None;
                }
                _ => probe.least = Some(probe.least.map_or(sample, |least| least.min(sample))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the first probe begins on a link that takes `frame` for each of the frames, two of them
    /// under way.
    fn first_probe(frame: Duration) -> Duration {
        const BYTES: u64 = 4096;
        let mut window = Window::new(1 << 20);
        let start = Moment(1_000_000);
        let mut now = start;
        let mut under_way = VecDeque::from([window.sent(now, 0)]);
        loop {
            now = now.after(frame);
            let Some(stamp) = under_way.pop_front() else { panic!("a frame is always under way") };
            window.credited(now, stamp, BYTES, BYTES * under_way.len() as u64);
            if window.probe.is_some() {
                return now.since(start);
            }
            while under_way.len() < 2 {
                under_way.push_back(window.sent(now, BYTES * under_way.len() as u64));
            }
        }
    }

    #[test]
    fn the_round_trip_is_measured_anew_where_that_costs_little() {
        let seconds = |range: std::ops::Range<u64>| Duration::from_secs(range.start)..Duration::from_secs(range.end);
        assert!(seconds(10..11).contains(&first_probe(Duration::from_millis(1))));
        let thin = first_probe(Duration::from_millis(270));
        assert!(seconds(34..37).contains(&thin), "128 round trips: {thin:?}");
    }
}
