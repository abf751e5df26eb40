//! Records a program of this machine: which pages of which files it touches, in which order, where
//! code runs for the first time, and which paths it looks up. The result is a trace
//! (`docs/formats/trace.md`) of local files.
//!
//! The program runs as it would without us: same environment but for what a recorder needs, same
//! terminal, same exit code. Its children and threads are followed. Several sources feed one
//! [`Collector`](collector), which sorts their records by time, and one [`Assembler`](assembler),
//! which turns them into events: first touches only, and of no file that changed meanwhile.
//!
//! | source | sees | needs |
//! |---|---|---|
//! | perf | page faults and mappings, on a warm cache too | `perf_event_paranoid` at most 2 |
//! | filemap | every range that a fault maps or a read takes | root |
//! | residency | pages of the files that are in memory afterwards | files that are ours |
//!
//! Page faults are exact with Linux 6.7 ([`probe::exact`], two stops for each mapping of a file).
//! Otherwise a fault stands for the 64 KiB around it, and nothing stops.
//!
//! Reads and look-ups come from a preloaded library (`crates/preload`, no stops). For static
//! programs they come from stops at system calls that a seccomp filter chooses, or, as root and
//! where page faults are not exact, from the filemap trace points. First instructions of code come
//! from perf.
//!
//! A recording has what was *touched*, not what the kernel read ahead: lists of the latter made
//! programs slower.
//!
//! Units: bytes; times in traces are microseconds since the recording began.

mod assembler;
mod collector;
mod error;
mod filemap;
mod files;
mod library;
mod program;
mod raw;
mod request;
// Both sides compile the same file, and each uses a part of it.
#[allow(dead_code)]
#[path = "../../preload/src/ring.rs"]
mod ring;
mod sources;
mod space;
mod supervise;
mod traced;

use std::ffi::OsString;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};

use host::Exit;
use host::signals::Signals;
use probe::child::Child;
use probe::{Program, StartError};
use trace::Source;

pub use assembler::Summary;
pub use error::RecordError;
pub use library::{AUDITOR, LIBRARY, find_auditor, find_library};
pub use probe::follow::Counts;
pub use request::{CandidatesChoice, MapsChoice, ReadsChoice, Request, SourceChoice};

use assembler::Assembler;
use collector::{Collector, now};
use files::Files;
use traced::Interpreter;

/// A recording that was made.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the program ended.
    pub exit: Exit,
    /// The trace file.
    pub trace: Vec<u8>,
    /// Who recorded, as the trace says.
    pub source: Source,
    /// What it holds.
    pub summary: Summary,
    /// Stops of the program that the recording made.
    pub stops: Counts,
    /// What the user should know about it: why a better source was not used, what may be missing.
    pub notes: Vec<String>,
}

/// Runs the program and records it. The trace is complete however the program ends.
///
/// Blocks the signals that a wrapper passes on while the program runs, in the calling thread; call
/// it from the main one. After an error they may stay blocked ([`host::signals::unblock`]).
///
/// # Errors
/// The source that was asked for does not work here, or the program cannot be started: it did not
/// run then. Or its end is not known ([`RecordError::Wait`]). Later failures leave an outcome
/// without a trace, and a note.
pub fn record(request: &Request) -> Result<Outcome, RecordError> {
    let mut notes = Vec::new();
    // First: with a file size limit, some of the rest is an error, and not the end.
    let signals = Signals::of_wrapper().map_err(RecordError::system("receive signals"))?;
    let chosen = sources::choose(request, &mut notes)?;
    let (source, exact, mut sources) = (chosen.source, chosen.exact, chosen.sources);
    let mut program = program(request).signal_mask(signals.mask_before());
    if let (Some(path), Some(library)) = (&chosen.library, &sources.library) {
        for (name, value) in library.environment(path, preloaded(request)) {
            program = program.variable(name, value);
        }
        if request.candidates == CandidatesChoice::Calls {
            program = program.variable("RUNNEL_TRACE_CALLS", "1");
        }
    }
    let (to, from) = mpsc::channel();
    let is_followed = chosen.filter.is_some();
    if let Some(filter) = chosen.filter {
        program = program.filter(filter);
        sources.traced = Some(from);
    }
    if let Some(filemap) = &sources.filemap {
        filemap.start().map_err(|source| RecordError::Source { what: error::FILEMAP, source })?;
    }
    let assembler = Assembler::new(Files::new(chosen.library), source, request.candidates, now());
    let running = Arc::new(AtomicUsize::new(usize::MAX));
    let collector = Collector::new(sources, assembler, Arc::clone(&running));
    let (stop, stopper) = io::pipe().map_err(RecordError::system("make a pipe"))?;
    let thread = std::thread::Builder::new().name("collector".into());
    let thread = thread.spawn(move || collector.run(&stop)).map_err(RecordError::system("start a thread"))?;
    let passing = signals.pass_on().map_err(RecordError::system("pass signals on"))?;
    let ended = Child::start(&program).and_then(|child| {
        // Its thread waits for this.
        let _ = passing.to().send(child.id());
        if is_followed {
            let mut interpreter = Interpreter::new(to);
            return child.follow(exact, |seen| interpreter.seen(seen));
        }
        child.wait().map(|status| (status, Counts::default()))
    });
    // From here on the program has run, and its end counts.
    let waited = passing.stop().and_then(|signals| {
        let waited = (request.wait_all && ended.is_ok()).then(|| supervise::wait_all(&running, &signals));
        signals.restore();
        waited.unwrap_or(Ok(()))
    });
    drop(stopper);
    let assembler = thread.join();
    let (status, stops) = ended.map_err(|error| not_started(request, error))?;
    if let Err(error) = waited {
        notes.push(format!("other processes were not waited for: {error}"));
    }
    let mut outcome = Outcome {
        exit: status.into(),
        trace: Vec::new(),
        source,
        summary: Summary::default(),
        stops,
        notes: Vec::new(),
    };
    match assembler
        .map_err(|_| io::Error::other("the collector panicked"))
        .and_then(|assembler| finish(assembler, &mut notes))
    {
        Ok((trace, summary)) => (outcome.trace, outcome.summary) = (trace, summary),
        Err(error) => notes.push(format!("nothing was recorded: {error}")),
    }
    outcome.notes = notes;
    Ok(outcome)
}

fn finish(assembler: Assembler, notes: &mut Vec<String>) -> io::Result<(Vec<u8>, Summary)> {
    if assembler.is_full() {
        notes.push("the trace reached its limit and ends before the program did".into());
    }
    let unknown = assembler.unknown();
    if unknown > 0 {
        notes.push(format!("the kernel does not say what of {unknown} files is in memory: they are others'"));
    }
    let (trace, summary) = assembler.finish(now()).map_err(io::Error::other)?;
    if summary.lost > 0 {
        notes.push(format!("{} records were lost: the trace may lack pages", summary.lost));
    }
    Ok((trace, summary))
}

/// What the program would preload anyway.
fn preloaded(request: &Request) -> Option<OsString> {
    let given = request.environment.iter().rev().find(|(name, _)| name == "LD_PRELOAD");
    given.map(|(_, value)| value.clone()).or_else(|| std::env::var_os("LD_PRELOAD"))
}

fn program(request: &Request) -> Program {
    let mut program = Program::new([&request.program].into_iter().chain(&request.arguments));
    for (name, value) in &request.environment {
        program = program.variable(name, value);
    }
    match &request.directory {
        Some(directory) => program.directory(directory),
        None => program,
    }
}

fn not_started(request: &Request, error: StartError) -> RecordError {
    let program = request.program.clone();
    match error {
        StartError::Execute { source, .. } => RecordError::Start { program, source },
        StartError::Argument { what } => {
            RecordError::Start { program, source: io::Error::new(io::ErrorKind::InvalidInput, what) }
        }
        StartError::Wait(source) => RecordError::Wait(source),
        StartError::Step { step, source } => RecordError::System { what: step, source },
    }
}
