//! The start of an image from the cache: which image a name stood for, and its metadata.

use std::fmt::Display;
use std::io::Write;
use std::ops::Range;

use cache::{Cache, Key, Kind, Owner, PAYLOAD_BYTES_MAX};
use connection::{HttpFile, ImageName, Remote, Server};
use image::{Limits, Metadata, Superblock};
use profile::ActionSet;
use units::ImageId;

use super::ImageCache;
use crate::fetched::{Fetched, SUPERBLOCK_BYTES};

/// Metadata that is kept at most: that of half a million files.
const METADATA_BYTES_MAX: usize = 8 * PAYLOAD_BYTES_MAX;

/// Names belong to no image.
const NAMES: Owner = Owner([0; 32]);

/// What stands for an image.
pub(crate) struct Name {
    /// Unless it is the id.
    key: Option<Key>,
    id: Option<ImageId>,
    /// For messages.
    text: String,
}

/// What is known of an image before a server is asked.
pub(crate) struct CachedStart {
    pub id: ImageId,
    /// The superblock and the metadata, as far as a mount needed it.
    pub fetched: Fetched,
}

impl Name {
    /// An image of a server.
    pub fn of(remote: &Remote) -> Name {
        let text = format!("{}/{}", remote.server, remote.image);
        match &remote.image {
            ImageName::Id(id) => Name { key: None, id: Some(*id), text },
            name => Name { key: Some(Name::key_of(&remote.server, name)), id: None, text },
        }
    }

    /// The key of an image of a server.
    pub fn key_of(server: &Server, image: &ImageName) -> Key {
        hashed(&[b"name", server.to_string().as_bytes(), b"\0", image.to_string().as_bytes()])
    }

    /// A file of a web server.
    pub fn of_file(file: &HttpFile) -> Name {
        let text = file.to_string();
        Name { key: Some(hashed(&[b"file", text.as_bytes()])), id: None, text }
    }
}

impl CachedStart {
    /// The image that a name stood for when a server was asked last.
    pub fn find(cache: &Cache, name: &Name, limits: &Limits) -> Option<CachedStart> {
        let read = |key| Some(ImageId(cache.read(Kind::Name, &key)?.try_into().ok()?));
        CachedStart::of(cache, name.id.or_else(|| read(name.key?))?, limits)
    }

    /// The start of an image.
    pub fn of(cache: &Cache, id: ImageId, limits: &Limits) -> Option<CachedStart> {
        let mut bytes = Vec::new();
        // Of a pinned image there may be more than others may keep.
        while bytes.len() as u64 <= limits.metadata_bytes_max.saturating_add(SUPERBLOCK_BYTES) {
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

    /// The metadata, verified, with those hashes that were kept, as those of a pinned image and of
    /// one from a web server are.
    pub fn metadata(&self, limits: &Limits) -> Option<Metadata> {
        let metadata = Metadata::open_early(&self.fetched, limits).ok()?;
        // Else they come with proofs.
        let _ = metadata.load_block_hashes(&self.fetched);
        let _ = metadata.load_chunk_hashes(&self.fetched);
        Some(metadata)
    }

    /// The same without a server, which is told in one line.
    pub fn alone(known: Option<CachedStart>, away: &dyn Display, limits: &Limits) -> Option<Metadata> {
        let metadata = known?.metadata(limits)?;
        let text = format!("warning: {away}; starting image {} from the device cache\n", metadata.id());
        let _ = std::io::stderr().write_all(units::printable_text(&text).as_bytes());
        Some(metadata)
    }
}

/// Keeps what a name stands for, and the start of the image unless that is there. Says so if that
/// fails.
pub(crate) fn keep(cache: &Cache, name: &Name, id: ImageId, bytes: &[u8], is_kept: bool) {
    if let Err(error) = try_keep(cache, name, id, bytes, is_kept) {
        let text = format!("warning: the start of {} is not kept in the device cache: {error}\n", name.text);
        let _ = std::io::stderr().write_all(units::printable_text(&text).as_bytes());
    }
}

fn try_keep(cache: &Cache, name: &Name, id: ImageId, bytes: &[u8], is_kept: bool) -> std::io::Result<()> {
    let owner = Owner(id.0);
    if bytes.len() <= METADATA_BYTES_MAX && !is_kept {
        for part in metadata_parts(bytes.len()) {
            cache.put(&owner, Kind::Metadata, &part_key(&id, part.start), &[], &bytes[part])?;
        }
    }
    name.key.map_or(Ok(()), |key| keep_name(cache, &key, &id))
}

/// Keeps what a name stands for.
pub(crate) fn keep_name(cache: &Cache, key: &Key, id: &ImageId) -> std::io::Result<()> {
    if cache.read(Kind::Name, key).as_deref() != Some(&id.0[..]) {
        cache.put(&NAMES, Kind::Name, key, &[], &id.0)?;
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
        while let Some(proof) = image.cache.read(Kind::Proof, &found.key)
            && metadata.load_proof(&proof).is_err()
        {
            // One that was put before counts then. Pages whose hashes are not there are fetched
            // again, with a proof.
            image.cache.forget(Kind::Proof, &found.key);
        }
    }
}

/// The parts that so many bytes of metadata are kept in; an empty one ends them if the last one is
/// full.
pub(crate) fn metadata_parts(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..=bytes / PAYLOAD_BYTES_MAX).map(move |part| {
        let start = part * PAYLOAD_BYTES_MAX;
        start..bytes.min(start + PAYLOAD_BYTES_MAX)
    })
}

pub(crate) fn part_key(id: &ImageId, at: usize) -> Key {
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
