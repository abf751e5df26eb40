//! Errors of traces.

use units::{InodeId, Token};

/// Errors of writing and reading traces. Offsets are bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// Too short to hold a header.
    #[error("not a trace: {bytes} bytes, a header alone takes {expected}")]
    Short {
        /// Bytes there are.
        bytes: usize,
        /// Bytes of a header.
        expected: usize,
    },
    /// The first eight bytes are others.
    #[error("not a trace: it starts with {found:02x?}, not with {expected:02x?}")]
    Magic {
        /// What the file starts with.
        found: [u8; 8],
        /// What a trace starts with.
        expected: [u8; 8],
    },
    /// Written by another version of this software.
    #[error("trace version {found} is unknown (this program reads up to version {expected})")]
    Version {
        /// The file's version.
        found: u16,
        /// The newest version read here.
        expected: u16,
    },
    /// A header field has a value without meaning.
    #[error("trace header: {field} is {found}, which means nothing")]
    HeaderField {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// A record's bytes make no sense.
    #[error("trace corrupt at offset {offset}: {what}")]
    Record {
        /// Where the record starts.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A seal's hash is not that of the bytes before it.
    #[error(
        "trace corrupt: the seal at offset {offset} has hash {found:02x?}, the bytes before it have {expected:02x?}"
    )]
    Seal {
        /// Where the seal starts.
        offset: usize,
        /// The hash in the file.
        found: [u8; 16],
        /// The hash computed.
        expected: [u8; 16],
    },
    /// Bytes follow the final seal.
    #[error("trace corrupt: {bytes} bytes follow the final seal, which ends at offset {offset}")]
    Trailing {
        /// End of the final seal.
        offset: usize,
        /// How many follow.
        bytes: usize,
    },
    /// More of something than the reader or writer allows.
    #[error("trace has too many {what} at offset {offset}: the limit is {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// Where it went over.
        offset: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A name longer than [`crate::NAME_BYTES_MAX`].
    #[error("the name of the executable has {bytes} bytes, the limit is {limit}")]
    Name {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A path that no trace may hold; see [`crate::path_fault`].
    #[error("the path of inode {inode} cannot be written: {what}")]
    Path {
        /// The file.
        inode: InodeId,
        /// What is wrong.
        what: &'static str,
    },
    /// A file named after its first touch, or twice.
    #[error("inode {0} has been named or touched already")]
    Named(InodeId),
    /// A look-up of a path that no trace may hold; see [`crate::path_fault`].
    #[error("a look-up cannot be written: {0}")]
    Lookup(&'static str),
    /// A touch or end of a token that has not started, or has ended.
    #[error("token {0} has not started")]
    NotStarted(Token),
    /// A start of a token that is running.
    #[error("token {0} has started already")]
    Started(Token),
    /// Use of a writer after its final seal.
    #[error("the trace is finished; nothing can follow its final seal")]
    Finished,
}
