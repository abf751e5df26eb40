//! Decoded blocks in memory, of which pages are built, and pieces of bundles, which are pushed at
//! many starts.
//!
//! There are two parts, each with a limit: what was used lately, and what the Provider keeps from
//! the moment an image is opened. A demand of a near device is answered from here if the block is
//! here ([`crate::decoded`] has more of them); any other gets the stored block as it lies in the
//! file.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use units::BlockId;

use crate::config::Shares;
use crate::lock::locked;
use crate::lru::Lru;

/// A block of one of the open images: the image's serial number in this process, and the block.
pub(crate) type BlockKey = (u64, BlockId);

/// A piece of a bundle: the bundle's serial number in this process, and the piece.
pub(crate) type PieceKey = (u64, u32);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Block(BlockKey),
    Piece(PieceKey),
}

/// Decoded blocks of all images, and verified pieces of all bundles.
pub(crate) struct BlockCache {
    recent: Mutex<Lru<Key>>,
    held: Mutex<Held>,
}

struct Held {
    blocks: HashMap<BlockKey, Bytes>,
    bytes: usize,
    bytes_max: usize,
}

impl BlockCache {
    pub fn new(shares: &Shares) -> BlockCache {
        BlockCache {
            recent: Mutex::new(Lru::new(shares.decoded)),
            held: Mutex::new(Held { blocks: HashMap::new(), bytes: 0, bytes_max: shares.provider }),
        }
    }

    pub fn get(&self, key: BlockKey) -> Option<Bytes> {
        if let Some(bytes) = locked(&self.held).blocks.get(&key) {
            return Some(bytes.clone());
        }
        locked(&self.recent).get(Key::Block(key))
    }

    /// A verified piece of a bundle.
    pub fn piece(&self, key: PieceKey) -> Option<Bytes> {
        locked(&self.recent).get(Key::Piece(key))
    }

    /// Keeps a verified piece of a bundle.
    pub fn put_piece(&self, key: PieceKey, bytes: Bytes) {
        locked(&self.recent).put(Key::Piece(key), bytes);
    }

    pub fn contains(&self, key: BlockKey) -> bool {
        locked(&self.held).blocks.contains_key(&key) || locked(&self.recent).contains(Key::Block(key))
    }

    pub fn put(&self, key: BlockKey, bytes: Bytes) {
        locked(&self.recent).put(Key::Block(key), bytes);
    }

    /// Holds a block until [`BlockCache::forget`]; false if the Provider's share is used up.
    pub fn hold(&self, key: BlockKey, bytes: Bytes) -> bool {
        let mut held = locked(&self.held);
        if held.blocks.contains_key(&key) {
            return true;
        }
        if held.bytes + bytes.len() > held.bytes_max {
            return false;
        }
        held.bytes += bytes.len();
        held.blocks.insert(key, bytes);
        true
    }

    /// Lets go of what was held for an image.
    pub fn forget(&self, serial: u64) {
        let mut held = locked(&self.held);
        held.blocks.retain(|key, _| key.0 != serial);
        held.bytes = held.blocks.values().map(Bytes::len).sum();
    }

    /// Bytes of recent and of held blocks.
    pub fn bytes(&self) -> (usize, usize) {
        (locked(&self.recent).bytes(), locked(&self.held).bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_stays_within_its_share_and_goes_with_its_image() {
        let cache = BlockCache::new(&Shares { decoded: 8, provider: 10, ..Shares::default() });
        assert!(cache.hold((1, BlockId(0)), Bytes::from_static(b"123456")));
        assert!(cache.hold((1, BlockId(0)), Bytes::from_static(b"123456")), "held already");
        assert!(!cache.hold((1, BlockId(1)), Bytes::from_static(b"123456")));
        assert!(cache.hold((2, BlockId(0)), Bytes::from_static(b"1234")));
        cache.put((1, BlockId(5)), Bytes::from_static(b"12345678"));
        cache.put((1, BlockId(6)), Bytes::from_static(b"1"));
        assert_eq!(cache.bytes(), (1, 10));
        cache.forget(1);
        assert_eq!(cache.bytes(), (1, 4));
        assert!(cache.get((1, BlockId(0))).is_none() && cache.get((2, BlockId(0))).is_some());
        assert!(cache.contains((1, BlockId(6))) && !cache.contains((1, BlockId(5))));
    }
}
