//! Requests and their replies.

use bytes::Bytes;
use units::{BlockId, ImageId, PageId, StreamId, Token};

use super::{ErrorCode, ImageHandle, ManageAsk};
use crate::format::{ClientKind, ServerKind};
use crate::volume::coding as volume;
use crate::volume::{VolumeAsk, VolumeReply};

/// A request of a client. Each gets exactly one reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opens an image: `name`, `name:tag`, or `@` and the 64 hexadecimal digits of its id. At most
    /// 255 bytes.
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
        /// Bytes wanted, 1 to [`crate::format::META_READ_BYTES_MAX`]; the reply has exactly so
        /// many.
        bytes: u32,
    },
    /// Asks for the stored block that holds a page which was touched and missed, or may be touched
    /// soon.
    PullBlock {
        /// The image.
        image: ImageHandle,
        /// The running action that touched the page.
        token: Token,
        /// The page.
        page: PageId,
        /// The block.
        block: BlockId,
        /// The server must send the block, as it is stored, even if a push carries it (flag bit 0).
        force: bool,
        /// Nobody waits for the block: nothing was touched, and the reply is sent behind others
        /// (flag bit 1). [`super::ClientMessage::Hurry`] takes this back.
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
    /// Asks for what publishers have signed about a name: files of The Update Framework. Only if
    /// both sides know [`crate::format::FEATURE_SIGNED_NAMES`]; a device that would use no other
    /// server may send it before it knows.
    TrustRead {
        /// `name:tag`, at most 255 bytes; empty for the files that come before those of names.
        name: String,
        /// What the device has already, which this crate does not interpret.
        known: Bytes,
    },
    /// Publishes what a publisher has signed, all of it or nothing.
    TrustWrite {
        /// The name that it is about; empty if it is about none.
        name: String,
        /// The files, which this crate does not interpret.
        files: Bytes,
    },
    /// Changes what the server keeps. Only if both sides know [`crate::format::FEATURE_MANAGE`].
    Manage {
        /// The name or pattern that it is about, at most 255 bytes; empty if it is about none.
        name: String,
        /// What.
        ask: ManageAsk,
    },
    /// Opens a volume. Only if both sides know [`crate::format::FEATURE_VOLUMES`]: a server without
    /// it takes the frame for a broken rule.
    VolumeOpen {
        /// Its name. At most 255 bytes.
        name: String,
    },
    /// A request to a volume.
    Volume {
        /// The volume.
        volume: ImageHandle,
        /// What.
        ask: VolumeAsk,
    },
    /// Begins an upload. `PutMeta`, `PutBlock` and `PutCommit` with the same request id follow.
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
    /// Whether the request may be sent again on another connection without harm. All may but
    /// `PutOpen`, whose data must be sent again too: the uploader starts its put anew, and
    /// `PutNeed` then leaves out what already arrived.
    pub fn is_idempotent(&self) -> bool {
        !matches!(self, Request::PutOpen { .. })
    }

    /// Whether the frames of the request and its reply end in a hash.
    pub(crate) fn is_of_volume(&self) -> bool {
        matches!(self, Request::VolumeOpen { .. } | Request::Volume { .. })
    }

    /// The image or volume of the request, if any.
    pub fn image(&self) -> Option<ImageHandle> {
        match self {
            Request::MetaRead { image, .. } | Request::PullBlock { image, .. } | Request::PullPages { image, .. } => {
                Some(*image)
            }
            Request::Volume { volume, .. } => Some(*volume),
            _ => None,
        }
    }

    /// The same request with another handle, which another connection gave to the image.
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
            (Request::PullBlock { block, force, .. }, Reply::Decoded { block: found, .. }) => block == found && !force,
            (Request::PullPages { .. }, Reply::Pages { .. }) => true,
            (Request::PullBlock { force, speculative, .. }, Reply::Pages { .. }) => !force && !speculative,
            (Request::PullBlock { force, .. } | Request::PullPages { force, .. }, Reply::OnTheWay { .. }) => !force,
            (Request::List, Reply::Listing { .. }) => true,
            (Request::Status, Reply::Status { .. }) => true,
            (Request::TrustRead { .. }, Reply::TrustFiles { .. }) => true,
            (Request::TrustWrite { .. }, Reply::TrustWritten) => true,
            (Request::Manage { .. }, Reply::Managed { .. }) => true,
            (Request::PutOpen { .. }, Reply::PutDone { .. }) => true,
            (Request::VolumeOpen { .. }, Reply::VolumeOpened { .. }) => true,
            (Request::Volume { ask: VolumeAsk::PullBlocks { force, .. }, .. }, Reply::OnTheWay { .. }) => !force,
            (Request::Volume { ask, .. }, Reply::Volume(reply)) => ask.accepts(reply),
            _ => false,
        }
    }

    /// The same without names, lists and data. A server keeps this until it replies.
    #[must_use]
    pub(crate) fn without_data(&self) -> Request {
        match self {
            Request::Open { .. } => Request::Open { name: String::new() },
            Request::VolumeOpen { .. } => Request::VolumeOpen { name: String::new() },
            Request::TrustRead { .. } => Request::TrustRead { name: String::new(), known: Bytes::new() },
            Request::TrustWrite { .. } => Request::TrustWrite { name: String::new(), files: Bytes::new() },
            Request::Manage { ask, .. } => Request::Manage { name: String::new(), ask: ask.without_data() },
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
            Request::TrustRead { name, known: bytes } | Request::TrustWrite { name, files: bytes } => {
                name.len() + bytes.len()
            }
            Request::Manage { name, ask } => name.len() + ask.memory_bytes(),
            Request::PullPages { pages, .. } => size_of_val(pages.as_slice()),
            Request::Volume { ask, .. } => ask.memory_bytes(),
            Request::MetaRead { .. } | Request::PullBlock { .. } | Request::List | Request::Status => 0,
        }
    }

    /// The kind of frame that carries a request.
    pub(crate) fn kind(&self) -> ClientKind {
        match self {
            Request::Open { .. } => ClientKind::Open,
            Request::MetaRead { .. } => ClientKind::MetaRead,
            Request::PullBlock { .. } => ClientKind::PullBlock,
            Request::PullPages { .. } => ClientKind::PullPages,
            Request::List => ClientKind::List,
            Request::Status => ClientKind::Status,
            Request::TrustRead { .. } => ClientKind::TrustRead,
            Request::TrustWrite { .. } => ClientKind::TrustWrite,
            Request::Manage { .. } => ClientKind::Manage,
            Request::PutOpen { .. } => ClientKind::PutOpen,
            Request::VolumeOpen { .. } => ClientKind::VolumeOpen,
            Request::Volume { ask, .. } => volume::ask_kind(ask),
        }
    }

    /// The name of the frame that carries the request.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answers `Open`.
    Opened {
        /// The number of the image on this connection.
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
    /// Answers `PullBlock` unless forced, to a client near the server: decoding the block would
    /// take it longer than the bytes take on the link. Only if both sides know
    /// [`crate::format::FEATURE_DECODED`].
    Decoded {
        /// The block.
        block: BlockId,
        /// Its decoded bytes. The hashes of its chunks were sent before.
        bytes: Bytes,
    },
    /// Answers `PullPages`; and `PullBlock` unless forced or speculative, with its page alone: the
    /// program follows a push, which brings what else it needs of the block. That only if both
    /// sides know [`crate::format::FEATURE_LONE_PAGES`].
    Pages {
        /// How `bytes` is encoded; the number of the codec, which this crate does not interpret.
        codec: u8,
        /// The valid bytes of all pages in the order of the request, encoded as one piece.
        bytes: Bytes,
    },
    /// Answers `PullBlock` and `PullPages` unless forced: the page was pushed and not credited yet,
    /// or is next in line. It comes with the stream; should the stream end without it, the client
    /// asks again with `force`.
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
    /// Answers `TrustRead`.
    TrustFiles {
        /// How `bytes` is encoded; the number of the codec, which this crate does not interpret.
        codec: u8,
        /// Bytes before compression.
        raw_bytes: u32,
        /// The files, which this crate does not interpret.
        bytes: Bytes,
    },
    /// Answers `TrustWrite`: the files are durable, and what the next reader gets.
    TrustWritten,
    /// Answers `Manage`.
    Managed {
        /// A JSON document.
        json: Bytes,
    },
    /// Answers `VolumeOpen`.
    VolumeOpened {
        /// The number of the volume on this connection.
        volume: ImageHandle,
        /// Identity of the volume: another one under the same name has another.
        id: u128,
        /// Bytes of a data block, within [`crate::format::VOLUME_BLOCK_BYTES`].
        block_bytes: u32,
        /// Files may be changed.
        writable: bool,
        /// A random number, over which proofs of a device number are made on this handle.
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
        /// The error, for programs.
        code: ErrorCode,
        /// The error, for people. At most 256 bytes are written.
        text: String,
    },
}

impl Reply {
    /// An error reply.
    pub fn error(code: ErrorCode, text: impl Into<String>) -> Reply {
        Reply::Error { code, text: text.into() }
    }

    /// The kind of frame that carries a reply.
    pub(crate) fn kind(&self) -> ServerKind {
        match self {
            Reply::Opened { .. } => ServerKind::Opened,
            Reply::MetaData { .. } => ServerKind::MetaData,
            Reply::Block { .. } => ServerKind::Block,
            Reply::Decoded { .. } => ServerKind::Decoded,
            Reply::Pages { .. } => ServerKind::Pages,
            Reply::OnTheWay { .. } => ServerKind::OnTheWay,
            Reply::Listing { .. } => ServerKind::Listing,
            Reply::Status { .. } => ServerKind::StatusReply,
            Reply::PutDone { .. } => ServerKind::PutDone,
            Reply::TrustFiles { .. } => ServerKind::TrustFiles,
            Reply::TrustWritten => ServerKind::TrustWritten,
            Reply::Managed { .. } => ServerKind::Managed,
            Reply::Error { .. } => ServerKind::Error,
            Reply::VolumeOpened { .. } => ServerKind::VolumeOpened,
            Reply::Volume(reply) => volume::reply_kind(reply),
        }
    }

    /// The name of the frame that carries the reply.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}
