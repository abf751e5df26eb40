//! Pages: the chunks that cover one, and verifying its bytes by their hashes.

use crate::format::{CHUNK_HASH_BYTES, HOLE};
use crate::hash_many::hash_many;
use crate::{ImageError, Kind, Metadata};
use units::{ChunkId, PAGE_BYTES, PageId};

/// Chunks in a page at the smallest chunk size accepted (256 bytes).
const PAGE_CHUNKS_MAX: usize = 16;

/// What covers a page: one chunk or hole slot for each `chunk_bytes` of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageChunks {
    slots: [u32; PAGE_CHUNKS_MAX],
    count: u8,
    /// Bytes of a slot; the last may be short.
    slot_bytes: u16,
    /// Bytes of the page inside its file.
    bytes: u16,
}

/// A part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePiece {
    /// The chunk that holds it, whole; `None` if it lies in a hole and is zero.
    pub chunk: Option<ChunkId>,
    /// Where it starts in the page.
    pub start: usize,
    /// Its length.
    pub bytes: usize,
}

impl PageChunks {
    /// Whether the whole page lies in a hole and is zero.
    pub fn is_hole(&self) -> bool {
        self.chunks().next().is_none()
    }

    /// The parts of the page in order; together they are the bytes of the page inside its file.
    pub fn pieces(&self) -> impl Iterator<Item = PagePiece> + '_ {
        (0..self.count as usize).map(|slot| {
            let start = slot * self.slot_bytes as usize;
            let bytes = (self.bytes as usize - start).min(self.slot_bytes as usize);
            let chunk = if self.slots[slot] == HOLE { None } else { Some(ChunkId(self.slots[slot])) };
            PagePiece { chunk, start, bytes }
        })
    }

    /// The chunks of the page in order, without holes.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.slots[..self.count as usize].iter().filter(|&&chunk| chunk != HOLE).map(|&chunk| ChunkId(chunk))
    }

    /// Bytes of the page inside its file.
    pub fn bytes(&self) -> usize {
        self.bytes.into()
    }
}

impl Metadata {
    /// Number of pages of a file; 0 if `inode` is no file.
    pub fn page_count(&self, inode: units::InodeId) -> u32 {
        let chunks_a_page = (PAGE_BYTES / self.chunk_bytes()) as u32;
        self.file_chunks(inode).div_ceil(chunks_a_page)
    }

    /// Bytes of a page inside its file: 4096, or fewer at the end; `None` if it lies outside or
    /// `inode` is no file.
    pub fn page_bytes(&self, page: PageId) -> Option<usize> {
        if !self.is_kind(page.inode, Kind::File) {
            return None;
        }
        let size = self.raw_inode(page.inode)?.size.get();
        let start = u64::from(page.index) * PAGE_BYTES as u64;
        if start >= size { None } else { Some((size - start).min(PAGE_BYTES as u64) as usize) }
    }

    /// The chunks and holes that cover a page; `None` if it lies outside its file.
    pub fn page_chunks(&self, page: PageId) -> Option<PageChunks> {
        let bytes = self.page_bytes(page)?;
        let slot_bytes = self.chunk_bytes();
        let count = bytes.div_ceil(slot_bytes);
        let first = u32::try_from(u64::from(page.index) * (PAGE_BYTES / slot_bytes) as u64).ok()?;
        let (range, file_chunks) = (self.extent_range(page.inode), self.file_chunks(page.inode));
        let extents = &self.tables.extents;
        let after = extents.partition_point(range.clone(), |extent| extent.file_chunk.get() <= first);
        let mut index = after.checked_sub(1)?;
        let mut run = self.extent_at(index, range.end, file_chunks)?;
        let mut slots = [HOLE; PAGE_CHUNKS_MAX];
        for (slot, place) in slots.iter_mut().take(count).enumerate() {
            let at = first + slot as u32;
            if at - run.file_chunk >= run.chunks {
                index += 1;
                run = self.extent_at(index, range.end, file_chunks)?;
            }
            if let Some(chunk) = run.chunk {
                *place = chunk.0 + (at - run.file_chunk);
            }
        }
        Some(PageChunks { slots, count: count as u8, slot_bytes: slot_bytes as u16, bytes: bytes as u16 })
    }

    /// Checks the bytes of a page against the hashes of its chunks; parts in holes must be zero.
    ///
    /// # Errors
    /// No such page, wrong length, wrong bytes, the image was opened early and hashes are not
    /// loaded, or it contradicts itself.
    pub fn verify_page(&self, page: PageId, bytes: &[u8]) -> Result<(), ImageError> {
        self.verify_pages(&[(page, bytes)])
    }

    /// Checks several pages as [`Metadata::verify_page`] does, at a lower cost for each.
    ///
    /// # Errors
    /// As [`Metadata::verify_page`], for one of the pages that fail.
    pub fn verify_pages(&self, pages: &[(PageId, &[u8])]) -> Result<(), ImageError> {
        self.check_consistent()?;
        let mut places = Vec::with_capacity(pages.len());
        let mut parts = Vec::with_capacity(pages.len());
        for &(page, bytes) in pages {
            let chunks = self.page_chunks(page).ok_or(ImageError::NoPage { page })?;
            if bytes.len() != chunks.bytes() {
                let (expected, found) = (chunks.bytes() as u64, bytes.len() as u64);
                return Err(ImageError::PageLength { page, expected, found });
            }
            for piece in chunks.pieces() {
                let part = &bytes[piece.start..piece.start + piece.bytes];
                if let Some(chunk) = piece.chunk {
                    places.push((page, chunk));
                    parts.push(part);
                } else if let Some(i) = part.iter().position(|&byte| byte != 0) {
                    let (offset, found) = ((piece.start + i) as u64, part[i]);
                    return Err(ImageError::PageHole { page, offset, found });
                }
            }
        }
        for ((page, chunk), hash) in places.into_iter().zip(hash_many(&parts)) {
            let expected = self.chunk_hash(chunk).ok_or(ImageError::NoChunkHashes { page })?;
            let found = short(&hash);
            if found != expected {
                return Err(ImageError::PageHash { page, chunk, expected, found });
            }
        }
        Ok(())
    }
}

/// The part of a BLAKE3 hash that the chunk table keeps.
pub(crate) fn short(hash: &blake3::Hash) -> [u8; CHUNK_HASH_BYTES] {
    let mut short = [0; CHUNK_HASH_BYTES];
    short.copy_from_slice(&hash.as_bytes()[..CHUNK_HASH_BYTES]);
    short
}
