//! Flow graphs as a predictor: paths as actions, searches, scenes, several files, bounds.

use profile::flow::{Edge, FlowGraph, Layout, Updates, text};
use profile::{Order, Teacher};
use units::{Rng, SplitMix64};

use super::*;
use crate::{CostModel, Evaluation, FlowConfig, FlowPredictor, LinuxReadahead, Reader, Visible, evaluate};

const TOKEN: Token = Token(1);

fn reader(number: u64) -> Reader {
    Reader { teacher: Teacher(number), teaches: true }
}

fn graph(lines: &str) -> FlowGraph {
    text::parse(&format!("flow 1\n{lines}")).unwrap()
}

/// A predictor with the graph of file 1.
fn with(graph: FlowGraph) -> FlowPredictor {
    let mut predictor = FlowPredictor::new(FlowConfig::default());
    predictor.insert(InodeId(1), graph);
    predictor
}

/// What a touch of page `number` of file 1 brings: cancelled or not, pages.
fn touch(predictor: &mut FlowPredictor, number: u32) -> (bool, Vec<u32>) {
    let verdict = predictor.touch(TOKEN, page(number), Moment(5));
    let pages = verdict.push.map_or(Vec::new(), |order| {
        let pages = predictor.pages(TOKEN, &order);
        assert_eq!(pages.len() as u32, order.through - order.from);
        pages.iter().map(|page| page.index).collect()
    });
    (verdict.cancel, pages)
}

/// The pages that a binary search for `key` in 256 pages reads.
fn search(key: u32) -> Vec<u32> {
    let (mut low, mut high, mut touched) = (0, 256, Vec::new());
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

fn search_graph() -> FlowGraph {
    let all: Vec<Vec<u32>> = (0..256).map(search).collect();
    let layout = Layout::new(4096, 1 << 20).unwrap();
    FlowGraph::from_runs(layout, all.iter().map(Vec::as_slice)).unwrap()
}

fn order(number: u128, pages: &[u32]) -> Order {
    let pages = pages.iter().map(|number| page(*number)).collect();
    Order { token: Token(number), name: Vec::new(), began: Moment(0), ended: None, pages, exact: true }
}

#[test]
fn along_a_path_it_pushes_what_actions_generate() {
    let path: Vec<u32> = (0..6000).map(|step| step * 37 % 6007).collect();
    let pages: Vec<PageId> = path.iter().map(|number| page(*number)).collect();
    for shown in [1, 5, 32, 100] {
        let mut actions = knowing(Config { audits: Audits::NONE, ..Config::default() }, &[&path]);
        let mut flow = FlowPredictor::from_path(&pages, FlowConfig::default()).unwrap();
        // Not every touch is seen.
        for page in pages.iter().step_by(shown) {
            let by_action = actions.touch(TOKEN, *page, Moment(5));
            let by_graph = flow.touch(TOKEN, *page, Moment(5));
            assert_eq!(by_graph.cancel, by_action.cancel);
            assert_eq!(by_graph.phase, by_action.phase);
            let expected = by_action.push.as_ref().map_or(&[][..], |order| actions.pages(TOKEN, order));
            let found = by_graph.push.as_ref().map_or(&[][..], |order| flow.pages(TOKEN, order));
            assert_eq!(found, expected, "at {page}, every {shown}. touch shown");
            if let (Some(one), Some(other)) = (by_graph.push, by_action.push) {
                assert_eq!((one.from, one.through, one.begins), (other.from, other.through, other.begins));
            }
        }
    }
}

#[test]
fn in_a_search_each_decision_orders_its_half() {
    let mut predictor = with(search_graph());
    let (cancel, pages) = touch(&mut predictor, 128);
    assert!(!cancel);
    assert_eq!(pages.len(), 255, "the window is larger than the file");
    let mut third = pages[2..6].to_vec();
    third.sort_unstable();
    assert_eq!((&pages[..2], &third[..]), (&[64, 192][..], &[32, 96, 160, 224][..]));
    let (cancel, pages) = touch(&mut predictor, 192);
    assert!(cancel, "the other half is not needed");
    assert_eq!(pages[..2], [160, 224]);
    assert!(pages.iter().all(|page| *page > 128), "{pages:?}");
    let (cancel, pages) = touch(&mut predictor, 224);
    assert!(cancel);
    assert!(pages.iter().all(|page| *page > 192), "{pages:?}");
    // The next search takes the other way: only from there on is it known.
    let (_, pages) = touch(&mut predictor, 64);
    assert_eq!(pages[..2], [32, 96]);
}

#[test]
fn a_binary_search_waits_less_than_with_readahead() {
    let mut rng = SplitMix64(11);
    // Several searches a run, over the link of the paper: a round trip of 100 ms, 128 kbit/s, pages
    // that pack to 1500 bytes.
    let runs: Vec<Order> = (0..20)
        .map(|run| order(run + 1, &(0..4).flat_map(|_| search(rng.below(256) as u32)).collect::<Vec<u32>>()))
        .collect();
    let model = CostModel {
        round_trip: Duration::from_millis(100),
        page_time: Duration::from_millis(94),
        work: Duration::from_millis(200),
        visible: Visible::All,
    };
    let flow = Evaluation::total(&evaluate(&mut with(search_graph()), &runs, &model));
    let linux = Evaluation::total(&evaluate(&mut LinuxReadahead::new(|_| 256), &runs, &model));
    assert_eq!(flow.touched, linux.touched);
    assert!(flow.demanded * 2 < linux.demanded, "{flow:?}\n{linux:?}");
    assert!(flow.stalled < linux.stalled, "{flow:?}\n{linux:?}");
    // A faster link has time for more.
    let faster = CostModel { page_time: Duration::from_millis(10), ..model };
    let flow = Evaluation::total(&evaluate(&mut with(search_graph()), &runs, &faster));
    let linux = Evaluation::total(&evaluate(&mut LinuxReadahead::new(|_| 256), &runs, &faster));
    assert!(flow.stalled * 2 < linux.stalled, "{flow:?}\n{linux:?}");
}

#[test]
fn a_touch_off_the_way_orders_anew_and_what_is_there_is_left_out() {
    let scenes = graph("size 1228800\nupdates static\nstart -> 0..9 -> 100..109 x9\n0 -> 50\nseq 50..59\nused 299");
    let mut predictor = with(scenes);
    let (_, pages) = touch(&mut predictor, 0);
    let expected: Vec<u32> = (1..10).chain(100..110).chain(50..60).collect();
    assert_eq!(pages, expected);
    assert_eq!(touch(&mut predictor, 1), (false, vec![]), "a sure step: the order stands");
    assert_eq!(touch(&mut predictor, 50), (true, (51..60).collect()), "another scene");
    assert_eq!(touch(&mut predictor, 51), (false, vec![]));
    assert_eq!(touch(&mut predictor, 299), (true, vec![]), "nothing follows");
    // Back: 2 was ordered but never touched, so it is ordered again; 1 is there.
    let (_, pages) = touch(&mut predictor, 0);
    assert_eq!(pages, (2..10).chain(100..110).chain(52..60).collect::<Vec<_>>());
    assert_eq!(touch(&mut predictor, 7), (false, vec![]), "all between was seen by nobody, but is sure");
    assert_eq!(touch(&mut predictor, 3), (false, vec![]), "passed");
    assert_eq!(touch(&mut predictor, 250), (false, vec![]), "a block that nobody uses changes nothing");
    let unknown = predictor.touch(Token(7), PageId::new(InodeId(9), 1), Moment(5));
    assert_eq!((unknown.phase, unknown.push), (Phase::Construct, None));
}

#[test]
fn live_use_teaches_and_static_graphs_stay() {
    let mut predictor = FlowPredictor::new(FlowConfig { learned_max: 10, ..FlowConfig::default() });
    for run in 0..3 {
        let token = Token(run + 10);
        for number in [3, 9, 4] {
            predictor.touch(token, page(number), Moment(5));
        }
        predictor.end(token, Moment(6));
    }
    assert_eq!(predictor.take_changed(), [InodeId(1)]);
    let learned = predictor.graph(InodeId(1)).unwrap();
    assert_eq!(learned.traversal(), [3, 9, 4]);
    assert_eq!(learned.successors(3), [Edge { to: 9, weight: 3 }]);
    assert_eq!(learned.layout().blocks(), 10, "it grew with what was touched");
    assert_eq!(touch(&mut predictor, 3).1, [9, 4]);
    // A walk of which only the ends are seen counts for all steps between.
    touch(&mut predictor, 4);
    assert_eq!(predictor.graph(InodeId(1)).unwrap().successors(9), [Edge { to: 4, weight: 4 }]);
    let mut fixed = search_graph();
    fixed.updates = Updates::Static;
    let mut predictor = with(fixed.clone());
    for number in [128, 3, 200, 77] {
        touch(&mut predictor, number);
    }
    assert_eq!(predictor.graph(InodeId(1)), Some(&fixed));
    assert_eq!(predictor.take_changed(), []);
    // New blocks of one graph have a limit; known ones are counted beyond it.
    let config = FlowConfig { learned_max: 10, graph_bytes_max: 700, ..FlowConfig::default() };
    let mut predictor = FlowPredictor::new(config);
    for number in (0..100).chain([2, 1]) {
        predictor.touch(TOKEN, page(number), Moment(5));
    }
    let learned = predictor.graph(InodeId(1)).unwrap();
    assert_eq!(learned.used().collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(learned.successors(2), [Edge { to: 1, weight: 1 }, Edge { to: 3, weight: 1 }]);
}

#[test]
fn regress_graphs_touched_longest_ago_make_room_for_others() {
    let used = |predictor: &FlowPredictor, inode: u32| predictor.graph(InodeId(inode)).map(|graph| graph.used().len());
    let scan = |predictor: &mut FlowPredictor, inode: u32| {
        for index in 0..20 {
            predictor.touch(Token(inode.into()), PageId::new(InodeId(inode), index), Moment(5));
        }
    };
    // Memory for three of them.
    let config = FlowConfig { learned_max: 10, graph_bytes_max: 7000, ..FlowConfig::default() };
    let mut predictor = FlowPredictor::new(config);
    predictor.insert(InodeId(100), FlowGraph::from_path(Layout::new(4096, 9 * 4096).unwrap(), &[1, 2, 3]).unwrap());
    for inode in 1..=3 {
        scan(&mut predictor, inode);
    }
    assert_eq!(predictor.take_changed().len(), 3);
    scan(&mut predictor, 1);
    scan(&mut predictor, 4);
    // The first was used again, and was not saved since; the second makes room. A static graph
    // stays.
    assert_eq!([1, 2, 3, 4, 100].map(|inode| used(&predictor, inode)), [Some(20), None, Some(20), Some(20), Some(3)]);
    // What is saved of it would be overwritten by a graph of its next steps.
    scan(&mut predictor, 2);
    assert!(predictor.is_forgotten(InodeId(2)) && used(&predictor, 2).is_none());
    predictor.insert(InodeId(2), search_graph());
    assert!(!predictor.is_forgotten(InodeId(2)));
    // By number, too.
    let mut predictor = FlowPredictor::new(FlowConfig { learned_max: 2, ..FlowConfig::default() });
    for inode in 1..=3 {
        scan(&mut predictor, inode);
    }
    assert_eq!([1, 2, 3].map(|inode| used(&predictor, inode)), [None, Some(20), Some(20)]);
    predictor.readmit(InodeId(1));
    scan(&mut predictor, 1);
    assert_eq!(used(&predictor, 1), Some(20));
}

#[test]
fn who_may_not_teach_is_pushed_to_and_teaches_no_graph() {
    let mut predictor = FlowPredictor::new(FlowConfig { learned_max: 8, ..FlowConfig::default() });
    let pupil = Reader { teaches: false, ..reader(1) };
    let run = |predictor: &mut FlowPredictor, reader, token| {
        let touches = (0..40u32).map(|number| predictor.touch_of(reader, token, page(number * 3), Moment(5)).push);
        touches.flatten().count()
    };
    run(&mut predictor, pupil, Token(1));
    assert!(predictor.graph(InodeId(1)).is_none());
    (2..5).for_each(|token| _ = run(&mut predictor, reader(1), Token(token)));
    predictor.take_changed();
    assert!(run(&mut predictor, pupil, Token(9)) > 0);
    assert_eq!(predictor.take_changed(), []);
}

#[test]
fn regress_who_has_many_tokens_does_not_displace_those_of_others() {
    let config = FlowConfig { token_bytes_max: 100_000, ..FlowConfig::default() };
    let mut predictor = FlowPredictor::new(config);
    predictor.insert(InodeId(1), search_graph());
    let mut rng = SplitMix64(9);
    predictor.touch_of(reader(1), Token(7), page(128), Moment(5));
    for number in 100..1000 {
        for _ in 0..10 {
            predictor.touch_of(reader(2), Token(number), page(rng.below(256) as u32), Moment(5));
        }
    }
    assert!(predictor.tokens() > 2, "{}", predictor.tokens());
    // It goes on where it was: had it been forgotten, it would be found anew, which begins an
    // order.
    let verdict = predictor.touch_of(reader(1), Token(7), page(128), Moment(6));
    assert_eq!(verdict.phase, crate::Phase::Generate);
}

#[test]
fn blocks_of_other_sizes_are_pages_too() {
    // 16 KiB: four pages each. What is left of the block at hand comes first.
    let mut predictor = with(graph("block 16384\nsize 60000\nstart -> 2 -> 0 -> 3\nused 1"));
    assert_eq!(touch(&mut predictor, 9), (false, vec![8, 10, 11, 0, 1, 2, 3, 12, 13, 14]));
    assert_eq!(touch(&mut predictor, 10), (false, vec![]));
    assert_eq!(touch(&mut predictor, 0), (false, vec![]));
    // 1 KiB: four to a page.
    let mut predictor = with(graph("block 1024\nseq 0..9\n9 -> 40"));
    assert_eq!(touch(&mut predictor, 0), (false, vec![1, 2, 10]));
    assert_eq!(touch(&mut predictor, 1), (false, vec![]));
    assert_eq!(touch(&mut predictor, 10), (false, vec![]));
}

#[test]
fn several_files_are_followed_at_once() {
    let mut predictor = with(graph("seq 0..3"));
    predictor.insert(InodeId(2), graph("seq 10..13"));
    touch(&mut predictor, 0);
    let verdict = predictor.touch(TOKEN, PageId::new(InodeId(2), 10), Moment(5));
    let pages = predictor.pages(TOKEN, &verdict.push.unwrap()).to_vec();
    let names: Vec<String> = pages.iter().map(PageId::to_string).collect();
    assert_eq!(names, ["2:11", "1:1", "2:12", "1:2", "2:13", "1:3"]);
    assert!(verdict.cancel);
    for (inode, number) in [(1, 1), (2, 11), (2, 12), (1, 2)] {
        let verdict = predictor.touch(TOKEN, PageId::new(InodeId(inode), number), Moment(5));
        assert_eq!((verdict.cancel, verdict.push), (false, None), "{inode}:{number}");
    }
}

#[test]
fn tokens_are_few_and_end() {
    let mut predictor = FlowPredictor::new(FlowConfig { tokens_max: 3, ..FlowConfig::default() });
    predictor.insert(InodeId(1), graph("seq 0..3"));
    for token in 0..10 {
        predictor.touch(Token(token), page(0), Moment(token as u64));
    }
    assert_eq!(predictor.tokens(), 3);
    assert!(predictor.expire(Moment(1000)).is_empty());
    predictor.end(Token(9), Moment(1000));
    predictor.end(Token(0), Moment(1000));
    let late = Moment(0).after(Duration::from_secs(100));
    assert_eq!(predictor.expire(late).iter().map(|ended| ended.token.0).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(predictor.tokens(), 0);
}

#[test]
fn any_touches_are_taken() {
    let mut rng = SplitMix64(2);
    let mut predictor = FlowPredictor::new(FlowConfig { learned_max: 2, ..FlowConfig::default() });
    predictor.insert(InodeId(0), graph("block 512\nseq 0..500 x3\n500 -> 3"));
    predictor.insert(InodeId(1), search_graph());
    for touched in 0..30_000u64 {
        let index = if rng.below(50) == 0 { rng.next_u64() as u32 } else { rng.below(300) as u32 };
        let page = PageId::new(InodeId(rng.below(4) as u32), index);
        let token = Token(rng.below(3).into());
        let verdict = predictor.touch(token, page, Moment(touched));
        if let Some(order) = verdict.push {
            let pages = predictor.pages(token, &order);
            assert_eq!(pages.len() as u32, order.through - order.from);
            let longest = FlowConfig::default().lookahead_max as usize + 2;
            assert!(!pages.is_empty() && pages.len() <= longest * 32);
            assert!(!pages.contains(&page), "what was touched just now is there");
        }
        if rng.below(2000) == 0 {
            predictor.end(token, Moment(touched));
        }
    }
}

#[test]
fn small_blocks_are_followed_one_by_one() {
    let config = FlowConfig { page_bytes: 512, learned_max: 1, ..FlowConfig::default() };
    let mut predictor = FlowPredictor::new(config);
    let path = [64, 32, 48, 40, 44];
    for token in 1..=3 {
        for (step, index) in path.into_iter().enumerate() {
            predictor.touch(Token(token), PageId::new(InodeId(1), index), Moment(step as u64));
        }
        predictor.end(Token(token), Moment(10));
    }
    assert_eq!(predictor.graph(InodeId(1)).map(|graph| graph.layout().block_bytes()), Some(512));
    let order = predictor.touch(Token(9), PageId::new(InodeId(1), 64), Moment(20)).push.expect("the way is known");
    let pages: Vec<u32> = predictor.pages(Token(9), &order).iter().map(|page| page.index).collect();
    assert_eq!(pages, path[1..], "and nothing between them");
}

#[test]
fn what_is_ordered_says_how_likely_it_is() {
    let mut predictor = with(search_graph());
    let (_, pages) = touch(&mut predictor, 128);
    let chance = |number: u32| predictor.chance(TOKEN, page(number));
    // Either half, as far as 255 searches are to be trusted; then the quarters.
    assert!((0.48..0.51).contains(&chance(64)) && (0.48..0.51).contains(&chance(192)), "{}", chance(64));
    assert!((0.22..0.26).contains(&chance(32)) && pages.contains(&32));
    // A way that every run goes is none that is guessed, whichever part of it comes first.
    let mut predictor = with(FlowGraph::from_path(Layout::new(4096, 9 * 4096).unwrap(), &[1, 2, 3, 2, 5, 6]).unwrap());
    touch(&mut predictor, 1);
    touch(&mut predictor, 2);
    assert_eq!([3, 5].map(|number| predictor.chance(TOKEN, page(number))), [1.0, 1.0]);
    // What was seen once among many runs is as likely as not.
    let layout = Layout::new(4096, 9 * 4096).unwrap();
    let often = [1, 2, 3];
    let runs: Vec<&[u32]> = std::iter::repeat_n(often.as_slice(), 50).chain([[4, 7, 8].as_slice()]).collect();
    let mut predictor = with(FlowGraph::from_runs(layout, runs).unwrap());
    touch(&mut predictor, 4);
    assert_eq!(predictor.chance(TOKEN, page(7)), 0.5);
}

#[test]
fn memory_of_tokens_stays_within_its_bound() {
    const BYTES_MAX: usize = 1 << 20;
    let config = FlowConfig { token_bytes_max: BYTES_MAX, ..FlowConfig::default() };
    let mut predictor = FlowPredictor::new(config);
    predictor.insert(InodeId(1), search_graph());
    let graphs = predictor.memory_bytes();
    let mut rng = SplitMix64(7);
    let (mut most, mut tokens) = (0, 0);
    for number in 0..500u128 {
        for _ in 0..rng.below(200) {
            predictor.touch(Token(number), page(rng.below(256) as u32), Moment(5));
            most = most.max(predictor.memory_bytes());
            tokens = tokens.max(predictor.tokens());
        }
    }
    assert!(most <= BYTES_MAX + graphs + 1000, "{most} bytes");
    assert!(most > BYTES_MAX / 2 && tokens > 20, "{most} bytes of {tokens} tokens");
    // One alone may be larger than all: it is followed all the same.
    let mut predictor = FlowPredictor::new(FlowConfig { token_bytes_max: 1, ..FlowConfig::default() });
    predictor.insert(InodeId(1), search_graph());
    assert!(!touch(&mut predictor, 128).1.is_empty());
    assert_eq!(predictor.tokens(), 1);
    predictor.end(TOKEN, Moment(6));
    assert_eq!(predictor.memory_bytes(), graphs);
}
