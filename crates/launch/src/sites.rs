//! The code that runs before later groups, and which groups go with which.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

use probe::FileId;
use profile::plan::{LaunchPlan, Trigger};
use rustix::fs::Advice;

use crate::files::{absolute, is_same, open};

/// Code that a program runs before a group.
#[derive(Debug)]
pub(crate) struct TriggerSite {
    /// The group, by its position in the plan.
    pub(crate) group: usize,
    /// The file of the code, which is still the one that was learned.
    pub(crate) file: File,
    /// Where in it, bytes.
    pub(crate) offset: u64,
    /// The executable of the process that runs it.
    pub(crate) process: FileId,
}

/// The sites of a plan, and the groups whose files have changed since.
pub(crate) fn trigger_sites(plan: &LaunchPlan) -> (Vec<TriggerSite>, Vec<usize>) {
    let (mut sites, mut changed) = (Vec::new(), Vec::new());
    for (group, found) in plan.groups.iter().enumerate() {
        let Trigger::Breakpoint(breakpoint) = &found.trigger else { continue };
        let file = learned_file(plan, breakpoint.file, Some((breakpoint.offset, breakpoint.byte)));
        let process = learned_file(plan, breakpoint.process, None).and_then(|file| FileId::of_open(&file).ok());
        match (file, process) {
            (Some(file), Some(process)) => sites.push(TriggerSite { group, file, offset: breakpoint.offset, process }),
            _ => changed.push(group),
        }
    }
    (sites, changed)
}

/// Has the kernel read the code of all breakpoints, without waiting for it: whoever looks at it
/// while groups are fetched would wait behind them, and come too late.
pub(crate) fn announce(plan: &LaunchPlan) {
    for group in &plan.groups {
        let Trigger::Breakpoint(breakpoint) = &group.trigger else { continue };
        let Some(learned) = plan.files.get(breakpoint.file as usize) else { continue };
        if let Ok(file) = open(&absolute(&learned.path)) {
            // A file system that cannot read ahead is waited for.
            let _ = rustix::fs::fadvise(&file, breakpoint.offset, NonZeroU64::new(1), Advice::WillNeed);
        }
    }
}

/// A group and those that go with it.
pub(crate) fn followers(plan: &LaunchPlan, group: usize) -> Vec<usize> {
    let with = |number: &usize| {
        *number == group || matches!(plan.groups[*number].trigger, Trigger::With(to) if to as usize == group)
    };
    (0..plan.groups.len()).filter(with).collect()
}

/// The file, if it is the one that was learned and holds the byte that was there.
pub(crate) fn learned_file(plan: &LaunchPlan, number: u32, byte: Option<(u64, u8)>) -> Option<File> {
    let learned = plan.files.get(number as usize)?;
    let file = open(&absolute(&learned.path)).ok()?;
    if !is_same(&file, learned.identity.as_ref()?).ok()? {
        return None;
    }
    if let Some((offset, byte)) = byte {
        let mut found = [0u8];
        if file.read_at(&mut found, offset).ok()? != 1 || found[0] != byte {
            return None;
        }
    }
    Some(file)
}
