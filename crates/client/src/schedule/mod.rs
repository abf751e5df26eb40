//! What every READ waits for, and what is asked of the server: the heart of the client, without threads or sockets.
//!
//! A READ is cut into pages. Each page is answered from what lies in the daemon (the run being stored right now, the
//! holding area, the cache of decoded blocks), or it joins the readers that already wait for it, or it is demanded. One
//! [`Wait`] exists per page however many READs want it, and one request per block however many pages lie in it. When
//! bytes arrive, verified by the caller, all readers of all pages they complete are answered.
//!
//! The session keeps this struct behind a lock, calls it, and then, with the lock released, carries out the
//! [`Effects`]: callbacks into the mount are never made under the lock, and commands to the network threads are sent
//! before it is released, so that the server sees the touches of an action in their order.
//!
//! `demand` deals with requests, replies and lost connections, `pushed` with pages nobody asked for, `hints` with pages
//! that somebody knows will be needed, `timer` with everything that is late. Time is a parameter. Units: pages, and microseconds inside [`Moment`].

mod demand;
mod hints;
mod pushed;
mod speculation;
mod timer;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use connection::Waiting;
use image::{ImageError, Kind, Metadata};
use units::{BlockId, InodeId, Moment, PAGE_BYTES, PageId, Token};

use crate::allocator::{Allocator, PageBuffer};
use crate::block_cache::{BlockBytes, BlockCache, Evicted};
use crate::command::{AskKey, Command, ConnectionIndex, StreamKey, Wanted};
use crate::config::{Config, Granularity};
use crate::counters::Counters;
use crate::error::ReadError;
use crate::holding::{HeldKind, HoldingArea};
use crate::link::Link;
use crate::place::Place;
use crate::readahead::Readahead;
use crate::sink::Done;
use crate::touches::Touches;
pub(crate) use demand::Failure;
pub use demand::NO_TOKEN;
pub(crate) use hints::HintedBlock;
use hints::Hints;
pub(crate) use pushed::{Candidate, Run, StreamInfo, evicted_candidates};

/// Bytes of one READ. The kernel asks for at most 1 MiB; more is no READ.
pub(crate) const READ_BYTES_MAX: u32 = 16 << 20;

/// READs that wait together. The kernel keeps one per faulting thread, far fewer than this.
const READS_MAX: usize = 64 << 10;

/// State of all READs and requests of a session.
pub(crate) struct Schedule {
    metadata: Arc<Metadata>,
    pool: Arc<Allocator>,
    settings: Settings,
    reads: BTreeMap<u64, Read>,
    reads_begun: u64,
    waits: BTreeMap<u64, Wait>,
    /// READs per page, from their arrival until the reply was handed to the kernel: such pages are not stored.
    in_flight: HashMap<u64, u32>,
    /// READs that wait, per running action.
    stalled: HashMap<Token, u32>,
    asks: BTreeMap<AskKey, Ask>,
    asks_begun: u64,
    /// Blocks that were asked for.
    fetching: HashMap<BlockId, AskKey>,
    connections: Vec<ConnectionState>,
    /// Requests that no connection can take at present.
    parked: VecDeque<AskKey>,
    /// Requests to be made again at their time.
    delayed: Vec<(Moment, AskKey)>,
    cache: BlockCache,
    holding: HoldingArea,
    readahead: Readahead,
    /// When a block was last missed or used for the first time: readahead goes on for a while after it.
    used_at: Moment,
    touches: Touches,
    hints: Hints,
    link: Link,
    streams: HashMap<StreamKey, StreamInfo>,
    /// Pages of pieces that were received and not digested yet.
    arriving: HashMap<u64, u32>,
    /// The run that is being stored right now; READs of its pages must be answered for the store call to return.
    storing: Option<Arc<Run>>,
    /// Pages the kernel was given by a store, one bit per chunk: a READ of one means that the kernel dropped it.
    stored: Vec<u64>,
    /// Inodes the kernel would not look up; not tried again.
    unknown_inodes: HashSet<InodeId>,
    /// The server serves another image: requests fail until it is back.
    stale: bool,
    closed: bool,
    /// When [`Schedule::expire`] is due at the latest; may be early.
    deadline: Option<Moment>,
    pub counters: Counters,
    effects: Effects,
}

/// What is fixed for the life of a session.
#[derive(Clone, Copy, Debug)]
struct Settings {
    granularity: Granularity,
    soft: Option<Duration>,
    store_evicted: bool,
    /// There is a server to learn from touches, and a link to estimate.
    remote: bool,
}

/// What the caller must do after each call, in this order: send `commands` while it still holds the lock, then, without
/// it, answer `finished` and hand `evicted` and `hinted` to the storer.
#[derive(Default)]
pub(crate) struct Effects {
    pub commands: Vec<(ConnectionIndex, Command)>,
    pub finished: Vec<Finished>,
    pub evicted: Vec<Evicted>,
    pub hinted: Vec<HintedBlock>,
}

/// A READ that is over.
pub(crate) struct Finished {
    pub done: Done,
    pub outcome: Result<Answer, ReadError>,
    /// Its pages, to be released once the reply was handed over.
    pub pages: Pages,
}

/// Consecutive pages of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    pub inode: InodeId,
    pub first: u32,
    pub count: u32,
}

/// The bytes of a READ, still in pages.
pub(crate) struct Answer {
    slots: Vec<Slot>,
    /// Bytes of the first page before the READ begins.
    skip: usize,
    bytes: usize,
}

enum Slot {
    Missing,
    Hole,
    Filled(PageBuffer),
}

/// A READ that is under way.
struct Read {
    token: Token,
    pages: Pages,
    answer: Answer,
    missing: u32,
    since: Moment,
    done: Done,
}

/// A page that at least one READ waits for.
struct Wait {
    token: Token,
    /// READ and slot.
    readers: Vec<(u64, u32)>,
    /// Blocks that arrived while others of the same page are still missing.
    blocks: Vec<(BlockId, BlockBytes)>,
    source: Source,
}

/// Where a page that is waited for should come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A request was made.
    Demand,
    /// The server says that this stream brings it.
    OnTheWay { stream: StreamKey, force_at: Moment },
    /// It lies in a piece that the storer has not digested yet.
    Arriving,
}

/// A request without an answer.
struct Ask {
    wanted: Wanted,
    token: Token,
    force: bool,
    /// Made by readahead.
    speculative: bool,
    /// Made by readahead, and the server was told that a READ waits for it by now.
    hurried: bool,
    /// The connection it was handed to.
    connection: Option<ConnectionIndex>,
    sent: Moment,
    /// Bytes the connection had received when it was sent.
    received_before: u64,
    /// Other answers were under way when it was sent.
    pipelined: bool,
    /// Bad answers so far.
    failures: u32,
    /// Answers so far that said `on the way` for another page of the block.
    detours: u32,
}

/// A connection as the schedule sees it.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectionState {
    up: bool,
    bytes_received: u64,
}

impl Schedule {
    /// The schedule of a session with `connections` connections, all down; `remote` is false for a
    /// local file.
    pub fn new(
        metadata: Arc<Metadata>,
        pool: Arc<Allocator>,
        config: &Config,
        connections: usize,
        remote: bool,
    ) -> Schedule {
        let soft = match config.waiting {
            Waiting::Soft(time) if remote => Some(time),
            _ => None,
        };
        let granularity = if remote { config.granularity } else { Granularity::Block };
        let settings = Settings { granularity, soft, store_evicted: config.store_evicted, remote };
        // Pages asked for one by one leave nothing to read ahead.
        let window = if granularity == Granularity::Page { 0 } else { config.readahead_blocks };
        Schedule {
            stored: vec![0; (metadata.chunk_count() as usize).div_ceil(64)],
            metadata,
            pool,
            settings,
            reads: BTreeMap::new(),
            reads_begun: 0,
            waits: BTreeMap::new(),
            in_flight: HashMap::new(),
            stalled: HashMap::new(),
            asks: BTreeMap::new(),
            asks_begun: 0,
            fetching: HashMap::new(),
            connections: vec![ConnectionState::default(); connections],
            parked: VecDeque::new(),
            delayed: Vec::new(),
            cache: BlockCache::new(config.cache_bytes, if remote { config.stored_bytes } else { 0 }),
            holding: HoldingArea::new(config.held_bytes, config.audit_bytes),
            readahead: Readahead::new(window, remote),
            used_at: Moment(0),
            touches: Touches::default(),
            hints: Hints::default(),
            link: Link::default(),
            streams: HashMap::new(),
            arriving: HashMap::new(),
            storing: None,
            unknown_inodes: HashSet::new(),
            stale: false,
            closed: false,
            deadline: None,
            counters: Counters::default(),
            effects: Effects::default(),
        }
    }

    /// Hinted pages are asked for in the name of this token, which no process has.
    pub fn set_hint_token(&mut self, token: Token) {
        self.hints.set_token(token);
    }

    /// The counters that are kept here or in the cache.
    pub fn counters(&self) -> Counters {
        Counters { cache_decodes: self.cache.decodes(), ..self.counters }
    }

    /// A buffer to decode a block into.
    pub fn spare(&mut self) -> Vec<u8> {
        self.cache.spare()
    }

    /// What the last calls want done.
    pub fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// When [`Schedule::expire`] is due.
    pub fn deadline(&self) -> Option<Moment> {
        [self.deadline, self.touches.deadline()].into_iter().flatten().min()
    }

    /// A READ of the kernel.
    pub fn read(&mut self, now: Moment, token: Token, inode: InodeId, offset: u64, bytes: u32, done: Done) {
        self.counters.reads += 1;
        let (pages, answer) = match self.plan(inode, offset, bytes) {
            Ok(plan) => plan,
            Err(error) => {
                self.counters.read_errors += 1;
                let pages = Pages { inode, first: 0, count: 0 };
                self.effects.finished.push(Finished { done, outcome: Err(error), pages });
                return;
            }
        };
        // The kernel asks, so it knows the inode by now.
        self.unknown_inodes.remove(&inode);
        for page in pages.iter() {
            *self.in_flight.entry(page.to_u64()).or_default() += 1;
        }
        self.reads_begun += 1;
        let id = self.reads_begun;
        let mut read = Read { token, pages, answer, missing: 0, since: now, done };
        let asked_before = self.counters.requests;
        let mut single_pages = Vec::new();
        let holds_up = self.holds_up_store(pages);
        for (slot, page) in pages.iter().enumerate() {
            read.answer.slots[slot] = self.supply(now, token, page);
            if matches!(read.answer.slots[slot], Slot::Missing) {
                read.missing += 1;
                if !self.join(now, token, page, (id, slot as u32), holds_up) {
                    single_pages.push(page);
                }
            }
        }
        self.demand_pages(now, token, &single_pages, holds_up);
        if read.missing == 0 {
            self.finish(read, None);
            return;
        }
        self.counters.stalls += 1;
        let waiting = self.stalled.entry(token).or_default();
        *waiting += 1;
        if *waiting == 1 && self.counters.requests != asked_before {
            self.counters.round_trips += 1;
        }
        self.reads.insert(id, read);
        if self.stale {
            self.fail_read(now, id, ReadError::Protocol);
        } else if let Some(time) = self.settings.soft {
            self.wake_at(now.after(time));
        }
    }

    /// Which pages a READ covers, and its empty answer.
    fn plan(&self, inode: InodeId, offset: u64, bytes: u32) -> Result<(Pages, Answer), ReadError> {
        if self.closed {
            return Err(ReadError::Shutdown);
        }
        if self.metadata.contradiction().is_some() {
            return Err(ReadError::Corrupt);
        }
        let file = self.metadata.inode(inode).filter(|found| found.kind() == Kind::File).ok_or(ReadError::Io)?;
        if bytes > READ_BYTES_MAX || self.reads.len() >= READS_MAX {
            return Err(ReadError::Io);
        }
        let end = offset.saturating_add(u64::from(bytes)).min(file.size());
        let bytes = end.saturating_sub(offset) as usize;
        if bytes == 0 {
            let answer = Answer { slots: Vec::new(), skip: 0, bytes: 0 };
            return Ok((Pages { inode, first: 0, count: 0 }, answer));
        }
        let page_bytes = PAGE_BYTES as u64;
        let first = u32::try_from(offset / page_bytes).map_err(|_| ReadError::Io)?;
        let last = u32::try_from((end - 1) / page_bytes).map_err(|_| ReadError::Io)?;
        let count = last - first + 1;
        let slots = (0..count).map(|_| Slot::Missing).collect();
        let answer = Answer { slots, skip: (offset % page_bytes) as usize, bytes };
        Ok((Pages { inode, first, count }, answer))
    }

    /// Answers a page from what lies in the daemon.
    fn supply(&mut self, now: Moment, token: Token, page: PageId) -> Slot {
        let Some(place) = Place::of(&self.metadata, page) else { return Slot::Missing };
        if place.is_hole() {
            return Slot::Hole;
        }
        if let Some(bytes) = self.storing.as_ref().and_then(|run| run.page(page)) {
            let mut buffer = self.pool.page();
            buffer[..bytes.len()].copy_from_slice(bytes);
            self.note_touch(now, token, page, false);
            return Slot::Filled(buffer);
        }
        if let Some(held) = self.holding.take(page) {
            let urgent = matches!(held.kind, HeldKind::Sentinel { .. });
            self.judge_used(&held);
            self.note_touch(now, token, page, urgent);
            return Slot::Filled(held.buffer);
        }
        let blocks = place.blocks(&self.metadata);
        if !blocks.iter().all(|block| self.cache.contains(*block)) {
            return Slot::Missing;
        }
        let found: Vec<_> = blocks.iter().filter_map(|block| Some((*block, self.cache.get(*block)?))).collect();
        let mut buffer = self.pool.page();
        let bytes_of = |block| found.iter().find(|(id, _)| *id == block).map(|(_, bytes)| bytes.as_slice());
        if !place.assemble(&self.metadata, &mut buffer[..], bytes_of) {
            return Slot::Missing;
        }
        self.counters.cache_hits += blocks.len() as u64;
        self.note_touch(now, token, page, false);
        self.note_taken(now, token, page, &place);
        Slot::Filled(buffer)
    }

    /// Lets a READ wait for a page, and asks for its block if nothing brings it yet; false if the page itself is to be
    /// asked for. `holds_up`: the storer waits for this READ, so what the storer brings is no help.
    fn join(&mut self, now: Moment, token: Token, page: PageId, reader: (u64, u32), holds_up: bool) -> bool {
        if let Some(wait) = self.waits.get_mut(&page.to_u64()) {
            wait.readers.push(reader);
            let pushed = wait.source != Source::Demand;
            self.note_touch(now, token, page, false);
            if holds_up && pushed {
                self.demand_again(now, page);
            }
            return true;
        }
        let arriving = self.arriving.contains_key(&page.to_u64()) && !holds_up;
        let source = if arriving { Source::Arriving } else { Source::Demand };
        let wait = Wait { token, readers: vec![reader], blocks: Vec::new(), source };
        self.waits.insert(page.to_u64(), wait);
        if arriving {
            self.counters.late_pushes += 1;
            self.note_touch(now, token, page, false);
        } else if self.wants_single_pages(page) {
            return false;
        } else {
            self.demand_blocks(now, token, page, holds_up);
        }
        true
    }

    /// A page of verified bytes arrived for whoever waits for it. False if nobody does.
    fn fulfil(&mut self, now: Moment, page: PageId, bytes: &[u8]) -> bool {
        let Some(wait) = self.waits.remove(&page.to_u64()) else { return false };
        for (id, slot) in wait.readers {
            let Some(read) = self.reads.get_mut(&id) else { continue };
            let mut buffer = self.pool.page();
            buffer[..bytes.len()].copy_from_slice(bytes);
            read.answer.slots[slot as usize] = Slot::Filled(buffer);
            read.missing -= 1;
            if read.missing == 0
                && let Some(read) = self.reads.remove(&id)
            {
                self.unstall(now, &read);
                self.finish(read, None);
            }
        }
        true
    }

    /// Gives up on a page: all its READs fail.
    fn fail_page(&mut self, now: Moment, page: PageId, error: ReadError) {
        let Some(wait) = self.waits.remove(&page.to_u64()) else { return };
        for (id, _) in wait.readers {
            self.fail_read(now, id, error);
        }
    }

    /// Ends one READ with an error. Its places in the waits of other pages are found empty later.
    fn fail_read(&mut self, now: Moment, id: u64, error: ReadError) {
        if let Some(read) = self.reads.remove(&id) {
            self.unstall(now, &read);
            self.finish(read, Some(error));
        }
    }

    fn unstall(&mut self, now: Moment, read: &Read) {
        self.counters.stall_micros += now.since(read.since).as_micros() as u64;
        if let Some(waiting) = self.stalled.get_mut(&read.token) {
            *waiting -= 1;
            if *waiting == 0 {
                self.stalled.remove(&read.token);
            }
        }
    }

    fn finish(&mut self, read: Read, error: Option<ReadError>) {
        let outcome = match error {
            None => Ok(read.answer),
            Some(error) => {
                self.counters.read_errors += 1;
                Err(error)
            }
        };
        self.effects.finished.push(Finished { done: read.done, outcome, pages: read.pages });
    }

    /// The reply to a READ was handed to the kernel: its pages may be stored again.
    pub fn replied(&mut self, pages: Pages) {
        for page in pages.iter() {
            if let Some(count) = self.in_flight.get_mut(&page.to_u64()) {
                *count -= 1;
                if *count == 0 {
                    self.in_flight.remove(&page.to_u64());
                }
            }
        }
    }

    /// Once a block and the chunk hashes say different things nobody can tell which content the image has: every READ
    /// ends, now and from now on. Returns why, if that is so.
    pub fn refuse_contradiction(&mut self, now: Moment) -> Option<ImageError> {
        let error = self.metadata.contradiction()?;
        let ids: Vec<u64> = self.reads.keys().copied().collect();
        ids.into_iter().for_each(|id| self.fail_read(now, id, ReadError::Corrupt));
        self.waits.clear();
        Some(error)
    }

    /// The session closes: every READ ends, now and from now on.
    pub fn close(&mut self, now: Moment) {
        self.closed = true;
        let ids: Vec<u64> = self.reads.keys().copied().collect();
        ids.into_iter().for_each(|id| self.fail_read(now, id, ReadError::Shutdown));
        self.waits.clear();
        self.asks.clear();
        self.fetching.clear();
        self.parked.clear();
        self.delayed.clear();
        self.hints.forget();
        (0..self.connections.len()).for_each(|connection| self.effects.commands.push((connection, Command::Close)));
    }

    /// A running action ended.
    pub fn end(&mut self, token: Token) {
        let pages = self.touches.end(token);
        if self.settings.remote {
            self.send_touches(token, pages);
            if let Some(connection) = self.connection_for(token, 0) {
                self.effects.commands.push((connection, Command::TokenEnd { token }));
            }
        }
        self.readahead.end(token);
        for held in self.holding.end(token) {
            self.judge_wasted(&held);
        }
    }

    /// A page was served without a request of its own; the server learns of it later, at once if `urgent`.
    fn note_touch(&mut self, now: Moment, token: Token, page: PageId, urgent: bool) {
        if !self.settings.remote || token == NO_TOKEN {
            return;
        }
        let full = self.touches.note(token, page, now);
        if full || urgent {
            let pages = self.touches.take(token);
            self.send_touches(token, pages);
        }
    }

    fn send_touches(&mut self, token: Token, pages: Vec<PageId>) {
        if pages.is_empty() {
            return;
        }
        // Without a connection there is nobody to learn; the server will have forgotten the action by the next one.
        if let Some(connection) = self.connection_for(token, 0) {
            self.counters.pages_touched += pages.len() as u64;
            self.effects.commands.push((connection, Command::Touch { token, pages }));
        }
    }

    fn wake_at(&mut self, at: Moment) {
        self.deadline = Some(self.deadline.map_or(at, |earlier| earlier.min(at)));
    }
}

impl Pages {
    pub fn iter(self) -> impl Iterator<Item = PageId> {
        // `first + count` fits: it was made from the last page's index.
        (0..self.count).map(move |i| PageId::new(self.inode, self.first + i))
    }
}

impl Answer {
    /// Hands the bytes to `done`, put together in `scratch` if they span several pages.
    pub fn hand_over(self, scratch: &mut Vec<u8>, done: Done) {
        if let [Slot::Filled(page)] = self.slots.as_slice() {
            return done(Ok(&page[self.skip..self.skip + self.bytes]));
        }
        scratch.clear();
        let mut skip = self.skip;
        for slot in &self.slots {
            let bytes = (PAGE_BYTES - skip).min(self.bytes - scratch.len());
            match slot {
                Slot::Filled(page) => scratch.extend_from_slice(&page[skip..skip + bytes]),
                Slot::Hole => scratch.resize(scratch.len() + bytes, 0),
                // A READ is only answered when no page is missing; never zeros in place of bytes.
                Slot::Missing => return done(Err(ReadError::Io)),
            }
            skip = 0;
        }
        done(Ok(scratch));
    }
}
