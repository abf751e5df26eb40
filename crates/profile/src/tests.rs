//! Orders, learning, the file, fuzzing, golden dump.

use proptest::prelude::*;
use trace::{Event, Header, How, Source, Tail, Trace};
use units::{ActionId, ImageId, InodeId, Moment, PageId, Rng, SegmentIndex, SplitMix64, Token};

use super::*;

const IMAGE: ImageId = ImageId([3; 32]);

/// Pages of one file.
fn pages(inode: u32, indexes: impl IntoIterator<Item = u32>) -> Vec<PageId> {
    indexes.into_iter().map(|index| PageId::new(InodeId(inode), index)).collect()
}

fn new_set() -> (ActionSet, MergeConfig) {
    (ActionSet::new(IMAGE), MergeConfig::default())
}

#[test]
fn orders_are_first_touches_by_token() {
    let touch = |token, index, how| Event::Touch {
        token: Token(token),
        at: Moment(5),
        page: PageId::new(InodeId(1), index),
        how,
    };
    let start =
        |token, name: &[u8]| Event::Start { token: Token(token), at: Moment(token as u64), name: name.to_vec() };
    let end = |token| Event::End { token: Token(token), at: Moment(9) };
    let events = vec![
        start(1, b"a"),
        touch(1, 4, How::Demand),
        start(2, b"b"),
        touch(2, 4, How::Local),
        touch(1, 2, How::Demand),
        touch(1, 4, How::Local),
        touch(2, 7, How::Pushed),
        end(1),
        start(1, b""),
        touch(1, 9, How::Demand),
    ];
    let trace = Trace { header: Header { image: IMAGE, source: Source::Mount }, events, tail: Tail::Whole };
    let found = orders(&trace);
    let summary: Vec<_> =
        found.iter().map(|order| (order.token.0, &order.name[..], order.ended, order.exact)).collect();
    assert_eq!(summary, [(1, &b"a"[..], Some(Moment(9)), true), (2, b"b", None, false), (1, b"", None, true)]);
    let indexes: Vec<Vec<PageId>> = found.into_iter().map(|order| order.pages).collect();
    assert_eq!(indexes, [pages(1, [4, 2]), pages(1, [4, 7]), pages(1, [9])]);
}

#[test]
fn the_first_run_becomes_an_action_without_duplicates() {
    let (mut set, config) = new_set();
    let change = set.learn(&pages(1, [3, 1, 3, 2, 1]), &config);
    assert_eq!(change.outcome, Outcome::Created);
    let action = set.get(change.action.unwrap()).unwrap();
    assert_eq!(action.pages, pages(1, [3, 1, 2]));
    assert_eq!((action.uses, action.runs, action.stable), (1, 1, false));
    assert_eq!(set.learn(&[], &config).outcome, Outcome::Nothing);
}

#[test]
fn pages_keep_their_order_and_new_ones_follow_their_neighbours() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..10), &config).action.unwrap();
    assert_eq!(set.learn(&pages(1, 0..10), &config).outcome, Outcome::Refined(0));
    // Seen twice, so one run without 4 keeps it.
    let change = set.learn(&pages(1, [0, 2, 1, 3, 5, 20, 6, 9, 7, 8]), &config);
    assert_eq!((change.outcome, change.action), (Outcome::Refined(1), Some(id)));
    let action = set.get(id).unwrap();
    assert_eq!(action.pages, pages(1, [0, 1, 2, 3, 4, 5, 20, 6, 7, 8, 9]));
    assert_eq!(action.marks[4], PageMark { runs: 2, misses: 1, extra: false });
    assert_eq!((action.revision, action.runs), (1, 3));
    // A second run in a row without it drops it. Page 20 was seen once, so one run is enough.
    set.learn(&pages(1, [0, 2, 1, 3, 5, 6, 9, 8, 7]), &config);
    assert_eq!(set.get(id).unwrap().pages, pages(1, [0, 1, 2, 3, 5, 6, 7, 8, 9]));
}

#[test]
fn a_run_that_needs_pages_elsewhere_moves_none_of_them() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..1000), &config).action.unwrap();
    // It needs the last sixty pages early, and some others with them.
    let moved = [pages(1, 0..100), pages(1, 940..970), pages(2, 0..5), pages(1, 970..1000), pages(1, 100..940)];
    set.learn(&moved.concat(), &config);
    let expected = [pages(1, 0..100), pages(2, 0..5), pages(1, 100..1000)].concat();
    assert_eq!(set.get(id).unwrap().pages, expected);
}

#[test]
fn another_order_of_the_same_pages_is_no_revision() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..40), &config).action.unwrap();
    let swapped = |at: u32| {
        let mut order = pages(1, 0..40);
        order.swap(at as usize, at as usize + 1);
        order
    };
    for at in [5, 9] {
        assert_eq!(set.learn(&swapped(at), &config).outcome, Outcome::Refined(0));
    }
    let action = set.get(id).unwrap();
    assert_eq!((action.revision, action.runs, &action.pages), (0, 3, &pages(1, 0..40)));
    assert!(action.stable && action.marks.iter().all(|mark| mark.runs == 3));
    // A page that went does make a revision.
    let mut less = swapped(20);
    less.pop();
    for _ in 0..config.misses_max {
        set.learn(&less, &config);
    }
    assert_eq!((set.get(id).unwrap().revision, &set.get(id).unwrap().pages), (1, &pages(1, 0..39)));
}

#[test]
fn an_exact_run_puts_an_extra_where_it_belongs() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..40), &config).action.unwrap();
    set.extend(id, &[Extra { after: pages(1, [2])[0], page: pages(2, [0])[0] }], &config);
    let run = [pages(1, 0..30), pages(2, [0]), pages(1, 30..40)].concat();
    set.learn(&run, &config);
    assert_eq!(set.get(id).unwrap().pages, run);
}

#[test]
fn a_page_touched_again_is_forgiven() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..10), &config).action.unwrap();
    set.learn(&pages(1, 0..10), &config);
    for _ in 0..4 {
        set.learn(&pages(1, 0..9), &config);
        set.learn(&pages(1, 0..10), &config);
    }
    assert_eq!(set.get(id).unwrap().pages, pages(1, 0..10));
}

#[test]
fn a_short_run_is_a_variant_and_tears_nothing_down() {
    let (mut set, config) = new_set();
    let long = set.learn(&pages(1, 0..100), &config).action.unwrap();
    let short = set.learn(&pages(1, 0..60), &config).action.unwrap();
    assert_ne!(long, short);
    assert_eq!(set.get(long).unwrap().pages.len(), 100);
    assert_eq!(overlap_percent(&pages(1, 0..100), &pages(1, 0..60)), 60);
    assert_eq!(overlap_percent(&[], &[]), 100);
    // Exactly at the threshold it refines.
    assert_eq!(set.learn(&pages(1, 0..70), &config).action, Some(short));
}

#[test]
fn an_inexact_run_only_adds_behind_what_it_had_reached() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..8), &config).action.unwrap();
    let (three, last) = (PageId::new(InodeId(1), 3), PageId::new(InodeId(1), 7));
    let unknown = PageId::new(InodeId(9), 9);
    let extra = |after, index| Extra { after, page: PageId::new(InodeId(2), index) };
    let extras = [extra(last, 0), extra(three, 1), extra(three, 2), extra(unknown, 3), extra(three, 1)];
    assert_eq!(set.extend(id, &extras, &config).outcome, Outcome::Extended(4));
    let action = set.get(id).unwrap();
    let expected = [pages(1, 0..4), pages(2, [1, 2]), pages(1, 4..8), pages(2, [0, 3])].concat();
    assert_eq!(action.pages, expected);
    assert!(action.marks[4].extra && !action.marks[3].extra);
    assert_eq!(set.extend(id, &extras, &config).outcome, Outcome::Nothing);
    assert_eq!(set.extend(ActionId(99), &extras, &config).outcome, Outcome::Nothing);
    // The next exact run confirms one and contradicts the others.
    let exact = [pages(1, 0..4), pages(2, [1]), pages(1, 4..8)].concat();
    set.learn(&exact, &MergeConfig { overlap_percent: 50, ..config });
    let action = set.get(id).unwrap();
    assert_eq!(action.pages, exact);
    assert!(action.marks.iter().all(|mark| !mark.extra));
}

#[test]
fn extras_are_bounded() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..500), &config).action.unwrap();
    let after = PageId::new(InodeId(1), 50);
    let extras: Vec<Extra> = pages(2, 0..1000).into_iter().map(|page| Extra { after, page }).collect();
    assert_eq!(set.extend(id, &extras, &config).outcome, Outcome::Extended(50));
    assert_eq!(set.extend(id, &extras, &config).outcome, Outcome::Nothing);
    assert!(!set.get(id).unwrap().stable);
}

#[test]
fn a_partial_run_adds_to_what_it_resembles_and_removes_nothing() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..10), &config).action.unwrap();
    let change = set.learn_partial(&pages(1, [0, 1, 2, 20, 3, 4, 5, 6, 7, 8]), &config);
    assert_eq!((change.outcome, change.action), (Outcome::Extended(1), Some(id)));
    assert_eq!(set.get(id).unwrap().pages, pages(1, [0, 1, 2, 20, 3, 4, 5, 6, 7, 8, 9]));
    assert_eq!(set.learn_partial(&pages(1, [0, 50]), &config).outcome, Outcome::Created);
    assert_eq!(set.learn_partial(&[], &config).outcome, Outcome::Nothing);
}

#[test]
fn an_action_is_stable_when_an_exact_run_changes_little() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..100), &config).action.unwrap();
    assert!(!set.get(id).unwrap().stable);
    set.learn(&pages(1, 0..105), &config);
    assert!(set.get(id).unwrap().stable);
    set.learn(&pages(1, 0..120), &config);
    assert!(!set.get(id).unwrap().stable);
}

#[test]
fn the_rank_follows_a_change_of_habit_within_three_uses() {
    let (mut set, config) = new_set();
    let old = set.learn(&pages(1, 0..10), &config).action.unwrap();
    (0..50).for_each(|_| set.credit(old));
    let new = set.learn(&pages(1, [0, 20, 21, 22]), &config).action.unwrap();
    let best = |set: &ActionSet| set.variants(PageId::new(InodeId(1), 0))[0].id;
    assert_eq!(best(&set), old, "one other run changes nothing");
    set.credit(new);
    set.credit(new);
    assert_eq!(best(&set), new);
    assert_eq!(set.ranked()[0].id, new);
    assert!(set.get(old).unwrap().score <= 4 * Action::SCORE_USE);
}

#[test]
fn a_preferred_variant_outranks_the_others_and_goes_on_with_their_pushes() {
    let (mut set, config) = new_set();
    let old = set.learn(&pages(1, 0..10), &config).action.unwrap();
    (0..40).for_each(|_| set.credit(old));
    (0..5).for_each(|_| _ = set.count_push(old));
    let new = set.learn(&pages(1, [0].into_iter().chain(50..70)), &config).action.unwrap();
    assert_eq!(set.variants(pages(1, [0])[0])[0].id, old);
    set.prefer(new);
    set.inherit_pushes(new);
    assert_eq!(set.variants(pages(1, [0])[0])[0].id, new);
    assert_eq!(set.get(new).unwrap().pushes, 5);
}

#[test]
fn doubts_are_bounded_and_the_latest_stay() {
    let (mut set, _) = new_set();
    let all = pages(1, 0..1000);
    all.iter().for_each(|page| set.doubt(*page, 4));
    assert_eq!([0, 999, 999].map(|page| set.take_doubt(all[page])), [0, 4, 0]);
}

#[test]
fn an_order_turned_round_is_a_revision_however_stable_the_action_is() {
    let (mut set, config) = new_set();
    let order = pages(1, 0..200);
    let turned: Vec<PageId> = [order[0]].into_iter().chain(order[1..].iter().rev().copied()).collect();
    (0..3).for_each(|_| _ = set.learn(&turned, &config));
    let id = set.learn(&order, &config).action.unwrap();
    assert_eq!((&set.get(id).unwrap().pages, set.get(id).unwrap().revision), (&order, 1));
}

#[test]
fn variants_and_actions_and_pages_are_bounded() {
    let config = MergeConfig {
        variants_max: 3,
        actions_max: 5,
        pages_total_max: 30,
        action_pages_max: 12,
        ..Default::default()
    };
    let mut set = ActionSet::new(IMAGE);
    for variant in 0..10 {
        set.learn(&pages(1, [0, 10 + variant * 2, 11 + variant * 2]), &config);
        assert!(set.variants(PageId::new(InodeId(1), 0)).len() <= 3);
    }
    for inode in 2..20 {
        let change = set.learn(&pages(inode, 0..20), &config);
        assert_eq!(set.get(change.action.unwrap()).unwrap().pages.len(), 12);
        assert!(set.len() <= 5 && set.pages_total() <= 30);
    }
    let change = set.learn(&pages(30, 0..12), &config);
    assert!(!change.removed.is_empty() && change.removed.iter().all(|id| set.get(*id).is_none()));
}

#[test]
fn segments_cover_the_pages() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..70), &config).action.unwrap();
    let action = set.get(id).unwrap();
    assert_eq!(action.segments(), 3);
    assert_eq!(action.segment(SegmentIndex(2)), 64..70);
    assert_eq!(action.segment(SegmentIndex(3)), 70..70);
    assert_eq!(action.segment(SegmentIndex(u32::MAX)), 70..70);
}

/// A set with every kind of mark.
fn sample() -> ActionSet {
    let (mut set, config) = new_set();
    let run = [pages(7, 0..40), pages(3, [9, 8, 4_000_000_000]), pages(u32::MAX, [u32::MAX])].concat();
    let id = set.learn(&run, &config).action.unwrap();
    set.learn(&run, &config);
    set.learn(&[run[..4].to_vec(), run[5..].to_vec()].concat(), &config);
    let extra = Extra { after: run[2], page: PageId::new(InodeId(5), 5) };
    set.extend(id, &[extra], &config);
    set.learn(&pages(8, [1, 0]), &config);
    set.count_push(id);
    set.credit(id);
    set
}

#[test]
fn a_set_comes_back_as_written() {
    for set in [sample(), ActionSet::new(IMAGE)] {
        assert_eq!(decode(&set.encode(), &Limits::default()).unwrap(), set);
    }
}

#[test]
fn golden_dump_and_bytes_of_version_1() {
    let set = sample();
    let mut text = String::new();
    dump(&set, &mut text).unwrap();
    assert_eq!(text, include_str!("../testdata/sample.dump"));
    let stored = include_bytes!("../testdata/sample-v1.actions");
    assert_eq!(decode(stored, &Limits::default()).unwrap(), set);
    assert_eq!(set.encode(), stored);
}

/// `bytes` with a hash that fits, so that tests reach what lies behind the hash.
fn rehash(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() >= 112 {
        let payload = (bytes.len() - 112) as u64;
        bytes[64..72].copy_from_slice(&payload.to_le_bytes());
        bytes[80..112].fill(0);
        let hash = blake3::hash(&bytes);
        bytes[80..112].copy_from_slice(hash.as_bytes());
    }
    bytes
}

#[test]
fn errors_name_what_is_wrong() {
    let good = sample().encode();
    let read = |bytes: &[u8]| decode(bytes, &Limits::default()).unwrap_err();
    let with = |offset: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[offset] = byte;
        bytes
    };
    assert_eq!(read(&good[..50]), ProfileError::Length { found: 50, expected: 112 });
    let length = good.len() as u64;
    assert_eq!(read(&good[..good.len() - 1]), ProfileError::Length { found: length - 1, expected: length });
    assert!(matches!(read(&with(0, 0)), ProfileError::Magic { .. }));
    assert_eq!(read(&with(8, 7)), ProfileError::Version { found: 7, expected: 1 });
    assert!(matches!(read(&with(130, 0xee)), ProfileError::Hash { .. }));
    assert!(matches!(read(&rehash(with(10, 1))), ProfileError::Value { field: "reserved", .. }));
    assert!(matches!(read(&rehash(with(12, 1))), ProfileError::Value { field: "trailing bytes", .. }));
    assert!(matches!(read(&rehash(with(48, 1))), ProfileError::Value { field: "id", found: 1, .. }));
    assert!(matches!(read(&rehash(with(55, 0x80))), ProfileError::Value { field: "next_id", .. }));
    let limit = |limits: Limits| match decode(&good, &limits).unwrap_err() {
        ProfileError::Limit { what, .. } => what,
        other => panic!("{other}"),
    };
    let limits = Limits::default();
    assert_eq!(limit(Limits { actions_max: 1, ..limits }), "actions");
    assert_eq!(limit(Limits { action_pages_max: 5, ..limits }), "pages in an action");
    assert_eq!(limit(Limits { pages_total_max: 46, ..limits }), "pages in all");
}

#[test]
fn a_page_twice_is_refused() {
    let (mut set, config) = new_set();
    set.learn(&pages(1, [0, 5]), &config);
    let mut bytes = set.encode();
    // The second page's index difference stands before the last mark, which takes one byte.
    let at = bytes.len() - 2;
    assert_eq!(bytes[at], 10);
    bytes[at] = 0;
    let error = decode(&rehash(bytes), &Limits::default()).unwrap_err();
    assert_eq!(error, ProfileError::Duplicate { action: ActionId(1), page: PageId::new(InodeId(1), 0) });
}

proptest! {
    #[test]
    fn prop_learning_keeps_the_rules(
        runs in prop::collection::vec((0..3u8, prop::collection::vec(0..40u32, 0..40)), 1..40),
    ) {
        let config = MergeConfig { actions_max: 6, variants_max: 3, pages_total_max: 120, ..MergeConfig::default() };
        let mut set = ActionSet::new(IMAGE);
        let mut again = ActionSet::new(IMAGE);
        for (kind, indexes) in &runs {
            let run = pages(1, indexes.iter().map(|index| index.max(&(u32::from(*kind))).to_owned()));
            for set in [&mut set, &mut again] {
                let before = set.clone();
                let change = match kind {
                    0 => set.learn_partial(&run, &config),
                    _ => set.learn(&run, &config),
                };
                if let (Outcome::Extended(_), Some(id)) = (change.outcome, change.action) {
                    let now = &set.get(id).unwrap().pages;
                    let kept: Vec<PageId> =
                        now.iter().copied().filter(|page| before.get(id).unwrap().pages.contains(page)).collect();
                    prop_assert_eq!(&kept, &before.get(id).unwrap().pages, "an inexact run keeps pages and order");
                }
            }
            prop_assert!(set.len() <= 6 && set.pages_total() <= 120);
            for action in set.iter() {
                prop_assert_eq!(action.pages.len(), action.marks.len());
                prop_assert_eq!(&first_touches(&action.pages, usize::MAX), &action.pages);
            }
        }
        prop_assert_eq!(&set, &again);
        prop_assert_eq!(decode(&set.encode(), &Limits::default()).unwrap(), set);
    }
}

fn read_small(bytes: &[u8]) -> Result<ActionSet, ProfileError> {
    decode(bytes, &Limits { actions_max: 100, action_pages_max: 1000, pages_total_max: 5000 })
}

/// The invariant: no bytes make the reader panic, and what it accepts encodes to the very same
/// bytes.
fn fuzz_one(bytes: &[u8], read: impl Fn(&[u8]) -> Result<ActionSet, ProfileError>) -> Result<bool, String> {
    match read(bytes) {
        Ok(set) if set.encode() == bytes => Ok(true),
        Ok(_) => Err(format!("accepted, but encoded otherwise: {bytes:02x?}")),
        Err(_) => Ok(false),
    }
}

#[test]
fn fuzz_decode() {
    let good = sample().encode();
    let mut rng = SplitMix64(2);
    let mut accepted = 0;
    for round in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(5) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes.insert(at, rng.next_u64() as u8),
                2 => bytes[at] = rng.next_u64() as u8,
                _ => bytes[at] ^= 1 << rng.below(8),
            }
        }
        // Half of them with a hash that fits: only so do the deeper checks come to light.
        if round % 2 == 0 {
            bytes = rehash(bytes);
        }
        accepted += usize::from(fuzz_one(&bytes, read_small).unwrap());
    }
    // Among forged files some must be accepted (a changed page number is no error), or nothing was
    // reached.
    assert!(accepted > 100, "only {accepted} of the forged files got past the checks");
}

#[test]
fn fuzz_canary() {
    let good = sample().encode();
    assert_eq!(fuzz_one(&good, read_small), Ok(true));
    // A reader that loses something, here a page's mark, must be found out.
    let careless = |bytes: &[u8]| {
        let mut set = read_small(bytes)?;
        set.actions.values_mut().for_each(|action| action.marks[0].extra = true);
        Ok(set)
    };
    assert!(fuzz_one(&good, careless).is_err(), "the fuzzer is blind");
    // A number in a longer form would be a second encoding of the same set: it is refused.
    let (mut set, config) = new_set();
    set.learn(&pages(1, [0, 5]), &config);
    let mut bytes = set.encode();
    *bytes.last_mut().unwrap() |= 0x80;
    bytes.push(0);
    assert_eq!(fuzz_one(&rehash(bytes), read_small), Ok(false));
}

#[test]
fn a_run_with_hidden_touches_is_new_only_if_it_is_with_them_too() {
    let (mut set, config) = new_set();
    set.learn(&pages(1, 0..1000), &config);
    let mut learn = |seen, hidden: Option<std::ops::Range<u32>>| {
        let hidden = hidden.map(|range| pages(1, range).into_iter().chain(pages(2, 0..800)).collect());
        let change = set.learn_new(&pages(1, 0..seen), hidden.as_ref(), &config);
        (change.outcome, change.action)
    };
    assert_eq!(learn(500, Some(500..1000)), (Outcome::Nothing, None));
    assert_eq!(learn(500, None), (Outcome::Nothing, None));
    assert_eq!(learn(990, None), (Outcome::Nothing, Some(ActionId(1))));
    assert_eq!(learn(500, Some(500..600)), (Outcome::Created, Some(ActionId(2))));
}

#[test]
fn runs_that_stray_in_vain_are_seen_less_and_less() {
    let (mut set, config) = new_set();
    let id = set.learn(&pages(1, 0..100), &config).action.unwrap();
    let mut unseen_until_next = |taught| {
        set.saw_stray(id, taught);
        (0..100).take_while(|_| !set.takes_stray(id)).count()
    };
    let taught = [false, false, false, false, true, false];
    assert_eq!(taught.map(&mut unseen_until_next), [1, 3, 7, 7, 0, 1]);
}
