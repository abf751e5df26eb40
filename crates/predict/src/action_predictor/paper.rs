//! The steps of SYSFLOW. Positions below count from 1 as in the paper; segments have SEG_MAX pages.
//!
//! - The first page of a known action: match, position 1. Nothing is pushed yet.
//! - The second page: match, position 2; the rest of the segment is pushed. Among actions with the
//!   same first page the second one decides.
//! - Position SEG_MAX-2 and the first page of each later segment: match; the next segment is
//!   pushed. So each segment costs one round trip, and the program waits for none of it as long as
//!   it touches a segment for longer than that.
//! - Anything else is a mismatch: the page is looked for in all segments of all actions. If one has
//!   it, the rest of that segment is pushed; else a new action is constructed, one page per
//!   request, until the token is idle for 3 s or ends.

use std::sync::Arc;

use units::PageId;

use super::run::{Run, State};
use super::{ActionPredictor, Follow};
use crate::action_pages::ActionPages;
use crate::follow::Span;

impl ActionPredictor {
    /// One touch in paper mode. Returns whether to cancel, and what to push.
    pub(super) fn step_paper(&mut self, run: &mut Run, page: PageId) -> (bool, Option<Span>) {
        match std::mem::take(&mut run.state) {
            State::New => (false, self.paper_first(run, page)),
            State::Construct { .. } => {
                run.record(page, self.config.merge.action_pages_max);
                run.state = State::construct();
                (false, None)
            }
            State::Follow(follow) => self.paper_follow(run, follow, page),
        }
    }

    fn paper_first(&mut self, run: &mut Run, page: PageId) -> Option<Span> {
        match self.actions.best_start_of_all(page) {
            Some(action) => {
                run.record_anew(vec![page]);
                run.state = State::Follow(Follow::new(action, 0, 0));
                None
            }
            None => self.paper_search(run, None, vec![page]),
        }
    }

    fn paper_follow(&mut self, run: &mut Run, mut follow: Follow, page: PageId) -> (bool, Option<Span>) {
        let position = follow.action.position(page);
        if position.is_some_and(|position| position <= follow.progress) {
            run.state = State::Follow(follow);
            return (false, None);
        }
        if !follow.confirmed {
            return self.paper_second(run, follow, page);
        }
        match position {
            Some(position) if position < follow.through => {
                let span = follow.pace(position, &self.config);
                self.counters.matches += u64::from(span.is_some());
                run.state = State::Follow(follow);
                (false, span)
            }
            // The next page after the pushed ones: the first of a segment.
            Some(position) if position == follow.through => {
                self.counters.matches += 1;
                follow.progress = position;
                follow.through = position + 1;
                let span = follow.order(0, &self.config);
                run.state = State::Follow(follow);
                (false, span)
            }
            _ => {
                self.counters.mismatches += 1;
                let current = Arc::clone(&follow.action);
                self.close_follow(follow);
                (true, self.paper_search(run, Some(current), vec![page]))
            }
        }
    }

    /// The touch after a match at position 1.
    fn paper_second(&mut self, run: &mut Run, follow: Follow, page: PageId) -> (bool, Option<Span>) {
        let first = follow.action.pages[0];
        let fits = |action: &ActionPages| action.pages.get(1) == Some(&page);
        // The action at hand may be of a revision that the index has no more.
        let own = fits(&follow.action).then(|| Arc::clone(&follow.action));
        match own.or_else(|| self.actions.best_start_where(first, fits)) {
            Some(action) => {
                self.counters.matches += 1;
                let mut follow = Follow::new(action, 1, 0);
                follow.confirmed = true;
                let span = follow.order(0, &self.config);
                run.state = State::Follow(follow);
                (false, span)
            }
            None => {
                self.counters.mismatches += 1;
                (false, self.paper_search(run, Some(follow.action), vec![first, page]))
            }
        }
    }

    /// Looks for the last of `pages` in all actions, `current` first; else constructs an action
    /// that begins with `pages`.
    fn paper_search(&mut self, run: &mut Run, current: Option<Arc<ActionPages>>, pages: Vec<PageId>) -> Option<Span> {
        let page = *pages.last().expect("a search is for a page");
        let current = current.and_then(|action| action.position(page).map(|position| (action, position)));
        let Some((action, position)) = current.or_else(|| self.actions.best_holder(page)) else {
            self.counters.constructs += 1;
            run.record_anew(pages);
            run.state = State::construct();
            return None;
        };
        self.counters.rescans += 1;
        let mut follow = Follow::new(action, position, 0);
        follow.confirmed = true;
        let span = follow.order(0, &self.config);
        run.state = State::Follow(follow);
        span
    }
}
