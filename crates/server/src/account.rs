//! Memory that is counted, and taken before it is needed: metadata of open images and of uploads,
//! and what is learned.
//!
//! A few kilobytes can announce 64 MiB of metadata, so as much as the superblock announces is taken
//! before anything is decoded. If there is too little, the catalog drops uploads that lost their
//! connection, then closes the images used longest ago.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An account of bytes. Clones are the same account.
#[derive(Clone)]
pub(crate) struct Account {
    bytes_max: usize,
    taken: Arc<AtomicUsize>,
}

/// Bytes taken from an [`Account`]; they go back on drop.
pub(crate) struct Reserved {
    account: Account,
    bytes: usize,
}

impl Account {
    /// An account of `bytes_max`.
    pub fn new(bytes_max: usize) -> Account {
        Account { bytes_max, taken: Arc::default() }
    }

    /// Takes `bytes` if they are free. More than the whole account is cut to it: an image that is
    /// larger can be opened when no other is.
    pub fn take(&self, bytes: usize) -> Option<Reserved> {
        let bytes = bytes.min(self.bytes_max);
        self.add(bytes).then(|| Reserved { account: self.clone(), bytes })
    }

    /// Takes what is free of `bytes`.
    pub fn take_up_to(&self, bytes: usize) -> Reserved {
        let mut reserved = Reserved { account: self.clone(), bytes: 0 };
        let mut wanted = bytes;
        while wanted > 0 && !reserved.grow_to(wanted) {
            wanted = bytes.min(self.bytes_max.saturating_sub(self.taken_bytes()));
        }
        reserved
    }

    /// Bytes that are taken now.
    pub fn taken_bytes(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// Bytes that there are.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn add(&self, bytes: usize) -> bool {
        let room = |taken: usize| taken.checked_add(bytes).filter(|after| *after <= self.bytes_max);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_ok()
    }
}

impl Reserved {
    /// How much it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more, so that it is `bytes`, if that is free.
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let grown = self.account.add(more);
        self.bytes += if grown { more } else { 0 };
        grown
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let excess = self.bytes.saturating_sub(bytes);
        self.bytes -= excess;
        self.account.taken.fetch_sub(excess, Ordering::AcqRel);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_once_and_come_back() {
        let account = Account::new(100);
        let mut first = account.take(60).unwrap();
        assert!(account.take(41).is_none());
        first.shrink_to(50);
        assert!(!first.grow_to(101));
        let second = account.take(40).unwrap();
        assert!(first.grow_to(60));
        assert_eq!(account.taken_bytes(), 100);
        assert_eq!(account.take_up_to(10).bytes(), 0);
        drop(second);
        assert_eq!(account.take_up_to(1000).bytes(), 40);
        drop(first);
        assert_eq!(account.taken_bytes(), 0);
        let whole = account.take(1_000_000).unwrap();
        assert!(account.take(1).is_none());
        drop(whole);
        assert_eq!(account.taken_bytes(), 0);
    }
}
