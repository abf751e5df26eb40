//! What the lab measures: a text of rows, one per line.
//!
//! ```text
//! # experiment  link  system[:mode]    program  runs
//! start         wifi  nfs              perl     3
//! start         wifi  runnel:learned   perl     3
//! ```
//!
//! Experiments: `start` (a cold and a warm start of a program), `first` (a cold start at a server
//! that was started just before; a row of `start` with more than one run brings one along), `mount`
//! (the first read of a new mount, and mount and start together), `touch` (every page of the
//! program in the order of its execution, each timed), `page` (where the time of one cold page
//! goes), `set` (what a start needs and what the kernel reads ahead), `cache` (a start whose server
//! has the image on a slow card), `energy` (a start with its packets captured), `profile` (a start
//! with the functions that it is in, for the log of the guest), `pin` (all of the program's image
//! is fetched), `cut` (the same over a link that is cut every ten seconds), `data` (work on data
//! files, [`super::data`]; a case takes the place of the program).

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// What is done: a cold and a warm start.
pub const START: &str = "start";

/// What is done: the first start after the server came up.
pub const FIRST: &str = "first";

/// What is done: a mount, and one with a start right after it.
pub const MOUNT: &str = "mount";

/// Most runs of a row: more would not end.
const RUNS_MAX: u32 = 100;

/// Most characters of a bad line that a message shows.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// One line of the plan. The run count is not part of a row's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Row {
    /// What is done.
    pub experiment: String,
    /// The link, by name; `-` where there is none.
    pub link: String,
    /// Who delivers the files.
    pub system: String,
    /// How it is used; empty where there is only one way.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// What is started.
    pub program: String,
}

impl Row {
    /// The row of the first start that a row of starts brings along; of others there is none.
    pub fn first(&self) -> Option<Row> {
        (self.experiment == START).then(|| Row { experiment: FIRST.to_string(), ..self.clone() })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { experiment, link, system, mode, program } = self;
        let colon = if mode.is_empty() { "" } else { ":" };
        write!(formatter, "{experiment} {link} {system}{colon}{mode} {program}")
    }
}

/// A row and how often it is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What.
    pub row: Row,
    /// How often.
    pub runs: u32,
}

impl Entry {
    /// The row of the first start at the new server, which is no run of this one. A row of a single
    /// run is that first start itself.
    pub fn first(&self) -> Option<Row> {
        self.row.first().filter(|_| self.runs > 1)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.row, self.runs)
    }
}

impl FromStr for Entry {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Entry> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [experiment, link, system, program, runs] = words[..] else {
            let count = words.len();
            anyhow::bail!("'{}' has {count} words, not EXPERIMENT LINK SYSTEM[:MODE] PROGRAM RUNS", shown(line));
        };
        let (system, mode) = system.split_once(':').unwrap_or((system, ""));
        let number = runs.parse();
        let runs = number.with_context(|| format!("'{}' in '{}' is no number of runs", shown(runs), shown(line)))?;
        ensure!((1..=RUNS_MAX).contains(&runs), "'{}': from 1 to {RUNS_MAX} runs", shown(line));
        let plain = words.iter().all(|word| !word.contains(char::is_control));
        ensure!(plain, "'{}' has control characters", shown(line));
        let [experiment, link, system, mode, program] = [experiment, link, system, mode, program].map(str::to_string);
        Ok(Entry { row: Row { experiment, link, system, mode, program }, runs })
    }
}

/// A text as it is put into a message: its beginning, without control characters.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN_CHARACTERS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARACTERS_MAX).is_some() { start + "..." } else { start }
}

/// Reads a plan; empty lines and lines that start with `#` are skipped.
pub fn parse(text: &str) -> anyhow::Result<Vec<Entry>> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let rows = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    rows.map(|(number, line)| line.parse().with_context(|| format!("line {number} of the plan"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_and_written_alike() -> anyhow::Result<()> {
        let text = "# comment\n\nstart wifi nfs perl 3\n  start wifi runnel:learned perl 5 \n";
        let plan = parse(text)?;
        let lines: Vec<String> = plan.iter().map(Entry::to_string).collect();
        assert_eq!(lines, ["start wifi nfs perl 3", "start wifi runnel:learned perl 5"]);
        assert_eq!((plan[1].row.system.as_str(), plan[1].row.mode.as_str(), plan[1].runs), ("runnel", "learned", 5));
        Ok(())
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, expected) in [
            ("start wifi nfs perl", "4 words"),
            ("\nstart wifi nfs perl x", "line 2"),
            ("start wifi nfs perl 0", "from 1 to"),
            ("start wifi nfs \u{1b}[31m 1", "control characters"),
            (&"x\u{1b}".repeat(1000), "1 words"),
        ] {
            let error = format!("{:#}", parse(text).expect_err(expected));
            assert!(error.contains(expected) && !error.contains('\u{1b}') && error.len() < 1000, "{error}");
        }
    }
}
