//! The client: from the network into pages, without knowing FUSE.
//!
//! A [`Session`] is one mounted image. The mount hands it READs and gets verified bytes, and hands it a [`PageSink`]
//! through which pushed pages reach the page cache before anyone asks for them. An image comes from a server over
//! persistent connections, one per core, or from a local file; everything above the transport is the same.
//!
//! Parts: `target` (what to open), `transport` and `tls` (bytes to and from a server), `lane` (one connection and its
//! thread), `http` (the same for a plain web server), `schedule` (what waits for what; pure),
//! `block_cache`, `slab` and `holding` (what lies in the daemon), `allocator` (page buffers), `readahead` and `link`
//! (policies; pure), `hashes` (what a mount fetches after it has begun), `touches` (what the server learns from), `storer` (pushes into the page cache), `ablation` (the I/O path without
//! one of its parts, to be measured), `upload` and `admin` (the commands that need no mount).
//!
//! Every byte is checked against the image's hashes before it is used. Nothing is ever answered with zeros because it
//! could not be fetched. Everything is bounded: caches, queues, waits in soft mode, retries.

mod ablation;
pub mod admin;
mod allocator;
mod block_cache;
pub mod carry;
mod clock;
mod command;
mod config;
mod connection;
mod counters;
mod error;
mod hashes;
mod holding;
mod http;
mod lane;
mod link;
mod local;
mod place;
mod readahead;
mod remote;
mod schedule;
mod session;
mod slab;
mod storer;
pub mod target;
#[cfg(feature = "tls")]
mod tls;
mod touches;
mod transport;
pub mod upload;
mod waker;

#[cfg(test)]
mod tests;

pub use ablation::Ablation;
pub use config::{CONNECTIONS_MAX, Config, Granularity, Waiting};
pub use counters::Counters;
pub use error::{ClientError, ReadError};
pub use local::{ImageFile, open_file};
pub use schedule::NO_TOKEN;
pub use session::{Done, HINT_PAGES_MAX, PageSink, Session, StoreOutcome};
pub use target::{HttpFile, ImageName, Remote, Scheme, Server, Target, TargetError, VolumeAt};
pub use transport::{Identity, Trust};
