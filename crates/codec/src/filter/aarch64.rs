//! AArch64: the targets of BL and the pages of ADRP become absolute.
//!
//! Instructions are four bytes, aligned in the file. Which instruction a word is stands in its top
//! bits, which the filter leaves alone. Encodings: Arm Architecture Reference Manual, C4.1
//! (branches) and C6.2.11 (ADRP).

/// BL: 100101 and 26 bits of distance in words.
const BL: u32 = 0x9400_0000;
const BL_MASK: u32 = 0xfc00_0000;
/// ADRP: 1, two low bits of the distance in pages, 10000, 19 high bits, register.
const ADRP: u32 = 0x9000_0000;
const ADRP_MASK: u32 = 0x9f00_0000;

/// Converts distances to targets (`ENCODE`) or back, in place.
pub(super) fn convert<const ENCODE: bool>(position: u64, bytes: &mut [u8]) {
    // Only the low bits of the position count: distances wrap within their fields.
    let position = position as u32;
    let first = (position.wrapping_neg() & 3) as usize;
    let Some(aligned) = bytes.get_mut(first..) else { return };
    let mut at = position.wrapping_add(first as u32);
    for four in aligned.as_chunks_mut::<4>().0 {
        *four = word::<ENCODE>(at, u32::from_le_bytes(*four)).to_le_bytes();
        at = at.wrapping_add(4);
    }
}

fn shift<const ENCODE: bool>(value: u32, by: u32) -> u32 {
    if ENCODE { value.wrapping_add(by) } else { value.wrapping_sub(by) }
}

fn word<const ENCODE: bool>(at: u32, word: u32) -> u32 {
    if word & BL_MASK == BL {
        return BL | shift::<ENCODE>(word, at >> 2) & !BL_MASK;
    }
    if word & ADRP_MASK == ADRP {
        let pages = word >> 29 & 3 | word >> 3 & 0x1f_fffc;
        let pages = shift::<ENCODE>(pages, at >> 12) & 0x1f_ffff;
        return word & (ADRP_MASK | 0x1f) | (pages & 3) << 29 | (pages >> 2) << 5;
    }
    word
}
