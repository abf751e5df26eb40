//! Hints: pages that somebody knows will be needed, and that are to lie in the page cache by then.
//!
//! A server that takes hints pushes them; the stream has a token that no process has, and an action that nobody learned.
//! From a web server, an older server or a local file they are pulled: block after block, as readahead would, behind
//! everything that a READ waits for, each when the storer has put the one before it away. Either way the pages go to the
//! kernel at once, without a sentinel. Their use is invisible then, so in an audit run they stay in the daemon, as far as
//! there is room, and what only a pull would bring is left out.
//!
//! Whoever hints says that the pages are not in the page cache: nothing here knows what the kernel has dropped. Left out
//! is what lies in the daemon or is on its way, but for blocks of a local file. Hints are a help: what is not taken is demanded as ever, and they are
//! lost with their connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use image::Metadata;
use units::{BlockId, Moment, PAGE_BYTES, PageId, Token};
use wire::format::HINT_PAGES_WAITING_MAX;

use super::{Candidate, Schedule};
use crate::block_cache::BlockBytes;
use crate::command::{Command, Wanted};
use crate::holding::HeldKind;
use crate::place::Place;

/// Hinted pages of which none came for so long are not expected any more, and may be hinted anew. A push that goes on
/// brings some pages every second, also over the slowest link we serve.
const QUIET_MAX: Duration = Duration::from_secs(10);

/// Blocks of a local file that are pulled together: one is read and decoded while the one before it is stored.
const LOCAL_BLOCKS_MAX: usize = 2;

/// The same from a server, however much the link holds. Each lies in memory until it is stored.
const REMOTE_BLOCKS_MAX: usize = 16;

/// What was hinted and has not come.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// Token of the push streams, drawn for this session.
    token: Token,
    open: HashSet<u64>,
    /// Since when none of them came.
    quiet_since: Moment,
    /// Blocks to be pulled, in order ...
    blocks: VecDeque<BlockId>,
    /// ... and which pages are wanted of each.
    wanted: HashMap<BlockId, Vec<PageId>>,
    /// Blocks that were asked for, or that lie with the storer.
    busy: HashSet<BlockId>,
}

impl Hints {
    pub fn set_token(&mut self, token: Token) {
        self.token = token;
    }

    /// Nothing of what was hinted is expected any more.
    pub fn forget(&mut self) {
        *self = Hints { token: self.token, ..Hints::default() };
    }

    /// A block is not asked for any more.
    pub fn asked_no_more(&mut self, block: BlockId) {
        self.busy.remove(&block);
    }

    fn came(&mut self, now: Moment, page: PageId) {
        self.open.remove(&page.to_u64());
        self.quiet_since = now;
    }
}

/// A block with hinted pages that came, on its way to the storer.
pub(crate) struct HintedBlock {
    pub block: BlockId,
    pub bytes: BlockBytes,
    pub pages: Vec<PageId>,
}

impl HintedBlock {
    /// Puts its pages together in `raw`, in their order in files.
    pub fn candidates(&self, metadata: &Metadata, raw: &mut Vec<u8>) -> Vec<Candidate> {
        raw.clear();
        let mut pages = self.pages.clone();
        pages.sort_unstable();
        let mut candidates = Vec::with_capacity(pages.len());
        for page in pages {
            let Some(place) = Place::of(metadata, page) else { continue };
            let start = raw.len();
            raw.resize(start + PAGE_BYTES, 0);
            let bytes_of = |block| (block == self.block).then_some(self.bytes.as_slice());
            let whole = place.assemble(metadata, &mut raw[start..], bytes_of);
            raw.truncate(start + if whole { place.bytes() } else { 0 });
            if whole {
                candidates.push(Candidate { page, bytes: start..raw.len() });
            }
        }
        candidates
    }
}

impl Schedule {
    /// Somebody knows that `pages` will be needed, in this order, and that the kernel has not got them. Returns how many
    /// were asked for: those that are not here nor on their way, as far as not too many are open already.
    pub fn hint(&mut self, now: Moment, pages: &[PageId]) -> usize {
        let connection = self.connection_for(self.hints.token, 0);
        let Some(connection) = connection.filter(|_| !self.closed) else { return 0 };
        if now.since(self.hints.quiet_since) > QUIET_MAX {
            self.hints.forget();
        }
        if self.hints.open.is_empty() {
            self.hints.quiet_since = now;
        }
        let mut wanted = Vec::new();
        for page in pages {
            if self.hints.open.len() >= HINT_PAGES_WAITING_MAX {
                break;
            }
            if self.lacks(*page) && self.hints.open.insert(page.to_u64()) {
                wanted.push(*page);
            }
        }
        let count = wanted.len();
        self.counters.pages_hinted += count as u64;
        if wanted.is_empty() {
            return 0;
        }
        if self.settings.remote {
            let token = self.hints.token;
            self.effects.commands.push((connection, Command::Hint { token, pages: wanted }));
        } else {
            self.pull_hinted(now, &wanted);
        }
        count
    }

    /// Whether a page has bytes that are neither in the daemon nor on their way. What lies in a block of a local file that
    /// is here still goes to the kernel; from a server, its READ is what the server learns from.
    fn lacks(&self, page: PageId) -> bool {
        let Some(place) = Place::of(&self.metadata, page).filter(|place| !place.is_hole()) else { return false };
        let key = page.to_u64();
        let coming = self.in_flight.contains_key(&key) || self.arriving.contains_key(&key);
        let held = self.holding.contains(page) || self.storing.as_ref().is_some_and(|run| run.page(page).is_some());
        let blocks = place.blocks(&self.metadata);
        let cached = self.settings.remote && blocks.iter().all(|block| self.cache.contains(*block));
        !coming && !held && !cached
    }

    /// Nobody pushes these pages, so their blocks are pulled. A page that lies in several blocks is left to its READ.
    pub fn pull_hinted(&mut self, now: Moment, pages: &[PageId]) {
        for page in pages {
            let blocks = Place::of(&self.metadata, *page).map(|place| place.blocks(&self.metadata));
            let Some([block]) = blocks.as_deref() else {
                self.hints.came(now, *page);
                continue;
            };
            let wanted = self.hints.wanted.entry(*block).or_default();
            if wanted.is_empty() {
                self.hints.blocks.push_back(*block);
            }
            wanted.push(*page);
        }
        self.pull_on(now);
    }

    /// Asks for hinted blocks while there is room for them.
    pub(super) fn pull_on(&mut self, now: Moment) {
        while self.has_room_to_pull() {
            let Some(block) = self.hints.blocks.pop_front() else { return };
            let Some(page) = self.hints.wanted.get(&block).and_then(|pages| pages.first()).copied() else { continue };
            // What somebody else asked for is handed on when it comes.
            if self.fetching.contains_key(&block) {
                continue;
            }
            if let Some(bytes) = self.cache.get(block) {
                self.hinted_block(block, &bytes);
                continue;
            }
            self.hints.busy.insert(block);
            let key = self.ask(now, Wanted::Block { block, page }, self.hints.token, false, true);
            self.fetching.insert(block, key);
            self.dispatch(now, key);
        }
    }

    fn has_room_to_pull(&self) -> bool {
        let busy = self.hints.busy.len();
        if self.closed || self.hints.blocks.is_empty() || !self.connections.iter().any(|connection| connection.up) {
            return false;
        }
        match self.settings.remote {
            false => busy < LOCAL_BLOCKS_MAX,
            true => busy == 0 || busy < REMOTE_BLOCKS_MAX && self.bytes_under_way() < self.link.pipeline_bytes(),
        }
    }

    pub(super) fn hints_want(&self, block: BlockId) -> bool {
        self.hints.wanted.contains_key(&block)
    }

    /// A block is here: the storer gets the pages that were hinted, if any.
    pub(super) fn hinted_block(&mut self, block: BlockId, bytes: &BlockBytes) {
        let Some(pages) = self.hints.wanted.remove(&block) else { return };
        self.hints.busy.insert(block);
        self.effects.hinted.push(HintedBlock { block, bytes: BlockBytes::clone(bytes), pages });
    }

    /// The storer has such pages at hand. Returns for whom to store them; `None` if they are not to be stored.
    pub fn hinted_arriving(&mut self, now: Moment, candidates: &[Candidate]) -> Option<Token> {
        candidates.iter().for_each(|candidate| self.hints.came(now, candidate.page));
        if self.is_auditing() {
            return None;
        }
        self.counters.pages_hint_pushed += candidates.len() as u64;
        let pages: Vec<PageId> = candidates.iter().map(|candidate| candidate.page).collect();
        self.piece_arriving(&pages);
        Some(self.hints.token)
    }

    /// The storer is done with a block.
    pub fn hinted_stored(&mut self, now: Moment, block: BlockId) {
        self.hints.busy.remove(&block);
        self.pull_on(now);
    }

    /// A piece of a hinted stream is decoded and verified. Returns the pages to store.
    pub(super) fn hinted_piece(
        &mut self,
        now: Moment,
        token: Token,
        candidates: Vec<Candidate>,
        raw: &[u8],
    ) -> Vec<Candidate> {
        self.counters.pages_hint_pushed += candidates.len() as u64;
        let auditing = self.is_auditing();
        let mut left = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let page = candidate.page;
            self.hints.came(now, page);
            if self.fulfil(now, page, &raw[candidate.bytes.clone()])
                || self.in_flight.contains_key(&page.to_u64())
                || self.holding.contains(page)
            {
                self.arrived(page);
            } else if auditing {
                self.arrived(page);
                self.hold(page, &raw[candidate.bytes], token, HeldKind::Orphan);
            } else {
                // It counts as arriving until `next_run` takes it.
                left.push(candidate);
            }
        }
        left
    }
}
