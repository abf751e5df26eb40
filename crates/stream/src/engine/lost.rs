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
pub(super) struct LostChanges(VecDeque<Lost>);

impl LostChanges {
    /// Starts with the transactions that an outbox could not read.
    pub fn new(lost: Vec<Lost>) -> LostChanges {
        LostChanges(lost.into_iter().take(LOST_MAX).collect())
    }

    pub fn add(&mut self, path: &[u8], bytes: u64, reason: String, kept_as: Option<String>) -> Lost {
        if self.0.len() == LOST_MAX {
            self.0.pop_front();
        }
        let lost = Lost { path: path_text(path), bytes, reason, kept_as };
        self.0.push_back(lost.clone());
        lost
    }

    pub fn to_vec(&self) -> Vec<Lost> {
        self.0.iter().cloned().collect()
    }
}
