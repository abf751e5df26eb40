//! What happens between fork and exec of a program that is to be watched.

#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::seccomp::Filter;

/// Gives the program the signal mask `mask`, whatever this process blocks for itself.
pub fn with_signal_mask(command: &mut Command, mask: SigSet) {
    let set =
        move || -> io::Result<()> { Ok(nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?) };
    // SAFETY: between fork and exec it makes one system call and allocates nothing.
    unsafe { command.pre_exec(set) };
}

/// Puts the program under a filter, traced by the thread that spawns it, which must then [`follow`](crate::follow::follow) it.
pub fn under(command: &mut Command, filter: Filter) {
    let install = move || -> io::Result<()> {
        nix::sys::ptrace::traceme()?;
        filter.install()
    };
    // SAFETY: between fork and exec it makes a few system calls and allocates nothing.
    unsafe { command.pre_exec(install) };
}
