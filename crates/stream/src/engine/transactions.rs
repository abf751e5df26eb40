//! The transactions that are not answered: what each waits for, its number, and its place in the
//! outbox.

use std::collections::{BTreeMap, BTreeSet};

use units::Moment;

use serde::{Deserialize, Serialize};
use wire::volume::Seen;

use super::dirty::Base;
use super::files::Files;
use super::marks::Marks;
use super::session::Session;
use super::transaction::{Transaction, copied_by};
use crate::job::Job;
use crate::{StreamError, UnsentStatus};

/// Numbers that are reserved at once.
const NUMBERS_RESERVED: u64 = 1024;

/// Outcomes that are remembered at most, of the latest requests: more than can be under way
/// together.
const OUTCOMES_MAX: usize = 1024;

/// The outcome of what a request wanted to be changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub error: Option<StreamError>,
    /// The first version that it made.
    pub seen: Seen,
    /// The time that it gave what it made.
    pub mtime_ns: i64,
    /// Bytes that it copied.
    pub copied: u64,
}

impl Outcome {
    /// That of a transaction that the server made.
    pub fn of(txn: &Transaction, versions: &[Seen]) -> Outcome {
        let copied = txn.changes.iter().map(copied_by).sum();
        Outcome { error: None, seen: versions.first().copied().unwrap_or_default(), mtime_ns: txn.mtime_ns, copied }
    }
}

/// Numbers for transactions.
///
/// Invariant: each is given once, in order, and none before it is on stable storage that it may
/// have been used.
#[derive(Debug)]
struct Numbers {
    next: u64,
    /// Numbers below may be used.
    reserved: u64,
    /// A job reserves more.
    reserving: bool,
}

impl Numbers {
    /// The next number, if one is reserved.
    fn give(&mut self) -> Option<u64> {
        let number = self.next;
        self.next += u64::from(number < self.reserved);
        (number < self.reserved).then_some(number)
    }

    fn reserve(&mut self, session: &mut Session) {
        if !self.reserving {
            self.reserving = true;
            session.push_job(Job::Reserve { next: self.next + NUMBERS_RESERVED });
        }
    }
}

/// Transactions without an answer, by id.
///
/// Invariant: what one waits for is here too. A transaction with a number is sent before all with
/// higher ones. In the outbox, one that follows another finds what it is based on.
pub(super) struct Transactions {
    transactions: BTreeMap<u64, Transaction>,
    /// Those that change attributes of a file which is known here, by its key.
    of_attributes: BTreeMap<u64, BTreeSet<u64>>,
    numbers: Numbers,
    committed: u64,
    /// By request.
    outcomes: BTreeMap<u64, Outcome>,
    pub marks: TransactionMarks,
}

/// What of the transactions changed since it was recorded last; not when one is sent again.
#[derive(Default)]
pub(super) struct TransactionMarks {
    pub transactions: Marks<u64>,
    pub outcomes: Marks<u64>,
}

impl Transactions {
    /// None yet. Without an outbox all numbers may be used.
    pub fn new(next_number: u64, has_outbox: bool) -> Transactions {
        let reserved = if has_outbox { next_number } else { u64::MAX };
        Transactions {
            transactions: BTreeMap::new(),
            of_attributes: BTreeMap::new(),
            numbers: Numbers { next: next_number, reserved, reserving: false },
            committed: 0,
            outcomes: BTreeMap::new(),
            marks: TransactionMarks::default(),
        }
    }

    pub fn get(&self, id: &u64) -> Option<&Transaction> {
        self.transactions.get(id)
    }

    pub fn get_mut(&mut self, id: &u64) -> Option<&mut Transaction> {
        self.marks.transactions.add(*id);
        self.transactions.get_mut(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&u64, &Transaction)> {
        self.transactions.iter()
    }

    pub fn values(&self) -> impl Iterator<Item = &Transaction> {
        self.transactions.values()
    }

    /// Those of which this is true, to be changed.
    pub fn which_mut(&mut self, is_it: impl Fn(&Transaction) -> bool) -> impl Iterator<Item = &mut Transaction> {
        let Transactions { transactions, marks, .. } = self;
        let found = transactions.iter_mut().filter(move |(_, txn)| is_it(txn));
        found.map(|(id, txn)| {
            marks.transactions.add(*id);
            txn
        })
    }

    pub fn ids(&self) -> BTreeSet<u64> {
        self.transactions.keys().copied().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// The next number that is given.
    pub fn next_number(&self) -> u64 {
        self.numbers.next
    }

    /// Numbers are given from this one on.
    pub fn set_next_number(&mut self, next: u64) {
        self.numbers.next = next;
    }

    /// All is to be recorded.
    pub fn mark_all(&mut self) {
        self.transactions.keys().for_each(|id| self.marks.transactions.add(*id));
        self.outcomes.keys().for_each(|request| self.marks.outcomes.add(*request));
    }

    /// The outcomes that an earlier process noted.
    pub fn set_outcomes(&mut self, outcomes: BTreeMap<u64, Outcome>) {
        self.outcomes = outcomes;
    }

    /// Transactions that the server committed.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    pub fn count_committed(&mut self) {
        self.committed += 1;
    }

    pub fn insert(&mut self, id: u64, txn: Transaction) {
        self.marks.transactions.add(id);
        if let Some(key) = txn.changes_file {
            self.of_attributes.entry(key).or_default().insert(id);
        }
        self.transactions.insert(id, txn);
    }

    /// A transaction is done, or will not be: nothing waits for it any more.
    pub fn remove(&mut self, id: u64) -> Option<Transaction> {
        let txn = self.transactions.remove(&id)?;
        self.marks.transactions.add(id);
        for (other, waiting) in &mut self.transactions {
            if waiting.after.remove(&id) {
                self.marks.transactions.add(*other);
            }
        }
        if let Some(ids) = txn.changes_file.and_then(|key| self.of_attributes.get_mut(&key)) {
            ids.remove(&id);
            self.of_attributes.retain(|_, ids| !ids.is_empty());
        }
        Some(txn)
    }

    /// A transaction does what a request wants.
    pub fn set_request(&mut self, id: u64, request: u64) {
        self.get_mut(&id).into_iter().for_each(|txn| txn.request = request);
    }

    /// The transaction that does what a request wants.
    pub fn of_request(&self, request: u64) -> Option<u64> {
        let mut found = self.iter().filter(|(_, txn)| request != 0 && txn.request == request);
        found.next().map(|(id, _)| *id)
    }

    /// What became of a request's change, if it was made or refused.
    pub fn outcome(&self, request: u64) -> Option<&Outcome> {
        self.outcomes.get(&request)
    }

    /// Bytes that a request copies, if it comes again.
    pub fn copied_for(&self, request: u64) -> Option<u64> {
        let under_way = || self.of_request(request).and_then(|id| self.get(&id));
        let copied = self.outcome(request).map(|outcome| outcome.copied);
        copied.or_else(|| under_way().map(|txn| txn.changes.iter().map(copied_by).sum()))
    }

    /// Something became of a request's change.
    pub fn note_outcome(&mut self, request: u64, outcome: Outcome) {
        // Nobody asks again without a record of it.
        if request == 0 || !self.marks.outcomes.is_on() {
            return;
        }
        self.outcomes.insert(request, outcome);
        self.marks.outcomes.add(request);
        if self.outcomes.len() > OUTCOMES_MAX {
            // The kernel's numbers grow.
            self.outcomes.pop_first();
        }
    }

    /// Whether attributes of a file are on their way.
    pub fn has_attributes_of(&self, key: u64) -> bool {
        self.of_attributes.contains_key(&key)
    }

    /// Transactions with attributes of a file that were told to be changed already.
    pub fn attributes_told(&self, key: u64) -> impl Iterator<Item = u64> {
        let ids = self.of_attributes.get(&key).into_iter().flatten().copied();
        ids.filter(|id| self.get(id).is_some_and(|txn| txn.told))
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.values().map(|txn| txn.bytes).sum()
    }

    /// How many are under way, and how many bytes they have.
    pub fn under_way(&self) -> (usize, u64) {
        let sent = self.values().filter(|txn| txn.sending.is_under_way());
        sent.fold((0, 0), |(count, bytes), txn| (count + 1, bytes + txn.bytes))
    }

    /// In the order in which they are sent: those that have a number, in its order; then those that
    /// have none yet, in the order in which they were made.
    pub fn in_order(&self) -> Vec<u64> {
        let mut order: Vec<(u64, u64)> =
            self.iter().map(|(id, txn)| (txn.sending.number().unwrap_or(u64::MAX), *id)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| id).collect()
    }

    /// The connection is gone: what was sent may be done, and is sent again.
    pub fn disconnected(&mut self) {
        self.transactions.values_mut().for_each(|txn| txn.sending.disconnected());
    }

    /// When the next one is sent again.
    pub fn due(&self, now: Moment) -> Option<Moment> {
        self.values().filter_map(|txn| txn.sending.due(now)).min()
    }

    /// Parked ones whose time has come are sent again.
    pub fn unpark_due(&mut self, now: Moment) {
        self.transactions.values_mut().for_each(|txn| txn.sending.unpark_due(now));
    }

    /// These are sent again if they are parked.
    pub fn unpark(&mut self, ids: &BTreeSet<u64>) {
        for id in ids {
            self.get_mut(id).into_iter().for_each(|txn| txn.sending.unpark());
        }
    }

    /// All that are parked, or follow such a one.
    pub fn stuck(&self) -> BTreeSet<u64> {
        let parked = self.iter().filter(|(_, txn)| txn.sending.is_parked()).map(|(id, _)| *id);
        parked.flat_map(|id| self.followers(id).into_iter().chain([id])).collect()
    }

    /// Those with data that cannot be sent before this one.
    pub fn followers(&self, id: u64) -> Vec<u64> {
        let mut found = vec![id];
        for (other, txn) in self.iter() {
            if txn.is_data() && txn.after.iter().any(|after| found.contains(after)) {
                found.push(*other);
            }
        }
        found.split_off(1)
    }

    /// Those that cannot be made if this one is refused.
    pub fn refused_with(&self, id: u64) -> Vec<u64> {
        let Some(txn) = self.get(&id).filter(|txn| txn.is_data()) else { return Vec::new() };
        let follows = |other: &Transaction| {
            let same = txn.file.is_some() && other.file == txn.file && other.after.contains(&id);
            same || other.base == Base::Chain(id)
        };
        self.iter().filter(|(other, txn)| **other != id && follows(txn)).map(|(id, _)| *id).collect()
    }

    /// Transactions that were based on the outcome of one are based on this from now on.
    pub fn rebase(&mut self, id: u64, base: Base) {
        self.which_mut(|other| other.base == Base::Chain(id)).for_each(|other| other.base = base);
    }

    /// Whether one is based on the outcome of this one.
    pub fn is_followed(&self, id: u64) -> bool {
        self.values().any(|other| other.base == Base::Chain(id))
    }

    /// Whether it follows one that has no number, or a higher one: that was refused meanwhile.
    pub fn follows_later_number(&self, txn: &Transaction) -> bool {
        let mut before = txn.after.iter().filter_map(|id| self.get(id));
        before.any(|before| before.sending.number().is_none_or(|number| Some(number) > txn.sending.number()))
    }

    /// Whether a change of names waits for this one.
    pub fn has_names_after(&self, id: u64) -> bool {
        self.values().any(|other| !other.is_data() && other.after.contains(&id))
    }

    /// These wait for one more.
    pub fn wait_for(&mut self, waiting: &[u64], id: u64) {
        for other in waiting {
            if let Some(other) = self.get_mut(other) {
                other.after.insert(id);
            }
        }
    }

    /// `first` do not wait for `id`, nor for what waits for it; it waits for them.
    pub fn put_before(&mut self, first: &BTreeSet<u64>, id: u64) {
        let mut behind = BTreeSet::from([id]);
        loop {
            let waits = |(other, txn): &(&u64, &Transaction)| {
                !first.contains(other) && !behind.contains(other) && !txn.after.is_disjoint(&behind)
            };
            let more: Vec<u64> = self.iter().filter(waits).map(|(other, _)| *other).collect();
            if more.is_empty() {
                break;
            }
            behind.extend(more);
        }
        for other in first {
            if let Some(txn) = self.get_mut(other) {
                txn.after.retain(|after| !behind.contains(after));
            }
        }
        self.get_mut(&id).into_iter().for_each(|txn| txn.after.extend(first));
    }

    /// Gives a transaction its number; false if none is reserved yet.
    pub fn give_number(&mut self, id: u64, session: &mut Session) -> bool {
        if self.numbers.next.saturating_add(NUMBERS_RESERVED / 2) > self.numbers.reserved {
            self.numbers.reserve(session);
        }
        self.marks.transactions.add(id);
        let Some(txn) = self.transactions.get_mut(&id) else { return false };
        if txn.sending.number().is_some() {
            return true;
        }
        let Some(number) = self.numbers.give() else { return false };
        txn.sending.set_number(number);
        if let Some(from) = txn.kept.renumber(number) {
            session.push_job(Job::Renumber { from, to: number });
        }
        true
    }

    /// Reserves numbers before the first one is needed.
    pub fn reserve_numbers(&mut self, session: &mut Session) {
        self.numbers.reserve(session);
    }

    /// Numbers were reserved, or could not be.
    pub fn numbers_reserved(&mut self, next: u64, is_done: bool) {
        self.numbers.reserving = false;
        if is_done {
            self.numbers.reserved = next;
        }
    }

    /// Removes a transaction from the outbox, or moves it aside with the reason why it was refused.
    /// Where it lies then.
    pub fn unstore(
        &mut self,
        id: u64,
        txn: &mut Transaction,
        lost: Option<&str>,
        session: &mut Session,
    ) -> Option<String> {
        let mut removes = txn.kept.take_kept_too();
        let number = txn.kept.number();
        if let Some(number) = number {
            if let Some(reason) = lost {
                session.push_job(Job::Lose { number, reason: reason.to_owned() });
            } else {
                removes.push(number);
            }
        }
        // One that follows needs it to know its base, should the device start anew.
        let follower = self.which_mut(|other| other.base == Base::Chain(id) && other.kept.is_kept()).next();
        match follower {
            Some(other) if lost.is_none() => other.kept.keep_too(&mut removes),
            _ => session.push_jobs(removes.into_iter().map(|number| Job::Remove { number })),
        }
        number.filter(|_| lost.is_some()).map(|number| format!("lost/{}", crate::outbox::file_name(number, number)))
    }

    /// Bytes that are not on the server.
    pub fn unsent_bytes(&self, files: &Files) -> u64 {
        files.unsealed_bytes() + self.bytes()
    }

    /// Bytes of files that the server refuses for now: waiting makes no room of them.
    pub fn stuck_bytes(&self, files: &Files) -> u64 {
        let stuck: Vec<&Transaction> = self.stuck().iter().filter_map(|id| self.get(id)).collect();
        let keys: BTreeSet<u64> = stuck.iter().filter_map(|txn| txn.file).collect();
        let files = keys.iter().filter_map(|key| files.get(key)).filter(|file| file.unsent.is_dirty());
        files.map(|file| file.unsent.overlay().open_bytes()).sum::<u64>()
            + stuck.iter().map(|txn| txn.bytes).sum::<u64>()
    }

    /// The unsent changes, of so many bytes at most.
    pub fn status(&self, files: &Files, unsent_bytes_max: u64) -> UnsentStatus {
        UnsentStatus {
            unsent_transactions: self.transactions.len() as u64,
            unsent_bytes: self.unsent_bytes(files),
            unsent_bytes_max,
            stored_transactions: self.values().filter(|txn| txn.kept.is_stored()).count() as u64,
        }
    }

    /// Whether so many bytes more may be unsent, of this many at most.
    pub fn has_room(&self, files: &Files, bytes: u64, bytes_max: u64) -> bool {
        let unsent = self.unsent_bytes(files);
        unsent == 0 || unsent + bytes <= bytes_max
    }
}
