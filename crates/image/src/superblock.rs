//! The superblock: parses it and checks all that can be checked without the sections.

use crate::block_hashes::BlockHashes;
use crate::section::{decode, last_filter, read_stored, record_bytes, unknown_codec, unknown_filter};
use crate::{Codec, ImageError, Limits, ReadAt, SectionReport, block_hashes, format, limits, section_name};
use std::ops::Range;
use units::ImageId;
use zerocopy::{FromBytes, IntoBytes};

/// The superblock in native integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// BLAKE3 of the 4096 bytes: the identity of the image.
    pub id: ImageId,
    /// Format version.
    pub version: u16,
    /// Base-2 logarithm of the chunk size.
    pub chunk_shift: u8,
    /// Bytes of the whole file.
    pub file_bytes: u64,
    /// Where the metadata region starts.
    pub metadata_offset: u64,
    /// Bytes of the metadata region.
    pub metadata_bytes: u64,
    /// Largest raw size of a block, 0 if there is none.
    pub block_bytes: u32,
    /// Inodes.
    pub inode_count: u32,
    /// Directory entries.
    pub entry_count: u32,
    /// Extents.
    pub extent_count: u32,
    /// Chunks.
    pub chunk_count: u32,
    /// Blocks.
    pub block_count: u32,
    /// Bits of the features it uses.
    pub features: u32,
    /// The blocks before this one hold what programs read when they start; 0 if that is not known.
    pub hot_blocks: u32,
    /// The section table, in file order.
    pub sections: Vec<SectionReport>,
}

/// What a decoder's tables take of memory for each dictionary, rounded up.
const DICTIONARY_TABLES_BYTES: u64 = 32 << 10;

/// Where a block lies in the file, as the image says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// Where it starts.
    pub file_offset: u64,
    /// Bytes.
    pub stored_bytes: u32,
    /// BLAKE3 of these bytes.
    pub hash: [u8; 32],
}

fn corrupt(offset: usize, what: &'static str, expected: u64, found: u64) -> ImageError {
    ImageError::Corrupt { section: "superblock", offset: offset as u64, what, expected, found }
}

fn require_zero(bytes: &[u8], at: usize) -> Result<(), ImageError> {
    match bytes.iter().position(|&byte| byte != 0) {
        Some(i) => Err(corrupt(at + i, "a reserved byte", 0, bytes[i].into())),
        None => Ok(()),
    }
}

fn require_limit(what: &'static str, limit: impl Into<u64>, found: impl Into<u64>) -> Result<(), ImageError> {
    let (limit, found) = (limit.into(), found.into());
    if found > limit { Err(ImageError::Limit { what, limit, found }) } else { Ok(()) }
}

impl Superblock {
    /// Reads and checks the superblock of `source`, whose length must be the one it announces.
    ///
    /// # Errors
    /// Not an image, another version, truncated or followed by other data, damaged, or over
    /// `limits`.
    pub fn read(source: &dyn ReadAt, limits: &Limits) -> Result<Superblock, ImageError> {
        let read = |source| ImageError::Read { what: "superblock", offset: 0, source };
        let found = source.len().map_err(read)?;
        let mut bytes = [0; format::SUPERBLOCK_BYTES];
        if found < bytes.len() as u64 {
            // A short file of another kind should be called that, not a truncated image.
            let start = &mut bytes[..found.min(format::MAGIC.len() as u64) as usize];
            source.read_exact_at(0, start).map_err(read)?;
            if !format::MAGIC.starts_with(start) {
                return Err(wrong_magic(&bytes));
            }
            return Err(ImageError::FileLength { expected: format::SUPERBLOCK_BYTES as u64, found });
        }
        source.read_exact_at(0, &mut bytes).map_err(read)?;
        let superblock = Superblock::parse(&bytes, limits)?;
        if superblock.file_bytes != found {
            return Err(ImageError::FileLength { expected: superblock.file_bytes, found });
        }
        Ok(superblock)
    }

    /// Parses and checks the first 4096 bytes of an image by themselves.
    ///
    /// # Errors
    /// As [`Superblock::read`], except that the length of the file is not known.
    pub fn parse(bytes: &[u8; format::SUPERBLOCK_BYTES], limits: &Limits) -> Result<Superblock, ImageError> {
        let raw = format::Superblock::ref_from_bytes(bytes.as_slice())
            .map_err(|_| corrupt(0, "its size", format::SUPERBLOCK_BYTES as u64, bytes.len() as u64))?;
        if raw.magic != format::MAGIC {
            return Err(wrong_magic(bytes));
        }
        let newer = |what, found, known| Err(ImageError::NeedsNewer { what, found, known });
        if raw.version.get() > format::VERSION {
            return newer("format version", raw.version.get().into(), format::VERSION.into());
        }
        if raw.version.get() != format::VERSION {
            return Err(corrupt(8, "the format version", format::VERSION.into(), raw.version.get().into()));
        }
        let found = check_hash(raw);
        if found != raw.check {
            return Err(ImageError::SectionHash { section: "superblock", offset: 0, expected: raw.check, found });
        }
        if raw.features.get() & !format::FEATURES_KNOWN != 0 {
            return newer("feature bits", raw.features.get().into(), format::FEATURES_KNOWN.into());
        }
        if !limits::CHUNK_SHIFT_ACCEPTED.contains(&raw.chunk_shift) {
            let nearest = limits::CHUNK_SHIFT_WRITTEN.into();
            return Err(corrupt(10, "the chunk size's logarithm", nearest, raw.chunk_shift.into()));
        }
        require_zero(&[raw.reserved_a], 11)?;
        require_zero(raw.reserved_b.as_bytes(), 68)?;
        require_zero(&raw.reserved_c, 76)?;
        let superblock = Superblock::from_raw(raw, bytes);
        superblock.check_region(limits)?;
        superblock.check_sections(raw)?;
        superblock.check_counts(limits)?;
        superblock.check_features()?;
        Ok(superblock)
    }

    /// Bytes of a full chunk.
    pub fn chunk_bytes(&self) -> usize {
        1 << self.chunk_shift
    }

    /// Where the metadata region lies in the file.
    pub fn metadata_region(&self) -> Range<u64> {
        self.metadata_offset..self.metadata_offset + self.metadata_bytes
    }

    /// Where the hashes of blocks and of chunks lie side by side, which a mount can start without
    /// if they come with proofs; `None` if hashes of blocks have no section of their own.
    pub fn hash_region(&self) -> Option<Range<u64>> {
        let (first, last) = (self.section(format::SECTION_BLOCK_HASHES)?, self.section(format::SECTION_CHUNK_HASHES)?);
        Some(first.offset..last.offset + last.stored_bytes)
    }

    /// Bytes that [`Metadata`](crate::Metadata) of this image takes at most, chunk hashes included.
    /// Known before anything is decoded.
    pub fn metadata_memory_bytes(&self) -> u64 {
        let raw = |section: &SectionReport| match section.kind {
            format::SECTION_BLOCKS => u64::from(self.block_count) * size_of::<format::Block>() as u64,
            format::SECTION_BLOCK_HASHES => 0,
            _ => section.raw_bytes,
        };
        let raw: u64 = self.sections.iter().filter(|section| !section.optional).map(raw).sum();
        // The order of chunks by position, and the samples of extents.
        let index = 4 * u64::from(self.chunk_count) + 4 * u64::from(self.extent_count.div_ceil(64));
        raw + BlockHashes::memory_bytes_max(self.block_count) + index + size_of::<crate::Metadata>() as u64
    }

    /// Bytes that opening it takes beside, for a moment.
    pub fn opening_memory_bytes(&self) -> u64 {
        let stored = self.sections.iter().map(|section| section.stored_bytes).max().unwrap_or(0);
        let columns = self.sections.iter().filter(|section| section.filter != format::FILTER_NONE);
        let columns = columns.map(|section| section.raw_bytes).max().unwrap_or(0);
        let dictionaries = if self.has(format::FEATURE_DICTIONARIES) { format::DICTIONARIES_MAX as u64 } else { 0 };
        // Link counts and depths of inodes while the tree is checked, chunks that are short while
        // extents are.
        let tables = 6 * u64::from(self.inode_count) + 4 * u64::from(self.chunk_count);
        stored + columns + tables + DICTIONARY_TABLES_BYTES * dictionaries
    }

    /// Bytes that decoding its largest block takes: the block, and what it expands to on the way.
    pub fn block_memory_bytes(&self) -> u64 {
        let expansion = if self.has(format::FEATURE_DEFLATE) { limits::EXPANSION_BYTES_ACCEPTED } else { 0 };
        u64::from(self.block_bytes) + u64::from(expansion)
    }

    /// Bytes of the decoded block table and of the hashes of the blocks.
    pub fn block_table_bytes(&self) -> u64 {
        u64::from(self.block_count) * size_of::<format::BlockAndHash>() as u64
    }

    /// Positions and hashes of the blocks, read from `source` without opening the rest of
    /// the image. Nothing but the hash of the table is checked: who reads a block there must check
    /// its hash.
    ///
    /// # Errors
    /// The source fails, or the table is damaged.
    pub fn block_places(&self, source: &dyn ReadAt) -> Result<Vec<BlockPlace>, ImageError> {
        let Some(section) = self.section(format::SECTION_BLOCKS) else { return Ok(Vec::new()) };
        let mut stored = Vec::new();
        read_stored(source, section, &mut stored)?;
        let (blocks, hashes) = block_hashes::split(self, &decode(section, &stored)?);
        let hashes = match self.section(format::SECTION_BLOCK_HASHES) {
            None => hashes,
            Some(section) => {
                read_stored(source, section, &mut stored)?;
                stored.into_boxed_slice()
            }
        };
        let place = |(block, hash): (&format::Block, &[u8; 32])| BlockPlace {
            file_offset: block.file_offset.get(),
            stored_bytes: block.stored_bytes.get(),
            hash: *hash,
        };
        Ok(blocks.iter().zip(hashes.as_chunks().0).map(place).collect())
    }

    pub(crate) fn section(&self, kind: u32) -> Option<&SectionReport> {
        self.sections.iter().find(|section| section.kind == kind)
    }

    fn from_raw(raw: &format::Superblock, bytes: &[u8]) -> Superblock {
        let used = (raw.section_count.get() as usize).min(format::SECTIONS_MAX);
        Superblock {
            id: ImageId(*blake3::hash(bytes).as_bytes()),
            version: raw.version.get(),
            chunk_shift: raw.chunk_shift,
            file_bytes: raw.file_bytes.get(),
            metadata_offset: raw.metadata_offset.get(),
            metadata_bytes: raw.metadata_bytes.get(),
            block_bytes: raw.block_bytes.get(),
            inode_count: raw.inode_count.get(),
            entry_count: raw.entry_count.get(),
            extent_count: raw.extent_count.get(),
            chunk_count: raw.chunk_count.get(),
            block_count: raw.block_count.get(),
            features: raw.features.get(),
            hot_blocks: raw.hot_blocks.get(),
            sections: raw.sections[..used].iter().map(|section| section_report(section, raw.features.get())).collect(),
        }
    }

    fn check_region(&self, limits: &Limits) -> Result<(), ImageError> {
        let start = format::SUPERBLOCK_BYTES as u64;
        if self.metadata_offset < start {
            return Err(corrupt(24, "the start of the metadata region", start, self.metadata_offset));
        }
        let end = self.metadata_offset.checked_add(self.metadata_bytes);
        if end != Some(self.file_bytes) {
            let end = end.unwrap_or(u64::MAX);
            return Err(corrupt(32, "the end of the metadata region", self.file_bytes, end));
        }
        require_limit("the stored metadata in bytes", limits.metadata_bytes_max, self.metadata_bytes)?;
        let raw = self.sections.iter().fold(0u64, |sum, section| sum.saturating_add(section.raw_bytes));
        require_limit("the decoded metadata in bytes", limits.metadata_bytes_max, raw)
    }

    fn check_sections(&self, raw: &format::Superblock) -> Result<(), ImageError> {
        let count = raw.section_count.get();
        if count as usize > format::SECTIONS_MAX {
            return Err(corrupt(64, "the number of sections", format::SECTIONS_MAX as u64, count.into()));
        }
        let mut end = self.metadata_offset;
        let derives = self.has(format::FEATURE_DERIVED_HASHES);
        let mut rank_before = 0;
        for (i, section) in self.sections.iter().enumerate() {
            let at = 128 + 64 * i;
            let rank = format::section_rank(section.kind);
            if rank <= rank_before {
                let least = u64::from(rank_before) + 1;
                return Err(corrupt(at, "the section kind, which must ascend,", least, section.kind.into()));
            }
            rank_before = rank;
            check_section_flags(at, section, &raw.sections[i], self.features)?;
            if section.derived != (derives && section.kind == format::SECTION_CHUNK_HASHES) {
                let (expected, found) = (u64::from(!section.derived), section.derived.into());
                return Err(corrupt(at + 5, "the flag of a derived section", expected, found));
            }
            let start = if section.derived { self.file_bytes } else { end };
            if section.offset != start {
                return Err(corrupt(at + 8, "the start of a section", start, section.offset));
            }
            if !section.derived {
                end = end.saturating_add(section.stored_bytes);
            }
        }
        if end != self.file_bytes {
            return Err(corrupt(128, "the end of the last section", self.file_bytes, end));
        }
        require_zero(raw.sections[count as usize..].as_bytes(), 128 + 64 * count as usize)
    }

    /// Whether the image uses a feature.
    pub(crate) fn has(&self, feature: u32) -> bool {
        self.features & feature != 0
    }

    fn check_features(&self) -> Result<(), ImageError> {
        let found = u64::from(self.section(format::SECTION_DICTIONARIES).is_some());
        if found != u64::from(self.has(format::FEATURE_DICTIONARIES)) {
            return Err(corrupt(12, "the number of dictionary sections, by the features,", 1 - found, found));
        }
        if self.has(format::FEATURE_BLOCK_HASHES) && self.has(format::FEATURE_DERIVED_HASHES) {
            let most = u64::from(self.features & !format::FEATURE_DERIVED_HASHES);
            return Err(corrupt(12, "the features, which exclude one another,", most, self.features.into()));
        }
        let most = if self.has(format::FEATURE_HOT) { self.block_count } else { 0 };
        if self.hot_blocks > most {
            return Err(corrupt(72, "the number of hot blocks, at most", most.into(), self.hot_blocks.into()));
        }
        Ok(())
    }

    fn check_counts(&self, limits: &Limits) -> Result<(), ImageError> {
        require_limit("the number of inodes", limits.inodes_max, self.inode_count)?;
        require_limit("the number of directory entries", limits.entries_max, self.entry_count)?;
        require_limit("the number of chunks", limits.chunks_max, self.chunk_count)?;
        require_limit("the number of blocks", limits.blocks_max, self.block_count)?;
        require_limit("the size of a block", limits.block_bytes_max, self.block_bytes)?;
        let fixed = [
            (format::SECTION_INODES, self.inode_count, size_of::<format::Inode>()),
            (format::SECTION_ENTRIES, self.entry_count, size_of::<format::Entry>()),
            (format::SECTION_EXTENTS, self.extent_count, size_of::<format::Extent>()),
            (format::SECTION_CHUNKS, self.chunk_count, size_of::<format::Chunk>()),
            (format::SECTION_CHUNK_HASHES, self.chunk_count, format::CHUNK_HASH_BYTES),
            (
                format::SECTION_BLOCKS,
                self.block_count,
                record_bytes(format::SECTION_BLOCKS, self.features).unwrap_or(0),
            ),
            (format::SECTION_BLOCK_HASHES, self.block_count, blake3::OUT_LEN),
        ];
        let apart = self.has(format::FEATURE_BLOCK_HASHES).then_some(format::SECTION_BLOCK_HASHES);
        for kind in format::SECTIONS_REQUIRED.into_iter().chain(apart) {
            let Some(section) = self.section(kind) else {
                let (section, what) = (section_name(kind), "the number of sections of this kind");
                return Err(ImageError::Corrupt { section, offset: 0, what, expected: 1, found: 0 });
            };
            let expected = match fixed.iter().find(|(of, _, _)| *of == kind) {
                Some((_, count, bytes)) => u64::from(*count) * *bytes as u64,
                None => section.raw_bytes,
            };
            if section.raw_bytes != expected {
                let at = self.sections.iter().position(|other| other.kind == kind).unwrap_or(0);
                return Err(corrupt(128 + 64 * at + 24, "the raw size of a section", expected, section.raw_bytes));
            }
        }
        // Offsets into these are 32 bits wide; the limit on metadata may be raised beyond that.
        for kind in [format::SECTION_NAMES, format::SECTION_TARGETS, format::SECTION_XATTR_BYTES] {
            let bytes = self.section(kind).map_or(0, |section| section.raw_bytes);
            require_limit("the size of a section", u32::MAX, bytes)?;
        }
        Ok(())
    }
}

/// The hash that belongs into the `check` field of `raw`.
pub(crate) fn check_hash(raw: &format::Superblock) -> [u8; 32] {
    let mut unchecked = *raw;
    unchecked.check = [0; 32];
    *blake3::hash(unchecked.as_bytes()).as_bytes()
}

fn wrong_magic(bytes: &[u8]) -> ImageError {
    let mut found = [0; 8];
    found.copy_from_slice(&bytes[..8]);
    ImageError::Magic { expected: format::MAGIC, found }
}

fn section_report(raw: &format::Section, features: u32) -> SectionReport {
    SectionReport {
        kind: raw.kind.get(),
        codec: raw.codec,
        filter: raw.filter,
        optional: raw.flags & format::SECTION_OPTIONAL != 0,
        derived: raw.flags & format::SECTION_DERIVED != 0,
        offset: raw.offset.get(),
        stored_bytes: raw.stored_bytes.get(),
        raw_bytes: raw.raw_bytes.get(),
        hash: raw.hash,
        record_bytes: record_bytes(raw.kind.get(), features),
    }
}

fn check_section_flags(
    at: usize,
    section: &SectionReport,
    raw: &format::Section,
    features: u32,
) -> Result<(), ImageError> {
    let flags = raw.flags;
    let known = format::SECTION_OPTIONAL | format::SECTION_DERIVED;
    if flags & !known != 0 {
        let (found, known) = (flags.into(), known.into());
        return Err(ImageError::NeedsNewer { what: "section flags", found, known });
    }
    if raw.reserved != 0 {
        return Err(corrupt(at + 7, "a reserved byte", 0, raw.reserved.into()));
    }
    let is_required = format::SECTIONS_REQUIRED.contains(&section.kind)
        || (features & format::FEATURE_DICTIONARIES != 0 && section.kind == format::SECTION_DICTIONARIES)
        || (features & format::FEATURE_BLOCK_HASHES != 0 && section.kind == format::SECTION_BLOCK_HASHES);
    if !is_required {
        if section.optional {
            return Ok(());
        }
        let known = format::SECTION_BLOCK_HASHES.into();
        return Err(ImageError::NeedsNewer { what: "required section", found: section.kind.into(), known });
    }
    if section.optional {
        return Err(corrupt(at + 5, "the flags of a required section", 0, flags.into()));
    }
    let filters = if section.record_bytes.is_some() { last_filter(section.kind) } else { format::FILTER_NONE };
    if section.filter > filters {
        return Err(unknown_filter(section.filter));
    }
    let codec = Codec::from_u8(section.codec).ok_or(unknown_codec(section.codec))?;
    if section.kind == format::SECTION_BLOCK_HASHES && codec != Codec::Stored {
        return Err(corrupt(at + 4, "the codec of the hashes of blocks", 0, section.codec.into()));
    }
    let fits = match codec {
        _ if section.derived => codec == Codec::Stored && section.stored_bytes == section.raw_bytes,
        Codec::Stored => section.stored_bytes == section.raw_bytes,
        _ => section.stored_bytes < section.raw_bytes,
    };
    if !fits {
        let (expected, found) = (section.raw_bytes, section.stored_bytes);
        return Err(corrupt(at + 16, "the stored size of a section, bounded by its raw size,", expected, found));
    }
    Ok(())
}
