//! One action and its counters.

use std::cmp::Ordering;
use std::ops::Range;

use units::{ActionId, PageId, SEGMENT_PAGES_MAX, SegmentIndex};

use crate::Teacher;

/// The ordered pages that one task of one program touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Its number in the set; never reused.
    pub id: ActionId,
    /// Grows by one whenever `pages` change, so that a bundle made from older pages differs
    /// from a current one.
    pub revision: u32,
    /// Runs that followed it, the one that made it included.
    pub uses: u64,
    /// Cold starts for which it was pushed; decides which runs are audits.
    pub pushes: u64,
    /// Recent use among the variants of one first page: every use of one of them takes a quarter
    /// from all, and gives [`Action::SCORE_USE`] to the one used. Two to three uses in a row bring
    /// a newcomer to the top.
    pub score: u32,
    /// The set's use counter at its last use: the larger, the more recent.
    pub last_used: u64,
    /// Exact runs merged into it. 0: the runs that taught it may have touched pages unseen
    /// ([`Action::may_lack_pages`]).
    pub runs: u32,
    /// The last exact run changed little, so its pages are worth a bundle.
    pub stable: bool,
    /// Whose runs taught it.
    pub teacher: Teacher,
    /// Pages in first-touch order, without duplicates, never empty.
    pub pages: Vec<PageId>,
    /// Bookkeeping of each page, in the order of `pages`.
    pub marks: Vec<PageMark>,
}

/// What is known of one page of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageMark {
    /// Runs that touched it (exact ones, and the one that added it).
    pub runs: u32,
    /// Exact runs since the last one that touched it.
    pub misses: u8,
    /// Added by a run that was not exact, and touched by no exact run since.
    pub extra: bool,
}

impl Action {
    /// What one use adds to the score.
    pub const SCORE_USE: u32 = 1 << 16;

    /// Whether it was taught by runs of which not every touch was seen. A device fetches blocks,
    /// and uses what the kernel has of them without a word; pushed pages hide more. So it may have
    /// holes, and a run that has more pages may still be one of it.
    pub fn may_lack_pages(&self) -> bool {
        self.runs == 0
    }

    /// Segments of 32 pages; the last one may be shorter.
    pub fn segments(&self) -> u32 {
        self.pages.len().div_ceil(SEGMENT_PAGES_MAX) as u32
    }

    /// Positions in `pages` that segment `index` covers; empty if there is no such segment.
    pub fn segment(&self, index: SegmentIndex) -> Range<usize> {
        let start = (index.0 as usize).saturating_mul(SEGMENT_PAGES_MAX).min(self.pages.len());
        start..start.saturating_add(SEGMENT_PAGES_MAX).min(self.pages.len())
    }

    /// The page whose touch at a cold start points to this action.
    pub fn first_page(&self) -> PageId {
        self.pages[0]
    }

    /// Greater means: a better guess. By score, then recency, then use, then age.
    pub fn rank(&self, other: &Action) -> Ordering {
        let key = |action: &Action| (action.score, action.last_used, action.uses);
        key(self).cmp(&key(other)).then(other.id.cmp(&self.id))
    }
}
