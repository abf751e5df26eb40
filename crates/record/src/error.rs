//! Errors that keep a recording from being made.

use std::ffi::OsString;
use std::io;

/// Why nothing was recorded. Once the program runs, only [`RecordError::Wait`] can happen any more.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The program cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// Which.
        program: OsString,
        /// Why.
        source: io::Error,
    },
    /// The source that was asked for does not work here.
    #[error("cannot record by {what}: {source}{}", hint(what))]
    Source {
        /// Which source, or which way to see reads.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The program runs or has run, and its end is not known.
    #[error("cannot wait for the program: {0}")]
    Wait(io::Error),
    /// A step of our own failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What to do about a source that does not work, if that is known.
fn hint(what: &str) -> &'static str {
    match what {
        FILEMAP if !rustix::process::geteuid().is_root() => "\nhint: run this as root, or leave --source out",
        _ => "",
    }
}

/// The source that is root's.
pub(crate) const FILEMAP: &str = "filemap trace points";

impl RecordError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> RecordError {
        move |source| RecordError::System { what, source }
    }
}
