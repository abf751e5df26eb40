//! The ptrace and wait calls of the engine that `nix` lacks: it knows no real-time signals, which the C library uses
//! between threads, neither in wait statuses nor for going on, and has no PTRACE_LISTEN and no kcmp.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::ptr;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::Exit;

/// The type of a request's number, which C libraries do not agree about.
#[cfg(target_env = "musl")]
pub(crate) type Number = c_int;
/// The type of a request's number, which C libraries do not agree about.
#[cfg(not(target_env = "musl"))]
pub(crate) type Number = std::ffi::c_uint;

/// `PTRACE_EVENT_STOP`: the first stop of a new thread, the answer to an interrupt, and group stops.
pub(crate) const EVENT_STOP: c_int = libc::PTRACE_EVENT_STOP;

/// What became of a thread or process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It is gone.
    Ended(Exit),
    /// It stands in a stop of ptrace: the signal, and one of PTRACE_EVENT_* or 0 when that signal is to be delivered.
    Stopped { signal: c_int, event: c_int },
}

/// What waiting brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// News of a child or tracee of this thread.
    News(Pid, Status),
    /// A handler of a signal ran in this thread.
    Interrupted,
    /// This thread has no children and no tracees.
    Nobody,
}

/// Waits for any child or tracee of this thread; other threads keep theirs.
pub(crate) fn wait() -> io::Result<Waited> {
    let mut status = 0;
    // SAFETY: the pointer leads to an int.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
    if pid < 0 {
        return match Errno::last() {
            Errno::EINTR => Ok(Waited::Interrupted),
            Errno::ECHILD => Ok(Waited::Nobody),
            error => Err(error.into()),
        };
    }
    let status = if libc::WIFEXITED(status) {
        Status::Ended(Exit::Code(libc::WEXITSTATUS(status)))
    } else if libc::WIFSIGNALED(status) {
        Status::Ended(Exit::Signal(libc::WTERMSIG(status)))
    } else {
        Status::Stopped { signal: libc::WSTOPSIG(status), event: status >> 16 }
    };
    Ok(Waited::News(Pid::from_raw(pid), status))
}

/// Lets a stopped thread go on, delivering `signal` if it is not 0.
pub(crate) fn go_on(tid: Pid, signal: c_int) -> Result<(), Errno> {
    request(libc::PTRACE_CONT, tid, signal)
}

/// Ends the tracing of a stopped thread, delivering `signal` if it is not 0.
pub(crate) fn detach(tid: Pid, signal: c_int) -> Result<(), Errno> {
    request(libc::PTRACE_DETACH, tid, signal)
}

/// Leaves a thread in its group stop, but open to SIGCONT and to interrupts.
pub(crate) fn listen(tid: Pid) -> Result<(), Errno> {
    request(libc::PTRACE_LISTEN, tid, 0)
}

fn request(request: Number, tid: Pid, data: c_int) -> Result<(), Errno> {
    // SAFETY: these requests take a number in place of the last pointer and ignore the other.
    let done = unsafe { libc::ptrace(request, tid.as_raw(), ptr::null_mut::<c_void>(), data as c_long) };
    Errno::result(done).map(drop)
}

/// The thread or process that a thread in such an event has made.
pub(crate) fn made(tid: Pid) -> Option<Pid> {
    let number = ptrace::getevent(tid).ok()?;
    i32::try_from(number).ok().map(Pid::from_raw)
}

/// Where the signal comes from that a thread is about to get: `si_code`, zero or negative if a process sent it.
pub(crate) fn signal_code(tid: Pid) -> Result<c_int, Errno> {
    Ok(ptrace::getsiginfo(tid)?.si_code)
}

/// Whether two threads share their memory; None if this kernel cannot tell.
pub(crate) fn share_memory(one: Pid, other: Pid) -> Option<bool> {
    /// `KCMP_VM` of linux/kcmp.h.
    const KCMP_VM: c_int = 1;
    // SAFETY: compares kernel pointers; takes numbers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one.as_raw(), other.as_raw(), KCMP_VM, 0, 0) };
    (order >= 0).then_some(order == 0)
}
