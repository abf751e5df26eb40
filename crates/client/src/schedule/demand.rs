//! Requests and what becomes of them: demands, readahead, replies, bad replies, lost connections.

use super::{Ask, Schedule, Source};
use crate::block_cache::{BlockBytes, StoredBlock};
use crate::command::{AskKey, Command, ConnectionIndex, StreamKey, Wanted};
use crate::config::Granularity;
use crate::error::ReadError;
use crate::link::FirstAnswers;
use crate::place::Place;
use std::time::Duration;
use units::{BlockId, Moment, PageId, Token};

/// Bad answers to a request before its READs fail: damage on one connection is not damage everywhere.
pub(crate) const FAILURES_MAX: u32 = 3;

/// Wait before the same is asked again after a bad answer; doubled each time.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Replies `on the way` for one block before it is asked for by force: each costs a round trip.
const DETOURS_MAX: u32 = 1;

/// Pages of one PullPages.
const PULL_PAGES_MAX: usize = 32;

/// Token of requests that no running action made: readahead, and READs whose process is not known. No touches are
/// reported for it, and the server is to learn nothing from its requests.
pub const NO_TOKEN: Token = Token(0);

/// Why a request got no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server is busy or going down: asking again may help, and a READ may wait for it.
    Later,
    /// The server (or the file) says no.
    Refused,
    /// The bytes do not match the image.
    Corrupt,
}

impl Schedule {
    /// Whether a miss of this page asks for pages rather than for its block.
    pub(super) fn wants_single_pages(&self, page: PageId) -> bool {
        // Without chunk hashes no page can be verified by itself, but every block can.
        if !self.metadata.has_chunk_hashes() {
            return false;
        }
        match self.settings.granularity {
            Granularity::Block => false,
            Granularity::Page => true,
            Granularity::Auto => {
                let Some(place) = Place::of(&self.metadata, page) else { return false };
                let stored = |block| self.metadata.block(block).map_or(0, |entry| entry.stored_bytes);
                // A block that is on its way already costs nothing more.
                let missing = place.blocks(&self.metadata).into_iter().filter(|b| !self.fetching.contains_key(b));
                !missing.map(stored).all(|bytes| self.link.block_is_worth_it(bytes))
            }
        }
    }

    /// Asks for the blocks of a page that are neither here nor on their way.
    pub(super) fn demand_blocks(&mut self, now: Moment, token: Token, page: PageId, force: bool) {
        let Some(place) = Place::of(&self.metadata, page) else { return };
        let force = force || self.was_stored(&place);
        let (mut asked, mut hurried) = (false, false);
        for block in place.blocks(&self.metadata) {
            let Some(wait) = self.waits.get_mut(&page.to_u64()) else { return };
            if wait.blocks.iter().any(|(kept, _)| *kept == block) {
                continue;
            }
            if let Some(bytes) = self.cache.get(block) {
                // Kept with the page: the cache may drop it before the page's other block comes.
                wait.blocks.push((block, bytes));
            } else if let Some(key) = self.fetching.get(&block).copied() {
                hurried |= self.hurry(key);
            } else {
                asked = true;
                self.tell_touched(token, &[page]);
                let key = self.ask(now, Wanted::Block { block, page }, token, force, false);
                self.fetching.insert(block, key);
                self.dispatch(now, key);
            }
        }
        self.counters.pages_demanded += u64::from(asked || hurried);
        if !asked {
            // A program stands still, so the server is to see at once what it touched.
            self.note_touch(now, token, page, hurried);
        }
        if asked || hurried {
            self.read_on(now, token, page);
        }
    }

    /// A READ waits now for what readahead asked for. True the first time.
    fn hurry(&mut self, key: AskKey) -> bool {
        let Some(ask) = self.asks.get_mut(&key).filter(|ask| ask.speculative && !ask.hurried) else { return false };
        ask.hurried = true;
        self.counters.requests += 1;
        if let Some(connection) = ask.connection {
            self.effects.commands.push((connection, Command::Hurry { key }));
        }
        true
    }

    /// Asks for pages one by one, so to speak: no more than these.
    pub(super) fn demand_pages(&mut self, now: Moment, token: Token, pages: &[PageId], force: bool) {
        for pages in pages.chunks(PULL_PAGES_MAX) {
            let stored = |page: &PageId| Place::of(&self.metadata, *page).is_some_and(|place| self.was_stored(&place));
            let force = force || pages.iter().any(stored);
            self.tell_touched(token, pages);
            self.counters.pages_demanded += pages.len() as u64;
            let key = self.ask(now, Wanted::Pages(pages.to_vec()), token, force, false);
            self.dispatch(now, key);
        }
    }

    /// A demand tells of these pages; touches from before go first.
    fn tell_touched(&mut self, token: Token, pages: &[PageId]) {
        if !self.settings.remote || token == NO_TOKEN {
            return;
        }
        let before = self.touches.take(token);
        self.send_touches(token, before);
        for page in pages {
            self.touches.report(token, *page);
        }
    }

    pub(super) fn ask(&mut self, now: Moment, wanted: Wanted, token: Token, force: bool, speculative: bool) -> AskKey {
        self.asks_begun += 1;
        let key = AskKey(self.asks_begun);
        self.counters.requests += u64::from(!speculative);
        let ask = Ask {
            wanted,
            token,
            force,
            speculative,
            hurried: false,
            connection: None,
            sent: now,
            received_before: 0,
            pipelined: false,
            failures: 0,
            detours: 0,
        };
        if let Wanted::Block { block, .. } = &ask.wanted {
            self.readahead.fetched(*block);
        }
        self.asks.insert(key, ask);
        key
    }

    /// Hands a request to a connection, or parks it until there is one.
    pub(super) fn dispatch(&mut self, now: Moment, key: AskKey) {
        let Some(ask) = self.asks.get(&key) else { return };
        // What readahead asks for goes over the connection of the program: there the server knows what goes first.
        let Some(connection) = self.connection_for(ask.token, 0) else {
            self.parked.push_back(key);
            return;
        };
        let received_before = self.connections[connection].bytes_received;
        let pipelined = self.asks.values().any(|other| other.connection == Some(connection));
        if let Some(ask) = self.asks.get_mut(&key) {
            (ask.connection, ask.sent, ask.received_before, ask.pipelined) =
                (Some(connection), now, received_before, pipelined);
            let (token, wanted, force) = (ask.token, ask.wanted.clone(), ask.force);
            let (speculative, hurried) = (ask.speculative, ask.hurried);
            self.effects.commands.push((connection, Command::Ask { key, token, wanted, force, speculative }));
            if hurried {
                self.effects.commands.push((connection, Command::Hurry { key }));
            }
        }
    }

    /// The connection that carries everything of a token, so that the server sees it in order: the token's own one, or
    /// the next that is up. `aside` counts further from there.
    pub(super) fn connection_for(&self, token: Token, aside: usize) -> Option<ConnectionIndex> {
        let connections = self.connections.len();
        let own = (token.0 % connections as u128) as usize + aside;
        (0..connections).map(|i| (own + i) % connections).find(|connection| self.connections[*connection].up)
    }

    /// A page was taken from the cache: remember which parts, and read on if it was the first of a block read ahead.
    pub(super) fn note_taken(&mut self, now: Moment, token: Token, page: PageId, place: &Place) {
        let parts: Vec<_> = place.parts(&self.metadata).collect();
        let mut first_use = false;
        for part in parts {
            if self.cache.take(part.block, part.offset, part.bytes) {
                self.counters.blocks_speculated_used += 1;
                self.readahead.used(part.block);
                first_use = true;
            }
        }
        if first_use {
            self.read_on(now, token, page);
        }
    }

    /// A block came, verified and decoded: all pages it completes are answered. `stored` is kept to decode it again.
    pub fn block_arrived(
        &mut self,
        now: Moment,
        key: AskKey,
        block: BlockId,
        bytes: BlockBytes,
        stored: Option<StoredBlock>,
    ) {
        let ask = self.take_ask(now, key);
        // What was hinted is no guess.
        let speculative = ask.is_some_and(|ask| ask.speculative) && !self.hints_want(block);
        for gone in self.cache.insert(block, bytes.clone(), stored, speculative) {
            if gone.speculated && !gone.used {
                self.counters.blocks_speculated_wasted += 1;
            }
            if self.settings.store_evicted {
                self.effects.evicted.push(gone);
            }
        }
        for page in self.pages_waiting_for(block) {
            self.complete(now, page, block, &bytes);
        }
        // A local start reads hot blocks whole, so their pages go to the kernel at once. From a server they come by
        // READs, which it learns from.
        if !self.settings.remote && self.settings.store_evicted && block.0 < self.metadata.hot_blocks() {
            self.effects.evicted.extend(self.cache.hand_on(block, &bytes));
        }
        self.hinted_block(block, &bytes);
        self.speculate(now);
        self.pull_on(now);
    }

    /// Pages that wait and have a part in the block, in order.
    fn pages_waiting_for(&self, block: BlockId) -> Vec<PageId> {
        let waiting = self.waits.keys().map(|page| PageId::from_u64(*page));
        let has_part = |page: &PageId| {
            let place = Place::of(&self.metadata, *page);
            place.is_some_and(|place| place.parts(&self.metadata).any(|part| part.block == block))
        };
        waiting.filter(has_part).collect()
    }

    /// Answers a page if all its blocks are here, or keeps this one for it.
    fn complete(&mut self, now: Moment, page: PageId, block: BlockId, bytes: &BlockBytes) {
        let Some(place) = Place::of(&self.metadata, page) else { return };
        let Some(wait) = self.waits.get_mut(&page.to_u64()) else { return };
        if !wait.blocks.iter().any(|(kept, _)| *kept == block) {
            wait.blocks.push((block, bytes.clone()));
        }
        let (blocks, token) = (wait.blocks.clone(), wait.token);
        let needed = place.blocks(&self.metadata);
        if !needed.iter().all(|block| blocks.iter().any(|(kept, _)| kept == block)) {
            return;
        }
        let mut buffer = self.pool.page();
        let bytes_of = |block| blocks.iter().find(|(kept, _)| *kept == block).map(|(_, bytes)| bytes.as_slice());
        if place.assemble(&self.metadata, &mut buffer[..], bytes_of) {
            self.note_taken(now, token, page, &place);
            self.fulfil(now, page, &buffer[..place.bytes()]);
        } else {
            self.fail_page(now, page, ReadError::Corrupt);
        }
    }

    /// Pages that were asked for one by one came. Those whose bytes are good have been verified by the caller.
    pub fn pages_arrived(&mut self, now: Moment, key: AskKey, pages: &[(PageId, Option<&[u8]>)]) {
        let Some(ask) = self.take_ask(now, key) else { return };
        let mut bad = Vec::new();
        for (page, bytes) in pages {
            match bytes {
                Some(bytes) => {
                    self.fulfil(now, *page, bytes);
                }
                None => bad.push(*page),
            }
        }
        if !bad.is_empty() {
            self.retry(now, Ask { wanted: Wanted::Pages(bad), ..ask }, Failure::Corrupt);
        }
    }

    /// A request got no bytes.
    pub fn failed(&mut self, now: Moment, key: AskKey, failure: Failure) {
        if let Some(ask) = self.take_ask(now, key) {
            self.retry(now, ask, failure);
            self.pull_on(now);
        }
    }

    /// Asks again after a while, or fails the READs that depend on the request.
    fn retry(&mut self, now: Moment, mut ask: Ask, failure: Failure) {
        self.counters.verify_failures += u64::from(failure == Failure::Corrupt);
        ask.failures += u32::from(failure != Failure::Later);
        let pages = self.dependents(&ask.wanted);
        if pages.is_empty() || self.closed {
            return;
        }
        if ask.failures >= FAILURES_MAX {
            let error = if failure == Failure::Corrupt { ReadError::Corrupt } else { ReadError::Io };
            pages.into_iter().for_each(|page| self.fail_page(now, page, error));
            return;
        }
        // Its page is a guess and was not touched, so it stays what it is.
        ask.hurried = ask.speculative;
        let delay = if self.settings.remote { RETRY_DELAY * (1 << ask.failures.min(4)) } else { Duration::ZERO };
        let at = now.after(delay);
        self.asks_begun += 1;
        let key = AskKey(self.asks_begun);
        if let Wanted::Block { block, .. } = ask.wanted {
            self.fetching.insert(block, key);
        }
        self.asks.insert(key, ask);
        self.delayed.push((at, key));
        self.wake_at(at);
    }

    /// Pages whose READs need this request's answer.
    fn dependents(&self, wanted: &Wanted) -> Vec<PageId> {
        let demanded = |page: &PageId| self.waits.get(&page.to_u64()).is_some_and(|wait| wait.source == Source::Demand);
        match wanted {
            Wanted::Block { block, .. } => self.pages_waiting_for(*block).into_iter().filter(demanded).collect(),
            Wanted::Pages(pages) => pages.iter().copied().filter(demanded).collect(),
        }
    }

    /// The server says that a stream brings what was asked for.
    pub fn on_the_way(&mut self, now: Moment, key: AskKey, stream: StreamKey) {
        let Some(ask) = self.take_ask(now, key) else { return };
        let told: Vec<PageId> = match &ask.wanted {
            Wanted::Block { page, .. } => vec![*page],
            Wanted::Pages(pages) => pages.clone(),
        };
        let force_at = now.after(self.link.patience());
        let over = !self.streams.contains_key(&stream);
        for page in told {
            let arriving = self.arriving.contains_key(&page.to_u64());
            let holds_up = self.wait_holds_up_store(page);
            let Some(wait) = self.waits.get_mut(&page.to_u64()) else { continue };
            if holds_up || (over && !arriving) {
                self.demand_again(now, page);
                continue;
            }
            wait.source = if arriving { Source::Arriving } else { Source::OnTheWay { stream, force_at } };
            self.counters.late_pushes += 1;
            self.wake_at(force_at);
        }
        // Other pages may have counted on the same block, and the stream need not bring those.
        let Wanted::Block { block, .. } = ask.wanted else { return };
        let left = self.dependents(&ask.wanted);
        if let Some(page) = left.first().copied().filter(|_| !self.fetching.contains_key(&block)) {
            let force = ask.detours >= DETOURS_MAX;
            let key = self.ask(now, Wanted::Block { block, page }, ask.token, force, false);
            if let Some(next) = self.asks.get_mut(&key) {
                next.detours = ask.detours + 1;
            }
            self.fetching.insert(block, key);
            self.dispatch(now, key);
        }
        self.pull_on(now);
    }

    /// A page that should have come by itself did not: asks for it by force.
    pub(super) fn demand_again(&mut self, now: Moment, page: PageId) {
        let single = self.wants_single_pages(page);
        let Some(wait) = self.waits.get_mut(&page.to_u64()) else { return };
        wait.source = Source::Demand;
        let token = wait.token;
        if single {
            self.demand_pages(now, token, &[page], true);
        } else {
            self.demand_blocks(now, token, page, true);
            // Blocks that came for other pages meanwhile may be all it lacked.
            let kept = self.waits.get(&page.to_u64()).and_then(|wait| wait.blocks.first().cloned());
            if let Some((block, bytes)) = kept {
                self.complete(now, page, block, &bytes);
            }
        }
    }

    fn take_ask(&mut self, now: Moment, key: AskKey) -> Option<Ask> {
        let ask = self.asks.remove(&key)?;
        if let Wanted::Block { block, .. } = ask.wanted
            && self.fetching.get(&block) == Some(&key)
        {
            self.fetching.remove(&block);
            self.hints.asked_no_more(block);
        }
        if let Some(connection) = ask.connection.filter(|_| self.settings.remote) {
            let received = self.connections[connection].bytes_received
                - ask.received_before.min(self.connections[connection].bytes_received);
            self.link.sample(ask.sent, now, received, ask.pipelined);
        }
        Some(ask)
    }

    /// Connections that are up.
    #[cfg(test)]
    pub fn connections_up(&self) -> usize {
        self.connections.iter().filter(|connection| connection.up).count()
    }

    /// A sample for the estimate of the link, as a reply would give it.
    #[cfg(test)]
    pub fn link_sample(&mut self, elapsed: Duration, bytes: u64) {
        self.link.sample(Moment(0), Moment(0).after(elapsed), bytes, false);
    }

    /// What opening the image showed of the link.
    pub fn opened(&mut self, answers: FirstAnswers) {
        self.link.opened(answers);
    }

    /// A connection received bytes and sent some; for the counters and the estimate.
    pub fn connection_traffic(&mut self, connection: ConnectionIndex, received: u64, sent: u64) {
        self.connections[connection].bytes_received += received;
        self.counters.bytes_received += received;
        self.counters.bytes_sent += sent;
    }

    /// A connection is connected and its image is open: whatever was parked goes out.
    pub fn connection_up(&mut self, now: Moment, connection: ConnectionIndex, again: bool) {
        self.connections[connection].up = true;
        self.stale = false;
        self.counters.reconnects += u64::from(again);
        for key in std::mem::take(&mut self.parked) {
            self.dispatch(now, key);
        }
        self.pull_on(now);
    }

    /// A connection lost its connection: its requests go to the others, or wait.
    pub fn connection_down(&mut self, now: Moment, connection: ConnectionIndex) {
        self.connections[connection].up = false;
        self.hints.forget();
        let lost: Vec<AskKey> =
            self.asks.iter().filter(|(_, ask)| ask.connection == Some(connection)).map(|(key, _)| *key).collect();
        for key in lost {
            let unwanted = self.asks.get(&key).is_some_and(|ask| self.dependents(&ask.wanted).is_empty());
            if let Some(ask) = self.asks.get_mut(&key) {
                (ask.connection, ask.hurried) = (None, ask.speculative);
            }
            if unwanted {
                self.take_ask(now, key);
                continue;
            }
            self.counters.replays += 1;
            self.dispatch(now, key);
        }
    }

    /// The server serves another image under this id, or none: READs fail until it is back.
    pub fn image_gone(&mut self, now: Moment) {
        if self.connections.iter().any(|connection| connection.up) {
            return;
        }
        self.stale = true;
        let ids: Vec<u64> = self.reads.keys().copied().collect();
        ids.into_iter().for_each(|id| self.fail_read(now, id, ReadError::Protocol));
    }
}
