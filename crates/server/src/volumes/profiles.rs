//! What is known of the order in which the files of a volume are used, and what follows from a touch.
//!
//! Each file that was opened has an inode number of our own for the predictors, by its id, so it is the same for all connections and
//! under every name. Its flow graph comes from the store or from live use; one that was written by hand (static) is never changed.
//! Where no graph knows what follows, a file that is read in its order is read ahead.
//!
//! Predictors count pages of 4 KiB; blocks of other sizes are translated: of smaller ones a page is several, of larger ones
//! the first page stands for the block.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use predict::{FlowConfig, FlowPredictor, LinuxReadahead, Predictor, PushOrder};
use profile::flow::{self, FlowGraph, Share, Updates};
use store::Store;
use units::{InodeId, Moment, PAGE_BYTES, PageId, Token};
use volume::{FileId, VolumePath};

use super::profile_key;
use crate::Config;
use crate::blocks::locked;
use crate::log::Logger;

/// Longest profile we read: a million blocks with a few edges each.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Files that are numbered; beyond, all numbers are forgotten, and files get a new one when they are opened again.
const FILES_MAX: usize = 64 << 10;

/// Files of which live use makes a graph.
const LEARNED_MAX: usize = 1024;

/// Bytes that are sent when a file is opened, before its first touch.
const FIRST_BYTES: u64 = 1 << 20;

/// What follows from a touch or from opening a file: what should be pushed, and in which parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Foreseen {
    /// What was foreseen before is over; `blocks` says all that is wanted.
    pub begins: bool,
    /// Blocks that are needed soon, in their order.
    pub blocks: Vec<(InodeId, u32)>,
}

/// A part of a file with its share, from the stages of its profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// `None`: it is in no stage.
    pub share: Option<Share>,
    /// Its blocks in the order in which to send them.
    pub blocks: Vec<u32>,
}

struct File {
    id: FileId,
    path: VolumePath,
    /// The store was looked into.
    loaded: bool,
}

/// The predictors of one volume.
pub(crate) struct Profiles {
    flow: FlowPredictor,
    readahead: LinuxReadahead,
    /// Pages of each file, for the read-ahead.
    pages: Arc<Mutex<HashMap<InodeId, u32>>>,
    numbers: HashMap<FileId, InodeId>,
    files: BTreeMap<InodeId, File>,
    last: u32,
    block_bytes: u64,
    /// Nothing is predicted at all.
    off: bool,
    frozen: bool,
}

impl Profiles {
    pub fn new(block_bytes: u32, config: &Config) -> Profiles {
        let frozen = config.predict.frozen;
        let (flow, readahead, pages) = predictors(frozen);
        Profiles {
            flow,
            readahead,
            pages,
            numbers: HashMap::new(),
            files: BTreeMap::new(),
            last: 1,
            block_bytes: block_bytes.into(),
            off: !config.learning,
            frozen,
        }
    }

    /// A file was opened. Whether its profile is to be loaded.
    pub fn wants(&mut self, path: &VolumePath, id: FileId, size: u64) -> bool {
        if self.off {
            return false;
        }
        if !self.numbers.contains_key(&id) {
            if self.numbers.len() >= FILES_MAX || self.last == u32::MAX {
                (self.flow, self.readahead, self.pages) = predictors(self.frozen);
                (self.numbers, self.files) = Default::default();
            }
            self.last = self.last.wrapping_add(1).max(2);
            self.numbers.insert(id, InodeId(self.last));
        }
        let number = self.numbers[&id];
        let pages = size.div_ceil(PAGE_BYTES as u64).min(u32::MAX.into()) as u32;
        locked(&self.pages).insert(number, pages);
        let file = self.files.entry(number).or_insert_with(|| File { id, path: path.clone(), loaded: false });
        file.path.clone_from(path);
        !std::mem::replace(&mut file.loaded, true)
    }

    /// Gives a file the profile that was found.
    pub fn insert(&mut self, id: FileId, graph: Option<FlowGraph>) {
        let Some((number, mut graph)) = self.number(id).zip(graph) else { return };
        if self.frozen {
            graph.updates = Updates::Static;
        }
        self.flow.insert(number, graph);
    }

    /// The predictors' number of a file.
    pub fn number(&self, id: FileId) -> Option<InodeId> {
        self.numbers.get(&id).copied()
    }

    /// The file of a number.
    pub fn file(&self, number: InodeId) -> Option<FileId> {
        self.files.get(&number).map(|file| file.id)
    }

    /// Whether the order in which a file is used is known.
    pub fn is_profiled(&self, id: FileId) -> bool {
        self.graph(id).is_some_and(|graph| graph.used().len() > 1)
    }

    fn graph(&self, id: FileId) -> Option<&FlowGraph> {
        self.number(id).and_then(|number| self.flow.graph(number))
    }

    /// What should come when a file was just opened: its first blocks.
    pub fn first(&self, id: FileId) -> Foreseen {
        let Some((number, graph)) = self.number(id).zip(self.graph(id)) else { return Foreseen::default() };
        let layout = *graph.layout();
        let mut blocks = Vec::new();
        for block in graph.traversal() {
            if blocks.len() as u64 * self.block_bytes >= FIRST_BYTES {
                break;
            }
            let range = layout.range(block);
            self.add_blocks(number, range.start, range.end, &mut blocks);
        }
        Foreseen { begins: true, blocks }
    }

    /// The stages of a file, with all blocks that it is known to use; nothing if its profile has no stages.
    pub fn parts(&self, id: FileId) -> Vec<Part> {
        let Some(graph) = self.graph(id).filter(|graph| !graph.stages().is_empty()) else { return Vec::new() };
        let part = |scheduled: flow::Scheduled| {
            let share = scheduled.stage.map(|stage| graph.stages()[stage].share());
            let mut blocks = Vec::new();
            for block in scheduled.blocks {
                let range = graph.layout().range(block);
                self.add_blocks(InodeId(0), range.start, range.end, &mut blocks);
            }
            Part { share, blocks: blocks.into_iter().map(|(_, block)| block).collect() }
        };
        graph.schedule().into_iter().map(part).collect()
    }

    /// Position in [`Profiles::parts`] of a block's stage, by the share of the stage; `None` if it is in no stage.
    pub fn stages(&self, id: FileId) -> Option<(u64, &[flow::Stage])> {
        let graph = self.graph(id).filter(|graph| !graph.stages().is_empty())?;
        Some((graph.layout().block_bytes().into(), graph.stages()))
    }

    /// A program touched a block of a file.
    pub fn touch(&mut self, token: Token, id: FileId, block: u32, now: Moment) -> Foreseen {
        let Some(number) = self.number(id).filter(|_| !self.off) else { return Foreseen::default() };
        let index = u64::from(block) * self.block_bytes / PAGE_BYTES as u64;
        let Ok(index) = u32::try_from(index) else { return Foreseen::default() };
        let page = PageId::new(number, index);
        // What comes after this page, as far as it was known before.
        let unknown = self.flow.graph(number).is_none_or(|graph| {
            let known = |block| !graph.successors(block).is_empty();
            graph.updates == Updates::Live
                && !graph.layout().block_at(u64::from(index) * PAGE_BYTES as u64).is_some_and(known)
        });
        let ahead = self.readahead.touch(token, page, now);
        let verdict = self.flow.touch(token, page, now);
        let mut pages: Vec<PageId> = Vec::new();
        let begins = verdict.cancel || verdict.push.is_some_and(|order| order.begins);
        if let Some(order) = verdict.push {
            pages.extend(self.flow.pages(token, &order));
        }
        if let Some(order) = ahead.push.filter(|_| unknown) {
            pages.extend(pages_of(&self.readahead, token, &order));
        }
        let mut blocks = Vec::new();
        for page in pages {
            let start = u64::from(page.index) * PAGE_BYTES as u64;
            self.add_blocks(page.inode, start, start + PAGE_BYTES as u64, &mut blocks);
        }
        Foreseen { begins, blocks }
    }

    /// A program ended.
    pub fn end(&mut self, token: Token, now: Moment) {
        self.flow.end(token, now);
        self.readahead.end(token, now);
    }

    /// Ends the runs of programs that have been idle too long.
    pub fn expire(&mut self, now: Moment) {
        for ended in self.flow.expire(now) {
            self.readahead.end(ended.token, now);
        }
    }

    /// Programs that are followed.
    pub fn tokens(&self) -> usize {
        self.flow.tokens()
    }

    /// Files that have a number.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Graphs that live use changed since the last call.
    pub fn take_changed(&mut self) -> Vec<(FileId, VolumePath, FlowGraph)> {
        let changed = self.flow.take_changed();
        let found = changed.into_iter().filter_map(|number| {
            let graph = self.flow.graph(number)?.clone();
            let file = self.files.get(&number)?;
            Some((file.id, file.path.clone(), graph))
        });
        found.collect()
    }

    /// The blocks that lie between two offsets of a file.
    fn add_blocks(&self, number: InodeId, start: u64, end: u64, blocks: &mut Vec<(InodeId, u32)>) {
        for block in start / self.block_bytes..end.div_ceil(self.block_bytes) {
            let Ok(block) = u32::try_from(block) else { return };
            // Pages of one large block follow each other.
            if blocks.last() != Some(&(number, block)) {
                blocks.push((number, block));
            }
        }
    }
}

type Predictors = (FlowPredictor, LinuxReadahead, Arc<Mutex<HashMap<InodeId, u32>>>);

fn predictors(frozen: bool) -> Predictors {
    let learned_max = if frozen { 0 } else { LEARNED_MAX };
    let pages: Arc<Mutex<HashMap<InodeId, u32>>> = Arc::default();
    let sizes = pages.clone();
    let readahead = LinuxReadahead::new(move |inode| locked(&sizes).get(&inode).copied().unwrap_or(0));
    (FlowPredictor::new(FlowConfig { learned_max, ..FlowConfig::default() }), readahead, pages)
}

fn pages_of(readahead: &LinuxReadahead, token: Token, order: &PushOrder) -> Vec<PageId> {
    readahead.pages(token, order).to_vec()
}

/// The profile of a file, if the store has one that makes sense. Blocks.
pub(super) fn load(store: &dyn Store, volume: &str, path: &VolumePath, log: &Logger) -> Option<FlowGraph> {
    let failed = |why: &dyn std::fmt::Display| {
        log.warning(format_args!("volume {volume}: the profile of {path} is of no use: {why}"));
    };
    match store.get(&profile_key(volume, path.as_bytes()), FILE_BYTES_MAX) {
        Ok(bytes) => flow::decode(&bytes).map_err(|error| failed(&error)).ok(),
        Err(error) if error.is_not_found() => None,
        Err(error) => {
            failed(&error);
            None
        }
    }
}
