//! Memory of what connections receive and of their replies, and the peers that kept it for too
//! long.

use std::time::Duration;

use crate::budget::Budget;
use crate::config::Shares;
use crate::slow::SlowPeers;

/// Time for which a peer goes last after it had to give way.
const SLOW_FOR: Duration = Duration::from_secs(600);

/// Memory of what travels.
///
/// Invariant: both budgets know the same slow peers, so that a peer that had to give way in one
/// goes last in the other too.
pub(crate) struct Buffers {
    received: Budget,
    replies: Budget,
    slow: SlowPeers,
}

impl Buffers {
    pub fn new(shares: &Shares) -> Buffers {
        let slow = SlowPeers::for_time(SLOW_FOR);
        Buffers {
            received: Budget::frames(shares.received).with_slow(&slow),
            replies: Budget::memory(shares.replies).with_slow(&slow),
            slow,
        }
    }

    /// Memory of what arrives, until it is taken up or answered.
    pub fn received(&self) -> &Budget {
        &self.received
    }

    /// Memory of replies.
    pub fn replies(&self) -> &Budget {
        &self.replies
    }

    /// Peers that lately had to give way to others.
    pub fn slow(&self) -> &SlowPeers {
        &self.slow
    }

    /// Whether somebody waits for either.
    pub fn is_lacking(&self) -> bool {
        self.replies.is_lacking() || self.received.is_lacking()
    }
}
