//! Decisions that follow from the estimate of the link: whether a miss asks for a block or for
//! pages, how much may be read ahead, and how long to wait for a page that is on its way.
//!
//! A very thin link shows when the image is opened, because the answers take long. Small replies
//! give a lower bound of the rate.

use std::time::Duration;

use connection::LinkEstimate;
use units::{Moment, PAGE_BYTES};

/// Replies below this size say little about the rate.
const RATE_SAMPLE_BYTES_MIN: u64 = 8 << 10;

/// Samples before the rate is believed.
const RATE_SAMPLES_MIN: usize = 3;

/// A link is thin beyond doubt if opening an image takes so much longer than a round trip, in round
/// trips and in time.
const THIN_ROUND_TRIPS: u32 = 2;
const THIN_TIME: Duration = Duration::from_millis(100);

/// Before anything was measured: a link that is neither thin nor fast.
const ROUND_TRIP_START: Duration = Duration::from_millis(20);

/// Before anything was measured: 10 Mbit/s.
const RATE_START: f64 = 1_250_000.0;

/// A block may cost so many round trips more than a page before pages are asked for one by one: the
/// other pages of a block spare about as many misses on a program start.
const BLOCK_ROUND_TRIPS_MAX: u32 = 4;

/// Shorter round trips count as this one: on a near link a slow disk of the server looks like a low
/// rate, and a few milliseconds more are not worth changing for.
const ROUND_TRIP_FELT: Duration = Duration::from_millis(5);

/// Stored size of a page, as a rule: half of its raw size.
const PAGE_STORED_BYTES: f64 = PAGE_BYTES as f64 / 2.0;

/// Bytes under way beyond what the link holds, so that it need not wait for the next request: a
/// stored block, as a rule.
const PIPELINE_BYTES_MORE: u64 = 32 << 10;

/// Longest time that a stored block takes on a near link. A slow core decodes it in 1.5 ms.
const NEAR_TRANSFER: Duration = Duration::from_millis(4);

/// The rate of a link with a short round trip, before it was measured: 100 Mbit/s.
const NEAR_BYTES_PER_SECOND: f64 = 12_500_000.0;

/// Bounds of the bytes that may be under way before readahead stops: two stored blocks, and 200
/// Mbit/s at 20 ms.
const PIPELINE_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=512 << 10;

/// Bounds of the time readahead goes on after a program last used something new.
const LINGER: std::ops::RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_millis(500);

/// Bytes that may stand before a page which is said to be on its way: the in-flight window a push
/// starts with.
const PUSH_AHEAD_BYTES: f64 = 131_072.0;

/// The estimate for one image.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    estimate: LinkEstimate,
    /// Opening the image took long: its sample is believed alone.
    thin: bool,
}

impl Default for Link {
    fn default() -> Link {
        Link { estimate: LinkEstimate::new(RATE_SAMPLE_BYTES_MIN), thin: false }
    }
}

/// Times and bytes of the first answers, when an image is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstAnswers {
    /// From a request to its small answer.
    pub round_trip: Duration,
    /// From a request for metadata to the last of them.
    pub elapsed: Duration,
    /// Bytes that came in that time.
    pub received_bytes: u64,
}

impl Link {
    /// An image was opened. Its metadata is small, so that only a thin link shows.
    pub fn opened(&mut self, answers: FirstAnswers) {
        let FirstAnswers { round_trip, elapsed, received_bytes } = answers;
        self.estimate.took(round_trip);
        let beyond = elapsed.saturating_sub(round_trip);
        if beyond >= THIN_TIME.max(round_trip * THIN_ROUND_TRIPS) {
            self.thin = true;
            self.estimate.note(received_bytes, beyond);
        }
    }

    /// A reply came: `received_bytes` arrived on its connection since the request was sent at
    /// `sent`. `pipelined`: other replies were under way at that time.
    pub fn sample(&mut self, sent: Moment, now: Moment, received_bytes: u64, pipelined: bool) {
        if self.estimate.sample(sent, now, received_bytes, pipelined) {
            return;
        }
        // Waiting included, the link is as fast as this at least.
        let elapsed = now.since(sent);
        if self.rate().is_some_and(|rate| rate < LinkEstimate::rate_of(received_bytes, elapsed)) {
            self.estimate.note(received_bytes, elapsed);
        }
    }

    /// The rate, once it was measured.
    fn rate(&self) -> Option<f64> {
        let known = self.thin || self.estimate.samples() >= RATE_SAMPLES_MIN;
        self.estimate.rate().filter(|_| known)
    }

    pub fn round_trip(&self) -> Duration {
        self.estimate.round_trip().unwrap_or(ROUND_TRIP_START)
    }

    pub fn bytes_per_second(&self) -> f64 {
        self.rate().unwrap_or(RATE_START)
    }

    /// Whether a block of this stored size is worth its time on the link, compared with one page.
    /// So it is held to be until the rate was measured.
    pub fn block_is_worth_it(&self, stored_bytes: u32) -> bool {
        let Some(rate) = self.rate() else { return true };
        let more_bytes = (f64::from(stored_bytes) - PAGE_STORED_BYTES).max(0.0);
        let round_trip = self.round_trip().max(ROUND_TRIP_FELT);
        more_bytes / rate <= (round_trip * BLOCK_ROUND_TRIPS_MAX).as_secs_f64()
    }

    /// Whether the round trip is at most `longest`, and a block takes no longer on the link than
    /// decoding it takes.
    pub fn is_near(&self, longest: Duration) -> bool {
        let rate = self.rate().unwrap_or(NEAR_BYTES_PER_SECOND);
        let transfer = Duration::from_secs_f64(PIPELINE_BYTES_MORE as f64 / rate.max(1.0));
        self.estimate.round_trip().is_some_and(|round_trip| round_trip <= longest && transfer <= NEAR_TRANSFER)
    }

    /// Stored bytes that keep the link busy while they are under way: below that, readahead may ask
    /// for more.
    pub fn pipeline_bytes(&self) -> u64 {
        let held = self.bytes_per_second() * self.round_trip().as_secs_f64();
        (held as u64).saturating_add(PIPELINE_BYTES_MORE).clamp(*PIPELINE_BYTES.start(), *PIPELINE_BYTES.end())
    }

    /// Time readahead goes on after a program last used something new: it may be computing for a
    /// while, or be done.
    pub fn linger(&self) -> Duration {
        (self.round_trip() * 4).clamp(*LINGER.start(), *LINGER.end())
    }

    /// How long to wait for a page that is on its way before asking again: twice what it should
    /// take.
    pub fn patience(&self) -> Duration {
        let expected = self.round_trip().as_secs_f64() + PUSH_AHEAD_BYTES / self.bytes_per_second();
        Duration::from_secs_f64((2.0 * expected).clamp(0.05, 5.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies of `block_bytes` over a link with this round trip and rate, one at a time.
    fn measured(round_trip_micros: u64, bytes_per_second: u64, block_bytes: u64) -> Link {
        let mut link = Link::default();
        link.sample(Moment(0), Moment(round_trip_micros), 100, false);
        for _ in 0..40 {
            let elapsed = round_trip_micros + block_bytes * 1_000_000 / bytes_per_second;
            link.sample(Moment(0), Moment(elapsed), block_bytes, false);
        }
        link
    }

    #[test]
    fn the_estimate_approaches_the_link() {
        let link = measured(20_000, 3_125_000, 30_000);
        assert_eq!(link.round_trip(), Duration::from_millis(20));
        assert!((link.bytes_per_second() / 3_125_000.0 - 1.0).abs() < 0.05, "{link:?}");
    }

    #[test]
    fn thin_links_ask_for_pages_and_others_for_blocks() {
        for (round_trip, rate, blocks) in [
            (200, 125_000_000, true),
            (100, 10_000_000, true),
            (1000, 100_000, false),
            (20_000, 3_125_000, true),
            (100_000, 8_000, false),
            (50_000, 30_000, false),
        ] {
            assert_eq!(measured(round_trip, rate, 30_000).block_is_worth_it(30_000), blocks, "{round_trip} {rate}");
        }
        assert!(Link::default().block_is_worth_it(30_000));
    }

    #[test]
    fn a_slow_answer_on_a_fast_link_changes_nothing() {
        let mut link = measured(200, 125_000_000, 30_000);
        for _ in 1..8 {
            link.sample(Moment(0), Moment(500_000), 30_000, false);
        }
        assert!(link.block_is_worth_it(30_000));
        link.sample(Moment(0), Moment(500_000), 30_000, false);
        assert!(!link.block_is_worth_it(30_000), "but a link that stays slow is one");
    }

    #[test]
    fn opening_an_image_tells_of_a_thin_link_and_of_no_other() {
        let opened = |round_trip, elapsed, received_bytes| {
            let mut link = Link::default();
            let time = Duration::from_millis;
            link.opened(FirstAnswers { round_trip: time(round_trip), elapsed: time(elapsed), received_bytes });
            link
        };
        assert!(!opened(40, 640, 9600).block_is_worth_it(30_000), "128 kbit/s");
        assert!(opened(40, 60, 9600).block_is_worth_it(30_000));
        assert!(opened(1, 90, 9600).block_is_worth_it(30_000), "a server may take a moment");
        assert!(opened(200, 500, 9600).block_is_worth_it(30_000), "not clear beside such round trips");
        assert!(opened(40, 640, 96_000).block_is_worth_it(20_000), "much metadata takes its time");
    }

    #[test]
    fn small_replies_that_come_fast_clear_a_link_of_the_suspicion() {
        let mut link = Link::default();
        let (round_trip, elapsed) = (Duration::from_millis(1), Duration::from_secs(1));
        link.opened(FirstAnswers { round_trip, elapsed, received_bytes: 9600 });
        assert!(!link.block_is_worth_it(30_000));
        link.sample(Moment(0), Moment(200_000), 2500, false);
        assert!(!link.block_is_worth_it(30_000), "still slow");
        link.sample(Moment(0), Moment(1_000), 2500, false);
        assert!(link.block_is_worth_it(30_000));
    }

    #[test]
    fn a_near_link_is_short_and_fast() {
        let near = |micros, rate| measured(micros, rate, 30_000).is_near(Duration::from_millis(1));
        assert!(near(300, 125_000_000) && near(900, 12_500_000));
        assert!(!near(4000, 125_000_000), "far");
        assert!(!near(300, 1_250_000), "slow");
        let mut link = Link::default();
        assert!(!link.is_near(Duration::from_millis(1)), "unknown");
        link.sample(Moment(0), Moment(500), 100, false);
        assert!(link.is_near(Duration::from_millis(1)), "no lan is slower");
    }

    /// Replies to requests of which `depth` blocks' worth are always under way.
    fn pipelined(round_trip_micros: u64, bytes_per_second: u64, block_bytes: u64, depth: u64) -> Link {
        let mut link = Link::default();
        link.sample(Moment(0), Moment(round_trip_micros), 100, false);
        let transfer = block_bytes * 1_000_000 / bytes_per_second;
        for _ in 0..40 {
            let elapsed = (round_trip_micros + transfer).max(depth * transfer);
            link.sample(Moment(0), Moment(elapsed), depth * block_bytes, true);
        }
        link
    }

    #[test]
    fn a_full_pipeline_does_not_look_faster_than_the_link() {
        for depth in 4..20 {
            let link = pipelined(20_000, 3_125_000, 30_000, depth);
            assert!((link.bytes_per_second() / 3_125_000.0 - 1.0).abs() < 0.05, "{depth} {link:?}");
            assert!((80_000..110_000).contains(&link.pipeline_bytes()));
        }
    }

    #[test]
    fn a_pipeline_that_is_too_short_grows() {
        let link = pipelined(20_000, 3_125_000, 30_000, 2);
        assert!(link.pipeline_bytes() > 2 * 30_000, "{link:?}");
    }

    #[test]
    fn answers_stay_within_their_bounds() {
        for link in [measured(1, 1, 9000), measured(1, 1 << 40, 9000), measured(10_000_000, 1000, 9000)] {
            assert!(PIPELINE_BYTES.contains(&link.pipeline_bytes()));
            assert!((0.05..=5.0).contains(&link.patience().as_secs_f64()));
        }
    }
}
