//! Follows a program, and all that it starts, under a seccomp filter to its end.
//!
//! The program is seized before its exec ([`crate::child`]), by the thread that then follows it.
//! Each named call stops twice: before it, and after it, where its result is known. The only other
//! stops are those of ptrace itself: signals, new threads and processes, execs. Signals are passed
//! on as they come, and a program that is stopped (Ctrl-Z) stays so until it is continued. If the
//! tracer dies, the kernel kills the program, which could not go on anyway.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::unistd::Pid;

use crate::exact::{Ended, Exact};
use crate::ptrace::{EVENT_STOP, INFO_EXIT, INFO_SECCOMP, Number, call_info, listen, request, wait_for};
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

/// What following a program reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A named call returned; its thread stands still meanwhile, so that its descriptors and memory
    /// can be looked at.
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
    /// The addresses of the file that it mapped.
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
    Ok(request(libc::PTRACE_SEIZE, Pid::from_raw(process as i32), OPTIONS)?)
}

/// Follows the program `first`, which was [seized](seize) by this thread, until no process is left
/// that it started; see [`crate::child::Child::follow`].
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
            resume(if call.is_some() { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT }, thread, 0);
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
            resume(libc::PTRACE_CONT, thread, 0);
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
        // A thread that is between the two stops of a call takes a signal there, and still has to
        // come to the second.
        let way = if entered.contains_key(&thread) { libc::PTRACE_SYSCALL } else { libc::PTRACE_CONT };
        resume(way, thread, if event == 0 { signal } else { 0 });
    }
    Followed { ended, is_executed, counts }
}

fn count(counts: &mut Counts, number: i64) {
    match number {
        MMAP => counts.maps += 1,
        _ => counts.calls += 1,
    }
}

/// Lets a thread go on; one that was killed meanwhile cannot, and need not.
fn resume(way: Number, thread: u32, signal: i32) {
    let _ = request(way, Pid::from_raw(thread as i32), signal);
}

fn entering(thread: u32) -> Option<Call> {
    let info = call_info(thread).filter(|info| info[0] & 0xff == INFO_SECCOMP)?;
    let arguments = [info[4], info[5], info[6], info[7], info[8], info[9]];
    Some(Call { thread, number: info[3] as i64, arguments, result: 0 })
}

fn result_of(thread: u32) -> Option<i64> {
    Some(call_info(thread).filter(|info| info[0] & 0xff == INFO_EXIT)?[3] as i64)
}
