//! The place of a transaction in the outbox.

use serde::{Deserialize, Serialize};

/// Whether a transaction is in the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Keep {
    #[default]
    No,
    Storing,
    Stored,
}

/// The place of a transaction in the outbox.
///
/// Invariant: it has a number there while it is kept. Those that follow it know it by the number of
/// its first storing, whatever its present one is.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    keep: Keep,
    /// Its number in the outbox.
    stored_as: Option<u64>,
    /// The number by which those that follow it know it in the outbox.
    known_as: Option<u64>,
    /// Stored transactions that are to be kept until this one is answered, since it follows them.
    removes: Vec<u64>,
}

impl Kept {
    /// That of a transaction from an outbox.
    pub fn found(number: u64, known_as: u64) -> Kept {
        Kept { keep: Keep::Stored, stored_as: Some(number), known_as: Some(known_as), removes: Vec::new() }
    }

    /// Whether it is in the outbox, or is being brought there.
    pub fn is_kept(&self) -> bool {
        self.keep != Keep::No
    }

    /// Whether it is on stable storage.
    pub fn is_stored(&self) -> bool {
        self.keep == Keep::Stored
    }

    /// Its number in the outbox.
    pub fn number(&self) -> Option<u64> {
        self.stored_as.filter(|_| self.is_kept())
    }

    /// It has another number: the one that it had, if it is kept.
    pub fn renumber(&mut self, to: u64) -> Option<u64> {
        let from = self.number()?;
        self.stored_as = Some(to);
        Some(from)
    }

    /// The number by which those that follow it know it: this one, if it has no other yet.
    pub fn known_as(&mut self, number: Option<u64>) -> Option<u64> {
        self.known_as = self.known_as.or(number);
        self.known_as
    }

    /// A job brings it to stable storage by this number.
    pub fn store(&mut self, number: u64) {
        (self.keep, self.stored_as) = (Keep::Storing, Some(number));
    }

    /// Whether a job for it has this number.
    pub fn is_stored_as(&self, number: u64) -> bool {
        self.stored_as == Some(number)
    }

    /// The job that brings it to stable storage is done, or failed.
    pub fn stored(&mut self, is_done: bool) {
        (self.keep, self.stored_as) = if is_done { (Keep::Stored, self.stored_as) } else { (Keep::No, None) };
    }

    /// These are to be kept until it is answered.
    pub fn keep_too(&mut self, numbers: &mut Vec<u64>) {
        self.removes.append(numbers);
    }

    /// Those that are kept for it, as far as they are there.
    pub fn kept_too(&mut self, is_there: impl Fn(u64) -> bool) -> &[u64] {
        self.removes.retain(|number| is_there(*number));
        &self.removes
    }

    /// Those that were kept for it; they are not any more.
    pub fn take_kept_too(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.removes)
    }
}
