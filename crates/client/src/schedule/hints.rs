//! Hints: pages that will be needed, as a caller knows, and that are to lie in the page cache by
//! then.
//!
//! A server that takes hints pushes them. The stream has a token that no process has, and an action
//! that nobody learned. From a web server, an older server or a local file they are pulled: block
//! after block, as readahead would, behind everything that a READ waits for, each when the storer
//! has put the one before it away. Either way the pages go to the kernel at once, without a
//! sentinel. Their use is invisible then. So in an audit run they stay in the daemon as far as
//! there is room, and pages that only a pull would bring are left out.
//!
//! The caller knows that the pages are not in the page cache; the client does not know what the
//! kernel has dropped. Pages that lie in the daemon or are on their way are left out, except blocks
//! of a local file. Hints are a help: a page that is not taken is demanded as ever, and hints are
//! lost with their connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use image::Metadata;
use units::{BlockId, Moment, PAGE_BYTES, PageId, Token};
use wire::format::HINT_PAGES_WAITING_MAX;

use super::run::Candidate;
use crate::block_cache::BlockBytes;
use crate::counters::HintCounters;
use crate::page_parts::PageParts;

/// Hinted pages of which none came for so long are not expected any more, and may be hinted anew. A
/// push that goes on brings some pages every second, also over the slowest link we serve.
const QUIET_MAX: Duration = Duration::from_secs(10);

/// Blocks of a local file that are pulled together: one is read and decoded while the one before it
/// is stored.
const LOCAL_BLOCKS_MAX: usize = 2;

/// The same from a server, however much the link holds. Each lies in memory until it is stored.
const REMOTE_BLOCKS_MAX: usize = 16;

/// Hinted pages that have not come, and the blocks that are pulled for them.
///
/// Invariants:
/// - At most [`HINT_PAGES_WAITING_MAX`] pages are open.
/// - A block is queued once. It leaves `wanted` when it is handed to the storer, and is busy from
///   its request until the storer is done with it.
#[derive(Default)]
pub(super) struct Hints {
    /// Token of the push streams, drawn for this session.
    token: Token,
    open: HashSet<PageId>,
    /// Since when none of them came.
    quiet_since: Moment,
    /// Blocks to be pulled, in order ...
    queue: VecDeque<BlockId>,
    /// ... and which pages are wanted of each.
    wanted: HashMap<BlockId, Vec<PageId>>,
    /// Blocks that were asked for, or that lie with the storer.
    busy: HashSet<BlockId>,
    /// Blocks for the storer.
    ready: Vec<HintedBlock>,
    counters: HintCounters,
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
            let Some(parts) = PageParts::of(metadata, page) else { continue };
            let start = raw.len();
            raw.resize(start + PAGE_BYTES, 0);
            let bytes_of = |block| (block == self.block).then_some(&self.bytes[..]);
            let whole = parts.assemble(metadata, &mut raw[start..], bytes_of);
            raw.truncate(start + if whole { parts.bytes() } else { 0 });
            if whole {
                candidates.push(Candidate { page, bytes: start..raw.len() });
            }
        }
        candidates
    }
}

impl Hints {
    pub fn counters(&self) -> HintCounters {
        self.counters
    }

    pub fn token(&self) -> Token {
        self.token
    }

    pub fn set_token(&mut self, token: Token) {
        self.token = token;
    }

    /// Takes pages that were not hinted before, as far as there is room. Returns those that it
    /// took.
    pub fn admit(&mut self, now: Moment, pages: Vec<PageId>) -> Vec<PageId> {
        if now.since(self.quiet_since) > QUIET_MAX {
            self.forget();
        }
        if self.open.is_empty() {
            self.quiet_since = now;
        }
        let mut taken = Vec::new();
        for page in pages {
            if self.open.len() >= HINT_PAGES_WAITING_MAX {
                break;
            }
            if self.open.insert(page) {
                taken.push(page);
            }
        }
        self.counters.pages_hinted += taken.len() as u64;
        taken
    }

    /// Forgets pages that have not come. What lies ready for the storer still goes there.
    pub fn forget(&mut self) {
        self.open.clear();
        self.quiet_since = Moment::default();
        self.queue.clear();
        self.wanted.clear();
        self.busy.clear();
    }

    /// Nobody pushes these pages, so their blocks are queued. A page that lies in several blocks is
    /// left to its READ.
    pub fn queue_blocks(&mut self, now: Moment, metadata: &Metadata, pages: &[PageId]) {
        for page in pages {
            let blocks = PageParts::of(metadata, *page).map(|parts| parts.blocks(metadata));
            let Some([block]) = blocks.as_deref() else {
                self.came(now, *page);
                continue;
            };
            let wanted = self.wanted.entry(*block).or_default();
            if wanted.is_empty() {
                self.queue.push_back(*block);
            }
            wanted.push(*page);
        }
    }

    /// Whether another block may be pulled. `has_room`: the link holds more than is under way.
    pub fn may_pull(&self, remote: bool, has_room: impl Fn() -> bool) -> bool {
        let busy = self.busy.len();
        match remote {
            _ if self.queue.is_empty() => false,
            false => busy < LOCAL_BLOCKS_MAX,
            true => busy == 0 || busy < REMOTE_BLOCKS_MAX && has_room(),
        }
    }

    /// The next block to pull, and a page of it.
    pub fn next_block(&mut self) -> Option<(BlockId, PageId)> {
        while let Some(block) = self.queue.pop_front() {
            if let Some(page) = self.wanted.get(&block).and_then(|pages| pages.first()) {
                return Some((block, *page));
            }
        }
        None
    }

    /// A block is asked for.
    pub fn requested(&mut self, block: BlockId) {
        self.busy.insert(block);
    }

    /// A block is not asked for any more.
    pub fn request_ended(&mut self, block: BlockId) {
        self.busy.remove(&block);
    }

    /// Whether pages of a block were hinted.
    pub fn want(&self, block: BlockId) -> bool {
        self.wanted.contains_key(&block)
    }

    /// A block is here: the storer gets the pages that were hinted, if any.
    pub fn block_came(&mut self, block: BlockId, bytes: &BlockBytes) {
        let Some(pages) = self.wanted.remove(&block) else { return };
        self.busy.insert(block);
        self.ready.push(HintedBlock { block, bytes: BlockBytes::clone(bytes), pages });
    }

    /// The storer is done with a block.
    pub fn stored(&mut self, block: BlockId) {
        self.busy.remove(&block);
    }

    pub fn take_ready(&mut self) -> Vec<HintedBlock> {
        std::mem::take(&mut self.ready)
    }

    /// Hinted pages came and were verified; `used`: they are not dropped.
    pub fn pages_came(&mut self, now: Moment, candidates: &[Candidate], used: bool) {
        candidates.iter().for_each(|candidate| self.came(now, candidate.page));
        if used {
            self.counters.pages_hint_pushed += candidates.len() as u64;
        }
    }

    fn came(&mut self, now: Moment, page: PageId) {
        self.open.remove(&page);
        self.quiet_since = now;
    }
}
