//! What holds of every graph.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

pub(super) fn any_graph() -> impl Strategy<Value = FlowGraph> {
    let run = prop::collection::vec(0..64u32, 0..80);
    let runs = prop::collection::vec(run, 0..4);
    let cuts = prop::collection::vec((0..128u32, 0..3u8, any::<bool>()), 0..6);
    (runs, cuts, any::<bool>(), 0..3u32).prop_map(|(runs, cuts, live, size)| {
        let layout = Layout::new(4096 << size, (u64::from(4096u32 << size) * 128) - 7).unwrap();
        let mut graph = FlowGraph::from_runs(layout, runs.iter().map(Vec::as_slice)).unwrap();
        let mut stages = Vec::new();
        let mut borders: Vec<(u32, u8, bool)> = cuts;
        borders.sort_unstable();
        borders.dedup_by_key(|(at, ..)| *at);
        for (number, pair) in borders.windows(2).enumerate() {
            let share = match pair[0].1 {
                0 => Share::Rest,
                1 => Share::Percent(20),
                _ => Share::Rate(1 << (pair[0].0 % 40)),
            };
            let range = BlockRange { first: pair[0].0, last: pair[1].0 - 1 };
            if pair[0].2 {
                stages.push(Stage::new(&format!("stage {number} ä"), &[range], share).unwrap());
            }
        }
        graph.set_stages(stages).unwrap();
        graph.updates = if live { Updates::Live } else { Updates::Static };
        graph
    })
}

/// The rules that a graph states of itself.
pub(super) fn check(graph: &FlowGraph) {
    let used: BTreeSet<u32> = graph.used().collect();
    assert_eq!(graph.entry().is_empty(), used.is_empty());
    assert!(used.iter().all(|block| *block < graph.layout().blocks()));
    for block in &used {
        let edges = graph.successors(*block);
        assert!(edges.len() <= EDGES_MAX);
        assert!(edges.iter().all(|edge| edge.to != *block && used.contains(&edge.to)));
        assert!(edges.iter().all(|edge| (1..=WEIGHT_MAX).contains(&edge.weight)));
        assert!(edges.windows(2).all(|pair| pair[0].weight >= pair[1].weight));
    }
    assert!(graph.entry().iter().all(|edge| used.contains(&edge.to)));
    // Every used block once, in an order that does not change.
    let order = graph.traversal();
    assert_eq!(order.len(), used.len());
    assert_eq!(order.iter().copied().collect::<BTreeSet<u32>>(), used);
    assert_eq!(order, graph.traversal());
    let sent: usize = graph.schedule().iter().map(|scheduled| scheduled.blocks.len()).sum();
    assert_eq!(sent, used.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn prop_graphs_keep_their_rules_and_both_forms_keep_graphs(
        graph in any_graph(),
        other in any_graph(),
        uses in prop::collection::vec((prop::option::of(0..130u32), 0..130u32), 0..60),
        end in 0..140u32,
    ) {
        let mut graph = graph;
        check(&graph);
        for (previous, next) in uses {
            graph.observe(previous, next);
        }
        let merged = graph.merge(&other).is_ok();
        prop_assert_eq!(merged, graph.layout().block_bytes() == other.layout().block_bytes());
        check(&graph);
        prop_assert_eq!(&decode(&graph.encode()).unwrap(), &graph);
        let text = printed(&graph);
        let again = text::parse(&text).unwrap();
        prop_assert_eq!(&again, &graph);
        prop_assert_eq!(printed(&again), text);
        graph.resize(u64::from(end) * u64::from(graph.layout().block_bytes())).unwrap();
        check(&graph);
        prop_assert_eq!(&decode(&graph.encode()).unwrap(), &graph);
        prop_assert_eq!(&text::parse(&printed(&graph)).unwrap(), &graph);
    }

    #[test]
    fn prop_likelihoods_of_a_tree_only_fall(keys in prop::collection::vec(0..200u32, 1..50)) {
        let runs: Vec<Vec<u32>> = keys.iter().map(|key| search(*key, 0, 200)).collect();
        let graph = FlowGraph::from_runs(layout(200), runs.iter().map(Vec::as_slice)).unwrap();
        let steps: Vec<Step> = Expansion::from_entry(&graph).collect();
        prop_assert!(steps.windows(2).all(|pair| pair[0].rank(&pair[1]).is_ge()));
        prop_assert!(steps.iter().all(|step| step.depth as usize + 1 == search(step.block, 0, 200).len()));
    }
}
