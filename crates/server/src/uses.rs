//! Images that clients have open, on all connections: they are not collected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use units::ImageId;

use crate::lock::locked;

/// The images that are open are spoken for so often: a small part of the least time of grace.
const HOLD_EVERY: Duration = Duration::from_secs(60);

/// How many handles each image has.
///
/// Invariant: the counts are those of the [`Use`]s that exist, and none is zero.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    counts: Mutex<BTreeMap<ImageId, usize>>,
    /// When the images were spoken for last.
    held: Mutex<Option<Instant>>,
}

/// One handle of an image.
#[derive(Debug)]
pub(crate) struct Use {
    uses: Arc<Uses>,
    id: ImageId,
}

impl Uses {
    /// A client has the image open for as long as it keeps what it gets.
    pub fn add(self: &Arc<Uses>, id: ImageId) -> Use {
        *locked(&self.counts).entry(id).or_default() += 1;
        Use { uses: self.clone(), id }
    }

    /// The images that clients have open.
    pub fn images(&self) -> BTreeSet<ImageId> {
        locked(&self.counts).keys().copied().collect()
    }

    /// The images that clients have open, if it is time to speak for them.
    pub fn due(&self) -> Option<BTreeSet<ImageId>> {
        let mut held = locked(&self.held);
        if held.is_some_and(|at| at.elapsed() < HOLD_EVERY) {
            return None;
        }
        *held = Some(Instant::now());
        Some(self.images()).filter(|images| !images.is_empty())
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut counts = locked(&self.uses.counts);
        if let Some(count) = counts.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.id);
            }
        }
    }
}
