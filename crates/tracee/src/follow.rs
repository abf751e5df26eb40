//! Following a program under a seccomp filter, and all that it starts, to its end.
//!
//! The program asks to be traced between fork and exec ([`crate::child::under`]); the thread that started it must call [`follow`]. Each
//! named call gives a stop before it and one after it, where its result is known. Nothing else stops but what ptrace brings with it:
//! signals, new threads and processes, execs. Signals are passed on as they come. A program that is stopped (Ctrl-Z) goes on at once: a tracer
//! that did not seize it cannot leave it stopped. If the tracer dies, the kernel kills the program, which could not go on anyway.

#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::exact::{Ended, Exact};
use crate::ptrace::Number;
use crate::seccomp::MMAP;

/// A named call that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The thread that called.
    pub thread: u32,
    /// Number of the call.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// Its result; negative: an error number.
    pub result: i64,
}

/// What [`follow`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A named call returned; its thread stands still meanwhile, so that its descriptors and memory can be looked at.
    Call(Call),
    /// Page faults of the thread's process come one by one at these addresses from now on.
    Exact {
        /// The thread.
        thread: u32,
        /// Addresses of a mapped file.
        range: Range<u64>,
    },
}

impl Call {
    /// Where a file lies that it mapped.
    fn mapped(&self, result: i64) -> Option<Range<u64>> {
        let is_mapping = self.number == MMAP && !(-4095..0).contains(&result);
        let start = result as u64;
        is_mapping.then(|| start..start.saturating_add(self.arguments[1]))
    }
}

/// Stops by what they were for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Before and after a mapping.
    pub maps: u64,
    /// Before and after any other named call.
    pub calls: u64,
    /// Signals, new threads and processes, execs.
    pub others: u64,
}

/// `struct ptrace_syscall_info`, 88 bytes, as words: kind and architecture, address, stack, then number and arguments, or result.
type CallInfo = [u64; 11];

const OPTIONS: i32 = libc::PTRACE_O_TRACESECCOMP
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_EXITKILL;

/// Follows the program `first`, which has just become itself, until no process is left that it started. `seen` is told of every
/// named call. With `exact`, page faults of mapped files come one by one ([`crate::exact`]), where the kernel can; the filter must
/// then stop at all mappings of files.
///
/// # Errors
/// The program is not there to be traced, by this thread. No later failure is one: a process that was killed is simply gone.
pub fn follow(first: u32, exact: bool, mut seen: impl FnMut(Seen)) -> io::Result<(ExitStatus, Counts)> {
    let mut exact = exact.then(Exact::default);
    // What a call came upon while it waited for one thread.
    let mut ended_meanwhile = None;
    let mut counts = Counts::default();
    let mut known = HashSet::from([first]);
    let mut entered: HashMap<u32, Call> = HashMap::new();
    let mut ended = ExitStatus::from_raw(0);
    // It stands at the stop after its exec.
    let (_, status) = wait_for(first as i32)?;
    if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
        return Ok((ExitStatus::from_raw(status), counts));
    }
    ptrace(libc::PTRACE_SETOPTIONS, first, OPTIONS as usize)?;
    go_on(libc::PTRACE_CONT, first, 0);
    while let Ok((thread, status)) = ended_meanwhile.take().map_or_else(|| wait_for(-1), Ok) {
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            exact.iter_mut().for_each(|exact| exact.forget(thread));
            known.remove(&thread);
            entered.remove(&thread);
            if thread == first {
                ended = ExitStatus::from_raw(status);
            }
            continue;
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        if event == libc::PTRACE_EVENT_SECCOMP {
            let call = entering(thread);
            count(&mut counts, call.map_or(0, |call| call.number));
            entered.extend(call.map(|call| (thread, call)));
            go_on(if call.is_some() { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT }, thread, 0);
            continue;
        }
        if signal == libc::SIGTRAP | 0x80 {
            if let Some(call) = entered.remove(&thread) {
                count(&mut counts, call.number);
                if let Some(result) = result_of(thread) {
                    seen(Seen::Call(Call { result, ..call }));
                    let mapped = call.mapped(result);
                    if let (Some(exact), Some(range)) = (&mut exact, mapped) {
                        match exact.mapped(thread, range) {
                            Ok(ranges) => ranges.into_iter().for_each(|range| seen(Seen::Exact { thread, range })),
                            Err(Ended(status)) => {
                                ended_meanwhile = Some((thread, status));
                                continue;
                            }
                        }
                    }
                }
            }
            go_on(libc::PTRACE_CONT, thread, 0);
            continue;
        }
        counts.others += 1;
        if event == libc::PTRACE_EVENT_EXEC {
            exact.iter_mut().for_each(|exact| exact.forget(thread));
        }
        let is_new = known.insert(thread);
        // A new thread begins with a stop signal of the kernel's own.
        let is_ours = event != 0 || (is_new && signal == libc::SIGSTOP) || is_group_stop(thread, signal);
        // A thread that is between the two stops of a call takes a signal there, and still has to come to the second.
        let way = if entered.contains_key(&thread) { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
        go_on(way, thread, if is_ours { 0 } else { signal });
    }
    Ok((ended, counts))
}

fn count(counts: &mut Counts, number: i64) {
    match number {
        MMAP => counts.maps += 1,
        _ => counts.calls += 1,
    }
}

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

pub(crate) fn ptrace(request: Number, thread: u32, data: usize) -> io::Result<()> {
    // SAFETY: requests with a number as data, which touch no memory of ours.
    let done = unsafe { libc::ptrace(request as _, thread as libc::pid_t, 0_usize, data) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A thread that was killed meanwhile cannot go on, and need not.
pub(crate) fn go_on(request: Number, thread: u32, signal: i32) {
    let _ = ptrace(request, thread, signal as usize);
}

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
const INFO_SECCOMP: u64 = 3;

fn entering(thread: u32) -> Option<Call> {
    let info = call_info(thread).filter(|info| info[0] & 0xff == INFO_SECCOMP)?;
    let arguments = [info[4], info[5], info[6], info[7], info[8], info[9]];
    Some(Call { thread, number: info[3] as i64, arguments, result: 0 })
}

fn result_of(thread: u32) -> Option<i64> {
    Some(call_info(thread).filter(|info| info[0] & 0xff == INFO_EXIT)?[3] as i64)
}

/// Whether all threads of a process were stopped by a signal, rather than one is about to get it.
fn is_group_stop(thread: u32, signal: i32) -> bool {
    if !matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
        return false;
    }
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel writes to `info`, which has the size it expects.
    let got = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, thread as libc::pid_t, 0_usize, info.as_mut_ptr()) };
    got < 0
}
