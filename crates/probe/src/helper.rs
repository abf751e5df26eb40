//! A launcher that becomes its program, with a helper process that traces it.
//!
//! A program that is the launcher's child has another process number than the one that a shell or a
//! supervisor knows; the launcher would have to pass signals on to it, and to repeat its end. So
//! the launcher splits off a helper. The helper has a session of its own, is nobody's child here,
//! and does all the work. The launcher waits for a message of the helper and executes the program
//! itself. If the helper is killed first, the launcher executes the program plainly.

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

/// Bytes of the message at most: a few variables.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// Which of the two this is now.
pub enum Side {
    /// The launcher: to become the program.
    Program(Waiter),
    /// The helper. Its standard streams lead nowhere, its directory is the root, and it must
    /// [`end`] instead of returning to its caller's caller.
    Helper(Origin),
}

/// The launcher, as it waits for the message.
pub struct Waiter {
    helper: UnixStream,
}

/// The launcher, as the helper sees it.
pub struct Origin {
    /// Its process.
    pub(crate) pid: Pid,
    launcher: UnixStream,
}

/// Splits this process. It must have one thread.
///
/// # Errors
/// Nothing was split: there is no process or descriptor left, other threads run, or the helper
/// would become a child of the program (this process is a subreaper, or the first process of its
/// name space).
pub fn split() -> io::Result<Side> {
    let mut reaper = 0_i32;
    // SAFETY: the kernel writes a number to `reaper`, which outlives the call.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut reaper) };
    if reaper != 0 || std::process::id() == 1 || fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let pid = Pid::this();
    let (mut helper, mut launcher) = UnixStream::pair()?;
    // SAFETY: this process has one thread, so the new one may do all that it may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(launcher);
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
                    leave(launcher.as_raw_fd());
                    let number = std::process::id().to_le_bytes();
                    let seen = launcher.write_all(&number).and_then(|()| launcher.read_exact(&mut [0]));
                    if seen.is_err() {
                        end();
                    }
                    Ok(Side::Helper(Origin { pid, launcher }))
                }
                _ => end(),
            }
        }
    }
}

/// Ends the helper, without what the launcher prepared for its own end.
pub fn end() -> ! {
    // SAFETY: it ends the process and touches no memory.
    unsafe { libc::_exit(0) }
}

/// Lets the process `helper` trace this one, where Yama would not; 0 takes that back.
fn may_trace(helper: i32) {
    // SAFETY: the call takes numbers only. A kernel without Yama refuses it and does not need it.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, helper as libc::c_ulong, 0, 0, 0) };
}

/// Closes what was inherited, or readers of a pipe would wait for us: all but `kept`.
fn leave(kept: i32) {
    let _ = std::env::set_current_dir("/");
    // SAFETY: this process has one thread and owns no descriptor above 2 but `kept`: those of its
    // origin are not used here.
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
    /// Waits for the message and becomes `program`; returns only if that fails.
    pub fn become_program(mut self, mut program: Program) -> StartError {
        let mut message = Vec::new();
        // Without a message, because the helper was killed, the program needs no variables.
        let whole = (&mut self.helper).take(MESSAGE_BYTES_MAX).read_to_end(&mut message);
        may_trace(0);
        if whole.is_ok() && message.pop() == Some(END) {
            for (name, value) in message.split(|byte| *byte == 0).filter_map(variable) {
                program = program.variable(name, value);
            }
        }
        drop(self);
        program.execute()
    }
}

/// The last byte of a message.
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
        // A launcher that was killed needs no message.
        let _ = (&self.launcher).write_all(&text);
    }
}
