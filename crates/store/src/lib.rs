//! Objects by key: where a server keeps images, tags, learned actions and bundles. The store knows
//! nothing of their contents.
//!
//! An object is immutable bytes under a key such as `images/3f…9a.rnl`. There are two ways to
//! write one, [`Store::put_atomic`] and [`Upload::commit`], and both are all-or-nothing: after a
//! crash at any point the key has the old object or the new one, whole and durable. There is no
//! append and no lock; to change an object, put it again. Who decides by what an object holds reads
//! it with its [`Version`] and writes with [`Store::put_if`], which fails if somebody was quicker.
//!
//! There are three implementations: [`Memory`] for tests and simulation, [`Local`] for a folder on
//! disk, and [`Fault`], which wraps another store and fails on purpose; the crate `objects` has one
//! for object storage. The same conformance tests check all of them. All calls block.

#[cfg(any(test, feature = "fixture"))]
pub mod conformance;
mod error;
mod fault;
mod key;
mod local;
mod memory;
mod version;

use std::sync::Arc;

pub use error::StoreError;
pub use fault::{Fault, FaultKind, FaultPlan};
pub use key::{KEY_BYTES_MAX, KEY_DEPTH_MAX, KEY_PART_BYTES_MAX, check_key};
pub use local::{Claim, Local, Sharing};
pub use memory::Memory;
pub use version::Version;

/// Entries one folder listing may return. A store with a million tags in one folder is broken or
/// hostile.
pub const LIST_ENTRIES_MAX: usize = 1_000_000;

/// An object opened for reading. It stays readable, with the same bytes, even if its key is
/// replaced or deleted; a large one over a network may then say [`StoreError::Replaced`].
pub trait Object: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether the object is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// [`StoreError::Truncated`] if the object ends before `offset + buf.len()`, [`StoreError::Io`]
    /// if the read fails.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError>;

    /// Fills `buf` from `offset` if the bytes are in memory; `false` if they may have to be waited
    /// for, and then `buf` holds anything. Unlike the other calls it does not block.
    ///
    /// # Errors
    /// As [`Object::read_at`].
    fn read_cached_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Tells the system that the whole object will be read soon, from front to back. Only advice:
    /// what the system makes of it is its own affair, and a store without a system below it does
    /// nothing.
    fn advise_whole(&self) {}
}

/// An object being written, invisible until [`Upload::commit`]. Dropping it has the effect of
/// [`Upload::abort`].
pub trait Upload: Send + Sync {
    /// Writes `bytes` at `offset`; gaps read as zeros. Writes may come in any order.
    ///
    /// # Errors
    /// [`StoreError::Full`] if there is no room, [`StoreError::Io`] otherwise.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Reads back what was written, so that an upload can be checked before it is committed.
    ///
    /// # Errors
    /// As [`Object::read_at`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError>;

    /// As [`Object::read_cached_at`], of what was written.
    ///
    /// # Errors
    /// As [`Object::read_at`].
    fn read_cached_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Makes the object durable and visible under `key`, replacing what was there.
    ///
    /// # Errors
    /// Any [`StoreError`]; on error the key still holds what it held, and nothing is left behind.
    fn commit(self: Box<Self>, key: &str) -> Result<(), StoreError>;

    /// Forgets what was written.
    fn abort(self: Box<Self>) {}
}

/// One entry of a folder listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listed {
    /// An object, by its full key.
    Object(String),
    /// A folder, by the prefix its keys share, without the closing slash. On disk it may be empty.
    Folder(String),
}

/// A set of objects by key. Keys are checked by [`check_key`]; a key may not lie below another key.
/// Where there are no folders nobody looks after the latter.
pub trait Store: Send + Sync {
    /// Opens an object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::InvalidKey`] or [`StoreError::Io`].
    fn open(&self, key: &str) -> Result<Arc<dyn Object>, StoreError>;

    /// Puts a whole object under `key`, replacing what was there; durable when it returns.
    ///
    /// # Errors
    /// Any [`StoreError`]; on error the key still holds what it held, and nothing is left behind.
    fn put_atomic(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        check_key(key)?;
        let mut upload = self.create()?;
        match upload.write_at(0, bytes) {
            Ok(()) => upload.commit(key),
            Err(error) => {
                upload.abort();
                Err(error.about(key))
            }
        }
    }

    /// Puts a whole object under `key` if the key still has the version `expected`, or still has
    /// nothing if that is `None`; durable when it returns. Of those that put by one version at
    /// once, also from several processes, one succeeds.
    ///
    /// # Errors
    /// [`StoreError::Changed`] if the key has another version. A store that is reached over a
    /// network may say so of a put of ours whose answer was lost: read again to tell. Else any
    /// [`StoreError`].
    fn put_if(&self, key: &str, bytes: &[u8], expected: Option<&Version>) -> Result<Version, StoreError>;

    /// Reads a whole object of at most `limit` bytes, with its version.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn get_versioned(&self, key: &str, limit: u64) -> Result<(Vec<u8>, Version), StoreError>;

    /// Begins an object that is too big to hold in memory.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`], [`StoreError::Full`] or [`StoreError::Io`].
    fn create(&self) -> Result<Box<dyn Upload>, StoreError>;

    /// What lies directly in `folder` (empty: the top), in key order. A missing folder is an empty
    /// one.
    ///
    /// # Errors
    /// [`StoreError::InvalidKey`], [`StoreError::TooMany`] or [`StoreError::Io`].
    fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError>;

    /// Deletes an object; deleting what is not there is not an error.
    ///
    /// # Errors
    /// [`StoreError::InvalidKey`], [`StoreError::ReadOnly`] or [`StoreError::Io`].
    fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// Whether nothing can be written, as was known when the store was opened.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether other processes may change the store at any time.
    fn is_shared(&self) -> bool {
        false
    }

    /// Looks whether the store is still there.
    ///
    /// # Errors
    /// [`StoreError::Gone`], [`StoreError::Away`].
    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Bytes that can still be written; `None` if nobody knows.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Length of an object in bytes.
    ///
    /// # Errors
    /// As [`Store::open`].
    fn len(&self, key: &str) -> Result<u64, StoreError> {
        Ok(self.open(key)?.len())
    }

    /// Fills `buf` from `offset` of an object.
    ///
    /// # Errors
    /// As [`Store::open`] and [`Object::read_at`].
    fn read_at(&self, key: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.open(key)?.read_at(offset, buf)
    }

    /// Reads a whole object of at most `limit` bytes.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] if it is longer; otherwise as [`Store::read_at`].
    fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>, StoreError> {
        let object = self.open(key)?;
        let bytes = object.len();
        if bytes > limit {
            return Err(StoreError::TooLarge { key: key.to_owned(), bytes, limit });
        }
        let mut buf = vec![0; bytes as usize];
        object.read_at(0, &mut buf)?;
        Ok(buf)
    }
}

#[cfg(test)]
mod tests;
