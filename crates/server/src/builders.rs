//! Threads that build pieces of pushes.
//!
//! A prediction must not delay a demand. So these threads, like the one that makes bundles, have a
//! low priority: while the processors are busy, reads of blocks and commits go first.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::budget::{Budget, Room};
use crate::lock::locked;
use crate::panics::caught_blocking;
use crate::peer::Owner;

/// Niceness that threads whose work was foreseen have beyond that of the server: a third of the
/// processor time of others where there is too little.
const NICENESS: i32 = 5;

type Job = Box<dyn FnOnce() + Send>;

/// The threads, and what pieces take. The threads end when this is dropped.
///
/// Invariant: a piece that is built has its memory and a slot. There are as many slots as threads,
/// so that a thread is free for it.
pub(crate) struct Builders {
    jobs: Sender<Job>,
    /// Memory of pieces, until they leave.
    memory: Budget,
    slots: Budget,
    /// Streams that are compressed live.
    encoders: Budget,
}

impl Builders {
    /// Starts `count` threads. Pieces take `memory_bytes` at most; `encoders` streams are
    /// compressed at once.
    pub fn start(count: usize, memory_bytes: usize, encoders: usize) -> io::Result<Builders> {
        let (jobs, receiver) = channel();
        let receiver: Arc<Mutex<Receiver<Job>>> = Arc::new(Mutex::new(receiver));
        for _ in 0..count {
            let receiver = receiver.clone();
            std::thread::Builder::new().name("builder".to_owned()).spawn(move || {
                lower_priority();
                loop {
                    let job = locked(&receiver).recv();
                    let Ok(job) = job else { return };
                    // A panic there is a bug that the hook reported, and ends the job alone.
                    let _ = caught_blocking(job);
                }
            })?;
        }
        let memory = Budget::memory(memory_bytes);
        Ok(Builders { jobs, memory, slots: Budget::turns(count), encoders: Budget::slots(encoders) })
    }

    /// Memory of pieces.
    pub fn memory(&self) -> &Budget {
        &self.memory
    }

    /// Streams that are compressed live.
    pub fn encoders(&self) -> &Budget {
        &self.encoders
    }

    /// Pieces that are being built.
    #[cfg(test)]
    pub fn busy(&self) -> usize {
        self.slots.taken()
    }

    /// Waits until each thread has done what it was given before.
    #[cfg(test)]
    pub fn settle(&self) -> Result<(), String> {
        let count = self.slots.most();
        let (sender, arrivals) = channel();
        let gate = Arc::new(Mutex::new(()));
        let closed = locked(&gate);
        for _ in 0..count {
            let (sender, gate) = (sender.clone(), gate.clone());
            // Whoever has come waits for the others, so none comes twice.
            self.run(Box::new(move || {
                let _ = sender.send(());
                drop(locked(&gate));
            }));
        }
        let settled = (0..count).try_for_each(|_| arrivals.recv_timeout(std::time::Duration::from_secs(120)));
        drop(closed);
        settled.map_err(|error| format!("builders: {error}"))
    }

    /// Has a thread do `work` when there is memory of `bytes_max` and a slot for `owner`. `report`
    /// gets the outcome, or why it panicked, with the memory.
    pub fn build<T>(
        self: &Arc<Self>,
        owner: Owner,
        bytes_max: usize,
        work: impl FnOnce() -> T + Send + 'static,
        report: impl FnOnce(Result<T, String>, Room) + Send + 'static,
    ) {
        let builders = self.clone();
        let run = move |(memory, slot): (Room, Room)| {
            let job = move || {
                let outcome = caught_blocking(work);
                drop(slot);
                report(outcome, memory);
            };
            builders.run(Box::new(job));
        };
        if let Some(rooms) = self.memory.try_take(owner, bytes_max).zip(self.slots.try_take(owner, 1)) {
            return run(rooms);
        }
        let (memory, slots) = (self.memory.clone(), self.slots.clone());
        tokio::spawn(async move { run((memory.take(owner, bytes_max).await, slots.take(owner, 1).await)) });
    }

    fn run(&self, job: Job) {
        // The threads end with this only.
        let _ = self.jobs.send(job);
    }
}

/// Gives the calling thread, and no other, what processor time nobody else wants.
pub(crate) fn idle_priority() {
    // Linux means the thread by it, and cuts the value to the lowest priority there is.
    let _ = rustix::process::setpriority_process(None, 19);
}

/// Gives the calling thread, and no other, the priority of work that was foreseen.
pub(crate) fn lower_priority() {
    // Linux means the thread by it. A refusal costs nothing but the order.
    if let Ok(present) = rustix::process::getpriority_process(None) {
        let _ = rustix::process::setpriority_process(None, present + NICENESS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_one_job_and_others_have_the_priority_that_they_had() {
        let before = rustix::process::getpriority_process(None).unwrap();
        let builders = Builders::start(1, 1 << 20, 1).unwrap();
        let (sender, results) = channel();
        builders.run(Box::new(|| panic!("injected")));
        builders.run(Box::new(move || sender.send(rustix::process::getpriority_process(None).unwrap()).unwrap()));
        assert_eq!(results.recv(), Ok((before + NICENESS).min(19)));
        assert_eq!(rustix::process::getpriority_process(None).unwrap(), before);
    }
}
