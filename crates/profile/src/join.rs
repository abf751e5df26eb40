//! Joining what several servers have learned of one image since they last had the same set.
//!
//! Each server knows the set that it had in common with the others, its own, and the one of the
//! store. What only one of them changed is taken as it is. What both changed is taken by rules that
//! give the same whoever comes first, how often whoever comes, and who stays away: counts add up,
//! and of two orders of pages the one with more exact runs behind it stays. So no action that
//! anybody learned is lost, but for the bounds of a set.
//!
//! Servers draw the numbers of new actions from different ranges ([`ActionSet::number_from`]).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use units::{ActionId, PageId};

use crate::{Action, ActionSet, MergeConfig, Teacher};

impl ActionSet {
    /// New actions are numbered from here on.
    pub fn number_from(&mut self, first: u64) {
        self.next_id = first;
    }

    /// What comes of `ours` and `theirs`, which both come from `base`, within the bounds of
    /// `config`. New actions are numbered as in `ours`.
    #[must_use]
    pub fn join(base: &ActionSet, ours: &ActionSet, theirs: &ActionSet, config: &MergeConfig) -> ActionSet {
        let ids: BTreeSet<ActionId> = ours.actions.keys().chain(theirs.actions.keys()).copied().collect();
        let joined = ids.into_iter().filter_map(|id| {
            let (base, ours, theirs) = (base.get(id), ours.get(id), theirs.get(id));
            let action = match (ours, theirs) {
                (Some(ours), Some(theirs)) => join(base, ours, theirs),
                // Whoever removed it did not know what the other one learned.
                (Some(one), None) | (None, Some(one)) => Some(one).filter(|one| base != Some(one))?.clone(),
                (None, None) => return None,
            };
            Some((id, action))
        });
        let mut set = ActionSet { clock: ours.clock.max(theirs.clock), actions: joined.collect(), ..ours.clone() };
        set.bound(config);
        set
    }

    /// Removes actions until all bounds hold, the same ones whatever order they came in.
    fn bound(&mut self, config: &MergeConfig) {
        let mut variants: BTreeMap<(PageId, Teacher), Vec<&Action>> = BTreeMap::new();
        for action in self.actions.values() {
            variants.entry((action.first_page(), action.teacher)).or_default().push(action);
        }
        let mut surplus = Vec::new();
        for mut variants in variants.into_values().filter(|variants| variants.len() > config.variants_max) {
            variants.sort_by(|one, other| other.rank(one));
            surplus.extend(variants[config.variants_max..].iter().map(|action| action.id));
        }
        surplus.iter().for_each(|id| drop(self.actions.remove(id)));
        while (self.len() > config.actions_max || self.pages_total() > config.pages_total_max)
            && self.remove_oldest().is_some()
        {}
    }
}

/// An action that both have.
fn join(base: Option<&Action>, ours: &Action, theirs: &Action) -> Action {
    if base == Some(ours) {
        return theirs.clone();
    }
    if base == Some(theirs) {
        return ours.clone();
    }
    let counted = |of: fn(&Action) -> u64| {
        let before = base.map_or(0, of);
        of(ours).saturating_add(of(theirs).saturating_sub(before)).max(of(theirs))
    };
    let score = match base.map(|base| base.score) {
        Some(before) if before == ours.score => theirs.score,
        Some(before) if before == theirs.score => ours.score,
        _ => ours.score.max(theirs.score),
    };
    let is_unchanged = |action: &Action| base.is_some_and(|base| by_pages(base, action) == Ordering::Equal);
    let taken = match (is_unchanged(ours), is_unchanged(theirs)) {
        (true, _) => theirs,
        (_, true) => ours,
        _ if by_pages(ours, theirs) == Ordering::Less => theirs,
        _ => ours,
    };
    Action {
        uses: counted(|action| action.uses),
        pushes: counted(|action| action.pushes),
        score,
        last_used: ours.last_used.max(theirs.last_used),
        ..taken.clone()
    }
}

/// Which pages are better proven; equal only if all that is known of them is the same.
fn by_pages(one: &Action, other: &Action) -> Ordering {
    let key = |action: &Action| (action.runs, action.revision, action.stable, action.pages.len());
    let marks = |action: &Action| -> Vec<(PageId, u32, u8, bool)> {
        let marked = action.pages.iter().zip(&action.marks);
        marked.map(|(page, mark)| (*page, mark.runs, mark.misses, mark.extra)).collect()
    };
    key(one).cmp(&key(other)).then_with(|| marks(one).cmp(&marks(other)))
}

#[cfg(test)]
mod tests;
