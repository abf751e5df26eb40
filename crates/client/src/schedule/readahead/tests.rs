//! The policy alone: which blocks are guessed.

use super::*;

const FILE: InodeId = InodeId(7);
const ONE: Token = Token(1);

fn guess(block: u32) -> Guess {
    Guess { block: BlockId(block), page: PageId::new(FILE, block * 16) }
}

fn guesses(blocks: &[u32]) -> Vec<Guess> {
    blocks.iter().map(|block| guess(*block)).collect()
}

/// A use of a large file.
fn used(inode: InodeId, first_page: u32, end_page: u32) -> Use {
    Use { inode, first_page, end_page, file_pages: 100_000 }
}

fn sequence(policy: &mut Readahead, block: u32) -> u32 {
    policy.reach(ONE, used(FILE, block * 16, (block + 1) * 16), false).after
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
    assert_eq!(Readahead::new(8).reach(ONE, used(FILE, 0, 16), false).after, 1);
    assert_eq!(Readahead::new(8).reach(ONE, used(FILE, 5, 16), false).after, 0);
}

#[test]
fn the_end_of_a_file_is_guessed_first_where_it_is_read_from_its_start() {
    let mut policy = Readahead::new(8);
    assert!(policy.reach(ONE, used(FILE, 0, 16), true).end);
    assert!(!policy.reach(ONE, used(FILE, 0, 16), false).end, "a near server is asked for it soon enough");
    assert!(!policy.reach(ONE, used(FILE, 16, 32), true).end);
    policy.add(ONE, Around { end: Some(guess(99)), after: guesses(&[1]), ..Around::default() });
    assert_eq!(drain(&mut policy), [99, 1]);
}

#[test]
fn short_skips_are_still_sequential_and_long_ones_are_not() {
    let mut policy = Readahead::new(8);
    policy.reach(ONE, used(FILE, 16, 32), false);
    assert_eq!(policy.reach(ONE, used(FILE, 32 + SKIP_PAGES_MAX, 48), false).after, 1);
    assert_eq!(policy.reach(ONE, used(FILE, 48 + SKIP_PAGES_MAX + 1, 64), false).after, 0);
}

#[test]
fn files_do_not_disturb_each_other_and_are_bounded() {
    let mut policy = Readahead::new(8);
    sequence(&mut policy, 1);
    for inode in 100..100 + FILES_MAX as u32 - 1 {
        policy.reach(ONE, used(InodeId(inode), 16, 32), false);
    }
    assert_eq!(sequence(&mut policy, 2), 1, "still remembered");
    for inode in 1000..2000 {
        policy.reach(ONE, used(InodeId(inode), 16, 32), false);
    }
    assert!(policy.files.len() <= FILES_MAX);
    assert_eq!(sequence(&mut policy, 3), 0, "forgotten");
}

#[test]
fn a_wide_policy_looks_to_all_sides_of_the_first_miss() {
    let in_file = Reach { after: 4, before: 4, ..Reach::default() };
    assert_eq!(Readahead::new(8).reach(ONE, used(FILE, 5000, 5016), true), in_file);
    let small = Use { file_pages: SMALL_FILE_PAGES, ..used(FILE, 7, 16) };
    let beside = Reach { image_after: 4, image_before: 1, ..in_file };
    assert_eq!(Readahead::new(8).reach(ONE, small, true), beside);
    assert_eq!(Readahead::new(8).reach(ONE, used(FILE, 5000, 5016), false), Reach::default());
}

#[test]
fn guesses_go_outward_and_the_newest_region_goes_first() {
    let mut policy = Readahead::new(8);
    let around = Around {
        end: None,
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
    policy.followers().pushed(Token(2));
    assert_eq!(drain(&mut policy), [1]);
    assert_eq!(policy.reach(Token(2), used(FILE, 16, 32), true), Reach::default());
    policy.end(Token(2));
    assert_ne!(policy.reach(Token(2), used(FILE, 16, 32), true), Reach::default(), "the number may come again");
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
    (1..=PROBE_EVERY).map(|i| policy.reach(ONE, used(FILE, i * 10_000, i * 10_000 + 16), true)).collect()
}

#[test]
fn useless_guesses_narrow_the_reach_and_useful_ones_widen_it_again() {
    let mut policy = Readahead::new(8);
    judge(&mut policy, JUDGED_MIN, JUDGED_MIN / 2);
    assert!(far(&mut policy).iter().all(|reach| (reach.after, reach.before) == (4, 4)));
    judge(&mut policy, 120, 5);
    assert!(far(&mut policy).iter().all(|reach| (reach.after, reach.before) == (1, 1)));
    judge(&mut policy, 300, 0);
    let probes: u32 = far(&mut policy).iter().map(|reach| reach.after + reach.before + reach.image_after).sum();
    assert_eq!(probes, 1, "only a probe is left");
    judge(&mut policy, 300, 300);
    assert!(far(&mut policy).iter().all(|reach| (reach.after, reach.before) == (4, 4)));
}

#[test]
fn regress_guesses_that_the_server_refuses_are_not_judged() {
    let mut policy = Readahead::new(8);
    judge(&mut policy, 20, 10);
    for block in 1000..1200 {
        policy.add(ONE, Around { after: guesses(&[block]), ..Around::default() });
        policy.next().unwrap();
        let refused = Wanted::Block { block: BlockId(block), page: PageId::new(InodeId(1), 0) };
        policy.refused(&refused);
        policy.refused(&refused);
    }
    assert_eq!((policy.made, policy.used), (20, 10));
    assert!(far(&mut policy).iter().all(|reach| (reach.after, reach.before) == (4, 4)));
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
        policy.followers().pushed(Token(1000 + u128::from(block)));
        policy.add(ONE, Around { after: guesses(&[block, block + 1]), ..Around::default() });
        policy.next();
        assert!(policy.regions.len() <= REGIONS_MAX && policy.unused.len() <= UNUSED_MAX);
        assert!(policy.made <= JUDGED_MAX);
        policy.fetched(BlockId(block));
        policy.fetched(BlockId(u32::MAX - block));
        assert!(policy.fetched.len() <= FETCHED_MAX);
    }
}

#[test]
fn off_is_off() {
    let mut policy = Readahead::new(0);
    assert!(
        (0..100).all(|block| policy.reach(ONE, used(FILE, block * 16, (block + 1) * 16), true) == Reach::default())
    );
    assert!(policy.files.is_empty());
}
