//! Deduplication: each distinct chunk is kept once, in the order of first use; files become runs of chunk numbers.
//!
//! Chunks are compared by their whole BLAKE3 hash. A chunk of zeros is no chunk but a hole: readers produce zeros for
//! free, whether or not the source file was sparse there.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use image::{Builder, ChunkRecord, ImageError};
use units::{BlockId, ChunkId};

use crate::inodes::FileWork;
use crate::read_batch::CHUNK_BYTES;

/// The BLAKE3 hash of a chunk, or `None` for a chunk of zeros.
pub(crate) fn hash(bytes: &[u8]) -> Option<[u8; 32]> {
    const ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];
    (bytes != &ZEROS[..bytes.len()]).then(|| *blake3::hash(bytes).as_bytes())
}

/// BLAKE3 output is as good a table position as any hash of it: takes the first 8 bytes.
#[derive(Default)]
struct Prefix(u64);

impl Hasher for Prefix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }
}

/// All distinct chunks so far.
#[derive(Default)]
pub(crate) struct Chunks {
    numbers: HashMap<[u8; 32], ChunkId, BuildHasherDefault<Prefix>>,
    pub(crate) records: Vec<ChunkRecord>,
    /// Uses of chunks, repetitions counted.
    pub(crate) uses: u64,
}

impl Chunks {
    /// The number of the chunk with this hash. For a new one, `place` keeps its bytes and says where they lie.
    pub(crate) fn add(&mut self, hash: [u8; 32], bytes: u32, place: impl FnOnce() -> (BlockId, u32)) -> ChunkId {
        self.uses += 1;
        match self.numbers.entry(hash) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                let number = *free.insert(ChunkId(self.records.len() as u32));
                let (block, offset) = place();
                self.records.push(ChunkRecord { block, offset, bytes, hash });
                number
            }
        }
    }
}

/// The runs of the file being read. Chunks come in file order; what does not come is a hole.
pub(crate) struct Runs<'a> {
    builder: &'a mut Builder,
    files: &'a [FileWork<'a>],
    /// Index of the current file.
    file: usize,
    /// Chunks of the current file that the builder knows.
    done: u32,
    /// The run being collected, which starts at `done`.
    run: Option<(ChunkId, u32)>,
}

impl<'a> Runs<'a> {
    pub(crate) fn new(builder: &'a mut Builder, files: &'a [FileWork<'a>]) -> Runs<'a> {
        Runs { builder, files, file: 0, done: 0, run: None }
    }

    /// Chunk `position` of file `file` is `chunk`.
    pub(crate) fn add(&mut self, file: u32, position: u32, chunk: ChunkId) -> Result<(), ImageError> {
        while self.file < file as usize {
            self.end_file()?;
        }
        if let Some((first, count)) = &mut self.run
            && self.done + *count == position
            && first.0 + *count == chunk.0
        {
            *count += 1;
            return Ok(());
        }
        self.end_run()?;
        self.hole(position)?;
        self.run = Some((chunk, 1));
        Ok(())
    }

    /// No more chunks come.
    pub(crate) fn finish(mut self) -> Result<(), ImageError> {
        while self.file < self.files.len() {
            self.end_file()?;
        }
        Ok(())
    }

    fn end_file(&mut self) -> Result<(), ImageError> {
        self.end_run()?;
        // Within 32 bits: the builder refused larger files when they were added.
        self.hole(self.files[self.file].size.div_ceil(CHUNK_BYTES as u64) as u32)?;
        self.file += 1;
        self.done = 0;
        Ok(())
    }

    fn end_run(&mut self) -> Result<(), ImageError> {
        if let Some((first, count)) = self.run.take() {
            self.builder.add_extent(self.files[self.file].inode, Some(first), count)?;
            self.done += count;
        }
        Ok(())
    }

    fn hole(&mut self, until: u32) -> Result<(), ImageError> {
        if until > self.done {
            self.builder.add_extent(self.files[self.file].inode, None, until - self.done)?;
            self.done = until;
        }
        Ok(())
    }
}
