//! SYSFLOW's worked example: segments of four, the startup action B1 B3 B8 B9 | B11 B12 B14 B15,
//! and a workload action.

use std::time::Duration;

use profile::Limits;

use super::*;
use crate::Mode;

fn config() -> Config {
    Config { mode: Mode::Paper, segment_pages: 4, ..Config::default() }
}

const STARTUP: &[u32] = &[1, 3, 8, 9, 11, 12, 14, 15];
const WORKLOAD: &[u32] = &[20, 21, 25, 26, 30];

#[test]
fn an_unknown_run_is_constructed_page_by_page() {
    let mut predictor = ActionPredictor::new(IMAGE, config());
    check(
        &mut predictor,
        "a 1  -> construct
         a 3  -> construct
         a 8  -> construct
         a 9  -> construct
         a 3  -> construct
         a 11 -> construct
         a 12 -> construct
         a 14 -> construct
         a 15 -> construct
         a end -> action 1 changed",
    );
    let action = predictor.actions().iter().next().unwrap();
    assert_eq!(action.pages, STARTUP.iter().map(|number| page(*number)).collect::<Vec<_>>());
    assert_eq!(predictor.take_changed(), [units::ActionId(1)]);
    assert_eq!(predictor.take_changed(), []);
    assert_eq!((predictor.counters().constructs, predictor.counters().created), (1, 1));
}

#[test]
fn a_known_run_matches_and_generates_one_segment_per_match() {
    let mut predictor = knowing(config(), &[STARTUP]);
    check(
        &mut predictor,
        "a 1  -> match
         a 3  -> generate push 8..9
         a 8  -> generate
         a 9  -> generate
         a 11 -> generate push 12 14..15
         a 12 -> generate
         a 15 -> generate
         a end -> action 1",
    );
    assert_eq!(predictor.actions().iter().next().unwrap().uses, 2);
    let counters = predictor.counters();
    assert_eq!((counters.matches, counters.mismatches, counters.generated_pages), (2, 0, 5));
}

#[test]
fn pushed_pages_need_not_be_seen() {
    let mut predictor = knowing(config(), &[STARTUP]);
    check(
        &mut predictor,
        "a 1  -> match
         a 3  -> generate push 8..9
         a 11 -> generate push 12 14..15",
    );
}

#[test]
fn long_segments_have_a_third_match_that_hides_the_round_trip() {
    let pages: Vec<u32> = (0..32).collect();
    let config = Config { segment_pages: 8, ..config() };
    let mut predictor = knowing(config, &[&pages]);
    // SEG_MAX-2 is position 6 of 8, index 5.
    check(
        &mut predictor,
        "a 0  -> match
         a 1  -> generate push 2..7
         a 2  -> generate
         a 4  -> generate
         a 5  -> generate push 8..15
         a 6  -> generate
         a 8  -> generate push 16..23
         a 9  -> generate
         a 16 -> generate push 24..31
         a 24 -> generate
         a end -> action 1",
    );
}

#[test]
fn the_workload_follows_the_startup_as_an_action_of_its_own() {
    let mut predictor = knowing(config(), &[STARTUP]);
    let startup = "a 1  -> match
         a 3  -> generate push 8..9
         a 11 -> generate push 12 14..15";
    check(&mut predictor, startup);
    check(
        &mut predictor,
        "a 20 -> construct cancel
         a 21 -> construct
         a 25 -> construct
         a 26 -> construct
         a 30 -> construct
         a end -> action 2 changed",
    );
    check(&mut predictor, startup);
    check(
        &mut predictor,
        "a 20 -> generate cancel push 21 25..26
         a 30 -> generate
         a end -> action 2",
    );
}

#[test]
fn a_mismatch_finds_the_page_in_any_segment() {
    let mut predictor = knowing(config(), &[STARTUP, WORKLOAD]);
    check(
        &mut predictor,
        "a 1  -> match
         a 3  -> generate push 8..9
         a 21 -> generate cancel push 25..26
         a 30 -> generate
         a 14 -> generate cancel push 15",
    );
    assert_eq!((predictor.counters().mismatches, predictor.counters().rescans), (2, 2));
}

#[test]
fn a_page_further_on_in_the_same_action_is_found_there() {
    let mut predictor = knowing(config(), &[STARTUP, &[40, 12, 41, 42, 43]]);
    check(
        &mut predictor,
        "a 1  -> match
         a 3  -> generate push 8..9
         a 12 -> generate cancel push 14..15
         a 8  -> generate",
    );
}

#[test]
fn a_mismatch_at_position_2_makes_a_variant_that_is_told_apart_there() {
    let mut predictor = knowing(config(), &[STARTUP]);
    check(
        &mut predictor,
        "a 1  -> match
         a 4  -> construct
         a 5  -> construct
         a 8  -> construct
         a end -> action 2 changed
         b 1  -> match
         b 4  -> generate push 5 8
         c 1  -> match
         c 3  -> generate push 8..9",
    );
}

#[test]
fn construction_ends_after_three_seconds_without_a_touch() {
    let mut predictor = ActionPredictor::new(IMAGE, config());
    check(
        &mut predictor,
        "a 1 -> construct
         a 3 -> construct
         a 8 -> construct
         wait 2.5 ->
         a 9 -> construct
         wait 2.5 ->
         wait 0.5 -> a action 1 changed
         wait 9 ->
         a 1 -> match
         a 3 -> generate push 8..9",
    );
    assert_eq!(predictor.counters().expired, 1);
}

#[test]
fn the_timer_holds_even_if_nobody_asks_it() {
    let mut predictor = ActionPredictor::new(IMAGE, config());
    for (second, number) in [(0, 1), (1, 3), (2, 8), (3, 9), (7, 1)] {
        let verdict = predictor.touch(Token(1), page(number), Moment(second * 1_000_000));
        assert_eq!(verdict.phase, if second == 7 { Phase::Match } else { Phase::Construct });
    }
}

#[test]
fn two_instances_of_one_program_do_not_disturb_each_other() {
    let mut predictor = knowing(config(), &[STARTUP]);
    check(
        &mut predictor,
        "a 1  -> match
         b 1  -> match
         a 3  -> generate push 8..9
         a 11 -> generate push 12 14..15
         b 3  -> generate push 8..9
         a 50 -> construct cancel
         b 11 -> generate push 12 14..15
         a end -> none
         b 12 -> generate
         b end -> action 1",
    );
}

#[test]
fn two_first_runs_at_once_make_one_action() {
    let mut predictor = ActionPredictor::new(IMAGE, config());
    check(
        &mut predictor,
        "a 1 -> construct
         b 1 -> construct
         a 3 -> construct
         b 3 -> construct
         a 8 -> construct
         a 9 -> construct
         b 8 -> construct
         b 9 -> construct
         a end -> action 1 changed
         b end -> action 1",
    );
    assert_eq!(predictor.actions().len(), 1);
}

#[test]
fn actions_are_saved_and_loaded() {
    let mut first = ActionPredictor::new(IMAGE, config());
    for number in STARTUP {
        first.touch(Token(1), page(*number), Moment(0));
    }
    first.end(Token(1), Moment(0));
    let saved = first.actions().encode();
    let set = profile::decode(&saved, &Limits::default()).unwrap();
    let mut second = ActionPredictor::with_actions(set, config());
    check(
        &mut second,
        "a 1 -> match
         a 3 -> generate push 8..9",
    );
}

#[test]
fn the_papers_constants_are_the_defaults() {
    let config = Config::default();
    assert_eq!(config.segment_pages, 32);
    assert_eq!(config.construction_timer, Duration::from_secs(3));
    assert_eq!(crate::follow::third_match(&config), Some(29), "position SEG_MAX-2, counted from 1");
    assert_eq!((Mode::from_push_window(0), Mode::from_push_window(1)), (Mode::Paper, Mode::Streaming));
}
