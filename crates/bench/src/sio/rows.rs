//! What `--json` prints and the history keeps: a line for each value of each case on each system.

use report::row::{Number, Row, rounded};
use report::statistic::Summary;
use serde::Serialize;

use super::limit::Limit;
use super::measured::{Measured, SYSTEMS};
use crate::lab::data::case::{Case, Work};

/// Bytes whose arrival is told for sequential reads, KiB.
pub const FIRST_KILOBYTES: [usize; 6] = [4, 16, 64, 128, 256, 512];

/// One line. Field order is part of the format.
#[derive(Clone, Debug, Serialize)]
pub struct Line<'a> {
    /// What all benches tell.
    #[serde(flatten)]
    pub row: Row<'a>,
    /// Bytes needed by bandwidth and one round trip, seconds (see [`super::limit`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Number>,
    /// The same with headers of packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_limit: Option<Number>,
    /// Time of the download divided by this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_download: Option<Number>,
    /// Time of NFS divided by this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_nfs: Option<Number>,
}

/// All lines of a run, as JSON.
pub fn lines(measured: Measured, commit: &str) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for case in measured.cases() {
        for (system, _) in SYSTEMS {
            let of_system = Lines { measured, case, system, commit };
            for line in of_system.all() {
                lines.push(serde_json::to_string(&line)?);
            }
        }
    }
    Ok(lines)
}

/// The lines of a case on a system.
struct Lines<'a> {
    measured: Measured<'a>,
    case: &'static Case,
    system: &'static str,
    commit: &'a str,
}

impl<'a> Lines<'a> {
    fn all(&self) -> Vec<Line<'a>> {
        let limit = self.measured.limit(self.case);
        let mut lines = Vec::from_iter(self.value("seconds", "seconds", "s", limit, true));
        if self.case.work == Work::Game {
            let whole = self.measured.link(self.case.name).map(|link| Limit::of_whole_game(&link));
            lines.extend(self.value("total", "total", "s", whole, true));
        }
        lines.extend(self.value("rx_bytes", "rx_bytes", "B", None, false));
        lines.extend(self.value("tx_bytes", "tx_bytes", "B", None, false));
        if self.case.work == Work::Sequential {
            lines.extend(FIRST_KILOBYTES.iter().filter_map(|kilobytes| self.first(*kilobytes)));
        }
        lines
    }

    fn value(
        &self,
        value: &str,
        metric: &'static str,
        unit: &'static str,
        limit: Option<Limit>,
        compared: bool,
    ) -> Option<Line<'a>> {
        let summary = self.measured.summary(self.case.name, self.system, value)?;
        let against = |system: &str| {
            let other = self.measured.median(self.case.name, system, value).filter(|_| compared)?;
            (summary.median > 0.0).then(|| rounded(other / summary.median))
        };
        Some(Line {
            limit: limit.map(|limit| rounded(limit.payload)),
            wire_limit: limit.map(|limit| rounded(limit.wire)),
            of_download: against("download"),
            of_nfs: against("nfs"),
            row: self.row(self.case.name, metric, unit, summary),
        })
    }

    /// Time until the first so many KiB were there.
    fn first(&self, kilobytes: usize) -> Option<Line<'a>> {
        let index = kilobytes * 1024 / crate::lab::data::case::SEQUENTIAL_BYTES - 1;
        let records = self.measured.records(self.case.name, self.system);
        let times: Vec<f64> = records.filter_map(|record| record.series.get("first")?.get(index).copied()).collect();
        let metric = match kilobytes {
            4 => "first_4k",
            16 => "first_16k",
            64 => "first_64k",
            128 => "first_128k",
            256 => "first_256k",
            _ => "first_512k",
        };
        let row = self.row("first", metric, "s", Summary::of(&times)?);
        // The curve of compressible data is not that of the case's name.
        let row = if self.case.name == "seq" { row } else { Row { case: "first-text", ..row } };
        Some(Line { row, limit: None, wire_limit: None, of_download: None, of_nfs: None })
    }

    fn row(&self, case: &'a str, metric: &'static str, unit: &'static str, summary: Summary) -> Row<'a> {
        let (peer, mode) = self.system.split_once(':').unwrap_or((self.system, ""));
        let mode = match (peer, mode) {
            ("runnel", "") if self.case.work == Work::Game => "run",
            ("runnel", "") => "library",
            (_, "") => "default",
            (_, mode) => mode,
        };
        let link = self.measured.records(self.case.name, self.system).next().map_or("", |record| &record.row.link);
        Row {
            bench: "sio",
            case,
            peer,
            mode,
            link,
            metric,
            unit,
            median: rounded(summary.median),
            min: rounded(summary.min),
            max: rounded(summary.max),
            n: summary.count,
            commit: self.commit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::canned;
    use super::*;

    #[test]
    fn lines_have_the_documented_form() -> anyhow::Result<()> {
        let records = canned();
        let lines = lines(Measured::new(&records), "abc")?;
        let expected = r#"{"bench":"sio","case":"seq","peer":"runnel","mode":"library","link":"thin","metric":"seconds","unit":"s","median":68.7,"min":68.6,"max":68.8,"n":3,"commit":"abc","limit":65.576,"wire_limit":68.563138,"of_download":1,"of_nfs":1.5}"#;
        assert_eq!(lines[0], expected);
        let has = |part: &str| lines.iter().any(|line| line.contains(part));
        assert!(has(r#""case":"first","peer":"runnel","mode":"library","link":"thin","metric":"first_64k""#));
        assert!(has(r#""case":"game","peer":"runnel","mode":"run","link":"thin","metric":"total""#));
        Ok(())
    }
}
