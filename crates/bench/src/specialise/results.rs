//! What was measured: values by kernel, variant and metric; rows of them, tables, and the project's
//! bars.

use report::row::{Row, rounded};
use report::table::aligned;

use crate::pack::bar::{Bar, Form};

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Configuration of the kernel, or the program.
    pub case: String,
    /// `stock`, `gc-sections` and `thinlto` (the kernel's own means), or `runnel`.
    pub peer: &'static str,
    /// Passes, or what else was done.
    pub mode: String,
    /// What it counts.
    pub metric: String,
    /// Its unit.
    pub unit: &'static str,
    /// The value.
    pub value: f64,
}

/// All values, in the order in which they were measured.
#[derive(Clone, Debug, Default)]
pub struct Results {
    values: Vec<Value>,
    /// What was not measured, and why.
    pub notes: Vec<String>,
}

/// Name of the small configuration.
pub const SMALL: &str = "tiny-web";
/// Name of the mainstream one.
pub const MAINSTREAM: &str = "mainstream";
/// Name of the variant with all passes.
pub const ALL: &str = "all";
/// Name of the variant with all passes and the compact layout.
pub const COMPACT: &str = "compact";
/// Names of the variants with frozen code, by how it is compressed.
pub const FROZEN_LZ4: &str = "frozen-lz4";
/// The same with Zstandard.
pub const FROZEN_ZSTD: &str = "frozen-zstd";

const GIB: f64 = (1u64 << 30) as f64;

impl Results {
    /// Adds a value.
    pub fn add(&mut self, case: &str, peer: &'static str, mode: &str, metric: &str, unit: &'static str, value: f64) {
        let (case, mode, metric) = (case.to_string(), mode.to_string(), metric.to_string());
        self.values.push(Value { case, peer, mode, metric, unit, value });
    }

    /// A value that was measured.
    pub fn value(&self, case: &str, peer: &str, mode: &str, metric: &str) -> Option<f64> {
        let mut found = self.values.iter();
        let is_it =
            |value: &&Value| value.case == case && value.peer == peer && value.mode == mode && value.metric == metric;
        found.find(is_it).map(|value| value.value)
    }

    /// A row for each value.
    pub fn lines(&self, commit: &str) -> serde_json::Result<Vec<String>> {
        let line = |value: &Value| {
            let number = rounded(value.value);
            Row {
                bench: "specialise",
                case: &value.case,
                peer: value.peer,
                mode: &value.mode,
                link: "local",
                metric: &value.metric,
                unit: value.unit,
                median: number,
                min: number,
                max: number,
                n: 1,
                commit,
            }
            .to_json()
        };
        self.values.iter().map(line).collect()
    }

    /// The bars of the project.
    pub fn bars(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        let mut bar = |name: &str, form: Form, at_most: bool, demand: f64, cases: Vec<(String, Option<f64>)>| {
            bars.push(Bar { name: name.to_string(), demand, at_most, form, any: false, cases });
        };
        let ours = |case: &str, metric: &str| vec![(case.to_string(), self.value(case, "runnel", ALL, metric))];
        bar("small, resident", Form::Percent, false, 0.16, ours(SMALL, "resident_reduction"));
        bar("small, boot image", Form::Percent, false, 0.14, ours(SMALL, "bzimage_reduction"));
        bar("mainstream, text+rodata+data+unwinder", Form::Percent, false, 0.20, ours(MAINSTREAM, "loaded_reduction"));
        bar("mainstream, boot image", Form::Percent, false, 0.18, ours(MAINSTREAM, "bzimage_reduction"));
        let compact = self.value(SMALL, "runnel", COMPACT, "padded_reduction");
        bar("small, with padding, compact layout", Form::Percent, false, 0.5, vec![(SMALL.to_string(), compact)]);
        let points = |case: &str| {
            let own = self.value(case, "gc-sections", "default", "resident_reduction")?;
            Some(self.value(case, "runnel", ALL, "resident_reduction")? - own)
        };
        let better = [SMALL, MAINSTREAM].map(|case| (case.to_string(), points(case)));
        bar("points better than gc-sections", Form::Percent, false, 0.08, better.to_vec());
        bar("instructions of microbenchmarks", Form::Percent, true, 0.01, ours(SMALL, "instructions_change"));
        bar("mainstream, analysis and rewriting, s", Form::Number, true, 5.0, ours(MAINSTREAM, "analysis_seconds"));
        let memory = self.value(MAINSTREAM, "runnel", ALL, "analysis_peak_bytes").map(|bytes| bytes / GIB);
        bar("mainstream, peak memory, GiB", Form::Number, true, 1.0, vec![(MAINSTREAM.to_string(), memory)]);
        let frozen = [(SMALL, FROZEN_LZ4), (SMALL, FROZEN_ZSTD), (MAINSTREAM, FROZEN_ZSTD)];
        let of_frozen = |metric: &str| {
            let value = |(case, mode): &(&str, &str)| self.value(case, "runnel", mode, metric);
            frozen.iter().map(|kernel| (format!("{} {}", kernel.0, kernel.1), value(kernel))).collect::<Vec<_>>()
        };
        let net = |index: usize, metric: &str| vec![of_frozen(metric).swap_remove(index)];
        bar("small, net resident, LZ4", Form::Percent, false, 0.27, net(0, "net_reduction"));
        bar("small, net resident, Zstandard", Form::Percent, false, 0.32, net(1, "net_reduction"));
        bar("mainstream, net text+rodata+data+unwinder", Form::Percent, false, 0.30, net(2, "net_loaded_reduction"));
        bar("code that never ran is frozen", Form::Percent, false, 0.95, of_frozen("never_ran_frozen"));
        bar("longest thaw at 1 GIPS, us", Form::Number, true, 50.0, of_frozen("thaw_most_us"));
        bar("instructions with frozen code", Form::Percent, true, 0.01, of_frozen("instructions_change"));
        bar("memory after five days", Form::Percent, true, 0.02, of_frozen("days_memory_change"));
        let programs = super::sites::PROGRAMS.iter();
        let resolved =
            programs.map(|program| (program.to_string(), self.value(program, "runnel", "syscalls", "resolved")));
        bar("system-call sites resolved", Form::Percent, false, 0.99, resolved.collect());
        bars
    }

    /// Everything for people.
    pub fn text(&self) -> String {
        let mut lines = vec![["case", "peer", "mode", "metric", "value", "unit"].map(str::to_string).to_vec()];
        for value in &self.values {
            let number = report::text::plain(value.value);
            let (peer, unit) = (value.peer.to_string(), value.unit.to_string());
            lines.push(vec![value.case.clone(), peer, value.mode.clone(), value.metric.clone(), number, unit]);
        }
        let mut bars = vec![["bar", "demand", "decides", "value", ""].map(str::to_string).to_vec()];
        for bar in self.bars() {
            let (case, value) = bar
                .deciding()
                .map_or(("-".to_string(), "-".to_string()), |(case, value)| (case.to_string(), bar.form.show(value)));
            bars.push(vec![bar.name.clone(), bar.demanded(), case, value, bar.verdict().word().to_string()]);
        }
        let notes: String = self.notes.iter().map(|note| format!("note: {note}\n")).collect();
        format!("{}\n{}{notes}", aligned(&lines), aligned(&bars))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::bar::Verdict;

    fn results() -> Results {
        let mut results = Results::default();
        results.add(SMALL, "runnel", ALL, "resident_reduction", "share", 0.163);
        results.add(SMALL, "gc-sections", "default", "resident_reduction", "share", 0.09);
        results
    }

    #[test]
    fn rows_have_the_documented_form() {
        let expected = r#"{"bench":"specialise","case":"tiny-web","peer":"runnel","mode":"all","link":"local","metric":"resident_reduction","unit":"share","median":0.163,"min":0.163,"max":0.163,"n":1,"commit":"abc"}"#;
        assert_eq!(results().lines("abc").unwrap()[0], expected);
    }

    #[test]
    fn bars_are_judged_by_what_was_measured() {
        let bars = results().bars();
        let verdict = |name: &str| bars.iter().find(|bar| bar.name == name).expect(name).verdict();
        assert_eq!(verdict("small, resident"), Verdict::Met);
        assert_eq!(verdict("points better than gc-sections"), Verdict::Missed);
        assert_eq!(verdict("mainstream, boot image"), Verdict::NotMeasured);
        let text = results().text();
        assert!(text.contains("MISSED") && text.contains("16.3 %"), "{text}");
    }
}
