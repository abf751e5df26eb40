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
