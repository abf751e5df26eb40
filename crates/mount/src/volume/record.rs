//! Records of what a mounted volume keeps for the next daemon: each is one thing as it is now.
//!
//! They are in memory only (`stream::Journal`), in the bytes of postcard, one behind the other.

use serde::{Deserialize, Serialize};
use stream::{FileKind, FolderEntry, Handle, LockOwner};
use units::{LockPiece, LockRanges};

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
    Folder { handle: u64, open: Option<Option<Vec<FolderEntry>>> },
    /// The locks of an owner on a file; without ranges there are none.
    Locks { number: u64, owner: LockOwner, ranges: LockRanges, handles: Vec<Handle> },
    /// Whether a lease is exclusive, and when it ends, in nanoseconds of the monotonic clock.
    Lease { number: u64, lease: Option<(bool, u64)> },
    /// What a request changes in the other records is in them; `before` is how the range was
    /// locked, if it was a lock.
    Done { unique: u64, before: Vec<LockPiece> },
    /// It was answered.
    Answered(u64),
}

/// An inode.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    pub names: Vec<(u64, Vec<u8>)>,
    pub file: u64,
    pub is_found_by_file: bool,
    pub kind: FileKind,
    pub lookups: u64,
    pub handles: Vec<(Handle, bool)>,
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
