//! Images as the packer does not write them, or only after it learned.

use super::mutate::{
    BLOCK_BYTES, BLOCK_COUNT, BLOCK_HASH, BLOCK_STORED, KIND_BLOCKS, METADATA_OFFSET, SUPERBLOCK_BYTES, long,
    make_right, number, sections,
};

/// Offsets of docs/formats/image.md: the fields of the superblock.
const FEATURES: usize = 12;
const FILE_BYTES: usize = 16;
const LARGEST_BLOCK: usize = 40;
const HOT_BLOCKS: usize = 72;

/// Bit of a feature: some blocks are hot.
const FEATURE_HOT: u8 = 4;

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

/// The same image, whose only block is described by a table that is stored as it is, so that
/// mutants can change the block.
pub fn with_plain_table(image: &[u8]) -> Vec<u8> {
    let end = long(image, METADATA_OFFSET) as usize;
    let block = &image[SUPERBLOCK_BYTES..end];
    let codec = match block {
        [0x28, 0xb5, ..] => 1,
        [0xfd, b'7', ..] => 3,
        _ => 2,
    };
    let mut table = [0; BLOCK_BYTES];
    table[0..8].copy_from_slice(&(SUPERBLOCK_BYTES as u64).to_le_bytes());
    table[BLOCK_STORED..BLOCK_STORED + 4].copy_from_slice(&(block.len() as u32).to_le_bytes());
    table[20..24].copy_from_slice(&image[LARGEST_BLOCK..LARGEST_BLOCK + 4]);
    table[24] = codec;
    table[BLOCK_HASH..].copy_from_slice(blake3::hash(block).as_bytes());
    let mut bytes = image[..end].to_vec();
    for (entry, place) in sections(image) {
        let section = if number(image, entry) == KIND_BLOCKS { &table[..] } else { &image[place] };
        if number(image, entry) == KIND_BLOCKS {
            bytes[entry + 4..entry + 7].fill(0);
        }
        let numbers = [bytes.len() as u64, section.len() as u64].map(u64::to_le_bytes).concat();
        bytes[entry + 8..entry + 24].copy_from_slice(&numbers);
        bytes.extend_from_slice(section);
    }
    let numbers = [bytes.len(), end, bytes.len() - end].map(|number| (number as u64).to_le_bytes()).concat();
    bytes[FILE_BYTES..FILE_BYTES + 24].copy_from_slice(&numbers);
    make_right(&mut bytes);
    bytes
}
