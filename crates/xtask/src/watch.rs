//! Commands with a limit: whatever hangs ends as a failure that says what it was, with all
//! processes that it started.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Time without the end of any test, or of a whole command that tests nothing. The longest test
/// takes three minutes alone, a build of everything twenty.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// The same between two tests. On a machine that does much else three minutes become ten.
const TEST_LIMIT: Duration = Duration::from_secs(12 * 60);

/// Threads of a process that are told of; a server has a few dozen.
const THREADS_MAX: usize = 64;

/// Runs a command to its end, which must be a success.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let mut child = command.spawn()?;
    let (ended, end) = channel::<()>();
    let id = child.id();
    let watch = std::thread::spawn(move || {
        let hangs = end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
        if hangs {
            eprint!("{}", what_they_do(id));
            kill_all(id);
        }
        hangs
    });
    let status = child.wait()?;
    drop(ended);
    let hung = watch.join().unwrap_or(false);
    anyhow::ensure!(!hung, "{command:?} did not end in {LIMIT:?}");
    anyhow::ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// A command that runs beside others. Dropping it ends it.
pub struct Beside {
    child: Child,
    what: String,
}

impl Beside {
    /// Starts it.
    pub fn begin(command: &mut Command) -> anyhow::Result<Beside> {
        let what = format!("{command:?}");
        Ok(Beside { child: command.stdin(Stdio::null()).spawn()?, what })
    }

    /// Waits for its end, which must be a success.
    pub fn end(mut self) -> anyhow::Result<()> {
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "{} ended with {status}", self.what);
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            kill_all(self.child.id());
            let _ = self.child.wait();
        }
    }
}

/// Lines of what failed tests said that are repeated at the end.
const SAID_MAX: usize = 60;

/// Runs `cargo test`, printing all but the tests that pass. What failed is said again at the end.
/// If no test ends for [`TEST_LIMIT`], those that had begun are named, and what their processes
/// wait for is told.
pub fn run_tests(command: &mut Command) -> anyhow::Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or_else(|| anyhow::anyhow!("cargo test has no output"))?;
    let (lines, said) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let (mut slow, mut failures) = (Vec::new(), Failures::default());
    loop {
        match said.recv_timeout(TEST_LIMIT) {
            Ok(line) => {
                take_line(&line, &mut slow);
                failures.take(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                eprint!("{}", what_they_do(child.id()));
                end(&mut child);
                anyhow::bail!("no test ended for {TEST_LIMIT:?}; under way: {}", slow.join(", "));
            }
        }
    }
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "{command:?} ended with {status}\n{}", failures.lines.join("\n"));
    Ok(())
}

/// What failed tests said of their ends.
#[derive(Default)]
struct Failures {
    lines: Vec<String>,
    is_message: bool,
}

impl Failures {
    /// Takes a line of a test program. A message of a panic goes from its place to the backtrace,
    /// the hint to have one, or an empty line.
    fn take(&mut self, line: &str) {
        let begins = line.starts_with("thread '") && line.contains(" panicked at ");
        let ends = line.is_empty() || line.starts_with("stack backtrace:") || line.starts_with("note: run with ");
        self.is_message = begins || (self.is_message && !ends);
        if self.is_message && self.lines.len() < SAID_MAX {
            self.lines.push(line.to_owned());
        }
    }
}

/// Prints a line of a test program if it matters, and keeps account of the tests that take long.
fn take_line(line: &str, slow: &mut Vec<String>) {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["test", name, "has", "been", "running", ..] => {
            println!("{line}");
            slow.push(name.to_owned());
        }
        ["test", name, "...", verdict, ..] => {
            slow.retain(|other| other != name);
            if verdict != "ok" && verdict != "ignored," && verdict != "ignored" {
                println!("{line}");
            }
        }
        _ if line.is_empty() || line.starts_with("running ") || line.starts_with("test result: ok. 0 passed") => {}
        _ => println!("{line}"),
    }
}

/// What each thread of the processes that descend from `id` waits for, as the kernel knows it.
fn what_they_do(id: u32) -> String {
    let mut text = String::new();
    for process in descendants(id) {
        let command = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&command).replace('\0', " ");
        text += &format!("== process {process}: {}\n", words.trim_end());
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for thread in threads.take(THREADS_MAX) {
            // A file that may not be read, or of a thread that ended, has nothing to say.
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let [name, waits, call, stack] = ["comm", "wchan", "syscall", "stack"].map(read);
            let (name, call, stack) = (name.trim_end(), call.trim_end(), stack.trim_end());
            text += &format!("thread {} {name}: {waits}; system call {call}\n", thread.file_name().display());
            stack.lines().for_each(|line| text += &format!("    {line}\n"));
        }
    }
    text
}

fn end(child: &mut Child) {
    kill_all(child.id());
    // It is dead, or dying of SIGKILL.
    let _ = child.wait();
}

/// Kills a process and all that descend from it.
fn kill_all(id: u32) {
    for process in descendants(id).into_iter().chain([id]) {
        if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
            // It may have ended this very moment.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The processes that descend from `id`.
fn descendants(id: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let with_parents = numbers.filter_map(|number| {
        let status = fs::read_to_string(format!("/proc/{number}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse::<u32>().ok()?;
        Some((number, parent))
    });
    let all: Vec<(u32, u32)> = with_parents.collect();
    let mut found = vec![id];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(all.iter().filter(|(_, other)| *other == parent).map(|(number, _)| *number));
        at += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn what_hangs_is_named_and_ends_with_all_it_started() {
        // What it says comes after its `execve`, which changes the name and the words.
        let mut child = Command::new("sh")
            .args(["-c", "exec 3<&0; sh -c 'echo; read line' <&3 & wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let started = descendants(child.id());
        assert_eq!(started.len(), 1);
        let told = what_they_do(child.id());
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines[0].starts_with(&format!("== process {}: ", started[0])), "{told}");
        assert!(lines[0].ends_with("echo; read line"), "{told}");
        assert!(lines[1].starts_with(&format!("thread {} s", started[0])), "{told}");
        assert!(lines[1].contains("; system call "), "{told}");
        let pid = i32::try_from(started[0]).ok().and_then(Pid::from_raw).unwrap();
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        end(&mut child);
        // SIGKILL takes effect in its own time. The descriptor becomes readable at the process's
        // end, whoever reaps it.
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)).unwrap(), 1);

        let mut slow = Vec::new();
        take_line("test a::b has been running for over 60 seconds", &mut slow);
        take_line("test a::c has been running for over 60 seconds", &mut slow);
        take_line("test a::b ... ok", &mut slow);
        assert_eq!(slow, ["a::c"]);
    }

    #[test]
    fn the_messages_of_panics_are_kept_alone() {
        let said = "---- a::b stdout ----\nserving a store\n\nthread 'a::b' (7) panicked at b.rs:5:9:\n1: no image\n\
                    of that name\nstack backtrace:\n   0: frame\n\nfailures:\n    a::b\n";
        let mut failures = Failures::default();
        said.lines().for_each(|line| failures.take(line));
        assert_eq!(failures.lines, ["thread 'a::b' (7) panicked at b.rs:5:9:", "1: no image", "of that name"]);
        (0..SAID_MAX).for_each(|_| failures.take("thread 'a::c' panicked at c.rs:1:1:"));
        assert_eq!(failures.lines.len(), SAID_MAX);
    }
}
