//! Rows of the history of the benches, found by key.
//!
//! A key is six words: `BENCH CASE PEER MODE LINK METRIC`, or `lab EXPERIMENT LINK SYSTEM PROGRAM
//! VALUE`. Any word may be a list with commas, and `*` in a list stands for the five programs of
//! the SYSFLOW paper. `METRIC@max` takes another field than the median, and `BENCH#COMMIT` another
//! line than the last. A row of the bench `hand` is a text that no bench wrote, with its own
//! commit.

use anyhow::{Context, ensure};
use serde_json::Value;

/// What `*` stands for.
const PROGRAMS: [&str; 5] = ["jvm", "python", "perl", "openssl", "gcc"];

/// All rows, and the codec of each system.
pub struct History {
    rows: Vec<Value>,
    codecs: Vec<Value>,
}

/// A figure of one row.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The words of the key that came from lists.
    pub label: String,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// How many runs.
    pub runs: String,
    /// Source revision that was measured.
    pub commit: String,
    /// How the system stored or sent its bytes.
    pub codec: String,
}

/// A text of a person, with its source.
pub struct ByHand {
    /// The figures, in words.
    pub text: String,
    /// How many runs, or `?`.
    pub runs: String,
    /// The commit that wrote the text into SPEC.md.
    pub commit: String,
    /// Codecs of both sides.
    pub codec: String,
}

impl History {
    /// Reads the lines of both files.
    ///
    /// # Errors
    /// A line is not JSON.
    pub fn parse(history: &str, codecs: &str) -> anyhow::Result<History> {
        let lines = |text: &str| text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
        Ok(History { rows: lines(history)?, codecs: lines(codecs)? })
    }

    /// The row of a person's text.
    ///
    /// # Errors
    /// There is none, or it lacks its commit or codec.
    pub fn by_hand(&self, case: &str) -> anyhow::Result<ByHand> {
        let row = self.rows.iter().rev().find(|row| row["bench"] == "hand" && row["case"] == case);
        let row = row.context("no such row by hand")?;
        ensure!(row["by_hand"] == true, "the row does not say by_hand");
        let text = |name: &str| Ok::<_, anyhow::Error>(row[name].as_str().context(name.to_owned())?.to_owned());
        Ok(ByHand {
            text: text("text")?,
            runs: runs(&row["n"]),
            commit: short(&text("commit")?),
            codec: text("codec")?,
        })
    }

    /// The figures of a key, in the order of its lists.
    ///
    /// # Errors
    /// The key is malformed, or a row or a codec of it is missing.
    pub fn figures(&self, key: &str) -> anyhow::Result<Vec<Figure>> {
        let mut found = Vec::new();
        for (words, label) in expanded(key)? {
            let figure = self.figure(&words, label).with_context(|| format!("no row {}", words.join(" ")))?;
            found.push(figure);
        }
        Ok(found)
    }

    fn figure(&self, words: &[String], label: String) -> anyhow::Result<Figure> {
        let [bench, case, second, third, fourth, metric] = words else { anyhow::bail!("a key has six words") };
        let (bench, wanted) = bench.split_once('#').unwrap_or((bench, ""));
        let (metric, field) = metric.split_once('@').unwrap_or((metric, "median"));
        let of_bench = |row: &&Value| {
            row["bench"] == bench && row["commit"].as_str().is_some_and(|commit| commit.starts_with(wanted))
        };
        let rows = self.rows.iter().rev().filter(of_bench);
        let mut row = match bench {
            "lab" => {
                let name = format!("{case} {second} {third} {fourth}");
                let line = rows.into_iter().find(|line| line["rows"][&name][metric].is_number());
                let line = line.context("no line of the lab has it")?;
                ensure!(field == "median", "a line of the lab has medians only");
                let value = line["rows"][&name][metric].as_f64().context("no number")?;
                figure(value, lab_unit(metric), &line["runs"][&name], line)?
            }
            _ => {
                let named = [("case", case), ("peer", second), ("mode", third), ("link", fourth)];
                let same = |row: &&Value| named.iter().all(|(name, word)| row[name] == word.as_str());
                let row = rows.into_iter().find(|row| same(row) && row["metric"] == metric);
                let row = row.context("the history does not have it")?;
                let value = row[field].as_f64().with_context(|| format!("no field {field}"))?;
                figure(value, row["unit"].as_str().unwrap_or_default(), &row["n"], row)?
            }
        };
        let peer = if bench == "lab" { third.split(':').next().unwrap_or_default() } else { second };
        row.codec = self.codec(bench, peer, third)?;
        row.label = label;
        Ok(row)
    }

    /// A line with the mode of the row goes before one without.
    fn codec(&self, bench: &str, peer: &str, mode: &str) -> anyhow::Result<String> {
        let matches = |line: &&Value| line["bench"] == bench && line["peer"] == peer;
        let exact = self.codecs.iter().filter(matches).find(|line| line["mode"] == mode);
        let line = exact.or_else(|| self.codecs.iter().filter(matches).find(|line| line["mode"].is_null()));
        let codec = line.and_then(|line| line["codec"].as_str());
        Ok(codec.with_context(|| format!("bench/codecs.jsonl has no codec of {peer} in {bench}"))?.to_owned())
    }
}

fn figure(value: f64, unit: &str, n: &Value, row: &Value) -> anyhow::Result<Figure> {
    ensure!(n.is_number(), "the row has no number of runs");
    let commit = short(row["commit"].as_str().context("the row has no commit")?);
    let [label, codec] = [String::new(), String::new()];
    Ok(Figure { label, value, unit: unit.to_owned(), runs: runs(n), commit, codec })
}

fn runs(n: &Value) -> String {
    match n {
        Value::Null => "?".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A commit as people write it; a `+` at its end stays, since it tells of changes that were not
/// committed.
fn short(commit: &str) -> String {
    let changed = if commit.ends_with('+') { "+" } else { "" };
    commit.trim_end_matches('+').chars().take(7).collect::<String>() + changed
}

fn lab_unit(value: &str) -> &'static str {
    match value {
        "rx_bytes" | "mount_rx_bytes" => "B",
        "requests" | "wakeups" | "cuts" => "count",
        other if other.starts_with("pages_") => "count",
        _ => "s",
    }
}

/// All keys of a key with lists, each with the words that came from lists.
fn expanded(key: &str) -> anyhow::Result<Vec<(Vec<String>, String)>> {
    let mut keys = vec![(Vec::new(), String::new())];
    let words: Vec<&str> = key.split_whitespace().collect();
    ensure!(words.len() == 6, "'{key}' has {} words, not six", words.len());
    for word in words {
        let options: Vec<&str> = word.split(',').flat_map(|option| programs(option)).collect();
        let is_list = options.len() > 1;
        let one = |(done, label): &(Vec<String>, String), option: &str| {
            let words = done.iter().cloned().chain([option.to_owned()]).collect();
            let label = if is_list { format!("{label} {option}").trim().to_owned() } else { label.clone() };
            (words, label)
        };
        keys = keys.iter().flat_map(|key| options.iter().map(|option| one(key, option)).collect::<Vec<_>>()).collect();
    }
    Ok(keys)
}

fn programs(option: &str) -> Vec<&str> {
    if option == "*" { PROGRAMS.to_vec() } else { vec![option] }
}
