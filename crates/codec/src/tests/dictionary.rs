//! Dictionaries: what they gain, that training repeats, and hostile ones.

use super::sample;
use crate::*;
use proptest::prelude::*;
use units::{Rng, SplitMix64};

/// Records alike in shape and words but not equal, as configuration files are.
fn records(count: u64) -> Vec<Vec<u8>> {
    let words = ["description", "priority", "architecture", "maintainer", "homepage", "depends", "section", "version"];
    let record = |seed| {
        let mut rng = SplitMix64(seed);
        let mut text = String::new();
        for _ in 0..20 {
            let word = words[rng.below(words.len() as u64) as usize];
            text.push_str(&format!("[package.{word}]\nvalue = {}\n", rng.below(100_000)));
        }
        text.into_bytes()
    };
    (0..count).map(record).collect()
}

fn slices(records: &[Vec<u8>]) -> Vec<&[u8]> {
    records.iter().map(Vec::as_slice).collect()
}

fn trained() -> Vec<u8> {
    train(&slices(&records(200)), 8192).unwrap().expect("200 records are enough")
}

#[test]
fn a_dictionary_shrinks_small_records_by_a_third_and_brings_them_back() {
    let bytes = trained();
    assert!(bytes.len() <= 8192);
    let (writer, reader) = (EncodeDictionary::new(19, &bytes).unwrap(), Dictionary::new(&bytes).unwrap());
    assert!(reader.memory_bytes() >= bytes.len() && reader.memory_bytes() < bytes.len() + (64 << 10));
    assert!(writer.memory_bytes() >= bytes.len());
    let (mut with, mut without, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sum_with, mut sum_without) = (0, 0);
    for raw in records(300).split_off(200) {
        encode_with(Codec::Zstd, 19, Some(&writer), &raw, &mut with).unwrap();
        encode(Codec::Zstd, 19, &raw, &mut without).unwrap();
        decode_with(Codec::Zstd, Some(&reader.clone()), &with, raw.len(), &mut out).unwrap();
        assert_eq!(out, raw);
        sum_with += with.len();
        sum_without += without.len();
    }
    assert!(sum_with * 3 < sum_without * 2, "{sum_with} with, {sum_without} without");
}

#[test]
fn frames_name_no_dictionary() {
    let bytes = trained();
    let mut stored = Vec::new();
    let writer = EncodeDictionary::new(3, &bytes).unwrap();
    encode_with(Codec::Zstd, 3, Some(&writer), &records(1)[0], &mut stored).unwrap();
    assert!(zstd::zstd_safe::get_dict_id_from_dict(&bytes).is_some());
    assert_eq!(zstd::zstd_safe::get_dict_id_from_frame(&stored), None);
}

#[test]
fn the_same_samples_train_the_same_dictionary() {
    let samples = records(300);
    let first = train(&slices(&samples), 4096).unwrap();
    assert!(first.is_some());
    assert_eq!(train(&slices(&samples.clone()), 4096).unwrap(), first);
}

#[test]
fn too_little_to_learn_from_is_no_dictionary() {
    assert_eq!(train(&[], 4096).unwrap(), None);
    assert_eq!(train(&slices(&records(3)), 4096).unwrap(), None);
    assert_eq!(train(&[b"".as_slice(); 100], 4096).unwrap(), None);
    assert_eq!(train(&[b"12345678".as_slice(); 8], 4096).unwrap(), None);
    assert_eq!(train(&slices(&records(100)), 0).unwrap(), None);
    // All alike: whatever comes of it must be usable.
    for samples in [vec![vec![0u8; 4096]; 100], (0..100).map(|seed| sample(seed, 20)).collect()] {
        if let Some(bytes) = train(&slices(&samples), 4096).unwrap() {
            Dictionary::new(&bytes).unwrap();
        }
    }
}

#[test]
fn other_codecs_refuse_a_dictionary() {
    let bytes = trained();
    let (writer, reader) = (EncodeDictionary::new(3, &bytes).unwrap(), Dictionary::new(&bytes).unwrap());
    let mut out = vec![1];
    for codec in [Codec::Stored, Codec::Lz4, Codec::Xz] {
        let refused = encode_with(codec, 3, Some(&writer), b"abc", &mut out);
        assert!(matches!(refused, Err(CodecError::Dictionary { .. })), "{codec}: {refused:?}");
        let refused = decode_with(codec, Some(&reader), b"abc", 3, &mut out);
        assert!(matches!(refused, Err(CodecError::Dictionary { .. })), "{codec}: {refused:?}");
        assert!(out.is_empty());
    }
}

#[test]
fn dictionaries_out_of_range_are_refused() {
    for bytes in [0, 7, DICTIONARY_BYTES_MAX + 1] {
        let bytes = vec![7; bytes];
        assert!(matches!(Dictionary::new(&bytes), Err(CodecError::Dictionary { .. })));
        assert!(matches!(EncodeDictionary::new(3, &bytes), Err(CodecError::Dictionary { .. })));
    }
    Dictionary::new(&vec![7; DICTIONARY_BYTES_MAX]).unwrap();
}

#[test]
fn fuzz_hostile_dictionaries_and_frames() {
    let good = trained();
    let raw = &records(1)[0];
    let (mut stored, mut out) = (Vec::new(), Vec::new());
    encode_with(Codec::Zstd, 3, Some(&EncodeDictionary::new(3, &good).unwrap()), raw, &mut stored).unwrap();
    let (mut refused, mut failed, mut passed) = (0, 0, 0);
    for seed in 0..3000 {
        let mut rng = SplitMix64(seed);
        let (mut bytes, mut frame) = (good.clone(), stored.clone());
        // Behind the magic stand the number and the tables; most of what can break is there.
        for _ in 0..1 + rng.below(3) {
            bytes[4 + rng.below(200) as usize] ^= 1 << rng.below(8);
        }
        if rng.below(4) == 0 {
            bytes.truncate(8 + rng.below(300) as usize);
        }
        if rng.below(2) == 0 {
            let at = rng.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << rng.below(8);
        }
        let Ok(dictionary) = Dictionary::new(&bytes) else {
            refused += 1;
            continue;
        };
        match decode_with(Codec::Zstd, Some(&dictionary), &frame, raw.len(), &mut out) {
            Ok(()) => {
                assert_eq!(out.len(), raw.len());
                passed += 1;
            }
            Err(_) => {
                assert!(out.is_empty());
                failed += 1;
            }
        }
    }
    // The canary: all three ways must be taken.
    assert!(refused > 100 && failed > 100 && passed > 100, "{refused} refused, {failed} failed, {passed} passed");
}

#[test]
fn a_frame_without_its_dictionary_never_passes_for_its_data() {
    let bytes = trained();
    let raw = &records(1)[0];
    let (mut stored, mut out) = (Vec::new(), Vec::new());
    encode_with(Codec::Zstd, 19, Some(&EncodeDictionary::new(19, &bytes).unwrap()), raw, &mut stored).unwrap();
    assert!(decode(Codec::Zstd, &stored, raw.len(), &mut out).is_err() || out != *raw);
    let other = Dictionary::new(&sample(3, 4096)).unwrap();
    assert!(decode_with(Codec::Zstd, Some(&other), &stored, raw.len(), &mut out).is_err() || out != *raw);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn prop_any_content_serves_as_a_dictionary(
        content in proptest::collection::vec(any::<u8>(), 8..3000),
        raw in proptest::collection::vec(any::<u8>(), 0..3000),
        level in 1i32..=22,
    ) {
        // Bytes that begin like a trained dictionary are one, and may be refused as such.
        prop_assume!(!content.starts_with(&[0x37, 0xa4, 0x30, 0xec]));
        let (writer, reader) = (EncodeDictionary::new(level, &content).unwrap(), Dictionary::new(&content).unwrap());
        let (mut stored, mut out) = (Vec::new(), Vec::new());
        for raw in [&raw, &content] {
            encode_with(Codec::Zstd, level, Some(&writer), raw, &mut stored).unwrap();
            decode_with(Codec::Zstd, Some(&reader), &stored, raw.len(), &mut out).unwrap();
            prop_assert_eq!(&out, raw);
        }
    }
}
