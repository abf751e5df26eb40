//! Hot pages: which pages of which files programs touch when they start, in which order, over any
//! number of runs.
//!
//! The packer lays the chunks of these pages together. Hot pages are named by path, not by inode,
//! so a trace of one image serves another image of the same tree, or the tree itself.
//!
//! Each run is a list of first touches. The position of a page is the median of its ranks in the
//! runs that touch it, so one run in which it came late (another argument, another order of
//! threads) does not move it. Pages of equal position stay in the order of the given runs. A page
//! that few of the runs touched can be left out ([`Hot::merge`]).
//!
//! A trace is one run, whatever number of programs it holds: pages that one of them touched are in
//! the page cache when the next one needs them, so only together are they a first-touch order. Each
//! action of an [`ActionSet`] is a run of its own.

use std::collections::{BTreeMap, HashMap, HashSet};

use trace::{Event, Trace};
use units::{ImageId, InodeId, PAGE_BYTES, PageId};

use crate::{ActionSet, HotError, MergeConfig, orders};

/// Pages that a program of a trace must have to become an action: fewer are noise.
const PROGRAM_PAGES_MIN: usize = 4;

/// Programs of one trace that become actions: more than any start consists of.
const PROGRAMS_MAX: usize = 64;

/// How to find out what the inodes of an image are called.
#[derive(Clone, Copy)]
pub struct Names<'a> {
    /// The image that is asked.
    pub image: ImageId,
    /// The path of a regular file of it, with or without a leading slash, and its length in bytes.
    pub file: &'a dyn Fn(InodeId) -> Option<(Vec<u8>, u64)>,
}

/// One run: files, and their pages in the order of their first touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotRun {
    /// Path without a leading slash, and length in bytes.
    files: Vec<(Vec<u8>, u64)>,
    /// Position in `files`, page index, and how many runs touched it.
    pages: Vec<(u32, u32, u32)>,
    /// Real runs that it stands for.
    runs: u32,
}

/// A file of which some pages are hot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotFile {
    /// From the root of the image, without a leading slash.
    pub path: Vec<u8>,
    /// Length in bytes, as the last run that touched it saw it.
    pub size: u64,
    /// Indexes of its hot pages, in the order of their first touch.
    pub pages: Vec<u32>,
}

/// A hot page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotPage {
    /// Position in [`Hot::files`].
    pub file: u32,
    /// Index of the page in the file: byte offset / 4096.
    pub page: u32,
    /// Runs that touched it.
    pub runs: u32,
}

/// What is hot, merged over runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hot {
    /// The files, in the order of their first hot page.
    pub files: Vec<HotFile>,
    /// All hot pages, in the order of their first touch.
    pub order: Vec<HotPage>,
    /// Runs that were merged.
    pub runs: u32,
    /// Pages that too few runs touched and that were left out.
    pub rare: usize,
    /// Single programs, whose orders travel with an image.
    pub programs: Vec<HotRun>,
}

/// How well [`Hot`] fits a tree. Numbers of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotFit {
    /// There, and as long as when they were traced.
    pub known: usize,
    /// Not there.
    pub missing: usize,
    /// There, with another length.
    pub resized: usize,
}

impl HotFit {
    /// Whether fewer than half of the files are as they were: then the trace is likely to be of
    /// another tree.
    pub fn is_foreign(&self) -> bool {
        self.known < self.missing + self.resized
    }
}

impl HotRun {
    /// The run of a trace. Files that it does not name are looked up in `names`.
    ///
    /// # Errors
    /// A file without a name, and `names` is missing, of another image, or does not know it; a page
    /// behind the end of its file.
    pub fn from_trace(trace: &Trace, names: Option<Names>) -> Result<HotRun, HotError> {
        let mut run = RunBuilder::new(trace.header.image, names);
        for event in &trace.events {
            match event {
                Event::File { inode, size, path } => run.name(*inode, path, *size),
                Event::Touch { page, .. } => run.touch(*page, 1)?,
                Event::Start { .. } | Event::End { .. } | Event::Lookup { .. } | Event::Code { .. } => {}
            }
        }
        Ok(run.finish(1))
    }

    /// The programs of a trace, each a run of its own: what becomes actions. Those of few pages,
    /// and those after many, are left out.
    ///
    /// # Errors
    /// As [`HotRun::from_trace`].
    pub fn programs(trace: &Trace, names: Option<Names>) -> Result<Vec<HotRun>, HotError> {
        let long = orders(trace).into_iter().filter(|order| order.pages.len() >= PROGRAM_PAGES_MIN);
        let runs = long.take(PROGRAMS_MAX).map(|order| {
            let mut run = RunBuilder::new(trace.header.image, names);
            for event in &trace.events {
                if let Event::File { inode, size, path } = event {
                    run.name(*inode, path, *size);
                }
            }
            order.pages.iter().try_for_each(|page| run.touch(*page, 1))?;
            Ok(run.finish(1))
        });
        runs.collect()
    }

    /// The runs of a set: one for each action, in the order of their ids.
    ///
    /// # Errors
    /// As [`HotRun::from_trace`].
    pub fn from_actions(actions: &ActionSet, names: Names) -> Result<Vec<HotRun>, HotError> {
        let runs = actions.iter().map(|action| {
            let mut run = RunBuilder::new(actions.image(), Some(names));
            for (page, mark) in action.pages.iter().zip(&action.marks) {
                run.touch(*page, mark.runs.clamp(1, action.runs.max(1)))?;
            }
            Ok(run.finish(action.runs.max(1)))
        });
        runs.collect()
    }

    /// Pages in it.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }
}

impl Hot {
    /// Merges runs. Pages that fewer than `min_runs` of them touched are left out, but never more
    /// is asked of a page than there are runs. Where runs saw a file with different lengths, the
    /// last one counts, and pages behind that end go.
    pub fn merge(runs: &[HotRun], min_runs: u32) -> Hot {
        let total = runs.iter().fold(0u32, |sum, run| sum.saturating_add(run.runs));
        let wanted = min_runs.clamp(1, total.max(1));
        let mut sizes: HashMap<&[u8], u64> = HashMap::new();
        let mut seen: BTreeMap<(&[u8], u32), Seen> = BTreeMap::new();
        for (number, run) in runs.iter().enumerate() {
            sizes.extend(run.files.iter().map(|(path, size)| (path.as_slice(), *size)));
            for (rank, (file, page, touched)) in run.pages.iter().enumerate() {
                let path = run.files[*file as usize].0.as_slice();
                let entry = seen.entry((path, *page)).or_insert_with(|| Seen {
                    ranks: Vec::new(),
                    runs: 0,
                    first: (number, rank),
                });
                entry.ranks.push(rank as u32);
                entry.runs = entry.runs.saturating_add(*touched);
            }
        }
        seen.retain(|(path, page), _| u64::from(*page) < pages_of(sizes[path]));
        let before = seen.len();
        seen.retain(|_, entry| entry.runs >= wanted);
        let rare = before - seen.len();
        let mut order: Vec<_> = seen.into_iter().collect();
        // First touches of one run differ, so this is a total order.
        order.sort_by_cached_key(|(_, entry)| (entry.median(), entry.first));
        let mut hot = Hot { runs: total, rare, ..Hot::default() };
        let mut numbers: HashMap<&[u8], u32> = HashMap::new();
        for ((path, page), entry) in order {
            let file = *numbers.entry(path).or_insert_with(|| {
                hot.files.push(HotFile { path: path.to_vec(), size: sizes[path], pages: Vec::new() });
                hot.files.len() as u32 - 1
            });
            hot.files[file as usize].pages.push(page);
            hot.order.push(HotPage { file, page, runs: entry.runs });
        }
        hot
    }

    /// How well it fits the tree in which `size_of` gives the length of the regular file at a path,
    /// or `None`.
    pub fn fit(&self, mut size_of: impl FnMut(&[u8]) -> Option<u64>) -> HotFit {
        let mut fit = HotFit::default();
        for file in &self.files {
            match size_of(&file.path) {
                None => fit.missing += 1,
                Some(size) if size == file.size => fit.known += 1,
                Some(_) => fit.resized += 1,
            }
        }
        fit
    }

    /// The programs as actions of an image in which `file` gives the inode of the file of a path
    /// and a length. The set names no image: it is made before the image has an id.
    pub fn actions(&self, mut file: impl FnMut(&[u8], u64) -> Option<InodeId>) -> ActionSet {
        let mut actions = ActionSet::new(ImageId::default());
        for run in &self.programs {
            let inodes: Vec<Option<InodeId>> = run.files.iter().map(|(path, size)| file(path, *size)).collect();
            let inode = |file: u32| inodes.get(file as usize).copied().flatten();
            // Without its first page, nothing says when it begins.
            if run.pages.first().and_then(|(file, _, _)| inode(*file)).is_some() {
                let pages = run.pages.iter().filter_map(|(file, page, _)| Some(PageId::new(inode(*file)?, *page)));
                actions.learn(&pages.collect::<Vec<_>>(), &MergeConfig::default());
            }
        }
        actions
    }

    /// Bytes of all hot pages; the last page of a file counts as long as it is.
    pub fn bytes(&self) -> u64 {
        let bytes = |page: &HotPage| {
            let start = u64::from(page.page) * PAGE_BYTES as u64;
            self.files[page.file as usize].size.saturating_sub(start).min(PAGE_BYTES as u64)
        };
        self.order.iter().map(bytes).sum()
    }
}

/// What the runs say of one page.
struct Seen {
    /// Its place in each run that touched it.
    ranks: Vec<u32>,
    runs: u32,
    /// The first run that touched it, and its place there.
    first: (usize, usize),
}

impl Seen {
    /// The lower median, so that it is a place that a run really had.
    fn median(&self) -> u32 {
        let mut ranks = self.ranks.clone();
        let middle = (ranks.len() - 1) / 2;
        *ranks.select_nth_unstable(middle).1
    }
}

/// Gathers one run.
struct RunBuilder<'a> {
    image: ImageId,
    names: Option<Names<'a>>,
    /// Positions in `files` of the inodes that have a name.
    numbers: HashMap<InodeId, u32>,
    /// Two inodes with one path are one file; an image has no such, but a trace may.
    by_path: HashMap<Vec<u8>, u32>,
    files: Vec<(Vec<u8>, u64)>,
    seen: HashSet<(u32, u32)>,
    pages: Vec<(u32, u32, u32)>,
}

impl<'a> RunBuilder<'a> {
    fn new(image: ImageId, names: Option<Names<'a>>) -> RunBuilder<'a> {
        RunBuilder {
            image,
            names,
            numbers: HashMap::new(),
            by_path: HashMap::new(),
            files: Vec::new(),
            seen: HashSet::new(),
            pages: Vec::new(),
        }
    }

    fn name(&mut self, inode: InodeId, path: &[u8], size: u64) {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let next = self.files.len() as u32;
        let number = *self.by_path.entry(path.to_vec()).or_insert(next);
        if number == next {
            self.files.push((path.to_vec(), size));
        }
        self.numbers.insert(inode, number);
    }

    fn touch(&mut self, page: PageId, runs: u32) -> Result<(), HotError> {
        if !self.numbers.contains_key(&page.inode) {
            self.look_up(page.inode)?;
        }
        let number = self.numbers[&page.inode];
        let (path, size) = &self.files[number as usize];
        if u64::from(page.index) >= pages_of(*size) {
            let path = String::from_utf8_lossy(path).into_owned();
            return Err(HotError::BehindEnd { path, page: page.index, size: *size });
        }
        if self.seen.insert((number, page.index)) {
            self.pages.push((number, page.index, runs));
        }
        Ok(())
    }

    fn look_up(&mut self, inode: InodeId) -> Result<(), HotError> {
        let names = self.names.ok_or(HotError::NoNames { image: self.image })?;
        if names.image != self.image {
            return Err(HotError::OtherImage { found: names.image, expected: self.image });
        }
        let (path, size) = (names.file)(inode).ok_or(HotError::UnknownInode { inode, image: self.image })?;
        self.name(inode, &path, size);
        Ok(())
    }

    fn finish(self, runs: u32) -> HotRun {
        HotRun { files: self.files, pages: self.pages, runs }
    }
}

/// Pages of a file of so many bytes.
fn pages_of(size: u64) -> u64 {
    size.div_ceil(PAGE_BYTES as u64)
}

#[cfg(test)]
mod tests;
