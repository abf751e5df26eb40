//! Starts a program in the mounted tree and takes its time.
//!
//! The program runs with the tree as its root folder, a `/tmp` of its own in memory, the guest's
//! `/dev` (device nodes do not work over NFS) and, for those that need it, `/proc`. Its control
//! group counts its processor time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::program::{ENVIRONMENT, Program};
use super::kernel::clock_seconds;
use super::system::{APP, WORK};
use super::{group, kernel};

/// Control group of the measured program.
pub const PROGRAM_GROUP: &str = "program";

/// Longest start that is waited for, seconds of the guest's clock: a compiler over a modem takes an
/// hour.
const START_SECONDS_MAX: f64 = 6.0 * 3600.0;

/// Trees whose programs read `/proc`.
const PROC_TREES: [&str; 2] = ["java", "node"];

/// Bytes of what a failed program said that are shown.
const SAID_BYTES_MAX: usize = 1000;

/// A program that did its work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Execution {
    /// Monotonic clock when it was started.
    pub start: f64,
    /// From its start until its end was seen.
    pub seconds: f64,
    /// Its processor time, with that of its children.
    pub usage: group::Usage,
    /// Its major page faults.
    pub faults: f64,
}

/// What is mounted into the tree for a program; dropping it takes it away.
#[derive(Debug)]
struct Surroundings {
    mounted: Vec<PathBuf>,
}

impl Surroundings {
    fn of(program: &Program) -> anyhow::Result<Surroundings> {
        let mut all = Surroundings { mounted: Vec::new() };
        let place = |name: &str| Path::new(APP).join(name);
        mount("tmpfs", place("tmp"), "tmpfs", MountFlags::empty(), None)
            .with_context(|| format!("cannot mount a tmpfs on {APP}/tmp"))?;
        all.mounted.push(place("tmp"));
        mount_bind("/dev", place("dev")).with_context(|| format!("cannot mount /dev on {APP}/dev"))?;
        all.mounted.push(place("dev"));
        if PROC_TREES.contains(&program.tree) {
            mount("proc", place("proc"), "proc", MountFlags::empty(), None)
                .with_context(|| format!("cannot mount proc on {APP}/proc"))?;
            all.mounted.push(place("proc"));
        }
        Ok(all)
    }
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        for path in self.mounted.iter().rev() {
            if unmount(path, UnmountFlags::empty()).is_err() {
                // Something still uses it; it goes away with its last user.
                let _ = unmount(path, UnmountFlags::DETACH);
            }
        }
    }
}

/// Starts `program` and waits for its end; an error if it does not do its work.
pub fn run(program: &Program) -> anyhow::Result<Execution> {
    let _surroundings = Surroundings::of(program)?;
    let file = |name: &str| Path::new(WORK).join(name);
    let (stamp, output, errors) = (file("program.start"), file("program.out"), file("program.err"));
    let create = |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
    let mut command = Command::new("/proc/self/exe");
    command.args(["lab-exec", "--group", PROGRAM_GROUP, "--root", APP, "--stamp"]).arg(&stamp).arg("--");
    command.args(program.command).env_clear().envs(ENVIRONMENT);
    command.stdin(Stdio::null()).stdout(create(&output)?).stderr(create(&errors)?);
    let _ = fs::remove_file(&stamp);
    let before = group::usage(PROGRAM_GROUP)?;
    let mut child = command.spawn().context("cannot start the helper that starts the program")?;
    let ended = wait_seen(child.id());
    let end = clock_seconds();
    if !matches!(ended, Ok(true)) {
        // It is not reaped, so that its number is still its own.
        let _ = child.kill();
    }
    let faults = kernel::major_faults(child.id());
    let status = child.wait().context("cannot wait for the program")?;
    let said = || {
        let text = fs::read(&errors).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(SAID_BYTES_MAX)..]).trim().to_string()
    };
    ensure!(ended?, "{} did not end within {START_SECONDS_MAX} s: {}", program.name, said());
    ensure!(status.success(), "{} failed ({status}): {}", program.name, said());
    let printed = fs::read(&output).unwrap_or_default();
    if !String::from_utf8_lossy(&printed).contains(program.expected) {
        bail!("{} did not print '{}' but {} bytes; {}", program.name, program.expected, printed.len(), said());
    }
    let text = fs::read_to_string(&stamp).with_context(|| format!("{} was not started", program.name))?;
    let start: f64 = text.parse().with_context(|| format!("'{text}' is no time of a start"))?;
    let usage = group::usage(PROGRAM_GROUP)?.since(before);
    Ok(Execution { start, seconds: end - start, usage, faults: faults? })
}

/// Waits for the end of a child without reaping it; false at the deadline.
fn wait_seen(child: u32) -> anyhow::Result<bool> {
    let pid = i32::try_from(child).ok().and_then(Pid::from_raw).context("a child has a number")?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
    let end = clock_seconds() + START_SECONDS_MAX;
    loop {
        let left = (end - clock_seconds()).max(0.0);
        let time = Timespec { tv_sec: left as i64, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&time)) {
            Ok(0) if left < 1.0 => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error).context("cannot wait for the program"),
        }
    }
}
