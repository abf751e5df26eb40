//! A program that is watched from its start to its end: plainly waited for, or followed under a
//! filter.
//!
//! A process that is to be followed is seized while it waits before its exec. If it asked to be
//! traced itself, a stop signal before the exec would stop it for a tracer that waits for the exec:
//! for ever.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::follow::{self, Counts, Seen};
use crate::ptrace::wait_for;
use crate::spawn::{Started, Waiting};
use crate::{Program, StartError};

/// A program on its way to be executed. One with a [filter](Program::filter) is traced by the
/// thread that made it; if that thread or this process ends, the kernel kills the program, which
/// could not go on.
pub struct Child {
    pid: Pid,
    name: String,
    started: Started,
}

impl Child {
    /// Starts the program.
    ///
    /// # Errors
    /// No process can be made, or it may not be traced; nothing was executed.
    pub fn start(program: &Program) -> Result<Child, StartError> {
        let waiting = Waiting::spawn(program, true)?;
        let pid = waiting.pid;
        if program.filter.is_some()
            && let Err(error) = follow::seize(pid.as_raw() as u32)
        {
            // It ends when the gate is closed.
            drop(waiting);
            let _ = waitpid(pid, None);
            return Err(StartError::Step { step: "trace the program", source: error });
        }
        Ok(Child { pid, name: program.name(), started: waiting.go() })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.pid.as_raw() as u32
    }

    /// Waits for the end of a program without a filter.
    ///
    /// # Errors
    /// It could not be executed, or not be waited for.
    pub fn wait(self) -> Result<ExitStatus, StartError> {
        let failure = self.started.failure();
        let ended = wait_for_end(self.pid).map_err(StartError::Wait)?;
        match failure {
            Some(source) => Err(StartError::Execute { program: self.name, source }),
            None => Ok(ended),
        }
    }

    /// Follows a program with a filter, and all that it starts, until no process is left; see
    /// [`crate::follow`]. To be called by the thread that started it. `seen` gets every named
    /// call. With `exact`, page faults of mapped files come one by one ([`crate::exact`]), where
    /// the kernel can; the filter must then stop at all mappings of files.
    ///
    /// # Errors
    /// It could not be executed. No later failure is one: a process that was killed is simply gone.
    pub fn follow(self, exact: bool, seen: impl FnMut(Seen)) -> Result<(ExitStatus, Counts), StartError> {
        let followed = follow::follow(self.id(), exact, seen);
        // An exec has closed the other end.
        let failure = if followed.is_executed { None } else { self.started.failure() };
        match failure {
            Some(source) => Err(StartError::Execute { program: self.name, source }),
            None => Ok((followed.ended, followed.counts)),
        }
    }
}

fn wait_for_end(pid: Pid) -> io::Result<ExitStatus> {
    loop {
        let (_, status) = wait_for(pid.as_raw())?;
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            return Ok(ExitStatus::from_raw(status));
        }
    }
}
