//! Records of what a mounted volume keeps for the next daemon: each is one thing as it is now.
//!
//! They are in memory only (`stream::Journal`), in the bytes of postcard, one behind the other.

use serde::{Deserialize, Serialize};
use stream::{FileInfo, FileKind, FolderEntry, LockOwner, Owner, Seen};
use units::{LockKind, LockPiece};

/// Version of the records. It changes with every change of this file.
pub(crate) const VERSION: u32 = 1;

/// What is true from now on.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record {
    /// The first one. It never changes, so that versions know each other.
    Begin {
        /// [`VERSION`].
        version: u32,
    },
    /// The volume took changes when it was mounted.
    Writable(bool),
    /// The last provisional number of an inode.
    Next(u64),
    /// An inode; `None` if it is not known any more.
    Inode { number: u64, node: Option<NodeRecord> },
    /// An open directory, and the listing that is read from it; `None` once it is closed.
    Folder { handle: u64, open: Option<Option<ListingRecord>> },
    /// The locks of an owner on a file; without ranges there are none.
    Locks { number: u64, owner: OwnerRecord, ranges: Vec<PieceRecord>, handles: Vec<u64> },
    /// Whether a lease is exclusive, and when it ends, in nanoseconds of the monotonic clock.
    Lease { number: u64, lease: Option<(bool, u64)> },
    /// What a request changes in the other records is in them; `before` is how the range was
    /// locked, if it was a lock.
    Done { unique: u64, before: Vec<PieceRecord> },
    /// It was answered.
    Answered(u64),
}

/// An inode.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    pub names: Vec<(u64, Vec<u8>)>,
    pub file: u64,
    pub is_found_by_file: bool,
    #[serde(with = "KindRecord")]
    pub kind: FileKind,
    pub lookups: u64,
    pub handles: Vec<(u64, bool)>,
}

/// A listing.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ListingRecord(Vec<EntryRecord>);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EntryRecord(Vec<u8>, #[serde(with = "InfoRecord")] FileInfo);

/// Whether it is of flock(2), and the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnerRecord(bool, u64);

/// The first and last byte, and whether it is an exclusive lock or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PieceRecord(u64, u64, Option<bool>);

#[derive(Serialize, Deserialize)]
#[serde(remote = "FileKind")]
enum KindRecord {
    File,
    Folder,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "FileInfo")]
struct InfoRecord {
    #[serde(with = "SeenRecord")]
    seen: Seen,
    #[serde(with = "KindRecord")]
    kind: FileKind,
    size: u64,
    mtime_ns: i64,
    ctime_ns: i64,
    atime_ns: i64,
    mode: u16,
    #[serde(with = "UserRecord")]
    owner: Owner,
    rdev: u32,
    links: u32,
    stored_bytes: u64,
    has_xattrs: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Seen")]
struct SeenRecord {
    file: u64,
    version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Owner")]
struct UserRecord {
    uid: u32,
    gid: u32,
}

impl From<&Vec<FolderEntry>> for ListingRecord {
    fn from(entries: &Vec<FolderEntry>) -> ListingRecord {
        ListingRecord(entries.iter().map(|entry| EntryRecord(entry.name.clone(), entry.info)).collect())
    }
}

impl From<ListingRecord> for Vec<FolderEntry> {
    fn from(listing: ListingRecord) -> Vec<FolderEntry> {
        listing.0.into_iter().map(|EntryRecord(name, info)| FolderEntry { name, info }).collect()
    }
}

impl From<LockOwner> for OwnerRecord {
    fn from(owner: LockOwner) -> OwnerRecord {
        OwnerRecord(owner.is_flock, owner.number)
    }
}

impl From<OwnerRecord> for LockOwner {
    fn from(OwnerRecord(is_flock, number): OwnerRecord) -> LockOwner {
        LockOwner { is_flock, number }
    }
}

impl From<LockPiece> for PieceRecord {
    fn from(LockPiece { start, end, kind }: LockPiece) -> PieceRecord {
        PieceRecord(start, end, kind.map(|kind| kind == LockKind::Exclusive))
    }
}

impl From<PieceRecord> for LockPiece {
    fn from(PieceRecord(start, end, kind): PieceRecord) -> LockPiece {
        let kind = kind.map(|exclusive| if exclusive { LockKind::Exclusive } else { LockKind::Shared });
        LockPiece { start, end, kind }
    }
}

/// Adds records to bytes, one behind the other.
pub(super) fn encode(records: &[Record]) -> Vec<u8> {
    records.iter().fold(Vec::new(), |bytes, record| {
        // Into a vector, of types that have a form: neither can fail.
        postcard::to_extend(record, bytes).unwrap_or_default()
    })
}

/// Takes records apart, and gives each away.
///
/// # Errors
/// What is wrong with them.
pub(super) fn decode(mut bytes: &[u8], mut each: impl FnMut(Record)) -> Result<(), String> {
    let mut is_first = true;
    while !bytes.is_empty() {
        let (record, rest) = postcard::take_from_bytes::<Record>(bytes)
            .map_err(|error| format!("what its last daemon has kept makes no sense ({error})"))?;
        match record {
            Record::Begin { version: VERSION } => {}
            Record::Begin { version } => {
                return Err(format!(
                    "its last daemon has kept records of version {version}, and this one reads {VERSION}"
                ));
            }
            _ if is_first => return Err("what its last daemon has kept does not begin with a version".into()),
            record => each(record),
        }
        (bytes, is_first) = (rest, false);
    }
    Ok(())
}
