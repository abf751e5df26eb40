//! Filters: bijections on every input, and targets that become equal.

use crate::filter::{self, Filter};
use proptest::prelude::*;
use units::{Rng, SplitMix64};

/// Both directions undo each other, which for a finite set of inputs is what a bijection means.
fn check(filter: Filter, position: u64, raw: &[u8]) {
    let mut bytes = raw.to_vec();
    filter::encode(filter, position, &mut bytes);
    filter::decode(filter, position, &mut bytes);
    assert!(bytes == raw, "{filter} at {position}: decode(encode) of {raw:02x?}");
    filter::decode(filter, position, &mut bytes);
    filter::encode(filter, position, &mut bytes);
    assert!(bytes == raw, "{filter} at {position}: encode(decode) of {raw:02x?}");
}

#[test]
fn numbers_and_names_are_those_of_the_format() {
    for (number, filter) in Filter::ALL.into_iter().enumerate() {
        assert_eq!(filter.to_u8() as usize, number);
        assert_eq!(Filter::from_u8(number as u8), Some(filter));
        assert_eq!(Filter::from_name(filter.name()), Some(filter));
    }
    assert_eq!(Filter::from_u8(6), None);
    assert_eq!(Filter::from_name("arm"), None);
}

/// Every string of `length` symbols.
fn every_string(alphabet: &[u8], length: usize, mut visit: impl FnMut(&[u8])) {
    let mut digits = vec![0; length];
    let mut text = vec![alphabet[0]; length];
    loop {
        visit(&text);
        let Some(place) = digits.iter().position(|&digit| digit + 1 < alphabet.len()) else { return };
        for place in 0..place {
            digits[place] = 0;
            text[place] = alphabet[0];
        }
        digits[place] += 1;
        text[place] = alphabet[digits[place]];
    }
}

#[test]
fn x86_64_is_a_bijection_on_every_short_string_of_opcodes() {
    // call, two-byte escape, jcc and mov behind it or alone, ModRM for a relative operand,
    // prefixes, and zero.
    for length in 0..=7 {
        every_string(&[0xe8, 0x0f, 0x8b, 0x05, 0x48, 0xff, 0x00], length, |text| {
            check(Filter::X86_64, 0x1_0000_0ff0, text);
        });
    }
    for length in 0..=8 {
        every_string(&[0xe8, 0xc7, 0x05, 0x66, 0xfb], length, |text| check(Filter::X86_64, 5, text));
    }
    for length in 0..=9 {
        every_string(&[0xf6, 0x0d, 0x62, 0xc4], length, |text| check(Filter::X86_64, u64::MAX - 3, text));
    }
}

#[test]
fn aarch64_is_a_bijection_on_every_short_string_at_every_alignment() {
    for position in [0, 1, 2, 3, 0x0fff, 0xffff_fffe] {
        for length in 0..=8 {
            every_string(&[0x94, 0x97, 0x90, 0xff], length, |text| check(Filter::Aarch64, position, text));
        }
    }
}

#[test]
fn calls_of_one_function_become_equal() {
    let function = 0x1234u32;
    let call = |at: u32| {
        let mut bytes = vec![0xe8];
        bytes.extend(function.wrapping_sub(at + 5).to_le_bytes());
        filter::encode(Filter::X86_64, at.into(), &mut bytes);
        bytes
    };
    assert_eq!(call(0x4000), call(0x10));
    let branch = |at: u32| {
        let mut bytes = (0x9400_0000 | (function.wrapping_sub(at) >> 2) & 0x03ff_ffff).to_le_bytes();
        filter::encode(Filter::Aarch64, at.into(), &mut bytes);
        bytes
    };
    assert_eq!(branch(0x4000), branch(0x10));
}

#[test]
fn operands_behind_which_an_immediate_stands_become_equal() {
    // mov eax, [rip+x] and cmp dword [rip+x], imm8: the distance counts from the end of the
    // instruction.
    let variable = 0x2000u32;
    let operand = |opcode: &[u8], immediate: &[u8], at: u32| {
        let mut bytes = opcode.to_vec();
        let end = at + (opcode.len() + 4 + immediate.len()) as u32;
        bytes.extend(variable.wrapping_sub(end).to_le_bytes());
        bytes.extend(immediate);
        filter::encode(Filter::X86_64, at.into(), &mut bytes);
        bytes[opcode.len()..opcode.len() + 4].to_vec()
    };
    let expected = operand(&[0x8b, 0x05], &[], 0);
    assert_eq!(operand(&[0x83, 0x3d], &[7], 100), expected);
    assert_eq!(operand(&[0x66, 0xc7, 0x05], &[7, 8], 9000), expected);
    assert_eq!(operand(&[0x48, 0x8d, 0x3d], &[], 3), expected);
    assert_eq!(operand(&[0x0f, 0xb6, 0x05], &[], 77), expected);
    assert_eq!(operand(&[0xf7, 0x05], &[1, 2, 3, 4], 78), expected);
    assert_eq!(operand(&[0xc5, 0xf8, 0x28, 0x05], &[], 79), expected);
}

/// Bytes in which opcodes are frequent and overlap.
fn opcodes(seed: u64, length: usize) -> Vec<u8> {
    const FREQUENT: [u8; 16] =
        [0xe8, 0xe9, 0x0f, 0x84, 0x8b, 0x8d, 0x05, 0x3d, 0x48, 0x66, 0xff, 0x15, 0xc7, 0xf7, 0x94, 0x90];
    let mut rng = SplitMix64(seed);
    let byte = |rng: &mut SplitMix64| match rng.below(3) {
        0 => rng.below(256) as u8,
        _ => FREQUENT[rng.below(16) as usize],
    };
    (0..length).map(|_| byte(&mut rng)).collect()
}

#[test]
fn fuzz_filters_are_bijections_at_the_borders() {
    for seed in 0..2000 {
        let raw = opcodes(seed, (seed % 67) as usize);
        for filter in Filter::ALL {
            check(filter, seed * 4093, &raw);
        }
    }
}

proptest! {
    #[test]
    fn prop_filters_are_bijections(raw in proptest::collection::vec(any::<u8>(), 0..9000), position: u64) {
        for filter in Filter::ALL {
            check(filter, position, &raw);
        }
    }

    #[test]
    fn prop_filters_are_bijections_on_opcodes(seed: u64, length in 0usize..5000, position: u64) {
        for filter in Filter::ALL {
            check(filter, position, &opcodes(seed, length));
        }
    }
}
