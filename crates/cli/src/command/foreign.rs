//! Foreign programs that a command runs, and the files that they write: neither outlives the
//! command, however it ends.
//!
//! Signals that would end the command are blocked and read by a thread of their own. It ends the
//! running programs, removes the files and then ends the process with the code that a shell
//! expects.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ::mount::Stop;
use anyhow::Context;

/// Bytes of what a program says on standard error that are kept for the message: its end.
const SAID_BYTES_MAX: usize = 64 << 10;

/// How often to look whether a program has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Programs to end, and files to remove.
pub struct Cleanup {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    programs: Vec<Arc<Mutex<Child>>>,
    paths: Vec<PathBuf>,
}

impl Cleanup {
    /// Takes over the signals. Call it before the first thread starts.
    ///
    /// # Errors
    /// Signals cannot be received.
    pub fn new() -> anyhow::Result<Cleanup> {
        let stop = Stop::listen()?;
        let state = Arc::new(Mutex::new(State::default()));
        let watched = state.clone();
        thread::Builder::new()
            .name("runnel-signals".into())
            .spawn(move || {
                let signal = stop.wait().unwrap_or(0);
                let mut state = lock(&watched);
                state.clear();
                remove_unfinished();
                // Still locked: nothing new can start.
                std::process::exit(128 + signal);
            })
            .context("cannot start a thread")?;
        Ok(Cleanup { state })
    }

    /// A new directory beside `path`, or in `parent` if given; removed with all it holds when this
    /// value goes.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn directory(&self, path: &Path, parent: Option<&Path>) -> anyhow::Result<PathBuf> {
        let beside = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().context("the output has no name")?.to_string_lossy().into_owned();
        let parent = parent.unwrap_or(beside);
        let mut state = lock(&self.state);
        for number in 0u32.. {
            let made = parent.join(format!(".{name}.{}-{number}.part", std::process::id()));
            match fs::create_dir(&made) {
                Ok(()) => {
                    state.paths.push(made.clone());
                    return Ok(made);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make a folder in {}", parent.display()));
                }
            }
        }
        anyhow::bail!("no name is left for a folder in {}", parent.display())
    }

    /// Starts a program; `package` is the Debian package to name if it is not there.
    ///
    /// # Errors
    /// It is not installed or cannot be started.
    pub fn start(&self, mut command: Command, package: &str) -> anyhow::Result<Running> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut state = lock(&self.state);
        let mut child = command.stderr(Stdio::piped()).spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing(&name, package),
            _ => anyhow::Error::from(error).context(format!("cannot start {name}")),
        })?;
        let (input, output, said) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        state.programs.push(child.clone());
        drop(state);
        let listener = thread::spawn(move || said.map(last_words).unwrap_or_default());
        Ok(Running { name, child, input, output, listener: Some(listener) })
    }
}

/// The error for a program that is not installed.
pub fn missing(name: &str, package: &str) -> anyhow::Error {
    anyhow::anyhow!("{name} is not installed\nhint: it is in the Debian package {package}: `apt install {package}`")
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        lock(&self.state).clear();
    }
}

impl State {
    fn clear(&mut self) {
        for program in self.programs.drain(..) {
            // The waiting thread holds the lock for a moment at a time.
            let mut program = lock(&program);
            // Both fail for a program that has ended and was waited for.
            let _ = program.kill();
            let _ = program.wait();
        }
        for path in self.paths.drain(..) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// A program that was started.
pub struct Running {
    name: String,
    child: Arc<Mutex<Child>>,
    /// Its standard input, if it has a pipe there.
    pub input: Option<ChildStdin>,
    /// Its standard output, if it has a pipe there.
    pub output: Option<ChildStdout>,
    listener: Option<JoinHandle<String>>,
}

impl Running {
    /// Waits until it ends.
    ///
    /// # Errors
    /// It failed: the end of what it said.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        self.finish_unless(|_| false)
    }

    /// The same, but a failure that is `forgiven` for what the program said is none. Programs that
    /// were ended by a signal, or said more than is kept, are not forgiven.
    ///
    /// # Errors
    /// As [`Running::finish`].
    pub fn finish_unless(&mut self, forgiven: impl FnOnce(&str) -> bool) -> anyhow::Result<()> {
        drop(self.input.take());
        let status = loop {
            // Not `wait`, which would hold the lock that ending the program needs.
            let status = lock(&self.child).try_wait();
            match status.with_context(|| format!("cannot wait for {}", self.name))? {
                Some(status) => break status,
                None => thread::park_timeout(LOOK),
            }
        };
        let said = self.listener.take().and_then(|listener| listener.join().ok()).unwrap_or_default();
        if !status.success() && status.code().is_some() && said.len() < SAID_BYTES_MAX && forgiven(&said) {
            return Ok(());
        }
        self.judge(status, &said)
    }

    fn judge(&self, status: ExitStatus, said: &str) -> anyhow::Result<()> {
        if status.success() {
            return Ok(());
        }
        let said = said.trim();
        if said.is_empty() {
            anyhow::bail!("{} ended with {status}", self.name);
        }
        anyhow::bail!("{} ended with {status}: {said}", self.name)
    }
}

/// The output of a program as a stream that ends well only if the program does: a part of an
/// archive that happens to look whole must not be taken for the whole.
pub struct Stream(pub Running);

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.0.output {
            Some(output) => output.read(buffer)?,
            None => 0,
        };
        if count == 0 && !buffer.is_empty() && self.0.output.take().is_some() {
            self.0.finish().map_err(|error| io::Error::other(error.to_string()))?;
        }
        Ok(count)
    }
}

/// Removes the unfinished outputs that this process has open: they are named `.NAME….part` until
/// they are complete.
fn remove_unfinished() {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    for path in open.filter_map(|entry| fs::read_link(entry.path()).ok()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') && name.ends_with(".part") {
            let _ = fs::remove_file(path);
        }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads to the end and keeps what came last.
fn last_words(mut said: ChildStderr) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
    while let Ok(count) = said.read(&mut buffer) {
        if count == 0 {
            break;
        }
        kept.extend_from_slice(&buffer[..count]);
        if kept.len() > 2 * SAID_BYTES_MAX {
            kept.drain(..kept.len() - SAID_BYTES_MAX);
        }
    }
    let start = kept.len().saturating_sub(SAID_BYTES_MAX);
    String::from_utf8_lossy(&kept[start..]).into_owned()
}
