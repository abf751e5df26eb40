//! Child processes: services that run beside the bench, tools that must succeed, and programs whose
//! time is taken.
//!
//! Nothing waits for a fixed time. A service says through a file that it is ready; the wait ends
//! with an error at its deadline, when the child ends, or when the bench is interrupted. Children
//! get a process group of their own, so that Ctrl-C reaches only the bench, which then ends them in
//! the right order; dropping a guard kills its child.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::interrupt;

/// How often a wait looks for a ready file or an interrupt. Measured times do not depend on it.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How long a child may take to end after it was asked to.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Bytes of a log that an error message shows.
const LOG_TAIL_BYTES: usize = 2000;

/// Output of a measured program beyond this is an error: it would block on the pipe.
const OUTPUT_BYTES_MAX: usize = 60 * 1024;

/// A child that is killed with its whole process group when dropped.
#[derive(Debug)]
struct Guarded {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Guarded {
    fn spawn(name: &str, command: &mut Command) -> anyhow::Result<Guarded> {
        let child = command.process_group(0).spawn();
        let child =
            child.with_context(|| format!("cannot start {name} ({})", command.get_program().to_string_lossy()))?;
        Ok(Guarded { child, ended: None })
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Waits at most `timeout` for the end of the child.
    fn wait(&mut self, timeout: Duration) -> anyhow::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            // The child is not reaped yet, so its pid cannot have been reused.
            let pid = self.pid().context("a child has a pid")?;
            let handle = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
            let time = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&time)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for a child"),
            }
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Waits for the end of the child until `deadline`, or until the bench is interrupted.
    fn wait_until(&mut self, deadline: Instant) -> anyhow::Result<Option<ExitStatus>> {
        loop {
            interrupt::check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = self.wait(left.min(Duration::from_millis(100)))?;
            if ended.is_some() || left.is_zero() {
                return Ok(ended);
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let (None, Some(pid)) = (self.ended, self.pid()) {
            // It may have ended by itself just now.
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// A program that runs beside the bench until it is stopped.
#[derive(Debug)]
pub struct Service {
    name: String,
    child: Guarded,
    log: PathBuf,
}

impl Service {
    /// Starts `command`; its output goes to `NAME.log` in `folder`.
    pub fn start(name: &str, command: &mut Command, folder: &Path) -> anyhow::Result<Service> {
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        Ok(Service { name: name.to_string(), child: Guarded::spawn(name, command)?, log })
    }

    /// Process id, for `/proc`.
    pub fn pid(&self) -> u32 {
        self.child.child.id()
    }

    /// Waits until `ready` returns a value, with a deadline; an error if the service ends first.
    pub fn wait_ready<T>(&mut self, deadline: Duration, mut ready: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
        let end = Instant::now() + deadline;
        loop {
            interrupt::check()?;
            if let Some(value) = ready() {
                return Ok(value);
            }
            if let Some(status) = self.child.wait(LOOK_INTERVAL)? {
                bail!("{} ended before it was ready ({status}){}", self.name, self.log_tail());
            }
            ensure!(Instant::now() < end, "{} was not ready after {deadline:?}{}", self.name, self.log_tail());
        }
    }

    /// Waits for the service to end by itself (after its mount was taken away); false at the
    /// deadline.
    pub fn wait_end(&mut self, deadline: Duration) -> anyhow::Result<bool> {
        Ok(self.child.wait(deadline)?.is_some())
    }

    /// Asks the service to end (SIGTERM) and waits; kills it at the deadline.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.child.signal(Signal::TERM);
        self.child.wait(STOP_DEADLINE)?;
        Ok(())
    }

    /// The end of the log, set off for an error message; empty if nothing was logged.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned();
        if tail.trim().is_empty() { String::new() } else { format!("; it said:\n{}", tail.trim_end()) }
    }
}

/// The content of a ready file once it is there and not empty.
pub fn ready_text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_string()).filter(|text| !text.is_empty())
}

/// Runs a tool that must succeed; returns what it printed. The error shows what it said.
pub fn tool(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    interrupt::check()?;
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let arguments: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        bail!("{name} {} failed ({}): {}", arguments.join(" "), output.status, said.trim_end());
    }
    Ok(output.stdout)
}

/// Does `work` in a thread with mounts of its own: what is mounted by it, or by the processes that
/// it starts, is gone with the last of them, however they end. Works in a chroot whose root is no
/// mount point, where unshare(1) does not.
///
/// # Errors
/// Mounts of one's own need root; and what `work` returns.
pub fn with_own_mounts<T: Send>(work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            host::mounts::own().context("cannot have mounts of its own")?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs a tool that may fail, as the last resort of a clean-up. Says nothing.
pub fn try_tool(command: &mut Command) {
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// True if `name` can be run: a path, or found in PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return path.is_file().then(|| path.to_path_buf());
    }
    // System tools live in sbin folders that not every user has in PATH.
    let extra = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).chain(extra).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A measured program that has ended well.
#[derive(Debug)]
pub struct Timed {
    /// From just before it was started until its end was seen.
    pub wall: Duration,
    /// What it printed.
    pub output: Vec<u8>,
}

/// Runs a program and takes its time; an error if it fails or is not done after `limit`.
pub fn timed(name: &str, command: &mut Command, limit: Duration) -> anyhow::Result<Timed> {
    interrupt::check()?;
    let mut errors = tempfile::tempfile().context("cannot make a temporary file")?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
    let start = Instant::now();
    let mut guarded = Guarded::spawn(name, command)?;
    let ended = guarded.wait_until(start + limit)?;
    let wall = start.elapsed();
    let said = |errors: &mut File| {
        let mut text = String::new();
        let _ = std::io::Seek::rewind(errors).and_then(|()| errors.read_to_string(&mut text));
        text
    };
    let Some(status) = ended else { bail!("{name} did not end within {limit:?}; {}", said(&mut errors)) };
    ensure!(status.success(), "{name} failed ({status}): {}", said(&mut errors).trim_end());
    let mut output = Vec::new();
    if let Some(pipe) = guarded.child.stdout.take() {
        pipe.take(OUTPUT_BYTES_MAX as u64).read_to_end(&mut output)?;
    }
    Ok(Timed { wall, output })
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
    fn a_service_is_ready_when_its_file_says_so_and_ends_when_dropped() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let ready = folder.path().join("ready");
        let script = format!("echo 127.0.0.1:7 > {}; exec sleep 1000", ready.display());
        let mut service = Service::start("server", &mut shell(&script), folder.path())?;
        let text = service.wait_ready(Duration::from_secs(60), || ready_text(&ready))?;
        assert_eq!(text, "127.0.0.1:7");
        let process = PathBuf::from(format!("/proc/{}", service.pid()));
        assert!(process.exists());
        drop(service);
        assert!(!process.exists(), "the child must be gone and reaped");
        Ok(())
    }

    #[test]
    fn a_service_that_dies_is_reported_with_its_last_words() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let mut service = Service::start("server", &mut shell("echo no such port >&2; exit 3"), folder.path())?;
        let error = service.wait_ready(Duration::from_secs(60), || None::<()>).expect_err("it ended");
        let text = error.to_string();
        assert!(text.contains("server ended before it was ready") && text.contains("no such port"), "{text}");
        Ok(())
    }

    #[test]
    fn a_program_is_timed_and_its_output_kept() -> anyhow::Result<()> {
        let done = timed("echo", &mut shell("echo hello"), Duration::from_secs(60))?;
        assert_eq!(done.output, b"hello\n");
        let error =
            timed("false", &mut shell("echo reason >&2; exit 1"), Duration::from_secs(60)).expect_err("it fails");
        assert!(error.to_string().contains("reason"), "{error}");
        let error = timed("sleep", &mut shell("exec sleep 1000"), Duration::from_millis(10)).expect_err("too long");
        assert!(error.to_string().contains("did not end within"), "{error}");
        Ok(())
    }

    #[test]
    fn a_tool_that_fails_says_why() {
        let error = tool(&mut shell("echo broken >&2; exit 2")).expect_err("it fails");
        assert!(error.to_string().contains("broken"), "{error}");
        assert!(find_program("sh").is_some() && find_program("no-such-program-here").is_none());
    }
}
