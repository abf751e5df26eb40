//! One-shot breakpoints by file and offset, in a program that we start. A breakpoint that is hit is
//! taken out and reported to an [`Observer`]; after the last one the program runs untraced.
//!
//! Breakpoints and not a system call filter, because a byte can be put back and a filter cannot.
//! The loop is in [`engine`], the breakpoints of one address space in [`space`].

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod engine;
mod launch;
mod outcome;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod release;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod space;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod table;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod trap;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tree;

use std::time::Duration;

use units::Moment;

use crate::file_id::FileId;

pub use crate::wake::Stop;
pub use outcome::{End, Exit, Outcome, Stops, Traced, Untraced};

/// An instruction to stop at, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The file.
    pub file: FileId,
    /// Offset in the file of the first byte of an instruction. (An offset inside an instruction
    /// changes the program: nothing checks it.)
    pub offset: u64,
    /// Only in processes that execute this file.
    pub executable: Option<FileId>,
    /// The caller's number for it.
    pub id: u32,
}

/// A thread came to a site for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// [`Site::id`].
    pub id: u32,
    /// The process that it happened in.
    pub pid: u32,
    /// Since the start of the launch.
    pub moment: Moment,
}

/// Is called on the tracing thread, while one thread of the program is stopped: implementations
/// hand work to another thread and return.
pub trait Observer: Send {
    /// The program is loaded and has not executed an instruction. It waits until this returns,
    /// traced or not.
    fn started(&mut self, pid: u32) {
        let _ = pid;
    }

    /// The program cannot be traced; it starts next, with the variables of
    /// [`crate::Program::variable_if`].
    fn untraced(&mut self, why: &Untraced) {
        let _ = why;
    }

    /// A site was hit.
    fn hit(&mut self, hit: Hit);

    /// Nothing is traced any more; the program runs on.
    fn released(&mut self, end: End) {
        let _ = end;
    }
}

/// Default of [`Breakpoints::time_limit`]: loading phases of long sessions lie within it, and a
/// program that runs for days is not traced for days.
pub const TIME_LIMIT: Duration = Duration::from_secs(600);

/// A set of one-shot breakpoints for one launch.
#[derive(Clone, Debug)]
pub struct Breakpoints {
    sites: Vec<Site>,
    time_limit: Duration,
    follow_children: bool,
    stop: Stop,
}

impl Breakpoints {
    /// Breakpoints at these sites, each hit at most once in the whole tree of processes.
    pub fn new(sites: impl Into<Vec<Site>>) -> Breakpoints {
        Breakpoints { sites: sites.into(), time_limit: TIME_LIMIT, follow_children: true, stop: Stop::new() }
    }

    /// After this time the program is detached, hits or not. Default [`TIME_LIMIT`].
    pub fn time_limit(mut self, limit: Duration) -> Breakpoints {
        self.time_limit = limit;
        self
    }

    /// Whether sites may be hit in child processes too (the default). If not, children are detached
    /// before their first instruction, and may then run set-user-id programs (see the crate's
    /// page): right for every program whose sites were all seen in its first process, whatever that
    /// executes.
    pub fn follow_children(mut self, follow: bool) -> Breakpoints {
        self.follow_children = follow;
        self
    }

    /// A handle to end the tracing from another thread.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }
}
