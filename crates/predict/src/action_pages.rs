//! The pages of one revision of an action. The index and the tokens that follow the action share
//! them.

use std::ops::Range;

use profile::Action;
use units::{ActionId, PageId};

/// A fixed copy of an action's pages with a lookup by page. A token keeps its copy while the action
/// is refined, so that positions stay what they were. Memory: 12 bytes a page.
///
/// Invariant: there is at least one page, and `by_page` has every position once.
#[derive(Debug)]
pub(crate) struct ActionPages {
    pub id: ActionId,
    pub revision: u32,
    pub pages: Vec<PageId>,
    /// Positions sorted by their page.
    by_page: Vec<u32>,
    /// Positions of extras, in order.
    extras: Vec<u32>,
}

impl ActionPages {
    pub fn new(action: &Action) -> ActionPages {
        let pages = action.pages.clone();
        assert!(!pages.is_empty() && pages.len() < u32::MAX as usize, "actions have pages, and few enough to number");
        let mut by_page: Vec<u32> = (0..pages.len() as u32).collect();
        by_page.sort_unstable_by_key(|position| pages[*position as usize]);
        ActionPages { id: action.id, revision: action.revision, pages, by_page, extras: extras(action).collect() }
    }

    /// Whether it is a copy of the action as it is now. An exact run that touched an extra where it
    /// was leaves the pages as they were.
    pub fn is_of(&self, action: &Action) -> bool {
        self.revision == action.revision && self.extras.iter().copied().eq(extras(action))
    }

    pub fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    /// The pages at these positions, as far as there are any.
    pub fn between(&self, positions: &Range<u32>) -> &[PageId] {
        self.pages.get(positions.start as usize..positions.end as usize).unwrap_or_default()
    }

    /// Whether the page at `position` was added by a run with hidden touches, and touched by no
    /// exact run since.
    pub fn is_extra(&self, position: u32) -> bool {
        self.extras.binary_search(&position).is_ok()
    }

    /// Where `page` stands in the action.
    pub fn position(&self, page: PageId) -> Option<u32> {
        let found = self.by_page.binary_search_by_key(&page, |position| self.pages[*position as usize]).ok()?;
        Some(self.by_page[found])
    }
}

/// Positions of extras.
fn extras(action: &Action) -> impl Iterator<Item = u32> {
    (0..).zip(&action.marks).filter(|(_, mark)| mark.extra).map(|(position, _)| position)
}
