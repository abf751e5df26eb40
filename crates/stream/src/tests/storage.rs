//! The storage of a simulated device: what its outbox and its cache hold.

use std::collections::BTreeMap;

use crate::job::{BlockKey, Job, JobDone};
use crate::outbox::Who;

/// The storage of a device that survives a restart.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    pub who: Who,
    pub next: u64,
    /// By number: by what number others know it, and its bytes.
    pub stored: BTreeMap<u64, (u64, Vec<u8>)>,
    pub lost: Vec<String>,
    pub cache: BTreeMap<u32, (BlockKey, bytes::Bytes)>,
}

impl Storage {
    /// Does a job as the storage thread does.
    pub fn run(&mut self, job: Job) -> Option<JobDone> {
        match job {
            Job::Store { number, known_as, bytes } => {
                self.stored.insert(number, (known_as, bytes));
                return Some(JobDone::Stored { number, outcome: Ok(()) });
            }
            Job::Reserve { next } => {
                self.next = next;
                return Some(JobDone::Reserved { next, outcome: Ok(()) });
            }
            Job::Identify { who } => {
                self.who = who;
                return Some(JobDone::Identified { outcome: Ok(()) });
            }
            Job::Renumber { from, to } => {
                let bytes = self.stored.remove(&from).expect("a stored transaction is renumbered");
                self.stored.insert(to, bytes);
            }
            Job::Remove { number } => {
                self.stored.remove(&number).expect("a stored transaction is removed");
            }
            Job::Lose { number, reason } => {
                self.stored.remove(&number).expect("a stored transaction is lost");
                self.lost.push(reason);
            }
            Job::CacheOpen { .. } => {
                let found = self.cache.iter().map(|(slot, (key, _))| (*slot, *key)).collect();
                return Some(JobDone::CacheFound { slots: 16, found });
            }
            Job::CacheWrite { slot, key, bytes } => {
                self.cache.insert(slot, (key, bytes));
            }
            Job::CacheRead { slot, key } => {
                let held = self.cache.get(&slot).filter(|(held, _)| *held == key);
                return Some(JobDone::CacheRead { slot, key, bytes: held.map(|(_, bytes)| bytes.clone()) });
            }
        }
        None
    }
}
