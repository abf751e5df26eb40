//! What is learned of one open image, and the memory that it takes.
//!
//! Everything that devices touch is recorded, so they decide how much there is to keep. Memory is
//! taken as it grows. When there is none, the runs that have been idle for longest end, and the
//! actions used longest ago are forgotten. Those of the principal who
//! has the most go first. That loses predictions, never bytes.

use std::ops::{Deref, DerefMut};

use predict::{ActionPredictor, Predictor, Reader, Verdict};
use profile::ActionSet;
use units::{Moment, PageId, Token};

use crate::account::Reserved;

/// Memory is taken in steps of this, so that most touches take none: two thousand pages or so.
const STEP_BYTES: usize = 64 << 10;

/// A predictor with its memory.
pub(crate) struct Learning {
    predictor: ActionPredictor,
    memory: Reserved,
}

impl Learning {
    /// Memory that a predictor begins with.
    pub fn bytes_of(predictor: &ActionPredictor) -> usize {
        predictor.memory_bytes() + STEP_BYTES
    }

    /// A predictor that goes on from what it knows, as far as `memory` goes.
    pub fn new(mut predictor: ActionPredictor, memory: Reserved) -> Learning {
        predictor.shrink_to(memory.bytes());
        Learning { predictor, memory }
    }

    /// As [`ActionPredictor::touch_of`].
    pub fn touch(&mut self, reader: Reader, token: Token, page: PageId, now: Moment) -> Verdict {
        let verdict = self.predictor.touch_of(reader, token, page, now);
        let bytes = self.predictor.memory_bytes();
        if bytes > self.memory.bytes() && !self.memory.grow_to(bytes + STEP_BYTES) {
            self.predictor.shrink_to(self.memory.bytes());
        }
        verdict
    }

    /// As [`ActionPredictor::join`].
    pub fn join(&mut self, base: &ActionSet, theirs: &ActionSet) {
        self.predictor.join(base, theirs);
        let bytes = self.predictor.memory_bytes();
        if bytes > self.memory.bytes() && !self.memory.grow_to(bytes + STEP_BYTES) {
            self.predictor.shrink_to(self.memory.bytes());
        }
    }

    /// Ends runs that are over ([`Predictor::expire`]), and gives back memory that is not needed.
    pub fn keep_up(&mut self, now: Moment) {
        self.predictor.expire(now);
        self.memory.shrink_to(self.predictor.memory_bytes() + 2 * STEP_BYTES);
    }
}

impl Deref for Learning {
    type Target = ActionPredictor;

    fn deref(&self) -> &ActionPredictor {
        &self.predictor
    }
}

impl DerefMut for Learning {
    fn deref_mut(&mut self) -> &mut ActionPredictor {
        &mut self.predictor
    }
}
