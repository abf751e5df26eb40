//! Waits for locks: they are requested again and again, since the server does not tell when one is
//! free.
//!
//! An unlock on this device retries the waits of the same file at once. A signal ends a wait in
//! `fuse`; it is dropped here at its next try. The thread starts with the first wait, and ends
//! after a while without.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fuse::INodeNo;

/// How long after it was refused a lock is asked for again: first, and at most, after twice as long
/// each time. A round trip over a local network takes less than the first; the last costs a thin
/// link some hundred bytes a second for each who waits.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(640);

/// How long a thread waits for something to do before it ends.
pub(super) const IDLE: Duration = Duration::from_secs(2);

/// A request for a lock that may be sent again.
pub(in crate::volume) trait Attempt: Send {
    /// The file.
    fn number(&self) -> INodeNo;

    /// Sends the request, after it paused for `pause`.
    fn send(self: Box<Self>, pause: Duration);

    /// Answers with an error: there is no thread that could send it.
    fn fail(self: Box<Self>);
}

struct Waiting {
    attempt: Box<dyn Attempt>,
    pause: Duration,
    due: Instant,
}

/// The waiting requests. There are no more of them than locks that the kernel waits for.
#[derive(Default)]
pub(super) struct Waits {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    waiting: Vec<Waiting>,
    is_running: bool,
}

impl Waits {
    /// A lock was refused, and is to be tried again.
    pub fn add(self: Arc<Self>, attempt: Box<dyn Attempt>, pause: Duration) {
        let mut inner = self.locked();
        if !inner.is_running {
            let waits = self.clone();
            inner.is_running = thread::Builder::new().name("runnel-locks".into()).spawn(move || waits.work()).is_ok();
        }
        if !inner.is_running {
            drop(inner);
            return attempt.fail();
        }
        let pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        inner.waiting.push(Waiting { attempt, pause, due: Instant::now() + pause });
        drop(inner);
        self.changed.notify_all();
    }

    /// Something of a file was unlocked here.
    pub fn wake(&self, number: INodeNo) {
        let mut inner = self.locked();
        for waiting in inner.waiting.iter_mut().filter(|waiting| waiting.attempt.number() == number) {
            waiting.pause = Duration::ZERO;
            waiting.due = Instant::now();
        }
        drop(inner);
        self.changed.notify_all();
    }

    fn work(&self) {
        let mut inner = self.locked();
        let mut idle_since = Instant::now();
        loop {
            let now = Instant::now();
            let due: Vec<Waiting> = inner.waiting.extract_if(.., |waiting| waiting.due <= now).collect();
            if !due.is_empty() {
                drop(inner);
                due.into_iter().for_each(|waiting| waiting.attempt.send(waiting.pause));
                idle_since = now;
                inner = self.locked();
                continue;
            }
            let next = inner.waiting.iter().map(|waiting| waiting.due).min();
            let until = next.unwrap_or(idle_since + IDLE);
            if next.is_none() && until <= now {
                inner.is_running = false;
                return;
            }
            let waited = self.changed.wait_timeout(inner, until.saturating_duration_since(now));
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
