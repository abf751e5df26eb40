//! Touches of data blocks that wait for their turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use units::{Moment, PageId, Token};
use wire::ImageHandle;

use crate::volumes::OpenVolume;

/// Touches given to the predictors in one turn of the connection and under one lock: where graphs
/// branch, one costs up to a tenth of a millisecond.
const TOUCHES_AT_ONCE: usize = 4;

/// Touches that a connection may make at once, and each second. Others are not told to the
/// predictors: they cost the server more than their bytes cost the device.
const TOUCHES_MAX: u64 = 4096;

/// Touches that arrived, and wait for their turn.
///
/// Invariant: all that wait are of one message and one program, and were allowed.
pub(super) struct BlockTouches {
    waiting: Option<Touched<VecDeque<PageId>>>,
    /// Touches that may be made, and since when that is so.
    credit: u64,
    at: Moment,
}

/// Blocks of one volume that a program touched.
pub(super) struct Touched<Blocks> {
    pub volume: ImageHandle,
    pub open: Arc<OpenVolume>,
    pub token: Token,
    pub blocks: Blocks,
}

impl Default for BlockTouches {
    fn default() -> BlockTouches {
        BlockTouches { waiting: None, credit: TOUCHES_MAX, at: Moment(0) }
    }
}

impl BlockTouches {
    /// Whether none waits. While some do, nothing that came behind them is taken up.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_none()
    }

    /// Adds the touches of one message, as many as the connection may make: the last ones, which
    /// tell where the program is.
    pub fn add(&mut self, volume: ImageHandle, open: Arc<OpenVolume>, token: Token, blocks: &[PageId], now: Moment) {
        let count = self.spend(blocks.len(), now);
        let blocks: VecDeque<_> = blocks[blocks.len() - count..].iter().copied().collect();
        self.waiting = (!blocks.is_empty()).then_some(Touched { volume, open, token, blocks });
    }

    /// Takes the next few that wait.
    pub fn take_some(&mut self) -> Option<Touched<Vec<PageId>>> {
        let waiting = self.waiting.as_mut()?;
        let count = waiting.blocks.len().min(TOUCHES_AT_ONCE);
        let blocks = waiting.blocks.drain(..count).collect();
        let some = Touched { volume: waiting.volume, open: waiting.open.clone(), token: waiting.token, blocks };
        self.waiting.take_if(|waiting| waiting.blocks.is_empty());
        Some(some)
    }

    /// How many of `wanted` touches may be made.
    fn spend(&mut self, wanted: usize, now: Moment) -> usize {
        let added = now.since(self.at).as_micros() * u128::from(TOUCHES_MAX) / 1_000_000;
        if added > 0 {
            // What is less than a touch counts the next time.
            let spent = Duration::from_micros((added * 1_000_000 / u128::from(TOUCHES_MAX)) as u64);
            self.at = self.at.after(spent);
            self.credit = (u128::from(self.credit) + added).min(TOUCHES_MAX.into()) as u64;
        }
        let count = (wanted as u64).min(self.credit);
        self.credit -= count;
        count as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_beyond_what_a_connection_may_make_are_left_out() {
        let mut touches = BlockTouches::default();
        let second = |number: u64| Moment(1_000_000 * number);
        assert_eq!(touches.spend(1000, second(1)), 1000);
        assert_eq!(touches.spend(10_000, second(1)), TOUCHES_MAX as usize - 1000);
        assert_eq!(touches.spend(1, second(1)), 0);
        // A device that was silent for an hour has as much as one that was for a second.
        assert_eq!(touches.spend(10_000, second(2)), TOUCHES_MAX as usize);
        assert_eq!(touches.spend(10_000, second(3600)), TOUCHES_MAX as usize);
        // Many small steps of time add up as one large one does.
        let steps = (1..=10_000u64).map(|step| touches.spend(1, Moment(second(3600).0 + step * 100))).sum::<usize>();
        assert!(steps.abs_diff(TOUCHES_MAX as usize) < 10, "{steps}");
    }
}
