//! The steps of streaming: a window of segments ahead of the program.
//!
//! Touches of pushed pages are invisible. Only misses are seen, and the first page of each pushed
//! segment, which the client holds back for that purpose. So:
//!
//! - The first page of a known action starts the push at once, with the variant that ranks best.
//! - A visible touch a little further on in the action is progress. Each confirmed segment doubles
//!   the lookahead.
//! - Several actions may begin alike. Little is pushed that a likely one of them lacks, and the run
//!   turns to one that has its last touches close ahead where the followed one has not
//!   ([`crate::siblings`]).
//! - A touch in the action, but far from where the run was, holds the push back. A second one close
//!   to it says that the run goes on there.
//! - A touch outside the action is a miss, remembered as an extra. If misses come in a row, then
//!   the program does something else: another action that begins with them, or that explains most
//!   of them, or something new to construct.
//! - Misses that lie in one or two files, of which one is new, say less: python compiles a module
//!   that has changed, with pages of its own that it did not use before, and goes on as ever. The
//!   push goes on, too.
//! - A run that comes back to the action it left takes it up again.
//!
//! In an audit every touch is visible, so the whole order is recorded as one action, whatever
//! happens to the push.
//!
//! Any device may have taught the known actions. So if they do not fit a run (it left the first one
//! at once, or turned from one to another several times), the next run with the same first page is
//! audited, and the action that an audit learns is the best guess of its first page from then on.
//! One start finds out that the known actions are wrong, the next one learns the right one.
//!
//! A run that was in an action for a while and then goes its own way is audited from there on, and
//! learned as an action of its own if it is new. Several programs that begin alike may be run in
//! turn, so up to [`super::DOUBTED_RUNS`] starts are audited until one is new. The more such audits
//! were in vain, the fewer runs are audited.

use std::sync::Arc;

use profile::Action;
use units::PageId;

use super::run::{Run, State};
use super::{ActionPredictor, Follow, TURNS_MAX};
use crate::action_pages::ActionPages;
use crate::follow::{RETURN_HITS, Span};
use crate::siblings::Turn;

impl ActionPredictor {
    /// One touch in streaming mode. Returns whether to cancel, and what to push.
    pub(super) fn step_streaming(&mut self, run: &mut Run, page: PageId) -> (bool, Option<Span>) {
        match std::mem::take(&mut run.state) {
            State::New => (false, self.stream_first(run, page)),
            State::Follow(follow) => self.stream_follow(run, follow, page),
            State::Construct { left_hits, hint } => self.stream_construct(run, left_hits, hint, page),
        }
    }

    fn stream_first(&mut self, run: &mut Run, page: PageId) -> Option<Span> {
        run.first = Some(page);
        run.doubted = if self.actions.reader().teaches { self.actions.note(|set| set.take_doubt(page)) } else { 0 };
        run.audited = run.doubted > 0;
        self.counters.audits += u64::from(run.audited);
        if let Some(action) = self.actions.best_start_of_all(page) {
            return self.start(run, action, vec![page]);
        }
        run.record_anew(vec![page]);
        match self.actions.best_holder(page) {
            Some((action, position)) => {
                self.counters.rescans += 1;
                let ahead = self.config.lookahead_found;
                let span = self.follow_from(run, action, position, ahead);
                if let State::Follow(follow) = &mut run.state {
                    follow.found = true;
                }
                span
            }
            None => {
                self.counters.constructs += 1;
                run.state = State::construct();
                None
            }
        }
    }

    /// Begins `action` at its first page. `touched` are the touches since then, the first page
    /// included.
    fn start(&mut self, run: &mut Run, action: Arc<ActionPages>, touched: Vec<PageId>) -> Option<Span> {
        let last = *touched.last().expect("a start has a touch");
        let position = action.position(last).unwrap_or(0);
        let siblings = self.actions.siblings(&action);
        let mut follow = Follow::new(action, position, self.config.lookahead_first);
        follow.siblings = siblings;
        follow.confirmed = position > 0;
        // Between the first page and the last touch there may be pages that were not touched yet.
        follow.through = if position == 1 { 2 } else { 1 };
        // A run that had pages pushed cannot be exact any more, so it does not count towards the
        // next audit. One that was audited so far stays so to its end, and its record goes on.
        let goes_on = run.audited && !run.recorded.is_empty();
        // What others taught stays as they taught it.
        if !run.pushed && self.actions.reader().teaches && self.actions.is_trusted(follow.action.id) {
            let push = self.actions.note(|set| set.count_push(follow.action.id));
            let may_lack = self.action(follow.action.id).is_some_and(Action::may_lack_pages);
            let audited =
                run.audited || self.config.audits.include(push) || may_lack && self.config.audits.precede(push);
            self.counters.audits += u64::from(audited && !run.audited);
            run.audited = audited;
        }
        if !goes_on {
            run.record_anew(if run.audited { touched } else { Vec::new() });
        }
        follow.audited = run.audited;
        let span = follow.order(follow.lookahead, &self.config);
        run.state = State::Follow(follow);
        span
    }

    /// Follows `action` from the page after `position`, which was touched.
    fn follow_from(&mut self, run: &mut Run, action: Arc<ActionPages>, position: u32, lookahead: u32) -> Option<Span> {
        let mut follow = Follow::new(action, position, lookahead);
        (follow.confirmed, follow.start) = (true, position);
        if !run.audited {
            run.record_anew(Vec::new());
        }
        follow.audited = run.audited;
        let span = follow.order(lookahead, &self.config);
        run.state = State::Follow(follow);
        span
    }

    fn stream_follow(&mut self, run: &mut Run, mut follow: Follow, page: PageId) -> (bool, Option<Span>) {
        let pages_max = self.config.merge.action_pages_max;
        let new = if run.audited { run.record(page, pages_max) } else { !run.seen.contains(&page) };
        let position = follow.action.position(page);
        let is_step = position.is_some_and(|position| follow.is_step(position, &self.config));
        if !is_step && position.is_some_and(|position| follow.is_last_place(position)) {
            run.state = State::Follow(follow);
            return (false, None);
        }
        if new && let Some(turn) = follow.turns(page, is_step, &self.config) {
            return (true, self.turn(run, follow, turn));
        }
        if let Some(position) = position {
            return self.hit(run, follow, position, is_step);
        }
        if !new || run.seen.len() >= pages_max {
            run.state = State::Follow(follow);
            return (false, None);
        }
        run.seen.insert(page);
        self.counters.mismatches += 1;
        follow.miss(page);
        self.missed(run, follow, page)
    }

    /// A touch within the followed action, which is a step of the run or not.
    fn hit(&mut self, run: &mut Run, mut follow: Follow, position: u32, is_step: bool) -> (bool, Option<Span>) {
        let (cancel, span) = if is_step {
            self.counters.matches += u64::from(position > follow.progress);
            (false, follow.stream(position, &self.config))
        } else if follow.is_near_place(position, &self.config) {
            self.audit_rest(run, &follow);
            follow.audited = run.audited;
            follow.stray(position, &self.config);
            (true, follow.order(follow.lookahead, &self.config))
        } else {
            follow.stray(position, &self.config);
            run.hold = Some(follow.through);
            (false, None)
        };
        run.state = State::Follow(follow);
        (cancel, span)
    }

    /// The run is of another action that begins alike.
    fn turn(&mut self, run: &mut Run, follow: Follow, turn: Turn) -> Option<Span> {
        self.counters.rescans += 1;
        run.turns += u32::from(!follow.proven());
        let mut follow = follow.turned(turn, &self.config);
        let span = follow.order(follow.lookahead, &self.config);
        run.state = State::Follow(follow);
        span
    }

    /// The run goes another way than `follow`: what it touches from here on is seen and recorded,
    /// to be learned with what it has touched so far. That is not known of a run that was found, or
    /// has moved, in the middle of the action. Of runs that vary here and there few are audited.
    fn audit_rest(&mut self, run: &mut Run, follow: &Follow) {
        let is_known = follow.proven() && !follow.found && follow.start == 0;
        if run.audited || !is_known || self.is_frozen() || self.config.audits.first == 0 {
            return;
        }
        let from = follow.action.id;
        if run.strayed.replace(from).is_some() || !self.actions.note(|set| set.takes_stray(from)) {
            return;
        }
        self.counters.audits += 1;
        run.audited = true;
        run.record_anew(follow.path(&self.config));
        run.rest_audited = true;
    }

    /// Decides what a miss means.
    fn missed(&mut self, run: &mut Run, mut follow: Follow, page: PageId) -> (bool, Option<Span>) {
        if let Some(position) = run.left.as_ref().and_then(|left| left.action.position(page)) {
            // A page that only the other one has says that the run is there, behind the last page
            // of both.
            let reached = follow.action.pages.get(follow.progress as usize);
            let both = run.left.as_ref().zip(reached).and_then(|(left, page)| left.action.position(*page));
            let position = both.unwrap_or(position).min(position);
            follow.take_misses();
            let (is_proven, mut left) = (follow.proven(), *run.left.take().expect("the page lies in it"));
            self.drop_follow(run, follow);
            if !is_proven {
                // What begins with its last misses was not it: they are its own.
                std::mem::take(&mut left.misses).into_iter().for_each(|page| left.miss(page));
            }
            return (true, self.come_back(run, left, position, page));
        }
        if let Some((action, position)) = self.told_apart(&follow) {
            let lookahead = (follow.lookahead / 2).max(1);
            return (true, self.switch(run, follow, (action, position), lookahead));
        }
        if let Some(next) = self.actions.best_start(page).filter(|_| follow.at_end(&self.config)) {
            self.leave(run, follow, false);
            return (true, self.start(run, next, vec![page]));
        }
        let misses = follow.misses.len() as u32;
        if misses < self.config.miss_limit || !misses.is_multiple_of(self.config.miss_limit.max(1)) {
            run.state = State::Follow(follow);
            return (false, None);
        }
        if let Some(explaining) = self.actions.explaining(&follow.misses) {
            // It may be no more than a part of it that the run is in.
            let lookahead = self.config.lookahead_found.max(1);
            return (true, self.switch(run, follow, explaining, lookahead));
        }
        if follow.at_end(&self.config) && misses <= self.config.segment_pages {
            // A few pages past the end extend the action.
            run.state = State::Follow(follow);
            return (false, None);
        }
        if follow.is_detour(&self.config) {
            run.state = State::Follow(follow);
            return (false, None);
        }
        self.counters.constructs += 1;
        follow.lookahead = (follow.lookahead / 2).max(1);
        if !follow.at_end(&self.config) {
            self.audit_rest(run, &follow);
        }
        if !run.audited {
            run.record_anew(follow.misses.clone());
        }
        self.leave(run, follow, true);
        run.state = State::construct();
        (true, None)
    }

    /// The action that a few misses point to: it begins with one of them and has those after it.
    fn told_apart(&self, follow: &Follow) -> Option<(Arc<ActionPages>, u32)> {
        let misses = &follow.misses[..];
        let begun = |start: usize| self.actions.having(misses[start], &misses[start..], follow.action.id);
        let starts = if misses.len() >= self.config.narrow_misses.max(1) as usize { misses.len() - 1 } else { 0 };
        let action = (0..starts).find_map(begun)?;
        let last = misses.last().and_then(|page| action.position(*page))?;
        Some((action, last))
    }

    /// Leaves one action for another, which has the misses: the last one at this position.
    fn switch(
        &mut self,
        run: &mut Run,
        follow: Follow,
        (action, position): (Arc<ActionPages>, u32),
        lookahead: u32,
    ) -> Option<Span> {
        self.counters.rescans += 1;
        let (sibling, proven) = (action.pages[0] == follow.action.pages[0], follow.proven());
        if sibling && !proven {
            // The run was of the other variant from its start.
            run.turns += 1;
        } else {
            if !sibling && !follow.at_end(&self.config) {
                self.audit_rest(run, &follow);
            }
            self.leave(run, follow, false);
        }
        let span = self.follow_from(run, action, position, lookahead);
        if let State::Follow(next) = &mut run.state {
            next.uncredited = sibling && proven;
        }
        span
    }

    /// The run turns from an action to something that began with its last misses. What it was in
    /// for more than a moment, or `in_any_case`, is kept for it to come back to, unless another is
    /// kept already.
    fn leave(&mut self, run: &mut Run, mut follow: Follow, in_any_case: bool) {
        let taken = follow.take_misses();
        let misses = taken.len() as u32;
        follow.misses = taken;
        run.turns += match misses < self.config.miss_limit {
            _ if run.turns == 0 && !follow.proven() => TURNS_MAX,
            true => 1,
            false => 2,
        };
        follow.uncredited |= follow.progress < follow.action.len() / 2;
        if run.left.is_none() && (in_any_case || follow.proven()) {
            run.left = Some(Box::new(follow));
        } else {
            self.drop_follow(run, follow);
        }
    }

    /// The run is done with an action. An audit learns by its record instead.
    fn drop_follow(&mut self, run: &Run, follow: Follow) {
        if !run.audited {
            self.close_follow(follow);
        }
    }

    fn stream_construct(
        &mut self,
        run: &mut Run,
        left_hits: u32,
        hint: Option<PageId>,
        page: PageId,
    ) -> (bool, Option<Span>) {
        let left = run.left.as_ref();
        let ahead = left.and_then(|left| left.action.position(page).filter(|at| *at > left.progress));
        let left_hits = left_hits + u32::from(ahead.is_some());
        if let (Some(position), true) = (ahead, left_hits >= RETURN_HITS) {
            let left = *run.left.take().expect("a touch ahead lies in the action left");
            return (false, self.come_back(run, left, position, page));
        }
        let new = run.record(page, self.config.merge.action_pages_max);
        if let Some(action) = hint.filter(|_| new).and_then(|first| self.second_page(first, page)) {
            if let Some(left) = run.left.take_if(|left| !left.proven()) {
                self.drop_follow(run, *left);
            }
            let since = run.recorded.split_off(run.recorded.len() - 2);
            if run.audited {
                run.recorded.extend(&since);
            } else {
                self.close_construct(&run.recorded);
            }
            return (false, self.start(run, action, since));
        }
        let hint = (new && self.actions.is_start(page)).then_some(page);
        run.state = State::Construct { left_hits, hint };
        (false, None)
    }

    /// The action that starts with `first` and has `page` within its first segment, its second page
    /// for preference.
    fn second_page(&self, first: PageId, page: PageId) -> Option<Arc<ActionPages>> {
        let within = |limit: u32| {
            let fits = |at: u32| at > 0 && at < limit;
            self.actions.best_start_where(first, |action| action.position(page).is_some_and(fits))
        };
        within(2).or_else(|| within(self.config.segment_pages))
    }

    /// Takes up the action that the run had left.
    fn come_back(&mut self, run: &mut Run, mut follow: Follow, position: u32, page: PageId) -> Option<Span> {
        if run.audited {
            run.record(page, self.config.merge.action_pages_max);
        } else {
            let recorded = std::mem::take(&mut run.recorded);
            let own: Vec<PageId> =
                recorded.into_iter().filter(|page| follow.action.position(*page).is_none()).collect();
            if own.len() as u32 > self.config.segment_pages {
                self.close_construct(&own);
            } else {
                own.into_iter().for_each(|page| follow.miss(page));
            }
        }
        // What was ordered was cancelled: the new sequence begins behind the touch.
        self.counters.rescans += 1;
        run.turns = 0;
        follow.uncredited = false;
        follow.progress = position;
        follow.through = position + 1;
        follow.begun = false;
        follow.misses.clear();
        follow.confirmed = true;
        follow.audited = run.audited;
        let span = follow.order(follow.lookahead, &self.config);
        run.state = State::Follow(follow);
        span
    }
}
