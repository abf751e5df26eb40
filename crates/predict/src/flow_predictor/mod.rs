//! Prediction by flow graphs. The graph of a file knows which block is used after which (see
//! [`profile::flow`]).
//!
//! A token has a *position* in each of the last few files that it touched. The pages that follow
//! are expanded best first from these positions at once, a window ahead, without those that the
//! token has already. A touch that the graph was sure of moves the position, and the order goes on
//! where it ended. The window doubles with each segment so confirmed, as for actions. A touch
//! anywhere else decides between ways: the push is cancelled and ordered anew from there. Of a
//! path, in which every step is sure, the pages ordered are those that [`crate::ActionPredictor`]
//! generates.
//!
//! Live graphs count each step. Touches are hidden where pages came before they were asked for. So
//! a step to a block that the graph is sure of counts as the walk through all blocks between.
//!
//! Graphs know nothing of each other: the need for a second file shows at the first touch of it.
//! Actions, which run over all files of an image, know that; graphs know of several ways.
//!
//! `graphs` owns the graphs, `runs` the tokens.

mod config;
mod graphs;
mod run;
mod runs;

use std::collections::{BTreeMap, HashSet};

use profile::flow::{Expansion, FlowError, FlowGraph, Layout, Step};
use units::{ActionId, InodeId, Moment, PageId, Token};

pub use self::config::FlowConfig;
use self::graphs::Graphs;
use self::run::{FilePosition, Run};
use self::runs::Runs;
use crate::{Ended, Phase, Predictor, PushOrder, Reader, SURE, Verdict};

/// Files in which a token has a position at a time; the one touched longest ago goes. A program
/// that reads from more files at once jumps too much for a window.
const FILES_MAX: usize = 8;

/// Blocks looked at for one order: four of the largest windows, so that a graph of which the token
/// has nearly all costs little.
const VISITS_MAX: usize = 8192;

/// Blocks that are less likely are left to demand: sending 4096 such blocks for one use is never
/// worth it.
const PROBABILITY_MIN: f64 = 1.0 / 4096.0;

/// Predicts by the flow graphs of files. See the module's introduction.
#[derive(Debug, Default)]
pub struct FlowPredictor {
    config: FlowConfig,
    graphs: Graphs,
    runs: Runs,
    /// Number of the sequence begun last.
    sequences: u32,
}

/// What a touch is to the order that its token follows.
enum Relation {
    /// The graph was sure of it; with it, the blocks walked through, from the one before.
    Sure(u32, Vec<u32>),
    /// It lies in the order, at or before the page that was reached.
    Passed,
    /// It was ordered, but other ways were open.
    Decides,
    /// It was not ordered.
    Elsewhere,
}

impl FlowPredictor {
    /// A predictor without graphs.
    pub fn new(config: FlowConfig) -> FlowPredictor {
        FlowPredictor { config, ..FlowPredictor::default() }
    }

    /// A predictor whose graphs are the paths of `pages` through each file: an action without the
    /// order of its files.
    ///
    /// # Errors
    /// A page behind the largest file that graphs know.
    pub fn from_path(pages: &[PageId], config: FlowConfig) -> Result<FlowPredictor, FlowError> {
        let mut paths: BTreeMap<InodeId, Vec<u32>> = BTreeMap::new();
        pages.iter().for_each(|page| paths.entry(page.inode).or_default().push(page.index));
        let mut predictor = FlowPredictor::new(config);
        for (inode, path) in paths {
            let pages = path.iter().max().map_or(0, |last| u64::from(*last) + 1);
            let page_bytes = predictor.config.page_bytes;
            let layout = Layout::new(page_bytes, pages * u64::from(page_bytes))?;
            predictor.insert(inode, FlowGraph::from_path(layout, &path)?);
        }
        Ok(predictor)
    }

    /// Gives a file its graph. What was ordered before by another one stays ordered.
    pub fn insert(&mut self, inode: InodeId, graph: FlowGraph) {
        self.graphs.insert(inode, graph, &self.config);
    }

    /// The graph of a file, as live use has made it by now.
    pub fn graph(&self, inode: InodeId) -> Option<&FlowGraph> {
        self.graphs.get(inode)
    }

    /// Forgets the graph of a file, which may be learned anew.
    pub fn forget(&mut self, inode: InodeId) {
        self.graphs.forget(inode);
    }

    /// Whether the file had a graph that made room for others. Until it is inserted again, or the
    /// file [readmitted](Self::readmit), nothing is learned of it: that would replace what was
    /// saved.
    pub fn is_forgotten(&self, inode: InodeId) -> bool {
        self.graphs.is_forgotten(inode)
    }

    /// A file whose graph was forgotten may be learned anew.
    pub fn readmit(&mut self, inode: InodeId) {
        self.graphs.readmit(inode);
    }

    /// Files whose graphs live use changed since the last call: save them.
    pub fn take_changed(&mut self) -> Vec<InodeId> {
        self.graphs.take_changed()
    }

    /// How likely a token needs a page that was ordered for it: 0 to 1.
    pub fn chance(&self, token: Token, page: PageId) -> f64 {
        self.runs.get(token).map_or(1.0, |run| run.chance(page))
    }

    /// Tokens that are tracked.
    pub fn tokens(&self) -> usize {
        self.runs.len()
    }

    /// About what tokens and graphs take, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.runs.memory_bytes() + self.graphs.memory_bytes()
    }

    /// A touch by a token of `reader`, against whom its memory counts: who has much makes room
    /// first.
    pub fn touch_of(&mut self, reader: Reader, token: Token, page: PageId, now: Moment) -> Verdict {
        self.graphs.touch(page, reader.teaches, &self.config);
        let mut run = self.runs.take(token).unwrap_or_default();
        (run.reader, run.at) = (reader, now);
        let confirmed = run.is_following();
        let (cancel, push) = self.step(&mut run, page);
        let phase = match (run.is_following(), confirmed) {
            (false, _) => Phase::Construct,
            (true, false) => Phase::Match,
            (true, true) => Phase::Generate,
        };
        self.runs.put(token, run, &self.config);
        Verdict { phase, push, cancel, hold: None }
    }

    /// Follows the sure steps from the blocks of `from` to one of those of `to`; the blocks on the
    /// way, both ends included.
    fn sure_walk(&self, graph: &FlowGraph, from: u32, to: u32) -> Option<Vec<u32>> {
        let goal = blocks_of(graph, self.config.page_bytes, to);
        let mut block = *blocks_of(graph, self.config.page_bytes, from).last()?;
        let steps_max = (self.config.lookahead_max.saturating_add(2)).saturating_mul(self.config.segment_pages);
        let mut walked = vec![block];
        while !goal.contains(&block) {
            let edges = graph.successors(block);
            let sum: u64 = edges.iter().map(|edge| u64::from(edge.weight)).sum();
            let edge = edges.first()?;
            if u64::from(edge.weight) * 100 < sum * u64::from(self.config.sure_percent)
                || walked.len() as u64 > u64::from(steps_max)
            {
                return None;
            }
            block = edge.to;
            walked.push(block);
        }
        Some(walked)
    }

    fn relation(&self, run: &Run, graph: &FlowGraph, page: PageId) -> Relation {
        let Some(position) = run.position(page) else { return Relation::Elsewhere };
        if position <= run.progress {
            return Relation::Passed;
        }
        let file = run.files.iter().find(|file| file.inode == page.inode);
        match file.and_then(|file| self.sure_walk(graph, file.at, page.index)) {
            Some(walked) => Relation::Sure(position, walked),
            None => Relation::Decides,
        }
    }

    /// Pages that follow, best first from all positions of the run, at most `count`.
    fn expand(&self, run: &Run, count: usize) -> Vec<(PageId, f64)> {
        let mut found = Vec::new();
        // Small blocks share pages.
        let mut seen = HashSet::new();
        let mut add = |graph: &FlowGraph, inode: InodeId, block: u32, chance: f64| {
            for index in pages_of(graph, self.config.page_bytes, block) {
                let page = PageId::new(inode, index);
                if !run.has(page) && found.len() < count && seen.insert(page) {
                    found.push((page, chance));
                }
            }
            found.len() < count
        };
        let known = |file: &FilePosition| self.graph(file.inode).map(|graph| (file.inode, file.at, graph));
        let files: Vec<(InodeId, u32, &FlowGraph)> = run.files.iter().filter_map(known).collect();
        // First the rest of the block at hand.
        if let Some((inode, at, graph)) = files.first() {
            blocks_of(graph, self.config.page_bytes, *at).into_iter().all(|block| add(graph, *inode, block, 1.0));
        }
        let mut ways: Vec<_> = files
            .iter()
            .map(|(inode, at, graph)| {
                let blocks = blocks_of(graph, self.config.page_bytes, *at);
                (*inode, *graph, graph.trust(&blocks), Expansion::after(graph, &blocks).peekable())
            })
            .collect();
        for _ in 0..VISITS_MAX {
            let mut best: Option<(usize, Step)> = None;
            for (number, (_, _, _, way)) in ways.iter_mut().enumerate() {
                if let Some(step) = way.peek().filter(|step| best.is_none_or(|(_, best)| step.rank(&best).is_gt())) {
                    best = Some((number, *step));
                }
            }
            let Some((number, step)) = best else { break };
            let (inode, graph, trust, way) = &mut ways[number];
            way.next();
            if step.probability >= PROBABILITY_MIN && !add(graph, *inode, step.block, chance(graph, &step, *trust)) {
                break;
            }
        }
        found
    }

    /// Orders up to the end of the segment that lies the lookahead after that of the progress.
    fn order(&mut self, run: &mut Run) -> Option<PushOrder> {
        let segment = run.progress / self.config.segment_pages;
        let target = segment.saturating_add(1).saturating_add(run.lookahead).saturating_mul(self.config.segment_pages);
        let from = run.through();
        if target <= from {
            return None;
        }
        let pages = self.expand(run, (target - from) as usize);
        if pages.is_empty() {
            return None;
        }
        run.extend(pages);
        let begins = !std::mem::replace(&mut run.begun, true);
        let revision = run.sequence;
        Some(PushOrder { action: ActionId(0), revision, from, through: run.through(), begins, audit: false })
    }

    /// One touch of a page of a file that has a graph. Returns whether to cancel, and what to push.
    fn step(&mut self, run: &mut Run, page: PageId) -> (bool, Option<PushOrder>) {
        let Some(graph) = self.graph(page.inode) else { return (false, None) };
        let relation = self.relation(run, graph, page);
        let known = blocks_of(graph, self.config.page_bytes, page.index).iter().any(|block| graph.is_used(*block));
        let first =
            graph.entry().iter().any(|edge| pages_of(graph, self.config.page_bytes, edge.to).contains(&page.index));
        let before = run.files.iter().find(|file| file.inode == page.inode).map(|file| file.touched);
        if run.reader.teaches {
            self.observe(&relation, before, page);
        }
        run.touched(page, FILES_MAX);
        match relation {
            Relation::Sure(position, _) => {
                let segment = self.config.segment_pages;
                if position / segment > run.progress / segment {
                    run.lookahead = run.lookahead.saturating_mul(2).min(self.config.lookahead_max);
                }
                run.reach(position, page);
                (false, self.order(run))
            }
            Relation::Passed => (false, None),
            // Nothing is known of what follows.
            Relation::Elsewhere if !known => (false, None),
            Relation::Decides | Relation::Elsewhere => {
                let elsewhere = matches!(relation, Relation::Elsewhere);
                let lookahead = match (run.is_following(), elsewhere) {
                    (false, _) if first => self.config.lookahead_first,
                    (false, _) => self.config.lookahead_found,
                    (true, true) if first => run.lookahead.max(self.config.lookahead_first),
                    (true, true) => (run.lookahead / 2).max(1),
                    (true, false) => run.lookahead,
                };
                let cancel = run.is_ahead();
                self.sequences = self.sequences.wrapping_add(1);
                run.begin(self.sequences, lookahead, page);
                (cancel, self.order(run))
            }
        }
    }

    fn observe(&mut self, relation: &Relation, before: Option<u32>, page: PageId) {
        let Some(graph) = self.graph(page.inode) else { return };
        // Of smaller blocks a page does not tell which of them was used.
        let page_bytes = self.config.page_bytes;
        if graph.layout().block_bytes() < page_bytes {
            return;
        }
        let block = |index: u32| graph.layout().block_at(u64::from(index) * u64::from(page_bytes));
        let steps: Vec<(Option<u32>, u32)> = match relation {
            Relation::Passed => Vec::new(),
            Relation::Sure(_, walked) => walked.windows(2).map(|pair| (Some(pair[0]), pair[1])).collect(),
            Relation::Decides | Relation::Elsewhere => {
                let Some(next) = block(page.index) else { return };
                vec![(before.and_then(block), next)]
            }
        };
        for (before, next) in steps {
            self.graphs.count(page.inode, before, next, &self.config);
        }
    }
}

/// How likely a step of an expansion is needed: what nearly every run uses is, even where it is
/// open when; all else as far as the graph is to be trusted about the blocks from which it was
/// expanded. 0 to 1.
pub fn chance(graph: &FlowGraph, step: &Step, trust: f64) -> f64 {
    if graph.usage(step.block) >= SURE { 1.0 } else { step.probability * trust }
}

/// The blocks that a page lies in: one, or several small ones.
fn blocks_of(graph: &FlowGraph, page_bytes: u32, index: u32) -> Vec<u32> {
    let layout = graph.layout();
    let start = u64::from(index) * u64::from(page_bytes);
    let end = (start + u64::from(page_bytes)).min(layout.file_bytes());
    match (layout.block_at(start), layout.block_at(end.saturating_sub(1))) {
        (Some(first), Some(last)) => (first..=last).collect(),
        _ => Vec::new(),
    }
}

/// The pages that a block lies in: one, or several.
fn pages_of(graph: &FlowGraph, page_bytes: u32, block: u32) -> std::ops::Range<u32> {
    let page_bytes = u64::from(page_bytes);
    let range = graph.layout().range(block);
    (range.start / page_bytes) as u32..range.end.div_ceil(page_bytes) as u32
}

impl Predictor for FlowPredictor {
    fn touch(&mut self, token: Token, page: PageId, now: Moment) -> Verdict {
        self.touch_of(Reader::default(), token, page, now)
    }

    fn end(&mut self, token: Token, _now: Moment) -> Ended {
        self.runs.take(token);
        Ended { token, action: None, changed: false }
    }

    fn expire(&mut self, now: Moment) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Some(token) = self.runs.oldest() {
            if self.runs.get(token).is_some_and(|run| now.since(run.at) < self.config.linger) {
                break;
            }
            ended.push(self.end(token, now));
        }
        ended
    }

    fn pages(&self, token: Token, order: &PushOrder) -> &[PageId] {
        self.runs.get(token).map_or(&[], |run| run.pages(order))
    }
}
