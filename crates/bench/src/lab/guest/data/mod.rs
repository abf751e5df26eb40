//! Experiment `data`: work on data files, cold, on each [`system`].
//!
//! The work ([`work`]) is done by a process of its own, the helper `runnel-bench lab-data`, by
//! plain input and output on a path ([`file`]); the game is a program of its own
//! ([`crate::lab::data::game`]). Nothing is in the memory of the device before a run; the server
//! has its files in memory. Times begin after mounting, whose time is a value of its own, and with
//! what is fetched before the work. `seconds` is the time of the work, for the game the time until
//! its first scene.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::super::data::case::{Case, Work};
use super::super::data::pattern::{FILES, written_content, written_name};
use super::super::data::{EXPERIMENT, game};
use super::super::link::Link;
use super::super::plan::{Entry, Row};
use super::super::record::{Event, Record};
use super::execution::PROGRAM_GROUP;
use super::kernel::{clock_seconds, traffic};
use super::start::{wait_quiet, with_counters};
use super::{Outcome, emit, net, page_cache};
use crate::process::tool;
use file::Plain;
use system::DataSystem;
use work::{Found, How};

pub mod download;
pub mod file;
pub mod library;
pub mod product;
pub mod system;
pub mod work;

/// Do the work of a case on data files in the lab's guest
#[derive(Clone, Debug, clap::Args)]
pub struct Helper {
    /// Name of the case
    pub case: String,
    /// Folder with its files
    pub folder: String,
    /// How it is done.
    #[command(flatten)]
    pub how: How,
}

/// The helper: does the work and prints what was found.
pub fn help(helper: &Helper) -> anyhow::Result<()> {
    let case = Case::named(&helper.case)?;
    let found = work::run(case, file::folder(&helper.folder)?.as_ref(), &helper.how)?;
    println!("{}", serde_json::to_string(&found).context("what was found is always JSON")?);
    Ok(())
}

/// Refuses a row that no guest could measure.
pub fn check(row: &Row) -> anyhow::Result<()> {
    ensure!(row.link != "-", "the experiment '{EXPERIMENT}' needs a link");
    Link::named(&row.link)?;
    system::make(row, Case::named(&row.program)?).map(drop)
}

/// Measures a row.
pub fn measure(entry: &Entry) -> anyhow::Result<()> {
    let link = Link::named(&entry.row.link)?;
    let case = Case::named(&entry.row.program)?;
    net::shape(Some(&link))?;
    let published = system::published(case);
    fs::create_dir_all(&published).with_context(|| format!("cannot make {}", published.display()))?;
    let mut system = system::make(&entry.row, case)?;
    let measured = runs(entry, case, &link, system.as_mut());
    let unmounted = system.unmount().context("cannot unmount at the end of the row");
    let stopped = system.stop().context("cannot stop the server at the end of the row");
    measured.and(unmounted).and(stopped)
}

fn runs(entry: &Entry, case: &'static Case, link: &Link, system: &mut dyn DataSystem) -> anyhow::Result<()> {
    system.serve().context("cannot serve")?;
    for run in 1..=entry.runs {
        let how = How { run, learning: false, compute_seconds: case.compute_seconds(link.rate_bits) };
        let Outcome { values, series } = one(case, &how, system).with_context(|| format!("run {run}"))?;
        emit(&Event::Record { record: Record { row: entry.row.clone(), run, values, series } })?;
    }
    Ok(())
}

/// One run.
fn one(case: &'static Case, how: &How, system: &mut dyn DataSystem) -> anyhow::Result<Outcome> {
    system.unmount().context("cannot unmount the run before")?;
    remove_written(case)?;
    page_cache::drop_all()?;
    page_cache::read_back(&[system::published(case)])?;
    page_cache::read_back(&system.server_files())?;
    page_cache::read_back(&system.client_files())?;
    page_cache::read_back(&[std::env::current_exe().context("cannot find this program")?])?;

    let mut outcome = Outcome::default();
    let begun = clock_seconds();
    system.mount().context("cannot mount")?;
    outcome.set("mount", clock_seconds() - begun);
    let (before, counters) = (traffic()?, system.counters()?);
    let start = clock_seconds();
    system.fetch()?;
    let fetched = clock_seconds() - start;
    if case.work == Work::Game {
        let (shown, end) = play(system)?;
        outcome.set("seconds", shown[0] - start);
        outcome.set("total", end - start);
        outcome.series.insert("scenes".into(), shown.iter().map(|moment| rounded(moment - start)).collect());
    } else {
        let found = work_of(case, &system.folder(), how)?;
        check_content(case, how, &found)?;
        outcome.set("seconds", fetched + found.seconds);
        outcome.set("needed_bytes", found.needed_bytes as f64);
        outcome.set("calls", found.calls as f64);
        outcome.set("compute", found.compute);
        if case.work == Work::Sequential {
            let first = found.first.iter().map(|time| rounded(fetched + time)).collect();
            outcome.series.insert("first".into(), first);
        }
    }
    let after = traffic()?;
    outcome.set("rx_bytes", after.rx_bytes - before.rx_bytes);
    outcome.set("tx_bytes", after.tx_bytes - before.tx_bytes);
    with_counters(&mut outcome, &counters, &system.counters()?);
    // What is on its way must not meet the next run.
    wait_quiet()?;
    Ok(outcome)
}

/// Nanoseconds are what the clock can tell; more digits would only make the line longer.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e9
}

/// Does the work in a process of its own.
pub fn work_of(case: &Case, folder: &str, how: &How) -> anyhow::Result<Found> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["lab-exec", "--group", PROGRAM_GROUP, "--", "/proc/self/exe", "lab-data"]);
    command.args([case.name, folder, "--run", &how.run.to_string()]);
    command.args(["--compute", &format!("{:e}", how.compute_seconds)]);
    if how.learning {
        command.arg("--learning");
    }
    let output = tool(&mut command)?;
    serde_json::from_slice(&output).context("the helper printed no JSON")
}

/// Plays the game; returns when its scenes were shown and when it ended.
pub fn play(system: &dyn DataSystem) -> anyhow::Result<([f64; game::SCENES], f64)> {
    let output = tool(&mut system.game()).context("the game")?;
    let end = clock_seconds();
    Ok((game::moments(&output)?, end))
}

/// An error if what was read is not what the server has, or what was written is not there.
fn check_content(case: &'static Case, how: &How, found: &Found) -> anyhow::Result<()> {
    let published = system::published(case);
    if let Work::Write(filling) = case.work {
        return check_written(&published, work::text(filling)?.as_deref());
    }
    let how = How { compute_seconds: 0.0, ..*how };
    let right = work::run(case, &Plain(published), &how).context("the work on the server's own files")?;
    ensure!(found.fingerprint == right.fingerprint, "what was read is not what the server has");
    Ok(())
}

/// An error if a file is not there as it was written.
fn check_written(folder: &Path, text: Option<&[u8]>) -> anyhow::Result<()> {
    for index in 0..FILES {
        let name = written_name(index);
        let found = fs::read(folder.join(&name)).with_context(|| format!("the server has no {name}"))?;
        ensure!(found == written_content(index, text), "{name} is not on the server as it was written");
    }
    Ok(())
}

/// Removes what the run before wrote.
fn remove_written(case: &Case) -> anyhow::Result<()> {
    if !case.writes() {
        return Ok(());
    }
    for index in 0..FILES {
        let path: PathBuf = system::published(case).join(written_name(index));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}
