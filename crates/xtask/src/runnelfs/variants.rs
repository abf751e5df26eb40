//! Images as the packer does not write them, or only after it learned.

use nix::errno::Errno;

use super::mutate::{
    BLOCK_BYTES, BLOCK_COUNT, BLOCK_HASH, BLOCK_SIZES, FEATURE_BLOCK_HASHES, FEATURES, HASH_BYTES, KIND_BLOCK_HASHES,
    KIND_BLOCKS, METADATA_OFFSET, SECTION_BYTES, SECTION_COUNT, SECTIONS, SIZES_BYTES, SUPERBLOCK_BYTES, long,
    make_right, number,
};

/// Offsets of docs/formats/image.md: the fields of the superblock.
const FILE_BYTES: usize = 16;
const LARGEST_BLOCK: usize = 40;
const HOT_BLOCKS: usize = 72;

/// Bits of features: some blocks are hot; hashes of chunks are derived.
const FEATURE_HOT: u8 = 4;
const FEATURE_DERIVED_HASHES: u8 = 8;

/// Kind of the section of the hashes of chunks, and the flag of one that is not in the file.
const KIND_CHUNK_HASHES: u32 = 11;
const SECTION_DERIVED: u8 = 2;

/// The features that an image says it has.
pub fn features(image: &[u8]) -> u32 {
    number(image, FEATURES)
}

/// The same image, with all of its blocks hot.
pub fn hot(image: &[u8]) -> Vec<u8> {
    let mut bytes = image.to_vec();
    bytes[FEATURES] |= FEATURE_HOT;
    bytes.copy_within(BLOCK_COUNT..BLOCK_COUNT + 4, HOT_BLOCKS);
    make_right(&mut bytes);
    bytes
}

/// A section: its entry in the superblock's table, and its bytes as they are stored.
struct Section {
    entry: [u8; SECTION_BYTES],
    stored: Vec<u8>,
}

impl Section {
    fn kind(&self) -> u32 {
        number(&self.entry, 0)
    }

    fn is_derived(&self) -> bool {
        self.entry[5] & SECTION_DERIVED != 0
    }

    /// Makes it one that is stored as it is.
    fn set_plain(&mut self, bytes: Vec<u8>) {
        self.entry[4..8].fill(0);
        self.entry[24..32].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.stored = bytes;
    }
}

/// An image whose sections can be changed.
struct Parts {
    superblock: Vec<u8>,
    blocks: Vec<u8>,
    sections: Vec<Section>,
}

impl Parts {
    fn of(image: &[u8]) -> Parts {
        let end = long(image, METADATA_OFFSET) as usize;
        let section = |i: usize| {
            let at = SECTIONS + SECTION_BYTES * i;
            let mut section = Section { entry: [0; SECTION_BYTES], stored: Vec::new() };
            section.entry.copy_from_slice(&image[at..at + SECTION_BYTES]);
            if !section.is_derived() {
                section.stored = image[long(image, at + 8) as usize..][..long(image, at + 16) as usize].to_vec();
            }
            section
        };
        Parts {
            superblock: image[..SUPERBLOCK_BYTES].to_vec(),
            blocks: image[SUPERBLOCK_BYTES..end].to_vec(),
            sections: (0..number(image, SECTION_COUNT) as usize).map(section).collect(),
        }
    }

    fn section(&mut self, kind: u32) -> Option<&mut Section> {
        self.sections.iter_mut().find(|section| section.kind() == kind)
    }

    /// Puts the parts together again. All places and hashes are right.
    fn assemble(mut self) -> Vec<u8> {
        let start = (SUPERBLOCK_BYTES + self.blocks.len()) as u64;
        let stored: usize = self.sections.iter().map(|section| section.stored.len()).sum();
        let file_end = start + stored as u64;
        let region = [file_end, start, stored as u64].map(u64::to_le_bytes).concat();
        self.superblock[FILE_BYTES..FILE_BYTES + 24].copy_from_slice(&region);
        self.superblock[SECTION_COUNT..SECTION_COUNT + 4].copy_from_slice(&(self.sections.len() as u32).to_le_bytes());
        self.superblock[SECTIONS..].fill(0);
        let mut bytes = [self.superblock, self.blocks].concat();
        for (i, section) in self.sections.iter_mut().enumerate() {
            let at = if section.is_derived() { file_end } else { bytes.len() as u64 };
            section.entry[8..16].copy_from_slice(&at.to_le_bytes());
            if !section.is_derived() {
                section.entry[16..24].copy_from_slice(&(section.stored.len() as u64).to_le_bytes());
            }
            bytes[SECTIONS + SECTION_BYTES * i..][..SECTION_BYTES].copy_from_slice(&section.entry);
            bytes.extend_from_slice(&section.stored);
        }
        make_right(&mut bytes);
        bytes
    }
}

/// The same image, whose only block is described by a table that is stored as it is, so that
/// mutants can change the block.
pub fn with_plain_table(image: &[u8]) -> Vec<u8> {
    let mut parts = Parts::of(image);
    let codec = match parts.blocks[..] {
        [0x28, 0xb5, ..] => 1,
        [0xfd, b'7', ..] => 3,
        _ => 2,
    };
    let mut sizes = [0; SIZES_BYTES];
    sizes[0..4].copy_from_slice(&(parts.blocks.len() as u32).to_le_bytes());
    sizes[4..8].copy_from_slice(&image[LARGEST_BLOCK..LARGEST_BLOCK + 4]);
    sizes[8] = codec;
    let mut table = sizes.to_vec();
    if parts.superblock[FEATURES] & FEATURE_BLOCK_HASHES == 0 {
        table = vec![0; BLOCK_BYTES];
        table[0..8].copy_from_slice(&(SUPERBLOCK_BYTES as u64).to_le_bytes());
        table[BLOCK_SIZES..BLOCK_HASH].copy_from_slice(&sizes);
        table[BLOCK_HASH..].copy_from_slice(blake3::hash(&parts.blocks).as_bytes());
    }
    if let Some(blocks) = parts.section(KIND_BLOCKS) {
        blocks.set_plain(table);
    }
    parts.assemble()
}

/// The same image of one block, as it was before hashes of blocks had a section of their own.
pub fn older(image: &[u8]) -> Vec<u8> {
    let mut parts = Parts::of(image);
    parts.superblock[FEATURES] &= !FEATURE_BLOCK_HASHES;
    parts.sections.retain(|section| section.kind() != KIND_BLOCK_HASHES);
    with_plain_table(&parts.assemble())
}

/// An image that must be refused: its name, the error of a mount, a part of what the kernel says,
/// and its bytes.
type Refused = (&'static str, Errno, &'static str, Vec<u8>);

/// Images that are cut off, and such whose hashes of blocks contradict the rest, though all hashes
/// are right. They are made of one that has this section.
pub fn refused(image: &[u8]) -> Vec<Refused> {
    let mut all = contradicting(image);
    all.extend([
        ("cut-by-a-byte", Errno::EIO, "cut off", image[..image.len() - 1].to_vec()),
        ("cut-to-superblock", Errno::EIO, "cut off: 4096 of", image[..SUPERBLOCK_BYTES].to_vec()),
        ("cut-in-superblock", Errno::EINVAL, "no image", image[..SUPERBLOCK_BYTES - 1].to_vec()),
        ("empty", Errno::EINVAL, "no image", Vec::new()),
    ]);
    all
}

fn contradicting(image: &[u8]) -> Vec<Refused> {
    let change = |change: &dyn Fn(&mut Parts, usize)| {
        let mut parts = Parts::of(image);
        if let Some(at) = parts.sections.iter().position(|section| section.kind() == KIND_BLOCK_HASHES) {
            change(&mut parts, at);
        }
        parts.assemble()
    };
    let resize = |by: isize| {
        change(&|parts, at| {
            let mut bytes = parts.sections[at].stored.clone();
            bytes.resize(bytes.len().saturating_add_signed(by), 0);
            parts.sections[at].set_plain(bytes);
        })
    };
    vec![
        ("hashes-fewer", Errno::EUCLEAN, "", resize(-(HASH_BYTES as isize))),
        ("hashes-more", Errno::EUCLEAN, "", resize(HASH_BYTES as isize)),
        ("hashes-cut", Errno::EUCLEAN, "", resize(-1)),
        // Its decoded size stays, so that nothing but the codec is wrong.
        (
            "hashes-zstd",
            Errno::EUCLEAN,
            "",
            change(&|parts, at| {
                parts.sections[at].entry[4] = 1;
                parts.sections[at].stored.pop();
            }),
        ),
        ("hashes-columns", Errno::EOPNOTSUPP, "", change(&|parts, at| parts.sections[at].entry[6] = 1)),
        ("hashes-optional", Errno::EUCLEAN, "", change(&|parts, at| parts.sections[at].entry[5] = 1)),
        ("hashes-missing", Errno::EUCLEAN, "", change(&|parts, at| drop(parts.sections.remove(at)))),
        ("hashes-last", Errno::EUCLEAN, "", change(&|parts, at| parts.sections.swap(at, at + 1))),
        (
            "hashes-unannounced",
            Errno::EOPNOTSUPP,
            "",
            change(&|parts, _| parts.superblock[FEATURES] &= !FEATURE_BLOCK_HASHES),
        ),
        (
            "hashes-both-missing",
            Errno::EUCLEAN,
            "",
            change(&|parts, at| {
                parts.superblock[FEATURES] &= !FEATURE_BLOCK_HASHES;
                parts.sections.remove(at);
            }),
        ),
        (
            "hashes-derived",
            Errno::EUCLEAN,
            "",
            change(&|parts, _| {
                parts.superblock[FEATURES] |= FEATURE_DERIVED_HASHES;
                if let Some(hashes) = parts.section(KIND_CHUNK_HASHES) {
                    let bytes = std::mem::take(&mut hashes.stored);
                    hashes.entry[4..8].copy_from_slice(&[0, SECTION_DERIVED, 0, 0]);
                    hashes.entry[16..24].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
                    hashes.entry[24..32].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
                }
            }),
        ),
    ]
}
