//! Group commit: transactions of several threads that share one write and one sync.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::committer::Committer;
use crate::{Committed, Transaction, VolumeError};

/// Transactions that share one sync, at most.
const GROUP_MAX: usize = 64;

/// Commits transactions in the order in which they come.
///
/// While transactions wait, one of the threads that wait for them leads: it commits a group from
/// the front of the queue. No other thread touches the committer meanwhile, but for a checkpoint.
pub(crate) struct GroupCommit {
    committer: Mutex<Committer>,
    queue: Mutex<Queue>,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<Ticket>>,
    /// A thread is committing a group.
    leading: bool,
}

struct Ticket {
    transaction: Transaction,
    result: Mutex<Option<Result<Committed, VolumeError>>>,
}

impl GroupCommit {
    pub fn new(committer: Committer) -> GroupCommit {
        GroupCommit { committer: Mutex::new(committer), queue: Mutex::default(), done: Condvar::new() }
    }

    /// Commits transactions in their order; each is committed or refused by itself.
    pub fn commit_all(&self, transactions: Vec<Transaction>) -> Vec<Result<Committed, VolumeError>> {
        let ticket = |transaction| Arc::new(Ticket { transaction, result: Mutex::new(None) });
        let tickets: Vec<_> = transactions.into_iter().map(ticket).collect();
        let mut queue = locked(&self.queue);
        queue.waiting.extend(tickets.iter().cloned());
        // In order, so the last one tells of all.
        while tickets.last().is_some_and(|last| locked(&last.result).is_none()) {
            if queue.leading {
                queue = self.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            queue.leading = true;
            let count = queue.waiting.len().min(GROUP_MAX);
            let group: Vec<_> = queue.waiting.drain(..count).collect();
            drop(queue);
            let leading = Leading { commit: self, group };
            let transactions: Vec<_> = leading.group.iter().map(|ticket| &ticket.transaction).collect();
            let results = locked(&self.committer).commit(&transactions);
            for (ticket, result) in leading.group.iter().zip(results) {
                *locked(&ticket.result) = Some(result);
            }
            drop(leading);
            queue = locked(&self.queue);
        }
        drop(queue);
        tickets.iter().map(|ticket| locked(&ticket.result).take().unwrap_or_else(died)).collect()
    }

    /// As [`crate::Volume::checkpoint`].
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`], [`VolumeError::Broken`].
    pub fn checkpoint(&self) -> Result<(), VolumeError> {
        locked(&self.committer).checkpoint()
    }

    /// Bytes in the journal since the last checkpoint.
    pub fn journal_bytes(&self) -> u64 {
        locked(&self.committer).journal_bytes()
    }
}

/// The thread that commits a group. However it ends, nobody is left waiting.
struct Leading<'a> {
    commit: &'a GroupCommit,
    group: Vec<Arc<Ticket>>,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        let mut queue = locked(&self.commit.queue);
        for ticket in &self.group {
            locked(&ticket.result).get_or_insert_with(died);
        }
        queue.leading = false;
        self.commit.done.notify_all();
    }
}

/// The result of a transaction whose thread panicked.
pub(crate) fn died() -> Result<Committed, VolumeError> {
    Err(VolumeError::Broken { why: "the committing thread died".to_owned() })
}

/// A lock; a thread that panicked does not poison it.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
