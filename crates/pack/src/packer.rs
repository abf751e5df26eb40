//! The pipeline: list, number, then read | hash | deduplicate | fill | compress | write, batch by batch.
//!
//! One thread reads a batch ahead. Hashing and compressing a batch run on all threads; deduplicating and filling
//! blocks between them run on one and take a few per cent of the time. Blocks are filled across batches, so neither
//! the size of batches nor the number of threads shows in the output.

use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use image::format::SUPERBLOCK_BYTES;
use image::{ImageError, Limits};
use rayon::prelude::*;
use serde::Serialize;
use units::ImageId;

use crate::blocks::Blocks;
use crate::chunks::{self, Chunks, Runs};
use crate::inodes::{FileWork, Inodes, number};
use crate::notes::Notes;
use crate::read_batch::{Batch, read_files};
use crate::tree::Tree;
use crate::{FileOutput, Options, Output, PackError, Phase, Progress, Source, spool};

/// Smallest batch: large enough that the end of a batch, where threads wait for the slowest block, does not show.
const BATCH_BYTES_MIN: usize = 8 << 20;
/// Largest batch, for many threads and large blocks.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// Blocks a batch should have for each thread.
const BATCH_BLOCKS_PER_THREAD: usize = 8;
/// Bytes of metadata for each distinct chunk: its place and its hash.
const CHUNK_METADATA_BYTES: u64 = (size_of::<image::format::Chunk>() + image::format::CHUNK_HASH_BYTES) as u64;
/// Chunks hashed as one task: some hundred microseconds of work.
const HASH_TASK_CHUNKS: usize = 64;

/// What was packed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Identity of the image.
    #[serde(serialize_with = "as_text")]
    pub id: ImageId,
    /// Inodes of all kinds.
    pub inodes: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of the regular files, holes included; a file with several names counts once.
    pub bytes_in: u64,
    /// Chunks that are not zero.
    pub chunks: u64,
    /// Distinct ones among them.
    pub chunks_unique: u64,
    /// Bytes of the distinct chunks.
    pub bytes_unique: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of the image.
    pub bytes_out: u64,
    /// Bytes of its metadata.
    pub bytes_metadata: u64,
    /// Wall time from listing to durable.
    pub seconds: f64,
    /// What the user should know about the source.
    pub notes: Vec<String>,
}

fn as_text<S: serde::Serializer>(id: &ImageId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

/// Packs `source` into an image at `output`. An existing file there is replaced when the new one is complete, and
/// untouched if anything fails.
///
/// # Errors
/// The first thing that goes wrong; see [`PackError`].
pub fn pack(source: Source, output: &Path, options: &Options, progress: &dyn Progress) -> Result<Report, PackError> {
    options.validate()?;
    let mut output = FileOutput::create(output)?;
    let skipped = output.identities();
    pack_skipping(source, &skipped, &mut output, options, progress)
}

/// Packs `source` into any [`Output`].
///
/// # Errors
/// As [`pack`].
pub fn pack_to(
    source: Source,
    output: &mut dyn Output,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, PackError> {
    options.validate()?;
    pack_skipping(source, &[], output, options, progress)
}

fn pack_skipping(
    source: Source,
    skipped: &[(u64, u64)],
    output: &mut dyn Output,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, PackError> {
    let start = Instant::now();
    let mut notes = Notes::default();
    let directory = options.spool_directory.clone().unwrap_or_else(spool::default_directory);
    let tree = source.read(&directory, skipped, &mut notes, progress)?;
    let mut report = write_tree(&tree, output, options, progress)?;
    report.seconds = start.elapsed().as_secs_f64();
    report.notes = notes.lines().collect();
    Ok(report)
}

fn write_tree(
    tree: &Tree,
    output: &mut dyn Output,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, PackError> {
    let Inodes { mut builder, files, bytes, count } = number(tree)?;
    progress.phase(Phase::Pack, bytes);
    let failed = |output: &dyn Output, source| PackError::write(output.path(), source);
    output.append(&[0; SUPERBLOCK_BYTES]).map_err(|source| failed(output, source))?;

    let threads = options.effective_threads();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|error| PackError::Threads { count: threads, problem: error.to_string() })?;
    let wanted = threads * BATCH_BLOCKS_PER_THREAD * options.block_bytes as usize;
    let batch_bytes = wanted.clamp(BATCH_BYTES_MIN, BATCH_BYTES_MAX);

    let mut work = Work {
        chunks: Chunks::default(),
        blocks: Blocks::new(options),
        runs: Runs::new(&mut builder, &files),
        pool,
        output,
        progress,
    };
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel(1);
        let files: &[FileWork<'_>] = &files;
        scope.spawn(move || read_files(files, batch_bytes, &send));
        work.run(receive)
    })?;
    let Work { chunks, blocks, runs, output, .. } = work;
    runs.finish()?;

    let built = builder.finish(&blocks.records, &chunks.records)?;
    progress.phase(Phase::Finish, built.metadata.len() as u64);
    output.append(&built.metadata).map_err(|source| failed(output, source))?;
    output.write_start(&built.superblock).map_err(|source| failed(output, source))?;
    output.commit().map_err(|source| failed(output, source))?;
    progress.advance(built.metadata.len() as u64);
    Ok(Report {
        id: built.id,
        inodes: count,
        files: files.len() as u64,
        bytes_in: bytes,
        chunks: chunks.uses,
        chunks_unique: chunks.records.len() as u64,
        bytes_unique: chunks.records.iter().map(|chunk| u64::from(chunk.bytes)).sum(),
        blocks: blocks.records.len() as u64,
        bytes_out: built.file_bytes,
        bytes_metadata: built.metadata.len() as u64,
        seconds: 0.0,
        notes: Vec::new(),
    })
}

/// The stages after reading.
struct Work<'a, 'o> {
    chunks: Chunks,
    blocks: Blocks,
    runs: Runs<'a>,
    pool: rayon::ThreadPool,
    output: &'o mut dyn Output,
    progress: &'o dyn Progress,
}

impl Work<'_, '_> {
    fn run(&mut self, receive: Receiver<Result<Batch, PackError>>) -> Result<(), PackError> {
        for batch in receive {
            let batch = batch?;
            self.batch(&batch)?;
            self.progress.advance(batch.progress);
        }
        self.blocks.close();
        self.write_full()
    }

    fn batch(&mut self, batch: &Batch) -> Result<(), PackError> {
        let spans: Vec<_> =
            batch.pieces.iter().flat_map(|piece| piece.chunks().map(|chunk| (piece.file, chunk))).collect();
        let hashes: Vec<Option<[u8; 32]>> = self.pool.install(|| {
            let spans = spans.par_iter().with_min_len(HASH_TASK_CHUNKS);
            spans.map(|(_, (_, start, bytes))| chunks::hash(&batch.bytes[*start..start + bytes])).collect()
        });
        for ((file, (position, start, bytes)), hash) in spans.into_iter().zip(hashes) {
            let Some(hash) = hash else { continue };
            let chunk = self.chunks.add(hash, bytes as u32, || self.blocks.add(&batch.bytes[start..start + bytes]));
            self.runs.add(file, position, chunk)?;
        }
        self.check_limits()?;
        self.write_full()
    }

    /// Ends early what could only fail at the very end, after hours perhaps.
    fn check_limits(&self) -> Result<(), ImageError> {
        let (limit, found) = (Limits::WRITTEN.chunks_max.into(), self.chunks.records.len() as u64);
        if found > limit {
            return Err(ImageError::Limit { what: "the number of chunks", limit, found });
        }
        let limit = Limits::WRITTEN.metadata_bytes_max;
        let found = found * CHUNK_METADATA_BYTES;
        if found > limit {
            return Err(ImageError::Limit { what: "the bytes of metadata for chunks alone", limit, found });
        }
        Ok(())
    }

    fn write_full(&mut self) -> Result<(), PackError> {
        let (pool, blocks) = (&self.pool, &mut self.blocks);
        for block in pool.install(|| blocks.compress())? {
            self.output.append(&block.bytes).map_err(|source| PackError::write(self.output.path(), source))?;
        }
        Ok(())
    }
}
