//! Readahead at work: which blocks lie around a page that was just used, and how many may be under way.
//!
//! Between a demand and its answer the link would idle for a round trip. Readahead fills it: speculative requests are
//! made as long as all blocks under way are less than what the link holds, see [`crate::link`]. They travel over the
//! connection of the program, where the server sends them behind whatever is waited for, so a demand waits for the rest
//! of one block at most. The choice of blocks is [`crate::readahead`]'s.

use super::Schedule;
use crate::command::Wanted;
use crate::place::Place;
use crate::readahead::{Around, Guess};
use units::{BlockId, Moment, PAGE_BYTES, PageId, Token};

/// Pages looked at in one direction to find the blocks of a file: two of the largest blocks, holes included.
const LOOK_PAGES_MAX: u32 = 512;

impl Schedule {
    /// A block was missed, or first used after readahead had brought it: there may be more to come near it.
    pub(super) fn read_on(&mut self, now: Moment, token: Token, page: PageId) {
        self.used_at = now;
        if self.streams.values().any(|info| info.token == token) {
            // The server knows what this program does, and sends it.
            self.readahead.silence(token);
        }
        let Some(block) = self.first_block(page) else { return };
        let end = self.end_of_block(page, block);
        let reach = self.readahead.reach(token, page.inode, page.index, end);
        if reach.after + reach.before + reach.image_after + reach.image_before > 0 {
            let around = Around {
                after: self.blocks_of_file(page, block, reach.after, true),
                before: self.blocks_of_file(page, block, reach.before, false),
                image_after: self.blocks_of_image(block, reach.image_after, true),
                image_before: self.blocks_of_image(block, reach.image_before, false),
            };
            self.readahead.add(token, around);
        }
        self.speculate(now);
    }

    /// Asks for blocks ahead of need while the link has room for them.
    pub(super) fn speculate(&mut self, now: Moment) {
        let idle = self.reads.is_empty() && now.since(self.used_at) > self.link.linger();
        if idle || self.closed || !self.connections.iter().any(|connection| connection.up) {
            return;
        }
        // Beside a push there is half the room.
        let room = self.link.pipeline_bytes() / if self.streams.is_empty() { 1 } else { 2 };
        let mut under_way = self.bytes_under_way();
        while under_way < room {
            let Some((token, guess)) = self.readahead.next() else { return };
            let stored = self.metadata.block(guess.block).map_or(0, |entry| entry.stored_bytes);
            let here = self.cache.contains(guess.block) || self.fetching.contains_key(&guess.block);
            if here || !self.link.block_is_worth_it(stored) {
                continue;
            }
            under_way += u64::from(stored);
            self.counters.blocks_speculated += 1;
            self.counters.pages_speculated += self.metadata.block_chunks(guess.block).count() as u64;
            let key = self.ask(now, Wanted::Block { block: guess.block, page: guess.page }, token, false, true);
            self.fetching.insert(guess.block, key);
            self.dispatch(now, key);
        }
    }

    /// Stored bytes of all blocks that were asked for and have not come.
    pub(super) fn bytes_under_way(&self) -> u64 {
        let stored = |block: &BlockId| self.metadata.block(*block).map_or(0, |entry| u64::from(entry.stored_bytes));
        self.fetching.keys().map(stored).sum()
    }

    /// Stored bytes of blocks that readahead asked for and that have not come.
    #[cfg(test)]
    pub(super) fn speculative_bytes(&self) -> u64 {
        let speculative = self.fetching.iter().filter(|(_, key)| self.asks.get(key).is_some_and(|ask| ask.speculative));
        speculative
            .filter_map(|(block, _)| self.metadata.block(*block))
            .map(|entry| u64::from(entry.stored_bytes))
            .sum()
    }

    fn first_block(&self, page: PageId) -> Option<BlockId> {
        let place = Place::of(&self.metadata, page)?;
        place.parts(&self.metadata).next().map(|part| part.block)
    }

    /// The first page after `page` that lies in another block.
    fn end_of_block(&self, page: PageId, block: BlockId) -> u32 {
        let limit = page.index.saturating_add(LOOK_PAGES_MAX).min(self.metadata.page_count(page.inode));
        let other = |index: &u32| self.first_block(PageId::new(page.inode, *index)).is_some_and(|found| found != block);
        (page.index + 1..limit).find(other).unwrap_or(limit)
    }

    /// Up to `count` other blocks of the file, outward from `page` in one direction.
    fn blocks_of_file(&self, page: PageId, block: BlockId, count: u32, forward: bool) -> Vec<Guess> {
        let mut found: Vec<Guess> = Vec::new();
        let mut last = block;
        for distance in 1..=LOOK_PAGES_MAX {
            let index = if forward { page.index.checked_add(distance) } else { page.index.checked_sub(distance) };
            let Some(index) = index.filter(|index| *index < self.metadata.page_count(page.inode)) else { break };
            if found.len() >= count as usize {
                break;
            }
            let page = PageId::new(page.inode, index);
            let Some(next) = self.first_block(page).filter(|next| *next != last) else { continue };
            last = next;
            found.push(Guess { block: next, page });
        }
        found
    }

    /// Up to `count` blocks beside a block in the image: the packer lays files of a directory side by side.
    fn blocks_of_image(&self, block: BlockId, count: u32, forward: bool) -> Vec<Guess> {
        let beside = (1..=count).map_while(|distance| {
            let id = if forward { block.0.checked_add(distance) } else { block.0.checked_sub(distance) };
            let block = BlockId(id.filter(|id| *id < self.metadata.block_count())?);
            let chunk = self.metadata.block_chunks(block).next()?;
            Some(Guess { block, page: self.metadata.chunk_owner(chunk)? })
        });
        beside.collect()
    }
}

const _: () = assert!(LOOK_PAGES_MAX as usize * PAGE_BYTES == 2 << 20);
