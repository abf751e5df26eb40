//! What is pinned of an image, as records of the cache.

use std::collections::HashSet;

use cache::{Cache, Key, Kind, Owner};
use image::Metadata;
use units::{BlockId, ImageId};

use super::PinError;
use crate::cached::{metadata_parts, part_key};

/// An image in the cache, as far as it is pinned.
pub(super) struct PinnedImage<'a> {
    pub cache: &'a Cache,
    pub owner: Owner,
    pub metadata: &'a Metadata,
}

impl PinnedImage<'_> {
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

    fn put(&self, kind: Kind, key: &Key, label: &[u8], payload: &[u8]) -> Result<(), PinError> {
        match self.cache.put_pinned(&self.owner, kind, key, label, payload)? {
            true => Ok(()),
            false => Err(PinError::Busy),
        }
    }
}
