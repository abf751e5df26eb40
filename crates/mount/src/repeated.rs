//! READs that the kernel repeats by itself, so that the limit of `--soft` holds.
//!
//! A program waits for a page. The kernel sends a READ for its readahead, even if that is one page
//! long. When this READ fails, it sends another one before the program gets the error. If the
//! second READ had the whole time again, a program would wait twice as long as the user said.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time in which the kernel repeats a READ; it does so at once, unless the machine is very busy.
const REPEAT_WAIT: Duration = Duration::from_secs(1);

/// READs remembered: as many as programs wait for at once, as a rule. A forgotten one costs its
/// program a second wait.
const REMEMBERED_MAX: usize = 256;

/// The READs that ran out of time last, oldest first.
#[derive(Default)]
pub(crate) struct TimedOut {
    reads: Mutex<VecDeque<TimedOutRead>>,
}

struct TimedOutRead {
    inode: u64,
    start: u64,
    end: u64,
    at: Instant,
}

impl TimedOut {
    /// The READ of `bytes` bytes at `offset` ran out of time at `now`.
    pub(crate) fn note(&self, inode: u64, offset: u64, bytes: u32, now: Instant) {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if reads.len() == REMEMBERED_MAX {
            reads.pop_front();
        }
        reads.push_back(TimedOutRead { inode, start: offset, end: offset.saturating_add(bytes.into()), at: now });
    }

    /// Whether a READ at `offset` is the kernel's second try. Each is recognised once: a program
    /// that tries again waits again.
    pub(crate) fn take(&self, inode: u64, offset: u64, now: Instant) -> bool {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        reads.retain(|read| now.saturating_duration_since(read.at) < REPEAT_WAIT);
        let found = reads.iter().position(|read| read.inode == inode && (read.start..read.end).contains(&offset));
        found.and_then(|index| reads.remove(index)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_try_is_recognised_once_and_only_soon() {
        let (timed_out, now) = (TimedOut::default(), Instant::now());
        assert!(!timed_out.take(7, 0, now));
        timed_out.note(7, 4096, 8192, now);
        assert!(!timed_out.take(7, 0, now) && !timed_out.take(8, 4096, now) && !timed_out.take(7, 12288, now));
        assert!(timed_out.take(7, 8192, now));
        assert!(!timed_out.take(7, 8192, now), "the program tries again itself");
        timed_out.note(7, 4096, 4096, now);
        assert!(!timed_out.take(7, 4096, now + REPEAT_WAIT));
        for inode in 0..2 * REMEMBERED_MAX as u64 {
            timed_out.note(inode, 0, 1, now);
        }
        assert!(!timed_out.take(0, 0, now) && timed_out.take(REMEMBERED_MAX as u64, 0, now));
    }
}
