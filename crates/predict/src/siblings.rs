//! Which of several actions that begin alike a run is of.
//!
//! Each has odds: how much it was used lately, divided by [`MISFIT`] for each touch that it does
//! not have close ahead, if another one has. A touch that it has makes up for one that it has not,
//! since runs of one action differ here and there. While two are about as likely, only what both
//! have is worth pushing far ahead. One that was hardly used lately counts, too, until a touch
//! speaks against it.

use std::ops::Range;
use std::sync::Arc;

use units::{ActionId, PageId};

use crate::action_pages::ActionPages;

/// A touch that does not fit makes an action so many times less likely. Not all pages are touched
/// in the same order in every run, so one touch is no proof.
const MISFIT: u32 = 4;

/// An action so many times less likely than the one that is followed is not reckoned with: two
/// touches that do not fit.
const UNLIKELY: u32 = MISFIT * MISFIT;

/// Touches in a row that make a run turn: the paper's match at positions 1 and 2.
const SIGNS_MIN: u32 = 2;

/// Positions between two of them. What a run touches by chance lies scattered.
const SIGN_PAGES: u32 = 8;

/// Most actions that are compared, one bit each; a first page has no more variants by default.
pub(crate) const SIBLINGS_MAX: usize = 8;

/// Touches that do not fit, at most: a run that goes another way for long and comes back is not of
/// the action any more.
const MISFITS_MAX: u32 = 64;

/// How likely an action is.
#[derive(Clone, Copy, Debug, Default)]
struct Odds {
    /// Recent use.
    score: u32,
    /// Touches that did not fit, less those that did.
    misfits: u32,
}

/// An action that the run may be of.
#[derive(Clone, Debug)]
pub(crate) struct Sibling {
    action: Arc<ActionPages>,
    odds: Odds,
    /// Furthest position that the run has come to, step by step.
    progress: u32,
    /// Position of the last touch that it has.
    last: u32,
    /// Touches in a row that lie close together in it, and not in what is followed.
    signs: u32,
}

/// What a run may be of besides what is followed.
///
/// Invariant: there are at most [`SIBLINGS_MAX`] others. Bit `k` of element `i` of `lacking` says
/// that `others[k]` does not have the page at position `start + i` of what is followed.
#[derive(Debug, Default)]
pub(crate) struct Siblings {
    /// Odds of what is followed.
    odds: Odds,
    others: Vec<Sibling>,
    /// The one of them that the run was taken for at first.
    first: Option<usize>,
    start: u32,
    lacking: Vec<u8>,
    /// Positions before `start` that each of the others lacks.
    passed: [u32; SIBLINGS_MAX],
}

/// A run is rather of a sibling.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub sibling: usize,
    /// Where the touch lies in it.
    pub position: u32,
}

impl Odds {
    fn now(self) -> u32 {
        self.score / MISFIT.saturating_pow(self.misfits)
    }

    fn touched(&mut self, fits: bool) {
        self.misfits = if fits { self.misfits.saturating_sub(1) } else { MISFITS_MAX.min(self.misfits + 1) };
    }
}

impl Sibling {
    /// An action that was used so much lately, at its first page.
    pub fn new(action: Arc<ActionPages>, score: u32) -> Sibling {
        Sibling { action, odds: Odds { score, misfits: 0 }, progress: 0, last: 0, signs: 0 }
    }

    /// Where `page` lies, if that is at most `near` positions ahead. A page that a run with hidden
    /// touches added is no sign of the action, unless it `fits` what is followed, too.
    fn find(&self, page: PageId, fits: bool, near: u32) -> Option<u32> {
        let found = self.action.position(page).filter(|position| fits || !self.action.is_extra(*position));
        found.filter(|position| *position <= self.progress.saturating_add(near))
    }

    /// Pages before `position` that a run has not touched if it is of this action. The first
    /// `ordered` pages of what is followed may have been touched unseen.
    fn goes_without(&self, position: u32, followed: &ActionPages, ordered: u32) -> usize {
        let is_unseen = |page: &&PageId| followed.position(**page).is_none_or(|position| position >= ordered);
        self.action.between(&(self.progress + 1..position)).iter().filter(is_unseen).count()
    }

    /// Takes in a touch that was found here, or not.
    fn touched(&mut self, found: Option<u32>, fits: bool) {
        self.odds.touched(found.is_some());
        let is_next = found.is_some_and(|position| position.abs_diff(self.last) <= SIGN_PAGES);
        self.signs = match found {
            Some(_) if !fits => 1 + if is_next { self.signs } else { 0 },
            _ => 0,
        };
        self.last = found.unwrap_or(self.last);
        self.progress = self.progress.max(self.last);
    }
}

impl Siblings {
    /// The best ones of `others`, which are sorted by their rank, beside an action of this score.
    pub fn new(score: u32, mut others: Vec<Sibling>) -> Siblings {
        others.truncate(SIBLINGS_MAX);
        let odds = Odds { score: score.max(UNLIKELY * UNLIKELY), misfits: 0 };
        // One that was not used lately is reckoned with until a touch does not fit it. It needs two
        // touches that only it has.
        others.iter_mut().for_each(|other| other.odds.score = other.odds.score.max(odds.score / UNLIKELY + 1));
        Siblings { odds, others, ..Siblings::default() }
    }

    /// The run touched `page`, which `fits` what is followed and was ordered of it so far, or not.
    /// Says whether it is rather of a sibling now.
    pub fn touched(
        &mut self,
        page: PageId,
        fits: bool,
        (followed, ordered): (&ActionPages, u32),
        near: u32,
    ) -> Option<Turn> {
        let mut found: Vec<Option<u32>> = self.others.iter().map(|other| other.find(page, fits, near)).collect();
        if !fits {
            // Of those that have it, rather the ones that have it next.
            let without = |(other, found): (&Sibling, &Option<u32>)| {
                found.map_or(usize::MAX, |position| other.goes_without(position, followed, ordered))
            };
            let without: Vec<usize> = self.others.iter().zip(&found).map(without).collect();
            let least = without.iter().min().filter(|least| **least < usize::MAX)?;
            let is_worse = |without: usize| without > least + SIGN_PAGES as usize;
            found
                .iter_mut()
                .zip(&without)
                .filter(|(_, without)| is_worse(**without))
                .for_each(|(found, _)| *found = None);
        }
        self.odds.touched(fits);
        self.others.iter_mut().zip(&found).for_each(|(other, found)| other.touched(*found, fits));
        let own = self.odds.now();
        // After touches that only the other one has, or when these have turned out to be few.
        let turns =
            |other: &Sibling| other.odds.now() > if other.signs < SIGNS_MIN { own.saturating_mul(MISFIT) } else { own };
        let likelier = self.others.iter().enumerate().filter(|(k, other)| found[*k].is_some() && turns(other));
        let (sibling, best) = likelier.max_by_key(|(_, other)| other.odds.now())?;
        Some(Turn { sibling, position: best.last })
    }

    /// Whether the touch behind `passed` is rather one of a likely sibling: the run did without
    /// pages of these that only `followed` has, and the sibling has what was touched next.
    pub fn have_next(&self, followed: &ActionPages, ordered: u32, passed: Range<u32>, near: u32) -> bool {
        let Some(page) = followed.pages.get(passed.end as usize).filter(|_| passed.len() > SIGN_PAGES as usize) else {
            return false;
        };
        let has_next = |other: &Sibling| {
            let is_own = |page: &&PageId| other.action.position(**page).is_none();
            let is_next = |position| other.goes_without(position, followed, ordered) <= SIGN_PAGES as usize;
            other.find(*page, true, near).is_some_and(is_next)
                && followed.between(&passed).iter().filter(is_own).count() > SIGN_PAGES as usize
        };
        self.others.iter().any(|other| self.is_likely(other) && has_next(other))
    }

    /// The run is of `others[index]` rather than of the action that is followed, in which it came
    /// to `progress`: they change places.
    pub fn turn(mut self, index: usize, followed: Arc<ActionPages>, progress: u32) -> (Arc<ActionPages>, Siblings) {
        let followed = Sibling { odds: self.odds, progress, last: progress, ..Sibling::new(followed, 0) };
        let next = std::mem::replace(&mut self.others[index], followed);
        // A run that turns back to the first one never was of another.
        let first = if self.first == Some(index) { None } else { self.first.or(Some(index)) };
        (next.action, Siblings { odds: next.odds, others: self.others, first, ..Siblings::default() })
    }

    /// Whether the one that the run was taken for at first is likelier after all.
    pub fn is_first_likelier(&self) -> bool {
        let first = self.first.and_then(|first| self.others.get(first));
        first.is_some_and(|first| first.odds.now() > self.odds.now())
    }

    /// The sibling to whose last segment the run has come, if it fits no worse than what is
    /// followed.
    pub fn ended(&self, segment_pages: u32) -> Option<ActionId> {
        let is_over = |other: &&Sibling| other.progress.saturating_add(segment_pages) >= other.action.len();
        let over = self.others.iter().filter(is_over).filter(|other| other.odds.misfits <= self.odds.misfits);
        let best = over.min_by_key(|other| (other.odds.misfits, std::cmp::Reverse(other.action.len())));
        best.map(|other| other.action.id)
    }

    fn is_likely(&self, other: &Sibling) -> bool {
        other.odds.now() > self.odds.now() / UNLIKELY
    }

    /// The position behind `progress`, at most `target`, up to which likely siblings lack no more
    /// than `most` pages of `followed` from its start on, or their part by odds.
    pub fn reach(&mut self, followed: &ActionPages, progress: u32, most: u32, target: u32) -> u32 {
        let likely: u8 = (0..).zip(&self.others).map(|(k, other)| u8::from(self.is_likely(other)) << k).sum();
        if likely == 0 {
            return target;
        }
        self.look_up(followed, progress + 1, target);
        let is_likely = |k: &usize| likely >> *k & 1 == 1;
        let passed = (0..self.others.len()).filter(is_likely).map(|k| self.passed[k]).max().unwrap_or(0);
        // The less, the likelier the others are.
        let own = u64::from(self.odds.now());
        let all = own + self.others.iter().map(|other| u64::from(other.odds.now())).sum::<u64>();
        let most = (u64::from(most) * own / all.max(1)).saturating_sub(u64::from(passed));
        let lacking = self.lacking.iter().take((target - self.start) as usize);
        let unsure = (self.start..).zip(lacking).filter(|(_, lacking)| *lacking & likely != 0);
        unsure.map(|(position, _)| position).nth(most as usize).unwrap_or(target)
    }

    /// Looks up the pages of `followed` from `start` to `end`, those of them that are not known.
    fn look_up(&mut self, followed: &ActionPages, start: u32, end: u32) {
        match start.checked_sub(self.start) {
            Some(passed) => {
                for lacking in self.lacking.drain(..self.lacking.len().min(passed as usize)) {
                    self.passed.iter_mut().enumerate().for_each(|(k, passed)| *passed += u32::from(lacking >> k & 1));
                }
            }
            None => self.lacking.clear(),
        }
        self.start = start;
        let known = start as usize + self.lacking.len();
        for page in followed.pages.get(known..end as usize).unwrap_or_default() {
            let lacks = |other: &Sibling| other.action.position(*page).is_none();
            self.lacking.push((0..).zip(&self.others).map(|(k, other)| u8::from(lacks(other)) << k).sum());
        }
    }

    /// Positions that are looked up: a byte each.
    pub fn bytes(&self) -> usize {
        self.lacking.len()
    }
}
