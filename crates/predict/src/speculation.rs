//! Whether a block that may not be needed is worth its time on a thin link.
//!
//! A right guess saves the program the round trip of a demand, less the time of the guesses sent
//! before. A wrong guess delays a demand by the time of its block. So on a link where a block takes
//! about as long as a round trip, a block of probability `p` is worth sending after a touch while
//! `p / (1 - p)` exceeds its time over the rest of the round trip: the likelier one of two ways, at
//! best. Where blocks take next to no time, everything is worth sending.

use std::time::Duration;

/// Blocks this likely are no guesses.
pub const SURE: f64 = 0.9;

/// A block that takes less is sent on any link.
const BLOCK_MIN: Duration = Duration::from_millis(5);

/// The link, as far as guesses matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// Time that one block takes of the link.
    pub block: Duration,
    /// Time from a demand to the beginning of its answer, on an idle link.
    pub round_trip: Duration,
}

impl Speculation {
    /// Whether a block of this probability, 0 to 1, is worth sending when `before` other guesses
    /// were sent since the last touch.
    pub fn admits(&self, probability: f64, before: usize) -> bool {
        let thin = self.block >= BLOCK_MIN.max(self.round_trip / 4);
        if probability >= SURE || !thin {
            return true;
        }
        let block = self.block.as_secs_f64();
        let left = self.round_trip.as_secs_f64() - block * before as f64;
        left > 0.0 && probability * left > (1.0 - probability) * block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thin_link_takes_the_likelier_way_and_others_take_all() {
        let thin = Speculation { block: Duration::from_millis(36), round_trip: Duration::from_millis(40) };
        assert!(thin.admits(0.5, 0) && !thin.admits(0.47, 0) && !thin.admits(0.5, 1));
        assert!(thin.admits(0.95, 1000));
        for (block, round_trip) in [(1300, 20_000), (4_900, 100), (9_000, 40_000)] {
            let micros = Duration::from_micros;
            assert!(Speculation { block: micros(block), round_trip: micros(round_trip) }.admits(0.001, 1000));
        }
    }
}
