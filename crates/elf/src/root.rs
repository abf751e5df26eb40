//! The tree of files in which a closure is searched. The caller implements it.

use std::io;

/// What lies at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink and its target as stored.
    Symlink(Vec<u8>),
    /// A device, fifo or socket.
    Other,
}

/// A read-only view of a root directory. Paths are absolute within it, with single slashes, without
/// `.` and `..`, and every component but the last is a directory: [`crate::Resolver`] follows
/// symlinks itself, so an implementation that joins the path to a base directory never leaves it.
pub trait Root {
    /// What lies at `path`, without following a symlink; `None` if nothing does.
    ///
    /// # Errors
    /// Those of the system.
    fn node(&self, path: &[u8]) -> io::Result<Option<Node>>;

    /// Reads up to `buffer.len()` bytes of the regular file at `path`; fewer only at its end.
    ///
    /// # Errors
    /// Those of the system.
    fn read_at(&self, path: &[u8], offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Names in the directory at `path`, in any order.
    ///
    /// # Errors
    /// Those of the system.
    fn names(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>>;
}
