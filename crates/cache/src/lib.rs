//! The device cache: what a device fetched once, in a folder, for all processes of one user.
//!
//! A [`Cache`] maps keys to records: stored blocks, pushed pages, proofs of chunk hashes, metadata,
//! names and actions. Records lie in *logs*, files that are only appended to, each of one *owner*
//! (an image). A log is written by one process at a time, which holds a lock on it; all processes
//! read. What a start of a program fetched lies in one log in the order in which it was fetched,
//! so that the next start reads it in one go. docs/formats/cache.md describes the files.
//!
//! - *Bounded.* Room is reserved before it is written, under a lock of the folder, and a log is
//!   emptied before its room is given to another one. So the files never take more than the limit.
//! - *Verified.* Every record has a hash over all of it, which is checked when it is read. What is
//!   damaged counts as absent. Nothing is synced: a power cut loses records, and never shows wrong
//!   ones.
//! - *Sparing of flash.* A byte that is cached is written once; records are not moved. The log that
//!   goes is the one used longest ago, and one that was fetched in many small parts, which would
//!   cost many round trips again, counts as used later than it was.
//! - *Sealed, if there is a key.* Then its files say nothing of images to who has not the key.
//!
//! - *Kept, if somebody says so.* Logs of an image that is pinned stay, within the limit, and have
//!   only what was put to be pinned. A name that is pinned has a file that says which of its
//!   versions programs start from; it is changed at once, and stays after a power cut.
//!
//! Everything here blocks on the disk. Callers keep it off the way of a demand.

mod disk;
mod folder;
mod format;
mod log;
mod names;
mod pins;
mod sealed;
mod store;
mod verify;

pub use encryption::StorageKey;
pub use folder::Unreadable;
pub use format::{
    BAD_MAX, Key, Kind, LABEL_BYTES_MAX, Owner, PAYLOAD_BYTES_MAX, PinnedName, TARGET_BYTES_MAX, Version,
};
pub use names::NameClaim;
pub use pins::{PinRoom, Spent};
pub use store::{Cache, Found, Status};

#[cfg(test)]
mod tests;
