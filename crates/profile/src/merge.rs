//! The rules by which runs change an action, independent of the set that holds it.

use std::collections::{HashMap, HashSet};

use units::PageId;

use crate::weave::{is_same_order, woven};
use crate::{Action, PageMark};

/// Rules and bounds of learning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeConfig {
    /// An exact run refines an action from this overlap on (percent, Jaccard); below it becomes a
    /// variant. 70: two runs of one program share the interpreter and its libraries and still
    /// differ in their own modules.
    pub overlap_percent: u32,
    /// A page is dropped after this many exact runs in a row that did not touch it, unless only one
    /// run ever touched it: then the first exact run without it is enough.
    pub misses_max: u8,
    /// Pages added by runs that were not exact, at most this part of an action (percent), or one
    /// segment if that is more. What such runs add may be particular to their arguments, and only
    /// an exact run can contradict it; until then it is pushed in vain, so the bound is well below
    /// the 15 % of waste that we promise.
    pub extras_percent: u32,
    /// An exact run that changed at most this part of the pages (percent) makes the action stable.
    pub stable_percent: u32,
    /// Actions with one first page.
    pub variants_max: usize,
    /// Actions in a set.
    pub actions_max: usize,
    /// Pages in an action: 65536 pages are 256 MB of code and data, more than any start we measured
    /// touches.
    pub action_pages_max: usize,
    /// Pages in all actions of a set: a million, 8 MB of page numbers and about 40 MB with indexes.
    pub pages_total_max: usize,
}

impl Default for MergeConfig {
    fn default() -> MergeConfig {
        MergeConfig {
            overlap_percent: 70,
            misses_max: 2,
            extras_percent: 10,
            stable_percent: 5,
            variants_max: 8,
            actions_max: 4096,
            action_pages_max: 65536,
            pages_total_max: 1 << 20,
        }
    }
}

/// A page that a run missed, and the page of the action after which it was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    /// Where the run was: the furthest page of the action it was known to have reached.
    pub after: PageId,
    /// The page to add.
    pub page: PageId,
}

/// Pages in both / pages in either, in percent rounded down. Both are free of duplicates. Two empty
/// lists overlap by 100.
pub fn overlap_percent(one: &[PageId], other: &[PageId]) -> u32 {
    let known: HashSet<PageId> = one.iter().copied().collect();
    let both = other.iter().filter(|page| known.contains(page)).count();
    let either = one.len() + other.len() - both;
    (both * 100).checked_div(either).unwrap_or(100) as u32
}

/// Pages of a segment that another run did not touch, from which on the segment is a run's own.
/// What differs by chance lies scattered.
const OWN_PAGES_MIN: usize = units::SEGMENT_PAGES_MAX * 3 / 4;

/// Part of a run (percent) that may be its own before it is one of another action: what is pushed
/// in vain, as promised.
const OWN_PERCENT_MAX: usize = 15;

/// The same of a run that does not come back from its own way to what both have: a last module that
/// is not always loaded is less.
const OWN_END_PERCENT_MAX: usize = 5;

/// A page so close to one that was touched came in the same block, of 64 KiB by default, and may
/// have been used unseen.
const NEAR_PAGES: u32 = 16;

/// Pages of such a segment that lie elsewhere: it is not only of pages that were used unseen.
const FAR_PAGES_MIN: usize = units::SEGMENT_PAGES_MAX / 4;

/// How much of an action and a run with the same first page is the same ([`overlap_percent`]), if
/// the run is one of the action: they overlap by at least `percent_min`, and neither goes another
/// way. Runs that begin alike and then part are siblings, of which each is pushed what it needs.
/// Pages that runs with hidden touches added to the action are no way of its own: they lie together
/// where the touches were hidden. Nor are pages that the action may lack only because nobody saw
/// them touched.
pub(crate) fn likeness(action: &Action, run: &[PageId], percent_min: u32) -> Option<u32> {
    let whose = compared(action, run);
    let told: Vec<PageId> =
        run.iter().zip(&whose).filter(|(_, whose)| **whose != Whose::Near).map(|(page, _)| *page).collect();
    let percent = overlap_percent(&action.pages, &told);
    let seen = action.pages.iter().zip(&action.marks).filter(|(_, mark)| !mark.extra).map(|(page, _)| *page);
    let touched: HashSet<PageId> = run.iter().copied().collect();
    let of_run = |page| if touched.contains(&page) { Whose::Both } else { Whose::Own };
    let is_alike = || !parts(&whose) && !parts(&seen.map(of_run).collect::<Vec<_>>());
    (percent >= percent_min && is_alike()).then_some(percent)
}

/// Whether another run has a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Both,
    /// It may have used it unseen.
    Near,
    Own,
}

/// Which pages of a run the action has.
fn compared(action: &Action, run: &[PageId]) -> Vec<Whose> {
    let mut known = action.pages.clone();
    known.sort_unstable();
    let whose = |page: &PageId| {
        let Err(at) = known.binary_search(page) else { return Whose::Both };
        let beside = &known[at.saturating_sub(1)..known.len().min(at + 1)];
        let is_near = |other: &PageId| other.inode == page.inode && other.index.abs_diff(page.index) <= NEAR_PAGES;
        if action.may_lack_pages() && beside.iter().any(is_near) { Whose::Near } else { Whose::Own }
    };
    run.iter().map(whose).collect()
}

/// Whether too much of a run lies in segments of its own. Less is enough if half of what follows
/// the first one is its own.
fn parts(run: &[Whose]) -> bool {
    let count = |some: &[Whose]| some.iter().filter(|whose| **whose != Whose::Both).count();
    let far = |some: &[Whose]| some.iter().filter(|whose| **whose == Whose::Own).count();
    let is_segment = |segment: &[Whose]| count(segment) >= OWN_PAGES_MIN && far(segment) >= FAR_PAGES_MIN;
    let Some(fork) = run.windows(units::SEGMENT_PAGES_MAX).position(is_segment) else { return false };
    let rest = run.get(fork..).unwrap_or_default();
    let own_segments = rest.chunks(units::SEGMENT_PAGES_MAX).filter(|segment| is_segment(segment));
    let own: usize = own_segments.map(count).sum();
    let is_end = count(rest) * 2 >= rest.len();
    own * 100 > run.len() * if is_end { OWN_END_PERCENT_MAX } else { OWN_PERCENT_MAX }
}

/// Refines `action` by an exact run with the same first page. Its pages keep their order, since
/// other runs need them where they are; what the run adds goes behind the page that the run touched
/// before. Only if the action has another order altogether, the run's order wins: anyone may have
/// taught it. Pages that the run did not touch stay where they are, or go. Returns how many pages
/// were added or dropped.
pub(crate) fn refine(action: &mut Action, run: &[PageId], config: &MergeConfig) -> usize {
    let touched: HashSet<PageId> = run.iter().copied().collect();
    let mut marks: HashMap<PageId, PageMark> = HashMap::with_capacity(run.len());
    let mut kept = Vec::with_capacity(action.pages.len());
    let mut dropped = 0;
    for (page, mark) in action.pages.iter().zip(&action.marks) {
        let is_touched = touched.contains(page);
        let misses = if is_touched { 0 } else { mark.misses.saturating_add(1) };
        if !is_touched && (mark.runs <= 1 || misses >= config.misses_max) {
            dropped += 1;
            continue;
        }
        let runs = mark.runs.saturating_add(u32::from(is_touched));
        marks.insert(*page, PageMark { runs, misses, extra: mark.extra && !is_touched });
        // Where an extra belongs was a guess, which the run corrects.
        if !(is_touched && mark.extra) {
            kept.push(*page);
        }
    }
    let changed = dropped + run.iter().filter(|page| !marks.contains_key(page)).count();
    let mut pages = if is_same_order(&kept, run) { woven(&kept, run) } else { woven(run, &kept) };
    pages.truncate(config.action_pages_max);
    if pages != action.pages {
        action.revision = action.revision.wrapping_add(1);
    }
    let new = PageMark { runs: 1, misses: 0, extra: false };
    action.marks = pages.iter().map(|page| marks.get(page).copied().unwrap_or(new)).collect();
    action.stable = changed * 100 <= pages.len() * config.stable_percent as usize;
    action.pages = pages;
    action.runs = action.runs.saturating_add(1);
    changed
}

/// Adds the pages that a run missed, each behind its anchor, in the order given. Returns how many
/// were added.
pub(crate) fn extend(action: &mut Action, extras: &[Extra], config: &MergeConfig) -> usize {
    let positions: HashMap<PageId, usize> = action.pages.iter().enumerate().map(|(i, page)| (*page, i)).collect();
    let extras_now = action.marks.iter().filter(|mark| mark.extra).count();
    let extras_max = (action.pages.len() - extras_now) * config.extras_percent as usize / 100;
    let extras_max = extras_max.max(units::SEGMENT_PAGES_MAX);
    let room = extras_max.saturating_sub(extras_now).min(config.action_pages_max.saturating_sub(action.pages.len()));
    let mut seen = HashSet::new();
    let mut insertions: Vec<(usize, PageId)> = extras
        .iter()
        .filter(|extra| !positions.contains_key(&extra.page) && seen.insert(extra.page))
        .take(room)
        .map(|extra| (positions.get(&extra.after).copied().unwrap_or(action.pages.len() - 1), extra.page))
        .collect();
    if insertions.is_empty() {
        return 0;
    }
    // A stable sort keeps the order of those that share an anchor.
    insertions.sort_by_key(|(position, _)| *position);
    let mut pages = Vec::with_capacity(action.pages.len() + insertions.len());
    let mut marks = Vec::with_capacity(pages.capacity());
    let mut next = insertions.iter().peekable();
    for (position, (page, mark)) in action.pages.iter().zip(&action.marks).enumerate() {
        pages.push(*page);
        marks.push(*mark);
        while let Some((_, extra)) = next.next_if(|(at, _)| *at == position) {
            pages.push(*extra);
            marks.push(PageMark { runs: 1, misses: 0, extra: true });
        }
    }
    action.pages = pages;
    action.marks = marks;
    action.revision = action.revision.wrapping_add(1);
    if insertions.len() * 100 > action.pages.len() * config.stable_percent as usize {
        action.stable = false;
    }
    insertions.len()
}

#[cfg(test)]
mod tests {
    use units::{ImageId, InodeId};

    use super::*;
    use crate::ActionSet;

    /// Pages of one file.
    fn pages(inode: u32, indexes: impl IntoIterator<Item = u32>) -> Vec<PageId> {
        indexes.into_iter().map(|index| PageId::new(InodeId(inode), index)).collect()
    }

    #[test]
    fn runs_that_begin_alike_and_part_are_siblings() {
        // Each has 70 % of the pages of all at least, and only the longest one all of them.
        for other in [
            pages(1, 0..900),
            [pages(1, 0..600), pages(1, 860..1000)].concat(),
            [pages(1, 0..950), pages(2, 0..60)].concat(),
        ] {
            for order in [[pages(1, 0..1000), other.clone()], [other.clone(), pages(1, 0..1000)]] {
                let (mut set, config) = (ActionSet::new(ImageId([3; 32])), MergeConfig::default());
                order.iter().for_each(|run| _ = set.learn(run, &config));
                let found: Vec<&[PageId]> = set.iter().map(|action| &action.pages[..]).collect();
                assert_eq!(found, [&order[0][..], &order[1][..]]);
            }
        }
    }

    #[test]
    fn what_lies_beside_the_pages_of_a_first_run_may_have_been_used_unseen() {
        // The blocks of the first pages came, and most pages of the later ones were in the kernel.
        let seen = |page: &u32| *page < 600 || page.is_multiple_of(24);
        let first = pages(1, (0..1000).filter(seen));
        let other = [pages(1, 0..200), pages(1, 400..1000), pages(1, 200..400)].concat();
        let module = [pages(1, 0..600), pages(2, 0..300), pages(1, 600..1000)].concat();
        let (whole, at) = (pages(1, 0..1000), |index| PageId::new(InodeId(1), index));
        // A last module, which uses files of all as well.
        let own = (0..90u32)
            .map(|page| if page.is_multiple_of(3) { PageId::new(InodeId(2), page) } else { at(page * 4 + 601) });
        let last = [first.clone(), own.collect()].concat();
        let runs = [(&whole, &whole, 1), (&other, &whole, 1), (&module, &module, 2), (&last, &last, 2)];
        for (run, learned_pages, actions) in runs {
            let (mut set, config) = (ActionSet::new(ImageId([3; 32])), MergeConfig::default());
            let id = set.learn_partial(&first, &config).action.unwrap();
            let learned = set.learn(run, &config).action.unwrap();
            assert_eq!((set.len(), &set.get(learned).unwrap().pages), (actions, learned_pages));
            assert_eq!(set.get(id).unwrap().may_lack_pages(), id != learned);
        }
    }

    #[test]
    fn runs_that_differ_here_and_there_are_of_one_action() {
        // Scattered pages, a module of half a segment, one that is replaced in the middle, a last
        // one that is not loaded.
        let scattered = |without: u32| (0..1000).filter(move |page| page % 8 != without);
        for other in [
            pages(1, scattered(3)),
            [pages(1, 0..500), pages(2, 0..16), pages(1, 500..1000)].concat(),
            [pages(1, 0..400), pages(2, 0..60), pages(1, 460..1000)].concat(),
            pages(1, 0..955),
        ] {
            let (mut set, config) = (ActionSet::new(ImageId([3; 32])), MergeConfig::default());
            set.learn(&pages(1, 0..1000), &config);
            set.learn(&other, &config);
            assert_eq!(set.len(), 1);
        }
    }
}
