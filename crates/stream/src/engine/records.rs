//! What the next process has to know of a volume, as records, and an engine that goes on from them.
//!
//! After each event the engine tells what changed since the last records, before anybody is told
//! what came of the event. So the next process knows all that a program or the server knows: files,
//! handles, what was written and not sent, transactions with their numbers, locks, and outcomes of
//! requests that may come again. Blocks, listings and what is under way on the connection are not
//! among it: for the next process it is as if its connection had been lost.
//!
//! A record is a byte that says what it is, and the thing in the form of the crate `postcard`. Both
//! belong to one version of this program and to one machine; the first record has the number
//! [`VERSION`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wire::volume::Change;

use super::Engine;
use super::file::File;
use super::files::{Files, Open};
use super::locks::{Held as HeldLocks, LockHolder, Locks, Unlocking};
use super::session::Session;
use super::transaction::Transaction;
use super::transactions::{Outcome, Transactions};
use crate::call::{Done, Handle};
use crate::job::Job;
use crate::linked::Linked;
use crate::outbox::{Held, Who};
use crate::overlay::Step;
use crate::present::Present;
use crate::{Lost, Options, VolumeInfo};

/// Of the records. It changes with anything that stands in them; a test says when.
pub const VERSION: u16 = 1;

/// What a record is. A key comes first in all that have one; what is gone has nothing behind it.
mod kind {
    pub const VERSION: u8 = 0;
    pub const COUNTERS: u8 = 1;
    pub const WHO: u8 = 2;
    pub const VOLUME: u8 = 3;
    pub const FILE: u8 = 4;
    pub const STEPS: u8 = 5;
    pub const PRESENT: u8 = 6;
    pub const HANDLE: u8 = 7;
    pub const LINKED: u8 = 8;
    pub const TRANSACTION: u8 = 9;
    pub const CHANGES: u8 = 10;
    pub const OUTCOME: u8 = 11;
    pub const LOCKS: u8 = 12;
    pub const LOST_LOCKS: u8 = 13;
    pub const UNLOCKING: u8 = 14;
    pub const LOST: u8 = 15;
}

/// Numbers that were given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counters {
    last_id: u64,
    next_number: u64,
}

/// Makes records of what changed.
#[derive(Default)]
pub(super) struct Recorder {
    is_on: bool,
    /// Hashes of what was recorded last, by kind and key.
    told: HashMap<(u8, u64), u64>,
    out: Vec<u8>,
}

impl Recorder {
    fn put(&mut self, kind: u8, what: &impl Serialize) {
        self.out.push(kind);
        // Into memory it cannot fail: lengths are known, and nothing in it refuses.
        if let Ok(out) = postcard::to_extend(what, std::mem::take(&mut self.out)) {
            self.out = out;
        }
    }

    /// The same, unless it was recorded so before. `key` tells things of a kind apart.
    fn put_changed(&mut self, kind: u8, key: u64, what: &impl Serialize) {
        let before = self.out.len();
        self.put(kind, what);
        let mut hasher = DefaultHasher::new();
        self.out[before..].hash(&mut hasher);
        if self.told.insert((kind, key), hasher.finish()) == Some(hasher.finish()) {
            self.out.truncate(before);
        }
    }

    /// A thing is gone, if it was recorded.
    fn put_gone<T: Serialize>(&mut self, kind: u8, key: u64) {
        if self.told.remove(&(kind, key)).is_some() {
            self.put(kind, &(key, None::<T>));
        }
    }
}

impl Engine {
    /// Makes records from now on.
    pub fn keep_records(&mut self) {
        self.recording().begin();
    }

    fn recording(&mut self) -> Recording<'_> {
        let Engine { session, files, transactions, locks, recorder, .. } = self;
        Recording { session, files, transactions, locks, recorder }
    }

    /// There is no room for records any more.
    pub fn stop_records(&mut self) {
        self.recorder = Recorder::default();
    }

    /// What changed since the last call, or with `all` everything, in the place of all records
    /// before. To be called before the effects of an event are carried out.
    pub fn take_records(&mut self, all: bool) -> Vec<u8> {
        self.recording().take(all)
    }

    /// An engine that makes records; if there are some of another process, it goes on from them.
    /// `held` is what an outbox holds now.
    ///
    /// # Errors
    /// A text: the records are of another version, or make no sense.
    pub fn recorded(
        name: &str,
        options: Options,
        mut held: Held,
        records: &[u8],
        opening: Done<VolumeInfo>,
    ) -> Result<Engine, String> {
        let known = if records.is_empty() { None } else { Some(Known::parse(records)?) };
        let mut stored = BTreeMap::new();
        if let Some(known) = &known {
            stored = held.stored.drain(..).map(|stored| (stored.number, stored.known_as)).collect();
            held.who = if options.outbox.is_some() { held.who } else { known.who };
        }
        let mut engine = Engine::new(name, options, held, opening);
        if let Some(known) = known {
            known.give_to(&mut engine, &stored);
        }
        engine.keep_records();
        Ok(engine)
    }
}

/// The parts of which something is recorded.
struct Recording<'a> {
    session: &'a mut Session,
    files: &'a mut Files,
    transactions: &'a mut Transactions,
    locks: &'a mut Locks,
    recorder: &'a mut Recorder,
}

impl Recording<'_> {
    fn begin(&mut self) {
        self.recorder.is_on = true;
        self.files.marks.files.begin();
        self.files.marks.handles.begin();
        self.files.marks.linked.begin();
        self.transactions.marks.transactions.begin();
        self.transactions.marks.outcomes.begin();
        self.locks.marks.begin();
    }

    fn take(&mut self, all: bool) -> Vec<u8> {
        if !self.recorder.is_on {
            return Vec::new();
        }
        if all {
            self.begin_anew();
        }
        self.record(all);
        std::mem::take(&mut self.recorder.out)
    }

    /// Nothing counts as recorded.
    fn begin_anew(&mut self) {
        self.recorder.told.clear();
        let keys: Vec<u64> = self.files.iter().map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.files.marks.files.add(key));
        self.files.mark_handles();
        self.files.marks.linked.add(());
        self.transactions.mark_all();
        let holders: Vec<LockHolder> = self.locks.holders().collect();
        holders.into_iter().for_each(|holder| self.locks.marks.add(holder));
        self.session.lost.all_are_new();
    }

    fn record(&mut self, all: bool) {
        self.recorder.put_changed(kind::VERSION, 0, &VERSION);
        let counters = Counters { last_id: self.session.last_id(), next_number: self.transactions.next_number() };
        self.recorder.put_changed(kind::COUNTERS, 0, &counters);
        self.recorder.put_changed(kind::WHO, 0, &self.session.who());
        if let Some(info) = self.session.info() {
            self.recorder.put_changed(kind::VOLUME, 0, &info);
        }
        self.record_files(all);
        self.record_transactions();
        self.record_locks();
        for lost in self.session.lost.take_new() {
            self.recorder.put(kind::LOST, &lost);
        }
    }

    fn record_files(&mut self, all: bool) {
        let Recording { files, recorder, .. } = self;
        for key in files.marks.files.take() {
            let Some(file) = files.unmarked_mut(key) else {
                recorder.told.remove(&(kind::PRESENT, key));
                recorder.put_gone::<File>(kind::FILE, key);
                continue;
            };
            recorder.put_changed(kind::FILE, key, &(key, Some(&*file)));
            let overlay = file.unsent.overlay_mut();
            let steps = if all { overlay.all_steps() } else { overlay.take_steps() };
            if !steps.is_empty() {
                recorder.put(kind::STEPS, &(key, steps));
            }
            if file.gone {
                // Nobody can be asked where it has holes.
                recorder.put_changed(kind::PRESENT, key, &(key, file.table.present()));
            }
        }
        for handle in files.marks.handles.take() {
            match files.handle(handle) {
                Some(open) => recorder.put_changed(kind::HANDLE, handle.0, &(handle.0, Some(open))),
                None => recorder.put_gone::<Open>(kind::HANDLE, handle.0),
            }
        }
        if !files.marks.linked.take().is_empty() {
            recorder.put_changed(kind::LINKED, 0, files.linked());
        }
    }

    fn record_transactions(&mut self) {
        let Recording { transactions, recorder, .. } = self;
        for id in transactions.marks.transactions.take() {
            let Some(txn) = transactions.get(&id) else {
                recorder.told.remove(&(kind::CHANGES, id));
                recorder.put_gone::<Transaction>(kind::TRANSACTION, id);
                continue;
            };
            recorder.put_changed(kind::TRANSACTION, id, &(id, Some(txn)));
            let offsets: Vec<u64> = txn.effect.writes.iter().map(|(offset, _)| *offset).collect();
            // What has data is long, and stays as it was made.
            match offsets.is_empty() {
                true => recorder.put_changed(kind::CHANGES, id, &(id, &txn.changes, offsets)),
                false if recorder.told.insert((kind::CHANGES, id), 0).is_none() => {
                    recorder.put(kind::CHANGES, &(id, &txn.changes, offsets));
                }
                false => {}
            }
        }
        for request in transactions.marks.outcomes.take() {
            if let Some(outcome) = transactions.outcome(request) {
                recorder.put(kind::OUTCOME, &(request, outcome));
            }
        }
    }

    fn record_locks(&mut self) {
        let Recording { locks, recorder, .. } = self;
        for holder in locks.marks.take() {
            recorder.put(kind::LOCKS, &(holder, locks.held(holder)));
        }
        let (lost, unlocking) = (locks.lost(), locks.unlocking());
        if !lost.is_empty() || recorder.told.contains_key(&(kind::LOST_LOCKS, 0)) {
            recorder.put_changed(kind::LOST_LOCKS, 0, lost);
        }
        if !unlocking.is_empty() || recorder.told.contains_key(&(kind::UNLOCKING, 0)) {
            recorder.put_changed(kind::UNLOCKING, 0, &unlocking);
        }
    }
}

/// All that records say.
#[derive(Default)]
struct Known {
    counters: Counters,
    who: Who,
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
}

impl Known {
    /// An engine goes on from this. `stored`: what lies in the outbox, by number and by what number
    /// others know it.
    fn give_to(self, engine: &mut Engine, stored: &BTreeMap<u64, u64>) {
        engine.session.set_last_id(self.counters.last_id);
        engine.transactions.set_next_number(self.counters.next_number);
        for lost in self.lost {
            engine.session.lost.add_again(lost);
        }
        for (key, file) in self.files {
            engine.files.resume(key, file);
        }
        for (handle, open) in self.handles {
            engine.files.open(Handle(handle), open);
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

    fn parse(records: &[u8]) -> Result<Known, String> {
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
                steps.into_iter().for_each(|step| file.unsent.overlay_mut().repeat(step));
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
