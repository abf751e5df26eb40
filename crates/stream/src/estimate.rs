//! Times and sizes that follow from the estimate of the link: how much to ask for at once, and how
//! long to wait for an answer.

use std::time::Duration;

use connection::LinkEstimate;

/// Answers below this size say little about the rate.
pub(crate) const SAMPLE_BYTES_MIN: u64 = 2 << 10;

/// Before anything was measured.
const ROUND_TRIP_START: Duration = Duration::from_millis(50);

/// Before anything was measured: 1 Mbit/s.
const RATE_START: f64 = 125_000.0;

/// Time that one answer may take of the link, so that what somebody waits for next need not wait
/// long.
const ANSWER_TIME: f64 = 0.25;

/// Pushed bytes that may stand before a block that is on its way, at least.
const AHEAD_BYTES: f64 = 16_384.0;

/// Bytes that one request should ask for.
pub(crate) fn answer_bytes(link: &LinkEstimate) -> usize {
    (link.rate().unwrap_or(RATE_START) * ANSWER_TIME) as usize
}

/// How long to wait for what is on its way: twice what it should take.
pub(crate) fn patience(link: &LinkEstimate) -> Duration {
    let round_trip = link.round_trip().unwrap_or(ROUND_TRIP_START).as_secs_f64();
    let rate = link.rate().unwrap_or(RATE_START);
    let ahead = AHEAD_BYTES + 1.5 * rate * round_trip;
    Duration::from_secs_f64((2.0 * (round_trip + ahead / rate)).clamp(0.1, 10.0))
}
