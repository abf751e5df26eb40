//! What a bench without a grid of links and workloads measured: series of values, as rows and as a
//! table.

use crate::row::{Row, rounded};
use crate::statistic::Summary;
use crate::table::aligned;

/// Values by series. One bench, one case, one link.
pub struct Results {
    bench: &'static str,
    case: &'static str,
    link: &'static str,
    series: Vec<Measured>,
}

/// One metric of one peer in one mode, over the runs.
struct Measured {
    peer: &'static str,
    mode: String,
    metric: &'static str,
    unit: &'static str,
    values: Vec<f64>,
}

impl Results {
    /// No values yet.
    pub fn new(bench: &'static str, case: &'static str, link: &'static str) -> Results {
        Results { bench, case, link, series: Vec::new() }
    }

    /// Adds the value of one run to its series. Seconds and bytes have the units `s` and `B`.
    pub fn add(&mut self, peer: &'static str, mode: &str, (metric, unit): (&'static str, &'static str), value: f64) {
        let same = |found: &&mut Measured| found.peer == peer && found.mode == mode && found.metric == metric;
        match self.series.iter_mut().find(same) {
            Some(found) => found.values.push(value),
            None => self.series.push(Measured { peer, mode: mode.to_string(), metric, unit, values: vec![value] }),
        }
    }

    /// The summary of a series; `None` if there is none.
    pub fn summary(&self, mode: &str, metric: &str) -> Option<Summary> {
        let found = self.series.iter().find(|found| found.mode == mode && found.metric == metric)?;
        Summary::of(&found.values)
    }

    /// A JSON line for each series.
    ///
    /// # Errors
    /// JSON cannot say it.
    pub fn rows(&self, commit: &str) -> serde_json::Result<Vec<String>> {
        let row = |found: &Measured| {
            let summary = Summary::of(&found.values)?;
            let row = Row {
                bench: self.bench,
                case: self.case,
                peer: found.peer,
                mode: &found.mode,
                link: self.link,
                metric: found.metric,
                unit: found.unit,
                median: rounded(summary.median),
                min: rounded(summary.min),
                max: rounded(summary.max),
                n: summary.count,
                commit,
            };
            Some(row.to_json())
        };
        self.series.iter().filter_map(row).collect()
    }

    /// A line for each series, in milliseconds and megabytes.
    pub fn table(&self) -> String {
        let mut lines = vec![["", "metric", "median", "min", "max", "unit"].map(str::to_string).to_vec()];
        for found in &self.series {
            let Some(summary) = Summary::of(&found.values) else { continue };
            let (scale, unit) = match found.unit {
                "s" => (1e3, "ms"),
                "B" => (1e-6, "MB"),
                other => (1.0, other),
            };
            let number = |value: f64| format!("{:.2}", value * scale);
            lines.push(vec![
                format!("{} {}", found.peer, found.mode),
                found.metric.to_string(),
                number(summary.median),
                number(summary.min),
                number(summary.max),
                unit.to_string(),
            ]);
        }
        aligned(&lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_series_and_the_rows_their_units() -> serde_json::Result<()> {
        let mut results = Results::new("processor", "python", "loopback");
        results.add("nginx", "one-file", ("processor", "s"), 0.001);
        results.add("nginx", "one-file", ("processor", "s"), 0.003);
        results.add("runnel", "start-5", ("bytes", "B"), 4e6);
        let rows = results.rows("abc")?;
        assert_eq!(rows.len(), 2);
        assert!(rows[0].contains(r#""metric":"processor","unit":"s","median":0.002,"min":0.001"#), "{}", rows[0]);
        let table = results.table();
        assert!(table.contains("2.00") && table.contains("4.00") && table.lines().count() == 3, "{table}");
        Ok(())
    }
}
