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

mod known;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wire::volume::Change;

use known::Known;

use super::Engine;
use super::file::File;
use super::files::{Files, Open};
use super::locks::{LockHolder, Locks};
use super::session::Session;
use super::transaction::Transaction;
use super::transactions::Transactions;
use crate::call::Done;
use crate::outbox::Held;
use crate::{Options, VolumeInfo};

/// Of the records. It changes with anything that stands in them; a test says when.
pub const VERSION: u16 = 1;

/// Calls and reads get numbers, too. They are not worth a record each: up to the next multiple of
/// this all may have been given.
const IDS_STEP: u64 = 4096;

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
    pub const SEALED: u8 = 16;
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
        let last_id = self.session.last_id().next_multiple_of(IDS_STEP);
        let counters = Counters { last_id, next_number: self.transactions.next_number() };
        self.recorder.put_changed(kind::COUNTERS, 0, &counters);
        self.recorder.put_changed(kind::WHO, 0, &self.session.who());
        if let Some(info) = self.session.info() {
            self.recorder.put_changed(kind::VOLUME, 0, &info);
        }
        self.record_files(all);
        self.record_transactions(all);
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

    fn record_transactions(&mut self, all: bool) {
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
                false if recorder.told.insert((kind::CHANGES, id), 0).is_none() => match txn.file.filter(|_| !all) {
                    // What it writes stands in a step of its file, just before.
                    Some(key) => {
                        let changes: Vec<Change> = txn.changes.iter().map(without_data).collect();
                        let ranges = txn.effect.writes.iter().map(|(offset, bytes)| (*offset, bytes.len() as u64));
                        recorder.put(kind::SEALED, &(id, key, changes, ranges.collect::<Vec<_>>()));
                    }
                    None => recorder.put(kind::CHANGES, &(id, &txn.changes, offsets)),
                },
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

/// The same change, whose data stands elsewhere.
fn without_data(change: &Change) -> Change {
    match change {
        Change::Write { path, base, offset, .. } => {
            Change::Write { path: path.clone(), base: *base, offset: *offset, bytes: Bytes::new() }
        }
        Change::Append { path, base, .. } => Change::Append { path: path.clone(), base: *base, bytes: Bytes::new() },
        other => other.clone(),
    }
}
