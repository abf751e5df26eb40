//! Errors of this crate.

use std::io;

/// Why a program could not be started. Once it runs, nothing is an error: the engine detaches it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The command line is empty, or a part of it holds a NUL byte.
    #[error("{what} cannot be handed to a program")]
    Argument {
        /// The part, in words.
        what: String,
    },
    /// The kernel would not execute the program: not found, no permission, not a program.
    #[error("cannot run {program}: {source}")]
    Execute {
        /// As it was asked for.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program was started, and cannot be waited for.
    #[error("cannot wait for the program: {0}")]
    Wait(io::Error),
    /// A system call before the start failed.
    #[error("cannot {step}: {source}")]
    Step {
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl StartError {
    pub(crate) fn step<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> StartError {
        move |source| StartError::Step { step, source: source.into() }
    }
}
