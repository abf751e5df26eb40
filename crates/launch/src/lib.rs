//! Starts local programs faster: prefetches the files that a launch plan lists, ahead of the
//! program that it was learned from (Spidermine, SAC 2023, doi 10.1145/3555776.3577754).
//!
//! A program's reads come in bursts and are nearly the same in each run. The first group of the
//! plan is fetched while the program starts, each later one when the program passes its breakpoint.
//! A plan costs bytes and never correctness: an error here changes nothing that the program does,
//! which then starts as slowly as without a plan.
//!
//! The parts: `store` (plans, and what each launch took, in the user's cache folder), `files` (is a
//! file still the one that was learned?), `disk` and `fiemap` (the kind of disk, and where on it),
//! `warm` (is all in memory already?), `prefetch` (the thread that opens and reads ahead),
//! `session` (one launch), `sites` (where breakpoints and probes go), `auditor` (loads of
//! libraries, in place of breakpoints), `history` (what each launch took), `shim` (starting by
//! plain name), `daemon` (the same for programs that are started plainly, as root).
#![cfg(target_os = "linux")]

mod auditor;
pub mod daemon;
mod disk;
mod error;
mod fiemap;
mod files;
mod history;
pub mod learn;
mod memory;
mod prefetch;
mod priority;
mod program;
mod quiet;
mod session;
pub mod shim;
mod sites;
mod small_file;
mod store;
mod warm;

pub use disk::DiskKind;
pub use error::LaunchError;
pub use files::{FilesFit, fit, identity};
pub use history::{Comparison, History, Launch, Mode};
pub use prefetch::{Fetched, Hints, Job, NoHints, Prefetcher, Settings};
pub use probe::StartError as NotStarted;
pub use program::Program;
pub use session::{Decision, HOLD_MAX, Outcome, Request, become_program, decide, launch};
pub use store::{Entry, PlanStore, read_plan};
pub use warm::{Warmth, warmth};

#[cfg(test)]
mod tests;
