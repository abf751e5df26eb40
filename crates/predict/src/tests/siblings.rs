//! Programs that begin alike: what is pushed to one of them while it cannot be told from others.
//!
//! Sizes and orders are those of Python: 946 pages until the script is read, 34 while the
//! interpreter ends, and in between the modules that are imported. The longest one imports what all
//! others do. Those of Perl end with pages that longer ones use here and there.

use std::collections::HashMap;

use profile::Order;

use super::*;
use crate::{CostModel, Evaluation, evaluate};

/// Part of what is pushed (percent) that a run may not use, as promised.
const WASTE_PERCENT_MAX: u64 = 15;

/// Part of a learned run (percent) that may be demanded.
const DEMANDED_PERCENT_MAX: u64 = 3;

/// Time of a run beside siblings (percent) of what it takes when it alone was learned.
const TIME_PERCENT_MAX: u128 = 110;

/// The same while audits are learned from: some siblings are not learned yet, and each audit makes
/// the others unlikely for a while.
const TIME_PERCENT_LEARNING: u128 = 130;

/// The same when each was started three times, in turn with the others.
const TIME_PERCENT_TAUGHT: u128 = 120;

const NAMES: [&str; 4] = ["pass", "decimal", "json", "nine"];

const PERL: [&str; 3] = ["perl", "posix", "getopt"];

/// The pages of one of them.
fn sibling(name: &str) -> Vec<PageId> {
    if PERL.contains(&name) {
        return perl(name);
    }
    let body: Vec<u32> = match name {
        "pass" => vec![],
        // It shares most of its pages with the module json.
        "decimal" => [2000..2032, 1010..1064].into_iter().flatten().collect(),
        "json" => (1000..1204).collect(),
        "nine" => [1000..1204, 3000..3800, 2000..2032, 3800..4517].into_iter().flatten().collect(),
        _ => panic!("no sibling {name}"),
    };
    let pages = [(0..946).collect(), body, (5000..5034).collect()].concat();
    pages.into_iter().map(page).collect()
}

/// 424 pages until the script is read, and 32 while it ends. Both modules use these too,
/// or most of them.
fn perl(name: &str) -> Vec<PageId> {
    let every = |pages: std::ops::Range<u32>, step: usize, mut end: Vec<u32>| -> Vec<u32> {
        let own: Vec<u32> = pages.collect();
        let mixed: Vec<u32> = own.chunks(step).flat_map(|own| [own, &[end.remove(0)]].concat()).collect();
        [mixed, end].concat()
    };
    let rest = match name {
        "perl" => (5000..5032).collect(),
        "posix" => every(1000..1310, 10, (5000..5032).collect()),
        _ => every(2000..2200, 12, (5000..5032).rev().collect()),
    };
    (0..424).chain(rest).map(page).collect()
}

/// 50 Mbit/s, and a round trip of 3 ms with the work of both sides.
fn wifi() -> CostModel {
    let micros = Duration::from_micros;
    CostModel { round_trip: micros(4500), page_time: micros(260), work: micros(120), ..CostModel::default() }
}

/// A link that is faster than the program: all that is ordered comes.
fn lan() -> CostModel {
    let micros = Duration::from_micros;
    CostModel { round_trip: micros(300), page_time: micros(20), work: micros(100), ..CostModel::default() }
}

/// One start after the other over WiFi.
fn starts(predictor: &mut ActionPredictor, names: &[&str]) -> Vec<Evaluation> {
    starts_over(&wifi(), predictor, names)
}

fn starts_over(link: &CostModel, predictor: &mut ActionPredictor, names: &[&str]) -> Vec<Evaluation> {
    let orders: Vec<Order> = names
        .iter()
        .enumerate()
        .map(|(at, name)| Order {
            token: Token(at as u128),
            name: Vec::new(),
            began: Moment(0),
            ended: None,
            pages: sibling(name),
            exact: true,
        })
        .collect();
    evaluate(predictor, &orders, link)
}

/// A predictor that has seen one exact run of each, in this order.
fn learned(names: &[&str], config: Config) -> ActionPredictor {
    let mut set = ActionSet::new(IMAGE);
    names.iter().for_each(|name| _ = set.learn(&sibling(name), &config.merge));
    ActionPredictor::with_actions(set, config)
}

fn no_audits() -> Config {
    Config { audits: Audits::NONE, ..Config::default() }
}

/// What a start over WiFi takes when nothing else was learned.
fn alone() -> HashMap<&'static str, Evaluation> {
    alone_over(&wifi())
}

fn alone_over(link: &CostModel) -> HashMap<&'static str, Evaluation> {
    let start = |name| starts_over(link, &mut learned(&[name], no_audits()), &[name])[0];
    NAMES.into_iter().map(|name| (name, start(name))).collect()
}

fn check_start(what: &str, name: &str, found: &Evaluation, alone: &HashMap<&str, Evaluation>, percent: u128) {
    let alone = &alone[name];
    assert!(found.wasted * 100 <= found.pushed * WASTE_PERCENT_MAX, "{what} {name}: {found:?}");
    assert!(found.demanded * 100 <= found.touched * DEMANDED_PERCENT_MAX, "{what} {name}: {found:?}");
    let (time, bar) = (found.wall.as_micros() * 100, alone.wall.as_micros() * percent);
    assert!(time <= bar, "{what} {name}: {found:?} alone {alone:?}");
}

/// All orders of the names.
fn permutations(names: &[&'static str]) -> Vec<Vec<&'static str>> {
    let Some((last, rest)) = names.split_last() else { return vec![vec![]] };
    let places = permutations(rest).into_iter().flat_map(|order| {
        (0..=order.len()).map(move |at| {
            let mut order = order.clone();
            order.insert(at, last);
            order
        })
    });
    places.collect()
}

#[test]
fn a_start_that_was_learned_beside_others_wastes_little_and_waits_little() {
    let alone = alone();
    for order in permutations(&NAMES) {
        for name in NAMES {
            let mut predictor = learned(&order, no_audits());
            let found = starts(&mut predictor, &[name])[0];
            check_start(&format!("after {order:?}"), name, &found, &alone, TIME_PERCENT_MAX);
        }
    }
}

#[test]
fn starts_in_turn_are_all_as_fast_as_alone() {
    let alone = alone();
    for order in permutations(&NAMES) {
        let mut predictor = learned(&order, no_audits());
        let names = [order.clone(), order.clone(), order.clone()].concat();
        for (at, found) in starts(&mut predictor, &names).iter().enumerate() {
            check_start(&format!("start {at} of {order:?}"), names[at], found, &alone, TIME_PERCENT_MAX);
        }
        assert_eq!(predictor.actions().len(), 4, "{order:?}");
    }
}

#[test]
fn a_first_shorter_run_wastes_no_more_than_the_window() {
    for (longer, shorter) in [("nine", "pass"), ("nine", "decimal"), ("nine", "json"), ("json", "pass")] {
        let mut predictor = learned(&[longer], no_audits());
        for found in &starts(&mut predictor, &[longer, longer, shorter, shorter, longer, shorter])[2..] {
            assert!(found.wasted * 100 <= found.pushed * WASTE_PERCENT_MAX, "{shorter} after {longer}: {found:?}");
            assert!(
                found.demanded * 100 <= found.touched * DEMANDED_PERCENT_MAX,
                "{shorter} after {longer}: {found:?}"
            );
        }
    }
}

#[test]
fn what_is_learned_from_starts_in_turn_is_as_good() {
    let alone = alone();
    for order in permutations(&NAMES) {
        let mut predictor = ActionPredictor::new(IMAGE, Config::default());
        let names: Vec<&str> = (0..8).flat_map(|_| order.clone()).collect();
        for (name, found) in names.iter().zip(&starts(&mut predictor, &names)).skip(2 * NAMES.len()) {
            check_start(&format!("turns of {order:?}"), name, found, &alone, TIME_PERCENT_LEARNING);
        }
    }
}

#[test]
fn right_after_an_audit_of_one_the_others_still_waste_little() {
    let alone = alone();
    for audited in NAMES {
        for name in NAMES {
            let mut set = learned(&NAMES, no_audits()).actions().clone();
            let id = set.learn(&sibling(audited), &no_audits().merge).action.unwrap();
            set.credit(id);
            set.prefer(id);
            let found = starts(&mut ActionPredictor::with_actions(set, no_audits()), &[name])[0];
            check_start(&format!("after an audit of {audited}"), name, &found, &alone, TIME_PERCENT_LEARNING);
        }
    }
}

#[test]
fn what_was_not_used_lately_wastes_little_over_any_link() {
    for link in [wifi(), lan()] {
        let alone = alone_over(&link);
        for often in NAMES {
            let mut set = learned(&NAMES, no_audits()).actions().clone();
            let id = set.learn(&sibling(often), &no_audits().merge).action.unwrap();
            (0..20).for_each(|_| set.credit(id));
            for name in NAMES {
                let mut predictor = ActionPredictor::with_actions(set.clone(), no_audits());
                let found = starts_over(&link, &mut predictor, &[name])[0];
                check_start(&format!("after many of {often}"), name, &found, &alone, TIME_PERCENT_MAX);
            }
        }
    }
}

#[test]
fn three_starts_of_each_in_turn_teach_all_of_them() {
    let alone = alone();
    for order in permutations(&NAMES) {
        let mut predictor = ActionPredictor::new(IMAGE, Config::default());
        starts(&mut predictor, &[order.clone(), order.clone(), order.clone()].concat());
        for name in NAMES {
            let config = Config { frozen: true, ..no_audits() };
            let mut taught = ActionPredictor::with_actions(predictor.actions().clone(), config);
            let found = starts(&mut taught, &[name])[0];
            check_start(&format!("three of {order:?}"), name, &found, &alone, TIME_PERCENT_TAUGHT);
        }
    }
}

#[test]
fn what_is_pushed_past_a_fork_is_bounded_by_odds_and_by_what_was_skipped() {
    let pages = |ranges: [std::ops::Range<u32>; 2]| -> Vec<PageId> { ranges.into_iter().flatten().map(page).collect() };
    let mut set = ActionSet::new(IMAGE);
    for run in [pages([0..1000, 5000..5030]), pages([0..1000, 1000..2000])] {
        set.learn(&run, &no_audits().merge);
    }
    let mut predictor = ActionPredictor::with_actions(set, no_audits());
    let mut through = |number: u32| {
        let push = predictor.touch(Token(1), page(number), Moment(1)).push;
        push.map(|order| order.through)
    };
    let before: Vec<u32> = (0..1000).step_by(32).filter_map(&mut through).collect();
    // Of 992 pages 148 may be in vain, and the longer one is the one with odds of 4 to 3.
    assert_eq!(before.last(), Some(&1056));
    // The pages from the fork to here may not have been needed: one segment more, not four.
    assert_eq!(through(1090), Some(1152));
}

#[test]
fn a_program_that_ends_with_pages_of_longer_ones_is_not_taken_for_them() {
    // Each turn takes two round trips, which are a sixth of a start over a far link.
    let far = (CostModel::default(), TIME_PERCENT_LEARNING);
    for (link, percent) in [(wifi(), TIME_PERCENT_MAX), (lan(), TIME_PERCENT_MAX), far] {
        let start = |name| starts_over(&link, &mut learned(&[name], no_audits()), &[name])[0];
        let alone: HashMap<&str, Evaluation> = PERL.into_iter().map(|name| (name, start(name))).collect();
        for order in permutations(&PERL) {
            let names: Vec<&str> = (0..8).flat_map(|_| order.clone()).collect();
            let known = starts_over(&link, &mut learned(&order, no_audits()), &names);
            for (name, found) in names.iter().zip(&known) {
                check_start(&format!("turns of {order:?}"), name, found, &alone, percent);
            }
            let mut predictor = ActionPredictor::new(IMAGE, Config::default());
            let learning = starts_over(&link, &mut predictor, &names);
            for (name, found) in names.iter().zip(&learning).skip(2 * PERL.len()) {
                check_start(&format!("learned turns of {order:?}"), name, found, &alone, TIME_PERCENT_LEARNING);
            }
            // Each was taken for itself.
            let uses: Vec<u64> = predictor.actions().iter().map(|action| action.uses).collect();
            assert_eq!(uses, [8; 3], "{order:?}");
        }
    }
}

#[test]
fn a_run_of_an_action_that_is_all_in_a_longer_one_counts_for_the_shorter_one() {
    for (shorter, longer) in [("pass", "json"), ("pass", "nine"), ("decimal", "nine"), ("json", "nine")] {
        let mut predictor = learned(&[shorter, longer], no_audits());
        starts(&mut predictor, &[longer; 6]);
        let uses = |predictor: &ActionPredictor| [1, 2].map(|id| predictor.action(units::ActionId(id)).unwrap().uses);
        let before = uses(&predictor);
        starts(&mut predictor, &[shorter]);
        assert_eq!(uses(&predictor), [before[0] + 1, before[1]], "{shorter} of {longer}");
    }
}
