//! The connection comes and goes; the outbox is loaded at the start; the volume is shut down.

use connection::{Connected, Unanswered};
use wire::Reply;

use super::Engine;
use super::effects::Time;
use super::requests::AskFor;
use super::touches::Touches;
use super::wants::Want;
use crate::outbox::Stored;
use crate::{ErrorKind, Lost, StreamError};

impl Engine {
    /// A connection is there.
    pub fn connected(&mut self, time: Time, generation: u64, connected: Connected) {
        self.session.set_time(time);
        if self.session.is_closed() {
            return;
        }
        self.session.connected(generation, &connected);
    }

    /// The volume is open on the present connection, or not.
    pub(super) fn volume_opened(&mut self, answer: Result<Reply, Unanswered>) {
        let (volume, nonce, mut info) = match self.session.volume_of(answer) {
            Ok(opened) => opened,
            Err((error, for_good)) => return self.session.cannot_open(error, for_good),
        };
        if let Some(address) =
            self.session.link.exposed_to().filter(|_| info.writable && !self.session.options().insecure)
        {
            // A volume that this device opened for reading stays open for reading.
            if self.session.info().is_none_or(|old| old.writable) || !self.transactions.is_empty() {
                let text = format!(
                    "it may be written, but over runnel:// to {address} others could read and change what is sent; \
                     use runnels://, or allow `insecure` in a network that you trust"
                );
                return self
                    .session
                    .cannot_open(StreamError::volume(ErrorKind::Exposed, self.session.name(), text), true);
            }
            info.writable = false;
        }
        if let Some(old) = self.session.info().filter(|old| (old.id, old.block_bytes) != (info.id, info.block_bytes)) {
            let text = format!(
                "the server has another volume under this name now ({:032x} instead of {:032x}); open it anew",
                info.id, old.id
            );
            let error = StreamError::volume(ErrorKind::Stale, self.session.name(), text);
            self.fail_waiting(&error);
            return self.session.cannot_open(error, false);
        }
        self.session.opened(volume, nonce, info);
        let strange = self.transactions.iter().filter(|(_, txn)| txn.replayed.is_some_and(|id| id != info.id));
        let strange: Vec<u64> = strange.map(|(id, _)| *id).collect();
        for id in strange {
            let text = "it was meant for another volume that had this name";
            let error = StreamError::volume(ErrorKind::Stale, self.session.name(), text);
            self.committer().refuse(id, &error);
        }
        // Nothing is read before it is known what the disk cache holds.
        if self.session.options().cache.is_none() {
            self.session.tell_opened();
        }
        let reading: Vec<u64> = self.files.reading().map(|(key, _)| key).collect();
        reading.into_iter().for_each(|key| self.reader().advance_reads(key));
    }

    /// Asks for what the server had no time for, once some has passed.
    pub(super) fn ask_again(&mut self) {
        for what in self.session.link.take_postponed(self.session.now()) {
            match what {
                AskFor::Want(id) => self.calls.get_mut(&id).into_iter().for_each(|waiting| waiting.asked = false),
                AskFor::File(key) => {
                    self.files.get_mut(&key).into_iter().for_each(|file| file.numbering.set_opening(false));
                    self.reader().open_number(key);
                }
                AskFor::Lock(_) => self.locks.pump(&mut self.session),
                AskFor::Volume | AskFor::Blocks { .. } | AskFor::Commit(_) | AskFor::Device => {}
            }
        }
    }

    /// The connection is gone.
    pub fn lost(&mut self, time: Time, reason: &str) {
        self.session.set_time(time);
        self.session.lost_connection(reason);
        self.locks.disconnected();
        self.files.disconnected();
        self.touches = Touches::default();
        self.calls.disconnected();
        self.transactions.disconnected();
        self.transactions.store_unsent(&self.files, &mut self.session);
        self.pump();
    }

    fn fail_waiting(&mut self, error: &StreamError) {
        let reads: Vec<u64> = self.reads.keys().copied().collect();
        reads.into_iter().for_each(|id| self.reader().end_read(id, Err(error.clone())));
        for waiting in self.calls.take_all() {
            let closing = if let Want::Sync { closing, .. } = &waiting.want { *closing } else { None };
            waiting.want.fail(error.clone(), self.session.effects());
            if let Some(key) = closing {
                self.committer().release(key);
            }
        }
        self.locks.fail(error, self.session.effects());
    }

    /// A transaction is in the outbox, or cannot be.
    pub(super) fn stored(&mut self, number: u64, outcome: Result<(), String>) {
        self.transactions.stored(number, outcome.is_ok());
        if let Err(why) = outcome {
            self.session.link.set_reason(format!("changes cannot be kept on this device: {why}"));
        }
    }

    /// Numbers were reserved in the outbox, or cannot be.
    pub(super) fn numbers_reserved(&mut self, next: u64, outcome: Result<(), String>) {
        self.transactions.numbers_reserved(next, outcome.is_ok());
        if let Err(why) = outcome {
            self.session.link.set_reason(format!("the outbox cannot be written: {why}"));
        }
    }

    /// Takes what an outbox held, in the order of its numbers.
    pub(super) fn load(&mut self, stored: Vec<Stored>) {
        for (id, path) in self.transactions.load(stored, &mut self.session) {
            let text = "the transaction that it follows is not in the outbox any more";
            self.committer().refuse(id, &StreamError::new(ErrorKind::Stale, &path, text));
        }
        if self.session.options().outbox.is_some() {
            // Ready before the first one is needed.
            self.transactions.reserve_numbers(&mut self.session);
        }
    }

    /// Ends everything. What is not on the server goes to the outbox with the jobs of this call;
    /// see [`Engine::take_unkept`].
    pub fn shut_down(&mut self, time: Time) {
        self.session.set_time(time);
        if self.session.is_closed() {
            return;
        }
        // As if the server were away: it is for what is made now.
        self.session.link.close();
        let changed: Vec<u64> = self.files.changed().map(|(key, _)| key).collect();
        changed.into_iter().for_each(|key| self.writer().seal(key));
        self.transactions.store_unsent(&self.files, &mut self.session);
        let error = StreamError::volume(ErrorKind::Shutdown, self.session.name(), "it was shut down on this device");
        self.session.fail_opening(&error);
        self.fail_waiting(&error);
        self.session.close();
    }

    /// After the end: what is neither on the server nor in the outbox. Told once.
    pub fn take_unkept(&mut self) -> Vec<Lost> {
        let why = match self.session.options().outbox {
            Some(_) => "the outbox had no room for it when the volume was shut down; allow more, or sync before",
            None => "the volume was shut down before the server had it; sync before, or use an outbox",
        };
        let unkept =
            self.transactions.iter().filter(|(_, txn)| (txn.file.is_some() || txn.told) && !txn.kept.is_stored());
        let unkept: Vec<u64> = unkept.map(|(id, _)| *id).collect();
        let mut told = Vec::new();
        for id in unkept {
            let Some(txn) = self.transactions.remove(id) else { continue };
            told.push(self.session.lost.add(&txn.path, txn.bytes, why.to_owned(), None));
        }
        told
    }
}
