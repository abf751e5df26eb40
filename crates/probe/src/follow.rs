//! Following a program under a seccomp filter, and all that it starts, to its end.
//!
//! The program is seized before its exec ([`crate::child`]), by the thread that then follows it. Each named call gives a stop
//! before it and one after it, where its result is known. Nothing else stops but what ptrace brings with it: signals, new threads and
//! processes, execs. Signals are passed on as they come, and a program that is stopped (Ctrl-Z) stays so until it is told to go on. If
//! the tracer dies, the kernel kills the program, which could not go on anyway.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::unistd::Pid;

use crate::exact::{Ended, Exact};
use crate::ptrace::{EVENT_STOP, Number, listen};
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

/// What following a program tells.
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

/// How following went.
pub(crate) struct Followed {
    /// The end of the first process.
    pub(crate) ended: ExitStatus,
    /// Whether it executed its program.
    pub(crate) is_executed: bool,
    pub(crate) counts: Counts,
}

/// Begins to trace a process that waits before its exec.
pub(crate) fn seize(process: u32) -> io::Result<()> {
    ptrace(libc::PTRACE_SEIZE, process, OPTIONS as usize)
}

/// Follows the program `first`, which was [seized](seize) by this thread, until no process is left that it started; see
/// [`crate::child::Child::follow`].
pub(crate) fn follow(first: u32, exact: bool, mut seen: impl FnMut(Seen)) -> Followed {
    let mut exact = exact.then(Exact::default);
    // What a call came upon while it waited for one thread.
    let mut ended_meanwhile = None;
    let mut counts = Counts::default();
    let mut entered: HashMap<u32, Call> = HashMap::new();
    let mut ended = ExitStatus::from_raw(0);
    let mut is_executed = false;
    while let Ok((thread, status)) = ended_meanwhile.take().map_or_else(|| wait_for(-1), Ok) {
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            exact.iter_mut().for_each(|exact| exact.forget(thread));
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
        if event == EVENT_STOP && signal != libc::SIGTRAP {
            // All threads of its process are stopped, until SIGCONT.
            let _ = listen(Pid::from_raw(thread as i32));
            continue;
        }
        if event == libc::PTRACE_EVENT_EXEC {
            exact.iter_mut().for_each(|exact| exact.forget(thread));
            // Another thread of the process may have stood in a call under this number.
            entered.remove(&thread);
            if thread == first && !is_executed {
                is_executed = true;
                exact.iter_mut().for_each(|exact| exact.begin(thread));
            }
        }
        // A thread that is between the two stops of a call takes a signal there, and still has to come to the second.
        let way = if entered.contains_key(&thread) { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
        go_on(way, thread, if event == 0 { signal } else { 0 });
    }
    Followed { ended, is_executed, counts }
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
