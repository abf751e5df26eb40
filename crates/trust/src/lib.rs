//! Signed names: which image a name stands for, as its publisher signed it.
//!
//! A device that opens `name:tag` gets metadata of The Update Framework (TUF, specification 1.0)
//! with the answer: new root files, timestamp, snapshot, targets, and the delegated targets roles
//! on the way to the name ([`Stapled`]). [`Verifier::verify`] follows the client workflow of the
//! specification's section 5 and gives the [`SignedName`], or a [`Refusal`] that says what is
//! wrong. A server, its TLS keys and its timestamp key are not trusted: whoever has all of them and
//! every old file can withhold news until the snapshot expires, and nothing else.
//!
//! What a device remembers is a [`State`] of at most 4 KiB. The files themselves are kept in a
//! [`Cache`], which is verified again at each use; [`Known`] tells a server which files need not
//! travel again.
//!
//! ```text
//! Open request    <- cache.known(verifier.root_version())
//! its answer      -> Stapled::decode(bytes) -> cache.complete(..) -> verifier.verify(..)
//! on success      -> verifier.state().encode() to flash, then cache.keep(..)
//! ```
//!
//! Supported is the metadata format POUF-1: JSON, signed in its canonical form (OLPC), with keys of
//! the type `ed25519`. Everything is pure: bytes and time are parameters, and nothing is random.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod cache;
mod coding;
mod delegation;
mod digest;
pub mod format;
mod json;
mod key;
mod known;
mod memory;
mod metadata;
mod refusal;
pub mod repository;
mod root;
mod rule;
mod stapled;
mod state;
mod time;
mod verifier;
mod workflow;

pub use cache::Cache;
pub use coding::CodingError;
pub use known::Known;
pub use refusal::{Damage, Kind, Refusal};
pub use stapled::Stapled;
pub use state::{State, StateError};
pub use time::UnixTime;
pub use verifier::{JudgedBy, SignedName, Verifier};

#[cfg(test)]
mod tests;
