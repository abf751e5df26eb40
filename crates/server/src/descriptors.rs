//! File descriptors: as many as the system grants, with some kept back for the files of the store.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::Config;
use crate::admission::{LEAVING_MAX, REFUSALS_MAX};
use crate::upload::{UPLOADS_AT_WORK, UPLOADS_MAX};

/// Descriptors of the process itself: streams, the listener, timers, signals, the store's folder,
/// journals of volumes.
const PROCESS_DESCRIPTORS: usize = 64;

/// Descriptors of one volume: its folder, its journal, and files that are being read or written.
const VOLUME_DESCRIPTORS: usize = 32;

/// Raises the soft limit to the hard one: the soft one is low for the sake of programs that use
/// `select`.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Refused only where a sandbox forbids it; then the limit stays, and fewer connections are
    // taken.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Connections for which there are descriptors, besides the files that they need.
pub(crate) fn connections_max(config: &Config) -> usize {
    let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
    let files = config.images.open_max + config.work.reads_max + UPLOADS_MAX + 4 * UPLOADS_AT_WORK;
    let volumes = config.volumes.len() * VOLUME_DESCRIPTORS;
    let closing = REFUSALS_MAX + LEAVING_MAX;
    limit.saturating_sub(PROCESS_DESCRIPTORS + files + volumes + closing).max(1)
}
