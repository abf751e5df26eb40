//! Files whose deflate streams can be kept as their text ([`codec::deflate`]): finds them, and
//! expands their blocks.
//!
//! A `.gz` file may lie in a block of such files if every chunk of it is its own, in one run of
//! numbers. The other conditions are decided here once: it is small enough for a block, no chunk is
//! hot (a start should not wait until a stream is made), and its stream comes out bit for bit.
//! Files larger than a block stay as they are: making a stream takes all of the text before it.
//! Memory: a file and its text for each thread.

use codec::deflate::{self, Expansion, Program, Style, TRAILER_BYTES};
use flate2::{Decompress, FlushDecompress, Status};
use image::limits::{EXPANSION_BYTES_WRITTEN, EXPANSION_RATIO_WRITTEN};
use rayon::prelude::*;

use crate::base::Kept;
use crate::chunks::Chunks;
use crate::inodes::FileWork;
use crate::sort::{Describer, Features};
use crate::{Options, PackError, Progress};

/// Smallest file worth it: what gzip makes of a few words.
const FILE_BYTES_MIN: u64 = 64;
/// Parts of the expansion of a file at most: what is before its stream, the text, and what is
/// behind.
const FILE_PARTS: usize = 3;
/// Files read as one task.
const TASK_FILES: usize = 4;

/// A file that is kept as its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// Its first chunk; the others have the numbers after it.
    pub(crate) chunk_first: u32,
    pub(crate) chunk_count: u32,
    /// Bytes of the file.
    pub(crate) bytes: u32,
    /// Bytes that it adds to an expansion, at most.
    pub(crate) expansion_bytes: u32,
    style: Style,
}

/// All such files, by their chunks.
#[derive(Default)]
pub(crate) struct Streams {
    /// In the order of chunks.
    pub(crate) list: Vec<Stream>,
    /// Features of the text of each; none if nothing will be sorted by content.
    pub(crate) features: Features,
}

impl Streams {
    /// The stream that a chunk belongs to.
    pub(crate) fn of(&self, chunk: u32) -> Option<&Stream> {
        let after = self.list.partition_point(|stream| stream.chunk_first <= chunk);
        self.list[..after].last().filter(|stream| chunk - stream.chunk_first < stream.chunk_count)
    }
}

/// Looks for them among `files`. Runs on the current pool.
pub(crate) fn find(
    files: &[FileWork<'_>],
    chunks: &Chunks,
    kept: &Kept<'_>,
    describer: Option<Describer<'_>>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Streams, PackError> {
    let candidates = candidates(files, chunks, kept, options);
    let found: Vec<Option<(Stream, Vec<u32>)>> = candidates
        .par_iter()
        .with_max_len(TASK_FILES)
        .map(|candidate| {
            progress.advance(candidate.bytes.into());
            look(files, candidate, describer)
        })
        .collect::<Result<_, PackError>>()?;
    let mut streams = Streams::default();
    for (stream, shingles) in found.into_iter().flatten() {
        streams.list.push(stream);
        streams.features.push(&shingles);
    }
    Ok(streams)
}

/// A file of fitting size that shares no chunk with an earlier one or with a block that is kept.
struct Candidate {
    file: u32,
    chunk_first: u32,
    chunk_count: u32,
    bytes: u32,
}

fn candidates(files: &[FileWork<'_>], chunks: &Chunks, kept: &Kept<'_>, options: &Options) -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut uses = chunks.uses.as_slice();
    for users in chunks.users.chunk_by(|a, b| a == b) {
        let (here, after) = uses.split_at(users.len());
        uses = after;
        let (file, first) = (users[0], here[0].0);
        let size = files[file as usize].size;
        let whole = size.div_ceil(options.chunk_bytes().into()) == here.len() as u64;
        let is_own = |(index, chunk): (u32, &units::ChunkId)| {
            let known = &chunks.list[chunk.0 as usize];
            let is_first = chunk.0 == first + index && (known.file, known.position) == (file, index);
            is_first && !known.group.is_hot() && !kept.has(chunk.0)
        };
        if whole && (FILE_BYTES_MIN..=options.block_bytes.into()).contains(&size) && (0..).zip(here).all(is_own) {
            let chunk_count = here.len() as u32;
            found.push(Candidate { file, chunk_first: first, chunk_count, bytes: size as u32 });
        }
    }
    found
}

/// Reads a file and says what it is; nothing if it does not come out as it was.
fn look(
    files: &[FileWork<'_>],
    candidate: &Candidate,
    describer: Option<Describer<'_>>,
) -> Result<Option<(Stream, Vec<u32>)>, PackError> {
    let content = files[candidate.file as usize].content.open()?;
    let mut start = [0; MAGIC.len()];
    content.read_at(0, &mut start)?;
    if start != MAGIC {
        return Ok(None);
    }
    let mut raw = vec![0; candidate.bytes as usize];
    content.read_at(0, &mut raw)?;
    let Some(member) = Member::of(&raw) else { return Ok(None) };
    let stream = &raw[member.start..member.end];
    let Some(style) = deflate::style_of(&member.text, stream, &styles(raw[EXTRA_FLAGS])) else { return Ok(None) };
    let around = raw.len() - stream.len();
    let expansion_bytes = Expansion::size(FILE_PARTS, around + member.text.len()) as u32;
    if !fits(raw.len(), expansion_bytes as usize) {
        return Ok(None);
    }
    let mut shingles = Vec::new();
    if let Some(describer) = describer {
        describer.describe(&member.text, &mut shingles);
    }
    let Candidate { chunk_first, chunk_count, bytes, .. } = *candidate;
    Ok(Some((Stream { chunk_first, chunk_count, bytes, expansion_bytes, style }, shingles)))
}

/// Whether we write so large an expansion for so many bytes of a block.
fn fits(raw: usize, expansion: usize) -> bool {
    expansion <= raw.saturating_mul(EXPANSION_RATIO_WRITTEN as usize) && expansion <= EXPANSION_BYTES_WRITTEN as usize
}

/// Cuts blocks of streams (numbers in the list) where their expansion would be too large.
pub(crate) fn cut(blocks: Vec<Vec<u32>>, streams: &Streams) -> Vec<Vec<u32>> {
    let mut cut: Vec<Vec<u32>> = Vec::new();
    for block in blocks {
        let mut room = 0;
        for stream in block {
            let bytes = streams.list[stream as usize].expansion_bytes;
            match cut.last_mut() {
                Some(open) if bytes <= room => open.push(stream),
                _ => {
                    cut.push(vec![stream]);
                    room = EXPANSION_BYTES_WRITTEN;
                }
            }
            room -= bytes.min(room);
        }
    }
    cut
}

/// The expansion of a block with these chunks and bytes, if it has one that comes out right.
pub(crate) fn expand(streams: &Streams, chunks: &[u32], raw: &[u8]) -> Option<Vec<u8>> {
    let mut expansion = Expansion::default();
    let (mut rest, mut left) = (raw, chunks);
    while let Some(&first) = left.first() {
        let stream = streams.of(first)?;
        let file;
        (file, rest) = rest.split_at_checked(stream.bytes as usize)?;
        left = left.get(stream.chunk_count as usize..)?;
        let member = Member::of(file)?;
        expansion.bytes(&file[..member.start]);
        let after = &file[member.end..];
        let trailer = after.starts_with(&deflate::trailer(&member.text));
        expansion.text(&member.text, stream.style, trailer);
        let after = if trailer { &after[TRAILER_BYTES..] } else { after };
        if !after.is_empty() {
            expansion.bytes(after);
        }
    }
    let expansion = expansion.to_bytes();
    let mut back = Vec::new();
    deflate::contract_written(&expansion, raw.len(), &mut back).ok()?;
    (back == raw && fits(raw.len(), expansion.len())).then_some(expansion)
}

/// First bytes of a gzip file with the only method there is (RFC 1952, section 2.3).
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
/// Offset of its flags.
const FLAGS: usize = 3;
const FLAG_CHECK: u8 = 2;
const FLAG_EXTRA: u8 = 4;
const FLAG_NAME: u8 = 8;
const FLAG_COMMENT: u8 = 16;
/// Offset of the writer's effort: 2 for its best, 4 for its fastest.
const EXTRA_FLAGS: usize = 8;
/// Bytes of its fixed header.
const HEADER_BYTES: usize = 10;

/// The first member of a gzip file.
struct Member {
    /// Where its stream starts and ends.
    start: usize,
    end: usize,
    text: Vec<u8>,
}

impl Member {
    fn of(file: &[u8]) -> Option<Member> {
        let start = header_bytes(file)?;
        // No more than we would write; the extra byte shows what is larger.
        let most = file.len().saturating_mul(EXPANSION_RATIO_WRITTEN as usize).min(EXPANSION_BYTES_WRITTEN as usize);
        let mut text = vec![0; most + 1];
        let mut decoder = Decompress::new(false);
        let status = decoder.decompress(&file[start..], &mut text, FlushDecompress::Finish).ok()?;
        let (read, made) = (decoder.total_in() as usize, decoder.total_out() as usize);
        if status != Status::StreamEnd || made > most {
            return None;
        }
        text.truncate(made);
        Some(Member { start, end: start + read, text })
    }
}

/// Bytes before the stream.
fn header_bytes(file: &[u8]) -> Option<usize> {
    if !file.starts_with(&MAGIC) || file.len() < HEADER_BYTES {
        return None;
    }
    let flags = file[FLAGS];
    let mut at = HEADER_BYTES;
    if flags & FLAG_EXTRA != 0 {
        let bytes = file.get(at..)?.first_chunk()?;
        at += 2 + usize::from(u16::from_le_bytes(*bytes));
    }
    for flag in [FLAG_NAME, FLAG_COMMENT] {
        if flags & flag != 0 {
            at += file.get(at..)?.iter().position(|&byte| byte == 0)? + 1;
        }
    }
    at += if flags & FLAG_CHECK != 0 { 2 } else { 0 };
    (at < file.len()).then_some(at)
}

/// What to try, the likely first: gzip and zlib say in the header when a level is their best or
/// their fastest.
fn styles(extra_flags: u8) -> Vec<Style> {
    const LEVELS: [u8; 9] = [9, 6, 1, 8, 7, 5, 4, 3, 2];
    let first = match extra_flags {
        2 => 9,
        4 => 1,
        _ => 6,
    };
    let levels = [first].into_iter().chain(LEVELS.into_iter().filter(move |&level| level != first));
    let programs = [Program::Gzip, Program::Zlib, Program::ZlibLarge];
    levels.flat_map(|level| programs.map(|program| Style { program, level })).collect()
}
