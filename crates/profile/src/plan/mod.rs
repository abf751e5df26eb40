//! Launch plans: what a program reads in bursts, and what to prefetch when (Spidermine, SAC 2023,
//! doi 10.1145/3555776.3577754).
//!
//! A program reads in *bursts* with *idle periods* between them. The reads of one burst are a
//! *prefetch group*. The first group is fetched when the program starts, each later one when a
//! *breakpoint* in the idle period before it is hit. A group whose idle period has no unique
//! address goes with an earlier trigger. Where breakpoints are impossible, the load of a library in
//! the idle period replaces the address.
//!
//! A plan names files, not inodes, and records the identity of each (device-free: inode, length,
//! mtime, build id), so that a changed file is left out and the rest of the plan stays. Everything
//! here is a pure function; `launch` reads files, asks the disk where they lie, and sets
//! breakpoints.

mod analyse;
mod breakpoint;
pub mod burst;
mod dump;
mod error;
mod extent;
mod file;
pub mod format;
mod library;
mod merge;
pub mod order;
mod run;

use units::Moment;

pub use analyse::{AnalyseConfig, Analysis, Files, OVER_FETCH_PERCENT_MAX, Report, analyse};
pub use burst::{Burst, BurstConfig, Timeline};
pub use dump::dump;
pub use error::{PlanError, RunError};
pub use file::{Limits, decode, encode};
pub use run::{Code, Lookup, ProcessImage, Run, RunFile, Touch};

/// What a program reads, when, and what announces each burst.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Absolute path of the program, as it is started.
    pub program: Vec<u8>,
    /// Learning runs that it was made from.
    pub runs: u32,
    /// All files of groups, breakpoints and opens.
    pub files: Vec<PlanFile>,
    /// The prefetch groups in the order of their bursts; the first one is that of the launch.
    pub groups: Vec<Group>,
}

/// A file as it was when it was learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFile {
    /// From the root, without a leading slash; see [`trace::path_fault`].
    pub path: Vec<u8>,
    /// What it was; `None` for a directory or a path where nothing was found.
    pub identity: Option<Identity>,
}

/// Tells whether a file is still the one that was learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its inode number on its file system; opens go in this order on rotating disks.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last change of its content: nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The build id of an ELF file, at most 32 bytes; empty if it has none.
    pub build_id: Vec<u8>,
}

/// What one burst reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// What starts its prefetch.
    pub trigger: Trigger,
    /// What else announces its burst, for programs that get no breakpoints; never of the first
    /// group.
    pub library: Option<Library>,
    /// When its burst began in the learning run that makes the groups, from the start of the
    /// program.
    pub at: Moment,
    /// Positions in [`LaunchPlan::files`]: files and directories that are opened, paths that are
    /// looked for in vain, in the order in which it happened.
    pub opens: Vec<u32>,
    /// Extents in the order of their first touch; none overlaps another one of the plan.
    pub extents: Vec<GroupExtent>,
}

/// A run of pages of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupExtent {
    /// Position in [`LaunchPlan::files`].
    pub file: u32,
    /// Index of the first page.
    pub page: u32,
    /// How many.
    pub pages: u32,
}

/// What announces a burst.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trigger {
    /// The start of the program.
    #[default]
    Launch,
    /// A one-shot breakpoint.
    Breakpoint(Breakpoint),
    /// The trigger of an earlier group, by its position: no address of its own idle period is
    /// unique.
    With(u32),
}

/// An address that is run once, in the idle period before a burst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breakpoint {
    /// Position in [`LaunchPlan::files`] of the file whose code it is.
    pub file: u32,
    /// Where in that file, in bytes.
    pub offset: u64,
    /// Position in [`LaunchPlan::files`] of the executable of the process that runs it.
    pub process: u32,
    /// The original byte there, so that a wrong place is never written to.
    pub byte: u8,
    /// When it was hit in the learning run, from the start of the program. The group's own `at`
    /// less this is the lead.
    pub at: Moment,
}

/// A library that is loaded for the first time in the idle period before a burst, or in the burst
/// before that, by whatever process of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    /// Position in [`LaunchPlan::files`].
    pub file: u32,
    /// When it was loaded in the learning run, from the start of the program.
    pub at: Moment,
}

impl GroupExtent {
    /// Index of the first page behind it.
    pub fn end(&self) -> u32 {
        self.page.saturating_add(self.pages)
    }
}

#[cfg(test)]
mod tests;
