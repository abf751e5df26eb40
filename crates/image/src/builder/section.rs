//! Makes the bytes of the metadata region and the superblock from the tables.

use super::layout::Layout;
use super::{Builder, BuilderParams, Built};
use crate::format::{BlockAndHash, BlockSizes};
use crate::section::{record_bytes, to_columns};
use crate::superblock::check_hash;
use crate::{Codec, ImageError, Metadata, ReadAt, dictionary, differences, format};
use std::io;
use zerocopy::{FromZeros, IntoBytes};

pub(super) fn assemble(builder: &Builder, layout: &Layout) -> Result<Built, ImageError> {
    let params = &builder.params;
    let dictionaries = dictionary::section(&builder.dictionaries);
    let features = features(builder, layout);
    let apart = features & format::FEATURE_BLOCK_HASHES != 0;
    let sizes: Vec<BlockSizes> = layout.blocks.iter().map(BlockSizes::of).collect();
    let whole = |(block, hash): (&format::Block, &[u8; 32])| BlockAndHash { block: *block, hash: *hash };
    let whole: Vec<BlockAndHash> = layout.blocks.iter().zip(&layout.block_hashes).map(whole).collect();
    let raw: [(u32, &[u8]); format::SECTIONS_REQUIRED.len()] = [
        (format::SECTION_INODES, layout.inodes.as_bytes()),
        (format::SECTION_ENTRIES, layout.entries.as_bytes()),
        (format::SECTION_NAMES, &layout.names),
        (format::SECTION_TARGETS, &layout.targets),
        (format::SECTION_XATTR_SETS, layout.xattr_sets.as_bytes()),
        (format::SECTION_XATTRS, layout.xattrs.as_bytes()),
        (format::SECTION_XATTR_BYTES, &layout.xattr_bytes),
        (format::SECTION_EXTENTS, layout.extents.as_bytes()),
        (format::SECTION_CHUNKS, layout.chunks.as_bytes()),
        (format::SECTION_BLOCKS, if apart { sizes.as_bytes() } else { whole.as_bytes() }),
        (format::SECTION_CHUNK_HASHES, layout.chunk_hashes.as_bytes()),
    ];
    let mut region = Region { features, start: layout.metadata_offset, metadata: Vec::new(), table: Vec::new() };
    // Kinds ascend in the file, and optional kinds may lie between the required ones' numbers in
    // later versions.
    let mut sections: Vec<(u32, &[u8], u8)> = raw.iter().map(|&(kind, bytes)| (kind, bytes, 0)).collect();
    if !builder.dictionaries.is_empty() {
        sections.push((format::SECTION_DICTIONARIES, &dictionaries, 0));
    }
    if apart {
        sections.push((format::SECTION_BLOCK_HASHES, layout.block_hashes.as_bytes(), 0));
    }
    sections.extend(builder.optional.iter().map(|(kind, bytes)| (*kind, bytes.as_slice(), format::SECTION_OPTIONAL)));
    sections.sort_by_key(|&(kind, _, _)| format::section_rank(kind));
    for (kind, bytes, flags) in sections {
        if kind == format::SECTION_CHUNK_HASHES && params.derive_hashes {
            region.derived(kind, bytes);
        } else {
            region.push(params, kind, flags, bytes)?;
        }
    }
    region.place_derived();
    let superblock = superblock(builder, layout, &region)?;
    let mut built = Built {
        superblock: superblock.as_bytes().to_vec(),
        metadata_offset: layout.metadata_offset,
        file_bytes: layout.metadata_offset + region.metadata.len() as u64,
        metadata: region.metadata,
        id: units::ImageId::default(),
    };
    // The reader's rules are the writer's: what cannot be opened is not handed out.
    let opened = Metadata::open(&Unwritten { built: &built }, &params.limits)?;
    built.id = opened.id();
    Ok(built)
}

/// The metadata region while it grows.
struct Region {
    features: u32,
    start: u64,
    metadata: Vec<u8>,
    table: Vec<format::Section>,
}

impl Region {
    /// Notes a section that is not written.
    fn derived(&mut self, kind: u32, raw: &[u8]) {
        self.table.push(format::Section {
            kind: kind.into(),
            codec: Codec::Stored.to_u8(),
            flags: format::SECTION_DERIVED,
            filter: format::FILTER_NONE,
            reserved: 0,
            offset: 0.into(),
            stored_bytes: (raw.len() as u64).into(),
            raw_bytes: (raw.len() as u64).into(),
            hash: *blake3::hash(raw).as_bytes(),
        });
    }

    /// Once all is written: what is not would follow the end.
    fn place_derived(&mut self) {
        let end = self.start + self.metadata.len() as u64;
        let derived = self.table.iter_mut().filter(|section| section.flags & format::SECTION_DERIVED != 0);
        derived.for_each(|section| section.offset = end.into());
    }

    fn push(&mut self, params: &BuilderParams, kind: u32, flags: u8, raw: &[u8]) -> Result<(), ImageError> {
        let offset = self.start + self.metadata.len() as u64;
        // Hashes are noise in any order; all other records have columns of like bytes.
        let width = record_bytes(kind, self.features).filter(|_| kind != format::SECTION_CHUNK_HASHES);
        let encode = |unpacked: &[u8]| -> Result<Vec<u8>, ImageError> {
            let mut packed = Vec::new();
            codec::encode(params.metadata_codec, params.metadata_level, unpacked, &mut packed)
                .map_err(|source| ImageError::SectionCodec { section: crate::section_name(kind), offset, source })?;
            Ok(packed)
        };
        let (mut filter, mut packed) = match width {
            None => (format::FILTER_NONE, encode(raw)?),
            Some(width) => (format::FILTER_COLUMNS, encode(&to_columns(raw, width))?),
        };
        if let Some((width, records)) = width.and_then(|width| Some((width, differences::of(kind, width, raw)?))) {
            let differences = encode(&to_columns(&records, width))?;
            // Chunks that were sorted lie in no order, and differ by as much as they are.
            if differences.len() < packed.len() {
                (filter, packed) = (format::FILTER_DIFFERENCES, differences);
            }
        }
        // Hashes of blocks must be provable leaf by leaf.
        let (codec, filter, stored) = if packed.len() < raw.len() && kind != format::SECTION_BLOCK_HASHES {
            (params.metadata_codec, filter, packed.as_slice())
        } else {
            (Codec::Stored, format::FILTER_NONE, raw)
        };
        self.table.push(format::Section {
            kind: kind.into(),
            codec: codec.to_u8(),
            flags,
            filter,
            reserved: 0,
            offset: offset.into(),
            stored_bytes: (stored.len() as u64).into(),
            raw_bytes: (raw.len() as u64).into(),
            hash: *blake3::hash(stored).as_bytes(),
        });
        self.metadata.extend_from_slice(stored);
        Ok(())
    }
}

fn superblock(builder: &Builder, layout: &Layout, region: &Region) -> Result<format::Superblock, ImageError> {
    let (limit, found) = (format::SECTIONS_MAX as u64, region.table.len() as u64);
    if found > limit {
        return Err(ImageError::Limit { what: "the number of sections", limit, found });
    }
    let mut superblock = format::Superblock::new_zeroed();
    superblock.magic = format::MAGIC;
    superblock.version.set(format::VERSION);
    superblock.chunk_shift = builder.params.chunk_shift;
    superblock.features.set(region.features);
    superblock.hot_blocks.set(builder.hot_blocks);
    superblock.file_bytes.set(layout.metadata_offset + region.metadata.len() as u64);
    superblock.metadata_offset.set(layout.metadata_offset);
    superblock.metadata_bytes.set(region.metadata.len() as u64);
    superblock.block_bytes.set(layout.block_bytes);
    superblock.inode_count.set(layout.inodes.len() as u32);
    superblock.entry_count.set(layout.entries.len() as u32);
    superblock.extent_count.set(layout.extents.len() as u32);
    superblock.chunk_count.set(layout.chunks.len() as u32);
    superblock.block_count.set(layout.blocks.len() as u32);
    superblock.section_count.set(region.table.len() as u32);
    superblock.sections[..region.table.len()].copy_from_slice(&region.table);
    superblock.check = check_hash(&superblock);
    Ok(superblock)
}

/// Bits of the features that this image needs a reader to know.
fn features(builder: &Builder, layout: &Layout) -> u32 {
    let bit = |needed, feature| if needed { feature } else { 0 };
    let filters = || layout.blocks.iter().map(|block| block.filter).filter(|&filter| filter != 0);
    bit(filters().any(|filter| filter != format::FILTER_DEFLATE), format::FEATURE_FILTERS)
        | bit(filters().any(|filter| filter == format::FILTER_DEFLATE), format::FEATURE_DEFLATE)
        | bit(!builder.dictionaries.is_empty(), format::FEATURE_DICTIONARIES)
        | bit(builder.hot_blocks > 0, format::FEATURE_HOT)
        | bit(builder.params.derive_hashes, format::FEATURE_DERIVED_HASHES)
        | bit(!builder.params.derive_hashes, format::FEATURE_BLOCK_HASHES)
}

/// The image about to be written, without its blocks, which opening does not read.
struct Unwritten<'a> {
    built: &'a Built,
}

impl ReadAt for Unwritten<'_> {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = self.built.metadata_offset;
        if offset >= start {
            self.built.metadata.as_slice().read_exact_at(offset - start, buf)
        } else {
            self.built.superblock.as_slice().read_exact_at(offset, buf)
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.built.file_bytes)
    }
}
