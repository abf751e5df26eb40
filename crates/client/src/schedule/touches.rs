//! First touches that needed no network, on their way to the server, which learns from them.
//!
//! Each page of a running action is reported once, by a touch or by a demand, which says the same.
//! Touches are sent when 64 of an action are there, before its next demand (so that the server sees
//! them in order), or 20 ms after the first.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use units::{Moment, PageId, Token};

use super::connections::Connections;

/// Token of requests that no running action made: readahead, and READs whose process is not known.
/// No touches are reported for it, and the server is to learn nothing from its requests.
pub const NO_TOKEN: Token = Token(0);

/// Pages that are sent without waiting for more.
const BATCH_PAGES: usize = 64;

/// Longest time a touch waits for others. Long enough to gather a burst, short against a
/// construction timer of 3 s.
const BATCH_DELAY: Duration = Duration::from_millis(20);

/// Running actions remembered. A device runs few programs from an image at the same time.
const TOKENS_MAX: usize = 64;

/// Pages of an action that a server is told of late, when it needs something that the device cache
/// has not: enough to see which action it is.
const UNTOLD_MAX: usize = 256;

/// Pages remembered as reported, over all actions: about 1 MiB of memory at most, and several times
/// what a program start touches. Beyond it the action that was quiet longest is forgotten, and its
/// next touches are reported again.
const REPORTED_MAX: usize = 48 << 10;

/// Touches per running action.
///
/// Invariants:
/// - A page is pending only if it is reported, and in the list of one action once.
/// - `reported_total` is the sum of all reported pages, at most [`REPORTED_MAX`].
/// - While a page is pending, `since` is not after the moment when it was touched.
pub(super) struct Touches {
    tokens: HashMap<Token, TokenTouches>,
    reported_total: usize,
    clock: u64,
    /// When the oldest page that was not sent yet was touched.
    since: Option<Moment>,
    /// There is a server that learns.
    remote: bool,
}

#[derive(Default)]
struct TokenTouches {
    reported: HashSet<u64>,
    pending: Vec<PageId>,
    used_at: u64,
    /// It needed something that the device cache has not. Until then a server is told nothing: it
    /// would push what is here.
    needs_server: bool,
}

impl TokenTouches {
    /// Whether a server is to know of it.
    fn is_told(&self, connections: &Connections) -> bool {
        self.needs_server || connections.cache().is_none()
    }
}

impl Touches {
    pub fn new(remote: bool) -> Touches {
        Touches { tokens: HashMap::new(), reported_total: 0, clock: 0, since: None, remote }
    }

    /// A page was served without a request of its own. The server learns of it later, at once if
    /// `urgent`.
    pub fn note(&mut self, now: Moment, token: Token, page: PageId, urgent: bool, connections: &mut Connections) {
        if !self.is_reported(token) {
            return;
        }
        if self.add(token, page, now, connections) || urgent {
            connections.touch(token, self.take(token, connections));
        }
    }

    /// Whether a running action is known to have touched a page.
    pub fn has(&self, token: Token, page: PageId) -> bool {
        self.tokens.get(&token).is_some_and(|touches| touches.reported.contains(&page.to_u64()))
    }

    /// A demand of these pages follows; touches from before go first.
    pub fn before_demand(&mut self, token: Token, pages: &[PageId], connections: &mut Connections) {
        if !self.is_reported(token) {
            return;
        }
        for page in pages {
            self.report(token, *page, connections);
        }
        if let Some(touches) = self.tokens.get_mut(&token) {
            touches.needs_server = true;
        }
        connections.touch(token, self.take(token, connections));
    }

    /// Whether the server learns from a token.
    fn is_reported(&self, token: Token) -> bool {
        self.remote && token != NO_TOKEN
    }

    /// Adds a pending page. True when the batch of this action is full.
    fn add(&mut self, token: Token, page: PageId, now: Moment, connections: &mut Connections) -> bool {
        if !self.report(token, page, connections) {
            return false;
        }
        let touches = self.tokens.entry(token).or_default();
        if !touches.is_told(connections) && touches.pending.len() >= UNTOLD_MAX {
            return false;
        }
        touches.pending.push(page);
        self.since.get_or_insert(now);
        touches.pending.len() >= BATCH_PAGES
    }

    /// Notes that a page is reported. False if it was before.
    fn report(&mut self, token: Token, page: PageId, connections: &mut Connections) -> bool {
        self.clock += 1;
        if !self.tokens.contains_key(&token) && self.tokens.len() >= TOKENS_MAX {
            self.forget_quietest(token, connections);
        }
        let touches = self.tokens.entry(token).or_default();
        touches.used_at = self.clock;
        let fresh = touches.reported.insert(page.to_u64());
        if fresh {
            connections.touch_cache(token, page);
        }
        self.reported_total += usize::from(fresh);
        if self.reported_total > REPORTED_MAX {
            self.forget_quietest(token, connections);
        }
        fresh
    }

    /// The pages of one action that a server is to be told of now, in order.
    fn take(&mut self, token: Token, connections: &Connections) -> Vec<PageId> {
        let touches = self.tokens.get_mut(&token).filter(|touches| touches.is_told(connections));
        touches.map(|touches| std::mem::take(&mut touches.pending)).unwrap_or_default()
    }

    /// When [`Touches::expire`] is due. May be early, never late.
    pub fn deadline(&self) -> Option<Moment> {
        self.since.map(|since| since.after(BATCH_DELAY))
    }

    /// Sends everything that is pending, if it is due.
    pub fn expire(&mut self, now: Moment, connections: &mut Connections) {
        if self.deadline().is_none_or(|due| now < due) {
            return;
        }
        self.since = None;
        for (token, touches) in &mut self.tokens {
            if touches.is_told(connections) {
                connections.touch(*token, std::mem::take(&mut touches.pending));
            }
        }
    }

    /// An action ended: sends its pending pages. Returns whether no server was told of any.
    pub fn end(&mut self, token: Token, connections: &mut Connections) -> bool {
        let Some(touches) = self.tokens.remove(&token) else { return false };
        self.reported_total -= touches.reported.len();
        let is_told = touches.is_told(connections);
        if is_told {
            connections.touch(token, touches.pending);
        }
        !is_told
    }

    /// The session ends: the device cache keeps what running actions touched that no server was
    /// told of.
    pub fn close(&mut self, connections: &mut Connections) {
        self.reported_total = 0;
        for (token, touches) in self.tokens.drain() {
            if !touches.is_told(connections) {
                connections.end_cached(token, true);
            }
        }
    }

    /// Forgets what the action that was quiet longest has reported. `current` goes only if it is
    /// the only one: then its own set is started afresh. Pages not sent yet are kept, which are
    /// few, unless no server needs to know of them.
    fn forget_quietest(&mut self, current: Token, connections: &Connections) {
        // One that has forgotten before has nothing left to forget.
        let others = self.tokens.iter().filter(|(token, touches)| **token != current && !touches.reported.is_empty());
        let quietest = others.min_by_key(|(_, touches)| touches.used_at).map_or(current, |(token, _)| *token);
        let Some(touches) = self.tokens.get_mut(&quietest) else { return };
        self.reported_total -= touches.reported.len();
        touches.reported = HashSet::new();
        let is_done = touches.pending.is_empty() || !touches.is_told(connections);
        if is_done && quietest != current {
            self.tokens.remove(&quietest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, ConnectionIndex};
    use units::InodeId;

    fn page(index: u32) -> PageId {
        PageId::new(InodeId(2), index)
    }

    fn connected() -> Connections {
        let mut connections = Connections::new(1, true, false);
        connections.up(0, false);
        connections
    }

    fn touch(token: u128, pages: &[u32]) -> (ConnectionIndex, Command) {
        (0, Command::Touch { token: Token(token), pages: pages.iter().map(|index| page(*index)).collect() })
    }

    #[test]
    fn each_page_once_per_action_in_order() {
        let (mut touches, mut connections) = (Touches::new(true), connected());
        touches.before_demand(Token(1), &[page(0)], &mut connections);
        for index in [0, 3, 1, 3, 2] {
            touches.note(Moment(5), Token(1), page(index), false, &mut connections);
        }
        touches.note(Moment(9), Token(2), page(3), false, &mut connections);
        assert_eq!(touches.deadline(), Some(Moment(5).after(BATCH_DELAY)));
        assert!(connections.take_commands().is_empty());
        touches.before_demand(Token(1), &[page(7)], &mut connections);
        assert_eq!(connections.take_commands(), [touch(1, &[3, 1, 2])]);
        touches.before_demand(Token(1), &[], &mut connections);
        touches.expire(Moment(0), &mut connections);
        assert!(connections.take_commands().is_empty());
        touches.expire(Moment(5).after(BATCH_DELAY), &mut connections);
        assert_eq!(connections.take_commands(), [touch(2, &[3])]);
        assert_eq!(touches.deadline(), None);
        touches.end(Token(2), &mut connections);
        assert!(connections.take_commands().is_empty());
        touches.note(Moment(9), Token(2), page(3), false, &mut connections);
        touches.end(Token(2), &mut connections);
        assert_eq!(connections.take_commands(), [touch(2, &[3])], "a new action of the same number starts afresh");
    }

    #[test]
    fn a_full_batch_is_sent_and_an_urgent_touch_at_once() {
        let (mut touches, mut connections) = (Touches::new(true), connected());
        let mut sent = Vec::new();
        for index in 0..BATCH_PAGES as u32 {
            touches.note(Moment(0), Token(1), page(index), false, &mut connections);
            sent.push(connections.take_commands().len());
        }
        assert_eq!(sent.iter().position(|sent| *sent == 1), Some(BATCH_PAGES - 1));
        touches.note(Moment(0), Token(1), page(1000), true, &mut connections);
        assert_eq!(connections.take_commands(), [touch(1, &[1000])]);
    }

    #[test]
    fn without_a_server_or_a_token_nothing_is_reported() {
        for (remote, token) in [(false, Token(1)), (true, NO_TOKEN)] {
            let (mut touches, mut connections) = (Touches::new(remote), connected());
            touches.note(Moment(0), token, page(1), true, &mut connections);
            touches.before_demand(token, &[page(2)], &mut connections);
            touches.end(token, &mut connections);
            assert!(connections.take_commands().is_empty() && touches.deadline().is_none());
        }
    }

    #[test]
    fn memory_is_bounded() {
        bounded(connected());
    }

    #[test]
    fn memory_is_bounded_while_no_server_is_told() {
        let mut connections = Connections::new(2, true, true);
        connections.up(0, false);
        bounded(connections);
    }

    fn bounded(mut connections: Connections) {
        let mut touches = Touches::new(true);
        for step in 0..(REPORTED_MAX as u32 * 3) {
            touches.note(Moment(0), Token((step / 1000) as u128 + 1), page(step), false, &mut connections);
            if step % 1000 == 999 {
                touches.expire(Moment(0).after(BATCH_DELAY), &mut connections);
            }
            connections.take_commands();
            assert!(touches.reported_total <= REPORTED_MAX && touches.tokens.len() <= TOKENS_MAX);
        }
        for step in 0..(REPORTED_MAX as u32 * 2) {
            touches.note(Moment(0), Token(7), page(step), false, &mut connections);
            connections.take_commands();
            assert!(touches.reported_total <= REPORTED_MAX);
        }
        let counted: usize = touches.tokens.values().map(|touches| touches.reported.len()).sum();
        assert_eq!(counted, touches.reported_total);
        let pending: usize = touches.tokens.values().map(|touches| touches.pending.len()).sum();
        assert!(pending <= TOKENS_MAX * UNTOLD_MAX);
    }
}
