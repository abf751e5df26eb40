//! Chunks: where a chunk lies, which chunks lie in a block, and which page first refers to a chunk.
//!
//! The first page that refers to a chunk is derived, not stored. Chunks are numbered in the order
//! of first reference, walking the extents in table order. So the highest chunk number seen so far
//! only grows along the extents, and the extent that first refers to chunk c is the first whose run
//! goes beyond c. A sample of that running maximum every 64 extents, 4 bytes each, turns the search
//! into a binary search over the samples and a scan of at most 64 extents (512 bytes). The file is
//! then the last inode whose extents start at or before the one found.

use crate::table::Table;
use crate::{Metadata, format};
use units::{BlockId, ChunkId, InodeId, PAGE_BYTES, PageId};

/// Extents between two samples: the scan stays within 8 cache lines, the samples cost 1/128 of the
/// extents.
pub(crate) const OWNER_SAMPLE_EXTENTS: u32 = 64;

/// Where a chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The block.
    pub block: BlockId,
    /// Offset in the decoded block.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
}

/// What opening derives about chunks.
#[derive(Default)]
pub(crate) struct ChunkIndex {
    /// Number of chunks that extents before extent 64 * i refer to.
    pub(crate) introduced: Vec<u32>,
    /// Chunks by position, if that is not the order of their numbers.
    pub(crate) by_position: Option<Vec<u32>>,
}

impl ChunkIndex {
    pub(crate) fn memory_bytes(&self) -> usize {
        4 * (self.introduced.len() + self.by_position.as_ref().map_or(0, Vec::len))
    }
}

impl format::Chunk {
    /// Position in the concatenation of all decoded blocks.
    pub(crate) fn position(&self) -> u64 {
        self.place.get() & ((1 << format::CHUNK_LENGTH_SHIFT) - 1)
    }

    /// Bytes.
    pub(crate) fn bytes(&self) -> u32 {
        (self.place.get() >> format::CHUNK_LENGTH_SHIFT) as u32
    }
}

/// The block in which `position` lies, if blocks reach that far.
pub(crate) fn block_at(blocks: &Table<format::Block>, position: u64) -> Option<u32> {
    let after = blocks.partition_point(0..blocks.len(), |block| block.raw_start.get() <= position);
    let index = after.checked_sub(1)?;
    let block = blocks.get(index)?;
    if position - block.raw_start.get() < block.raw_bytes.get().into() { Some(index) } else { None }
}

impl Metadata {
    /// Where a chunk lies, or `None` if there is no such chunk.
    pub fn chunk(&self, id: ChunkId) -> Option<ChunkPlace> {
        let chunk = self.tables.chunks.get(id.0)?;
        let block = block_at(&self.tables.blocks, chunk.position())?;
        let start = self.tables.blocks.get(block)?.raw_start.get();
        Some(ChunkPlace { block: BlockId(block), offset: (chunk.position() - start) as u32, bytes: chunk.bytes() })
    }

    /// First 16 bytes of the BLAKE3 hash of a chunk; `None` if there is no such chunk or hashes are
    /// not loaded.
    pub fn chunk_hash(&self, id: ChunkId) -> Option<[u8; format::CHUNK_HASH_BYTES]> {
        self.hashes.get(id)
    }

    /// The chunks that lie in a block, in the order of their positions.
    pub fn block_chunks(&self, id: BlockId) -> impl Iterator<Item = ChunkId> + '_ {
        let (start, end) = match self.tables.blocks.get(id.0) {
            Some(block) => (block.raw_start.get(), block.raw_start.get() + u64::from(block.raw_bytes.get())),
            None => (0, 0),
        };
        let (low, high) = (self.chunks_before(start), self.chunks_before(end));
        (low..high).map(|rank| ChunkId(self.chunk_at_rank(rank)))
    }

    /// The first page that refers to a chunk: lowest inode number, then lowest page. `None` if
    /// there is no such chunk.
    pub fn chunk_owner(&self, id: ChunkId) -> Option<PageId> {
        let (inode, index) = self.chunk_reference(id)?;
        Some(PageId::new(inode, (u64::from(index) * self.chunk_bytes() as u64 / PAGE_BYTES as u64) as u32))
    }

    /// The first file that refers to a chunk, and where in it, in chunks: the position that filters
    /// of blocks go by. `None` if there is no such chunk.
    pub fn chunk_reference(&self, id: ChunkId) -> Option<(InodeId, u32)> {
        if id.0 >= self.chunk_count() {
            return None;
        }
        let sample = self.chunk_index.introduced.partition_point(|&introduced| introduced <= id.0).checked_sub(1)?;
        let mut index = sample as u32 * OWNER_SAMPLE_EXTENTS;
        let inodes = &self.tables.inodes;
        loop {
            let after = inodes.partition_point(0..inodes.len(), |raw| raw.extent_first.get() <= index);
            let inode = InodeId(after);
            let (range, file_chunks) = (self.extent_range(inode), self.file_chunks(inode));
            while index < range.end {
                let run = self.extent_at(index, range.end, file_chunks)?;
                if let Some(first) = run.chunk
                    && id.0 >= first.0
                    && id.0 - first.0 < run.chunks
                {
                    return Some((inode, run.file_chunk + (id.0 - first.0)));
                }
                index += 1;
            }
            if index >= self.tables.extents.len() {
                return None;
            }
        }
    }

    /// Chunks whose position is below `position`.
    fn chunks_before(&self, position: u64) -> u32 {
        let chunks = &self.tables.chunks;
        match &self.chunk_index.by_position {
            None => chunks.partition_point(0..chunks.len(), |chunk| chunk.position() < position),
            Some(order) => order
                .partition_point(|&chunk| chunks.get(chunk).is_some_and(|chunk| chunk.position() < position))
                as u32,
        }
    }

    fn chunk_at_rank(&self, rank: u32) -> u32 {
        match &self.chunk_index.by_position {
            None => rank,
            Some(order) => order.get(rank as usize).copied().unwrap_or(0),
        }
    }
}
