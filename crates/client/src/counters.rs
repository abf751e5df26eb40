//! Every figure a mounted image reports, in one place. `runnel status --json` prints this struct as it stands.
//!
//! All are counts since the session was opened, never reset. Field names are stable; new ones are added at the end.

use serde::{Deserialize, Serialize};

/// What one session did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// READs the kernel sent (one may span several pages).
    pub reads: u64,
    /// Demand requests sent to the server (or to the local file), replays not counted again.
    pub requests: u64,
    /// Waits that a reader really stood through: demands sent while no READ of the same token was already waiting.
    pub round_trips: u64,
    /// Pages a demand request was sent for.
    pub pages_demanded: u64,
    /// Pages that arrived in pushes and were verified.
    pub pages_pushed: u64,
    /// Pushed pages known to be used: exact in audit runs and for READs answered from a push; elsewhere a segment
    /// counts whole as soon as its sentinel (its first page) is read.
    pub pages_push_hit: u64,
    /// Pushed pages taken to be wasted: in audit runs each page held and not read when its token ended; elsewhere the
    /// whole segment if its sentinel was not read by then. Pages dropped for want of room count here too.
    pub pages_wasted: u64,
    /// READs that waited for a push in flight instead of sending a demand.
    pub late_pushes: u64,
    /// Blocks asked for by readahead.
    pub blocks_speculated: u64,
    /// Pages of those blocks (every page whose first chunk lies there).
    pub pages_speculated: u64,
    /// Readahead blocks of which at least one page was read.
    pub blocks_speculated_used: u64,
    /// Readahead blocks that left the cache unread.
    pub blocks_speculated_wasted: u64,
    /// READs that could not be answered at once.
    pub stalls: u64,
    /// Time those READs waited, in microseconds, all added up.
    pub stall_micros: u64,
    /// Bytes received from the server, framing included.
    pub bytes_received: u64,
    /// Bytes sent to the server, framing included.
    pub bytes_sent: u64,
    /// Connections made again after a loss.
    pub reconnects: u64,
    /// Requests sent once more because their connection was lost.
    pub replays: u64,
    /// Blocks, pages and pieces whose bytes did not match the image.
    pub verify_failures: u64,
    /// Pages stored into the page cache.
    pub pages_stored: u64,
    /// Pages put into the holding area (sentinels, audit pages, pages of unknown inodes).
    pub pages_held: u64,
    /// Store calls the kernel refused.
    pub store_failures: u64,
    /// Inodes looked up so that pages could be stored.
    pub looked_up: u64,
    /// Pages reported to the server by touch messages.
    pub pages_touched: u64,
    /// Decoded blocks found in the cache.
    pub cache_hits: u64,
    /// READs answered with an error.
    pub read_errors: u64,
    /// Page buffers that lay ready in the pool.
    pub pool_hits: u64,
    /// Page buffers that had to be allocated on demand.
    pub pool_misses: u64,
    /// Blocks that were decoded again from the stored bytes the cache keeps.
    pub cache_decodes: u64,
    /// Push streams refused because the image's chunk hashes could not be had.
    pub pushes_refused: u64,
    /// Pages asked for by hints, without those that were here or on their way already.
    pub pages_hinted: u64,
    /// Hinted pages that came, by a push or in a block, and were verified; not among `pages_pushed`.
    pub pages_hint_pushed: u64,
}
