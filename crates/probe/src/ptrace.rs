//! The ptrace and wait calls that `nix` lacks. It knows no real-time signals, which the C library
//! uses between threads, neither in wait statuses nor for going on, and has no PTRACE_LISTEN and no
//! kcmp.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::ptr;

use host::Exit;
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// The type of a request's number, which C libraries do not agree about.
#[cfg(target_env = "musl")]
pub(crate) type Number = c_int;
/// The type of a request's number, which C libraries do not agree about.
#[cfg(not(target_env = "musl"))]
pub(crate) type Number = std::ffi::c_uint;

/// `PTRACE_EVENT_STOP`: the first stop of a new thread, the answer to an interrupt, and group
/// stops.
pub(crate) const EVENT_STOP: c_int = libc::PTRACE_EVENT_STOP;

/// What became of a thread or process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It is gone.
    Ended(Exit),
    /// It stands in a stop of ptrace: the signal, and one of PTRACE_EVENT_* or 0 when that signal
    /// is to be delivered.
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
pub(crate) fn resume(tid: Pid, signal: c_int) -> Result<(), Errno> {
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

/// Sends a request that takes a number, such as a signal.
pub(crate) fn request(request: Number, tid: Pid, data: c_int) -> Result<(), Errno> {
    // SAFETY: these requests take a number in place of the last pointer and ignore the other.
    let done = unsafe { libc::ptrace(request, tid.as_raw(), ptr::null_mut::<c_void>(), data as c_long) };
    Errno::result(done).map(drop)
}

/// The thread or process that a thread in such an event has made.
pub(crate) fn made(tid: Pid) -> Option<Pid> {
    let number = ptrace::getevent(tid).ok()?;
    i32::try_from(number).ok().map(Pid::from_raw)
}

/// The origin of the signal that a thread is about to get: `si_code`, zero or negative if a
/// process sent it.
pub(crate) fn signal_code(tid: Pid) -> Result<c_int, Errno> {
    Ok(ptrace::getsiginfo(tid)?.si_code)
}

/// Whether two threads share their memory; None if this kernel does not say.
pub(crate) fn share_memory(one: Pid, other: Pid) -> Option<bool> {
    /// `KCMP_VM` of linux/kcmp.h.
    const KCMP_VM: c_int = 1;
    // SAFETY: compares kernel pointers; takes numbers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one.as_raw(), other.as_raw(), KCMP_VM, 0, 0) };
    (order >= 0).then_some(order == 0)
}

/// `struct ptrace_syscall_info`, 88 bytes, as words: kind and architecture, address, stack, then
/// number and arguments, or result.
type CallInfo = [u64; 11];

/// Waits for `who`, as waitpid(2) takes it; the thread and its status.
pub(crate) fn wait_for(who: i32) -> io::Result<(u32, i32)> {
    let mut status = 0;
    loop {
        // Other threads of this process have children of their own.
        // SAFETY: the kernel writes to `status`, which outlives the call.
        let thread = unsafe { libc::waitpid(who, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        match thread {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            thread => return Ok((thread as u32, status)),
        }
    }
}

/// The system call that a thread stands at.
pub(crate) fn call_info(thread: u32) -> Option<CallInfo> {
    let mut info: CallInfo = [0; 11];
    let (bytes, to) = (size_of::<CallInfo>(), info.as_mut_ptr());
    // SAFETY: the kernel writes at most `bytes` bytes to `info`, which has them.
    let got = unsafe { libc::ptrace(PTRACE_GET_SYSCALL_INFO as _, thread as libc::pid_t, bytes, to) };
    (got > 0).then_some(info)
}

/// Since Linux 5.3.
const PTRACE_GET_SYSCALL_INFO: Number = 0x420e;
/// Kinds of its answers, in the first byte.
pub(crate) const INFO_EXIT: u64 = 2;
pub(crate) const INFO_SECCOMP: u64 = 3;
