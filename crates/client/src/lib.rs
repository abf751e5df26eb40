//! The image client: from the network into pages, without knowing FUSE.
//!
//! A [`Session`] is one mounted image. The mount hands it READs and gets verified bytes. Through a
//! [`PageSink`] the session stores pushed pages into the page cache before a program asks for them.
//! An image comes from a server over persistent connections, one per core, or from a local file;
//! everything above the transport is the same.
//!
//! `schedule` decides what is answered, requested and stored: it is pure and owns the state of all
//! READs and requests. `shared` holds it behind a lock. `handler` runs requests on a connection to
//! a server, `http` on one to a web server; `local` answers READs from a file. `storer` decodes
//! pushes and stores them into the page cache. `block_cache` and `slab` keep blocks, `allocator`
//! keeps page buffers, `link` has the policies that follow from the link, `hashes` fetches chunk
//! hashes after the mount. `pin`, `upload` and `admin` serve commands that need no mount;
//! `ablation` is for measurements.
//!
//! Every byte is checked against the image's hashes before it is used. Bytes that could not be
//! fetched are never answered with zeros. Caches, queues, retries and soft waits are bounded.

mod ablation;
pub mod admin;
mod allocator;
mod ask;
mod block_cache;
mod cached;
mod command;
mod config;
mod counters;
mod decode_rate;
mod error;
mod fetched;
mod handler;
mod hashes;
mod http;
mod job;
mod link;
mod local;
mod open;
mod page_parts;
pub mod pin;
mod remote;
mod schedule;
mod session;
mod shared;
mod signed;
mod sink;
mod slab;
mod storer;
mod tell;
pub mod upload;

#[cfg(test)]
mod tests;

pub use config::{Ablation, CONNECTIONS_MAX, Config, Granularity, Holding};
pub use counters::Counters;
pub use error::{ClientError, ReadError};
pub use local::blocks::{BlockFailure, FileBlocks, NearBlock};
pub use local::{ImageFile, open_file};
pub use schedule::NO_TOKEN;
pub use session::{HINT_PAGES_MAX, Session};
pub use signed::{SignedNames, signed_without_server};
pub use sink::{Done, PageSink, StoreOutcome};
pub use trust::{Kind, Refusal, SignedName};
