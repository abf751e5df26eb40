//! Launching local programs faster: a plan is fetched ahead of the program that it was learned from (Spidermine, SAC 2023,
//! doi 10.1145/3555776.3577754).
//!
//! Idea: a program's reads come in bursts and are nearly the same each time. The first group is fetched while the program starts;
//! each later one when the program passes its breakpoint. A plan costs bytes and never correctness: nothing that goes
//! wrong here changes what the program does, it then merely starts as slowly as before.
//!
//! The parts: `store` (plans and what each launch took, in the user's cache folder), `files` (is a file still the one that was
//! learned?), `disk` and `fiemap` (what kind of disk, and where on it), `warm` (is all in memory already?), `prefetch` (the worker
//! that opens and reads ahead), `session` (one launch: decide, hold, start, follow), `sites` (where breakpoints and probes go),
//! `auditor` (libraries that are loaded, in their place), `history` (what each launch took), `shim` (starting by
//! plain name), `daemon` (the same for programs that are started plainly, as root). Called by `cli` and `bench`.
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
