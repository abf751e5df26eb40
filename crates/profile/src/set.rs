//! All actions of one image.

use std::collections::{BTreeMap, HashSet, VecDeque};

use units::{ActionId, ImageId, PageId};

use crate::merge::{self, Extra, MergeConfig, likeness};
use crate::{Action, PageMark, first_touches};

/// The actions of one image, bounded by a [`MergeConfig`] whenever they change. Deterministic:
/// equal calls give equal sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionSet {
    pub(crate) image: ImageId,
    pub(crate) next_id: u64,
    /// Uses so far: the time by which recency is measured.
    pub(crate) clock: u64,
    pub(crate) actions: BTreeMap<ActionId, Action>,
    /// First pages whose next run should be seen exactly, the one noted longest ago first. A queue,
    /// so that nobody who fills it keeps others out. With how many runs may be seen for it. Not
    /// saved.
    pub(crate) doubted: VecDeque<(PageId, u32)>,
    /// Actions whose last run that strayed was seen exactly and had nothing new. Not saved.
    pub(crate) in_vain: BTreeMap<ActionId, InVain>,
}

/// How often a run that strays from an action need not be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InVain {
    /// Runs after the last one that was seen, and how many of them are still to come.
    runs: u32,
    left: u32,
}

/// Most runs that stray and are not seen after one that was seen in vain.
const UNSEEN_MAX: u32 = 7;

/// Most first pages that are noted: more than programs fail at the same time.
const DOUBTED_MAX: usize = 256;

/// A preferred action counts so many times more than others that begin alike.
const PREFERRED: u32 = 8;

/// What a run did to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It became a new action.
    Created,
    /// It refined an action, and this many pages came or went (the order may have changed even if
    /// none did).
    Refined(usize),
    /// It added this many pages to an action.
    Extended(usize),
    /// Nothing: an empty run, an unknown action, nothing new.
    Nothing,
}

/// What changed in a set, for those who keep something derived from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened to `action`.
    pub outcome: Outcome,
    /// The action that the run went to.
    pub action: Option<ActionId>,
    /// Actions that had to make room.
    pub removed: Vec<ActionId>,
}

impl Change {
    const NOTHING: Change = Change { outcome: Outcome::Nothing, action: None, removed: Vec::new() };
}

impl ActionSet {
    /// An empty set.
    pub fn new(image: ImageId) -> ActionSet {
        ActionSet {
            image,
            next_id: 1,
            clock: 0,
            actions: BTreeMap::new(),
            doubted: VecDeque::new(),
            in_vain: BTreeMap::new(),
        }
    }

    /// The image it belongs to.
    pub fn image(&self) -> ImageId {
        self.image
    }

    /// How many actions.
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Pages in all actions.
    pub fn pages_total(&self) -> usize {
        self.actions.values().map(|action| action.pages.len()).sum()
    }

    /// One action.
    pub fn get(&self, id: ActionId) -> Option<&Action> {
        self.actions.get(&id)
    }

    /// All actions by id.
    pub fn iter(&self) -> impl Iterator<Item = &Action> {
        self.actions.values()
    }

    /// All actions, the most recently used first.
    pub fn ranked(&self) -> Vec<&Action> {
        let mut all: Vec<&Action> = self.iter().collect();
        all.sort_by(|one, other| other.last_used.cmp(&one.last_used).then(one.id.cmp(&other.id)));
        all
    }

    /// Variants that start with `page`, the best guess first.
    pub fn variants(&self, page: PageId) -> Vec<&Action> {
        let mut found: Vec<&Action> = self.iter().filter(|action| action.first_page() == page).collect();
        found.sort_by(|one, other| other.rank(one));
        found
    }

    /// Counts a run that followed `id`.
    pub fn credit(&mut self, id: ActionId) {
        let Some(first) = self.actions.get(&id).map(Action::first_page) else { return };
        self.clock += 1;
        for action in self.actions.values_mut().filter(|action| action.first_page() == first) {
            action.score -= action.score / 4;
            if action.id == id {
                action.score += Action::SCORE_USE;
                action.uses = action.uses.saturating_add(1);
                action.last_used = self.clock;
            }
        }
    }

    /// Makes `id` the best guess of its first page: the uses of its other variants count little.
    pub fn prefer(&mut self, id: ActionId) {
        let Some(preferred) = self.actions.get(&id) else { return };
        let (first, most) = (preferred.first_page(), preferred.score / PREFERRED);
        for action in self.actions.values_mut().filter(|action| action.id != id && action.first_page() == first) {
            action.score = action.score.min(most);
        }
    }

    /// Counts the pushes of the other variants of its first page as those of `id`, so that its
    /// audits go on as theirs would.
    pub fn inherit_pushes(&mut self, id: ActionId) {
        let Some(first) = self.actions.get(&id).map(Action::first_page) else { return };
        let variants = self.actions.values().filter(|action| action.first_page() == first);
        let pushes = variants.map(|action| action.pushes).max().unwrap_or(0);
        self.actions.entry(id).and_modify(|action| action.pushes = pushes);
    }

    /// Notes that what is known of runs that begin with `first` did not fit: up to `runs` of them
    /// should be seen exactly.
    pub fn doubt(&mut self, first: PageId, runs: u32) {
        if runs == 0 || self.doubted.iter().any(|(page, _)| *page == first) {
            return;
        }
        if self.doubted.len() >= DOUBTED_MAX {
            self.doubted.pop_front();
        }
        self.doubted.push_back((first, runs));
    }

    /// How many runs should be seen by what was noted, 0 by default; it is noted no more.
    pub fn take_doubt(&mut self, first: PageId) -> u32 {
        let place = self.doubted.iter().position(|(page, _)| *page == first);
        place.and_then(|place| self.doubted.remove(place)).map_or(0, |(_, runs)| runs)
    }

    /// Whether a run that strays from `id` should be seen exactly from there on.
    pub fn takes_stray(&mut self, id: ActionId) -> bool {
        let Some(in_vain) = self.in_vain.get_mut(&id) else { return true };
        let is_due = in_vain.left == 0;
        in_vain.left = in_vain.left.saturating_sub(1);
        is_due
    }

    /// Such a run was seen and taught something, or nothing: then it takes longer until another one
    /// is seen, each time twice as long.
    pub fn saw_stray(&mut self, id: ActionId, taught: bool) {
        if taught {
            self.in_vain.remove(&id);
            return;
        }
        self.in_vain.retain(|id, _| self.actions.contains_key(id));
        let in_vain = self.in_vain.entry(id).or_default();
        in_vain.runs = (in_vain.runs * 2 + 1).min(UNSEEN_MAX);
        in_vain.left = in_vain.runs;
    }

    /// Counts a cold start for which `id` is pushed; returns its number, from 1, or 0 if there is
    /// no such action.
    pub fn count_push(&mut self, id: ActionId) -> u64 {
        self.actions.get_mut(&id).map_or(0, |action| {
            action.pushes = action.pushes.saturating_add(1);
            action.pushes
        })
    }

    /// Removes the action used longest ago, and says which it was.
    pub fn remove_oldest(&mut self) -> Option<ActionId> {
        let id = self.iter().min_by_key(|action| (action.last_used, action.id))?.id;
        self.actions.remove(&id);
        Some(id)
    }

    /// Learns an exact run: refines the action that starts with the same page and overlaps it
    /// enough (the one that overlaps most), or adds a variant. A refined action is not credited:
    /// see [`ActionSet::credit`].
    pub fn learn(&mut self, run: &[PageId], config: &MergeConfig) -> Change {
        let run = first_touches(run, config.action_pages_max);
        match self.nearest(&run, config) {
            Some(id) => {
                let action = self.actions.get_mut(&id).expect("a variant is in the set");
                let outcome = Outcome::Refined(merge::refine(action, &run, config));
                Change { outcome, action: Some(id), removed: self.make_room(config, id) }
            }
            _ if run.is_empty() => Change::NOTHING,
            _ => self.create(run, 1, config),
        }
    }

    /// Learns a run that is of none of the variants that start with its first page, whether or not
    /// it touched the pages in `hidden`, which are too many to tell if there are none. Says which
    /// variant it is of, if that is known.
    pub fn learn_new(&mut self, run: &[PageId], hidden: Option<&HashSet<PageId>>, config: &MergeConfig) -> Change {
        let run = first_touches(run, config.action_pages_max);
        if let Some(id) = self.nearest(&run, config) {
            return Change { action: Some(id), ..Change::NOTHING };
        }
        let may_be_of = |action: &Action, hidden: &HashSet<PageId>| {
            let touched = action.pages.iter().filter(|page| hidden.contains(page));
            let run: Vec<PageId> = run.iter().chain(touched).copied().collect();
            likeness(action, &first_touches(&run, config.action_pages_max), config.overlap_percent).is_some()
        };
        let is_new = |first: &PageId, hidden: &HashSet<PageId>| {
            self.variants(*first).into_iter().all(|action| !may_be_of(action, hidden))
        };
        match (run.first(), hidden) {
            (Some(first), Some(hidden)) if is_new(first, hidden) => self.create(run, 0, config),
            _ => Change::NOTHING,
        }
    }

    /// Learns a run of which not every touch may have been seen, because of pushes, or of blocks
    /// that brought more than a page: adds its pages to the action that starts with the same page
    /// and overlaps it enough, or adds a variant. Never removes a page.
    pub fn learn_partial(&mut self, run: &[PageId], config: &MergeConfig) -> Change {
        let run = first_touches(run, config.action_pages_max);
        match self.nearest(&run, config) {
            Some(id) => {
                let known: HashSet<PageId> = self.actions[&id].pages.iter().copied().collect();
                let mut after = run[0];
                let mut extras = Vec::new();
                for page in run {
                    if known.contains(&page) {
                        after = page;
                    } else {
                        extras.push(Extra { after, page });
                    }
                }
                self.extend(id, &extras, config)
            }
            _ if run.is_empty() => Change::NOTHING,
            _ => self.create(run, 0, config),
        }
    }

    /// Adds pages that a run of `id` missed while pushes hid other touches. Never removes a page.
    pub fn extend(&mut self, id: ActionId, extras: &[Extra], config: &MergeConfig) -> Change {
        let Some(action) = self.actions.get_mut(&id) else { return Change::NOTHING };
        match merge::extend(action, extras, config) {
            0 => Change { action: Some(id), ..Change::NOTHING },
            added => {
                let removed = self.make_room(config, id);
                Change { outcome: Outcome::Extended(added), action: Some(id), removed }
            }
        }
    }

    /// The variant of the run's first page that it is a run of: the one most alike, of equal ones
    /// the best ranked.
    fn nearest(&self, run: &[PageId], config: &MergeConfig) -> Option<ActionId> {
        let variants = self.variants(*run.first()?).into_iter();
        let alike = variants.filter_map(|action| Some((likeness(action, run, config.overlap_percent)?, action.id)));
        alike.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, id)| id)
    }

    /// Adds an action that was taught by so many exact runs, or by one that was not.
    fn create(&mut self, pages: Vec<PageId>, runs: u32, config: &MergeConfig) -> Change {
        let mut removed = Vec::new();
        let variants = self.variants(pages[0]);
        // The worst guesses of this first page make room.
        for action in variants.iter().skip(config.variants_max.max(1) - 1) {
            removed.push(action.id);
        }
        for id in &removed {
            self.actions.remove(id);
        }
        let id = self.insert(pages, runs).id;
        self.credit(id);
        removed.extend(self.make_room(config, id));
        Change { outcome: Outcome::Created, action: Some(id), removed }
    }

    /// Adds an action of one run that nobody used.
    pub(crate) fn insert(&mut self, pages: Vec<PageId>, runs: u32) -> &mut Action {
        let id = ActionId(self.next_id);
        self.next_id += 1;
        let marks = vec![PageMark { runs: 1, misses: 0, extra: false }; pages.len()];
        self.actions.entry(id).or_insert(Action {
            id,
            revision: 0,
            uses: 0,
            pushes: 0,
            score: 0,
            last_used: 0,
            runs,
            stable: false,
            pages,
            marks,
        })
    }

    /// Removes the least recently used actions, never `keep`, until all bounds hold.
    fn make_room(&mut self, config: &MergeConfig, keep: ActionId) -> Vec<ActionId> {
        let mut pages_total = self.pages_total();
        let mut removed = Vec::new();
        while self.actions.len() > config.actions_max || pages_total > config.pages_total_max {
            let oldest =
                self.iter().filter(|action| action.id != keep).min_by_key(|action| (action.last_used, action.id));
            let Some((id, pages)) = oldest.map(|action| (action.id, action.pages.len())) else { break };
            self.actions.remove(&id);
            pages_total -= pages;
            removed.push(id);
        }
        removed
    }
}
