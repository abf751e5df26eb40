//! Pictures of a flow graph: DOT text for Graphviz, and an SVG of our own.
//!
//! Blocks that only ever follow one another in file order are drawn as one node, so a scan is a
//! single node and the tree of a search stays a tree. The nodes that come first in the traversal
//! are drawn; the picture says how many are left out.

mod svg;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};

use super::FlowGraph;

pub use svg::svg;

/// Nodes drawn: more cannot be told apart on a screen.
pub const NODES_MAX: usize = 200;

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    first: u32,
    last: u32,
    /// Position in the stages of the graph.
    stage: Option<usize>,
    /// Steps from the entry, in nodes; those that nothing leads to lie behind all others.
    layer: usize,
}

/// An edge between nodes, by their positions.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Link {
    /// `None` for the entry.
    from: Option<usize>,
    to: usize,
    /// Part of the weights that leave the block: 0 to 1.
    part: f64,
}

/// What is drawn.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sketch {
    nodes: Vec<Node>,
    links: Vec<Link>,
    /// Used blocks that are not drawn.
    hidden_blocks: usize,
    /// Stages of the graph that drawn nodes are in.
    stages: Vec<usize>,
}

impl Sketch {
    fn new(graph: &FlowGraph, nodes_max: usize) -> Sketch {
        let runs = runs(graph);
        let run_of = |block: u32| runs.partition_point(|(_, last)| *last < block);
        // Runs in the order of the traversal.
        let mut position: HashMap<usize, usize> = HashMap::new();
        let mut sketch = Sketch::default();
        for block in graph.traversal() {
            let run = run_of(block);
            if position.contains_key(&run) || sketch.nodes.len() >= nodes_max {
                sketch.hidden_blocks += usize::from(!position.contains_key(&run));
                continue;
            }
            position.insert(run, sketch.nodes.len());
            let (first, last) = runs[run];
            sketch.nodes.push(Node { first, last, stage: graph.stage_of(first), layer: usize::MAX });
        }
        let shown = |block: u32| position.get(&run_of(block)).copied();
        let mut links: BTreeMap<(Option<usize>, usize), f64> = BTreeMap::new();
        let whole: u32 = graph.entry().iter().map(|edge| edge.weight).sum();
        for edge in graph.entry() {
            if let Some(to) = shown(edge.to) {
                *links.entry((None, to)).or_default() += f64::from(edge.weight) / f64::from(whole);
            }
        }
        for (from, node) in sketch.nodes.iter().enumerate() {
            let edges = graph.successors(node.last);
            let whole: u32 = edges.iter().map(|edge| edge.weight).sum();
            for edge in edges {
                if let Some(to) = shown(edge.to) {
                    *links.entry((Some(from), to)).or_default() += f64::from(edge.weight) / f64::from(whole);
                }
            }
        }
        sketch.links = links.into_iter().map(|((from, to), part)| Link { from, to, part }).collect();
        sketch.stages = sketch.nodes.iter().filter_map(|node| node.stage).collect();
        sketch.stages.sort_unstable();
        sketch.stages.dedup();
        sketch.layers();
        sketch
    }

    /// Breadth first from the entry.
    fn layers(&mut self) {
        let mut reached: Vec<Option<usize>> = vec![None];
        let mut layer = 0;
        while !reached.is_empty() {
            let mut next = Vec::new();
            for link in self.links.iter().filter(|link| reached.contains(&link.from)) {
                let node = &mut self.nodes[link.to];
                if node.layer == usize::MAX {
                    node.layer = layer;
                    next.push(Some(link.to));
                }
            }
            reached = next;
            layer += 1;
        }
        let behind = self.nodes.iter().filter(|node| node.layer != usize::MAX).map(|node| node.layer + 1).max();
        for node in self.nodes.iter_mut().filter(|node| node.layer == usize::MAX) {
            node.layer = behind.unwrap_or(0);
        }
    }

    fn hidden(&self) -> Option<String> {
        (self.hidden_blocks > 0).then(|| format!("and {} more blocks", self.hidden_blocks))
    }
}

impl Node {
    fn label(&self) -> String {
        if self.first == self.last { self.first.to_string() } else { format!("{}..{}", self.first, self.last) }
    }
}

/// Used blocks as runs in file order: a block belongs to the run before it if it is all that
/// follows there, follows nothing else, is no first block and lies in the same stage.
fn runs(graph: &FlowGraph) -> Vec<(u32, u32)> {
    let mut predecessors: HashMap<u32, u32> = HashMap::new();
    let edges = graph.used().flat_map(|block| graph.successors(block)).chain(graph.entry());
    edges.for_each(|edge| *predecessors.entry(edge.to).or_default() += 1);
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for block in graph.used() {
        let joins = |last: u32| {
            let only = matches!(graph.successors(last), [edge] if edge.to == block);
            last + 1 == block
                && only
                && predecessors.get(&block) == Some(&1)
                && graph.stage_of(last) == graph.stage_of(block)
        };
        match runs.last_mut() {
            Some((_, last)) if joins(*last) => *last = block,
            _ => runs.push((block, block)),
        }
    }
    runs
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// The graph for Graphviz, at most `nodes_max` nodes.
///
/// # Errors
/// Those of `out`.
pub fn dot(graph: &FlowGraph, nodes_max: usize, out: &mut dyn Write) -> fmt::Result {
    let sketch = Sketch::new(graph, nodes_max);
    writeln!(out, "digraph flow {{\n  rankdir=LR;\n  node [shape=box];\n  start [shape=circle, label=\"\"];")?;
    for (number, node) in sketch.nodes.iter().enumerate() {
        write!(out, "  n{number} [label=\"{}\"", node.label())?;
        if let Some(stage) = node.stage {
            // Names hold no quotes; a backslash would begin an escape of DOT.
            write!(out, ", tooltip=\"{}\"", graph.stages()[stage].name().replace('\\', "\\\\"))?;
        }
        writeln!(out, "];")?;
    }
    for link in &sketch.links {
        let from = link.from.map_or("start".to_string(), |from| format!("n{from}"));
        let width = 1.0 + 2.0 * link.part;
        writeln!(out, "  {from} -> n{} [label=\"{}\", penwidth={width:.1}];", link.to, percent(link.part))?;
    }
    if let Some(hidden) = sketch.hidden() {
        writeln!(out, "  more [shape=plaintext, label=\"{hidden}\"];")?;
    }
    writeln!(out, "}}")
}
