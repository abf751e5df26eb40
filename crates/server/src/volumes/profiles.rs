//! The order in which the files of a volume are used, and what follows from a touch.
//!
//! For the predictors, each file that was opened has an inode number of ours, by its id: the same
//! for all connections and under every name. Its flow graph comes from the store or from live use.
//! A graph that was written by hand (static) is never changed. A file that is read in order, and
//! whose graph does not know what follows, is read ahead.
//!
//! A page of the predictors is a data block of the volume here. A profile may have blocks of
//! another size.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use predict::{FlowConfig, FlowPredictor, LinuxReadahead, Predictor, Reader, chance};
use profile::flow::{self, Expansion, FlowGraph, Updates};
use store::Store;
use units::{InodeId, Moment, PageId, Token};
use volume::{FileId, VolumePath};

use super::profile_key;
use crate::Config;
use crate::lock::locked;
use crate::log::Logger;

/// Longest profile we read: a million blocks with a few edges each.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// About what a file takes that has a number, beside its path, bytes.
const FILE_MEMORY_BYTES: usize = 300;

/// Files of which live use makes a graph, at a time.
const LEARNED_MAX: usize = 1024;

/// Bytes that are sent when a file is opened, before its first touch.
const FIRST_BYTES: u64 = 1 << 20;

/// What follows from a touch or from opening a file: what should be pushed, and in which parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Foreseen {
    /// What was foreseen before is over; `blocks` says all that is wanted.
    pub begins: bool,
    /// Blocks that are needed soon, in their order, each with how likely it is: 0 to 1.
    pub blocks: Vec<(PageId, f64)>,
}

struct File {
    id: FileId,
    path: VolumePath,
    /// The store was looked into.
    loaded: bool,
    /// Number of its last use.
    used: u64,
}

/// How the memory of a volume's profiles is divided, bytes.
struct Memory {
    /// What graphs hold, half of it.
    graphs: usize,
    /// Programs that are followed, a quarter: they come and go.
    tokens: usize,
    /// What is read ahead, an eighth.
    readahead: usize,
    /// Files that have a number, an eighth.
    files: usize,
}

impl Memory {
    fn of(bytes: usize) -> Memory {
        Memory { graphs: bytes / 2, tokens: bytes / 4, readahead: bytes / 8, files: bytes / 8 }
    }
}

/// The predictors of one volume.
pub(crate) struct Profiles {
    flow: FlowPredictor,
    readahead: LinuxReadahead,
    /// Blocks of each file, for the read-ahead.
    blocks: Arc<Mutex<HashMap<InodeId, u32>>>,
    numbers: HashMap<FileId, InodeId>,
    files: BTreeMap<InodeId, File>,
    /// Files by their last use; that of longest ago makes room.
    by_use: BTreeMap<u64, InodeId>,
    uses: u64,
    /// Bytes of all paths.
    path_bytes: usize,
    last: u32,
    block_bytes: u64,
    /// Nothing is predicted at all.
    off: bool,
    frozen: bool,
    memory: Memory,
}

impl Profiles {
    pub fn new(block_bytes: u32, config: &Config) -> Profiles {
        let frozen = config.learning.predict.frozen;
        let memory = Memory::of(config.shares().profiles / config.volumes.len().max(1));
        let (flow, readahead, blocks) = predictors(block_bytes, frozen, &memory);
        Profiles {
            flow,
            readahead,
            blocks,
            numbers: HashMap::new(),
            files: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            path_bytes: 0,
            last: 1,
            block_bytes: block_bytes.into(),
            off: !config.learning.enabled,
            frozen,
            memory,
        }
    }

    /// A file was opened. Whether its profile is to be loaded.
    pub fn wants(&mut self, path: &VolumePath, id: FileId, size: u64) -> bool {
        if self.off {
            return false;
        }
        let number = self.numbers.get(&id).copied().unwrap_or_else(|| self.add(id, path));
        let blocks = size.div_ceil(self.block_bytes).min(u32::MAX.into()) as u32;
        locked(&self.blocks).insert(number, blocks);
        self.note_use(number);
        let Some(file) = self.files.get_mut(&number) else { return false };
        if file.path != *path {
            self.path_bytes = self.path_bytes + path.as_bytes().len() - file.path.as_bytes().len();
            file.path.clone_from(path);
        }
        !std::mem::replace(&mut file.loaded, true) || self.flow.is_forgotten(number)
    }

    /// Gives a file a number, in place of those that were used longest ago if there are too many.
    fn add(&mut self, id: FileId, path: &VolumePath) -> InodeId {
        self.path_bytes += path.as_bytes().len();
        while !self.files.is_empty()
            && (self.files.len() + 1) * FILE_MEMORY_BYTES + self.path_bytes > self.memory.files
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.drop_file(oldest);
        }
        if self.last == u32::MAX {
            (self.flow, self.readahead, self.blocks) = predictors(self.block_bytes as u32, self.frozen, &self.memory);
            (self.numbers, self.files, self.by_use) = Default::default();
            self.path_bytes = path.as_bytes().len();
        }
        self.last = self.last.wrapping_add(1).max(2);
        let number = InodeId(self.last);
        self.numbers.insert(id, number);
        self.files.insert(number, File { id, path: path.clone(), loaded: false, used: 0 });
        number
    }

    fn drop_file(&mut self, number: InodeId) {
        let Some(file) = self.files.remove(&number) else { return };
        self.path_bytes -= file.path.as_bytes().len();
        self.numbers.remove(&file.id);
        locked(&self.blocks).remove(&number);
        self.flow.forget(number);
    }

    fn note_use(&mut self, number: InodeId) {
        let Some(file) = self.files.get_mut(&number) else { return };
        self.uses += 1;
        self.by_use.remove(&std::mem::replace(&mut file.used, self.uses));
        self.by_use.insert(self.uses, number);
    }

    /// Gives a file the profile that was found.
    pub fn insert(&mut self, id: FileId, graph: Option<FlowGraph>) {
        let Some(number) = self.number(id) else { return };
        let Some(mut graph) = graph else { return self.flow.readmit(number) };
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
        for step in Expansion::from_entry(graph) {
            if blocks.len() as u64 * self.block_bytes >= FIRST_BYTES {
                break;
            }
            let range = layout.range(step.block);
            let chance = chance(graph, &step, graph.trust(&[]));
            blocks.extend(self.blocks_in(range).map(|block| (PageId::new(number, block), chance)));
        }
        Foreseen { begins: true, blocks }
    }

    /// All blocks that a file is known to use, in their order, if its profile has stages.
    pub fn staged(&self, id: FileId) -> Vec<u32> {
        let Some(graph) = self.graph(id).filter(|graph| !graph.stages().is_empty()) else { return Vec::new() };
        let blocks = graph.schedule().into_iter().flat_map(|scheduled| scheduled.blocks);
        blocks.flat_map(|block| self.blocks_in(graph.layout().range(block))).collect()
    }

    /// The stages of a file, and the bytes of their blocks; `None` if its profile has no stages.
    pub fn stages(&self, id: FileId) -> Option<(u64, &[flow::Stage])> {
        let graph = self.graph(id).filter(|graph| !graph.stages().is_empty())?;
        Some((graph.layout().block_bytes().into(), graph.stages()))
    }

    /// A program of `owner` touched a block of a file.
    pub fn touch(&mut self, owner: Reader, token: Token, id: FileId, block: u32, now: Moment) -> Foreseen {
        let Some(number) = self.number(id).filter(|_| !self.off) else { return Foreseen::default() };
        self.note_use(number);
        let page = PageId::new(number, block);
        // What comes after this block, as far as it was known before.
        let unknown = self.flow.graph(number).is_none_or(|graph| {
            let known = |block| !graph.successors(block).is_empty();
            graph.updates == Updates::Live
                && !graph.layout().block_at(u64::from(block) * self.block_bytes).is_some_and(known)
        });
        let ahead = self.readahead.touch(token, page, now);
        let verdict = self.flow.touch_of(owner, token, page, now);
        let mut blocks: Vec<(PageId, f64)> = Vec::new();
        let begins = verdict.cancel || verdict.push.is_some_and(|order| order.begins);
        if let Some(order) = verdict.push {
            blocks.extend(self.flow.pages(token, &order).iter().map(|page| (*page, self.flow.chance(token, *page))));
        }
        if let Some(order) = ahead.push.filter(|_| unknown) {
            blocks.extend(self.readahead.pages(token, &order).iter().map(|page| (*page, 1.0)));
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

    /// The blocks in which a range of a file lies, bytes.
    fn blocks_in(&self, range: std::ops::Range<u64>) -> std::ops::Range<u32> {
        let block = |index: u64| u32::try_from(index).unwrap_or(u32::MAX);
        block(range.start / self.block_bytes)..block(range.end.div_ceil(self.block_bytes))
    }
}

type Predictors = (FlowPredictor, LinuxReadahead, Arc<Mutex<HashMap<InodeId, u32>>>);

fn predictors(block_bytes: u32, frozen: bool, memory: &Memory) -> Predictors {
    let learned_max = if frozen { 0 } else { LEARNED_MAX };
    let blocks: Arc<Mutex<HashMap<InodeId, u32>>> = Arc::default();
    let sizes = blocks.clone();
    let readahead = LinuxReadahead::new(move |inode| locked(&sizes).get(&inode).copied().unwrap_or(0));
    let config = FlowConfig {
        page_bytes: block_bytes,
        learned_max,
        token_bytes_max: memory.tokens,
        graph_bytes_max: memory.graphs,
        ..FlowConfig::default()
    };
    (FlowPredictor::new(config), readahead.within(memory.readahead), blocks)
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
