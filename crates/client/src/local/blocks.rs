//! Decoded blocks of an image file. Each block is read, checked and decoded once, however many
//! threads need it at the same time. The blocks that were used last are kept, up to a bound, and
//! the memory of those that leave is used again.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use image::{ImageError, Metadata, ReadAt};
use units::{BlockId, ChunkId};

use super::ImageFile;
use crate::block_cache::{BlockBytes, Decoded, Evicted, Taken};
use crate::counters::Counters;

/// Buffers kept for the next blocks: as many as threads decode at the same time, as a rule.
const SPARES_MAX: usize = 2;

/// A decoded block, or why there is none. Set by the thread that asks first; others wait for it.
type Cell = OnceLock<Result<BlockBytes, BlockFailure>>;

/// Why a block cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFailure {
    /// The file cannot be read.
    Read,
    /// The bytes do not match the image's metadata.
    Corrupt,
}

/// The blocks of one image file.
pub struct FileBlocks {
    file: ImageFile,
    metadata: Arc<Metadata>,
    cache: Mutex<Cache>,
    hits: AtomicU64,
    decoded: AtomicU64,
    pages_demanded: AtomicU64,
    bytes_read: AtomicU64,
    corrupt: AtomicU64,
    errors: AtomicU64,
}

struct Cache {
    capacity_bytes: usize,
    /// Blocks that leave are handed on, if parts of them were not taken.
    hands_on: bool,
    blocks: HashMap<BlockId, Kept>,
    bytes: usize,
    clock: u64,
    /// Memory for blocks as they are stored, and for decoded ones.
    spares_stored: Vec<Vec<u8>>,
    spares_raw: Vec<Vec<u8>>,
}

struct Kept {
    cell: Arc<Cell>,
    bytes: usize,
    used: u64,
    taken: Taken,
}

/// A decoded block.
pub(crate) struct Found {
    pub bytes: BlockBytes,
    /// It had to be decoded just now.
    pub is_fresh: bool,
    /// Blocks that left the cache for it, and of which not all was taken.
    pub gone: Vec<Evicted>,
}

impl FileBlocks {
    /// Keeps at most `cache_bytes` of decoded blocks, and one for each thread that reads.
    pub fn new(file: ImageFile, metadata: Arc<Metadata>, cache_bytes: usize) -> FileBlocks {
        let cache = Cache {
            capacity_bytes: cache_bytes,
            hands_on: false,
            blocks: HashMap::new(),
            bytes: 0,
            clock: 0,
            spares_stored: Vec::new(),
            spares_raw: Vec::new(),
        };
        FileBlocks {
            file,
            metadata,
            cache: Mutex::new(cache),
            hits: AtomicU64::new(0),
            decoded: AtomicU64::new(0),
            pages_demanded: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        }
    }

    /// The same, whose blocks are handed on when they leave the cache and parts of them were not
    /// [taken](FileBlocks::take).
    pub(crate) fn handing_on(self) -> FileBlocks {
        self.lock().hands_on = true;
        self
    }

    /// The image's metadata.
    pub fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    /// Copies a chunk to the start of `out`, which must have room for it.
    ///
    /// # Errors
    /// The chunk's block cannot be read or is damaged.
    pub fn copy_chunk(&self, chunk: ChunkId, near: &mut NearBlock, out: &mut [u8]) -> Result<(), BlockFailure> {
        let place = self.metadata.chunk(chunk).ok_or(BlockFailure::Corrupt)?;
        let (start, bytes) = (place.offset as usize, place.bytes as usize);
        let raw = near.block(self, place.block)?;
        let raw = raw.get(start..start + bytes).ok_or(BlockFailure::Corrupt)?;
        out.get_mut(..bytes).ok_or(BlockFailure::Corrupt)?.copy_from_slice(raw);
        Ok(())
    }

    /// A block, decoded. A failure is not kept: the next reader tries again.
    pub(crate) fn get(&self, id: BlockId) -> Result<Found, BlockFailure> {
        let (cell, gone) = self.cell(id);
        let mut is_fresh = false;
        let outcome = cell.get_or_init(|| {
            is_fresh = true;
            self.decode(id)
        });
        match outcome {
            Ok(bytes) => Ok(Found { bytes: Arc::clone(bytes), is_fresh, gone }),
            Err(failure) => {
                self.lock().forget(id, &cell);
                Err(*failure)
            }
        }
    }

    /// Notes that parts of blocks were taken: offsets and bytes.
    pub(crate) fn take(&self, parts: impl Iterator<Item = (BlockId, usize, usize)>) {
        let mut cache = self.lock();
        for (id, offset, bytes) in parts {
            if let Some(kept) = cache.blocks.get_mut(&id) {
                kept.taken.mark(offset, bytes);
            }
        }
    }

    /// A READ that nobody else counts failed.
    pub fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// A READ of so many pages found not all of them decoded.
    pub(crate) fn count_demanded(&self, pages: u32) {
        self.pages_demanded.fetch_add(pages.into(), Ordering::Relaxed);
    }

    /// Stored bytes that were read from the file.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Adds what was decoded so far.
    pub fn add_to(&self, counters: &mut Counters) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        counters.reads.read_errors += load(&self.errors);
        counters.demand.requests += load(&self.decoded);
        counters.demand.pages_demanded += load(&self.pages_demanded);
        counters.demand.verify_failures += load(&self.corrupt);
        counters.memory.cache_hits += load(&self.hits);
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a block in the cache, made if it is not there, and what left for it.
    fn cell(&self, id: BlockId) -> (Arc<Cell>, Vec<Evicted>) {
        let bytes = self.metadata.block(id).map_or(0, |block| block.raw_bytes as usize);
        let mut cache = self.lock();
        cache.clock += 1;
        let used = cache.clock;
        if let Some(kept) = cache.blocks.get_mut(&id) {
            kept.used = used;
            self.hits.fetch_add(1, Ordering::Relaxed);
            return (kept.cell.clone(), Vec::new());
        }
        let gone = cache.make_room(bytes);
        let cell = Arc::new(Cell::new());
        cache.bytes += bytes;
        cache.blocks.insert(id, Kept { cell: cell.clone(), bytes, used, taken: Taken::of(bytes) });
        (cell, gone)
    }

    fn decode(&self, id: BlockId) -> Result<BlockBytes, BlockFailure> {
        let entry = self.metadata.block(id).ok_or(BlockFailure::Corrupt)?;
        let (mut stored, mut raw) = {
            let mut cache = self.lock();
            (cache.spares_stored.pop().unwrap_or_default(), cache.spares_raw.pop().unwrap_or_default())
        };
        stored.resize(entry.stored_bytes as usize, 0);
        self.file.read_exact_at(entry.file_offset, &mut stored).map_err(|_| BlockFailure::Read)?;
        self.metadata.decode_block(id, &stored, &mut raw).map_err(|error| self.tell(&error))?;
        self.bytes_read.fetch_add(entry.stored_bytes.into(), Ordering::Relaxed);
        keep_spare(&mut self.lock().spares_stored, stored);
        Ok(Arc::new(Decoded::Here(raw)))
    }

    fn tell(&self, error: &ImageError) -> BlockFailure {
        self.corrupt.fetch_add(1, Ordering::Relaxed);
        let text = format!("error: {error}\n");
        // Where standard error is closed, the read fails all the same.
        let _ = std::io::stderr().write_all(units::printable_text(&text).as_bytes());
        BlockFailure::Corrupt
    }
}

/// The block that a reader used last: neighbouring chunks mostly lie in the same one.
#[derive(Default)]
pub struct NearBlock {
    block: Option<(BlockId, BlockBytes)>,
    /// Blocks that had to be decoded for this reader, and blocks that left for them.
    decoded: Vec<BlockId>,
    gone: Vec<Evicted>,
}

impl NearBlock {
    /// The decoded bytes of a block.
    pub(crate) fn block(&mut self, blocks: &FileBlocks, id: BlockId) -> Result<&BlockBytes, BlockFailure> {
        if self.block.as_ref().is_none_or(|(near, _)| *near != id) {
            let found = blocks.get(id)?;
            if found.is_fresh {
                // What is read for a hint is no demand.
                blocks.decoded.fetch_add(1, Ordering::Relaxed);
                self.decoded.push(id);
            }
            self.gone.extend(found.gone);
            self.block = Some((id, found.bytes));
        }
        self.block.as_ref().map(|(_, bytes)| bytes).ok_or(BlockFailure::Corrupt)
    }

    /// Blocks that had to be decoded for this reader, and blocks that left the cache for them.
    pub(crate) fn into_changes(self) -> (Vec<BlockId>, Vec<Evicted>) {
        (self.decoded, self.gone)
    }
}

impl Cache {
    fn make_room(&mut self, bytes: usize) -> Vec<Evicted> {
        let mut gone = Vec::new();
        while self.bytes + bytes > self.capacity_bytes
            && let Some(oldest) = self.blocks.iter().min_by_key(|(_, kept)| kept.used).map(|(id, _)| *id)
        {
            gone.extend(self.remove(oldest));
        }
        gone
    }

    /// Removes a block; returns it if it is to be handed on.
    fn remove(&mut self, id: BlockId) -> Option<Evicted> {
        let Kept { cell, bytes, taken, .. } = self.blocks.remove(&id)?;
        self.bytes -= bytes;
        // One that is still being decoded belongs to those who wait for it.
        let bytes = Arc::into_inner(cell)?.into_inner()?.ok()?;
        if self.hands_on && !taken.is_all(bytes.len()) {
            return Some(Evicted::handed_on(id, bytes, taken));
        }
        // And one that is still read frees its memory itself.
        if let Some(raw) = Arc::into_inner(bytes).and_then(Decoded::into_buffer) {
            keep_spare(&mut self.spares_raw, raw);
        }
        None
    }

    fn forget(&mut self, id: BlockId, cell: &Cell) {
        if self.blocks.get(&id).is_some_and(|kept| std::ptr::eq(&*kept.cell, cell)) {
            self.remove(id);
        }
    }
}

/// Keeps memory for the next block.
fn keep_spare(spares: &mut Vec<Vec<u8>>, spare: Vec<u8>) {
    if spares.len() < SPARES_MAX {
        spares.push(spare);
    }
}
