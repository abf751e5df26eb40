//! The publisher's side of signed names: keys, and a repository of The Update Framework (TUF,
//! specification 1.0) as its owner changes it. Devices check the result with the crate `trust`.
//!
//! A [`Repository`] is read, changed, and then signed with the [`SigningKey`]s that are at hand:
//!
//! ```text
//! Repository::create(..) or ::read(root, files)
//!   -> set_name, delegate, rotate, refresh
//!   -> sign(keys, now) -> the files that are new, for a server or a folder
//! ```
//!
//! If the keys of a role lie with several holders, [`Repository::sign_or_draft`] makes a [`Draft`],
//! and each of the others goes on from there: `read`, `take_drafts`, `sign_or_draft`.
//!
//! Only what changed is written anew, so bytes that others have signed stay as they are. Metadata
//! are JSON in the form POUF-1, signed in the canonical form of OLPC with Ed25519.

mod canonical;
mod error;
mod file;
mod fs_verity;
mod key;
mod repository;
mod role;
mod timestamp;

pub use error::SigningError;
pub use fs_verity::fs_verity_of;
pub use key::{PublicKey, SigningKey, sha256_hex, sha256_of};
pub use repository::{Change, Delegation, Draft, Missing, Repository, Signed, Target};
pub use role::{Lifetimes, RoleKeys, TOP_LEVEL};
pub use timestamp::renew_timestamp;

#[cfg(test)]
mod tests;
