//! What a server's connection tells its task.

use bytes::Bytes;
use units::{BlockId, InodeId, PageId, RequestId, StreamId, Token};

use crate::error::WireError;
use crate::message::{Hello, ImageHandle, Request};
use crate::volume::Share;

/// What the server's task learns from the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// The handshake is over; the client's side of it, with the version and features both speak.
    Ready(Hello),
    /// A request; it wants one [`crate::ServerConnection::reply`].
    Request {
        /// Its number.
        request: RequestId,
        /// What is asked.
        ask: Request,
    },
    /// The client cancelled a request. It is answered already; work on it may stop.
    Cancelled {
        /// Its number.
        request: RequestId,
    },
    /// First touches that needed no network, in order.
    Touch {
        /// The image.
        image: ImageHandle,
        /// The running action.
        token: Token,
        /// The pages.
        pages: Vec<PageId>,
    },
    /// Pages the client wants pushed, in this order.
    Hint {
        /// The image.
        image: ImageHandle,
        /// Names the stream.
        token: Token,
        /// The pages.
        pages: Vec<PageId>,
    },
    /// A running action has ended.
    TokenEnd {
        /// The image.
        image: ImageHandle,
        /// The running action.
        token: Token,
    },
    /// The client does not want the stream. What was queued is dropped and the stream has ended already.
    PushStopped {
        /// The stream.
        stream: StreamId,
    },
    /// Part of the superblock or metadata of an upload. The range lies within the stated file.
    PutMeta {
        /// Number of the put.
        request: RequestId,
        /// First byte, in the image file.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// A block of an upload. Not more of them come than were asked for; whether it was asked for is not checked here.
    PutBlock {
        /// Number of the put.
        request: RequestId,
        /// The block.
        block: BlockId,
        /// Its stored bytes.
        bytes: Bytes,
    },
    /// Everything that was asked for was sent.
    PutCommit {
        /// Number of the put.
        request: RequestId,
    },
    /// A file of a volume is not open any more.
    FileClose {
        /// The volume.
        volume: ImageHandle,
        /// The file.
        file: InodeId,
    },
    /// What a file gets of the link for what is pushed of it.
    FileShare {
        /// The volume.
        volume: ImageHandle,
        /// The file.
        file: InodeId,
        /// Its share.
        share: Share,
    },
    /// The device caps what is sent to it on this connection.
    RateLimit {
        /// Bytes per second; 0 for no limit.
        bytes_per_second: u64,
    },
    /// The connection is over. What is left to transmit tells the client why.
    Closed(WireError),
}

impl ServerEvent {
    /// Memory that the event takes, roughly.
    pub(crate) fn memory_bytes(&self) -> usize {
        let heap = match self {
            ServerEvent::PutMeta { bytes, .. } | ServerEvent::PutBlock { bytes, .. } => bytes.len(),
            ServerEvent::Touch { pages, .. } | ServerEvent::Hint { pages, .. } => size_of_val(pages.as_slice()),
            ServerEvent::Request { ask, .. } => ask.memory_bytes(),
            _ => 0,
        };
        size_of::<ServerEvent>() + heap
    }
}
