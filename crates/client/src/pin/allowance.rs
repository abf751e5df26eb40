//! How much a pin may request, and when: a rate, and a budget for the month.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cache::Cache;
use units::Moment;

use super::PinError;

/// The budget is taken in parts of this, each of which is written to the disk before it is used.
const PART_BYTES: u64 = 1 << 20;

/// What may be requested.
pub(super) struct Allowance<'a> {
    cache: &'a Cache,
    rate: Option<u64>,
    /// When the next bytes may be requested.
    ready: Moment,
    budget: Option<u64>,
    /// The month that the budget was taken in, and bytes that were taken and not used.
    month: u32,
    taken: u64,
}

impl<'a> Allowance<'a> {
    pub fn new(cache: &'a Cache, rate: Option<u64>, budget: Option<u64>) -> Allowance<'a> {
        Allowance { cache, rate, ready: Moment(0), budget, month: month_now(), taken: 0 }
    }

    /// When bytes may be requested.
    pub fn ready(&self, now: Moment) -> Moment {
        self.ready.max(now)
    }

    /// Bytes are being requested.
    pub fn requested(&mut self, now: Moment, bytes: u64) {
        if let Some(rate) = self.rate {
            self.ready = self.ready(now).after(Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64));
        }
    }

    /// Takes from the budget what `bytes` need beside those `under_way`. `missing`: bytes of the
    /// image that did not come yet, to be told.
    pub fn need(&mut self, bytes: u64, under_way: u64, missing: u64) -> Result<(), PinError> {
        let Some(budget) = self.budget else { return Ok(()) };
        let month = month_now();
        if month != self.month {
            // What was taken belongs to another one.
            (self.month, self.taken) = (month, 0);
        }
        let wanted = bytes.saturating_add(under_way);
        if self.taken >= wanted {
            return Ok(());
        }
        let least = wanted - self.taken;
        let spent = self.cache.spend(month, least, least.max(PART_BYTES), budget)?;
        self.taken += spent.granted;
        match self.taken >= wanted {
            true => Ok(()),
            false => Err(PinError::Budget { spent: spent.all.saturating_sub(self.taken), budget, missing }),
        }
    }

    /// Bytes were transferred.
    pub fn used(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_sub(bytes);
    }

    /// What was not used is there for the next pin.
    pub fn give_back(&mut self) {
        if self.budget.is_some() && self.taken > 0 {
            // If it fails, less is used than might have been.
            let _ = self.cache.unspend(self.month, std::mem::take(&mut self.taken));
        }
    }
}

fn month_now() -> u32 {
    month_of(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// The month in UTC, counted from January 1970, of a number of seconds since then.
fn month_of(seconds: u64) -> u32 {
    let mut days = seconds / 86_400;
    let mut year = 1970;
    loop {
        let is_leap =
            u64::is_multiple_of(year, 4) && (!u64::is_multiple_of(year, 100) || u64::is_multiple_of(year, 400));
        let february = if is_leap { 29 } else { 28 };
        for (month, length) in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate() {
            if days < length {
                return (year - 1970) as u32 * 12 + month as u32;
            }
            days -= length;
        }
        year += 1;
        if year > 9999 {
            return (year - 1970) as u32 * 12;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_are_those_of_the_calendar() {
        // date -u -d 2026-11-30T23:59:59 +%s, and a second later; a leap day; the first second.
        let months = [(0, 0), (951_782_400, 361), (951_868_799, 361), (951_868_800, 362)];
        let later = [(1_796_083_199, 682), (1_796_083_200, 683), (u64::MAX, 96_360)];
        for (seconds, month) in months.into_iter().chain(later) {
            assert_eq!(month_of(seconds), month, "{seconds}");
        }
    }
}
