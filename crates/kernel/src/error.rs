//! Errors of building, linking or starting a kernel.

use std::io;
use std::path::PathBuf;

use coverage::CoverageError;
use specialise::SpecialiseError;

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// A program failed, or could not be started.
    #[error("{program} failed ({status}){}", Tail(tail))]
    Tool {
        /// The program.
        program: String,
        /// How it ended.
        status: String,
        /// The last lines that it wrote.
        tail: String,
    },
    /// The folder is no kernel source.
    #[error("{}: no kernel source: {reason}", path.display())]
    NotSource {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        reason: &'static str,
    },
    /// The configuration cannot be used.
    #[error("configuration: {reason}")]
    Config {
        /// Why.
        reason: String,
    },
    /// A file of ours has a line that is not understood.
    #[error("{}: {reason}", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system calls cannot be used.
    #[error("system calls: {reason}")]
    Calls {
        /// Why.
        reason: String,
    },
    /// Some calls of the programs of an image are not known, so that every call would have to stay.
    #[error("{}: any system call may be made{}{}", image.display(), Places(sites), Notes(notes))]
    UnknownCalls {
        /// The image.
        image: PathBuf,
        /// The places, in words.
        sites: Vec<String>,
        /// What else the analysis could not look at.
        notes: Vec<String>,
    },
    /// The object of a build was refused.
    #[error("{}: {source}; hint: remove {} to build the kernel anew", path.display(), build.display())]
    Object {
        /// The object.
        path: PathBuf,
        /// Folder of the build.
        build: PathBuf,
        /// Why.
        source: SpecialiseError,
    },
    /// A scenario could not be recorded.
    #[error("recording: {reason}")]
    Recording {
        /// Why.
        reason: String,
    },
    /// A file about code that ran cannot be used.
    #[error("{}: {source}", path.display())]
    Coverage {
        /// The file.
        path: PathBuf,
        /// Why.
        source: CoverageError,
    },
    /// What was asked for cannot be.
    #[error("{0}")]
    Specialise(#[from] SpecialiseError),
}

struct Tail<'a>(&'a str);

impl std::fmt::Display for Tail<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(formatter, "; its last lines:\n{}", self.0) }
    }
}

/// Places that a message names.
const PLACES_MAX: usize = 20;

struct Places<'a>(&'a [String]);

impl std::fmt::Display for Places<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(formatter, "; {} places are not resolved:", self.0.len())?;
        for place in self.0.iter().take(PLACES_MAX) {
            write!(formatter, "\n  {place}")?;
        }
        if self.0.len() > PLACES_MAX { write!(formatter, "\n  …") } else { Ok(()) }
    }
}

struct Notes<'a>(&'a [String]);

impl std::fmt::Display for Notes<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().take(PLACES_MAX).try_for_each(|note| write!(formatter, "\n  note: {note}"))
    }
}

/// An error of reading or writing `path`.
pub(crate) fn io_at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> KernelError {
    let path = path.into();
    |source| KernelError::Io { path, source }
}
