//! Requests in flight, by number.
//!
//! Only the thread that removes an entry may answer, so each request is answered once. The kernel
//! bounds their number: one for each thread that waits, and the background requests that were
//! agreed on. The table has shards with a lock each, which is held for one look-up only, so that
//! serving threads do not wait for each other.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::handover::Place;

/// Shards; some times the number of serving threads.
const SHARDS: usize = 32;

/// The effect of a signal on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// FLUSH: a descriptor is being closed.
    Close,
    /// The call may end early because of a signal that its program catches.
    EndsBySignal,
    /// A wait for a lock: any signal ends it.
    Lock,
    /// Only a fatal signal ends it.
    Other,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub kind: Kind,
    /// The thread that waits; 0 if it cannot be seen.
    pub thread: u32,
    /// Index of the descriptor that it was read from.
    pub device: usize,
    pub arrived: Instant,
    /// A signal came while it waits. The kernel says so once.
    pub interrupted: bool,
    /// Where it is kept for the next daemon.
    pub place: Option<Place>,
    /// Its answer is on the way. It is in the table until the answer was sent, if the thread that
    /// has read it needs to know that.
    pub is_answered: bool,
}

/// Numbers of requests come one after the other from the kernel, so they need no protection against
/// chosen keys.
#[derive(Clone, Copy, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // An odd constant spreads counted numbers over the upper bits, which the map uses too (2^64
        // over the golden ratio).
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

type Shard = HashMap<u64, Entry, BuildHasherDefault<NumberHasher>>;

/// The requests in flight.
#[derive(Default)]
pub(crate) struct Table {
    shards: [Mutex<Shard>; SHARDS],
}

impl Table {
    fn shard(&self, unique: u64) -> MutexGuard<'_, Shard> {
        // The lowest bit tells interrupts apart, so numbers are even.
        let index = (unique >> 1) as usize % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, unique: u64, entry: Entry) {
        self.shard(unique).insert(unique, entry);
    }

    /// Whether a request waits for an answer.
    pub fn contains(&self, unique: u64) -> bool {
        self.shard(unique).get(&unique).is_some_and(|entry| !entry.is_answered)
    }

    /// Takes a request out, after `keep` has kept its answer. The caller must send that.
    pub fn remove(&self, unique: u64, keep: impl FnOnce(&Entry)) -> Option<Entry> {
        let mut shard = self.shard(unique);
        let entry = shard.get_mut(&unique).filter(|entry| !entry.is_answered)?;
        keep(entry);
        if matches!(entry.place, Some(Place::Read(_))) {
            entry.is_answered = true;
            return Some(*entry);
        }
        shard.remove(&unique)
    }

    /// The answer of a request that was kept where it was read was sent. Where it is now.
    pub fn sent(&self, unique: u64) -> Option<Place> {
        self.shard(unique).remove(&unique).and_then(|entry| entry.place)
    }

    /// A request is kept elsewhere from now on; whether it was still there.
    pub fn keep(&self, unique: u64, place: Place) -> bool {
        let mut shard = self.shard(unique);
        shard.get_mut(&unique).map(|entry| entry.place = Some(place)).is_some()
    }

    /// A signal came for the thread that waits. `None` if the request is not there.
    pub fn interrupt(&self, unique: u64) -> Option<Entry> {
        let mut shard = self.shard(unique);
        let entry = shard.get_mut(&unique).filter(|entry| !entry.is_answered)?;
        entry.interrupted = true;
        Some(*entry)
    }

    /// Those whose threads have to be looked at: interrupted ones, and all that close.
    pub fn watched(&self) -> Vec<(u64, Entry)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let watched = shard.iter().filter(|(_, entry)| entry.interrupted || entry.kind == Kind::Close);
            let watched = watched.filter(|(_, entry)| !entry.is_answered);
            found.extend(watched.map(|(unique, entry)| (*unique, *entry)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_out_once() {
        let table = Table::default();
        let entry = Entry {
            kind: Kind::Other,
            thread: 1,
            device: 0,
            arrived: Instant::now(),
            interrupted: false,
            place: None,
            is_answered: false,
        };
        for unique in (2..2000).step_by(2) {
            table.insert(unique, entry);
        }
        table.insert(2000, Entry { kind: Kind::Close, ..entry });
        assert_eq!(table.watched().len(), 1);
        assert!(table.interrupt(4).is_some_and(|entry| entry.interrupted));
        assert!(table.interrupt(3000).is_none());
        assert_eq!(table.watched().len(), 2);
        assert!(table.remove(4, |_| ()).is_some());
        assert!(table.remove(4, |_| ()).is_none() && table.interrupt(4).is_none());
        assert_eq!(table.watched().len(), 1);
    }

    /// A thread that has read a long request must not read into the same place before the answer is
    /// on its way.
    #[test]
    fn what_is_kept_where_it_was_read_stays_until_its_answer_was_sent() {
        let table = Table::default();
        let place = Some(Place::Read(3));
        let entry = Entry {
            kind: Kind::Close,
            thread: 1,
            device: 0,
            arrived: Instant::now(),
            interrupted: true,
            place,
            is_answered: false,
        };
        table.insert(2, entry);
        let mut kept = None;
        assert!(table.remove(2, |entry| kept = entry.place).is_some());
        assert_eq!(kept, place);
        assert!(!table.contains(2) && table.watched().is_empty() && table.interrupt(2).is_none());
        assert!(table.remove(2, |_| ()).is_none(), "it is answered once");
        assert!(table.keep(2, Place::Area(3)));
        assert_eq!(table.sent(2), Some(Place::Area(3)));
        assert!(!table.keep(2, Place::Area(3)));
    }
}
