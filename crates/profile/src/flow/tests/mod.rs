//! Orders, learning, decay, limits; the file and the text in modules of their own.

mod files;
mod pictures;
mod properties;
mod texts;

use units::{Rng, SplitMix64};

use super::format::{EDGES_MAX, ENTRIES_MAX, WEIGHT_MAX};
use super::*;

/// A file of `blocks` blocks of 4 KiB.
fn layout(blocks: u32) -> Layout {
    Layout::new(4096, u64::from(blocks) * 4096).unwrap()
}

fn graph(text: &str) -> FlowGraph {
    text::parse(&format!("flow 1\n{text}")).unwrap_or_else(|error| panic!("{error}"))
}

fn printed(graph: &FlowGraph) -> String {
    let mut text = String::new();
    text::print(graph, &mut text).unwrap();
    text
}

/// The blocks that a binary search for `key` in blocks `low..high` reads.
fn search(key: u32, mut low: u32, mut high: u32) -> Vec<u32> {
    let mut touched = Vec::new();
    while low < high {
        let middle = low + (high - low) / 2;
        touched.push(middle);
        match key.cmp(&middle) {
            std::cmp::Ordering::Less => high = middle,
            std::cmp::Ordering::Greater => low = middle + 1,
            std::cmp::Ordering::Equal => break,
        }
    }
    touched
}

/// Several stages, live updates, a block of unknown order.
fn sample() -> FlowGraph {
    graph(
        "size 500000\nblock 4096\nstart -> 0 x9\nstart -> 100\nseq 0..15 x9\n15 -> 40 x7\n15 -> 60 x2\nseq 40..43 x7\n\
         43 -> 40 x3\n100 -> 60 -> 61\nused 80..82\n\
         stage \"intro\" 0..15 share 80%\nstage \"later scenes\" 40..43 60..70 rate 16000\nstage \"rest\" 80..99",
    )
}

#[test]
fn a_scan_comes_in_its_order_and_unused_blocks_do_not() {
    let scan: Vec<u32> = (0..256).collect();
    assert_eq!(FlowGraph::from_touches(layout(300), &scan).unwrap().traversal(), scan);
    let backwards: Vec<u32> = (3..200).rev().collect();
    assert_eq!(FlowGraph::from_touches(layout(300), &backwards).unwrap().traversal(), backwards);
    assert_eq!(FlowGraph::new(layout(300)).traversal(), [0; 0]);
}

#[test]
fn a_binary_search_comes_level_by_level() {
    // 1 MB in blocks of 4 KiB: a search for every key, one run after another, each with several
    // searches.
    let mut rng = SplitMix64(5);
    let runs: Vec<Vec<u32>> =
        (0..64).map(|_| (0..400).flat_map(|_| search(rng.below(256) as u32, 0, 256)).collect()).collect();
    let graph = FlowGraph::from_runs(layout(256), runs.iter().map(Vec::as_slice)).unwrap();
    let order = graph.traversal();
    let level = |block: &u32| search(*block, 0, 256).len();
    let levels: Vec<usize> = order.iter().map(level).collect();
    assert_eq!(order.len(), 256);
    assert_eq!(order[0], 128);
    let mut children = order[1..3].to_vec();
    children.sort_unstable();
    assert_eq!(children, [64, 192]);
    // Keys are random, so neighbouring levels may meet a little where one side was searched more;
    // never by two.
    let mut highest = 0;
    for (position, level) in levels.iter().enumerate() {
        highest = highest.max(*level);
        assert!(level + 1 >= highest, "block {} of level {level} comes after level {highest}", order[position]);
    }
    // All keys once: exactly level by level, and in file order within a level of equally likely
    // blocks.
    let all: Vec<u32> = (0..255).flat_map(|key| search(key, 0, 255)).collect();
    let order = FlowGraph::from_touches(layout(256), &all).unwrap().traversal();
    let levels: Vec<usize> = order.iter().map(|block| search(*block, 0, 255).len()).collect();
    assert!(levels.is_sorted(), "{levels:?}");
    assert_eq!(order[..7], [127, 63, 191, 31, 95, 159, 223]);
}

#[test]
fn a_scene_comes_whole_before_those_that_may_follow() {
    let scenes =
        graph("size 1228800\nstart -> 0..9\n9 -> 100..109 x3\n9 -> 50..59\n109 -> 200..204 x3\n59 -> 200\nused 299");
    // `x3` holds for all of its path: within a scene there is one way, so only the parting counts.
    let order = scenes.traversal();
    let expected: Vec<u32> = (0..10).chain(100..110).collect();
    assert_eq!(order[..20], expected[..]);
    // Both scenes lead to 200: it is certain, and comes before the scene that is unlikely.
    let (meeting, unlikely) =
        (order.iter().position(|block| *block == 200).unwrap(), order.iter().position(|block| *block == 50).unwrap());
    assert!(meeting < unlikely);
    assert_eq!(order.last(), Some(&299), "what nothing leads to comes last");
    assert_eq!(order.len(), 10 + 10 + 10 + 5 + 1);
}

#[test]
fn of_equally_likely_ways_both_come_step_by_step() {
    let fork = graph("seq 0..2\n2 -> 20..23\n2 -> 10..13");
    assert_eq!(fork.traversal(), [0, 1, 2, 10, 20, 11, 21, 12, 22, 13, 23]);
    // What is on the way already is passed through.
    let steps: Vec<u32> = Expansion::after(&fork, &[10]).map(|step| step.block).collect();
    assert_eq!(steps, [11, 12, 13]);
}

#[test]
fn a_path_is_a_static_graph_in_which_every_step_is_sure() {
    let path: Vec<u32> = (0..100).map(|step| step * 37 % 101).collect();
    let mut graph = FlowGraph::from_path(layout(101), &path).unwrap();
    assert_eq!(graph.traversal(), path);
    assert!(Expansion::from_entry(&graph).all(|step| step.probability == 1.0));
    assert!(!graph.observe(Some(0), 5), "static");
    assert_eq!(FlowGraph::from_path(layout(101), &[101]), Err(FlowError::NoBlock { block: 101, blocks: 101 }));
}

#[test]
fn runs_merge_into_counts() {
    let mut one = FlowGraph::from_touches(layout(20), &[0, 1, 1, 2, 0, 1]).unwrap();
    let other = FlowGraph::from_touches(layout(30), &[5, 1, 25]).unwrap();
    one.merge(&other).unwrap();
    let edge = |to, weight| Edge { to, weight };
    assert_eq!(one.entry(), [edge(0, 1), edge(5, 1)]);
    assert_eq!(one.successors(0), [edge(1, 2)]);
    assert_eq!(one.successors(1), [edge(2, 1), edge(25, 1)]);
    assert_eq!((one.layout().blocks(), one.edge_count()), (30, 5));
    let both = FlowGraph::from_runs(layout(30), [&[0, 1, 1, 2, 0, 1][..], &[5, 1, 25]]).unwrap();
    assert_eq!(one, both);
    let large = FlowGraph::new(Layout::new(8192, 1).unwrap());
    assert_eq!(one.merge(&large), Err(FlowError::OtherBlocks { found: 8192, expected: 4096 }));
}

#[test]
fn live_use_outweighs_old_habits() {
    let mut graph = FlowGraph::new(layout(100));
    graph.observe(None, 0);
    for _ in 0..3 * WEIGHT_MAX {
        graph.observe(Some(0), 1);
    }
    let old = graph.successors(0)[0].weight;
    assert!((WEIGHT_MAX / 2..=WEIGHT_MAX).contains(&old), "a full counter is halved: {old}");
    let mut uses = 0;
    while graph.successors(0)[0].to == 1 {
        graph.observe(Some(0), 2);
        uses += 1;
    }
    assert!(uses <= WEIGHT_MAX + 1, "{uses} uses of another way");
    // Five ways, four places: the newcomer takes the place of the lightest once that is worn down.
    for to in [3, 4] {
        (0..5).for_each(|_| assert!(graph.observe(Some(0), to)));
    }
    (0..5).for_each(|_| assert!(graph.observe(Some(0), 9)));
    let kept: Vec<u32> = graph.successors(0).iter().map(|edge| edge.to).collect();
    assert_eq!(kept.len(), EDGES_MAX);
    assert!(kept.contains(&9) && !kept.contains(&4), "{kept:?}");
    assert!(graph.is_used(4), "its block stays known");
    assert!(!graph.observe(Some(5), 5) && !graph.observe(Some(5), 100) && !graph.observe(None, 100));
    // Without a first block, the first edge says what it is.
    let mut graph = FlowGraph::new(layout(100));
    graph.observe(Some(7), 8);
    assert_eq!(graph.traversal(), [7, 8]);
}

#[test]
fn traces_teach_what_they_say_of_a_file() {
    use trace::{Event, Header, How, LOCAL, Source, Tail, Trace};
    use units::{InodeId, Moment, PageId, Token};
    let at = Moment(0);
    let start = |token| Event::Start { token: Token(token), at, name: Vec::new() };
    let touch = |token, inode, index, how| Event::Touch {
        token: Token(token),
        at,
        page: PageId::new(InodeId(inode), index),
        how,
    };
    let file = |inode, path: &[u8]| Event::File { inode: InodeId(inode), size: 40_000, path: path.to_vec() };
    let events = vec![
        start(1),
        file(5, b"data/map"),
        touch(1, 5, 4, How::Demand),
        file(6, b"bin/game"),
        start(2),
        touch(2, 5, 4, How::Local),
        touch(1, 6, 1, How::Demand),
        touch(1, 5, 0, How::Demand),
        touch(2, 5, 7, How::Local),
        Event::End { token: Token(1), at },
        start(1),
        touch(1, 5, 1, How::Demand),
        touch(1, 5, 2, How::Pushed),
        touch(2, 5, 70, How::Local),
    ];
    let trace = Trace { header: Header { image: LOCAL, source: Source::Perf }, events, tail: Tail::Whole };
    let runs = file_runs(&trace, b"data/map").unwrap();
    assert_eq!(runs, FileRuns { file_bytes: 40_000, runs: vec![vec![4, 0], vec![4, 7, 70]], hidden: 1 });
    assert_eq!(file_runs(&trace, b"data/none"), None);
    // No page twice: the recorder left out what an earlier program had touched.
    let events = vec![start(1), file(5, b"data/map"), touch(1, 5, 4, How::Local), start(2), touch(2, 5, 0, How::Local)];
    let once = Trace { events, ..trace };
    assert_eq!(file_runs(&once, b"data/map").unwrap().runs, [[4, 0]]);
    let learned = learn(&[runs.clone(), runs.clone()], 4096).unwrap();
    assert_eq!(learned.traversal(), [4, 0, 7]);
    assert_eq!(learned.entry(), [Edge { to: 4, weight: 4 }]);
    assert_eq!(learn(std::slice::from_ref(&runs), 16384).unwrap().traversal(), [1, 0]);
    let small = learn(&[runs], 2048).unwrap();
    assert_eq!(small.traversal(), [8, 9, 0, 14, 1, 15]);
}

#[test]
fn limits_hold() {
    for (block, bytes) in [(256, 1), (4095, 1), (1 << 21, 1), (0, 0), (4096, (1 << 32) + 1), (512, 1 << 30)] {
        assert!(Layout::new(block, bytes).is_err(), "{block} {bytes}");
    }
    let last = Layout::new(4096, 10_000).unwrap();
    assert_eq!(
        (last.blocks(), last.range(2), last.range(3), last.block_at(9_999)),
        (3, 8192..10_000, 10_000..10_000, Some(2))
    );
    let mut rng = SplitMix64(1);
    let touches: Vec<u32> = (0..200_000).map(|_| rng.below(1000) as u32).collect();
    let graph = FlowGraph::from_touches(layout(1000), &touches).unwrap();
    assert!(graph.used().all(|block| graph.successors(block).len() <= EDGES_MAX));
    assert_eq!(graph.traversal().len(), 1000);
    let starts: Vec<[u32; 1]> = (0..1000).map(|block| [block]).collect();
    let graph = FlowGraph::from_runs(layout(1000), starts.iter().map(|run| &run[..])).unwrap();
    assert_eq!(graph.entry().len(), ENTRIES_MAX);
    assert_eq!(graph.traversal().len(), 1000);
    let loops: Vec<u32> = (0..100_000).map(|step| step % 2).collect();
    let graph = FlowGraph::from_touches(layout(2), &loops).unwrap();
    assert!(graph.successors(0)[0].weight <= WEIGHT_MAX);
}

#[test]
fn a_file_that_shrinks_takes_its_blocks_along() {
    let mut graph = sample();
    graph.resize(62 * 4096).unwrap();
    assert!(graph.used().all(|block| block < 62) && graph.is_used(61));
    assert_eq!(graph.stages().iter().map(Stage::name).collect::<Vec<_>>(), ["intro", "later scenes"]);
    assert_eq!(decode(&graph.encode()), Ok(graph.clone()));
    graph.resize(1).unwrap();
    assert_eq!(graph.traversal(), [0]);
    graph.resize(0).unwrap();
    assert_eq!((graph.traversal().len(), graph.entry().len(), graph.stages().len()), (0, 0, 0));
    graph.resize(1 << 20).unwrap();
    assert!(graph.observe(None, 200));
}

#[test]
fn stages_are_scheduled_by_priority() {
    let sent = sample().schedule();
    let stages: Vec<Option<usize>> = sent.iter().map(|scheduled| scheduled.stage).collect();
    assert_eq!(stages, [Some(0), Some(1), Some(2), None]);
    assert_eq!(sent[0].blocks, (0..16).collect::<Vec<_>>());
    assert_eq!(sent[1].blocks, [40, 41, 42, 43, 60, 61]);
    assert_eq!(sent[3].blocks, [100]);
    let range = |first, last| BlockRange { first, last };
    let stage = |name, ranges: &[BlockRange], share| Stage::new(name, ranges, share).unwrap();
    let joined = stage("a", &[range(5, 9), range(0, 2), range(3, 4), range(8, 8)], Share::Rest);
    assert_eq!(joined.ranges(), [range(0, 9)]);
    let mut graph = sample();
    for (stages, what) in [
        (
            vec![stage("a", &[range(0, 5)], Share::Rest), stage("b", &[range(5, 6)], Share::Rest)],
            "block 5 is in an earlier",
        ),
        (vec![stage("a", &[range(0, 5)], Share::Rest), stage("a", &[range(6, 6)], Share::Rest)], "has that name"),
        (vec![stage("a", &[range(0, 500)], Share::Rest)], "ends within the file"),
        (
            vec![stage("a", &[range(0, 1)], Share::Percent(60)), stage("b", &[range(2, 2)], Share::Percent(41))],
            "add up to 101 percent",
        ),
    ] {
        let error = graph.set_stages(stages).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    for (name, ranges, share) in [
        ("", &[range(0, 1)][..], Share::Rest),
        ("a\"b", &[range(0, 1)], Share::Rest),
        ("a\n", &[range(0, 1)], Share::Rest),
        ("a", &[], Share::Rest),
        ("a", &[range(2, 1)], Share::Rest),
        ("a", &[range(0, 1)], Share::Percent(0)),
        ("a", &[range(0, 1)], Share::Rate(0)),
    ] {
        assert!(Stage::new(name, ranges, share).is_err(), "{name:?} {ranges:?} {share:?}");
    }
}
