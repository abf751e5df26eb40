//! Images that were changed: by chance, or so that all hashes are right again.

use units::{Rng, SplitMix64};

/// Offsets of docs/formats/image.md: the fields of the superblock, and of an entry of its table of
/// sections.
pub(super) const SUPERBLOCK_BYTES: usize = 4096;
pub(super) const FEATURES: usize = 12;
pub(super) const METADATA_OFFSET: usize = 24;
pub(super) const BLOCK_COUNT: usize = 60;
pub(super) const SECTION_COUNT: usize = 64;
const CHECK: std::ops::Range<usize> = 96..128;
pub(super) const SECTIONS: usize = 128;
pub(super) const SECTION_BYTES: usize = 64;
/// Bit of a feature: records of blocks have no places, and hashes of blocks have a section.
pub(super) const FEATURE_BLOCK_HASHES: u8 = 32;
/// Kinds of the sections about blocks, and bytes of a hash.
pub(super) const KIND_BLOCKS: u32 = 10;
pub(super) const KIND_BLOCK_HASHES: u32 = 13;
pub(super) const HASH_BYTES: usize = 32;
/// Bytes of a record of a block with that feature, and of one without: this has the place before
/// the same fields, the stored size first, and the hash behind them.
pub(super) const SIZES_BYTES: usize = 16;
pub(super) const BLOCK_BYTES: usize = 64;
pub(super) const BLOCK_SIZES: usize = 16;
pub(super) const BLOCK_HASH: usize = 32;

/// How a mutant was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes changed anywhere: what is read is as in the source or cannot be read.
    Damaged,
    /// Bytes of blocks changed, so that it can be mounted.
    DamagedBlocks,
    /// The end is missing.
    Cut,
    /// A field of the superblock is another one, and its hash is right.
    Superblock,
    /// A section has other bytes, and all hashes are right.
    Section,
    /// A block has other bytes, and all hashes are right.
    Block,
}

impl Kind {
    /// Whether a reader must notice every change.
    pub fn is_noticed(self) -> bool {
        matches!(self, Kind::Damaged | Kind::DamagedBlocks | Kind::Cut)
    }
}

/// The mutant number `seed` of an image.
pub fn mutant(image: &[u8], seed: u64) -> (Kind, Vec<u8>) {
    let mut random = SplitMix64(seed);
    let mut bytes = image.to_vec();
    let kind = match random.below(10) {
        0 => Kind::Damaged,
        1..=3 => Kind::DamagedBlocks,
        4 => Kind::Cut,
        5 => Kind::Superblock,
        6..=7 => Kind::Section,
        _ => Kind::Block,
    };
    match kind {
        Kind::Damaged => {
            let most = bytes.len();
            change(&mut bytes, 0..most, &mut random);
        }
        Kind::DamagedBlocks => {
            let end = long(&bytes, METADATA_OFFSET) as usize;
            change(&mut bytes, SUPERBLOCK_BYTES..end, &mut random);
        }
        Kind::Cut => bytes.truncate(random.below(image.len() as u64) as usize),
        Kind::Superblock => {
            let used = SECTIONS + SECTION_BYTES * number(&bytes, SECTION_COUNT) as usize;
            change(&mut bytes, 8..used, &mut random);
        }
        Kind::Section => {
            let sections = sections(&bytes);
            let (_, place) = sections[random.below(sections.len() as u64) as usize].clone();
            change(&mut bytes, place, &mut random);
        }
        Kind::Block => change_block(&mut bytes, &mut random),
    }
    if !kind.is_noticed() {
        make_right(&mut bytes);
    }
    (kind, bytes)
}

/// Changes one to eight bytes: to chance, to a neighbour, or to an extreme.
fn change(bytes: &mut [u8], place: std::ops::Range<usize>, random: &mut SplitMix64) {
    if place.is_empty() {
        return;
    }
    for _ in 0..=random.below(8) {
        let byte = &mut bytes[place.start + random.below(place.len() as u64) as usize];
        *byte = match random.below(5) {
            0 => byte.wrapping_add(1),
            1 => byte.wrapping_sub(1),
            2 => 0,
            3 => 0xff,
            _ => random.next_u64() as u8,
        };
    }
}

/// Records of blocks in a section that is stored as it is; they may lie column by column.
struct Records {
    start: usize,
    count: usize,
    width: usize,
    in_columns: bool,
}

impl Records {
    fn find(bytes: &[u8], kind: u32, width: usize) -> Option<Records> {
        let (entry, place) = sections(bytes).into_iter().find(|(entry, _)| number(bytes, *entry) == kind)?;
        let (is_stored, in_columns) = (bytes[entry + 4] == 0, bytes[entry + 6] == 1);
        let count = number(bytes, BLOCK_COUNT) as usize;
        let records = Records { start: place.start, count, width, in_columns };
        (is_stored && place.len() == count * width).then_some(records)
    }

    /// Where byte `field` of record `index` stands.
    fn at(&self, index: usize, field: usize) -> usize {
        self.start + if self.in_columns { field * self.count + index } else { index * self.width + field }
    }

    fn number(&self, bytes: &[u8], index: usize, field: usize, width: usize) -> usize {
        (0..width).rev().fold(0, |sum, i| sum << 8 | usize::from(bytes[self.at(index, field + i)]))
    }
}

/// Where the stored bytes of a block and the bytes of its hash lie; `None` if that is not stored as
/// it is.
fn block(bytes: &[u8], index: usize) -> Option<(std::ops::Range<usize>, [usize; HASH_BYTES])> {
    let (start, stored, hash);
    if bytes[FEATURES] & FEATURE_BLOCK_HASHES == 0 {
        let blocks = Records::find(bytes, KIND_BLOCKS, BLOCK_BYTES)?;
        start = blocks.number(bytes, index, 0, 8);
        stored = blocks.number(bytes, index, BLOCK_SIZES, 4);
        hash = std::array::from_fn(|i| blocks.at(index, BLOCK_HASH + i));
    } else {
        let blocks = Records::find(bytes, KIND_BLOCKS, SIZES_BYTES)?;
        let hashes = Records::find(bytes, KIND_BLOCK_HASHES, HASH_BYTES)?;
        start = SUPERBLOCK_BYTES + (0..index).map(|before| blocks.number(bytes, before, 0, 4)).sum::<usize>();
        stored = blocks.number(bytes, index, 0, 4);
        hash = std::array::from_fn(|i| hashes.at(index, i));
    }
    (start + stored <= bytes.len()).then_some((start..start + stored, hash))
}

/// Changes the bytes of a block, and its hash, if the sections about blocks are stored as they are.
fn change_block(bytes: &mut [u8], random: &mut SplitMix64) {
    let count = number(bytes, BLOCK_COUNT);
    if count == 0 {
        return;
    }
    let index = random.below(u64::from(count)) as usize;
    let Some((place, hash)) = block(bytes, index) else { return };
    change(bytes, place.clone(), random);
    let right = blake3::hash(&bytes[place]);
    for (at, byte) in hash.into_iter().zip(right.as_bytes()) {
        bytes[at] = *byte;
    }
}

/// Computes the hashes of all sections and of the superblock anew.
pub(super) fn make_right(bytes: &mut [u8]) {
    for (entry, place) in sections(bytes) {
        let hash = blake3::hash(&bytes[place]);
        bytes[entry + 32..entry + 64].copy_from_slice(hash.as_bytes());
    }
    bytes[CHECK].fill(0);
    let hash = blake3::hash(&bytes[..SUPERBLOCK_BYTES]);
    bytes[CHECK].copy_from_slice(hash.as_bytes());
}

/// Where the entries of the table stand, and where the sections in the file lie.
pub(super) fn sections(bytes: &[u8]) -> Vec<(usize, std::ops::Range<usize>)> {
    let count = (number(bytes, SECTION_COUNT) as usize).min(62);
    let entries = (0..count).map(|i| SECTIONS + SECTION_BYTES * i);
    let place = |entry: usize| {
        let start = long(bytes, entry + 8) as usize;
        start..start.saturating_add(long(bytes, entry + 16) as usize)
    };
    // What is derived is not in the file. What lies over the superblock would hold its own hash.
    let is_there = |place: &std::ops::Range<usize>| SUPERBLOCK_BYTES <= place.start && place.end <= bytes.len();
    entries.map(|entry| (entry, place(entry))).filter(|(_, place)| is_there(place)).collect()
}

/// Four bytes.
pub(super) fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Eight bytes.
pub(super) fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(number(bytes, at)) | u64::from(number(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_differ_and_those_that_must_have_right_hashes() -> std::io::Result<()> {
        let image = std::fs::read(crate::root().join("crates/image/testdata/image-v1.bin"))?;
        let mut untouched = image.clone();
        make_right(&mut untouched);
        assert_eq!(untouched, image, "the hashes of an image are right");
        for seed in 0..500 {
            let (kind, bytes) = mutant(&image, seed);
            let mut right = bytes.clone();
            if bytes.len() > SUPERBLOCK_BYTES {
                make_right(&mut right);
            }
            assert!(kind.is_noticed() || right == bytes, "mutant {seed}, {kind:?}");
        }
        Ok(())
    }

    /// An image of three blocks without any file. `in_columns` is how its block table lies.
    fn three_blocks(apart: bool, in_columns: bool) -> Vec<u8> {
        let blocks = [&b"some"[..], b"bytes of", b"blocks"];
        let width = if apart { SIZES_BYTES } else { BLOCK_BYTES };
        let (mut table, mut hashes) = (vec![0; 3 * width], Vec::new());
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        for (index, block) in blocks.into_iter().enumerate() {
            let mut record = Vec::new();
            if !apart {
                record.extend([bytes.len() as u64, 0].map(u64::to_le_bytes).concat());
            }
            record.extend([block.len() as u32, 0, 0, 0].map(u32::to_le_bytes).concat());
            let hash = *blake3::hash(block).as_bytes();
            if apart { &mut hashes } else { &mut record }.extend(hash);
            for (field, byte) in record.into_iter().enumerate() {
                table[if in_columns { field * 3 + index } else { index * width + field }] = byte;
            }
            bytes.extend(block);
        }
        let mut sections = vec![(KIND_BLOCKS, table, u8::from(in_columns))];
        if apart {
            sections.push((KIND_BLOCK_HASHES, hashes, 0));
            bytes[FEATURES] = FEATURE_BLOCK_HASHES;
        }
        (bytes[BLOCK_COUNT], bytes[SECTION_COUNT]) = (3, sections.len() as u8);
        for (i, (kind, section, filter)) in sections.into_iter().enumerate() {
            let entry = SECTIONS + SECTION_BYTES * i;
            (bytes[entry], bytes[entry + 6]) = (kind as u8, filter);
            let place = [bytes.len() as u64, section.len() as u64].map(u64::to_le_bytes).concat();
            bytes[entry + 8..entry + 24].copy_from_slice(&place);
            bytes.extend(section);
        }
        bytes
    }

    #[test]
    fn a_changed_block_has_its_hash_in_each_layout() {
        for (apart, in_columns) in [(false, false), (false, true), (true, false), (true, true)] {
            let image = three_blocks(apart, in_columns);
            let mut changed = [false; 3];
            for seed in 0..100 {
                let mut bytes = image.clone();
                change_block(&mut bytes, &mut SplitMix64(seed));
                for (index, changed) in changed.iter_mut().enumerate() {
                    let (place, hash) = block(&bytes, index).unwrap();
                    *changed |= bytes[place.clone()] != image[place.clone()];
                    assert_eq!(hash.map(|at| bytes[at]), *blake3::hash(&bytes[place]).as_bytes());
                }
            }
            assert_eq!(changed, [true; 3], "apart {apart}, in columns {in_columns}");
        }
    }
}
