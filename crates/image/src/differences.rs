//! Differences: numbers that mostly grow from record to record are stored as what they grow by.
//!
//! Offsets into another section grow by the length of what they point at, and a chunk mostly
//! follows the one before: so most differences are small, or the same again and again, and the
//! columns of records compress to half. Bijections on all records; numbers wrap.

use std::mem::offset_of;

use crate::format::{self, CHUNK_LENGTH_SHIFT};

/// Positions of chunks.
const POSITION_MASK: u64 = (1 << CHUNK_LENGTH_SHIFT) - 1;

/// Where the numbers of 32 bits stand that grow.
fn fields(kind: u32) -> &'static [usize] {
    const INODE: [usize; 3] = [
        offset_of!(format::Inode, extent_first),
        offset_of!(format::Inode, entry_first),
        offset_of!(format::Inode, entry),
    ];
    const ENTRY: [usize; 2] = [offset_of!(format::Entry, name), offset_of!(format::Entry, inode)];
    const EXTENT: [usize; 2] = [offset_of!(format::Extent, file_chunk), offset_of!(format::Extent, chunk_first)];
    match kind {
        format::SECTION_INODES => &INODE,
        format::SECTION_ENTRIES => &ENTRY,
        format::SECTION_EXTENTS => &EXTENT,
        _ => &[],
    }
}

/// Whether sections of this kind may hold differences.
pub(crate) fn has(kind: u32) -> bool {
    kind == format::SECTION_CHUNKS || !fields(kind).is_empty()
}

/// Makes records of `width` bytes of their differences.
pub(crate) fn undo(kind: u32, width: usize, records: &mut [u8]) {
    if kind == format::SECTION_CHUNKS {
        let mut end = 0u64;
        for place in records.as_chunks_mut().0 {
            let stored = u64::from_le_bytes(*place);
            let position = end.wrapping_add(stored) & POSITION_MASK;
            *place = (position | stored & !POSITION_MASK).to_le_bytes();
            end = position + (stored >> CHUNK_LENGTH_SHIFT);
        }
    }
    for &field in fields(kind) {
        let mut before = 0u32;
        for record in records.chunks_exact_mut(width) {
            let Some(number) = record.get_mut(field..).and_then(|rest| rest.first_chunk_mut()) else { return };
            before = before.wrapping_add(u32::from_le_bytes(*number));
            *number = before.to_le_bytes();
        }
    }
}

/// The differences of records of `width` bytes; `None` if they may not be stored so.
#[cfg(feature = "build")]
pub(crate) fn of(kind: u32, width: usize, records: &[u8]) -> Option<Vec<u8>> {
    let mut records = records.to_vec();
    if kind == format::SECTION_CHUNKS {
        let mut end = 0u64;
        for place in records.as_chunks_mut().0 {
            let chunk = u64::from_le_bytes(*place);
            let (position, bytes) = (chunk & POSITION_MASK, chunk & !POSITION_MASK);
            *place = (position.wrapping_sub(end) & POSITION_MASK | bytes).to_le_bytes();
            end = position + (bytes >> CHUNK_LENGTH_SHIFT);
        }
    }
    for &field in fields(kind) {
        let mut before = 0u32;
        for record in records.chunks_exact_mut(width) {
            let number = record.get_mut(field..)?.first_chunk_mut()?;
            let value = u32::from_le_bytes(*number);
            *number = value.wrapping_sub(before).to_le_bytes();
            before = value;
        }
    }
    has(kind).then_some(records)
}

#[cfg(test)]
mod tests {
    use units::{Rng, SplitMix64};

    use super::*;
    use crate::section::record_bytes;

    #[test]
    fn prop_records_of_any_bytes_come_back() {
        let mut rng = SplitMix64(23);
        let kinds = (1..16).filter(|&kind| has(kind));
        let kinds: Vec<(u32, usize)> = kinds.map(|kind| (kind, record_bytes(kind, 0).unwrap())).collect();
        assert_eq!(kinds.len(), 4);
        for round in 0..400 {
            let (kind, width) = kinds[round % kinds.len()];
            // All bits set make sums wrap and runs of chunks reach beyond the last position.
            let ones = rng.below(3) == 0;
            let length = width * rng.below(40) as usize;
            let records: Vec<u8> = (0..length).map(|_| if ones { 0xff } else { rng.next_u64() as u8 }).collect();
            let mut back = of(kind, width, &records).unwrap();
            undo(kind, width, &mut back);
            assert_eq!(back, records, "kind {kind}");
        }
    }

    #[test]
    fn records_are_differences_to_the_one_before() {
        let chunk = |position: u64, bytes: u64| (position | bytes << CHUNK_LENGTH_SHIFT).to_le_bytes();
        let chunks = [chunk(0, 4096), chunk(4096, 100), chunk(8192, 4096), chunk(4196, 7)].concat();
        let differences = [
            chunk(0, 4096),
            chunk(0, 100),
            chunk(8192 - 4196, 4096),
            chunk((4196 - 12288i64) as u64 & POSITION_MASK, 7),
        ];
        assert_eq!(of(format::SECTION_CHUNKS, 8, &chunks).unwrap(), differences.concat());
        let words = |numbers: [u32; 4]| numbers.map(u32::to_le_bytes).concat();
        let extents = words([0, 7, 5, u32::MAX]);
        assert_eq!(of(format::SECTION_EXTENTS, 8, &extents).unwrap(), words([0, 7, 5, u32::MAX - 7]));
        assert_eq!(of(format::SECTION_XATTRS, 8, &extents), None, "what has no such numbers");
    }
}
