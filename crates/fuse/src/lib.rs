//! The FUSE protocol over /dev/fuse: requests of the kernel come in, answers go out, and signals
//! can end waits.
//!
//! A [`Filesystem`] gets each request as a call with a reply object. It answers now or later, from
//! any thread. Several serving threads read the device. Requests without an answer are in a table,
//! by the kernel's number. Only the thread that removes the entry may answer, so each request is
//! answered once. An interrupted request may be answered before the file system does it. A later
//! reply is not sent, and returns that, so that the file system can undo an operation whose result
//! nobody got.
//!
//! Modules, bottom up: `abi` (structs and constants of the kernel's interface), `attributes` and
//! `directory` (contents of answers), `request` (bytes into operations; pure), `capabilities` (the
//! handshake), `device`, `table` (requests in flight),
//! `handover` (what outlives a daemon), `thread_state` (/proc of a thread),
//! `interrupt`, `reply`, `filesystem` (the trait), `dispatch`, and `session`. Mounting is not done
//! here: a session begins with the device of a mount.
#![cfg(target_os = "linux")]

mod abi;
mod attributes;
mod capabilities;
mod connection;
mod device;
mod directory;
mod dispatch;
mod filesystem;
pub mod handover;
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
pub use session::{Mount, Session, THREAD_NAME, clone_of};

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
