//! Callbacks of a session: stores into the page cache, and replies to READs.

use units::InodeId;

use crate::error::ReadError;

/// The kernel's answer to a store of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// They are in the page cache.
    Stored,
    /// The kernel has not looked the inode up, so it cannot take pages of it.
    UnknownInode,
    /// The kernel refused for another reason.
    Failed,
}

/// The kernel's side, implemented by the mount. Called from the storer thread only, and never under
/// a lock; READs of the pages being stored are answered meanwhile.
pub trait PageSink: Send + Sync {
    /// Puts consecutive pages of a file into the page cache: at most 32, all whole but the last
    /// page of the file.
    fn store(&self, inode: InodeId, first_page: u32, bytes: &[u8]) -> StoreOutcome;

    /// Makes the kernel know an inode, for example by a stat of its path on the mount. False if
    /// that is impossible.
    fn look_up(&self, inode: InodeId) -> bool;
}

/// Receives the bytes of a READ, or why there are none. Called exactly once, from any thread of the
/// session or from within [`crate::Session::read`].
pub type Done = Box<dyn FnOnce(Result<&[u8], ReadError>) + Send>;
