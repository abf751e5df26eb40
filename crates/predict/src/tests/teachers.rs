//! Teachers that do not trust each other: what one's runs are pushed does not depend on what
//! another one teaches.

use profile::{MergeConfig, Teacher};
use units::{Rng, SplitMix64};

use super::*;
use crate::Reader;

const ONE: Reader = Reader { teacher: Teacher(1), teaches: true };
/// Rounds in which one has learned: before, he is pushed what others taught.
const KNOWN_AFTER: u32 = 3;

const OTHER: Reader = Reader { teacher: Teacher(2), teaches: true };

fn config() -> Config {
    let merge = MergeConfig { actions_max: 64, pages_total_max: 8000, ..MergeConfig::default() };
    Config { tokens_max: 64, recorded_pages_max: 8000, merge, ..Config::default() }
}

fn order(seed: u64, first: u32, pages: u32) -> Vec<PageId> {
    let mut rng = SplitMix64(seed);
    let mut rest: Vec<u32> = (1..pages).map(|index| 1000 * first + index).collect();
    (1..rest.len()).rev().for_each(|at| rest.swap(at, rng.below(at as u64 + 1) as usize));
    std::iter::once(first).chain(rest).map(page).collect()
}

/// A start that touches what it was not pushed, and the first page of each segment that it was.
/// What was ordered, and whether it was an audit.
fn start(
    predictor: &mut ActionPredictor,
    reader: Reader,
    token: Token,
    order: &[PageId],
    mut between: impl FnMut(&mut ActionPredictor),
) -> Vec<(Vec<PageId>, bool)> {
    let (mut orders, mut had) = (Vec::new(), std::collections::HashSet::new());
    let mut audited = false;
    for (number, touched) in order.iter().enumerate() {
        if had.contains(touched) && !audited && number % 8 != 0 {
            continue;
        }
        let verdict = predictor.touch_of(reader, token, *touched, Moment(1 + number as u64));
        if let Some(order) = &verdict.push {
            let pages = predictor.pages(token, order).to_vec();
            audited = order.audit;
            had.extend(pages.iter().copied());
            orders.push((pages, order.audit));
        }
        between(predictor);
    }
    predictor.end(token, Moment(1000));
    orders
}

/// Someone who knows all programs, and teaches as badly and as much as he can.
struct Vandal {
    rng: SplitMix64,
    tokens: u128,
    programs: Vec<Vec<PageId>>,
}

impl Vandal {
    fn teach(&mut self, predictor: &mut ActionPredictor) {
        let reader = OTHER;
        self.tokens += 1;
        let token = Token(1 << 64 | self.tokens);
        let program = &self.programs[self.rng.below(self.programs.len() as u64) as usize];
        let noise = |rng: &mut SplitMix64| page(100_000 + rng.below(5000) as u32);
        let pages: Vec<PageId> = match self.rng.below(4) {
            0 => (0..40).map(|_| noise(&mut self.rng)).collect(),
            // It begins as the program does and goes elsewhere.
            1 => program[..2].iter().copied().chain((0..60).map(|_| noise(&mut self.rng))).collect(),
            2 => program.iter().rev().copied().collect(),
            _ => program.iter().copied().filter(|_| self.rng.below(4) > 0).collect(),
        };
        for touched in pages {
            predictor.touch_of(reader, token, touched, Moment(self.tokens as u64 + 1));
        }
        // Many of them never end.
        if self.rng.below(3) > 0 {
            predictor.end(token, Moment(1));
        }
    }
}

#[test]
fn what_one_is_pushed_does_not_depend_on_what_another_one_teaches() {
    let programs = [order(1, 1, 200), order(2, 2, 150), order(3, 3, 90)];
    let run = |vandal: Option<&mut Vandal>| {
        let mut predictor = ActionPredictor::new(IMAGE, config());
        let (mut rng, mut told, mut token) = (SplitMix64(7), Vec::new(), 0);
        let mut vandal = vandal;
        for round in 0..30 {
            for program in &programs {
                token += 1;
                // Runs of one program vary a little.
                let order: Vec<PageId> = program.iter().copied().filter(|_| rng.below(40) > 0).collect();
                let mut touches = 0;
                told.push(start(&mut predictor, ONE, Token(token), &order, |predictor| {
                    touches += 1;
                    if let Some(vandal) = vandal.as_mut().filter(|_| round >= KNOWN_AFTER && touches % 4 == 0) {
                        vandal.teach(predictor);
                    }
                }));
            }
        }
        let own = predictor.actions().iter().filter(|action| action.teacher == ONE.teacher);
        (told, own.map(|action| action.pages.clone()).collect::<Vec<_>>(), predictor.actions().len())
    };
    let mut vandal = Vandal { rng: SplitMix64(5), tokens: 0, programs: programs.to_vec() };
    let (quiet, spoiled) = (run(None), run(Some(&mut vandal)));
    assert!(vandal.tokens > 300 && spoiled.2 > quiet.2, "{} runs", vandal.tokens);
    assert!(quiet.0.iter().skip(9).all(|orders| !orders.is_empty()), "he is pushed to");
    assert_eq!(quiet.0, spoiled.0);
    assert_eq!(quiet.1, spoiled.1);
}

#[test]
fn who_knows_nothing_is_pushed_what_others_taught_and_copies_what_he_changes() {
    let mut predictor = ActionPredictor::new(IMAGE, config());
    let program = order(1, 1, 100);
    start(&mut predictor, ONE, Token(1), &program, |_| {});
    let taught: Vec<_> = predictor.actions().iter().cloned().collect();
    let mut longer = program.clone();
    longer.extend((0..5).map(|index| page(50_000 + index)));
    let orders = start(&mut predictor, OTHER, Token(2), &longer, |_| {});
    assert!(orders.iter().map(|(pages, _)| pages.len()).sum::<usize>() > 50);
    assert_eq!(predictor.action(taught[0].id), Some(&taught[0]));
    let copies = predictor.actions().iter().filter(|action| action.teacher == OTHER.teacher);
    assert_eq!(copies.map(|action| action.pages.len()).collect::<Vec<_>>(), [105]);
}

#[test]
fn who_may_not_teach_is_pushed_to_and_changes_nothing() {
    let mut predictor = ActionPredictor::new(IMAGE, config());
    let program = order(1, 1, 100);
    start(&mut predictor, ONE, Token(1), &program, |_| {});
    let before = predictor.actions().clone();
    let reader = Reader { teacher: Teacher(1), teaches: false };
    for token in 2..20 {
        let mut other = program.clone();
        other.truncate(60);
        other.extend((0..50).map(|index| page(50_000 + 100 * token + index)));
        let orders = start(&mut predictor, reader, Token(token.into()), &other, |_| {});
        assert!(!orders.is_empty());
        start(&mut predictor, reader, Token(100), &order(token.into(), 9, 50), |_| {});
    }
    let pages = |set: &ActionSet| set.iter().cloned().collect::<Vec<_>>();
    assert_eq!(pages(predictor.actions()), pages(&before));
}

/// Two servers of one store: what one learned while a run of the other is under way is pushed there
/// to the next run.
#[test]
fn what_another_server_learned_is_pushed_here() {
    let (base, anybody) = (ActionSet::new(IMAGE), Reader::default());
    let [mut one, mut other] = [1, 2].map(|number: u64| {
        let mut set = base.clone();
        set.number_from(number << 32);
        ActionPredictor::with_actions(set, config())
    });
    let (first, second) = (order(1, 1, 200), order(2, 2, 200));
    assert!(start(&mut one, anybody, Token(1), &first, |_| ()).is_empty());
    let theirs = one.actions().clone();
    let mut joined = false;
    let pushed = start(&mut other, anybody, Token(1), &second, |other| {
        if !std::mem::replace(&mut joined, true) {
            other.join(&base, &theirs);
        }
    });
    assert!(pushed.is_empty(), "nobody knew it");
    let changed = other.take_changed();
    assert_eq!((other.actions().len(), changed.len()), (2, 2));
    let pushed: usize = start(&mut other, anybody, Token(2), &first, |_| ()).iter().map(|(pages, _)| pages.len()).sum();
    assert!(pushed > 150, "{pushed} pages of 200");
    // What was forgotten there is forgotten here.
    let id = theirs.iter().next().unwrap().id;
    let (base, mut less) = (other.actions().clone(), other.actions().clone());
    while less.get(id).is_some() {
        less.remove_oldest();
    }
    other.join(&base, &less);
    assert!(other.actions().get(id).is_none() && other.action(id).is_none());
    assert!(start(&mut other, anybody, Token(3), &first, |_| ()).is_empty());
}
