//! The device's half of a volume: files on a server, read block by block and written back, by calls that never block.
//!
//! [`RemoteVolume`] is what mounts and libraries use: every call returns at once and tells its
//! outcome to a callback; [`RemoteVolume::wait`] is for those who want to block, for a stated time.
//! Inside is an `Engine` without threads, sockets, clocks or files: calls, what the connection
//! brings, what the disk did, and the time go in; messages for the connection, jobs for the disk,
//! and completed calls come out. So hours of lost connections and crashes are tested in seconds, by
//! seed.
//!
//! *Reading.* Each file has a data block table (`table`): a block is absent, asked for, in memory, in the disk cache, or a hole. All
//! blocks of a table are of one version of the file; an answer of a later version means that somebody changed it, and what is
//! clean is dropped. Pushed blocks wait there to be used; what is used of them is reported, since the server follows by that.
//!
//! *Writing.* Changes lie over the blocks (`overlay`) until a sync, a close, or a full budget makes a transaction of them
//! (`commits`), which the server takes wholly or not at all, once. While the server is away, transactions lie in the outbox
//! (`outbox`, docs/formats/outbox.md). What the server refuses is never dropped silently.
//!
//! *Consistency.* Close to open: opening asks the server always; a sync or close that succeeded means that the server has the changes on
//! stable storage and whoever opens the file then sees them. Who writes to a file that somebody else changed meanwhile gets
//! [`ErrorKind::Stale`].

mod cache;
mod cache_index;
mod call;
mod engine;
mod error;
mod estimate;
mod format;
mod inner;
mod job;
mod keeper;
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
mod wait;

pub use call::{
    ACL_ACCESS, ACL_DEFAULT, Done, FileRef, Handle, LockOwner, LockWish, OpenHow, Opened, SetAttributes, XattrChange,
    Xattrs,
};
pub use error::{ErrorKind, StreamError};
pub use options::{Options, Room, Waiting};
pub use remote::{READ_BYTES_MAX, RemoteVolume, VolumeInfo};
pub use status::{Lost, Status};
pub use wait::Answer;
pub use wire::volume::{
    Allocation, FileInfo, FileKind, FolderEntry, HeldLock, LeaseKind, Owner, Seen, Share, Space, Xattr, XattrHow,
};

#[cfg(test)]
mod tests;
