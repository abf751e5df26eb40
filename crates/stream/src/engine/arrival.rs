//! Pushed blocks of one file that follow each other, and when the next one is expected.
//!
//! A thin link brings a block, the application reads it, and the next one is already on its way.
//! Asking for it would cost a request, and an answer that says so, for each block: a few percent of
//! such a link.

use std::time::Duration;

use units::{Moment, PageId, StreamId};

/// Pieces in a row after which the next one is expected.
const PIECES_MIN: u32 = 3;

/// Where pieces follow each other faster than this, a question costs nothing that counts, and a
/// wrong expectation would.
const GAP_MIN: Duration = Duration::from_millis(20);

/// Nothing is waited for longer than this unasked, however far apart pieces came.
const PATIENCE_MAX: Duration = Duration::from_secs(1);

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
            // It grows slowly: a server that waits for what is held back here must not make us hold
            // it back longer.
            Some(Arrival { pieces, came, gap, .. }) => {
                (pieces.saturating_add(1), (gap + now.since(came).clamp(GAP_MIN / 2, gap * 3 / 2 + GAP_MIN / 2)) / 2)
            }
        };
        Some(Arrival { stream, next: last.checked_add(1)?, blocks: blocks.len() as u32, pieces, came: now, gap })
    }

    /// Until when the block is better waited for than asked for.
    pub fn expects(&self, index: u32, now: Moment) -> Option<Moment> {
        let until = self.came.after((self.gap * 2).min(PATIENCE_MAX));
        let next = self.next..self.next.saturating_add(self.blocks);
        (self.pieces >= PIECES_MIN && self.gap >= GAP_MIN && next.contains(&index) && now < until).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use units::InodeId;

    use super::*;

    const GAP: Duration = Duration::from_millis(200);

    /// Pieces of one block each that came `GAP` apart.
    fn row(blocks: &[u32], stream: u32) -> (Option<Arrival>, Moment) {
        blocks.iter().fold((None, Moment(0)), |(before, now), index| {
            let now = now.after(GAP);
            (Arrival::note(before, StreamId(stream), &[PageId::new(InodeId(2), *index)], now), now)
        })
    }

    fn expects(row: (Option<Arrival>, Moment), index: u32) -> bool {
        row.0.is_some_and(|arrival| arrival.expects(index, row.1).is_some())
    }

    #[test]
    fn only_what_continues_a_row_is_expected() {
        assert!(expects(row(&[4, 5, 6], 1), 7));
        assert!(!expects(row(&[4, 5, 6], 1), 8), "the one after the next");
        assert!(!expects(row(&[5, 6], 1), 7), "two are no row");
        assert!(!expects(row(&[3, 4, 6, 7], 1), 8), "one was left out");
        let (before, now) = row(&[4, 5, 6], 1);
        let other = Arrival::note(before, StreamId(2), &[PageId::new(InodeId(2), 7)], now.after(GAP));
        assert!(!expects((other, now.after(GAP)), 8), "another stream");
    }

    #[test]
    fn a_pause_makes_patience_grow_by_a_third_at_most() {
        let (before, now) = row(&[4, 5, 6], 1);
        let late = now.after(Duration::from_secs(10));
        let after = Arrival::note(before, StreamId(1), &[PageId::new(InodeId(2), 7)], late).unwrap();
        let patience = after.expects(8, late).unwrap().since(late);
        assert!(patience > GAP * 2 && patience <= GAP * 8 / 3, "{patience:?}");
        let (first, now) = row(&[4], 1);
        let later = now.after(Duration::from_secs(10));
        let pieces = [5, 6].map(|index| [PageId::new(InodeId(2), index)]);
        let paused =
            pieces.iter().fold(first, |before, piece| Arrival::note(before, StreamId(1), piece, later)).unwrap();
        assert_eq!(paused.expects(7, later).unwrap().since(later), PATIENCE_MAX);
    }
}
