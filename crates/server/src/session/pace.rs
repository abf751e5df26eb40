//! How fast a client takes its answers, and sends what it has begun. Whoever moves next to nothing
//! keeps memory and places that others wait for: it must give way long before the wire would end
//! it.

use std::time::Duration;

use units::Moment;

use super::Session;
use crate::upload::UploadHandle;

/// Time in which a client moves at least [`LEAST_BYTES`], or is slow. Radio links that are up pause
/// for less.
const WITHIN: Duration = Duration::from_secs(3);

/// What a link of 22 kbit/s carries in that time.
const LEAST_BYTES: usize = 8 << 10;

/// How often a slow client is looked at again.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// A client in both directions.
#[derive(Default)]
pub(super) struct Paces {
    /// How it takes its answers.
    pub reading: Pace,
    /// How it sends what it has begun.
    pub sending: Pace,
}

/// What a client moved lately in one direction.
#[derive(Default)]
pub(super) struct Pace {
    /// Since when the server waits for it, and what it moved since.
    waiting: Option<(Moment, usize)>,
}

impl Pace {
    /// Whether the client is slow. `is_awaited` tells whether the server waits for it now.
    pub fn is_slow(&mut self, now: Moment, is_awaited: bool) -> bool {
        if !is_awaited {
            self.waiting = None;
            return false;
        }
        let (since, moved) = *self.waiting.get_or_insert((now, 0));
        let late = now.since(since) >= WITHIN;
        if late && moved >= LEAST_BYTES {
            self.waiting = Some((now, 0));
        }
        late && moved < LEAST_BYTES
    }

    /// The client took or sent bytes.
    pub fn moved(&mut self, bytes: usize) {
        if let Some((_, moved)) = &mut self.waiting {
            *moved += bytes;
        }
    }

    /// When to ask [`Pace::is_slow`] again.
    pub fn deadline(&self, now: Moment) -> Option<Moment> {
        self.waiting.map(|(since, _)| since.after(WITHIN).max(now.after(AGAIN)))
    }
}

impl Session {
    /// Why the client has to give way to others, if it is slow and keeps what they wait for.
    pub(super) fn must_give_way(&self, paces: &mut Paces) -> Option<&'static str> {
        let (shared, now) = (&*self.shared, self.shared.now());
        if paces.reading.is_slow(now, self.held.amount() > 0) && shared.replies.is_lacking() {
            return Some("answers were read too slowly while others waited for memory (--memory); connect again");
        }
        let awaits_frame = self.received.room.amount() > 0
            && self.wire.is_amid_frame()
            && self.wire.wants_bytes()
            && !self.received.is_waiting
            && self.stalled.is_none();
        let awaits_upload = self.uploads.values().any(UploadHandle::awaits_client);
        let is_needed = (awaits_frame && shared.received.is_lacking())
            || (awaits_upload && (shared.uploads.is_lacking() || shared.catalog.is_upload_memory_lacking()));
        let is_slow = paces.sending.is_slow(now, awaits_frame || awaits_upload);
        (is_slow && is_needed)
            .then_some("what was begun came too slowly while others waited; try again to go on with it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment(1000 * millis)
    }

    #[test]
    fn who_moves_too_little_is_slow_until_it_moves_more() {
        let mut pace = Pace::default();
        assert!(!pace.is_slow(at(0), false) && pace.deadline(at(0)).is_none());
        assert!(!pace.is_slow(at(10_000), true));
        assert_eq!(pace.deadline(at(10_000)), Some(at(13_000)));
        pace.moved(LEAST_BYTES - 1);
        assert!(!pace.is_slow(at(12_999), true) && pace.is_slow(at(13_000), true));
        assert_eq!(pace.deadline(at(13_000)), Some(at(14_000)));
        pace.moved(1);
        assert!(!pace.is_slow(at(14_000), true));
        // From then on it counts anew.
        assert!(!pace.is_slow(at(16_999), true) && pace.is_slow(at(17_000), true));
        assert!(!pace.is_slow(at(17_001), false) && !pace.is_slow(at(30_000), true));
    }
}
