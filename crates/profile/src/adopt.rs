//! Actions of another image, or of a trace, as a first guess of an image's own.

use units::PageId;

use crate::merge::likeness;
use crate::{Action, ActionSet, MergeConfig, Teacher, first_touches};

/// Part of an action (percent) that must be found for the rest to be worth pushing.
const PLACED_PERCENT_MIN: usize = 50;

/// Where a page of another image is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The page.
    pub page: PageId,
    /// It has the same content there.
    pub same: bool,
}

/// Actions of one other set that are taken: those used last.
const ACTIONS_MAX: usize = 512;

impl ActionSet {
    /// Takes over the actions of `other`, the one used last first, on the pages that `place` gives
    /// for theirs. Left out are actions whose first page or whose half is not found, those of which
    /// less than `same_percent` has the same content, those that the set had something like before,
    /// and those there is no room for. Returns how many came.
    ///
    /// None of them is proven here: no exact run speaks for their pages, and the second start that
    /// is pushed by one is an audit. Those that starts proved in `other` count half as much as
    /// there, so that runs of this image soon outweigh them; the rest was only taken over itself,
    /// and would count for nothing after a few versions. Of uses it is kept whether somebody
    /// followed them at all.
    pub fn adopt(
        &mut self,
        other: &ActionSet,
        config: &MergeConfig,
        same_percent: usize,
        mut place: impl FnMut(PageId) -> Option<Placed>,
    ) -> usize {
        let before = self.next_id;
        let mut room = (config.pages_total_max / 2).saturating_sub(self.pages_total());
        let mut adopted = Vec::new();
        for action in other.ranked().into_iter().take(ACTIONS_MAX) {
            let Some(pages) = placed(action, config, same_percent, &mut place) else { continue };
            let Some(first) = pages.first().filter(|_| pages.len() <= room) else { continue };
            let mut variants = self.variants(*first);
            // What others taught must keep nothing out.
            variants.retain(|known| [action.teacher, Teacher::ANYBODY].contains(&known.teacher));
            let is_known =
                |known: &&Action| known.id.0 < before && likeness(known, &pages, config.overlap_percent).is_some();
            if variants.iter().any(is_known)
                || variants.len() >= config.variants_max
                || self.actions.len() >= config.actions_max
            {
                continue;
            }
            room -= pages.len();
            let taken = self.insert(pages, action.runs.min(1));
            let is_proven = action.pushes > 0;
            taken.teacher = action.teacher;
            (taken.uses, taken.score) = (action.uses.clamp(1, 2), action.score >> u32::from(is_proven));
            adopted.push(taken.id);
        }
        // What was used last keeps being the most recent.
        for id in adopted.iter().rev() {
            self.clock += 1;
            let last_used = self.clock;
            self.actions.entry(*id).and_modify(|action| action.last_used = last_used);
        }
        adopted.len()
    }
}

/// The pages of an action where `place` puts them; `None` if too few are found.
fn placed(
    action: &Action,
    config: &MergeConfig,
    same_percent: usize,
    place: &mut impl FnMut(PageId) -> Option<Placed>,
) -> Option<Vec<PageId>> {
    let first = place(action.first_page())?;
    let rest = action.pages.iter().skip(1).filter_map(|page| place(*page));
    let found: Vec<Placed> = std::iter::once(first).chain(rest).collect();
    let same = found.iter().filter(|placed| placed.same).count();
    let pages: Vec<PageId> = found.iter().map(|placed| placed.page).collect();
    let pages = first_touches(&pages, config.action_pages_max);
    let all = action.pages.len();
    (pages.len() * 100 >= all * PLACED_PERCENT_MIN && same * 100 >= all * same_percent).then_some(pages)
}

#[cfg(test)]
mod tests {
    use units::{ImageId, InodeId};

    use super::*;

    const CONFIG: fn() -> MergeConfig = MergeConfig::default;

    fn pages(inode: u32, indexes: std::ops::Range<u32>) -> Vec<PageId> {
        indexes.map(|index| PageId::new(InodeId(inode), index)).collect()
    }

    fn learned(actions: &[Vec<PageId>]) -> ActionSet {
        let mut set = ActionSet::new(ImageId([1; 32]));
        actions.iter().for_each(|action| _ = set.learn(action, &CONFIG()));
        set
    }

    /// Files keep their pages from 10 on, one page further; other files have another number.
    fn moved(page: PageId) -> Option<Placed> {
        let index = if page.index < 10 { page.index } else { page.index + 1 };
        (page.inode.0 < 5).then(|| Placed { page: PageId::new(InodeId(page.inode.0 + 100), index), same: index < 10 })
    }

    #[test]
    fn actions_come_in_the_order_of_their_use_and_prove_themselves_anew() {
        let mut old = learned(&[pages(1, 0..50), pages(2, 0..20)]);
        (0..9).for_each(|_| old.credit(units::ActionId(1)));
        let mut set = ActionSet::new(ImageId([2; 32]));
        assert_eq!(set.adopt(&old, &CONFIG(), 0, moved), 2);
        let ranked: Vec<&Action> = set.ranked();
        let expected = [pages(101, 0..10), pages(101, 11..51)].concat();
        assert_eq!((&ranked[0].pages, ranked[0].uses, ranked[0].pushes), (&expected, 2, 0));
        assert_eq!(set.image(), ImageId([2; 32]));
        // The first exact run without a page is enough to drop it.
        let id = ranked[0].id;
        set.learn(&expected[..45], &CONFIG());
        assert_eq!(set.get(id).unwrap().pages, expected[..45]);
    }

    #[test]
    fn what_is_not_found_or_known_or_of_other_content_is_left_out() {
        let lost = [pages(9, 0..1), pages(1, 0..50)].concat();
        let mostly_lost = [pages(3, 0..10), pages(7, 0..20)].concat();
        let old = learned(&[lost, mostly_lost, pages(2, 0..12), pages(1, 0..50)]);
        let mut set = ActionSet::new(ImageId([2; 32]));
        set.learn(&pages(101, 0..51), &CONFIG());
        assert_eq!(set.adopt(&old, &CONFIG(), 0, moved), 1, "that of file 2");
        assert_eq!(set.adopt(&old, &CONFIG(), 0, moved), 0);
        assert_eq!(ActionSet::new(ImageId([2; 32])).adopt(&old, &CONFIG(), 50, moved), 1, "file 2 is mostly the same");
    }

    #[test]
    fn regress_versions_that_nobody_runs_keep_what_was_learned_once() {
        let here = |page| Some(Placed { page, same: true });
        // They have become alike in the course of their runs.
        let mut learned = ActionSet::new(ImageId([1; 32]));
        let ids = [50, 48].map(|count| {
            let id = learned.insert(pages(1, 0..count), 1).id;
            learned.credit(id);
            id
        });
        learned.count_push(ids[1]);
        let scores = |set: &ActionSet| set.ranked().iter().map(|action| action.score).collect::<Vec<_>>();
        let before = scores(&learned);
        let mut last = learned;
        for version in 2..40 {
            let mut next = ActionSet::new(ImageId([version; 32]));
            assert_eq!(next.adopt(&last, &CONFIG(), 0, here), 2);
            last = next;
        }
        assert_eq!(scores(&last), [before[0] / 2, before[1]], "the one that was pushed is to prove itself once");
    }
}
