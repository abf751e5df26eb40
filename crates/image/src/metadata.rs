//! All metadata of one image, verified and validated, in the encoding of the image.

use crate::block_hashes::BlockHashes;
use crate::chunk::ChunkIndex;
use crate::chunk_hashes::ChunkHashes;
use crate::section::{decode, read_stored};
use crate::table::Table;
use crate::{ImageError, Limits, ReadAt, SectionReport, Superblock, block_hashes, data, dictionary, format, tree};
use std::ops::Range;
use units::ImageId;

/// Metadata of an image. Opening checks every rule of the format once; afterwards no accessor fails
/// on content, panics or loops, and none allocates except where it returns a `Vec`.
///
/// Memory: the decoded sections (the chunk hashes also before they are loaded, as blocks are
/// decoded), plus 1/128 of the extents, plus 4 bytes a chunk if chunks were sorted
/// ([`Metadata::memory_bytes`]).
pub struct Metadata {
    pub(crate) superblock: Superblock,
    pub(crate) tables: Tables,
    pub(crate) chunk_index: ChunkIndex,
    pub(crate) hashes: ChunkHashes,
    pub(crate) block_hashes: BlockHashes,
}

/// Sections that are read when an image is opened early: all required ones but the last, the chunk
/// hashes.
const SECTIONS_EARLY: usize = format::SECTIONS_REQUIRED.len() - 1;

/// The decoded sections.
pub(crate) struct Tables {
    pub(crate) inodes: Table<format::Inode>,
    pub(crate) entries: Table<format::Entry>,
    pub(crate) names: Box<[u8]>,
    pub(crate) targets: Box<[u8]>,
    pub(crate) xattr_sets: Table<zerocopy::little_endian::U32>,
    pub(crate) xattrs: Table<format::Xattr>,
    pub(crate) xattr_bytes: Box<[u8]>,
    pub(crate) extents: Table<format::Extent>,
    pub(crate) chunks: Table<format::Chunk>,
    pub(crate) blocks: Table<format::Block>,
    pub(crate) dictionaries: Vec<codec::Dictionary>,
}

impl Metadata {
    /// Reads the superblock and the metadata region of `source`, and checks them entirely: hashes,
    /// sizes, the tree, the extents, the places of chunks and blocks. Reads no block, so chunk
    /// hashes that are not in the file are not loaded.
    ///
    /// # Errors
    /// See [`ImageError`]; the first thing wrong, with its place.
    pub fn open(source: &dyn ReadAt, limits: &Limits) -> Result<Metadata, ImageError> {
        let metadata = Metadata::open_early(source, limits)?;
        metadata.load_block_hashes(source)?;
        if !metadata.derives_chunk_hashes() {
            metadata.load_chunk_hashes(source)?;
        }
        let mut stored = Vec::new();
        for section in metadata.superblock.sections.iter().filter(|section| section.optional) {
            read_stored(source, section, &mut stored)?;
        }
        Ok(metadata)
    }

    /// As [`Metadata::open`], but leaves out what a mount can start without: the chunk hashes,
    /// which are two thirds of the metadata of a typical image, the hashes of blocks, most of the
    /// rest, and optional sections. Blocks can be verified after [`Metadata::load_block_hashes`],
    /// pages after [`Metadata::load_chunk_hashes`], and each of them after its
    /// [`Metadata::load_proof`].
    ///
    /// # Errors
    /// As [`Metadata::open`], for what is read.
    pub fn open_early(source: &dyn ReadAt, limits: &Limits) -> Result<Metadata, ImageError> {
        let superblock = Superblock::read(source, limits)?;
        let mut stored = Vec::new();
        let mut raw: [Box<[u8]>; SECTIONS_EARLY] = Default::default();
        for (slot, kind) in raw.iter_mut().zip(format::SECTIONS_REQUIRED) {
            // The superblock was checked to have them all.
            if let Some(section) = superblock.section(kind) {
                read_stored(source, section, &mut stored)?;
                *slot = decode(section, &stored)?;
            }
        }
        drop(stored);
        let dictionaries = match read_dictionaries(&superblock, source)? {
            None => Vec::new(),
            Some(raw) => dictionary::parse(&raw)?,
        };
        let [inodes, entries, names, targets, xattr_sets, xattrs, xattr_bytes, extents, chunks, blocks] = raw;
        let (blocks, hashes) = block_hashes::split(&superblock, &blocks);
        let tables = Tables {
            inodes: Table::new(inodes),
            entries: Table::new(entries),
            names,
            targets,
            xattr_sets: Table::new(xattr_sets),
            xattrs: Table::new(xattrs),
            xattr_bytes,
            extents: Table::new(extents),
            chunks: Table::new(chunks),
            blocks,
            dictionaries,
        };
        tree::validate(&tables, limits)?;
        let chunk_index = data::validate(&superblock, &tables)?;
        let block_hashes = BlockHashes::of(&superblock, hashes);
        Ok(Metadata { superblock, tables, chunk_index, hashes: ChunkHashes::default(), block_hashes })
    }

    /// The bytes of each dictionary of blocks, from the image this was opened from; opening keeps
    /// them only as decoders need them.
    ///
    /// # Errors
    /// The source fails or changed.
    pub fn dictionaries(&self, source: &dyn ReadAt) -> Result<Vec<Vec<u8>>, ImageError> {
        let Some(raw) = read_dictionaries(&self.superblock, source)? else { return Ok(Vec::new()) };
        dictionary::split(&raw)
    }

    /// Where the chunk hashes stand, or would stand after the end of the file if they are derived.
    pub fn chunk_hash_region(&self) -> Range<u64> {
        let section = self.superblock.section(format::SECTION_CHUNK_HASHES);
        section.map_or(0..0, |section| section.offset..section.offset + section.stored_bytes)
    }

    /// Identity of the image: BLAKE3 of its superblock, which covers every byte of the file.
    pub fn id(&self) -> ImageId {
        self.superblock.id
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Bytes of the image file.
    pub fn file_bytes(&self) -> u64 {
        self.superblock.file_bytes
    }

    /// Where the metadata region lies in the file.
    pub fn metadata_region(&self) -> Range<u64> {
        self.superblock.metadata_region()
    }

    /// Number of inodes; valid ids are 1 to this.
    pub fn inode_count(&self) -> u32 {
        self.tables.inodes.len()
    }

    /// Number of blocks; valid ids are 0 to one less.
    pub fn block_count(&self) -> u32 {
        self.tables.blocks.len()
    }

    /// Number of chunks; valid ids are 0 to one less.
    pub fn chunk_count(&self) -> u32 {
        self.tables.chunks.len()
    }

    /// The blocks before this one hold what programs read when they start; 0 if the packer did not
    /// know.
    pub fn hot_blocks(&self) -> u32 {
        self.superblock.hot_blocks
    }

    /// Bytes of a full chunk: a power of two, at most a page.
    pub fn chunk_bytes(&self) -> usize {
        self.superblock.chunk_bytes()
    }

    /// The section table, in file order.
    pub fn section_report(&self) -> &[SectionReport] {
        &self.superblock.sections
    }

    /// Bytes of memory this value holds.
    pub fn memory_bytes(&self) -> usize {
        let t = &self.tables;
        let pools = t.names.len() + t.targets.len() + t.xattr_bytes.len();
        let tree = t.inodes.byte_len() + t.entries.byte_len() + t.xattr_sets.byte_len() + t.xattrs.byte_len();
        let data = t.extents.byte_len() + t.chunks.byte_len() + t.blocks.byte_len();
        let dictionaries: usize = t.dictionaries.iter().map(codec::Dictionary::memory_bytes).sum();
        let hashes = self.hashes.memory_bytes() + self.block_hashes.memory_bytes();
        size_of::<Metadata>() + pools + tree + data + dictionaries + hashes + self.chunk_index.memory_bytes()
    }

    /// Reads, verifies and decodes an optional section (profile, signature) from the image this was
    /// opened from; `None` if it has none of this kind. Opening does not keep them in memory.
    ///
    /// # Errors
    /// The source fails or changed, the section is damaged, or its codec is unknown.
    pub fn optional_section(&self, source: &dyn ReadAt, kind: u32) -> Result<Option<Box<[u8]>>, ImageError> {
        let Some(section) = self.superblock.section(kind).filter(|section| section.optional) else {
            return Ok(None);
        };
        let mut stored = Vec::new();
        read_stored(source, section, &mut stored)?;
        decode(section, &stored).map(Some)
    }
}

/// The decoded section of dictionaries, if there is one.
fn read_dictionaries(superblock: &Superblock, source: &dyn ReadAt) -> Result<Option<Box<[u8]>>, ImageError> {
    let section = superblock.section(format::SECTION_DICTIONARIES).filter(|section| !section.optional);
    let Some(section) = section else { return Ok(None) };
    let mut stored = Vec::new();
    read_stored(source, section, &mut stored)?;
    decode(section, &stored).map(Some)
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metadata").field("id", &self.id()).field("inodes", &self.inode_count()).finish_non_exhaustive()
    }
}
