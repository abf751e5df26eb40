//! Validation of the data side: blocks, places of chunks, and extents; and the small index derived
//! on the way.
//!
//! Costs one pass over each table. A run of chunks is checked without walking it: the short chunks,
//! which may only stand at the end of a file, are collected in a sorted list first, so an image
//! cannot make this slow by naming long runs often.

use crate::chunk::{ChunkIndex, OWNER_SAMPLE_EXTENTS, block_at};
use crate::metadata::Tables;
use crate::section::unknown_codec;
use crate::{Codec, Filter, ImageError, Superblock, format, limits, section_name};
use std::mem::offset_of;
use std::ops::Range;

/// Positions of chunks have 48 bits.
const RAW_BYTES_MAX: u64 = 1 << format::CHUNK_LENGTH_SHIFT;

fn corrupt<T>(kind: u32, index: u32, field: usize, what: &'static str, expected: u64, found: u64) -> ImageError {
    let offset = u64::from(index) * size_of::<T>() as u64 + field as u64;
    ImageError::Corrupt { section: section_name(kind), offset, what, expected, found }
}

/// `field` is where it stands in [`format::Block`].
fn block_error(
    superblock: &Superblock,
    (index, field): (u32, usize),
    what: &'static str,
    expected: u64,
    found: u64,
) -> ImageError {
    if superblock.has(format::FEATURE_BLOCK_HASHES) {
        let field = field.saturating_sub(offset_of!(format::Block, stored_bytes));
        return corrupt::<format::BlockSizes>(format::SECTION_BLOCKS, index, field, what, expected, found);
    }
    corrupt::<format::BlockAndHash>(format::SECTION_BLOCKS, index, field, what, expected, found)
}

fn chunk_error(index: u32, what: &'static str, expected: u64, found: u64) -> ImageError {
    corrupt::<format::Chunk>(format::SECTION_CHUNKS, index, 0, what, expected, found)
}

fn extent_error(index: u32, field: usize, what: &'static str, expected: u64, found: u64) -> ImageError {
    corrupt::<format::Extent>(format::SECTION_EXTENTS, index, field, what, expected, found)
}

/// Checks everything about data, and derives the index.
pub(crate) fn validate(superblock: &Superblock, tables: &Tables) -> Result<ChunkIndex, ImageError> {
    validate_blocks(superblock, tables)?;
    let chunk_bytes = superblock.chunk_bytes() as u32;
    let chunks = validate_chunks(tables, chunk_bytes)?;
    let introduced = validate_files(tables, chunk_bytes, &chunks.short)?;
    let by_position: Option<Vec<u32>> = chunks.unsorted.then(|| {
        let mut order: Vec<u32> = (0..tables.chunks.len()).collect();
        order.sort_by_key(|&chunk| tables.chunks.get(chunk).map(|chunk| chunk.position()));
        order
    });
    validate_apart(tables, by_position.as_deref())?;
    Ok(ChunkIndex { introduced, by_position })
}

fn validate_blocks(superblock: &Superblock, tables: &Tables) -> Result<(), ImageError> {
    let (mut file_end, mut raw_end, mut largest) = (format::SUPERBLOCK_BYTES as u64, 0u64, 0u32);
    for (index, block) in (0..).zip(tables.blocks.iter()) {
        let (stored, raw) = (block.stored_bytes.get(), block.raw_bytes.get());
        let codec = Codec::from_u8(block.codec).ok_or(unknown_codec(block.codec))?;
        if block.file_offset.get() != file_end {
            return Err(block_error(superblock, (index, 0), "the start of a block", file_end, block.file_offset.get()));
        }
        if block.raw_start.get() != raw_end {
            return Err(block_error(
                superblock,
                (index, 8),
                "the raw start of a block",
                raw_end,
                block.raw_start.get(),
            ));
        }
        if raw == 0 || raw > superblock.block_bytes {
            let most = superblock.block_bytes.into();
            return Err(block_error(superblock, (index, 20), "the raw size of a block, 1 to", most, raw.into()));
        }
        let fits = if codec == Codec::Stored { stored == raw } else { stored >= 1 && stored < raw };
        if !fits {
            let what = "the stored size of a block, bounded by its raw size,";
            return Err(block_error(superblock, (index, 16), what, raw.into(), stored.into()));
        }
        validate_coding(superblock, tables, index, block, codec)?;
        if block.reserved != 0 {
            return Err(block_error(superblock, (index, 27), "a reserved byte", 0, block.reserved.into()));
        }
        largest = largest.max(raw);
        file_end = file_end.saturating_add(stored.into());
        raw_end = raw_end.saturating_add(raw.into());
        if raw_end > RAW_BYTES_MAX {
            return Err(block_error(superblock, (index, 8), "the raw end of a block, at most", RAW_BYTES_MAX, raw_end));
        }
    }
    if file_end != superblock.metadata_offset {
        let what = "the end of the last block";
        return Err(block_error(superblock, (tables.blocks.len(), 0), what, superblock.metadata_offset, file_end));
    }
    if largest != superblock.block_bytes {
        let (expected, found) = (largest.into(), superblock.block_bytes.into());
        let what = "the largest raw size of a block";
        return Err(ImageError::Corrupt { section: "superblock", offset: 40, what, expected, found });
    }
    Ok(())
}

/// Checks the filter and the dictionary of a block against what the image says it uses.
fn validate_coding(
    superblock: &Superblock,
    tables: &Tables,
    index: u32,
    block: &format::Block,
    codec: Codec,
) -> Result<(), ImageError> {
    let known = Filter::ALL.iter().map(|filter| filter.to_u8()).max().unwrap_or(0);
    if Filter::from_u8(block.filter).is_none() {
        return Err(ImageError::NeedsNewer { what: "block filter", found: block.filter.into(), known: known.into() });
    }
    let is_deflate = block.filter == format::FILTER_DEFLATE;
    let feature = if is_deflate { format::FEATURE_DEFLATE } else { format::FEATURE_FILTERS };
    if block.filter != 0 && !superblock.has(feature) {
        return Err(block_error(
            superblock,
            (index, 25),
            "the filter of a block, by the features,",
            0,
            block.filter.into(),
        ));
    }
    let expansion = block.expansion_bytes.get();
    let fits = if is_deflate { fits_expansion(block.raw_bytes.get(), expansion) } else { expansion == 0 };
    if !fits {
        let most = if is_deflate { limits::EXPANSION_BYTES_ACCEPTED } else { 0 };
        return Err(block_error(
            superblock,
            (index, 28),
            "the size of an expansion, at most",
            most.into(),
            expansion.into(),
        ));
    }
    if is_deflate && codec == Codec::Stored {
        return Err(block_error(superblock, (index, 24), "the codec of an expansion, at least", 1, 0));
    }
    let most = if codec == Codec::Zstd { tables.dictionaries.len() as u64 } else { 0 };
    if u64::from(block.dictionary) > most {
        return Err(block_error(
            superblock,
            (index, 26),
            "the dictionary of a block, at most",
            most,
            block.dictionary.into(),
        ));
    }
    Ok(())
}

/// Whether a reader holds so large an expansion for a block of `raw` bytes.
fn fits_expansion(raw: u32, expansion: u32) -> bool {
    let by_ratio = raw.saturating_mul(limits::EXPANSION_RATIO_ACCEPTED);
    (1..=limits::EXPANSION_BYTES_ACCEPTED.min(by_ratio)).contains(&expansion)
}

/// Chunks must not overlap: undoing the filter of one would change the other, and a block whose
/// chunks are hashed would cost more than its bytes.
fn validate_apart(tables: &Tables, by_position: Option<&[u32]>) -> Result<(), ImageError> {
    let mut end_before = 0;
    for rank in 0..tables.chunks.len() {
        let index = by_position.and_then(|order| order.get(rank as usize).copied()).unwrap_or(rank);
        let Some(chunk) = tables.chunks.get(index) else { break };
        if chunk.position() < end_before {
            return Err(chunk_error(index, "the position of a chunk, at least", end_before, chunk.position()));
        }
        end_before = chunk.position() + u64::from(chunk.bytes());
    }
    Ok(())
}

/// What the pass over the chunks found.
struct Chunks {
    /// Numbers of the chunks that are shorter than a full one, ascending.
    short: Vec<u32>,
    /// Whether positions do not ascend with numbers.
    unsorted: bool,
}

fn validate_chunks(tables: &Tables, chunk_bytes: u32) -> Result<Chunks, ImageError> {
    let mut found = Chunks { short: Vec::new(), unsorted: false };
    let mut position_before = 0;
    // Chunks mostly follow one another, so the block of the one before is tried first.
    let mut near: Range<u64> = 0..0;
    for (index, chunk) in (0..).zip(tables.chunks.iter()) {
        let (position, bytes) = (chunk.position(), chunk.bytes());
        if bytes == 0 || bytes > chunk_bytes {
            return Err(chunk_error(index, "the length of a chunk, 1 to", chunk_bytes.into(), bytes.into()));
        }
        if !near.contains(&position) {
            let block = block_at(&tables.blocks, position).and_then(|block| tables.blocks.get(block));
            let Some(block) = block else {
                let last = tables.blocks.len().checked_sub(1).and_then(|last| tables.blocks.get(last));
                let end = last.map_or(0, |block| block.raw_start.get() + u64::from(block.raw_bytes.get()));
                return Err(chunk_error(index, "the position of a chunk, below", end, position));
            };
            near = block.raw_start.get()..block.raw_start.get() + u64::from(block.raw_bytes.get());
        }
        let end = position + u64::from(bytes);
        if end > near.end {
            return Err(chunk_error(index, "the end of a chunk, at most the end of its block,", near.end, end));
        }
        if bytes < chunk_bytes {
            found.short.push(index);
        }
        found.unsorted |= position < position_before;
        position_before = position;
    }
    Ok(found)
}

/// One file, as far as its extents are concerned.
struct File {
    /// Index of its inode.
    index: u32,
    size: u64,
    /// Its size in chunks.
    chunks: u32,
    extents: Range<u32>,
}

/// Checks the extents of all files; returns the samples of [`ChunkIndex::introduced`].
fn validate_files(tables: &Tables, chunk_bytes: u32, short: &[u32]) -> Result<Vec<u32>, ImageError> {
    let mut samples = Vec::with_capacity(tables.extents.len().div_ceil(OWNER_SAMPLE_EXTENTS) as usize);
    let mut introduced = 0;
    for (index, inode) in (0..).zip(tables.inodes.iter()) {
        if inode.mode.get() & format::MODE_TYPE != format::MODE_FILE {
            continue;
        }
        let size = inode.size.get();
        let chunks = size.div_ceil(chunk_bytes.into());
        if chunks > u32::MAX.into() {
            let (kind, most) = (format::SECTION_INODES, u64::from(u32::MAX) * u64::from(chunk_bytes));
            return Err(corrupt::<format::Inode>(kind, index, 16, "the size of a file, at most", most, size));
        }
        let end = tables.inodes.get(index + 1).map_or(tables.extents.len(), |next| next.extent_first.get());
        let file = File { index, size, chunks: chunks as u32, extents: inode.extent_first.get()..end };
        introduced = validate_file(tables, chunk_bytes, short, &file, introduced, &mut samples)?;
    }
    if introduced != tables.chunks.len() {
        let what = "the number of chunks that files refer to";
        return Err(extent_error(tables.extents.len(), 4, what, tables.chunks.len().into(), introduced.into()));
    }
    Ok(samples)
}

fn validate_file(
    tables: &Tables,
    chunk_bytes: u32,
    short: &[u32],
    file: &File,
    mut introduced: u32,
    samples: &mut Vec<u32>,
) -> Result<u32, ImageError> {
    if file.extents.is_empty() != (file.chunks == 0) {
        let kind = format::SECTION_INODES;
        let (what, found) = ("the number of extents of a file, at least", file.extents.len() as u64);
        return Err(corrupt::<format::Inode>(kind, file.index, 40, what, u64::from(file.chunks.min(1)), found));
    }
    let tail = (file.size % u64::from(chunk_bytes)) as u32;
    let mut at = 0;
    for index in file.extents.clone() {
        if index % OWNER_SAMPLE_EXTENTS == 0 {
            samples.push(introduced);
        }
        let Some(extent) = tables.extents.get(index) else { break };
        if extent.file_chunk.get() != at {
            return Err(extent_error(index, 0, "the position of an extent", at.into(), extent.file_chunk.get().into()));
        }
        let is_last = index + 1 == file.extents.end;
        let next = if is_last { None } else { tables.extents.get(index + 1) };
        let end = next.map_or(file.chunks, |next| next.file_chunk.get());
        if end <= at || end > file.chunks {
            let what = "the end of an extent, above its start and at most";
            return Err(extent_error(index + 1, 0, what, file.chunks.into(), end.into()));
        }
        let first = extent.chunk_first.get();
        if first != format::HOLE {
            let run = validate_run(tables, index, first, end - at, introduced)?;
            introduced = introduced.max(run.end);
            let tail = if is_last && tail != 0 { tail } else { chunk_bytes };
            validate_lengths(tables, short, run, chunk_bytes, tail)?;
        }
        at = end;
    }
    Ok(introduced)
}

fn validate_run(
    tables: &Tables,
    index: u32,
    first: u32,
    chunks: u32,
    introduced: u32,
) -> Result<Range<u32>, ImageError> {
    if first > introduced {
        let what = "the first chunk, at most the number of chunks seen before,";
        return Err(extent_error(index, 4, what, introduced.into(), first.into()));
    }
    let end = u64::from(first) + u64::from(chunks);
    if end > tables.chunks.len().into() {
        return Err(extent_error(index, 4, "the end of a run of chunks", tables.chunks.len().into(), end));
    }
    Ok(first..end as u32)
}

/// All chunks of a run are full, except that its last has `tail` bytes.
fn validate_lengths(
    tables: &Tables,
    short: &[u32],
    run: Range<u32>,
    chunk_bytes: u32,
    tail: u32,
) -> Result<(), ImageError> {
    let last = run.end - 1;
    let i = short.partition_point(|&chunk| chunk < run.start);
    if let Some(&chunk) = short.get(i).filter(|&&chunk| chunk < last) {
        let found = tables.chunks.get(chunk).map_or(0, |chunk| chunk.bytes());
        let what = "the length of a chunk inside a file";
        return Err(chunk_error(chunk, what, chunk_bytes.into(), found.into()));
    }
    let found = tables.chunks.get(last).map_or(0, |chunk| chunk.bytes());
    if found != tail {
        return Err(chunk_error(last, "the length of the last chunk of a run", tail.into(), found.into()));
    }
    Ok(())
}
