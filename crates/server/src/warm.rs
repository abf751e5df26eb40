//! What is served most is made ready before the server says that it is: its images are open, what
//! was learned of them is loaded, their bundles are open and in memory. Otherwise the first start
//! after a restart would wait for all that. So is a new version of an image when it is published.
//!
//! It is bounded in time and memory: whatever is not ready by then is made ready when it is used.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use predict::ActionPredictor;
use store::Listed;
use units::{ActionId, ImageId};

use crate::account::Account;
use crate::bundler::Kind;
use crate::lock::locked;
use crate::published::Published;
use crate::shared::Shared;
use crate::speed::PushCodec;
use crate::{Provider, learned};

/// Time that all of it may take.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Part of that in which is found out what is served most.
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);

/// Learned files that are looked at.
const FILES_MAX: usize = 1024;

/// Images are opened until they take this part of the memory of metadata, or of that of what is
/// learned, and pieces are kept until they take this part of that of decoded blocks: the rest is
/// for what is used now.
const MEMORY_PART: usize = 2;

/// Makes ready what is served most. Blocks.
pub(crate) fn warm(shared: &Shared) {
    if !shared.config.learning.enabled {
        return;
    }
    let begun = Instant::now();
    let mut opened = Vec::new();
    for id in most_used(shared, begun + LOOK_TIME_MAX) {
        if !has_room(shared) || begun.elapsed() > TIME_MAX {
            break;
        }
        opened.extend(open(shared, id));
    }
    if let (Some(bundler), Provider::Bundle) = (&shared.bundler, shared.config.learning.provider) {
        bundler.wait(Kind::Open, TIME_MAX.saturating_sub(begun.elapsed()));
        read_pieces(shared, &opened, begun + TIME_MAX);
    }
}

/// An image was published: if something is expected of it, its bundles are made before the first
/// device asks for it. Blocks.
pub(crate) fn published(shared: &Shared, id: ImageId) {
    if shared.config.learning.enabled && has_room(shared) && shared.store().len(&learned::key(id)).is_ok() {
        open(shared, id);
    }
}

/// Whether there is room to open an image that nobody asks for.
fn has_room(shared: &Shared) -> bool {
    let has_enough = |account: &Account| account.taken_bytes() > account.bytes_max() / MEMORY_PART;
    let catalog = &shared.catalog;
    let is_full = has_enough(&catalog.memory) || has_enough(&catalog.learned);
    !is_full && catalog.opened().len() < shared.config.images.open_max
}

/// Opens an image and makes it ready. `None` if it is open, or if there is no room for it: one that
/// nobody asks for closes no other. Who asks for an image that cannot be opened is told why.
fn open(shared: &Shared, id: ImageId) -> Option<Arc<Published>> {
    let (image, fresh) = shared.catalog.open_beside(id).ok()?;
    if !fresh {
        return None;
    }
    shared.prepare(&image);
    // Makes the tree that proofs are cut from, if there are chunk hashes.
    image.proves();
    Some(image)
}

/// Images of which something was learned, that whose actions were used most first.
fn most_used(shared: &Shared, until: Instant) -> Vec<ImageId> {
    let store = shared.store();
    let listed = store.list("learned").unwrap_or_default();
    let ids = listed.into_iter().filter_map(|entry| match entry {
        Listed::Object(key) => learned::image_of(&key),
        Listed::Folder(_) => None,
    });
    let mut found = Vec::new();
    for id in ids.take(FILES_MAX) {
        if Instant::now() > until {
            break;
        }
        // A file that is of no use is reported when its image is opened.
        if let Ok(Some(actions)) = learned::load(&**store, id) {
            let uses = actions.iter().fold(0u64, |uses, action| uses.saturating_add(action.uses));
            found.push((Reverse(uses), id));
        }
    }
    found.sort();
    found.into_iter().map(|(_, id)| id).collect()
}

/// Reads and verifies the pieces of bundles, of those first that were used most, and keeps as many
/// as there is room for. The others lie in the system's page cache then, and need no hash.
fn read_pieces(shared: &Shared, images: &[Arc<Published>], until: Instant) {
    let mut actions: Vec<(u64, usize, ActionId)> = Vec::new();
    for (index, image) in images.iter().enumerate() {
        let predictor = locked(&image.predictor);
        let known = |predictor: &ActionPredictor| -> Vec<(u64, usize, ActionId)> {
            predictor.actions().iter().map(|action| (action.uses, index, action.id)).collect()
        };
        actions.extend(known(&predictor));
    }
    actions.sort_by_key(|(uses, ..)| Reverse(*uses));
    let mut left = (shared.config.shares().decoded / MEMORY_PART) as u64;
    'bundles: for (_, image, action) in actions {
        let Some(bundle) = images.get(image).and_then(|image| image.bundles.get(action)) else { continue };
        // A bundle has uncompressed pieces because devices on fast links are sent these.
        for codec in [PushCodec::Stored, PushCodec::Lz4, PushCodec::Zstd].into_iter().filter(|codec| bundle.has(*codec))
        {
            for piece in 0..bundle.piece_count() {
                if Instant::now() > until {
                    return;
                }
                left = left.saturating_sub(bundle.piece_bytes(piece, codec));
                let read = match left {
                    0 => bundle.piece(piece, codec),
                    _ => bundle.load_piece(piece, codec, &shared.blocks),
                };
                // A damaged bundle is made anew when it is pushed.
                if read.is_err() {
                    continue 'bundles;
                }
            }
        }
    }
}
