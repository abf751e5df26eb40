//! Whole programs on a modelled link: what learning saves and wastes, and how fast it follows a
//! change.

use profile::Order;
use units::{Rng, SplitMix64};

use super::*;
use crate::{CostModel, Evaluation, LinuxReadahead, MajorityTrend, Mode, Visible, evaluate};

/// A program like an interpreter with modules: a binary and libraries touched in part and out of
/// order, then files read in sequence. `variation` in a hundred of the later pages differ from run
/// to run.
fn program(seed: u64, variation: u64, run: u64) -> Order {
    let mut fixed = SplitMix64(seed);
    let mut own = SplitMix64(seed ^ run.wrapping_mul(0x1234_5678_9abc_def1));
    let mut pages = vec![PageId::new(InodeId(1), 0)];
    for inode in 1..6 {
        for _ in 0..60 {
            pages.push(PageId::new(InodeId(inode), fixed.below(400) as u32));
        }
    }
    for inode in 10..60 {
        for index in 0..fixed.below(12) as u32 {
            let other = own.below(100) < variation;
            pages.push(PageId::new(InodeId(if other { 1000 + own.below(1000) as u32 } else { inode }), index));
        }
    }
    let pages = profile::first_touches(&pages, usize::MAX);
    Order {
        token: Token(u128::from(seed) << 64 | u128::from(run)),
        name: Vec::new(),
        began: Moment(0),
        ended: None,
        pages,
        exact: true,
    }
}

fn runs(predictor: &mut dyn Predictor, variation: u64, runs: std::ops::Range<u64>) -> Vec<Evaluation> {
    let orders: Vec<Order> = runs.map(|run| program(1, variation, run)).collect();
    evaluate(predictor, &orders, &CostModel::default())
}

#[test]
fn learned_starts_lose_nine_tenths_of_their_misses_at_little_waste() {
    for variation in [0, 2, 5] {
        let mut predictor = ActionPredictor::new(IMAGE, Config::default());
        let results = runs(&mut predictor, variation, 0..12);
        let first = results[0];
        assert_eq!((first.pushed, first.demanded), (0, first.touched), "the first run is constructed");
        for (run, result) in results.iter().enumerate().skip(1) {
            assert!(result.demanded * 10 <= first.demanded, "variation {variation}, run {run}: {result:?}");
            assert!(result.wasted * 100 <= result.pushed * 15, "variation {variation}, run {run}: {result:?}");
        }
        assert_eq!(first.demanded + first.hit, first.touched);
    }
}

#[test]
fn streaming_waits_less_than_the_paper_and_the_paper_less_than_the_baselines() {
    let learned = |mode: Mode, visible: Visible| {
        let mut predictor = ActionPredictor::new(IMAGE, Config { mode, ..Config::default() });
        let orders: Vec<Order> = (0..4).map(|run| program(1, 2, run)).collect();
        evaluate(&mut predictor, &orders, &CostModel { visible, ..CostModel::default() })[3]
    };
    let streaming = learned(Mode::Streaming, Visible::SegmentStarts);
    let paper = learned(Mode::Paper, Visible::All);
    let linux = runs(&mut LinuxReadahead::new(|inode| if inode.0 < 6 { 400 } else { 12 }), 2, 0..4)[3];
    let leap = runs(&mut MajorityTrend::new(), 2, 0..4)[3];
    assert!(streaming.stalled < paper.stalled, "{streaming:?} {paper:?}");
    assert!(paper.stalled < linux.stalled && paper.stalled < leap.stalled, "{paper:?} {linux:?} {leap:?}");
}

#[test]
fn a_first_start_with_hidden_touches_is_completed_by_the_next_one() {
    let mut predictor = ActionPredictor::new(IMAGE, Config::default());
    let mut start = |pages: &[u32]| {
        let touch = |number: &u32| predictor.touch(Token(1), page(*number), Moment(1)).push;
        let audits: Vec<bool> = pages.iter().filter_map(touch).map(|order| order.audit).collect();
        predictor.end(Token(1), Moment(1));
        let learned: Vec<String> = predictor.actions().iter().map(|action| ranges(&action.pages)).collect();
        (audits.is_empty(), audits.into_iter().all(|audit| audit), learned)
    };
    // From page 600 on the kernel has most pages before they are touched.
    let whole: Vec<u32> = (0..1000).collect();
    let seen: Vec<u32> = (0..1000).filter(|number| *number < 600 || number % 24 == 0).collect();
    assert!(start(&seen).0);
    let expected = (false, true, vec![" 0..999".to_string()]);
    assert_eq!([start(&whole), start(&whole)], [expected.clone(), expected.clone()]);
    assert_eq!(start(&whole), (false, false, expected.2));
}

#[test]
fn an_audit_is_pushed_no_further_ahead_than_a_device_holds_back() {
    let furthest = |audits: Audits| {
        let whole: Vec<u32> = (0..5000).collect();
        let mut predictor = knowing(Config { audits, ..Config::default() }, &[&whole]);
        let through = |number: u32| Some((number, predictor.touch(Token(1), page(number), Moment(1)).push?.through));
        let orders: Vec<(u32, u32)> = (0..5000).filter_map(through).collect();
        assert_eq!(orders.last().map(|order| order.1), Some(5000));
        orders.into_iter().map(|(number, through)| through - number).max()
    };
    let pages = |segments: u32| Some((segments + 1) * units::SEGMENT_PAGES_MAX as u32);
    assert_eq!(furthest(Audits { first: 1, every: 0 }), pages(Config::default().lookahead_audit));
    assert_eq!(furthest(Audits::NONE), pages(Config::default().lookahead_max));
}

#[test]
fn a_changed_program_is_followed_within_a_few_audits() {
    // The same program (its first page stays), of which half the libraries change.
    let changed = |run: u64| {
        let mut order = program(1, 0, run);
        for page in order.pages.iter_mut().skip(1).filter(|page| page.inode.0 % 2 == 1) {
            page.inode.0 += 5000;
        }
        order.token = Token(1 << 100 | u128::from(run));
        order
    };
    let mut predictor =
        ActionPredictor::new(IMAGE, Config { audits: Audits { first: 2, every: 2 }, ..Config::default() });
    let before = runs(&mut predictor, 0, 0..10);
    assert!(before[9].demanded * 10 <= before[0].demanded);
    let orders: Vec<Order> = (0..10).map(changed).collect();
    let after = evaluate(&mut predictor, &orders, &CostModel::default());
    let last = after[9];
    assert!(last.demanded * 10 <= last.touched, "{after:#?}");
    assert!(last.wasted * 100 <= last.pushed * 15, "{after:#?}");
}

#[test]
fn two_programs_that_share_libraries_are_learned_side_by_side() {
    let other = |run: u64| {
        let mut order = program(1, 0, run);
        order.pages[0] = PageId::new(InodeId(77), 0);
        order.pages.retain(|page| page.inode.0 < 30 || page.inode.0 == 77);
        order.token = Token(1 << 100 | u128::from(run));
        order
    };
    let orders: Vec<Order> = (0..8).flat_map(|run| [program(1, 0, run), other(run)]).collect();
    let mut predictor = ActionPredictor::new(IMAGE, Config::default());
    let results = evaluate(&mut predictor, &orders, &CostModel::default());
    for result in &results[4..] {
        assert!(result.demanded * 10 <= result.touched && result.wasted * 100 <= result.pushed * 15, "{result:?}");
    }
    assert_eq!(predictor.actions().len(), 2);
}

#[test]
fn one_binary_with_several_tasks_keeps_variants() {
    let task = |task: u64, run: u64| {
        let mut order = program(1, 0, 0);
        let own = program(2 + task, 0, 0);
        order.pages.truncate(100);
        order.pages.extend(
            own.pages.iter().map(|page| PageId::new(InodeId(page.inode.0 + 100 * (1 + task as u32)), page.index)),
        );
        order.token = Token(u128::from(task) << 32 | u128::from(run));
        order
    };
    let orders: Vec<Order> = (0..24).map(|run| task((run / 3) % 3, run)).collect();
    let mut predictor = ActionPredictor::new(IMAGE, Config::default());
    let results = evaluate(&mut predictor, &orders, &CostModel::default());
    let total = Evaluation::total(&results[9..]);
    assert!(total.demanded * 5 <= total.touched, "{total:?} {results:#?}");
    assert!(predictor.actions().len() <= 16, "{}", predictor.actions().len());
}

#[test]
fn accounts_add_up() {
    let mut predictor = ActionPredictor::new(IMAGE, Config::default());
    for result in runs(&mut predictor, 10, 0..6) {
        assert_eq!(result.touched, result.demanded + result.hit);
        assert_eq!(result.pushed, result.hit + result.wasted);
        assert!(result.late <= result.hit && result.stalled <= result.wall);
    }
}

#[test]
fn regress_a_module_that_is_compiled_does_not_end_the_push() {
    // Python finds that a module is newer than its byte code: it reads the module, and uses pages
    // of its own that it did not need before.
    let mut set = ActionSet::new(IMAGE);
    let of = |file, number| PageId::new(InodeId(file), number);
    let known: Vec<PageId> = (0..4000).map(|number| of(1 + number / 1000, number)).collect();
    set.learn(&known, &Config::default().merge);
    let mut predictor = ActionPredictor::with_actions(set, Config { audits: Audits::NONE, ..Config::default() });
    let (a, mut now) = (Token(1), Moment(0));
    let mut touch = |predictor: &mut ActionPredictor, page| {
        now = now.after(Duration::from_millis(1));
        predictor.touch(a, page, now)
    };
    touch(&mut predictor, known[0]);
    touch(&mut predictor, known[32]);
    let module = (0..30).map(|number| of(50, number));
    let compiler = (0..22).map(|number| of(1, 1000 + 7 * number));
    let extras: Vec<PageId> = module.chain(compiler).collect();
    for page in &extras {
        let verdict = touch(&mut predictor, *page);
        assert_eq!((verdict.cancel, verdict.push, verdict.phase), (false, None, Phase::Generate), "{page}");
    }
    let order = touch(&mut predictor, known[64]).push.unwrap();
    assert!(!order.begins, "the push goes on: {order:?}");
    // Other files, other pages of the same files, or too many pages, are another way.
    let files = (0..100).position(|number| touch(&mut predictor, of(60 + number, 0)).cancel);
    assert_eq!(files, Some(7));
    touch(&mut predictor, known[70]);
    touch(&mut predictor, known[71]);
    let pages = (0..100).position(|number| touch(&mut predictor, of(90, number)).cancel);
    assert_eq!(pages, Some(71));
    touch(&mut predictor, known[72]);
    touch(&mut predictor, known[73]);
    let parts = (0..100).position(|number| touch(&mut predictor, of(1, 2000 + number)).cancel);
    assert_eq!(parts, Some(7));
    predictor.end(a, now);
    let action = predictor.action(units::ActionId(1)).unwrap();
    assert!(extras[..40].iter().all(|page| action.pages.contains(page)), "the next start is pushed them");
}
