//! The table of tokens that are tracked.

use std::collections::{BTreeMap, HashMap};

use units::{Moment, Token};

use super::run::Run;

/// Memory of a recorded page: its number in order, and in the set of those that were seen.
const RECORDED_PAGE_BYTES: usize = 32;

/// Memory of a token that is tracked.
const RUN_BYTES: usize = 400;

/// Runs by token. A run that is being looked at is taken out and put back.
///
/// Invariants:
/// - `idle` has every token of the table, by its last touch.
/// - `recorded_pages` is the sum of the pages held by all runs of the table.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: HashMap<Token, Run>,
    /// Tokens by their last touch, the one idle longest first; the number tells equal moments
    /// apart.
    idle: BTreeMap<(Moment, u64), Token>,
    touches: u64,
    recorded_pages: usize,
}

impl Runs {
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn get(&self, token: Token) -> Option<&Run> {
        self.runs.get(&token)
    }

    /// Recorded pages of all runs.
    pub fn recorded_pages(&self) -> usize {
        self.recorded_pages
    }

    /// Memory that it takes, in bytes, roughly.
    pub fn memory_bytes(&self) -> usize {
        self.recorded_pages * RECORDED_PAGE_BYTES + self.runs.len() * RUN_BYTES
    }

    pub fn take(&mut self, token: Token) -> Option<Run> {
        let run = self.runs.remove(&token)?;
        self.idle.remove(&run.last_touch);
        self.recorded_pages -= run.pages_held();
        Some(run)
    }

    /// Puts a run into the table whose token was touched at `now`.
    pub fn put(&mut self, token: Token, mut run: Run, now: Moment) {
        self.touches += 1;
        run.last_touch = (now, self.touches);
        self.idle.insert(run.last_touch, token);
        self.recorded_pages += run.pages_held();
        self.runs.insert(token, run);
    }

    /// The token idle longest.
    pub fn idlest(&self) -> Option<Token> {
        self.idle.first_key_value().map(|(_, token)| *token)
    }

    /// Tokens whose runs satisfy a condition, the one idle longest first.
    pub fn matching(&self, condition: impl Fn(&Run) -> bool) -> Vec<Token> {
        self.idle.values().filter(|token| condition(&self.runs[token])).copied().collect()
    }
}
