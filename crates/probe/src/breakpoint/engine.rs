//! The loop of the tracing thread: waits for a stop of any thread of the tree, deals with it, lets the thread go on.
//!
//! Threads are seized (PTRACE_SEIZE), never with PTRACE_O_EXITKILL: should this thread end, the program goes on. The
//! kernel attaches new threads and processes by itself and stops each before its first instruction; only then is it asked
//! whose memory it uses, so that it does not matter whether the maker's own event came earlier, later or (killed) never.
//!
//! Errors of single requests are ignored on purpose: they mean that the thread was killed in its stop, and waiting will
//! tell so. What must not be ignored, memory that cannot be written, ends the tracing ([`End::Unwritable`]).

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use nix::sys::ptrace as nix_ptrace;
use nix::unistd::Pid;
use units::Moment;

use crate::arch::{Arch, Native};
use crate::breakpoint::space::Space;
use crate::breakpoint::table::Table;
use crate::breakpoint::{Breakpoints, End, Exit, Observer, Stop, Stops, Traced};
use crate::process::State;
use crate::ptrace::{self, EVENT_STOP, Status, Waited};
use crate::spawn::Started;

/// How long to wait, after the program's end, for its children to stop and be let go of. One that sleeps in the kernel
/// cannot be; the end of this thread frees it, and its breakpoints are out already.
const GRACE: Duration = Duration::from_secs(2);

/// Number of a [`Space`].
pub(super) type SpaceId = u32;

/// A thread that is traced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    /// Its process.
    pub(super) group: Pid,
    /// Its memory; None for the program's process before the first exec.
    pub(super) space: Option<SpaceId>,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Breakpoints are planted as files are mapped.
    Tracing,
    /// All breakpoints are out, and threads are let go of as they stop.
    Releasing(End),
    /// Nothing is traced.
    Released(End, Moment),
}

/// See the module.
pub(super) struct Engine<'a, O> {
    pub(super) program: Pid,
    pub(super) table: Table,
    pub(super) threads: HashMap<Pid, Thread>,
    /// Threads that were made but have not come to their first stop.
    pub(super) unborn: HashSet<Pid>,
    pub(super) spaces: HashMap<SpaceId, Space>,
    next_space: SpaceId,
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
    /// Takes over the process `program`, which was seized by this thread and was just let go to execute its program.
    pub(super) fn new(
        breakpoints: &Breakpoints,
        program: Pid,
        started: Started,
        start: Instant,
        observer: &'a mut O,
    ) -> Engine<'a, O> {
        let thread = Thread { group: program, space: None };
        Engine {
            program,
            table: Table::new(&breakpoints.sites),
            threads: HashMap::from([(program, thread)]),
            unborn: HashSet::new(),
            spaces: HashMap::new(),
            next_space: 0,
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
        self.unborn.remove(&tid);
        self.forget(tid);
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
        let is_known = self.threads.contains_key(&tid);
        if !is_known && event != libc::PTRACE_EVENT_EXEC {
            self.join(tid);
        }
        match event {
            libc::PTRACE_EVENT_EXEC => self.executed(tid),
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                self.stops.make += 1;
                let made = ptrace::made(tid).filter(|made| !self.threads.contains_key(made));
                self.unborn.extend(made);
                self.go_on(tid, 0);
            }
            EVENT_STOP => self.halted(tid, signal, is_known),
            0 if signal == libc::SIGTRAP => self.trapped(tid),
            _ => {
                self.stops.signal += 1;
                if event == 0 {
                    // Untraced, the thread would not have been woken for this.
                    let _ = Native::restart_call(tid, || State::read(tid).is_ok_and(|state| state.drops(signal)));
                }
                self.go_on(tid, if event == 0 { signal } else { 0 });
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
            self.go_on_from_halt(tid, signal);
        }
    }

    /// A thread or process that was not known: finds out whose memory it uses.
    fn join(&mut self, tid: Pid) {
        self.unborn.remove(&tid);
        let group = State::read(tid).map_or(tid, |state| Pid::from_raw(state.group));
        // Its maker may have been let go of already, together with all that shares its memory: nothing may be put in then.
        let is_followed = self.phase == Phase::Tracing && (self.follow_children || group == self.program);
        let space = self.shared_space(tid, group).or_else(|| {
            let space = Space::after_fork(tid, &mut self.table, is_followed);
            self.add_space(space)
        });
        self.threads.insert(tid, Thread { group, space });
    }

    /// The space of another thread of this process, or of a process with the same memory.
    fn shared_space(&self, tid: Pid, group: Pid) -> Option<SpaceId> {
        if let Some(thread) = self.threads.values().find(|thread| thread.group == group) {
            return thread.space;
        }
        let mut asked = Vec::new();
        for (other, thread) in &self.threads {
            let Some(space) = thread.space.filter(|space| !asked.contains(space)) else { continue };
            match ptrace::share_memory(tid, *other) {
                Some(true) => return Some(space),
                Some(false) => asked.push(space),
                // Dead, or the kernel cannot tell; another thread may.
                None => {}
            }
        }
        None
    }

    /// A process has executed a program: its other threads are gone, and its memory is new.
    fn executed(&mut self, tid: Pid) {
        self.stops.exec += 1;
        let others: Vec<Pid> =
            self.threads.iter().filter(|(_, thread)| thread.group == tid).map(|(other, _)| *other).collect();
        for other in others {
            self.forget(other);
        }
        self.threads.insert(tid, Thread { group: tid, space: None });
        let is_tracing = self.phase == Phase::Tracing && self.table.left() > 0;
        if is_tracing && self.may_follow(tid) {
            let space = Space::after_exec(tid, &mut self.table);
            let space = self.add_space(space);
            self.threads.insert(tid, Thread { group: tid, space });
        }
        if tid == self.program && self.started.take().is_some() {
            self.observer.started(tid.as_raw() as u32);
        }
        if self.table.left() == 0 {
            self.release(End::AllHit);
        }
        self.go_on(tid, 0);
    }

    /// Adds a space; memory that cannot be written ends the tracing. A process that is gone is no failure.
    fn add_space(&mut self, space: io::Result<Space>) -> Option<SpaceId> {
        let space = self.writable(space)?;
        self.planted += space.planted_count() as u32;
        self.next_space += 1;
        self.spaces.insert(self.next_space, space);
        Some(self.next_space)
    }

    /// Ends the tracing if memory cannot be written. A process that is gone, or that nobody may look into, is no reason to.
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
        let own = |tid: &Pid| self.threads.get(tid).and_then(|thread| thread.space);
        let is_own = self.threads.get(&tid).is_some_and(|thread| thread.group == self.program);
        self.follow_children || is_own || (own(&tid).is_some() && own(&tid) == own(&self.program))
    }

    /// Drops a thread, and its memory if it was the last one there.
    pub(super) fn forget(&mut self, tid: Pid) {
        let Some(Thread { space: Some(space), .. }) = self.threads.remove(&tid) else { return };
        if !self.threads.values().any(|thread| thread.space == Some(space)) {
            self.spaces.remove(&space);
        }
    }

    pub(super) fn now(&self) -> Moment {
        Moment::default().after(self.start.elapsed())
    }
}

/// The end of the tracing thread frees the program; should that end come early, by a panic, no breakpoint may stay.
impl<O> Drop for Engine<'_, O> {
    fn drop(&mut self) {
        self.spaces.values_mut().for_each(Space::retire_all);
    }
}

/// What a new process is seized with: all its threads and children are attached, and each exec stops it.
pub(super) fn options() -> nix_ptrace::Options {
    use nix_ptrace::Options;
    Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
}
