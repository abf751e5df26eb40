//! The window ahead: growth, misses, other variants, leaving and coming back, the end, audits,
//! bounds.

use super::*;

/// Segments of four, no audits, little lookahead: short scripts.
fn config() -> Config {
    Config {
        segment_pages: 4,
        lookahead_first: 1,
        lookahead_max: 4,
        miss_limit: 4,
        detour_files: 0,
        audits: Audits::NONE,
        ..Config::default()
    }
}

fn run(numbers: std::ops::Range<u32>) -> Vec<u32> {
    numbers.collect()
}

#[test]
fn the_push_starts_with_the_first_page_and_the_window_doubles() {
    let mut predictor = knowing(config(), &[&run(0..60)]);
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         a 1  -> generate
         a 4  -> generate push 8..15
         a 8  -> generate push 16..27
         a 12 -> generate push 28..31
         a 9  -> generate
         a 16 -> generate push 32..35
         a 30 -> generate push 36..47
         a end -> action 1",
    );
    assert_eq!(predictor.counters().generated_pages, 47);
}

#[test]
fn a_touch_elsewhere_holds_the_push_back_and_another_one_there_moves_it() {
    let mut predictor = knowing(config(), &[&run(0..80)]);
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         a 4  -> generate push 8..15
         a 8  -> generate push 16..27
         a 40 -> generate hold 16
         a 12 -> generate push 16..23
         a 60 -> generate hold 20
         a 41 -> generate cancel push 42..47
         a 44 -> generate push 48..55
         a 17 -> generate cancel push 18..23
         a end -> action 1",
    );
}

#[test]
fn a_miss_becomes_an_extra_where_it_happened() {
    let mut predictor = knowing(config(), &[&run(0..12)]);
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         a 4  -> generate push 8..11
         a 90 -> generate
         a 91 -> generate
         a 90 -> generate
         a 8  -> generate
         a end -> action 1 changed
         b 0  -> match push 1..4 90..91 5
         b 4  -> generate push 6..11",
    );
    assert_eq!(predictor.counters().extended_pages, 2);
}

#[test]
fn many_misses_in_a_row_leave_the_action_and_make_another() {
    let mut predictor = knowing(config(), &[&run(0..40)]);
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         a 4  -> generate push 8..15
         a 70 -> generate
         a 71 -> generate
         a 72 -> generate
         a 73 -> construct cancel
         a 74 -> construct
         a end -> action 2 changed
         b 0  -> match push 1..7
         b 4  -> generate push 8..15
         b 70 -> generate
         b 71 -> generate cancel push 72..74
         b 74 -> generate",
    );
    assert_eq!(predictor.action(units::ActionId(1)).unwrap().pages.len(), 40, "the first action stays clean");
}

#[test]
fn a_run_that_comes_back_goes_on_where_it_is() {
    let mut predictor = knowing(config(), &[&run(0..40)]);
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         a 4  -> generate push 8..15
         a 70 -> generate
         a 71 -> generate
         a 72 -> generate
         a 73 -> construct cancel
         a 16 -> construct
         a 17 -> generate push 18..23
         a end -> action 1 changed",
    );
    let pages = &predictor.action(units::ActionId(1)).unwrap().pages;
    assert_eq!(ranges(pages), " 0..4 70..73 5..39");
}

#[test]
fn misses_are_explained_by_the_action_that_has_most_of_them() {
    let mut predictor = knowing(config(), &[&run(0..40), &[100, 101, 102, 103, 104, 105, 106, 107]]);
    check(
        &mut predictor,
        "a 0   -> match push 1..7
         a 4   -> generate push 8..15
         a 101 -> generate
         a 200 -> generate
         a 102 -> generate
         a 103 -> generate cancel push 104..107",
    );
    assert_eq!(predictor.counters().rescans, 1);
}

#[test]
fn the_first_page_of_another_action_takes_over_at_once() {
    let mut predictor = knowing(config(), &[&run(0..8), &[100, 101, 102, 103, 104, 105]]);
    check(
        &mut predictor,
        "a 0   -> match push 1..7
         a 4   -> generate
         a 100 -> match cancel push 101..105
         a 101 -> generate
         a end -> action 2",
    );
    let uses: Vec<u64> = predictor.actions().iter().map(|action| action.uses).collect();
    assert_eq!(uses, [2, 2], "both actions were followed");
}

#[test]
fn a_lesser_action_does_not_take_over_in_mid_run() {
    let mut predictor = knowing(config(), &[&[100, 101, 102, 103, 104, 105], &run(0..80)]);
    check(
        &mut predictor,
        "a 0   -> match push 1..7
         a 100 -> match
         a 4   -> generate push 8..15",
    );
}

#[test]
fn following_touches_tell_variants_apart() {
    let one = [run(0..10), run(50..90)].concat();
    let two = [run(0..10), run(100..140)].concat();
    let mut predictor = knowing(config(), &[&one, &two]);
    // The variant learned last ranks first.
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         a 1  -> generate
         a 50 -> generate
         a 51 -> generate cancel push 52..55
         a end -> action 1
         b 0  -> match push 1..7
         b 4  -> generate push 8..9 50..51",
    );
}

#[test]
fn a_few_pages_past_the_end_extend_the_action() {
    let mut predictor = knowing(Config { segment_pages: 8, ..config() }, &[&run(0..8)]);
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         a 1  -> generate
         a 20 -> generate
         a 21 -> generate
         a 22 -> generate
         a 23 -> generate
         a 24 -> generate
         wait 2 ->
         wait 1 -> a action 1 changed",
    );
    assert_eq!(ranges(&predictor.action(units::ActionId(1)).unwrap().pages), " 0..1 20..24 2..7");
}

#[test]
fn many_pages_past_the_end_are_another_action() {
    let mut predictor = knowing(config(), &[&run(0..8)]);
    let mut script = "a 0 -> match push 1..7\n a 4 -> generate\n".to_string();
    (20..27).for_each(|number| script.push_str(&format!("a {number} -> generate\n")));
    script.push_str("a 27 -> construct cancel\n a 28 -> construct\n a end -> action 2 changed\n");
    script.push_str("b 0 -> match push 1..7\n b 4 -> generate\n b 20 -> match cancel push 21..27\n");
    check(&mut predictor, &script);
}

#[test]
fn a_silent_run_in_mid_action_lingers() {
    let mut predictor = knowing(config(), &[&run(0..40)]);
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         a 4  -> generate push 8..15
         wait 30 ->
         a 8  -> generate push 16..27
         wait 60 -> a action 1",
    );
}

#[test]
fn a_script_in_front_of_a_known_program_finds_it_by_its_first_two_pages() {
    let mut predictor = knowing(config(), &[&run(0..40)]);
    check(
        &mut predictor,
        "a 500 -> construct
         a 0   -> construct
         a 1   -> generate push 2..7
         a 4   -> generate push 8..15
         b 501 -> construct
         b 0   -> construct
         b 502 -> construct
         b 4   -> construct",
    );
}

#[test]
fn a_warm_device_is_found_in_mid_action_with_little_trust() {
    let mut predictor = knowing(Config { lookahead_first: 8, ..config() }, &[&run(0..80)]);
    check(
        &mut predictor,
        "a 21 -> generate push 22..27
         a 22 -> generate
         a 24 -> generate push 28..35",
    );
}

#[test]
fn stray_misses_of_a_warm_device_do_not_widen_the_window() {
    let mut predictor = knowing(Config { lookahead_found: 0, ..config() }, &[&run(0..80)]);
    check(
        &mut predictor,
        "a 21 -> generate push 22..23
         a 41 -> generate push 42..43
         a 61 -> generate push 62..63
         a 70 -> generate push 71",
    );
    assert_eq!(predictor.counters().generated_pages, 7);
}

#[test]
fn an_audit_sees_the_exact_order_and_refines() {
    let config = Config { audits: Audits { first: 1, every: 8 }, ..config() };
    let mut predictor = knowing(config, &[&run(0..20)]);
    let mut script = "a 0 -> match audit 1..7\n".to_string();
    // Page 3 is not needed any more, 30 is new, 6 comes before 5: that moves no page.
    for (number, verdict) in [
        (1, "generate"),
        (2, "generate"),
        (4, "generate audit 8..15"),
        (6, "generate"),
        (5, "generate"),
        (30, "generate"),
        (7, "generate"),
        (8, "generate audit 16..19"),
    ] {
        script.push_str(&format!("a {number} -> {verdict}\n"));
    }
    (9..20).for_each(|number| script.push_str(&format!("a {number} -> generate\n")));
    script.push_str("a end -> action 1 changed\n");
    check(&mut predictor, &script);
    let action = predictor.actions().iter().next().unwrap();
    assert_eq!(ranges(&action.pages), " 0..2 4..5 30 6..19");
    assert_eq!((action.runs, action.revision, action.uses), (2, 1, 2));
    assert_eq!(predictor.counters().audits, 1);
}

#[test]
fn a_run_that_goes_its_own_way_is_learned_from_its_start() {
    let config = Config { audits: Audits { first: 100, every: 8 }, ..config() };
    let mut predictor = knowing(config, &[&run(0..40)]);
    let mut script = "a 0 -> match push 1..7\n a 4 -> generate push 8..15\n a 8 -> generate push 16..27\n".to_string();
    script.push_str("a 70 -> generate\n a 71 -> generate\n a 72 -> generate\n a 73 -> construct cancel\n");
    (74..100).for_each(|number| script.push_str(&format!("a {number} -> construct\n")));
    // What is pushed from here on hides no touch.
    script
        .push_str("a 30 -> construct\n a 31 -> generate audit 32..39\n a 32 -> generate\n a end -> action 2 changed\n");
    check(&mut predictor, &script);
    // It may have touched the rest of the segment that it was in.
    let action = predictor.action(units::ActionId(2)).unwrap();
    assert_eq!(ranges(&action.pages), " 0..8 70..73 9..11 74..99 30..32");
    assert_eq!(ranges(&predictor.action(units::ActionId(1)).unwrap().pages), " 0..39");
}

#[test]
fn what_a_run_of_a_known_action_has_beside_it_is_learned_and_raises_no_doubt() {
    let config = Config { audits: Audits { first: 100, every: 8 }, ..config() };
    let mut predictor = knowing(config, &[&run(0..80)]);
    // A module that is not known, and behind the rest two pages.
    let pages = [run(0..9), run(90..100), run(12..70), run(200..202), run(70..80)].concat();
    let mut audits = |token: u128| {
        let before = predictor.counters().audits;
        pages.iter().for_each(|number| _ = predictor.touch(Token(token), page(*number), Moment(1)));
        predictor.end(Token(token), Moment(1));
        let learned: Vec<String> = predictor.actions().iter().map(|action| ranges(&action.pages)).collect();
        assert_eq!(learned, [" 0..69 200..201 70..79", " 90..99"]);
        predictor.counters().audits - before
    };
    // It strays at the module each time, and less and less is expected of that.
    assert_eq!((0..16).map(&mut audits).collect::<Vec<_>>(), [1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_run_that_may_have_touched_all_that_it_was_pushed_is_not_learned_as_new() {
    let config = Config { lookahead_first: 64, audits: Audits { first: 100, every: 8 }, ..Config::default() };
    let mut predictor = knowing(config, &[&run(0..2000)]);
    let mut touch = |number: u32| predictor.touch(Token(1), page(number), Moment(1));
    let orders: Vec<(u32, u32)> = [0, 1, 32]
        .into_iter()
        .filter_map(|number| touch(number).push.map(|order| (order.from, order.through)))
        .collect();
    assert_eq!(orders, [(1, 2000)]);
    // All was sent long before the first of these says to hold it, so what lies between was seen by
    // nobody.
    assert_eq!(touch(1500).hold, Some(96));
    assert!(touch(1510).push.is_some_and(|order| order.audit));
    (1511..2000).for_each(|number| _ = touch(number));
    assert_eq!(predictor.end(Token(1), Moment(1)).action, None);
    assert_eq!(predictor.actions().len(), 1);
}

#[test]
fn a_doubt_lasts_until_an_audit_finds_something_new() {
    let config = Config { audits: Audits { first: 100, every: 8 }, ..config() };
    let mut predictor = knowing(config, &[&run(0..40)]);
    let whole = |predictor: &mut ActionPredictor, pages: &[u32]| {
        let before = predictor.counters().audits;
        for number in pages {
            predictor.touch(Token(1), page(*number), Moment(1));
        }
        predictor.end(Token(1), Moment(1));
        predictor.counters().audits - before
    };
    let (known, other) = (run(0..40), [vec![0], run(100..140)].concat());
    let audits: Vec<u64> =
        [&known, &other, &known, &known, &other, &known].map(|pages| whole(&mut predictor, pages)).to_vec();
    assert_eq!(audits, [0, 0, 1, 1, 1, 0]);
}

#[test]
fn audits_come_second_and_then_every_eighth() {
    let config = Config::default();
    let audits: Vec<u64> = (1..30).filter(|push| config.audits.include(*push)).collect();
    assert_eq!(audits, [2, 10, 18, 26]);
    assert_eq!((1..30).filter(|push| Audits { first: 0, ..config.audits }.include(*push)).count(), 0);
    assert_eq!((1..30).filter(|push| Audits { every: 0, ..config.audits }.include(*push)).count(), 1);
}

#[test]
fn an_audit_of_another_behaviour_keeps_the_whole_order() {
    let config = Config { audits: Audits { first: 1, every: 8 }, ..config() };
    let mut predictor = knowing(config, &[&run(0..40)]);
    let mut script = "a 0 -> match audit 1..7\n a 1 -> generate\n a 4 -> generate audit 8..15\n".to_string();
    script.push_str("a 70 -> generate\n a 71 -> generate\n a 72 -> generate\n a 73 -> construct cancel\n");
    (74..100).for_each(|number| script.push_str(&format!("a {number} -> construct\n")));
    script.push_str("a end -> action 2 changed\n");
    check(&mut predictor, &script);
    let action = predictor.action(units::ActionId(2)).unwrap();
    assert_eq!(ranges(&action.pages), " 0..1 4 70..99");
}

#[test]
fn a_run_with_pushed_pages_is_never_an_audit() {
    // Both actions would be audited at their second push; the first of the two runs out of step by
    // one.
    let config = Config { audits: Audits { first: 2, every: 0 }, ..config() };
    let mut predictor = knowing(config, &[&run(0..8), &[100, 101, 102, 103, 104]]);
    check(
        &mut predictor,
        "b 100 -> match push 101..104
         b end -> action 2
         a 0   -> match push 1..7
         a 4   -> generate
         a 100 -> match cancel push 101..104",
    );
}

#[test]
fn positions_stay_what_they_were_while_the_action_changes() {
    let mut predictor = knowing(config(), &[&run(0..20)]);
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         b 0  -> match push 1..7
         b 4  -> generate push 8..15
         b 90 -> generate
         b 8  -> generate push 16..19
         b end -> action 1 changed
         a 4  -> generate push 8..15
         a 8  -> generate push 16..19",
    );
}

#[test]
fn tokens_are_bounded_and_the_one_idle_longest_goes_first() {
    let mut predictor = ActionPredictor::new(IMAGE, Config { tokens_max: 3, ..config() });
    for (time, token) in [(0, 1), (1, 2), (2, 3), (3, 1), (4, 4)] {
        predictor.touch(Token(token), page(1), Moment(time));
    }
    assert_eq!(predictor.tokens(), 3);
    assert_eq!(predictor.phase(Token(2)), None);
    assert!(predictor.phase(Token(1)).is_some() && predictor.phase(Token(4)).is_some());
    assert_eq!(predictor.counters().crowded_out, 1);
}

#[test]
fn recorded_pages_are_bounded() {
    let mut predictor = ActionPredictor::new(IMAGE, Config { recorded_pages_max: 50, ..config() });
    for number in 0..40 {
        predictor.touch(Token(1), page(number), Moment(number.into()));
    }
    for number in 1000..1020 {
        predictor.touch(Token(2), page(number), Moment(number.into()));
    }
    assert_eq!((predictor.tokens(), predictor.phase(Token(1))), (1, None));
    assert_eq!(predictor.actions().len(), 1, "what was recorded is not lost");
}

#[test]
fn a_run_too_short_is_no_action() {
    let mut predictor = ActionPredictor::new(IMAGE, config());
    check(
        &mut predictor,
        "a 1 -> construct
         a 2 -> construct
         a 3 -> construct
         a end -> none
         a end -> none",
    );
}

#[test]
fn a_frozen_predictor_pushes_and_learns_nothing() {
    let mut predictor = knowing(Config { frozen: true, ..config() }, &[&run(0..12)]);
    // All but the count of pushes.
    let known = |predictor: &ActionPredictor| -> Vec<_> {
        let ranked = predictor.actions().ranked();
        ranked.iter().map(|action| (action.id, action.revision, action.uses, action.pages.clone())).collect()
    };
    let before = known(&predictor);
    check(
        &mut predictor,
        "a 0  -> match push 1..7
         a 4  -> generate push 8..11
         a 90 -> generate
         a 8  -> generate
         a end -> action 1
         b 70 -> construct
         b 71 -> construct
         b 72 -> construct
         b 73 -> construct
         b 74 -> construct
         b end -> none",
    );
    assert_eq!(known(&predictor), before);
}
