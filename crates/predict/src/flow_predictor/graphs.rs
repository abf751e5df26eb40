//! The flow graphs of files.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use profile::flow::{FlowGraph, Layout, Updates};
use units::{InodeId, PageId};

use super::config::FlowConfig;

/// About what a block of a graph takes, with its edges, bytes.
const BLOCK_MEMORY_BYTES: usize = 90;

/// About what a graph takes beside its blocks, bytes.
const GRAPH_MEMORY_BYTES: usize = 300;

/// Graphs by file, within bounds of memory and of number.
///
/// Invariants:
/// - `blocks` is the sum of the used blocks of all graphs.
/// - A file has a graph, or was forgotten, or neither; never both.
/// - Live use that was not saved is in `changed`.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    graphs: BTreeMap<InodeId, GraphEntry>,
    blocks: usize,
    /// Files whose graphs made room for others, until [`Graphs::readmit`].
    forgotten: HashSet<InodeId>,
    changed: BTreeSet<InodeId>,
    /// Number of the last touch.
    touches: u64,
}

/// A graph of a file.
#[derive(Debug)]
struct GraphEntry {
    graph: FlowGraph,
    /// Number of the last touch of the file.
    touched: u64,
}

impl Graphs {
    /// Gives a file its graph.
    pub fn insert(&mut self, inode: InodeId, graph: FlowGraph, config: &FlowConfig) {
        self.forget(inode);
        self.blocks += graph.used().len();
        self.graphs.insert(inode, GraphEntry { graph, touched: self.touches });
        self.make_room_for(0, inode, config);
    }

    pub fn get(&self, inode: InodeId) -> Option<&FlowGraph> {
        self.graphs.get(&inode).map(|known| &known.graph)
    }

    /// Forgets the graph of a file, which may be learned anew.
    pub fn forget(&mut self, inode: InodeId) {
        if let Some(known) = self.graphs.remove(&inode) {
            self.blocks -= known.graph.used().len();
        }
        self.changed.remove(&inode);
        self.forgotten.remove(&inode);
    }

    pub fn is_forgotten(&self, inode: InodeId) -> bool {
        self.forgotten.contains(&inode)
    }

    pub fn readmit(&mut self, inode: InodeId) {
        self.forgotten.remove(&inode);
    }

    /// Files whose graphs live use changed since the last call.
    pub fn take_changed(&mut self) -> Vec<InodeId> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    pub fn memory_bytes(&self) -> usize {
        self.blocks * BLOCK_MEMORY_BYTES + self.graphs.len() * GRAPH_MEMORY_BYTES
    }

    /// Forgets graphs until there is memory for `blocks` more of that of `of`, or it is the last.
    /// Returns whether there is.
    fn make_room_for(&mut self, blocks: usize, of: InodeId, config: &FlowConfig) -> bool {
        let fits = |graphs: &Graphs| graphs.memory_bytes() + blocks * BLOCK_MEMORY_BYTES <= config.graph_bytes_max;
        while !fits(self) && self.forget_one(of) {}
        fits(self)
    }

    /// Forgets the graph that was touched longest ago: one that live use did not change since it
    /// was saved, and one that is static last. False if there is none but that of `except`.
    fn forget_one(&mut self, except: InodeId) -> bool {
        let others = self.graphs.iter().filter(|(inode, _)| **inode != except);
        let order = |(inode, known): &(&InodeId, &GraphEntry)| {
            (known.graph.updates == Updates::Static, self.changed.contains(inode), known.touched)
        };
        let Some(inode) = others.min_by_key(order).map(|(inode, _)| *inode) else { return false };
        self.forget(inode);
        self.forgotten.insert(inode);
        true
    }

    /// A page is touched. Makes a graph for an unknown file, or lengthens that of a file that grew,
    /// as far as that is allowed, and if whoever touches it `teaches`.
    pub fn touch(&mut self, page: PageId, teaches: bool, config: &FlowConfig) {
        self.touches += 1;
        let file_bytes = (u64::from(page.index) + 1) * u64::from(config.page_bytes);
        if let Some(known) = self.graphs.get_mut(&page.inode) {
            known.touched = self.touches;
            if teaches && known.graph.updates == Updates::Live && known.graph.layout().file_bytes() < file_bytes {
                // A file too large for its block size keeps the graph of its beginning.
                let _ = known.graph.resize(file_bytes);
            }
        } else if teaches
            && config.learned_max > 0
            && !self.is_forgotten(page.inode)
            && let Ok(layout) = Layout::new(config.page_bytes, file_bytes)
        {
            let live = |known: &&GraphEntry| known.graph.updates == Updates::Live;
            while self.graphs.values().filter(live).count() >= config.learned_max && self.forget_one(page.inode) {}
            self.insert(page.inode, FlowGraph::new(layout), config);
        }
    }

    /// Counts one step in a graph, if there is memory for blocks that are new in it.
    pub fn count(&mut self, inode: InodeId, before: Option<u32>, next: u32, config: &FlowConfig) {
        let Some(graph) = self.get(inode) else { return };
        let new = [Some(next), before].into_iter().flatten().filter(|block| !graph.is_used(*block)).count();
        if new > 0 && graph.updates == Updates::Live && !self.make_room_for(new, inode, config) {
            return;
        }
        let Some(GraphEntry { graph, .. }) = self.graphs.get_mut(&inode) else { return };
        let used = graph.used().len();
        if graph.observe(before, next) {
            self.changed.insert(inode);
        }
        self.blocks += graph.used().len() - used;
    }
}
