//! Readahead by blocks for runs nobody has learned yet: which blocks after a missed one are worth asking for.
//!
//! Per file, the policy keeps where the last missed or first-used block ended and a window. A use that starts at that
//! place, or a few pages later, is sequential: the window doubles from 1 to at most 8 blocks. Anything else closes the
//! window. What is asked for ahead is bounded in bytes by the caller's account of speculative bytes in flight. The
//! policy is a pure struct: the session tells it of uses and asks the server for what it answers.

use std::collections::HashMap;

use units::InodeId;

/// Files remembered; a program reads few files sequentially at the same time, and each entry is 24 bytes.
const FILES_MAX: usize = 64;

/// A use that skips at most so many pages still counts as sequential: readers skip headers and holes.
const SKIP_PAGES_MAX: u32 = 8;

/// The policy and its memory.
#[derive(Clone, Debug)]
pub struct Readahead {
    window_blocks_max: u32,
    files: HashMap<InodeId, Stream>,
    clock: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// First page after the block used last.
    next_page: u32,
    window_blocks: u32,
    used_at: u64,
}

impl Readahead {
    /// A policy that asks for at most `window_blocks_max` blocks at once; 0 switches it off.
    pub fn new(window_blocks_max: u32) -> Readahead {
        Readahead { window_blocks_max, files: HashMap::new(), clock: 0 }
    }

    /// A block that covers the pages `first_page..end_page` of a file was missed, or a speculated one was used for the
    /// first time. Returns how many of the following blocks should be in flight or present.
    pub fn used(&mut self, inode: InodeId, first_page: u32, end_page: u32) -> u32 {
        if self.window_blocks_max == 0 {
            return 0;
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    #[test]
    fn sequential_uses_double_the_window_up_to_its_bound() {
        let mut policy = Readahead::new(8);
        let windows: Vec<u32> = (10..18).map(|block| policy.used(FILE, block * 16, (block + 1) * 16)).collect();
        assert_eq!(windows, [0, 1, 2, 4, 8, 8, 8, 8]);
    }

    #[test]
    fn a_read_from_the_start_bets_on_one_block() {
        assert_eq!(Readahead::new(8).used(FILE, 0, 16), 1);
        assert_eq!(Readahead::new(8).used(FILE, 5, 16), 0);
    }

    #[test]
    fn a_jump_closes_the_window() {
        let mut policy = Readahead::new(8);
        for block in 0..4 {
            policy.used(FILE, block * 16, (block + 1) * 16);
        }
        assert_eq!(policy.used(FILE, 4000, 4016), 0);
        assert_eq!(policy.used(FILE, 4016, 4032), 1);
        assert_eq!(policy.used(FILE, 0, 16), 0);
    }

    #[test]
    fn short_skips_are_still_sequential_and_long_ones_are_not() {
        let mut policy = Readahead::new(8);
        policy.used(FILE, 16, 32);
        assert_eq!(policy.used(FILE, 32 + SKIP_PAGES_MAX, 48), 1);
        assert_eq!(policy.used(FILE, 48 + SKIP_PAGES_MAX + 1, 64), 0);
    }

    #[test]
    fn files_do_not_disturb_each_other_and_are_bounded() {
        let mut policy = Readahead::new(8);
        policy.used(FILE, 16, 32);
        for inode in 100..100 + FILES_MAX as u32 - 1 {
            policy.used(InodeId(inode), 16, 32);
        }
        assert_eq!(policy.used(FILE, 32, 48), 1, "still remembered");
        for inode in 1000..2000 {
            policy.used(InodeId(inode), 16, 32);
        }
        assert!(policy.files.len() <= FILES_MAX);
        assert_eq!(policy.used(FILE, 48, 64), 0, "forgotten");
    }

    #[test]
    fn off_is_off() {
        let mut policy = Readahead::new(0);
        assert!((0..100).all(|block| policy.used(FILE, block * 16, (block + 1) * 16) == 0));
        assert!(policy.files.is_empty());
    }
}
