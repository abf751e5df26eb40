//! The state of one token between its touches.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use units::{ActionId, Moment, PageId};

use crate::action_pages::ActionPages;
use crate::follow::Follow;
use crate::{Phase, Reader};

/// Spans of pages that are kept of what a run was pushed. One with more is not learned as new.
const HIDDEN_MAX: usize = 16;

/// A token's run through actions.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub state: State,
    /// For whom it is predicted, and whether he teaches.
    pub reader: Reader,
    /// Key in the table of idle tokens.
    pub last_touch: (Moment, u64),
    /// First touches in order: of a construct, or of an audit from its start.
    pub recorded: Vec<PageId>,
    /// Pages in `recorded`, and those that were missed.
    pub seen: HashSet<PageId>,
    /// Pages were pushed to this run, so that its touches are not all visible any more.
    pub pushed: bool,
    /// The run is an audit: every touch is visible, and `recorded` has all since it began.
    pub audited: bool,
    /// It is one only since it strayed; before, touches were hidden.
    pub rest_audited: bool,
    /// The action from which it went another way first.
    pub strayed: Option<ActionId>,
    /// What it was pushed before it was an audit, and may have touched.
    pub hidden: Hidden,
    /// It is an audit because the known actions had not fitted a run with the same first page: so
    /// many may be for that, with this one. Otherwise 0.
    pub doubted: u32,
    /// Its first touch.
    pub first: Option<PageId>,
    /// Position from which on nothing is to be pushed for now, by the touch that is looked at.
    pub hold: Option<u32>,
    /// How often it turned from an action to something else; turning for good counts twice.
    pub turns: u32,
    /// The action that was left in the middle, in case the run comes back to it.
    pub left: Option<Box<Follow>>,
}

#[derive(Debug, Default)]
#[expect(clippy::large_enum_variant, reason = "a run is in the large one most of its time")]
pub(super) enum State {
    /// Before the first touch.
    #[default]
    New,
    Follow(Follow),
    Construct {
        /// Touches that lay ahead in the action that was left.
        left_hits: u32,
        /// The touch before this one was the first page of a known action.
        hint: Option<PageId>,
    },
}

/// Pages that were pushed to a run, so that its touches of them are not all visible.
#[derive(Debug, Default)]
pub(super) struct Hidden(Vec<(Arc<ActionPages>, Range<u32>)>);

impl Hidden {
    /// Adds the pages from one position to another one.
    pub fn add(&mut self, action: &Arc<ActionPages>, from: u32, through: u32) {
        if let Some((last, span)) = self.0.last_mut()
            && Arc::ptr_eq(last, action)
            && span.end == from
        {
            span.end = through;
        } else if self.0.len() <= HIDDEN_MAX {
            self.0.push((Arc::clone(action), from..through));
        }
    }

    /// The pages; `None` if there were more spans of them than are kept.
    pub fn pages(&self) -> Option<HashSet<PageId>> {
        let pages = |(action, span): &(Arc<ActionPages>, Range<u32>)| {
            action.pages[span.start as usize..span.end as usize].to_vec()
        };
        (self.0.len() <= HIDDEN_MAX).then(|| self.0.iter().flat_map(pages).collect())
    }
}

impl State {
    pub fn construct() -> State {
        State::Construct { left_hits: 0, hint: None }
    }
}

impl Run {
    pub fn phase(&self) -> Phase {
        match &self.state {
            State::New | State::Construct { .. } => Phase::Construct,
            State::Follow(follow) if follow.confirmed => Phase::Generate,
            State::Follow(_) => Phase::Match,
        }
    }

    pub fn follow(&self) -> Option<&Follow> {
        match &self.state {
            State::Follow(follow) => Some(follow),
            _ => None,
        }
    }

    /// Records a touch; false if the page was recorded before, or `pages_max` are.
    pub fn record(&mut self, page: PageId, pages_max: usize) -> bool {
        let new = self.seen.len() < pages_max && self.seen.insert(page);
        if new {
            self.recorded.push(page);
        }
        new
    }

    /// Starts the record afresh with `pages`.
    pub fn record_anew(&mut self, pages: Vec<PageId>) {
        self.seen = pages.iter().copied().collect();
        self.recorded = pages;
    }

    /// Pages held in memory for this run.
    pub fn pages_held(&self) -> usize {
        // A page takes 32 bytes, and a position that is compared with siblings one.
        let held = |follow: &Follow| follow.extras.len() + follow.siblings.bytes() / 32;
        self.seen.len() + self.follow().map_or(0, held) + self.left.as_deref().map_or(0, held)
    }
}
