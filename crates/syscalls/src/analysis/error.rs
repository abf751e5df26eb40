//! Errors of the analysis of an image.

use elf::{ClosureError, ElfError};

/// What keeps an image from being analysed.
#[derive(Debug, thiserror::Error)]
pub enum AnalysisError {
    /// A program and what it needs could not be found.
    #[error(transparent)]
    Closure(#[from] ClosureError),
    /// A file is damaged.
    #[error("{}: {source}", String::from_utf8_lossy(path))]
    Elf {
        /// Its path.
        path: Vec<u8>,
        /// What is wrong.
        source: ElfError,
    },
    /// Libraries that a program needs are not there.
    #[error("{} needs {}, which is not there", String::from_utf8_lossy(needed_by), String::from_utf8_lossy(name))]
    Missing {
        /// The library.
        name: Vec<u8>,
        /// Who needs it.
        needed_by: Vec<u8>,
    },
    /// The code of a program is for a processor that is not understood.
    #[error(
        "{}: machine code of this architecture (ELF machine {machine}) is not understood, only x86-64",
        String::from_utf8_lossy(path)
    )]
    Machine {
        /// The program.
        path: Vec<u8>,
        /// As the ELF header numbers it.
        machine: u16,
    },
    /// There is no program.
    #[error("no program for x86-64 in the tree")]
    Nothing,
    /// A limit was passed.
    #[error("more than {limit} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// What we accept.
        limit: u64,
    },
    /// Reading failed.
    #[error("cannot read {}: {source}", String::from_utf8_lossy(path))]
    Read {
        /// Its path.
        path: Vec<u8>,
        /// The failure.
        source: std::io::Error,
    },
}
