//! What the predictor learned, in the store: one actions file for each image, under `learned/`.
//!
//! It is loaded when an image is opened, and saved when actions changed and when the server ends.
//! The set is copied under the predictor's lock and encoded outside it.

use profile::ActionSet;
use store::Store;
use units::ImageId;

use crate::error::Failure;
use crate::lock::locked;
use crate::metrics::Metrics;
use crate::published::Published;

/// Longest file we read: a million pages at 10 bytes each, and as much again for marks.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// The key of an image's actions file.
pub(crate) fn key(id: ImageId) -> String {
    format!("learned/{id}.actions")
}

/// The image whose actions file has this key.
pub(crate) fn image_of(key: &str) -> Option<ImageId> {
    ImageId::from_hex(key.strip_prefix("learned/")?.strip_suffix(".actions")?)
}

/// The saved actions of an image with the hash of their file, or `None` if there are none.
///
/// # Errors
/// Why a file is of no use; [`wire::ErrorCode::Busy`] if nobody can tell now.
pub(crate) fn load(store: &dyn Store, id: ImageId) -> Result<Option<(ActionSet, blake3::Hash)>, Failure> {
    let bytes = match store.get(&key(id), FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let actions = profile::decode(&bytes, &profile::Limits::default());
    let actions = actions.map_err(|error| Failure::corrupt(error.to_string()))?;
    if actions.image() != id {
        return Err(Failure::corrupt(format!("the file speaks of image {}", actions.image())));
    }
    Ok(Some((actions, blake3::hash(&bytes))))
}

/// Saves the actions of `image` if they differ from what was saved last, and the store can be
/// written at all. Whether it wrote.
pub(crate) fn save(store: &dyn Store, image: &Published, metrics: &Metrics) -> Result<bool, Failure> {
    if store.is_read_only() {
        return Ok(false);
    }
    let actions = locked(&image.predictor).actions().clone();
    if actions.is_empty() && locked(&image.saved).is_none() {
        return Ok(false);
    }
    let bytes = actions.encode();
    let hash = blake3::hash(&bytes);
    if *locked(&image.saved) == Some(hash) {
        return Ok(false);
    }
    store.put_atomic(&key(image.id), &bytes)?;
    *locked(&image.saved) = Some(hash);
    metrics.learned_saved.one();
    Ok(true)
}
