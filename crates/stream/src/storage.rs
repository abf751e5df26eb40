//! The thread of a volume. It does jobs on this device's storage, one after the other, and tells
//! the engine when it is due.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::cache::Cache;
use crate::inner::Inner;
use crate::job::{Job, JobDone, Order};
use crate::outbox::Outbox;
use crate::{Room, StorageKey};

/// The storage thread and the files that it owns.
pub(crate) struct StorageThread {
    pub inner: Arc<Inner>,
    pub orders: Receiver<Order>,
    pub outbox: Option<Outbox>,
    pub room: Option<Room>,
    /// Encrypts the cache.
    pub key: Option<StorageKey>,
    pub cache: Option<Cache>,
}

impl StorageThread {
    pub fn work(mut self) {
        loop {
            let order = match self.inner.sleeps() {
                None => self.orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(Duration::ZERO) => self.orders.try_recv().map_err(|_| RecvTimeoutError::Timeout),
                Some(time) => self.orders.recv_timeout(time),
            };
            match order {
                Ok(Order::Job(job)) => {
                    if let Some(done) = self.run(job) {
                        self.inner.run(|engine, time| engine.job_done(time, done));
                    }
                    self.inner.tick_if_due();
                }
                Ok(Order::Wake) => {}
                Ok(Order::Stop(told)) => {
                    // Their locks first: whoever waits may open them again at once. Nobody need
                    // wait any more.
                    (self.outbox, self.cache) = (None, None);
                    let _ = told.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => self.inner.tick_if_due(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does a job. What fails besides `Store` and `Reserve` costs no data: an old transaction that
    /// stays in the outbox is answered by the server as before, and a block that is not in the
    /// cache is asked for.
    fn run(&mut self, job: Job) -> Option<JobDone> {
        let text = |outcome: std::io::Result<()>| outcome.map_err(|error| error.to_string());
        let outbox = self.outbox.as_mut();
        let missing = || Err(std::io::ErrorKind::NotFound.into());
        match job {
            Job::Store { number, known_as, bytes } => {
                let outcome = outbox.map_or_else(missing, |outbox| outbox.store(number, known_as, &bytes));
                return Some(JobDone::Stored { number, outcome: text(outcome) });
            }
            Job::Reserve { next } => {
                let outcome = outbox.map_or_else(missing, |outbox| outbox.reserve(next));
                return Some(JobDone::Reserved { next, outcome: text(outcome) });
            }
            Job::Identify { who } => {
                let outcome = outbox.map_or_else(missing, |outbox| outbox.identify(who));
                return Some(JobDone::Identified { outcome: text(outcome) });
            }
            Job::Renumber { from, to } => drop(outbox.map(|outbox| outbox.renumber(from, to))),
            Job::Remove { number } => drop(outbox.map(|outbox| outbox.remove(number))),
            Job::Lose { number, reason } => drop(outbox.map(|outbox| outbox.lose(number, &reason))),
            Job::CacheOpen { volume, block_bytes } => {
                let opened = self.room.as_ref().map(|room| Cache::open(room, self.key.as_ref(), volume, block_bytes));
                // Without a cache everything works, slower.
                let Some(Ok((cache, found))) = opened else {
                    return Some(JobDone::CacheFound { slots: 0, found: Vec::new() });
                };
                let slots = cache.slots();
                self.cache = Some(cache);
                return Some(JobDone::CacheFound { slots, found });
            }
            Job::CacheWrite { slot, key, bytes } => {
                drop(self.cache.as_ref().map(|cache| cache.write(slot, key, &bytes)))
            }
            Job::CacheRead { slot, key } => {
                let bytes = self.cache.as_ref().and_then(|cache| cache.read(slot, key));
                return Some(JobDone::CacheRead { slot, key, bytes });
            }
        }
        None
    }
}
