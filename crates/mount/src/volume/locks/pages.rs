//! A thread that makes the kernel drop pages of files, one file after the other.
//!
//! The kernel then waits for READs of these pages, and writes back changes of mappings. So no
//! thread that must answer those may request it. The thread starts when there is work, and ends
//! after a while without.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use fuse::INodeNo;

use super::waits::IDLE;

/// A job; it gets `false` if there is no thread that could do it.
pub(super) type Job = Box<dyn FnOnce(bool) + Send>;

/// Jobs of files in their order. There are no more of them than locks that the kernel waits for.
#[derive(Default)]
pub(super) struct Pages {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    queue: VecDeque<(INodeNo, Job)>,
    /// The file of the job that is being done.
    current: Option<INodeNo>,
    is_running: bool,
}

impl Pages {
    /// Whether there are jobs of a file that are not done.
    pub fn is_busy(&self, number: INodeNo) -> bool {
        let inner = self.locked();
        inner.current == Some(number) || inner.queue.iter().any(|(of, _)| *of == number)
    }

    pub fn add(self: &Arc<Self>, number: INodeNo, job: Job) {
        let mut inner = self.locked();
        if !inner.is_running {
            let pages = self.clone();
            inner.is_running = thread::Builder::new().name("runnel-pages".into()).spawn(move || pages.work()).is_ok();
        }
        if !inner.is_running {
            drop(inner);
            return job(false);
        }
        inner.queue.push_back((number, job));
        drop(inner);
        self.changed.notify_all();
    }

    fn work(&self) {
        let mut inner = self.locked();
        loop {
            if inner.queue.is_empty() {
                let waited = self.changed.wait_timeout_while(inner, IDLE, |inner| inner.queue.is_empty());
                inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let Some((number, job)) = inner.queue.pop_front() else {
                inner.is_running = false;
                return;
            };
            inner.current = Some(number);
            drop(inner);
            job(true);
            inner = self.locked();
            inner.current = None;
        }
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
