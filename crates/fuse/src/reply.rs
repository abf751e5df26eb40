//! Replies: one object per kind of operation, used once.
//!
//! A reply that is dropped unused answers with EIO, so that no program waits for ever. Some replies
//! give the kernel something that it returns later (a look-up, an open file). Their methods tell
//! whether the kernel got it: it did not if the wait was interrupted.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use zerocopy::IntoBytes;

use crate::abi;
use crate::attributes::{FileAttr, FileType, Statfs};
use crate::connection::Connection;
use crate::directory::{Entries, Entry};
use crate::{Errno, FileHandle, INodeNo, LockType};

/// A request without an answer.
pub(crate) struct Pending {
    connection: Arc<Connection>,
    unique: u64,
    is_open: bool,
}

impl Pending {
    pub fn new(connection: &Arc<Connection>, unique: u64) -> Pending {
        Pending { connection: connection.clone(), unique, is_open: true }
    }

    fn send(mut self, parts: &[&[u8]; 2]) -> bool {
        self.is_open = false;
        self.connection.answer(self.unique, 0, parts)
    }

    pub fn error(mut self, error: Errno) {
        self.is_open = false;
        self.connection.answer(self.unique, error.raw_os_error(), &[&[], &[]]);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_open {
            self.connection.answer(self.unique, Errno::IO.raw_os_error(), &[&[], &[]]);
        }
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "request {}", self.unique)
    }
}

/// Makes kinds of replies, each with its error.
macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(pub(crate) Pending);

        impl $name {
            /// Number of the request.
            pub fn unique(&self) -> u64 {
                self.0.unique
            }

            /// Answers that it failed.
            pub fn error(self, error: Errno) {
                self.0.error(error);
            }
        }
    )*};
}

replies! {
    /// To what has no result.
    ReplyEmpty;
    /// With bytes: READ and READLINK.
    ReplyData;
    /// With a name that was found or made.
    ReplyEntry;
    /// With attributes.
    ReplyAttr;
    /// With an open file or directory.
    ReplyOpen;
    /// With a name that was made, and its open file.
    ReplyCreate;
    /// To WRITE.
    ReplyWrite;
    /// To STATFS.
    ReplyStatfs;
    /// With an extended attribute, or a list of their names.
    ReplyXattr;
    /// With an offset.
    ReplyLseek;
    /// To what is about locks.
    ReplyLock;
}

impl ReplyEmpty {
    /// It is done.
    pub fn ok(self) {
        self.0.send(&[&[], &[]]);
    }
}

impl ReplyData {
    /// The bytes, at most as many as were asked for.
    pub fn data(self, bytes: &[u8]) {
        self.0.send(&[bytes, &[]]);
    }
}

/// The answer of LOOKUP and of operations that make names.
fn entry_out(ttl: &Duration, attributes: &FileAttr, generation: u64) -> abi::EntryOut {
    abi::EntryOut {
        node: attributes.ino.0,
        generation,
        entry_valid: ttl.as_secs(),
        attr_valid: ttl.as_secs(),
        entry_valid_nsec: ttl.subsec_nanos(),
        attr_valid_nsec: ttl.subsec_nanos(),
        attr: attributes.wire(),
    }
}

impl ReplyEntry {
    /// The file of the name; inode 0 says that there is no such name and that this may be
    /// remembered. Whether the kernel got it: if not, it will not forget the inode either.
    #[must_use = "what nobody got has to be undone"]
    pub fn entry(self, ttl: &Duration, attributes: &FileAttr, generation: u64) -> bool {
        self.0.send(&[entry_out(ttl, attributes, generation).as_bytes(), &[]])
    }
}

impl ReplyAttr {
    /// The attributes, and how long they are believed.
    pub fn attr(self, ttl: &Duration, attributes: &FileAttr) {
        let answer = abi::AttrOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nsec: ttl.subsec_nanos(),
            dummy: 0,
            attr: attributes.wire(),
        };
        self.0.send(&[answer.as_bytes(), &[]]);
    }
}

impl ReplyOpen {
    /// The handle, and flags of [`crate::open_flag`]. Whether the kernel got it: if not, it will
    /// not release it either.
    #[must_use = "what nobody got has to be closed"]
    pub fn opened(self, handle: FileHandle, flags: u32) -> bool {
        self.0.send(&[abi::OpenOut { handle: handle.0, open_flags: flags, padding: 0 }.as_bytes(), &[]])
    }
}

impl ReplyCreate {
    /// As [`ReplyEntry::entry`] and [`ReplyOpen::opened`] together.
    #[must_use = "what nobody got has to be closed"]
    pub fn created(
        self,
        ttl: &Duration,
        attributes: &FileAttr,
        generation: u64,
        handle: FileHandle,
        flags: u32,
    ) -> bool {
        let opened = abi::OpenOut { handle: handle.0, open_flags: flags, padding: 0 };
        self.0.send(&[entry_out(ttl, attributes, generation).as_bytes(), opened.as_bytes()])
    }
}

impl ReplyWrite {
    /// Bytes that were written.
    pub fn written(self, bytes: u32) {
        self.0.send(&[abi::WriteOut { size: bytes, padding: 0 }.as_bytes(), &[]]);
    }
}

impl ReplyStatfs {
    /// The sizes.
    pub fn statfs(self, sizes: &Statfs) {
        let answer = abi::StatfsOut {
            blocks: sizes.blocks,
            bfree: sizes.bfree,
            bavail: sizes.bavail,
            files: sizes.files,
            ffree: sizes.ffree,
            bsize: sizes.bsize,
            namelen: sizes.namelen,
            frsize: sizes.frsize,
            padding: 0,
            spare: [0; 6],
        };
        self.0.send(&[answer.as_bytes(), &[]]);
    }
}

impl ReplyXattr {
    /// Bytes that there would be, for a caller that offers no room.
    pub fn size(self, bytes: u32) {
        self.0.send(&[abi::GetXattrOut { size: bytes, padding: 0 }.as_bytes(), &[]]);
    }

    /// The value, or names that each end in a zero byte.
    pub fn data(self, bytes: &[u8]) {
        self.0.send(&[bytes, &[]]);
    }
}

impl ReplyLock {
    /// It was locked or unlocked. Returns whether the caller got this: if not, undo the lock.
    #[must_use = "a lock that nobody got has to be undone"]
    pub fn done(self) -> bool {
        self.0.send(&[&[], &[]])
    }

    /// The lock that is in the way of one that was asked about; none is [`LockType::Unlock`].
    pub fn held(self, kind: LockType, start: u64, end: u64, pid: u32) {
        self.0.send(&[abi::FileLock { start, end, kind: kind as u32, pid }.as_bytes(), &[]]);
    }

    /// Whether somebody still waits for the answer: no signal has ended the wait.
    pub fn is_awaited(&self) -> bool {
        self.0.connection.is_in_flight(self.0.unique)
    }
}

impl ReplyLseek {
    /// Where it is.
    pub fn offset(self, offset: u64) {
        self.0.send(&[abi::LseekOut { offset }.as_bytes(), &[]]);
    }
}

/// A reply with entries of a directory.
#[derive(Debug)]
pub struct ReplyDirectory {
    pending: Pending,
    entries: Entries,
}

impl ReplyDirectory {
    pub(crate) fn new(pending: Pending, bytes_max: u32) -> ReplyDirectory {
        ReplyDirectory { pending, entries: Entries::new(bytes_max) }
    }

    /// Adds an entry; `next` is the offset from which the listing goes on behind it. `true` if
    /// there is no room for it.
    #[must_use]
    pub fn add(&mut self, inode: INodeNo, next: u64, kind: FileType, name: impl AsRef<OsStr>) -> bool {
        self.entries.add(&Entry { inode, next, kind, name: name.as_ref() }, None)
    }

    /// Answers with what was added; nothing is the end of the directory.
    pub fn ok(self) {
        self.pending.send(&[self.entries.as_bytes(), &[]]);
    }

    /// Answers that it failed.
    pub fn error(self, error: Errno) {
        self.pending.error(error);
    }
}

/// A reply with entries of a directory and their attributes.
#[derive(Debug)]
pub struct ReplyDirectoryPlus {
    pending: Pending,
    entries: Entries,
}

impl ReplyDirectoryPlus {
    pub(crate) fn new(pending: Pending, bytes_max: u32) -> ReplyDirectoryPlus {
        ReplyDirectoryPlus { pending, entries: Entries::new(bytes_max) }
    }

    /// As [`ReplyDirectory::add`]. The kernel counts each entry as looked up, except `.` and `..`.
    #[must_use]
    pub fn add(
        &mut self,
        next: u64,
        name: impl AsRef<OsStr>,
        ttl: &Duration,
        attributes: &FileAttr,
        generation: u64,
    ) -> bool {
        let entry = Entry { inode: attributes.ino, next, kind: attributes.kind, name: name.as_ref() };
        self.entries.add(&entry, Some(&entry_out(ttl, attributes, generation)))
    }

    /// Answers with what was added. Whether the kernel got it: if not, it will not forget the
    /// inodes either.
    #[must_use = "what nobody got has to be undone"]
    pub fn ok(self) -> bool {
        self.pending.send(&[self.entries.as_bytes(), &[]])
    }

    /// Answers that it failed.
    pub fn error(self, error: Errno) {
        self.pending.error(error);
    }
}

#[cfg(test)]
mod tests;
