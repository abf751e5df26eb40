//! Requests without an answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use image::Metadata;
use units::{BlockId, Moment, PageId, Token};

use super::connections::{Connections, Sent};
use crate::cached::ImageCache;
use crate::command::{Command, ConnectionIndex, Failure, RequestKey, Wanted};
use crate::counters::RequestCounters;
use crate::error::ReadError;
use crate::page_parts::PageParts;

/// A request for a block or for pages.
pub(super) struct Request {
    pub wanted: Wanted,
    pub token: Token,
    /// The server is not to answer that the page is on its way.
    pub force: bool,
    /// Made by readahead.
    pub speculative: bool,
    /// Bad answers so far.
    pub failures: u32,
    /// Answers so far that said `on the way` for another page of the block.
    pub detours: u32,
    /// Made by readahead, and the server was told that a READ waits for it by now.
    hurried: bool,
    /// The connection it was handed to.
    sent: Option<Sent>,
}

/// Requests from their making to their answer.
///
/// Invariants:
/// - An open request is in exactly one state: handed to a connection that is up, parked until one
///   is up, or delayed until its time.
/// - `fetching` has every block that an open request asks for, so no block is requested twice at
///   the same time.
/// - A key is used once: an answer to a request that was made anew is not taken for the new one's.
#[derive(Default)]
pub(super) struct Requests {
    /// What the device cache has.
    cached: Option<Arc<ImageCache>>,
    open: BTreeMap<RequestKey, Request>,
    begun: u64,
    /// Blocks that were asked for.
    fetching: HashMap<BlockId, RequestKey>,
    /// Requests that no connection can take at present, in order.
    parked: Vec<RequestKey>,
    /// Requests to be made again at their time.
    delayed: Vec<(Moment, RequestKey)>,
    /// The first page of each request that was given up.
    given_up: Vec<(PageId, ReadError)>,
    counters: RequestCounters,
}

impl Request {
    pub fn new(wanted: Wanted, token: Token) -> Request {
        Request { wanted, token, force: false, speculative: false, failures: 0, detours: 0, hurried: false, sent: None }
    }

    /// A request for a block, because of one page.
    pub fn block(block: BlockId, page: PageId, token: Token) -> Request {
        Request::new(Wanted::Block { block, page }, token)
    }

    /// The same request, made with or without force.
    pub fn forced(self, force: bool) -> Request {
        Request { force, ..self }
    }

    /// It was answered with something else.
    pub fn failed(&mut self, failure: Failure) {
        self.failures += u32::from(failure != Failure::Later);
        // What came may have been decoded wrongly: the next answer is to be as it is stored.
        self.force |= failure == Failure::Corrupt;
    }

    /// The same request as a guess.
    pub fn guessed(self) -> Request {
        Request { speculative: true, ..self }
    }
}

impl Requests {
    /// Without any. `cached`: what the device cache has.
    pub fn new(cached: Option<Arc<ImageCache>>) -> Requests {
        Requests { cached, ..Requests::default() }
    }

    /// The counters; so many more pages than are counted here did not match the image.
    pub fn counters(&self, wrong_pages: u64) -> RequestCounters {
        RequestCounters { verify_failures: self.counters.verify_failures + wrong_pages, ..self.counters }
    }

    /// Demand requests made so far.
    pub fn demands(&self) -> u64 {
        self.counters.requests
    }

    /// Pages are demanded by a request, a new one or one that was hurried.
    pub fn count_pages(&mut self, pages: u64) {
        self.counters.pages_demanded += pages;
    }

    /// A program waits for a request as the only thing that it waits for.
    pub fn count_round_trip(&mut self) {
        self.counters.round_trips += 1;
    }

    /// Bytes did not match the image.
    pub fn count_verify_failure(&mut self) {
        self.counters.verify_failures += 1;
    }

    /// A request will not be made again, and the READs of its pages fail. The first one, unless the
    /// reason was told elsewhere.
    pub fn give_up(&mut self, page: Option<&PageId>, error: ReadError) {
        self.given_up.extend(page.map(|page| (*page, error)));
    }

    pub fn take_given_up(&mut self) -> Vec<(PageId, ReadError)> {
        std::mem::take(&mut self.given_up)
    }

    pub fn is_fetching(&self, block: BlockId) -> bool {
        self.fetching.contains_key(&block)
    }

    /// Stored bytes of each block of a page that is not on its way already.
    pub fn missing_bytes(&self, metadata: &Metadata, parts: &PageParts) -> Vec<u32> {
        let stored = |block| metadata.block(block).map_or(0, |entry| entry.stored_bytes);
        parts.blocks(metadata).into_iter().filter(|block| !self.is_fetching(*block)).map(stored).collect()
    }

    /// Stored bytes of all blocks that were asked for and have not come.
    pub fn bytes_under_way(&self, metadata: &Metadata) -> u64 {
        let stored = |block: &BlockId| metadata.block(*block).map_or(0, |entry| u64::from(entry.stored_bytes));
        self.fetching.keys().map(stored).sum()
    }

    fn is_cached(&self, wanted: &Wanted) -> bool {
        self.cached.as_ref().is_some_and(|cached| cached.has(wanted))
    }

    /// Whether the device cache has a page by itself.
    pub fn is_page_cached(&self, page: PageId) -> bool {
        self.cached.as_ref().is_some_and(|cached| cached.has_page(page))
    }

    /// Whether it has all blocks of a page.
    pub fn are_blocks_cached(&self, page: PageId) -> bool {
        self.cached.as_ref().is_some_and(|cached| cached.has_blocks_of(page))
    }

    /// Whether it has a page in either way.
    pub fn has_page(&self, page: PageId) -> bool {
        self.is_page_cached(page) || self.are_blocks_cached(page)
    }

    /// Whether it has a block.
    pub fn is_block_cached(&self, block: BlockId) -> bool {
        self.cached.as_ref().is_some_and(|cached| cached.has_block(block))
    }

    /// Makes a request and sends it, to the device cache if that has what is wanted.
    pub fn send(&mut self, now: Moment, request: Request, connections: &mut Connections) {
        let is_cached = self.is_cached(&request.wanted);
        self.counters.requests += u64::from(!request.speculative && !is_cached);
        let key = self.open(request);
        self.dispatch(now, key, connections);
    }

    /// Makes a request again at `at`, without the connection that it was handed to before.
    pub fn send_later(&mut self, at: Moment, request: Request) {
        // The page of a guess was not touched, so the request stays a guess and is hurried.
        let hurried = request.speculative;
        let key = self.open(Request { sent: None, hurried, ..request });
        self.delayed.push((at, key));
    }

    fn open(&mut self, request: Request) -> RequestKey {
        self.begun += 1;
        let key = RequestKey(self.begun);
        if let Wanted::Block { block, .. } = request.wanted {
            self.fetching.insert(block, key);
        }
        self.open.insert(key, request);
        key
    }

    /// Hands a request to a connection, or parks it until there is one. Readahead uses the
    /// connection of the program too: there the server knows what goes first.
    fn dispatch(&mut self, now: Moment, key: RequestKey, connections: &mut Connections) {
        let Some((token, wanted)) = self.open.get(&key).map(|request| (request.token, &request.wanted)) else { return };
        let is_cached = self.is_cached(wanted);
        let connection = if is_cached { connections.cache() } else { connections.of(token) };
        let Some(connection) = connection else {
            self.parked.push(key);
            return;
        };
        let pipelined = self.open.values().any(|other| other.is_on(connection));
        let Some(request) = self.open.get_mut(&key) else { return };
        request.sent = Some(connections.sending(now, connection, pipelined));
        let (wanted, force, speculative) = (request.wanted.clone(), request.force, request.speculative);
        connections.command(connection, Command::Request { key, token, wanted, force, speculative });
        if request.hurried {
            connections.command(connection, Command::Hurry { key });
        }
    }

    /// A READ waits now for a block that was asked for. True the first time, if readahead asked.
    pub fn hurry(&mut self, block: BlockId, connections: &mut Connections) -> bool {
        let Some(key) = self.fetching.get(&block).copied() else { return false };
        let request = self.open.get_mut(&key).filter(|request| request.speculative && !request.hurried);
        let Some(request) = request else { return false };
        request.hurried = true;
        self.counters.requests += 1;
        if let Some(sent) = request.sent {
            connections.command(sent.connection, Command::Hurry { key });
        }
        true
    }

    /// Takes a request that was answered.
    pub fn take(&mut self, now: Moment, key: RequestKey, connections: &mut Connections) -> Option<Request> {
        let request = self.open.remove(&key)?;
        if let Wanted::Block { block, .. } = request.wanted
            && self.fetching.get(&block) == Some(&key)
        {
            self.fetching.remove(&block);
        }
        if let Some(sent) = request.sent {
            connections.answered(now, sent);
        }
        Some(request)
    }

    /// Requests that were handed to a connection which is down now. Each is to be
    /// [sent again](Requests::replay) or [dropped](Requests::take).
    pub fn lost(&mut self, connection: ConnectionIndex) -> Vec<RequestKey> {
        let lost = self.open.iter_mut().filter(|(_, request)| request.is_on(connection));
        lost.map(|(key, request)| {
            (request.sent, request.hurried) = (None, request.speculative);
            *key
        })
        .collect()
    }

    pub fn wanted(&self, key: RequestKey) -> Option<&Wanted> {
        self.open.get(&key).map(|request| &request.wanted)
    }

    /// Sends a request again whose connection was lost.
    pub fn replay(&mut self, now: Moment, key: RequestKey, connections: &mut Connections) {
        self.counters.replays += 1;
        self.dispatch(now, key, connections);
    }

    /// A connection is up: sends parked requests.
    pub fn unpark(&mut self, now: Moment, connections: &mut Connections) {
        for key in std::mem::take(&mut self.parked) {
            self.dispatch(now, key, connections);
        }
    }

    /// When [`Requests::expire`] is due.
    pub fn deadline(&self) -> Option<Moment> {
        self.delayed.iter().map(|(at, _)| *at).min()
    }

    /// Sends delayed requests whose time has come.
    pub fn expire(&mut self, now: Moment, connections: &mut Connections) {
        let due: Vec<_> = self.delayed.extract_if(.., |(at, _)| now >= *at).collect();
        due.into_iter().for_each(|(_, key)| self.dispatch(now, key, connections));
    }

    /// Forgets all requests.
    pub fn clear(&mut self) {
        self.open.clear();
        self.fetching.clear();
        self.parked.clear();
        self.delayed.clear();
    }
}

impl Request {
    fn is_on(&self, connection: ConnectionIndex) -> bool {
        self.sent.is_some_and(|sent| sent.connection == connection)
    }
}

#[cfg(test)]
impl Requests {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.fetching.is_empty() && self.parked.is_empty() && self.delayed.is_empty()
    }

    /// Panics if an invariant does not hold.
    pub fn check(&self, connections: &Connections) {
        for (key, request) in &self.open {
            let parked = self.parked.iter().filter(|parked| *parked == key).count();
            let delayed = self.delayed.iter().filter(|(_, delayed)| delayed == key).count();
            assert_eq!(usize::from(request.sent.is_some()) + parked + delayed, 1, "{key:?} is in one state");
            assert!(request.sent.is_none_or(|sent| connections.is_up(sent.connection)));
            if let Wanted::Block { block, .. } = request.wanted {
                assert_eq!(self.fetching.get(&block), Some(key));
            }
        }
        assert!(self.fetching.values().all(|key| self.open.contains_key(key)));
        assert!(self.parked.iter().all(|key| self.open.contains_key(key)));
        assert!(self.delayed.iter().all(|(_, key)| self.open.contains_key(key)));
    }
}
