//! Deflate streams made anew: pinned, bounded, and safe from any bytes. Against gzip and zlib
//! themselves: in `pack`.

use super::*;
use crate::deflate::*;

const PROGRAMS: [Program; 3] = [Program::Gzip, Program::Zlib, Program::ZlibLarge];

fn styles() -> Vec<Style> {
    PROGRAMS.iter().flat_map(|&program| (1..=9).map(move |level| Style { program, level })).collect()
}

/// The stream of a text.
fn stream(text: &[u8], style: Style) -> Vec<u8> {
    expansion::stream(text, style).expect("no text of these takes long")
}

/// Text of words that come again and again, then noise, then zeros.
fn texts() -> Vec<Vec<u8>> {
    let mut rng = SplitMix64(7);
    let noise: Vec<u8> = (0..3000).map(|_| rng.below(256) as u8).collect();
    vec![Vec::new(), b"a".to_vec(), b"abcabcabcabcabc".to_vec(), sample(1, 6000), vec![0; 3000], noise]
}

#[test]
fn streams_have_their_style_and_come_back() {
    for text in texts() {
        for style in styles() {
            let stream = stream(&text, style);
            let found = style_of(&text, &stream, &styles()).expect("what we made we know");
            // Others may make the same; the first of them is named.
            assert!(found <= style, "{found:?} {style:?}");
            let mut expansion = Expansion::default();
            expansion.bytes(b"head");
            expansion.text(&text, found, true);
            expansion.bytes(b"and more");
            let expected = [&b"head"[..], &stream, &trailer(&text), b"and more"].concat();
            let (bytes, mut out) = (expansion.to_bytes(), Vec::new());
            assert_eq!(bytes.len(), Expansion::size(3, 12 + text.len()));
            contract(&bytes, expected.len(), &mut out).unwrap();
            assert_eq!(out, expected);
            contract_written(&bytes, expected.len(), &mut out).unwrap();
            for wrong in [0, expected.len() - 1, expected.len() + 1, expected.len() + (1 << 20)] {
                assert!(matches!(contract(&bytes, wrong, &mut out), Err(CodecError::Deflate { .. })));
                assert!(out.is_empty());
            }
        }
        assert_eq!(style_of(&text, b"no such stream", &styles()), None);
    }
}

/// Images rest on these very bytes: a change here makes blocks of older images unreadable.
#[test]
fn streams_stay_as_they_are() {
    let check = |style| {
        let long = [sample(3, 140_000), vec![b'x'; 70_000], sample(4, 9000)].concat();
        let streams: Vec<u8> = texts().iter().chain([&long]).flat_map(|text| stream(text, style)).collect();
        u32::from_le_bytes(*trailer(&streams).first_chunk().unwrap())
    };
    let found: Vec<u32> = styles().into_iter().map(check).collect();
    assert_eq!(found, PINNED, "{found:#x?}");
    assert_eq!(trailer(b"123456789"), [0x26, 0x39, 0xf4, 0xcb, 9, 0, 0, 0]);
}

/// CRC-32 of what each style makes of all texts.
const PINNED: [u32; 27] = [
    0xd6cac97a, 0xc3fd2b20, 0xb5c2ae85, 0xccc9fc50, 0x3265129b, 0x43ebf64c, 0x0729dce8, 0x8c6fe837, 0x8c6fe837,
    0x7c415760, 0x678beec5, 0xe27c5c7b, 0x82178347, 0x5249e373, 0x0b29561a, 0x76905bc4, 0x8c8303a4, 0x8c8303a4,
    0x93b5417b, 0xe9cc792a, 0xccac15b4, 0xe5eb9017, 0x75e82a79, 0x6d66a4f2, 0x4900c9df, 0x8c8303a4, 0x8c8303a4,
];

#[test]
fn a_text_that_takes_long_is_given_up() {
    let (text, style) = (sample(9, 100_000), Style { program: Program::Gzip, level: 9 });
    let mut expansion = Expansion::default();
    expansion.text(&text, style, false);
    let (expansion, bytes) = (expansion.to_bytes(), stream(&text, style).len());
    let within = |per_byte, most| contract_within(Cost { per_byte, most }, &expansion, bytes, &mut Vec::new());
    within(256, 1 << 29).unwrap();
    for (per_byte, most) in [(4, 1 << 29), (256, 100_000), (0, 0)] {
        assert!(within(per_byte, most).unwrap_err().to_string().contains("too long"));
    }
}

#[test]
fn damaged_expansions_are_errors() {
    let mut expansion = Expansion::default();
    for (text, style) in texts().iter().zip(styles().into_iter().rev()) {
        expansion.bytes(b"some bytes as they are");
        expansion.text(&text[..text.len().min(500)], style, true);
    }
    let pristine = expansion.to_bytes();
    let mut out = Vec::new();
    for end in 0..pristine.len() {
        assert!(contract(&pristine[..end], 4096, &mut out).is_err(), "cut at {end}");
    }
    let mut rng = SplitMix64(11);
    let (mut refused, mut made) = (0, 0);
    for round in 0..20_000 {
        let mut bytes = pristine.clone();
        // Mostly the records: in the texts any byte is as good as any other.
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(if round % 4 == 0 { bytes.len() as u64 } else { 110 }) as usize;
            bytes[at] = if rng.below(3) == 0 { 0xff } else { rng.below(256) as u8 };
        }
        match contract(&bytes, rng.below(4096) as usize, &mut out) {
            Ok(()) => made += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 10_000, "{refused} {made}");
    let many = [&u32::MAX.to_le_bytes()[..], &[0; 64]].concat();
    assert!(contract(&many, 64, &mut out).is_err());
    let empty_texts = [&1000u32.to_le_bytes()[..], &[1, 9, 0, 0, 0, 0, 0, 0].repeat(1000)].concat();
    assert!(contract(&empty_texts, 2000, &mut out).unwrap_err().to_string().contains("too many"));
}
