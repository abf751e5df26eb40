//! The end of a program, and ending in the same way.
//!
//! Shells and supervisors distinguish a program that was killed from one that exits with a high
//! code: a `set -e` loop ends at Ctrl-C only if its program died of the signal. So a program that
//! runs another one dies of the same signal.

#![allow(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By exit, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// The exit code of a shell: the code, or 128 and the number of the signal.
    pub fn code(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        }
    }

    /// Ends this process in the same way: by the same signal, without a core file; or returns the
    /// code to exit with. Nothing is cleaned up, so it is the last thing that a program does.
    #[must_use = "a program that exited is followed by exiting with its code"]
    pub fn follow(self) -> u8 {
        if let Exit::Signal(signal) = self {
            die_of(signal);
        }
        // Impossible, for example because this is the first process of a container, to which its
        // own signals do nothing.
        self.code().clamp(0, 255) as u8
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        match status.signal() {
            Some(signal) => Exit::Signal(signal),
            None => Exit::Code(status.code().unwrap_or(0)),
        }
    }
}

fn die_of(signal: i32) {
    use std::io::Write;
    // Standard output is line-buffered, and what is in the buffer would be lost.
    let _ = std::io::stdout().flush();
    // The program has dumped its core, if any; ours tells nothing. A limit of zero would not keep
    // it from a pipe. A sandbox may refuse it, which does no harm where the signal makes no core.
    let no_core = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGKILL].contains(&signal);
    if nix::sys::prctl::set_dumpable(false).is_err() && !no_core {
        return;
    }
    // SAFETY: the default action has no handler; the set is initialised by the C library, which
    // refuses bad numbers.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_end() {
        for (signal, number) in [(libc::SIGTERM, 15), (libc::SIGSEGV, 11), (libc::SIGKILL, 9), (40, 40)] {
            // SAFETY: the child makes system calls only, and ends.
            let child = match unsafe { nix::unistd::fork() }.expect("forked") {
                // SAFETY: ends the child.
                nix::unistd::ForkResult::Child => unsafe { libc::_exit(Exit::Signal(signal).follow().into()) },
                nix::unistd::ForkResult::Parent { child } => child,
            };
            let mut status = 0;
            // SAFETY: the pointer leads to an int.
            unsafe { libc::waitpid(child.as_raw(), &mut status, 0) };
            assert_eq!(Exit::from(ExitStatus::from_raw(status)), Exit::Signal(number));
            assert!(!libc::WCOREDUMP(status));
        }
        assert_eq!((Exit::Code(3).follow(), Exit::Signal(15).code()), (3, 143));
    }
}
