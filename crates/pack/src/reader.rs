//! Reads the files of an image: caches decoded blocks, and reports holes apart from data.

use std::collections::HashMap;

use image::{ImageError, Metadata, ReadAt};
use units::{BlockId, ChunkId, InodeId};

/// Bytes of decoded blocks kept. Files in inode order use blocks in order, so this only serves
/// shared chunks.
const CACHE_BYTES: usize = 32 << 20;

/// A part of a file, in file order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Bytes.
    Data(&'a [u8]),
    /// Zeros that the image does not store.
    Hole(u64),
}

/// Reads whole files of one image. Every block is checked against its hash before a byte of it is
/// used.
pub struct BlockReader<'a> {
    metadata: &'a Metadata,
    source: &'a dyn ReadAt,
    cache: HashMap<BlockId, Cached>,
    cached_bytes: usize,
    clock: u64,
    stored: Vec<u8>,
}

struct Cached {
    raw: Vec<u8>,
    used: u64,
}

impl<'a> BlockReader<'a> {
    /// A reader of the image whose bytes are `source`.
    pub fn new(metadata: &'a Metadata, source: &'a dyn ReadAt) -> BlockReader<'a> {
        BlockReader { metadata, source, cache: HashMap::new(), cached_bytes: 0, clock: 0, stored: Vec::new() }
    }

    /// Calls `visit` with each part of the file `inode` until it returns an error.
    ///
    /// # Errors
    /// A block is damaged or cannot be read, or the error of `visit`.
    pub fn read<E: From<ImageError>>(
        &mut self,
        inode: InodeId,
        mut visit: impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let metadata = self.metadata;
        let chunk_bytes = metadata.chunk_bytes() as u64;
        let size = metadata.inode(inode).map_or(0, |inode| inode.size());
        for run in metadata.extents(inode) {
            let start = u64::from(run.file_chunk) * chunk_bytes;
            match run.chunk {
                None => visit(Part::Hole((u64::from(run.chunks) * chunk_bytes).min(size - start)))?,
                Some(first) => {
                    let mut next = first.0;
                    let end = first.0 + run.chunks;
                    while next < end {
                        next = self.together(next, end, &mut visit)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Visits chunk `first` and those after it that follow it within its block; returns the first
    /// chunk left.
    fn together<E: From<ImageError>>(
        &mut self,
        first: u32,
        end: u32,
        visit: &mut impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<u32, E> {
        let metadata = self.metadata;
        let place = metadata.chunk(ChunkId(first)).expect("extents name chunks that exist: checked when opened");
        let start = place.offset as usize;
        let (mut stop, mut next) = (start + place.bytes as usize, first + 1);
        while next < end
            && let Some(follower) = metadata.chunk(ChunkId(next))
            && follower.block == place.block
            && follower.offset as usize == stop
        {
            stop += follower.bytes as usize;
            next += 1;
        }
        visit(Part::Data(&self.block(place.block)?[start..stop]))?;
        Ok(next)
    }

    fn block(&mut self, id: BlockId) -> Result<&[u8], ImageError> {
        self.clock += 1;
        let clock = self.clock;
        if !self.cache.contains_key(&id) {
            let raw = self.decode(id)?;
            self.make_room(raw.len());
            self.cached_bytes += raw.len();
            self.cache.insert(id, Cached { raw, used: clock });
        }
        let cached = self.cache.get_mut(&id).expect("just looked up or inserted");
        cached.used = clock;
        Ok(&cached.raw)
    }

    fn decode(&mut self, id: BlockId) -> Result<Vec<u8>, ImageError> {
        let count = self.metadata.block_count();
        let entry = self.metadata.block(id).ok_or(ImageError::NoBlock { block: id, count })?;
        self.stored.resize(entry.stored_bytes as usize, 0);
        let read = self.source.read_exact_at(entry.file_offset, &mut self.stored);
        read.map_err(|source| ImageError::Read { what: "block", offset: entry.file_offset, source })?;
        let mut raw = Vec::new();
        self.metadata.decode_block(id, &self.stored, &mut raw)?;
        Ok(raw)
    }

    fn make_room(&mut self, bytes: usize) {
        while self.cached_bytes + bytes > CACHE_BYTES
            && let Some(oldest) = self.cache.iter().min_by_key(|(_, cached)| cached.used).map(|(id, _)| *id)
        {
            let gone = self.cache.remove(&oldest);
            self.cached_bytes -= gone.map_or(0, |cached| cached.raw.len());
        }
    }
}
