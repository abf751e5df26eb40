//! Finds the address whose execution announces a burst.
//!
//! The candidates are the first executions of code in the idle period before a burst, from the last
//! read of the burst before it (which may be the fault of that very code) up to the first read of
//! its own. A candidate must be *unique*: in no process image with the same executable is that
//! address run at any other time, in any run. If there are several runs, at least half of the
//! others must run it in the corresponding idle period. The earliest one wins, since it leaves the
//! most time for fetching.
//!
//! Of several at the same moment, code of the program's own file is preferred to libraries, and
//! these to the C library and the loader, which any change of a locale or an allocator sends along
//! another path. After that file and offset decide, so that the result is always the same.
//!
//! The first fault really is the first execution: a fault maps up to 16 pages around it, and any
//! earlier run of code there would have been the fault. So a one-shot breakpoint is hit then, and
//! not before.

use std::collections::BTreeMap;

use units::Moment;

use super::merge::Common;

/// A place of code: executable of the process, file, offset.
pub(super) type CodeAddress = (u32, u32, u64);

/// Where and when executions were run: run and moment, in the order of runs and times.
pub(super) struct Executions {
    executions: BTreeMap<CodeAddress, Vec<(usize, Moment)>>,
}

/// A place that may get a breakpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub address: CodeAddress,
    /// When it was run in the reference.
    pub at: Moment,
}

impl Executions {
    pub fn new(runs: &[Common]) -> Executions {
        let mut executions: BTreeMap<CodeAddress, Vec<(usize, Moment)>> = BTreeMap::new();
        for (number, run) in runs.iter().enumerate() {
            for code in &run.run.codes {
                if let Some(address) = run.code(code) {
                    executions.entry(address).or_default().push((number, code.at));
                }
            }
        }
        Executions { executions }
    }

    /// Good executions for group `period`, best first. `path` names files of all runs.
    pub fn candidates(&self, period: usize, runs: &[Common], path: &dyn Fn(u32) -> Vec<u8>) -> Vec<Candidate> {
        let idle: Vec<Option<(Moment, Moment)>> = runs.iter().map(|run| run.idle_before(period)).collect();
        let Some(Some((from, to))) = idle.first().copied() else { return Vec::new() };
        let mut found: Vec<Candidate> = Vec::new();
        for (address, executions) in &self.executions {
            let Some((0, at)) = executions.first().copied() else { continue };
            if from <= at && at < to && is_unique(executions, &idle) {
                found.push(Candidate { address: *address, at });
            }
        }
        found.sort_by_cached_key(|candidate| {
            let (executable, file, offset) = candidate.address;
            let name = path(file);
            let rank = if executable == file { 0 } else { 1 + u8::from(is_system(&name)) };
            (candidate.at, rank, name, offset, executable)
        });
        found
    }
}

/// Whether something happened at most once in each run, there in the window of that run (an idle
/// period), and in at least half of the runs after the first. `happened` has run and moment, in the
/// order of runs, and the first run is among them.
pub(super) fn is_unique(happened: &[(usize, Moment)], windows: &[Option<(Moment, Moment)>]) -> bool {
    let once = happened.windows(2).all(|pair| pair[0].0 != pair[1].0);
    let inside = happened.iter().all(|(run, at)| windows[*run].is_some_and(|(from, to)| from <= *at && *at < to));
    let confirmed = happened.len() - 1;
    once && inside && 2 * confirmed >= windows.len() - 1
}

/// Whether a file belongs to the C library: the loader, libc and the parts that it once had beside
/// it.
pub(super) fn is_system(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let parts: [&[u8]; 8] = [b"ld-", b"ld.so", b"libc.so", b"libc-", b"libm.so", b"libpthread", b"libdl.", b"librt."];
    parts.iter().any(|part| name.starts_with(part))
}
