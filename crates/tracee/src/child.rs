//! Starting a program that is to be watched: what happens between fork and exec.

#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::{SigSet, SigmaskHow};

/// Gives the program the signal mask `mask`, whatever this process blocks for itself.
pub fn with_signal_mask(command: &mut Command, mask: SigSet) {
    let set =
        move || -> io::Result<()> { Ok(nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?) };
    // SAFETY: between fork and exec it makes one system call and allocates nothing.
    unsafe { command.pre_exec(set) };
}
