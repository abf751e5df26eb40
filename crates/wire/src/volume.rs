//! Volumes: mutable file trees beside the images, for data that programs read and write.
//!
//! A volume that is open on a connection has a handle, as an image has. A file that is open there
//! has a number (`InodeId`, from [`crate::format::FILE_NUMBER_MIN`]), and a data block of it is a
//! `PageId`. So touches, hints, pushes and credits use the frames of images. Everything else names
//! files by path, and states which version of them it means. Paths and contents are not interpreted
//! here; the volume checks them.

mod change;
pub(crate) mod coding;
pub(crate) mod limits;

use std::fmt;

use bytes::Bytes;
use units::{InodeId, LockKind, LockRange, PageId, Token};

pub use self::change::{Allocation, Change, XattrHow};
use crate::format::SECRET_BYTES;
use crate::range::BlockRange;

/// First in what a proof is made over, so that the secret is of no use for anything else.
const PROOF_CONTEXT: &[u8] = b"runnel device 1";

/// A file as it is or was: which one, and its version. Both are numbers of the volume; equal ones
/// have equal contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Seen {
    /// Which file, whatever its name.
    pub file: u64,
    /// Grows with every transaction that changes the file; at least 1. In a base 0 is any version.
    pub version: u64,
}

impl Seen {
    /// This file in any version: as a base of changes, it is only asked that it is the same file.
    pub fn of_file(file: u64) -> Seen {
        Seen { file, version: 0 }
    }
}

/// The type of a file in a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    #[default]
    File = 0,
    /// A folder.
    Folder = 1,
    /// A symbolic link.
    Symlink = 2,
    /// A FIFO.
    Fifo = 3,
    /// A Unix domain socket.
    Socket = 4,
    /// A character device.
    CharDevice = 5,
    /// A block device.
    BlockDevice = 6,
}

impl FileKind {
    /// The kind with this number.
    pub fn from_u8(number: u8) -> Option<FileKind> {
        use FileKind::*;
        [File, Folder, Symlink, Fifo, Socket, CharDevice, BlockDevice].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// The owner of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Owner {
    /// Number of the user.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FileInfo {
    /// Which file, and its version.
    pub seen: Seen,
    /// Its type.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Time of the last change of the content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change of content or attributes, nanoseconds since 1970.
    pub ctime_ns: i64,
    /// When it was last read, nanoseconds since 1970: as far as the server keeps that, or as
    /// somebody set it.
    pub atime_ns: i64,
    /// Permission bits (07777).
    pub mode: u16,
    /// Its owner.
    pub owner: Owner,
    /// The device that it stands for, if it is one: as `st_rdev` of Linux.
    pub rdev: u32,
    /// Number of names; of a folder as its file system counts.
    pub links: u32,
    /// Bytes that it takes on the server's disk: holes take none.
    pub stored_bytes: u64,
    /// It may have extended attributes; otherwise it has none.
    pub has_xattrs: bool,
}

/// An extended attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xattr {
    /// Its name, 1 to 255 bytes, with what says of which kind it is, such as `user.`.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Bytes,
}

/// How much room a volume has: what its disk and its quota leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub bytes: u64,
    /// Of them, bytes that can still be written.
    pub free_bytes: u64,
    /// Files in all; `u64::MAX` where there is no such limit.
    pub files: u64,
    /// Of them, files that can still be made.
    pub free_files: u64,
}

/// One entry of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FolderEntry {
    /// Its name, 1 to 255 bytes.
    pub name: Vec<u8>,
    /// Its type.
    pub info: FileInfo,
}

/// The kind of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LeaseKind {
    /// Keeps exclusive leases away.
    Shared = 1,
    /// Nobody else may hold a lease or change the file.
    Exclusive = 2,
}

/// Locking, unlocking or asking of a range of bytes, by one owner on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockAsk {
    /// The file.
    pub file: u64,
    /// Number of the owner on the device.
    pub owner: u64,
    /// A lock of flock(2), which has nothing to do with those of fcntl(2).
    pub is_flock: bool,
    /// Nothing is locked: it is only told which lock would be in the way.
    pub test: bool,
    /// First byte.
    pub start: u64,
    /// Last byte, at least `start`.
    pub end: u64,
    /// The kind of the lock; `None` unlocks.
    pub kind: Option<LockKind>,
    /// The process, for those who are kept waiting by the lock.
    pub pid: u32,
}

/// A lock that is in the way of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The locked range.
    pub range: LockRange,
    /// The process that holds it.
    pub pid: u32,
    /// It is one of the same device.
    pub is_own: bool,
}

/// The secret that a server gave to a device with its number. It proves the identity of the device.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Secret(pub [u8; SECRET_BYTES]);

impl Secret {
    /// Shows that one has the secret of device `number`: to this volume, and on the handle with
    /// this nonce only.
    pub fn proof(&self, volume: u128, nonce: u128, number: u128) -> [u8; SECRET_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(PROOF_CONTEXT);
        for part in [volume, nonce, number] {
            hasher.update(&part.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Whether `proof` is that of [`Secret::proof`]. Takes the same time for all wrong ones.
    pub fn accepts(&self, proof: &[u8; SECRET_BYTES], volume: u128, nonce: u128, number: u128) -> bool {
        blake3::Hash::from_bytes(self.proof(volume, nonce, number)) == blake3::Hash::from_bytes(*proof)
    }
}

/// Secrets stay out of logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The share of the link for pushes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Share {
    /// The rest that others leave.
    #[default]
    Rest,
    /// Percent of the link, 1 to 100.
    Percent(u8),
    /// Bytes per second, at least 1.
    Rate(u64),
}

/// A request to a volume that the client opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAsk {
    /// Opens a regular file for reading its blocks; also at every later open, to see its present
    /// version.
    FileOpen {
        /// The running action that opens it.
        token: Token,
        /// The file.
        path: Vec<u8>,
    },
    /// Asks for the attributes of a file, folder or link.
    FileStat {
        /// Which.
        path: Vec<u8>,
    },
    /// Asks for entries of a folder with their attributes, in order of their names.
    FolderList {
        /// The folder.
        path: Vec<u8>,
        /// Those after this name; empty: from the start.
        after: Vec<u8>,
        /// Most entries wanted, 1 to 4096.
        limit: u16,
    },
    /// Asks where a symbolic link points.
    LinkRead {
        /// The link.
        path: Vec<u8>,
    },
    /// Asks for 1 to 32 blocks of one open file. They may hold 512 KiB at most.
    PullBlocks {
        /// The running action that touched the first block.
        token: Token,
        /// The blocks; the first one was touched.
        blocks: Vec<PageId>,
        /// The server must send them even if a push carries them.
        force: bool,
    },
    /// Changes files: all of it or nothing. Answered when it is on stable storage.
    Commit {
        /// Number of the transaction, at least 1. Numbers of a device grow; the same number again
        /// is the same transaction, is not done twice, and gets the same answer. The device is the
        /// one that was proven on this handle.
        number: u64,
        /// Time of the last change that written files get, nanoseconds since 1970.
        mtime_ns: i64,
        /// 1 to 4096 changes, in this order.
        changes: Vec<Change>,
    },
    /// Takes, renews or gives back a lease.
    Lease {
        /// The file.
        file: u64,
        /// The kind; `None` releases it.
        kind: Option<LeaseKind>,
        /// How long, milliseconds.
        duration_ms: u32,
    },
    /// Locks or unlocks a range of bytes.
    Lock(LockAsk),
    /// Asks for the extended attributes of a file, folder or link.
    XattrsRead {
        /// Which.
        path: Vec<u8>,
    },
    /// Asks how much room there is.
    SpaceStat,
    /// Asks for a device number, which nobody else has, and the secret that goes with it.
    Enrol,
    /// Shows that a device number is one's own: transactions and leases on this handle are that
    /// device's from then on.
    Prove {
        /// The number.
        number: u128,
        /// [`Secret::proof`].
        proof: [u8; SECRET_BYTES],
        /// A number from before numbers were given out, whose transactions this device goes on
        /// with; 0 for none.
        previous: u128,
    },
}

/// The answer to a [`VolumeAsk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeReply {
    /// Answers `FileOpen`.
    FileOpened {
        /// How this connection calls the file from now on.
        file: InodeId,
        /// Its attributes; always of a regular file.
        info: FileInfo,
        /// The server knows in which order it is used (flag bit 0).
        profiled: bool,
        /// Blocks that may hold anything but zeros, ascending.
        present: Vec<BlockRange>,
        /// `present` was cut (flag bit 1): what is behind its last range may hold data too.
        cut: bool,
    },
    /// Answers `FileStat`.
    Attributes(FileInfo),
    /// Answers `FolderList`.
    Entries {
        /// The folder with its version.
        folder: Seen,
        /// There are more after the last one.
        more: bool,
        /// In order of their names.
        entries: Vec<FolderEntry>,
    },
    /// Answers `Lock`: `None` if it was done, or nothing is in the way.
    Locked(Option<HeldLock>),
    /// Answers `XattrsRead`.
    Xattrs {
        /// Its attributes.
        info: FileInfo,
        /// All that it has.
        xattrs: Vec<Xattr>,
    },
    /// Answers `SpaceStat`.
    Space(Space),
    /// Answers `LinkRead`.
    LinkTarget(Bytes),
    /// Answers `PullBlocks`.
    Blocks {
        /// Version of the file that all bytes belong to.
        version: u64,
        /// Size of the file in that version, bytes.
        size: u64,
        /// How `bytes` is encoded; the number of the codec.
        codec: u8,
        /// The valid bytes of all blocks in the order of the request, encoded as one piece; empty
        /// if all are behind the end.
        bytes: Bytes,
    },
    /// Answers `Commit`.
    Committed {
        /// For each change the file it was about, with its version after the transaction.
        versions: Vec<Seen>,
    },
    /// Answers `Lease`.
    Leased {
        /// How long it holds from now on, milliseconds; 0 if it was given back.
        duration_ms: u32,
    },
    /// Answers `Enrol`.
    Enrolled {
        /// The number, not 0.
        number: u128,
        /// Its secret.
        secret: Secret,
    },
    /// Answers `Prove`.
    Proven,
}

/// The contents of a piece in a push stream of [`crate::PushEncoding::Volume`]: blocks of
/// one version of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePiece {
    /// Version of the file that all bytes belong to.
    pub version: u64,
    /// Size of the file in that version, bytes.
    pub size: u64,
    /// How `bytes` is encoded; the number of the codec.
    pub codec: u8,
    /// The valid bytes of the listed blocks in their order, encoded as one piece.
    pub bytes: Bytes,
}

impl VolumePiece {
    /// As the bytes of a [`crate::PushPiece`].
    pub fn to_bytes(&self) -> Bytes {
        let head = [&self.version.to_le_bytes()[..], &self.size.to_le_bytes(), &[self.codec]].concat();
        [&head[..], &self.bytes].concat().into()
    }

    /// Reads what [`VolumePiece::to_bytes`] writes; `None` if it is too short.
    pub fn parse(mut bytes: Bytes) -> Option<VolumePiece> {
        let (version, rest) = bytes.split_first_chunk::<8>()?;
        let (size, rest) = rest.split_first_chunk::<8>()?;
        let (version, size, codec) = (u64::from_le_bytes(*version), u64::from_le_bytes(*size), *rest.first()?);
        Some(VolumePiece { version, size, codec, bytes: bytes.split_off(17) })
    }
}

impl VolumeAsk {
    /// Whether `reply` is an answer to this.
    pub fn accepts(&self, reply: &VolumeReply) -> bool {
        match (self, reply) {
            (VolumeAsk::FileOpen { .. }, VolumeReply::FileOpened { info, .. }) => info.kind == FileKind::File,
            (VolumeAsk::FileStat { .. }, VolumeReply::Attributes(_)) => true,
            (VolumeAsk::FolderList { limit, .. }, VolumeReply::Entries { entries, .. }) => {
                entries.len() <= usize::from(*limit)
            }
            (VolumeAsk::LinkRead { .. }, VolumeReply::LinkTarget(_))
            | (VolumeAsk::SpaceStat, VolumeReply::Space(_))
            | (VolumeAsk::XattrsRead { .. }, VolumeReply::Xattrs { .. })
            | (VolumeAsk::Lock(_), VolumeReply::Locked(_)) => true,
            (VolumeAsk::PullBlocks { .. }, VolumeReply::Blocks { .. }) => true,
            // A server keeps only the number of changes, elsewhere.
            (VolumeAsk::Commit { changes, .. }, VolumeReply::Committed { versions }) => {
                changes.is_empty() || changes.len() == versions.len()
            }
            (VolumeAsk::Lease { .. }, VolumeReply::Leased { .. }) => true,
            (VolumeAsk::Enrol, VolumeReply::Enrolled { .. }) => true,
            (VolumeAsk::Prove { .. }, VolumeReply::Proven) => true,
            _ => false,
        }
    }

    /// The same without paths, lists and data: what a server remembers of it until it is answered.
    #[must_use]
    pub(crate) fn without_data(&self) -> VolumeAsk {
        let path = Vec::new();
        match self {
            VolumeAsk::Commit { number, mtime_ns, .. } => {
                VolumeAsk::Commit { number: *number, mtime_ns: *mtime_ns, changes: Vec::new() }
            }
            VolumeAsk::PullBlocks { token, force, .. } => {
                VolumeAsk::PullBlocks { token: *token, blocks: Vec::new(), force: *force }
            }
            VolumeAsk::FileOpen { token, .. } => VolumeAsk::FileOpen { token: *token, path },
            VolumeAsk::FileStat { .. } => VolumeAsk::FileStat { path },
            VolumeAsk::LinkRead { .. } => VolumeAsk::LinkRead { path },
            VolumeAsk::XattrsRead { .. } => VolumeAsk::XattrsRead { path },
            VolumeAsk::FolderList { limit, .. } => VolumeAsk::FolderList { path, after: Vec::new(), limit: *limit },
            VolumeAsk::SpaceStat
            | VolumeAsk::Lock(_)
            | VolumeAsk::Lease { .. }
            | VolumeAsk::Enrol
            | VolumeAsk::Prove { .. } => self.clone(),
        }
    }

    /// Memory that the request takes beside itself, roughly.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            VolumeAsk::FileOpen { path, .. } | VolumeAsk::FileStat { path } | VolumeAsk::LinkRead { path } => {
                path.len()
            }
            VolumeAsk::XattrsRead { path } => path.len(),
            VolumeAsk::FolderList { path, after, .. } => path.len() + after.len(),
            VolumeAsk::PullBlocks { blocks, .. } => size_of_val(blocks.as_slice()),
            VolumeAsk::Commit { changes, .. } => changes.iter().map(|change| change.data_bytes() + 64).sum(),
            VolumeAsk::SpaceStat
            | VolumeAsk::Lock(_)
            | VolumeAsk::Lease { .. }
            | VolumeAsk::Enrol
            | VolumeAsk::Prove { .. } => 0,
        }
    }

    /// Changes of a transaction; 0 for other requests.
    pub(crate) fn changes(&self) -> usize {
        if let VolumeAsk::Commit { changes, .. } = self { changes.len() } else { 0 }
    }

    /// Bytes that the data of a transaction takes in memory once it is done, roughly; 0 for other
    /// requests.
    pub fn data_bytes(&self) -> usize {
        match self {
            VolumeAsk::Commit { changes, .. } => changes.iter().map(Change::memory_bytes).sum(),
            _ => 0,
        }
    }
}
