//! Errors of entering a sandbox.

use std::io;
use std::path::PathBuf;

/// Why a sandbox was not entered.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The process has threads that would stay outside.
    #[error("the sandbox must be entered before the first thread starts; there are {0} threads")]
    Threads(usize),
    /// A folder that the process has to write to is not there.
    #[error("cannot let {path} into the sandbox: {source}", path = path.display())]
    Path {
        /// The folder.
        path: PathBuf,
        /// The error of opening it.
        source: io::Error,
    },
    /// The kernel refuses a privilege to be given up.
    #[error("cannot give up {what}: {source}")]
    Privileges {
        /// The right that was to be given up.
        what: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Landlock is there and refuses.
    #[error("cannot restrict paths by Landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// Landlock is there, and nothing was restricted.
    #[error("Landlock restricted nothing")]
    NotEnforced,
    /// The filter cannot be made.
    #[error("cannot make a seccomp filter: {0}")]
    Filter(#[from] syscalls::ProfileError),
    /// Seccomp is there and refuses.
    #[error("cannot restrict system calls by seccomp: {0}")]
    Seccomp(#[source] seccompiler::Error),
}
