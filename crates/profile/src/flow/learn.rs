//! Runs over one file, from traces.

use std::collections::{BTreeSet, HashMap};

use trace::{Event, How, Trace};
use units::{InodeId, PAGE_BYTES, Token};

use super::{FlowError, FlowGraph, Layout};

/// What a trace says of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRuns {
    /// Length of the file in bytes, the longest that is named.
    pub file_bytes: u64,
    /// Pages of the file in the order in which each run touched them.
    pub runs: Vec<Vec<u32>>,
    /// Runs left out because pushes hid some of their touches.
    pub hidden: usize,
}

/// What one token touched between its start and its end.
#[derive(Default)]
struct Run {
    pages: Vec<u32>,
    hidden: bool,
}

/// The runs of `trace` over the file of this path, from the root and without a leading slash;
/// `None` if the trace does not name it.
///
/// Recorders write down the first touch of a page only, some of them over all programs that they
/// watch: what the first program read is missing of the second. So if no two programs of a trace
/// share a page of the file, they count as one run, in the order of time.
pub fn file_runs(trace: &Trace, path: &[u8]) -> Option<FileRuns> {
    let mut file_bytes = None;
    let mut inodes: BTreeSet<InodeId> = BTreeSet::new();
    let mut runs: Vec<Run> = Vec::new();
    let mut running: HashMap<Token, usize> = HashMap::new();
    let mut together = Run::default();
    let mut touched_by: HashMap<u32, usize> = HashMap::new();
    let mut share = false;
    for event in &trace.events {
        match event {
            Event::File { inode, size, path: named } if named == path => {
                inodes.insert(*inode);
                file_bytes = file_bytes.max(Some(*size));
            }
            Event::Touch { token, page, how, .. } if inodes.contains(&page.inode) => {
                let number = *running.entry(*token).or_insert(runs.len());
                if number == runs.len() {
                    runs.push(Run::default());
                }
                for run in [&mut runs[number], &mut together] {
                    run.pages.push(page.index);
                    run.hidden |= *how == How::Pushed;
                }
                share |= *touched_by.entry(page.index).or_insert(number) != number;
            }
            Event::End { token, .. } | Event::Start { token, .. } => drop(running.remove(token)),
            _ => {}
        }
    }
    if !share {
        runs = vec![together];
    }
    runs.retain(|run| !run.pages.is_empty());
    let all = runs.len();
    let runs: Vec<Vec<u32>> = runs.into_iter().filter(|run| !run.hidden).map(|run| run.pages).collect();
    file_bytes.map(|file_bytes| FileRuns { file_bytes, hidden: all - runs.len(), runs })
}

/// The graph of a file from its runs in one or several traces, in blocks of `block_bytes`. Of
/// smaller blocks than pages, all of a page count as used, one after another. Pages behind the end
/// of the file are left out: it was longer once.
///
/// # Errors
/// A block size that cannot be; a file of too many blocks.
pub fn learn(traces: &[FileRuns], block_bytes: u32) -> Result<FlowGraph, FlowError> {
    let file_bytes = traces.iter().map(|runs| runs.file_bytes).max().unwrap_or(0);
    let layout = Layout::new(block_bytes, file_bytes)?;
    let blocks = |page: &u32| {
        let start = u64::from(*page) * PAGE_BYTES as u64;
        let end = (start + PAGE_BYTES as u64).min(file_bytes);
        let ends = layout.block_at(start).zip(layout.block_at(end.saturating_sub(1)));
        ends.map_or(Vec::new(), |(first, last)| (first..=last).collect())
    };
    let runs: Vec<Vec<u32>> =
        traces.iter().flat_map(|runs| &runs.runs).map(|run| run.iter().flat_map(blocks).collect()).collect();
    FlowGraph::from_runs(layout, runs.iter().map(Vec::as_slice))
}
