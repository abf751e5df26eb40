//! Stores in object storage, by URL: S3 and what speaks its protocol, Google Cloud Storage, Azure.
//!
//! [`Remote`] is a [`store::Store`] over the crate `object_store`. Its calls block, as those of
//! every store do: the requests run on two threads of its own (`bridge`), so that it can be called
//! from any thread.
//!
//! - What is read goes through a cache of blocks in memory and on the disk of this machine
//!   (`cache`). An object of one block at most is read whole when it is opened. Of a larger one
//!   each request says which state of the object it is about, so that an open object never shows
//!   bytes of two.
//! - What is written is staged in a file of this machine, and goes up when it is committed
//!   (`upload`).
//! - A store that does not answer is *away* (`health`): requests fail at once, but for one a
//!   second that tries again. Objects that were open stay readable as far as they are cached, and
//!   those that were opened before can be opened again as they were then.
//!
//! Secrets come from the environment, as each ecosystem has it, and stand in no message: `failure`
//! takes out what could hold one.

mod address;
mod bridge;
mod cache;
mod failure;
#[cfg(feature = "fixture")]
pub mod fixture;
mod health;
mod object;
mod remote;
mod upload;

pub use address::{Address, AddressError, Place};
pub use remote::{CacheOptions, Remote, open};

/// Bytes of a block: the unit of the cache, and the least that is asked for.
pub const BLOCK_BYTES: u64 = 1 << 20;
