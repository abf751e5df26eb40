//! AArch64. Instructions are words, and a relocation writes into one of them, so its meaning needs
//! no decoding.
//!
//! Branches and addresses that the assembler resolved are decoded, so that code which reaches other
//! code stays with it. Computations are not followed. Passes that need them do nothing.

use std::ops::Range;

use super::{Architecture, Code, Encoded, Field, LocalReference, Operand, Step, Surroundings, Use};
use crate::object::Section;
use crate::value::State;

/// `EM_AARCH64`.
pub(crate) const MACHINE: u16 = 183;

const R_PREL32: u32 = 261;
const R_JUMP26: u32 = 282;
const R_CALL26: u32 = 283;

/// Bytes of an instruction.
const WORD: u64 = 4;

/// The processor.
pub(super) struct Aarch64;

/// Bits of instructions that relocations leave as they are: of branches, of ADR and ADRP, of
/// additions and accesses of memory, of conditional branches and literals, of branches on a bit,
/// and of moves.
const BRANCH: u32 = 0xfc00_0000;
const ADDRESS: u32 = 0x9f00_001f;
const LOW: u32 = 0xffc0_03ff;
const CONDITIONAL: u32 = 0xff00_001f;
const BIT: u32 = 0xfff8_001f;
const MOVE: u32 = 0xffe0_001f;

impl Architecture for Aarch64 {
    fn field(&self, kind: u32) -> Option<Field> {
        let (bytes, relative, kept) = match kind {
            0 | 256 => (0, false, 0),                       // NONE
            257 => (8, false, 0),                           // ABS64
            258 => (4, false, 0),                           // ABS32
            259 => (2, false, 0),                           // ABS16
            260 => (8, true, 0),                            // PREL64
            R_PREL32 | 314 => (4, true, 0),                 // PREL32, PLT32
            262 => (2, true, 0),                            // PREL16
            263..=272 => (4, false, MOVE),                  // MOVW_UABS_…, MOVW_SABS_…
            273 | 280 => (4, true, CONDITIONAL),            // LD_PREL_LO19, CONDBR19
            274..=276 => (4, true, ADDRESS),                // ADR_PREL_LO21, ADR_PREL_PG_HI21, …_NC
            277 | 278 | 284..=286 | 299 => (4, false, LOW), // ADD_ABS_LO12_NC, LDST8_… to LDST128_…
            279 => (4, true, BIT),                          // TSTBR14
            R_JUMP26 | R_CALL26 => (4, true, BRANCH),       // JUMP26, CALL26
            311 => (4, true, ADDRESS),                      // ADR_GOT_PAGE
            312 => (4, false, LOW),                         // LD64_GOT_LO12_NC
            _ => return None,
        };
        Some(Field { bytes, relative, kept })
    }

    fn relative_kind(&self) -> u32 {
        R_PREL32
    }

    fn follows_control(&self) -> bool {
        false
    }

    fn decode(&self, section: &Section<'_>, ranges: &[Range<u64>]) -> Code {
        let how = |kind| if matches!(kind, R_JUMP26 | R_CALL26 | 279 | 280) { Use::Branch } else { Use::Address };
        let operands = section.relocations.iter().map(|relocation| Operand { to_end: 0, how: how(relocation.kind) });
        let mut code = Code { operands: operands.collect(), ..Code::default() };
        for range in ranges {
            let mut last = None;
            for (start, word) in words(section, range) {
                last = Some(word);
                let Some(distance) = distance(word) else { continue };
                let end = start + WORD;
                let Some(target) = start.checked_add_signed(distance) else { continue };
                // What a relocation resolves is none of ours, and data between instructions may
                // look like anything.
                let is_ours = section.relocations_in(start..end).is_empty() && target <= section.size;
                if is_ours && !range.contains(&target) {
                    let branch = !is_address(word);
                    // The distance cannot be written anew: both ends stay together.
                    code.locals.push(LocalReference { offset: start, bytes: 0, end, target, branch });
                }
            }
            if last.is_some_and(|word| !ends(word)) {
                code.falls.push(range.end);
            }
        }
        code
    }

    fn is_padding(&self, bytes: &[u8]) -> bool {
        // Not `nop`: replacements of instructions lie behind functions, and some are nothing else.
        bytes.iter().all(|byte| *byte == 0)
    }

    fn returns(&self, bytes: &[u8]) -> bool {
        let is_return = |word: u32| word & 0xffff_fc1f == 0xd65f_0000 || matches!(word, 0xd65f_0bff | 0xd65f_0fff);
        bytes.chunks_exact(4).any(|bytes| is_return(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
    }

    fn arguments(&self, _: &Section<'_>, _: Range<u64>) -> Vec<(u64, u64)> {
        Vec::new()
    }

    fn steps(&self, _: &Section<'_>, _: Range<u64>) -> Option<Vec<Step>> {
        None
    }

    fn transfer(&self, _: &Section<'_>, _: &Step, state: &mut State, _: &dyn Surroundings) {
        *state = State::unknown();
    }

    fn decide(&self, _: &Section<'_>, _: &Step, state: &State) -> [Option<State>; 2] {
        [Some(state.clone()), Some(state.clone())]
    }

    fn encode(&self, _: &Section<'_>, _: &Step, _: bool, _: bool) -> Option<Encoded> {
        None
    }

    fn argument_registers(&self) -> [usize; 6] {
        [0, 1, 2, 3, 4, 5]
    }

    fn result_register(&self) -> usize {
        0
    }

    fn return_thunk(&self) -> &'static [u8] {
        b""
    }

    fn trace_marker(&self) -> &'static [u8] {
        b"_mcount"
    }

    fn landing(&self) -> &'static [u8] {
        // bti c
        &[0x5f, 0x24, 0x03, 0xd5]
    }

    fn counting(&self) -> (&'static [u8], u64) {
        // A store needs registers for the address and the value: nothing is counted.
        (&[], 0)
    }

    fn widen(&self, _: &[u8], _: i32) -> Option<Vec<u8>> {
        None
    }

    fn nothing(&self) -> u8 {
        // There is none of one byte, and nothing that asks for it without steps.
        0
    }

    fn filler(&self) -> u8 {
        // udf
        0
    }

    fn fill_trap(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

/// The whole words of a range, with their offsets.
fn words<'s>(section: &'s Section<'_>, range: &Range<u64>) -> impl Iterator<Item = (u64, u32)> + 's {
    let start = range.start.next_multiple_of(WORD);
    let bytes = section.data.get(start as usize..range.end as usize).unwrap_or_default();
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    bytes.chunks_exact(WORD as usize).enumerate().map(move |(index, bytes)| (start + index as u64 * WORD, word(bytes)))
}

/// Whether an instruction takes an address, or reads what is there, and does not branch.
fn is_address(word: u32) -> bool {
    word & 0x9f00_0000 == 0x1000_0000 || word & 0x3b00_0000 == 0x1800_0000
}

/// How far from itself what an instruction names lies, in bytes; `None` if it names nothing, or
/// only a page.
fn distance(word: u32) -> Option<i64> {
    // A field of so many bits from this one on.
    let signed = |low: u32, bits: u32| i64::from(((word >> low) << (32 - bits)) as i32 >> (32 - bits));
    match word {
        // B, BL
        _ if word & 0x7c00_0000 == 0x1400_0000 => Some(signed(0, 26) * 4),
        // B.cond, CBZ, CBNZ, LDR of a literal
        _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => Some(signed(5, 19) * 4),
        _ if word & 0x3b00_0000 == 0x1800_0000 => Some(signed(5, 19) * 4),
        // TBZ, TBNZ
        _ if word & 0x7e00_0000 == 0x3600_0000 => Some(signed(5, 14) * 4),
        // ADR
        _ if word & 0x9f00_0000 == 0x1000_0000 => Some(signed(5, 19) * 4 + i64::from(word >> 29 & 3)),
        _ => None,
    }
}

/// Whether control does not go on behind an instruction that is the last of a function: compilers
/// leave nothing behind a call that does not return.
fn ends(word: u32) -> bool {
    let is_branch = word & 0x7c00_0000 == 0x1400_0000;
    // BR, BLR, RET, ERET and their like; BRK, HLT, UDF
    let is_register = word & 0xfe00_0000 == 0xd600_0000;
    let is_trap = word & 0xffe0_001f == 0xd420_0000 || word & 0xffff_0000 == 0;
    is_branch || is_register || is_trap
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::object::Relocation;

    fn section<'a>(data: &'a [u8], relocations: Vec<Relocation>) -> Section<'a> {
        Section {
            name: b".text",
            kind: abi::SHT_PROGBITS,
            flags: abi::SHF_ALLOC | abi::SHF_EXECINSTR,
            size: data.len() as u64,
            align: 4,
            entry_size: 0,
            data,
            relocations,
        }
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn what_the_assembler_resolved_is_found() {
        // Words as binutils encode them, with the distance that they have.
        for (word, expected) in [
            (0x1400_0002, Some(8)),  // b .+8
            (0x97ff_ffff, Some(-4)), // bl .-4
            (0x5400_0060, Some(12)), // b.eq .+12
            (0xb4ff_ffe0, Some(-4)), // cbz x0, .-4
            (0x3500_0045, Some(8)),  // cbnz w5, .+8
            (0x3607_fff3, Some(-4)), // tbz w19, #0, .-4
            (0xb700_0040, Some(8)),  // tbnz x0, #32, .+8
            (0x1000_0040, Some(8)),  // adr x0, .+8
            (0x30ff_ffe1, Some(-3)), // adr x1, .-3
            (0x5800_0061, Some(12)), // ldr x1, .+12
            (0x9c00_0040, Some(8)),  // ldr q0, .+8
            (0x9000_0000, None),     // adrp x0, .
            (0xd65f_03c0, None),     // ret
            (0xf940_0000, None),     // ldr x0, [x0]
            (0xd503_201f, None),     // nop
        ] {
            assert_eq!(distance(word), expected, "{word:#x}");
        }
    }

    #[test]
    fn branches_that_leave_their_range_keep_both_ends_together() {
        // b.eq over the end; ret | adr back; ret
        let data = bytes(&[0x5400_0060, 0xd65f_03c0, 0x10ff_ffc0, 0xd65f_03c0]);
        let code = Aarch64.decode(&section(&data, Vec::new()), &[0..8, 8..16]);
        let found: Vec<_> =
            code.locals.iter().map(|local| (local.offset, local.bytes, local.target, local.branch)).collect();
        assert_eq!(found, [(0, 0, 12, true), (8, 0, 0, false)]);
        assert!(code.falls.is_empty());
    }

    #[test]
    fn a_relocation_says_what_its_instruction_means() {
        let data = bytes(&[0x9400_0000, 0x9000_0000, 0x9100_0000]);
        let relocation = |offset, kind| Relocation { offset, symbol: 1, kind, addend: 0 };
        let relocations = vec![relocation(0, R_CALL26), relocation(4, 275), relocation(8, 277)];
        let code = Aarch64.decode(&section(&data, relocations), &[0..4, 4..12]);
        let uses: Vec<Use> = code.operands.iter().map(|operand| operand.how).collect();
        assert_eq!(uses, [Use::Branch, Use::Address, Use::Address]);
        assert!(code.locals.is_empty(), "a call with a relocation goes where that says");
        assert_eq!(code.falls, [12], "control runs over the end of the second part");
    }

    #[test]
    fn anything_may_lie_between_instructions() {
        let mut data = vec![0xff; 4096];
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = (index as u8).wrapping_mul(151) ^ (index >> 3) as u8;
        }
        for range in [0..4096, 1..4095, 4094..4096, 4096..4096] {
            let code = Aarch64.decode(&section(&data, Vec::new()), std::slice::from_ref(&range));
            assert!(code.locals.iter().all(|local| local.target <= 4096 && local.end <= 4096));
        }
    }
}
