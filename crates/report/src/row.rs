//! Measured rows: what a bench prints with `--json`, one line each.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::statistic::Summary;

/// What is measured. The order is that of the columns and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// From starting the program to its end, seconds.
    Wall,
    /// Requests to the server during the start, as the system itself counts them.
    Requests,
    /// Bytes from the server during the start, counted on the link.
    Bytes,
    /// Pages that a program waited for because they had to be asked for.
    PagesDemanded,
    /// Pages that came unasked.
    PagesPushed,
    /// Pages that came unasked and were never used.
    PagesWasted,
    /// Time that reads of programs waited for the network, seconds, summed over all reads.
    Stall,
    /// From starting the client to a usable mount, seconds.
    Mount,
    /// Bytes from the server until the mount was usable.
    MountBytes,
    /// Resident memory of the client after the start, bytes, without the page cache.
    Resident,
}

impl Metric {
    /// Name and unit in rows.
    pub fn name_and_unit(self) -> (&'static str, &'static str) {
        match self {
            Metric::Wall => ("wall", "s"),
            Metric::Requests => ("requests", "count"),
            Metric::Bytes => ("bytes", "B"),
            Metric::PagesDemanded => ("pages_demanded", "count"),
            Metric::PagesPushed => ("pages_pushed", "count"),
            Metric::PagesWasted => ("pages_wasted", "count"),
            Metric::Stall => ("stall", "s"),
            Metric::Mount => ("mount", "s"),
            Metric::MountBytes => ("mount_bytes", "B"),
            Metric::Resident => ("resident", "B"),
        }
    }
}

/// What one run measured; what a system cannot tell is absent.
pub type Sample = BTreeMap<Metric, f64>;

/// The runs of one workload on one system in one mode over one link.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The workload, for example `python-200`.
    pub case: String,
    /// The system, for example `runnel` or `squashfs-nbd`.
    pub peer: String,
    /// How it was used, for example `push` or `warm`.
    pub mode: String,
    /// The link, or `local`.
    pub link: String,
    /// The runs.
    pub samples: Vec<Sample>,
}

impl Series {
    /// Median and spread of `metric` over the runs that have it.
    pub fn summary(&self, metric: Metric) -> Option<Summary> {
        let values: Vec<f64> = self.samples.iter().filter_map(|sample| sample.get(&metric).copied()).collect();
        Summary::of(&values)
    }

    /// One row for each metric that any run has.
    pub fn rows<'a>(&'a self, bench: &'a str, commit: &'a str) -> Vec<Row<'a>> {
        let metrics: BTreeSet<Metric> = self.samples.iter().flat_map(|sample| sample.keys().copied()).collect();
        let row = |metric: Metric| {
            let summary = self.summary(metric)?;
            let (name, unit) = metric.name_and_unit();
            Some(Row {
                bench,
                case: &self.case,
                peer: &self.peer,
                mode: &self.mode,
                link: &self.link,
                metric: name,
                unit,
                median: rounded(summary.median),
                min: rounded(summary.min),
                max: rounded(summary.max),
                n: summary.count,
                commit,
            })
        };
        metrics.into_iter().filter_map(row).collect()
    }
}

/// One line of machine-readable output. Field order is part of the format.
#[derive(Clone, Debug, Serialize)]
pub struct Row<'a> {
    /// Which bench: `stream` or `predict`.
    pub bench: &'a str,
    /// See [`Series::case`].
    pub case: &'a str,
    /// See [`Series::peer`].
    pub peer: &'a str,
    /// See [`Series::mode`].
    pub mode: &'a str,
    /// See [`Series::link`].
    pub link: &'a str,
    /// See [`Metric::name_and_unit`].
    pub metric: &'a str,
    /// See [`Metric::name_and_unit`].
    pub unit: &'a str,
    /// Median over the runs.
    pub median: Number,
    /// Smallest value.
    pub min: Number,
    /// Largest value.
    pub max: Number,
    /// How many runs.
    pub n: usize,
    /// Source revision that was measured, or `unknown`.
    pub commit: &'a str,
}

impl Row<'_> {
    /// The line, without its line end.
    ///
    /// # Errors
    /// JSON cannot say it.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// A number that prints without `.0` when it is whole, so that counts look like counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Number {
    /// A whole number.
    Whole(i64),
    /// Any other, to the microsecond of a second.
    Real(f64),
}

/// To the microsecond of a second.
pub fn rounded(value: f64) -> Number {
    let micro = (value * 1e6).round() / 1e6;
    if micro.fract() == 0.0 && micro.abs() < 1e15 { Number::Whole(micro as i64) } else { Number::Real(micro) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Series {
        let sample = |wall: f64, requests: f64| Sample::from([(Metric::Wall, wall), (Metric::Requests, requests)]);
        Series {
            case: "python-200".into(),
            peer: "runnel".into(),
            mode: "push".into(),
            link: "20ms-25mbit".into(),
            samples: vec![sample(1.3, 7.0), sample(1.1800001, 9.0), sample(1.21, 8.0), Sample::new()],
        }
    }

    #[test]
    fn rows_have_the_documented_form() -> serde_json::Result<()> {
        let series = series();
        let lines: serde_json::Result<Vec<String>> = series.rows("stream", "abc123").iter().map(Row::to_json).collect();
        let expected = [
            r#"{"bench":"stream","case":"python-200","peer":"runnel","mode":"push","link":"20ms-25mbit","metric":"wall","unit":"s","median":1.21,"min":1.18,"max":1.3,"n":3,"commit":"abc123"}"#,
            r#"{"bench":"stream","case":"python-200","peer":"runnel","mode":"push","link":"20ms-25mbit","metric":"requests","unit":"count","median":8,"min":7,"max":9,"n":3,"commit":"abc123"}"#,
        ];
        assert_eq!(lines?, expected);
        Ok(())
    }
}
