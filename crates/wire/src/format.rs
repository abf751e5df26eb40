//! Frame kinds, limits and other constants of the wire protocol; nothing else. Documented in
//! docs/formats/wire.md, which stores the hash of this file.
//!
//! Each limit that matters twice has two constants: what we write and what we accept.

use std::time::Duration;

/// First four bytes of both hellos: a stranger (a browser, a port scanner) is recognised by its
/// first frame.
pub const MAGIC: [u8; 4] = *b"RNLW";

/// Newest protocol version this crate speaks.
pub const VERSION: u16 = 2;
/// Oldest protocol version this crate speaks. In version 1 names travelled without a hash.
pub const VERSION_MIN: u16 = 2;
/// Feature bit 0: the server takes Hint frames, and pushes what they ask for.
pub const FEATURE_HINTS: u64 = 1;
/// Feature bit 5: the server serves volumes, if it has any. Bit 1 stood for volumes whose frames
/// had no hashes, bit 2 for those whose devices proved nothing, bit 3 for those that did not tell
/// how much room they have, bit 4 for those whose files had neither owners nor locks; nobody speaks
/// them any more.
pub const FEATURE_VOLUMES: u64 = 32;
/// Feature bit 6: before the server sends single pages of an image, it sends their chunk hashes,
/// with a proof, unless it did so on this connection before.
pub const FEATURE_PROOFS: u64 = 64;
/// Feature bit 7: before the server answers Open, it sends what a mount needs of the superblock and
/// the metadata. A client states it on a connection on which it opens an image for the first time.
pub const FEATURE_START: u64 = 128;
/// Feature bit 8: push streams whose pieces each say how they are encoded, and DeviceSpeed.
pub const FEATURE_PIECES: u64 = 256;
/// Feature bit 9: a PullBlock may be answered with the decoded bytes of the block.
pub const FEATURE_DECODED: u64 = 512;
/// Feature bit 10: a PullBlock may be answered with its page alone. Devices state it.
pub const FEATURE_LONE_PAGES: u64 = 1024;
/// Feature bit 11: the server has signed names, and takes TrustRead and TrustWrite.
pub const FEATURE_SIGNED_NAMES: u64 = 2048;
/// Feature bit 12: the client says who it is with a Bearer, right behind its Hello. Only a client
/// that sends one states it.
pub const FEATURE_TOKENS: u64 = 4096;
/// Feature bit 13: the server takes Manage.
pub const FEATURE_MANAGE: u64 = 8192;
/// Optional features this crate knows; both sides use the intersection.
pub const FEATURES: u64 = FEATURE_HINTS
    | FEATURE_VOLUMES
    | FEATURE_PROOFS
    | FEATURE_START
    | FEATURE_PIECES
    | FEATURE_DECODED
    | FEATURE_LONE_PAGES
    | FEATURE_SIGNED_NAMES
    | FEATURE_TOKENS
    | FEATURE_MANAGE;
/// Those that a connection uses unless its owner says otherwise.
pub const FEATURES_USUAL: u64 = FEATURES & !(FEATURE_START | FEATURE_LONE_PAGES | FEATURE_TOKENS);

/// Port a server listens on unless told otherwise.
pub const PORT: u16 = 7327;

/// Before each payload: its length (`u32`, little-endian) and its kind (`u8`).
pub const FRAME_HEADER_BYTES: usize = 5;
/// Largest payload we write: one block of 1 MiB, the largest an image has, and its fields.
pub const FRAME_BYTES_MAX_WRITTEN: usize = (1 << 20) + 4096;
/// Largest payload we accept: twice a block, so that a later version may grow blocks without a
/// format break.
pub const FRAME_BYTES_MAX: usize = 2 << 20;
/// Smallest `frame_bytes_max` a peer may state: a whole segment that does not compress must fit.
pub const FRAME_BYTES_MAX_LEAST: usize = 160 << 10;
/// Largest payload of every kind without bulk data. A Touch of 1024 pages costs at most 10 bytes a
/// page.
pub const SMALL_FRAME_BYTES_MAX: usize = 16 << 10;
/// Largest payload of a hello, the only frame a server takes from a stranger. It takes 39 bytes and
/// never changes.
pub const HELLO_BYTES_MAX: usize = 64;

/// Kinds with this bit end in a hash, because nothing else would find damage to them on the way:
/// names, listings, and all that volumes need.
pub const KIND_HASHED: u8 = 0x40;
/// Bytes of that hash: the first of BLAKE3, over the kind and the payload before it. It has no key:
/// it is against damage; what keeps attackers out is TLS.
pub const FRAME_HASH_BYTES: usize = 16;

/// Longest name of an image, tag included. One byte holds the length.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest text of an error we write; longer texts are cut.
pub const ERROR_TEXT_BYTES_MAX_WRITTEN: usize = 256;
/// Longest text of an error we accept.
pub const ERROR_TEXT_BYTES_MAX: usize = 512;
/// Largest range one MetaRead may ask for; larger regions take several requests, which may be in
/// flight together.
pub const META_READ_BYTES_MAX: usize = 1 << 20;
/// Pages in one PullPages, Pages or Push: one segment, also what one page-cache store carries.
pub const PUSH_PAGES_MAX: usize = 32;
/// Bulk bytes in one Pages or Push: 32 raw pages, and what a codec may add to data that does not
/// compress.
pub const PUSH_BYTES_MAX: usize = PUSH_PAGES_MAX * 4096 + 4096;
/// Bytes of one proof of chunk hashes: 64 leaves of 1024 bytes and their numbers, and for each at
/// most 10 nodes of 32 bytes that it does not share with others. Longer lists take several frames.
pub const PROOF_BYTES_MAX: usize = 128 << 10;
/// Bytes of proofs that wait to be sent, beyond which a server should build no further push.
pub const PROOF_QUEUE_BYTES_MAX: usize = 256 << 10;
/// Bytes of superblock or metadata in one Start; more takes several frames.
pub const START_BYTES_MAX: usize = 128 << 10;
/// Bytes of metadata files of signed names in one TrustFiles or TrustWrite, before compression.
pub const TRUST_FILES_BYTES_MAX: usize = 512 << 10;
/// Bytes by which a device says in TrustRead which of these files it has.
pub const TRUST_KNOWN_BYTES_MAX: usize = 256;
/// Pages in one Touch.
pub const TOUCH_PAGES_MAX: usize = 1024;
/// Pages in one Hint, as in one Touch; longer lists take several frames.
pub const HINT_PAGES_MAX: usize = 1024;
/// Hinted pages of one connection that wait to be pushed: 256 MiB of files, more than a small
/// device has room for. A client asks for no more, a server drops what exceeds it.
pub const HINT_PAGES_WAITING_MAX: usize = 64 << 10;
/// Action of a push stream that carries hinted pages. Learned actions count from 0 and never get
/// there.
pub const HINT_ACTION: units::ActionId = units::ActionId(u64::MAX);
/// Bytes of the secret that belongs to a device number, and of a proof that one has it.
pub const SECRET_BYTES: usize = 32;
/// Longest path in a volume, bytes: PATH_MAX of Linux less its terminator.
pub const PATH_BYTES_MAX: usize = 4095;

/// Bytes of what a symbolic link points to: Linux takes no more.
pub const LINK_BYTES_MAX: usize = 4095;

/// Bytes of the name of an extended attribute: Linux takes no more.
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Bytes of the value of an extended attribute: Linux takes no more.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// Bytes of all names and values of the extended attributes of a file.
pub const XATTRS_BYTES_MAX: usize = 64 << 10;

/// Extended attributes of a file: with the shortest names there are, so many fit the bytes.
pub const XATTRS_MAX: usize = XATTRS_BYTES_MAX / 4;
/// Longest name of a file in a volume: what Linux file systems accept. One byte holds the length.
pub const FILE_NAME_BYTES_MAX: usize = 255;
/// Smallest number of an open file: 0 is no inode and 1 is the top of an image.
pub const FILE_NUMBER_MIN: u32 = 2;
/// Entries in one answer to FolderList.
pub const FOLDER_ENTRIES_MAX: usize = 4096;
/// Changes in one Commit.
pub const TRANSACTION_CHANGES_MAX: usize = 4096;
/// Changes of one Commit that we write, bytes: an upload on a thin link must not keep others
/// waiting for long.
pub const COMMIT_BYTES_MAX_WRITTEN: usize = 1 << 20;
/// Bytes that one change copies on the server: as many as a transaction of writes holds, since they
/// go through its journal as those do.
pub const COPY_BYTES_MAX: u32 = 1 << 20;
/// Smallest and largest data block of a volume, bytes: a block must fit a piece of a push.
pub const VOLUME_BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=64 << 10;
/// Bytes of data that one PullBlocks may ask for.
pub const PULL_BLOCKS_BYTES_MAX: usize = 512 << 10;
/// Block ranges in one PutNeed or FileOpened; longer lists take several PutNeeds.
pub const NEED_RANGES_MAX: usize = 1024;
/// Block ranges one put may name in all: one for each of the most blocks an image of 1 TiB can
/// sensibly have.
pub const NEED_RANGES_TOTAL_MAX: usize = 1 << 20;
/// Bytes an upload sends before the metadata region: the superblock of an image.
pub const PUT_HEAD_BYTES: u64 = 4096;
/// Ended puts a server remembers, to drop what was still on its way for them: the puts in flight,
/// four times over.
pub const PUTS_ENDED_MAX: usize = 16;
/// Requests of one connection that have no answer yet.
pub const REQUESTS_MAX: usize = 1024;
/// Puts of one connection in flight together; each holds an upload open in the store.
pub const PUTS_MAX: usize = 4;
/// Push streams of one connection that have no PushEnd yet.
pub const STREAMS_MAX: usize = 64;
/// Push frames of one connection that are queued or not credited yet; bounds the page lists kept
/// for them.
pub const PUSH_FRAMES_MAX: usize = 1024;
/// Push bytes queued and not sent yet: the largest in-flight window once more.
pub const PUSH_QUEUE_BYTES_MAX: usize = 4 << 20;
/// Events that wait for the server's task, beyond which it takes no further bytes from the socket.
pub const EVENTS_MAX: usize = 1024;
/// Data of uploads in such events, beyond which likewise: four of the largest blocks.
pub const EVENT_BYTES_MAX: usize = 4 << 20;
/// Reply bytes queued beyond which a server takes up no further request of the connection.
pub const REPLY_QUEUE_BYTES_MAX: usize = 4 << 20;
/// Bytes of requests and touches a client queues before it refuses more.
pub const REQUEST_QUEUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of PutMeta and PutBlock a client queues before it refuses more: two of the largest blocks.
pub const PUT_QUEUE_BYTES_MAX: usize = 2 << 20;
/// Control frames (hello, pings, credits, cancels, stream starts and ends) queued for one
/// connection. A peer that sends what must be answered and never reads is cut off here.
pub const CONTROL_FRAMES_MAX: usize = 4096;
/// Largest zstd window a device may state (2^27 = 128 MiB, the largest a stock decoder takes).
pub const WINDOW_LOG_MAX: u8 = 27;

/// In-flight push window at the start of a connection: one raw segment.
pub const WINDOW_BYTES_START: u64 = 128 << 10;
/// Smallest in-flight push window: one segment compressed to a third, so that a push can always go
/// on.
pub const WINDOW_BYTES_MIN: u64 = 48 << 10;
/// Largest in-flight push window: 1 Gbit/s at 33 ms.
pub const WINDOW_BYTES_MAX: u64 = 4 << 20;
/// Push bytes of volumes under way as long as the link is unknown: half a second of 128 kbit/s,
/// which is what a demand waits for.
pub const VOLUME_WINDOW_BYTES_START: u64 = 8 << 10;
/// Push bytes that may stand ready behind a full window: one raw segment, so that a credit finds
/// work.
pub const PUSH_READY_BYTES: u64 = 128 << 10;

/// Time a peer has for its half of the handshake.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// Time for an answer to a request, unless the caller says otherwise.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// Time a put may make no progress.
pub const PUT_DEADLINE: Duration = Duration::from_secs(60);
/// Idle time after which a client sends a Ping.
pub const KEEPALIVE: Duration = Duration::from_secs(15);
/// Pings that a client may send at once; one more is granted a second. A client of ours sends one
/// in five seconds at most.
pub const PINGS_MAX: u32 = 32;
/// Time without a byte received, while an answer is outstanding, after which a client takes the
/// connection for dead.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Time without a byte received after which a server drops the connection: four missed pings.
pub const IDLE_MAX: Duration = Duration::from_secs(60);
/// Time in which a client must take `STALL_BYTES_MIN` of what is queued for it, or all of it. Long,
/// because the kernel asks for more only when a third of its buffer is free: many seconds of a thin
/// link.
pub const STALL_MAX: Duration = Duration::from_secs(30);
/// The least rate of a reader, 1 KiB/s: a sixteenth of the slowest link we serve, for who shares it
/// with others.
pub const STALL_BYTES_MIN: usize = 30 << 10;
/// Time to complete a frame that has begun, whatever its length ...
pub const FRAME_DEADLINE: Duration = Duration::from_secs(30);
/// ... and one second more for each so many bytes of it: the slowest link we serve, 64 kbit/s.
pub const FRAME_BYTES_PER_SECOND_MIN: u64 = 8 << 10;

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$kind_doc:meta])* $kind:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$kind_doc])* $kind = $value,)* }

        impl $name {
            /// Every kind, in order of its number.
            pub const ALL: &'static [$name] = &[$($name::$kind,)*];

            /// The kind with this number.
            pub const fn from_u8(value: u8) -> Option<$name> {
                match value { $($value => Some($name::$kind),)* _ => None }
            }

            /// The name as it stands in docs/formats/wire.md.
            pub const fn name(self) -> &'static str {
                match self { $($name::$kind => stringify!($kind),)* }
            }
        }
    };
}

kinds! {
    /// Kinds of frame a client sends.
    ClientKind {
        /// First frame of a client.
        Hello = 0x01,
        /// Asks for a Pong.
        Ping = 0x02,
        /// The answer to a request is no longer wanted.
        Cancel = 0x03,
        /// Somebody waits for the answer to a speculative request now.
        Hurry = 0x04,
        /// Opens an image by name.
        Open = 0x50,
        /// Reads a range of superblock or metadata.
        MetaRead = 0x11,
        /// Asks for the stored block that holds a touched page.
        PullBlock = 0x12,
        /// Asks for up to 32 pages.
        PullPages = 0x13,
        /// Lists the published images.
        List = 0x14,
        /// Asks for the server's counters.
        Status = 0x15,
        /// Asks for what publishers have signed about a name.
        TrustRead = 0x56,
        /// Publishes what a publisher has signed.
        TrustWrite = 0x57,
        /// Changes what the server keeps.
        Manage = 0x58,
        /// First touches that needed no network.
        Touch = 0x20,
        /// An action has ended.
        TokenEnd = 0x21,
        /// Pushed bytes were taken.
        Credit = 0x22,
        /// A push stream is not wanted.
        StopPush = 0x23,
        /// Pages that will be needed soon.
        Hint = 0x24,
        /// How fast the device decodes.
        DeviceSpeed = 0x25,
        /// Who the client is.
        Bearer = 0x62,
        /// Begins an upload.
        PutOpen = 0x70,
        /// Part of the superblock or metadata of an upload.
        PutMeta = 0x31,
        /// One stored block of an upload.
        PutBlock = 0x32,
        /// Everything was sent; publish it.
        PutCommit = 0x33,
        /// Opens a volume by name.
        VolumeOpen = 0x40,
        /// Opens a file of a volume.
        FileOpen = 0x41,
        /// Asks for the attributes of a file.
        FileStat = 0x42,
        /// Asks for entries of a folder.
        FolderList = 0x43,
        /// Asks where a symbolic link points.
        LinkRead = 0x44,
        /// Asks for data blocks.
        PullBlocks = 0x45,
        /// Changes files.
        Commit = 0x46,
        /// Takes or gives back a lease.
        Lease = 0x47,
        /// A file is not open any more.
        FileClose = 0x48,
        /// The share of the link of a file.
        FileShare = 0x49,
        /// How fast the server may send.
        RateLimit = 0x4a,
        /// Asks for a device number.
        Enrol = 0x4b,
        /// Shows that a device number is one's own.
        Prove = 0x4c,
        /// Asks how much room a volume has.
        SpaceStat = 0x4d,
        /// Locks a range of bytes, or tells what is in the way.
        Lock = 0x4e,
        /// Asks for the extended attributes of a file.
        XattrsRead = 0x4f,
    }
}

kinds! {
    /// Kinds of frame a server sends.
    ServerKind {
        /// Answers Hello.
        HelloReply = 0x81,
        /// Answers Ping.
        Pong = 0x82,
        /// A request, or the connection, failed.
        Error = 0x83,
        /// Answers Open.
        Opened = 0x90,
        /// Answers MetaRead.
        MetaData = 0x91,
        /// Answers PullBlock.
        Block = 0x92,
        /// Answers PullPages.
        Pages = 0x93,
        /// Answers PullBlock or PullPages: wait for a push stream.
        OnTheWay = 0x94,
        /// Answers PullBlock with decoded bytes.
        Decoded = 0x99,
        /// Chunk hashes, with a proof.
        Hashes = 0x97,
        /// Superblock or metadata of an image that is being opened.
        Start = 0x98,
        /// Answers List.
        Listing = 0xd5,
        /// Answers Status.
        StatusReply = 0xd6,
        /// Answers TrustRead.
        TrustFiles = 0xdc,
        /// Answers TrustWrite.
        TrustWritten = 0xdd,
        /// Answers Manage.
        Managed = 0xde,
        /// Begins a push stream.
        PushStart = 0xa0,
        /// Pages of a push stream.
        Push = 0xa1,
        /// Ends a push stream.
        PushEnd = 0xa2,
        /// Blocks an upload must send.
        PutNeed = 0xb0,
        /// Bytes of an upload that are stored.
        PutProgress = 0xb1,
        /// An upload is published.
        PutDone = 0xb2,
        /// Answers VolumeOpen.
        VolumeOpened = 0xc0,
        /// Answers FileOpen.
        FileOpened = 0xc1,
        /// Answers FileStat.
        Attributes = 0xc2,
        /// Answers FolderList.
        Entries = 0xc3,
        /// Answers LinkRead.
        LinkTarget = 0xc4,
        /// Answers PullBlocks.
        Blocks = 0xc5,
        /// Answers Commit.
        Committed = 0xc6,
        /// Answers Lease.
        Leased = 0xc7,
        /// A request to a volume failed.
        VolumeError = 0xc8,
        /// Answers Enrol.
        Enrolled = 0xc9,
        /// Answers Prove.
        Proven = 0xca,
        /// Answers SpaceStat.
        Space = 0xcb,
        /// Answers Lock.
        Locked = 0xcc,
        /// Answers XattrsRead.
        Xattrs = 0xcd,
        /// Begins a push stream of a volume.
        VolumePushStart = 0xe0,
        /// Blocks of a push stream of a volume.
        VolumePush = 0xe1,
    }
}

impl ClientKind {
    /// Largest payload of this kind; known before a byte of the payload is kept.
    pub const fn payload_bytes_max(self) -> usize {
        match self {
            ClientKind::Hello => HELLO_BYTES_MAX,
            ClientKind::PutMeta | ClientKind::PutBlock | ClientKind::Commit | ClientKind::TrustWrite => FRAME_BYTES_MAX,
            _ => SMALL_FRAME_BYTES_MAX,
        }
    }
}

impl ServerKind {
    /// Largest payload of this kind; known before a byte of the payload is kept.
    pub const fn payload_bytes_max(self) -> usize {
        match self {
            ServerKind::HelloReply => HELLO_BYTES_MAX,
            ServerKind::MetaData
            | ServerKind::Block
            | ServerKind::Decoded
            | ServerKind::Pages
            | ServerKind::Hashes
            | ServerKind::Start
            | ServerKind::Push
            | ServerKind::VolumePush
            | ServerKind::Listing
            | ServerKind::Managed
            | ServerKind::StatusReply
            | ServerKind::TrustFiles
            | ServerKind::Entries
            | ServerKind::Blocks
            | ServerKind::Xattrs
            | ServerKind::Committed => FRAME_BYTES_MAX,
            _ => SMALL_FRAME_BYTES_MAX,
        }
    }
}

const _: () = assert!(TOUCH_PAGES_MAX * 10 + 64 <= SMALL_FRAME_BYTES_MAX);
const _: () = assert!(HINT_PAGES_MAX * 10 + 64 <= SMALL_FRAME_BYTES_MAX && HINT_PAGES_MAX <= HINT_PAGES_WAITING_MAX);
const _: () = assert!(NEED_RANGES_MAX * 10 + 64 <= SMALL_FRAME_BYTES_MAX);
const _: () = assert!(ERROR_TEXT_BYTES_MAX + 64 <= SMALL_FRAME_BYTES_MAX);
const _: () = assert!(PUSH_BYTES_MAX + 1024 <= FRAME_BYTES_MAX_LEAST);
const _: () = assert!(START_BYTES_MAX + 64 <= FRAME_BYTES_MAX_LEAST);
const _: () = assert!(PROOF_BYTES_MAX + 64 <= FRAME_BYTES_MAX_LEAST);
const _: () = assert!(PUSH_PAGES_MAX == units::SEGMENT_PAGES_MAX);
const _: () = assert!(FRAME_BYTES_MAX_LEAST <= FRAME_BYTES_MAX_WRITTEN && FRAME_BYTES_MAX_WRITTEN <= FRAME_BYTES_MAX);
