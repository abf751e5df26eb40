//! What the two sides say to each other, as types. `encode` and `decode` turn them into frames and back.
//!
//! Requests and replies are enums of their own, because both state machines, the replay after a lost connection and the
//! check that a reply fits its request work on them as a whole.

mod code;

use bytes::Bytes;
use units::{ActionId, BlockId, ImageId, InodeId, PageId, RequestId, SegmentIndex, StreamId, Token};

use crate::volume::{Share, VolumeAsk, VolumeReply};

pub use code::ErrorCode;

/// An image as one connection calls it, given by the server in `Opened`. Means nothing on another connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageHandle(pub u32);

/// First frame of a client: who it is and what it can afford.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Newest protocol version the client speaks.
    pub version: u16,
    /// A random number, the same on all connections of one client; 0 for a client that has one
    /// connection. It is no secret, and nothing is granted for it: it tells which connections share
    /// what they were sent.
    pub device: u128,
    /// Optional features the client knows, one bit each.
    pub features: u64,
    /// Largest payload the client accepts, in bytes.
    pub frame_bytes_max: u32,
    /// Largest zstd window the device can afford for push streams, as a power of two.
    pub window_log_max: u8,
    /// Push bytes the client lets stand uncredited, in bytes of whole frames; 0 means that it wants no push at all.
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

/// What a client asks; each request gets exactly one reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opens an image: `name`, `name:tag`, or `@` and the 64 hexadecimal digits of its id. At most 255 bytes.
    Open {
        /// The name.
        name: String,
    },
    /// Reads a range of the image file that lies within its superblock or its metadata region.
    MetaRead {
        /// The image.
        image: ImageHandle,
        /// First byte, in the image file.
        offset: u64,
        /// Bytes wanted, 1 to [`crate::format::META_READ_BYTES_MAX`]; the reply has exactly so many.
        bytes: u32,
    },
    /// Asks for the stored block that holds a page which was touched and missed, or may be touched soon.
    PullBlock {
        /// The image.
        image: ImageHandle,
        /// The running action that touched the page.
        token: Token,
        /// The page.
        page: PageId,
        /// The block.
        block: BlockId,
        /// The server must send the block even if a push carries it (flag bit 0).
        force: bool,
        /// Nobody waits for the block: nothing was touched, and the answer leaves behind those that are waited for
        /// (flag bit 1). [`ClientMessage::Hurry`] takes this back.
        speculative: bool,
    },
    /// Asks for just these pages, 1 to 32 of them.
    PullPages {
        /// The image.
        image: ImageHandle,
        /// The running action that touched the first page.
        token: Token,
        /// The pages; the first one is what was touched.
        pages: Vec<PageId>,
        /// The server must send the pages even if a push carries them (flag bit 0).
        force: bool,
    },
    /// Lists the published images.
    List,
    /// Asks for the server's counters.
    Status,
    /// Opens a volume. Only if both sides know [`crate::format::FEATURE_VOLUMES`]: a server without it takes the frame for a broken rule.
    VolumeOpen {
        /// Its name. At most 255 bytes.
        name: String,
    },
    /// Asks something of a volume.
    Volume {
        /// The volume.
        volume: ImageHandle,
        /// What.
        ask: VolumeAsk,
    },
    /// Begins an upload. What follows are `PutMeta`, `PutBlock` and `PutCommit` with the same request id.
    PutOpen {
        /// Name and tag to publish under. At most 255 bytes.
        name: String,
        /// Length of the image file.
        file_bytes: u64,
        /// Where the metadata region begins in it.
        metadata_offset: u64,
        /// Length of the metadata region.
        metadata_bytes: u64,
    },
}

impl Request {
    /// Whether the request may be sent again on another connection without harm. All may but `PutOpen`, whose data
    /// must be sent again too: the uploader starts its put anew, and `PutNeed` then leaves out what already arrived.
    pub fn is_idempotent(&self) -> bool {
        !matches!(self, Request::PutOpen { .. })
    }

    /// Whether the request, and what answers it, is in frames that end in a hash.
    pub(crate) fn is_of_volume(&self) -> bool {
        matches!(self, Request::VolumeOpen { .. } | Request::Volume { .. })
    }

    /// The image the request speaks of, if any.
    pub fn image(&self) -> Option<ImageHandle> {
        match self {
            Request::MetaRead { image, .. } | Request::PullBlock { image, .. } | Request::PullPages { image, .. } => {
                Some(*image)
            }
            Request::Volume { volume, .. } => Some(*volume),
            _ => None,
        }
    }

    /// The same request with the handle that another connection gave to the image.
    #[must_use]
    pub fn with_image(mut self, handle: ImageHandle) -> Request {
        match &mut self {
            Request::MetaRead { image, .. } | Request::PullBlock { image, .. } | Request::PullPages { image, .. } => {
                *image = handle;
            }
            Request::Volume { volume, .. } => *volume = handle,
            _ => {}
        }
        self
    }

    /// Whether `reply` is an answer to this request. Errors answer every request.
    pub fn accepts(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (_, Reply::Error { .. }) => true,
            (Request::Open { .. }, Reply::Opened { .. }) => true,
            (Request::MetaRead { offset, bytes, .. }, Reply::MetaData { offset: at, bytes: data }) => {
                offset == at && data.len() == *bytes as usize
            }
            (Request::PullBlock { block, .. }, Reply::Block { block: found, .. }) => block == found,
            (Request::PullPages { .. }, Reply::Pages { .. }) => true,
            (Request::PullBlock { force, .. } | Request::PullPages { force, .. }, Reply::OnTheWay { .. }) => !force,
            (Request::List, Reply::Listing { .. }) => true,
            (Request::Status, Reply::Status { .. }) => true,
            (Request::PutOpen { .. }, Reply::PutDone { .. }) => true,
            (Request::VolumeOpen { .. }, Reply::VolumeOpened { .. }) => true,
            (Request::Volume { ask: VolumeAsk::PullBlocks { force, .. }, .. }, Reply::OnTheWay { .. }) => !force,
            (Request::Volume { ask, .. }, Reply::Volume(reply)) => ask.accepts(reply),
            _ => false,
        }
    }

    /// The same without names, lists and data: what a server remembers of it until it is answered.
    #[must_use]
    pub(crate) fn without_data(&self) -> Request {
        match self {
            Request::Open { .. } => Request::Open { name: String::new() },
            Request::VolumeOpen { .. } => Request::VolumeOpen { name: String::new() },
            Request::PutOpen { file_bytes, metadata_offset, metadata_bytes, .. } => Request::PutOpen {
                name: String::new(),
                file_bytes: *file_bytes,
                metadata_offset: *metadata_offset,
                metadata_bytes: *metadata_bytes,
            },
            Request::PullPages { image, token, force, .. } => {
                Request::PullPages { image: *image, token: *token, pages: Vec::new(), force: *force }
            }
            Request::Volume { volume, ask } => Request::Volume { volume: *volume, ask: ask.without_data() },
            Request::MetaRead { .. } | Request::PullBlock { .. } | Request::List | Request::Status => self.clone(),
        }
    }

    /// Memory that the request takes beside itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Request::Open { name } | Request::VolumeOpen { name } | Request::PutOpen { name, .. } => name.len(),
            Request::PullPages { pages, .. } => size_of_val(pages.as_slice()),
            Request::Volume { ask, .. } => ask.memory_bytes(),
            Request::MetaRead { .. } | Request::PullBlock { .. } | Request::List | Request::Status => 0,
        }
    }

    /// The name of the frame that carries the request.
    pub fn name(&self) -> &'static str {
        crate::encode::request_kind(self).name()
    }
}

/// The one answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answers `Open`.
    Opened {
        /// How this connection calls the image from now on.
        image: ImageHandle,
        /// The image's identity.
        id: ImageId,
        /// Length of the image file.
        file_bytes: u64,
        /// Where its metadata region begins.
        metadata_offset: u64,
        /// Length of its metadata region.
        metadata_bytes: u64,
    },
    /// Answers `MetaRead`.
    MetaData {
        /// First byte, in the image file.
        offset: u64,
        /// Exactly as many bytes as were asked for.
        bytes: Bytes,
    },
    /// Answers `PullBlock`.
    Block {
        /// The block.
        block: BlockId,
        /// Its bytes as they are stored.
        bytes: Bytes,
    },
    /// Answers `PullPages`.
    Pages {
        /// How `bytes` is encoded; the number of the codec, which this crate does not interpret.
        codec: u8,
        /// The valid bytes of all pages in the order of the request, encoded as one piece.
        bytes: Bytes,
    },
    /// Answers `PullBlock` and `PullPages` unless forced: the page was pushed and not credited yet, or is next in line.
    /// It comes with the stream; should the stream end without it, the client asks again with `force`.
    OnTheWay {
        /// The stream that carries the page; it may have ended already.
        stream: StreamId,
    },
    /// Answers `List`.
    Listing {
        /// A JSON document.
        json: Bytes,
    },
    /// Answers `Status`.
    Status {
        /// A JSON document.
        json: Bytes,
    },
    /// Answers `VolumeOpen`.
    VolumeOpened {
        /// How this connection calls the volume from now on.
        volume: ImageHandle,
        /// Identity of the volume: another one under the same name has another.
        id: u128,
        /// Bytes of a data block, within [`crate::format::VOLUME_BLOCK_BYTES`].
        block_bytes: u32,
        /// Files may be changed.
        writable: bool,
        /// Random: what proofs of a device number are made over, on this handle.
        nonce: u128,
    },
    /// Answers `Volume`.
    Volume(VolumeReply),
    /// Answers `PutOpen` after its `PutCommit`.
    PutDone {
        /// The image that is published now.
        id: ImageId,
    },
    /// The request failed.
    Error {
        /// What went wrong, for programs.
        code: ErrorCode,
        /// What went wrong, for people. At most 256 bytes are written.
        text: String,
    },
}

impl Reply {
    /// An error reply.
    pub fn error(code: ErrorCode, text: impl Into<String>) -> Reply {
        Reply::Error { code, text: text.into() }
    }

    /// The name of the frame that carries the reply.
    pub fn name(&self) -> &'static str {
        crate::encode::reply_kind(self).name()
    }
}

/// What a push stream carries.
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
    /// Base-two logarithm of the zstd window the decoder needs; 0 if `encoding` needs none.
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
    /// Blocks of a volume, each piece of one version of one file: see [`crate::volume::VolumePiece`].
    Volume = 2,
}

impl PushEncoding {
    /// The encoding with this number.
    pub fn from_u8(number: u8) -> Option<PushEncoding> {
        [PushEncoding::Stored, PushEncoding::ZstdStream, PushEncoding::Volume]
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
    /// The running action ended, or is not heard of any more.
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

/// A run of blocks. `first + count` does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub first: BlockId,
    /// Number of blocks, at least 1.
    pub count: u32,
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
        /// What is asked.
        ask: Request,
    },
    /// The answer is no longer wanted; it still comes, as itself or as an error `Cancelled`.
    Cancel {
        /// Number of the request.
        request: RequestId,
    },
    /// Somebody waits for the answer to a speculative request now: it leaves with the answers that are waited for.
    Hurry {
        /// Number of the request.
        request: RequestId,
    },
    /// Asks for a Pong.
    Ping {
        /// Comes back in the Pong.
        nonce: u64,
    },
    /// What gets no answer.
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

/// What a client tells a server without an answer.
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
    /// Pages that will be needed soon and that the client has not got: the server pushes them. Only if both sides know
    /// [`crate::format::FEATURE_HINTS`].
    Hint {
        /// The image.
        image: ImageHandle,
        /// Names the stream; further hints of the same token go on where it ends. Of no running action.
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
    /// A file of a volume is not open any more: its number means nothing from now on.
    FileClose {
        /// The volume.
        volume: ImageHandle,
        /// The file.
        file: InodeId,
    },
    /// What a file gets of the link for what is pushed of it, whatever its profile says.
    FileShare {
        /// The volume.
        volume: ImageHandle,
        /// The file.
        file: InodeId,
        /// Its share.
        share: Share,
    },
    /// The server may send so fast on this connection, everything counted.
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
    /// Begins a push stream. Streams are numbered 1, 2, 3 ... on each connection.
    PushStart {
        /// The stream.
        stream: StreamId,
        /// What it carries.
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
        /// What went wrong, for programs.
        code: ErrorCode,
        /// What went wrong, for people.
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
