//! Transactions to the server, in the order of their numbers, several under way; and what became of them.
//!
//! A transaction that follows another one of the same file waits for its answer, which says what version it is based on. Others do
//! not wait. A number that was refused is not used again for something else: the server would not know which was meant.

use std::collections::BTreeMap;
use std::time::Duration;

use connection::Unanswered;
use units::Moment;
use wire::volume::{Change, Seen, VolumeAsk, VolumeReply};
use wire::{ErrorCode, Reply};

use super::Engine;
use super::file::{Base, Block, File};
use super::requests::AskFor;
use super::transaction::{Effect, State, Transaction};
use super::wants::Want;
use crate::present::Present;
use crate::{ErrorKind, StreamError};

/// Transactions under way at most. The server remembers the answers of the last 64.
const UNDER_WAY_MAX: usize = 16;

/// Bytes of transactions under way: what the connection queues without holding up what comes after them.
const UNDER_WAY_BYTES_MAX: u64 = (wire::format::PUT_QUEUE_BYTES_MAX - wire::format::COMMIT_BYTES_MAX_WRITTEN) as u64;

/// Time for the answer to a transaction beyond what the link needs: a slow disk syncs.
const COMMIT_TIME: Duration = Duration::from_secs(60);

/// How long to wait before a transaction is sent again that the server had no time for, or failed with.
const AGAIN: Duration = Duration::from_millis(500);

/// How long before a parked transaction is sent again by itself: at first, and twice as long each
/// time, up to the second. So changes go on soon after a lease ended or there is room, and a large
/// transaction that is refused again and again takes little of the link.
const PARKED: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(16);

/// How often a transaction is sent to a server that fails with it.
const TRIES_MAX: u32 = 20;

impl Engine {
    /// Sends what may be sent.
    pub(super) fn pump_commits(&mut self) {
        // What was written under a lock is sent if the lock still holds.
        if !self.session.link.is_open() || !self.session.is_proven() || self.locks.is_claiming() {
            return;
        }
        let now = self.session.now();
        self.transactions.unpark_due(now);
        let (mut count, mut bytes) = self.transactions.under_way();
        for id in self.transactions.in_order() {
            let Some(txn) = self.transactions.get(&id) else { continue };
            let State::Queued(from) = txn.state else { continue };
            match (txn.number.is_some(), txn.after.is_empty()) {
                (true, false) if self.transactions.follows_later_number(txn) => {
                    // It was never sent by its number, so nobody knows it; its next one will be
                    // higher.
                    if let Some(txn) = self.transactions.get_mut(&id) {
                        txn.number = None;
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
            if !self.transactions.give_number(id, &mut self.session) {
                return;
            }
            self.send_commit(id);
            count += 1;
            bytes += size;
        }
    }

    fn send_commit(&mut self, id: u64) {
        let Some(txn) = self.transactions.get(&id) else { return };
        let (Some(number), mtime_ns) = (txn.number, txn.mtime_ns) else { return };
        let changes = txn.present_changes(&self.files);
        if let Some(txn) = self.transactions.get_mut(&id) {
            (txn.state, txn.sent) = (State::Sent, true);
        }
        self.session.ask(AskFor::Commit(id), VolumeAsk::Commit { number, mtime_ns, changes }, COMMIT_TIME);
    }

    /// What the server says of a transaction.
    pub(super) fn commit_answered(&mut self, id: u64, sent: Moment, answer: Result<Reply, Unanswered>) {
        let now = self.session.now();
        let removes_only_here = self.removes_only_here(id);
        let takes_existing = self.may_take_existing(id);
        let Some(txn) = self.transactions.get_mut(&id) else { return };
        let again = now.after(AGAIN);
        match answer {
            Ok(Reply::Volume(VolumeReply::Committed { versions })) if versions.len() == txn.changes.len() => {
                self.session.link.committed(sent, now, txn.bytes);
                self.committed(id, &versions);
            }
            // Done or not: the same number tells.
            Err(Unanswered::Expired) => txn.state = State::Queued(now),
            Ok(Reply::Error { code: ErrorCode::Busy | ErrorCode::Shutdown | ErrorCode::Cancelled, .. }) => {
                // Not done, or done by a volume that stopped then: the same number tells. What
                // follows may have been, under later numbers: then this one is told to be outdated.
                txn.state = State::Queued(again);
            }
            // It was refused, and the answer was lost with a connection: no more than these few are under way, and the server remembers more
            // answers than that. With another number it tells why, or does it.
            Ok(Reply::Error { code: ErrorCode::Outdated, .. }) if txn.replayed.is_none() && txn.tries < TRIES_MAX => {
                txn.tries += 1;
                txn.number = None;
                txn.state = State::Queued(now);
            }
            Ok(Reply::Error { code: ErrorCode::Storage | ErrorCode::Internal | ErrorCode::Corrupt, .. })
                if txn.tries < TRIES_MAX =>
            {
                txn.tries += 1;
                txn.state = State::Queued(again);
            }
            Ok(Reply::Error { .. }) | Err(Unanswered::Refused) if txn.renames_with_attributes() => {
                self.without_taken_attributes(id);
            }
            Ok(Reply::Error { code: ErrorCode::Exists, .. }) if takes_existing => self.take_existing(id),
            Ok(Reply::Error { code: ErrorCode::Linked, .. }) if txn.unnames.is_some() => self.is_linked_there(id),
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

    fn committed(&mut self, id: u64, versions: &[Seen]) {
        let Some(mut txn) = self.transactions.remove(id) else { return };
        self.transactions.count_committed();
        let seen = versions.last().copied().unwrap_or_default();
        self.transactions.unstore(id, &mut txn, None, &mut self.session);
        self.transactions.rebase(id, Base::Known(txn.effect.seen_before(seen)));
        match txn.file {
            Some(key) => self.file_committed(key, id, &txn, seen),
            None => self.names_changed(&txn, versions),
        }
        self.tell_wants(id, None, versions);
    }

    /// The server has what a transaction wrote: so has the table.
    fn file_committed(&mut self, key: u64, id: u64, txn: &Transaction, to: Seen) {
        let block = u64::from(self.session.block_bytes());
        let Some(file) = self.files.get_mut(&key) else { return };
        file.sealed.retain(|other| *other != id);
        file.overlay.settle(id);
        file.cuts.retain(|(mark, _)| *mark != id);
        if let Some(dirty) = &mut file.dirty
            && dirty.base == Base::Chain(id)
        {
            dirty.base = Base::Known(txn.effect.seen_before(to));
        }
        let effect = &txn.effect;
        let from = match txn.base {
            Base::Known(seen) => Some(seen),
            _ => None,
        };
        let new = effect.created && effect.appended == 0;
        // Of a file that was made here and was there already it is not known what else is in it.
        let exact = effect.appended == 0 && (new || (from.is_some() && file.seen == from && !file.unsure));
        if exact && (new || from.is_some_and(|from| from.file == to.file && from.version < to.version)) {
            let old_size = if new { 0 } else { file.size };
            if new {
                (file.present, file.kernel) = (Present::nothing(), Some(to));
            } else {
                file.kernel = file.kernel.filter(|kernel| Some(*kernel) == from).map(|_| to);
            }
            let touched = effect.touched_blocks(old_size, block);
            let contents = self.take_touched(key, &touched);
            let Some(file) = self.files.get_mut(&key) else { return };
            file.size = effect.new_size(old_size);
            file.note_stored(effect.writes.iter().map(|(_, bytes)| bytes.len() as u64).sum(), effect.cut);
            file.seen = Some(to);
            // What the cache brings now is of the version before.
            file.blocks.retain(|_, entry| !matches!(entry, Block::Reading { .. }));
            for (offset, bytes) in &effect.writes {
                file.present.add(offset / block, (offset + bytes.len() as u64).div_ceil(block));
            }
            if let Some(from) = from {
                self.rebase_reads(key, from, to, touched);
            }
            self.merge_writes(key, effect, block, contents);
        } else if file.seen != Some(to) {
            match file.seen {
                Some(seen) if seen.file == to.file && seen.version >= to.version => {}
                Some(seen) if seen.file == to.file => {
                    file.size = effect.new_size(file.size);
                    self.move_file(key, to.version, None);
                }
                _ => {
                    file.seen = Some(to);
                    file.size = effect.appended.max(file.size);
                    file.present = Present::unknown();
                    file.unsure = true;
                }
            }
        }
        if let Some(file) = self.files.get_mut(&key)
            && !file.is_changed()
        {
            file.local_size = None;
        }
        if let Some(file) = self.files.get(&key) {
            let is_whole = exact && file.seen == Some(to) && !file.unsure && !file.is_changed();
            let (path, info) = (file.path.clone(), file.info());
            match txn.effect.created {
                true => self.names.name_changed(&path, self.session.wall_ns()),
                false => self.names.forget_file(&path),
            }
            self.forget_names(to.file);
            if is_whole {
                self.names.put(&path, Some(info), self.session.now());
            }
        }
        if txn.effect.taken {
            // Whether it may be the file that was made here, nobody knows before.
            self.open_number(key);
        }
        self.advance_reads(key);
        self.drop_unused(key);
    }

    /// Takes the blocks out of the table that a transaction changed, while they are still of the version before.
    fn take_touched(&mut self, key: u64, touched: impl Fn(u32) -> bool) -> BTreeMap<u32, Vec<u8>> {
        let Some(file) = self.files.get(&key) else { return BTreeMap::new() };
        let there = file.blocks.iter().filter(|(index, _)| touched(**index));
        let taken = there.filter_map(|(index, entry)| match entry {
            Block::Memory { bytes, .. } => Some((*index, bytes.to_vec())),
            _ => None,
        });
        let taken = taken.collect();
        self.drop_blocks(key, touched);
        taken
    }

    /// Blocks that were in memory take what was written into them; those that were written wholly are in memory from now on.
    fn merge_writes(&mut self, key: u64, effect: &Effect, block: u64, mut contents: BTreeMap<u32, Vec<u8>>) {
        let Some(size) = self.files.get(&key).map(|file| file.size) else { return };
        let cut = effect.cut.unwrap_or(u64::MAX);
        contents.retain(|index, _| (u64::from(*index) + 1) * block <= cut);
        for (offset, bytes) in &effect.writes {
            let end = offset + bytes.len() as u64;
            for index in offset / block..end.div_ceil(block) {
                let Ok(small) = u32::try_from(index) else { return };
                let start = index * block;
                let valid = size.saturating_sub(start).min(block) as usize;
                let (from, until) = ((*offset).max(start), end.min(start + valid as u64));
                if from == start && until == start + valid as u64 && from < until {
                    contents.insert(small, vec![0; valid]);
                }
                if let Some(content) = contents.get_mut(&small).filter(|_| from < until) {
                    content.resize(valid, 0);
                    let source = &bytes[(from - offset) as usize..(until - offset) as usize];
                    content[(from - start) as usize..(until - start) as usize].copy_from_slice(source);
                }
            }
        }
        for (index, content) in contents {
            self.install(key, index, content.into(), false);
        }
    }

    /// It can be sent again later; those who wait are told.
    fn park(&mut self, id: u64, error: &StreamError) {
        let now = self.session.now();
        let Some(txn) = self.transactions.get_mut(&id) else { return };
        let wait = PARKED.start().saturating_mul(1 << txn.parked.min(8)).min(*PARKED.end());
        txn.state = State::Parked(now.after(wait));
        txn.parked += 1;
        (txn.number, txn.sent) = (None, false);
        txn.why = Some(error.clone());
        let key = txn.file;
        let mut stuck = self.transactions.followers(id);
        stuck.insert(0, id);
        self.free_names(key, &stuck, error);
        stuck.into_iter().for_each(|id| self.tell_wants(id, Some(error), &[]));
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

    /// Whether it removes a file that the server does not know.
    fn removes_only_here(&self, id: u64) -> bool {
        let Some(txn) = self.transactions.get(&id) else { return false };
        let file = txn.unnames.and_then(|key| self.files.get(&key));
        let removes = matches!(txn.changes.last(), Some(Change::Unlink { .. }));
        removes && file.is_some_and(|file| file.seen.is_none())
    }

    /// Parked transactions of a file that nobody has open any more.
    pub(super) fn refuse_parked(&mut self, key: u64) {
        // What waits for the name to be removed is dropped with the name.
        let told = |txn: &Transaction| txn.file == Some(key) && txn.is_parked() && txn.after.is_empty();
        let parked = self.transactions.iter().filter(|(_, txn)| told(txn));
        let parked: Vec<u64> = parked.map(|(id, _)| *id).collect();
        for id in parked {
            if let Some(why) = self.transactions.get(&id).and_then(|txn| txn.why.clone()) {
                self.refuse(id, &why);
            }
        }
    }

    /// It will never be made, nor will what follows it.
    pub(super) fn refuse(&mut self, id: u64, error: &StreamError) {
        let followers = self.transactions.refused_with(id);
        let Some(mut txn) = self.transactions.remove(id) else { return };
        if !txn.is_data() {
            self.transactions.without_attributes(id, txn.base, &self.files, &mut self.session);
        }
        // A change of names or attributes is told to whoever waits for it, and kept for nobody.
        let lost = txn.is_data().then(|| error.to_string());
        let kept_as = self.transactions.unstore(id, &mut txn, lost.as_deref(), &mut self.session);
        if txn.is_data() {
            let mut bytes = txn.bytes;
            if let Some(key) = txn.file {
                bytes += self.overtaken(key, error);
                if let Some(file) = self.files.get_mut(&key) {
                    file.sealed.retain(|other| *other != id);
                }
            }
            self.session.lose(&txn.path, bytes, error.to_string(), kept_as);
        }
        if txn.told {
            self.session.lose(&txn.path, 0, error.to_string(), None);
        }
        self.tell_wants(id, Some(error), &[]);
        followers.into_iter().for_each(|id| self.refuse(id, error));
        if let Some(key) = txn.file {
            self.drop_unused(key);
        }
    }

    /// A file whose changes were refused: they stay readable until it is closed, and whoever opens it again sees the server's.
    /// Returns the bytes that no transaction carries.
    pub(super) fn overtaken(&mut self, key: u64, error: &StreamError) -> u64 {
        let Some(file) = self.files.get_mut(&key) else { return 0 };
        file.stale = Some(error.clone());
        let path = file.path.clone();
        let open = if file.dirty.take().is_some() { file.overlay.open_bytes() } else { 0 };
        self.detach(key);
        self.names.forget(&path);
        open
    }

    /// Tells those who wait for a transaction.
    pub(super) fn tell_wants(&mut self, id: u64, error: Option<&StreamError>, versions: &[Seen]) {
        for waiting in self.calls.answered(id, error) {
            let outcome = error.cloned().map_or(Ok(()), Err);
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
    pub(super) fn abandon(&mut self, want: &Want) {
        match want {
            Want::Change { txn, .. } | Want::Create { txn, .. } => {
                let unsent = |txn: &Transaction| txn.number.is_none() && matches!(txn.state, State::Queued(_));
                if self.transactions.get(txn).is_some_and(unsent) {
                    self.transactions.remove(*txn);
                }
            }
            Want::Sync { closing: Some(key), .. } => self.release(*key),
            _ => {}
        }
    }
}

impl File {
    /// Whether the file is only here so far, and nothing of it was sent.
    pub(super) fn is_only_here(&self) -> bool {
        self.seen.is_none() && self.sealed.is_empty()
    }
}
