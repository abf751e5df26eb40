//! Threads that build pieces of pushes. A prediction must not starve a demand, so they, like the
//! one that makes bundles, have a low priority: while the processors are busy, whoever reads a
//! block or commits goes first.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::blocks::locked;
use crate::panics::caught_blocking;

/// Niceness that threads whose work was foreseen have beyond that of the server: a third of the
/// processor time of others where there is too little.
const NICENESS: i32 = 5;

type Job = Box<dyn FnOnce() + Send>;

/// The threads. They end when this is dropped.
pub(crate) struct Builders {
    jobs: Sender<Job>,
}

impl Builders {
    /// Starts `count` of them.
    pub fn start(count: usize) -> io::Result<Builders> {
        let (jobs, receiver) = channel();
        let receiver: Arc<Mutex<Receiver<Job>>> = Arc::new(Mutex::new(receiver));
        for _ in 0..count {
            let receiver = receiver.clone();
            std::thread::Builder::new().name("builder".to_owned()).spawn(move || {
                step_back();
                loop {
                    let job = locked(&receiver).recv();
                    let Ok(job) = job else { return };
                    // A panic there is a bug that the hook reported, and ends the job alone.
                    let _ = caught_blocking(job);
                }
            })?;
        }
        Ok(Builders { jobs })
    }

    /// Has a thread do `job`. Who calls it holds a slot of `builds`, so that one is free.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        // They end with this only.
        let _ = self.jobs.send(Box::new(job));
    }
}

/// Gives the calling thread, and no other, the priority of work that was foreseen.
pub(crate) fn step_back() {
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
        let builders = Builders::start(1).unwrap();
        let (sender, results) = channel();
        builders.run(|| panic!("injected"));
        builders.run(move || sender.send(rustix::process::getpriority_process(None).unwrap()).unwrap());
        assert_eq!(results.recv(), Ok((before + NICENESS).min(19)));
        assert_eq!(rustix::process::getpriority_process(None).unwrap(), before);
    }
}
