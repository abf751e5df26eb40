//! Sections of the metadata region: their names, and reading one with its hash checked before it is
//! decoded.

use crate::{Codec, ImageError, ReadAt, differences, format};

/// One entry of the section table, in native integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionReport {
    /// Kind, one of the `SECTION_` constants of [`mod@format`], or one this version does not know.
    pub kind: u32,
    /// Codec number on disk.
    pub codec: u8,
    /// Filter number on disk.
    pub filter: u8,
    /// Whether readers that do not know the kind skip it.
    pub optional: bool,
    /// Whether it is not in the file, but follows from the blocks.
    pub derived: bool,
    /// Where it starts in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub stored_bytes: u64,
    /// Bytes after decoding.
    pub raw_bytes: u64,
    /// BLAKE3 of the stored bytes.
    pub hash: [u8; 32],
    /// Bytes of a record; `None` if it is not made of records of one size.
    pub(crate) record_bytes: Option<usize>,
}

impl SectionReport {
    /// The name of the kind.
    pub fn name(&self) -> &'static str {
        section_name(self.kind)
    }

    /// The name of the codec.
    pub fn codec_name(&self) -> &'static str {
        Codec::from_u8(self.codec).map_or("unknown", Codec::name)
    }
}

/// The name of a section kind, as in errors and dumps.
pub fn section_name(kind: u32) -> &'static str {
    match kind {
        format::SECTION_INODES => "inodes",
        format::SECTION_ENTRIES => "entries",
        format::SECTION_NAMES => "names",
        format::SECTION_TARGETS => "targets",
        format::SECTION_XATTR_SETS => "xattr-sets",
        format::SECTION_XATTRS => "xattrs",
        format::SECTION_XATTR_BYTES => "xattr-bytes",
        format::SECTION_EXTENTS => "extents",
        format::SECTION_CHUNKS => "chunks",
        format::SECTION_CHUNK_HASHES => "chunk-hashes",
        format::SECTION_BLOCKS => "blocks",
        format::SECTION_DICTIONARIES => "dictionaries",
        format::SECTION_BLOCK_HASHES => "block-hashes",
        format::SECTION_PROFILE => "profile",
        format::SECTION_SIGNATURE => "signature",
        _ => "unknown",
    }
}

/// Bytes of a record of a section of an image with these features; `None` if it is not made of
/// records of one size, or may not be stored by columns.
pub(crate) fn record_bytes(kind: u32, features: u32) -> Option<usize> {
    match kind {
        format::SECTION_INODES => Some(size_of::<format::Inode>()),
        format::SECTION_ENTRIES => Some(size_of::<format::Entry>()),
        format::SECTION_XATTR_SETS => Some(4),
        format::SECTION_XATTRS => Some(size_of::<format::Xattr>()),
        format::SECTION_EXTENTS => Some(size_of::<format::Extent>()),
        format::SECTION_CHUNKS => Some(size_of::<format::Chunk>()),
        format::SECTION_CHUNK_HASHES => Some(size_of::<format::ChunkHash>()),
        format::SECTION_BLOCKS => Some(match features & format::FEATURE_BLOCK_HASHES {
            0 => size_of::<format::BlockAndHash>(),
            _ => size_of::<format::BlockSizes>(),
        }),
        _ => None,
    }
}

/// Reads the stored bytes of a section into `stored` and checks their hash. Its size was checked
/// with the superblock.
pub(crate) fn read_stored(
    source: &dyn ReadAt,
    section: &SectionReport,
    stored: &mut Vec<u8>,
) -> Result<(), ImageError> {
    stored.clear();
    stored.resize(section.stored_bytes as usize, 0);
    source.read_exact_at(section.offset, stored).map_err(|source| ImageError::Read {
        what: section.name(),
        offset: section.offset,
        source,
    })?;
    let found = *blake3::hash(stored).as_bytes();
    if found != section.hash {
        let (offset, expected) = (section.offset, section.hash);
        return Err(ImageError::SectionHash { section: section.name(), offset, expected, found });
    }
    Ok(())
}

/// Decodes the stored bytes of a section, whose codec and filter must be known.
pub(crate) fn decode(section: &SectionReport, stored: &[u8]) -> Result<Box<[u8]>, ImageError> {
    let codec = Codec::from_u8(section.codec).ok_or(unknown_codec(section.codec))?;
    let mut raw = Vec::new();
    codec::decode(codec, stored, section.raw_bytes as usize, &mut raw).map_err(|source| ImageError::SectionCodec {
        section: section.name(),
        offset: section.offset,
        source,
    })?;
    match (section.filter, section.record_bytes) {
        (format::FILTER_NONE, _) => Ok(raw.into_boxed_slice()),
        (filter, Some(width)) if filter <= last_filter(section.kind) && raw.len() % width == 0 => {
            let mut records = from_columns(&raw, width);
            if filter == format::FILTER_DIFFERENCES {
                differences::undo(section.kind, width, &mut records);
            }
            Ok(records)
        }
        _ => Err(unknown_filter(section.filter)),
    }
}

/// The last filter that a section of records of this kind may have.
pub(crate) fn last_filter(kind: u32) -> u8 {
    if differences::has(kind) { format::FILTER_DIFFERENCES } else { format::FILTER_COLUMNS }
}

/// Records from their columns; `columns` holds a whole number of records of `width` bytes.
fn from_columns(columns: &[u8], width: usize) -> Box<[u8]> {
    let count = columns.len() / width;
    let mut records = vec![0; columns.len()].into_boxed_slice();
    for (index, record) in records.chunks_exact_mut(width).enumerate() {
        for (column, byte) in record.iter_mut().enumerate() {
            *byte = columns[column * count + index];
        }
    }
    records
}

/// The columns of records.
#[cfg(feature = "build")]
pub(crate) fn to_columns(records: &[u8], width: usize) -> Vec<u8> {
    (0..width).flat_map(|column| records.iter().skip(column).step_by(width)).copied().collect()
}

pub(crate) fn unknown_filter(number: u8) -> ImageError {
    ImageError::NeedsNewer { what: "filter", found: number.into(), known: format::FILTER_DIFFERENCES.into() }
}

pub(crate) fn unknown_codec(number: u8) -> ImageError {
    ImageError::NeedsNewer { what: "codec", found: number.into(), known: Codec::Xz.to_u8().into() }
}
