//! Merges several learning runs of one program: which pages and paths count, and to which group
//! each belongs.
//!
//! One run is the *reference*: its bursts make the groups. It is the one with the most pages that
//! count, so that a run which was ended early does not cut the others short; the earliest of equal
//! ones. A period of a run is a burst and the idle period after it, so every touch is in exactly
//! one period. Pages touched in an idle period are fetched with the burst before it: rather early
//! than late. Periods of another run are matched with those of the reference by the pages that both
//! hold, never by time: two runs of one program on a busy machine may be seconds apart.
//!
//! Pages that fewer than `runs_min` runs touched do not count: files of one document, caches with
//! random names, time-outs.

use std::collections::HashMap;

use units::Moment;

use super::burst::Timeline;
use super::{Code, Run};

/// A page or a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Item {
    /// A look-up of a path, or the opening of a file that has no other event.
    Open(u32),
    /// A page of a file.
    Page(u32, u32),
}

/// A run in terms that all runs share.
pub(super) struct Common<'a> {
    pub run: &'a Run,
    pub timeline: &'a Timeline,
    /// By position in [`Run::files`]: position in the table of all runs. `None` for files that drop
    /// out.
    pub files: Vec<Option<u32>>,
    /// By period of this run: the period of the reference that it corresponds to.
    pub matched: Vec<Option<usize>>,
}

/// An item that counts.
pub(super) struct Kept {
    pub item: Item,
    /// Which group it belongs to: a period of the reference.
    pub period: usize,
    /// Its place among all: the lower median of its ranks in the runs that touched it, then the
    /// first of these runs and the rank there.
    pub rank: (u32, usize, u32),
}

/// Least share of the smaller of two periods that both must hold to be the same.
const OVERLAP_PERCENT_MIN: usize = 50;

impl Common<'_> {
    /// Pages and paths in the order of their first touch, each once. The first page of a file
    /// stands for its opening if nothing looked it up before.
    fn items(&self) -> Vec<(Moment, Item)> {
        let lookups = self.run.lookups.iter().filter_map(|lookup| {
            let file = self.files[lookup.file as usize]?;
            Some((lookup.at, Item::Open(file)))
        });
        let touches = self.run.touches.iter().filter_map(|touch| {
            let file = self.files[touch.file as usize]?;
            Some([(touch.at, Item::Open(file)), (touch.at, Item::Page(file, touch.page))])
        });
        let mut items: Vec<(Moment, Item)> = lookups.chain(touches.flatten()).collect();
        // Stable: what happens at once stays in the order of the trace, look-ups first.
        items.sort_by_key(|(at, _)| *at);
        let mut seen = std::collections::HashSet::new();
        items.retain(|(_, item)| seen.insert(*item));
        items
    }

    /// The group that a moment of this run belongs to: that of its period, or of the nearest
    /// earlier one that has any.
    fn group(&self, at: Moment) -> usize {
        let period = self.timeline.period(at);
        self.matched[..(period + 1).min(self.matched.len())].iter().rev().find_map(|matched| *matched).unwrap_or(0)
    }

    /// Where in time the idle period before group `period` lies in this run: after the last burst
    /// that corresponds to an earlier group, before the first read of the one that corresponds to
    /// this one. Bursts of its own in between count as idle.
    pub fn idle_before(&self, period: usize) -> Option<(Moment, Moment)> {
        let [_, from, to] = self.before(period)?;
        Some((from, to))
    }

    /// The same with the burst before it.
    pub fn burst_and_idle_before(&self, period: usize) -> Option<(Moment, Moment)> {
        let [from, _, to] = self.before(period)?;
        Some((from, to))
    }

    /// When the last burst before group `period` began and ended, and the one of the group began.
    fn before(&self, period: usize) -> Option<[Moment; 3]> {
        let own = self.matched.iter().position(|matched| *matched == Some(period))?;
        let before = (0..own).rev().find(|earlier| self.matched[*earlier].is_some())?;
        let bursts = &self.timeline.bursts;
        Some([bursts[before].began, bursts[before].ended, bursts[own].began])
    }

    /// Code in terms of all runs: the executable of its process image and the file it is in.
    pub fn code(&self, code: &Code) -> Option<(u32, u32, u64)> {
        let executable = self.run.images[code.image as usize].executable?;
        Some((self.files[executable as usize]?, self.files[code.file as usize]?, code.offset))
    }
}

/// Position of the run with the most pages that at least `runs_min` runs touched; the first of
/// equal ones.
pub(super) fn reference(runs: &[Common], runs_min: usize) -> usize {
    let mut seen: HashMap<(u32, u32), usize> = HashMap::new();
    for page in runs.iter().flat_map(pages) {
        *seen.entry(page).or_default() += 1;
    }
    let counted = |run: &Common| pages(run).filter(|page| seen[page] >= runs_min).count();
    let counts: Vec<usize> = runs.iter().map(counted).collect();
    (0..runs.len()).max_by_key(|run| (counts[*run], std::cmp::Reverse(*run))).unwrap_or(0)
}

fn pages<'a>(run: &'a Common) -> impl Iterator<Item = (u32, u32)> + 'a {
    run.run.touches.iter().filter_map(|touch| Some((run.files[touch.file as usize]?, touch.page)))
}

/// Says for every run which of its periods corresponds to which of the reference, the first one
/// given.
pub(super) fn align(runs: &mut [Common]) {
    let Some((reference, others)) = runs.split_first_mut() else { return };
    reference.matched = (0..reference.timeline.bursts.len()).map(Some).collect();
    let pages = pages_by_period(reference);
    let mut sizes = vec![0; reference.timeline.bursts.len().max(1)];
    pages.values().for_each(|period| sizes[*period] += 1);
    for other in others {
        let own = pages_by_period(other);
        let mut own_sizes = vec![0; other.timeline.bursts.len().max(1)];
        let mut common: HashMap<(usize, usize), usize> = HashMap::new();
        for (page, period) in &own {
            own_sizes[*period] += 1;
            if let Some(there) = pages.get(page) {
                *common.entry((*period, *there)).or_default() += 1;
            }
        }
        let pairs = common.into_iter().filter(|((here, there), count)| {
            let smaller = own_sizes[*here].min(sizes[*there]);
            count * 100 >= smaller * OVERLAP_PERCENT_MIN
        });
        other.matched = choose(pairs.collect(), other.timeline.bursts.len());
    }
}

fn pages_by_period(run: &Common) -> HashMap<(u32, u32), usize> {
    let touches = run.run.touches.iter().filter_map(|touch| {
        let file = run.files[touch.file as usize]?;
        Some(((file, touch.page), run.timeline.period(touch.at)))
    });
    touches.collect()
}

/// Takes the pairs with the most pages first, as long as they do not cross. The launches always
/// correspond.
fn choose(mut pairs: Vec<((usize, usize), usize)>, periods: usize) -> Vec<Option<usize>> {
    let mut matched = vec![None; periods];
    if let Some(launch) = matched.first_mut() {
        *launch = Some(0);
    }
    pairs.sort_by_key(|(pair, count)| (std::cmp::Reverse(*count), *pair));
    for ((here, there), _) in pairs {
        let before = matched[..here].iter().rev().find_map(|other| *other);
        let after = matched[here..].iter().find_map(|other| *other);
        let fits = before.is_none_or(|before| before < there) && after.is_none_or(|after| there < after);
        if matched[here].is_none() && fits {
            matched[here] = Some(there);
        }
    }
    matched
}

/// What counts, in the order of first touches, and how many items do not because too few runs
/// touched them.
pub(super) fn keep(runs: &[Common], runs_min: usize) -> (Vec<Kept>, usize) {
    struct Seen {
        ranks: Vec<u32>,
        first: (usize, u32),
        period: usize,
    }
    let mut seen: HashMap<Item, Seen> = HashMap::new();
    for (number, run) in runs.iter().enumerate() {
        for (rank, (at, item)) in run.items().into_iter().enumerate() {
            let rank = rank as u32;
            let entry = seen.entry(item).or_insert_with(|| Seen {
                ranks: Vec::new(),
                first: (number, rank),
                period: run.group(at),
            });
            entry.ranks.push(rank);
        }
    }
    let before = seen.len();
    let mut kept: Vec<Kept> = seen
        .into_iter()
        .filter(|(_, seen)| seen.ranks.len() >= runs_min)
        .map(|(item, mut seen)| {
            let middle = (seen.ranks.len() - 1) / 2;
            let median = *seen.ranks.select_nth_unstable(middle).1;
            Kept { item, period: seen.period, rank: (median, seen.first.0, seen.first.1) }
        })
        .collect();
    // First touches of one run differ, so this is a total order.
    kept.sort_by_key(|kept| kept.rank);
    let rare = before - kept.len();
    (kept, rare)
}
