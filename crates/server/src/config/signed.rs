//! The key by which a server keeps signed names fresh.

use std::fmt;
use std::path::PathBuf;

/// A key of the timestamp role, in a file. It is read when the server starts, and again when a new
/// root gives the role another key.
#[derive(Clone, PartialEq, Eq)]
pub struct TimestampKey {
    /// Its file, which others than owner and group cannot read.
    pub file: PathBuf,
    /// Its passphrase, if it has one.
    pub passphrase: Option<Vec<u8>>,
}

impl fmt::Debug for TimestampKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimestampKey").field("file", &self.file).finish_non_exhaustive()
    }
}
