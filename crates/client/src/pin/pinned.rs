//! What is pinned of an image, as records of the cache.

use std::collections::HashSet;
use std::io;

use cache::{Cache, Key, Kind, Owner};
use connection::{ImageName, Remote};
use image::Metadata;
use units::{BlockId, ImageId};

use super::{PinError, Progress};
use crate::cached::{metadata_parts, part_key};

/// An image in the cache, as far as it is pinned.
pub(super) struct Pinned<'a> {
    pub cache: &'a Cache,
    pub owner: Owner,
    pub metadata: &'a Metadata,
}

impl Pinned<'_> {
    /// The blocks that files refer to: an image that keeps the blocks of an older one has others.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        (0..self.metadata.block_count()).map(BlockId).filter(|block| self.page_of(*block).is_some())
    }

    pub fn page_of(&self, block: BlockId) -> Option<units::PageId> {
        self.metadata.block_chunks(block).find_map(|chunk| self.metadata.chunk_owner(chunk))
    }

    fn key(&self, block: BlockId) -> Option<Key> {
        self.metadata.block_hash(block).map(Key)
    }

    /// Whether a block is among those that are pinned, and whole.
    pub fn has(&self, pinned: &HashSet<Key>, block: BlockId) -> bool {
        self.key(block).is_some_and(|key| pinned.contains(&key) && self.cache.read(Kind::Block, &key).is_some())
    }

    /// A block that the cache keeps anyhow.
    pub fn kept(&self, block: BlockId) -> Option<Vec<u8>> {
        let bytes = self.cache.read(Kind::Block, &self.key(block)?)?;
        self.metadata.verify_block(block, &bytes).is_ok().then_some(bytes)
    }

    pub fn put_block(&self, block: BlockId, bytes: &[u8]) -> Result<(), PinError> {
        let Some(key) = self.key(block) else { return Ok(()) };
        self.put(Kind::Block, &key, &block.0.to_le_bytes(), bytes)
    }

    pub fn keep_metadata(&self, bytes: &[u8]) -> Result<(), PinError> {
        let id = ImageId(self.owner.0);
        let pinned = self.cache.pinned_keys(&self.owner, Kind::Metadata);
        for part in metadata_parts(bytes.len()) {
            let (key, part) = (part_key(&id, part.start), &bytes[part]);
            if !pinned.contains(&key) || self.cache.read(Kind::Metadata, &key).as_deref() != Some(part) {
                self.put(Kind::Metadata, &key, &[], part)?;
            }
        }
        Ok(())
    }

    /// Says what is pinned here, and whether all of it is.
    pub fn mark(&self, target: &str, progress: &Progress, is_complete: bool) -> Result<(), PinError> {
        let mark = mark_of(progress.bytes, is_complete);
        let key = Key(self.owner.0);
        let label = label_of(target);
        let is_pinned = self.cache.pinned_keys(&self.owner, Kind::Pin).contains(&key);
        let there = self.cache.read_all(Kind::Pin, &key).filter(|_| is_pinned);
        match there.is_some_and(|(found, payload)| *found == *label && payload == mark) {
            true => Ok(()),
            false => self.put(Kind::Pin, &key, &label, &mark),
        }
    }

    pub fn put(&self, kind: Kind, key: &Key, label: &[u8], payload: &[u8]) -> Result<(), PinError> {
        match self.cache.put_pinned(&self.owner, kind, key, label, payload)? {
            true => Ok(()),
            false => Err(PinError::Busy),
        }
    }
}

/// An image that is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedImage {
    /// Its id.
    pub id: ImageId,
    /// What the user asked for.
    pub target: String,
    /// Bytes of its blocks, and of these and its metadata those that are there.
    pub bytes: u64,
    /// See above.
    pub pinned_bytes: u64,
    /// All of it is there.
    pub is_complete: bool,
}

/// The images that are pinned in a cache.
pub fn pinned_images(cache: &Cache) -> Vec<PinnedImage> {
    let pins = cache.pins().into_iter().map(|pin| {
        let (bytes, is_complete) = parse_mark(&pin.payload);
        let target = String::from_utf8_lossy(&pin.label).into_owned();
        PinnedImage { id: ImageId(pin.owner.0), target, bytes, pinned_bytes: pin.pinned_bytes, is_complete }
    });
    pins.collect()
}

/// Pins no more what `target` names: the image that was pinned under this name, or that has this
/// id. Returns how many images that were; they stay in the cache until their room is needed.
///
/// # Errors
/// What the disk says; somebody is pinning it just now.
pub fn unpin(cache: &Cache, remote: &Remote, target: &str) -> io::Result<usize> {
    let is_meant = |owner: &Owner, label: &[u8]| match &remote.image {
        ImageName::Id(id) => owner.0 == id.0,
        _ => *label == *label_of(target),
    };
    let meant: Vec<_> = cache.pins().into_iter().filter(|pin| is_meant(&pin.owner, &pin.label)).collect();
    meant.iter().try_for_each(|pin| cache.unpin(&pin.owner))?;
    Ok(meant.len())
}

fn mark_of(bytes: u64, is_complete: bool) -> [u8; 9] {
    let mut mark = [u8::from(is_complete); 9];
    mark[1..].copy_from_slice(&bytes.to_le_bytes());
    mark
}

fn parse_mark(mark: &[u8]) -> (u64, bool) {
    match mark.split_first_chunk::<1>() {
        Some((complete, bytes)) => (bytes.try_into().map_or(0, u64::from_le_bytes), complete[0] == 1),
        None => (0, false),
    }
}

/// A name as the label of its record.
pub(super) fn label_of(target: &str) -> Box<[u8]> {
    target.as_bytes()[..target.len().min(cache::LABEL_BYTES_MAX)].into()
}
