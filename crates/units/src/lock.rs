//! Locks of byte ranges, as fcntl(2) and flock(2) have them.

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LockKind {
    /// Others may hold shared locks too.
    Shared,
    /// Nobody else holds any.
    Exclusive,
}

/// A locked range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte, at least `start`; `u64::MAX` for all that the file may ever have.
    pub end: u64,
    /// Its kind.
    pub kind: LockKind,
}

impl LockRange {
    /// Whether locks of two owners cannot be held together.
    pub fn excludes(&self, other: &LockRange) -> bool {
        let exclusive = self.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive;
        exclusive && self.start <= other.end && other.start <= self.end
    }
}

/// A range and how it is locked; not at all for `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LockPiece {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// Its kind.
    pub kind: Option<LockKind>,
}

/// The locks of one owner on one file: ranges in ascending order that neither overlap nor
/// continue each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LockRanges(Vec<LockRange>);

impl LockRanges {
    /// Locks `start` to `end` in this way, or unlocks it with `None`: what was there is replaced,
    /// as POSIX says.
    pub fn set(&mut self, start: u64, end: u64, kind: Option<LockKind>) {
        let mut ranges = Vec::with_capacity(self.0.len() + 2);
        for range in &self.0 {
            if range.start < start {
                ranges.push(LockRange { end: range.end.min(start - 1), ..*range });
            }
            if range.end > end {
                ranges.push(LockRange { start: range.start.max(end + 1), ..*range });
            }
        }
        ranges.extend(kind.map(|kind| LockRange { start, end, kind }));
        ranges.sort_unstable_by_key(|range| range.start);
        self.0.clear();
        for range in ranges {
            match self.0.last_mut() {
                Some(last) if last.kind == range.kind && last.end.checked_add(1) == Some(range.start) => {
                    last.end = range.end;
                }
                _ => self.0.push(range),
            }
        }
    }

    /// The first range that another owner's `range` cannot be held together with.
    pub fn excluding(&self, range: &LockRange) -> Option<LockRange> {
        self.0.iter().find(|held| held.excludes(range)).copied()
    }

    /// How all of a range is locked, in order.
    pub fn pieces(&self, start: u64, end: u64) -> Vec<LockPiece> {
        let (mut pieces, mut next) = (Vec::new(), Some(start));
        for range in self.0.iter().filter(|range| range.start <= end && range.end >= start) {
            let first = range.start.max(start);
            if let Some(free) = next.filter(|free| *free < first) {
                pieces.push(LockPiece { start: free, end: first - 1, kind: None });
            }
            pieces.push(LockPiece { start: first, end: range.end.min(end), kind: Some(range.kind) });
            next = range.end.min(end).checked_add(1);
        }
        pieces.extend(next.filter(|free| *free <= end).map(|free| LockPiece { start: free, end, kind: None }));
        pieces
    }

    /// The ranges.
    pub fn as_slice(&self) -> &[LockRange] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, SplitMix64};

    #[test]
    fn ref_ranges_agree_with_a_table_of_bytes() {
        const BYTES: u64 = 24;
        let mut rng = SplitMix64(5);
        for _ in 0..200 {
            let (mut ranges, mut bytes) = (LockRanges::default(), [None; BYTES as usize]);
            for _ in 0..20 {
                let start = rng.below(BYTES);
                let end = start + rng.below(BYTES - start);
                let kind = [None, Some(LockKind::Shared), Some(LockKind::Exclusive)][rng.below(3) as usize];
                ranges.set(start, end, kind);
                bytes[start as usize..=end as usize].fill(kind);
                let of = |byte: u64| {
                    let mut held = ranges.as_slice().iter().filter(|range| (range.start..=range.end).contains(&byte));
                    let kind = held.next().map(|range| range.kind);
                    assert!(held.next().is_none());
                    kind
                };
                assert!((0..BYTES).all(|byte| of(byte) == bytes[byte as usize]));
                let runs = bytes.chunk_by(|a, b| a == b).filter(|run| run[0].is_some()).count();
                assert_eq!(ranges.as_slice().len(), runs, "what continues is one range");
                let asked = LockRange { start, end, kind: LockKind::Shared };
                let mut again = LockRanges::default();
                let pieces = ranges.pieces(start, end);
                pieces.iter().for_each(|piece| again.set(piece.start, piece.end, piece.kind));
                let (mut inside, mut next) = (ranges.clone(), start);
                for outside in [(0, start.checked_sub(1)), (end + 1, Some(u64::MAX))] {
                    outside.1.into_iter().for_each(|last| inside.set(outside.0, last, None));
                }
                assert_eq!(again, inside);
                for piece in &pieces {
                    assert_eq!(piece.start, next);
                    next = piece.end + 1;
                }
                assert_eq!(next, end + 1);
                let exclusive = bytes[start as usize..=end as usize].contains(&Some(LockKind::Exclusive));
                assert_eq!(ranges.excluding(&asked).is_some(), exclusive);
            }
        }
    }

    #[test]
    fn the_last_byte_of_all_is_one_too() {
        let mut ranges = LockRanges::default();
        ranges.set(0, u64::MAX, Some(LockKind::Exclusive));
        assert_eq!(ranges.pieces(9, u64::MAX).len(), 1);
        ranges.set(7, u64::MAX, None);
        assert_eq!(ranges.as_slice(), [LockRange { start: 0, end: 6, kind: LockKind::Exclusive }]);
        ranges.set(0, u64::MAX, None);
        assert_eq!(ranges, LockRanges::default());
    }
}
