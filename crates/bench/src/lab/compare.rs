//! `runnel-bench compare A B`: rows that both sides have, with medians, ratio and a mark for real
//! changes.
//!
//! A side is a file, or `FILE@COMMIT`: the results of a lab run (one [`Record`] a line) or a
//! history file. A history file holds lines of lab runs ([`Line`]) and rows of other benches
//! ([`report::row::Row`]). Without a commit the newest lab line counts, in a file without one the
//! rows of its newest commit; with a commit, the newest lab line and the rows whose commit starts
//! so. A change is marked when it is larger than the spread of both sides.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use report::table::aligned;
use serde::{Deserialize, Serialize};

use super::history::{self, Line};
use super::record::Record;

/// Spread taken for a value that was measured once, or whose spread is not known, as a share of it:
/// repeats of the lab differ by up to this.
const SPREAD_UNKNOWN: f64 = 0.025;

/// Shortest start of a commit that names it.
const COMMIT_CHARACTERS_MIN: usize = 4;

/// What came of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Values that both sides have.
    pub common: usize,
    /// Values of which B is lower by more than the spread.
    pub lower: usize,
    /// Values of which B is higher by more than the spread.
    pub higher: usize,
    /// Values only A has.
    pub only_a: usize,
    /// Values only B has.
    pub only_b: usize,
}

/// A median and how far its runs lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Value {
    median: f64,
    spread: f64,
}

impl Value {
    fn new(median: f64, spread: Option<f64>) -> Value {
        // A file that was written by others may hold anything.
        Value { median, spread: spread.map_or(SPREAD_UNKNOWN * median.abs(), |spread| spread.max(0.0)) }
    }
}

/// Values by row and name.
type Side = BTreeMap<(String, String), Value>;

/// One line of `--json`.
#[derive(Serialize)]
struct Compared<'a> {
    row: &'a str,
    value: &'a str,
    a: f64,
    b: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    change: &'a str,
}

/// Compares `a` with `b` and writes a table, or with `json` a line per value, to `out`. An error if
/// there is nothing to compare.
pub fn run(a: &str, b: &str, json: bool, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let (left, right) = (load(a)?, load(b)?);
    let mut outcome = Outcome {
        only_a: left.keys().filter(|key| !right.contains_key(*key)).count(),
        only_b: right.keys().filter(|key| !left.contains_key(*key)).count(),
        ..Outcome::default()
    };
    ensure!(outcome.only_a < left.len(), "{a} and {b} have no value in common");
    let mut lines = vec![["row", "value", "A", "B", "B/A", ""].map(str::to_string).to_vec()];
    for ((row, value), a) in &left {
        let Some(b) = right.get(&(row.clone(), value.clone())) else { continue };
        let change = change(*a, *b);
        outcome.common += 1;
        outcome.lower += usize::from(change == "lower");
        outcome.higher += usize::from(change == "higher");
        let ratio = (a.median != 0.0).then(|| b.median / a.median).filter(|ratio| ratio.is_finite());
        if json {
            let line = Compared { row, value, a: a.median, b: b.median, ratio, change };
            writeln!(out, "{}", serde_json::to_string(&line).context("cannot write a compared value")?)?;
        } else {
            let ratio = ratio.map_or("-".to_string(), |ratio| format!("{ratio:.3}"));
            let mark = if change == "same" { "" } else { change };
            lines.push(vec![
                printable(row),
                printable(value),
                number(a.median),
                number(b.median),
                ratio,
                mark.to_string(),
            ]);
        }
    }
    if !json {
        write!(out, "{}", aligned(&lines))?;
        let Outcome { common, lower, higher, only_a, only_b } = outcome;
        writeln!(
            out,
            "\n{common} values in both: {lower} lower, {higher} higher; {only_a} only in A, {only_b} only in B"
        )?;
    }
    Ok(outcome)
}

/// Names the change from `a` to `b` if it is larger than both spreads.
fn change(a: Value, b: Value) -> &'static str {
    let step = b.median - a.median;
    if step.abs() <= a.spread.max(b.spread) {
        "same"
    } else if step < 0.0 {
        "lower"
    } else {
        "higher"
    }
}

/// A name without what would confuse a terminal.
fn printable(name: &str) -> String {
    name.replace(char::is_control, "\u{fffd}")
}

/// Six digits behind the point, so that counts stay whole and microseconds visible.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value:.0}") } else { format!("{value:.6}") }
}

/// Reads a side.
fn load(argument: &str) -> anyhow::Result<Side> {
    let (file, commit) = match argument.rsplit_once('@') {
        Some((file, commit)) if !Path::new(argument).exists() => (file, Some(commit)),
        _ => (argument, None),
    };
    if let Some(commit) = commit {
        ensure!(commit.len() >= COMMIT_CHARACTERS_MIN, "'{commit}' in '{argument}' is too short for a commit");
    }
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read {file}: name the results of a lab run or a history file"))?;
    let content = Content::parse(&text).with_context(|| format!("cannot read {file}"))?;
    let side = content.side(commit);
    let commits: BTreeSet<&str> = content.commits().collect();
    let known: Vec<&str> = commits.into_iter().collect();
    let of = commit.map(|commit| format!(" of commit {commit}")).unwrap_or_default();
    let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
    ensure!(!side.is_empty(), "no values{of} in {file}; commits there: {known}");
    Ok(side)
}

/// A row of another bench, as far as it is needed here.
#[derive(Deserialize)]
struct OtherRow {
    bench: String,
    case: String,
    peer: String,
    mode: String,
    link: String,
    metric: String,
    median: f64,
    min: f64,
    max: f64,
    n: usize,
    commit: String,
}

/// A file by the kind of its lines.
#[derive(Default)]
struct Content {
    records: Vec<Record>,
    runs: Vec<Line>,
    rows: Vec<OtherRow>,
}

impl Content {
    fn parse(text: &str) -> anyhow::Result<Content> {
        let mut content = Content::default();
        let lines: Vec<(usize, &str)> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
        let last = lines.last().map(|(index, _)| *index);
        for (index, line) in lines {
            match content.add(line) {
                // A lab that was stopped may have left half a line at the end.
                Err(_) if Some(index) == last && index > 0 && !text.ends_with('\n') => {}
                other => other.with_context(|| format!("line {}", index + 1))?,
            }
        }
        Ok(content)
    }

    fn add(&mut self, line: &str) -> anyhow::Result<()> {
        let json: serde_json::Value = serde_json::from_str(line).context("is no JSON")?;
        if json.get("experiment").is_some() {
            self.records.push(serde_json::from_value(json).context("is no record of a lab run")?);
        } else if json.get("rows").is_some() {
            self.runs.push(serde_json::from_value(json).context("is no history line of a lab run")?);
        } else if json.get("metric").is_some() {
            self.rows.push(serde_json::from_value(json).context("is no row of a bench")?);
        } else if json.get("by_hand").is_none() {
            bail!("is neither a record of a lab run nor a line of a history file");
        }
        Ok(())
    }

    fn commits(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().map(|run| run.commit.as_str()).chain(self.rows.iter().map(|row| row.commit.as_str()))
    }

    fn side(&self, commit: Option<&str>) -> Side {
        let mut side = Side::new();
        let Some(commit) = commit else {
            match self.runs.last() {
                Some(run) => add_run(&mut side, run),
                None => {
                    let newest = self.rows.last().map(|row| row.commit.clone()).unwrap_or_default();
                    add_rows(&mut side, self.rows.iter().filter(|row| row.commit == newest));
                }
            }
            add_records(&mut side, &self.records);
            return side;
        };
        add_rows(&mut side, self.rows.iter().filter(|row| row.commit.starts_with(commit)));
        if let Some(run) = self.runs.iter().rfind(|run| run.commit.starts_with(commit)) {
            add_run(&mut side, run);
        }
        side
    }
}

fn add_records(side: &mut Side, records: &[Record]) {
    for (row, values) in history::summaries(records) {
        for (name, summary) in values {
            let spread = (summary.count > 1).then_some(summary.max - summary.min);
            side.insert((row.clone(), name), Value::new(summary.median, spread));
        }
    }
}

fn add_run(side: &mut Side, run: &Line) {
    for (row, values) in &run.rows {
        for (name, median) in values {
            let spread = run.spread.get(row).and_then(|values| values.get(name)).copied();
            side.insert((row.clone(), name.clone()), Value::new(*median, spread));
        }
    }
}

/// Later rows replace earlier ones of the same name.
fn add_rows<'a>(side: &mut Side, rows: impl Iterator<Item = &'a OtherRow>) {
    for row in rows {
        let colon = if row.mode.is_empty() { "" } else { ":" };
        let name = format!("{} {} {}{colon}{} {}", row.bench, row.link, row.peer, row.mode, row.case);
        let spread = (row.n > 1).then_some(row.max - row.min);
        side.insert((name, row.metric.clone()), Value::new(row.median, spread));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::report::About;

    const OLD: &str = r#"{"bench":"stream","case":"python-200","peer":"runnel","mode":"push","link":"local","metric":"wall","unit":"s","median":0.5,"min":0.4,"max":0.8,"n":3,"commit":"aaaa1111"}
{"bench":"stream","case":"python-200","peer":"runnel","mode":"push","link":"local","metric":"wall","unit":"s","median":0.2,"min":0.19,"max":0.21,"n":3,"commit":"bbbb2222"}
"#;

    fn results(cold: [f64; 3]) -> Vec<Record> {
        let line = |(index, cold): (usize, f64)| {
            let text = format!(
                r#"{{"experiment":"start","link":"wifi","system":"nfs","program":"perl","run":{index},"values":{{"cold":{cold},"rx_bytes":9}}}}"#
            );
            serde_json::from_str(&text).expect("a record")
        };
        cold.into_iter().enumerate().map(line).collect()
    }

    fn compared(a: &str, b: &str, json: bool) -> anyhow::Result<(Outcome, String)> {
        let mut out = Vec::new();
        let outcome = run(a, b, json, &mut out)?;
        Ok((outcome, String::from_utf8(out)?))
    }

    #[test]
    fn changes_larger_than_both_spreads_are_marked() {
        let value = |median, spread| Value { median, spread };
        assert_eq!(change(value(1.0, 0.1), value(1.3, 0.2)), "higher");
        assert_eq!(change(value(1.0, 0.1), value(1.3, 0.4)), "same");
        assert_eq!(change(value(1.0, 0.4), value(0.7, 0.1)), "same");
        assert_eq!(change(value(1.0, 0.1), value(0.7, 0.1)), "lower");
        assert_eq!(change(Value::new(1.0, None), Value::new(1.02, None)), "same");
        assert_eq!(change(Value::new(1.0, None), Value::new(1.03, None)), "higher");
    }

    #[test]
    fn files_of_every_kind_are_compared() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let text = |cold| -> anyhow::Result<String> {
            let lines: Result<Vec<String>, _> = results(cold).iter().map(serde_json::to_string).collect();
            Ok(lines?.join("\n") + "\n")
        };
        fs::write(path("a.jsonl"), text([1.0, 1.01, 1.02])?)?;
        fs::write(path("b.jsonl"), text([0.5, 0.51, 0.52])? + "{\"experiment\":\"sta")?;
        let (outcome, table) = compared(&path("a.jsonl"), &path("b.jsonl"), false)?;
        assert_eq!(outcome, Outcome { common: 2, lower: 1, ..Outcome::default() });
        assert!(table.contains("start wifi nfs perl") && table.contains("0.505") && table.contains("lower"), "{table}");

        let about = About { commit: "cccc3333".into(), ..About::default() };
        let line = history::line(&results([0.5, 0.51, 0.52]), &about);
        fs::write(path("history.jsonl"), format!("{OLD}{line}\n"))?;
        let (outcome, lines) = compared(&path("a.jsonl"), &path("history.jsonl"), true)?;
        assert_eq!((outcome.common, outcome.lower), (2, 1));
        let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap_or(""))?;
        assert_eq!((&first["change"], &first["b"]), (&"lower".into(), &0.51.into()));

        let at = |commit: &str| format!("{}@{commit}", path("history.jsonl"));
        let (outcome, _) = compared(&at("aaaa"), &at("bbbb2222"), false)?;
        assert_eq!(outcome, Outcome { common: 1, ..Outcome::default() }, "a step of 0.3, a spread of 0.4");
        let error = compared(&at("dddd"), &at("aaaa"), false).expect_err("no such commit");
        assert!(format!("{error:#}").contains("bbbb2222"), "{error:#}");
        Ok(())
    }

    #[test]
    fn hostile_values_make_no_change() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("history").display().to_string();
        let rows = r#"{"x\u001b[31m":{"cold":1,"warm":1e-308},"y":{"cold":1.7e308}}"#;
        let spread = r#"{"x\u001b[31m":{"cold":-5},"y":{"cold":-1e308}}"#;
        let line = |rows: &str| {
            format!(r#"{{"bench":"lab","machine":"","commit":"abcd","date":"","rows":{rows},"spread":{spread}}}"#)
        };
        fs::write(&path, line(rows))?;
        let (outcome, table) = compared(&path, &path, false)?;
        assert_eq!(outcome, Outcome { common: 3, ..Outcome::default() });
        assert!(!table.contains('\u{1b}'), "{table}");
        let other = folder.path().join("other").display().to_string();
        fs::write(&other, line(&rows.replace("1e-308", "1e308")))?;
        let (outcome, table) = compared(&path, &other, false)?;
        assert!(outcome.higher == 1 && !table.contains("inf") && !table.contains("NaN"), "{table}");
        Ok(())
    }

    #[test]
    fn what_is_no_result_is_named() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("notes").display().to_string();
        fs::write(&path, "{\"a\":1}\n")?;
        let error = format!("{:#}", compared(&path, &path, false).expect_err("no results"));
        assert!(error.contains("notes") && error.contains("line 1"), "{error}");
        fs::write(&path, OLD)?;
        let other = folder.path().join("other").display().to_string();
        fs::write(&other, OLD.replace("wall", "stall"))?;
        let error = format!("{:#}", compared(&path, &other, true).expect_err("nothing in common"));
        assert!(error.contains("no value in common"), "{error}");
        let error = format!("{:#}", compared("/nowhere/at/all", &path, false).expect_err("no file"));
        assert!(error.contains("/nowhere/at/all"), "{error}");
        Ok(())
    }
}
