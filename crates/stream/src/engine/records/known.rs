//! What records say, and an engine that goes on from it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::Deserialize;
use wire::volume::Change;

use super::{Counters, VERSION, kind};
use crate::call::Handle;
use crate::engine::Engine;
use crate::engine::file::File;
use crate::engine::files::Open;
use crate::engine::locks::{Held as HeldLocks, LockHolder, Unlocking};
use crate::engine::session::Session;
use crate::engine::transaction::Transaction;
use crate::engine::transactions::{Outcome, Transactions};
use crate::job::Job;
use crate::linked::Linked;
use crate::outbox::Who;
use crate::overlay::Step;
use crate::present::Present;
use crate::{Lost, VolumeInfo};

/// All that records say.
#[derive(Default)]
pub(super) struct Known {
    counters: Counters,
    pub who: Who,
    volume: Option<VolumeInfo>,
    files: BTreeMap<u64, File>,
    handles: BTreeMap<u64, Open>,
    linked: Linked,
    transactions: BTreeMap<u64, Transaction>,
    outcomes: BTreeMap<u64, Outcome>,
    locks: BTreeMap<LockHolder, HeldLocks>,
    lost_locks: BTreeSet<LockHolder>,
    unlocking: Vec<Unlocking>,
    lost: Vec<Lost>,
    /// What was sealed, by file and by the first transaction that has it.
    sealed: BTreeMap<(u64, u64), Vec<(u64, Bytes)>>,
}

impl Known {
    /// An engine goes on from this. `stored`: what lies in the outbox, by number and by what number
    /// others know it.
    pub fn give_to(self, engine: &mut Engine, stored: &BTreeMap<u64, u64>) {
        engine.session.set_last_id(self.counters.last_id);
        engine.transactions.set_next_number(self.counters.next_number);
        for lost in self.lost {
            engine.session.lost.add_again(lost);
        }
        for (key, file) in self.files {
            engine.files.resume(key, file);
        }
        for (handle, open) in self.handles {
            engine.files.resume_handle(Handle(handle), open);
        }
        *engine.files.linked_mut() = self.linked;
        for (id, mut txn) in self.transactions {
            txn.sending.resumed();
            engine.transactions.insert(id, txn);
        }
        engine.transactions.set_outcomes(self.outcomes);
        engine.locks.resume(self.locks, self.lost_locks, self.unlocking, engine.session.now());
        if engine.session.options().outbox.is_some() {
            find_stored(&mut engine.transactions, &mut engine.session, stored);
        }
        // What was to be closed when the other process died is closed.
        let unused: Vec<u64> = engine.files.iter().filter(|(_, file)| file.handles == 0).map(|(key, _)| *key).collect();
        unused.into_iter().for_each(|key| engine.committer().release(key));
        if let Some(info) = self.volume {
            engine.session.resumed(info);
        }
    }

    pub fn parse(records: &[u8]) -> Result<Known, String> {
        let mut reader = Reader(records);
        let mut known = Known::default();
        match (reader.kind(), reader.take::<u16>()) {
            (Some(kind::VERSION), Ok(VERSION)) => {}
            (Some(kind::VERSION), Ok(other)) => {
                return Err(format!("the records of the last process are of version {other}, and not {VERSION}"));
            }
            _ => return Err("the records of the last process have no version".into()),
        }
        while let Some(kind) = reader.kind() {
            known
                .add(kind, &mut reader)
                .map_err(|error| format!("the records of the last process make no sense (kind {kind}): {error}"))?;
        }
        Ok(known)
    }

    fn add(&mut self, kind: u8, reader: &mut Reader<'_>) -> Result<(), postcard::Error> {
        match kind {
            kind::COUNTERS => self.counters = reader.take()?,
            kind::WHO => self.who = reader.take()?,
            kind::VOLUME => self.volume = Some(reader.take()?),
            kind::FILE => self.add_file(reader.take()?),
            kind::STEPS => {
                let (key, steps): (u64, Vec<Step>) = reader.take()?;
                let file = self.files.get_mut(&key).ok_or(postcard::Error::SerdeDeCustom)?;
                for step in steps {
                    match step {
                        Step::Seal { mark } => {
                            self.sealed.insert((key, mark), file.unsent.overlay_mut().seal(mark));
                        }
                        step => file.unsent.overlay_mut().repeat(step),
                    }
                }
            }
            kind::PRESENT => {
                let (key, present): (u64, Present) = reader.take()?;
                let file = self.files.get_mut(&key).ok_or(postcard::Error::SerdeDeCustom)?;
                *file.table.present_mut() = present;
            }
            kind::HANDLE => change(&mut self.handles, reader.take()?),
            kind::LINKED => self.linked = reader.take()?,
            kind::TRANSACTION => self.add_transaction(reader.take()?),
            kind::CHANGES => {
                let (id, changes, offsets): (u64, Vec<Change>, Vec<u64>) = reader.take()?;
                let txn = self.transactions.get_mut(&id).ok_or(postcard::Error::SerdeDeCustom)?;
                txn.effect.writes = offsets.into_iter().zip(changes.iter().filter_map(data_of).cloned()).collect();
                txn.changes = changes;
            }
            kind::SEALED => {
                let (id, key, changes, ranges): (u64, u64, Vec<Change>, Vec<(u64, u64)>) = reader.take()?;
                self.add_sealed(id, key, changes, &ranges).ok_or(postcard::Error::SerdeDeCustom)?;
            }
            kind::OUTCOME => drop({
                let (request, outcome) = reader.take()?;
                self.outcomes.insert(request, outcome)
            }),
            kind::LOCKS => change(&mut self.locks, reader.take()?),
            kind::LOST_LOCKS => self.lost_locks = reader.take()?,
            kind::UNLOCKING => self.unlocking = reader.take()?,
            kind::LOST => self.lost.push(reader.take()?),
            _ => return Err(postcard::Error::SerdeDeCustom),
        }
        Ok(())
    }

    /// What was written to a file is in records of its own, and stays.
    fn add_file(&mut self, (key, file): (u64, Option<File>)) {
        let before = self.files.remove(&key);
        if let Some(mut file) = file {
            // Where it has holes the server tells when it is opened there.
            if file.seen.is_some() {
                *file.table.present_mut() = Present::unknown();
            }
            if let Some(mut before) = before {
                file.unsent.set_overlay(std::mem::take(before.unsent.overlay_mut()));
                if file.gone && before.gone {
                    file.table = before.table;
                }
            }
            self.files.insert(key, file);
        }
    }

    /// A transaction has what was sealed of its file under its number, or under the one before.
    fn add_sealed(&mut self, id: u64, key: u64, mut changes: Vec<Change>, ranges: &[(u64, u64)]) -> Option<()> {
        let (_, extents) = self.sealed.range((key, 0)..=(key, id)).next_back()?;
        let mut writes = Vec::with_capacity(ranges.len());
        for (offset, length) in ranges {
            let (begin, bytes) = extents.get(extents.partition_point(|(begin, _)| begin <= offset).checked_sub(1)?)?;
            let from = usize::try_from(offset - begin).ok()?;
            let until = from.checked_add(usize::try_from(*length).ok()?).filter(|until| *until <= bytes.len())?;
            writes.push((*offset, bytes.slice(from..until)));
        }
        for (data, (_, written)) in changes.iter_mut().filter_map(data_mut).zip(&writes) {
            *data = written.clone();
        }
        let txn = self.transactions.get_mut(&id)?;
        (txn.changes, txn.effect.writes) = (changes, writes);
        Some(())
    }

    /// So it is with the changes of a transaction.
    fn add_transaction(&mut self, (id, txn): (u64, Option<Transaction>)) {
        let before = self.transactions.remove(&id);
        if let Some(mut txn) = txn {
            if let Some(before) = before {
                (txn.changes, txn.effect.writes) = (before.changes, before.effect.writes);
            }
            self.transactions.insert(id, txn);
        }
    }
}

/// Compares the transactions with what lies in the outbox, by number and by what number others
/// know it: jobs may not have been done when the other process died.
fn find_stored(transactions: &mut Transactions, session: &mut Session, stored: &BTreeMap<u64, u64>) {
    let mut left = stored.clone();
    for id in transactions.ids() {
        let Some(txn) = transactions.get_mut(&id) else { continue };
        for number in txn.kept.kept_too(|number| stored.contains_key(&number)) {
            left.remove(number);
        }
        let Some(number) = txn.kept.number() else { continue };
        let known_as = txn.kept.known_as(Some(number)).unwrap_or(number);
        let found = stored.iter().find(|(at, known)| **known == known_as && **at <= number);
        match found {
            Some((at, _)) => {
                txn.kept.stored(true);
                left.remove(at);
                if *at != number {
                    session.push_job(Job::Renumber { from: *at, to: number });
                }
            }
            None => txn.kept.stored(false),
        }
    }
    // The server has answered them.
    session.push_jobs(left.into_keys().map(|number| Job::Remove { number }));
}

/// What a change writes into a file.
fn data_of(change: &Change) -> Option<&Bytes> {
    match change {
        Change::Write { bytes, .. } | Change::Append { bytes, .. } => Some(bytes),
        _ => None,
    }
}

fn data_mut(change: &mut Change) -> Option<&mut Bytes> {
    match change {
        Change::Write { bytes, .. } | Change::Append { bytes, .. } => Some(bytes),
        _ => None,
    }
}

fn change<K: Ord, V>(map: &mut BTreeMap<K, V>, (key, value): (K, Option<V>)) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn kind(&mut self) -> Option<u8> {
        let (kind, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*kind)
    }

    fn take<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T, postcard::Error> {
        let (what, rest) = postcard::take_from_bytes(self.0)?;
        self.0 = rest;
        Ok(what)
    }
}
