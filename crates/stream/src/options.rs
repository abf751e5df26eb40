//! Options of a volume, with their defaults.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use connection::Waiting;
pub use encryption::StorageKey;

/// A folder of this device that belongs to one volume, and how many bytes may lie there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The folder; made if it is not there. One process at a time uses it.
    pub folder: PathBuf,
    /// Bytes at most.
    pub bytes: u64,
}

/// How a volume is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of clean data blocks that are kept in memory. Reads that are larger work too.
    pub memory_bytes: usize,
    /// Where blocks go that leave memory; they are there again after a restart.
    pub cache: Option<Room>,
    /// Where changes are kept that the server has not got yet, over a restart of this device too.
    /// Without it, they are lost when the process ends.
    pub outbox: Option<Room>,
    /// Encrypts what is in `cache` and `outbox`, which are opened again with the same key only.
    pub key: Option<StorageKey>,
    /// A memory of [`crate::Journal::memory`] that outlives this process: what is in it is gone on
    /// with, as if only the connection had been lost, and what follows is added. One process at a
    /// time uses it.
    pub journal: Option<Arc<OwnedFd>>,
    /// Bytes of changes that are not on the server yet: beyond half of it they are sent without a
    /// sync, beyond all of it writes wait for the server, or fail if it is away. With an outbox,
    /// its bytes count while the server is away.
    pub dirty_bytes: usize,
    /// Bytes that may be written to files that were removed, or replaced, while they are open. They
    /// lie in memory until the files are closed, and are never sent.
    pub nameless_bytes: usize,
    /// How long attributes and listings are believed without asking again. Opening a file asks
    /// always.
    pub names_ttl: Duration,
    /// Whether calls wait for a server that is away, or fail after a time.
    pub waiting: Waiting,
    /// Time until the volume must be open.
    pub open_deadline: Duration,
    /// Bytes per second that the server may send to this device; 0 for no limit.
    pub rate_limit: u64,
    /// Whether [`crate::RemoteVolume::hint`] asks for blocks; without, it does nothing.
    pub hints: bool,
    /// Open a volume for writing though others on the way can read and change what is sent: without
    /// encryption, to another machine. Whoever will change nothing may say so too.
    pub insecure: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory_bytes: 16 << 20,
            cache: None,
            outbox: None,
            key: None,
            journal: None,
            dirty_bytes: 8 << 20,
            nameless_bytes: 64 << 20,
            names_ttl: Duration::from_secs(1),
            waiting: Waiting::Hard,
            open_deadline: Duration::from_secs(10),
            rate_limit: 0,
            hints: true,
            insecure: false,
        }
    }
}
