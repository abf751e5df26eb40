//! Finds the library whose load announces a burst, for programs that get no breakpoints.
//!
//! A trace has no event for the load of a library, and needs none. A library is a file whose code
//! is run, that no process was started from, and whose name ends as one (`.so`: what the dynamic
//! linker loads, and reports to its auditors). It is loaded when it is first looked up or touched.
//! The first such moment of the whole run counts, in whatever process, because that is the first
//! report that a launcher gets. The moment must lie in the idle period before the burst, in the
//! reference and in at least half of the other runs, and nowhere else in any. The earliest library
//! wins, as with addresses; of several at the same moment the C library's come last, then the path
//! decides.
//!
//! The load of a library often is a burst of its own, or the end of one: then no library is new in
//! the idle period. So the burst before it is searched too, for the latest library, unless that
//! burst is the launch, with which the group would go anyway.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use trace::Found;
use units::Moment;

use super::breakpoint::{is_system, is_unique};
use super::merge::Common;

/// When libraries were loaded first: run and moment, in the order of runs.
pub(super) struct Libraries {
    loads: BTreeMap<u32, Vec<(usize, Moment)>>,
}

impl Libraries {
    /// `path` names files of all runs.
    pub fn new(runs: &[Common], path: &dyn Fn(u32) -> Vec<u8>) -> Libraries {
        let mut libraries: BTreeSet<u32> = BTreeSet::new();
        for run in runs {
            libraries.extend(run.run.codes.iter().filter_map(|code| run.files[code.file as usize]));
        }
        for run in runs {
            for executable in run.run.images.iter().filter_map(|image| image.executable) {
                if let Some(file) = run.files[executable as usize] {
                    libraries.remove(&file);
                }
            }
        }
        libraries.retain(|file| has_name_of_library(&path(*file)));
        let mut loads: BTreeMap<u32, Vec<(usize, Moment)>> = BTreeMap::new();
        for (number, run) in runs.iter().enumerate() {
            let mut first: BTreeMap<u32, Moment> = BTreeMap::new();
            let lookups = run.run.lookups.iter().filter(|lookup| lookup.found == Found::File);
            let lookups = lookups.map(|lookup| (lookup.file, lookup.at));
            let touches = run.run.touches.iter().map(|touch| (touch.file, touch.at));
            let codes = run.run.codes.iter().map(|code| (code.file, code.at));
            for (file, at) in lookups.chain(touches).chain(codes) {
                let Some(file) = run.files[file as usize].filter(|file| libraries.contains(file)) else { continue };
                let first = first.entry(file).or_insert(at);
                *first = at.min(*first);
            }
            for (file, at) in first {
                loads.entry(file).or_default().push((number, at));
            }
        }
        Libraries { loads }
    }

    /// Good libraries for group `period` and when the reference loaded them, best first.
    pub fn candidates(&self, period: usize, runs: &[Common], path: &dyn Fn(u32) -> Vec<u8>) -> Vec<(u32, Moment)> {
        let mut found = self.within(runs.iter().map(|run| run.idle_before(period)).collect());
        found.sort_by_cached_key(|(file, at)| {
            let name = path(*file);
            (*at, is_system(&name), name)
        });
        if found.is_empty() && period > 1 {
            found = self.within(runs.iter().map(|run| run.burst_and_idle_before(period)).collect());
            found.sort_by_cached_key(|(file, at)| {
                let name = path(*file);
                (Reverse(*at), is_system(&name), name)
            });
        }
        found
    }

    /// Libraries that are loaded in these windows of the runs, and the moments in the reference.
    fn within(&self, windows: Vec<Option<(Moment, Moment)>>) -> Vec<(u32, Moment)> {
        let found = self.loads.iter().filter_map(|(file, loads)| {
            let (0, at) = *loads.first()? else { return None };
            is_unique(loads, &windows).then_some((*file, at))
        });
        found.collect()
    }
}

/// `libx.so`, `libx.so.1`, `x.cpython-311-x86_64-linux-gnu.so`.
fn has_name_of_library(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name.ends_with(b".so") || name.windows(4).any(|part| part == b".so.")
}
