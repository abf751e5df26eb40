//! The table of tokens that are tracked.

use std::collections::{BTreeMap, HashMap};

use profile::Teacher;
use units::Token;

use super::config::FlowConfig;
use super::run::Run;

/// Runs by token, within bounds of memory and of number. A run that is being looked at is taken out
/// and put back.
///
/// Invariants:
/// - `oldest` has every token of the table, by the number of its last touch.
/// - `bytes` has the sum of the memory of all runs of each owner; sums of zero are absent.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: HashMap<Token, Run>,
    bytes: HashMap<Teacher, usize>,
    oldest: BTreeMap<u64, Token>,
    touches: u64,
}

impl Runs {
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn get(&self, token: Token) -> Option<&Run> {
        self.runs.get(&token)
    }

    /// The token that was touched longest ago.
    pub fn oldest(&self) -> Option<Token> {
        self.oldest.first_key_value().map(|(_, token)| *token)
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.values().sum()
    }

    pub fn take(&mut self, token: Token) -> Option<Run> {
        let run = self.runs.remove(&token)?;
        self.oldest.remove(&run.touch_number);
        if let Some(bytes) = self.bytes.get_mut(&run.reader.teacher) {
            *bytes -= run.memory_bytes;
            if *bytes == 0 {
                self.bytes.remove(&run.reader.teacher);
            }
        }
        Some(run)
    }

    /// Puts a run into the table that was touched just now. Of the owner with most memory, the runs
    /// touched longest ago make room.
    pub fn put(&mut self, token: Token, mut run: Run, config: &FlowConfig) {
        self.touches += 1;
        run.touch_number = self.touches;
        run.weigh();
        self.oldest.insert(run.touch_number, token);
        *self.bytes.entry(run.reader.teacher).or_default() += run.memory_bytes;
        self.runs.insert(token, run);
        while self.runs.len() > config.tokens_max.max(1)
            || (self.runs.len() > 1 && self.memory_bytes() > config.token_bytes_max)
        {
            let most = self.bytes.iter().max_by_key(|(_, bytes)| **bytes).map(|(owner, _)| *owner);
            let theirs = |token: &&Token| self.runs.get(token).map(|run| run.reader.teacher) == most;
            let Some(oldest) = self.oldest.values().find(theirs).copied() else { return };
            self.take(oldest);
        }
    }
}
