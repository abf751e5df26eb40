//! Whose runs taught which actions.
//!
//! Those who use one image need not trust each other. What a teacher's runs say changes its own
//! actions only, and when there are too many, those of the teacher with the most make room. Of an
//! action that others taught, a run that differs makes a copy.

use std::collections::BTreeMap;

use units::{ActionId, PageId};

use crate::{Action, ActionSet, Change, MergeConfig, Outcome};

/// Whose runs they are, as a number that others choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Teacher(pub u64);

impl Teacher {
    /// Nobody in particular: what it taught is everybody's, and it may change everything.
    pub const ANYBODY: Teacher = Teacher(0);
}

/// A teacher other than [`Teacher::ANYBODY`] has so many parts in one of what a set may hold.
const TEACHER_PART: usize = 4;

/// What a teacher has in a set.
#[derive(Clone, Copy, Default)]
struct Held {
    actions: usize,
    pages: usize,
}

impl Held {
    fn exceeds(self, config: &MergeConfig, part: usize) -> bool {
        self.actions > config.actions_max / part || self.pages > config.pages_total_max / part
    }
}

impl ActionSet {
    /// From now on runs of this teacher are learned. Whose were until now.
    pub fn teach_as(&mut self, teacher: Teacher) -> Teacher {
        std::mem::replace(&mut self.teacher, teacher)
    }

    /// Whether runs of the present teacher may change the action.
    pub fn is_own(&self, action: &Action) -> bool {
        self.teacher == Teacher::ANYBODY || action.teacher == self.teacher
    }

    /// Whether the action is the present teacher's own, or everybody's.
    pub fn is_trusted(&self, action: &Action) -> bool {
        self.is_own(action) || action.teacher == Teacher::ANYBODY
    }

    /// Has `lesson` change an action that the present teacher may not change: in a copy, which is
    /// kept if its pages changed.
    pub(crate) fn change_copy(
        &mut self,
        id: ActionId,
        config: &MergeConfig,
        lesson: impl FnOnce(&mut Action) -> Outcome,
    ) -> Change {
        let Some(known) = self.actions.get(&id) else { return Change::NOTHING };
        let mut copy = known.clone();
        let outcome = lesson(&mut copy);
        if copy.revision == known.revision {
            return Change { action: Some(id), ..Change::NOTHING };
        }
        let mut removed = self.make_room_for_variant(copy.first_page(), config);
        let id = ActionId(self.next_id);
        self.next_id += 1;
        self.clock += 1;
        self.actions.insert(id, Action { id, teacher: self.teacher, last_used: self.clock, ..copy });
        removed.extend(self.make_room(config, id));
        Change { outcome, action: Some(id), removed }
    }

    /// Variants of the present teacher that start with `page`, the best guess first.
    pub(crate) fn own_variants(&self, page: PageId) -> Vec<&Action> {
        let mut found = self.variants(page);
        found.retain(|action| self.is_own(action));
        found
    }

    /// Removes the worst guesses of a first page until there is room for another one.
    pub(crate) fn make_room_for_variant(&mut self, first: PageId, config: &MergeConfig) -> Vec<ActionId> {
        let variants = self.own_variants(first);
        let removed: Vec<_> = variants.iter().skip(config.variants_max.max(1) - 1).map(|action| action.id).collect();
        for id in &removed {
            self.actions.remove(id);
        }
        removed
    }

    /// All actions, the most recently used first; of several teachers in turn, so that the first
    /// ones are not all of him who teaches most.
    pub fn ranked(&self) -> Vec<&Action> {
        let mut all: Vec<&Action> = self.iter().collect();
        all.sort_by(|one, other| other.last_used.cmp(&one.last_used).then(one.id.cmp(&other.id)));
        let mut counts: BTreeMap<Teacher, usize> = BTreeMap::new();
        let place = |action: &Action| {
            let count = counts.entry(action.teacher).or_default();
            *count += 1;
            *count
        };
        let places: Vec<usize> = all.iter().copied().map(place).collect();
        let mut placed: Vec<(usize, &Action)> = places.into_iter().zip(all).collect();
        placed.sort_by_key(|(place, _)| *place);
        placed.into_iter().map(|(_, action)| action).collect()
    }

    /// Removes an action, the one used longest ago of the teacher with the most pages, and says
    /// which it was.
    pub fn remove_oldest(&mut self) -> Option<ActionId> {
        let most = self.held().into_iter().max_by_key(|(_, held)| held.pages).map(|(teacher, _)| teacher)?;
        let id = self.oldest_of(most, None)?;
        self.actions.remove(&id);
        Some(id)
    }

    /// Removes the least recently used actions, never `keep`, until all bounds hold: of the present
    /// teacher while it has more than its part, then of whoever has the most.
    pub(crate) fn make_room(&mut self, config: &MergeConfig, keep: ActionId) -> Vec<ActionId> {
        let mut held = self.held();
        let mut removed = Vec::new();
        loop {
            let own = held.get(&self.teacher).copied().unwrap_or_default();
            let all = held.values().fold(Held::default(), |sum, held| Held {
                actions: sum.actions + held.actions,
                pages: sum.pages + held.pages,
            });
            let from = if self.teacher != Teacher::ANYBODY && own.exceeds(config, TEACHER_PART) {
                Some(self.teacher)
            } else if all.exceeds(config, 1) {
                let is_many = all.actions > config.actions_max;
                // Of equals it is the present one.
                let most = |(teacher, held): &(&Teacher, &Held)| {
                    (if is_many { held.actions } else { held.pages }, **teacher == self.teacher)
                };
                held.iter().max_by_key(most).map(|(teacher, _)| *teacher)
            } else {
                None
            };
            let Some((from, id)) = from.and_then(|from| Some((from, self.oldest_of(from, Some(keep))?))) else {
                return removed;
            };
            let Some(action) = self.actions.remove(&id) else { return removed };
            let left = held.entry(from).or_default();
            (left.actions, left.pages) = (left.actions - 1, left.pages - action.pages.len());
            removed.push(id);
        }
    }

    fn held(&self) -> BTreeMap<Teacher, Held> {
        let mut all: BTreeMap<Teacher, Held> = BTreeMap::new();
        for action in self.actions.values() {
            let held = all.entry(action.teacher).or_default();
            (held.actions, held.pages) = (held.actions + 1, held.pages + action.pages.len());
        }
        all
    }

    fn oldest_of(&self, teacher: Teacher, keep: Option<ActionId>) -> Option<ActionId> {
        let theirs = self.iter().filter(|action| action.teacher == teacher && Some(action.id) != keep);
        theirs.min_by_key(|action| (action.last_used, action.id)).map(|action| action.id)
    }
}

#[cfg(test)]
mod tests {
    use units::{ImageId, InodeId};

    use super::*;

    const ONE: Teacher = Teacher(1);
    const OTHER: Teacher = Teacher(2);

    fn run(inode: u32, pages: u32) -> Vec<PageId> {
        (0..pages).map(|index| PageId::new(InodeId(inode), index)).collect()
    }

    fn learned(set: &mut ActionSet, teacher: Teacher, run: &[PageId], config: &MergeConfig) -> Change {
        set.teach_as(teacher);
        set.learn(run, config)
    }

    #[test]
    fn a_flood_evicts_only_what_the_same_teacher_taught() {
        let config = MergeConfig { actions_max: 40, pages_total_max: 1000, ..MergeConfig::default() };
        let mut set = ActionSet::new(ImageId([1; 32]));
        for inode in 0..8 {
            learned(&mut set, ONE, &run(inode, 20), &config);
        }
        let before: Vec<Action> = set.iter().cloned().collect();
        for inode in 100..400 {
            let change = learned(&mut set, OTHER, &run(inode, 24), &config);
            assert_eq!(change.outcome, Outcome::Created);
        }
        let (one, other): (Vec<_>, Vec<_>) = set.iter().cloned().partition(|action| action.teacher == ONE);
        assert_eq!((one, other.len()), (before.clone(), 10));
        // The same of one that nobody knows, as far as there is room.
        for inode in 500..600 {
            learned(&mut set, Teacher::ANYBODY, &run(inode, 24), &config);
        }
        assert!(before.iter().all(|action| set.get(action.id) == Some(action)));
        let first: Vec<Teacher> = set.ranked().iter().take(3).map(|action| action.teacher).collect();
        assert_eq!(first.iter().filter(|teacher| **teacher == ONE).count(), 1, "{first:?}");
        assert!(set.remove_oldest().is_some_and(|id| before.iter().all(|action| action.id != id)));
    }

    #[test]
    fn nobody_changes_what_others_taught() {
        let config = MergeConfig::default();
        let mut set = ActionSet::new(ImageId([1; 32]));
        let known = learned(&mut set, ONE, &run(1, 40), &config).action.unwrap();
        let common = learned(&mut set, Teacher::ANYBODY, &run(2, 40), &config).action.unwrap();
        let before = [known, common].map(|id| set.get(id).unwrap().clone());
        set.teach_as(OTHER);
        let mut odd = run(1, 40);
        odd.extend(run(9, 3));
        for _ in 0..20 {
            set.learn(&odd, &config);
            set.learn(&odd[..30], &config);
            set.credit(known);
            set.prefer(known);
            set.count_push(known);
            set.doubt(PageId::new(InodeId(1), 0), 3);
        }
        for noise in 0..20 {
            // Other variants of its first page.
            let mut run = run(1, 1);
            run.extend((0..30).map(|index| PageId::new(InodeId(50 + noise), index)));
            set.learn(&run, &config);
        }
        let extras = [crate::Extra { after: before[1].pages[3], page: PageId::new(InodeId(7), 0) }];
        let copy = set.extend(common, &extras, &config);
        assert_eq!(copy.outcome, Outcome::Extended(1));
        let copy = set.get(copy.action.unwrap()).unwrap();
        assert_eq!((copy.teacher, copy.pages.len()), (OTHER, 41));
        for action in &before {
            assert_eq!(set.get(action.id), Some(action));
        }
        set.teach_as(ONE);
        assert_eq!(set.take_doubt(PageId::new(InodeId(1), 0)), 0, "it is the other's doubt");
    }

    #[test]
    fn teachers_are_saved() {
        let mut set = ActionSet::new(ImageId([1; 32]));
        learned(&mut set, Teacher(u64::MAX), &run(1, 40), &MergeConfig::default());
        learned(&mut set, Teacher::ANYBODY, &run(2, 40), &MergeConfig::default());
        let decoded = crate::decode(&set.encode(), &crate::Limits::default()).unwrap();
        assert_eq!(decoded, set);
    }
}
