//! Demands, and what becomes of requests: replies, bad replies, lost connections.

use std::time::Duration;

use units::{BlockId, Moment, PageId, Token};

use super::connections::Connections;
use super::reads::{Assembled, Source};
use super::requests::Request;
use super::{Schedule, State};
use crate::block_cache::{BlockBytes, Evicted, StoredBlock};
use crate::command::{ConnectionIndex, Failure, RequestKey, StreamKey, Wanted};
use crate::config::Granularity;
use crate::error::ReadError;
use crate::page_parts::PageParts;

/// Bad answers to a request before its READs fail: damage on one connection is not damage
/// everywhere.
const FAILURES_MAX: u32 = 3;

/// Wait before the same is asked again after a bad answer; doubled each time.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Replies `on the way` for one block before it is asked for by force: each costs a round trip.
const DETOURS_MAX: u32 = 1;

/// Pages of one PullPages.
const PULL_PAGES_MAX: usize = 32;

impl Schedule {
    /// Whether a miss of this page asks for pages rather than for its block.
    pub(super) fn wants_single_pages(&self, page: PageId) -> bool {
        // Without chunk hashes no page can be verified by itself, but every block can.
        if !self.metadata.takes_pages() {
            return false;
        }
        match self.settings.granularity {
            Granularity::Block => false,
            Granularity::Page => true,
            Granularity::Auto => {
                let Some(parts) = PageParts::of(&self.metadata, page) else { return false };
                let missing = self.requests.missing_bytes(&self.metadata, &parts);
                !missing.into_iter().all(|bytes| self.connections.link().block_is_worth_it(bytes))
            }
        }
    }

    /// Asks for the blocks of a page that are neither here nor on their way.
    pub(super) fn demand_blocks(&mut self, now: Moment, token: Token, page: PageId, force: bool) {
        let Some(parts) = PageParts::of(&self.metadata, page) else { return };
        let force = force || self.page_cache.was_stored(&parts);
        let (mut asked, mut hurried) = (false, false);
        for block in parts.blocks(&self.metadata) {
            if self.reads.has_block(page, block) {
                continue;
            }
            if let Some(bytes) = self.cache.get(block) {
                self.reads.keep_block(page, block, &bytes);
            } else if self.requests.is_fetching(block) {
                hurried |= self.requests.hurry(block, &mut self.connections);
            } else {
                // What the device cache has costs no round trip, and nobody needs to be told.
                if !self.requests.is_block_cached(block) {
                    asked = true;
                    self.touches.before_demand(token, &[page], &mut self.connections);
                }
                self.request(now, Request::block(block, page, token).forced(force));
            }
        }
        if !asked {
            // The program stands still, so the server is to see its touches at once.
            self.touches.note(now, token, page, hurried, &mut self.connections);
        }
        if asked || hurried {
            self.requests.count_pages(1);
            self.readahead.followers().missed(token);
            self.read_on(now, token, page);
        }
    }

    /// Asks for no more than these pages.
    pub(super) fn demand_pages(&mut self, now: Moment, token: Token, pages: &[PageId], force: bool) {
        for pages in pages.chunks(PULL_PAGES_MAX) {
            let parts = pages.iter().filter_map(|page| PageParts::of(&self.metadata, *page));
            let force = force || parts.into_iter().any(|parts| self.page_cache.was_stored(&parts));
            self.touches.before_demand(token, pages, &mut self.connections);
            self.requests.count_pages(pages.len() as u64);
            self.request(now, Request::new(Wanted::Pages(pages.to_vec()), token).forced(force));
        }
    }

    pub(super) fn request(&mut self, now: Moment, request: Request) {
        if let Wanted::Block { block, .. } = request.wanted {
            self.readahead.fetched(block);
        }
        self.requests.send(now, request, &mut self.connections);
    }

    /// A page that should have come by itself did not: asks for it by force.
    pub(super) fn demand_again(&mut self, now: Moment, page: PageId) {
        let single = self.wants_single_pages(page);
        let Some(token) = self.reads.demand(page) else { return };
        if single {
            self.demand_pages(now, token, &[page], true);
        } else {
            self.demand_blocks(now, token, page, true);
            // Blocks that came for other pages meanwhile may be all it lacked.
            self.complete(now, page);
        }
    }

    /// Whether anybody waits for a block: only then it is decoded when it comes.
    pub fn is_awaited(&self, block: BlockId) -> bool {
        self.hints.want(block) || !self.reads.waiting_for_block(&self.metadata, block).is_empty()
    }

    /// A verified block came: all pages it completes are answered. `bytes`: decoded, if it was
    /// awaited. `stored` is kept to decode it later, or again.
    pub fn block_arrived(
        &mut self,
        now: Moment,
        key: RequestKey,
        block: BlockId,
        bytes: Option<BlockBytes>,
        stored: Option<StoredBlock>,
    ) {
        let request = self.take_request(now, key);
        // A hinted block is no guess.
        let is_guess = request.as_ref().is_some_and(|request| request.speculative) && !self.hints.want(block);
        self.cache.prefer_decoded(self.is_near());
        let gone = self.cache.insert(block, bytes.clone(), stored, is_guess);
        if self.is_awaited(block) {
            // Somebody may have begun to wait only now.
            let bytes = bytes.or_else(|| self.cache.get(block));
            match bytes.or_else(|| gone.iter().find(|gone| gone.block == block).and_then(Evicted::bytes)) {
                Some(bytes) => self.supply_waiting(now, block, &bytes),
                // It was written wrongly: its hash is right and it does not decode.
                None => request.into_iter().for_each(|request| self.retry(now, request, Failure::Corrupt)),
            }
        }
        let is_near = self.is_near();
        self.leaving.add(gone, is_near, &mut self.readahead);
        self.speculate(now);
        self.pull_on(now);
    }

    fn supply_waiting(&mut self, now: Moment, block: BlockId, bytes: &BlockBytes) {
        for page in self.reads.waiting_for_block(&self.metadata, block) {
            self.reads.keep_block(page, block, bytes);
            self.complete(now, page);
        }
        self.hints.block_came(block, bytes);
    }

    /// Whether the server is so near that a demand costs hardly more than the work for it.
    pub(super) fn is_near(&self) -> bool {
        self.settings.remote && self.connections.link().is_near(self.settings.near_round_trip)
    }

    /// Answers a page that is waited for if all its blocks are here.
    fn complete(&mut self, now: Moment, page: PageId) {
        let Some(parts) = PageParts::of(&self.metadata, page) else { return };
        match self.reads.assemble(&self.metadata, page, &parts) {
            None => {}
            Some(Assembled::Broken) => self.reads.fail_page(now, page, ReadError::Corrupt),
            Some(Assembled::Wrong(token, blocks)) => self.demand_stored(now, token, page, &blocks),
            Some(Assembled::Page(token, buffer)) => {
                self.note_taken(now, token, page, &parts);
                self.reads.fulfil(now, page, &buffer[..parts.bytes()]);
            }
        }
    }

    /// Asks for blocks of a page as they are stored.
    fn demand_stored(&mut self, now: Moment, token: Token, page: PageId, blocks: &[BlockId]) {
        self.requests.count_verify_failure();
        for block in blocks {
            self.cache.discard(*block);
            if !self.requests.is_fetching(*block) {
                self.request(now, Request::block(*block, page, token).forced(true));
            }
        }
    }

    /// Pages that were asked for one by one came, or one alone for its block. Those whose bytes are
    /// good have been verified by the caller.
    pub fn pages_arrived(&mut self, now: Moment, key: RequestKey, pages: &[(PageId, Option<&[u8]>)]) {
        let Some(mut request) = self.take_request(now, key) else { return };
        let bad = self.reads.fulfil_each(now, pages);
        let is_lone = matches!(request.wanted, Wanted::Block { .. });
        if !bad.is_empty() {
            // Of a block all is to come then.
            request.wanted = if is_lone { request.wanted } else { Wanted::Pages(bad) };
            self.retry(now, request, Failure::Corrupt);
        } else if is_lone {
            self.readahead.followers().foreseen(request.token);
            self.demand_rest(now, &request);
            self.pull_on(now);
        }
    }

    /// READs may have counted on a block that does not come: asks for their pages, for each program
    /// in its own name.
    fn demand_rest(&mut self, now: Moment, request: &Request) {
        for (token, pages) in self.reads.dependents_by_program(&self.metadata, &request.wanted) {
            self.demand_pages(now, token, &pages, false);
        }
    }

    /// A request got no bytes.
    pub fn failed(&mut self, now: Moment, key: RequestKey, failure: Failure) {
        let Some(request) = self.take_request(now, key) else { return };
        if failure == Failure::Absent {
            for page in self.reads.dependents(&self.metadata, &request.wanted) {
                self.demand_again(now, page);
            }
            self.reads.fail_lacking(now, &self.requests, self.state == State::ImageGone);
            return self.pull_on(now);
        }
        let is_refused_guess = request.speculative && failure == Failure::Later;
        if is_refused_guess {
            self.readahead.refused(&request.wanted);
        }
        // Nobody waited for a guess when it was made. A page alone has to be verified by itself.
        match is_refused_guess && self.metadata.takes_pages() {
            true => self.demand_rest(now, &request),
            false => self.retry(now, request, failure),
        }
        self.pull_on(now);
    }

    /// Asks again after a while, or fails the READs that depend on the request.
    fn retry(&mut self, now: Moment, mut request: Request, failure: Failure) {
        if failure == Failure::Corrupt {
            self.requests.count_verify_failure();
        }
        request.failed(failure);
        let pages = self.reads.dependents(&self.metadata, &request.wanted);
        if pages.is_empty() || self.state == State::Closed {
            return;
        }
        if request.failures >= FAILURES_MAX {
            let error = if failure == Failure::Corrupt { ReadError::Corrupt } else { ReadError::Io };
            self.requests.give_up(pages.first().filter(|_| self.settings.remote), error);
            pages.into_iter().for_each(|page| self.reads.fail_page(now, page, error));
            return;
        }
        let delay = if self.settings.remote { RETRY_DELAY * (1 << request.failures.min(4)) } else { Duration::ZERO };
        self.requests.send_later(now.after(delay), request);
    }

    /// The server says that a stream brings the requested pages.
    pub fn on_the_way(&mut self, now: Moment, key: RequestKey, stream: StreamKey) {
        let Some(request) = self.take_request(now, key) else { return };
        self.readahead.followers().not_missed(request.token);
        let told = request.wanted.pages();
        let force_at = now.after(self.connections.link().patience());
        let over = !self.pushes.has_stream(stream);
        for page in told.iter().copied().filter(|page| self.reads.source(*page).is_some()).collect::<Vec<_>>() {
            let arriving = self.pushes.is_arriving(page);
            let holds_up = self.reads.readers(page).any(|pages| self.page_cache.is_held_up_by(pages));
            if holds_up || (over && !arriving) {
                self.demand_again(now, page);
            } else {
                let source = if arriving { Source::Arriving } else { Source::OnTheWay { stream, force_at } };
                self.reads.expect(page, source);
            }
        }
        // Other pages may have counted on the same block, and the stream need not bring those.
        let Wanted::Block { block, .. } = request.wanted else { return };
        let left = self.reads.dependents(&self.metadata, &request.wanted);
        if let Some(page) = left.first().copied().filter(|_| !self.requests.is_fetching(block)) {
            let mut next = Request::block(block, page, request.token).forced(request.detours >= DETOURS_MAX);
            next.detours = request.detours + 1;
            self.request(now, next);
        }
        self.pull_on(now);
    }

    fn take_request(&mut self, now: Moment, key: RequestKey) -> Option<Request> {
        let request = self.requests.take(now, key, &mut self.connections)?;
        if let Wanted::Block { block, .. } = request.wanted
            && !self.requests.is_fetching(block)
        {
            self.hints.request_ended(block);
        }
        Some(request)
    }

    /// The connections: they are told what moves over them.
    pub fn connections(&mut self) -> &mut Connections {
        &mut self.connections
    }

    /// Bytes other than the answer to a request did not match the image.
    pub fn verify_failed(&mut self) {
        self.requests.count_verify_failure();
    }

    /// A connection is connected and its image is open: whatever was parked goes out.
    pub fn connection_up(&mut self, now: Moment, connection: ConnectionIndex, again: bool) {
        self.connections.up(connection, again);
        if self.state == State::ImageGone {
            self.state = State::Open;
        }
        self.requests.unpark(now, &mut self.connections);
        self.pull_on(now);
    }

    /// A connection was lost: its requests go to the others, or wait.
    pub fn connection_down(&mut self, now: Moment, connection: ConnectionIndex) {
        self.connections.down(connection);
        self.hints.forget();
        for key in self.requests.lost(connection) {
            let Some(wanted) = self.requests.wanted(key) else { continue };
            if self.reads.dependents(&self.metadata, wanted).is_empty() {
                self.take_request(now, key);
            } else {
                self.requests.replay(now, key, &mut self.connections);
            }
        }
    }

    /// The server serves another image under this id, or none: READs of what the device cache has
    /// not fail until it is back.
    pub fn image_gone(&mut self, now: Moment) {
        if self.state == State::Open && !self.connections.is_any_up() {
            self.state = State::ImageGone;
            self.reads.fail_lacking(now, &self.requests, true);
        }
    }
}
