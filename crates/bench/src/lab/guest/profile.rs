//! Experiment `profile`: in which functions the processor is during a cold start, on both sides and
//! in the kernel.
//!
//! `perf` samples the clock, which counts instructions, so that a sample stands for as many
//! instructions everywhere. The table goes to the console, where the host keeps it in the log of
//! the guest; the record has the values of a start, which the samples make a little longer.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::capture::CAPTURE_GROUP;
use super::system::{System, WORK};
use super::{Outcome, mount_cold, start};
use crate::lab::program::Program;
use crate::process::{Service, tool};

/// Samples a second: one in 50 microseconds.
const SAMPLES_PER_SECOND: &str = "20000";

/// Memory for samples, pages: enough for a start of seconds, so that `perf` does not run meanwhile.
const BUFFER_PAGES: &str = "8192";

/// Functions with fewer of the samples are left out.
const SHARE_MIN: &str = "0.1";

/// How long `perf` may take to be ready.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// One run.
pub fn measure(system: &mut dyn System, program: &'static Program) -> anyhow::Result<Outcome> {
    let mut outcome = mount_cold(system, program)?;
    let file = Path::new(WORK).join("perf.data");
    let _ = fs::remove_file(&file);
    let mut command = Command::new("/proc/self/exe");
    command.args(["lab-exec", "--group", CAPTURE_GROUP, "--", "perf", "record", "-a", "-e", "cpu-clock"]);
    command.args(["-F", SAMPLES_PER_SECOND, "-m", BUFFER_PAGES, "--no-buildid", "--no-buildid-cache", "-o"]);
    command.arg(&file);
    let mut perf = Service::start("perf", &mut command, Path::new(WORK))?;
    // It writes the head of the file before it lets the samples begin.
    let begun = || fs::metadata(&file).ok().filter(|found| found.len() > 0).map(drop);
    perf.wait_ready(READY_DEADLINE, begun).context("profiles are taken with perf")?;
    std::thread::sleep(Duration::from_secs(1));
    start::cold(&mut outcome, system, program)?;
    perf.stop()?;
    let mut report = Command::new("perf");
    report.args(["report", "--stdio", "--no-children", "--sort", "comm,dso,sym", "-n", "--percent-limit", SHARE_MIN]);
    let text = tool(report.arg("-i").arg(&file)).context("perf cannot read what it has recorded")?;
    println!("profile of {}\n{}", program.name, String::from_utf8_lossy(&text));
    Ok(outcome)
}
