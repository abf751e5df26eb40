//! Makes extents from touched pages: consecutive pages become one request, and so do pages with a
//! small hole between them.
//!
//! A hole costs bytes that nobody asked for, and lists that fetch too much made programs slower
//! than no lists. So a hole is closed only if it is short, smallest ones first, and only while all
//! added pages stay under a share of the touched ones.

use std::collections::HashSet;

use super::{AnalyseConfig, GroupExtent};

/// A touched page: its group, its place among all, file and page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touched {
    pub group: usize,
    pub rank: u32,
    pub file: u32,
    pub page: u32,
}

/// A run of pages on its way to an extent.
#[derive(Clone, Copy)]
struct Stretch {
    group: usize,
    rank: u32,
    file: u32,
    page: u32,
    end: u32,
}

/// The extents of each of `groups` groups in the order of their first touches, and the pages in
/// closed holes. No page is in `touched` twice.
pub(super) fn extents(
    mut touched: Vec<Touched>,
    groups: usize,
    config: &AnalyseConfig,
) -> (Vec<Vec<GroupExtent>>, u64) {
    let all: HashSet<(u32, u32)> = touched.iter().map(|page| (page.file, page.page)).collect();
    touched.sort_by_key(|page| (page.group, page.file, page.page));
    let mut stretches: Vec<Stretch> = Vec::new();
    for Touched { group, rank, file, page } in touched {
        match stretches.last_mut() {
            Some(last) if (last.group, last.file, last.end) == (group, file, page) => {
                last.end += 1;
                last.rank = last.rank.min(rank);
            }
            _ => stretches.push(Stretch { group, rank, file, page, end: page + 1 }),
        }
    }
    let (closed, hole_pages) = close(&stretches, &all, config);
    let mut joined: Vec<Stretch> = Vec::new();
    for (position, stretch) in stretches.into_iter().enumerate() {
        match joined.last_mut() {
            Some(last) if closed.contains(&position) => {
                last.end = stretch.end;
                last.rank = last.rank.min(stretch.rank);
            }
            _ => joined.push(stretch),
        }
    }
    joined.sort_by_key(|stretch| (stretch.group, stretch.rank));
    let mut extents = vec![Vec::new(); groups];
    for Stretch { group, file, page, end, .. } in joined {
        extents[group].push(GroupExtent { file, page, pages: end - page });
    }
    (extents, hole_pages)
}

/// Positions of the stretches before which a hole is closed, and the pages of all these holes.
fn close(stretches: &[Stretch], all: &HashSet<(u32, u32)>, config: &AnalyseConfig) -> (HashSet<usize>, u64) {
    let mut holes: Vec<(u32, usize)> = Vec::new();
    for (position, pair) in stretches.windows(2).enumerate() {
        let (before, after) = (&pair[0], &pair[1]);
        if (before.group, before.file) != (after.group, after.file) || after.page - before.end > config.hole_pages_max {
            continue;
        }
        // A page of another group is fetched by that one; no page may be in two extents.
        if (before.end..after.page).all(|page| !all.contains(&(before.file, page))) {
            holes.push((after.page - before.end, position + 1));
        }
    }
    holes.sort_unstable();
    let touched = all.len() as u64;
    let budget = touched * u64::from(config.over_fetch_percent_max) / 100;
    let (mut closed, mut pages) = (HashSet::new(), 0);
    for (hole, position) in holes {
        if pages + u64::from(hole) > budget {
            break;
        }
        pages += u64::from(hole);
        closed.insert(position);
    }
    (closed, pages)
}
