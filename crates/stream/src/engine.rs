//! The state machine of a volume. Calls, events of the connection, finished jobs of the storage,
//! and the time come in; messages, jobs and completed calls go out. Nothing here blocks, sleeps or
//! calls anybody.
//!
//! [`Engine`] owns nine parts, each with an invariant of its own. What needs several of them is in
//! layers, each of which sees only the parts that it needs, and calls only the layers below:
//!
//! - `Reader`: blocks and reads of files. No transaction and no lock.
//! - `Writer`: changes of files, up to the transactions. No answer of the server.
//! - `Committer`: transactions to the server, and what they change here once they are answered.
//! - `Opener`: opening files, and what the server says of paths.
//!
//! So no answer meets a change that is half made. Messages leave in the order in which they are
//! made, as do jobs and completed calls.

mod arrival;
mod attributes;
mod blocks;
mod calls;
mod changing;
mod committer;
mod connecting;
mod dirty;
mod effects;
mod file;
mod files;
mod hints;
mod identity;
mod kept;
mod link;
mod locks;
mod lookups;
mod lost;
mod marks;
mod numbering;
mod opener;
mod outcome;
mod packing;
mod read;
mod reader;
mod reading;
mod records;
mod requests;
mod sending;
mod session;
mod storing;
mod table;
mod touches;
mod transaction;
mod transactions;
mod unsent;
mod wants;
mod writer;

use std::collections::BTreeMap;

use connection::{Tag, Unanswered};
use units::{Moment, StreamId};
use wire::{PushEndReason, PushHeader, PushPiece, Reply};

use crate::call::Done;
use crate::job::JobDone;
use crate::names::Names;
use crate::outbox::Held;
use crate::{Options, Status, StreamError, VolumeInfo, Waiting as Patience};
use blocks::Blocks;
use committer::Committer;
pub(crate) use effects::{Effects, Time};
use files::Files;
use locks::Locks;
use opener::Opener;
use read::Read;
use reader::Reader;
use records::Recorder;
pub use records::VERSION as RECORDS_VERSION;
use requests::AskFor;
use session::Session;
use touches::Touches;
use transactions::Transactions;
use wants::WaitingCalls;
use writer::{CUT_OFF_TIME, Writer};

/// The state machine of a volume: coordinates the parts, each of which keeps an invariant of its
/// own.
pub(crate) struct Engine {
    session: Session,
    files: Files,
    reads: BTreeMap<u64, Read>,
    calls: WaitingCalls,
    blocks: Blocks,
    touches: Touches,
    names: Names,
    transactions: Transactions,
    locks: Locks,
    recorder: Recorder,
}

impl Engine {
    /// A volume that is to be opened; `held` is what an outbox held.
    pub fn new(name: &str, options: Options, held: Held, opening: Done<VolumeInfo>) -> Engine {
        let Held { who, next_number, stored, lost } = held;
        let mut engine = Engine {
            files: Files::default(),
            reads: BTreeMap::new(),
            calls: WaitingCalls::default(),
            blocks: Blocks::new(options.memory_bytes),
            touches: Touches::default(),
            names: Names::new(options.names_ttl),
            transactions: Transactions::new(next_number, options.outbox.is_some()),
            locks: Locks::default(),
            recorder: Recorder::default(),
            session: Session::new(name, options, opening, who, lost),
        };
        engine.load(stored);
        engine
    }

    fn reader(&mut self) -> Reader<'_> {
        let Engine { session, files, reads, calls, blocks, touches, names, .. } = self;
        Reader { session, files, reads, calls, blocks, touches, names }
    }

    fn writer(&mut self) -> Writer<'_> {
        let Engine { session, files, calls, names, transactions, .. } = self;
        Writer { session, files, calls, names, transactions }
    }

    fn committer(&mut self) -> Committer<'_> {
        let Engine { session, files, reads, calls, blocks, touches, names, transactions, locks, .. } = self;
        Committer { session, files, reads, calls, blocks, touches, names, transactions, locks }
    }

    fn opener(&mut self) -> Opener<'_> {
        let Engine { session, files, reads, calls, blocks, touches, names, transactions, locks, .. } = self;
        Opener { session, files, reads, calls, blocks, touches, names, transactions, locks }
    }

    /// A request was answered, or not.
    pub fn answered(&mut self, time: Time, tag: Tag, answer: Result<Reply, Unanswered>) {
        self.session.set_time(time);
        let Some((what, sent)) = self.session.link.answered(tag, &answer, time.now) else { return };
        match what {
            AskFor::Volume => self.volume_opened(answer),
            AskFor::Want(want) => self.opener().want_answered(want, answer),
            AskFor::File(file) => self.opener().file_opened(file, answer),
            AskFor::Blocks { file, indexes } => self.reader().blocks_answered(file, &indexes, answer),
            AskFor::Commit(txn) => self.committer().commit_answered(txn, sent, answer),
            AskFor::Lock(step) => self.lock_answered(step, answer),
            AskFor::Device => {
                if self.session.device_answered(answer) {
                    self.locks.claim(time.now);
                }
            }
        }
        self.pump();
    }

    /// A push stream begins.
    pub fn push_started(&mut self, time: Time, stream: StreamId, push: PushHeader) {
        self.session.set_time(time);
        if self.session.link.volume() == Some(push.image) {
            self.session.link.stream_started(stream);
        }
    }

    /// A piece of a push stream came.
    pub fn pushed(&mut self, time: Time, piece: PushPiece, credit: u32) {
        self.session.set_time(time);
        self.session.link.pushed(credit);
        // Whatever it is: the server's window is the link's business, not that of our memory.
        self.touches.credit(piece.stream, credit, &self.files, &mut self.session);
        self.reader().take_piece(piece);
        self.pump();
    }

    /// A push stream ended.
    pub fn push_ended(&mut self, time: Time, stream: StreamId, _reason: PushEndReason) {
        self.session.set_time(time);
        self.session.link.stream_ended(stream);
        self.reader().stream_ended(stream);
        self.pump();
    }

    /// The disk did a job.
    pub fn job_done(&mut self, time: Time, done: JobDone) {
        self.session.set_time(time);
        match done {
            JobDone::Stored { number, outcome } => self.stored(number, outcome),
            JobDone::Reserved { next, outcome } => self.numbers_reserved(next, outcome),
            JobDone::Identified { outcome } => self.session.identity_kept(outcome),
            JobDone::CacheRead { slot, key, bytes } => self.reader().cache_read(slot, key, bytes),
            JobDone::CacheFound { slots, found } => {
                self.blocks.disk_found(slots, found);
                self.session.tell_opened();
            }
        }
        self.pump();
    }

    /// Looks at the time.
    pub fn tick(&mut self, time: Time) {
        self.session.set_time(time);
        if self.session.is_closed() {
            return;
        }
        let now = time.now;
        if self.session.link.take_again(now) {
            self.session.ask_volume();
        }
        self.session.show_again();
        self.ask_again();
        if self.touches.due().is_some_and(|due| now >= due) {
            self.touches.send(&self.files, &mut self.session.link);
        }
        self.reader().patience_ended();
        self.time_out();
        self.writer().write_back();
        self.pump();
    }

    /// When [`Engine::tick`] is due.
    pub fn deadline(&self) -> Option<Moment> {
        if self.session.is_closed() {
            return None;
        }
        let soft = match self.session.options().waiting {
            Patience::Hard => None,
            Patience::Soft(time) => {
                let reads = self.reads.values().map(|read| read.since);
                let wants = self.calls.since();
                reads.chain(wants).chain(self.locks.waiting_since()).min().map(|since| since.after(time))
            }
        };
        let (patience, write_back) = (self.files.patience_due(), self.write_back_due());
        let commits = self.transactions.due(self.session.now()).filter(|_| self.session.link.is_open());
        let others = [self.session.link.due(), self.session.show_due(), self.touches.due(), commits];
        [soft, patience, write_back].into_iter().chain(others).flatten().min()
    }

    /// When changes are sent though nobody asks for that, or a write that waits for room fails.
    fn write_back_due(&self) -> Option<Moment> {
        let due = self.files.changed().filter_map(|(_, file)| file.unsent.write_back_due());
        let write = self.calls.first_write_since().filter(|_| !self.session.link.is_open());
        let write = write.map(|since| since.max(self.session.link.away()).after(CUT_OFF_TIME));
        due.chain(write).min()
    }

    /// Does what has become possible.
    fn pump(&mut self) {
        self.session.set_request(0);
        if !self.session.is_closed() {
            self.committer().pump_commits();
            self.opener().pump_wants();
            self.locks.pump(&mut self.session);
            self.writer().admit_writes();
            self.committer().pump_commits();
            self.files.rest();
        }
    }

    /// In soft mode, ends calls that have waited long enough.
    fn time_out(&mut self) {
        let Patience::Soft(time) = self.session.options().waiting else { return };
        let now = self.session.now();
        self.locks.time_out(now, time, self.session.effects());
        let late: Vec<u64> =
            self.reads.iter().filter(|(_, read)| now >= read.since.after(time)).map(|(id, _)| *id).collect();
        for id in late {
            let path = self.reads.get(&id).and_then(|read| self.files.get(&read.file)).map(|file| file.path.clone());
            self.reader().end_read(id, Err(StreamError::timeout(&path.unwrap_or_default(), time)));
        }
        for id in self.calls.which(|waiting| now >= waiting.since.after(time)) {
            if let Some(waiting) = self.calls.remove(&id) {
                let error = StreamError::timeout(waiting.want.path(), time);
                self.committer().abandon(&waiting.want);
                waiting.want.fail(error, self.session.effects());
            }
        }
    }

    /// The server has answered a request for a lock.
    pub(super) fn lock_answered(&mut self, id: u64, answer: Result<Reply, Unanswered>) {
        if let Some(place) = self.locks.answered(id, answer, &self.files, &mut self.session) {
            self.committer().lose_locks(place);
        }
        self.locks.pump(&mut self.session);
    }

    /// The effects since the last call, each kind in order.
    pub fn take_effects(&mut self) -> Effects {
        self.session.take_effects()
    }

    /// The status of the volume.
    pub fn status(&self) -> Status {
        let (link, options) = (&self.session.link, self.session.options());
        let (memory_max, disk_max) = (options.memory_bytes as u64, options.cache.as_ref().map_or(0, |room| room.bytes));
        let blocks = self.blocks.status(self.session.block_bytes(), memory_max, disk_max);
        Status {
            volume: self.session.name().to_owned(),
            connected: link.is_open(),
            reason: link.reason().to_owned(),
            connections: link.connections(),
            handles: self.files.handles() as u64,
            blocks,
            bytes_received: link.received(),
            round_trip_micros: link.incoming().round_trip().map_or(0, |time| time.as_micros() as u64),
            bytes_per_second: link.incoming().rate().map_or(0, |rate| rate as u64),
            unsent: self.transactions.status(&self.files, self.session.unsent_bytes_max()),
            committed: self.transactions.committed(),
            lost: self.session.lost.to_vec(),
        }
    }

    /// Bytes of changes that no transaction has.
    #[cfg(test)]
    pub fn open_bytes(&self) -> u64 {
        self.files
            .values()
            .filter(|file| file.unsent.is_dirty())
            .map(|file| 1 + file.unsent.overlay().open_bytes())
            .sum()
    }

    /// Transactions without an answer, for tests that hang.
    #[cfg(test)]
    pub fn waiting(&self) -> Vec<String> {
        let told = |(id, txn): (&u64, &transaction::Transaction)| {
            let (file, kind) = (txn.file, txn.changes.first().map(|change| format!("{change:?}")));
            let kind: String = kind.unwrap_or_default().chars().take(60).collect();
            format!(
                "{id}: file {file:?} {kind} after {:?} base {:?} {:?} {:?}",
                txn.after, txn.base, txn.sending, txn.kept
            )
        };
        self.transactions.iter().map(told).collect()
    }

    /// Where an open file is now, unless it has no name any more.
    #[cfg(test)]
    pub fn path_of_handle(&self, handle: crate::Handle) -> Option<Vec<u8>> {
        let file = self.files.opened(handle).map(|(_, file)| file);
        file.filter(|file| !file.gone).map(|file| file.path.clone())
    }
}
