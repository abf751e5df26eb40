//! One image that clients have open: its metadata, its file, what was learned of it, and pages
//! built from its blocks.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, TryLockError};

use bytes::Bytes;
use image::{HashTree, Metadata, ReadAt};
use store::{Object, Store, StoreError};
use units::{BlockId, ImageId, PageId};
use wire::ErrorCode;

use crate::account::Reserved;
use crate::blocks::BlockCache;
use crate::bundle::kept::Bundles;
use crate::decoded::{DecodedBlocks, Taken};
use crate::error::Failure;
use crate::learned::Saved;
use crate::learning::Learning;
use crate::lock::locked;
use crate::metrics::Metrics;
use crate::proofs::HashesOf;

/// An image that is served. Shared by all connections that have it open.
pub(crate) struct Published {
    pub id: ImageId,
    pub metadata: Metadata,
    /// Tells images apart in the block cache; the same image opened anew gets another number.
    pub serial: u64,
    object: RwLock<Arc<dyn Object>>,
    blocks: Arc<BlockCache>,
    decoded: DecodedBlocks,
    metrics: Arc<Metrics>,
    /// Held for microseconds at a time: no reading, no encoding under it.
    pub predictor: Mutex<Learning>,
    /// Bundles that can be pushed.
    pub bundles: Bundles,
    /// Held while chunk hashes are derived, so that clients that ask together decode the image
    /// once.
    deriving: Mutex<()>,
    /// To prove chunk hashes with, once they are there.
    hash_tree: OnceLock<HashTree>,
    /// To prove hashes of blocks with.
    block_tree: Option<HashTree>,
    /// The learned file as it was saved last.
    pub saved: Mutex<Saved>,
    /// When it was used last, by [`USES`].
    used: AtomicU64,
    /// Memory of the metadata.
    _reserved: Reserved,
}

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Counts uses of images, to tell which was used longest ago.
static USES: AtomicU64 = AtomicU64::new(0);

impl Published {
    pub fn new(
        metadata: Metadata,
        object: Arc<dyn Object>,
        predictor: Learning,
        blocks: Arc<BlockCache>,
        metrics: Arc<Metrics>,
        reserved: Reserved,
    ) -> Published {
        let block_hashes = metadata.block_hash_bytes().filter(|_| metadata.proves_block_hashes());
        let image = Published {
            id: metadata.id(),
            block_tree: block_hashes.map(HashTree::of_blocks),
            metadata,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            object: RwLock::new(object),
            blocks,
            decoded: DecodedBlocks::default(),
            metrics,
            predictor: Mutex::new(predictor),
            bundles: Bundles::default(),
            deriving: Mutex::new(()),
            hash_tree: OnceLock::new(),
            saved: Mutex::default(),
            used: AtomicU64::new(USES.fetch_add(1, Ordering::Relaxed)),
            _reserved: reserved,
        };
        image.hash_tree();
        image
    }

    /// Somebody uses it.
    pub fn note_use(&self) {
        self.used.store(USES.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// When it was used last: a number that only grows.
    pub fn last_use(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The image file, as it was opened or uploaded last.
    pub fn object(&self) -> Arc<dyn Object> {
        self.object.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same image was uploaded again: reads go to the new file from now on.
    pub fn replace_object(&self, object: Arc<dyn Object>) {
        *self.object.write().unwrap_or_else(PoisonError::into_inner) = object;
    }

    /// Tells the system that the whole file will be needed.
    pub fn advise_whole(&self) {
        self.object().advise_whole();
    }

    /// A range of the chunk hashes of an image that does not store them. Deriving them decodes the
    /// whole image: a second for some hundred megabytes.
    pub fn chunk_hashes(&self, range: Range<usize>) -> Result<Bytes, Failure> {
        self.derive()?;
        let outside = || Failure::bad_request(format!("image {} has no chunk hashes at {range:?}", self.id));
        let hashes = self.metadata.chunk_hash_bytes().and_then(|hashes| hashes.get(range.clone()));
        Ok(Bytes::copy_from_slice(hashes.ok_or_else(outside)?))
    }

    /// Memory of what proofs are made with, for so many chunks.
    pub fn proof_bytes(chunk_count: u32) -> usize {
        HashTree::memory_bytes(chunk_count as usize * image::format::CHUNK_HASH_BYTES)
    }

    /// Derives the chunk hashes, unless they are there.
    fn derive(&self) -> Result<(), Failure> {
        let _one_at_a_time = locked(&self.deriving);
        let derived = self.metadata.derive_chunk_hashes(&ImageObject(self.object()));
        derived.map_err(|error| Failure::corrupt(format!("image {}: {error}", self.id)))
    }

    /// Whether single pages can be sent to a device that takes proofs: `false` as long as chunk
    /// hashes are not derived.
    pub fn proves(&self) -> bool {
        !self.metadata.proves_chunk_hashes() || self.hash_tree().is_some()
    }

    /// Whether somebody derives the chunk hashes just now.
    pub fn is_deriving(&self) -> bool {
        matches!(self.deriving.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Sees to it that they can, which may decode the whole image.
    pub fn prepare_proofs(&self) -> Result<(), Failure> {
        if self.proves() {
            return Ok(());
        }
        self.derive()?;
        self.hash_tree();
        Ok(())
    }

    /// The tree over the chunk hashes, if they are there.
    fn hash_tree(&self) -> Option<&HashTree> {
        let hashes = self.metadata.chunk_hash_bytes().filter(|_| self.metadata.proves_chunk_hashes())?;
        Some(self.hash_tree.get_or_init(|| HashTree::of(hashes)))
    }

    /// A proof of some leaves of the hashes.
    pub fn proof(&self, of: HashesOf, leaves: &[u32]) -> Result<Vec<u8>, Failure> {
        let proof = || match of {
            HashesOf::Chunks => self.hash_tree()?.proof(self.metadata.chunk_hash_bytes()?, leaves),
            HashesOf::Blocks => self.block_tree.as_ref()?.proof(self.metadata.block_hash_bytes()?, leaves),
        };
        proof().ok_or_else(|| Failure::new(ErrorCode::Internal, "hashes that are not there cannot be proven"))
    }

    /// A range of the image file.
    pub fn read(&self, offset: u64, bytes: usize) -> Result<Bytes, Failure> {
        let mut buf = vec![0; bytes];
        self.object().read_at(offset, &mut buf)?;
        Ok(Bytes::from(buf))
    }

    /// The same if it is in memory. Does not block.
    pub fn read_cached(&self, offset: u64, bytes: usize) -> Option<Bytes> {
        let mut buf = vec![0; bytes];
        // Whatever is wrong is told by the read that may wait.
        matches!(self.object().read_cached_at(offset, &mut buf), Ok(true)).then(|| Bytes::from(buf))
    }

    /// A block as it is stored, if it is what the image says.
    pub fn verified_block(&self, block: BlockId) -> Result<Bytes, Failure> {
        let bytes = self.stored_block(block)?;
        let verified = self.metadata.verify_block(block, &bytes);
        verified.map_err(|error| Failure::corrupt(format!("image {}: {error}", self.id)))?;
        Ok(bytes)
    }

    /// A block as it is stored.
    fn stored_block(&self, block: BlockId) -> Result<Bytes, Failure> {
        let entry = self.metadata.block(block).ok_or_else(|| self.no_block(block))?;
        self.read(entry.file_offset, entry.stored_bytes as usize)
    }

    /// What to say of a block number outside the image.
    pub fn no_block(&self, block: BlockId) -> Failure {
        Failure::new(ErrorCode::NotFound, format!("image {} has no block {block}", self.id))
    }

    /// A decoded block, if it is in memory. Does not block.
    pub fn decoded_in_memory(&self, block: BlockId) -> Option<Bytes> {
        let raw_bytes = self.metadata.block(block)?.raw_bytes as usize;
        let bytes = self.blocks.get((self.serial, block)).or_else(|| self.decoded.read(block, raw_bytes))?;
        self.metrics.blocks_cached.one();
        Some(bytes)
    }

    /// Keeps a block decoded for near devices, as far as there is room.
    pub fn decode_ahead(&self, block: BlockId, store: &dyn Store, taken: &Taken) -> Result<(), Failure> {
        let raw_bytes = self.metadata.block(block).map_or(0, |entry| entry.raw_bytes as usize);
        if !self.decoded.lacks(store, taken, block, raw_bytes) {
            return Ok(());
        }
        let known = self.blocks.get((self.serial, block));
        let raw = known.map_or_else(|| self.decode(block), Ok)?;
        Ok(self.decoded.add(store, taken, block, &raw)?)
    }

    /// A verified, decoded block, from memory if it is there.
    pub fn decoded_block(&self, block: BlockId) -> Result<Bytes, Failure> {
        if let Some(bytes) = self.decoded_in_memory(block) {
            return Ok(bytes);
        }
        let bytes = self.decode(block)?;
        self.blocks.put((self.serial, block), bytes.clone());
        Ok(bytes)
    }

    fn decode(&self, block: BlockId) -> Result<Bytes, Failure> {
        let stored = self.stored_block(block)?;
        let mut raw = Vec::new();
        self.metadata
            .decode_block(block, &stored, &mut raw)
            .map_err(|error| Failure::corrupt(format!("image {}: {error}", self.id)))?;
        self.metrics.blocks_decoded.one();
        Ok(Bytes::from(raw))
    }

    /// Reads a block into memory for good; false if the Provider has no room left.
    pub fn hold_block(&self, block: BlockId) -> Result<bool, Failure> {
        let key = (self.serial, block);
        if self.blocks.contains(key) {
            return Ok(self.blocks.get(key).is_none_or(|bytes| self.blocks.hold(key, bytes)));
        }
        self.metrics.blocks_read_ahead.one();
        Ok(self.blocks.hold(key, self.decode(block)?))
    }

    /// The blocks of `pages` that are not in memory.
    pub fn absent_blocks(&self, pages: &[PageId]) -> Vec<BlockId> {
        let mut blocks = self.blocks_of(pages);
        blocks.retain(|block| !self.blocks.contains((self.serial, *block)));
        blocks
    }

    /// Reads blocks into memory, so that building pages later does not wait for the disk.
    pub fn read_ahead(&self, blocks: &[BlockId]) {
        for block in blocks {
            if self.blocks.contains((self.serial, *block)) {
                continue;
            }
            self.metrics.blocks_read_ahead.one();
            // The next reader of the block meets the same error and reports it.
            if self.decoded_block(*block).is_err() {
                return;
            }
        }
    }

    /// The blocks that hold `pages`, each once, in the order of first use.
    pub fn blocks_of(&self, pages: &[PageId]) -> Vec<BlockId> {
        let mut blocks = Vec::new();
        for page in pages {
            let Some(chunks) = self.metadata.page_chunks(*page) else { continue };
            for place in chunks.chunks().filter_map(|chunk| self.metadata.chunk(chunk)) {
                // Neighbours share a block, so looking back a little removes nearly all repeats
                // without a set.
                if !blocks.iter().rev().take(8).any(|block| *block == place.block) {
                    blocks.push(place.block);
                }
            }
        }
        blocks
    }

    /// Appends the valid bytes of `page` to `out`; returns how many. A page outside its file is an
    /// error.
    pub fn page(&self, page: PageId, out: &mut Vec<u8>) -> Result<usize, Failure> {
        let outside = || Failure::bad_request(format!("image {} has no page {page}", self.id));
        let chunks = self.metadata.page_chunks(page).ok_or_else(outside)?;
        for piece in chunks.pieces() {
            let Some(chunk) = piece.chunk else {
                out.resize(out.len() + piece.bytes, 0);
                continue;
            };
            let place = self.metadata.chunk(chunk).ok_or_else(outside)?;
            let block = self.decoded_block(place.block)?;
            let start = place.offset as usize;
            let part = block.get(start..start + piece.bytes).ok_or_else(|| {
                Failure::corrupt(format!("image {}: chunk {chunk} lies outside block {}", self.id, place.block))
            })?;
            out.extend_from_slice(part);
        }
        Ok(chunks.bytes())
    }

    /// Whether `page` is part of a file of the image.
    pub fn has_page(&self, page: PageId) -> bool {
        self.metadata.page_bytes(page).is_some()
    }

    /// Whether `page` has bytes that are stored somewhere: others are zeros that nobody needs to
    /// send.
    pub fn is_stored(&self, page: PageId) -> bool {
        self.metadata.page_chunks(page).is_some_and(|chunks| !chunks.is_hole())
    }

    /// The block of a page, its first if it has several, for the Provider's variance.
    pub fn block_of(&self, page: PageId) -> Option<u64> {
        let chunk = self.metadata.page_chunks(page)?.chunks().next()?;
        self.metadata.chunk(chunk).map(|place| place.block.0.into())
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.blocks.forget(self.serial);
    }
}

/// An object of the store as the source of an image.
pub(crate) struct ImageObject(pub Arc<dyn Object>);

impl ReadAt for ImageObject {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf).map_err(io_error)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }
}

/// The failure of a store that may not last, if that is why an image cannot be read.
pub(crate) fn busy(error: &image::ImageError) -> Option<Failure> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        let held = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(error @ (StoreError::Away { .. } | StoreError::Replaced { .. })) =
            held.and_then(|held| held.downcast_ref::<StoreError>())
        {
            return Some(Failure::new(ErrorCode::Busy, error.to_string()));
        }
        source = cause.source();
    }
    None
}

/// A store's error where the image crate wants the system's.
pub(crate) fn io_error(error: StoreError) -> io::Error {
    match error {
        StoreError::Truncated { .. } => io::Error::new(io::ErrorKind::UnexpectedEof, error),
        StoreError::Io { source, .. } => source,
        other => io::Error::other(other),
    }
}
