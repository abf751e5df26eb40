//! The messages of the protocol, as types. `encode` and `decode` turn them into frames and back.
//!
//! Requests and replies are enums of their own. Both state machines work on them as a whole: they
//! replay requests after a lost connection, and check that a reply fits its request.

mod manage;
mod request;

use bytes::Bytes;
use units::{ActionId, BlockId, InodeId, PageId, RequestId, SegmentIndex, StreamId, Token};

use crate::bearer::Bearer;
use crate::volume::Share;

pub use crate::code::ErrorCode;
pub use crate::range::BlockRange;
pub use manage::ManageAsk;
pub use request::{Reply, Request};

/// The number of an image on one connection, given by the server in `Opened`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageHandle(pub u32);

/// First frame of a client: its identity and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Newest protocol version the client speaks.
    pub version: u16,
    /// A random number, the same on all connections of one client; 0 for a client that has one
    /// connection. It is no secret and grants nothing. It tells which connections belong together.
    pub device: u128,
    /// Optional features the client knows, one bit each.
    pub features: u64,
    /// Largest payload the client accepts, in bytes.
    pub frame_bytes_max: u32,
    /// Largest zstd window the device can afford for push streams, as a power of two.
    pub window_log_max: u8,
    /// Push bytes that may be in flight without credit, in bytes of whole frames; 0 means no push
    /// at all.
    pub push_bytes_max: u32,
}

/// First frame of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The version both sides speak from now on.
    pub version: u16,
    /// Features both sides know.
    pub features: u64,
    /// Largest payload the server accepts, in bytes.
    pub frame_bytes_max: u32,
}

/// The start of a push stream: its contents and their encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushHeader {
    /// The image.
    pub image: ImageHandle,
    /// The running action it is meant for.
    pub token: Token,
    /// The learned action it follows.
    pub action: ActionId,
    /// How the bytes of its pieces are encoded.
    pub encoding: PushEncoding,
    /// Base-two logarithm of the zstd window the decoder needs; 0 if it needs none.
    pub window_log: u8,
    /// The client keeps the pages in the daemon and reports every first touch (flag bit 0).
    pub audit: bool,
}

/// Encoding of the pieces of a push stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PushEncoding {
    /// Each piece holds its pages' bytes as they are.
    Stored = 0,
    /// One zstd stream over all pieces, flushed after each.
    ZstdStream = 1,
    /// Blocks of a volume, each piece of one version of one file: see
    /// [`crate::volume::VolumePiece`].
    Volume = 2,
    /// Each piece says itself how it is encoded: see [`crate::PieceForm`]. Only if both sides know
    /// [`crate::format::FEATURE_PIECES`].
    Pieces = 3,
}

impl PushEncoding {
    /// The encoding with this number.
    pub fn from_u8(number: u8) -> Option<PushEncoding> {
        [PushEncoding::Stored, PushEncoding::ZstdStream, PushEncoding::Volume, PushEncoding::Pieces]
            .into_iter()
            .find(|encoding| *encoding as u8 == number)
    }
}

/// One piece of a push stream: up to 32 pages of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushPiece {
    /// The stream.
    pub stream: StreamId,
    /// The segment of the action.
    pub segment: SegmentIndex,
    /// The pages, 1 to 32.
    pub pages: Vec<PageId>,
    /// The valid bytes of the pages in this order, encoded as the stream's header says.
    pub bytes: Bytes,
}

/// Why a push stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PushEndReason {
    /// All of the action was sent.
    Complete = 0,
    /// The client asked for it.
    Stopped = 1,
    /// The action turned out to be another one.
    Mismatch = 2,
    /// The running action ended, or sent nothing for too long.
    TokenEnded = 3,
    /// The server could not read what it wanted to send.
    Failed = 4,
    /// Too many pushed bytes were of no use.
    Wasteful = 5,
}

impl PushEndReason {
    /// Every reason, in order of its number.
    pub const ALL: [PushEndReason; 6] = [
        PushEndReason::Complete,
        PushEndReason::Stopped,
        PushEndReason::Mismatch,
        PushEndReason::TokenEnded,
        PushEndReason::Failed,
        PushEndReason::Wasteful,
    ];

    /// The reason with this number.
    pub fn from_u8(number: u8) -> Option<PushEndReason> {
        PushEndReason::ALL.into_iter().find(|reason| *reason as u8 == number)
    }
}

/// A frame from client to server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// The first frame.
    Hello(Hello),
    /// A request; `request` is not 0 and not in flight.
    Request {
        /// Number of the request.
        request: RequestId,
        /// The request.
        ask: Request,
    },
    /// The answer is no longer wanted; it still comes, as itself or as an error `Cancelled`.
    Cancel {
        /// Number of the request.
        request: RequestId,
    },
    /// Somebody waits for the answer to a speculative request now. It is no longer sent behind
    /// other answers.
    Hurry {
        /// Number of the request.
        request: RequestId,
    },
    /// Asks for a Pong.
    Ping {
        /// Comes back in the Pong.
        nonce: u64,
    },
    /// A message without an answer.
    Notice(Notice),
    /// Part of the superblock or metadata region of an upload.
    PutMeta {
        /// Number of the put.
        request: RequestId,
        /// First byte, in the image file.
        offset: u64,
        /// The bytes, at least one.
        bytes: Bytes,
    },
    /// One stored block of an upload.
    PutBlock {
        /// Number of the put.
        request: RequestId,
        /// The block.
        block: BlockId,
        /// Its stored bytes, at least one.
        bytes: Bytes,
    },
    /// Everything was sent.
    PutCommit {
        /// Number of the put.
        request: RequestId,
    },
}

/// A message to a server that gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// First touches that needed no network, in order.
    Touch {
        /// The image.
        image: ImageHandle,
        /// The running action.
        token: Token,
        /// 1 to 1024 pages.
        pages: Vec<PageId>,
    },
    /// Pages that will be needed soon and that the client lacks: the server pushes them. Only if
    /// both sides know [`crate::format::FEATURE_HINTS`].
    Hint {
        /// The image.
        image: ImageHandle,
        /// Names the stream. Further hints of the same token are appended to it. It is no running
        /// action.
        token: Token,
        /// 1 to 1024 pages, in the order in which they should come.
        pages: Vec<PageId>,
    },
    /// The running action has ended.
    TokenEnd {
        /// The image.
        image: ImageHandle,
        /// The running action.
        token: Token,
    },
    /// Pushed bytes were taken: opens the server's in-flight window.
    Credit {
        /// The stream.
        stream: StreamId,
        /// Bytes of whole Push frames, headers included; at least 1.
        bytes: u32,
    },
    /// The stream is not wanted.
    StopPush {
        /// The stream.
        stream: StreamId,
    },
    /// A file of a volume was closed: its number means nothing from now on.
    FileClose {
        /// The volume.
        volume: ImageHandle,
        /// The file.
        file: InodeId,
    },
    /// The share of the link for pushes of a file, whatever its profile says.
    FileShare {
        /// The volume.
        volume: ImageHandle,
        /// The file.
        file: InodeId,
        /// Its share.
        share: Share,
    },
    /// How near the device is, and how fast it decodes pushed pieces; 0 for what it did not
    /// measure. Only if both sides know [`crate::format::FEATURE_PIECES`].
    DeviceSpeed {
        /// Round trip of its hello, in microseconds.
        round_trip: u32,
        /// What comes out of its zstd decoder, in KiB a second.
        zstd: u32,
        /// The same for LZ4.
        lz4: u32,
    },
    /// Who the client is, for what it asks from now on. Only if the client states
    /// [`crate::format::FEATURE_TOKENS`].
    Bearer(Bearer),
    /// The server may send at most so many bytes a second on this connection, everything counted.
    RateLimit {
        /// Bytes per second; 0 for no limit.
        bytes_per_second: u64,
    },
}

/// A frame from server to client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerMessage {
    /// The first frame.
    Hello(HelloReply),
    /// The answer to a request; an error with request 0 concerns the connection, which closes.
    Reply {
        /// Number of the request.
        request: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// Answers Ping.
    Pong {
        /// Of the Ping.
        nonce: u64,
    },
    /// Part of superblock or metadata of an image, whose number Opened tells next. Only if both
    /// sides know [`crate::format::FEATURE_START`].
    Start {
        /// The image.
        image: ImageHandle,
        /// First byte, in the image file.
        offset: u64,
        /// The bytes, at least one.
        bytes: Bytes,
    },
    /// Chunk hashes of an image with a proof, for pages that follow. Only if both sides know
    /// [`crate::format::FEATURE_PROOFS`].
    Hashes {
        /// The image.
        image: ImageHandle,
        /// The proof, which this crate does not interpret.
        proof: Bytes,
    },
    /// Begins a push stream. Streams are numbered 1, 2, 3 ... on each connection.
    PushStart {
        /// The stream.
        stream: StreamId,
        /// Its contents.
        push: PushHeader,
    },
    /// Pages of a push stream of an image.
    Push(PushPiece),
    /// Blocks of a push stream of a volume.
    VolumePush(PushPiece),
    /// A request to a volume failed. Other requests fail with [`Reply::Error`].
    VolumeError {
        /// Number of the request.
        request: RequestId,
        /// The error, for programs.
        code: ErrorCode,
        /// The error, for people.
        text: String,
    },
    /// Ends a push stream.
    PushEnd {
        /// The stream.
        stream: StreamId,
        /// Why.
        reason: PushEndReason,
    },
    /// Blocks an upload must send, ascending; one or several frames.
    PutNeed {
        /// Number of the put.
        request: RequestId,
        /// At most 1024 ranges.
        ranges: Vec<BlockRange>,
        /// No further PutNeed follows.
        last: bool,
    },
    /// Bytes of an upload that are stored by now; grows with each frame.
    PutProgress {
        /// Number of the put.
        request: RequestId,
        /// Bytes stored so far.
        bytes: u64,
    },
}
