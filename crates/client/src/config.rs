//! Settings of a session, with their defaults and bounds.

use std::time::Duration;

use connection::Waiting;

use crate::signed::SignedNames;

/// Connections at most; more than one per core brings nothing, and a device has few cores.
pub const CONNECTIONS_MAX: usize = 8;

/// The unit that a miss asks the server for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// Blocks, unless the link is so thin that a block costs over four round trips more than a
    /// page.
    #[default]
    Auto,
    /// The whole stored block.
    Block,
    /// The pages of the READ alone, as in the paper.
    Page,
}

/// Parts of the I/O path that are left out; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablation {
    /// A fresh connection for each demand instead of one that is held.
    pub short_connections: bool,
    /// A page from the system for each page buffer instead of one from the pool.
    pub allocated_pages: bool,
}

/// Pushed pages that the daemon keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Bytes of sentinels, and of pages the kernel could not take.
    pub common_bytes: usize,
    /// Bytes of pages of audit runs.
    pub audit_bytes: usize,
}

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct Config {
    /// TCP connections to the server, 1 to 8; 0 means one per core.
    pub connections: usize,
    /// The unit that a miss asks for.
    pub granularity: Granularity,
    /// Whether READs wait for a server that is away.
    pub waiting: Waiting,
    /// Largest readahead window, in blocks; 0 switches readahead off.
    pub readahead_blocks: u32,
    /// Bytes of decoded blocks kept, beside half of what blocks as they are stored leave of theirs.
    pub cache_bytes: usize,
    /// Bytes of blocks kept as they are stored, to be decoded again. While a block is kept, every
    /// touch of its pages is seen, so this is what makes a run exact that the server learns from.
    /// Unused for local files.
    pub stored_bytes: usize,
    /// What is kept of pushed pages.
    pub holding: Holding,
    /// Whether untouched pages of a block that leaves the cache are stored into the page cache.
    /// Their use is invisible afterwards, so a device that is to teach the server may prefer
    /// `false`.
    pub store_evicted: bool,
    /// A server within this round trip is near, if its link is fast too: a block that is not used
    /// costs as much as one that is asked for when it is missed. On a slow core a round trip of 0.2
    /// ms looks like one of 1 to 2.
    pub near_round_trip: Duration,
    /// Each connection to the server.
    pub connection: connection::Config,
    /// From a server that sends no proofs, an image with at most this much metadata is opened with
    /// its chunk hashes; a larger one is ready before they are there. Pushes cannot be used without
    /// them, so a program that starts meanwhile has to ask for what is under way already: on a link
    /// of 20 ms that costs more than the mount gains.
    pub whole_metadata_bytes: u64,
    /// Time in which an upload must get further, over as many connections as it takes.
    pub upload_deadline: Duration,
    /// Parts of the I/O path to leave out, for measurements.
    pub ablation: Ablation,
    /// Which servers sign their names, and whom to trust for them.
    pub signed: SignedNames,
    /// Limits of the image reader; they also bound the metadata that is fetched before anything can
    /// be verified.
    pub limits: image::Limits,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            connections: 0,
            granularity: Granularity::Auto,
            waiting: Waiting::Hard,
            readahead_blocks: 8,
            cache_bytes: 256 << 10,
            stored_bytes: 4 << 20,
            holding: Holding { common_bytes: 1 << 20, audit_bytes: 3 << 20 },
            store_evicted: true,
            near_round_trip: Duration::from_millis(2),
            connection: connection::Config::default(),
            whole_metadata_bytes: 1 << 20,
            upload_deadline: wire::format::PUT_DEADLINE,
            ablation: Ablation::default(),
            signed: SignedNames::default(),
            limits: image::Limits::default(),
        }
    }
}

impl Config {
    /// Connections to make on this machine.
    pub(crate) fn connection_count(&self) -> usize {
        let wanted = match self.connections {
            0 => std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            given => given,
        };
        wanted.clamp(1, CONNECTIONS_MAX)
    }
}
