//! Blocks that are asked for ahead of need: readahead and hinted pages.
//!
//! Between a demand and its answer the link would idle for a round trip. Readahead fills it:
//! speculative requests are made as long as all blocks under way are less than what the link holds,
//! see [`crate::link`]. They travel over the connection of the program, where the server sends them
//! behind whatever is waited for, so a demand waits for the rest of one block at most. `readahead`
//! chooses the blocks.

use units::{BlockId, Moment, PageId, Token};

use super::requests::Request;
use super::{Candidate, Schedule, State, neighbours};
use crate::command::Command;
use crate::page_parts::{PageParts, Part};

impl Schedule {
    /// A page was taken from the cache: remember which parts, and read on if it was the first of a
    /// block read ahead.
    pub(super) fn note_taken(&mut self, now: Moment, token: Token, page: PageId, parts: &PageParts) {
        let is_first = |part: &Part| self.cache.take(part.block, part.offset, part.bytes);
        let used: Vec<BlockId> = parts.iter(&self.metadata).filter(is_first).map(|part| part.block).collect();
        used.iter().for_each(|block| self.readahead.used(*block));
        if !used.is_empty() {
            self.read_on(now, token, page);
        }
    }

    /// A block was missed, or first used after readahead had brought it: there may be more to come
    /// near it.
    pub(super) fn read_on(&mut self, now: Moment, token: Token, page: PageId) {
        self.readahead.note_use(now);
        let Some(block) = neighbours::first_block(&self.metadata, page) else { return };
        let used = neighbours::use_of(&self.metadata, page, block);
        let reach = self.readahead.reach(token, used, !self.is_near());
        if !reach.is_nothing() {
            self.readahead.add(token, neighbours::around(&self.metadata, page, block, reach));
        }
        self.speculate(now);
    }

    /// Asks for blocks ahead of need while the link has room for them.
    pub(super) fn speculate(&mut self, now: Moment) {
        let idle = self.reads.is_idle() && self.readahead.idle_time(now) > self.connections.link().linger();
        if idle || self.state == State::Closed || !self.connections.is_any_up() {
            return;
        }
        // Beside a push there is half the room.
        let room = self.connections.link().pipeline_bytes() / if self.pushes.has_streams() { 2 } else { 1 };
        let mut under_way = self.requests.bytes_under_way(&self.metadata);
        while under_way < room {
            let Some((token, guess)) = self.readahead.next() else { return };
            let stored = self.metadata.block(guess.block).map_or(0, |entry| entry.stored_bytes);
            let here = self.cache.contains(guess.block) || self.requests.is_fetching(guess.block);
            // What lies beside a pushed page in its block was mostly pushed along with it.
            let pushed = self.pushes.brings(guess.page) || !self.page_cache.lacks(&self.metadata, guess.page);
            if here || pushed || !self.connections.link().block_is_worth_it(stored) {
                continue;
            }
            under_way += u64::from(stored);
            self.readahead.requested(self.metadata.block_chunks(guess.block).count() as u64);
            self.request(now, Request::block(guess.block, guess.page, token).guessed());
        }
    }

    /// Hinted pages are asked for in the name of this token, which no process has.
    pub fn set_hint_token(&mut self, token: Token) {
        self.hints.set_token(token);
    }

    /// The caller knows that `pages` will be needed, in this order, and that the kernel lacks
    /// them. Returns how many were asked for: those that are not here nor on their way, as far as
    /// not too many are open already.
    pub fn hint(&mut self, now: Moment, pages: &[PageId]) -> usize {
        let token = self.hints.token();
        let connection = self.connections.of(token).filter(|_| self.state != State::Closed);
        let Some(connection) = connection else { return 0 };
        let lacking: Vec<PageId> = pages.iter().copied().filter(|page| self.lacks(*page)).collect();
        let wanted = self.hints.admit(now, lacking);
        let count = wanted.len();
        if count > 0 && self.settings.remote {
            self.connections.command(connection, Command::Hint { token, pages: wanted });
        } else if count > 0 {
            self.pull_hinted(now, &wanted);
        }
        count
    }

    /// Whether a page has bytes that are neither in the daemon nor on their way. What lies in a
    /// block of a local file that is here still goes to the kernel; from a server, its READ is what
    /// the server learns from.
    fn lacks(&self, page: PageId) -> bool {
        let Some(parts) = PageParts::of(&self.metadata, page).filter(|parts| !parts.is_hole()) else { return false };
        let coming = self.reads.is_in_flight(page) || self.pushes.is_arriving(page);
        let held = self.pushes.holds(page) || self.page_cache.storing(page).is_some();
        let blocks = parts.blocks(&self.metadata);
        let cached = self.settings.remote && blocks.iter().all(|block| self.cache.contains(*block));
        !coming && !held && !cached
    }

    /// Nobody pushes these pages, so their blocks are pulled.
    pub fn pull_hinted(&mut self, now: Moment, pages: &[PageId]) {
        self.hints.queue_blocks(now, &self.metadata, pages);
        self.pull_on(now);
    }

    /// Asks for hinted blocks while there is room for them.
    pub(super) fn pull_on(&mut self, now: Moment) {
        while self.may_pull() {
            let Some((block, page)) = self.hints.next_block() else { return };
            // A block that is on its way for others is handed on when it comes.
            if self.requests.is_fetching(block) {
                continue;
            }
            if let Some(bytes) = self.cache.get(block) {
                self.hints.block_came(block, &bytes);
                continue;
            }
            self.hints.requested(block);
            self.request(now, Request::block(block, page, self.hints.token()).guessed());
        }
    }

    fn may_pull(&self) -> bool {
        let has_room = || self.requests.bytes_under_way(&self.metadata) < self.connections.link().pipeline_bytes();
        self.state != State::Closed
            && self.connections.is_any_up()
            && self.hints.may_pull(self.settings.remote, has_room)
    }

    /// The storer has pulled pages at hand. Returns for whom to store them; `None` if they are not
    /// to be stored.
    pub fn hinted_arriving(&mut self, now: Moment, candidates: &[Candidate]) -> Option<Token> {
        let auditing = self.pushes.is_auditing();
        self.hints.pages_came(now, candidates, !auditing);
        if auditing {
            return None;
        }
        self.pushes.piece_received(candidates.iter().map(|candidate| candidate.page));
        Some(self.hints.token())
    }

    /// The storer is done with a block.
    pub fn hinted_stored(&mut self, now: Moment, block: BlockId) {
        self.hints.stored(block);
        self.pull_on(now);
    }
}
