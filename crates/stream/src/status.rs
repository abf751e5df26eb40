//! The status of a volume, for people and their tools.

use serde::{Deserialize, Serialize};

/// The status of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the volume.
    pub volume: String,
    /// The server answers.
    pub connected: bool,
    /// Why not, or why not any more.
    pub reason: String,
    /// Connections so far.
    pub connections: u64,
    /// Open handles.
    pub handles: u64,
    /// Data blocks.
    #[serde(flatten)]
    pub blocks: BlockStatus,
    /// Encoded bytes of blocks received.
    pub bytes_received: u64,
    /// Round trip of the link as it was seen, microseconds; 0 if unknown.
    pub round_trip_micros: u64,
    /// Rate of the link as it was seen, bytes per second; 0 if unknown.
    pub bytes_per_second: u64,
    /// Changes that are not on the server yet.
    #[serde(flatten)]
    pub unsent: UnsentStatus,
    /// Transactions that the server committed.
    pub committed: u64,
    /// Changes that the server refused or that could not be kept, the latest 64.
    pub lost: Vec<Lost>,
}

/// Data blocks of a volume on this device, and what became of them so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStatus {
    /// Bytes of clean blocks in memory.
    pub memory_bytes: u64,
    /// Bytes that there may be.
    pub memory_bytes_max: u64,
    /// Bytes of blocks in the disk cache.
    pub disk_bytes: u64,
    /// Bytes that there may be.
    pub disk_bytes_max: u64,
    /// Blocks read that were in memory or known to be zeros.
    pub hits: u64,
    /// Blocks read that were in the disk cache.
    pub disk_hits: u64,
    /// Blocks asked of the server because somebody waited for them.
    pub blocks_asked: u64,
    /// Blocks that the server pushed.
    pub blocks_pushed: u64,
    /// Pushed blocks that were used later.
    pub blocks_used: u64,
    /// Pushed blocks that were dropped without having been used, or came for nothing.
    pub blocks_wasted: u64,
}

/// Changes that are not on the server yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsentStatus {
    /// Transactions that are not on the server yet.
    pub unsent_transactions: u64,
    /// Bytes of changes that are not on the server yet.
    pub unsent_bytes: u64,
    /// Bytes that there may be.
    pub unsent_bytes_max: u64,
    /// Transactions of those that lie in the outbox.
    pub stored_transactions: u64,
}

/// A change that did not get to the server and never will.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The file.
    pub path: String,
    /// Bytes that were written.
    pub bytes: u64,
    /// Why, and what to do.
    pub reason: String,
    /// Where the change lies now, if it was in an outbox.
    pub kept_as: Option<String>,
}
