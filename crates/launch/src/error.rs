//! Errors of keeping plans and of the daemon. No error of prefetching reaches the program.

use std::io;
use std::path::PathBuf;

/// Errors of keeping plans and of starting programs.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A file or folder of plans cannot be used.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// What was tried: a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no folder for plans.
    #[error("neither XDG_CACHE_HOME nor HOME is set, so there is no folder for plans\nhint: give one with --plans DIR")]
    NoFolder,
    /// A plan that cannot be read.
    #[error("{}: {source}\nhint: `runnel plans forget` it and learn it anew", .path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: profile::plan::PlanError,
    },
    /// Traces that are not those of one local program.
    #[error("these traces make no plan: {0}")]
    Run(profile::plan::RunError),
    /// A folder of plans that root must not follow.
    #[error("{} {why}, so the daemon does not use it\nhint: chmod go-w it and what it lies in", .path.display())]
    Untrusted {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The daemon cannot do its work here.
    #[error("cannot {what}: {source}\nhint: {hint}")]
    Daemon {
        /// What was tried: a verb and its object.
        what: &'static str,
        /// Why not.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// A command that is not there.
    #[error("{}: no such program in PATH", .0.display())]
    NotFound(PathBuf),
}

impl LaunchError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LaunchError {
        let path = path.into();
        move |source| LaunchError::Io { what, path, source }
    }
}
