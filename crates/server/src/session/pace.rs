//! How fast a client takes its answers, and sends what it has begun. A client that moves next to
//! nothing keeps memory and slots that others wait for. It must give way long before the wire would
//! close its connection.

use std::time::Duration;

use units::Moment;

use super::Session;

/// Time in which a client moves at least [`LEAST_BYTES`], or is slow. Radio links that are up pause
/// for less.
const WITHIN: Duration = Duration::from_secs(3);

/// What a link of 22 kbit/s carries in that time.
const LEAST_BYTES: usize = 8 << 10;

/// Time in which a client that was never slow sends at least this part of the memory that it holds
/// for what arrives, or becomes slow: a frame of a MiB takes 16 s at most while others wait.
const FILLED_WITHIN: Duration = Duration::from_millis(500);
const FILLED_PART: usize = 32;

/// How often a slow client is looked at again.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// A client in both directions.
pub(super) struct Paces {
    /// How it takes its answers.
    reading: Pace,
    /// How it sends what it has begun.
    sending: Pace,
    /// How it fills the memory that it holds for that.
    filling: Pace,
}

impl Default for Paces {
    fn default() -> Paces {
        Paces { reading: Pace::new(WITHIN), sending: Pace::new(WITHIN), filling: Pace::new(FILLED_WITHIN) }
    }
}

impl Paces {
    /// The client took bytes.
    pub fn took(&mut self, bytes: usize) {
        self.reading.moved(bytes);
    }

    /// The client sent bytes.
    pub fn sent(&mut self, bytes: usize) {
        self.sending.moved(bytes);
        self.filling.moved(bytes);
    }

    /// When to ask [`Session::must_give_way`] again.
    pub fn deadline(&self) -> Option<Moment> {
        [&self.reading, &self.sending, &self.filling].into_iter().filter_map(Pace::deadline).min()
    }
}

/// What a client moved lately in one direction.
struct Pace {
    /// The time in which it must move something.
    within: Duration,
    waiting: Option<Waiting>,
}

/// The server waits for a client.
#[derive(Clone, Copy)]
struct Waiting {
    since: Moment,
    /// What the client moved since.
    moved: usize,
    /// It was late the last time. What has arrived meanwhile may not have been read, if the server
    /// has much to do: only who is late again is slow.
    is_late: bool,
    /// When to look again.
    again: Moment,
}

impl Pace {
    fn new(within: Duration) -> Pace {
        Pace { within, waiting: None }
    }

    /// Whether the client moves less than `least` bytes. `is_awaited` tells whether the server
    /// waits for it now.
    fn is_slow(&mut self, now: Moment, is_awaited: bool, least: usize) -> bool {
        let begin = Waiting { since: now, moved: 0, is_late: false, again: now.after(self.within) };
        if !is_awaited {
            self.waiting = None;
            return false;
        }
        let waiting = self.waiting.get_or_insert(begin);
        if now.since(waiting.since) < self.within {
            return false;
        }
        if waiting.moved >= least {
            *waiting = begin;
            return false;
        }
        let was_late = std::mem::replace(&mut waiting.is_late, true);
        waiting.again = if was_late { now.after(AGAIN) } else { now };
        was_late
    }

    fn moved(&mut self, bytes: usize) {
        if let Some(waiting) = &mut self.waiting {
            waiting.moved += bytes;
        }
    }

    /// When to ask [`Pace::is_slow`] again.
    fn deadline(&self) -> Option<Moment> {
        self.waiting.map(|waiting| waiting.again)
    }
}

impl Session {
    /// Why the client has to give way to others, if it is slow and keeps what they wait for. It
    /// goes last from then on.
    pub(super) fn must_give_way(&mut self) -> Option<&'static str> {
        let (buffers, now) = (&self.shared.buffers, self.shared.now());
        let peer = self.client.owner().peer;
        if self.paces.reading.is_slow(now, self.replies.are_queued(), LEAST_BYTES) && buffers.is_lacking() {
            buffers.slow().add(peer);
            return Some("answers were read too slowly while others waited for memory (--memory); connect again");
        }
        // While the server itself does not read, nobody is slow.
        let reads = self.wire.wants_bytes()
            && !self.receiving.is_waiting()
            && !self.uploads.is_stalled()
            && !self.rates.holds_reads();
        let awaits_frame = reads && self.receiving.held_bytes() > 0 && self.wire.is_amid_frame();
        let awaits_upload = reads && self.uploads.await_client();
        let is_needed =
            (awaits_frame && buffers.received().is_lacking()) || (awaits_upload && self.shared.uploads.is_lacking());
        let is_slow = self.paces.sending.is_slow(now, awaits_frame || awaits_upload, LEAST_BYTES);
        let part = self.receiving.held_bytes() / FILLED_PART;
        let fills_slowly = self.paces.filling.is_slow(now, awaits_frame, part)
            && buffers.received().is_lacking_for_others()
            && !buffers.slow().contains(peer);
        let gives_way = fills_slowly || (is_slow && is_needed);
        if !gives_way {
            return None;
        }
        buffers.slow().add(peer);
        Some("what was begun came too slowly while others waited; try again to go on with it")
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
        let mut pace = Pace::new(WITHIN);
        let is_slow = |pace: &mut Pace, millis, awaited| pace.is_slow(at(millis), awaited, LEAST_BYTES);
        assert!(!is_slow(&mut pace, 0, false) && pace.deadline().is_none());
        assert!(!is_slow(&mut pace, 10_000, true));
        assert_eq!(pace.deadline(), Some(at(13_000)));
        pace.moved(LEAST_BYTES - 1);
        assert!(!is_slow(&mut pace, 12_999, true));
        // What it sent may not have been read yet.
        assert!(!is_slow(&mut pace, 13_000, true));
        assert_eq!(pace.deadline(), Some(at(13_000)));
        assert!(is_slow(&mut pace, 13_000, true));
        assert_eq!(pace.deadline(), Some(at(14_000)));
        pace.moved(1);
        assert!(!is_slow(&mut pace, 14_000, true));
        // From then on it counts anew.
        assert!(!is_slow(&mut pace, 16_999, true) && !is_slow(&mut pace, 17_000, true));
        assert!(is_slow(&mut pace, 17_001, true));
        assert!(!is_slow(&mut pace, 17_002, false) && !is_slow(&mut pace, 30_000, true));
    }
}
