//! Changes that the server refused, or that could not be kept.

use std::collections::VecDeque;

use crate::Lost;
use crate::error::path_text;

/// Lost changes that are remembered for the status.
const LOST_MAX: usize = 64;

/// Lost changes, for the status.
///
/// Invariant: the latest [`LOST_MAX`], in the order in which they were lost.
#[derive(Debug, Default)]
pub(super) struct LostChanges {
    lost: VecDeque<Lost>,
    /// How many of them were recorded for another process.
    recorded: usize,
}

impl LostChanges {
    /// Starts with the transactions that an outbox could not read.
    pub fn new(lost: Vec<Lost>) -> LostChanges {
        LostChanges { lost: lost.into_iter().take(LOST_MAX).collect(), recorded: 0 }
    }

    pub fn add(&mut self, path: &[u8], bytes: u64, reason: String, kept_as: Option<String>) -> Lost {
        let lost = Lost { path: path_text(path), bytes, reason, kept_as };
        self.add_again(lost.clone());
        lost
    }

    /// Adds what an earlier process had lost.
    pub fn add_again(&mut self, lost: Lost) {
        if self.lost.len() == LOST_MAX {
            self.lost.pop_front();
            self.recorded = self.recorded.saturating_sub(1);
        }
        self.lost.push_back(lost);
    }

    /// Those that are not recorded yet; they are then.
    pub fn take_new(&mut self) -> Vec<Lost> {
        let new = self.lost.iter().skip(self.recorded).cloned().collect();
        self.recorded = self.lost.len();
        new
    }

    /// Nothing is recorded.
    pub fn all_are_new(&mut self) {
        self.recorded = 0;
    }

    pub fn to_vec(&self) -> Vec<Lost> {
        self.lost.iter().cloned().collect()
    }
}
