//! The table of tokens that are tracked.

use std::collections::{BTreeMap, HashMap};

use profile::Teacher;
use units::{Moment, Token};

use super::run::Run;

/// Memory of a recorded page: its number in order, and in the set of those that were seen.
const RECORDED_PAGE_BYTES: usize = 32;

/// Memory of a token that is tracked.
const RUN_BYTES: usize = 400;

/// Runs by token. A run that is being looked at is taken out and put back.
///
/// Invariants:
/// - `held` has every token of the table with its teacher, by its last touch, and the sum of the
///   pages held by those runs. Teachers without runs are absent.
/// - `recorded_pages` is the sum of the pages held by all runs of the table.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: HashMap<Token, Run>,
    held: BTreeMap<Teacher, Held>,
    touches: u64,
    recorded_pages: usize,
}

/// The runs of one teacher.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Tokens by their last touch, the one idle longest first; the number tells equal moments
    /// apart.
    idle: BTreeMap<(Moment, u64), Token>,
    recorded_pages: usize,
}

impl Held {
    /// Tokens that are tracked.
    pub fn tokens(&self) -> usize {
        self.idle.len()
    }

    /// Recorded pages.
    pub fn recorded_pages(&self) -> usize {
        self.recorded_pages
    }

    /// Memory of both, in bytes, roughly.
    pub fn memory_bytes(&self) -> usize {
        memory_bytes(self.recorded_pages, self.idle.len())
    }
}

fn memory_bytes(recorded_pages: usize, runs: usize) -> usize {
    recorded_pages * RECORDED_PAGE_BYTES + runs * RUN_BYTES
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
        memory_bytes(self.recorded_pages, self.runs.len())
    }

    pub fn take(&mut self, token: Token) -> Option<Run> {
        let run = self.runs.remove(&token)?;
        let pages = run.pages_held();
        self.recorded_pages -= pages;
        if let Some(held) = self.held.get_mut(&run.reader.teacher) {
            held.idle.remove(&run.last_touch);
            held.recorded_pages -= pages;
            if held.idle.is_empty() {
                self.held.remove(&run.reader.teacher);
            }
        }
        Some(run)
    }

    /// Puts a run into the table whose token was touched at `now`.
    pub fn put(&mut self, token: Token, mut run: Run, now: Moment) {
        self.touches += 1;
        run.last_touch = (now, self.touches);
        let pages = run.pages_held();
        self.recorded_pages += pages;
        let held = self.held.entry(run.reader.teacher).or_default();
        held.idle.insert(run.last_touch, token);
        held.recorded_pages += pages;
        self.runs.insert(token, run);
    }

    /// The token idle longest of the teacher who has most of what `measure` says; if `keeps_last`,
    /// not the one touched last.
    pub fn idlest(&self, measure: impl Fn(&Held) -> usize, keeps_last: bool) -> Option<Token> {
        let idlest = |held: &Held| {
            let ((_, touch), token) = held.idle.first_key_value()?;
            (!keeps_last || *touch < self.touches).then_some((measure(held), *token))
        };
        // Of equals it is the one who comes first.
        let found = self.held.values().filter_map(idlest);
        found.reduce(|most, next| if next.0 > most.0 { next } else { most }).map(|(_, token)| token)
    }

    /// Tokens whose runs satisfy a condition, the one idle longest first.
    pub fn matching(&self, condition: impl Fn(&Run) -> bool) -> Vec<Token> {
        let all = self.held.values().flat_map(|held| &held.idle);
        let mut found: Vec<_> = all.filter(|(_, token)| condition(&self.runs[token])).collect();
        found.sort_unstable_by_key(|(last_touch, _)| **last_touch);
        found.into_iter().map(|(_, token)| *token).collect()
    }
}
