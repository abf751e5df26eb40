//! Connections that come and go, what the outbox held, and the end.

use std::collections::BTreeMap;

use connection::{Connected, Unanswered};
use units::Moment;
use wire::{ErrorCode, Notice, Reply, Request};

use super::file::{Base, Block};
use super::transaction::{Keep, State, Transaction, path_of};
use super::{ANSWER_TIME, AskFor, Engine, OPEN_AGAIN, Time};
use crate::job::Job;
use crate::outbox::{Stored, StoredBase};
use crate::{ErrorKind, Lost, StreamError, VolumeInfo};

impl Engine {
    /// A connection is there.
    pub fn connected(&mut self, time: Time, generation: u64, connected: Connected) {
        self.time = time;
        if self.closed {
            return;
        }
        self.link.generation = Some(generation);
        self.link.exposed_to = connected.is_exposed().then_some(connected.address);
        self.link.connections += 1;
        if connected.features & wire::format::FEATURE_VOLUMES == 0 {
            let text = "the server serves no volumes; update it";
            let error = StreamError::volume(ErrorKind::NoVolumes, &self.name, text);
            return self.cannot_open(error, true);
        }
        self.ask_volume();
    }

    pub(super) fn ask_volume(&mut self) {
        if self.link.generation.is_some() && self.link.volume.is_none() {
            self.ask_server(AskFor::Volume, Request::VolumeOpen { name: self.name.clone() }, ANSWER_TIME);
        }
    }

    /// The volume is open on the present connection, or not.
    pub(super) fn volume_opened(&mut self, answer: Result<Reply, Unanswered>) {
        let (volume, nonce, mut info) = match answer {
            Ok(Reply::VolumeOpened { volume, id, block_bytes, writable, nonce }) => {
                (volume, nonce, VolumeInfo { id, block_bytes, writable })
            }
            Ok(Reply::Error { code, text }) => {
                let passing = matches!(code, ErrorCode::Busy | ErrorCode::Shutdown | ErrorCode::Cancelled);
                let error = match code {
                    ErrorCode::NotFound => {
                        let text = format!("the server has no volume of this name ({text}); see its --volume options");
                        StreamError::volume(ErrorKind::NotFound, &self.name, text)
                    }
                    _ => StreamError::refused(code, format!("volume {}", self.name).as_bytes(), &text),
                };
                return self.cannot_open(error, !passing);
            }
            Ok(_) => return self.cannot_open(StreamError::nonsense(self.name.as_bytes(), "no volume"), true),
            Err(_) => {
                let error = StreamError::volume(
                    ErrorKind::Timeout,
                    &self.name,
                    "the server does not answer; it is tried again",
                );
                return self.cannot_open(error, false);
            }
        };
        if !wire::format::VOLUME_BLOCK_BYTES.contains(&info.block_bytes) {
            return self.cannot_open(StreamError::nonsense(self.name.as_bytes(), "blocks of a strange size"), true);
        }
        if let Some(address) = self.link.exposed_to.filter(|_| info.writable && !self.options.insecure) {
            // What this device opened for reading it goes on to read.
            if self.info.is_none_or(|old| old.writable) || !self.transactions.is_empty() {
                let text = format!(
                    "it may be written, but over runnel:// to {address} others could read and change what is sent; \
                     use runnels://, or allow `insecure` in a network that you trust"
                );
                return self.cannot_open(StreamError::volume(ErrorKind::Exposed, &self.name, text), true);
            }
            info.writable = false;
        }
        if let Some(old) = self.info.filter(|old| (old.id, old.block_bytes) != (info.id, info.block_bytes)) {
            let text = format!(
                "the server has another volume under this name now ({:032x} instead of {:032x}); open it anew",
                info.id, old.id
            );
            let error = StreamError::volume(ErrorKind::Stale, &self.name, text);
            self.fail_waiting(&error);
            return self.cannot_open(error, false);
        }
        self.link.volume = Some(volume);
        self.link.reason.clear();
        self.link.again = None;
        if self.info.replace(info).is_none() && self.options.cache.is_some() {
            self.effects.jobs.push(Job::CacheOpen { volume: info.id, block_bytes: info.block_bytes });
        }
        self.show_on(nonce);
        if self.rate_limit > 0 {
            self.notify(Notice::RateLimit { bytes_per_second: self.rate_limit });
        }
        let strange = self.transactions.iter().filter(|(_, txn)| txn.replayed.is_some_and(|id| id != info.id));
        let strange: Vec<u64> = strange.map(|(id, _)| *id).collect();
        for id in strange {
            let text = "it was meant for another volume that had this name";
            self.refuse(id, &StreamError::volume(ErrorKind::Stale, &self.name, text));
        }
        // What is in the cache is known before anything is read.
        if self.options.cache.is_none()
            && let Some(done) = self.opening.take()
        {
            self.effects.finish(done, Ok(info));
        }
        let reading: Vec<u64> = self.read_files().map(|(key, _)| key).collect();
        reading.into_iter().for_each(|key| self.advance_reads(key));
    }

    fn cannot_open(&mut self, error: StreamError, for_good: bool) {
        self.link.reason = error.to_string();
        self.link.again = Some(self.time.now.after(OPEN_AGAIN));
        if for_good && let Some(done) = self.opening.take() {
            self.effects.finish(done, Err(error));
        }
    }

    /// The connection is gone.
    pub fn lost(&mut self, time: Time, reason: &str) {
        self.time = time;
        self.link.generation = None;
        if self.link.volume.take().is_some() {
            self.link.away = time.now;
        }
        self.link.again = None;
        self.showing.lost();
        self.locks.disconnected();
        self.link.streams.clear();
        if !self.closed {
            reason.clone_into(&mut self.link.reason);
        }
        self.asks.clear();
        self.postponed.clear();
        self.by_number.clear();
        self.touches.clear();
        self.credits.clear();
        self.touches_due = None;
        for file in self.files.values_mut() {
            (file.number, file.opening, file.arrival) = (None, false, None);
            file.blocks.retain(|_, block| !matches!(block, Block::Asked | Block::OnTheWay { .. }));
        }
        self.wants.values_mut().for_each(|waiting| waiting.asked = false);
        for txn in self.transactions.values_mut().filter(|txn| txn.state == State::Sent) {
            txn.state = State::Queued(Moment(0));
        }
        self.store_unsent();
        self.pump();
    }

    /// While the server is away, brings what it has not got to the outbox, as far as there is room.
    pub(super) fn store_unsent(&mut self) {
        let Some(room) = self.options.outbox.clone().filter(|_| self.info.is_some()) else { return };
        if self.link.volume.is_some() {
            return;
        }
        let kept = self.transactions.values().filter(|txn| txn.keep != Keep::No);
        let mut bytes: u64 = kept.map(|txn| txn.bytes).sum();
        // In the order in which they are sent: a number once given decides it.
        let mut order: Vec<(u64, u64)> =
            self.transactions.iter().map(|(id, txn)| (txn.number.unwrap_or(u64::MAX), *id)).collect();
        order.sort_unstable();
        for (_, id) in order {
            let Some(txn) = self.transactions.get(&id) else { continue };
            if txn.keep != Keep::No || txn.file.is_none() || bytes + txn.bytes > room.bytes {
                continue;
            }
            bytes += txn.bytes;
            for before in self.attributes_before(id) {
                if !self.store(before) {
                    return;
                }
            }
            if !self.store(id) {
                return;
            }
        }
    }

    /// Changes of attributes that a transaction of the same file waits for: each makes a version,
    /// on which the next one is based from now on. They are kept with it, since nobody would know
    /// that version after a restart of the device.
    fn attributes_before(&mut self, id: u64) -> Vec<u64> {
        let Some(txn) = self.transactions.get(&id).filter(|txn| txn.base != Base::Free) else { return Vec::new() };
        let path = txn.file.and_then(|key| self.files.get(&key)).map_or(&txn.path, |file| &file.path);
        let known = |before: &u64| match txn.base {
            Base::Chain(last) => {
                last == *before || self.transactions.get(&last).is_some_and(|l| l.after.contains(before))
            }
            _ => false,
        };
        let of_it = |before: &u64| self.transactions.get(before).is_some_and(|before| before.is_attributes_of(path));
        let found: Vec<u64> = txn.after.iter().copied().filter(|before| of_it(before) && !known(before)).collect();
        let mut base = txn.base;
        for before in &found {
            if let Some(before) = self.transactions.get_mut(before) {
                before.base = base;
            }
            base = Base::Chain(*before);
        }
        if let Some(txn) = self.transactions.get_mut(&id) {
            txn.base = base;
        }
        found
    }

    /// A change of attributes was refused: what was based on the version that it would have made is
    /// based on the one before.
    pub(super) fn without_attributes(&mut self, refused: u64, base: Base) {
        let chained = self.transactions.iter().filter(|(_, txn)| txn.base == Base::Chain(refused));
        let chained: Vec<u64> = chained.map(|(id, _)| *id).collect();
        for id in chained {
            let Some(txn) = self.transactions.get_mut(&id) else { continue };
            txn.base = base;
            if txn.keep != Keep::No {
                self.store(id);
            }
        }
    }

    /// Brings one transaction to the outbox; false if it gets no number now.
    fn store(&mut self, id: u64) -> bool {
        let Some(info) = self.info else { return false };
        if !self.give_number(id) {
            return false;
        }
        let Some(txn) = self.transactions.get(&id) else { return true };
        let Some(number) = txn.number else { return true };
        let base = match txn.base {
            Base::Free => StoredBase::Free,
            Base::Known(seen) => StoredBase::Known(seen),
            Base::Chain(other) => match self.transactions.get_mut(&other) {
                Some(Transaction { known_as: Some(known), .. }) => StoredBase::After(*known),
                // It may be stored later, by another number.
                Some(Transaction { known_as, number: Some(number), .. }) => {
                    StoredBase::After(*known_as.insert(*number))
                }
                _ => return true,
            },
        };
        let Some(txn) = self.transactions.get(&id) else { return true };
        let known_as = txn.known_as.unwrap_or(number);
        let changes = self.dressed_changes(txn);
        let stored = Stored { number, known_as, volume: info.id, mtime_ns: txn.mtime_ns, base, changes };
        self.effects.jobs.push(Job::Store { number, known_as, bytes: stored.to_bytes() });
        if let Some(txn) = self.transactions.get_mut(&id) {
            (txn.keep, txn.stored_as, txn.known_as) = (Keep::Storing, Some(number), Some(known_as));
        }
        true
    }

    /// A transaction is in the outbox, or cannot be.
    pub(super) fn stored(&mut self, number: u64, outcome: Result<(), String>) {
        let stored = outcome.is_ok();
        if let Err(why) = outcome {
            self.link.reason = format!("changes cannot be kept on this device: {why}");
        }
        if let Some(txn) = self.transactions.values_mut().find(|txn| txn.stored_as == Some(number)) {
            (txn.keep, txn.stored_as) = if stored { (Keep::Stored, Some(number)) } else { (Keep::No, None) };
        }
    }

    /// Takes what an outbox held, in the order of its numbers.
    pub(super) fn load(&mut self, stored: Vec<Stored>) {
        // One that got another number comes behind those that follow it.
        let stored: Vec<(u64, Stored)> = stored.into_iter().map(|stored| (self.next_id(), stored)).collect();
        let known: BTreeMap<u64, (u64, u64)> =
            stored.iter().map(|(id, stored)| (stored.known_as, (*id, stored.number))).collect();
        for (id, Stored { number, known_as, volume, mtime_ns, base, changes }) in stored {
            let path = changes.first().map(|change| path_of(change).to_vec()).unwrap_or_default();
            let mut txn = Transaction::new(&path, changes, mtime_ns);
            txn.number = Some(number);
            (txn.keep, txn.stored_as, txn.replayed) = (Keep::Stored, Some(number), Some(volume));
            (txn.known_as, txn.sent) = (Some(known_as), true);
            let mut without = false;
            txn.base = match base {
                StoredBase::Free => Base::Free,
                StoredBase::Known(seen) => Base::Known(seen),
                StoredBase::After(before) => match known.get(&before) {
                    Some((before, before_number)) => {
                        txn.after.insert(*before);
                        if *before_number > number {
                            // It was not sent by its number: the other one had no answer. Its next
                            // one is higher.
                            (txn.number, txn.sent) = (None, false);
                        }
                        Base::Chain(*before)
                    }
                    None => {
                        without = true;
                        Base::Free
                    }
                },
            };
            self.transactions.insert(id, txn);
            if without {
                let text = "the transaction that it follows is not in the outbox any more";
                self.refuse(id, &StreamError::new(ErrorKind::Stale, &path, text));
            }
        }
        if self.options.outbox.is_some() && !self.reserving {
            // Ready before the first one is needed.
            self.reserving = true;
            self.effects.jobs.push(Job::Reserve { next: self.next_number + 1024 });
        }
    }

    fn fail_waiting(&mut self, error: &StreamError) {
        let reads: Vec<u64> = self.reads.keys().copied().collect();
        reads.into_iter().for_each(|id| self.end_read(id, Err(error.clone())));
        for (_, waiting) in std::mem::take(&mut self.wants) {
            let closing = if let super::Want::Sync { closing, .. } = &waiting.want { *closing } else { None };
            waiting.want.fail(error.clone(), &mut self.effects);
            if let Some(key) = closing {
                self.release(key);
            }
        }
        self.locks.fail(error, &mut self.effects);
        self.crowded.clear();
    }

    /// Ends everything. What is not on the server goes to the outbox with the jobs of this call; see [`Engine::take_unkept`].
    pub fn shut_down(&mut self, time: Time) {
        self.time = time;
        if self.closed {
            return;
        }
        // As if the server were away: it is for what is made now.
        self.link.volume = None;
        let changed: Vec<u64> = self.changed_files().map(|(key, _)| key).collect();
        changed.into_iter().for_each(|key| self.seal(key));
        self.store_unsent();
        let name = self.name.clone();
        let error = StreamError::volume(ErrorKind::Shutdown, &name, "it was shut down on this device");
        if let Some(done) = self.opening.take() {
            self.effects.finish(done, Err(error.clone()));
        }
        self.fail_waiting(&error);
        self.closed = true;
    }

    /// After the end: what is neither on the server nor in the outbox. Told once.
    pub fn take_unkept(&mut self) -> Vec<Lost> {
        let why = match self.options.outbox {
            Some(_) => "the outbox had no room for it when the volume was shut down; allow more, or sync before",
            None => "the volume was shut down before the server had it; sync before, or use an outbox",
        };
        let unkept =
            self.transactions.iter().filter(|(_, txn)| (txn.file.is_some() || txn.told) && txn.keep != Keep::Stored);
        let unkept: Vec<u64> = unkept.map(|(id, _)| *id).collect();
        let mut told = Vec::new();
        for id in unkept {
            let Some(txn) = self.transactions.remove(&id) else { continue };
            self.lose(&txn.path, txn.bytes, why.to_owned(), None);
            told.extend(self.lost.back().cloned());
        }
        told
    }
}
