//! The learned actions of an image, with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use profile::{Action, ActionSet, Change, Outcome, Teacher};
use units::{ActionId, PageId};

use crate::Reader;
use crate::action_pages::ActionPages;
use crate::index::Index;
use crate::siblings::{Sibling, Siblings};

/// Memory of a page of an action: its number in the set, in the index and in its tables, and marks.
const PAGE_BYTES: usize = 56;

/// Actions and their index.
///
/// Invariants:
/// - The index has the pages of every action of the set, in its present revision.
/// - `reader` is whom the set takes for the teacher.
/// - `pages` is the sum of the pages of all actions.
/// - An action that changed or was removed since the last [`Actions::take_changed`] is in
///   `changed`.
#[derive(Debug)]
pub(super) struct Actions {
    set: ActionSet,
    index: Index,
    pages: usize,
    changed: BTreeSet<ActionId>,
    reader: Reader,
}

impl Actions {
    pub fn new(set: ActionSet) -> Actions {
        Actions {
            index: Index::new(&set),
            pages: set.pages_total(),
            set,
            changed: BTreeSet::new(),
            reader: Reader::default(),
        }
    }

    pub fn set(&self) -> &ActionSet {
        &self.set
    }

    /// Memory that it takes, in bytes, roughly.
    pub fn memory_bytes(&self) -> usize {
        self.pages * PAGE_BYTES
    }

    /// From now on this one's run is looked at. Whose was until now.
    pub fn read_as(&mut self, reader: Reader) -> Reader {
        self.set.teach_as(reader.teacher);
        std::mem::replace(&mut self.reader, reader)
    }

    /// Whose run is looked at.
    pub fn reader(&self) -> Reader {
        self.reader
    }

    /// Whether the action is the present teacher's own, or everybody's.
    pub fn is_trusted(&self, id: ActionId) -> bool {
        self.set.get(id).is_some_and(|action| self.set.is_trusted(action))
    }

    /// Actions changed or removed since the last call.
    pub fn take_changed(&mut self) -> Vec<ActionId> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    /// Learns pages of actions.
    pub fn learn(&mut self, lesson: impl FnOnce(&mut ActionSet) -> Change) -> Change {
        let change = lesson(&mut self.set);
        change.removed.iter().for_each(|id| self.forget(*id));
        self.pages = self.set.pages_total();
        if let Some(action) =
            change.action.and_then(|id| self.set.get(id)).filter(|_| change.outcome != Outcome::Nothing)
        {
            self.index.update(action);
            self.changed.insert(action.id);
        }
        change
    }

    /// Notes something about actions that leaves their pages as they are.
    pub fn note<R>(&mut self, note: impl FnOnce(&mut ActionSet) -> R) -> R {
        note(&mut self.set)
    }

    /// Takes another set in the place of the present one.
    pub fn replace(&mut self, set: ActionSet) {
        let before = std::mem::replace(&mut self.set, set);
        let gone: Vec<ActionId> = before.iter().map(|it| it.id).filter(|id| self.set.get(*id).is_none()).collect();
        gone.into_iter().for_each(|id| self.forget(id));
        for action in self.set.iter() {
            if before.get(action.id).is_none_or(|known| known.pages != action.pages) {
                // Pages of another server may be of the same revision.
                self.index.remove(action.id);
                self.index.update(action);
                self.changed.insert(action.id);
            }
        }
        self.pages = self.set.pages_total();
    }

    /// Drops the action used longest ago. False if there is none.
    pub fn remove_oldest(&mut self) -> bool {
        let removed = self.set.remove_oldest();
        removed.into_iter().for_each(|id| self.forget(id));
        removed.is_some()
    }

    fn forget(&mut self, id: ActionId) {
        self.index.remove(id);
        self.changed.insert(id);
        self.pages = self.set.pages_total();
    }

    /// Of the actions given, the best one that the present teacher trusts: its own before those of
    /// everybody, then by rank.
    fn best(&self, candidates: impl IntoIterator<Item = ActionId>) -> Option<Arc<ActionPages>> {
        self.best_of(candidates, |action| self.set.is_trusted(action))
    }

    fn best_of(
        &self,
        candidates: impl IntoIterator<Item = ActionId>,
        may_be: impl Fn(&Action) -> bool,
    ) -> Option<Arc<ActionPages>> {
        let actions = candidates.into_iter().filter_map(|id| self.set.get(id)).filter(|action| may_be(action));
        let is_own = |action| self.set.is_own(action);
        let best = actions.max_by(|one, other| is_own(one).cmp(&is_own(other)).then(one.rank(other)));
        best.and_then(|action| self.index.get(action.id)).cloned()
    }

    /// Whether an action starts with `page`.
    pub fn is_start(&self, page: PageId) -> bool {
        self.index.starters(page).iter().any(|id| self.is_trusted(*id))
    }

    /// The best action that starts with `page`; one that others taught if there is none else.
    pub fn best_start_of_all(&self, page: PageId) -> Option<Arc<ActionPages>> {
        self.best_start(page).or_else(|| self.best_of(self.index.starters(page).iter().copied(), |_| true))
    }

    /// The best action that starts with `page`.
    pub fn best_start(&self, page: PageId) -> Option<Arc<ActionPages>> {
        self.best(self.index.starters(page).iter().copied())
    }

    /// The best action that starts with `page` and of which `fits` is true.
    pub fn best_start_where(&self, page: PageId, fits: impl Fn(&ActionPages) -> bool) -> Option<Arc<ActionPages>> {
        let starters = self.index.starters(page).iter().copied();
        self.best(starters.filter(|id| self.index.get(*id).is_some_and(|action| fits(action))))
    }

    /// The actions of the same teacher that begin with the same page as `action`, at their first
    /// page.
    pub fn siblings(&self, action: &ActionPages) -> Siblings {
        let followed = self.set.get(action.id);
        let own = followed.map_or(0, |action| action.score);
        let is_alike = |other: &&Action| {
            let teacher = followed.map_or(Teacher::ANYBODY, |followed| followed.teacher);
            other.teacher == teacher || followed.is_some_and(|it| self.set.is_own(it)) && self.set.is_own(other)
        };
        let starters = self.index.starters(action.pages[0]).iter().filter(|id| **id != action.id);
        let mut others: Vec<&Action> = starters.filter_map(|id| self.set.get(*id)).filter(is_alike).collect();
        others.sort_by(|one, other| other.rank(one));
        let sibling = |other: &Action| Some(Sibling::new(Arc::clone(self.index.get(other.id)?), other.score));
        Siblings::new(own, others.into_iter().filter_map(sibling).collect())
    }

    /// The best action that holds `page`, and where.
    pub fn best_holder(&self, page: PageId) -> Option<(Arc<ActionPages>, u32)> {
        let action = self.best(self.index.holders(page).iter().copied())?;
        let position = action.position(page).expect("the index holds what its actions do");
        Some((action, position))
    }

    /// The best action other than `not` that starts with `first` and has all of `pages` close
    /// together: an action with all kinds of pages has any few of them somewhere.
    pub fn having(&self, first: PageId, pages: &[PageId], not: ActionId) -> Option<Arc<ActionPages>> {
        self.best_start_where(first, |action| {
            let positions: Option<Vec<u32>> = pages.iter().map(|page| action.position(*page)).collect();
            let positions = positions.unwrap_or_default();
            let (Some(first), Some(last)) = (positions.iter().min(), positions.iter().max()) else { return false };
            action.id != not && ((last - first) as usize) < pages.len() * 2
        })
    }

    /// The action that holds most of `misses`, at least half of them, and where the last of them
    /// lies.
    pub fn explaining(&self, misses: &[PageId]) -> Option<(Arc<ActionPages>, u32)> {
        let mut held: BTreeMap<ActionId, usize> = BTreeMap::new();
        for page in misses {
            for id in self.index.holders(*page).iter().filter(|id| self.is_trusted(**id)) {
                *held.entry(*id).or_default() += 1;
            }
        }
        let most = held.values().copied().max()?;
        if most * 2 < misses.len() {
            return None;
        }
        let action = self.best(held.into_iter().filter(|(_, count)| *count == most).map(|(id, _)| id))?;
        let last = misses.iter().rev().find_map(|page| action.position(*page))?;
        Some((action, last))
    }
}
