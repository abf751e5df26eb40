//! Interrupted waits: which signals end which waits, and the thread that checks.
//!
//! The kernel reports once that a signal came for a waiting thread (INTERRUPT), but not which one.
//! A fatal signal ends the wait at once, because nobody is left to use the answer. A signal that
//! the program catches ends the wait only after [`CAUGHT_WAIT`], and only for calls for which POSIX
//! has EINTR: regular files of local disks are not interrupted at all, and few programs expect it.
//! Waits for locks end by any signal at once, because programs bound them with alarm(2). A second
//! signal is not reported. So interrupted requests are checked every [`TICK`] until they are
//! answered.
//!
//! A thread that ends closes its files, and no signal wakes it then. So FLUSHes that wait longer
//! than [`CLOSE_WAIT`] are checked too, and answered with success once their thread is ending. The
//! written data stays with the file system, which sends it later.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Errno;
use crate::table::{Entry, Kind};
use crate::thread_state;

/// How long a call waits at least before a signal that its program catches ends it.
const CAUGHT_WAIT: Duration = Duration::from_secs(5);

/// How long a FLUSH waits at least before it is answered because its thread is ending.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// How often threads of interrupted requests are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Shortest sleep of the thread that looks.
const SLEEP_MIN: Duration = Duration::from_millis(10);

/// The decision about a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Answer it with this error number; 0 is success.
    End(i32),
    /// Look again after this time.
    Wait(Duration),
}

/// The states of threads in /proc. Tests have another implementation.
pub(crate) trait Threads {
    fn pending(&self, thread: u32) -> Option<thread_state::Pending>;
    fn is_exiting(&self, thread: u32) -> bool;
}

/// The threads of this machine.
pub(crate) struct Live;

impl Threads for Live {
    fn pending(&self, thread: u32) -> Option<thread_state::Pending> {
        thread_state::pending(thread)
    }

    fn is_exiting(&self, thread: u32) -> bool {
        thread_state::is_exiting(thread)
    }
}

/// The state of the thread that checks, and its wake-up.
#[derive(Default)]
pub(crate) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
    /// The thread that checks sleeps without a timeout, or is about to: the thread that puts a
    /// FLUSH into the table wakes it.
    is_idle: AtomicBool,
    /// The thread that was last found ending; 0 if there was none. It may close more files, which
    /// need not wait again.
    ending: AtomicU32,
}

#[derive(Default)]
struct State {
    woken: bool,
    over: bool,
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has to be looked at now.
    pub fn wake(&self) {
        self.lock().woken = true;
        self.changed.notify_one();
    }

    /// A FLUSH is in the table.
    pub fn closing(&self, thread: u32) {
        // The table's lock was taken since the flag was set, or will be before the table is looked
        // at.
        if self.is_idle.load(Ordering::SeqCst) || self.is_ending(thread) {
            self.wake();
        }
    }

    /// Ends [`Watch::run`].
    pub fn end(&self) {
        self.lock().over = true;
        self.changed.notify_one();
    }

    fn is_ending(&self, thread: u32) -> bool {
        thread != 0 && self.ending.load(Ordering::Relaxed) == thread
    }

    /// The decision about a request now.
    pub fn judge(&self, entry: &Entry, now: Instant, threads: &impl Threads) -> Verdict {
        let waited = now.saturating_duration_since(entry.arrived);
        if entry.interrupted {
            let pending = threads.pending(entry.thread);
            if pending.is_some_and(|pending| pending.fatal) {
                return Verdict::End(Errno::INTR.raw_os_error());
            }
            // Of a thread that cannot be seen only this is known: some signal came.
            let caught = pending.is_none_or(|pending| pending.caught);
            let patience = if entry.kind == Kind::Lock { Duration::ZERO } else { CAUGHT_WAIT };
            if caught && entry.kind != Kind::Other && waited >= patience {
                return Verdict::End(Errno::INTR.raw_os_error());
            }
        }
        if entry.kind != Kind::Close {
            return Verdict::Wait(TICK);
        }
        match CLOSE_WAIT.checked_sub(waited).filter(|left| !left.is_zero()) {
            Some(left) if !self.is_ending(entry.thread) => {
                Verdict::Wait(if entry.interrupted { left.min(TICK) } else { left })
            }
            _ if threads.is_exiting(entry.thread) => {
                self.ending.store(entry.thread, Ordering::Relaxed);
                Verdict::End(0)
            }
            _ => Verdict::Wait(TICK),
        }
    }

    /// Looks at what waits whenever that is due, until [`Watch::end`]. `look` answers what has to
    /// end, and says when to look again; `None` if nothing waits that has to be looked at.
    pub fn run(&self, mut look: impl FnMut() -> Option<Duration>) {
        loop {
            // Set before the table is looked at, so that a FLUSH that comes meanwhile wakes.
            self.is_idle.store(true, Ordering::SeqCst);
            let pause = look();
            if pause.is_some() {
                self.is_idle.store(false, Ordering::SeqCst);
            }
            let mut state = self.lock();
            match pause {
                _ if state.woken || state.over => {}
                Some(pause) => {
                    let pause = pause.max(SLEEP_MIN);
                    state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
                }
                None => {
                    state = self
                        .changed
                        .wait_while(state, |state| !state.woken && !state.over)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
            if state.over {
                return;
            }
            state.woken = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_state::Pending;

    struct Fake {
        pending: Option<Pending>,
        exiting: bool,
    }

    impl Threads for Fake {
        fn pending(&self, _thread: u32) -> Option<Pending> {
            self.pending
        }

        fn is_exiting(&self, _thread: u32) -> bool {
            self.exiting
        }
    }

    fn entry(kind: Kind, interrupted: bool) -> Entry {
        Entry { kind, thread: 5, device: 0, arrived: Instant::now(), interrupted, place: None, is_answered: false }
    }

    const INTERRUPTED: Verdict = Verdict::End(4);
    const LATER: Verdict = Verdict::Wait(TICK);

    #[test]
    fn fatal_signals_end_everything_at_once() {
        let watch = Watch::default();
        let killed = Fake { pending: Some(Pending { fatal: true, caught: false }), exiting: false };
        for kind in [Kind::Close, Kind::EndsBySignal, Kind::Other] {
            let entry = entry(kind, true);
            assert_eq!(watch.judge(&entry, entry.arrived, &killed), INTERRUPTED);
        }
    }

    #[test]
    fn caught_signals_end_what_posix_says_after_a_while() {
        let watch = Watch::default();
        let caught = Fake { pending: Some(Pending { fatal: false, caught: true }), exiting: false };
        let unseen = Fake { pending: None, exiting: false };
        for threads in [&caught, &unseen] {
            let read = entry(Kind::EndsBySignal, true);
            assert_eq!(watch.judge(&read, read.arrived + Duration::from_secs(4), threads), LATER);
            assert_eq!(watch.judge(&read, read.arrived + Duration::from_secs(5), threads), INTERRUPTED);
            let lock = entry(Kind::Lock, true);
            assert_eq!(watch.judge(&lock, lock.arrived, threads), INTERRUPTED);
            let other = entry(Kind::Other, true);
            assert_eq!(watch.judge(&other, other.arrived + Duration::from_secs(50), threads), LATER);
        }
        // A stopped process, or a signal that went away.
        let nothing = Fake { pending: Some(Pending::default()), exiting: false };
        let read = entry(Kind::EndsBySignal, true);
        assert_eq!(watch.judge(&read, read.arrived + Duration::from_secs(50), &nothing), LATER);
    }

    #[test]
    fn closes_of_ending_threads_do_not_wait_for_ever() {
        let watch = Watch::default();
        let (lives, ends) = (Fake { pending: None, exiting: false }, Fake { pending: None, exiting: true });
        let close = entry(Kind::Close, false);
        let at = |milliseconds| close.arrived + Duration::from_millis(milliseconds);
        assert_eq!(watch.judge(&close, at(400), &ends), Verdict::Wait(Duration::from_millis(600)));
        assert_eq!(watch.judge(&close, at(1000), &lives), LATER);
        assert_eq!(watch.judge(&close, at(1000), &ends), Verdict::End(0));
        // Its next file is not waited for.
        assert_eq!(watch.judge(&close, at(0), &ends), Verdict::End(0));
    }

    #[test]
    fn the_watch_ends_and_is_woken() {
        let (watch, looked) = (Watch::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                watch.run(|| {
                    looked.fetch_add(1, Ordering::SeqCst);
                    None
                });
            });
            while looked.load(Ordering::SeqCst) < 3 {
                watch.closing(7);
                std::thread::yield_now();
            }
            watch.end();
            watching.join().expect("it ends");
        });
    }
}
