//! SYSFLOW's Provider: what is in memory before anybody asks.
//!
//! How much of it is at work is a setting ([`Provider`]), so that each part can be measured against the others (SYSFLOW's
//! Figure 7c). In every mode alike, blocks that were decoded for somebody stay in memory for a while, as plain files would
//! stay in the page cache: the modes differ in what the first reader of a block finds.
//!
//! When an image is opened, the blocks under the first segment of every action, and under segments that lie scattered in
//! the file (normalised variance over a threshold), are read into memory and stay there, within their share of the
//! memory. Reading the next segments ahead of a push is in `push`.

use std::sync::Arc;

use predict::provider;
use profile::Action;
use units::PageId;

use crate::blocks::locked;
use crate::published::Published;

/// Actions looked at when an image is opened, the one used last first: more would not fit the share anyway.
const ACTIONS_MAX: usize = 1024;

/// What the server does so that pages are in memory before they are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// Nothing: every block is read when a demand or a push needs it.
    None,
    /// When an image is opened, the kernel is told that the whole file will be needed, from front to back (`posix_fadvise`
    /// SEQUENTIAL and WILLNEED, which is what `madvise` does to a file that is mapped); the rest is the kernel's affair.
    /// Linux reads one readahead window at once and doubles the window of sequential reads.
    Madvise,
    /// The first segment of every action and those of large normalised variance are held in memory from the start. Before
    /// a piece of a push is sent, the segments after it are read too.
    Nv,
    /// The same, but the segments after a piece are read while it is on its way.
    NvAsync,
    /// The same, and learned actions are pushed from bundles, which need no blocks.
    #[default]
    Bundle,
}

impl Provider {
    /// Whether segments are held in memory from the start, and read ahead of pushes.
    pub(crate) fn uses_segments(self) -> bool {
        matches!(self, Provider::Nv | Provider::NvAsync | Provider::Bundle)
    }
}

/// Reads what is worth holding. Blocks; called from a blocking thread after an image was opened.
pub(crate) fn preload(image: &Arc<Published>, threshold: f64) {
    let actions: Vec<Action> = {
        let predictor = locked(&image.predictor);
        predictor.actions().ranked().into_iter().take(ACTIONS_MAX).cloned().collect()
    };
    let wanted = provider::preload(&actions, |page| image.position(page), threshold);
    for (id, segment) in wanted {
        let Some(action) = actions.iter().find(|action| action.id == id) else { continue };
        let pages: &[PageId] = &action.pages[action.segment(segment)];
        for block in image.blocks_of(pages) {
            match image.hold_block(block) {
                Ok(true) => {}
                // The share is used up, or the image is damaged: whoever needs the block will hear of it.
                Ok(false) | Err(_) => return,
            }
        }
    }
}
