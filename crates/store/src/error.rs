//! Why a store call failed.

use std::io;

/// Why a store call failed. Names the key, and for damage what was expected and found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The key breaks the rules of [`crate::check_key`].
    #[error("{key:?} cannot be a key of the store: {why}")]
    InvalidKey {
        /// The key, cut to 80 characters.
        key: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// There is no such object.
    #[error("{key} is not in the store")]
    NotFound {
        /// The key asked for.
        key: String,
    },
    /// The key lies below another key, or is the folder of one.
    #[error(
        "{key} cannot be written: the store has an object or a broken link where it needs a folder, or a folder of this name"
    )]
    Conflict {
        /// The key to be written.
        key: String,
    },
    /// The object is not the one that the caller had read.
    #[error("{key} was changed by somebody else meanwhile; try again")]
    Changed {
        /// The key to be written.
        key: String,
    },
    /// A folder of the store is a link to another file system, or one is mounted there: nothing can
    /// be renamed into it.
    #[error("{key} cannot be written: its folder is on another file system than the store, which must lie on one")]
    Elsewhere {
        /// The key to be written.
        key: String,
    },
    /// A read past the end.
    #[error("{key} ends at byte {found}, but bytes up to {expected} were asked for")]
    Truncated {
        /// The object.
        key: String,
        /// Where the read would have ended.
        expected: u64,
        /// Length of the object.
        found: u64,
    },
    /// A whole object is longer than its reader accepts.
    #[error("{key} has {bytes} bytes, over the limit of {limit}")]
    TooLarge {
        /// The object.
        key: String,
        /// Its length.
        bytes: u64,
        /// What the reader accepts.
        limit: u64,
    },
    /// A folder has more than [`crate::LIST_ENTRIES_MAX`] entries.
    #[error("the folder {folder:?} of the store has over a million entries")]
    TooMany {
        /// The folder.
        folder: String,
    },
    /// No room on the disk (or over quota).
    #[error("the store has no room left to write {key}; free some space and try again")]
    Full {
        /// The key being written, or `an upload` before it has one.
        key: String,
    },
    /// The folder of the store cannot be written.
    #[error("the store of the server is read-only: {key} cannot be written; give its user the right to write there")]
    ReadOnly {
        /// The key to be written.
        key: String,
    },
    /// The folder of the store was removed, or another one took its place.
    #[error("the folder of the store, {folder}, was removed or replaced; put it back and start the server again")]
    Gone {
        /// The folder.
        folder: String,
    },
    /// Another server has the folder.
    #[error(
        "{folder} is served by {}; stop it first, or serve another folder (servers that neither take uploads nor learn may \
         share one: --read-only with --frozen or --no-learn)",
        holder.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The folder of the store.
        folder: String,
        /// The process that serves it, if it is known.
        holder: Option<u32>,
    },
    /// A store that is reached over a network does not answer.
    #[error("the store {store} does not answer: {reason}; try again")]
    Away {
        /// Where it is.
        store: String,
        /// What was seen last.
        reason: String,
    },
    /// A service wants other credentials.
    #[error("the store refuses {key}: {reason}; check the credentials of the server, and what they allow")]
    Refused {
        /// The object.
        key: String,
        /// What the service said.
        reason: String,
    },
    /// An object that is read in parts is not the one that was opened.
    #[error("{key} was replaced or deleted while it was open; open it again")]
    Replaced {
        /// The object.
        key: String,
    },
    /// Any other failure of the system below.
    #[error("cannot {what} {key}: {source}")]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// The object, or a path.
        key: String,
        /// The cause.
        source: io::Error,
    },
    /// The simulated machine is down; see [`crate::Fault`].
    #[error("the store crashed")]
    Crashed,
}

/// Stands in for the key of an upload that has none yet.
pub(crate) const UPLOAD: &str = "an upload";

impl StoreError {
    /// Sorts a system error into the variants callers tell apart.
    pub(crate) fn from_io(what: &'static str, key: &str, source: io::Error) -> StoreError {
        let key = key.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                StoreError::Full { key }
            }
            io::ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly { key },
            io::ErrorKind::PermissionDenied if matches!(what, "write" | "delete") => StoreError::ReadOnly { key },
            io::ErrorKind::NotFound => StoreError::NotFound { key },
            io::ErrorKind::CrossesDevices => StoreError::Elsewhere { key },
            _ => StoreError::Io { what, key, source },
        }
    }

    /// Names the key in an error of an upload that did not know it yet.
    pub(crate) fn about(self, name: &str) -> StoreError {
        match self {
            StoreError::Full { key } if key == UPLOAD => StoreError::Full { key: name.to_owned() },
            StoreError::ReadOnly { key } if key == UPLOAD => StoreError::ReadOnly { key: name.to_owned() },
            StoreError::Io { what, key, source } if key == UPLOAD => {
                StoreError::Io { what, key: name.to_owned(), source }
            }
            other => other,
        }
    }

    /// Whether the cause is a full disk, which the owner of the store can mend.
    pub fn is_full(&self) -> bool {
        matches!(self, StoreError::Full { .. })
    }

    /// Whether the store does not answer, and may later.
    pub fn is_away(&self) -> bool {
        matches!(self, StoreError::Away { .. })
    }

    /// Whether somebody else changed the object first.
    pub fn is_changed(&self) -> bool {
        matches!(self, StoreError::Changed { .. })
    }

    /// Whether the object simply is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, StoreError::NotFound { .. })
    }
}
