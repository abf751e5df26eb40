//! The graph, and the ways to make one: from runs, from a path, by live use, by merging.

use std::collections::BTreeMap;

use super::edges::Edges;
use super::format::{EDGES_MAX, ENTRIES_MAX};
use super::stage::{self, Stage};
use super::{Edge, FlowError, Layout};

/// Whether use changes a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Updates {
    /// It stays as it was learned or written (the paper's static profile).
    Static,
    /// [`FlowGraph::observe`] counts (the paper's dynamic profile).
    #[default]
    Live,
}

/// In which order the blocks of one data file are used. See the module's introduction.
///
/// What always holds: all blocks named lie in the file; every target of an edge is a used block; a
/// graph with used blocks has an entry; no edge leads from a block to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowGraph {
    pub(super) layout: Layout,
    /// Whether use changes it.
    pub updates: Updates,
    pub(super) entry: Edges,
    /// Blocks that are used, with their edges.
    pub(super) nodes: BTreeMap<u32, Edges>,
    pub(super) stages: Vec<Stage>,
}

impl FlowGraph {
    /// A graph of a file of which nothing is known.
    pub fn new(layout: Layout) -> FlowGraph {
        FlowGraph {
            layout,
            updates: Updates::default(),
            entry: Edges::default(),
            nodes: BTreeMap::new(),
            stages: Vec::new(),
        }
    }

    /// What one run teaches: the blocks it used in their order, with repeats.
    ///
    /// # Errors
    /// A block that the file does not have.
    pub fn from_touches(layout: Layout, touches: &[u32]) -> Result<FlowGraph, FlowError> {
        FlowGraph::from_runs(layout, [touches])
    }

    /// What several runs teach. Counts are exact before the lightest edges go, so this is better
    /// than merging one by one.
    ///
    /// # Errors
    /// A block that the file does not have.
    pub fn from_runs<'a>(layout: Layout, runs: impl IntoIterator<Item = &'a [u32]>) -> Result<FlowGraph, FlowError> {
        let mut entry: BTreeMap<u32, u64> = BTreeMap::new();
        let mut counts: BTreeMap<u32, BTreeMap<u32, u64>> = BTreeMap::new();
        for run in runs {
            let mut previous = None;
            for block in run {
                if *block >= layout.blocks() {
                    return Err(FlowError::NoBlock { block: *block, blocks: layout.blocks() });
                }
                counts.entry(*block).or_default();
                match previous {
                    None => *entry.entry(*block).or_default() += 1,
                    Some(before) if before != *block => {
                        *counts.entry(before).or_default().entry(*block).or_default() += 1;
                    }
                    Some(_) => {}
                }
                previous = Some(*block);
            }
        }
        let nodes = counts.into_iter().map(|(block, counts)| (block, Edges::heaviest(counts, EDGES_MAX))).collect();
        Ok(FlowGraph { entry: Edges::heaviest(entry, ENTRIES_MAX), nodes, ..FlowGraph::new(layout) })
    }

    /// The special case of an action: one path, which never changes.
    ///
    /// # Errors
    /// A block that the file does not have.
    pub fn from_path(layout: Layout, path: &[u32]) -> Result<FlowGraph, FlowError> {
        Ok(FlowGraph { updates: Updates::Static, ..FlowGraph::from_touches(layout, path)? })
    }

    /// How the file is cut into blocks.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Which blocks come first, the likeliest first.
    pub fn entry(&self) -> &[Edge] {
        self.entry.as_slice()
    }

    /// Which blocks come after `block`, the likeliest first.
    pub fn successors(&self, block: u32) -> &[Edge] {
        self.nodes.get(&block).map_or(&[], Edges::as_slice)
    }

    /// Sum of the weights of [`FlowGraph::successors`].
    pub(super) fn successors_sum(&self, block: u32) -> u64 {
        self.nodes.get(&block).map_or(0, Edges::sum)
    }

    /// Part of the runs that used `block` and went on from there, as far as counters remember: 0 to
    /// 1.
    pub fn usage(&self, block: u32) -> f64 {
        let runs = self.entry.sum().max(1) as f64;
        (self.successors_sum(block) as f64 / runs).min(1.0)
    }

    /// How far to trust what the graph says of the steps from these blocks, of the first steps if
    /// there are none: what was seen once is as likely as not to be seen again. 0 to 1.
    pub fn trust(&self, blocks: &[u32]) -> f64 {
        let seen = |block: &u32| self.successors_sum(*block);
        let seen = if blocks.is_empty() { self.entry.sum() } else { blocks.iter().map(seen).sum() };
        seen as f64 / (seen + 1) as f64
    }

    /// Whether any run used `block`.
    pub fn is_used(&self, block: u32) -> bool {
        self.nodes.contains_key(&block)
    }

    /// The used blocks in file order.
    pub fn used(&self) -> impl ExactSizeIterator<Item = u32> {
        self.nodes.keys().copied()
    }

    /// Edges between blocks, those of the entry not counted.
    pub fn edge_count(&self) -> usize {
        self.nodes.values().map(|edges| edges.as_slice().len()).sum()
    }

    /// The stages in the order of their priority.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Gives the graph other stages.
    ///
    /// # Errors
    /// A name twice, a block in two stages or behind the file, shares of over 100 percent, too
    /// many.
    pub fn set_stages(&mut self, stages: Vec<Stage>) -> Result<(), FlowError> {
        stage::check(&stages, &self.layout)?;
        self.stages = stages;
        Ok(())
    }

    /// Live use: `next` was used after `previous`, or first of all. Returns whether it counts: not
    /// in a static graph, not behind the file, not one block twice.
    ///
    /// A counter at [`super::format::WEIGHT_MAX`] halves all of its block, so old habits fade.
    pub fn observe(&mut self, previous: Option<u32>, next: u32) -> bool {
        let inside = |block: u32| block < self.layout.blocks();
        let valid = inside(next) && previous.is_none_or(|block| inside(block) && block != next);
        if self.updates == Updates::Static || !valid {
            return false;
        }
        self.nodes.entry(next).or_default();
        match previous {
            None => self.entry.observe(next, ENTRIES_MAX),
            Some(previous) => {
                self.nodes.entry(previous).or_default().observe(next, EDGES_MAX);
                if self.entry.is_empty() {
                    self.entry.observe(previous, ENTRIES_MAX);
                }
            }
        }
        true
    }

    /// Adds what another graph of the same file knows. The longer length counts; stages stay, or
    /// come from the other if there are none. Where counters are full all of their block are
    /// halved, and beyond the limits the lightest edges go.
    ///
    /// # Errors
    /// Blocks of another size.
    pub fn merge(&mut self, other: &FlowGraph) -> Result<(), FlowError> {
        let (found, expected) = (other.layout.block_bytes(), self.layout.block_bytes());
        if found != expected {
            return Err(FlowError::OtherBlocks { found, expected });
        }
        self.layout = Layout::new(expected, self.layout.file_bytes().max(other.layout.file_bytes()))?;
        self.entry.absorb(&other.entry, ENTRIES_MAX);
        for (block, edges) in &other.nodes {
            self.nodes.entry(*block).or_default().absorb(edges, EDGES_MAX);
        }
        if self.stages.is_empty() {
            self.stages.clone_from(&other.stages);
        }
        Ok(())
    }

    /// The file has another length now. Blocks behind its end are forgotten, and taken out of
    /// stages.
    ///
    /// # Errors
    /// More blocks than a graph can have.
    pub fn resize(&mut self, file_bytes: u64) -> Result<(), FlowError> {
        let layout = Layout::new(self.layout.block_bytes(), file_bytes)?;
        if layout.blocks() < self.layout.blocks() {
            let end = layout.blocks();
            self.nodes.split_off(&end);
            self.nodes.values_mut().for_each(|edges| edges.cut(end));
            self.entry.cut(end);
            if let (true, Some((first, _))) = (self.entry.is_empty(), self.nodes.first_key_value()) {
                self.entry.observe(*first, ENTRIES_MAX);
            }
            self.stages.iter_mut().for_each(|stage| stage.cut(end));
            self.stages.retain(|stage| !stage.ranges().is_empty());
        }
        self.layout = layout;
        Ok(())
    }
}
