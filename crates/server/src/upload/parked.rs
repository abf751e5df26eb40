//! Uploads that were interrupted, kept for the client's next try.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use units::ImageId;

use super::staged::Staged;
use crate::catalog::Interrupted;
use crate::lock::locked;
use crate::peer::Peer;

/// Interrupted uploads that are kept; each holds disk space and the metadata of one image.
const PARKED_MAX: usize = 4;

/// Interrupted uploads, by image.
#[derive(Default)]
pub(crate) struct Parked {
    uploads: Mutex<HashMap<ImageId, (Instant, Staged)>>,
}

impl Parked {
    pub(super) fn take(&self, id: ImageId) -> Option<Staged> {
        locked(&self.uploads).remove(&id).map(|(_, staged)| staged)
    }

    pub(super) fn put(&self, mut staged: Staged) {
        staged.rest();
        while self.len() >= PARKED_MAX && self.drop_oldest(None) {}
        locked(&self.uploads).insert(staged.id(), (Instant::now(), staged));
    }

    /// Drops what has been kept for longer than `kept`.
    pub fn expire(&self, kept: Duration) {
        locked(&self.uploads).retain(|_, (since, _)| since.elapsed() < kept);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        locked(&self.uploads).len()
    }
}

impl Interrupted for Parked {
    fn drop_oldest(&self, of: Option<Peer>) -> bool {
        let mut uploads = locked(&self.uploads);
        let theirs = uploads.iter().filter(|(_, (_, staged))| of.is_none_or(|peer| staged.peer() == peer));
        let oldest = theirs.min_by_key(|(_, (since, _))| *since).map(|(id, _)| *id);
        let gone = oldest.and_then(|id| uploads.remove(&id));
        drop(uploads);
        gone.is_some()
    }
}
