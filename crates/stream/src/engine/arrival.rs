//! The row of blocks that a push brings of one file: what comes next by itself, and when.
//!
//! A thin link brings a block, the application reads it, and the next one is already on its way. To ask for it would cost a request,
//! and an answer that says so, for each block: a few percent of such a link.

use std::time::Duration;

use units::{Moment, PageId, StreamId};

/// Pieces in a row after which the next one is expected.
const PIECES_MIN: u32 = 3;

/// Where pieces follow each other faster than this, a question costs nothing that counts, and a wrong expectation would.
const GAP_MIN: Duration = Duration::from_millis(20);

/// Pieces of one stream that continued each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub stream: StreamId,
    /// The block after the last one.
    next: u32,
    /// Blocks of the last piece.
    blocks: u32,
    pieces: u32,
    /// When the last piece came.
    came: Moment,
    /// Time between two, lately.
    gap: Duration,
}

impl Arrival {
    /// A piece came after `before`; `None` if its blocks are no row.
    pub fn note(before: Option<Arrival>, stream: StreamId, blocks: &[PageId], now: Moment) -> Option<Arrival> {
        let (first, last) = (blocks.first()?.index, blocks.last()?.index);
        if !blocks.iter().zip(first..=last).all(|(block, index)| block.index == index) {
            return None;
        }
        let before = before.filter(|before| before.stream == stream && before.next == first);
        let (pieces, gap) = match before {
            None => (1, Duration::ZERO),
            Some(Arrival { pieces: 1, came, .. }) => (2, now.since(came)),
            // It grows slowly: a server that waits for what is held back here must not make us hold it back longer.
            Some(Arrival { pieces, came, gap, .. }) => {
                (pieces.saturating_add(1), (gap + now.since(came).clamp(GAP_MIN / 2, gap * 3 / 2 + GAP_MIN / 2)) / 2)
            }
        };
        Some(Arrival { stream, next: last.checked_add(1)?, blocks: blocks.len() as u32, pieces, came: now, gap })
    }

    /// Until when the block is better waited for than asked for.
    pub fn expects(&self, index: u32, now: Moment) -> Option<Moment> {
        let until = self.came.after(self.gap * 2);
        let next = self.next..self.next.saturating_add(self.blocks);
        (self.pieces >= PIECES_MIN && self.gap >= GAP_MIN && next.contains(&index) && now < until).then_some(until)
    }
}
