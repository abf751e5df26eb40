//! Files that were to be made here, and that another device had made first.

use wire::ErrorCode;

use super::Engine;
use super::transaction::{State, Transaction};
use crate::StreamError;
use crate::present::Present;

impl Engine {
    /// Whether a transaction that makes an empty file may take the one that another device made
    /// first: two that make a file to lock it both have the same. Who has written something by then
    /// has a conflict.
    pub(super) fn may_take_existing(&self, id: u64) -> bool {
        let Some(txn) = self.transactions.get(&id).filter(|txn| txn.makes_empty().is_some()) else { return false };
        let written = txn.file.and_then(|key| self.files.get(&key)).is_some_and(|file| {
            let dirty = file.dirty.as_ref().is_some_and(|dirty| dirty.cut.is_some() || dirty.extended);
            dirty || file.overlay.open_bytes() > 0
        });
        !written && !self.transactions.is_followed(id)
    }

    /// Whether it is of a file that another device had made, and nobody has looked at since.
    pub(super) fn is_taken(&self, txn: &Transaction) -> bool {
        let file = txn.file.and_then(|key| self.files.get(&key));
        file.is_some_and(|file| file.taken.is_some() && file.seen.is_some())
    }

    pub(super) fn take_existing(&mut self, id: u64) {
        let Some(txn) = self.transactions.get_mut(&id) else { return };
        let made = txn.makes_empty();
        txn.take_existing();
        txn.state = State::Queued(self.session.now());
        if let Some(file) = txn.file.and_then(|key| self.files.get_mut(&key)) {
            file.taken = made;
            file.attributes.made_here = false;
        }
    }

    /// A file in the place of one that was made here belongs to somebody else, or has other
    /// permission bits: nobody was asked whether he may open that one.
    pub(super) fn is_of_others(&mut self, key: u64) {
        let Some(file) = self.files.get_mut(&key) else { return };
        (file.seen, file.size, file.present, file.unsure) = (None, 0, Present::nothing(), false);
        if let Some(number) = file.number.take() {
            self.forget_number(key, number);
        }
        self.drop_blocks(key, |_| true);
        let Some(file) = self.files.get(&key) else { return };
        let error = StreamError::refused(ErrorCode::Stale, &file.path, "");
        let sealed = file.sealed.clone();
        self.overtaken(key, &error);
        self.reopen_failed(key, &error);
        sealed.into_iter().for_each(|id| self.refuse(id, &error));
    }
}
