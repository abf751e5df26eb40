//! The thread that empties the sources while the program runs.
//!
//! The ring of each processor is in order, but the rings together are not. So records wait until
//! the next round. By then everything older than the beginning of this round has been read, and the
//! older part can be sorted and assembled.

use std::io::{self, PipeReader};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use nix::poll::{PollFd, PollFlags};
use probe::perf::Rings;

use crate::assembler::Assembler;
use crate::filemap::Filemap;
use crate::library::Library;
use crate::raw::{Did, Raw};

/// Milliseconds between two rounds where nothing wakes us: the library's ring of 4 MiB would need a
/// million reads a second to overflow, and fifty wake-ups a second cost nothing that can be
/// measured.
const ROUND_MILLISECONDS: u16 = 20;

/// What is emptied.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// Page faults and mappings.
    pub(crate) perf: Option<Rings>,
    /// Reads and look-ups, by the preloaded library.
    pub(crate) library: Option<Library>,
    /// Ranges, by the kernel's trace points.
    pub(crate) filemap: Option<Filemap>,
    /// Calls that stopped.
    pub(crate) traced: Option<Receiver<Raw>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Collector {
    sources: Sources,
    assembler: Assembler,
    pending: Vec<Raw>,
    /// When the round before this began.
    round_before: u64,
    /// Processes that run, for a caller that waits for all.
    running: Arc<AtomicUsize>,
}

impl Collector {
    /// Over these sources; counts in `running` how many processes are known to run.
    pub(crate) fn new(sources: Sources, assembler: Assembler, running: Arc<AtomicUsize>) -> Collector {
        Collector { sources, assembler, pending: Vec::new(), round_before: 0, running }
    }

    /// Empties the sources until the other end of `stop` is closed, and then once more.
    pub(crate) fn run(mut self, stop: &PipeReader) -> Assembler {
        loop {
            let stopped = self.wait(stop).unwrap_or(true);
            let began = now();
            self.round();
            let before = std::mem::replace(&mut self.round_before, began);
            self.assemble(if stopped { u64::MAX } else { before });
            // What waits may be the beginning of a process.
            self.running.store(self.assembler.running() + self.pending.len(), Ordering::Relaxed);
            if stopped {
                self.assembler.lose(self.sources.library.as_ref().map_or(0, Library::lost));
                return self.assembler;
            }
        }
    }

    /// Whether it is time to stop.
    fn wait(&self, stop: &PipeReader) -> io::Result<bool> {
        match &self.sources.perf {
            Some(rings) => rings.wait(stop.as_fd(), ROUND_MILLISECONDS)?,
            None => drop(poll(stop, ROUND_MILLISECONDS)?),
        }
        poll(stop, 0)
    }

    fn round(&mut self) {
        let pending = &mut self.pending;
        if let Some(rings) = &mut self.sources.perf {
            rings.drain(|record| {
                pending.push(Raw { at: record.at, process: record.process, what: Did::Perf(record.what) });
            });
        }
        if let Some(library) = &mut self.sources.library {
            // Reading memory of our own does not fail.
            let _ = library.drain(|raw| pending.push(raw));
        }
        if let Some(filemap) = &mut self.sources.filemap {
            // What the kernel does not give is not there; the trace then lacks it.
            let _ = filemap.drain(|raw| pending.push(raw));
        }
        if let Some(traced) = &self.sources.traced {
            pending.extend(traced.try_iter());
        }
    }

    fn assemble(&mut self, until: u64) {
        // Pieces of it are in order already, which this sort makes use of; equal times keep their
        // order.
        self.pending.sort_by_key(|raw| raw.at);
        let ready = self.pending.partition_point(|raw| raw.at <= until);
        for raw in self.pending.drain(..ready) {
            self.assembler.push(raw);
        }
    }
}

fn poll(stop: &PipeReader, milliseconds: u16) -> io::Result<bool> {
    let mut fds = [PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
    match nix::poll::poll(&mut fds, milliseconds) {
        Ok(ready) => Ok(ready > 0),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
