//! What the command line fills in for a bench or the demo.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::Parser;

use crate::link::Link;
use crate::workload::Workload;

/// Fewest runs of which a median and a spread are printed.
pub const RUNS_MIN: usize = 5;

/// Most runs: more would not end.
const RUNS_MAX: usize = 1000;

/// Most learning runs; the profile is stable long before.
const LEARNING_RUNS_MAX: usize = 100;

/// Cold and warm program starts over a shaped link
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// Few cases; ends within 5 minutes
    #[arg(long)]
    pub quick: bool,
    /// Also squashfs over NBD and Nydus, where they are installed
    #[arg(long)]
    pub peers: bool,
    /// Only these programs: python-200, python-pass, perl, openssl, gcc, jvm; may be given several
    /// times
    #[arg(long = "case", value_name = "NAME")]
    pub cases: Vec<String>,
    /// Only these links: lan, wifi, thin, 20ms-25mbit, or RTT-RATE[-LOSS]; may be given several
    /// times
    #[arg(long = "link", value_name = "LINK")]
    pub links: Vec<String>,
    /// Measured runs of each row, at least 5
    #[arg(long, value_name = "N", default_value_t = RUNS_MIN)]
    pub runs: usize,
    /// Starts from which the server learns
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub learning_runs: usize,
    /// Connections of our client
    #[arg(long, value_name = "N")]
    pub connections: Option<u32>,
    /// A further option for `runnel mount`, for ablations; may be given several times
    #[arg(long = "mount-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub mount_options: Vec<String>,
    /// Leave the page cache of this machine alone between runs
    ///
    /// Cold starts then rely on fresh mounts, and native cold starts are left out.
    #[arg(long)]
    pub keep_caches: bool,
    /// Seed of the link's losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Keep trees and images in this folder for the next bench
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// One JSON line per row
    #[arg(long)]
    pub json: bool,
    /// Measure this runnel instead of the one beside this program
    #[arg(long = "binary", value_name = "FILE", default_value_os_t = beside(), hide_default_value = true)]
    pub runnel: PathBuf,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Source revision for the rows; `None`: asked from git, else `unknown`.
    #[arg(skip)]
    pub commit: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options::parse_from([""])
    }
}

/// Options that were checked: everything that can be refused without measuring was.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The binary, as a path that stays valid in children.
    pub runnel: PathBuf,
    /// The workloads.
    pub cases: Vec<Workload>,
    /// The links.
    pub links: Vec<Link>,
    /// See [`Options::runs`].
    pub runs: usize,
    /// See [`Options::learning_runs`].
    pub learning_runs: usize,
    /// Options of every `runnel mount`.
    pub mount_options: Vec<String>,
    /// See [`Options::seed`].
    pub seed: u64,
    /// Source revision.
    pub commit: String,
}

impl Options {
    /// Checks the options.
    pub fn plan(&self) -> anyhow::Result<Plan> {
        ensure!((RUNS_MIN..=RUNS_MAX).contains(&self.runs), "--runs {}: from {RUNS_MIN} to {RUNS_MAX}", self.runs);
        let learning = self.learning_runs;
        ensure!(
            (1..=LEARNING_RUNS_MAX).contains(&learning),
            "--learning-runs {learning}: from 1 to {LEARNING_RUNS_MAX}"
        );
        let links: Vec<&str> = match self.links.is_empty() {
            true => vec!["20ms-25mbit", "lan"],
            false => self.links.iter().map(String::as_str).collect(),
        };
        let mut mount_options = self.mount_options.clone();
        if let Some(count) = self.connections {
            mount_options.extend(["--connections".to_string(), count.to_string()]);
        }
        Ok(Plan {
            runnel: binary(&self.runnel)?,
            cases: self.workloads()?,
            links: links.into_iter().map(str::parse).collect::<anyhow::Result<_>>()?,
            runs: self.runs,
            learning_runs: learning,
            mount_options,
            seed: self.seed,
            commit: self.commit.clone().unwrap_or_else(revision),
        })
    }

    fn workloads(&self) -> anyhow::Result<Vec<Workload>> {
        let names: Vec<&str> = match (self.cases.is_empty(), self.quick) {
            (false, _) => self.cases.iter().map(String::as_str).collect(),
            (true, true) if self.peers => vec!["python-200"],
            (true, true) => vec!["python-200", "perl"],
            (true, false) => return Ok(Workload::all()),
        };
        let known: Vec<&str> = Workload::all().iter().map(|workload| workload.name).collect();
        let find =
            |name| Workload::named(name).with_context(|| format!("no case '{name}'; there are: {}", known.join(", ")));
        names.into_iter().map(find).collect()
    }
}

/// The `runnel` beside this program: what is measured is what lies in the same folder, in a guest
/// too.
pub fn beside() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name("runnel")
}

/// The real path of the binary, which stays valid in children.
pub fn binary(path: &std::path::Path) -> anyhow::Result<PathBuf> {
    let real = std::fs::canonicalize(path).with_context(|| {
        let path = path.display();
        format!("cannot find the runnel binary {path}: build it (cargo build --package runnel), or name another")
    })?;
    if !real.is_file() {
        bail!("{} is not a program", real.display());
    }
    Ok(real)
}

/// The revision of the source folder the caller stands in, with a mark if files were changed.
pub(crate) fn revision() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_string();
    if text.is_empty() { "unknown".to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(change: impl FnOnce(&mut Options)) -> anyhow::Result<Plan> {
        let runnel = "/proc/self/exe".into();
        let mut options = Options { runnel, commit: Some("abc".into()), ..Options::default() };
        change(&mut options);
        options.plan()
    }

    #[test]
    fn defaults_cover_every_case_and_quick_a_few() -> anyhow::Result<()> {
        let full = plan(|_| {})?;
        assert_eq!((full.cases.len(), full.runs, full.commit.as_str()), (Workload::all().len(), RUNS_MIN, "abc"));
        assert_eq!(full.links.iter().map(Link::name).collect::<Vec<_>>(), ["20ms-25mbit", "lan"]);
        assert!(full.runnel.is_absolute() && !full.runnel.starts_with("/proc"));
        let quick = plan(|options| options.quick = true)?;
        assert!(quick.cases.len() < full.cases.len() && quick.cases[0].name == "python-200");
        let connections = plan(|options| options.connections = Some(3))?;
        assert_eq!(connections.mount_options, ["--connections", "3"]);
        Ok(())
    }

    #[test]
    fn bad_options_are_refused_before_anything_runs() {
        type Change = fn(&mut Options);
        let cases: [(Change, &str); 6] = [
            (|options| options.runs = 1, "--runs 1: from 5"),
            (|options| options.learning_runs = 0, "--learning-runs 0: from 1"),
            (|options| options.cases = vec!["emacs".into()], "no case 'emacs'; there are: python-200"),
            (|options| options.links = vec!["slow".into()], "link 'slow'"),
            (|options| options.runnel = "/no/such/runnel".into(), "cannot find the runnel binary /no/such/runnel"),
            (|options| options.runnel = "/usr".into(), "/usr is not a program"),
        ];
        for (change, expected) in cases {
            let error = format!("{:#}", plan(change).expect_err(expected));
            assert!(error.contains(expected), "{error}");
        }
    }
}
