//! The image that an update starts from, and which of its blocks the new image keeps.
//!
//! A kept block has the same stored bytes and so the same hash: a device that has it does not fetch
//! it again. Every block of the old image is read, verified and decoded, and its chunks are sought
//! among those of the new tree by their whole hash. What a block holds beside them is dead: bytes
//! that no chunk covers, which readers pass over. [`choose`] says which blocks are worth keeping;
//! the chunks of the others are arranged as if there were no base, among themselves.
//!
//! A chunk stays in its block only if it decodes to the same bytes there:
//!
//! - A filter depends on the chunk's position in the first file that has it. If that changes, the
//!   chunk stays only if the filter makes the same of it at both positions.
//! - Chunks are pages of files. What lies behind inserted bytes has other pages, and none of them
//!   stays.
//!
//! A hot chunk stays only in a hot block, so that starts still read one run of blocks. Memory: the
//! metadata of the old image, a block a thread, and 8 bytes for each of its chunks.

mod choose;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::path::{Path, PathBuf};

use codec::filter;
use image::limits::BLOCK_BYTES_WRITTEN;
use image::{BlockEntry, BlockRecord, Filter, ImageError, Limits, Metadata, ReadAt};
use rayon::prelude::*;
use units::{BlockId, ChunkId};

use self::choose::{Share, choose};
use crate::arrange;
use crate::chunks::Prefix;
use crate::group::Group;
use crate::report::BaseReport;
use crate::survey::Survey;
use crate::{FileImage, Options, PackError};

/// An old image, opened.
pub(crate) struct Base {
    path: PathBuf,
    image: FileImage,
    metadata: Metadata,
}

/// The blocks of a base that the new image keeps; none without a base.
#[derive(Default)]
pub(crate) struct Kept<'a> {
    /// In the order of the base, hot ones first.
    pub(crate) blocks: Vec<KeptBlock<'a>>,
    /// The first so many are hot.
    pub(crate) hot_blocks: usize,
    /// For each chunk whether it lies in one of them; empty without a base.
    chunks: Vec<bool>,
    /// What is known before new blocks are made.
    pub(crate) report: Option<BaseReport>,
}

/// A block that is kept.
pub(crate) struct KeptBlock<'a> {
    base: &'a Base,
    block: BlockId,
    /// Its chunks that files of the new tree have.
    pub(crate) chunks: Vec<Place>,
}

/// A chunk in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Its number in the new tree.
    pub(crate) chunk: u32,
    /// Offset in the raw block.
    pub(crate) offset: u32,
}

impl Kept<'_> {
    /// Whether a chunk lies in a block that is kept.
    pub(crate) fn has(&self, chunk: u32) -> bool {
        self.chunks.get(chunk as usize).copied().unwrap_or(false)
    }

    /// Chunks that lie in new blocks, of so many.
    pub(crate) fn new_chunks(&self, chunks: usize) -> u64 {
        (chunks - self.chunks.iter().filter(|kept| **kept).count()) as u64
    }

    /// The dictionaries of the base, all of them since blocks name them by number; none if no block
    /// that is kept needs one.
    pub(crate) fn dictionaries(&self) -> Result<Vec<Vec<u8>>, PackError> {
        let needs_one = |block: &&KeptBlock<'_>| block.dictionary().is_some();
        self.blocks.iter().find(needs_one).map_or(Ok(Vec::new()), |block| block.base.dictionaries())
    }

    /// For each group of chunks the dictionary of most of its chunks.
    pub(crate) fn dictionary_of_groups(&self, survey: &Survey, options: &Options) -> BTreeMap<Group, u8> {
        let mut uses: BTreeMap<(Group, u8), u64> = BTreeMap::new();
        for block in &self.blocks {
            let Some(dictionary) = block.dictionary() else { continue };
            for place in &block.chunks {
                let group = arrange::group(survey.chunks.list[place.chunk as usize].group, &options.stages);
                *uses.entry((group.without_heat(), dictionary)).or_default() += 1;
            }
        }
        let mut most: BTreeMap<Group, (u64, u8)> = BTreeMap::new();
        for ((group, dictionary), count) in uses {
            let best = most.entry(group).or_insert((count, dictionary));
            if count > best.0 {
                *best = (count, dictionary);
            }
        }
        most.into_iter().map(|(group, (_, dictionary))| (group, dictionary)).collect()
    }
}

impl KeptBlock<'_> {
    fn entry(&self) -> Option<BlockEntry> {
        self.base.metadata.block(self.block)
    }

    fn dictionary(&self) -> Option<u8> {
        self.entry()?.dictionary
    }

    /// Its stored bytes, verified, and what the new block table says of them.
    pub(crate) fn read(&self) -> Result<(Vec<u8>, BlockRecord), PackError> {
        let Base { image, metadata, .. } = self.base;
        let read = || {
            let count = metadata.block_count();
            let entry = self.entry().ok_or(ImageError::NoBlock { block: self.block, count })?;
            let mut stored = vec![0; entry.stored_bytes as usize];
            let offset = entry.file_offset;
            let read = image.read_exact_at(offset, &mut stored);
            read.map_err(|source| ImageError::Read { what: "block", offset, source })?;
            metadata.verify_block(self.block, &stored)?;
            Ok((stored, entry))
        };
        let (stored, entry) = read().map_err(|source| self.base.unusable(source))?;
        let record = BlockRecord {
            codec: entry.codec,
            filter: entry.filter,
            dictionary: entry.dictionary,
            stored_bytes: entry.stored_bytes,
            raw_bytes: entry.raw_bytes,
            expansion_bytes: entry.expansion_bytes,
            hash: *blake3::hash(&stored).as_bytes(),
        };
        Ok((stored, record))
    }
}

/// The numbers of the chunks of the new tree, by hash.
type Numbers = HashMap<[u8; 32], u32, BuildHasherDefault<Prefix>>;

impl Base {
    /// Opens the image at `path` and checks its metadata.
    pub(crate) fn open(path: &Path) -> Result<Base, PackError> {
        let image = FileImage::open(path)?;
        let opened = Metadata::open(&image, &Limits::ACCEPTED);
        let metadata = opened.map_err(|source| PackError::base(path, source))?;
        Ok(Base { path: path.into(), image, metadata })
    }

    /// `options` with the chunk size of this image, since only equal chunks are found again.
    pub(crate) fn options(&self, options: &Options) -> Result<Options, PackError> {
        let chunk_bytes = self.metadata.chunk_bytes() as u32;
        let wrong = |name, found: String, expected: String| Err(PackError::Option { name, found, expected });
        match options.chunk_bytes {
            Some(found) if found != chunk_bytes => {
                let expected = format!("{chunk_bytes}, as in the base {}", self.path.display());
                wrong("chunk size", found.to_string(), expected)
            }
            _ => Ok(Options { chunk_bytes: Some(chunk_bytes), ..options.clone() }),
        }
    }

    fn unusable(&self, source: ImageError) -> PackError {
        PackError::base(&self.path, source)
    }

    fn dictionaries(&self) -> Result<Vec<Vec<u8>>, PackError> {
        self.metadata.dictionaries(&self.image).map_err(|source| self.unusable(source))
    }

    /// Decides which blocks the image of `survey`'s chunks keeps. Runs on the current pool.
    ///
    /// # Errors
    /// A block is damaged or contradicts the chunk hashes, whether it would be kept or not.
    pub(crate) fn keep(&self, survey: &Survey, options: &Options) -> Result<Kept<'_>, PackError> {
        let list = &survey.chunks.list;
        let numbers: Numbers = list.iter().zip(0..).map(|(chunk, number)| (chunk.hash, number)).collect();
        let found: Vec<Vec<Place>> = (0..self.metadata.block_count())
            .into_par_iter()
            .map(|block| self.find(BlockId(block), survey, &numbers, options))
            .collect::<Result<_, _>>()?;
        let mut chunks = vec![false; list.len()];
        let mut blocks = Vec::new();
        for (block, mut places) in (0..).map(BlockId).zip(found) {
            // Of equal chunks in several blocks the first counts.
            places.retain(|place| !std::mem::replace(&mut chunks[place.chunk as usize], true));
            if !places.is_empty() {
                blocks.push(KeptBlock { base: self, block, chunks: places });
            }
        }
        let bytes = |place: &Place| u64::from(list[place.chunk as usize].bytes);
        let share = |block: &KeptBlock<'_>| Share {
            raw: block.entry().map_or(0, |entry| entry.raw_bytes.into()),
            live: block.chunks.iter().map(bytes).sum(),
        };
        let shares: Vec<Share> = blocks.iter().map(share).collect();
        let live: u64 = shares.iter().map(|share| share.live).sum();
        let chosen = choose(&shares, survey.bytes() - live);
        let dead = shares.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(share, _)| share.raw - share.live);
        let dead_bytes = dead.sum();
        let mut chosen = chosen.into_iter();
        let (blocks, left): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|_| chosen.next() == Some(true));
        for place in left.iter().flat_map(|block| &block.chunks) {
            chunks[place.chunk as usize] = false;
        }
        let (hot, cold): (Vec<_>, Vec<_>) =
            blocks.into_iter().partition(|block| self.stays_hot(block, survey, options));
        let hot_blocks = hot.len();
        let blocks: Vec<_> = hot.into_iter().chain(cold).collect();
        let stored = |block: &KeptBlock<'_>| block.entry().map_or(0, |entry| u64::from(entry.stored_bytes));
        let report = BaseReport {
            base: self.metadata.id(),
            base_blocks: self.metadata.block_count().into(),
            reused_blocks: blocks.len() as u64,
            reused_bytes: blocks.iter().map(stored).sum(),
            dead_bytes,
            ..BaseReport::default()
        };
        Ok(Kept { blocks, hot_blocks, chunks, report: Some(report) })
    }

    /// Hot blocks stay hot, unless traces are given and call nothing of them so.
    fn stays_hot(&self, block: &KeptBlock<'_>, survey: &Survey, options: &Options) -> bool {
        let is_named = |place: &Place| survey.chunks.list[place.chunk as usize].group.is_hot();
        let was_hot = block.block.0 < self.metadata.hot_blocks();
        was_hot && options.stages.hot && (options.hot.files.is_empty() || block.chunks.iter().any(is_named))
    }

    /// The chunks of a block that the new tree has and that may stay there.
    fn find(
        &self,
        block: BlockId,
        survey: &Survey,
        numbers: &Numbers,
        options: &Options,
    ) -> Result<Vec<Place>, PackError> {
        let metadata = &self.metadata;
        let (mut stored, mut raw) = (Vec::new(), Vec::new());
        let entry = metadata.read_block(&self.image, block, &mut stored, &mut raw);
        let entry = entry.map_err(|source| self.unusable(source))?;
        // The kernel's reader has neither; larger blocks are read, but no longer written.
        let is_plain = entry.dictionary.is_none() && entry.filter != Filter::Deflate;
        if entry.raw_bytes > BLOCK_BYTES_WRITTEN || (options.bootable && !is_plain) {
            return Ok(Vec::new());
        }
        let is_hot = block.0 < metadata.hot_blocks();
        let old: Vec<(ChunkId, u32, &[u8])> = metadata
            .block_chunks(block)
            .filter_map(|chunk| {
                let place = metadata.chunk(chunk)?;
                let bytes = raw.get(place.offset as usize..)?.get(..place.bytes as usize)?;
                Some((chunk, place.offset, bytes))
            })
            .collect();
        let parts: Vec<&[u8]> = old.iter().map(|(.., bytes)| *bytes).collect();
        let mut places = Vec::new();
        for ((chunk, offset, bytes), hash) in old.into_iter().zip(image::hash_many(&parts)) {
            let Some(&number) = numbers.get(hash.as_bytes()) else { continue };
            let new = &survey.chunks.list[number as usize];
            let is_in_place = is_hot || !(options.stages.hot && new.group.is_hot());
            let positions = (metadata.chunk_reference(chunk).map(|(_, position)| position), new.position);
            if is_in_place && decodes_alike(entry.filter, positions, options.chunk_bytes(), bytes) {
                places.push(Place { chunk: number, offset });
            }
        }
        Ok(places)
    }
}

/// Whether a chunk that was stored for the first of these positions, in chunks, decodes to the same
/// bytes at the second.
fn decodes_alike(filter: Filter, (old, new): (Option<u32>, u32), chunk_bytes: u32, bytes: &[u8]) -> bool {
    if !filter.is_of_chunks() || old == Some(new) {
        return true;
    }
    let Some(old) = old else { return false };
    let at = |position: u32| {
        let mut filtered = bytes.to_vec();
        filter::encode(filter, u64::from(position) * u64::from(chunk_bytes), &mut filtered);
        filtered
    };
    at(old) == at(new)
}
