//! The first pass: reads every file once and finds the distinct chunks, their kinds, and how they
//! resemble each other. Keeps no data, only descriptions.
//!
//! One thread reads a batch ahead. A batch is hashed, grouped and sampled on all threads, and
//! deduplicated on one, which takes a few per cent of the time.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, sync_channel};

use codec::filter;
use image::{Builder, Filter, ImageError, Limits};
use rayon::prelude::*;

use crate::chunks::{self, Chunk, Chunks, Runs};
use crate::group::{FileKind, Group};
use crate::hot::HotPages;
use crate::inodes::FileWork;
use crate::read_batch::{Batch, Piece, Reading, read_files};
use crate::recompress::Streams;
use crate::sort::{Describer, Features};
use crate::{Options, PackError, Progress};

/// Bytes of a batch: large enough that the end of one, where threads wait for the slowest task,
/// does not show.
const BATCH_BYTES: usize = 8 << 20;
/// Bytes of metadata for each distinct chunk: its place and its hash.
const CHUNK_METADATA_BYTES: u64 = (size_of::<image::format::Chunk>() + image::format::CHUNK_HASH_BYTES) as u64;
/// Chunks described as one task: some hundred microseconds of work.
const TASK_CHUNKS: usize = 64;

/// What the first pass found.
pub(crate) struct Survey {
    pub(crate) chunks: Chunks,
    /// Features of each distinct chunk; none if nothing will be sorted by content.
    pub(crate) features: Features,
    /// Files that are kept as their text; none unless that was asked for.
    pub(crate) streams: Streams,
}

/// What is known of one chunk before it is known whether it is new.
struct Described {
    hash: [u8; 32],
    group: Group,
    shingles: Vec<u32>,
}

/// Reads all of `files`, which hold `bytes` bytes, and gives `builder` their extents.
pub(crate) fn survey(
    files: &[FileWork<'_>],
    bytes: u64,
    hot: &HotPages,
    builder: &mut Builder,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Survey, PackError> {
    let chunk_bytes = options.chunk_bytes() as usize;
    let describer = Describer::new(options, bytes);
    let mut work = Work {
        found: Survey {
            chunks: Chunks::new(options.stages.deduplicate),
            features: Features::default(),
            streams: Streams::default(),
        },
        runs: Runs::new(builder, files, chunk_bytes as u64),
        hot,
        chunk_bytes,
        describer,
        filters: options.stages.filter,
    };
    let stages = &options.stages;
    let reading = Reading { chunk: chunk_bytes, batch: BATCH_BYTES, kinds: stages.group || stages.filter };
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel(1);
        scope.spawn(move || read_files(files, reading, &send));
        work.run(receive, progress)
    })?;
    work.runs.finish()?;
    Ok(work.found)
}

struct Work<'a> {
    found: Survey,
    runs: Runs<'a>,
    hot: &'a HotPages,
    chunk_bytes: usize,
    describer: Option<Describer<'a>>,
    /// Whether chunks will be filtered: what is compared is what will be compressed.
    filters: bool,
}

impl Work<'_> {
    fn run(&mut self, receive: Receiver<Result<Batch, PackError>>, progress: &dyn Progress) -> Result<(), PackError> {
        for batch in receive {
            let batch = batch?;
            self.batch(&batch)?;
            progress.advance(batch.progress);
        }
        Ok(())
    }

    fn batch(&mut self, batch: &Batch) -> Result<(), PackError> {
        let chunk_bytes = self.chunk_bytes;
        let spans: Vec<_> =
            batch.pieces.iter().flat_map(|piece| piece.chunks(chunk_bytes).map(move |chunk| (piece, chunk))).collect();
        let part = |(_, (_, start, bytes)): &(&Piece, (u32, usize, usize))| &batch.bytes[*start..start + bytes];
        let describe = |spans: &[(&Piece, (u32, usize, usize))]| {
            let parts: Vec<&[u8]> = spans.iter().map(part).collect();
            let hashed = chunks::hashes(&parts).into_iter().zip(parts);
            let task = spans.iter().zip(hashed).map(|((piece, (position, ..)), (hash, bytes))| {
                let kind = &batch.kinds[piece.kind as usize];
                Some(self.describe(hash?, kind, u64::from(*position) * chunk_bytes as u64, bytes))
            });
            task.collect::<Vec<Option<Described>>>()
        };
        let described: Vec<Option<Described>> = spans.par_chunks(TASK_CHUNKS).flat_map_iter(describe).collect();
        for ((piece, (position, _, bytes)), described) in spans.into_iter().zip(described) {
            let Some(Described { hash, mut group, shingles }) = described else { continue };
            let programs = self.hot.programs(piece.file, position, chunk_bytes);
            if programs.is_some() {
                group = group.hot();
            }
            let programs = programs.unwrap_or_default();
            let chunk = Chunk { hash, bytes: bytes as u32, file: piece.file, position, group, programs };
            let (number, is_new) = self.found.chunks.add(chunk);
            if is_new {
                self.found.features.push(&shingles);
            }
            self.runs.add(piece.file, position, number)?;
        }
        self.check_limits()?;
        Ok(())
    }

    /// What is known of a chunk with this hash at `position` of a file, in bytes.
    fn describe(&self, hash: [u8; 32], kind: &FileKind, position: u64, bytes: &[u8]) -> Described {
        let group = kind.group(position, bytes);
        let mut shingles = Vec::new();
        if let Some(describer) = self.describer {
            let filter = if self.filters { group.filter() } else { Filter::None };
            let mut filtered = Vec::new();
            let bytes = if filter == Filter::None {
                bytes
            } else {
                filtered.extend_from_slice(bytes);
                filter::encode(filter, position, &mut filtered);
                filtered.as_slice()
            };
            describer.describe(bytes, &mut shingles);
        }
        Described { hash, group, shingles }
    }

    /// Ends early what could only fail at the very end, after hours perhaps.
    fn check_limits(&self) -> Result<(), ImageError> {
        let (limit, found) = (Limits::WRITTEN.chunks_max.into(), self.found.chunks.list.len() as u64);
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
}

impl Survey {
    /// Bytes of the distinct chunks.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.list.iter().map(|chunk| u64::from(chunk.bytes)).sum()
    }

    /// Means over the files that have chunks for which `counts` holds: the number of different
    /// blocks these lie in.
    pub(crate) fn blocks_per_file(&self, block_of: &[u32], counts: impl Fn(&Chunk) -> bool) -> f64 {
        let (mut files, mut total, mut here) = (0u64, 0u64, BTreeSet::new());
        let mut file = None;
        let uses = self.chunks.uses.iter().zip(self.chunks.users.iter().map(|user| Some(*user)));
        for (chunk, user) in uses {
            if user != file {
                total += here.len() as u64;
                files += u64::from(!here.is_empty());
                here.clear();
                file = user;
            }
            if counts(&self.chunks.list[chunk.0 as usize]) {
                here.insert(block_of[chunk.0 as usize]);
            }
        }
        total += here.len() as u64;
        files += u64::from(!here.is_empty());
        total as f64 / files.max(1) as f64
    }
}
