//! Experiment `touch`: every page of a program in the order of its execution, each timed.
//!
//! The driver does what the program's page faults would do, without the program: it maps the files
//! and reads one byte of page after page. Opening and mapping come first and are counted
//! separately, so that the series shows pages alone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::kernel::{clock_seconds, traffic};
use super::pages::{self, MappedPages};
use super::start::{wait_quiet, with_counters};
use super::system::{APP, System};
use super::{Outcome, mount_cold};
use crate::lab::program::Program;

/// One run.
pub fn measure(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    let pages = pages::list_of(program)?;
    let mut outcome = mount_cold(system, program)?;
    let counters = system.counters()?;
    let bytes = traffic()?.rx_bytes;
    let opened = clock_seconds();
    let mut maps: HashMap<PathBuf, MappedPages> = HashMap::new();
    for path in pages::files_of(&pages) {
        let map = MappedPages::whole(&pages::below(Path::new(APP), &path))?;
        maps.insert(path, map);
    }
    let mapped: Vec<(&MappedPages, usize)> = pages
        .iter()
        .map(|page| maps.get(&page.path).map(|map| (map, page.index)).context("every file is mapped"))
        .collect::<anyhow::Result<_>>()?;
    let mut latency = Vec::with_capacity(pages.len());
    let start = clock_seconds();
    let mut before = start;
    for ((map, index), page) in mapped.iter().zip(&pages) {
        ensure!(map.touch(*index), "{} has no page {index}", page.path.display());
        let now = clock_seconds();
        latency.push(now - before);
        before = now;
    }
    outcome.set("open", start - opened);
    outcome.set("total", before - start);
    wait_quiet()?;
    outcome.set("rx_bytes", traffic()?.rx_bytes - bytes);
    with_counters(&mut outcome, &counters, &system.counters()?);
    outcome.set("mean", (before - start) / latency.len() as f64);
    let mut sorted = latency.clone();
    sorted.sort_by(f64::total_cmp);
    for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
        outcome.set(name, percentile(&sorted, share));
    }
    // Nanoseconds are what the clock can tell; more digits would only make the line longer.
    let rounded = latency.iter().map(|seconds| (seconds * 1e9).round() / 1e9).collect();
    outcome.series.insert("latency".to_string(), rounded);
    Ok(outcome)
}

/// The smallest value that `share` of all values do not exceed. The values are sorted and not
/// empty.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        let found = [0.0, 0.5, 0.95, 0.99, 1.0].map(|share| percentile(&sorted, share));
        assert_eq!(found, [1.0, 50.0, 95.0, 99.0, 100.0]);
        assert_eq!(percentile(&[7.0], 0.5), 7.0);
    }
}
