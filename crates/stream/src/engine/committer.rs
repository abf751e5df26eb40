//! Transactions to the server, in the order of their numbers, several under way; and what became of
//! them.
//!
//! A transaction that follows another one of the same file waits for its answer, which says on what
//! version it is based. Others do not wait. A number that was refused is not used for another
//! transaction: the server would not know which is meant.

use std::collections::BTreeMap;
use std::time::Duration;

use connection::Unanswered;
use units::Moment;
use wire::volume::{Change, Seen, VolumeAsk, VolumeReply};
use wire::{ErrorCode, Reply};

use super::blocks::Blocks;
use super::dirty::Base;
use super::file::File;
use super::files::Files;
use super::locks::{LockHolder, Locks, lost_lock};
use super::read::Read;
use super::reader::Reader;
use super::requests::AskFor;
use super::session::Session;
use super::touches::Touches;
use super::transaction::Transaction;
use super::transactions::{Outcome, Transactions};
use super::wants::{WaitingCalls, Want};
use super::writer::Writer;
use crate::names::{Names, parent};
use crate::{ErrorKind, StreamError};

/// Transactions under way at most. The server remembers the answers of the last 64.
const UNDER_WAY_MAX: usize = 16;

/// Bytes of transactions under way: what the connection queues without holding up what comes after
/// them.
const UNDER_WAY_BYTES_MAX: u64 = (wire::format::PUT_QUEUE_BYTES_MAX - wire::format::COMMIT_BYTES_MAX_WRITTEN) as u64;

/// Time for the answer to a transaction beyond what the link needs: a slow disk syncs.
const COMMIT_TIME: Duration = Duration::from_secs(60);

/// How long to wait before a transaction is sent again that the server had no time for, or failed
/// with.
const AGAIN: Duration = Duration::from_millis(500);

/// The parts that the outcome of a transaction changes.
///
/// Invariant: a transaction is sent only while the device is proven and all its locks hold. What it
/// changed is in the files and names when whoever waits for it is told.
pub(super) struct Committer<'a> {
    pub session: &'a mut Session,
    pub files: &'a mut Files,
    pub reads: &'a mut BTreeMap<u64, Read>,
    pub calls: &'a mut WaitingCalls,
    pub blocks: &'a mut Blocks,
    pub touches: &'a mut Touches,
    pub names: &'a mut Names,
    pub transactions: &'a mut Transactions,
    pub locks: &'a mut Locks,
}

impl Committer<'_> {
    pub fn reader(&mut self) -> Reader<'_> {
        let Committer { session, files, reads, calls, blocks, touches, names, .. } = self;
        Reader { session, files, reads, calls, blocks, touches, names }
    }

    pub fn writer(&mut self) -> Writer<'_> {
        let Committer { session, files, calls, names, transactions, .. } = self;
        Writer { session, files, calls, names, transactions }
    }

    /// Sends what may be sent.
    pub fn pump_commits(&mut self) {
        // Data that was written under a lock is sent only if the lock still holds.
        if !self.session.link.is_open() || !self.session.is_proven() || self.locks.is_claiming() {
            return;
        }
        let now = self.session.now();
        self.transactions.unpark_due(now);
        let (mut count, mut bytes) = self.transactions.under_way();
        for id in self.transactions.in_order() {
            let Some(txn) = self.transactions.get(&id) else { continue };
            let Some(from) = txn.sending.queued() else { continue };
            match (txn.sending.number().is_some(), txn.after.is_empty()) {
                (true, false) if self.transactions.follows_later_number(txn) => {
                    // It was never sent by its number, so nobody knows it; its next one will be
                    // higher.
                    if let Some(txn) = self.transactions.get_mut(&id) {
                        txn.sending.drop_number();
                    }
                    continue;
                }
                (true, false) => return,
                (false, false) => continue,
                // Whether the file may be written, nobody knows yet.
                (_, true) if self.is_taken(txn) => continue,
                (_, true) if from > self.session.now() => return,
                (_, true) => {}
            }
            if count >= UNDER_WAY_MAX || (count > 0 && bytes + txn.bytes > UNDER_WAY_BYTES_MAX) {
                return;
            }
            let size = txn.bytes;
            if !self.transactions.give_number(id, self.session) {
                return;
            }
            self.send_commit(id);
            count += 1;
            bytes += size;
        }
    }

    /// Whether it is of a file that another device had made, and nobody has looked at since.
    fn is_taken(&self, txn: &Transaction) -> bool {
        let file = txn.file.and_then(|key| self.files.get(&key));
        file.is_some_and(|file| file.taken.is_some() && file.seen.is_some())
    }

    fn send_commit(&mut self, id: u64) {
        let Some(txn) = self.transactions.get(&id) else { return };
        let (Some(number), mtime_ns) = (txn.sending.number(), txn.mtime_ns) else { return };
        let changes = txn.present_changes(self.files);
        if let Some(txn) = self.transactions.get_mut(&id) {
            txn.sending.send();
        }
        self.session.ask(AskFor::Commit(id), VolumeAsk::Commit { number, mtime_ns, changes }, COMMIT_TIME);
    }

    /// The server has answered a transaction.
    pub fn commit_answered(&mut self, id: u64, sent: Moment, answer: Result<Reply, Unanswered>) {
        let now = self.session.now();
        let removes_only_here = self.removes_only_here(id);
        let takes_existing = self.writer().may_take_existing(id);
        let is_of_nameless = self.is_of_nameless(id);
        let Some(txn) = self.transactions.get_mut(&id) else { return };
        let again = now.after(AGAIN);
        match answer {
            Ok(Reply::Volume(VolumeReply::Committed { versions })) if versions.len() == txn.changes.len() => {
                self.session.link.committed(sent, now, txn.bytes);
                self.committed(id, &versions);
            }
            // Done or not: the same number tells.
            Err(Unanswered::Expired) => txn.sending.queue(now),
            Ok(Reply::Error { code: ErrorCode::Busy | ErrorCode::Shutdown | ErrorCode::Cancelled, .. }) => {
                // Not done, or done by a volume that stopped then: the same number tells. What
                // follows may have been, under later numbers: then this one is told to be outdated.
                txn.sending.queue(again);
            }
            // It was refused, and the answer was lost with a connection: no more than these few are
            // under way, and the server remembers more answers than that. With another number it
            // tells why, or does it.
            Ok(Reply::Error { code: ErrorCode::Outdated, .. }) if txn.replayed.is_none() && txn.sending.may_retry() => {
                txn.sending.retry_anew(now);
            }
            Ok(Reply::Error { code: ErrorCode::Storage | ErrorCode::Internal | ErrorCode::Corrupt, .. })
                if txn.sending.may_retry() =>
            {
                txn.sending.retry(again);
            }
            Ok(Reply::Error { .. }) | Err(Unanswered::Refused) if txn.renames_with_attributes() => {
                self.writer().without_taken_attributes(id);
            }
            Ok(Reply::Error { code: ErrorCode::Exists, .. }) if takes_existing => self.writer().take_existing(id),
            Ok(Reply::Error { code: ErrorCode::Linked, .. }) if txn.unnames.is_some() => {
                self.writer().is_linked_there(id)
            }
            // Meanwhile this device took the name: nobody will see what it changes.
            Ok(Reply::Error { code: ErrorCode::NotFound | ErrorCode::Stale | ErrorCode::Conflict, .. })
                if is_of_nameless =>
            {
                self.committed(id, &[]);
            }
            // It was to remove what is only here.
            Ok(Reply::Error { code: ErrorCode::NotFound, .. }) if removes_only_here => {
                self.committed(id, &[]);
            }
            Ok(Reply::Error { code, text }) => {
                let file = txn.file.and_then(|key| self.files.get(&key));
                let was_there = file.is_some_and(|file| file.seen.is_some());
                let code = match code {
                    ErrorCode::NotFound if was_there => ErrorCode::Stale,
                    // Nobody asked for a file that was not there.
                    ErrorCode::Exists if txn.is_data() => ErrorCode::Conflict,
                    code => code,
                };
                let error = StreamError::refused(code, &txn.path, &text);
                let parks = matches!(code, ErrorCode::NoSpace | ErrorCode::OverQuota | ErrorCode::Leased);
                let held = txn.file.and_then(|key| self.files.get(&key)).is_some_and(|file| file.handles > 0);
                match parks && held {
                    true => self.park(id, &error),
                    false => self.refuse(id, &error),
                }
            }
            Ok(_) => {
                let error = StreamError::nonsense(&txn.path, "not the versions of what was changed");
                self.refuse(id, &error);
            }
            Err(Unanswered::Refused) => {
                let text = "it is larger than the protocol allows; write smaller pieces";
                let error = StreamError::new(ErrorKind::TooLarge, &txn.path, text);
                self.refuse(id, &error);
            }
        }
    }

    /// Whether it has attributes, told to be changed, of a file that has no name any more.
    fn is_of_nameless(&self, id: u64) -> bool {
        let txn = self.transactions.get(&id).filter(|txn| txn.told);
        let file = txn.and_then(|txn| txn.changes_file).and_then(|key| self.files.get(&key));
        file.is_some_and(File::is_nameless)
    }

    /// Whether it removes a file that the server does not know.
    fn removes_only_here(&self, id: u64) -> bool {
        let Some(txn) = self.transactions.get(&id) else { return false };
        let file = txn.unnames.and_then(|key| self.files.get(&key));
        let removes = matches!(txn.changes.last(), Some(Change::Unlink { .. }));
        removes && file.is_some_and(|file| file.seen.is_none())
    }

    pub fn committed(&mut self, id: u64, versions: &[Seen]) {
        let Some(mut txn) = self.transactions.remove(id) else { return };
        self.transactions.count_committed();
        let seen = versions.last().copied().unwrap_or_default();
        self.transactions.unstore(id, &mut txn, None, self.session);
        self.transactions.rebase(id, Base::Known(txn.effect.seen_before(seen)));
        self.transactions.note_outcome(txn.request, Outcome::of(&txn, versions));
        match txn.file {
            Some(key) => {
                let path = self.files.get(&key).map_or(&txn.path, |file| &file.path);
                self.calls.list_again(parent(path), self.session);
                self.reader().file_committed(key, id, &txn, seen);
            }
            None => self.names_changed(&txn, versions),
        }
        self.tell_callers(id, None, versions);
    }

    /// It can be sent again later; those who wait are told.
    fn park(&mut self, id: u64, error: &StreamError) {
        let now = self.session.now();
        let Some(txn) = self.transactions.get_mut(&id) else { return };
        txn.sending.park(now, error.clone());
        let key = txn.file;
        let mut stuck = self.transactions.followers(id);
        stuck.insert(0, id);
        self.free_names(key, &stuck, error);
        stuck.into_iter().for_each(|id| self.tell_callers(id, Some(error), &[]));
    }

    /// Changes of names that wait for transactions that are parked, or follow such a one, wait no
    /// more: they go before, or fail.
    fn free_names(&mut self, key: Option<u64>, stuck: &[u64], error: &StreamError) {
        let waits = |txn: &Transaction| !txn.is_data() && stuck.iter().any(|id| txn.after.contains(id));
        let waiting = self.transactions.iter().filter(|(_, txn)| waits(txn));
        let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        let path = key.and_then(|key| self.files.get(&key)).map(|file| file.path.clone()).unwrap_or_default();
        for id in waiting {
            let Some(txn) = self.transactions.get_mut(&id) else { continue };
            let unnames = key.is_some() && txn.unnames == key;
            if txn.names(&path) && !unnames {
                // The name would get to the server, and what is in the file would not.
                self.refuse(id, error);
                continue;
            }
            // With the name, all that was to be sent of the file goes; or its folder gets another
            // one.
            txn.after.retain(|after| !stuck.contains(after));
            self.transactions.wait_for(stuck, id);
        }
    }

    /// Parked transactions of a file that nobody has open any more.
    fn refuse_parked(&mut self, key: u64) {
        // A transaction that waits for the name to be removed is dropped with the name.
        let told = |txn: &Transaction| txn.file == Some(key) && txn.sending.is_parked() && txn.after.is_empty();
        let parked = self.transactions.iter().filter(|(_, txn)| told(txn));
        let parked: Vec<u64> = parked.map(|(id, _)| *id).collect();
        for id in parked {
            if let Some(why) = self.transactions.get(&id).and_then(|txn| txn.sending.why().cloned()) {
                self.refuse(id, &why);
            }
        }
    }

    /// It will never be made, nor will what follows it.
    pub fn refuse(&mut self, id: u64, error: &StreamError) {
        let followers = self.transactions.refused_with(id);
        let Some(mut txn) = self.transactions.remove(id) else { return };
        if !txn.is_data() {
            self.transactions.without_attributes(id, txn.base, self.files, self.session);
        }
        let outcome = Outcome { error: Some(error.clone()), ..Outcome::default() };
        self.transactions.note_outcome(txn.request, outcome);
        // A change of names or attributes is told to whoever waits for it, and kept for nobody.
        let lost = txn.is_data().then(|| error.to_string());
        let kept_as = self.transactions.unstore(id, &mut txn, lost.as_deref(), self.session);
        if txn.is_data() {
            let mut bytes = txn.bytes;
            if let Some(key) = txn.file {
                bytes += self.reader().overtaken(key, error);
                if let Some(file) = self.files.get_mut(&key) {
                    file.unsent.refused(id);
                }
            }
            self.session.lose(&txn.path, bytes, error.to_string(), kept_as);
        }
        if txn.told {
            self.session.lose(&txn.path, 0, error.to_string(), None);
        }
        self.tell_callers(id, Some(error), &[]);
        followers.into_iter().for_each(|id| self.refuse(id, error));
        if let Some(key) = txn.file {
            self.reader().drop_unused(key);
        }
    }

    /// Tells those who wait for a transaction.
    pub fn tell_callers(&mut self, id: u64, error: Option<&StreamError>, versions: &[Seen]) {
        for waiting in self.calls.answered(id, error) {
            let outcome = error.cloned().map_or(Ok(()), Err);
            self.session.set_request(waiting.request);
            match waiting.want {
                Want::Change { done, .. } => self.session.finish(done, outcome),
                Want::Sync { error, closing, done, .. } => {
                    if let Some(key) = closing {
                        self.release(key);
                    }
                    self.session.finish(done, error.map_or(Ok(()), Err));
                }
                Want::Create { path, how, token, made_ns, done, .. } => {
                    let made = outcome.map(|()| {
                        let seen = versions.first().copied().unwrap_or_default();
                        self.created(&path, how, token, (seen, made_ns))
                    });
                    self.session.finish(done, made);
                }
                _ => {}
            }
        }
    }

    /// A call that nobody waits for any more: what it wanted is not sent if that is still possible.
    pub fn abandon(&mut self, want: &Want) {
        match want {
            Want::Change { txn, .. } | Want::Create { txn, .. }
                if self.transactions.get(txn).is_some_and(|txn| txn.sending.is_new()) =>
            {
                self.transactions.remove(*txn);
            }
            Want::Sync { closing: Some(key), .. } => self.release(*key),
            _ => {}
        }
    }

    /// A handle of a file is gone.
    pub fn release(&mut self, key: u64) {
        let Some(file) = self.files.get_mut(&key) else { return };
        file.handles = file.handles.saturating_sub(1);
        if file.handles > 0 {
            return;
        }
        let number = file.numbering.take();
        self.locks.unlock_all(key, self.session.now());
        let Some(file) = self.files.get_mut(&key) else { return };
        if let Some(number) = number {
            file.table.forget_pushes();
            self.touches.send(self.files, &mut self.session.link);
            self.reader().forget_number(key, number);
        }
        self.refuse_parked(key);
        self.reader().drop_unused(key);
    }

    /// Somebody else may have what an owner had locked. What was written to the file and never sent
    /// is lost with a lock for writing: who has it now may have read already.
    pub fn lose_locks(&mut self, holder: LockHolder) {
        let exclusive = self.locks.has_exclusive(holder);
        self.locks.lose(holder, self.session.now());
        if !exclusive {
            return;
        }
        self.writer().seal(holder.0);
        let sealed = self.files.get(&holder.0).map(|file| file.unsent.sealed()).unwrap_or_default();
        let unsent =
            sealed.iter().copied().find(|id| self.transactions.get(id).is_some_and(|txn| !txn.sending.was_sent()));
        if let Some(id) = unsent {
            self.refuse(id, &lost_lock(holder.0, self.files));
        }
    }
}
