//! Starts a program: traced if that is possible, plainly if not.

use std::time::Instant;

use nix::sys::wait::{WaitStatus, waitpid};

use crate::breakpoint::{Breakpoints, Exit, Observer, Outcome, Traced, Untraced};
use crate::helper::Origin;
use crate::spawn::{Started, Waiting};
use crate::{Program, StartError};

impl Breakpoints {
    /// Starts `program`, reports every site that it reaches to `observer`, detaches it after the
    /// last one, and waits for its end.
    ///
    /// Blocks the calling thread; the tracing is done by a thread of its own, which calls the
    /// observer. The program is a child of this process, in its process group, and gets the signals
    /// of its terminal by itself. A signal sent to the launcher alone should be passed on by the
    /// caller ([`Observer::started`] has the process).
    ///
    /// # Errors
    /// Only when the program could not be started. One that cannot be traced runs plainly, and
    /// [`Outcome::traced`] says why.
    pub fn launch(&self, program: &Program, observer: &mut impl Observer) -> Result<Outcome, StartError> {
        let start = Instant::now();
        match self.traced(program, observer, start)? {
            Ok(outcome) => Ok(outcome),
            Err(why) => plainly(program, observer, why),
        }
    }

    /// The same for a launcher that becomes the program itself ([`crate::helper::split`]); called
    /// in the helper. Returns when the program is detached, or has ended.
    ///
    /// # Errors
    /// There was no thread for the tracing; the program was detached. The inner error says why it
    /// runs untraced.
    pub fn beside(
        &self,
        program: &Program,
        origin: Origin,
        observer: &mut impl Observer,
    ) -> Result<Result<Traced, Untraced>, StartError> {
        let start = Instant::now();
        let pid = origin.pid();
        let traced = self.on_thread(start, || self.trace_origin(program, origin, observer, start))?;
        if let Err(why) = &traced {
            observer.untraced(why);
            observer.started(pid);
        }
        Ok(traced)
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn traced(&self, _: &Program, _: &mut impl Observer, _: Instant) -> Result<Result<Outcome, Untraced>, StartError> {
        let Breakpoints { sites: _, time_limit: _, follow_children: _, stop: _ } = self;
        Ok(Err(Untraced::Architecture))
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn on_thread<T>(&self, _: Instant, work: impl FnOnce() -> T) -> Result<T, StartError> {
        Ok(work())
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn trace_origin(
        &self,
        program: &Program,
        origin: Origin,
        _: &mut impl Observer,
        _: Instant,
    ) -> Result<Traced, Untraced> {
        origin.go(program.variables(false));
        Err(Untraced::Architecture)
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn traced(
        &self,
        program: &Program,
        observer: &mut impl Observer,
        start: Instant,
    ) -> Result<Result<Outcome, Untraced>, StartError> {
        if program.would_lose_privileges() {
            return Ok(Err(Untraced::Privileged));
        }
        self.on_thread(start, || self.trace(program, observer, start))?
    }

    /// Works on a thread of its own, which a [`crate::Stop`] and the time limit can wake.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn on_thread<T: Send>(&self, start: Instant, work: impl FnOnce() -> T + Send) -> Result<T, StartError> {
        use nix::sys::pthread::pthread_self;
        use nix::sys::signal::{SigSet, Signal};

        let stop = self.stop();
        stop.begin(start + self.time_limit);
        let (sender, thread) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let working = std::thread::Builder::new().name("tracer".into()).spawn_scoped(scope, || {
                // Also when the engine panics: the caller must not wait for ever.
                let _done = Done(&stop);
                // Or the time limit could not end a wait.
                let _ = SigSet::from(Signal::SIGURG).thread_unblock();
                // A pointer with musl, a number with glibc: it means the same to every thread.
                let _ = sender.send(pthread_self() as usize);
                work()
            });
            let working = working.map_err(StartError::step("start a thread"))?;
            if let Ok(thread) = thread.recv() {
                stop.watch(thread as nix::sys::pthread::Pthread);
            }
            Ok(working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// On the tracing thread: all requests to the kernel must come from the one that seized.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn trace(
        &self,
        program: &Program,
        observer: &mut impl Observer,
        start: Instant,
    ) -> Result<Result<Outcome, Untraced>, StartError> {
        use crate::breakpoint::engine::{Engine, options};

        let waiting = Waiting::spawn(program, true)?;
        let pid = waiting.pid;
        if let Err(error) = nix::sys::ptrace::seize(pid, options()) {
            // It has executed nothing, and ends when the gate is closed.
            drop(waiting);
            let _ = waitpid(pid, None);
            return Ok(Err(Untraced::Denied(error as i32)));
        }
        let mut engine = Engine::new(self, pid, waiting.go(), start, observer);
        engine.run().map_err(StartError::Wait)?;
        if let Some(source) = engine.failure.take() {
            return Err(StartError::Execute { program: program.name(), source });
        }
        let exit = engine.exit.unwrap_or(Exit::Signal(libc::SIGKILL));
        Ok(Ok(Outcome { exit, traced: Ok(engine.traced()) }))
    }

    /// As [`Self::trace`], of a launcher that waits for the message of its helper.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn trace_origin(
        &self,
        program: &Program,
        origin: Origin,
        observer: &mut impl Observer,
        start: Instant,
    ) -> Result<Traced, Untraced> {
        use crate::breakpoint::engine::{Engine, options};

        let pid = origin.pid;
        let seized = match program.would_lose_privileges() {
            true => Err(Untraced::Privileged),
            false => nix::sys::ptrace::seize(pid, options()).map_err(|error| Untraced::Denied(error as i32)),
        };
        origin.go(program.variables(seized.is_ok()));
        seized?;
        let mut engine = Engine::new(self, pid, Started::default(), start, observer);
        // What cannot be waited for is gone.
        let _ = engine.run();
        Ok(engine.traced())
    }
}

/// Ends the watch of the calling thread.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
struct Done<'a>(&'a crate::Stop);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.done();
    }
}

/// Runs a program that is not traced.
fn plainly(program: &Program, observer: &mut impl Observer, why: Untraced) -> Result<Outcome, StartError> {
    let waiting = Waiting::spawn(program, false)?;
    let pid = waiting.pid;
    observer.untraced(&why);
    observer.started(pid.as_raw() as u32);
    let failure = waiting.go().failure();
    let exit = loop {
        match waitpid(pid, None) {
            Ok(WaitStatus::Exited(_, code)) => break Exit::Code(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => break Exit::Signal(signal as i32),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(StartError::Wait(error.into())),
        }
    };
    match failure {
        Some(source) => Err(StartError::Execute { program: program.name(), source }),
        None => Ok(Outcome { exit, traced: Err(why) }),
    }
}
