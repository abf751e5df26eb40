//! Ratios of what the good devices measured, as a table and as rows.

use report::results::Results;
use report::statistic::Summary;
use report::table::aligned;

use super::bad::Kind;
use super::good::OPERATIONS;
use super::scene::{Against, Part};
use crate::stream::say;

/// Name of this bench in rows.
const BENCH: &str = "hostile";

/// The system that is measured.
const PEER: &str = "runnel";

/// The bar: beside a bad peer over alone.
const RATIO_MAX: f64 = 1.5;

const BESIDE_TO_ALONE: (&str, &str) = ("beside-to-alone", "x");
const BESIDE_TO_ELSEWHERE: (&str, &str) = ("beside-to-elsewhere", "x");
const MEDIAN_TO_ALONE: (&str, &str) = ("median-beside-to-alone", "x");
const MEDIAN_TO_ELSEWHERE: (&str, &str) = ("median-beside-to-elsewhere", "x");

const HEADINGS: [&str; 11] = [
    "",
    "alone ms",
    "beside ms",
    "elsewhere ms",
    "beside/alone",
    "min-max",
    "beside/elsewhere",
    "median b/a",
    "median b/e",
    "failed",
    "bar",
];

/// Rows for each kind of bad peer.
#[derive(Default)]
pub(super) struct Report {
    kinds: Vec<(&'static str, Results)>,
    /// Memory of idle connections.
    idle: Option<Results>,
    /// Parts of runs that did not come to an end.
    failed: Vec<String>,
}

impl Report {
    /// Where memory of idle connections goes.
    pub fn idle(&mut self) -> &mut Results {
        self.idle.get_or_insert_with(|| Results::new(BENCH, "idle-connections", "loopback"))
    }

    /// A part of a run failed.
    pub fn failed(&mut self, text: String) {
        self.failed.push(text);
    }

    /// Adds the parts of one run.
    pub fn add(&mut self, kind: &'static Kind, parts: &[(Against, Part)]) {
        if self.kinds.last().is_none_or(|(name, _)| *name != kind.name) {
            self.kinds.push((kind.name, Results::new(BENCH, kind.name, "loopback")));
        }
        let Some((_, results)) = self.kinds.last_mut() else { return };
        for operation in OPERATIONS {
            let timing = |wanted: Against| {
                let part = parts.iter().find(|(against, _)| *against == wanted);
                part.and_then(|(_, part)| part.timings.get(operation.name))
            };
            for against in Against::ALL {
                let Some(timing) = timing(against) else { continue };
                let [slow, usual, failures] = against.metrics();
                for (metric, seconds) in [(slow, timing.slow()), (usual, timing.usual())] {
                    if let Some(seconds) = seconds {
                        results.add(PEER, operation.name, (metric, "s"), seconds);
                    }
                }
                results.add(PEER, operation.name, (failures, "count"), timing.failures as f64);
                for (reason, count) in &timing.reasons {
                    say(&format!("  {} {slow}: {count} failed: {reason}", operation.name));
                }
            }
            let ratios = [
                (BESIDE_TO_ALONE, MEDIAN_TO_ALONE, Against::Nobody),
                (BESIDE_TO_ELSEWHERE, MEDIAN_TO_ELSEWHERE, Against::Other),
            ];
            for (slow, usual, other) in ratios {
                let (Some(beside), Some(other)) = (timing(Against::Same), timing(other)) else { continue };
                if let (Some(beside), Some(other)) = (beside.slow(), other.slow()) {
                    results.add(PEER, operation.name, slow, beside / other);
                }
                if let (Some(beside), Some(other)) = (beside.usual(), other.usual()) {
                    results.add(PEER, operation.name, usual, beside / other);
                }
            }
        }
        let beside = parts.iter().find(|(against, _)| *against == Against::Same);
        if let Some(counts) = beside.and_then(|(_, part)| part.counts) {
            say(&format!("  {counts:?}"));
            let counted = [
                ("connected", counts.connected),
                ("not-connected", counts.not_connected),
                ("thrown-out", counts.thrown_out),
                ("acts", counts.acts),
                ("refused", counts.refused),
                ("silent", counts.silent),
            ];
            for (metric, count) in counted {
                results.add(PEER, "attack", (metric, "count"), count as f64);
            }
        }
    }

    /// A JSON line for each series.
    pub fn rows(&self, commit: &str) -> anyhow::Result<Vec<String>> {
        let all = self.idle.iter().chain(self.kinds.iter().map(|(_, results)| results));
        let rows: serde_json::Result<Vec<_>> = all.map(|results| results.rows(commit)).collect();
        Ok(rows?.into_iter().flatten().collect())
    }

    /// A line for each operation beside each kind.
    pub fn table(&self) -> String {
        let mut lines = vec![HEADINGS.map(str::to_string).to_vec()];
        for (kind, results) in &self.kinds {
            lines.extend(OPERATIONS.iter().map(|operation| line(kind, operation.name, results)));
        }
        let note = format!("what 99 of 100 operations keep to; bar: beside/alone at most {RATIO_MAX}");
        format!("{}  {note}\n", aligned(&lines))
    }

    /// An error if a part of a run failed.
    ///
    /// # Errors
    /// All that failed.
    pub fn outcome(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.failed.is_empty(), "parts of runs failed:\n{}", self.failed.join("\n"));
        Ok(())
    }
}

fn line(kind: &str, operation: &str, results: &Results) -> Vec<String> {
    let of = |metric: &str| results.summary(operation, metric);
    let show = |summary: Option<Summary>, scale: f64| {
        summary.map_or("-".to_string(), |summary| format!("{:.2}", summary.median * scale))
    };
    let ratio = of(BESIDE_TO_ALONE.0);
    let failures = Against::ALL.map(|against| against.metrics()[2]);
    let failures = failures.map(|metric| of(metric).map_or("-".to_string(), |summary| format!("{}", summary.max)));
    vec![
        format!("{kind} {operation}"),
        show(of("alone"), 1e3),
        show(of("beside"), 1e3),
        show(of("elsewhere"), 1e3),
        show(ratio, 1.0),
        ratio.map_or("-".to_string(), |ratio| format!("{:.2}-{:.2}", ratio.min, ratio.max)),
        show(of(BESIDE_TO_ELSEWHERE.0), 1.0),
        show(of(MEDIAN_TO_ALONE.0), 1.0),
        show(of(MEDIAN_TO_ELSEWHERE.0), 1.0),
        failures.join("/"),
        ratio.map_or("-", |ratio| if ratio.median <= RATIO_MAX { "held" } else { "missed" }).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::bad::KINDS;
    use crate::hostile::timings::{Timing, Timings};

    fn part(seconds: f64) -> Part {
        let timing = Timing { seconds: vec![seconds; 10], ..Timing::default() };
        let timings: Timings =
            OPERATIONS.iter().map(|operation| (operation.name.to_string(), timing.clone())).collect();
        Part { timings, counts: None }
    }

    #[test]
    fn ratios_of_a_run_say_whether_the_bar_is_held() -> anyhow::Result<()> {
        let mut report = Report::default();
        for slow in [0.004, 0.006, 0.008] {
            report.add(
                &KINDS[0],
                &[(Against::Nobody, part(0.002)), (Against::Same, part(slow)), (Against::Other, part(0.004))],
            );
        }
        // A run of which a part failed has no ratio.
        report.add(&KINDS[1], &[(Against::Same, part(0.002))]);
        let table = report.table();
        assert!(
            table.contains("never-reads read") && table.contains("2.00-4.00") && table.contains("missed"),
            "{table}"
        );
        let rows = report.rows("abc")?;
        let wanted = r#""mode":"read","link":"loopback","metric":"beside-to-elsewhere","unit":"x","median":1.5"#;
        assert!(rows.iter().any(|row| row.contains(wanted)), "{rows:#?}");
        assert!(report.outcome().is_ok());
        report.failed("never-reads beside: it hung".into());
        assert!(report.outcome().is_err());
        Ok(())
    }
}
