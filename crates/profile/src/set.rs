//! All actions of one image.

use std::collections::{BTreeMap, HashSet, VecDeque};

use units::{ActionId, ImageId, PageId};

use crate::merge::{self, Extra, MergeConfig, likeness};
use crate::{Action, PageMark, Teacher, first_touches};

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
    pub(crate) doubted: VecDeque<((Teacher, PageId), u32)>,
    /// Actions whose last run that strayed was seen exactly and had nothing new. Not saved.
    pub(crate) in_vain: BTreeMap<(Teacher, ActionId), InVain>,
    /// Whose runs are learned just now. Not saved.
    pub(crate) teacher: Teacher,
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
    pub(crate) const NOTHING: Change = Change { outcome: Outcome::Nothing, action: None, removed: Vec::new() };
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
            teacher: Teacher::ANYBODY,
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

    /// Variants that start with `page`, the best guess first.
    pub fn variants(&self, page: PageId) -> Vec<&Action> {
        let mut found: Vec<&Action> = self.iter().filter(|action| action.first_page() == page).collect();
        found.sort_by(|one, other| other.rank(one));
        found
    }

    /// Counts a run that followed `id`, among the variants of its teacher. Of those of other
    /// teachers it is not counted.
    pub fn credit(&mut self, id: ActionId) {
        let Some(credited) = self.actions.get(&id).filter(|action| self.is_trusted(action)) else { return };
        let (first, teacher) = (credited.first_page(), credited.teacher);
        self.clock += 1;
        let is_variant = |action: &&mut Action| action.first_page() == first && action.teacher == teacher;
        for action in self.actions.values_mut().filter(is_variant) {
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
        let Some(preferred) = self.actions.get(&id).filter(|action| self.is_own(action)) else { return };
        let (first, teacher, most) = (preferred.first_page(), preferred.teacher, preferred.score / PREFERRED);
        let is_other =
            |action: &&mut Action| action.id != id && action.first_page() == first && action.teacher == teacher;
        for action in self.actions.values_mut().filter(is_other) {
            action.score = action.score.min(most);
        }
    }

    /// Counts the pushes of the other variants of its first page as those of `id`, so that its
    /// audits go on as theirs would.
    pub fn inherit_pushes(&mut self, id: ActionId) {
        let Some(known) = self.actions.get(&id).filter(|action| self.is_own(action)) else { return };
        let (first, teacher) = (known.first_page(), known.teacher);
        let is_variant = |action: &&Action| action.first_page() == first && action.teacher == teacher;
        let variants = self.actions.values().filter(is_variant);
        let pushes = variants.map(|action| action.pushes).max().unwrap_or(0);
        self.actions.entry(id).and_modify(|action| action.pushes = pushes);
    }

    /// Notes that what is known of runs that begin with `first` did not fit: up to `runs` of them
    /// should be seen exactly.
    pub fn doubt(&mut self, first: PageId, runs: u32) {
        let key = (self.teacher, first);
        if runs == 0 || self.doubted.iter().any(|(known, _)| *known == key) {
            return;
        }
        if self.doubted.len() >= DOUBTED_MAX {
            let own = self.doubted.iter().position(|((teacher, _), _)| *teacher == self.teacher);
            self.doubted.remove(own.unwrap_or(0));
        }
        self.doubted.push_back((key, runs));
    }

    /// How many runs should be seen by what was noted, 0 by default; it is noted no more.
    pub fn take_doubt(&mut self, first: PageId) -> u32 {
        let key = (self.teacher, first);
        let place = self.doubted.iter().position(|(known, _)| *known == key);
        place.and_then(|place| self.doubted.remove(place)).map_or(0, |(_, runs)| runs)
    }

    /// Whether a run that strays from `id` should be seen exactly from there on.
    pub fn takes_stray(&mut self, id: ActionId) -> bool {
        let Some(in_vain) = self.in_vain.get_mut(&(self.teacher, id)) else { return true };
        let is_due = in_vain.left == 0;
        in_vain.left = in_vain.left.saturating_sub(1);
        is_due
    }

    /// Such a run was seen and taught something, or nothing: then it takes longer until another one
    /// is seen, each time twice as long.
    pub fn saw_stray(&mut self, id: ActionId, taught: bool) {
        if taught {
            self.in_vain.remove(&(self.teacher, id));
            return;
        }
        self.in_vain.retain(|(_, id), _| self.actions.contains_key(id));
        let in_vain = self.in_vain.entry((self.teacher, id)).or_default();
        in_vain.runs = (in_vain.runs * 2 + 1).min(UNSEEN_MAX);
        in_vain.left = in_vain.runs;
    }

    /// Counts a cold start for which `id` is pushed; returns its number, from 1, or 0 if there is
    /// no such action, or only another teacher has it.
    pub fn count_push(&mut self, id: ActionId) -> u64 {
        let is_trusted = self.get(id).is_some_and(|action| self.is_trusted(action));
        self.actions.get_mut(&id).filter(|_| is_trusted).map_or(0, |action| {
            action.pushes = action.pushes.saturating_add(1);
            action.pushes
        })
    }

    /// Learns an exact run: refines the action that starts with the same page and overlaps it
    /// enough (the one that overlaps most), or adds a variant. A refined action is not credited:
    /// see [`ActionSet::credit`].
    pub fn learn(&mut self, run: &[PageId], config: &MergeConfig) -> Change {
        let run = first_touches(run, config.action_pages_max);
        match self.nearest(&run, config) {
            Some(id) if !self.is_own(&self.actions[&id]) => {
                self.change_copy(id, config, |copy| Outcome::Refined(merge::refine(copy, &run, config)))
            }
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
            let known = self.variants(*first).into_iter().filter(|action| self.is_trusted(action));
            known.into_iter().all(|action| !may_be_of(action, hidden))
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
        if self.get(id).is_some_and(|action| !self.is_own(action)) {
            return self.change_copy(id, config, |copy| Outcome::Extended(merge::extend(copy, extras, config)));
        }
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
        let first = run.first()?;
        let mut common = self.variants(*first);
        common.retain(|action| self.is_trusted(action));
        let nearest_of = |variants: Vec<&Action>| {
            let variants = variants.into_iter();
            let alike = variants.filter_map(|action| Some((likeness(action, run, config.overlap_percent)?, action.id)));
            alike.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, id)| id)
        };
        nearest_of(self.own_variants(*first)).or_else(|| nearest_of(common))
    }

    /// Adds an action that was taught by so many exact runs, or by one that was not.
    fn create(&mut self, pages: Vec<PageId>, runs: u32, config: &MergeConfig) -> Change {
        let mut removed = self.make_room_for_variant(pages[0], config);
        let id = self.insert(pages, runs).id;
        self.credit(id);
        removed.extend(self.make_room(config, id));
        Change { outcome: Outcome::Created, action: Some(id), removed }
    }

    /// Adds an action of one run that nobody used.
    pub(crate) fn insert(&mut self, pages: Vec<PageId>, runs: u32) -> &mut Action {
        // Numbers are drawn where several servers learn.
        while self.actions.contains_key(&ActionId(self.next_id)) {
            self.next_id += 1;
        }
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
            teacher: self.teacher,
            pages,
            marks,
        })
    }
}
