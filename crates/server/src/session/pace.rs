//! How fast a client takes its answers. Whoever takes next to nothing keeps memory that others wait
//! for: it must give way long before the wire would end it.

use std::time::Duration;

use units::Moment;

/// Time in which a client takes at least [`LEAST_BYTES`] of its answers, or is slow. Radio links
/// that are up pause for less.
const WITHIN: Duration = Duration::from_secs(3);

/// What a link of 22 kbit/s carries in that time.
const LEAST_BYTES: usize = 8 << 10;

/// How often a slow client is looked at again.
const AGAIN: Duration = Duration::from_secs(1);

/// What a client took of its answers lately.
#[derive(Default)]
pub(super) struct Pace {
    /// Since when answers wait for it, and what it took of them.
    waiting: Option<(Moment, usize)>,
}

impl Pace {
    /// Whether the client is slow. `holds` tells whether answers wait for it now.
    pub fn is_slow(&mut self, now: Moment, holds: bool) -> bool {
        if !holds {
            self.waiting = None;
            return false;
        }
        let (since, taken) = *self.waiting.get_or_insert((now, 0));
        let late = now.since(since) >= WITHIN;
        if late && taken >= LEAST_BYTES {
            self.waiting = Some((now, 0));
        }
        late && taken < LEAST_BYTES
    }

    /// The client took bytes.
    pub fn took(&mut self, bytes: usize) {
        if let Some((_, taken)) = &mut self.waiting {
            *taken += bytes;
        }
    }

    /// When to ask [`Pace::is_slow`] again.
    pub fn deadline(&self, now: Moment) -> Option<Moment> {
        self.waiting.map(|(since, _)| since.after(WITHIN).max(now.after(AGAIN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment(1000 * millis)
    }

    #[test]
    fn who_takes_too_little_is_slow_until_it_takes_more() {
        let mut pace = Pace::default();
        assert!(!pace.is_slow(at(0), false) && pace.deadline(at(0)).is_none());
        assert!(!pace.is_slow(at(10_000), true));
        assert_eq!(pace.deadline(at(10_000)), Some(at(13_000)));
        pace.took(LEAST_BYTES - 1);
        assert!(!pace.is_slow(at(12_999), true) && pace.is_slow(at(13_000), true));
        assert_eq!(pace.deadline(at(13_000)), Some(at(14_000)));
        pace.took(1);
        assert!(!pace.is_slow(at(14_000), true));
        // From then on it counts anew.
        assert!(!pace.is_slow(at(16_999), true) && pace.is_slow(at(17_000), true));
        assert!(!pace.is_slow(at(17_001), false) && !pace.is_slow(at(30_000), true));
    }
}
