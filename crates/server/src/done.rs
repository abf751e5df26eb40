//! What comes back to the task of a connection from the threads and tasks that work for it.

use std::sync::Arc;

use bytes::Bytes;
use codec::StreamEncoder;
use tokio::sync::mpsc::UnboundedSender;
use units::{PageId, RequestId, Token};
use volume::FileId;
use wire::volume::{VolumePiece, VolumeReply};
use wire::{ImageHandle, Reply, Request};

use crate::access::Opening;
use crate::budget::Room;
use crate::error::Failure;
use crate::published::Published;

/// Where it is sent. Boxed, because a channel has room for 32 messages from the start, and most
/// connections are idle.
pub(crate) type DoneSender = UnboundedSender<Box<Done>>;

/// What was done.
pub(crate) enum Done {
    /// Memory for what arrives.
    Received(Room),
    /// The request that waited for memory for its reply has it.
    Granted,
    /// A reply is ready; `bytes` of its making had been accounted for.
    Reply { request: RequestId, reply: Result<Reply, Failure>, room: Room, bytes: usize },
    /// An image was opened.
    Opened { request: RequestId, opened: Result<Arc<Published>, Failure>, opening: Arc<Opening> },
    /// An image was opened again that the server had closed; `ask` is what it is needed for.
    OpenedAgain { request: RequestId, ask: Request, opened: Result<Arc<Published>, Failure> },
    /// A piece of a push was built.
    Built(Built),
    /// A piece of a push of data blocks was built.
    BuiltBlocks(BuiltBlocks),
    /// A request to a volume was answered.
    Volume(VolumeDone),
}

/// A piece that was built for a sequence of pages.
pub(crate) struct Built {
    pub sequence: u64,
    /// The bytes were compressed before they were needed.
    pub from_bundle: bool,
    pub piece: Result<Piece, Failure>,
    pub room: Room,
}

/// Pages and their bytes.
pub(crate) struct Piece {
    pub pages: Vec<PageId>,
    pub bytes: Bytes,
    /// What the next piece goes on with.
    pub encoder: Option<Box<StreamEncoder>>,
}

/// A piece that was built of data blocks.
pub(crate) struct BuiltBlocks {
    pub pages: Vec<PageId>,
    pub piece: Result<VolumePiece, Failure>,
    pub room: Room,
}

/// An answer of a volume.
pub(crate) struct VolumeDone {
    pub request: RequestId,
    pub volume: ImageHandle,
    pub reply: Result<VolumeReply, Failure>,
    pub room: Room,
    pub cost: Cost,
    pub after: After,
}

/// What a connection counts for a request to a volume until it is answered.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    /// Of the bytes that are being read or committed for it.
    pub bytes: usize,
    /// Of what it received without memory of its own.
    pub uncovered: usize,
}

/// What the connection does once it answered.
pub(crate) enum After {
    Nothing,
    /// The file is open: push what its profile says.
    Opened {
        token: Token,
        id: FileId,
    },
    /// Blocks of the file were read.
    Pulled {
        id: FileId,
    },
}
