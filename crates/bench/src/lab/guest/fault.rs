//! Experiment `page`: where the time of one cold page goes (Table I of the SYSFLOW paper).
//!
//! Pages of one large file are read by page faults, one at a time and far apart, with readahead
//! off: `total`. The same faults once more, with the pages in memory but not mapped: `map`. What
//! the medium alone takes for a page is `io`; the rest, `middle`, is software: page cache, file
//! system, network, server. All four are medians.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::kernel::clock_seconds;
use super::pages::{self, MappedPages, PAGE_BYTES};
use super::start::wait_quiet;
use super::system::{APP, System};
use super::touch::percentile;
use super::{Outcome, mount_cold, net};
use crate::lab::program::Program;

/// Pages read, as far as the file has them so far apart.
const SAMPLES_MAX: usize = 128;

/// Pages from one to the next: more than a demand brings of its neighbours on any system.
const DISTANCE_MIN: usize = 32;

/// Fewest pages of which a median is taken.
const SAMPLES_MIN: usize = 16;

/// One run.
pub fn measure(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    let path = largest_file(program)?;
    let mut outcome = mount_cold(system, program)?;
    let file = File::open(pages::below(Path::new(APP), &path))
        .with_context(|| format!("cannot open {} in the mounted tree", path.display()))?;
    let count = file.metadata().context("cannot tell the size of a file")?.len() as usize / PAGE_BYTES;
    let order = scattered(count);
    ensure!(order.len() >= SAMPLES_MIN, "{} has only {count} pages", path.display());
    let total = faults(&file, &order)?;
    // What is still on its way would be in the times of what comes next.
    wait_quiet()?;
    let map = faults(&file, &order)?;
    drop(file);
    let medium = match system.device() {
        _ if system.is_remote() => net::echo_seconds(SAMPLES_MAX)?,
        Some(device) => direct_reads(&device)?,
        None => vec![0.0],
    };
    let [total_median, map_median, io_median] = [&total, &map, &medium].map(|seconds| {
        let mut sorted = seconds.clone();
        sorted.sort_by(f64::total_cmp);
        percentile(&sorted, 0.5)
    });
    outcome.set("total", total_median);
    outcome.set("map", map_median);
    outcome.set("io", io_median);
    outcome.set("middle", total_median - map_median - io_median);
    outcome.series.insert("total".to_string(), total);
    Ok(outcome)
}

/// The largest file of the program's page list, or of its command where there is no list.
fn largest_file(program: &Program) -> anyhow::Result<PathBuf> {
    let tree = super::disk::tree_folder(program.tree);
    let files = pages::files_of(&pages::list_of(program)?);
    let bytes = |path: &PathBuf| fs::metadata(pages::below(&tree, path)).map_or(0, |data| data.len());
    files.into_iter().max_by_key(bytes).context("the program has no file")
}

/// Some of `count` pages, evenly spread, in an order that looks like no sequence.
fn scattered(count: usize) -> Vec<usize> {
    // Odd, so that multiples of it go through all of the samples, whose number is a power of two.
    const STEP: usize = 53;
    let samples = (count / DISTANCE_MIN).clamp(1, SAMPLES_MAX);
    let samples = 1 << samples.ilog2();
    (0..samples).map(|sample| (sample * STEP % samples) * count / samples).collect()
}

/// Seconds of the fault of each page, each through a map of its own.
fn faults(file: &File, order: &[usize]) -> anyhow::Result<Vec<f64>> {
    let fault = |index: &usize| {
        let page = MappedPages::single(file, *index)?;
        let start = clock_seconds();
        page.touch(0);
        Ok(clock_seconds() - start)
    };
    order.iter().map(fault).collect()
}

/// Seconds of reads of single pages that go around the file system.
fn direct_reads(device: &Path) -> anyhow::Result<Vec<f64>> {
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let context = || format!("cannot read {} directly", device.display());
    let file = File::options().read(true).custom_flags(flags).open(device).with_context(context)?;
    let pages = super::kernel::disk_bytes(device)? as usize / PAGE_BYTES;
    // The kernel wants memory on a page boundary.
    let mut memory = vec![0u8; 2 * PAGE_BYTES];
    let offset = memory.as_ptr().align_offset(PAGE_BYTES);
    let page = &mut memory[offset..offset + PAGE_BYTES];
    let mut read = |index: &usize| {
        let start = clock_seconds();
        file.read_exact_at(page, (index * PAGE_BYTES) as u64).with_context(context)?;
        Ok(clock_seconds() - start)
    };
    scattered(pages).iter().map(&mut read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_all_different_and_far_apart() {
        for (pages, samples) in [(1_000_000, SAMPLES_MAX), (930, 16), (31, 1), (0, 1)] {
            let order = scattered(pages);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted.len(), samples);
            assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= DISTANCE_MIN));
            assert!(samples < SAMPLES_MIN || order.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > DISTANCE_MIN));
        }
    }
}
