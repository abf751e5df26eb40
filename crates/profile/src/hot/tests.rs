//! Runs from traces and actions, merging, bounds.

use proptest::prelude::*;
use trace::{Header, How, Source, Tail};
use units::{Moment, Token};

use super::*;
use crate::MergeConfig;

const IMAGE: ImageId = ImageId([7; 32]);
const MANY: u64 = 1 << 30;

fn page(inode: u32, index: u32) -> PageId {
    PageId::new(InodeId(inode), index)
}

fn touch(token: u128, page: PageId) -> Event {
    Event::Touch { token: Token(token), at: Moment(0), page, how: How::Demand }
}

fn file(inode: u32, size: u64, path: &str) -> Event {
    Event::File { inode: InodeId(inode), size, path: path.into() }
}

fn trace_of(events: Vec<Event>) -> Trace {
    Trace { header: Header { image: IMAGE, source: Source::Mount }, events, tail: Tail::Whole }
}

/// A run whose file of inode `n` is called `n`.
fn run(pages: &[(u32, u32)]) -> HotRun {
    let file = |inode: InodeId| Some((inode.to_string().into_bytes(), MANY));
    let events = pages.iter().map(|(inode, index)| touch(1, page(*inode, *index))).collect();
    HotRun::from_trace(&trace_of(events), Some(Names { image: IMAGE, file: &file })).unwrap()
}

/// The order as (path, page, runs).
fn shown(hot: &Hot) -> Vec<(String, u32, u32)> {
    let path = |page: &HotPage| String::from_utf8(hot.files[page.file as usize].path.clone()).unwrap();
    hot.order.iter().map(|page| (path(page), page.page, page.runs)).collect()
}

#[test]
fn a_trace_is_one_run_of_first_touches_over_all_its_programs() {
    let events = vec![
        file(5, 3 * 4096 - 1, "usr/bin/a"),
        touch(1, page(5, 2)),
        touch(2, page(5, 0)),
        file(3, 10, "b"),
        touch(1, page(3, 0)),
        touch(1, page(5, 0)),
        touch(2, page(5, 2)),
    ];
    let hot = Hot::merge(&[HotRun::from_trace(&trace_of(events), None).unwrap()], 1);
    let files = [
        HotFile { path: b"usr/bin/a".to_vec(), size: 3 * 4096 - 1, pages: vec![2, 0] },
        HotFile { path: b"b".to_vec(), size: 10, pages: vec![0] },
    ];
    assert_eq!(hot.files, files);
    assert_eq!(shown(&hot), [("usr/bin/a".into(), 2, 1), ("usr/bin/a".into(), 0, 1), ("b".into(), 0, 1)]);
    assert_eq!((hot.runs, hot.rare, hot.bytes()), (1, 0, 4095 + 4096 + 10));
}

#[test]
fn the_place_of_a_page_is_its_median_and_one_odd_run_moves_nothing() {
    let usual = run(&[(1, 0), (1, 1), (2, 0), (3, 0)]);
    let odd = run(&[(3, 0), (2, 0), (1, 1), (1, 0)]);
    let hot = Hot::merge(&[odd.clone(), usual.clone(), usual.clone()], 1);
    let order: Vec<_> = shown(&hot).into_iter().map(|(path, page, _)| (path, page)).collect();
    assert_eq!(order, [("1".into(), 0), ("1".into(), 1), ("2".into(), 0), ("3".into(), 0)]);
    assert!(hot.order.iter().all(|page| page.runs == 3));
    assert_eq!(Hot::merge(&[usual.clone(), odd, usual], 1).order, hot.order);
}

#[test]
fn rare_pages_go_when_asked() {
    let runs = [run(&[(1, 0), (9, 9)]), run(&[(1, 0), (2, 0)]), run(&[(1, 0), (2, 0)])];
    assert_eq!(shown(&Hot::merge(&runs, 0)).len(), 3);
    let hot = Hot::merge(&runs, 2);
    assert_eq!((shown(&hot), hot.rare), (vec![("1".into(), 0, 3), ("2".into(), 0, 2)], 1));
    assert_eq!(shown(&Hot::merge(&runs, 3)), [("1".into(), 0, 3)]);
    // Nothing can be touched by more runs than there are.
    assert_eq!(Hot::merge(&runs[..1], 5).rare, 0);
    assert_eq!(Hot::merge(&[], 1), Hot::default());
}

#[test]
fn the_last_length_of_a_file_counts() {
    let of = |size: u64, index| {
        HotRun::from_trace(&trace_of(vec![file(5, size, "a"), touch(1, page(5, index))]), None).unwrap()
    };
    let hot = Hot::merge(&[of(8192, 1), of(4096, 0)], 1);
    assert_eq!(hot.files, [HotFile { path: b"a".to_vec(), size: 4096, pages: vec![0] }]);
    assert_eq!(Hot::merge(&[of(4096, 0), of(8192, 1)], 1).order.len(), 2);
}

#[test]
fn a_trace_without_names_needs_its_image() {
    let bare = trace_of(vec![touch(1, page(5, 1))]);
    let file = |inode: InodeId| (inode.0 == 5).then(|| (b"/usr/a".to_vec(), 8000));
    let names = Names { image: IMAGE, file: &file };
    let other = Names { image: ImageId([8; 32]), ..names };
    let run = HotRun::from_trace(&bare, Some(names)).unwrap();
    assert_eq!(shown(&Hot::merge(&[run], 1)), [("usr/a".into(), 1, 1)]);
    assert_eq!(HotRun::from_trace(&bare, None), Err(HotError::NoNames { image: IMAGE }));
    let expected = HotError::OtherImage { found: other.image, expected: IMAGE };
    assert_eq!(HotRun::from_trace(&bare, Some(other)), Err(expected));
    let unknown = trace_of(vec![touch(1, page(6, 0))]);
    let expected = HotError::UnknownInode { inode: InodeId(6), image: IMAGE };
    assert_eq!(HotRun::from_trace(&unknown, Some(names)), Err(expected));
    let behind = trace_of(vec![touch(1, page(5, 2))]);
    let expected = HotError::BehindEnd { path: "usr/a".into(), page: 2, size: 8000 };
    assert_eq!(HotRun::from_trace(&behind, Some(names)), Err(expected));
}

#[test]
fn actions_are_runs_and_count_as_many_as_they_were_made_of() {
    let config = MergeConfig::default();
    let mut set = ActionSet::new(IMAGE);
    let long: Vec<PageId> = (0..40).map(|index| page(5, index)).collect();
    let once: Vec<PageId> = long.iter().copied().chain([page(6, 0)]).collect();
    set.learn(&long, &config);
    set.learn(&once, &config);
    set.learn(&[page(9, 3)], &config);
    let file = |inode: InodeId| Some((inode.to_string().into_bytes(), MANY));
    let runs = HotRun::from_actions(&set, Names { image: IMAGE, file: &file }).unwrap();
    assert_eq!(runs.iter().map(HotRun::pages).collect::<Vec<_>>(), [41, 1]);
    let hot = Hot::merge(&runs, 1);
    assert_eq!((hot.runs, hot.order.len()), (3, 42));
    assert_eq!(shown(&hot)[..2], [("5".into(), 0, 2), ("9".into(), 3, 1)]);
    assert_eq!((Hot::merge(&runs, 2).rare, Hot::merge(&runs, 2).order.len()), (2, 40));
}

#[test]
fn a_foreign_tree_is_told() {
    let hot = Hot::merge(&[run(&[(1, 0), (2, 0), (3, 0)])], 1);
    let fit = hot.fit(|path| match path {
        b"1" => Some(MANY),
        b"2" => Some(1),
        _ => None,
    });
    assert_eq!(fit, HotFit { known: 1, missing: 1, resized: 1 });
    assert!(fit.is_foreign() && !hot.fit(|_| Some(MANY)).is_foreign() && !Hot::default().fit(|_| None).is_foreign());
}

proptest! {
    /// Every page of every run is there once or was rare, files and order say the same, and nothing
    /// depends on hashing.
    #[test]
    fn prop_nothing_is_lost_or_doubled(raw in prop::collection::vec(prop::collection::vec((1..5u32, 0..6u32), 0..30), 0..6),
                                       min_runs in 0..4u32) {
        let runs: Vec<HotRun> = raw.iter().map(|pages| run(pages)).collect();
        let hot = Hot::merge(&runs, min_runs);
        let mut counts: BTreeMap<(String, u32), u32> = BTreeMap::new();
        for pages in &raw {
            for (inode, index) in pages.iter().collect::<HashSet<_>>() {
                *counts.entry((inode.to_string(), *index)).or_default() += 1;
            }
        }
        let all = counts.len();
        counts.retain(|_, runs| *runs >= min_runs.min(raw.len() as u32));
        prop_assert_eq!(hot.rare, all - counts.len());
        let found: BTreeMap<_, _> = shown(&hot).into_iter().map(|(path, page, runs)| ((path, page), runs)).collect();
        prop_assert_eq!(found, counts);
        for (number, file) in hot.files.iter().enumerate() {
            let pages: Vec<u32> =
                hot.order.iter().filter(|page| page.file as usize == number).map(|page| page.page).collect();
            prop_assert_eq!(&file.pages, &pages);
        }
        prop_assert_eq!(Hot::merge(&runs, min_runs), hot);
    }
}

#[test]
fn each_program_of_a_trace_becomes_an_action_of_the_image_that_has_its_files() {
    let start = |token: u128| Event::Start { token: Token(token), at: Moment(0), name: b"a".to_vec() };
    let mut events =
        vec![start(1), start(2), file(5, 20 * 4096, "a"), file(6, 20 * 4096, "b"), file(7, 20 * 4096, "c")];
    events.push(touch(2, page(7, 0)));
    for index in 0..6 {
        events.extend([touch(1, page(5, index)), touch(1, page(6, index)), touch(2, page(5, index))]);
    }
    // Too few pages.
    events.extend([start(3), touch(3, page(5, 9))]);
    let trace = trace_of(events);
    let programs = HotRun::programs(&trace, None).unwrap();
    assert_eq!(programs.len(), 2);
    let hot = Hot { programs, ..Hot::merge(&[HotRun::from_trace(&trace, None).unwrap()], 1) };
    let inode = |path: &[u8]| match path {
        b"a" => Some(InodeId(50)),
        b"b" => Some(InodeId(60)),
        _ => None,
    };
    let actions = hot.actions(|path, size| inode(path).filter(|_| size == 20 * 4096));
    // The second program begins with a file that is not there.
    let expected: Vec<PageId> = (0..6).flat_map(|index| [page(50, index), page(60, index)]).collect();
    assert_eq!(actions.iter().map(|action| action.pages.clone()).collect::<Vec<_>>(), [expected]);
    assert_eq!(hot.actions(|path, size| inode(path).filter(|_| size == 1)).len(), 0);
}
