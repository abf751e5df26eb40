//! SYSFLOW's Provider: what is in memory before anybody asks for it.
//!
//! A setting ([`Provider`](crate::Provider)) says how much of it works, so that each part can be
//! measured against the others (SYSFLOW's Figure 7c). In every mode, decoded blocks stay in memory
//! for a while, as plain files would stay in the page cache. The modes differ in what the first
//! reader of a block finds.
//!
//! When an image is opened, the blocks of the first segment of every action, and of segments that
//! lie scattered in the file (variance of normalised block indices over a threshold), are read into
//! memory and stay there, within their share of it. `push` reads the next segments ahead of a push.

use std::sync::Arc;

use predict::provider;
use profile::Action;
use units::PageId;

use crate::lock::locked;
use crate::published::Published;

/// Actions looked at when an image is opened, the one used last first: more would not fit the share
/// anyway.
const ACTIONS_MAX: usize = 1024;

/// Reads the blocks that are worth keeping in memory. Blocks.
pub(crate) fn preload(image: &Arc<Published>, threshold: f64) {
    let actions: Vec<Action> = {
        let predictor = locked(&image.predictor);
        predictor.actions().ranked().into_iter().take(ACTIONS_MAX).cloned().collect()
    };
    let wanted = provider::preload(&actions, |page| image.block_of(page), threshold);
    for (id, segment) in wanted {
        let Some(action) = actions.iter().find(|action| action.id == id) else { continue };
        let pages: &[PageId] = &action.pages[action.segment(segment)];
        for block in image.blocks_of(pages) {
            match image.hold_block(block) {
                Ok(true) => {}
                // The share is used up, or the image is damaged: its next reader is told.
                Ok(false) | Err(_) => return,
            }
        }
    }
}
