//! The loop of the tracing thread: it waits for a stop of any thread of the program's processes,
//! handles the stop, and lets the thread go on.
//!
//! Threads are seized (PTRACE_SEIZE), never with PTRACE_O_EXITKILL: if this thread ends, the
//! program goes on. The kernel attaches new threads and processes by itself and stops each before
//! its first instruction. Only then does the engine ask whose memory a new thread uses, so the
//! maker's own event may come earlier, later or, if the maker was killed, never.
//!
//! Errors of single requests are ignored on purpose: they mean that the thread was killed in its
//! stop, and waiting reports its end. Memory that cannot be written ends the tracing
//! ([`End::Unwritable`]).

use std::io;
use std::time::{Duration, Instant};

use nix::sys::ptrace as nix_ptrace;
use nix::unistd::Pid;
use units::Moment;

use crate::arch::{Arch, Native};
use crate::breakpoint::space::Space;
use crate::breakpoint::table::Table;
use crate::breakpoint::tree::Tree;
use crate::breakpoint::{Breakpoints, End, Exit, Observer, Stop, Stops, Traced};
use crate::process::State;
use crate::ptrace::{self, EVENT_STOP, Status, Waited};
use crate::spawn::Started;

/// How long to wait, after the program's end, for its children to stop and be detached. A child
/// that sleeps in the kernel cannot be; the end of this thread frees it, and its breakpoints are
/// out already.
const GRACE: Duration = Duration::from_secs(2);

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Breakpoints are planted as files are mapped.
    Tracing,
    /// All breakpoints are out, and threads are detached as they stop.
    Releasing(End),
    /// Nothing is traced.
    Released(End, Moment),
}

/// See the module.
pub(super) struct Engine<'a, O> {
    pub(super) program: Pid,
    pub(super) table: Table,
    pub(super) tree: Tree,
    pub(super) phase: Phase,
    pub(super) observer: &'a mut O,
    pub(super) stop: Stop,
    pub(super) stops: Stops,
    pub(super) hits: u32,
    pub(super) planted: u32,
    pub(super) start: Instant,
    pub(super) exit: Option<Exit>,
    follow_children: bool,
    started: Option<Started>,
    pub(super) failure: Option<io::Error>,
}

impl<'a, O: Observer> Engine<'a, O> {
    /// Takes over the process `program`, which was seized by this thread and was just resumed to
    /// execute its program.
    pub(super) fn new(
        breakpoints: &Breakpoints,
        program: Pid,
        started: Started,
        start: Instant,
        observer: &'a mut O,
    ) -> Engine<'a, O> {
        Engine {
            program,
            table: Table::new(&breakpoints.sites),
            tree: Tree::new(program),
            phase: Phase::Tracing,
            observer,
            stop: breakpoints.stop(),
            stops: Stops::default(),
            hits: 0,
            planted: 0,
            start,
            exit: None,
            follow_children: breakpoints.follow_children,
            started: Some(started),
            failure: None,
        }
    }

    /// How it went.
    pub(super) fn traced(self) -> Traced {
        let (end, released) = match self.phase {
            Phase::Released(end, moment) => (end, moment),
            Phase::Releasing(end) => (end, self.now()),
            Phase::Tracing => (End::Exited, self.now()),
        };
        let cpu = crate::process::thread_cpu();
        Traced { end, released, stops: self.stops, hits: self.hits, planted: self.planted, cpu }
    }

    /// Runs until the program has ended and nothing is traced.
    pub(super) fn run(&mut self) -> io::Result<()> {
        loop {
            match ptrace::wait()? {
                Waited::News(tid, Status::Ended(exit)) => self.ended(tid, exit),
                Waited::News(tid, Status::Stopped { signal, event }) => self.stopped(tid, signal, event),
                Waited::Interrupted => {}
                Waited::Nobody => return Ok(()),
            }
            match self.stop.take() {
                // The grace is over: what is left is freed by the end of this thread.
                Some(_) if self.exit.is_some() => return Ok(()),
                Some(call) => self.release(call.into()),
                None => {}
            }
        }
    }

    fn ended(&mut self, tid: Pid, exit: Exit) {
        self.tree.forget(tid);
        if tid == self.program {
            self.exit = Some(exit);
            // It may have ended without executing anything.
            self.failure = self.started.take().and_then(Started::failure);
            self.release(End::Exited);
            self.stop.set_deadline(Instant::now() + GRACE);
        }
        self.note_released();
    }

    fn stopped(&mut self, tid: Pid, signal: i32, event: i32) {
        let is_known = self.tree.contains(tid);
        if !is_known && event != libc::PTRACE_EVENT_EXEC {
            self.join(tid);
        }
        match event {
            libc::PTRACE_EVENT_EXEC => self.executed(tid),
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                self.stops.make += 1;
                if let Some(made) = ptrace::made(tid) {
                    self.tree.made(made);
                }
                self.resume(tid, 0);
            }
            EVENT_STOP => self.halted(tid, signal, is_known),
            0 if signal == libc::SIGTRAP => self.trapped(tid),
            _ => {
                self.stops.signal += 1;
                if event == 0 {
                    // Untraced, the thread would not have been woken for this.
                    let _ = Native::restart_call(tid, || State::read(tid).is_ok_and(|state| state.drops(signal)));
                }
                self.resume(tid, if event == 0 { signal } else { 0 });
            }
        }
        self.note_released();
    }

    /// A thread is new, was interrupted, or is stopped or continued by job control.
    fn halted(&mut self, tid: Pid, signal: i32, is_known: bool) {
        let in_group_stop = matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
        let is_tracing = self.phase == Phase::Tracing;
        *match (is_known, is_tracing) {
            (false, _) => &mut self.stops.born,
            (true, true) => &mut self.stops.group,
            (true, false) => &mut self.stops.release,
        } += 1;
        if is_tracing && in_group_stop && self.may_follow(tid) {
            let _ = ptrace::listen(tid);
        } else {
            self.resume_from_halt(tid, signal);
        }
    }

    /// A thread or process that was not known: finds out whose memory it uses.
    fn join(&mut self, tid: Pid) {
        let group = State::read(tid).map_or(tid, |state| Pid::from_raw(state.group));
        // Its maker may have been detached already, with all that shares its memory. Then no
        // breakpoint may be put in.
        let is_followed = self.phase == Phase::Tracing && (self.follow_children || group == self.program);
        if !self.tree.join(tid, group) {
            let space = Space::after_fork(tid, &mut self.table, is_followed);
            self.add(tid, group, space);
        }
    }

    /// A process has executed a program: its other threads are gone, and its memory is new.
    fn executed(&mut self, tid: Pid) {
        self.stops.exec += 1;
        self.tree.forget_process(tid);
        self.tree.add(tid, tid, None);
        let is_tracing = self.phase == Phase::Tracing && self.table.left() > 0;
        if is_tracing && self.may_follow(tid) {
            let space = Space::after_exec(tid, &mut self.table);
            self.add(tid, tid, space);
        }
        if tid == self.program && self.started.take().is_some() {
            self.observer.started(tid.as_raw() as u32);
        }
        if self.table.left() == 0 {
            self.release(End::AllHit);
        }
        self.resume(tid, 0);
    }

    /// Adds a thread with memory of its own; memory that cannot be written ends the tracing.
    fn add(&mut self, tid: Pid, group: Pid, space: io::Result<Space>) {
        let space = self.writable(space);
        self.planted += space.as_ref().map_or(0, Space::planted_count) as u32;
        self.tree.add(tid, group, space);
    }

    /// Ends the tracing if memory cannot be written. A process that is gone, or that nobody may
    /// look into, is no reason to.
    pub(super) fn writable<T>(&mut self, result: io::Result<T>) -> Option<T> {
        const PASSED: [io::ErrorKind; 5] = [
            io::ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied,
            // The memory of a process that has ended holds no bytes.
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::WriteZero,
            io::ErrorKind::InvalidData,
        ];
        result
            .inspect_err(|error| {
                if !PASSED.contains(&error.kind()) && error.raw_os_error() != Some(libc::ESRCH) {
                    self.release(End::Unwritable);
                }
            })
            .ok()
    }

    /// Whether sites may still be hit in this thread's process.
    pub(super) fn may_follow(&self, tid: Pid) -> bool {
        let is_own = self.tree.group(tid) == Some(self.program);
        self.follow_children || is_own || self.tree.shares_space(tid, self.program)
    }

    pub(super) fn now(&self) -> Moment {
        Moment::default().after(self.start.elapsed())
    }
}

/// The end of the tracing thread frees the program; should that end come early, by a panic, no
/// breakpoint may stay.
impl<O> Drop for Engine<'_, O> {
    fn drop(&mut self) {
        self.tree.remove_all();
    }
}

/// What a new process is seized with: all its threads and children are attached, and each exec
/// stops it.
pub(super) fn options() -> nix_ptrace::Options {
    use nix_ptrace::Options;
    Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
}
