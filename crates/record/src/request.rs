//! The options of a recording.

use std::ffi::OsString;
use std::path::PathBuf;

use probe::perf;

/// Which program to record, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program, searched in PATH if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Its working directory; ours if `None`.
    pub directory: Option<PathBuf>,
    /// The source of touched pages of mapped files.
    pub source: SourceChoice,
    /// The source of reads of files and of look-ups.
    pub reads: ReadsChoice,
    /// The source of mappings of files.
    pub maps: MapsChoice,
    /// Where breakpoints may be set.
    pub candidates: CandidatesChoice,
    /// The library that is preloaded to see reads; [`find_library`](crate::find_library) if `None`.
    pub library: Option<PathBuf>,
    /// Go on until every process that the program started has ended, not only the program.
    pub wait_all: bool,
    /// Bytes of the ring of page faults of each processor, at most.
    pub ring_bytes: usize,
}

impl Request {
    /// Records `program` by the best source there is.
    pub fn new(program: impl Into<OsString>) -> Request {
        Request {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            source: SourceChoice::Auto,
            reads: ReadsChoice::Auto,
            maps: MapsChoice::Auto,
            candidates: CandidatesChoice::Faults,
            library: None,
            wait_all: false,
            ring_bytes: perf::RING_BYTES_MAX,
        }
    }
}

/// The source of touched pages of mapped files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceChoice {
    /// The best that works here.
    #[default]
    Auto,
    /// Page faults as perf events.
    Perf,
    /// The kernel's `filemap` trace points, as root.
    Filemap,
    /// What of the files is in memory afterwards.
    Residency,
}

/// The source of reads of files and of look-ups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadsChoice {
    /// The best that works here. With [`MapsChoice::Perf`], no stops.
    #[default]
    Auto,
    /// A library that is loaded before the program: no stops, no root.
    Preload,
    /// Stops at the calls that read and look up: for static programs. Up to half of a program's
    /// time.
    Seccomp,
    /// Nothing: mapped files only, or what the source sees itself.
    None,
}

/// The source of mappings of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapsChoice {
    /// Perf events, and stops at each mapping of a file where that makes page faults exact or there
    /// are no perf events.
    #[default]
    Auto,
    /// Perf events: no stops, and page faults show windows of 64 KiB.
    Perf,
    /// Perf events and stops at each mapping of a file. Page faults are exact ([`probe::exact`])
    /// where the kernel can.
    Seccomp,
    /// Perf events and stops at each mapping of a file that code may run in.
    SeccompExecutable,
}

/// Where breakpoints may be set: what becomes of [`trace::Event::Code`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CandidatesChoice {
    /// The first instruction of each page of code that runs.
    #[default]
    Faults,
    /// Return addresses of a few functions of the C library that were called from there once, as in
    /// Spidermine; for comparison. The preloaded library must have been built with the feature
    /// `calls`.
    Calls,
}
