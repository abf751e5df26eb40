//! Ends the wait of the tracing thread, which sleeps in waitpid: by a time limit, or by a request
//! from any thread.
//!
//! Only a signal ends a waitpid for all children while no child ends. SIGURG is used, since it does
//! nothing by default; its handler does nothing. A signal may come just before the wait begins, so
//! it is sent again until the tracing thread says that it saw it.

#![allow(unsafe_code)]

use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::pthread::{Pthread, pthread_kill};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Time after which an unseen wake-up is sent again.
const AGAIN: Duration = Duration::from_millis(20);

/// Asks a running [`crate::Breakpoints::launch`] to take all breakpoints out and detach the
/// program, which runs on. May be called from any thread, before the launch too.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    deadline: Option<Instant>,
    /// What the tracing thread is to see.
    call: Option<Call>,
    done: bool,
}

/// Why the tracing thread is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// The deadline has passed.
    Time,
    /// [`Stop::request`] was called.
    Stop,
}

impl Stop {
    /// A new one, for one launch at a time.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// See [`Stop`].
    pub fn request(&self) {
        self.lock().stop = true;
        self.shared.changed.notify_all();
    }

    /// Called before a launch that is to be woken at `deadline`.
    pub(crate) fn begin(&self, deadline: Instant) {
        let mut state = self.lock();
        *state = State { stop: state.stop, deadline: Some(deadline), call: None, done: false };
    }

    /// Called by the tracing thread: wakes it at `deadline` instead of the one set before.
    pub(crate) fn set_deadline(&self, deadline: Instant) {
        self.lock().deadline = Some(deadline);
        self.shared.changed.notify_all();
    }

    /// Called by the tracing thread: what it was woken for. Each deadline and each request is
    /// reported once.
    pub(crate) fn take(&self) -> Option<Call> {
        let mut state = self.lock();
        let call = state.call.take()?;
        match call {
            Call::Time => state.deadline = None,
            Call::Stop => state.stop = false,
        }
        Some(call)
    }

    /// Called by the tracing thread when it waits no more.
    pub(crate) fn done(&self) {
        self.lock().done = true;
        self.shared.changed.notify_all();
    }

    /// Wakes `thread` when it is time, until that thread has called [`Stop::done`].
    pub(crate) fn watch(&self, thread: Pthread) {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
            // SAFETY: the handler does nothing. Without it there would be no time limit, and no
            // other harm.
            let _ = unsafe { sigaction(Signal::SIGURG, &action) };
        });
        let mut state = self.lock();
        while !state.done {
            let now = Instant::now();
            if state.call.is_none() {
                let late = state.deadline.is_some_and(|deadline| deadline <= now);
                state.call = if state.stop { Some(Call::Stop) } else { late.then_some(Call::Time) };
            }
            let pause = if state.call.is_some() {
                // The thread lives: it calls `done`, which needs this lock, before it ends.
                let _ = pthread_kill(thread, Signal::SIGURG);
                Some(AGAIN)
            } else {
                state.deadline.map(|deadline| deadline - now)
            };
            state = match pause {
                None => self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(pause) => self.shared.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

extern "C" fn nothing(_: std::ffi::c_int) {}
