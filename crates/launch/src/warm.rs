//! Whether the pages that a group would fetch are in memory already.
//!
//! A few pages are read with `RWF_NOWAIT`, which reads from the page cache and else fails at once.
//! Unlike mincore(2) and cachestat(2) it is right for files of other users. A missing page makes
//! the kernel begin to read it, which is harmless, since it is wanted anyway. But a fast disk may
//! have it in the page cache before the call returns, so a page counts as missing also if this
//! thread has read from a disk meanwhile (`ru_inblock` of getrusage(2)). Nothing is read ahead:
//! that would make the next pages look as if they had been there.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::path::Path;

use nix::sys::resource::{UsageWho, getrusage};
use profile::plan::{Group, LaunchPlan};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use units::PAGE_BYTES;

use crate::files;

/// Pages asked for: enough to tell 80 from 95 %, at about a microsecond each.
const SAMPLES: u64 = 32;

/// Cold pages after which the rest is not asked for if no more were warm: on a cold disk each
/// question costs a seek.
const COLD_ENOUGH: usize = 3;

/// What a sample of pages says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmth {
    /// Pages in memory.
    pub warm: usize,
    /// Pages that would be read from the disk.
    pub cold: usize,
}

impl Warmth {
    /// Whether there is so little to fetch that a prefetch would cost more than it saves: under one
    /// page in five is cold. Plans hold holes between touched pages, and these need not be in
    /// memory when the program runs warm.
    pub fn is_warm(&self) -> bool {
        self.cold * 5 < self.warm + self.cold || self.warm + self.cold == 0
    }
}

/// Samples pages of `group`, evenly over all that it has.
pub fn warmth(plan: &LaunchPlan, group: &Group) -> Warmth {
    let mut found = Warmth::default();
    let pages: u64 = group.extents.iter().map(|extent| u64::from(extent.pages)).sum();
    let step = pages.div_ceil(SAMPLES).max(1);
    // Pages until the next one to ask for.
    let mut until = 0;
    let mut open: Option<(u32, Option<File>)> = None;
    let mut unknown = false;
    for extent in &group.extents {
        if until >= u64::from(extent.pages) {
            until -= u64::from(extent.pages);
            continue;
        }
        if open.as_ref().is_none_or(|(file, _)| *file != extent.file) {
            let file = plan.files.get(extent.file as usize);
            open = Some((extent.file, file.and_then(|file| open_for_single_pages(&files::absolute(&file.path)).ok())));
        }
        while until < u64::from(extent.pages) {
            let page = u64::from(extent.page) + until;
            until += step;
            let Some((_, Some(file))) = &open else { continue };
            match is_in_memory(file, page * PAGE_BYTES as u64) {
                Ok(true) => found.warm += 1,
                Ok(false) => found.cold += 1,
                // A file system that cannot say (procfs, some in memory) is not asked again about
                // this file.
                Err(_) => {
                    unknown = true;
                    open = Some((extent.file, None));
                }
            }
            if found.cold >= COLD_ENOUGH && found.cold >= found.warm {
                return found;
            }
        }
        until -= u64::from(extent.pages);
    }
    // If that is unknown, a prefetch costs little and may save much.
    if unknown && found == Warmth::default() { Warmth { warm: 0, cold: COLD_ENOUGH } } else { found }
}

/// Opens a file of which the kernel reads nothing ahead.
fn open_for_single_pages(path: &Path) -> io::Result<File> {
    let file = files::open(path)?;
    // A file system that has no such advice reads as it likes.
    let _ = fadvise(&file, 0, None, Advice::Random);
    Ok(file)
}

fn is_in_memory(file: &File, offset: u64) -> io::Result<bool> {
    let mut byte = [0u8];
    let before = blocks_read()?;
    match preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT) {
        Ok(_) => Ok(blocks_read()? == before),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Blocks that this thread has had read from disks; always 0 where the kernel does not count them.
fn blocks_read() -> io::Result<libc::c_long> {
    Ok(getrusage(UsageWho::RUSAGE_THREAD)?.block_reads())
}
