//! The state machine of a volume: calls, what the connection and the disk tell, and the time come
//! in; messages, jobs and completed calls go out. Nothing here blocks, sleeps or calls anybody.

mod arrival;
mod attributes;
mod blocks;
mod commits;
mod effects;
mod file;
mod files;
mod identity;
mod link;
mod linking;
mod locks;
mod lost;
mod naming;
mod opening;
mod ranges;
mod reading;
mod requests;
mod restart;
mod session;
mod storing;
mod taking;
mod touches;
mod touching;
mod transaction;
mod transactions;
mod wants;
mod writing;
mod xattrs;

use std::collections::BTreeMap;

use connection::{Tag, Unanswered};
use units::{Moment, StreamId};
use wire::{PushEndReason, PushHeader, PushPiece, Reply};

use crate::call::{Call, Done};
use crate::job::JobDone;
use crate::names::Names;
use crate::outbox::Held;
use crate::{ErrorKind, Options, Status, StreamError, VolumeInfo, Waiting as Patience};
use blocks::Blocks;
pub(crate) use effects::{Effects, Time};
use files::Files;
use locks::Locks;
use reading::Read;
use requests::AskFor;
use session::Session;
use touches::Touches;
use transactions::Transactions;
use wants::{WaitingCalls, Want};

/// The state machine of a volume: coordinates the parts, each of which keeps an invariant of its own.
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
            session: Session::new(name, options, opening, who, lost),
        };
        engine.load(stored);
        engine
    }

    /// Takes a call.
    pub fn call(&mut self, time: Time, call: Call) {
        self.session.set_time(time);
        if self.session.is_closed() {
            return self.refuse_call(call);
        }
        match call {
            Call::Stat { of, done } => self.stat(of, done),
            Call::List { path, done } => self.list(path, done),
            Call::ReadLink { path, done } => self.read_link(path, done),
            Call::Lock { handle, wish, done } => self.lock(handle, wish, done),
            Call::Look { handle, done } => self.look_again(handle, done),
            Call::Space { done } => drop(self.wait_for(Want::Space { done })),
            Call::Open { path, how, token, done } => self.open(path, how, token, done),
            Call::Read { handle, token, offset, bytes, done } => self.read(handle, token, offset, bytes, done),
            Call::Write { handle, offset, bytes, done } => self.write(handle, offset, bytes, false, done),
            Call::WritePage { handle, offset, bytes, done } => self.write(handle, offset, bytes, true, done),
            Call::Allocate { handle, range, allocation, done } => self.allocate(handle, range, allocation, done),
            Call::Copy { from, to, length, done } => self.copy(from, to, length, done),
            Call::Seek { handle, offset, hole, done } => self.seek(handle, offset, hole, done),
            Call::SetSize { of, size, done } => self.set_size(of, size, done),
            Call::SetAttributes { of, wanted, done } => self.set_attributes(of, wanted, done),
            Call::Xattrs { of, done } => self.xattrs(&of, done),
            Call::ChangeXattr { of, name, change, done } => self.change_xattr(&of, name, change, done),
            Call::Sync { handle, done } => self.sync(handle, done),
            Call::Close { handle, done } => self.close(handle, done),
            Call::FolderXattrs { path, done } => self.folder_xattrs(path, done),
            Call::MakeWith { path, changes, done } => self.make(&path, changes, done),
            Call::Make { path, change, done } => self.make(&path, vec![change], done),
            Call::Remove { path, done } => self.remove(path, done),
            Call::RemoveFolder { path, done } => self.remove_folder(path, done),
            Call::Link { from, to, done } => self.link(from, to, done),
            Call::Rename { from, to, replace, done } => self.rename(from, to, replace, done),
            Call::Lease { of, kind, duration, done } => self.lease(of, kind, duration, done),
            Call::SyncAll { done } => self.sync_all(done),
            Call::Hint { handle, ranges } => self.hint(handle, &ranges),
            Call::Share { handle, share } => self.share(handle, share),
            Call::RateLimit { bytes_per_second } => self.session.limit_rate(bytes_per_second),
        }
        self.pump();
    }

    /// A request was answered, or not.
    pub fn answered(&mut self, time: Time, tag: Tag, answer: Result<Reply, Unanswered>) {
        self.session.set_time(time);
        let Some((what, sent)) = self.session.link.answered(tag, &answer, time.now) else { return };
        match what {
            AskFor::Volume => self.volume_opened(answer),
            AskFor::Want(want) => self.want_answered(want, answer),
            AskFor::File(file) => self.file_opened(file, answer),
            AskFor::Blocks { file, indexes } => self.blocks_answered(file, &indexes, answer),
            AskFor::Commit(txn) => self.commit_answered(txn, sent, answer),
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
        self.note_credit(piece.stream, credit);
        self.take_piece(piece);
        self.pump();
    }

    /// A push stream ended.
    pub fn push_ended(&mut self, time: Time, stream: StreamId, _reason: PushEndReason) {
        self.session.set_time(time);
        self.session.link.stream_ended(stream);
        self.stream_ended(stream);
        self.pump();
    }

    /// The disk did a job.
    pub fn job_done(&mut self, time: Time, done: JobDone) {
        self.session.set_time(time);
        match done {
            JobDone::Stored { number, outcome } => self.stored(number, outcome),
            JobDone::Reserved { next, outcome } => self.numbers_reserved(next, outcome),
            JobDone::Identified { outcome } => self.session.identity_kept(outcome),
            JobDone::CacheRead { slot, key, bytes } => self.cache_read(slot, key, bytes),
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
            self.send_touches();
        }
        self.patience_ended();
        self.time_out();
        self.write_back();
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
        let (patience, write_back) = (self.patience_due(), self.write_back_due());
        let commits = self.transactions.due(self.session.now()).filter(|_| self.session.link.is_open());
        let others = [self.session.link.due(), self.session.show_due(), self.touches.due(), commits];
        [soft, patience, write_back].into_iter().chain(others).flatten().min()
    }

    /// What is to be done outside, in order.
    pub fn take_effects(&mut self) -> Effects {
        self.session.take_effects()
    }

    /// What the volume holds and did.
    pub fn status(&self) -> Status {
        let (link, options, blocks) = (&self.session.link, self.session.options(), self.blocks.counters());
        Status {
            volume: self.session.name().to_owned(),
            connected: link.is_open(),
            reason: link.reason().to_owned(),
            connections: link.connections(),
            handles: self.files.handles() as u64,
            memory_bytes: self.blocks.memory_bytes() as u64,
            memory_bytes_max: options.memory_bytes as u64,
            disk_bytes: self.blocks.on_disk() as u64 * u64::from(self.session.block_bytes()),
            disk_bytes_max: options.cache.as_ref().map_or(0, |room| room.bytes),
            hits: blocks.hits,
            disk_hits: blocks.disk_hits,
            blocks_asked: blocks.asked,
            blocks_pushed: blocks.pushed,
            blocks_used: blocks.used,
            blocks_wasted: blocks.wasted,
            bytes_received: link.received(),
            round_trip_micros: link.incoming().round_trip().map_or(0, |time| time.as_micros() as u64),
            bytes_per_second: link.incoming().rate().map_or(0, |rate| rate as u64),
            unsent_transactions: self.transactions.len() as u64,
            unsent_bytes: self.unsent_bytes(),
            unsent_bytes_max: self.unsent_bytes_max(),
            stored_transactions: self.transactions.values().filter(|txn| txn.is_stored()).count() as u64,
            committed: self.transactions.committed(),
            lost: self.session.lost.to_vec(),
        }
    }

    /// Bytes of changes that no transaction carries.
    #[cfg(test)]
    pub fn open_bytes(&self) -> u64 {
        self.files.values().filter(|file| file.dirty.is_some()).map(|file| 1 + file.overlay.open_bytes()).sum()
    }

    /// Transactions without an answer, for tests that hang.
    #[cfg(test)]
    pub fn waiting(&self) -> Vec<String> {
        let told = |(id, txn): (&u64, &transaction::Transaction)| {
            let (file, kind) = (txn.file, txn.changes.first().map(|change| format!("{change:?}")));
            let kind: String = kind.unwrap_or_default().chars().take(60).collect();
            format!(
                "{id}: number {:?} file {file:?} {kind} after {:?} base {:?} {:?} {:?} stored {:?}",
                txn.number, txn.after, txn.base, txn.state, txn.keep, txn.stored_as
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

    fn wait_for(&mut self, want: Want) -> u64 {
        self.calls.wait(want, &mut self.session)
    }

    /// Does what has become possible.
    fn pump(&mut self) {
        if !self.session.is_closed() {
            self.pump_commits();
            self.pump_wants();
            self.pump_locks();
            self.admit_writes();
            self.pump_commits();
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
            self.end_read(id, Err(StreamError::timeout(&path.unwrap_or_default(), time)));
        }
        for id in self.calls.which(|waiting| now >= waiting.since.after(time)) {
            if let Some(waiting) = self.calls.remove(&id) {
                let error = StreamError::timeout(waiting.want.path(), time);
                self.abandon(&waiting.want);
                waiting.want.fail(error, self.session.effects());
            }
        }
    }

    fn refuse_call(&mut self, call: Call) {
        let error = StreamError::volume(ErrorKind::Shutdown, self.session.name(), "it was shut down on this device");
        let effects = self.session.effects();
        match call {
            Call::Stat { done, .. } => effects.finish(done, Err(error)),
            Call::List { done, .. } => effects.finish(done, Err(error)),
            Call::ReadLink { done, .. } | Call::Read { done, .. } => effects.finish(done, Err(error)),
            Call::Space { done } => effects.finish(done, Err(error)),
            Call::Xattrs { done, .. } | Call::FolderXattrs { done, .. } => effects.finish(done, Err(error)),
            Call::Lock { done, .. } => effects.finish(done, Err(error)),
            Call::Open { done, .. } | Call::Look { done, .. } => effects.finish(done, Err(error)),
            Call::Lease { done, .. } => effects.finish(done, Err(error)),
            Call::Copy { done, .. } => effects.finish(done, Err(error)),
            Call::Seek { done, .. } => effects.finish(done, Err(error)),
            Call::Write { done, .. }
            | Call::WritePage { done, .. }
            | Call::Allocate { done, .. }
            | Call::SetSize { done, .. }
            | Call::SetAttributes { done, .. }
            | Call::ChangeXattr { done, .. }
            | Call::Sync { done, .. }
            | Call::Close { done, .. }
            | Call::Make { done, .. }
            | Call::MakeWith { done, .. }
            | Call::Remove { done, .. }
            | Call::RemoveFolder { done, .. }
            | Call::Link { done, .. }
            | Call::Rename { done, .. }
            | Call::SyncAll { done } => effects.finish(done, Err(error)),
            Call::Hint { .. } | Call::Share { .. } | Call::RateLimit { .. } => {}
        }
    }
}
