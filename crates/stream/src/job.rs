//! Jobs on the storage of this device, and their outcomes. They are done one after the other, in
//! their order.

use std::sync::mpsc::Sender;

use bytes::Bytes;

use crate::outbox::Who;

/// A block in the disk cache: which file, its version, which block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockKey {
    pub file: u64,
    pub version: u64,
    pub index: u32,
}

/// Something to do on the storage of this device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// Brings a transaction to stable storage; told by [`JobDone::Stored`].
    Store { number: u64, known_as: u64, bytes: Vec<u8> },
    /// A stored transaction gets another number. Those that follow it know it as before.
    Renumber { from: u64, to: u64 },
    /// A stored transaction is done.
    Remove { number: u64 },
    /// A stored transaction was refused: moves it aside, with the reason.
    Lose { number: u64, reason: String },
    /// Brings to stable storage that numbers below this one may have been used; told by
    /// [`JobDone::Reserved`].
    Reserve { next: u64 },
    /// Brings to stable storage who this device is; told by [`JobDone::Identified`].
    Identify { who: Who },
    /// Opens the disk cache; told by [`JobDone::CacheFound`].
    CacheOpen { volume: u128, block_bytes: u32 },
    /// Puts a block into a slot of the cache.
    CacheWrite { slot: u32, key: BlockKey, bytes: Bytes },
    /// Reads a slot; told by [`JobDone::CacheRead`].
    CacheRead { slot: u32, key: BlockKey },
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobDone {
    /// Of `Store`.
    Stored { number: u64, outcome: Result<(), String> },
    /// Of `Reserve`.
    Reserved { next: u64, outcome: Result<(), String> },
    /// Of `Identify`.
    Identified { outcome: Result<(), String> },
    /// Of `CacheRead`: the block if it is whole.
    CacheRead { slot: u32, key: BlockKey, bytes: Option<Bytes> },
    /// Of `CacheOpen`: its size and what it holds.
    CacheFound { slots: u32, found: Vec<(u32, BlockKey)> },
}

/// An order to the thread of a volume.
pub(crate) enum Order {
    Job(Job),
    /// Something is due earlier than it thought.
    Wake,
    /// All that was ordered before is to be done, and then it ends.
    Stop(Sender<()>),
}
