//! Runs the bench: the lab measures, the report judges.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;

use super::measured::Measured;
use super::{report, rows};
use crate::history::append_history;
use crate::lab::options::{self, Size};
use crate::lab::run::{Collected, collect};
use crate::stream::say;

/// Data files as in the SIO paper: volumes beside a whole download, NFS, sshfs and rclone
///
/// Runs in the lab's guest (see `lab`, whose cache it shares), over 128 kbit/s and 40 ms as the
/// paper's modem. Needs root. Rows that were measured before with the same binary are known. Ends
/// with an error that names the rows that failed, after the report.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Each case once, without the sweep of computing: a few minutes after set-up
    #[arg(long)]
    quick: bool,
    /// Only these cases: seq, seq-text, rand1k, stat-0.25, stat-0.5, stat-1, stat-2, bsearch, game,
    /// files1000, files1000-text
    #[arg(long = "case", value_name = "NAMES", value_delimiter = ',')]
    cases: Vec<String>,
    /// Only these systems: runnel, runnel:mount, runnel:program, download, nfs, sshfs, rclone; bars
    /// need all
    #[arg(long = "peer", value_name = "NAMES", value_delimiter = ',')]
    peers: Vec<String>,
    /// Measure again what was measured already
    #[arg(long)]
    fresh: bool,
    /// Cache folder (default: that of `lab`)
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Where the report goes (default: sio.html in the cache folder)
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// One JSON line per value instead of tables
    #[arg(long)]
    json: bool,
    /// Guests at once (default: one per core)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// A static runnel to measure, as for `lab`
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Runs the bench. Tables, or rows with `json`, go to `out`; progress to standard error. An error
/// if a row failed, after the report was written.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    let collected = collect(&options::Options {
        size: Some(if options.quick { Size::SioQuick } else { Size::Sio }),
        systems: options.peers.clone(),
        programs: options.cases.clone(),
        fresh: options.fresh,
        work: options.work.clone(),
        jobs: options.jobs,
        binary: options.binary.clone(),
        ..options::Options::default()
    })?;
    let Collected { records, about, cache, .. } = &collected;
    let measured = Measured::new(records);
    let path = options.report.clone().unwrap_or_else(|| cache.join("sio.html"));
    let page = report::page(measured, about);
    fs::write(&path, page).with_context(|| format!("cannot write the report {}", path.display()))?;
    say(&format!("sio: {} after {}", path.display(), collected.elapsed()));
    let lines = rows::lines(measured, &about.commit)?;
    if options.json {
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    } else {
        write!(out, "{}", report::text(measured))?;
    }
    collected.judge()?;
    // A run with failures is no point of the history.
    options.history.as_deref().map_or(Ok(()), |history| append_history(history, &lines))
}
