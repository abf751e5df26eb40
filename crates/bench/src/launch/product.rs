//! What `runnel` itself reaches, by the command lines a user would give: `record`, `plans learn`, `launch`.
//!
//! They run in the root of the disk, with the binary bound into it. What is recorded and learned lies in a folder of the
//! machine that is seen there, as a disk of the device that is not measured. A binary without these commands is said to
//! have none, and its rows are left out.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};

use super::place::{BINARY, Place, Run, STATE};
use super::program::Program;

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

    /// Records `program` some times on a disk without delay and makes its plan. The runs, for what they cost.
    ///
    /// # Errors
    /// A command fails; the message holds what it said.
    pub fn learn(&self, place: &mut Place, program: &Program) -> anyhow::Result<Vec<Run>> {
        place.refresh(&disk::INSTANT, super::run::READ_AHEAD)?;
        let mut runs = Vec::new();
        let mut traces = Vec::new();
        for index in 0..LEARNING_RUNS {
            let trace = format!("{STATE}/{}-{index}.trace", program.name);
            let words = ["record", "-o", &trace, "--"].into_iter().chain(program.command.iter().copied());
            place.tidy()?;
            runs.push(start(self, place, words).context("runnel record")?);
            traces.push(trace);
        }
        let words = ["plans", "learn"].into_iter().chain(traces.iter().map(String::as_str));
        start(self, place, words).context("runnel plans learn")?;
        ensure!(runs.len() == LEARNING_RUNS, "every learning run counts");
        Ok(runs)
    }

    /// The command that launches `program`.
    pub fn launch(&self, program: &Program) -> Vec<String> {
        let words = [BINARY, "launch", "--"].into_iter().chain(program.command.iter().copied());
        words.map(str::to_string).collect()
    }

    /// What both need to find plans again.
    pub fn environment(&self) -> Vec<(String, String)> {
        [("XDG_DATA_HOME", "data"), ("XDG_STATE_HOME", "state")]
            .map(|(name, folder)| (name.to_string(), format!("{STATE}/{folder}")))
            .into()
    }
}

fn start<'a>(product: &Product, place: &Place, words: impl Iterator<Item = &'a str>) -> anyhow::Result<Run> {
    let command: Vec<String> = std::iter::once(BINARY).chain(words).map(str::to_string).collect();
    let before = place.disk.counters();
    place.run(&command, &product.environment(), Instant::now(), &before, &mut |_| {})
}

/// How often a launcher stopped its program, if it says so: a line with `N stops`.
pub fn stops(said: &str) -> Option<f64> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let found = words.windows(2).rev().find(|pair| pair[1].trim_matches([',', '.', ';']) == "stops");
    found.and_then(|pair| pair[0].parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_read_from_what_the_launcher_says() {
        assert_eq!(stops("runnel: 3 groups, 125 stops, detached"), Some(125.0));
        assert_eq!((stops("no stops"), stops("")), (None, None));
    }

    #[test]
    fn a_binary_without_the_commands_has_no_rows() {
        assert!(Product::find(Path::new("/bin/false")).is_none() && Product::find(Path::new("/nonexistent")).is_none());
        assert!(Product::find(Path::new("/bin/true")).is_some());
    }
}
