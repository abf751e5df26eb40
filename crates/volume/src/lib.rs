//! A volume: a plain folder that is served as a mutable tree, its files divided into fixed data
//! blocks. There are no sockets here, and no clock.
//!
//! *Journal, then apply.* [`Volume::commit`] checks a [`Transaction`] against the files (`staging`)
//! and turns it into records, which say in absolute terms what it does (`record`). It writes the
//! records to a journal (`journal`) and applies them to the plain files (`apply`). It returns when
//! the journal is on stable storage and the files are changed. Concurrent commits share one write
//! and one sync (`group`). A checkpoint syncs the files, writes which files were changed (`table`),
//! and empties the journal. A server may be killed at any instant. When it opens the volume again
//! (`recover`), it finds all acknowledged transactions, and of those in flight each wholly or not
//! at all. docs/formats/volume.md describes the files of the journal folder.
//!
//! *Blocks are never torn.* Transactions are applied under a lock that readers share. A reader sees
//! each file wholly before or wholly after a transaction, and after a commit has returned only
//! after. The lock is not held during the sync.
//!
//! *Exactly once.* A transaction may carry a device and a number. The answer is remembered with it
//! (`answers`). A device that lost the connection repeats the transaction and gets the same answer,
//! and nothing happens twice. A device gets its number with a secret ([`Volume::enrol`]), so that
//! nobody uses up the transactions of another.
//!
//! *Versions.* Each file has a version that grows with each transaction that changes it. A writer
//! says which version it saw, and an outdated one is a conflict. A file that was changed behind the
//! server's back gets a new version too, which size, times and inode show. Between a crash and the
//! recovery such changes are not seen: files in the journal become what it says.

mod answers;
mod apply;
mod committer;
mod disk;
mod error;
mod format;
mod group;
mod info;
mod inode;
mod journal;
mod lease;
mod listing;
mod locks;
mod path;
mod real;
mod record;
mod recover;
mod reserve;
mod simulated;
mod staging;
mod table;
mod transaction;
mod volume;
mod world;
mod xattrs;

use std::fmt;

pub use answers::{ANSWERS_BYTES_MAX, ANSWERS_MAX, DEVICES_MAX};
pub use disk::{Disk, DiskFile, FileStat, Identity, Kind, Owner, Space, Stamp};
pub use error::VolumeError;
pub use format::SECRET_BYTES;
pub use info::{BlockTable, Blocks, Entry, Info, InfoListing, Listing};
pub use inode::Inode;
pub use lease::{LEASE_DURATION_MAX, LEASE_GRACE, LEASES_HOLDER_MAX, LEASES_MAX, LeaseKind, Leases};
pub use listing::FOLDER_ENTRIES_MAX;
pub use locks::{HeldLock, LOCKS_HOLDER_MAX, LOCKS_MAX, LockOwner, Locks};
pub use path::{NAME_BYTES_MAX, OWN_FOLDER, PATH_BYTES_MAX, VolumePath};
pub use real::RealDisk;
pub use recover::Recovered;
pub use simulated::SimulatedDisk;
pub use staging::FILE_BYTES_MAX;
pub use transaction::{
    Allocation, COPY_BYTES_MAX, Committed, Holder, LINK_BYTES_MAX, OPERATIONS_MAX, Operation, Peer, Transaction, Writer,
};
pub use volume::{LIST_ENTRIES_MAX, READ_BYTES_MAX, TABLE_BLOCKS_MAX, Volume};
pub use xattrs::{
    ACL_ACCESS, ACL_DEFAULT, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, XattrHow, Xattrs,
};

/// A file, folder or symbolic link of one volume: the same while it exists, whatever its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

impl FileId {
    /// The top folder.
    pub const TOP: FileId = FileId(1);
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A file as somebody saw it. Equal ones have equal contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seen {
    /// Which file.
    pub file: FileId,
    /// Its version, at least 1; grows with every transaction that changes the file. In a base 0 is
    /// any version.
    pub version: u64,
}

impl Seen {
    /// Whether what was found is what a writer based its change on.
    pub(crate) fn is(&self, found: Seen) -> bool {
        found.file == self.file && (self.version == 0 || found.version == self.version)
    }
}

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is changed, not even in the journal folder.
    ReadOnly,
    /// One process at a time.
    ReadWrite,
}

/// How a volume is served.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Reading only, or writing too.
    pub mode: Mode,
    /// Bytes of a data block: a power of two from 512 to 1 MiB.
    pub block_bytes: u32,
    /// Bytes of the journal file, at least 64 KiB. A transaction fills a fourth of it at most. When
    /// it is full, commits wait for a checkpoint.
    pub journal_bytes: u64,
    /// Limit of the sum of all file sizes, bytes; holes count. What others add is counted when the
    /// volume is opened.
    pub quota_bytes: Option<u64>,
    /// Files that we remember to have changed; about 150 bytes of memory and 64 of the table each.
    /// Those that were changed longest ago are forgotten first: they get another id and version, as
    /// if changed by others.
    pub files_max: usize,
}

impl Options {
    /// Refuses what cannot work.
    pub(crate) fn check(&self) -> Result<(), VolumeError> {
        let Options { block_bytes, journal_bytes, .. } = *self;
        let why = match () {
            () if !block_bytes.is_power_of_two() || !(512..=1 << 20).contains(&block_bytes) => {
                "a block is a power of two from 512 bytes to 1 MiB"
            }
            () if !(64 << 10..=1 << 30).contains(&journal_bytes) => "a journal has from 64 KiB to 1 GiB",
            () => return Ok(()),
        };
        Err(VolumeError::Invalid { path: "the options of a volume".to_owned(), why })
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: Mode::ReadWrite,
            block_bytes: 4096,
            journal_bytes: 32 << 20,
            quota_bytes: None,
            files_max: 1 << 20,
        }
    }
}

#[cfg(test)]
mod tests;
