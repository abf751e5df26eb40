//! Decoded blocks of one image, in a temporary file of the store.
//!
//! What near devices ask for of a large program is more than a server has memory of its own for.
//! Of a file the system keeps in memory what is used, and takes it back when it needs room. The
//! file has no name that survives the server, and goes with the image when that is closed.
//!
//! Nothing here is trusted: devices check what they are sent, and ask for the stored block if it is
//! wrong.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};

use bytes::Bytes;
use store::{Store, StoreError, Upload};
use units::BlockId;

use crate::storage::has_room;

/// Bytes of such files, of all images together: the blocks of some dozens of large programs.
const BYTES_MAX: u64 = 1 << 30;

/// Bytes of the files of all images.
pub(crate) type Taken = Arc<AtomicU64>;

/// The blocks of one image.
#[derive(Default)]
pub(crate) struct DecodedBlocks {
    file: RwLock<Option<Kept>>,
}

/// A file, made with the first block.
struct Kept {
    upload: Box<dyn Upload>,
    places: HashMap<BlockId, u64>,
    end: u64,
    taken: Taken,
}

impl DecodedBlocks {
    /// Whether a block of so many bytes is not there, and there is room for it.
    pub fn lacks(&self, store: &dyn Store, taken: &Taken, block: BlockId, bytes: usize) -> bool {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let all = taken.load(Ordering::Relaxed) + bytes as u64;
        let has = file.as_ref().is_some_and(|kept| kept.places.contains_key(&block));
        !has && all <= BYTES_MAX && has_room(store, 0, all)
    }

    /// A block of so many bytes, if it is there and in memory. Does not block.
    pub fn read(&self, block: BlockId, bytes: usize) -> Option<Bytes> {
        let file = match self.file.try_read() {
            Ok(file) => file,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // A block is being added.
            Err(TryLockError::WouldBlock) => return None,
        };
        let kept = file.as_ref()?;
        let place = *kept.places.get(&block)?;
        let mut buf = vec![0; bytes];
        matches!(kept.upload.read_cached_at(place, &mut buf), Ok(true)).then(|| Bytes::from(buf))
    }

    /// Adds a block unless it is there or there is no room.
    pub fn add(&self, store: &dyn Store, taken: &Taken, block: BlockId, raw: &[u8]) -> Result<(), StoreError> {
        if !self.lacks(store, taken, block, raw.len()) {
            return Ok(());
        }
        let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            let upload = store.create()?;
            *file = Some(Kept { upload, places: HashMap::new(), end: 0, taken: taken.clone() });
        }
        let Some(kept) = &mut *file else { return Ok(()) };
        kept.upload.write_at(kept.end, raw)?;
        kept.places.insert(block, kept.end);
        kept.end += raw.len() as u64;
        taken.fetch_add(raw.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.end, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use store::Memory;

    use super::*;

    #[test]
    fn blocks_come_back_as_they_were_until_there_is_no_room() {
        let (store, taken) = (Memory::new(), Taken::default());
        let blocks = DecodedBlocks::default();
        assert!(blocks.read(BlockId(7), 3).is_none());
        blocks.add(&store, &taken, BlockId(7), b"abc").unwrap();
        blocks.add(&store, &taken, BlockId(2), b"defgh").unwrap();
        assert_eq!(blocks.read(BlockId(2), 5).as_deref(), Some(&b"defgh"[..]));
        assert_eq!(blocks.read(BlockId(7), 3).as_deref(), Some(&b"abc"[..]));
        assert!(!blocks.lacks(&store, &taken, BlockId(7), 3) && blocks.lacks(&store, &taken, BlockId(3), 1));
        taken.fetch_add(BYTES_MAX - 8, Ordering::Relaxed);
        assert!(!blocks.lacks(&store, &taken, BlockId(3), 1));
        blocks.add(&store, &taken, BlockId(3), b"i").unwrap();
        assert!(blocks.read(BlockId(3), 1).is_none());
        drop(blocks);
        assert_eq!(taken.load(Ordering::Relaxed), BYTES_MAX - 8);
        assert!(store.list("").unwrap().is_empty(), "it has no name");
    }
}
