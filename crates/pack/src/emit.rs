//! The second pass, which makes the blocks: gathers the chunks of each, filters them, compresses,
//! and writes in order.
//!
//! Many blocks are made at once and their order kept, so the result does not depend on the number
//! of threads. Memory: the raw and the compressed bytes of eight blocks a thread, and what the
//! codec needs a thread.

use codec::filter;
use image::{BlockRecord, ChunkRecord, Codec, Filter};
use rayon::ThreadPool;
use rayon::prelude::*;
use units::BlockId;

use crate::arrange::Arrangement;
use crate::base::{Kept, KeptBlock, Place};
use crate::dictionary::Dictionaries;
use crate::gather::gather;
use crate::inodes::FileWork;
use crate::recompress::expand;
use crate::survey::Survey;
use crate::{Options, PackError, Progress};

/// Blocks made at once for each thread: the slowest of the last few makes the others wait.
const WINDOW_BLOCKS_PER_THREAD: usize = 8;

/// What all blocks are made of.
pub(crate) struct Emitter<'a> {
    pub(crate) options: &'a Options,
    pub(crate) files: &'a [FileWork<'a>],
    pub(crate) survey: &'a Survey,
    pub(crate) kept: &'a Kept<'a>,
    pub(crate) dictionaries: &'a Dictionaries,
}

/// The blocks that were written, and the positions of the chunks.
pub(crate) struct Emitted {
    pub(crate) blocks: Vec<BlockRecord>,
    /// By chunk number.
    pub(crate) chunks: Vec<ChunkRecord>,
    /// The first so many blocks are hot.
    pub(crate) hot_blocks: u32,
}

/// Where a block comes from.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// A base.
    Kept(&'a KeptBlock<'a>),
    /// This block of the arrangement.
    New(usize),
}

/// A block of which nothing is known yet.
const EMPTY: BlockRecord = BlockRecord {
    codec: Codec::Stored,
    filter: Filter::None,
    dictionary: None,
    stored_bytes: 0,
    raw_bytes: 0,
    expansion_bytes: 0,
    hash: [0; 32],
};

fn made(stored: Vec<u8>, record: BlockRecord) -> Made {
    let hash = *blake3::hash(&stored).as_bytes();
    Made { record: BlockRecord { stored_bytes: stored.len() as u32, hash, ..record }, stored }
}

/// A block as it goes to the output.
struct Made {
    stored: Vec<u8>,
    record: BlockRecord,
}

impl Emitter<'_> {
    /// Makes all blocks on `pool`, and hands their bytes to `write` in order.
    pub(crate) fn emit(
        &self,
        pool: &ThreadPool,
        arrangement: &Arrangement,
        progress: &dyn Progress,
        write: &mut dyn FnMut(&[u8]) -> Result<(), PackError>,
    ) -> Result<Emitted, PackError> {
        let nowhere = ChunkRecord { block: BlockId(0), offset: 0, bytes: 0, hash: [0; 32] };
        let (hot, cold) = self.origins(arrangement);
        let hot_blocks = hot.len() as u32;
        let origins: Vec<Origin<'_>> = hot.into_iter().chain(cold).collect();
        let mut emitted = Emitted {
            blocks: Vec::with_capacity(origins.len()),
            chunks: vec![nowhere; self.survey.chunks.list.len()],
            hot_blocks,
        };
        let window = pool.current_num_threads() * WINDOW_BLOCKS_PER_THREAD;
        for origins in origins.chunks(window) {
            let make = |origin: &Origin<'_>| match origin {
                Origin::Kept(block) => block.read().map(|(stored, record)| Made { stored, record }),
                Origin::New(index) => self.make(arrangement, *index),
            };
            let made: Vec<Made> = pool.install(|| origins.par_iter().map(make).collect::<Result<_, _>>())?;
            for (origin, made) in origins.iter().zip(made) {
                write(&made.stored)?;
                let block = BlockId(emitted.blocks.len() as u32);
                let mut place = |Place { chunk: number, offset }| {
                    let chunk = &self.survey.chunks.list[number as usize];
                    emitted.chunks[number as usize] =
                        ChunkRecord { block, offset, bytes: chunk.bytes, hash: chunk.hash };
                    offset + chunk.bytes
                };
                match origin {
                    Origin::Kept(kept) => kept.chunks.iter().for_each(|chunk| _ = place(*chunk)),
                    Origin::New(index) => {
                        let chunks = arrangement.blocks[*index].iter();
                        chunks.fold(0, |offset, &chunk| place(Place { chunk, offset }));
                    }
                }
                emitted.blocks.push(made.record);
                progress.advance(made.record.raw_bytes.into());
            }
        }
        Ok(emitted)
    }

    /// The hot blocks and the cold ones in their order: what is kept comes first.
    fn origins(&self, arrangement: &Arrangement) -> (Vec<Origin<'_>>, Vec<Origin<'_>>) {
        let (kept_hot, kept_cold) = self.kept.blocks.split_at(self.kept.hot_blocks);
        let (first_cold, end) = (arrangement.hot_blocks as usize, arrangement.blocks.len());
        let hot = kept_hot.iter().map(Origin::Kept).chain((0..first_cold).map(Origin::New)).collect();
        let cold = kept_cold.iter().map(Origin::Kept).chain((first_cold..end).map(Origin::New)).collect();
        (hot, cold)
    }

    fn make(&self, arrangement: &Arrangement, index: usize) -> Result<Made, PackError> {
        let group = arrangement.groups[index];
        let mut raw = Vec::with_capacity(self.options.block_bytes as usize);
        if group.filter() == Filter::Deflate {
            return self.make_expanded(&arrangement.blocks[index], raw);
        }
        let filter = self.raw(&arrangement.blocks[index], group.filter(), &mut raw)?;
        let dictionary = self.dictionaries.of(group);
        let mut stored = Vec::new();
        let level = self.options.effective_level();
        codec::encode_with(self.options.codec, level, dictionary.map(|(_, prepared)| prepared), &raw, &mut stored)?;
        let raw_bytes = raw.len() as u32;
        let (codec, filter, dictionary, stored) = if stored.len() < raw.len() {
            (self.options.codec, filter, dictionary.map(|(index, _)| index), stored)
        } else {
            // Stored as it is, so also without its filter.
            if filter != Filter::None {
                raw.clear();
                self.raw(&arrangement.blocks[index], Filter::None, &mut raw)?;
            }
            (Codec::Stored, Filter::None, None, raw)
        };
        Ok(made(stored, BlockRecord { codec, filter, dictionary, raw_bytes, ..EMPTY }))
    }

    /// A block of files that are kept as their text; an ordinary one if that is not smaller or does
    /// not come out.
    fn make_expanded(&self, chunks: &[u32], mut raw: Vec<u8>) -> Result<Made, PackError> {
        self.raw(chunks, Filter::None, &mut raw)?;
        let (codec, level) = (self.options.codec, self.options.effective_level());
        let raw_bytes = raw.len() as u32;
        let mut plain = Vec::new();
        codec::encode(codec, level, &raw, &mut plain)?;
        let record = if plain.len() < raw.len() {
            BlockRecord { codec, raw_bytes, ..EMPTY }
        } else {
            plain = raw.clone();
            BlockRecord { raw_bytes, ..EMPTY }
        };
        // What the codec leaves as it is has nothing to gain.
        let expansion = if codec == Codec::Stored { None } else { expand(&self.survey.streams, chunks, &raw) };
        let Some(expansion) = expansion else { return Ok(made(plain, record)) };
        let mut stored = Vec::new();
        codec::encode(codec, level, &expansion, &mut stored)?;
        if stored.len() >= plain.len() {
            return Ok(made(plain, record));
        }
        let expansion_bytes = expansion.len() as u32;
        Ok(made(stored, BlockRecord { codec, filter: Filter::Deflate, raw_bytes, expansion_bytes, ..EMPTY }))
    }

    /// The bytes of a block before compression, and the filter that its chunks went through.
    pub(crate) fn raw(&self, chunks: &[u32], wanted: Filter, raw: &mut Vec<u8>) -> Result<Filter, PackError> {
        let list: Vec<_> = chunks.iter().map(|&number| &self.survey.chunks.list[number as usize]).collect();
        let chunk_bytes = u64::from(self.options.chunk_bytes());
        gather(self.files, chunk_bytes, &list, raw)?;
        if wanted == Filter::None {
            return Ok(Filter::None);
        }
        let plain = raw.clone();
        let each = |raw: &mut [u8], apply: fn(Filter, u64, &mut [u8])| {
            let mut rest = raw;
            for chunk in &list {
                let (bytes, after) = std::mem::take(&mut rest).split_at_mut(chunk.bytes as usize);
                apply(wanted, u64::from(chunk.position) * chunk_bytes, bytes);
                rest = after;
            }
        };
        each(raw, filter::encode);
        let mut back = raw.clone();
        each(&mut back, filter::decode);
        if back != plain {
            // A filter that cannot be undone is a mistake of ours; the block goes without it.
            debug_assert!(false, "the filter {wanted} is not reversible");
            *raw = plain;
            return Ok(Filter::None);
        }
        Ok(wanted)
    }
}
