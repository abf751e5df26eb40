//! Pictures: what is drawn, and how much of it.

use super::*;
use crate::flow::picture::{NODES_MAX, dot, svg};

fn drawn(graph: &FlowGraph, nodes_max: usize) -> (String, String) {
    let (mut as_dot, mut as_svg) = (String::new(), String::new());
    dot(graph, nodes_max, &mut as_dot).unwrap();
    svg(graph, nodes_max, &mut as_svg).unwrap();
    (as_dot, as_svg)
}

#[test]
fn runs_of_blocks_are_one_node() {
    let (as_dot, as_svg) = drawn(&sample(), NODES_MAX);
    let expected = "digraph flow {\n  rankdir=LR;\n  node [shape=box];\n  start [shape=circle, label=\"\"];\n\
        \x20 n0 [label=\"0..15\", tooltip=\"intro\"];\n  n1 [label=\"40..43\", tooltip=\"later scenes\"];\n\
        \x20 n2 [label=\"60..61\", tooltip=\"later scenes\"];\n  n3 [label=\"100\"];\n\
        \x20 n4 [label=\"80\", tooltip=\"rest\"];\n";
    assert!(as_dot.starts_with(expected), "{as_dot}");
    assert!(as_dot.contains("start -> n0 [label=\"90%\", penwidth=2.8];"), "{as_dot}");
    assert!(as_dot.contains("n1 -> n1 [label=\"100%\""), "the way back: {as_dot}");
    assert!(as_svg.starts_with("<svg xmlns") && as_svg.ends_with("</svg>\n"));
    assert!(as_svg.contains("later scenes (16000 B/s)") && as_svg.contains(">0..15<") && as_svg.contains("edge back"));
    let (_, empty) = drawn(&FlowGraph::new(layout(3)), NODES_MAX);
    assert!(empty.contains("0 of 3 blocks"));
}

#[test]
fn what_is_too_much_is_counted() {
    let path: Vec<u32> = (0..1000).map(|step| step * 7 % 1000).collect();
    let (as_dot, as_svg) = drawn(&FlowGraph::from_path(layout(1000), &path).unwrap(), 50);
    assert_eq!(as_dot.matches("label=").count(), 1 + 50 + 50 + 1);
    assert!(as_dot.contains("and 950 more blocks") && as_svg.contains("and 950 more blocks"));
    assert_eq!(as_svg.matches("<rect class=\"node\"").count(), 50);
    // Names of stages come from files: they must not end up as markup.
    let hostile = graph("seq 0..3\nstage \"<script>&\\\" 0..3");
    let (as_dot, as_svg) = drawn(&hostile, 10);
    assert!(as_svg.contains("&lt;script&gt;&amp;\\") && !as_svg.contains("<script"));
    assert!(as_dot.contains("tooltip=\"<script>&\\\\\""));
}
