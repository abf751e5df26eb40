//! A reversible filter for x86-64 code, one page at a time: relative targets become positions in the file.
//!
//! Idea: a function is called from many places, and each call holds another distance to it. Counted from the start of the
//! file the target is the same number everywhere, so a compressor finds it again. Branch filters for whole files do that;
//! pages of a push come out of order, so this one looks at a page alone, with its place in the file.
//!
//! Converted are the 32-bit operands of `call`, `jmp`, the long conditional jumps, and of the commonest instructions with
//! an address relative to the next one, if the operand's top byte is 00 or ff. It is a number of 25 bits with a sign then, and
//! so is the result, modulo 2^25: the way back makes the same decisions. After a candidate the scan goes on behind its
//! operand, converted or not, so that no operand overlaps a byte that a decision hung on.
//!
//! It is applied to any page where it finds enough to convert; what is not code is hit rarely and still comes back.

/// Bits of an operand that take part.
const OPERAND_BITS: u32 = 25;

/// Whether targets become absolute or distances again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    #[cfg(any(feature = "encode", test))]
    There,
    Back,
}

/// Bytes of opcode before a 32-bit relative operand, if an instruction with one may start here.
fn opcode_bytes(code: &[u8]) -> Option<usize> {
    match *code {
        [0xe8 | 0xe9, ..] => Some(1),
        [0x0f, second, ..] if second & 0xf0 == 0x80 => Some(2),
        // REX.W with an address relative to the next instruction: lea, mov both ways, cmp both ways, add.
        [0x48..=0x4f, 0x8d | 0x8b | 0x89 | 0x3b | 0x39 | 0x03, mode, ..] if mode & 0xc7 == 0x05 => Some(3),
        _ => None,
    }
}

fn convert(page: &mut [u8], offset: u32, way: Way) -> usize {
    let (mut at, mut converted) = (0, 0);
    while at < page.len() {
        let Some(opcode) = opcode_bytes(&page[at..]) else {
            at += 1;
            continue;
        };
        let end = at + opcode + 4;
        let Some(operand) = page.get_mut(at + opcode..end).and_then(|bytes| bytes.first_chunk_mut::<4>()) else {
            break;
        };
        if matches!(operand[3], 0x00 | 0xff) {
            let place = offset.wrapping_add(end as u32);
            let value = u32::from_le_bytes(*operand);
            let value = match way {
                #[cfg(any(feature = "encode", test))]
                Way::There => value.wrapping_add(place),
                Way::Back => value.wrapping_sub(place),
            };
            let unused = u32::BITS - OPERAND_BITS;
            *operand = (((value << unused) as i32) >> unused).to_le_bytes();
            converted += 1;
        }
        at = end;
    }
    converted
}

/// Makes targets absolute. `offset`: where the page lies in its file. Returns how many it converted.
#[cfg(any(feature = "encode", test))]
pub(crate) fn apply(page: &mut [u8], offset: u32) -> usize {
    convert(page, offset, Way::There)
}

/// Undoes [`apply`].
pub(crate) fn undo(page: &mut [u8], offset: u32) {
    convert(page, offset, Way::Back);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calls_of_one_function_from_two_places_become_equal() {
        let mut page = vec![0x90; 64];
        for (at, target) in [(3u32, 0x5000u32), (40, 0x5000)] {
            let operand = target.wrapping_sub(0x1000 + at + 5).to_le_bytes();
            page[at as usize] = 0xe8;
            page[at as usize + 1..at as usize + 5].copy_from_slice(&operand);
        }
        let before = page.clone();
        assert_ne!(page[4..8], page[41..45]);
        assert_eq!(apply(&mut page, 0x1000), 2);
        assert_eq!(page[4..8], 0x5000u32.to_le_bytes());
        assert_eq!(page[41..45], 0x5000u32.to_le_bytes());
        undo(&mut page, 0x1000);
        assert_eq!(page, before);
    }

    proptest! {
        #[test]
        fn prop_any_page_comes_back(
            // Bytes that decisions hang on come often.
            bytes in proptest::collection::vec(
                prop_oneof![
                    Just(0xe8u8), Just(0xe9), Just(0x0f), Just(0x84), Just(0x48), Just(0x4c), Just(0x8d), Just(0x8b),
                    Just(0x05), Just(0x3d), Just(0), Just(0xff), any::<u8>()
                ],
                0..600,
            ),
            offset: u32,
        ) {
            let mut page = bytes.clone();
            apply(&mut page, offset);
            undo(&mut page, offset);
            prop_assert_eq!(page, bytes);
        }
    }
}
