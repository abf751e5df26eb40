//! The blocks of a file that hold data. The others read as zeros and are never asked for.

use serde::{Deserialize, Serialize};
use wire::BlockRange;

/// Ranges of blocks that may hold anything but zeros.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Present {
    /// First and one behind the last, ascending, apart from each other.
    ranges: Vec<(u64, u64)>,
    /// From here on all may hold data.
    unknown_from: u64,
}

impl Present {
    /// Nothing is known.
    pub fn unknown() -> Present {
        Present::default()
    }

    /// There is no data at all.
    pub fn nothing() -> Present {
        Present { ranges: Vec::new(), unknown_from: u64::MAX }
    }

    /// The ranges that a server tells; nonsense (ranges that do not ascend) tells nothing.
    pub fn new(told: &[BlockRange], cut: bool) -> Present {
        let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(told.len());
        for range in told {
            let (first, end) = (u64::from(range.first.0), u64::from(range.first.0) + u64::from(range.count));
            match ranges.last_mut() {
                Some(last) if first < last.1 => return Present::unknown(),
                Some(last) if first == last.1 => last.1 = end,
                _ => ranges.push((first, end)),
            }
        }
        let unknown_from = if cut { ranges.last().map_or(0, |last| last.1) } else { u64::MAX };
        Present { ranges, unknown_from }
    }

    /// Whether a block reads as zeros for sure.
    pub fn is_hole(&self, index: u32) -> bool {
        let index = u64::from(index);
        let after = self.ranges.partition_point(|range| range.0 <= index);
        index < self.unknown_from && (after == 0 || self.ranges[after - 1].1 <= index)
    }

    /// The next blocks from `index` on that may hold data, first and one behind the last; `None` if
    /// all are holes.
    pub fn data_after(&self, index: u64) -> Option<(u64, u64)> {
        let range = self.ranges.get(self.ranges.partition_point(|range| range.1 <= index)).copied();
        let range = range.filter(|range| range.0 < self.unknown_from);
        let unknown = (self.unknown_from < u64::MAX).then_some((self.unknown_from, u64::MAX));
        range.or(unknown).map(|(first, end)| (first.max(index), end))
    }

    /// Blocks became holes.
    pub fn remove(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let cut = |(from, until): (u64, u64)| [(from, until.min(first)), (from.max(end), until)];
        self.ranges = self.ranges.iter().copied().flat_map(cut).filter(|(from, until)| from < until).collect();
        self.bound();
    }

    /// Blocks got data.
    pub fn add(&mut self, first: u64, end: u64) {
        if first >= self.unknown_from || first >= end {
            return;
        }
        let from = self.ranges.partition_point(|range| range.1 < first);
        let until = self.ranges.partition_point(|range| range.0 <= end);
        let merged = self.ranges[from..until].iter().fold((first, end), |a, b| (a.0.min(b.0), a.1.max(b.1)));
        self.ranges.splice(from..until, [merged]);
        self.bound();
    }

    /// Files that are written here and there: what is forgotten is only asked for.
    fn bound(&mut self) {
        if self.ranges.len() > 2 * wire::format::NEED_RANGES_MAX {
            self.unknown_from = self.ranges[wire::format::NEED_RANGES_MAX].0;
            self.ranges.truncate(wire::format::NEED_RANGES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use units::{BlockId, Rng, SplitMix64};

    use super::*;

    #[test]
    fn ref_present() {
        let mut rng = SplitMix64(3);
        for _ in 0..500 {
            let mut flags = [false; 64];
            let mut told = Vec::new();
            let mut at = rng.below(5);
            while at < 50 {
                let count = 1 + rng.below(4);
                told.push(BlockRange { first: BlockId(at as u32), count: count as u32 });
                (at..at + count).for_each(|index| flags[index as usize] = true);
                at += count + rng.below(6);
            }
            let mut present = Present::new(&told, false);
            for _ in 0..8 {
                let first = rng.below(60);
                let end = first + rng.below(4);
                let data = rng.below(2) == 0;
                if data {
                    present.add(first, end)
                } else {
                    present.remove(first, end)
                };
                (first..end).for_each(|index| flags[index as usize] = data);
                let next = (first..64).find(|index| flags[*index as usize]);
                assert_eq!(present.data_after(first).map(|(from, _)| from), next, "{first} {present:?}");
                for (index, flag) in flags.iter().enumerate() {
                    assert_eq!(present.is_hole(index as u32), !flag, "{index} {present:?}");
                }
            }
        }
        let nonsense = [(5, 3), (6, 1)].map(|(first, count)| BlockRange { first: BlockId(first), count });
        assert!(!Present::new(&nonsense, false).is_hole(0));
    }
}
