//! Letting go of the program.
//!
//! All breakpoints are taken out first, which needs no stop. Then every thread is interrupted, and let go of at whatever
//! stop it comes to next. A thread may have run into a breakpoint before it was taken out and not have been told: if it
//! were let go of with that SIGTRAP pending, the signal would kill the program. It is let go on instead, and is let go of
//! when the SIGTRAP is delivered, with its program counter put right. Whether one is pending is read from /proc, so no
//! thread that merely stands behind a former breakpoint is waited for.

use nix::sys::ptrace as nix_ptrace;
use nix::unistd::{Pid, gettid};

use crate::arch::{Arch, Native};
use crate::breakpoint::engine::{Engine, Phase, Thread};
use crate::breakpoint::{End, Observer};
use crate::process::State;
use crate::ptrace;
use crate::wake::Call;

impl From<Call> for End {
    fn from(call: Call) -> End {
        match call {
            Call::Time => End::TimeLimit,
            Call::Stop => End::Stopped,
        }
    }
}

impl<O: Observer> Engine<'_, O> {
    /// Takes all breakpoints out and begins to let go of all threads.
    pub(super) fn release(&mut self, end: End) {
        if self.phase != Phase::Tracing {
            return;
        }
        self.phase = Phase::Releasing(end);
        for space in self.spaces.values_mut() {
            space.retire_all();
        }
        self.threads.keys().for_each(|tid| {
            // Those that stand in a stop already come to another when they go on; those that end are waited for anyway.
            let _ = nix_ptrace::interrupt(*tid);
        });
        self.note_released();
    }

    /// Lets a stopped thread go on, or lets go of it; `signal` is delivered unless it is 0.
    pub(super) fn go_on(&mut self, tid: Pid, signal: i32) {
        if self.phase == Phase::Tracing && self.may_follow(tid) {
            let _ = ptrace::go_on(tid, signal);
        } else {
            self.let_go(tid, signal);
        }
    }

    /// The same for a thread that was stopped from outside, at any instruction.
    pub(super) fn go_on_from_halt(&mut self, tid: Pid, signal: i32) {
        if (self.phase == Phase::Tracing && self.may_follow(tid)) || self.has_pending_trap(tid) {
            let _ = ptrace::go_on(tid, 0);
        } else {
            if signal == libc::SIGTRAP {
                // Our interrupt, not job control. If a signal waits too, it would have woken the thread anyway.
                let _ = Native::restart_call(tid, || State::read(tid).is_ok_and(|state| !state.will_get_any()));
            }
            self.let_go(tid, 0);
        }
    }

    /// Whether a thread has run into a breakpoint of ours and not been told yet.
    fn has_pending_trap(&self, tid: Pid) -> bool {
        let at_ours = Native::trap_address(tid).is_ok_and(|address| self.known(tid, address).is_some());
        at_ours && State::read(tid).is_ok_and(|state| state.will_get(libc::SIGTRAP))
    }

    fn let_go(&mut self, tid: Pid, signal: i32) {
        // A thread that was killed in its stop cannot be let go of; its end will be told.
        if ptrace::detach(tid, signal).is_ok() {
            self.forget(tid);
        }
    }

    /// Notes when the last thread was let go of.
    pub(super) fn note_released(&mut self) {
        let Phase::Releasing(end) = self.phase else { return };
        // A leader that has ended and waits for its threads cannot be stopped. Of any other thread the end will be told.
        let is_dead =
            |(tid, thread): (&Pid, &Thread)| *tid == thread.group && State::read(*tid).is_ok_and(|state| state.is_dead);
        if !self.threads.iter().all(is_dead) {
            return;
        }
        // One that came and went before its maker's event was seen stays in this set until now.
        let own = gettid().as_raw();
        self.unborn.retain(|tid| State::read(*tid).is_ok_and(|state| state.tracer == own));
        if self.unborn.is_empty() {
            self.phase = Phase::Released(end, self.now());
            self.observer.released(end);
        }
    }
}
