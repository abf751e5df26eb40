//! Why a call on a volume failed. `server` maps each kind to a code of the wire.

use std::io;

use crate::disk::is_full;
use crate::{FileId, Seen, VolumePath};

/// Why a call on a volume failed. Names the path inside the volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The path breaks the rules of [`VolumePath`].
    #[error("{path:?} cannot be a path of a volume: {why}")]
    InvalidPath {
        /// The path, cut to 80 characters.
        path: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// The request makes no sense, whatever the volume holds.
    #[error("{path}: {why}")]
    Invalid {
        /// The path it is about.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is nothing of this name.
    #[error("{path} is not in the volume")]
    NotFound {
        /// The path asked for.
        path: String,
    },
    /// There is something of this name already.
    #[error("{path} exists already")]
    Exists {
        /// The path to be made.
        path: String,
    },
    /// A folder is needed here, and this is none. Symbolic links are never followed.
    #[error("{path} is not a folder")]
    NotFolder {
        /// The path.
        path: String,
    },
    /// A regular file is needed here, and this is none.
    #[error("{path} is not a regular file")]
    NotFile {
        /// The path.
        path: String,
    },
    /// The folder is not empty.
    #[error("the folder {path} is not empty")]
    NotEmpty {
        /// The path.
        path: String,
    },
    /// A device, socket, pipe or another file system's mount point, which volumes do not serve.
    #[error("{path} is a special file or a mount point, which a volume does not serve")]
    Special {
        /// The path.
        path: String,
    },
    /// The file has other names than the one that was to be its only one. Nothing of the
    /// transaction was applied.
    #[error("{path} is not the only name of its file")]
    Linked {
        /// The path.
        path: String,
    },
    /// The writer has not seen the present version. Nothing of the transaction was applied.
    #[error("{path} was changed by somebody else; read it again and repeat the change")]
    Conflict {
        /// The path.
        path: String,
        /// What is there now.
        found: Option<Seen>,
    },
    /// A later transaction of the same device was committed, and this one is none of those whose
    /// answers are remembered: it was refused, or is very old. Nothing was applied now.
    #[error("transaction {number} comes too late: {last} of the same device was committed")]
    Outdated {
        /// Number of the transaction.
        number: u64,
        /// The last number that was committed.
        last: u64,
    },
    /// The path leads to another file than the one meant, or to none: it was replaced, renamed or
    /// removed.
    #[error("{path} is another file by now")]
    Stale {
        /// The path.
        path: String,
    },
    /// Somebody else holds a lease that excludes this. Nothing of the transaction was applied.
    #[error("file {file} is leased by somebody else")]
    Leased {
        /// The file.
        file: FileId,
    },
    /// No room on the disk. Nothing was applied.
    #[error("no room in the volume: {what}; free some space and try again")]
    NoSpace {
        /// What is full.
        what: &'static str,
    },
    /// The quota of the volume leaves no room. Nothing was applied.
    #[error("the quota of the volume, {quota_bytes} bytes, is used up; remove something, or raise it")]
    OverQuota {
        /// What all files together may have.
        quota_bytes: u64,
    },
    /// A limit of this implementation.
    #[error("{what}: {found} is over the limit of {limit}")]
    TooLarge {
        /// What is limited, with its unit.
        what: &'static str,
        /// What was asked for.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The file system below the volume cannot hold it.
    #[error("{path}: the server's file system cannot keep {what}; ext4, XFS and Btrfs can")]
    Unsupported {
        /// The path.
        path: String,
        /// What cannot be kept.
        what: &'static str,
    },
    /// The file system below the volume refused what had looked possible. What the transaction does
    /// before that may be done, the rest is not; no other transaction is concerned.
    #[error("the server's file system refuses this, and a part of the change may be done: {source}")]
    Refused {
        /// What the system said.
        source: io::Error,
    },
    /// There is no extended attribute of this name.
    #[error("{path} is not there")]
    NoAttribute {
        /// The attribute and the path.
        path: String,
    },
    /// The volume is served for reading only.
    #[error("the volume is served for reading only")]
    ReadOnly,
    /// The server's user may not do this.
    #[error("the server may not change {path}: {source}")]
    Denied {
        /// The path.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file kept changing behind the server's back while it was read.
    #[error("{path} is being changed outside of the volume; try again")]
    Busy {
        /// The path.
        path: String,
    },
    /// Another server has this volume open for writing.
    #[error(
        "the volume is open for writing in {}; end that server first, or serve another folder",
        holder.map_or("another process (`fuser` of the file `lock` in its journal folder tells which)".to_owned(), |pid| {
            format!("process {pid}")
        })
    )]
    InUse {
        /// The process that has it, if it is known.
        holder: Option<u32>,
    },
    /// The journal holds transactions that are not applied, and this is open for reading only.
    #[error("the volume was not closed cleanly; open it for writing once, so that its journal is applied")]
    NeedsRecovery,
    /// A file of the journal folder is damaged.
    #[error(
        "{file} is damaged at byte {offset}: {why}; restore the volume from a copy, or remove its journal folder to \
             accept the files as they are"
    )]
    Corrupt {
        /// Name in the journal folder.
        file: &'static str,
        /// Where.
        offset: u64,
        /// What was found.
        why: String,
    },
    /// An earlier failure left the volume in need of recovery; every call fails until it is opened
    /// again. A transaction that gets this answer may be on stable storage or not.
    #[error("the volume stopped: {why}; open it again to recover")]
    Broken {
        /// The earlier failure.
        why: String,
    },
    /// The system refused.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

impl VolumeError {
    /// `source` met while doing `what` to `path`, as the kind it is.
    pub(crate) fn io(what: &'static str, path: &[u8], source: io::Error) -> VolumeError {
        let path = text(path);
        if is_full(&source) {
            return VolumeError::NoSpace { what: "the disk is full" };
        }
        match source.kind() {
            io::ErrorKind::NotFound => VolumeError::NotFound { path },
            io::ErrorKind::AlreadyExists => VolumeError::Exists { path },
            io::ErrorKind::NotADirectory => VolumeError::NotFolder { path },
            io::ErrorKind::DirectoryNotEmpty => VolumeError::NotEmpty { path },
            io::ErrorKind::CrossesDevices => VolumeError::Special { path },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => VolumeError::Denied { path, source },
            _ => VolumeError::Io { what, path, source },
        }
    }

    pub(crate) fn not_found(path: &VolumePath) -> VolumeError {
        VolumeError::NotFound { path: path.to_string() }
    }
}

/// A path as people read it.
pub(crate) fn text(path: &[u8]) -> String {
    if path.is_empty() { "the top folder".to_owned() } else { String::from_utf8_lossy(path).into_owned() }
}
