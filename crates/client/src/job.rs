//! Jobs of the storer.

use wire::{PushEncoding, PushPiece};

use crate::block_cache::Evicted;
use crate::command::StreamKey;
use crate::schedule::{HintedBlock, StreamInfo};

/// Push bytes that may lie undigested before credit is held back, which lets the server's window
/// close. Four raw segments: enough to keep the storer busy, and a quarter of a second for a slow
/// core.
pub(crate) const UNDIGESTED_BYTES_MAX: usize = 512 << 10;

/// A job of the storer.
pub(crate) enum Job {
    /// A stream began.
    Started { key: StreamKey, info: StreamInfo, encoding: PushEncoding, window_log: u8 },
    /// A piece of it, and the credit that is due once it is digested.
    /// `announced`: the schedule knows that its pages are arriving.
    Piece { key: StreamKey, piece: PushPiece, credit: u32, announced: bool },
    /// It is over.
    Over { key: StreamKey },
    /// A block left the cache.
    Evicted(Evicted),
    /// A block with hinted pages came.
    Hinted(HintedBlock),
    /// The chunk hashes are loaded, or cannot be had.
    Hashes { good: bool },
    /// The session is closed.
    Close,
}
