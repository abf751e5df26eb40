//! A new process that waits before it executes its program, so that a tracer can seize it first.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use nix::unistd::{ForkResult, Pid};

use crate::program::Prepared;
use crate::{Program, StartError};

/// A process of ours that waits for [`Waiting::go`]. Dropped instead, it ends without having run
/// anything.
pub(crate) struct Waiting {
    pub(crate) pid: Pid,
    gate: PipeWriter,
    failure: PipeReader,
}

/// Reports why the program was not executed, if it was not.
#[derive(Default)]
pub(crate) struct Started {
    /// `None` for a process that was not spawned here.
    failure: Option<PipeReader>,
}

/// Exit code of a process that could not execute its program, as shells give it.
const NOT_EXECUTED: c_int = 127;

/// Lists of pointers to strings, ended by null, as `execve` takes them: made before the fork, since
/// a child of a process with threads may not allocate.
struct Lists<'a> {
    prepared: &'a Prepared,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    /// For files without a known format, which execvp hands to the shell: `sh`, the file (to be
    /// set), and the arguments.
    shell: Vec<*const c_char>,
}

impl Lists<'_> {
    fn new(prepared: &Prepared) -> Lists<'_> {
        let pointers = |texts: &[CString]| -> Vec<*const c_char> {
            texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
        };
        let arguments = pointers(&prepared.arguments);
        let shell = [c"sh".as_ptr(), ptr::null()].into_iter().chain(arguments[1..].iter().copied()).collect();
        let environment = pointers(&prepared.environment);
        Lists { prepared, arguments, environment, shell }
    }
}

impl Program {
    /// Becomes the program, with the variables that it has in any case; returns only if that fails.
    /// Its streams are those of this process, no signal is blocked, and SIGPIPE is as by default.
    pub fn execute(self) -> StartError {
        match self.prepare_with(|_| false) {
            Ok(prepared) => StartError::Execute { program: self.name(), source: become_program(&prepared) },
            Err(error) => error,
        }
    }
}

/// Becomes a program that is not traced by us; the error that kept this process from that.
fn become_program(prepared: &Prepared) -> io::Error {
    io::Error::from_raw_os_error(execute(&mut Lists::new(prepared), [-1; 3]))
}

impl Waiting {
    /// Makes the process; `is_traced`: with the variables of a program that is.
    pub(crate) fn spawn(program: &Program, is_traced: bool) -> Result<Waiting, StartError> {
        let prepared = program.prepare(is_traced)?;
        let mut lists = Lists::new(&prepared);
        let streams = [0, 1, 2].map(|stream| program.streams[stream].as_ref().map_or(-1, File::as_raw_fd));
        let (gate_reader, gate) = io::pipe().map_err(StartError::step("make a pipe"))?;
        let (failure, failure_writer) = io::pipe().map_err(StartError::step("make a pipe"))?;
        // SAFETY: the child only makes system calls, on memory prepared before, and never returns.
        match unsafe { nix::unistd::fork() }.map_err(StartError::step("start a process"))? {
            ForkResult::Child => {
                let ends = [gate_reader.as_raw_fd(), gate.as_raw_fd(), failure_writer.as_raw_fd()];
                child(&mut lists, streams, ends)
            }
            ForkResult::Parent { child } => Ok(Waiting { pid: child, gate, failure }),
        }
    }

    /// Lets it execute the program.
    pub(crate) fn go(mut self) -> Started {
        // A child that is gone already shows when it is waited for.
        let _ = self.gate.write_all(&[1]);
        Started { failure: Some(self.failure) }
    }
}

impl Started {
    /// Why the process ended without executing the program; None if it did. Waits for the exec, or
    /// for the end.
    pub(crate) fn failure(self) -> Option<io::Error> {
        let mut number = [0u8; 4];
        self.failure?.read_exact(&mut number).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_le_bytes(number)))
    }
}

fn child(lists: &mut Lists, streams: [RawFd; 3], [gate, other_gate, failure]: [RawFd; 3]) -> ! {
    // SAFETY: system calls on descriptors and memory of ours; all of them may be called after a
    // fork.
    unsafe {
        libc::close(other_gate);
        let mut go = 0u8;
        if libc::read(gate, (&raw mut go).cast(), 1) == 1 {
            let error = execute(lists, streams);
            let number = error.to_le_bytes();
            libc::write(failure, number.as_ptr().cast(), number.len());
        }
        libc::_exit(NOT_EXECUTED)
    }
}

/// Executes the program; returns the number of the error that kept it from that.
fn execute(lists: &mut Lists, streams: [RawFd; 3]) -> c_int {
    // SAFETY: system calls on descriptors, strings that end with NUL and lists that end with null;
    // all of them may be called after a fork.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, lists.prepared.mask.as_ref(), ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        for (stream, file) in (0..).zip(streams) {
            if file >= 0 && libc::dup2(file, stream) < 0 {
                return *libc::__errno_location();
            }
        }
        if let Some(directory) = &lists.prepared.directory
            && libc::chdir(directory.as_ptr()) < 0
        {
            return *libc::__errno_location();
        }
        if let Some(filter) = &lists.prepared.filter
            && let Err(error) = filter.install()
        {
            return error.raw_os_error().unwrap_or(libc::EPERM);
        }
        let mut refused = libc::ENOENT;
        for candidate in &lists.prepared.candidates {
            libc::execve(candidate.as_ptr(), lists.arguments.as_ptr(), lists.environment.as_ptr());
            match *libc::__errno_location() {
                libc::ENOEXEC => {
                    lists.shell[1] = candidate.as_ptr();
                    libc::execve(c"/bin/sh".as_ptr(), lists.shell.as_ptr(), lists.environment.as_ptr());
                    return libc::ENOEXEC;
                }
                // The next directory may have it; but that it was there and refused is worth more
                // than "not found".
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => refused = libc::EACCES,
                error => return error,
            }
        }
        refused
    }
}
