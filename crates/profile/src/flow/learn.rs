//! From traces to runs over one file.

use std::collections::{BTreeSet, HashMap};

use trace::{Event, How, Trace};
use units::{InodeId, PAGE_BYTES, Token};

use super::{FlowError, FlowGraph, Layout};

/// What a trace says of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRuns {
    /// Length of the file in bytes, the longest that is named.
    pub file_bytes: u64,
    /// Pages of the file in the order in which each run of a program touched them. Recorders write down first touches, so a
    /// page comes once in a run.
    pub runs: Vec<Vec<u32>>,
    /// Runs left out because pushes hid some of their touches.
    pub hidden: usize,
}

/// The runs of `trace` over the file of this path, from the root and without a leading slash; `None` if the trace does not name it.
pub fn file_runs(trace: &Trace, path: &[u8]) -> Option<FileRuns> {
    let mut found = FileRuns::default();
    let mut inodes: BTreeSet<InodeId> = BTreeSet::new();
    let mut running: HashMap<Token, (Vec<u32>, bool)> = HashMap::new();
    for event in &trace.events {
        match event {
            Event::File { inode, size, path: named } if named == path => {
                inodes.insert(*inode);
                found.file_bytes = found.file_bytes.max(*size);
            }
            Event::Touch { token, page, how, .. } if inodes.contains(&page.inode) => {
                let run = running.entry(*token).or_default();
                run.0.push(page.index);
                run.1 |= *how == How::Pushed;
            }
            Event::End { token, .. } | Event::Start { token, .. } => {
                running.remove(token).into_iter().for_each(|run| found.keep(run));
            }
            _ => {}
        }
    }
    let mut rest: Vec<(Token, (Vec<u32>, bool))> = running.into_iter().collect();
    rest.sort_unstable_by_key(|(token, _)| *token);
    rest.into_iter().for_each(|(_, run)| found.keep(run));
    (!inodes.is_empty()).then_some(found)
}

impl FileRuns {
    fn keep(&mut self, (pages, hidden): (Vec<u32>, bool)) {
        match hidden {
            true => self.hidden += 1,
            false => self.runs.push(pages),
        }
    }
}

/// The graph of a file from its runs in one or several traces, in blocks of `block_bytes`. Of smaller blocks than pages, all of a
/// page count as used, one after another. Pages behind the end of the file are left out: it was longer once.
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
