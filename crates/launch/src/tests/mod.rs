//! Plans that are kept, shims, and prefetching real files.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use profile::plan::{Group, GroupExtent, LaunchPlan, PlanFile};

use crate::*;

mod auditor;
mod follow;
mod prefetch;
mod shim;
mod store;

/// A folder of files of `pages` pages each, and a plan that touches all of their pages.
pub(crate) fn tree(sizes: &[u32]) -> (tempfile::TempDir, LaunchPlan) {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = LaunchPlan { program: b"/bin/sh".to_vec(), runs: 2, ..LaunchPlan::default() };
    let mut group = Group::default();
    for (number, pages) in sizes.iter().enumerate() {
        let path = folder.path().join(format!("file{number}"));
        fs::write(&path, vec![number as u8; *pages as usize * 4096]).unwrap();
        let name = path.as_os_str().as_bytes()[1..].to_vec();
        plan.files.push(PlanFile { path: name, identity: identity(&path) });
        group.opens.push(number as u32);
        group.extents.push(GroupExtent { file: number as u32, page: 0, pages: *pages });
    }
    plan.groups.push(group);
    (folder, plan)
}

pub(crate) fn program(command: &str) -> Program {
    Program::find(&command.split(' ').map(OsString::from).collect::<Vec<_>>()).unwrap()
}

/// Remembers hints, and takes those whose path ends with `takes`.
#[derive(Default)]
pub(crate) struct RecordedHints {
    pub(crate) takes: &'static str,
    pub(crate) hints: Mutex<Vec<(PathBuf, Vec<std::ops::Range<u32>>)>>,
}

impl Hints for RecordedHints {
    fn hint(&self, path: &Path, pages: &[std::ops::Range<u32>]) -> bool {
        self.hints.lock().unwrap().push((path.to_path_buf(), pages.to_vec()));
        path.to_string_lossy().ends_with(self.takes)
    }
}

pub(crate) fn fetch(plan: &LaunchPlan, disk: DiskKind, budget_bytes: u64, hints: Arc<dyn Hints>) -> Fetched {
    let settings = Settings { disk, budget_bytes, window_bytes: 32 << 20 };
    let prefetcher = Prefetcher::start(Arc::new(plan.clone()), settings, hints).unwrap();
    for group in 0..plan.groups.len() {
        prefetcher.jobs().send(Job { group, opened: None }).unwrap();
    }
    prefetcher.finish()
}
