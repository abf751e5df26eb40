//! Extents: the runs of chunks and holes that make up a file.

use crate::{Metadata, format};
use units::{ChunkId, InodeId};

/// A run of a file, in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRun {
    /// Where it starts in the file, in chunks.
    pub file_chunk: u32,
    /// Its first chunk, the others have the numbers after it; `None` for a hole.
    pub chunk: Option<ChunkId>,
    /// Its length in chunks. The last chunk of a file may be short.
    pub chunks: u32,
}

impl Metadata {
    /// The extents of a file in file order, without gaps; none if `id` is no file or is empty.
    pub fn extents(&self, id: InodeId) -> impl Iterator<Item = ExtentRun> + '_ {
        let range = self.extent_range(id);
        let file_chunks = self.file_chunks(id);
        let end = range.end;
        range.filter_map(move |index| self.extent_at(index, end, file_chunks))
    }

    /// Number of chunks (or hole slots) of a file: its size in chunks, rounded up; 0 if `id` is no
    /// file.
    pub(crate) fn file_chunks(&self, id: InodeId) -> u32 {
        match self.raw_inode(id) {
            Some(raw) if raw.mode.get() & format::MODE_TYPE == format::MODE_FILE => {
                raw.size.get().div_ceil(self.chunk_bytes() as u64).min(u32::MAX.into()) as u32
            }
            _ => 0,
        }
    }

    /// The extent `index` of a file whose extents end at index `end` and which has `file_chunks`
    /// chunks.
    pub(crate) fn extent_at(&self, index: u32, end: u32, file_chunks: u32) -> Option<ExtentRun> {
        let raw = self.tables.extents.get(index)?;
        let file_chunk = raw.file_chunk.get();
        let next = if index + 1 < end { self.tables.extents.get(index + 1)?.file_chunk.get() } else { file_chunks };
        let first = raw.chunk_first.get();
        let chunk = if first == format::HOLE { None } else { Some(ChunkId(first)) };
        Some(ExtentRun { file_chunk, chunk, chunks: next.checked_sub(file_chunk)? })
    }
}
