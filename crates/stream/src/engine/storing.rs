//! Bringing transactions to the outbox while the server is away, and loading them.

use std::collections::BTreeMap;

use super::dirty::Base;
use super::files::Files;
use super::kept::Kept;
use super::sending::Sending;
use super::session::Session;
use super::transaction::{Transaction, path_of};
use super::transactions::Transactions;
use crate::job::Job;
use crate::outbox::{Stored, StoredBase};

impl Transactions {
    /// While the server is away, brings what it has not got to the outbox, as far as there is room.
    pub fn store_unsent(&mut self, files: &Files, session: &mut Session) {
        let Some(room) = session.options().outbox.clone().filter(|_| session.info().is_some()) else { return };
        if session.link.is_open() {
            return;
        }
        let kept = self.values().filter(|txn| txn.kept.is_kept());
        let mut bytes: u64 = kept.map(|txn| txn.bytes).sum();
        // In the order in which they are sent: a number once given decides it.
        for id in self.in_order() {
            let Some(txn) = self.get(&id) else { continue };
            if txn.kept.is_kept() || txn.file.is_none() || bytes + txn.bytes > room.bytes {
                continue;
            }
            bytes += txn.bytes;
            for before in self.attributes_before(files, id) {
                if !self.store(files, session, before) {
                    return;
                }
            }
            if !self.store(files, session, id) {
                return;
            }
        }
    }

    /// Changes of attributes that a transaction of the same file waits for: each makes a version,
    /// on which the next one is based from now on. They are kept with it, since nobody would know
    /// that version after a restart of the device.
    fn attributes_before(&mut self, files: &Files, id: u64) -> Vec<u64> {
        let Some(txn) = self.get(&id).filter(|txn| txn.base != Base::Free) else { return Vec::new() };
        let path = txn.file.and_then(|key| files.get(&key)).map_or(&txn.path, |file| &file.path);
        let known = |before: &u64| match txn.base {
            Base::Chain(last) => last == *before || self.get(&last).is_some_and(|l| l.after.contains(before)),
            _ => false,
        };
        let of_it = |before: &u64| self.get(before).is_some_and(|before| before.is_attributes_of(path));
        let found: Vec<u64> = txn.after.iter().copied().filter(|before| of_it(before) && !known(before)).collect();
        let mut base = txn.base;
        for before in &found {
            if let Some(before) = self.get_mut(before) {
                before.base = base;
            }
            base = Base::Chain(*before);
        }
        if let Some(txn) = self.get_mut(&id) {
            txn.base = base;
        }
        found
    }

    /// A change of attributes was refused: what was based on the version that it would have made is
    /// based on the one before.
    pub fn without_attributes(&mut self, refused: u64, base: Base, files: &Files, session: &mut Session) {
        let chained = self.iter().filter(|(_, txn)| txn.base == Base::Chain(refused));
        let chained: Vec<u64> = chained.map(|(id, _)| *id).collect();
        for id in chained {
            let Some(txn) = self.get_mut(&id) else { continue };
            txn.base = base;
            if txn.kept.is_kept() {
                self.store(files, session, id);
            }
        }
    }

    /// Brings one transaction to the outbox; false if it gets no number now.
    fn store(&mut self, files: &Files, session: &mut Session, id: u64) -> bool {
        let Some(info) = session.info() else { return false };
        if !self.give_number(id, session) {
            return false;
        }
        let Some(txn) = self.get(&id) else { return true };
        let Some(number) = txn.sending.number() else { return true };
        let base = match txn.base {
            Base::Free => StoredBase::Free,
            Base::Known(seen) => StoredBase::Known(seen),
            // It may be stored later, by another number.
            Base::Chain(other) => {
                let known = self.get_mut(&other).and_then(|other| other.kept.known_as(other.sending.number()));
                let Some(known) = known else { return true };
                StoredBase::After(known)
            }
        };
        let Some(txn) = self.get_mut(&id) else { return true };
        let known_as = txn.kept.known_as(Some(number)).unwrap_or(number);
        txn.kept.store(number);
        let changes = txn.present_changes(files);
        let stored = Stored { number, known_as, volume: info.id, mtime_ns: txn.mtime_ns, base, changes };
        session.push_job(Job::Store { number, known_as, bytes: stored.to_bytes() });
        true
    }

    /// A transaction is in the outbox, or cannot be.
    pub fn stored(&mut self, number: u64, is_stored: bool) {
        if let Some(txn) = self.which_mut(|txn| txn.kept.is_stored_as(number)).next() {
            txn.kept.stored(is_stored);
        }
    }

    /// Takes what an outbox held, in the order of its numbers. Those are to be refused, with the
    /// paths of their files, that follow one which is not there any more.
    pub fn load(&mut self, stored: Vec<Stored>, session: &mut Session) -> Vec<(u64, Vec<u8>)> {
        // One that got another number comes behind those that follow it.
        let stored: Vec<(u64, Stored)> = stored.into_iter().map(|stored| (session.next_id(), stored)).collect();
        let known: BTreeMap<u64, (u64, u64)> =
            stored.iter().map(|(id, stored)| (stored.known_as, (*id, stored.number))).collect();
        let mut without = Vec::new();
        for (id, Stored { number, known_as, volume, mtime_ns, base, changes }) in stored {
            let path = changes.first().map(|change| path_of(change).to_vec()).unwrap_or_default();
            let mut txn = Transaction::new(&path, changes, mtime_ns);
            (txn.sending, txn.kept) = (Sending::replayed(number), Kept::found(number, known_as));
            txn.replayed = Some(volume);
            txn.base = match base {
                StoredBase::Free => Base::Free,
                StoredBase::Known(seen) => Base::Known(seen),
                StoredBase::After(before) => match known.get(&before) {
                    Some((before, before_number)) => {
                        txn.after.insert(*before);
                        if *before_number > number {
                            // It was not sent by its number: the other one had no answer. Its next
                            // one is higher.
                            txn.sending = Sending::default();
                        }
                        Base::Chain(*before)
                    }
                    None => {
                        without.push((id, path));
                        Base::Free
                    }
                },
            };
            self.insert(id, txn);
        }
        without
    }
}
