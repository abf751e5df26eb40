//! Ids, sizes, limits, and the types of clocks and random numbers that every crate shares.
//!
//! Four sizes are never mixed (see ARCHITECTURE.md): a *page* is 4 KiB of a file, the unit of a
//! fault; a *chunk* is the stored unit after deduplication; a *block* is a compressed group of
//! chunks; an *extent* is a run of pages. Ids are newtypes so that an index, a count and a size
//! cannot be confused.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod acl;
mod date;
mod id;
mod lock;
mod moment;
mod printable;
mod rng;

pub use acl::{ACL_ENTRIES_MAX, Acl};
pub use date::date;
pub use id::{ActionId, BlockId, ChunkId, ImageId, InodeId, PageId, RequestId, SegmentIndex, StreamId, Token};
pub use lock::{LockKind, LockPiece, LockRange, LockRanges};
pub use moment::Moment;
pub use printable::{printable_line, printable_text};
pub use rng::{Rng, SplitMix64};

/// Bytes in a page: the unit of a fault and of the page cache on every architecture we serve.
pub const PAGE_BYTES: usize = 4096;

/// Pages in a segment of an action (SYSFLOW's SEG_MAX): 32 pages = 128 KiB, also what one
/// page-cache store carries.
pub const SEGMENT_PAGES_MAX: usize = 32;
