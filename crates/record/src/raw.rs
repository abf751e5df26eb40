//! Records of the sources, before they are put in order.

use std::ops::Range;

use probe::perf;

use crate::files::Identity;

/// One thing that a process did.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    /// Nanoseconds of the monotonic clock.
    pub(crate) at: u64,
    /// The process.
    pub(crate) process: u32,
    /// What it did.
    pub(crate) what: Did,
}

/// What a process did, as one of the sources saw it.
#[derive(Clone, Debug)]
pub(crate) enum Did {
    /// A perf event.
    Perf(perf::What),
    /// Its page faults come one by one at these addresses from now on.
    Exact(Range<u64>),
    /// It opened a file or the names of a directory.
    Opened {
        /// Which file.
        identity: Identity,
        /// Its path, links resolved.
        path: Vec<u8>,
        /// Whether the names of a directory were read; else a file was opened.
        directory: bool,
    },
    /// It looked for a path where nothing is.
    Missed {
        /// The path, from the root; links are not resolved yet.
        path: Vec<u8>,
    },
    /// It read a range of a file that it had opened, or the kernel mapped it.
    Range {
        /// Which file.
        identity: Identity,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// Whether the disk was read for it.
        missing: bool,
    },
    /// One of the watched functions returns to this address for the first time, or for the second.
    Called {
        /// The return address.
        address: u64,
        /// For the second time: it is none that is reached once.
        again: bool,
    },
    /// The preloaded library started in it.
    Hello {
        /// Path of its executable.
        path: Vec<u8>,
    },
}
