//! First touches that needed no network, on their way to the server, which learns from them.
//!
//! Per running action: the pages already reported (by a touch or by a demand, which says the same), so that each is
//! reported once, and the pages not sent yet. The session sends what has gathered when 64 pages are there, before the
//! next demand of the same action (so that the server sees them in order), or 20 ms after the first.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use units::{Moment, PageId, Token};

/// Pages that are sent without waiting for more.
pub(crate) const BATCH_PAGES: usize = 64;

/// Longest time a touch waits for company. Long enough to gather a burst, short against a construction timer of 3 s.
pub(crate) const BATCH_DELAY: Duration = Duration::from_millis(20);

/// Running actions remembered. A device runs few programs from an image at the same time.
const TOKENS_MAX: usize = 64;

/// Pages remembered as reported, over all actions: about 1 MiB of memory at most, and several times what a program start
/// touches. Beyond it the action that was quiet longest is forgotten, and its next touches are reported again.
const REPORTED_MAX: usize = 48 << 10;

#[derive(Debug, Default)]
pub(crate) struct Touches {
    tokens: HashMap<Token, TokenTouches>,
    reported_total: usize,
    clock: u64,
    /// When the oldest page that was not sent yet was touched.
    since: Option<Moment>,
}

#[derive(Debug, Default)]
struct TokenTouches {
    reported: HashSet<u64>,
    pending: Vec<PageId>,
    used_at: u64,
}

impl Touches {
    /// A page was served without a request of its own. True when the batch of this action is full.
    pub fn note(&mut self, token: Token, page: PageId, now: Moment) -> bool {
        if !self.report(token, page) {
            return false;
        }
        let touches = self.tokens.entry(token).or_default();
        touches.pending.push(page);
        self.since.get_or_insert(now);
        touches.pending.len() >= BATCH_PAGES
    }

    /// A demand tells of this page; no touch needs to. False if the page was reported before.
    pub fn report(&mut self, token: Token, page: PageId) -> bool {
        self.clock += 1;
        if !self.tokens.contains_key(&token) && self.tokens.len() >= TOKENS_MAX {
            self.forget_quietest(token);
        }
        let touches = self.tokens.entry(token).or_default();
        touches.used_at = self.clock;
        let fresh = touches.reported.insert(page.to_u64());
        self.reported_total += usize::from(fresh);
        if self.reported_total > REPORTED_MAX {
            self.forget_quietest(token);
        }
        fresh
    }

    /// The pages of one action that were not sent yet, in order.
    pub fn take(&mut self, token: Token) -> Vec<PageId> {
        self.tokens.get_mut(&token).map(|touches| std::mem::take(&mut touches.pending)).unwrap_or_default()
    }

    /// When the pages that wait must go; `None` if none wait. May be early, never late.
    pub fn deadline(&self) -> Option<Moment> {
        self.since.map(|since| since.after(BATCH_DELAY))
    }

    /// Everything that was not sent yet, per action.
    pub fn take_all(&mut self) -> Vec<(Token, Vec<PageId>)> {
        self.since = None;
        let waiting = self.tokens.iter_mut().filter(|(_, touches)| !touches.pending.is_empty());
        waiting.map(|(token, touches)| (*token, std::mem::take(&mut touches.pending))).collect()
    }

    /// The action ended; returns what was not sent yet.
    pub fn end(&mut self, token: Token) -> Vec<PageId> {
        let Some(touches) = self.tokens.remove(&token) else { return Vec::new() };
        self.reported_total -= touches.reported.len();
        touches.pending
    }

    /// Forgets what the action that was quiet longest has reported. `current` goes only if it is the only one: then its
    /// own set is started afresh. Pages not sent yet are kept: they are few.
    fn forget_quietest(&mut self, current: Token) {
        let others = self.tokens.iter().filter(|(token, _)| **token != current);
        let quietest = others.min_by_key(|(_, touches)| touches.used_at).map_or(current, |(token, _)| *token);
        let Some(touches) = self.tokens.get_mut(&quietest) else { return };
        self.reported_total -= touches.reported.len();
        touches.reported = HashSet::new();
        if touches.pending.is_empty() && quietest != current {
            self.tokens.remove(&quietest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::InodeId;

    fn page(index: u32) -> PageId {
        PageId::new(InodeId(2), index)
    }

    #[test]
    fn each_page_once_per_action_in_order() {
        let mut touches = Touches::default();
        assert!(touches.report(Token(1), page(0)));
        for index in [0, 3, 1, 3, 2] {
            touches.note(Token(1), page(index), Moment(5));
        }
        touches.note(Token(2), page(3), Moment(9));
        assert_eq!(touches.deadline(), Some(Moment(5).after(BATCH_DELAY)));
        assert_eq!(touches.take(Token(1)), [page(3), page(1), page(2)]);
        assert!(touches.take(Token(1)).is_empty());
        assert_eq!(touches.take_all(), [(Token(2), vec![page(3)])]);
        assert_eq!(touches.deadline(), None);
        assert!(touches.end(Token(2)).is_empty());
        touches.note(Token(2), page(3), Moment(9));
        assert_eq!(touches.end(Token(2)), [page(3)], "a new action of the same number starts afresh");
    }

    #[test]
    fn a_full_batch_is_told() {
        let mut touches = Touches::default();
        let full: Vec<bool> = (0..BATCH_PAGES as u32).map(|i| touches.note(Token(1), page(i), Moment(0))).collect();
        assert_eq!(full.iter().position(|full| *full), Some(BATCH_PAGES - 1));
    }

    #[test]
    fn memory_is_bounded() {
        let mut touches = Touches::default();
        for step in 0..(REPORTED_MAX as u32 * 3) {
            touches.report(Token((step / 1000) as u128), page(step));
            assert!(touches.reported_total <= REPORTED_MAX && touches.tokens.len() <= TOKENS_MAX);
        }
        for step in 0..(REPORTED_MAX as u32 * 2) {
            touches.report(Token(7), page(step));
            assert!(touches.reported_total <= REPORTED_MAX);
        }
        let counted: usize = touches.tokens.values().map(|touches| touches.reported.len()).sum();
        assert_eq!(counted, touches.reported_total);
    }
}
