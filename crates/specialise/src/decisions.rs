//! Decisions about the branches and instructions of one function.

use crate::routine::Outcome;

/// What is known of the instructions of one function.
#[derive(Debug)]
pub(crate) struct Decisions {
    /// For each step whether it may be executed.
    pub lives: Vec<bool>,
    /// For each step: 1 if its branch is never taken, 2 if it always is.
    pub ways: Vec<u8>,
}

impl Decisions {
    /// The decisions of a first evaluation.
    pub fn new(outcome: &Outcome) -> Self {
        Self { lives: outcome.visited.clone(), ways: outcome.ways.clone() }
    }

    /// Whether anything is decided.
    pub fn is_any(&self) -> bool {
        self.lives.contains(&false) || self.ways.iter().any(|way| matches!(way, 1 | 2))
    }

    /// Adds those of a later evaluation; the earlier ones hold as well. True if something new is
    /// decided.
    pub fn narrow(&mut self, outcome: &Outcome) -> bool {
        let mut has_changed = false;
        for (known, lives) in self.lives.iter_mut().zip(&outcome.visited) {
            has_changed |= *known && !lives;
            *known &= lives;
        }
        for (known, ways) in self.ways.iter_mut().zip(&outcome.ways) {
            has_changed |= *known & ways != *known;
            *known &= ways;
        }
        has_changed
    }
}
