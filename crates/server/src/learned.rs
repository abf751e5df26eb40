//! What the predictor learned, in the store: one actions file for each image, under `learned/`.
//!
//! It is loaded when an image is opened, and saved when actions changed and when the server ends.
//! The set is copied under the predictor's lock and encoded outside it.
//!
//! On a store that several servers share, each of them joins what the others wrote meanwhile with
//! its own, and writes the result if the file is still the one that it joined. So nobody overwrites
//! what others learned. Servers look for that from time to time, too.

use std::time::{Duration, Instant};

use profile::ActionSet;
use store::{Store, StoreError, Version};
use units::ImageId;
use wire::ErrorCode;

use crate::config::LearningConfig;
use crate::error::Failure;
use crate::lock::locked;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::published::Published;

/// Longest file we read: a million pages at 10 bytes each, and as much again for marks.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Servers that write one after the other between a look and a write, at most: more than there are
/// servers that learn of one image in a second.
const TRIES_MAX: u32 = 32;

/// Numbers of actions are drawn from here on where several servers learn: small ones are those of
/// a server alone.
const DRAWN_FROM: u64 = 1 << 32;

/// The file of an image as this server knows it.
#[derive(Default)]
pub(crate) struct Saved {
    /// As it was read or written last; `None` if there is none.
    file: Option<File>,
    /// When this server looked for changes of others.
    looked: Option<Instant>,
}

/// An actions file.
struct File {
    hash: blake3::Hash,
    /// Only on a store that others write, too: its contents, and their version.
    shared: Option<(Vec<u8>, Version)>,
}

/// The key of an image's actions file.
pub(crate) fn key(id: ImageId) -> String {
    format!("learned/{id}.actions")
}

/// The image whose actions file has this key.
pub(crate) fn image_of(key: &str) -> Option<ImageId> {
    ImageId::from_hex(key.strip_prefix("learned/")?.strip_suffix(".actions")?)
}

/// The saved actions of an image, or `None` if there are none.
///
/// # Errors
/// Why a file is of no use; [`ErrorCode::Busy`] if nobody can tell now.
pub(crate) fn load(store: &dyn Store, id: ImageId) -> Result<Option<ActionSet>, Failure> {
    match store.get(&key(id), FILE_BYTES_MAX) {
        Ok(bytes) => decode(id, &bytes).map(Some),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn decode(id: ImageId, bytes: &[u8]) -> Result<ActionSet, Failure> {
    let actions = profile::decode(bytes, &profile::Limits::default());
    let actions = actions.map_err(|error| Failure::corrupt(error.to_string()))?;
    match actions.image() == id {
        true => Ok(actions),
        false => Err(Failure::corrupt(format!("the file speaks of image {}", actions.image()))),
    }
}

/// The actions of an image that is opened, as they are saved. If none are, or a file is of no use,
/// `expected` is what is taken instead; where several servers learn, it is saved at once, so that
/// all begin alike.
///
/// # Errors
/// [`ErrorCode::Busy`]: nobody can tell now what is saved, and it would be replaced by what is
/// learned from now on.
pub(crate) fn begin(
    store: &dyn Store,
    id: ImageId,
    log: &Logger,
    expected: impl FnOnce() -> ActionSet,
) -> Result<(ActionSet, Saved), Failure> {
    let found = read(store, id).and_then(|(bytes, version)| {
        let actions = bytes.as_deref().map(|bytes| decode(id, bytes)).transpose()?;
        Ok(actions.zip(bytes).map(|(actions, bytes)| (actions, File::new(bytes, version))))
    });
    let (is_lost, found) = match found {
        Err(failure) if failure.code == ErrorCode::Busy => return Err(failure),
        Err(failure) => {
            log.warning(format_args!("what was learned of image {id} is lost: {failure}"));
            (true, None)
        }
        Ok(found) => (false, found),
    };
    let (mut actions, mut file) = found.map_or_else(|| (expected(), None), |(actions, file)| (actions, Some(file)));
    if !store.is_shared() {
        let file = file.map(|file| File { shared: None, ..file });
        return Ok((actions, Saved { file, looked: None }));
    }
    if file.is_none() && !is_lost && !actions.is_empty() && !store.is_read_only() {
        let bytes = actions.encode_shared();
        // If somebody else was quicker, the first look joins both.
        let version = store.put_if(&key(id), &bytes, None).ok();
        file = version.map(|version| File::new(bytes, Some(version)));
    }
    let drawn = getrandom::u64().map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
    actions.number_from(DRAWN_FROM + (drawn >> 3));
    let looked = file.is_some().then(Instant::now);
    Ok((actions, Saved { file, looked }))
}

/// The file with its version; both `None` if there is none.
fn read(store: &dyn Store, id: ImageId) -> Result<(Option<Vec<u8>>, Option<Version>), Failure> {
    match store.get_versioned(&key(id), FILE_BYTES_MAX) {
        Ok((bytes, version)) => Ok((Some(bytes), Some(version))),
        Err(error) if error.is_not_found() => Ok((None, None)),
        Err(error) => Err(error.into()),
    }
}

impl Saved {
    /// Whether the last look for what others learned was so long ago.
    fn is_older_than(&self, time: Duration) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= time)
    }
}

impl File {
    fn new(bytes: Vec<u8>, version: Option<Version>) -> File {
        File { hash: blake3::hash(&bytes), shared: version.map(|version| (bytes, version)) }
    }
}

/// Saves the actions of `image` if they differ from what was saved last, and the store can be
/// written at all. Whether it wrote.
pub(crate) fn save(store: &dyn Store, image: &Published, metrics: &Metrics) -> Result<bool, Failure> {
    let mut saved = locked(&image.saved);
    let wrote = match (store.is_shared(), store.is_read_only()) {
        (true, is_read_only) => exchange(store, image, &mut saved, !is_read_only)?,
        (false, true) => false,
        (false, false) => {
            let actions = locked(&image.predictor).actions().clone();
            if actions.is_empty() && saved.file.is_none() {
                return Ok(false);
            }
            let bytes = actions.encode();
            let hash = blake3::hash(&bytes);
            let is_new = saved.file.as_ref().is_none_or(|file| file.hash != hash);
            if is_new {
                store.put_atomic(&key(image.id), &bytes)?;
                saved.file = Some(File { hash, shared: None });
            }
            is_new
        }
    };
    if wrote {
        metrics.learned_saved.one();
    }
    Ok(wrote)
}

/// Takes over what other servers learned of an image, if it is time. A server that does not learn
/// writes nothing.
pub(crate) fn look(store: &dyn Store, image: &Published, config: &LearningConfig) -> Result<(), Failure> {
    if !store.is_shared() {
        return Ok(());
    }
    let mut saved = locked(&image.saved);
    if saved.is_older_than(config.look_every) {
        exchange(store, image, &mut saved, config.learns() && !store.is_read_only())?;
    }
    Ok(())
}

/// Joins what this server and others learned; writes it unless it is there. Whether it wrote.
fn exchange(store: &dyn Store, image: &Published, saved: &mut Saved, writes: bool) -> Result<bool, Failure> {
    let id = image.id;
    saved.looked = Some(Instant::now());
    for _ in 0..TRIES_MAX {
        let (found, version) = read(store, id)?;
        let known = saved.file.as_ref().and_then(|file| file.shared.as_ref());
        if version.is_some() && known.map(|(_, version)| version) != version.as_ref() {
            let empty = || ActionSet::new(id);
            // One that is damaged is replaced.
            let theirs = found.as_deref().map_or_else(empty, |bytes| decode(id, bytes).unwrap_or_else(|_| empty()));
            let base = known.map_or_else(empty, |(bytes, _)| decode(id, bytes).unwrap_or_else(|_| empty()));
            locked(&image.predictor).join(&base, &theirs);
        }
        let ours = locked(&image.predictor).actions().clone();
        let bytes = ours.encode_shared();
        let is_same = found.as_ref().is_some_and(|found| *found == bytes);
        if let (Some(found), Some(version)) = (found, version.clone()) {
            saved.file = Some(File::new(found, Some(version)));
        }
        if is_same || !writes || ours.is_empty() && version.is_none() {
            return Ok(false);
        }
        match store.put_if(&key(id), &bytes, version.as_ref()) {
            Ok(version) => {
                saved.file = Some(File::new(bytes, Some(version)));
                return Ok(true);
            }
            Err(StoreError::Changed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let text = format!("what was learned of image {id} is saved by others all the time; it is tried again");
    Err(Failure::new(ErrorCode::Busy, text))
}
