//! Images that were changed: by chance, or so that all hashes are right again.

use units::{Rng, SplitMix64};

/// Offsets of docs/formats/image.md: the fields of the superblock, and of an entry of its table of
/// sections.
pub(super) const SUPERBLOCK_BYTES: usize = 4096;
pub(super) const METADATA_OFFSET: usize = 24;
pub(super) const BLOCK_COUNT: usize = 60;
const SECTION_COUNT: usize = 64;
const CHECK: std::ops::Range<usize> = 96..128;
const SECTIONS: usize = 128;
const SECTION_BYTES: usize = 64;
/// Kind of the block table, bytes of a record, and where in it the stored size and the hash stand.
pub(super) const KIND_BLOCKS: u32 = 10;
pub(super) const BLOCK_BYTES: usize = 64;
pub(super) const BLOCK_STORED: usize = 16;
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

/// Changes the bytes of a block, and its hash in the block table, if that is stored as it is. Its
/// records may lie column by column.
fn change_block(bytes: &mut [u8], random: &mut SplitMix64) {
    let count = number(bytes, BLOCK_COUNT) as usize;
    let Some((entry, table)) = sections(bytes).into_iter().find(|(entry, _)| number(bytes, *entry) == KIND_BLOCKS)
    else {
        return;
    };
    let (is_stored, in_columns) = (bytes[entry + 4] == 0, bytes[entry + 6] == 1);
    if count == 0 || !is_stored || table.len() != count * BLOCK_BYTES {
        return;
    }
    let index = random.below(count as u64) as usize;
    let at = |field: usize| table.start + if in_columns { field * count + index } else { index * BLOCK_BYTES + field };
    let field = |bytes: &[u8], field: usize, width: usize| {
        (0..width).rev().fold(0, |sum, i| sum << 8 | usize::from(bytes[at(field + i)]))
    };
    let start = field(bytes, 0, 8);
    let end = start + field(bytes, BLOCK_STORED, 4);
    if end > bytes.len() {
        return;
    }
    change(bytes, start..end, random);
    let hash = blake3::hash(&bytes[start..end]);
    for (i, byte) in hash.as_bytes().iter().enumerate() {
        bytes[at(BLOCK_HASH + i)] = *byte;
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
}
