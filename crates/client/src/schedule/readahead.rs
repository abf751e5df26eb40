//! Readahead by blocks for runs that the server has not learned: which blocks to request before
//! they are missed.
//!
//! Programs and libraries are faulted in by pages in no order, but mostly near each other. So every
//! use of a new block makes a *region* of guesses around it: the neighbours of the block in its
//! file, outward in both directions. Modules of one package are small files that lie side by side
//! in the image, so a small file adds the neighbours in the image, more of them after it than
//! before it. The end of a file is used with its start: a loader reads a library's header and then
//! writes to its data, and an archive has its list of members there. The newest region is served
//! first, because the program works there. A file that is read in sequence gets a window that
//! doubles with each block, as in any readahead.
//!
//! The number of guesses in a region depends on the use of the last ones. If less than a third of
//! them was used, only the next neighbours are guessed; if less than a tenth, only those of every
//! eighth block, to notice a change.
//!
//! Nothing is guessed for an action that the server pushes to, until it has missed several blocks
//! that no push brought: then it does something else than the server expects, as a program does
//! that only begins like a learned one.
//!
//! The schedule reports uses and requests the guesses as fast as the link allows. Sizes are in
//! blocks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use units::{BlockId, InodeId, Moment, PageId, Token};

use super::followers::Followers;
use crate::command::Wanted;
use crate::counters::ReadaheadCounters;

/// Files remembered; a program reads few files sequentially at the same time, and each entry is 24
/// bytes.
const FILES_MAX: usize = 64;

/// A use that skips at most so many pages still counts as sequential: readers skip headers and
/// holes.
const SKIP_PAGES_MAX: u32 = 8;

/// Pages of a small file: two blocks, as a rule. Beside a larger one lie other large ones, which
/// the program hardly needs for that.
const SMALL_FILE_PAGES: u32 = 32;

/// Regions kept. What was not asked for by the time sixteen more blocks were used is of little use.
const REGIONS_MAX: usize = 16;

/// Guesses remembered until they are used.
const UNUSED_MAX: usize = 4096;

/// Blocks remembered as fetched: a quarter of a million pages, more than any program start touches.
const FETCHED_MAX: usize = 16 << 10;

/// Guesses after which the counts of made and used ones are halved: the last hundred or so count.
const JUDGED_MAX: u32 = 128;

/// Guesses made before they are judged: a use comes later than its guess.
const JUDGED_MIN: u32 = 48;

/// One region in so many is still made when guesses are of no use.
const PROBE_EVERY: u32 = 8;

/// A block to ask for, and a page of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess {
    /// The block.
    pub block: BlockId,
    /// A page with a part in it.
    pub page: PageId,
}

/// A use of a block.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The file.
    pub inode: InodeId,
    /// The page that was used.
    pub first_page: u32,
    /// Page after the last one of the block from there on.
    pub end_page: u32,
    /// Pages of the whole file.
    pub file_pages: u32,
}

/// How many blocks to look for around a block that was just used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The last block of its file.
    pub end: bool,
    /// Blocks after it in its file.
    pub after: u32,
    /// Blocks before it in its file.
    pub before: u32,
    /// Blocks after it in the image.
    pub image_after: u32,
    /// Blocks before it in the image.
    pub image_before: u32,
}

impl Reach {
    /// Whether there is nothing to look for.
    pub fn is_nothing(self) -> bool {
        self == Reach::default()
    }
}

/// The blocks found within a [`Reach`], nearest first in each direction.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// The end of its file.
    pub end: Option<Guess>,
    /// After it in its file.
    pub after: Vec<Guess>,
    /// Before it in its file.
    pub before: Vec<Guess>,
    /// After it in the image.
    pub image_after: Vec<Guess>,
    /// Before it in the image.
    pub image_before: Vec<Guess>,
}

/// The policy and its memory.
///
/// Invariants:
/// - Every collection has its bound; what does not fit is forgotten, which costs only quality.
/// - A block is guessed at most once between two ends of an action.
/// - `used` is at most `made`: both count guesses, halved together.
#[derive(Clone, Debug)]
pub struct Readahead {
    window_blocks_max: u32,
    files: HashMap<InodeId, Stream>,
    clock: u64,
    /// Guesses that were not asked for yet, newest region last.
    regions: Vec<(Token, VecDeque<Guess>)>,
    unused: HashSet<BlockId>,
    /// Blocks that were here already, or are under way.
    fetched: HashSet<BlockId>,
    made: u32,
    used: u32,
    probes: u32,
    followers: Followers,
    /// When a block was last missed or used for the first time.
    used_at: Moment,
    counters: ReadaheadCounters,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// First page after the block used last.
    next_page: u32,
    window_blocks: u32,
    used_at: u64,
}

impl Readahead {
    /// A policy whose windows are at most `window_blocks_max` blocks; 0 switches it off.
    pub fn new(window_blocks_max: u32) -> Readahead {
        Readahead {
            window_blocks_max,
            files: HashMap::new(),
            clock: 0,
            regions: Vec::new(),
            unused: HashSet::new(),
            fetched: HashSet::new(),
            made: 0,
            used: 0,
            probes: 0,
            followers: Followers::default(),
            used_at: Moment::default(),
            counters: ReadaheadCounters::default(),
        }
    }

    pub fn counters(&self) -> ReadaheadCounters {
        self.counters
    }

    /// A block was missed or used for the first time: there may be more to come near it.
    pub fn note_use(&mut self, now: Moment) {
        self.used_at = now;
    }

    /// Time since a block was last missed or used for the first time.
    pub fn idle_time(&self, now: Moment) -> Duration {
        now.since(self.used_at)
    }

    /// A block was missed, or a guessed one was used for the first time. Returns where to look for
    /// guesses, to be handed in with [`Readahead::add`].
    ///
    /// Only a `wide` reach goes to neighbours: where a block costs hardly any round trip, the
    /// sequence alone is worth the work.
    pub fn reach(&mut self, token: Token, used: Use, wide: bool) -> Reach {
        if self.window_blocks_max == 0 || self.followers.is_known(token) {
            return Reach::default();
        }
        let window = self.window(used);
        let max = self.window_blocks_max;
        let is_small = used.file_pages <= SMALL_FILE_PAGES;
        let end = used.first_page == 0;
        let near = match (wide, self.made >= JUDGED_MIN) {
            (false, _) => Reach::default(),
            (true, true) if self.used * 10 < self.made => {
                self.probes += 1;
                let probe = u32::from(self.probes.is_multiple_of(PROBE_EVERY));
                Reach { after: probe, ..Reach::default() }
            }
            (true, true) if self.used * 3 < self.made => {
                Reach { end, after: 1, before: 1, image_after: u32::from(is_small), image_before: 0 }
            }
            (true, _) => {
                let half = max.div_ceil(2);
                let (image_after, image_before) = if is_small { (half, max.div_ceil(8)) } else { (0, 0) };
                Reach { end, after: half, before: half, image_after, image_before }
            }
        };
        Reach { after: near.after.max(window), ..near }
    }

    /// How far a sequence of uses in one file should be read ahead.
    fn window(&mut self, used: Use) -> u32 {
        let Use { inode, first_page, end_page, .. } = used;
        self.clock += 1;
        let used_at = self.clock;
        if let Some(stream) = self.files.get_mut(&inode) {
            let sequential = (stream.next_page..=stream.next_page.saturating_add(SKIP_PAGES_MAX)).contains(&first_page);
            stream.window_blocks =
                if sequential { (stream.window_blocks * 2).clamp(1, self.window_blocks_max) } else { 0 };
            stream.next_page = end_page;
            stream.used_at = used_at;
            return stream.window_blocks;
        }
        if self.files.len() >= FILES_MAX {
            let oldest = self.files.iter().min_by_key(|(_, stream)| stream.used_at).map(|(inode, _)| *inode);
            oldest.map(|inode| self.files.remove(&inode));
        }
        // A file read from its very start is likely to be read on: one block ahead is a cheap bet.
        let window_blocks = u32::from(first_page == 0);
        self.files.insert(inode, Stream { next_page: end_page, window_blocks, used_at });
        window_blocks
    }

    /// Takes the guesses around a block: those of its file first, its end and then from both sides
    /// in turn, then those of the image.
    pub fn add(&mut self, token: Token, around: Around) {
        let file = around.end.into_iter().chain(in_turn(around.after, around.before));
        let region: VecDeque<Guess> = file.chain(in_turn(around.image_after, around.image_before)).collect();
        if self.regions.len() >= REGIONS_MAX {
            self.regions.remove(0);
        }
        self.regions.push((token, region));
    }

    /// A block is asked for. It is no guess any more, even when it has left the cache again: what
    /// it had that anybody wanted was taken, or was stored into the page cache.
    pub fn fetched(&mut self, block: BlockId) {
        if self.fetched.len() >= FETCHED_MAX {
            self.fetched.clear();
        }
        self.fetched.insert(block);
    }

    /// The best guess whose block was not fetched yet, and the program it is for. It counts as
    /// made.
    pub fn next(&mut self) -> Option<(Token, Guess)> {
        while let Some((token, region)) = self.regions.last_mut() {
            let (token, first) = (*token, region.pop_front());
            if let Some(guess) = first.filter(|_| !self.followers.is_known(token)) {
                if self.fetched.contains(&guess.block) {
                    continue;
                }
                self.note_made(guess.block);
                return Some((token, guess));
            }
            self.regions.pop();
        }
        None
    }

    fn note_made(&mut self, block: BlockId) {
        if self.unused.len() >= UNUSED_MAX {
            self.unused.clear();
        }
        self.unused.insert(block);
        self.made += 1;
        if self.made >= JUDGED_MAX {
            (self.made, self.used) = (self.made / 2, self.used / 2);
        }
    }

    /// A guessed block of so many pages is asked for.
    pub fn requested(&mut self, pages: u64) {
        self.counters.blocks_speculated += 1;
        self.counters.pages_speculated += pages;
    }

    /// Guesses that count when it is judged how good they are.
    #[cfg(test)]
    pub fn made(&self) -> usize {
        self.made as usize
    }

    /// The server refused a guess: that says nothing of how good guesses are.
    pub fn refused(&mut self, wanted: &Wanted) {
        if let Wanted::Block { block, .. } = wanted
            && self.unused.remove(block)
        {
            self.made = self.made.saturating_sub(1).max(self.used);
        }
    }

    /// A block that readahead brought left the cache, and no page of it was read.
    pub fn wasted(&mut self) {
        self.counters.blocks_speculated_wasted += 1;
    }

    /// A block that readahead brought was used for the first time.
    pub fn used(&mut self, block: BlockId) {
        self.counters.blocks_speculated_used += 1;
        self.used += u32::from(self.unused.remove(&block));
    }

    /// What is pushed to actions, and how well they follow it.
    pub fn followers(&mut self) -> &mut Followers {
        &mut self.followers
    }

    /// The action ended; its guesses are dropped.
    pub fn end(&mut self, token: Token) {
        self.followers.end(token);
        // The next start may find the page cache emptied, and wants to read ahead as this one did.
        self.fetched.clear();
        self.regions.retain(|(owner, _)| *owner != token);
    }
}

/// One of the first, one of the second, and so on; then the rest of the longer one.
fn in_turn(first: Vec<Guess>, second: Vec<Guess>) -> impl Iterator<Item = Guess> {
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    std::iter::from_fn(move || Some([first.next(), second.next()]))
        .take_while(|pair| *pair != [None, None])
        .flatten()
        .flatten()
}

#[cfg(test)]
mod tests;
