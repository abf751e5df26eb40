//! The policy by itself, and under the real Predictor with programs that vary: builds and pushes
//! are counted, no time is.

use std::collections::{BTreeMap, HashSet};

use predict::{ActionPredictor, Config, Predictor};
use units::{ActionId, ImageId, InodeId, Moment, PageId, Rng, SEGMENT_PAGES_MAX, SplitMix64, Token};

use super::*;
use crate::bundler::unseen_starts;

/// The links of the tests, in bytes a second.
const LAN: u64 = 125_000_000;
const WIFI: u64 = 3_125_000;
const MODEM: u64 = 16_000;

/// Bundles for links that are not fast.
const QUICK: Forms = Forms { grade: Grade::Quick, stored: false };
const BEST: Forms = Forms { grade: Grade::Best, stored: false };

/// Starts of an action of so many pages until a bundle of each grade is due.
fn starts_until_due(rate: u64, held: Option<Forms>) -> [usize; 2] {
    const PAGES: u32 = 3000;
    Grade::ALL.map(|grade| {
        let (live_pages, held_pages) = if held.is_some() { (0, PAGES) } else { (PAGES, 0) };
        let start = Start { rate: Some(rate), live_pages, held_pages, surplus_pages: 0, held };
        let mut account = Account::default();
        let cost = i64::from(PAGES) * grade.build_page_nanos() as i64;
        (0..10_000)
            .find(|_| {
                account.add(&start);
                account.saved[grade as usize] >= cost
            })
            .map_or(usize::MAX, |starts| starts + 1)
    })
}

#[test]
fn the_thinner_the_link_the_sooner_a_bundle_pays() {
    assert_eq!(starts_until_due(LAN, None), [1, 3]);
    assert_eq!(starts_until_due(WIFI, None), [1, 2]);
    assert_eq!(starts_until_due(MODEM, None), [1, 1]);
    // A quick bundle is there: another quick one saves nothing.
    assert_eq!(starts_until_due(LAN, Some(Forms { stored: true, ..QUICK })), [usize::MAX; 2]);
    assert_eq!(starts_until_due(LAN, Some(QUICK)), [1, 11], "it gets pages that are not compressed");
    assert_eq!(starts_until_due(WIFI, Some(QUICK)), [usize::MAX, 3]);
    assert_eq!(starts_until_due(MODEM, Some(QUICK)), [usize::MAX, 1]);
}

#[test]
fn nothing_is_due_without_starts_or_pages_and_the_best_bundle_is_never_made_twice() {
    assert_eq!(Account::default().due(100, 9), None);
    let mut account = Account::default();
    account.add(&Start::unseen(100, None));
    assert_eq!(account.due(0, 1), None);
    assert_eq!(account.due(100, 1), Some(QUICK));
    let best = Start { held_pages: 100, held: Some(BEST), rate: Some(0), ..Start::default() };
    let mut account = Account::default();
    (0..1000).for_each(|_| account.add(&best));
    assert_eq!(account.due(100, 1), None, "{account:?}");
}

#[test]
fn a_bundle_of_the_first_run_is_made_anew_when_the_third_has_found_a_sixth_more() {
    let due = |live_pages, held, uses| {
        let mut account = Account::default();
        account.foresee(&Start { live_pages, held_pages: 3000 - live_pages, held: Some(held), ..Start::default() });
        account.due(3000, uses)
    };
    assert_eq!((due(500, QUICK, 1), due(500, QUICK, 3)), (None, Some(QUICK)));
    assert_eq!(due(100, QUICK, 1000), None, "one that changes a little at every start waits");
    assert_eq!(due(0, QUICK, 1000), None);
    assert_eq!(due(500, BEST, 1000), None, "the others would become worse");
}

#[test]
fn a_program_that_has_settled_gets_its_best_bundle_after_one_start_over_wifi_and_none_over_a_lan() {
    let start = |rate, held| Start { rate: Some(rate), held_pages: 3000, held: Some(held), ..Start::default() };
    let due_after = |starts: &[Start]| {
        let mut account = Account::default();
        starts.iter().for_each(|start| account.add(start));
        account.due(3000, 3)
    };
    assert_eq!(due_after(&[start(WIFI, QUICK)]), Some(BEST));
    let lan = start(LAN, Forms { stored: true, ..QUICK });
    assert_eq!(due_after(&[lan; 1000]), None);
    // Its last start was pushed a few pages live, or some in vain, or only a part.
    let odd = |live_pages, surplus_pages, lacking| {
        let held_pages = 3000 - live_pages - surplus_pages - lacking;
        Start { live_pages, surplus_pages, held_pages, ..start(WIFI, QUICK) }
    };
    for odd in [odd(10, 0, 0), odd(0, 10, 0), odd(0, 0, 10)] {
        assert_eq!(due_after(&[start(WIFI, QUICK), odd]), None);
    }
    let mut account = Account::default();
    account.add(&start(WIFI, QUICK));
    account.foresee(&odd(10, 0, 0));
    assert_eq!((account.due(3000, 3), account.quick_due(3000, 3)), (None, None), "it has changed since");
}

#[test]
fn the_best_bundles_take_no_more_than_their_share_of_the_time() {
    let mut idle = IdleTime::new();
    // 16 seconds each, of 120 that were saved up.
    let taken = (0..100).filter(|_| idle.take(Moment(1_000_000), 10_000)).count();
    assert_eq!(taken, 7);
    assert!(idle.take(Moment(2_000_000), 100), "a small one has time");
    let hours = (1..=36_000u64).filter(|second| idle.take(Moment(2_000_000 + second * 1_000_000), 10_000)).count();
    assert_eq!(hours, 36_000 * 5 / 100 / 16);
    assert!(!idle.take(Moment(0), 1_000_000), "a clock that stands still, and more than can be saved up");
}

#[test]
fn an_action_that_lost_pages_pays_for_a_bundle_without_them() {
    let held = Some(QUICK);
    let start = |surplus_pages| Start {
        rate: Some(WIFI),
        held,
        held_pages: 3000 - surplus_pages,
        surplus_pages,
        live_pages: 0,
    };
    let mut account = Account::default();
    account.add(&start(0));
    assert_eq!(account.quick_due(3000, 1), None);
    account.add(&start(300));
    assert_eq!(account.quick_due(2700, 1), Some(QUICK));
}

/// What is kept of one action, as [`Bundles`](crate::bundle::kept::Bundles) does.
#[derive(Default)]
struct Kept {
    account: Account,
    held: Option<(Forms, HashSet<PageId>)>,
}

/// A program's server side without a server: the Predictor, bundles and accounts by action.
struct Program {
    predictor: ActionPredictor,
    rng: SplitMix64,
    runs: u128,
    rate: u64,
    kept: BTreeMap<ActionId, Kept>,
    /// Processor time of making bundles, in nanoseconds.
    built_nanos: u64,
    /// Forms and number of pages of each bundle.
    builds: Vec<(Forms, usize)>,
    /// Pages pushed out of bundles, live, and in vain.
    pushed: [u64; 3],
    starts_from_bundle: usize,
}

impl Program {
    fn new(rate: u64) -> Program {
        Program {
            predictor: ActionPredictor::new(ImageId([1; 32]), Config::default()),
            rng: SplitMix64(5),
            runs: 0,
            rate,
            kept: BTreeMap::new(),
            built_nanos: 0,
            builds: Vec::new(),
            pushed: [0; 3],
            starts_from_bundle: 0,
        }
    }

    /// The pages of a run: an interpreter of 900 pages, then most of 40 modules of 50 pages each,
    /// each with its pages in order.
    fn pages(&mut self) -> Vec<PageId> {
        let mut pages: Vec<PageId> = (0..900).map(|index| PageId::new(InodeId(1), index)).collect();
        for module in 2..42 {
            if self.rng.below(10) > 0 {
                pages.extend((0..50).map(|index| PageId::new(InodeId(module), index)));
            }
        }
        pages
    }

    /// One start on a device that has nothing, and the upkeep after it.
    fn start(&mut self) {
        let run = self.pages();
        self.runs += 1;
        let (token, mut now) = (Token(self.runs), Moment(self.runs as u64 * 100_000_000));
        let (mut have, mut sentinels, mut first, mut audit) = (HashSet::new(), HashSet::new(), None, false);
        for page in &run {
            now = Moment(now.0 + 50);
            // A page that was pushed is touched unseen, unless it is the first of its segment or
            // the run is an audit.
            if have.contains(page) && !audit && !sentinels.contains(page) {
                continue;
            }
            let verdict = self.predictor.touch(token, *page, now);
            have.insert(*page);
            if let Some(order) = verdict.push {
                let pages = self.predictor.pages(token, &order).to_vec();
                sentinels.extend(pages.iter().copied().step_by(SEGMENT_PAGES_MAX));
                have.extend(pages);
                // Bundles serve pushes that begin with the action.
                if order.from < SEGMENT_PAGES_MAX as u32 {
                    first = first.or(Some(order.action));
                }
                audit = order.audit;
            }
        }
        if let Some(id) = first {
            self.charge(id);
        }
        self.predictor.end(token, now);
        self.upkeep();
    }

    fn action(&self, id: ActionId) -> Vec<PageId> {
        self.predictor.action(id).map(|action| action.pages.clone()).unwrap_or_default()
    }

    fn charge(&mut self, id: ActionId) {
        let (pages, rate) = (self.action(id), Some(self.rate));
        let kept = self.kept.entry(id).or_default();
        let held = kept.held.as_ref().map(|(forms, _)| *forms);
        let (held_pages, surplus_pages) = kept.held.as_ref().map_or((0, 0), |(_, held)| {
            let both = pages.iter().filter(|page| held.contains(page)).count() as u32;
            (both, held.len() as u32 - both)
        });
        let live_pages = pages.len() as u32 - held_pages;
        kept.account.add(&Start { rate, live_pages, held_pages, surplus_pages, held });
        self.starts_from_bundle += usize::from(held.is_some());
        for (sum, pages) in self.pushed.iter_mut().zip([held_pages, live_pages, surplus_pages]) {
            *sum += u64::from(pages);
        }
    }

    /// What the server does after runs: new actions are looked at, bundles that pay are made.
    fn upkeep(&mut self) {
        for id in self.predictor.take_changed() {
            let unseen = unseen_starts(&self.predictor, id);
            if let (Some((1.., pages)), false) = (unseen, self.kept.contains_key(&id)) {
                self.kept.entry(id).or_default().account.add(&Start::unseen(pages, None));
            }
        }
        let ids: Vec<ActionId> = self.kept.keys().copied().collect();
        for id in ids {
            let pages = self.action(id);
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            let Some(forms) = kept.account.due(pages.len() as u32, 1) else { continue };
            let cost = kept.account.cost(forms.grade, pages.len() as u32);
            assert!(kept.account.saved[forms.grade as usize] >= cost, "no more is spent than starts have lost");
            let cost = forms.grade.build_nanos(pages.len() as u32);
            self.builds.push((forms, pages.len()));
            *kept = Kept { account: Account::default(), held: Some((forms, pages.into_iter().collect())) };
            self.built_nanos += cost;
        }
    }

    /// After so many starts.
    fn after(rate: u64, starts: usize) -> Program {
        let mut program = Program::new(rate);
        (0..starts).for_each(|_| program.start());
        program
    }
}

#[test]
fn regress_five_starts_that_vary_are_pushed_from_bundles_and_make_few() {
    let program = Program::after(LAN, 5);
    println!("{:?}", program.builds);
    assert_eq!(program.starts_from_bundle, 4, "every start after the first");
    let pages = |stored| -> usize {
        program.builds.iter().filter(|(forms, _)| forms.stored == stored).map(|(_, pages)| pages).sum()
    };
    // The first bundle is made before a push has measured the link.
    assert!(pages(false) <= 3200, "the program has 2,900 pages: {:?}", program.builds);
    assert!((1..=3200).contains(&pages(true)), "the link is fast: {:?}", program.builds);
    assert!(program.builds.iter().all(|(forms, _)| forms.grade == Grade::Quick), "{:?}", program.builds);
    let [held, live, surplus] = program.pushed;
    assert!(live * 10 < held && surplus * 10 < held, "{:?}", program.pushed);
    // A bundle at level 19 after each start took 14 seconds.
    assert!(program.built_nanos < 900_000_000, "{}", program.built_nanos);
}

#[test]
fn sim_the_thinner_the_link_the_more_is_spent_on_bundles_and_nearly_all_pages_come_out_of_them() {
    let mut spent = 0;
    for (rate, seconds_max) in [(LAN, 2.8), (WIFI, 20.0), (MODEM, 32.0)] {
        let program = Program::after(rate, 40);
        let pages: usize = program.builds.iter().map(|(_, pages)| pages).sum();
        println!("{rate}: {} builds of {pages} pages, pushed {:?}", program.builds.len(), program.pushed);
        let seconds = program.built_nanos as f64 / 1e9;
        assert!(seconds < seconds_max, "{rate}: {seconds} s");
        assert!(program.built_nanos > spent, "{rate}: {seconds} s");
        spent = program.built_nanos;
        assert!(program.starts_from_bundle >= 38, "{rate}: {}", program.starts_from_bundle);
        let [held, live, surplus] = program.pushed;
        assert!(live * 10 < held && surplus * 10 < held, "{rate}: {:?}", program.pushed);
    }
}
