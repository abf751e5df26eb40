//! Decoded blocks of an image file. Each block is read, checked and decoded once, however many
//! threads need it at the same time. The blocks that were used last are kept, up to a bound.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use client::{Counters, ImageFile};
use image::{ImageError, Metadata, ReadAt};
use units::{BlockId, ChunkId};

/// Bytes of decoded blocks kept: with blocks of 64 KiB the 128 used last. A program that starts
/// goes back and forth between the blocks of a few dozen files. Blocks decoded for one start of
/// Python from an image in the order of its tree, and from one with similar chunks together: 626
/// and 1,088 with 1 MiB, 526 and 825 with 8, 489 and 694 with 16, 471 and 614 with all kept. A
/// block costs some 150 us to decode, and a device has other uses for the memory.
const CACHE_BYTES_MAX: usize = 8 << 20;

/// A decoded block, or why there is none. Set by the thread that asks first; others wait for it.
type Cell = OnceLock<Result<Box<[u8]>, Failure>>;

/// Why a block cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The file cannot be read.
    Read,
    /// The bytes do not match the image's metadata.
    Corrupt,
}

/// The blocks of one image.
pub(super) struct Blocks {
    file: ImageFile,
    metadata: Metadata,
    cache: Mutex<Cache>,
    hits: AtomicU64,
    decoded: AtomicU64,
    bytes_read: AtomicU64,
    corrupt: AtomicU64,
    errors: AtomicU64,
}

#[derive(Default)]
struct Cache {
    blocks: HashMap<BlockId, Kept>,
    bytes: usize,
    clock: u64,
}

struct Kept {
    cell: Arc<Cell>,
    bytes: usize,
    used: u64,
}

impl Blocks {
    pub(super) fn new(file: ImageFile, metadata: Metadata) -> Blocks {
        Blocks {
            file,
            metadata,
            cache: Mutex::default(),
            hits: AtomicU64::new(0),
            decoded: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        }
    }

    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Copies a chunk to the start of `out`, which must have room for it.
    pub(super) fn copy_chunk(&self, chunk: ChunkId, near: &mut Near, out: &mut [u8]) -> Result<(), Failure> {
        let place = self.metadata.chunk(chunk).ok_or(Failure::Corrupt)?;
        let (start, bytes) = (place.offset as usize, place.bytes as usize);
        let cell = match near.block.take() {
            Some((id, cell)) if id == place.block => cell,
            _ => self.cell(place.block),
        };
        let result = self.get(place.block, &cell).and_then(|raw| {
            let raw = raw.get(start..start + bytes).ok_or(Failure::Corrupt)?;
            out.get_mut(..bytes).ok_or(Failure::Corrupt)?.copy_from_slice(raw);
            Ok(())
        });
        near.block = Some((place.block, cell));
        result
    }

    /// Notes that a READ failed.
    pub(super) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counters so far.
    pub(super) fn counters(&self, reads: u64) -> Counters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counters = Counters::default();
        (counters.reads.reads, counters.reads.read_errors) = (reads, load(&self.errors));
        (counters.demand.requests, counters.demand.verify_failures) = (load(&self.decoded), load(&self.corrupt));
        counters.transfer.bytes_received = load(&self.bytes_read);
        counters.memory.cache_hits = load(&self.hits);
        counters
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a block in the cache, made if it is not there.
    fn cell(&self, id: BlockId) -> Arc<Cell> {
        let bytes = self.metadata.block(id).map_or(0, |block| block.raw_bytes as usize);
        let mut cache = self.lock();
        cache.clock += 1;
        let used = cache.clock;
        if let Some(kept) = cache.blocks.get_mut(&id) {
            kept.used = used;
            self.hits.fetch_add(1, Ordering::Relaxed);
            return kept.cell.clone();
        }
        cache.make_room(bytes);
        let cell = Arc::new(Cell::new());
        cache.bytes += bytes;
        cache.blocks.insert(id, Kept { cell: cell.clone(), bytes, used });
        cell
    }

    fn get<'a>(&self, id: BlockId, cell: &'a Cell) -> Result<&'a [u8], Failure> {
        match cell.get_or_init(|| self.decode(id)) {
            Ok(raw) => Ok(raw),
            Err(failure) => {
                // Not kept: the next reader tries again.
                self.lock().forget(id, cell);
                Err(*failure)
            }
        }
    }

    fn decode(&self, id: BlockId) -> Result<Box<[u8]>, Failure> {
        let entry = self.metadata.block(id).ok_or(Failure::Corrupt)?;
        let mut stored = vec![0; entry.stored_bytes as usize];
        self.file.read_exact_at(entry.file_offset, &mut stored).map_err(|_| Failure::Read)?;
        let mut raw = Vec::new();
        self.metadata.decode_block(id, &stored, &mut raw).map_err(|error: ImageError| {
            self.corrupt.fetch_add(1, Ordering::Relaxed);
            let text = format!("error: {error}\n");
            // Where standard error is closed, the read fails all the same.
            let _ = std::io::stderr().write_all(units::printable_text(&text).as_bytes());
            Failure::Corrupt
        })?;
        self.decoded.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(entry.stored_bytes.into(), Ordering::Relaxed);
        Ok(raw.into())
    }
}

/// The block that a reader used last: neighbouring chunks mostly lie in the same one.
#[derive(Default)]
pub(super) struct Near {
    block: Option<(BlockId, Arc<Cell>)>,
}

impl Cache {
    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > CACHE_BYTES_MAX
            && let Some(oldest) = self.blocks.iter().min_by_key(|(_, kept)| kept.used).map(|(id, _)| *id)
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, id: BlockId) {
        let gone = self.blocks.remove(&id);
        self.bytes -= gone.map_or(0, |kept| kept.bytes);
    }

    fn forget(&mut self, id: BlockId, cell: &Cell) {
        if self.blocks.get(&id).is_some_and(|kept| std::ptr::eq(&*kept.cell, cell)) {
            self.remove(id);
        }
    }
}
