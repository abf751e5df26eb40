//! Cuts a plan into slices, each for one guest, by an estimate of what a row costs the host.
//!
//! Slices are taken by whoever is free, so the estimate need not be good; a slice costs a boot, so
//! it must not be short.

use super::data;
use super::plan::{Entry, Row};
use super::program::LEARNED_FROM;

/// Seconds of a core of the host for a cold and a warm start over a network, roughly: measured on a
/// 2.5 GHz server core.
const PROGRAM_SECONDS: [(&str, f64); 14] = [
    ("jvm", 8.0),
    ("python", 3.0),
    ("python-imports", 4.0),
    ("python-200", 6.0),
    ("perl", 2.0),
    ("openssl", 2.0),
    ("gcc", 7.0),
    ("node", 8.0),
    ("busybox", 1.0),
    ("sqlite", 2.0),
    ("git", 2.0),
    ("python-nine", 6.0),
    ("python-decimal", 3.0),
    ("python-phases", 4.0),
];

/// Seconds for a program that is not in the table.
const OTHER_SECONDS: f64 = 5.0;

/// Seconds of a row besides its runs: starting and stopping servers.
const ROW_SECONDS: f64 = 2.0;

/// Runs that the first start of a row counts as: it has no warm one.
const FIRST_RUNS: f64 = 0.7;

/// A slice is not cut shorter than this, in seconds: a boot takes about five.
const SLICE_SECONDS_MIN: f64 = 30.0;

/// Slices for each guest at once: enough that all end at about the same time.
const SLICES_PER_GUEST: f64 = 6.0;

/// Estimated seconds of the host for `entry`.
pub fn cost(entry: &Entry) -> f64 {
    let Row { experiment, system, program, mode, .. } = &entry.row;
    if experiment == data::EXPERIMENT {
        return ROW_SECONDS + data_seconds(system, program) * (f64::from(entry.runs) + data_learning_runs(system));
    }
    let known = PROGRAM_SECONDS.iter().find(|(name, _)| name == program);
    let program = known.map_or(OTHER_SECONDS, |(_, seconds)| *seconds);
    let factor = match (system.as_str(), mode.as_str()) {
        ("local" | "sd", _) => 0.5,
        ("nfs", _) => 1.0,
        ("runnel", "none" | "once" | "learned" | "signed" | "updated" | "cache-bundle" | "disk-bundle") => 1.2,
        ("runnel", mode) if mode.starts_with(LEARNED_FROM) => 1.2,
        // A round trip for every page.
        ("runnel", _) => 3.0,
        ("rclone", _) => 6.0,
        _ => 2.0,
    };
    // Starts are made to learn from, and compressed.
    let learning = match mode.as_str() {
        "once" | "updated" => 8.0 * program,
        mode if mode.starts_with(LEARNED_FROM) => 12.0 * OTHER_SECONDS,
        _ => 0.0,
    };
    let runs = f64::from(entry.runs) + if entry.first().is_some() { FIRST_RUNS } else { 0.0 };
    ROW_SECONDS + learning + runs * program * factor
}

/// Seconds of a core of the host for a run of a case on data files: sending a megabyte packet by
/// packet, and computing.
fn data_seconds(system: &str, case: &str) -> f64 {
    let computing = case.strip_prefix("stat-").and_then(|utilisation| utilisation.parse::<f64>().ok());
    match (system, case) {
        ("rclone", "rand1k") => 20.0,
        ("sshfs", "files1000" | "files1000-text") => 45.0,
        (_, "files1000" | "files1000-text") => 12.0,
        (_, "bsearch") => 0.5,
        _ => 3.0 + 25.0 * computing.unwrap_or(0.0),
    }
}

/// Runs of a case from which a system learns.
fn data_learning_runs(system: &str) -> f64 {
    if system == "runnel" { 2.0 } else { 0.0 }
}

/// Cuts `entries` into slices of whole rows in the order of the plan, for `guests` at once.
pub fn slices(entries: &[Entry], guests: usize) -> Vec<Vec<Entry>> {
    let total: f64 = entries.iter().map(cost).sum();
    let least = (total / (guests.max(1) as f64 * SLICES_PER_GUEST)).max(SLICE_SECONDS_MIN);
    let mut slices: Vec<Vec<Entry>> = Vec::new();
    let mut full = true;
    let mut sum = 0.0;
    for (index, entry) in entries.iter().enumerate() {
        if full {
            slices.push(Vec::new());
            sum = 0.0;
        }
        sum += cost(entry);
        if let Some(slice) = slices.last_mut() {
            slice.push(entry.clone());
        }
        // A plan that is too short for many slices is still shared by all guests.
        let (left, idle) = (entries.len() - index - 1, guests.saturating_sub(slices.len()));
        full = sum >= least || left <= idle || (idle > 0 && sum >= total / guests as f64);
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::options::{Options, Size};
    use crate::lab::plan;

    #[test]
    fn slices_are_whole_and_in_order() -> anyhow::Result<()> {
        let entries = Options::default().entries()?;
        let slices = slices(&entries, 2);
        assert!(slices.len() >= 4, "{}", slices.len());
        assert_eq!(slices.concat(), entries);
        let costs: Vec<f64> = slices.iter().map(|slice| slice.iter().map(cost).sum()).collect();
        assert!(costs[..costs.len() - 1].iter().all(|cost| *cost >= SLICE_SECONDS_MIN), "{costs:?}");
        Ok(())
    }

    #[test]
    fn a_small_plan_still_keeps_every_guest_busy() -> anyhow::Result<()> {
        let entries = plan::parse("start - local perl 1\nstart - local gcc 1\n")?;
        assert_eq!(slices(&entries, 2).len(), 2);
        assert_eq!(slices(&entries, 1).len(), 1);
        assert!(slices(&[], 4).is_empty());
        Ok(())
    }

    #[test]
    fn the_plans_of_the_lab_fit_their_time_on_two_cores() -> anyhow::Result<()> {
        for (size, minutes) in [(Size::Smoke, 1.0), (Size::Quick, 8.0), (Size::Lan, 6.0), (Size::Full, 75.0)] {
            let entries = Options { size: Some(size), ..Options::default() }.entries()?;
            let estimate = entries.iter().map(cost).sum::<f64>() / 2.0 / 60.0;
            assert!(estimate < minutes, "{size:?}: {estimate:.1} minutes");
        }
        Ok(())
    }
}
