//! The start of an image from the cache: which image a name stood for, and its metadata.

use std::sync::Arc;

use cache::{Cache, Key, Kind, Owner, PAYLOAD_BYTES_MAX};
use connection::{ImageName, Remote};
use image::{Limits, Metadata, Superblock};
use profile::ActionSet;
use units::ImageId;

use super::ImageCache;
use crate::fetched::{Fetched, SUPERBLOCK_BYTES};

/// Metadata that is kept at most: that of half a million files.
const METADATA_BYTES_MAX: usize = 8 * PAYLOAD_BYTES_MAX;

/// Names belong to no image.
const NAMES: Owner = Owner([0; 32]);

/// What is known of an image before a server is asked.
pub(crate) struct CachedStart {
    pub id: ImageId,
    /// The superblock and the metadata, as far as a mount needed it.
    pub fetched: Fetched,
}

impl CachedStart {
    /// The image that a name stood for when a server was asked last.
    pub fn find(cache: &Cache, remote: &Remote, limits: &Limits) -> Option<CachedStart> {
        let id = match &remote.image {
            ImageName::Id(id) => *id,
            _ => ImageId(cache.read(Kind::Name, &name_key(remote))?.try_into().ok()?),
        };
        let mut bytes = Vec::new();
        while bytes.len() <= METADATA_BYTES_MAX {
            let part = cache.read(Kind::Metadata, &part_key(&id, bytes.len()))?;
            let is_last = part.len() < PAYLOAD_BYTES_MAX;
            bytes.extend_from_slice(&part);
            if is_last {
                break;
            }
        }
        let superblock = Superblock::parse(bytes.first_chunk::<{ SUPERBLOCK_BYTES as usize }>()?, limits).ok()?;
        let fetched = Fetched { bytes, region: superblock.metadata_region(), file_bytes: superblock.file_bytes };
        (superblock.id == id).then_some(CachedStart { id, fetched })
    }

    /// The metadata, verified.
    pub fn metadata(&self, limits: &Limits) -> Option<Metadata> {
        Metadata::open_early(&self.fetched, limits).ok()
    }
}

/// Keeps what a name stands for, and the start of the image unless that is there.
pub(crate) fn keep(
    cache: &Arc<Cache>,
    remote: &Remote,
    id: ImageId,
    bytes: &[u8],
    is_kept: bool,
) -> std::io::Result<()> {
    let owner = Owner(id.0);
    if bytes.len() <= METADATA_BYTES_MAX && !is_kept {
        // An empty part ends metadata whose last part is full.
        let ends_full = bytes.len().is_multiple_of(PAYLOAD_BYTES_MAX);
        let parts = bytes.chunks(PAYLOAD_BYTES_MAX).chain(ends_full.then_some(&[][..]));
        for (at, part) in (0..).step_by(PAYLOAD_BYTES_MAX).zip(parts) {
            cache.put(&owner, Kind::Metadata, &part_key(&id, at), &[], part)?;
        }
    }
    let key = name_key(remote);
    let is_name = !matches!(remote.image, ImageName::Id(_));
    if is_name && cache.read(Kind::Name, &key).as_deref() != Some(&id.0[..]) {
        cache.put(&NAMES, Kind::Name, &key, &[], &id.0)?;
    }
    Ok(())
}

/// What was learned of an image.
pub(super) fn actions(image: &ImageCache, id: ImageId) -> Option<ActionSet> {
    let bytes = image.cache.read(Kind::Actions, &Key(image.owner.0))?;
    profile::decode(&bytes, &profile::Limits::default()).ok().filter(|actions| actions.image() == id)
}

/// Loads the proofs of chunk hashes that came before.
pub(crate) fn load_proofs(image: &ImageCache, metadata: &Metadata) {
    for found in image.cache.records(&image.owner, Kind::Proof) {
        if let Some(proof) = image.cache.read(Kind::Proof, &found.key)
            && metadata.load_proof(&proof).is_err()
        {
            // Pages whose hashes are not there are fetched again, with a proof.
            image.cache.forget(Kind::Proof, &found.key);
        }
    }
}

fn name_key(remote: &Remote) -> Key {
    hashed(&[b"name", remote.server.to_string().as_bytes(), b"\0", remote.image.to_string().as_bytes()])
}

fn part_key(id: &ImageId, at: usize) -> Key {
    hashed(&[b"metadata", &id.0, &(at as u64).to_le_bytes()])
}

/// A key that is the hash of these parts.
pub(super) fn hashed(parts: &[&[u8]]) -> Key {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    Key(*hasher.finalize().as_bytes())
}
