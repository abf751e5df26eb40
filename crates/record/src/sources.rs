//! Chooses the sources: the best that work here, with a note why no better ones do.

use std::io;
use std::path::PathBuf;

use probe::perf::Rings;
use probe::seccomp::{Calls, Filter, Maps, READS, lookups};
use trace::Source;

use crate::collector::Sources;
use crate::error::{FILEMAP, RecordError};
use crate::filemap::Filemap;
use crate::library::{LIBRARY, Library, find_library};
use crate::program;
use crate::request::{CandidatesChoice, MapsChoice, ReadsChoice, Request, SourceChoice};

/// What a recording is made with.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// What the trace will say.
    pub(crate) source: Source,
    /// What is open.
    pub(crate) sources: Sources,
    /// The library to preload, if any.
    pub(crate) library: Option<PathBuf>,
    /// The filter to put the program under, if any.
    pub(crate) filter: Option<Filter>,
    /// Whether page faults are to come one by one.
    pub(crate) exact: bool,
}

/// Chooses, and opens all but the filter.
pub(crate) fn choose(request: &Request, notes: &mut Vec<String>) -> Result<Chosen, RecordError> {
    let is_static = program::is_static(&request.program);
    let (library, ring) = match request.reads {
        ReadsChoice::Auto if !is_static => library(request, notes)?,
        ReadsChoice::Preload => library(request, notes)?,
        _ => None,
    }
    .unzip();
    if request.candidates == CandidatesChoice::Calls && library.is_none() {
        let source = io::Error::from(io::ErrorKind::NotFound);
        return Err(RecordError::Source { what: "calls: they need the preloaded library", source });
    }
    let exact = exact(request, notes);
    let (source, mut sources) = touches(request, exact, notes)?;
    let exact = exact && sources.perf.is_some() && source != Source::Residency;
    let is_seen = sources.filemap.as_ref().is_some_and(Filemap::sees_reads);
    sources.library = ring;
    let by_stops = match request.reads {
        ReadsChoice::Seccomp => true,
        // Without the library they are worth it where the program is traced anyway.
        ReadsChoice::Auto => {
            (is_static || (exact && library.is_none())) && !is_seen && request.maps != MapsChoice::Perf
        }
        _ => false,
    };
    let maps = match request.maps {
        MapsChoice::Auto if exact || sources.perf.is_none() => Maps::Files,
        MapsChoice::Auto | MapsChoice::Perf => Maps::None,
        MapsChoice::Seccomp => Maps::Files,
        MapsChoice::SeccompExecutable => Maps::Executable,
    };
    let numbers = if by_stops { [READS, &lookups()].concat() } else { Vec::new() };
    let calls = Calls { maps, numbers };
    let filter = (by_stops || maps != Maps::None).then(|| Filter::new(&calls));
    if filter.is_some() {
        let lost = if rustix::process::geteuid().is_root() { "" } else { ", set-user-id programs have no privileges" };
        let way = "`record --mmaps perf` and `launch --learn --no-ptrace` do without";
        notes.push(format!("the program is traced to its end: debuggers inside it fail{lost}; {way}"));
    }
    Ok(Chosen { source, sources, library, filter, exact })
}

/// Whether page faults shall and can come one by one.
fn exact(request: &Request, notes: &mut Vec<String>) -> bool {
    if !matches!(request.maps, MapsChoice::Auto | MapsChoice::Seccomp) {
        return false;
    }
    probe::exact::probe()
        .inspect_err(|error| notes.push(format!("page faults show windows of 64 KiB (before Linux 6.7?): {error}")))
        .is_ok()
}

/// What sees the touches of mapped files. With `exact`, page faults are enough for that, and reads
/// are seen otherwise: the trace points name files by number, and a process has often closed them
/// before it is asked for their path.
fn touches(request: &Request, exact: bool, notes: &mut Vec<String>) -> Result<(Source, Sources), RecordError> {
    let failed = |what| move |source| RecordError::Source { what, source };
    let perf = || Rings::open(request.ring_bytes);
    match request.source {
        SourceChoice::Filemap => {
            let filemap = Filemap::open().map_err(failed(FILEMAP))?;
            Ok(with_filemap(filemap, perf().ok(), notes))
        }
        SourceChoice::Perf => Ok(with_perf(perf().map_err(failed("perf events"))?, notes)),
        SourceChoice::Residency => Ok((Source::Residency, Sources { perf: perf().ok(), ..Sources::default() })),
        SourceChoice::Auto => {
            let rings = perf();
            if exact && let Ok(perf) = rings {
                return Ok(with_perf(perf, notes));
            }
            match Filemap::open() {
                Ok(filemap) => return Ok(with_filemap(filemap, rings.ok(), notes)),
                Err(error) => notes.push(format!("not by filemap trace points, which see ranges exactly: {error}")),
            }
            match rings {
                Ok(perf) => Ok(with_perf(perf, notes)),
                Err(error) => {
                    notes.push(format!("not by perf events, which see the order: {error} (perf_event_paranoid?)"));
                    Ok((Source::Residency, Sources::default()))
                }
            }
        }
    }
}

fn with_filemap(filemap: Filemap, perf: Option<Rings>, notes: &mut Vec<String>) -> (Source, Sources) {
    if perf.is_none() {
        notes.push("no perf events: places for breakpoints are not known".into());
    }
    if !filemap.sees_reads() {
        notes.push("this kernel has no trace point for reads (Linux 6.13)".into());
    }
    (Source::Filemap, Sources { perf, filemap: Some(filemap), ..Sources::default() })
}

fn with_perf(perf: Rings, notes: &mut Vec<String>) -> (Source, Sources) {
    if !perf.sees_kernel_faults() {
        notes.push("perf_event_paranoid hides page faults inside system calls".into());
    }
    (Source::Perf, Sources { perf: Some(perf), ..Sources::default() })
}

/// The library to preload, and its ring.
fn library(request: &Request, notes: &mut Vec<String>) -> Result<Option<(PathBuf, Library)>, RecordError> {
    let path = request.library.clone().or_else(find_library).map(|path| path.canonicalize());
    let is_there = path.is_some();
    let path = path.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::NotFound)));
    // A file size limit holds for the ring too.
    match path.and_then(|path| Ok((path, Library::new()?))) {
        Ok(found) => Ok(Some(found)),
        Err(source) if request.reads == ReadsChoice::Preload => {
            Err(RecordError::Source { what: "the preloaded library", source })
        }
        Err(error) => {
            let why = if is_there { error.to_string() } else { "it is not beside this program".into() };
            notes.push(format!("not by {LIBRARY}: {why}; reads and look-ups are seen by stops, or not at all"));
            Ok(None)
        }
    }
}
