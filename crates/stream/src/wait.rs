//! Blocking on a call that does not block, for a stated time.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use wire::volume::{FileInfo, FolderEntry};

use crate::{Done, ErrorKind, Opened, RemoteVolume, StreamError, Xattrs};

/// The result of a call; one that comes too late is given back.
pub trait Answer: Send + 'static + Sized {
    /// The caller does not wait any more.
    fn give_back(self, _volume: &RemoteVolume) {}
}

impl Answer for () {}
impl Answer for Bytes {}
impl Answer for FileInfo {}
impl Answer for Vec<FolderEntry> {}
impl Answer for Xattrs {}
impl Answer for Duration {}
impl Answer for Opened {
    fn give_back(self, volume: &RemoteVolume) {
        // A file that was opened for nobody has no changes.
        volume.close(self.handle, Box::new(drop));
    }
}

enum Slot<T> {
    Empty,
    Full(Result<T, StreamError>),
    Left,
}

impl RemoteVolume {
    /// Makes a call and waits for its outcome, `deadline` at most; then the error is
    /// [`ErrorKind::Timeout`], and what comes later is dropped (a file that was opened is closed).
    /// A change that was asked for may still be made.
    ///
    /// # Errors
    /// Those of the call.
    pub fn wait<T: Answer>(
        self: &Arc<Self>,
        deadline: Duration,
        call: impl FnOnce(&RemoteVolume, Done<T>),
    ) -> Result<T, StreamError> {
        let shared = Arc::new((Mutex::new(Slot::Empty), Condvar::new()));
        let (theirs, volume) = (Arc::clone(&shared), Arc::downgrade(self));
        let done: Done<T> = Box::new(move |outcome| {
            let mut slot = theirs.0.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*slot, Slot::Empty) {
                *slot = Slot::Full(outcome);
                theirs.1.notify_all();
                return;
            }
            drop(slot);
            if let (Ok(value), Some(volume)) = (outcome, volume.upgrade()) {
                value.give_back(&volume);
            }
        });
        call(self, done);
        let until = Instant::now().checked_add(deadline);
        let mut slot = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::replace(&mut *slot, Slot::Empty) {
                Slot::Full(outcome) => return outcome,
                Slot::Empty | Slot::Left => {}
            }
            let Some(until) = until else {
                slot = shared.1.wait(slot).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *slot = Slot::Left;
                let text = format!("no answer within {:.1} s; try again, or with more time", deadline.as_secs_f64());
                return Err(StreamError::volume(ErrorKind::Timeout, self.name(), text));
            }
            slot = shared.1.wait_timeout(slot, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
