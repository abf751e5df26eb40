//! The Provider: which segments a server keeps in memory.
//!
//! SYSFLOW: a segment whose pages lie far apart in storage is slow to read, so it is worth keeping
//! in memory. How far apart is the mean squared distance of its pages' positions from their
//! average; over all segments that is normalised to 0..1, N_i = (B_i - B_min) / (B_max - B_min).
//! Segments over a threshold are read into memory at start, and so is the first segment of every
//! action, because there the client waits with nothing ahead.

use profile::Action;
use units::{ActionId, PageId, SegmentIndex};

/// Mean squared distance of `positions` from their average (B_i); 0 for none. Any unit that
/// measures distance in storage.
pub fn segment_variance(positions: &[u64]) -> f64 {
    if positions.is_empty() {
        return 0.0;
    }
    // Distances from the first position keep the numbers small, so that large offsets lose no
    // precision.
    let base = positions[0];
    let distances = || positions.iter().map(|position| (i128::from(*position) - i128::from(base)) as f64);
    let count = positions.len() as f64;
    let average = distances().sum::<f64>() / count;
    distances().map(|distance| (distance - average).powi(2)).sum::<f64>() / count
}

/// N_i of each B_i, from 0 to 1; all 0 if they are equal.
pub fn normalised_variance(all: &[f64]) -> Vec<f64> {
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = most - least;
    all.iter().map(|variance| if range > 0.0 { (variance - least) / range } else { 0.0 }).collect()
}

/// Segments to read into memory at start: the first of every action, and those whose normalised
/// variance is over `threshold`. In the order of the actions given, then by segment. `position`
/// says where a page is stored; pages that are stored nowhere (holes) give `None` and do not count.
pub fn preload<'a>(
    actions: impl IntoIterator<Item = &'a Action>,
    position: impl Fn(PageId) -> Option<u64>,
    threshold: f64,
) -> Vec<(ActionId, SegmentIndex)> {
    let mut segments = Vec::new();
    let mut variances = Vec::new();
    for action in actions {
        for segment in (0..action.segments()).map(SegmentIndex) {
            let pages = &action.pages[action.segment(segment)];
            let positions: Vec<u64> = pages.iter().filter_map(|page| position(*page)).collect();
            segments.push((action.id, segment));
            variances.push(segment_variance(&positions));
        }
    }
    let normalised = normalised_variance(&variances);
    let wanted = segments.into_iter().zip(normalised);
    wanted.filter(|((_, segment), n)| segment.0 == 0 || *n > threshold).map(|(segment, _)| segment).collect()
}
