//! Why a connection ended, and why a call was refused.

use std::time::Duration;

use thiserror::Error;
use units::{RequestId, StreamId};

use crate::code::ErrorCode;

/// The connection is over. Everything a peer can do wrong is here, and so are its silence and its
/// loss.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The header announces more than this kind may hold.
    #[error("frame {kind}: payload of {found} bytes, at most {max} accepted")]
    FrameTooLarge {
        /// Name of the frame kind.
        kind: &'static str,
        /// Announced payload bytes.
        found: u64,
        /// Accepted payload bytes.
        max: usize,
    },
    /// No frame of this kind exists, or not in this direction.
    #[error("unknown frame kind {kind:#04x}")]
    UnknownKind {
        /// Number of the kind.
        kind: u8,
    },
    /// The payload ends within a field.
    #[error("frame {kind}: field {field} at offset {offset} needs {expected} bytes, {found} are left")]
    Truncated {
        /// Name of the frame kind.
        kind: &'static str,
        /// The field.
        field: &'static str,
        /// Offset in the payload.
        offset: usize,
        /// Bytes the field needs.
        expected: usize,
        /// Bytes that are left.
        found: usize,
    },
    /// The payload goes on after its last field.
    #[error("frame {kind}: {extra} bytes after the last field")]
    TrailingBytes {
        /// Name of the frame kind.
        kind: &'static str,
        /// Bytes too many.
        extra: usize,
    },
    /// The hash at the end of the frame is not that of the frame: it was damaged on the way.
    #[error("frame {kind} was damaged on the way: its hash is wrong")]
    Damaged {
        /// Name of the frame kind.
        kind: &'static str,
    },
    /// A field holds what it must not.
    #[error("frame {kind}: field {field} at offset {offset}: found {found}, expected {expected}")]
    BadValue {
        /// Name of the frame kind.
        kind: &'static str,
        /// The field.
        field: &'static str,
        /// Offset in the payload, behind the field.
        offset: usize,
        /// What was found.
        found: u64,
        /// What is allowed.
        expected: &'static str,
    },
    /// The peer is not one of ours.
    #[error("the peer does not speak this protocol: it began with {found:02x?}")]
    Magic {
        /// The four bytes where the magic should be.
        found: [u8; 4],
    },
    /// No common protocol version.
    #[error("no common protocol version: the peer has {theirs}, we speak {min} to {max}")]
    Version {
        /// The peer's version.
        theirs: u16,
        /// Our oldest.
        min: u16,
        /// Our newest.
        max: u16,
    },
    /// The server is of an older version than what we need of it.
    #[error("the server is older and knows no {what}: have it upgraded, or connect without")]
    Lacks {
        /// What.
        what: &'static str,
    },
    /// A frame that is not allowed now.
    #[error("frame {kind} is not allowed {when}")]
    WrongOrder {
        /// Name of the frame kind.
        kind: &'static str,
        /// The circumstance.
        when: &'static str,
    },
    /// The client used a request number twice, or 0.
    #[error("request number {request} is 0 or still in flight")]
    RequestNumber {
        /// The number.
        request: RequestId,
    },
    /// A reply, or part of a put, for a request that is not in flight.
    #[error("frame {kind} for request {request}, which is not in flight")]
    UnknownRequest {
        /// Name of the frame kind.
        kind: &'static str,
        /// The number.
        request: RequestId,
    },
    /// The reply does not answer the request.
    #[error("request {request}: {found} does not answer {asked}")]
    WrongReply {
        /// The number.
        request: RequestId,
        /// Name of the request.
        asked: &'static str,
        /// Name of the reply.
        found: &'static str,
    },
    /// The peer exceeded a limit.
    #[error("too many {what}: at most {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        max: u64,
    },
    /// A frame speaks of a stream that was never started, or started out of turn.
    #[error("frame {kind} for stream {stream}, which is not known")]
    UnknownStream {
        /// Name of the frame kind.
        kind: &'static str,
        /// The stream.
        stream: StreamId,
    },
    /// The client credits more than it received.
    #[error("stream {stream}: {found} bytes credited, {expected} were in flight")]
    CreditOverrun {
        /// The stream.
        stream: StreamId,
        /// Credited bytes.
        found: u64,
        /// Bytes in flight.
        expected: u64,
    },
    /// Time ran out.
    #[error("{what} within {limit:?}")]
    Deadline {
        /// The event that did not happen.
        what: &'static str,
        /// The time there was.
        limit: Duration,
    },
    /// The peer closed the connection with an error.
    #[error("closed by the other side: {text} ({code})")]
    Peer {
        /// Its code.
        code: ErrorCode,
        /// Its text.
        text: String,
    },
    /// The caller closed the connection.
    #[error("closed by this side: {text}")]
    ShutDown {
        /// The text that the peer got.
        text: String,
    },
    /// The caller reported the loss of the transport.
    #[error("the connection was lost")]
    Lost,
}

impl WireError {
    /// The code that a server sends before it closes; `None` if there is none, or the transport is
    /// gone.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            WireError::Lost | WireError::ShutDown { .. } | WireError::Peer { .. } => None,
            WireError::Version { .. } => Some(ErrorCode::UnsupportedVersion),
            WireError::FrameTooLarge { .. } => Some(ErrorCode::TooLarge),
            _ => Some(ErrorCode::Protocol),
        }
    }
}

/// A call was refused; the connection lives on, unless it was closed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
    /// The handshake is not over yet.
    #[error("the handshake is not over")]
    NotReady,
    /// A bound is reached; it falls as answers, credits or writes go on.
    #[error("too many {what}: at most {max}")]
    Full {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
    },
    /// An argument is outside its limits, or larger than the peer accepts.
    #[error("{what}: {found}, allowed are {min} to {max}")]
    Limit {
        /// Which argument.
        what: &'static str,
        /// Its value.
        found: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
    },
    /// The request is not in flight: answered, cancelled, or never made.
    #[error("request {0} is not in flight")]
    UnknownRequest(RequestId),
    /// The reply or the part of a put does not fit the request.
    #[error("request {0}: this does not fit now")]
    WrongReply(RequestId),
    /// The stream is not open.
    #[error("stream {0} is not open")]
    UnknownStream(StreamId),
    /// The device wants no push, or not of this kind.
    #[error("the device takes no such push")]
    NoPush,
    /// The server does not know this optional feature, or the device wants none of what it brings.
    #[error("{0} cannot be used with this server")]
    NoFeature(&'static str),
}
