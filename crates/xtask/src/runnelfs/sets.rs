//! Sets of pages that are read: a chosen share of a tree, or what programs touched. Each is a trace
//! for our packer, a sort list for SquashFS, and a list for the guest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, ensure};
use trace::{Event, Header, How, Source, Writer};
use units::{ImageId, InodeId, Moment, PAGE_BYTES, PageId, Rng, SplitMix64, Token};

use super::meter::Run;

/// Seed of the chosen sets.
const SEED: u64 = 42;

/// Pages of a short run, at most.
const SHORT_PAGES: u64 = 8;

/// The pages of one program, or of a chosen set.
#[derive(Debug, Default)]
pub(super) struct Set {
    /// Its name.
    pub(super) name: String,
    /// Runs of pages by the paths of their files.
    pub(super) runs: Vec<Run>,
}

impl Set {
    /// How many pages it has.
    pub(super) fn pages(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }
}

/// How long the runs of pages of a chosen set are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// Files in a random order, of each a run of a random length (a quarter of it to all) from a
    /// random place, as `runnel-bench pack` chooses.
    Long,
    /// Runs of one to [`SHORT_PAGES`] pages, each from a random page of the tree, all pages being
    /// as likely. What a file lacks behind its start, or what was chosen before, makes a run
    /// shorter.
    Short,
}

/// A set of `percent` of the pages of a tree. The runs are in the order of paths, which is the
/// order in which SquashFS and EROFS store them: read in another, SquashFS reads a block of small
/// files again for each of them.
pub(super) fn chosen(percent: u64, length: Length, tree: &Path) -> anyhow::Result<Set> {
    let files = files(tree)?;
    let total: u64 = files.iter().map(|(_, bytes)| pages(*bytes)).sum();
    let wanted = total * percent / 100;
    let mut runs = match length {
        Length::Long => long_runs(files, wanted),
        Length::Short => short_runs(&files, wanted),
    };
    runs.sort_by(|one, other| (&one.path, one.first).cmp(&(&other.path, other.first)));
    let name = match length {
        Length::Long => format!("hot-{percent}"),
        Length::Short => format!("hot-{percent}-short"),
    };
    Ok(Set { name, runs })
}

fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES as u64)
}

fn long_runs(mut files: Vec<(String, u64)>, wanted: u64) -> Vec<Run> {
    let mut random = SplitMix64(SEED);
    let (mut got, mut runs) = (0, Vec::new());
    while got < wanted && !files.is_empty() {
        let (path, bytes) = files.swap_remove(random.below(files.len() as u64) as usize);
        let all = pages(bytes);
        let least = all.div_ceil(4);
        let count = least + random.below(all - least + 1);
        let first = random.below(all - count + 1);
        got += count;
        runs.push(Run { path, bytes, first: first as u32, count: count as u32 });
    }
    runs
}

fn short_runs(files: &[(String, u64)], wanted: u64) -> Vec<Run> {
    let ends: Vec<u64> = files
        .iter()
        .scan(0, |sum, (_, bytes)| {
            *sum += pages(*bytes);
            Some(*sum)
        })
        .collect();
    let mut free = vec![true; ends.last().map_or(0, |end| *end as usize)];
    let mut random = SplitMix64(SEED);
    let (mut got, mut runs) = (0, Vec::new());
    while got < wanted {
        let page = random.below(free.len() as u64);
        let index = ends.partition_point(|end| *end <= page);
        let most = (1 + random.below(SHORT_PAGES)).min(ends[index] - page);
        let (path, bytes) = &files[index];
        let first = (page - (ends[index] - pages(*bytes))) as u32;
        let range = page as usize..(page + most) as usize;
        let count = free[range.clone()].iter().take_while(|free| **free).count();
        if count > 0 {
            free[range][..count].fill(false);
            got += count as u64;
            runs.push(Run { path: path.clone(), bytes: *bytes, first, count: count as u32 });
        }
    }
    runs
}

/// The files of a tree that have contents, each once, with their sizes.
fn files(tree: &Path) -> anyhow::Result<Vec<(String, u64)>> {
    let (mut found, mut open) = (Vec::new(), vec![tree.to_path_buf()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() {
                open.push(entry.path());
            } else if about.is_file() && about.len() > 0 && about.nlink() == 1 {
                let name = entry.path().strip_prefix(tree)?.to_str().map(str::to_string);
                found.extend(name.filter(|name| !name.contains('\n')).map(|name| (name, about.len())));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// What guests said of the pages that programs touched: a line `touched PROGRAM | PATH | BYTES |
/// PAGE,PAGE…` for each file.
pub(super) fn touched<'a>(said: impl Iterator<Item = &'a str>) -> anyhow::Result<Vec<Set>> {
    let mut sets: BTreeMap<&str, BTreeMap<&str, (u64, &str)>> = BTreeMap::new();
    for line in said.filter_map(|line| line.strip_prefix("touched ")) {
        if let [program, path, bytes, pages] = line.split(" | ").collect::<Vec<_>>()[..] {
            sets.entry(program).or_default().insert(path, (bytes.parse()?, pages));
        }
    }
    let mut found = Vec::new();
    for (name, files) in sets {
        let mut set = Set { name: name.to_string(), runs: Vec::new() };
        for (path, (bytes, pages)) in files {
            for index in pages.split(',') {
                let index: u32 = index.parse()?;
                match set.runs.last_mut() {
                    Some(run) if run.path == path && run.first + run.count == index => run.count += 1,
                    _ => set.runs.push(Run { path: path.to_string(), bytes, first: index, count: 1 }),
                }
            }
        }
        eprintln!("   {name} touches {} pages in {} runs", set.pages(), set.runs.len());
        found.push(set);
    }
    ensure!(!found.is_empty(), "nothing was touched");
    Ok(found)
}

/// Writes the sets as a trace, each as a run of a program.
pub(super) fn write_trace(sets: &[Set], to: &Path) -> anyhow::Result<()> {
    // Files have their names, so it does not matter of which image it is.
    let mut writer = Writer::new(&Header { image: ImageId([1; 32]), source: Source::Mount });
    let mut inodes = BTreeMap::new();
    let mut at = 0;
    let mut next = || {
        at += 1;
        Moment(at)
    };
    for (token, set) in (1..).map(Token).zip(sets) {
        writer.push(&Event::Start { token, at: next(), name: set.name.as_bytes().to_vec() })?;
        for run in &set.runs {
            let count = inodes.len() as u32;
            let inode = *inodes.entry(&run.path).or_insert(InodeId(count + 1));
            if !writer.knows(inode) {
                writer.push(&Event::File { inode, size: run.bytes, path: run.path.as_bytes().to_vec() })?;
            }
            for index in run.first..run.first + run.count {
                let page = PageId { inode, index };
                writer.push(&Event::Touch { token, at: next(), page, how: How::Demand })?;
            }
        }
        writer.push(&Event::End { token, at: next() })?;
    }
    writer.finish()?;
    fs::write(to, writer.take()).with_context(|| to.display().to_string())
}

/// The files of the sets, in the order in which they are read.
pub(super) fn order(sets: &[Set]) -> Vec<String> {
    let paths = sets.iter().flat_map(|set| &set.runs).map(|run| run.path.clone());
    let mut seen = BTreeSet::new();
    paths.filter(|path| seen.insert(path.clone())).collect()
}
