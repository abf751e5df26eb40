//! READs and the requests that they need: the state machine of the client, without threads or
//! sockets.
//!
//! A READ is cut into pages. A page is answered from the daemon (the run being stored right now,
//! the holding area, the cache of decoded blocks), or waits for what is under way already, or is
//! demanded. One wait exists per page however many READs want it, and one request per block however
//! many pages lie in it. When bytes arrive, verified by the caller, all READs of all pages that
//! they complete are answered.
//!
//! [`Schedule`] coordinates parts that own the state: `reads` (READs and the pages they wait for),
//! `requests` and `connections`, `pushes` with the `holding` area, `page_cache` (what the kernel
//! was given), `leaving` (what left the cache), `touches` (what the server learns from),
//! `readahead` (with `followers`) and `hints`. No part knows the schedule. Its methods are in
//! `demand` (requests, replies, lost connections), `ahead` (readahead and hints) and `push` (pushes
//! and stores).
//!
//! The session keeps the schedule behind a lock, calls it, and carries out the [`Effects`].
//! Commands to the network threads are sent before the lock is released, so that the server sees
//! the touches of an action in their order. Callbacks into the mount are made after it. Time is a
//! parameter.

mod ahead;
mod answer;
mod connections;
mod demand;
mod followers;
mod hints;
mod holding;
mod leaving;
mod neighbours;
mod page_cache;
mod push;
mod pushes;
mod readahead;
mod reads;
mod requests;
mod run;
mod tally;
mod touches;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use connection::Waiting;
use image::{ImageError, Metadata};
use units::{InodeId, Moment, PageId, Token};

use crate::allocator::Allocator;
use crate::block_cache::{BlockCache, Evicted};
use crate::cached::ImageCache;
use crate::command::{Command, ConnectionIndex, Wanted};
use crate::config::{Config, Granularity};
use crate::counters::{Counters, MemoryCounters};
use crate::error::ReadError;
use crate::page_parts::PageParts;
use crate::sink::Done;
use answer::{Answer, Slot};
pub(crate) use answer::{Finished, Pages, Span};
use connections::Connections;
pub(crate) use hints::HintedBlock;
use hints::Hints;
use holding::HeldKind;
use leaving::Leaving;
use page_cache::PageCache;
use pushes::Pushes;
pub(crate) use pushes::StreamInfo;
use readahead::Readahead;
use reads::{Reader, Reads, Source};
use requests::{Request, Requests};
pub(crate) use run::{Candidate, Run, evicted_candidates, retain_good};
pub use touches::NO_TOKEN;
use touches::Touches;

/// State of all READs and requests of a session.
///
/// Invariant: every page that a READ waits for has a request that is not answered, or lies in a
/// push that is announced or arriving. So every READ ends as soon as the server answers.
pub(crate) struct Schedule {
    metadata: Arc<Metadata>,
    pool: Arc<Allocator>,
    settings: Settings,
    state: State,
    reads: Reads,
    requests: Requests,
    connections: Connections,
    cache: BlockCache,
    pushes: Pushes,
    page_cache: PageCache,
    touches: Touches,
    readahead: Readahead,
    hints: Hints,
    leaving: Leaving,
}

/// Settings that are fixed for the life of a session.
#[derive(Clone, Copy, Debug)]
struct Settings {
    granularity: Granularity,
    near_round_trip: Duration,
    /// There is a server to learn from touches, and a link to estimate.
    remote: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The server serves another image: requests fail until it is back.
    ImageGone,
    Closed,
}

/// What the caller must do after each call, in this order: send `commands` while it still holds the
/// lock, then, without it, answer `finished`, hand `evicted` and `hinted` to the storer, and say
/// what was `given_up`.
pub(crate) struct Effects {
    pub commands: Vec<(ConnectionIndex, Command)>,
    pub finished: Vec<Finished>,
    pub evicted: Vec<Evicted>,
    pub hinted: Vec<HintedBlock>,
    /// Pages that a server cannot deliver.
    pub given_up: Vec<(PageId, ReadError)>,
}

impl Schedule {
    /// The schedule of a session with `connections` connections, all down; `remote` is false for a
    /// local file. With a device cache, the last connection leads to it.
    pub fn new(
        metadata: Arc<Metadata>,
        pool: Arc<Allocator>,
        config: &Config,
        connections: usize,
        remote: bool,
        cached: Option<Arc<ImageCache>>,
    ) -> Schedule {
        let soft = match config.waiting {
            Waiting::Soft(time) if remote => Some(time),
            _ => None,
        };
        let granularity = if remote { config.granularity } else { Granularity::Block };
        // Pages asked for one by one leave nothing to read ahead, and READs of a local file do not
        // come here.
        let window = if granularity == Granularity::Page || !remote { 0 } else { config.readahead_blocks };
        Schedule {
            settings: Settings { granularity, near_round_trip: config.near_round_trip, remote },
            state: State::Open,
            reads: Reads::new(Arc::clone(&pool), soft),
            connections: Connections::new(connections, remote, cached.is_some()),
            requests: Requests::new(cached),
            cache: BlockCache::new(config.cache_bytes, if remote { config.stored_bytes } else { 0 }),
            pushes: Pushes::new(Arc::clone(&pool), config),
            page_cache: PageCache::new(&metadata),
            touches: Touches::new(remote),
            readahead: Readahead::new(window),
            hints: Hints::default(),
            leaving: Leaving::new(config.store_evicted),
            metadata,
            pool,
        }
    }

    /// The counters of all parts.
    pub fn counters(&self) -> Counters {
        let (pool_hits, pool_misses) = (self.pool.hits(), self.pool.misses());
        Counters {
            reads: self.reads.counters(),
            demand: self.requests.counters(self.cache.wrong_pages()),
            transfer: self.connections.counters(),
            pushes: self.pushes.counters(),
            hints: self.hints.counters(),
            readahead: self.readahead.counters(),
            stores: self.page_cache.counters(),
            memory: MemoryCounters { pool_hits, pool_misses, ..self.cache.counters() },
        }
    }

    /// A buffer to decode a block into.
    pub fn spare(&mut self) -> Vec<u8> {
        self.cache.spare()
    }

    /// The effects of the calls since the last time.
    pub fn take_effects(&mut self) -> Effects {
        Effects {
            commands: self.connections.take_commands(),
            finished: self.reads.take_finished(),
            evicted: self.leaving.take(),
            hinted: self.hints.take_ready(),
            given_up: self.requests.take_given_up(),
        }
    }

    /// When [`Schedule::expire`] is due; may be early.
    pub fn deadline(&self) -> Option<Moment> {
        let deadlines = [self.reads.deadline(), self.requests.deadline(), self.touches.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Does the work that is due: touches are sent, READs of soft mode fail, pages that did not
    /// come by themselves are demanded, delayed requests are made.
    pub fn expire(&mut self, now: Moment) {
        self.touches.expire(now, &mut self.connections);
        for page in self.reads.expire(now) {
            self.demand_again(now, page);
        }
        self.requests.expire(now, &mut self.connections);
    }

    /// A READ of the kernel. Whether it was answered at once.
    pub fn read(&mut self, now: Moment, token: Token, inode: InodeId, offset: u64, bytes: u32, done: Done) -> bool {
        let span = match self.plan(inode, offset, bytes) {
            Ok(span) => span,
            Err(error) => {
                self.reads.refuse(inode, done, error);
                return true;
            }
        };
        let pages = span.pages;
        self.page_cache.inode_read(inode);
        let id = self.reads.begin(now, token, (pages, Answer::empty(&span)), done);
        let demands_before = self.requests.demands();
        let holds_up = self.page_cache.is_held_up_by(pages);
        let mut single_pages = Vec::new();
        for (slot, page) in (0..).zip(pages.iter()) {
            match self.supply(now, token, page) {
                Slot::Missing => {
                    if !self.join(now, token, page, (id, slot), holds_up) {
                        single_pages.push(page);
                    }
                }
                content => self.reads.fill(now, (id, slot), content),
            }
        }
        self.demand_pages(now, token, &single_pages, holds_up);
        let Some(is_only) = self.reads.seal(now, id) else { return true };
        if is_only && self.requests.demands() != demands_before {
            self.requests.count_round_trip();
        }
        self.reads.fail_lacking(now, &self.requests, self.state == State::ImageGone);
        false
    }

    /// A READ that its caller answers. Until [`Schedule::read_ended`] its pages are in flight.
    ///
    /// # Errors
    /// The READ is to be answered so.
    pub fn read_begins(&mut self, inode: InodeId, offset: u64, bytes: u32) -> Result<Span, ReadError> {
        let planned = self.plan(inode, offset, bytes);
        self.page_cache.inode_read(inode);
        self.reads.begin_elsewhere(&planned);
        planned
    }

    /// A READ was answered by its caller.
    pub fn read_ended(&mut self, pages: Pages, error: Option<ReadError>) {
        self.reads.end_elsewhere(pages, error);
    }

    /// What a READ covers.
    fn plan(&self, inode: InodeId, offset: u64, bytes: u32) -> Result<Span, ReadError> {
        if self.state == State::Closed {
            return Err(ReadError::Shutdown);
        }
        if self.metadata.contradiction().is_some() {
            return Err(ReadError::Corrupt);
        }
        if self.reads.is_full() {
            return Err(ReadError::Io);
        }
        Span::of(&self.metadata, inode, offset, bytes)
    }

    /// Answers a page from the daemon's own memory.
    fn supply(&mut self, now: Moment, token: Token, page: PageId) -> Slot {
        let Some(parts) = PageParts::of(&self.metadata, page) else { return Slot::Missing };
        if parts.is_hole() {
            return Slot::Hole;
        }
        if let Some(bytes) = self.page_cache.storing(page) {
            let buffer = self.pool.page_of(bytes);
            self.touches.note(now, token, page, false, &mut self.connections);
            return Slot::Filled(buffer);
        }
        if let Some(held) = self.pushes.take_held(page) {
            let urgent = matches!(held.kind, HeldKind::Sentinel { .. });
            self.readahead.followers().used(token, held.judged_pages());
            self.touches.note(now, token, page, urgent, &mut self.connections);
            return Slot::Filled(held.buffer);
        }
        let Some(buffer) = self.cache.page(&self.metadata, page, &parts, &self.pool) else { return Slot::Missing };
        self.touches.note(now, token, page, false, &mut self.connections);
        self.note_taken(now, token, page, &parts);
        Slot::Filled(buffer)
    }

    /// Lets a READ wait for a page, and asks for its block if nothing brings it yet; false if the
    /// page itself is to be asked for. `holds_up`: the storer waits for this READ, so what the
    /// storer brings is no help.
    fn join(&mut self, now: Moment, token: Token, page: PageId, reader: Reader, holds_up: bool) -> bool {
        if let Some(source) = self.reads.join(page, reader) {
            self.touches.note(now, token, page, false, &mut self.connections);
            if holds_up && source != Source::Demand {
                self.demand_again(now, page);
            }
            return true;
        }
        let arriving = self.pushes.is_arriving(page) && !holds_up;
        let source = if arriving { Source::Arriving } else { Source::Demand };
        self.reads.wait(page, token, reader, source);
        if arriving {
            self.touches.note(now, token, page, false, &mut self.connections);
        } else if self.requests.is_page_cached(page) {
            self.touches.note(now, token, page, false, &mut self.connections);
            self.request(now, Request::new(Wanted::Pages(vec![page]), token));
        } else if !self.requests.are_blocks_cached(page) && self.wants_single_pages(page) {
            return false;
        } else {
            self.demand_blocks(now, token, page, holds_up);
        }
        true
    }

    /// The reply to a READ was handed to the kernel: its pages may be stored again.
    pub fn replied(&mut self, pages: Pages) {
        self.reads.replied(pages);
    }

    /// If a block and the chunk hashes contradict each other, the content of the image is unknown:
    /// every READ ends, now and from now on. Returns why, if that is so.
    pub fn refuse_contradiction(&mut self, now: Moment) -> Option<ImageError> {
        let error = self.metadata.contradiction()?;
        self.reads.fail_all(now, ReadError::Corrupt);
        self.reads.clear_waits();
        Some(error)
    }

    /// A running action ended.
    pub fn end(&mut self, token: Token) {
        let is_untold = self.touches.end(token, &mut self.connections);
        self.connections.end(token, is_untold);
        self.readahead.end(token);
        self.leaving.end();
        self.pushes.end(token);
    }

    /// The session closes: every READ ends, now and from now on.
    pub fn close(&mut self, now: Moment) {
        self.state = State::Closed;
        self.reads.fail_all(now, ReadError::Shutdown);
        self.reads.clear_waits();
        self.requests.clear();
        self.hints.forget();
        self.touches.close(&mut self.connections);
        self.connections.close();
    }
}
