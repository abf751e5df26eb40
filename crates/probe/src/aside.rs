//! A launcher that becomes its program, with a process aside that traces it.
//!
//! A program that is the launcher's child has another process number than the one that a shell or a supervisor knows; signals have to be
//! passed on to it, and its end repeated. So the launcher splits: a process in a session of its own, no child of anybody here, does
//! all the work, and the launcher waits for a word and executes the program itself. Where the word never comes, because that
//! process was killed, it executes the program plainly.

#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, setsid};

use crate::{Program, StartError};

/// Bytes of the word at most: a few variables.
const WORD_BYTES_MAX: u64 = 1 << 20;

/// Which of the two this is now.
pub enum Side {
    /// The launcher: to become the program.
    Program(Waiter),
    /// The process aside. Its standard streams lead nowhere, its directory is the root, and it must not return to where it was called
    /// from, but end.
    Helper(Origin),
}

/// The launcher, as it waits for the word.
pub struct Waiter {
    helper: UnixStream,
}

/// The launcher, as the process aside sees it.
pub struct Origin {
    /// Its process.
    pub(crate) pid: Pid,
    word: UnixStream,
}

/// Splits this process. It must have one thread.
///
/// # Errors
/// Nothing was split: no process or descriptors to be had, other threads run, or the process aside would become a child of the program
/// (it is a subreaper, or the first process of its name space).
pub fn split() -> io::Result<Side> {
    let mut reaper = 0_i32;
    // SAFETY: the kernel writes a number to `reaper`, which outlives the call.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut reaper) };
    if reaper != 0 || std::process::id() == 1 || fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let pid = Pid::this();
    let (mut helper, mut word) = UnixStream::pair()?;
    // SAFETY: this process has one thread, so the new one may do all that it may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(word);
            while matches!(waitpid(child, None), Ok(WaitStatus::Stopped(..)) | Err(nix::errno::Errno::EINTR)) {}
            let mut number = [0; 4];
            helper.read_exact(&mut number)?;
            may_trace(i32::from_le_bytes(number));
            helper.write_all(&[1])?;
            Ok(Side::Program(Waiter { helper }))
        }
        ForkResult::Child => {
            let _ = setsid();
            // SAFETY: as above.
            match unsafe { fork() } {
                Ok(ForkResult::Child) => {
                    drop(helper);
                    leave(word.as_raw_fd());
                    let number = std::process::id().to_le_bytes();
                    let heard = word.write_all(&number).and_then(|()| word.read_exact(&mut [0]));
                    if heard.is_err() {
                        end();
                    }
                    Ok(Side::Helper(Origin { pid, word }))
                }
                _ => end(),
            }
        }
    }
}

/// Ends a process aside: nothing that the launcher prepared for its own end is run.
pub fn end() -> ! {
    // SAFETY: it ends the process and touches no memory.
    unsafe { libc::_exit(0) }
}

/// Lets the process `helper` trace this one, where Yama would not; 0 takes that back.
fn may_trace(helper: i32) {
    // SAFETY: the call takes numbers only. A kernel without Yama refuses it, and needs it not.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, helper as libc::c_ulong, 0, 0, 0) };
}

/// Closes what was inherited, or readers of a pipe would wait for us: all but `kept`.
fn leave(kept: i32) {
    let _ = std::env::set_current_dir("/");
    // SAFETY: this process has one thread and owns no descriptor above 2 but `kept`: those of its origin are not used here.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for stream in 0..3 {
            libc::dup2(null, stream);
        }
        libc::syscall(libc::SYS_close_range, 3, kept - 1, 0);
        libc::syscall(libc::SYS_close_range, kept + 1, u32::MAX, 0);
    }
}

impl Waiter {
    /// Waits for the word and becomes `program`; returns only if that fails.
    pub fn become_program(mut self, mut program: Program) -> StartError {
        let mut word = Vec::new();
        // What does not come, because the process aside was killed, is not needed.
        let whole = (&mut self.helper).take(WORD_BYTES_MAX).read_to_end(&mut word);
        may_trace(0);
        if whole.is_ok() && word.pop() == Some(END) {
            for (name, value) in word.split(|byte| *byte == 0).filter_map(variable) {
                program = program.variable(name, value);
            }
        }
        drop(self);
        program.execute()
    }
}

/// Ends a word.
const END: u8 = 0xff;

fn variable(text: &[u8]) -> Option<(OsString, OsString)> {
    let equal = text.iter().position(|byte| *byte == b'=')?;
    Some((OsString::from_vec(text[..equal].to_vec()), OsString::from_vec(text[equal + 1..].to_vec())))
}

impl Origin {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw() as u32
    }

    /// Lets it execute the program, with these variables beside its own.
    pub(crate) fn go<'a>(self, variables: impl Iterator<Item = (&'a OsStr, &'a OsStr)>) {
        let mut text = Vec::new();
        for (name, value) in variables {
            text.extend([name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat());
        }
        text.push(END);
        // A launcher that was killed needs no word.
        let _ = (&self.word).write_all(&text);
    }
}
