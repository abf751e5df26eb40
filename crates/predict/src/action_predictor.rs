//! SYSFLOW's Predictor: construct, match and generate, for many tokens at once.
//!
//! The steps are in `streaming` and `paper`. Here is what both share: how a touch is dispatched,
//! and what is learned when a run ends. `actions` owns the learned actions, `runs` the tokens.

mod actions;
mod paper;
mod run;
mod runs;
mod streaming;

use std::collections::HashSet;

use profile::{Action, ActionSet, Change, Extra, MergeConfig, Outcome};
use units::{ActionId, ImageId, Moment, PageId, Token};

use self::actions::Actions;
use self::run::{Run, State};
use self::runs::{Held, Runs};
use crate::follow::{Follow, Span};
use crate::{Config, Ended, Mode, Phase, Predictor, PushOrder, Reader, Verdict};

/// Turns from one action to another after which the next run with the same first page is an audit.
/// A run of a few actions in a row makes one or two.
const TURNS_MAX: u32 = 3;

/// Pages of an action that an audit did not touch, in percent, from which on another audit follows.
const UNTOUCHED_PERCENT: usize = 10;

/// Runs that are audited because one did not fit, until one is new: it may be one of several that
/// are run in turn.
const DOUBTED_RUNS: u32 = 4;

/// What the predictor did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Touches taken in.
    pub touches: u64,
    /// Runs that were recorded as unknown, from their start or after a mismatch.
    pub constructs: u64,
    /// Actions made.
    pub created: u64,
    /// Exact runs merged into an action.
    pub refined: u64,
    /// Pages added to actions by runs that were not exact.
    pub extended_pages: u64,
    /// Touches that confirmed an action at a match point (paper) or moved a run forward
    /// (streaming).
    pub matches: u64,
    /// Touches outside the followed action.
    pub mismatches: u64,
    /// Times that a run was found in an action other than by its first page.
    pub rescans: u64,
    /// Pages ordered to be pushed.
    pub generated_pages: u64,
    /// Runs begun as audits.
    pub audits: u64,
    /// Runs closed because their token was idle.
    pub expired: u64,
    /// Runs closed to make room for others.
    pub crowded_out: u64,
}

/// Learns actions from touches and predicts by them. See the crate's introduction.
///
/// Memory ([`ActionPredictor::memory_bytes`]): the set and its index (about 50 MB at the bound of a
/// million pages in all actions), at most `tokens_max` tokens, and at most `recorded_pages_max`
/// recorded pages.
#[derive(Debug)]
pub struct ActionPredictor {
    config: Config,
    actions: Actions,
    runs: Runs,
    counters: Counters,
}

impl ActionPredictor {
    /// A predictor that knows nothing of `image` yet.
    pub fn new(image: ImageId, config: Config) -> ActionPredictor {
        ActionPredictor::with_actions(ActionSet::new(image), config)
    }

    /// A predictor that goes on from a saved set.
    pub fn with_actions(set: ActionSet, config: Config) -> ActionPredictor {
        let config = Config { segment_pages: config.segment_pages.max(2), ..config };
        ActionPredictor { config, actions: Actions::new(set), runs: Runs::default(), counters: Counters::default() }
    }

    /// The constants in use.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All actions: encode them to save them.
    pub fn actions(&self) -> &ActionSet {
        self.actions.set()
    }

    /// One action.
    pub fn action(&self, id: ActionId) -> Option<&Action> {
        self.actions.set().get(id)
    }

    /// What `token` is doing; `None` if it is unknown.
    pub fn phase(&self, token: Token) -> Option<Phase> {
        self.runs.get(token).map(Run::phase)
    }

    /// The action that `token` follows.
    pub fn followed(&self, token: Token) -> Option<ActionId> {
        self.runs.get(token).and_then(Run::follow).map(|follow| follow.action.id)
    }

    /// Whether `token` follows an action from its start that has `page`, and has left it for
    /// nothing else lately: then a push brings the rest of what it needs.
    pub fn foresees(&self, token: Token, page: PageId) -> bool {
        let follow = self.runs.get(token).and_then(Run::follow);
        follow.is_some_and(|follow| follow.is_from_start() && follow.action.position(page).is_some())
    }

    /// Whether `token` follows an action from its start step by step.
    pub fn is_in_step(&self, token: Token) -> bool {
        self.runs.get(token).and_then(Run::follow).is_some_and(Follow::is_from_start)
    }

    /// Tokens that are tracked.
    pub fn tokens(&self) -> usize {
        self.runs.len()
    }

    /// What it did so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Memory that it takes, in bytes, roughly.
    pub fn memory_bytes(&self) -> usize {
        self.actions.memory_bytes() + self.runs.memory_bytes()
    }

    /// Comes down to `bytes` of memory: closes the tokens idle longest, then drops the actions used
    /// longest ago, each time of the teacher who has most. The token touched last stays.
    pub fn shrink_to(&mut self, bytes: usize) {
        while self.memory_bytes() > bytes && self.runs.len() > 1 && self.close_idlest(Held::memory_bytes, true) {}
        while self.memory_bytes() > bytes && self.actions.remove_oldest() {}
    }

    /// Goes on with what others learned as well ([`ActionSet::join`]). Runs keep the pages that
    /// they follow.
    pub fn join(&mut self, base: &ActionSet, theirs: &ActionSet) {
        self.actions.replace(ActionSet::join(base, self.actions.set(), theirs, &self.config.merge));
    }

    /// Actions changed or removed since the last call: their bundles are out of date. Runs can end
    /// within a touch (a token moves on to another action, or makes room), so this tells more than
    /// [`Ended::changed`].
    pub fn take_changed(&mut self) -> Vec<ActionId> {
        self.actions.take_changed()
    }

    /// Turns positions into an order and counts it.
    fn push(&mut self, run: &mut Run, span: Option<Span>) -> Option<PushOrder> {
        let (from, through) = span?;
        let State::Follow(follow) = &mut run.state else { return None };
        assert!(from < through && through <= follow.action.len(), "an order lies within its action");
        let (action, revision, audit) = (follow.action.id, follow.action.revision, run.audited);
        let begins = !std::mem::replace(&mut follow.begun, true);
        let order = PushOrder { action, revision, from, through, begins, audit };
        self.counters.generated_pages += u64::from(through - from);
        if !audit {
            run.pushed = true;
            run.hidden.add(&follow.action, from, through);
        }
        Some(order)
    }

    /// Learns from a run, and counts the outcome.
    fn learn(&mut self, lesson: impl FnOnce(&mut ActionSet, &MergeConfig) -> Change) -> Change {
        let change = self.actions.learn(|set| lesson(set, &self.config.merge));
        match change.outcome {
            Outcome::Created => self.counters.created += 1,
            Outcome::Refined(_) => self.counters.refined += 1,
            Outcome::Extended(pages) => self.counters.extended_pages += pages as u64,
            Outcome::Nothing => {}
        }
        change
    }

    /// Learns what a run that was not exact taught of an action that it followed.
    fn close_follow(&mut self, follow: Follow) -> (Option<ActionId>, bool) {
        let action = follow.action.id;
        if self.is_frozen() || !follow.confirmed || follow.found && follow.hits == 0 {
            return (Some(action), false);
        }
        if !follow.uncredited && !follow.siblings.is_first_likelier() {
            // A run that did not come to the end step by step may have come to that of a shorter
            // one.
            let is_last = follow.progress.saturating_add(self.config.segment_pages) >= follow.action.len();
            let is_over = is_last && follow.start == 0;
            let ended = if is_over { None } else { follow.siblings.ended(self.config.segment_pages) };
            self.actions.note(|set| set.credit(ended.unwrap_or(action)));
        }
        let change = self.learn(|set, merge| set.extend(action, &follow.extras, merge));
        (Some(action), change.outcome != Outcome::Nothing)
    }

    /// Learns the whole order of an audit. It says more than any number of runs that were not
    /// exact, so the variant that it went to becomes the best guess of its first page. If the audit
    /// was because of a doubt, a new variant is audited soon again, as after any first run.
    fn close_audit(&mut self, recorded: &[PageId], doubted: u32) -> (Option<ActionId>, bool) {
        let change = self.learn(|set, merge| set.learn(recorded, merge));
        let changed = change.outcome != Outcome::Nothing;
        let Some(id) = change.action else { return (None, changed) };
        self.actions.note(|set| {
            match change.outcome {
                Outcome::Refined(_) => set.credit(id),
                _ if doubted == 0 => set.inherit_pushes(id),
                _ => {}
            }
            set.prefer(id);
        });
        let marks = self.action(id).map_or(&[][..], |action| &action.marks);
        let untouched = marks.iter().filter(|mark| mark.misses > 0).count();
        // A second audit in a row drops them. Or it is one of several programs that taught them.
        let is_odd = untouched * 100 > marks.len() * UNTOUCHED_PERCENT;
        let more = if doubted > 0 { 1 } else { DOUBTED_RUNS };
        let again = if is_odd { more } else { 0 };
        // Unless this is new, it was not this run that did not fit.
        let others = if change.outcome == Outcome::Created { 0 } else { doubted.saturating_sub(1) };
        self.doubt(recorded[0], again.max(others));
        (change.action, changed)
    }

    /// Learns the order of a run that is an audit since it went another way: if that is new, as an
    /// action, otherwise what it had beside the action that it is of.
    fn close_rest(&mut self, recorded: &[PageId], hidden: Option<HashSet<PageId>>) -> (Option<ActionId>, bool) {
        let change = self.learn(|set, merge| set.learn_new(recorded, hidden.as_ref(), merge));
        match (change.outcome, change.action) {
            (Outcome::Nothing, Some(id)) => self.close_known(id, recorded),
            // It may have touched what it was pushed, or not.
            (Outcome::Nothing, None) => {
                self.doubt(recorded[0], 1);
                (None, false)
            }
            (_, action) => {
                self.doubt(recorded[0], DOUBTED_RUNS);
                (action, true)
            }
        }
    }

    /// Learns the pages of a run of `id` that the action has not: few together as its own, more as
    /// an action that others may have, too.
    fn close_known(&mut self, id: ActionId, recorded: &[PageId]) -> (Option<ActionId>, bool) {
        let Some(action) = self.action(id) else { return (None, false) };
        let known: HashSet<PageId> = action.pages.iter().copied().collect();
        let few = self.config.segment_pages as usize;
        let (mut groups, mut after, mut between) = (vec![Vec::new()], recorded[0], 0);
        for page in recorded {
            if known.contains(page) {
                (after, between) = (*page, between + 1);
                continue;
            }
            if std::mem::take(&mut between) > few {
                groups.push(Vec::new());
            }
            groups.last_mut().expect("there is a group").push(Extra { after, page: *page });
        }
        let (own, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.len() <= few);
        let mut changed = false;
        for group in others {
            let pages: Vec<PageId> = group.iter().map(|extra| extra.page).collect();
            changed |= self.close_construct(&pages).1;
        }
        let change = self.learn(|set, merge| set.extend(id, &own.concat(), merge));
        (Some(id), changed | (change.outcome != Outcome::Nothing))
    }

    /// Has the next runs that begin with `first` audited: its known actions did not fit.
    fn doubt(&mut self, first: PageId, runs: u32) {
        if self.config.audits.first != 0 && !self.is_frozen() {
            self.actions.note(|set| set.doubt(first, runs));
        }
    }

    /// Makes an action of pages recorded while constructing, if they are enough.
    fn close_construct(&mut self, pages: &[PageId]) -> (Option<ActionId>, bool) {
        if self.is_frozen() || pages.len() < self.config.construct_pages_min as usize {
            return (None, false);
        }
        let change = self.learn(|set, merge| set.learn_partial(pages, merge));
        if let Some(id) = change.action.filter(|_| change.outcome != Outcome::Created) {
            self.actions.note(|set| set.credit(id));
        }
        (change.action, change.outcome != Outcome::Nothing)
    }

    fn close(&mut self, token: Token, run: Run) -> Ended {
        // It may be another one's than the one that is looked at.
        let reader = self.actions.read_as(run.reader);
        let ended = self.close_own(token, run);
        self.actions.read_as(reader);
        ended
    }

    /// Whether nothing is learned of the run that is looked at.
    fn is_frozen(&self) -> bool {
        self.config.frozen || !self.actions.reader().teaches
    }

    fn close_own(&mut self, token: Token, mut run: Run) -> Ended {
        if let Some(first) = run.first.filter(|_| run.turns >= TURNS_MAX && !run.audited) {
            self.doubt(first, DOUBTED_RUNS);
        }
        let learns = !self.is_frozen() && run.recorded.len() >= self.config.construct_pages_min as usize;
        if run.audited && learns {
            let (action, changed) = match run.rest_audited {
                true => {
                    let (action, changed) = self.close_rest(&run.recorded, run.hidden.pages());
                    let taught = changed || action.is_none();
                    run.strayed.into_iter().for_each(|from| self.actions.note(|set| set.saw_stray(from, taught)));
                    (action, changed)
                }
                false => self.close_audit(&run.recorded, run.doubted),
            };
            return Ended { token, action, changed };
        }
        let left = run.left.take().map_or((None, false), |left| self.close_follow(*left));
        let last = match run.state {
            State::New => (None, false),
            State::Follow(follow) => self.close_follow(follow),
            State::Construct { .. } => self.close_construct(&run.recorded),
        };
        Ended { token, action: last.0.or(left.0), changed: last.1 | left.1 }
    }

    /// Ends a token's run if it is tracked.
    fn close_token(&mut self, token: Token) -> Ended {
        match self.runs.take(token) {
            Some(run) => self.close(token, run),
            None => Ended { token, action: None, changed: false },
        }
    }

    /// Closes the token idle longest until there is room for another.
    fn make_room_for_token(&mut self) {
        while self.runs.len() >= self.config.tokens_max.max(1) && self.close_idlest(Held::tokens, false) {}
    }

    /// Closes the tokens idle longest until the recorded pages are few enough. The one touched just
    /// now stays: alone it is bounded by the pages of an action.
    fn make_room_for_pages(&mut self) {
        while self.runs.recorded_pages() > self.config.recorded_pages_max
            && self.runs.len() > 1
            && self.close_idlest(Held::recorded_pages, true)
        {}
    }

    /// Closes the token idle longest of the teacher who has most of what `measure` says, but not
    /// the one touched last if that is kept.
    fn close_idlest(&mut self, measure: fn(&Held) -> usize, keeps_last: bool) -> bool {
        let Some(token) = self.runs.idlest(measure, keeps_last) else { return false };
        self.close_token(token);
        self.counters.crowded_out += 1;
        true
    }

    /// Whether a run has been idle for so long that it is over.
    fn is_over(&self, run: &Run, now: Moment) -> bool {
        let idle = now.since(run.last_touch.0);
        let patience = match &run.state {
            State::Follow(follow) if !follow.at_end(&self.config) => self.config.linger,
            _ => self.config.construction_timer,
        };
        idle >= patience
    }

    /// A touch by a run of `reader`: its own actions and those of everybody are what is predicted
    /// by, and no others change. Only where neither has one that begins so, others' count.
    pub fn touch_of(&mut self, reader: Reader, token: Token, page: PageId, now: Moment) -> Verdict {
        self.actions.read_as(reader);
        self.counters.touches += 1;
        let late = self.runs.get(token).is_some_and(|run| self.is_over(run, now));
        if late {
            // The run is over although `expire` was not called in time. This touch begins another.
            self.close_token(token);
            self.counters.expired += 1;
        }
        let mut run = match self.runs.take(token) {
            Some(run) => run,
            None => {
                self.make_room_for_token();
                Run::default()
            }
        };
        run.reader = reader;
        let (cancel, span) = match self.config.mode {
            Mode::Streaming => self.step_streaming(&mut run, page),
            Mode::Paper => self.step_paper(&mut run, page),
        };
        let push = self.push(&mut run, span);
        let verdict = Verdict { phase: run.phase(), push, cancel, hold: run.hold.take() };
        self.runs.put(token, run, now);
        self.make_room_for_pages();
        verdict
    }
}

impl Predictor for ActionPredictor {
    fn touch(&mut self, token: Token, page: PageId, now: Moment) -> Verdict {
        self.touch_of(Reader::default(), token, page, now)
    }

    fn end(&mut self, token: Token, _now: Moment) -> Ended {
        self.close_token(token)
    }

    fn expire(&mut self, now: Moment) -> Vec<Ended> {
        let over = self.runs.matching(|run| self.is_over(run, now));
        self.counters.expired += over.len() as u64;
        over.into_iter().map(|token| self.close_token(token)).collect()
    }

    fn pages(&self, token: Token, order: &PushOrder) -> &[PageId] {
        let follow = self.runs.get(token).and_then(Run::follow);
        follow
            .filter(|follow| follow.action.id == order.action && follow.action.revision == order.revision)
            .and_then(|follow| follow.action.pages.get(order.from as usize..order.through as usize))
            .unwrap_or(&[])
    }
}
