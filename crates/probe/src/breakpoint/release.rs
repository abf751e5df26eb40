//! Letting go of the program.
//!
//! All breakpoints are taken out first, which needs no stop. Then every thread is interrupted, and
//! detached at whatever stop it comes to next. A thread may have hit a breakpoint before it was
//! taken out, with the SIGTRAP still pending: detached then, the signal would kill the program.
//! Such a thread goes on instead, and is detached when the SIGTRAP is delivered, with its program
//! counter put right. /proc says whether a SIGTRAP is pending, so the engine waits for no thread
//! that merely stands behind a former breakpoint.

use nix::sys::ptrace as nix_ptrace;
use nix::unistd::Pid;

use crate::arch::{Arch, Native};
use crate::breakpoint::engine::{Engine, Phase};
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
    /// Takes all breakpoints out and begins to detach all threads.
    pub(super) fn release(&mut self, end: End) {
        if self.phase != Phase::Tracing {
            return;
        }
        self.phase = Phase::Releasing(end);
        self.tree.remove_all();
        for tid in self.tree.threads() {
            // Those that stand in a stop already come to another when they go on; those that end
            // are waited for anyway.
            let _ = nix_ptrace::interrupt(tid);
        }
        self.note_released();
    }

    /// Lets a stopped thread go on, or detaches it; `signal` is delivered unless it is 0.
    pub(super) fn resume(&mut self, tid: Pid, signal: i32) {
        if self.phase == Phase::Tracing && self.may_follow(tid) {
            let _ = ptrace::resume(tid, signal);
        } else {
            self.detach(tid, signal);
        }
    }

    /// The same for a thread that was stopped from outside, at any instruction.
    pub(super) fn resume_from_halt(&mut self, tid: Pid, signal: i32) {
        if (self.phase == Phase::Tracing && self.may_follow(tid)) || self.has_pending_trap(tid) {
            let _ = ptrace::resume(tid, 0);
        } else {
            if signal == libc::SIGTRAP {
                // Our interrupt, not job control. If a signal waits too, it would have woken the
                // thread anyway.
                let _ = Native::restart_call(tid, || State::read(tid).is_ok_and(|state| !state.will_get_any()));
            }
            self.detach(tid, 0);
        }
    }

    /// Whether a thread has hit a breakpoint of ours and has the SIGTRAP pending.
    fn has_pending_trap(&self, tid: Pid) -> bool {
        let at_ours = Native::trap_address(tid).is_ok_and(|address| self.tree.known(tid, address).is_some());
        at_ours && State::read(tid).is_ok_and(|state| state.will_get(libc::SIGTRAP))
    }

    fn detach(&mut self, tid: Pid, signal: i32) {
        // A thread that was killed in its stop cannot be detached; waiting reports its end.
        if ptrace::detach(tid, signal).is_ok() {
            self.tree.forget(tid);
        }
    }

    /// Notes when the last thread was detached.
    pub(super) fn note_released(&mut self) {
        let Phase::Releasing(end) = self.phase else { return };
        if self.tree.is_released() {
            self.phase = Phase::Released(end, self.now());
            self.observer.released(end);
        }
    }
}
