//! Memory of metadata: that of open images and of uploads, all on one account.
//!
//! A few kilobytes can announce 64 MiB of metadata, so room is taken before anything is decoded, by what the superblock
//! announces. Who finds none makes room: uploads that lost their connection are dropped, then images are closed, those
//! used longest ago first ([`Catalog::reserve`](crate::catalog::Catalog::reserve)).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The account.
#[derive(Clone)]
pub(crate) struct MetadataMemory {
    bytes_max: usize,
    taken: Arc<AtomicUsize>,
}

/// Bytes taken from a [`MetadataMemory`]; they go back on drop.
pub(crate) struct Reserved {
    taken: Arc<AtomicUsize>,
    bytes: usize,
}

impl MetadataMemory {
    /// An account of `bytes_max`.
    pub fn new(bytes_max: usize) -> MetadataMemory {
        MetadataMemory { bytes_max, taken: Arc::default() }
    }

    /// Takes `bytes` if they are free. More than the whole account is cut to it: an image that is larger can be opened when
    /// no other is.
    pub fn take(&self, bytes: usize) -> Option<Reserved> {
        let bytes = bytes.min(self.bytes_max);
        let room = |taken: usize| taken.checked_add(bytes).filter(|after| *after <= self.bytes_max);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).ok()?;
        Some(Reserved { taken: self.taken.clone(), bytes })
    }

    /// Bytes that are taken now.
    pub fn taken_bytes(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// Bytes that there are.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }
}

impl Reserved {
    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let excess = self.bytes.saturating_sub(bytes);
        self.bytes -= excess;
        self.taken.fetch_sub(excess, Ordering::AcqRel);
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
        let memory = MetadataMemory::new(100);
        let mut first = memory.take(60).unwrap();
        assert!(memory.take(41).is_none());
        first.shrink_to(50);
        let second = memory.take(50).unwrap();
        assert_eq!(memory.taken_bytes(), 100);
        drop((first, second));
        assert_eq!(memory.taken_bytes(), 0);
        let whole = memory.take(1_000_000).unwrap();
        assert!(memory.take(1).is_none());
        drop(whole);
        assert_eq!(memory.taken_bytes(), 0);
    }
}
