//! Prediction by flow graphs: of each file it is known which block is used after which (see [`profile::flow`]).
//!
//! A token has a *place* in each of the last few files that it touched. What follows is expanded best first from these places at once, a
//! window of pages ahead, without what the token has already. A touch that the graph was sure of moves the place, and the order
//! goes on where it ended; the window doubles with each segment so confirmed, as for actions. A touch anywhere else decides
//! between ways: the push is cancelled and ordered anew from there. Of a path, which is sure of every step, the pages ordered are
//! those that [`crate::ActionPredictor`] generates.
//!
//! Live graphs count each step. Where touches were hidden, because pages came before they were asked for, a step to a block that the
//! graph is sure of counts as the walk through all blocks between.
//!
//! Graphs know nothing of each other: that a second file is needed shows at the first touch of it. Actions, which run over all
//! files of an image, know that; graphs know of several ways.

mod run;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use profile::flow::{Expansion, FlowError, FlowGraph, Layout, Step, Updates};
use units::{ActionId, InodeId, Moment, PAGE_BYTES, PageId, SEGMENT_PAGES_MAX, Token};

use self::run::{Place, Run};
use crate::{Ended, Phase, Predictor, PushOrder, SURE, Verdict};

/// Files in which a token has a place at a time; the one touched longest ago goes. A program that reads from more at once hops
/// too much for a window.
const PLACES_MAX: usize = 8;

/// Blocks looked at for one order: four of the largest windows, so that a graph of which the token has nearly all costs little.
const VISITS_MAX: usize = 8192;

/// Blocks that are less likely are left to demand: sending 4096 such blocks for one use is never worth it.
const PROBABILITY_MIN: f64 = 1.0 / 4096.0;

/// About what a block of a graph takes, with its edges, bytes.
const BLOCK_MEMORY_BYTES: usize = 90;

/// About what a graph takes beside its blocks, bytes.
const GRAPH_MEMORY_BYTES: usize = 300;

/// Constants of the flow predictor, with their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// Bytes of what is touched: a page, or a data block of a volume. Indexes of pages count these.
    pub page_bytes: u32,
    /// Pages in a segment, the step in which windows grow.
    pub segment_pages: u32,
    /// Segments ahead when a run begins with a first block of its file.
    pub lookahead_first: u32,
    /// Segments ahead when a run is found anywhere else.
    pub lookahead_found: u32,
    /// Most segments ahead.
    pub lookahead_max: u32,
    /// A step is sure if this part of the weights is on its edge, percent.
    pub sure_percent: u32,
    /// Tokens tracked; the one touched longest ago makes room.
    pub tokens_max: usize,
    /// Memory of all tokens, bytes, about 400 KB each at most; those touched longest ago make room.
    pub token_bytes_max: usize,
    /// A token is over after this long without a touch.
    pub linger: Duration,
    /// Graphs that are not static, if some are made of files of which nothing is known; 0 to learn
    /// of no others.
    pub learned_max: usize,
    /// Memory of all graphs, bytes; those touched longest ago are forgotten. A single graph that is
    /// larger learns no further blocks.
    pub graph_bytes_max: usize,
}

impl Default for FlowConfig {
    fn default() -> FlowConfig {
        let actions = crate::Config::default();
        FlowConfig {
            page_bytes: PAGE_BYTES as u32,
            segment_pages: SEGMENT_PAGES_MAX as u32,
            lookahead_first: actions.lookahead_first,
            lookahead_found: actions.lookahead_found,
            lookahead_max: actions.lookahead_max,
            sure_percent: 90,
            tokens_max: 1024,
            token_bytes_max: 64 << 20,
            linger: actions.linger,
            learned_max: 0,
            graph_bytes_max: 96 << 20,
        }
    }
}

/// Predicts by the flow graphs of files. See the module's introduction.
#[derive(Debug, Default)]
pub struct FlowPredictor {
    config: FlowConfig,
    graphs: BTreeMap<InodeId, GraphEntry>,
    /// Blocks of all graphs.
    graph_blocks: usize,
    /// Files whose graphs made room for others, until [`FlowPredictor::readmit`].
    forgotten: HashSet<InodeId>,
    runs: HashMap<Token, Run>,
    /// Memory of `runs`, by whose they are.
    run_bytes: HashMap<u64, usize>,
    /// Tokens by their last touch.
    oldest: BTreeMap<u64, Token>,
    touches: u64,
    sequences: u32,
    changed: BTreeSet<InodeId>,
}

/// A graph of a file.
#[derive(Debug)]
struct GraphEntry {
    graph: FlowGraph,
    /// Number of the last touch of the file.
    touched: u64,
}

/// What a touch is to the order that its token follows.
enum Relation {
    /// The graph was sure of it; with it, the blocks walked through, from the one before.
    Sure(u32, Vec<u32>),
    /// It lies in the order, behind what was reached.
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

    /// A predictor whose graphs are the paths that `pages` takes through each file: an action without what it says of the order of files.
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
        self.forget(inode);
        self.forgotten.remove(&inode);
        self.graph_blocks += graph.used().len();
        self.graphs.insert(inode, GraphEntry { graph, touched: self.touches });
        self.make_room_for(0, inode);
    }

    /// The graph of a file, as live use has made it by now.
    pub fn graph(&self, inode: InodeId) -> Option<&FlowGraph> {
        self.graphs.get(&inode).map(|known| &known.graph)
    }

    /// Forgets the graph of a file, which may be learned anew.
    pub fn forget(&mut self, inode: InodeId) {
        if let Some(known) = self.graphs.remove(&inode) {
            self.graph_blocks -= known.graph.used().len();
        }
        self.changed.remove(&inode);
        self.forgotten.remove(&inode);
    }

    /// Whether the file had a graph that made room for others. Until it is inserted again, or the
    /// file [readmitted](Self::readmit), nothing is learned of it: that would replace what was
    /// saved.
    pub fn is_forgotten(&self, inode: InodeId) -> bool {
        self.forgotten.contains(&inode)
    }

    /// A file whose graph was forgotten may be learned anew.
    pub fn readmit(&mut self, inode: InodeId) {
        self.forgotten.remove(&inode);
    }

    /// Forgets graphs until there is memory for `blocks` more of that of `of`, or it is the last.
    fn make_room_for(&mut self, blocks: usize, of: InodeId) {
        while self.graph_bytes() + blocks * BLOCK_MEMORY_BYTES > self.config.graph_bytes_max && self.forget_one(of) {}
    }

    fn live_graphs(&self) -> usize {
        self.graphs.values().filter(|known| known.graph.updates == Updates::Live).count()
    }

    fn graph_bytes(&self) -> usize {
        self.graph_blocks * BLOCK_MEMORY_BYTES + self.graphs.len() * GRAPH_MEMORY_BYTES
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

    /// Files whose graphs live use changed since the last call: save them.
    pub fn take_changed(&mut self) -> Vec<InodeId> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    /// How likely a token needs a page that was ordered for it: 0 to 1.
    pub fn chance(&self, token: Token, page: PageId) -> f64 {
        self.runs.get(&token).map_or(1.0, |run| run.chance(page))
    }

    /// Tokens that are tracked.
    pub fn tokens(&self) -> usize {
        self.runs.len()
    }

    /// About what tokens and graphs take, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.run_bytes.values().sum::<usize>() + self.graph_bytes()
    }

    fn take_run(&mut self, token: Token) -> Option<Run> {
        let run = self.runs.remove(&token)?;
        self.oldest.remove(&run.touch_number);
        if let Some(bytes) = self.run_bytes.get_mut(&run.owner) {
            *bytes -= run.memory_bytes;
            if *bytes == 0 {
                self.run_bytes.remove(&run.owner);
            }
        }
        Some(run)
    }

    /// Tracks a token. Of who has most of the memory then, the one touched longest ago makes room.
    fn put_run(&mut self, token: Token, mut run: Run) {
        run.weigh();
        let (owner, bytes) = (run.owner, run.memory_bytes);
        self.oldest.insert(run.touch_number, token);
        *self.run_bytes.entry(owner).or_default() += bytes;
        self.runs.insert(token, run);
        let (tokens_max, bytes_max) = (self.config.tokens_max.max(1), self.config.token_bytes_max);
        while self.runs.len() > tokens_max
            || (self.runs.len() > 1 && self.run_bytes.values().sum::<usize>() > bytes_max)
        {
            let most = self.run_bytes.iter().max_by_key(|(_, bytes)| **bytes).map(|(owner, _)| *owner);
            let theirs = |token: &&Token| self.runs.get(token).map(|run| run.owner) == most;
            let Some(oldest) = self.oldest.values().find(theirs).copied() else { return };
            self.take_run(oldest);
        }
    }

    /// A touch by a token of `owner`, against whom its memory counts: who has much makes room
    /// first.
    pub fn touch_of(&mut self, owner: u64, token: Token, page: PageId, now: Moment) -> Verdict {
        self.touches += 1;
        self.admit(page);
        let mut run = self.take_run(token).unwrap_or_default();
        (run.owner, run.touch_number, run.at) = (owner, self.touches, now);
        let confirmed = run.is_following();
        let (cancel, push) = self.step(&mut run, page);
        let phase = match (run.is_following(), confirmed) {
            (false, _) => Phase::Construct,
            (true, false) => Phase::Match,
            (true, true) => Phase::Generate,
        };
        self.put_run(token, run);
        Verdict { phase, push, cancel }
    }

    /// Makes a graph for an unknown file, or lengthens that of a file that grew, as far as that is allowed.
    fn admit(&mut self, page: PageId) {
        let page_bytes = self.config.page_bytes;
        let file_bytes = (u64::from(page.index) + 1) * u64::from(page_bytes);
        if let Some(known) = self.graphs.get_mut(&page.inode) {
            known.touched = self.touches;
            if known.graph.updates == Updates::Live && known.graph.layout().file_bytes() < file_bytes {
                // A file too large for its block size keeps the graph of its beginning.
                let _ = known.graph.resize(file_bytes);
            }
        } else if self.config.learned_max > 0
            && !self.forgotten.contains(&page.inode)
            && let Ok(layout) = Layout::new(page_bytes, file_bytes)
        {
            while self.live_graphs() >= self.config.learned_max && self.forget_one(page.inode) {}
            self.insert(page.inode, FlowGraph::new(layout));
        }
    }

    /// Follows the sure steps from the blocks of `from` to one of those of `to`; the blocks on the way, both ends included.
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
        let place = run.places.iter().find(|place| place.inode == page.inode);
        match place.and_then(|place| self.sure_walk(graph, place.at, page.index)) {
            Some(walked) => Relation::Sure(position, walked),
            None => Relation::Decides,
        }
    }

    /// Pages that follow, best first from all places of the run, at most `count`.
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
        let known = |place: &Place| self.graph(place.inode).map(|graph| (place.inode, place.at, graph));
        let places: Vec<(InodeId, u32, &FlowGraph)> = run.places.iter().filter_map(known).collect();
        // First what is left of the block at hand.
        if let Some((inode, at, graph)) = places.first() {
            blocks_of(graph, self.config.page_bytes, *at).into_iter().all(|block| add(graph, *inode, block, 1.0));
        }
        let mut ways: Vec<_> = places
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
        let before = run.places.iter().find(|place| place.inode == page.inode).map(|place| place.touched);
        self.observe(&relation, before, page);
        run.touched(page, PLACES_MAX);
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
            self.count(page.inode, before, next);
        }
    }

    /// Counts one step in a graph, if there is memory for blocks that are new in it.
    fn count(&mut self, inode: InodeId, before: Option<u32>, next: u32) {
        let Some(graph) = self.graph(inode) else { return };
        let new = [Some(next), before].into_iter().flatten().filter(|block| !graph.is_used(*block)).count();
        if new > 0 && graph.updates == Updates::Live {
            self.make_room_for(new, inode);
            if self.graph_bytes() + new * BLOCK_MEMORY_BYTES > self.config.graph_bytes_max {
                return;
            }
        }
        let Some(GraphEntry { graph, .. }) = self.graphs.get_mut(&inode) else { return };
        let used = graph.used().len();
        if graph.observe(before, next) {
            self.changed.insert(inode);
        }
        self.graph_blocks += graph.used().len() - used;
    }
}

/// How likely a step of an expansion is needed: what nearly every run uses is, even where it is open when; all else as far as the
/// graph is to be trusted about the blocks from which it was expanded. 0 to 1.
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
        self.touch_of(0, token, page, now)
    }

    fn end(&mut self, token: Token, _now: Moment) -> Ended {
        self.take_run(token);
        Ended { token, action: None, changed: false }
    }

    fn expire(&mut self, now: Moment) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Some((_, token)) = self.oldest.first_key_value() {
            let token = *token;
            if self.runs.get(&token).is_some_and(|run| now.since(run.at) < self.config.linger) {
                break;
            }
            ended.push(self.end(token, now));
        }
        ended
    }

    fn pages(&self, token: Token, order: &PushOrder) -> &[PageId] {
        self.runs.get(&token).map_or(&[], |run| run.pages(order))
    }
}
