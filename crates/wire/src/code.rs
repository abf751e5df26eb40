//! The error codes of replies.

use std::fmt;

/// Why a request or a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// No image of this name, no block of this number.
    NotFound,
    /// The request makes no sense: an unknown handle, a range outside the metadata.
    BadRequest,
    /// Too much is going on; try again later.
    Busy,
    /// More than the server is willing to take.
    TooLarge,
    /// Stored or uploaded data does not match its hashes.
    Corrupt,
    /// No common protocol version.
    UnsupportedVersion,
    /// The store failed.
    Storage,
    /// The server is going down; another connection may succeed later.
    Shutdown,
    /// The client cancelled the request.
    Cancelled,
    /// This server does not allow it, for example an upload to a read-only store.
    Forbidden,
    /// The peer broke the protocol; the connection closes.
    Protocol,
    /// The store is full.
    NoSpace,
    /// A fault of the server.
    Internal,
    /// The writer has not seen the present version of the file.
    Conflict,
    /// There is something of this name already.
    Exists,
    /// The folder is not empty.
    NotEmpty,
    /// A folder is needed, and this is none.
    NotFolder,
    /// A regular file is needed, and this is none.
    NotFile,
    /// Somebody else holds a lease that excludes this.
    Leased,
    /// The volume is served for reading only.
    ReadOnly,
    /// The server's user may not do this.
    Denied,
    /// The file that was opened is not at its path any more.
    Stale,
    /// A later transaction of the device was committed, and this one was not, or so long ago that
    /// nobody remembers.
    Outdated,
    /// It takes a device number that the client has proven to be its own, and it has not.
    Unproven,
    /// The quota of the volume is used up.
    OverQuota,
    /// The server's file system cannot hold it.
    Unsupported,
    /// A file has other names than the one that was to be its only one.
    Linked,
    /// There is no extended attribute of this name.
    NoAttribute,
    /// The connection has as many files of the volume open as it may.
    TooManyFiles,
    /// A code of a later version.
    Unknown(u16),
}

impl ErrorCode {
    const CODES: [(u16, ErrorCode); 29] = [
        (1, ErrorCode::NotFound),
        (2, ErrorCode::BadRequest),
        (3, ErrorCode::Busy),
        (4, ErrorCode::TooLarge),
        (5, ErrorCode::Corrupt),
        (6, ErrorCode::UnsupportedVersion),
        (7, ErrorCode::Storage),
        (8, ErrorCode::Shutdown),
        (9, ErrorCode::Cancelled),
        (10, ErrorCode::Forbidden),
        (11, ErrorCode::Protocol),
        (12, ErrorCode::NoSpace),
        (13, ErrorCode::Internal),
        (14, ErrorCode::Conflict),
        (15, ErrorCode::Exists),
        (16, ErrorCode::NotEmpty),
        (17, ErrorCode::NotFolder),
        (18, ErrorCode::NotFile),
        (19, ErrorCode::Leased),
        (20, ErrorCode::ReadOnly),
        (21, ErrorCode::Denied),
        (22, ErrorCode::Stale),
        (23, ErrorCode::Outdated),
        (24, ErrorCode::Unproven),
        (25, ErrorCode::OverQuota),
        (26, ErrorCode::Unsupported),
        (27, ErrorCode::Linked),
        (28, ErrorCode::NoAttribute),
        (29, ErrorCode::TooManyFiles),
    ];

    /// The code with this number; every number has one.
    pub fn from_u16(number: u16) -> ErrorCode {
        let known = ErrorCode::CODES.iter().find(|(code, _)| *code == number);
        known.map_or(ErrorCode::Unknown(number), |(_, code)| *code)
    }

    /// The number of the code.
    pub fn to_u16(self) -> u16 {
        match self {
            ErrorCode::Unknown(number) => number,
            known => ErrorCode::CODES.iter().find(|(_, code)| *code == known).map_or(0, |(number, _)| *number),
        }
    }
}

impl fmt::Display for ErrorCode {
    /// The name in words, such as `not found`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ErrorCode::Unknown(number) = self {
            return write!(f, "code {number}");
        }
        for (at, letter) in format!("{self:?}").char_indices() {
            let space = if at > 0 && letter.is_uppercase() { " " } else { "" };
            write!(f, "{space}{}", letter.to_ascii_lowercase())?;
        }
        Ok(())
    }
}
