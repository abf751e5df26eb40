//! What a child process costs: CPU time with that of its own children, wall time and peak memory,
//! as the kernel counts them (`wait4`).
//!
//! The peak of a child cannot be seen below that of this process at the time of its start, because
//! the kernel carries the mark over; this process stays small. The output goes to a file, so a
//! talkative child never blocks.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};
use wait4::Wait4;

use crate::interrupt;

/// How often a wait looks whether the bench was interrupted, nanoseconds. Measured times do not
/// depend on it.
const LOOK_NANOSECONDS: i64 = 100_000_000;

/// Bytes of output that are kept: a report, or the list of the extents of a file.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;

/// Bytes of error output that an error message shows.
const SAID_BYTES_MAX: usize = 1500;

/// What a process cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time of all its threads and of the processes it waited for, seconds.
    pub cpu: f64,
    /// From its start to its end, seconds.
    pub wall: f64,
    /// Largest resident memory of one process, bytes.
    pub peak: u64,
}

/// A process that ended well.
#[derive(Clone, Debug)]
pub struct Done {
    /// What it cost.
    pub cost: Cost,
    /// What it printed to its standard output.
    pub output: Vec<u8>,
}

/// Runs `command` to its end. It gets a process group of its own, which is killed if the bench is
/// interrupted.
///
/// # Errors
/// It cannot be started, fails, or the bench is interrupted; the message holds the end of what it
/// said.
pub fn run(command: &mut Command) -> anyhow::Result<Done> {
    interrupt::check()?;
    let name = command.get_program().to_string_lossy().into_owned();
    let mut output = tempfile::tempfile().context("cannot make a temporary file")?;
    let mut errors = tempfile::tempfile().context("cannot make a temporary file")?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?).process_group(0);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    if let Err(error) = wait_for(&child) {
        kill(&mut child);
        return Err(error);
    }
    let used = child.wait4().with_context(|| format!("cannot wait for {name}"))?;
    let wall = start.elapsed().as_secs_f64();
    if !used.status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        bail!("{name} {} failed ({}): {}", arguments.join(" "), used.status, said(&mut errors));
    }
    let cpu = (used.rusage.utime + used.rusage.stime).as_secs_f64();
    let cost = Cost { cpu, wall, peak: used.rusage.maxrss };
    let mut bytes = Vec::new();
    output.rewind()?;
    output.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Done { cost, output: bytes })
}

/// Waits until the child has ended, without collecting it.
fn wait_for(child: &Child) -> anyhow::Result<()> {
    let pid = pid(child).context("a child has a pid")?;
    // It is not collected yet, so its pid cannot have been given to another process.
    let handle = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
    let time = Timespec { tv_sec: 0, tv_nsec: LOOK_NANOSECONDS };
    loop {
        interrupt::check()?;
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error).context("cannot wait for a child"),
        }
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

fn kill(child: &mut Child) {
    if let Some(pid) = pid(child) {
        // It may have ended by itself just now.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let _ = child.wait();
}

/// The end of what a child wrote to its standard error.
fn said(errors: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = errors.rewind().and_then(|()| errors.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes));
    let tail = &bytes[bytes.len().saturating_sub(SAID_BYTES_MAX)..];
    String::from_utf8_lossy(tail).trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        command
    }

    #[test]
    fn cost_and_output_of_a_child_are_kept() -> anyhow::Result<()> {
        let done = run(&mut shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done"))?;
        assert_eq!(done.output, b"done\n");
        assert!(done.cost.cpu > 0.0 && done.cost.wall > 0.0 && done.cost.peak > 100_000, "{:?}", done.cost);
        Ok(())
    }

    #[test]
    fn a_child_that_fails_says_why() {
        let error = run(&mut shell("echo no space >&2; exit 3")).expect_err("it fails").to_string();
        assert!(error.contains("no space") && error.contains("3"), "{error}");
        assert!(run(&mut Command::new("/no/such/program")).is_err());
    }
}
