//! Deduplication: each distinct chunk is kept once, in the order of first use; files become runs of
//! chunk numbers.
//!
//! Chunks are compared by their whole BLAKE3 hash. A chunk of zeros is no chunk but a hole: readers
//! produce zeros for free, whether or not the source file was sparse there.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use image::{Builder, ImageError};
use units::{ChunkId, PAGE_BYTES};

use crate::group::Group;
use crate::hot::Programs;
use crate::inodes::FileWork;

/// The BLAKE3 hash of each of some chunks, or `None` for a chunk of zeros.
pub(crate) fn hashes(chunks: &[&[u8]]) -> Vec<Option<[u8; 32]>> {
    const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
    let hashes = image::hash_many(chunks);
    let hash = |(bytes, hash): (&&[u8], blake3::Hash)| (*bytes != &ZEROS[..bytes.len()]).then(|| *hash.as_bytes());
    chunks.iter().zip(hashes).map(hash).collect()
}

/// BLAKE3 output is as good a table position as any hash of it: takes the first 8 bytes.
#[derive(Default)]
pub(crate) struct Prefix(u64);

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

/// A distinct chunk, as the first file has it that uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) hash: [u8; 32],
    /// Its length.
    pub(crate) bytes: u32,
    /// Index of that file in the list of files.
    pub(crate) file: u32,
    /// Position in that file, in chunks.
    pub(crate) position: u32,
    /// Hot if any use of it is.
    pub(crate) group: Group,
    /// The programs that touch any use of it.
    pub(crate) programs: Programs,
}

/// All distinct chunks so far.
pub(crate) struct Chunks {
    numbers: HashMap<[u8; 32], ChunkId, BuildHasherDefault<Prefix>>,
    /// Whether equal chunks are kept once.
    deduplicate: bool,
    pub(crate) list: Vec<Chunk>,
    /// The chunk of each use, file after file; holes left out.
    pub(crate) uses: Vec<ChunkId>,
    /// For each use the file.
    pub(crate) users: Vec<u32>,
}

impl Chunks {
    pub(crate) fn new(deduplicate: bool) -> Chunks {
        Chunks { numbers: HashMap::default(), deduplicate, list: Vec::new(), uses: Vec::new(), users: Vec::new() }
    }

    /// The number of a chunk like this one, and whether it is new.
    pub(crate) fn add(&mut self, chunk: Chunk) -> (ChunkId, bool) {
        let next = ChunkId(self.list.len() as u32);
        let number = if self.deduplicate { *self.numbers.entry(chunk.hash).or_insert(next) } else { next };
        self.uses.push(number);
        self.users.push(chunk.file);
        if number == next {
            self.list.push(chunk);
        } else if chunk.group.is_hot() {
            let known = &mut self.list[number.0 as usize];
            known.group = known.group.hot();
            known.programs |= chunk.programs;
        }
        (number, number == next)
    }
}

/// The runs of the file being read. Chunks come in file order; what does not come is a hole.
pub(crate) struct Runs<'a> {
    builder: &'a mut Builder,
    files: &'a [FileWork<'a>],
    chunk_bytes: u64,
    /// Index of the current file.
    file: usize,
    /// Chunks of the current file that the builder knows.
    done: u32,
    /// The run being collected, which starts at `done`.
    run: Option<(ChunkId, u32)>,
}

impl<'a> Runs<'a> {
    pub(crate) fn new(builder: &'a mut Builder, files: &'a [FileWork<'a>], chunk_bytes: u64) -> Runs<'a> {
        Runs { builder, files, chunk_bytes, file: 0, done: 0, run: None }
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
        self.hole(self.files[self.file].size.div_ceil(self.chunk_bytes) as u32)?;
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
