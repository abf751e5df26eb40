//! History lines: one JSON line per lab run, small enough to keep in the repository for ever.
//!
//! ```text
//! {"bench":"lab","machine":"...","commit":"...","date":"...","kernel":"...",
//!  "rows":{"start wifi runnel:learned perl":{"cold":0.31}},
//!  "spread":{"start wifi runnel:learned perl":{"cold":0.004}},
//!  "runs":{"start wifi runnel:learned perl":3}}
//! ```
//!
//! `rows` holds medians, `spread` the distance of the largest from the smallest run of a time,
//! where there were several runs. Other benches write another shape into the same file, one line
//! per row ([`report::row::Row`]); [`super::compare`] reads both. Times are seconds, sizes bytes.

use std::collections::BTreeMap;

use report::statistic::Summary;
use serde::{Deserialize, Serialize};

use super::record::{Record, measurement};
use super::report::About;

/// Values kept of a row. The rest can be had from the results of the run; these tell whether
/// something got worse.
const KEPT: [&str; 24] = [
    "mount",
    "mount_rx_bytes",
    "first_read",
    "first_read_rx_bytes",
    "together",
    "cold",
    "cold_apart",
    "warm",
    "stall",
    "mean",
    "p95",
    "total",
    "io",
    "middle",
    "device_busy",
    "radio_on_200ms",
    "wakeups",
    "cuts",
    "rx_bytes",
    "requests",
    "pages_needed",
    "pages_read",
    "pages_pushed",
    "pages_wasted",
];

/// Values of a row by name.
pub type Values = BTreeMap<String, f64>;

/// A history line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Always `lab`; tells the shape from that of other benches.
    pub bench: String,
    /// CPU, cores and memory.
    pub machine: String,
    /// Source revision.
    pub commit: String,
    /// When.
    pub date: String,
    /// Release of the guest's kernel.
    #[serde(default)]
    pub kernel: String,
    /// Names and versions of the other systems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rivals: Vec<String>,
    /// Medians by row and name.
    pub rows: BTreeMap<String, Values>,
    /// Largest less smallest, by row and name, as far as there were several runs.
    #[serde(default)]
    pub spread: BTreeMap<String, Values>,
    /// How many runs each row had.
    #[serde(default)]
    pub runs: BTreeMap<String, usize>,
}

/// The history line of a run, without its line end.
pub fn line(records: &[Record], about: &About) -> String {
    let mut line = Line {
        bench: "lab".to_string(),
        machine: about.machine(),
        commit: about.commit.clone(),
        date: about.date.clone(),
        kernel: about.kernel.clone(),
        rivals: about.rivals.clone(),
        rows: BTreeMap::new(),
        spread: BTreeMap::new(),
        runs: BTreeMap::new(),
    };
    for (row, values) in summaries(records) {
        line.runs.insert(row.clone(), values.values().map(|summary| summary.count).max().unwrap_or(0));
        for (name, summary) in values.iter().filter(|(name, _)| KEPT.contains(&name.as_str())) {
            line.rows.entry(row.clone()).or_default().insert(name.clone(), rounded(summary.median));
            if summary.count > 1 && is_time(name) {
                let spread = rounded(summary.max - summary.min);
                line.spread.entry(row.clone()).or_default().insert(name.clone(), spread);
            }
        }
    }
    serde_json::to_string(&line).expect("strings and finite numbers are always JSON")
}

/// Median and spread of every value of every row. Rows are named as plans name them.
pub fn summaries(records: &[Record]) -> BTreeMap<String, BTreeMap<String, Summary>> {
    let mut runs: BTreeMap<String, BTreeMap<u32, &Record>> = BTreeMap::new();
    for record in records {
        runs.entry(record.row.to_string()).or_default().insert(record.run, record);
    }
    let summary = |runs: BTreeMap<u32, &Record>| {
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (name, value) in runs.values().flat_map(|record| &record.values) {
            values.entry(name.clone()).or_default().extend(measurement(*value));
        }
        values.into_iter().filter_map(|(name, values)| Some((name, Summary::of(&values)?))).collect()
    };
    runs.into_iter().map(|(row, runs)| (row, summary(runs))).collect()
}

/// Whether a value is a time, which varies from run to run; counts and sizes hardly do.
fn is_time(name: &str) -> bool {
    !["wakeups", "requests"].contains(&name) && !name.ends_with("_bytes") && !name.starts_with("pages_")
}

/// To a nanosecond: the clock of the guest counts them, and latencies of pages are microseconds.
fn rounded(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan::Entry;

    #[test]
    fn a_line_is_read_back() -> anyhow::Result<()> {
        let entry: Entry = "start wifi runnel:learned perl 3".parse()?;
        let run = |run: u32, cold: f64| {
            let values = [("cold", cold), ("rx_bytes", 1000.0), ("faults", 7.0), ("warm", f64::NAN), ("stall", 1e308)];
            let values = values.map(|(name, value)| (name.to_string(), value)).into();
            Record { row: entry.row.clone(), run, values, ..Record::default() }
        };
        let about = About { commit: "abc".into(), date: "2026-11-21".into(), cores: 2, ..About::default() };
        let text = line(&[run(1, 0.3), run(2, 0.31), run(3, 0.35)], &about);
        let line: Line = serde_json::from_str(&text)?;
        let key = "start wifi runnel:learned perl";
        assert_eq!(line.rows[key], Values::from([("cold".into(), 0.31), ("rx_bytes".into(), 1000.0)]));
        assert_eq!(line.runs[key], 3);
        assert_eq!(line.spread[key], Values::from([("cold".into(), 0.05)]));
        assert_eq!((line.commit.as_str(), text.contains('\n')), ("abc", false));
        assert_eq!(serde_json::to_string(&line)?, text);
        Ok(())
    }
}
