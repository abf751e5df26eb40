//! The order of a graph's blocks, best first.
//!
//! Each block has the probability that a run comes to it through blocks taken already: the sum,
//! over its edges from these blocks, of their probability times the edge's part of the weights. The
//! likeliest block is taken next. Of equally likely blocks, the one fewer steps away is taken,
//! since it is needed sooner; then the one that comes first in the file. So a scan comes in its
//! order, the tree of a binary search level by level, a scene with all its blocks before scenes
//! that may follow it. Two paths that meet again count together from the block where they meet.
//!
//! An edge back to a block that is taken counts for nothing: the blocks after that are weighed
//! already. Every edge is looked at once, so the time is proportional to the edges times a
//! logarithm.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::{Edge, FlowGraph};

/// A block in the order of an [`Expansion`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The block.
    pub block: u32,
    /// How likely a run comes here, by the blocks before: 0 to 1.
    pub probability: f64,
    /// Fewest steps from where the expansion began; 0 for first blocks.
    pub depth: u32,
}

impl Step {
    /// Greater means: sooner. Of the probability 24 bits count, so that rounding on different ways
    /// to it makes no difference.
    pub fn rank(&self, other: &Step) -> Ordering {
        (self.probability as f32).total_cmp(&(other.probability as f32)).then(other.depth.cmp(&self.depth))
    }
}

#[derive(PartialEq)]
struct Candidate(Step);

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.0.rank(&other.0).then(Reverse(self.0.block).cmp(&Reverse(other.0.block)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The blocks that follow, the likeliest first, each once; only those that edges lead to.
pub struct Expansion<'a> {
    graph: &'a FlowGraph,
    heap: BinaryHeap<Candidate>,
    /// What is known of blocks not taken yet.
    open: HashMap<u32, Step>,
    taken: HashSet<u32>,
}

impl<'a> Expansion<'a> {
    fn empty(graph: &'a FlowGraph) -> Expansion<'a> {
        Expansion { graph, heap: BinaryHeap::new(), open: HashMap::new(), taken: HashSet::new() }
    }

    /// From the start of a run.
    pub fn from_entry(graph: &'a FlowGraph) -> Expansion<'a> {
        let mut expansion = Expansion::empty(graph);
        expansion.reach(graph.entry(), graph.entry.sum(), 1.0, 0);
        expansion
    }

    /// From blocks that were used just now, which are not among what follows.
    pub fn after(graph: &'a FlowGraph, blocks: &[u32]) -> Expansion<'a> {
        let mut expansion = Expansion::empty(graph);
        expansion.taken.extend(blocks);
        for block in blocks {
            expansion.reach(graph.successors(*block), graph.successors_sum(*block), 1.0 / blocks.len() as f64, 1);
        }
        expansion
    }

    fn reach(&mut self, edges: &[Edge], sum: u64, probability: f64, depth: u32) {
        for edge in edges.iter().filter(|edge| !self.taken.contains(&edge.to)) {
            let step = self.open.entry(edge.to).or_insert(Step { block: edge.to, probability: 0.0, depth });
            // In this order, a sure step keeps its probability to the last bit.
            step.probability += probability * (f64::from(edge.weight) / sum as f64);
            step.depth = step.depth.min(depth);
            // The older, lighter candidates of this block come later, and are passed over then.
            self.heap.push(Candidate(*step));
        }
    }
}

impl Iterator for Expansion<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        while let Some(Candidate(step)) = self.heap.pop() {
            if self.taken.insert(step.block) {
                self.open.remove(&step.block);
                let graph = self.graph;
                let sum = graph.successors_sum(step.block);
                self.reach(graph.successors(step.block), sum, step.probability, step.depth.saturating_add(1));
                return Some(step);
            }
        }
        None
    }
}

/// Blocks of one stage in the order in which they are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Position in [`FlowGraph::stages`]; `None` for blocks that are in no stage.
    pub stage: Option<usize>,
    /// Its used blocks.
    pub blocks: Vec<u32>,
}

impl FlowGraph {
    /// The paper's traversal: every used block once, in the order in which to send them. Blocks
    /// that no edge leads to from the entry any more come last, in file order. Blocks that are
    /// never used are not in it.
    pub fn traversal(&self) -> Vec<u32> {
        let mut expansion = Expansion::from_entry(self);
        let mut order: Vec<u32> = expansion.by_ref().map(|step| step.block).collect();
        order.extend(self.used().filter(|block| !expansion.taken.contains(block)));
        order
    }

    /// The traversal by stages: those in the order of their priority, then what is in none. Stages
    /// without used blocks are left out.
    pub fn schedule(&self) -> Vec<Scheduled> {
        let mut lists: Vec<Vec<u32>> = vec![Vec::new(); self.stages().len() + 1];
        for block in self.traversal() {
            lists[self.stage_of(block).unwrap_or(self.stages().len())].push(block);
        }
        let none = self.stages().len();
        let scheduled = lists.into_iter().enumerate().filter(|(_, blocks)| !blocks.is_empty());
        scheduled.map(|(position, blocks)| Scheduled { stage: (position < none).then_some(position), blocks }).collect()
    }

    /// Position in [`FlowGraph::stages`] of the stage that holds `block`.
    pub fn stage_of(&self, block: u32) -> Option<usize> {
        self.stages().iter().position(|stage| stage.holds(block))
    }
}
