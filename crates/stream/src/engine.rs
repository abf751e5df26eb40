//! The state machine of a volume: calls, what the connection and the disk tell, and the time come
//! in; messages, jobs and completed calls go out. Nothing here blocks, sleeps or calls anybody.
//!
//! Parts: `file` (one file's table and changes), `arrival` (what a push brings next), `reading`
//! (reads, answers, pushes), `touching` (touches, hints), `opening` (handles), `naming` (names and
//! attributes), `xattrs` (extended attributes), `writing` (changes into transactions), `commits`
//! (transactions to the server), `identity` (who this device is), `locks` (locks across devices),
//! `restart` (connections that come and go, the outbox).

mod arrival;
mod attributes;
mod busy;
mod commits;
mod file;
mod identity;
mod link;
mod linking;
mod locks;
mod naming;
mod opening;
mod ranges;
mod reading;
mod restart;
mod retry;
mod taking;
mod touching;
mod transaction;
mod wants;
mod writing;
mod xattrs;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use connection::{Tag, Unanswered, VolumeMessage};
use units::{InodeId, Moment, StreamId};
use wire::volume::{VolumeAsk, VolumeReply};
use wire::{Notice, PushEndReason, PushHeader, PushPiece, Reply, Request};

use crate::call::{Call, Done, Handle, OpenHow};
use crate::job::{Job, JobDone};
use crate::linked::Linked;
use crate::memory::Memory;
use crate::names::{FolderTimes, Names};
use crate::outbox::Held;
use crate::shelf::Shelf;
use crate::{ErrorKind, Lost, Options, Status, StreamError, VolumeInfo, Waiting as Patience};
use busy::Busy;
use file::File;
use identity::Showing;
use link::Link;
use locks::Locks;
use reading::Read;
use retry::AskFor;
use transaction::Transaction;
use wants::{Waiting, Want};

/// Time for an answer beyond what the link needs for what is in flight.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Time after which an open is tried again that the server could not do.
const OPEN_AGAIN: Duration = Duration::from_secs(1);

/// Touches that wait are sent after this time.
const TOUCH_TIME: Duration = Duration::from_millis(10);

/// Files without a handle that are remembered for their blocks.
const FILES_KEPT_MAX: usize = 1024;

/// Lost changes that are remembered for the status.
const LOST_MAX: usize = 64;

/// Names for `Open` in errors of path rules; as the wire has them.
const PATH_BYTES_MAX: usize = wire::format::PATH_BYTES_MAX;

/// Now, and what clocks on walls say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Time {
    pub now: Moment,
    /// Nanoseconds since 1970.
    pub wall_ns: i64,
}

/// A completed call; to be run under no lock.
pub(crate) type Finish = Box<dyn FnOnce() + Send>;

/// What is to be done outside.
#[derive(Default)]
pub(crate) struct Effects {
    /// For the connection of this generation.
    pub messages: Vec<(u64, VolumeMessage)>,
    pub jobs: Vec<Job>,
    pub finished: Vec<Finish>,
}

impl Effects {
    fn finish<T: Send + 'static>(&mut self, done: Done<T>, outcome: Result<T, StreamError>) {
        self.finished.push(Box::new(move || done(outcome)));
    }
}

struct Asked {
    what: AskFor,
    sent: Moment,
    /// Bytes received before it was sent.
    received: u64,
    pipelined: bool,
}

impl Link {
    /// The stream that brings this block next, and until when it is waited for; `None`: it has to be asked for.
    fn expects(&self, file: &File, index: u32, now: Moment) -> Option<(StreamId, Moment)> {
        let arrival = file.arrival.filter(|arrival| self.streams.contains(&arrival.stream))?;
        arrival.expects(index, now).map(|until| (arrival.stream, until))
    }
}

/// An open handle.
#[derive(Clone, Copy, Debug)]
struct Open {
    file: u64,
    how: OpenHow,
}

/// Numbers of what this device did.
#[derive(Debug, Default)]
struct Counters {
    hits: u64,
    disk_hits: u64,
    asked: u64,
    pushed: u64,
    used: u64,
    wasted: u64,
    committed: u64,
}

/// The state machine of a volume.
pub(crate) struct Engine {
    name: String,
    options: Options,
    time: Time,
    /// Told when the volume is open for the first time, or cannot be.
    opening: Option<Done<VolumeInfo>>,
    info: Option<VolumeInfo>,
    closed: bool,
    link: Link,
    showing: Showing,
    asks: HashMap<u64, Asked>,
    /// What the server had no time for, and when it is asked again.
    postponed: Vec<(Moment, AskFor)>,
    /// Last number given to a request, call, read, file, handle or transaction.
    last_id: u64,
    files: BTreeMap<u64, File>,
    busy: Busy,
    by_path: HashMap<Vec<u8>, u64>,
    by_number: HashMap<InodeId, u64>,
    handles: HashMap<Handle, Open>,
    uses: u64,
    reads: BTreeMap<u64, Read>,
    wants: BTreeMap<u64, Waiting>,
    /// Writes that wait for room, in order.
    crowded: VecDeque<u64>,
    touches: Vec<(u64, units::Token, u32)>,
    /// Pushed bytes to give back with the next touches.
    credits: Vec<(StreamId, u32)>,
    /// When touches and credits leave at last.
    touches_due: Option<Moment>,
    memory: Memory,
    shelf: Shelf,
    names: Names,
    linked: Linked,
    folder_times: FolderTimes,
    locks: Locks,
    /// Transactions that are not answered, by id.
    transactions: BTreeMap<u64, Transaction>,
    next_number: u64,
    /// Numbers below may be used.
    reserved: u64,
    reserving: bool,
    lost: VecDeque<Lost>,
    rate_limit: u64,
    counters: Counters,
    effects: Effects,
}

impl Engine {
    /// A volume that is to be opened; `held` is what an outbox held.
    pub fn new(name: &str, options: Options, held: Held, opening: Done<VolumeInfo>) -> Engine {
        let Held { who, next_number, stored, lost } = held;
        let mut engine = Engine {
            name: name.to_owned(),
            time: Time::default(),
            opening: Some(opening),
            info: None,
            closed: false,
            link: Link::default(),
            showing: Showing::new(who),
            asks: HashMap::new(),
            postponed: Vec::new(),
            last_id: 0,
            files: BTreeMap::new(),
            busy: Busy::default(),
            by_path: HashMap::new(),
            by_number: HashMap::new(),
            handles: HashMap::new(),
            uses: 0,
            reads: BTreeMap::new(),
            wants: BTreeMap::new(),
            crowded: VecDeque::new(),
            touches: Vec::new(),
            credits: Vec::new(),
            touches_due: None,
            memory: Memory::new(options.memory_bytes),
            shelf: Shelf::default(),
            names: Names::new(options.names_ttl),
            linked: Linked::default(),
            folder_times: FolderTimes::default(),
            locks: Locks::default(),
            transactions: BTreeMap::new(),
            next_number,
            reserved: if options.outbox.is_some() { next_number } else { u64::MAX },
            reserving: false,
            lost: lost.into_iter().take(LOST_MAX).collect(),
            rate_limit: options.rate_limit,
            counters: Counters::default(),
            effects: Effects::default(),
            options,
        };
        engine.load(stored);
        engine
    }

    /// Takes a call.
    pub fn call(&mut self, time: Time, call: Call) {
        self.time = time;
        if self.closed {
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
            Call::RateLimit { bytes_per_second } => {
                self.rate_limit = bytes_per_second;
                self.notify(Notice::RateLimit { bytes_per_second });
            }
        }
        self.pump();
    }

    /// A request was answered, or not.
    pub fn answered(&mut self, time: Time, tag: Tag, answer: Result<Reply, Unanswered>) {
        self.time = time;
        let Some(asked) = self.asks.remove(&tag.0) else { return };
        if let Ok(Reply::Volume(VolumeReply::Blocks { bytes, .. })) = &answer {
            self.link.received += bytes.len() as u64;
        }
        let bytes = self.link.received.saturating_sub(asked.received);
        if answer.is_ok() && !matches!(asked.what, AskFor::Commit(_)) {
            self.link.incoming.sample(asked.sent, time.now, bytes, asked.pipelined);
        }
        match asked.what {
            AskFor::Volume => self.volume_opened(answer),
            AskFor::Want(want) => self.want_answered(want, answer),
            AskFor::File(file) => self.file_opened(file, answer),
            AskFor::Blocks { file, indexes } => self.blocks_answered(file, &indexes, answer),
            AskFor::Commit(txn) => self.commit_answered(txn, asked.sent, answer),
            AskFor::Lock(step) => self.lock_answered(step, answer),
            AskFor::Device => self.device_answered(answer),
        }
        self.pump();
    }

    /// A push stream begins.
    pub fn push_started(&mut self, time: Time, stream: StreamId, push: PushHeader) {
        self.time = time;
        if self.link.volume == Some(push.image) {
            self.link.streams.insert(stream);
        }
    }

    /// A piece of a push stream came.
    pub fn pushed(&mut self, time: Time, piece: PushPiece, credit: u32) {
        self.time = time;
        self.link.received += u64::from(credit);
        // Whatever it is: the server's window is the link's business, not that of our memory.
        self.note_credit(piece.stream, credit);
        self.take_piece(piece);
        self.pump();
    }

    /// A push stream ended.
    pub fn push_ended(&mut self, time: Time, stream: StreamId, _reason: PushEndReason) {
        self.time = time;
        self.link.streams.remove(&stream);
        self.stream_ended(stream);
        self.pump();
    }

    /// The disk did a job.
    pub fn job_done(&mut self, time: Time, done: JobDone) {
        self.time = time;
        match done {
            JobDone::Stored { number, outcome } => self.stored(number, outcome),
            JobDone::Reserved { next, outcome } => self.numbers_reserved(next, outcome),
            JobDone::Identified { outcome } => self.identity_kept(outcome),
            JobDone::CacheRead { slot, key, bytes } => self.cache_read(slot, key, bytes),
            JobDone::CacheFound { slots, found } => {
                self.shelf = Shelf::new(slots);
                found.into_iter().for_each(|(slot, key)| self.shelf.put(slot, key));
                if let (Some(done), Some(info)) = (self.opening.take(), self.info) {
                    self.effects.finish(done, Ok(info));
                }
            }
        }
        self.pump();
    }

    /// Looks at the time.
    pub fn tick(&mut self, time: Time) {
        self.time = time;
        if self.closed {
            return;
        }
        let now = time.now;
        if self.link.again.is_some_and(|again| now >= again) {
            self.link.again = None;
            self.ask_volume();
        }
        self.show_again();
        self.ask_again();
        if self.touches_due.is_some_and(|due| now >= due) {
            self.send_touches();
        }
        self.patience_ended();
        self.time_out();
        self.write_back();
        self.pump();
    }

    /// When [`Engine::tick`] is due.
    pub fn deadline(&self) -> Option<Moment> {
        if self.closed {
            return None;
        }
        let soft = match self.options.waiting {
            Patience::Hard => None,
            Patience::Soft(time) => {
                let reads = self.reads.values().map(|read| read.since);
                let wants = self.wants.values().map(|waiting| waiting.since);
                reads.chain(wants).chain(self.locks.waiting_since()).min().map(|since| since.after(time))
            }
        };
        let (patience, write_back) = (self.patience_due(), self.write_back_due());
        let postponed = self.postponed.iter().map(|(again, _)| *again).min();
        let links = [self.link.again, self.showing.due(), self.touches_due, self.commits_due(), postponed];
        [soft, patience, write_back].into_iter().chain(links).flatten().min()
    }

    /// What is to be done outside, in order.
    pub fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// What the volume holds and did.
    pub fn status(&self) -> Status {
        let unsent: u64 = self.unsent_bytes();
        Status {
            volume: self.name.clone(),
            connected: self.link.volume.is_some(),
            reason: self.link.reason.clone(),
            connections: self.link.connections,
            handles: self.handles.len() as u64,
            memory_bytes: self.memory.bytes() as u64,
            memory_bytes_max: self.options.memory_bytes as u64,
            disk_bytes: self.shelf.len() as u64 * u64::from(self.block_bytes()),
            disk_bytes_max: self.options.cache.as_ref().map_or(0, |room| room.bytes),
            hits: self.counters.hits,
            disk_hits: self.counters.disk_hits,
            blocks_asked: self.counters.asked,
            blocks_pushed: self.counters.pushed,
            blocks_used: self.counters.used,
            blocks_wasted: self.counters.wasted,
            bytes_received: self.link.received,
            round_trip_micros: self.link.incoming.round_trip().map_or(0, |time| time.as_micros() as u64),
            bytes_per_second: self.link.incoming.rate().map_or(0, |rate| rate as u64),
            unsent_transactions: self.transactions.len() as u64,
            unsent_bytes: unsent,
            unsent_bytes_max: self.unsent_bytes_max(),
            stored_transactions: self.transactions.values().filter(|txn| txn.is_stored()).count() as u64,
            committed: self.counters.committed,
            lost: self.lost.iter().cloned().collect(),
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
        let told = |(id, txn): (&u64, &Transaction)| {
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
    pub fn path_of_handle(&self, handle: Handle) -> Option<Vec<u8>> {
        let file = self.handles.get(&handle).and_then(|open| self.files.get(&open.file));
        file.filter(|file| !file.gone).map(|file| file.path.clone())
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn block_bytes(&self) -> u32 {
        self.info.map_or(4096, |info| info.block_bytes)
    }

    /// Tells the server something if the volume is open on the present connection.
    fn notify(&mut self, notice: Notice) {
        if let (Some(generation), Some(_)) = (self.link.generation, self.link.volume) {
            self.effects.messages.push((generation, VolumeMessage::Notice(notice)));
        }
    }

    /// Asks something of the volume; false if it is not open now.
    fn ask(&mut self, what: AskFor, ask: VolumeAsk, time: Duration) -> bool {
        let Some(volume) = self.link.volume else { return false };
        self.ask_server(what, Request::Volume { volume, ask }, time);
        true
    }

    fn ask_server(&mut self, what: AskFor, ask: Request, time: Duration) {
        let Some(generation) = self.link.generation else { return };
        let tag = self.next_id();
        let pipelined = !self.asks.is_empty() || !self.link.streams.is_empty();
        let asked = Asked { what, sent: self.time.now, received: self.link.received, pipelined };
        self.asks.insert(tag, asked);
        self.effects.messages.push((generation, VolumeMessage::Request { tag: Tag(tag), ask, time }));
    }

    fn wait_for(&mut self, want: Want) -> u64 {
        let id = self.next_id();
        self.wants.insert(id, Waiting { want, since: self.time.now, asked: false });
        id
    }

    /// Does what has become possible.
    fn pump(&mut self) {
        if !self.closed {
            self.pump_commits();
            self.pump_wants();
            self.pump_locks();
            self.admit_writes();
            self.pump_commits();
            self.rest();
        }
    }

    /// In soft mode, ends calls that have waited long enough.
    fn time_out(&mut self) {
        let Patience::Soft(time) = self.options.waiting else { return };
        let now = self.time.now;
        self.locks.time_out(now, time, &mut self.effects);
        let late: Vec<u64> =
            self.reads.iter().filter(|(_, read)| now >= read.since.after(time)).map(|(id, _)| *id).collect();
        for id in late {
            let path = self.reads.get(&id).and_then(|read| self.files.get(&read.file)).map(|file| file.path.clone());
            self.end_read(id, Err(StreamError::timeout(&path.unwrap_or_default(), time)));
        }
        let late: Vec<u64> =
            self.wants.iter().filter(|(_, waiting)| now >= waiting.since.after(time)).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(waiting) = self.wants.remove(&id) {
                let error = StreamError::timeout(waiting.want.path(), time);
                self.abandon(&waiting.want);
                waiting.want.fail(error, &mut self.effects);
            }
        }
    }

    fn refuse_call(&mut self, call: Call) {
        let effects = &mut self.effects;
        let error = StreamError::volume(ErrorKind::Shutdown, &self.name, "it was shut down on this device");
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

/// Checks the rules of a path.
fn check_path(path: &[u8]) -> Result<(), StreamError> {
    let invalid = |why: &str| Err(StreamError::new(ErrorKind::Invalid, path, why));
    if path.len() > PATH_BYTES_MAX {
        return Err(StreamError::new(ErrorKind::NameTooLong, &path[..80], "a path has 4095 bytes at most"));
    }
    for name in path.split(|byte| *byte == b'/').filter(|_| !path.is_empty()) {
        match name {
            b"" => return invalid("a name in the path is empty; join names by one `/`, with none at either end"),
            b"." | b".." => return invalid("a path holds neither `.` nor `..`"),
            _ if name.len() > wire::format::FILE_NAME_BYTES_MAX => {
                return Err(StreamError::new(ErrorKind::NameTooLong, path, "a name has 255 bytes at most"));
            }
            _ if name.contains(&0) => return invalid("a name holds no zero byte"),
            _ => {}
        }
    }
    Ok(())
}
