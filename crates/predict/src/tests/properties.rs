//! What holds for any touches at all.

use std::collections::HashMap;

use proptest::prelude::*;
use units::ActionId;

use super::*;
use crate::{LinuxReadahead, MajorityTrend, Mode, PushOrder};

#[derive(Clone, Debug)]
enum Step {
    Touch(u8, u32),
    Stroll(u8, u32, u32),
    End(u8),
    Wait(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4u8, 0..60u32).prop_map(|(token, number)| Step::Touch(token, number)),
        6 => (0..4u8, 0..60u32, 1..30u32).prop_map(|(token, from, count)| Step::Stroll(token, from, count)),
        2 => (0..4u8).prop_map(Step::End),
        1 => (0..5000u32).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..80)
}

fn configs() -> impl Strategy<Value = Config> {
    let numbers = (2..9u32, 0..4u32, 0..4u32, 0..9u32, 0..3u32, 0..4u64);
    (any::<bool>(), numbers, 1..4usize, 5..80usize).prop_map(|(paper, numbers, tokens_max, recorded_pages_max)| {
        let (segment_pages, lookahead_first, lookahead_found, miss_limit, narrow_misses, audit_first) = numbers;
        let merge = profile::MergeConfig {
            actions_max: 6,
            variants_max: 2,
            pages_total_max: 150,
            action_pages_max: 40,
            ..Default::default()
        };
        Config {
            mode: if paper { Mode::Paper } else { Mode::Streaming },
            segment_pages,
            lookahead_first,
            lookahead_found,
            lookahead_max: 4,
            miss_limit,
            narrow_misses,
            audits: Audits { first: audit_first, every: 2 },
            construct_pages_min: 2,
            tokens_max,
            recorded_pages_max,
            merge,
            ..Config::default()
        }
    })
}

/// Plays the steps and gives all verdicts, checking each.
fn play(predictor: &mut dyn Predictor, gap_max: u32, steps: &[Step]) -> Vec<String> {
    let mut now = Moment(0);
    let mut log = Vec::new();
    let mut current: HashMap<Token, PushOrder> = HashMap::new();
    for step in steps {
        match *step {
            Step::Touch(token, number) => touch(predictor, token, number, now, gap_max, &mut current, &mut log),
            Step::Stroll(token, from, count) => {
                (from..from + count)
                    .for_each(|number| touch(predictor, token, number, now, gap_max, &mut current, &mut log));
            }
            Step::End(token) => {
                current.remove(&Token(token.into()));
                log.push(format!("{:?}", predictor.end(Token(token.into()), now)));
            }
            Step::Wait(milliseconds) => {
                now = now.after(Duration::from_millis(milliseconds.into()));
                for ended in predictor.expire(now) {
                    current.remove(&ended.token);
                    log.push(format!("{ended:?}"));
                }
            }
        }
    }
    log
}

fn touch(
    predictor: &mut dyn Predictor,
    token: u8,
    number: u32,
    now: Moment,
    gap_max: u32,
    current: &mut HashMap<Token, PushOrder>,
    log: &mut Vec<String>,
) {
    let token = Token(token.into());
    // The last few stand for the largest page numbers there are.
    let number = if number > 57 { u32::MAX - (number - 58) } else { number };
    let verdict = predictor.touch(token, page(number), now);
    if verdict.cancel {
        current.remove(&token);
    }
    if let (Some(hold), Some(order)) = (verdict.hold, current.get_mut(&token)) {
        assert!(hold <= order.through);
        order.through = hold;
    }
    if let Some(order) = verdict.push {
        assert!(order.from < order.through);
        assert_eq!(predictor.pages(token, &order).len() as u32, order.through - order.from, "an order has its pages");
        let last = current.insert(token, order);
        if order.action != ActionId(0) && !order.begins {
            // Within one sequence each order goes on where the last one ended, so no position is
            // ordered twice.
            let last = last.expect("what extends a sequence has one to extend");
            let of = |order: &PushOrder| (order.action, order.revision, order.audit);
            assert_eq!(of(&last), of(&order));
            // In paper mode one page between them was asked for just now.
            assert!((0..=gap_max).contains(&(order.from - last.through)), "{last:?} then {order:?}");
        }
    }
    log.push(format!("{verdict:?}"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn prop_any_touches_give_orders_within_bounds(steps in steps(), config in configs()) {
        let gap_max = u32::from(config.mode == Mode::Paper);
        let mut predictor = ActionPredictor::new(IMAGE, config.clone());
        let log = play(&mut predictor, gap_max, &steps);
        prop_assert!(predictor.tokens() <= config.tokens_max);
        // What a run keeps: pages seen, and the extras of two actions, none more than its bound.
        let run_pages_max = config.merge.action_pages_max + 2 * config.merge.action_pages_max.max(64);
        let held = predictor.memory_bytes() - predictor.actions().pages_total() * 56 - predictor.tokens() * 400;
        prop_assert!(held <= predictor.tokens() * run_pages_max * 32, "{} bytes", held);
        prop_assert!(predictor.actions().len() <= config.merge.actions_max);
        prop_assert!(predictor.actions().pages_total() <= config.merge.pages_total_max);
        for action in predictor.actions().iter() {
            prop_assert_eq!(&profile::first_touches(&action.pages, usize::MAX), &action.pages);
        }
        // The same steps give the same verdicts and the same set.
        let mut again = ActionPredictor::new(IMAGE, config);
        prop_assert_eq!(play(&mut again, gap_max, &steps), log);
        prop_assert_eq!(again.actions(), predictor.actions());
        prop_assert_eq!(again.counters(), predictor.counters());
    }

    #[test]
    fn prop_the_index_follows_the_set(steps in steps(), config in configs()) {
        let gap_max = u32::from(config.mode == Mode::Paper);
        let mut predictor = ActionPredictor::new(IMAGE, config.clone());
        play(&mut predictor, gap_max, &steps);
        for token in 0..4u128 {
            predictor.end(Token(token), Moment(0));
        }
        prop_assert_eq!(predictor.tokens(), 0);
        // A predictor that loads the set has an index made afresh; both must go on alike.
        let mut fresh = ActionPredictor::with_actions(predictor.actions().clone(), config);
        prop_assert_eq!(play(&mut fresh, gap_max, &steps), play(&mut predictor, gap_max, &steps));
    }

    #[test]
    fn prop_baselines_take_any_touches(steps in steps()) {
        let bounded = |pages: u32| LinuxReadahead::new(move |_| pages);
        for pages in [0, 10, u32::MAX] {
            prop_assert_eq!(play(&mut bounded(pages), 0, &steps), play(&mut bounded(pages), 0, &steps));
        }
        prop_assert_eq!(play(&mut MajorityTrend::new(), 0, &steps), play(&mut MajorityTrend::new(), 0, &steps));
    }
}
