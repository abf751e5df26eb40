//! The events of a client's connection.

use bytes::Bytes;
use units::{RequestId, StreamId};

use crate::error::WireError;
use crate::message::{BlockRange, HelloReply, ImageHandle, PushEndReason, PushHeader, PushPiece, Reply};

/// An event that the client must handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The handshake is over.
    Ready(HelloReply),
    /// The answer to a request, which may be an error.
    Reply {
        /// Number of the request.
        request: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// No answer came by the deadline. The request was cancelled.
    Expired {
        /// Number of the request.
        request: RequestId,
    },
    /// Blocks an upload must send.
    PutNeed {
        /// Number of the put.
        request: RequestId,
        /// Ascending ranges.
        ranges: Vec<BlockRange>,
        /// No further PutNeed follows.
        last: bool,
    },
    /// Bytes of an upload that are stored.
    PutProgress {
        /// Number of the put.
        request: RequestId,
        /// Bytes in all.
        bytes: u64,
    },
    /// Part of superblock or metadata of an image that is being opened.
    Start {
        /// The image, whose number comes with the answer to Open.
        image: ImageHandle,
        /// First byte, in the image file.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// Chunk hashes of an image with a proof. They are those of pages that come next.
    Hashes {
        /// The image.
        image: ImageHandle,
        /// The proof.
        proof: Bytes,
    },
    /// A push stream begins.
    PushStart {
        /// The stream.
        stream: StreamId,
        /// Its contents.
        push: PushHeader,
    },
    /// A piece of a push stream. Give `credit` back with [`crate::ClientConnection::credit`] when
    /// the piece is taken care of.
    Push {
        /// The piece.
        piece: PushPiece,
        /// Bytes to credit.
        credit: u32,
    },
    /// A push stream ended. Pieces may still be uncredited.
    PushEnd {
        /// The stream.
        stream: StreamId,
        /// Why.
        reason: PushEndReason,
    },
    /// The connection is closed.
    Closed(WireError),
}
