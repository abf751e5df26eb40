//! The Provider: which segments a server keeps in memory.
//!
//! SYSFLOW: a segment whose blocks lie far apart in storage is slow to read, so it is worth keeping
//! in memory. How far apart is the variance of its normalised block indices: each index becomes
//! (b - b_min) / (b_max - b_min), from 0 to 1, where b_min and b_max are the first and the last
//! block that any action needs. So the variance is 0 for a segment in one place, 1/12 for one that
//! is spread evenly over all, and 1/4 for one of two halves at the two ends, whatever the size of
//! the image. Segments over a threshold are read into memory at start, and so is the first segment
//! of every action, because there the client waits with nothing ahead.

use std::ops::RangeInclusive;

use profile::Action;
use units::{ActionId, PageId, SegmentIndex};

/// Variance of `indices` after each was normalised by its place in `range`; 0 for none.
pub fn normalised_variance(indices: &[u64], range: &RangeInclusive<u64>) -> f64 {
    let width = range.end().saturating_sub(*range.start()) as f64;
    if indices.is_empty() || width <= 0.0 {
        return 0.0;
    }
    let normalised = || indices.iter().map(|index| index.saturating_sub(*range.start()) as f64 / width);
    let count = indices.len() as f64;
    let average = normalised().sum::<f64>() / count;
    normalised().map(|index| (index - average).powi(2)).sum::<f64>() / count
}

/// Segments to read into memory at start: the first of every action, and those whose normalised
/// variance is over `threshold`. In the order of the actions given, then by segment. `block` says
/// which block a page lies in; pages that are stored nowhere (holes) give `None` and do not count.
pub fn preload<'a>(
    actions: impl IntoIterator<Item = &'a Action>,
    block: impl Fn(PageId) -> Option<u64>,
    threshold: f64,
) -> Vec<(ActionId, SegmentIndex)> {
    let mut segments: Vec<(ActionId, SegmentIndex, Vec<u64>)> = Vec::new();
    for action in actions {
        for segment in (0..action.segments()).map(SegmentIndex) {
            let pages = action.pages.get(action.segment(segment)).unwrap_or_default();
            segments.push((action.id, segment, pages.iter().filter_map(|page| block(*page)).collect()));
        }
    }
    let all = || segments.iter().flat_map(|(_, _, blocks)| blocks).copied();
    let range = all().min().unwrap_or(0)..=all().max().unwrap_or(0);
    let wanted =
        |segment: SegmentIndex, blocks: &[u64]| segment.0 == 0 || normalised_variance(blocks, &range) > threshold;
    let wanted = segments.iter().filter(|(_, segment, blocks)| wanted(*segment, blocks));
    wanted.map(|(action, segment, _)| (*action, *segment)).collect()
}
