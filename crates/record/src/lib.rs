//! Recording a program of this machine: which pages of which files it touches, in which order, where code runs for the
//! first time, and which paths it looks up. The result is a trace (`docs/formats/trace.md`) of local files.
//!
//! The program runs as it would without us: same environment but for what a recorder needs, same terminal, same exit code. Its children
//! and threads are followed. Several sources feed one [`Collector`](collector), which sorts what they saw by time, and one
//! [`Assembler`](assembler), which turns it into events: first touches only, and of no file that changed meanwhile.
//!
//! | source | sees | needs |
//! |---|---|---|
//! | perf | page faults and mappings, without a stop, on a warm cache too; 64 KiB around each fault | `perf_event_paranoid` at most 2 |
//!
//! What is recorded is what was *touched*, not what the kernel read ahead: lists of the latter made programs slower.
//!
//! Called by `cli`, `launch` and `bench`. Units: bytes; times in traces are microseconds since the recording began.

mod assembler;
mod collector;
mod error;
mod files;
mod library;
mod raw;
mod request;
// Both sides compile the same file, and each uses a part of it.
#[allow(dead_code)]
#[path = "../../preload/src/ring.rs"]
mod ring;
mod space;
mod supervise;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use trace::Source;
use tracee::perf::Rings;

pub use assembler::Summary;
pub use error::RecordError;
pub use library::{LIBRARY, find_library};
pub use request::{ReadsChoice, Request, SourceChoice};

use assembler::Assembler;
use collector::{Collector, Sources, now};
use files::Files;
use library::Library;
use supervise::Signals;

/// A recording that was made.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The program's exit code, or 128 and the number of the signal that ended it.
    pub code: i32,
    /// The trace file.
    pub trace: Vec<u8>,
    /// Who recorded, as the trace says.
    pub source: Source,
    /// What it holds.
    pub summary: Summary,
    /// What the user should know about it: why a better source was not used, what may be missing.
    pub notes: Vec<String>,
}

/// Runs the program and records it. The trace is complete however the program ends.
///
/// Blocks the signals that a wrapper passes on while the program runs, in the calling thread; call it from the main one.
///
/// # Errors
/// The source that was asked for does not work here, or the program cannot be started. It did not run then.
pub fn record(request: &Request) -> Result<Outcome, RecordError> {
    let mut notes = Vec::new();
    let (source, mut sources) = open(request, &mut notes)?;
    let path = library(request, &mut notes)?;
    let mut command = command(request);
    if let Some(path) = &path {
        let library = Library::new().map_err(RecordError::system("make the ring of reads"))?;
        command.envs(library.environment(path, preloaded(request)));
        sources.library = Some(library);
    }
    let signals = Signals::block().map_err(RecordError::system("receive signals"))?;
    let assembler = Assembler::new(Files::new(path), now());
    let running = Arc::new(AtomicUsize::new(usize::MAX));
    let collector = Collector::new(sources, assembler, Arc::clone(&running));
    let (stop, stopper) = io::pipe().map_err(RecordError::system("make a pipe"))?;
    tracee::child::with_signal_mask(&mut command, signals.mask_before());
    let mut child =
        command.spawn().map_err(|source| RecordError::Start { program: request.program.clone(), source })?;
    let thread = std::thread::spawn(move || collector.run(&stop));
    let status = supervise::wait(&mut child, &signals);
    if request.wait_all {
        supervise::wait_all(&running, &signals).map_err(RecordError::system("wait for processes"))?;
    }
    drop(stopper);
    let assembler = thread.join().map_err(|_| RecordError::System {
        what: "collect what was seen",
        source: io::Error::other("its thread panicked"),
    })?;
    let status = status.map_err(RecordError::system("wait for the program"))?;
    if assembler.is_full() {
        notes.push("the trace reached its limit and ends before the program did".into());
    }
    let (trace, summary) = assembler
        .finish(source, now())
        .map_err(|error| RecordError::System { what: "write the trace", source: io::Error::other(error) })?;
    if summary.lost > 0 {
        notes.push(format!("{} records were lost: the trace may lack pages", summary.lost));
    }
    Ok(Outcome { code: supervise::exit_code(status), trace, source, summary, notes })
}

/// Opens what will be recorded with, and says what it is.
fn open(request: &Request, notes: &mut Vec<String>) -> Result<(Source, Sources), RecordError> {
    let perf = Rings::open(request.ring_bytes).map_err(|source| RecordError::Source { what: "perf events", source })?;
    if !perf.sees_kernel_faults() {
        notes.push("perf_event_paranoid hides page faults inside system calls".into());
    }
    Ok((Source::Perf, Sources { perf: Some(perf), ..Sources::default() }))
}

/// The library to preload, if reads are to be seen by it.
fn library(request: &Request, notes: &mut Vec<String>) -> Result<Option<PathBuf>, RecordError> {
    if request.reads == ReadsChoice::None {
        return Ok(None);
    }
    let path = request.library.clone().or_else(find_library).map(|path| path.canonicalize());
    match path.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::NotFound))) {
        Ok(path) => Ok(Some(path)),
        Err(source) if request.reads == ReadsChoice::Preload => {
            Err(RecordError::Source { what: "the preloaded library", source })
        }
        Err(_) => {
            notes.push(format!("{LIBRARY} is not beside this program: reads and look-ups are not seen"));
            Ok(None)
        }
    }
}

/// What the program would preload anyway.
fn preloaded(request: &Request) -> Option<OsString> {
    let given = request.environment.iter().rev().find(|(name, _)| name == "LD_PRELOAD");
    given.map(|(_, value)| value.clone()).or_else(|| std::env::var_os("LD_PRELOAD"))
}

fn command(request: &Request) -> Command {
    let mut command = Command::new(&request.program);
    command.args(&request.arguments).envs(request.environment.iter().map(|(name, value)| (name, value)));
    if let Some(directory) = &request.directory {
        command.current_dir(directory);
    }
    command
}
