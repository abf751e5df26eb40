//! The image client: from the network into pages, without knowing FUSE.
//!
//! A [`Session`] is one mounted image. The mount hands it READs and gets verified bytes, and hands it a [`PageSink`]
//! through which pushed pages reach the page cache before anyone asks for them. An image comes from a server over
//! persistent connections, one per core, or from a local file; everything above the transport is the same.
//!
//! Parts: `handler` (the image's part of a connection), `http` (the same for a plain web server),
//! `local` (for a file), `schedule` (what waits for what; pure), `block_cache`, `slab` and
//! `holding` (what lies in the daemon), `allocator` (page buffers), `readahead` and `link`
//! (policies; pure), `hashes` (what a mount fetches after it has begun), `touches` (what the server
//! learns from), `storer` (pushes into the page cache), `ablation` (the I/O path without one of its
//! parts, to be measured), `upload` and `admin` (the commands that need no mount).
//!
//! Every byte is checked against the image's hashes before it is used. Nothing is ever answered with zeros because it
//! could not be fetched. Everything is bounded: caches, queues, waits in soft mode, retries.

mod ablation;
pub mod admin;
mod allocator;
mod block_cache;
mod command;
mod config;
mod counters;
mod error;
mod handler;
mod hashes;
mod holding;
mod http;
mod job;
mod link;
mod local;
mod open;
mod place;
mod readahead;
mod remote;
mod schedule;
mod session;
mod shared;
mod sink;
mod slab;
mod storer;
mod touches;
pub mod upload;

#[cfg(test)]
mod tests;

pub use config::{Ablation, CONNECTIONS_MAX, Config, Granularity};
pub use counters::Counters;
pub use error::{ClientError, ReadError};
pub use local::{ImageFile, open_file};
pub use schedule::NO_TOKEN;
pub use session::{HINT_PAGES_MAX, Session};
pub use sink::{Done, PageSink, StoreOutcome};
