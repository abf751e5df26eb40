//! What `runnel` itself reaches, by the command lines a user would give: `record`, `plans learn`,
//! `launch`.
//!
//! They run in the root of the disk, with the binary bound into it. What is recorded and learned
//! lies in a folder of the machine that is seen there, as a disk of the device that is not
//! measured. A binary without these commands is said to have none, and its rows are left out.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use serde::Deserialize;

use super::place::{BINARY, Place, Run, STATE};
use super::program::Program;
use crate::stream::say;

/// Learning runs of each program: what only one of them touched is not prefetched.
pub const LEARNING_RUNS: usize = 2;

/// A binary that can launch programs.
#[derive(Clone, Copy, Debug)]
pub struct Product;

impl Product {
    /// The commands of `runnel`; nothing if it lacks one of them.
    pub fn find(runnel: &Path) -> Option<Product> {
        let has = |arguments: &[&str]| {
            let mut command = Command::new(runnel);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let all = [&["launch", "--help"][..], &["plans", "learn", "--help"], &["record", "--help"]];
        all.into_iter().all(has).then_some(Product)
    }

    /// Records `program` some times on a disk without delay and makes its plan. The runs, for what
    /// they cost: the first with nothing cached, the others warm.
    ///
    /// # Errors
    /// A command fails; the message holds what it said.
    pub fn learn(&self, place: &mut Place, program: &Program) -> anyhow::Result<Vec<Run>> {
        place.refresh(&disk::INSTANT, super::run::READ_AHEAD)?;
        let (mut runs, mut traces) = (Vec::new(), Vec::new());
        for index in 0..LEARNING_RUNS {
            let trace = format!("{STATE}/{}-{index}.trace", program.name);
            let words =
                [BINARY, "record", "--force", "-o", &trace, "--"].into_iter().chain(program.command.iter().copied());
            place.tidy()?;
            runs.push(start(place, words).context("runnel record")?);
            traces.push(trace);
        }
        let plans = plans(program);
        let mut words = vec![BINARY, "plans", "--plans", &plans, "learn"];
        // Its phases may lie closer together than the default threshold.
        words.extend(program.lead.map(|_| "--auto"));
        words.extend(traces.iter().map(String::as_str).chain(["--"]).chain(program.command.iter().copied()));
        let learned = start(place, words.into_iter()).context("runnel plans learn")?;
        say(&format!("launch: {} learned: {}", program.name, learned.said.lines().last().unwrap_or("")));
        Ok(runs)
    }

    /// The command that launches `program`; `always` also where its own measurements would compare
    /// or find memory full of it.
    pub fn launch(&self, program: &Program, always: bool) -> Vec<String> {
        let plans = plans(program);
        let mut words = vec![BINARY, "launch", "--plans", &plans, "--json"];
        words.extend(always.then_some("--always"));
        words.push("--");
        words.into_iter().chain(program.command.iter().copied()).map(str::to_string).collect()
    }
}

/// Programs that differ only in their arguments would share a plan.
fn plans(program: &Program) -> String {
    format!("{STATE}/plans-{}", program.name)
}

fn start<'a>(place: &Place, words: impl Iterator<Item = &'a str>) -> anyhow::Result<Run> {
    let command: Vec<String> = words.map(str::to_string).collect();
    place.run(&command, Instant::now(), &place.disk.counters(), &mut |_| {})
}

/// What a launcher tells about a start.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Told {
    /// What was asked for ahead.
    pub fetched: Fetched,
    /// What became of breakpoints; absent if there were none.
    pub traced: Option<Traced>,
    /// Whether it prefetched.
    #[serde(default)]
    pub mode: Option<String>,
    /// What it noted.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl fmt::Display for Told {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fetched { groups, bytes, opens, stale } = self.fetched;
        let mode = self.mode.as_deref().unwrap_or("no plan");
        write!(formatter, "{mode}: {groups} groups, {:.1} MB, {opens} opens, {stale} stale", bytes as f64 / 1e6)?;
        match &self.traced {
            Some(Traced { untraced: Some(why), .. }) => write!(formatter, ", no breakpoints: {why}")?,
            Some(Traced { hits: Some(hits), stops: Some(stops), .. }) => {
                write!(formatter, ", {hits} breakpoints hit, {stops} stops")?;
            }
            _ => {}
        }
        self.notes.iter().try_for_each(|note| write!(formatter, "; {note}"))
    }
}

/// What a launcher asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Fetched {
    /// Groups of the plan.
    pub groups: u64,
    /// Bytes.
    pub bytes: u64,
    /// Files, folders and missing paths looked at.
    #[serde(default)]
    pub opens: u64,
    /// Files that were not those that were learned.
    #[serde(default)]
    pub stale: u64,
}

/// How a launcher followed its program.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Traced {
    /// Breakpoints hit.
    pub hits: Option<u64>,
    /// Stops of the program.
    pub stops: Option<u64>,
    /// Why it was not followed.
    pub untraced: Option<String>,
}

/// What the launcher told in its line of JSON, if it did.
pub fn told(said: &str) -> Option<Told> {
    said.lines().rev().find_map(|line| serde_json::from_str(line.trim()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_launcher_is_found_among_what_the_program_said() {
        let said = "warning\n{\"code\":0,\"mode\":\"with\",\"launch_s\":1.5,\"fetched\":{\"groups\":2,\"bytes\":4096,\"opens\":3},\
                    \"traced\":{\"hits\":1,\"stops\":125,\"planted\":2},\"notes\":[]}\n";
        let told = told(said).expect("it is there");
        assert_eq!((told.fetched.groups, told.fetched.bytes), (2, 4096));
        assert_eq!(told.traced.as_ref().and_then(|traced| traced.stops), Some(125));
        let none = r#"{"fetched":{"groups":1,"bytes":1},"traced":null}"#;
        assert_eq!(super::told(none).map(|told| told.traced), Some(None));
        let shown = told.to_string();
        assert_eq!(shown, "with: 2 groups, 0.0 MB, 3 opens, 0 stale, 1 breakpoints hit, 125 stops");
        assert_eq!(super::told("{}\nno json"), None);
    }

    #[test]
    fn a_binary_without_the_commands_has_no_rows() {
        assert!(Product::find(Path::new("/bin/false")).is_none() && Product::find(Path::new("/nonexistent")).is_none());
        assert!(Product::find(Path::new("/bin/true")).is_some());
    }

    #[test]
    fn each_program_has_its_own_plans() {
        let program = Program::named("later-2").expect("a program");
        let words = Product.launch(program, true).join(" ");
        assert_eq!(
            words,
            "/run/runnel launch --plans /mnt/plans-later-2 --json --always -- /usr/bin/python3 /opt/launch/phases.py 2"
        );
        assert!(!Product.launch(program, false).contains(&"--always".to_string()));
    }
}
