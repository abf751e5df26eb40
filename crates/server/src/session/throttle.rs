//! What a device allows to be sent to it: a token bucket on all bytes of the connection.

use std::time::Duration;

use units::Moment;

/// Time for which unused bytes are saved up, so that a rate is reached in spite of pauses.
const SAVED: Duration = Duration::from_millis(100);

/// Bytes handed out at a time, at least, unless less waits: a packet.
const STEP_BYTES: u64 = 1500;

/// Least limit, bytes per second: below it an answer would seem not to be read at all.
const RATE_MIN: u64 = 256;

/// Bytes that may leave now.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Bytes per second; 0 for no limit.
    rate: u64,
    /// Millionths of bytes that may leave.
    credit: u128,
    at: Moment,
}

impl Throttle {
    /// Sets the limit; 0 for none.
    pub fn set(&mut self, bytes_per_second: u64, now: Moment) {
        self.fill(now);
        self.rate = if bytes_per_second == 0 { 0 } else { bytes_per_second.max(RATE_MIN) };
        self.credit = self.credit.min(self.most());
    }

    /// Bytes that may leave now, at most `wanted`; 0 while too few for a packet are saved up.
    pub fn allowed(&mut self, now: Moment, wanted: usize) -> usize {
        if self.rate == 0 {
            return wanted;
        }
        self.fill(now);
        let saved = (self.credit / 1_000_000).min(wanted as u128) as usize;
        if (saved as u64) < STEP_BYTES.min(wanted as u64) { 0 } else { saved }
    }

    /// So many bytes left.
    pub fn spend(&mut self, bytes: usize) {
        self.credit = self.credit.saturating_sub(bytes as u128 * 1_000_000);
    }

    /// When a packet may leave; `None` if one may now.
    pub fn opens(&self, now: Moment) -> Option<Moment> {
        let lacking = u128::from(STEP_BYTES) * 1_000_000;
        let lacking = lacking.checked_sub(self.credit).filter(|lacking| *lacking > 0 && self.rate > 0)?;
        let micros = lacking.div_ceil(self.rate.into()).min(u64::MAX.into()) as u64;
        let opens = self.at.after(Duration::from_micros(micros));
        (opens > now).then_some(opens)
    }

    fn fill(&mut self, now: Moment) {
        self.credit = (self.credit + u128::from(self.rate) * now.since(self.at).as_micros()).min(self.most());
        self.at = now;
    }

    fn most(&self) -> u128 {
        (u128::from(self.rate) * SAVED.as_micros()).max(u128::from(STEP_BYTES) * 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_leaves_than_the_rate_allows_and_no_less() {
        for rate in [1000, 16_000, 3_000_000, 1 << 40] {
            let mut throttle = Throttle::default();
            assert_eq!(throttle.allowed(Moment(0), 5000), 5000);
            throttle.set(rate, Moment(0));
            let (mut now, mut sent) = (Moment(0), 0u128);
            for _ in 0..2000 {
                let bytes = throttle.allowed(now, 16 << 10);
                throttle.spend(bytes);
                sent += bytes as u128;
                let may = u128::from(rate) * u128::from(now.0) / 1_000_000;
                assert!(sent <= may + u128::from(rate / 10).max(1500), "{sent} of {may} at {now:?}");
                assert!(rate > 100_000_000 || sent + 2 * 16384 + u128::from(rate / 10) >= may, "{sent} of {may}");
                now = throttle.opens(now).unwrap_or(now.after(Duration::from_millis(1)));
            }
            throttle.set(0, now);
            assert_eq!((throttle.allowed(now, 7), throttle.opens(now)), (7, None));
        }
    }
}
