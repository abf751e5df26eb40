//! The client of volumes: files on a server, read block by block and written back, by calls that
//! never block.
//!
//! [`RemoteVolume`] is the interface for mounts and libraries. Every call returns at once and tells
//! its outcome to a callback; [`RemoteVolume::wait`] blocks, for a stated time. Inside is an
//! `Engine` without threads, sockets, clocks or files, so hours of lost connections and crashes are
//! tested in seconds, by seed.
//!
//! *Reading.* Each file has a data block table (`engine::table`): a block is absent, asked for, in
//! memory, in the disk cache, or a hole. All blocks of a table are of one version of the file. An
//! answer of a later version means that somebody changed the file, and its clean blocks are
//! dropped. Pushed blocks wait in the table until they are read; the server is told which are, and
//! pushes by that.
//!
//! *Writing.* Changes lie over the blocks (`overlay`) until a sync, a close, or a full budget makes
//! transactions of them (`engine::writer`). The server takes a transaction wholly or not at all,
//! once (`engine::committer`). While the server is away, transactions lie in the outbox (`outbox`,
//! docs/formats/outbox.md). A change that the server refuses is never dropped silently.
//!
//! *Going on.* With [`Options::journal`] the engine records what changed before anybody hears of it
//! (`engine::records`, [`Journal`]). A process that is killed is followed by one that goes on from
//! the records, as after a lost connection.
//!
//! *Consistency.* Close to open: opening always asks the server. After a sync or close that
//! succeeded, the server has the changes on stable storage, and whoever opens the file then sees
//! them. A writer of a file that somebody else changed meanwhile gets [`ErrorKind::Stale`].

mod cache;
mod cache_index;
mod call;
mod engine;
mod error;
mod estimate;
mod format;
mod inner;
mod job;
mod journal;
mod linked;
mod memory;
mod names;
mod options;
mod outbox;
mod overlay;
mod present;
mod private;
mod remote;

mod status;
mod storage;
mod wait;

pub use call::{
    ACL_ACCESS, ACL_DEFAULT, Done, FileRef, Handle, LockOwner, LockWish, OpenHow, Opened, SetAttributes, XattrChange,
    Xattrs,
};
/// Version of what a volume adds to its journal; another one cannot be gone on with.
pub use engine::RECORDS_VERSION;
pub use error::{ErrorKind, StreamError};
pub use format::SEALED_MAGIC;
pub use journal::Journal;
pub use options::{Options, Room, StorageKey, Waiting};
pub use outbox::unseal;
pub use remote::{READ_BYTES_MAX, RemoteVolume, VolumeInfo};
pub use status::{BlockStatus, Lost, Status, UnsentStatus};
pub use wait::Answer;
pub use wire::volume::{
    Allocation, FileInfo, FileKind, FolderEntry, HeldLock, LeaseKind, Owner, Seen, Share, Space, Xattr, XattrHow,
};

#[cfg(test)]
mod tests;
