//! Baseline: Leap's majority trend (Al Maruf and Chowdhury, USENIX ATC 2020).
//!
//! Differences between successive touches of a token go into a ring of 32. A trend is the
//! difference that more than half of the newest ones share, found by the vote of Boyer and Moore,
//! first among the newest 8, then 16, then 32. Pages are ordered along the trend; how many follows
//! from how many of the last order were touched, at most 8.

use std::collections::{BTreeMap, HashMap, VecDeque};

use units::{Moment, PageId, Token};

use crate::readahead::Ordered;
use crate::{Ended, Phase, Predictor, PushOrder, Verdict};

/// Differences remembered (Leap's H_size).
const HISTORY: usize = 32;
/// Newest differences of the first vote (Leap's H_size / N_split, with N_split 4).
const VOTE_FIRST: usize = 8;
/// Most pages in an order (Leap's PW_size_max).
const WINDOW_MAX: usize = 8;
/// Tokens tracked; the one touched longest ago makes room.
const TOKENS_MAX: usize = 4096;

/// Leap as a [`Predictor`]. Deltas are those of [`PageId::to_u64`], so a trend within a file is its
/// stride in pages.
#[derive(Debug, Default)]
pub struct MajorityTrend {
    tokens: HashMap<Token, History>,
    /// Tokens by their last touch.
    oldest: BTreeMap<u64, Token>,
    touches: u64,
    ordered: Ordered,
}

#[derive(Debug, Default)]
struct History {
    last: u64,
    touched: u64,
    /// The newest first.
    deltas: VecDeque<i64>,
    /// The last order, and how many of it were touched.
    ordered: Vec<PageId>,
    hits: usize,
    window: usize,
}

impl MajorityTrend {
    /// A predictor that has seen nothing.
    pub fn new() -> MajorityTrend {
        MajorityTrend::default()
    }
}

impl History {
    fn step(&mut self, page: PageId, new: bool) -> Vec<PageId> {
        let here = page.to_u64();
        let delta = here.wrapping_sub(self.last) as i64;
        self.last = here;
        if new {
            return Vec::new();
        }
        self.deltas.truncate(HISTORY - 1);
        self.deltas.push_front(delta);
        if self.ordered.contains(&page) {
            self.hits += 1;
            // Inside the last order: nothing new until its last page is reached.
            if self.ordered.last() != Some(&page) {
                return Vec::new();
            }
        }
        let trend = self.trend();
        self.window = match self.hits {
            0 if trend == Some(delta) => self.window.max(2) / 2,
            0 => self.window / 2,
            hits => (hits + 1).next_power_of_two().min(WINDOW_MAX),
        };
        self.hits = 0;
        let Some(trend) = trend.filter(|trend| *trend != 0) else {
            self.ordered.clear();
            return Vec::new();
        };
        let along = |step: usize| here.wrapping_add((trend as u64).wrapping_mul(step as u64));
        self.ordered = (1..=self.window).map(|step| PageId::from_u64(along(step))).collect();
        // A stride that leaves the file leads nowhere.
        self.ordered.retain(|next| next.inode == page.inode || trend.unsigned_abs() > u64::from(u32::MAX));
        self.ordered.clone()
    }

    fn trend(&self) -> Option<i64> {
        let mut newest = VOTE_FIRST;
        loop {
            let count = newest.min(self.deltas.len());
            if let Some(delta) = majority(self.deltas.iter().take(count)) {
                return Some(delta);
            }
            if newest >= self.deltas.len() {
                return None;
            }
            newest *= 2;
        }
    }
}

/// The value that more than half of `values` share (Boyer and Moore 1981).
fn majority<'a>(values: impl Iterator<Item = &'a i64> + Clone) -> Option<i64> {
    let mut candidate = None;
    let mut lead = 0usize;
    for value in values.clone() {
        match candidate {
            Some(held) if held == *value => lead += 1,
            Some(_) if lead > 0 => lead -= 1,
            _ => {
                candidate = Some(*value);
                lead = 1;
            }
        }
    }
    let held = candidate?;
    let (of_it, all) = values.fold((0, 0), |(of_it, all), value| (of_it + usize::from(*value == held), all + 1));
    // One value is no trend.
    (of_it * 2 > all && of_it > 1).then_some(held)
}

impl Predictor for MajorityTrend {
    fn touch(&mut self, token: Token, page: PageId, _now: Moment) -> Verdict {
        self.touches += 1;
        let new = !self.tokens.contains_key(&token);
        if new
            && self.tokens.len() >= TOKENS_MAX
            && let Some((_, oldest)) = self.oldest.pop_first()
        {
            self.tokens.remove(&oldest);
        }
        let history = self.tokens.entry(token).or_default();
        self.oldest.remove(&history.touched);
        history.touched = self.touches;
        self.oldest.insert(self.touches, token);
        let pages = history.step(page, new);
        Verdict { phase: Phase::Generate, push: self.ordered.put(token, pages), cancel: false, hold: None }
    }

    fn end(&mut self, token: Token, _now: Moment) -> Ended {
        if let Some(history) = self.tokens.remove(&token) {
            self.oldest.remove(&history.touched);
        }
        Ended { token, action: None, changed: false }
    }

    fn expire(&mut self, _now: Moment) -> Vec<Ended> {
        Vec::new()
    }

    fn pages(&self, token: Token, order: &PushOrder) -> &[PageId] {
        self.ordered.pages(token, order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_is_more_than_half() {
        assert_eq!(majority([1, 2, 1, 3, 1].iter()), Some(1));
        assert_eq!(majority([1, 2, 1, 2].iter()), None);
        assert_eq!(majority([].iter()), None);
        assert_eq!(majority([1].iter()), None);
    }
}
