//! Errors of calls on a volume: a number for programs, and a sentence for people that says what to
//! do next.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use wire::ErrorCode;

/// Why a call failed, as programs tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing of this name. ENOENT.
    NotFound,
    /// There is something of this name already. EEXIST.
    Exists,
    /// A folder is needed, and this is none. ENOTDIR.
    NotFolder,
    /// A regular file is needed, and this is none. EISDIR.
    NotFile,
    /// The folder is not empty. ENOTEMPTY.
    NotEmpty,
    /// The volume is served for reading only. EROFS.
    ReadOnly,
    /// The server's user may not do this. EACCES.
    Denied,
    /// Others on the way to the server could read and change what is written; see
    /// [`crate::Options::insecure`]. EACCES.
    Exposed,
    /// Somebody else changed or replaced the file. ESTALE.
    Stale,
    /// Somebody else holds a lease. EBUSY.
    Leased,
    /// No room on the server. ENOSPC.
    NoSpace,
    /// The volume's quota is used up. EDQUOT.
    OverQuota,
    /// No room for more unsent changes on this device. ENOSPC.
    OutboxFull,
    /// The server has too many files of this device open. ENFILE.
    TooManyFiles,
    /// More than is possible. EFBIG.
    TooLarge,
    /// The value of an extended attribute is longer than 64 KiB. E2BIG.
    ValueTooLarge,
    /// There is no extended attribute of this name. ENODATA.
    NoAttribute,
    /// A name is longer than 255 bytes, or a path longer than 4095. ENAMETOOLONG.
    NameTooLong,
    /// The call makes no sense. EINVAL.
    Invalid,
    /// The handle is not open, or not for this. EBADF.
    BadHandle,
    /// No answer in the time that the caller or [`crate::Waiting::Soft`] gave. ETIMEDOUT.
    Timeout,
    /// The volume was shut down. ESHUTDOWN.
    Shutdown,
    /// The server serves no volumes. EOPNOTSUPP.
    NoVolumes,
    /// The file system of the server cannot hold it. EOPNOTSUPP.
    Unsupported,
    /// The server says what makes no sense. EPROTO.
    Protocol,
    /// A fault of the server, its storage, or the storage of this device. EIO.
    Failed,
}

impl ErrorKind {
    /// The number that Linux gives to this kind of error; the same on all architectures we build
    /// for.
    pub const fn errno(self) -> i32 {
        match self {
            ErrorKind::NotFound => 2,
            ErrorKind::Failed => 5,
            ErrorKind::ValueTooLarge => 7,
            ErrorKind::BadHandle => 9,
            ErrorKind::Denied | ErrorKind::Exposed => 13,
            ErrorKind::Leased => 16,
            ErrorKind::Exists => 17,
            ErrorKind::NotFolder => 20,
            ErrorKind::NotFile => 21,
            ErrorKind::Invalid => 22,
            ErrorKind::TooManyFiles => 23,
            ErrorKind::TooLarge => 27,
            ErrorKind::NoSpace | ErrorKind::OutboxFull => 28,
            ErrorKind::ReadOnly => 30,
            ErrorKind::NameTooLong => 36,
            ErrorKind::NotEmpty => 39,
            ErrorKind::NoAttribute => 61,
            ErrorKind::Protocol => 71,
            ErrorKind::NoVolumes | ErrorKind::Unsupported => 95,
            ErrorKind::Shutdown => 108,
            ErrorKind::Timeout => 110,
            ErrorKind::Stale => 116,
            ErrorKind::OverQuota => 122,
        }
    }
}

/// Why a call failed: to which file, what happened, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{about}: {text}")]
pub struct StreamError {
    kind: ErrorKind,
    about: String,
    text: String,
}

impl StreamError {
    /// An error about a path of the volume.
    pub(crate) fn new(kind: ErrorKind, path: &[u8], text: impl Into<String>) -> StreamError {
        StreamError { kind, about: path_text(path), text: text.into() }
    }

    /// An error about the volume as a whole.
    pub(crate) fn volume(kind: ErrorKind, name: &str, text: impl Into<String>) -> StreamError {
        StreamError { kind, about: format!("volume {name}"), text: text.into() }
    }

    /// The error for a refusal of a server.
    pub(crate) fn refused(code: ErrorCode, path: &[u8], text: &str) -> StreamError {
        let (kind, what) = match code {
            ErrorCode::NotFound => (ErrorKind::NotFound, "there is nothing of this name in the volume"),
            ErrorCode::Exists => (ErrorKind::Exists, "there is something of this name already"),
            ErrorCode::NotFolder => (ErrorKind::NotFolder, "a folder is needed here, and this is none"),
            ErrorCode::NotFile => (ErrorKind::NotFile, "a regular file is needed here, and this is none"),
            ErrorCode::NotEmpty => (ErrorKind::NotEmpty, "the folder is not empty; remove what is in it first"),
            ErrorCode::ReadOnly => {
                (ErrorKind::ReadOnly, "the volume is served for reading only; serve it with `rw` to change it")
            }
            ErrorCode::Unproven => {
                (ErrorKind::Denied, "the server takes no changes from here, since it was not told which device this is")
            }
            ErrorCode::Denied | ErrorCode::Forbidden => {
                (ErrorKind::Denied, "the server's user may not do this; check the permissions of its folder")
            }
            ErrorCode::Conflict => {
                (ErrorKind::Stale, "it was changed by somebody else; open it again and repeat the change")
            }
            ErrorCode::Stale => {
                (ErrorKind::Stale, "the file that was opened is not at this path any more; open it again")
            }
            ErrorCode::Outdated => (ErrorKind::Stale, "the change was not made and comes too late now; repeat it"),
            ErrorCode::Leased => (ErrorKind::Leased, "somebody else holds a lease of it; try again later"),
            ErrorCode::NoSpace => (ErrorKind::NoSpace, "no room on the server; free some there, and sync again"),
            ErrorCode::OverQuota => (
                ErrorKind::OverQuota,
                "the quota of the volume is used up; remove something, or raise it, and sync again",
            ),
            ErrorCode::Unsupported => {
                (ErrorKind::Unsupported, "the server's file system cannot hold this; ext4, XFS and Btrfs can")
            }
            ErrorCode::NoAttribute => (ErrorKind::NoAttribute, "there is no extended attribute of this name"),
            ErrorCode::TooManyFiles => (ErrorKind::TooManyFiles, "close some files first"),
            ErrorCode::TooLarge => (ErrorKind::TooLarge, "this is over a limit of the server"),
            ErrorCode::BadRequest => (ErrorKind::Invalid, "the server takes this for nonsense"),
            _ => (ErrorKind::Failed, "the server failed; see its log, and try again"),
        };
        let text = if text.is_empty() { what.to_owned() } else { format!("{what} (the server says: {text})") };
        StreamError::new(kind, path, text)
    }

    pub(crate) fn timeout(path: &[u8], waited: Duration) -> StreamError {
        let text = format!(
            "no answer within {:.1} s; the server is away or the link too thin: try again later",
            waited.as_secs_f64()
        );
        StreamError::new(ErrorKind::Timeout, path, text)
    }

    pub(crate) fn bad_handle() -> StreamError {
        let text = "this handle is not open, or not for this; open the file again".to_owned();
        StreamError { kind: ErrorKind::BadHandle, about: "a handle".to_owned(), text }
    }

    pub(crate) fn nonsense(path: &[u8], what: &str) -> StreamError {
        let text = format!("the server's answer makes no sense ({what}); update it, or report this");
        StreamError::new(ErrorKind::Protocol, path, text)
    }

    /// The kind of error, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same as a number of Linux.
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }
}

/// A path as people read it.
pub(crate) fn path_text(path: &[u8]) -> String {
    if path.is_empty() { "the top folder".to_owned() } else { String::from_utf8_lossy(path).into_owned() }
}
