//! Programs that the server pushes to, as long as they follow the push.
//!
//! The server knows better than any guess what such a program needs next. But a program that only
//! begins like a learned one leaves its push: it misses one block after another, and the pages that
//! come are not those that it uses. Then it is treated as if nothing were pushed to it.

use std::collections::HashMap;

use units::{SEGMENT_PAGES_MAX, Token};

/// Actions remembered as pushed to.
const ACTIONS_MAX: usize = 64;

/// Misses after which an action no longer follows its push: about as many as the server needs to
/// find that out. Nearly every learned start has one or two.
const MISSES_MAX: u32 = 3;

/// Misses counted at most, so that an action which comes back to its push is believed soon.
const MISSES_COUNTED_MAX: u32 = 2 * MISSES_MAX;

/// Pushed pages, used, that make up for a miss: a segment's.
const PAGES_A_MISS: u64 = SEGMENT_PAGES_MAX as u64;

/// How well actions follow what is pushed to them.
///
/// Invariant: there are at most [`ACTIONS_MAX`]; what does not fit is forgotten, which costs a few
/// guesses.
#[derive(Clone, Debug, Default)]
pub struct Followers {
    actions: HashMap<Token, Follower>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Follower {
    /// Blocks missed that used pages have not made up for.
    misses: u32,
    /// Pages used since a miss was made up for.
    pages_used: u64,
}

impl Followers {
    /// The server pushes to this action.
    pub fn pushed(&mut self, token: Token) {
        if self.actions.contains_key(&token) {
            return;
        }
        if self.actions.len() >= ACTIONS_MAX {
            self.actions.clear();
        }
        self.actions.insert(token, Follower::default());
    }

    /// An action missed a block.
    pub fn missed(&mut self, token: Token) {
        if let Some(follower) = self.actions.get_mut(&token) {
            follower.misses = (follower.misses + 1).min(MISSES_COUNTED_MAX);
        }
    }

    /// What an action missed is on its way by a push: it was no miss.
    pub fn not_missed(&mut self, token: Token) {
        if let Some(follower) = self.actions.get_mut(&token) {
            follower.misses = follower.misses.saturating_sub(1);
        }
    }

    /// The server knows what this action needs, and will push it: its last miss was none.
    pub fn foreseen(&mut self, token: Token) {
        self.pushed(token);
        self.not_missed(token);
    }

    /// An action used so many pages that were pushed to it.
    pub fn used(&mut self, token: Token, pages: u64) {
        let Some(follower) = self.actions.get_mut(&token) else { return };
        follower.pages_used = follower.pages_used.saturating_add(pages);
        let made_up = u32::try_from(follower.pages_used / PAGES_A_MISS).unwrap_or(u32::MAX);
        follower.pages_used %= PAGES_A_MISS;
        follower.misses = follower.misses.saturating_sub(made_up);
    }

    /// Whether the server knows what this action needs: it pushes to it, and the action follows.
    pub fn is_known(&self, token: Token) -> bool {
        self.actions.get(&token).is_some_and(|follower| follower.misses < MISSES_MAX)
    }

    /// The action ended.
    pub fn end(&mut self, token: Token) {
        self.actions.remove(&token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Token = Token(1);

    #[test]
    fn an_action_is_known_until_it_leaves_its_push_and_again_when_it_comes_back() {
        let mut followers = Followers::default();
        followers.missed(ONE);
        assert!(!followers.is_known(ONE));
        followers.pushed(ONE);
        // A few misses among many pushed pages are what any learned start has.
        for _ in 0..20 {
            followers.missed(ONE);
            followers.used(ONE, PAGES_A_MISS / 2);
            followers.used(ONE, PAGES_A_MISS / 2);
            assert!(followers.is_known(ONE));
        }
        (1..MISSES_MAX).for_each(|_| followers.missed(ONE));
        assert!(followers.is_known(ONE));
        followers.missed(ONE);
        assert!(!followers.is_known(ONE));
        followers.pushed(ONE);
        assert!(!followers.is_known(ONE), "more of the same push does not change that");
        (0..100).for_each(|_| followers.missed(ONE));
        followers.used(ONE, u64::from(MISSES_COUNTED_MAX - MISSES_MAX) * PAGES_A_MISS);
        assert!(!followers.is_known(ONE));
        followers.used(ONE, PAGES_A_MISS);
        assert!(followers.is_known(ONE), "it follows the push again");
        followers.used(ONE, u64::MAX);
        (0..MISSES_MAX).for_each(|_| followers.missed(ONE));
        assert!(!followers.is_known(ONE));
        followers.not_missed(ONE);
        assert!(followers.is_known(ONE));
        followers.end(ONE);
        followers.pushed(ONE);
        (1..MISSES_MAX).for_each(|_| followers.missed(ONE));
        assert!(followers.is_known(ONE), "the number came again");
    }

    #[test]
    fn memory_is_bounded() {
        let mut followers = Followers::default();
        (0..1000).for_each(|token| followers.pushed(Token(token)));
        assert!(followers.actions.len() <= ACTIONS_MAX);
    }
}
