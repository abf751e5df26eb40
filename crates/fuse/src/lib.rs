//! The FUSE protocol over /dev/fuse: requests of the kernel in, answers out, and waits that signals
//! can end.
//!
//! A [`Filesystem`] gets each request as a call with a reply object, which it answers now or later,
//! from any thread. Several serving threads read the device. What has no answer yet lies in a
//! table, by the kernel's number of the request; whoever takes the entry out may answer, so a
//! request is answered once. An interrupted request may be answered before the file system does it:
//! a reply that comes later is not sent, and says so, so that the file system can undo what nobody
//! got.
//!
//! The parts, bottom up: `abi` (structs and constants of the kernel's interface), `attributes` and
//! `directory` (what answers hold), `request` (bytes into operations; pure), `capabilities` (the
//! negotiation at the start), `device`, `table` (requests in flight), `thread_state` (what /proc
//! says of a thread), `interrupt` (which waits end when), `reply`, `filesystem` (the trait),
//! `dispatch`, and `session`. Who mounts is none of our business: a session begins with a device of
//! a mount. Called by `mount` and `disk`.
#![cfg(target_os = "linux")]

mod abi;
mod attributes;
mod capabilities;
mod connection;
mod device;
mod directory;
mod dispatch;
mod filesystem;
mod interrupt;
mod reply;
mod request;
mod session;
mod table;
mod thread_state;

pub use attributes::{FileAttr, FileType, Statfs, TimeOrNow};
pub use capabilities::{KernelConfig, capability};
pub use filesystem::Filesystem;
pub use reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
pub use request::{
    CopyFileRange, Create, Fallocate, Lock, LockType, Make, Read, Rename, Request, SetAttr, Write, open_flag,
    rename_flag, xattr_flag,
};
pub use rustix::io::Errno;
pub use session::Session;

/// Number of an inode, as the file system chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct INodeNo(pub u64);

impl INodeNo {
    /// The top directory of every mount.
    pub const ROOT: INodeNo = INodeNo(1);
}

/// Number of an open file or directory, as the file system chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHandle(pub u64);
