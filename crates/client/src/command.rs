//! Commands of the schedule for the thread that owns a connection (or the local file).

use bytes::Bytes;
use connection::VolumeMessage;
use image::Metadata;
use units::{BlockId, PAGE_BYTES, PageId, StreamId, Token};
use wire::ErrorCode;

/// A connection of a session, by position.
pub(crate) type ConnectionIndex = usize;

/// The connection for the frames of volumes: only one, so that their priorities hold.
pub(crate) const VOLUME_CONNECTION: ConnectionIndex = 0;

/// A request of the session; unlike the numbers of the wire it survives the loss of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestKey(pub u64);

/// A push stream of the session: streams are numbered per connection, and a connection may be made
/// anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamKey {
    pub connection: ConnectionIndex,
    /// How often it was made.
    pub generation: u64,
    pub stream: StreamId,
}

/// The bytes that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A whole block, because of one page.
    Block { block: BlockId, page: PageId },
    /// Just these pages, 1 to 32.
    Pages(Vec<PageId>),
}

impl Wanted {
    /// The pages that are needed of it.
    pub fn pages(&self) -> &[PageId] {
        match self {
            Wanted::Block { page, .. } => std::slice::from_ref(page),
            Wanted::Pages(pages) => pages,
        }
    }

    /// Size of the answer, roughly.
    pub fn answer_bytes(&self, metadata: &Metadata) -> u64 {
        match self {
            Wanted::Block { block, .. } => metadata.block(*block).map_or(0, |entry| entry.stored_bytes.into()),
            Wanted::Pages(pages) => (pages.len() * PAGE_BYTES) as u64,
        }
    }
}

/// Why a request got no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server is busy or going down: asking again may help, and a READ may wait for it.
    Later,
    /// The server (or the file) says no.
    Refused,
    /// The bytes do not match the image.
    Corrupt,
    /// The device cache has them not.
    Absent,
}

impl Failure {
    /// What an error of the server means.
    pub fn of(code: ErrorCode) -> Failure {
        match code {
            ErrorCode::Busy | ErrorCode::Shutdown | ErrorCode::Cancelled => Failure::Later,
            ErrorCode::Corrupt => Failure::Corrupt,
            _ => Failure::Refused,
        }
    }
}

/// A message to the thread that owns a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Request {
        key: RequestKey,
        token: Token,
        wanted: Wanted,
        /// The server is not to answer that the page is on its way.
        force: bool,
        /// No READ waits for the answer yet.
        speculative: bool,
    },
    /// A READ waits now for the answer to a speculative request.
    Hurry {
        key: RequestKey,
    },
    Touch {
        token: Token,
        pages: Vec<PageId>,
    },
    TokenEnd {
        token: Token,
        /// No server was told of what it touched, since it needed nothing of one.
        is_untold: bool,
    },
    /// Pages to be pushed, or pulled if the server does not push; at most as many as one message
    /// holds.
    Hint {
        token: Token,
        pages: Vec<PageId>,
    },
    Credit {
        stream: StreamKey,
        bytes: u32,
    },
    StopPush {
        stream: StreamKey,
    },
    /// How fast pushes are decoded, in KiB a second.
    DecodeRate {
        zstd: u32,
        lz4: u32,
    },
    /// A message of the volume client, for the connection of this generation.
    Volume {
        generation: u64,
        message: VolumeMessage,
    },
    /// For the device cache: what a server sent.
    Keep(Kept),
    Close,
}

/// What a server sent, for the device cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Pages that were pushed for a program, verified.
    Pushed { token: Token, pages: Vec<PageId>, raw: Bytes },
    /// Pages that were asked for, verified.
    Pages { pages: Vec<PageId>, raw: Bytes },
    /// A block as it is stored, verified.
    Block { block: BlockId, stored: Bytes },
    /// A block that a server decoded, not verified.
    Decoded { block: BlockId, raw: Bytes },
    /// Chunk hashes with a proof, verified.
    Proof(Bytes),
}

impl Kept {
    /// Memory that it takes, roughly.
    pub fn bytes(&self) -> usize {
        match self {
            Kept::Pushed { raw, .. } | Kept::Pages { raw, .. } | Kept::Decoded { raw, .. } => raw.len(),
            Kept::Block { stored, .. } => stored.len(),
            Kept::Proof(proof) => proof.len(),
        }
    }
}
