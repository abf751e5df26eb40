//! Readahead by blocks for runs that the server has not learned: which blocks to request before
//! they are missed.
//!
//! Programs and libraries are faulted in by pages in no order, but mostly near each other. Modules
//! of one package lie side by side in the image. So every use of a new block makes a *region* of
//! guesses around it: the neighbours of the block in its file, outward in both directions, then
//! those in the image, more of them after it than before it. The newest region is served first,
//! because the program works there. A file that is read in sequence gets a window that doubles with
//! each block, as in any readahead.
//!
//! The number of guesses in a region depends on the use of the last ones. If less than a third of
//! them was used, only the next neighbours are guessed; if less than a tenth, only those of every
//! eighth block, to notice a change. Nothing is guessed for an action that the server pushes to.
//!
//! The schedule reports uses and requests the guesses as fast as the link allows. Sizes are in
//! blocks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use units::{BlockId, InodeId, Moment, PageId, Token};

use crate::counters::ReadaheadCounters;

/// Files remembered; a program reads few files sequentially at the same time, and each entry is 24
/// bytes.
const FILES_MAX: usize = 64;

/// A use that skips at most so many pages still counts as sequential: readers skip headers and
/// holes.
const SKIP_PAGES_MAX: u32 = 8;

/// Regions kept. What was not asked for by the time sixteen more blocks were used is of little use.
const REGIONS_MAX: usize = 16;

/// Guesses remembered until they are used.
const UNUSED_MAX: usize = 4096;

/// Blocks remembered as fetched: a quarter of a million pages, more than any program start touches.
const FETCHED_MAX: usize = 16 << 10;

/// Actions remembered as pushed to.
const SILENT_MAX: usize = 64;

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

/// How many blocks to look for around a block that was just used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
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
    silent: HashSet<Token>,
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
            silent: HashSet::new(),
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

    /// A block that covers the pages `first_page..end_page` of a file was missed, or a guessed one
    /// was used for the first time. Returns where to look for guesses, to be handed in with
    /// [`Readahead::add`].
    ///
    /// Only a `wide` reach goes to neighbours: where a block costs hardly any round trip, the
    /// sequence alone is worth the work.
    pub fn reach(&mut self, token: Token, inode: InodeId, (first_page, end_page): (u32, u32), wide: bool) -> Reach {
        if self.window_blocks_max == 0 || self.silent.contains(&token) {
            return Reach::default();
        }
        let window = self.window(inode, first_page, end_page);
        let max = self.window_blocks_max;
        let near = match (wide, self.made >= JUDGED_MIN) {
            (false, _) => Reach::default(),
            (true, true) if self.used * 10 < self.made => {
                self.probes += 1;
                let probe = u32::from(self.probes.is_multiple_of(PROBE_EVERY));
                Reach { after: probe, ..Reach::default() }
            }
            (true, true) if self.used * 3 < self.made => Reach { after: 1, before: 1, image_after: 1, image_before: 0 },
            (true, _) => {
                let half = max.div_ceil(2);
                Reach { after: half, before: half, image_after: max.div_ceil(4), image_before: max.div_ceil(8) }
            }
        };
        Reach { after: near.after.max(window), ..near }
    }

    /// How far a sequence of uses in one file should be read ahead.
    fn window(&mut self, inode: InodeId, first_page: u32, end_page: u32) -> u32 {
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

    /// Takes the guesses around a block: those of its file first, from both sides in turn, then
    /// those of the image.
    pub fn add(&mut self, token: Token, around: Around) {
        let file = in_turn(around.after, around.before);
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
            let token = *token;
            let silent = self.silent.contains(&token);
            if let Some(guess) = region.pop_front().filter(|_| !silent) {
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

    /// A block that readahead brought left the cache, and no page of it was read.
    pub fn wasted(&mut self) {
        self.counters.blocks_speculated_wasted += 1;
    }

    /// A block that readahead brought was used for the first time.
    pub fn used(&mut self, block: BlockId) {
        self.counters.blocks_speculated_used += 1;
        self.used += u32::from(self.unused.remove(&block));
    }

    /// The server pushes to this action: nothing is guessed for it any more.
    pub fn silence(&mut self, token: Token) {
        if self.silent.len() >= SILENT_MAX {
            self.silent.clear();
        }
        self.silent.insert(token);
    }

    /// The action ended; its guesses are dropped.
    pub fn end(&mut self, token: Token) {
        self.silent.remove(&token);
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
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const ONE: Token = Token(1);

    fn guess(block: u32) -> Guess {
        Guess { block: BlockId(block), page: PageId::new(FILE, block * 16) }
    }

    fn guesses(blocks: &[u32]) -> Vec<Guess> {
        blocks.iter().map(|block| guess(*block)).collect()
    }

    fn sequence(policy: &mut Readahead, block: u32) -> u32 {
        policy.reach(ONE, FILE, (block * 16, (block + 1) * 16), false).after
    }

    fn drain(policy: &mut Readahead) -> Vec<u32> {
        std::iter::from_fn(|| policy.next()).map(|(_, guess)| guess.block.0).collect()
    }

    #[test]
    fn sequential_uses_double_the_window_up_to_its_bound() {
        let mut policy = Readahead::new(8);
        let windows: Vec<u32> = (10..18).map(|block| sequence(&mut policy, block)).collect();
        assert_eq!(windows, [0, 1, 2, 4, 8, 8, 8, 8]);
        assert_eq!(sequence(&mut policy, 300), 0, "a jump closes the window");
        assert_eq!(sequence(&mut policy, 301), 1);
    }

    #[test]
    fn a_read_from_the_start_bets_on_one_block() {
        assert_eq!(Readahead::new(8).reach(ONE, FILE, (0, 16), false).after, 1);
        assert_eq!(Readahead::new(8).reach(ONE, FILE, (5, 16), false).after, 0);
    }

    #[test]
    fn short_skips_are_still_sequential_and_long_ones_are_not() {
        let mut policy = Readahead::new(8);
        policy.reach(ONE, FILE, (16, 32), false);
        assert_eq!(policy.reach(ONE, FILE, (32 + SKIP_PAGES_MAX, 48), false).after, 1);
        assert_eq!(policy.reach(ONE, FILE, (48 + SKIP_PAGES_MAX + 1, 64), false).after, 0);
    }

    #[test]
    fn files_do_not_disturb_each_other_and_are_bounded() {
        let mut policy = Readahead::new(8);
        sequence(&mut policy, 1);
        for inode in 100..100 + FILES_MAX as u32 - 1 {
            policy.reach(ONE, InodeId(inode), (16, 32), false);
        }
        assert_eq!(sequence(&mut policy, 2), 1, "still remembered");
        for inode in 1000..2000 {
            policy.reach(ONE, InodeId(inode), (16, 32), false);
        }
        assert!(policy.files.len() <= FILES_MAX);
        assert_eq!(sequence(&mut policy, 3), 0, "forgotten");
    }

    #[test]
    fn a_wide_policy_looks_to_all_sides_of_the_first_miss() {
        let reach = Readahead::new(8).reach(ONE, FILE, (5000, 5016), true);
        assert_eq!(reach, Reach { after: 4, before: 4, image_after: 2, image_before: 1 });
        assert_eq!(Readahead::new(8).reach(ONE, FILE, (5000, 5016), false), Reach::default());
    }

    #[test]
    fn guesses_go_outward_and_the_newest_region_goes_first() {
        let mut policy = Readahead::new(8);
        let around = Around {
            after: guesses(&[11, 12, 13]),
            before: guesses(&[9]),
            image_after: guesses(&[50, 51]),
            image_before: guesses(&[48]),
        };
        policy.add(ONE, around.clone());
        assert_eq!(drain(&mut policy), [11, 9, 12, 13, 50, 48, 51]);
        policy.add(ONE, around);
        policy.fetched(BlockId(11));
        assert_eq!(policy.next(), Some((ONE, guess(9))), "what was here is left out");
        policy.add(Token(2), Around { after: guesses(&[100, 101]), ..Around::default() });
        assert_eq!(policy.next(), Some((Token(2), guess(100))));
        policy.end(Token(2));
        assert_eq!(drain(&mut policy), [12, 13, 50, 48, 51]);
    }

    #[test]
    fn nothing_is_guessed_for_an_action_that_is_pushed_to() {
        let mut policy = Readahead::new(8);
        policy.add(ONE, Around { after: guesses(&[1]), ..Around::default() });
        policy.add(Token(2), Around { after: guesses(&[2]), ..Around::default() });
        policy.silence(Token(2));
        assert_eq!(drain(&mut policy), [1]);
        assert_eq!(policy.reach(Token(2), FILE, (16, 32), true), Reach::default());
        policy.end(Token(2));
        assert_ne!(policy.reach(Token(2), FILE, (16, 32), true), Reach::default(), "the number may come again");
    }

    /// Makes `made` guesses, of which the first `used` are used at once.
    fn judge(policy: &mut Readahead, made: u32, used: u32) {
        for block in 0..made {
            policy.add(ONE, Around { after: guesses(&[block]), ..Around::default() });
            policy.next().unwrap();
            if block < used {
                policy.used(BlockId(block));
            }
        }
    }

    fn far(policy: &mut Readahead) -> Vec<Reach> {
        (1..=PROBE_EVERY).map(|i| policy.reach(ONE, FILE, (i * 10_000, i * 10_000 + 16), true)).collect()
    }

    #[test]
    fn useless_guesses_narrow_the_reach_and_useful_ones_widen_it_again() {
        let mut policy = Readahead::new(8);
        judge(&mut policy, JUDGED_MIN, JUDGED_MIN / 2);
        assert!(far(&mut policy).iter().all(|reach| reach.image_after == 2));
        judge(&mut policy, 120, 5);
        assert!(far(&mut policy).iter().all(|reach| (reach.after, reach.image_after, reach.image_before) == (1, 1, 0)));
        judge(&mut policy, 300, 0);
        let probes: u32 = far(&mut policy).iter().map(|reach| reach.after + reach.before + reach.image_after).sum();
        assert_eq!(probes, 1, "only a probe is left");
        judge(&mut policy, 300, 300);
        assert!(far(&mut policy).iter().all(|reach| reach.image_after == 2));
    }

    #[test]
    fn a_use_counts_once_and_only_for_a_guess() {
        let mut policy = Readahead::new(8);
        judge(&mut policy, 3, 1);
        (0..10).for_each(|block| policy.used(BlockId(block)));
        (0..10).for_each(|block| policy.used(BlockId(block)));
        assert_eq!((policy.made, policy.used), (3, 3));
    }

    #[test]
    fn memory_is_bounded() {
        let mut policy = Readahead::new(8);
        for block in 0..3 * UNUSED_MAX as u32 {
            policy.silence(Token(1000 + u128::from(block)));
            policy.add(ONE, Around { after: guesses(&[block, block + 1]), ..Around::default() });
            policy.next();
            assert!(policy.regions.len() <= REGIONS_MAX && policy.unused.len() <= UNUSED_MAX);
            assert!(policy.silent.len() <= SILENT_MAX && policy.made <= JUDGED_MAX);
            policy.fetched(BlockId(block));
            policy.fetched(BlockId(u32::MAX - block));
            assert!(policy.fetched.len() <= FETCHED_MAX);
        }
    }

    #[test]
    fn off_is_off() {
        let mut policy = Readahead::new(0);
        assert!(
            (0..100).all(|block| policy.reach(ONE, FILE, (block * 16, (block + 1) * 16), true) == Reach::default())
        );
        assert!(policy.files.is_empty());
    }
}
