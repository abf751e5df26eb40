//! Round trips, exact lengths, bounds and hostile bytes, for every codec and for streams.

mod deflate;
mod dictionary;
mod filter;
mod gain;

use super::*;
use proptest::prelude::*;
use units::{Rng, SplitMix64};

/// Bytes between text and noise: runs from a small alphabet with random breaks.
fn sample(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = SplitMix64(seed);
    let mut out = Vec::with_capacity(bytes);
    while out.len() < bytes {
        if rng.below(3) == 0 && out.len() > 64 {
            let start = rng.below(out.len() as u64 - 32) as usize;
            out.extend_from_within(start..start + 32);
        } else {
            out.push(b'a' + rng.below(20) as u8);
        }
    }
    out.truncate(bytes);
    out
}

fn encoded(codec: Codec, raw: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    encode(codec, codec.default_level(), raw, &mut stored).unwrap();
    stored
}

#[test]
fn numbers_and_names_are_those_of_the_format() {
    for (number, codec) in Codec::ALL.into_iter().enumerate() {
        assert_eq!(codec.to_u8() as usize, number);
        assert_eq!(Codec::from_u8(number as u8), Some(codec));
        assert_eq!(Codec::from_name(codec.name()), Some(codec));
    }
    assert_eq!(Codec::from_u8(4), None);
    assert_eq!(Codec::from_name("gzip"), None);
}

#[test]
fn every_codec_brings_back_every_size() {
    for codec in Codec::ALL {
        for bytes in [0, 1, 2, 255, 4096, 4097, 65535, 65536, 65537, 131_073, 300_000, 1 << 20, (1 << 20) + 1] {
            let raw = sample(bytes as u64, bytes);
            let stored = encoded(codec, &raw);
            let mut out = vec![1, 2, 3];
            decode(codec, &stored, raw.len(), &mut out).unwrap_or_else(|e| panic!("{codec} {bytes}: {e}"));
            assert_eq!(out, raw, "{codec} {bytes}");
        }
    }
}

#[test]
fn every_codec_but_stored_shrinks_text() {
    let raw = sample(5, 65536);
    for codec in [Codec::Zstd, Codec::Lz4, Codec::Xz] {
        assert!(encoded(codec, &raw).len() < raw.len(), "{codec}");
    }
}

#[test]
fn levels_outside_the_range_are_clamped() {
    let raw = sample(6, 10_000);
    for codec in Codec::ALL {
        for level in [i32::MIN, -1, 0, 10, 19, 22, i32::MAX] {
            let (mut stored, mut out) = (Vec::new(), Vec::new());
            encode(codec, level, &raw, &mut stored).unwrap();
            decode(codec, &stored, raw.len(), &mut out).unwrap();
            assert_eq!(out, raw, "{codec} {level}");
        }
    }
}

#[test]
fn a_wrong_length_is_an_error_and_leaves_nothing() {
    let raw = sample(7, 5000);
    for codec in Codec::ALL {
        let stored = encoded(codec, &raw);
        for announced in [0, 1, 4999, 5001, 9000] {
            let mut out = Vec::new();
            let error = decode(codec, &stored, announced, &mut out).unwrap_err();
            assert!(matches!(error, CodecError::Length { .. } | CodecError::Damaged { .. }), "{codec}: {error}");
            assert!(out.is_empty());
        }
    }
}

#[test]
fn trailing_bytes_are_an_error() {
    let raw = sample(8, 5000);
    for codec in Codec::ALL {
        let stored = encoded(codec, &raw);
        // A second frame, an empty frame and a skippable zstd frame are trailing bytes as well.
        for tail in [&[0u8][..], &[0; 8], &stored, &encoded(codec, b"x"), b"\x50\x2a\x4d\x18\x00\x00\x00\x00"] {
            let longer = [&stored[..], tail].concat();
            assert!(decode(codec, &longer, raw.len(), &mut Vec::new()).is_err(), "{codec} with {} more", tail.len());
        }
    }
}

#[test]
fn every_truncation_is_an_error() {
    let raw = sample(9, 700);
    for codec in Codec::ALL {
        let stored = encoded(codec, &raw);
        for bytes in 0..stored.len() {
            assert!(decode(codec, &stored[..bytes], raw.len(), &mut Vec::new()).is_err(), "{codec} {bytes}");
        }
    }
}

#[test]
fn output_never_grows_beyond_what_was_announced() {
    // 16 MiB of zeros in a few hundred bytes or so, announced as 4 KiB.
    let raw = vec![0; 16 << 20];
    for codec in [Codec::Zstd, Codec::Lz4, Codec::Xz] {
        let stored = encoded(codec, &raw);
        let mut out = Vec::new();
        assert!(decode(codec, &stored, 4096, &mut out).is_err(), "{codec}");
        assert!(out.capacity() <= 2 * 4096, "{codec} allocated {}", out.capacity());
    }
}

#[test]
fn xz_refuses_a_dictionary_larger_than_its_data() {
    use liblzma::stream::{Check, Filters, LzmaOptions, Stream};
    let mut options = LzmaOptions::new_preset(6).unwrap();
    options.dict_size(64 << 20);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    let mut stream = Stream::new_stream_encoder(&filters, Check::None).unwrap();
    let mut stored = Vec::with_capacity(4096);
    stream.process_vec(b"small", &mut stored, liblzma::stream::Action::Finish).unwrap();
    let error = decode(Codec::Xz, &stored, 5, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("dictionary"), "{error}");
}

fn pieces(seed: u64, sizes: &[usize]) -> Vec<Vec<u8>> {
    sizes.iter().zip(seed..).map(|(&bytes, seed)| sample(seed, bytes)).collect()
}

#[test]
fn a_stream_decodes_piece_by_piece() {
    let raw = pieces(1, &[131072, 1, 0, 4096, 131072, 7, 300_000]);
    let mut encoder = StreamEncoder::new(9, 17).unwrap();
    let mut decoder = StreamDecoder::new(17).unwrap();
    let (mut stored, mut out) = (Vec::new(), Vec::new());
    for piece in &raw {
        encoder.piece(piece, &mut stored).unwrap();
        decoder.piece(&stored, piece.len(), &mut out).unwrap();
        assert_eq!(&out, piece);
    }
}

#[test]
fn a_stream_uses_what_earlier_pieces_said() {
    let piece = sample(3, 32768);
    let mut encoder = StreamEncoder::new(3, 20).unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    encoder.piece(&piece, &mut first).unwrap();
    encoder.piece(&piece, &mut second).unwrap();
    assert!(second.len() * 20 < first.len(), "{} then {}", first.len(), second.len());
}

#[test]
fn a_stream_that_restarts_needs_nothing_from_before() {
    let pieces = pieces(7, &[30_000, 20_000, 30_000, 10_000]);
    let mut encoder = StreamEncoder::new(5, 17).unwrap();
    let stored: Vec<Vec<u8>> = (0..pieces.len())
        .map(|index| {
            if index == 2 {
                encoder.restart().unwrap();
            }
            let mut stored = Vec::new();
            encoder.piece(&pieces[index], &mut stored).unwrap();
            stored
        })
        .collect();
    let mut decoder = StreamDecoder::new(17).unwrap();
    // What the buffer holds does not matter.
    let mut out = vec![7; 50_000];
    let mut decode = |decoder: &mut StreamDecoder, index: usize| {
        decoder.piece(&stored[index], pieces[index].len(), &mut out).map(|()| assert_eq!(out, pieces[index]))
    };
    decode(&mut decoder, 2).unwrap();
    decode(&mut decoder, 3).unwrap();
    decode(&mut decoder, 0).unwrap_err();
    assert!(matches!(decode(&mut decoder, 1), Err(CodecError::StreamFailed)));
    decoder.restart().unwrap();
    decode(&mut decoder, 0).unwrap();
    decode(&mut decoder, 1).unwrap();
    decoder.restart().unwrap();
    decode(&mut decoder, 2).unwrap();
}

#[test]
fn a_stream_with_a_larger_window_is_refused() {
    let raw = sample(4, 1 << 20);
    let mut stored = Vec::new();
    StreamEncoder::new(3, 20).unwrap().piece(&raw, &mut stored).unwrap();
    StreamDecoder::new(20).unwrap().piece(&stored, raw.len(), &mut Vec::new()).unwrap();
    assert!(StreamDecoder::new(19).unwrap().piece(&stored, raw.len(), &mut Vec::new()).is_err());
    for window_log in [0, 9, 28, u32::MAX] {
        assert!(matches!(StreamDecoder::new(window_log), Err(CodecError::Window { .. })));
        assert!(matches!(StreamEncoder::new(3, window_log), Err(CodecError::Window { .. })));
    }
}

#[test]
fn a_stream_begins_with_a_frame_of_today() {
    let mut decoder = StreamDecoder::new(17).unwrap();
    // As zstd 0.5 began them.
    let old = decoder.piece(&[0x25, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0], 0, &mut Vec::new());
    assert!(matches!(&old, Err(error) if error.to_string().contains("no zstd frame starts here")), "{old:?}");
}

#[test]
fn a_failed_stream_stays_failed() {
    let raw = pieces(8, &[5000, 5000]);
    let mut encoder = StreamEncoder::new(3, 17).unwrap();
    let (mut first, mut second, mut out) = (Vec::new(), Vec::new(), Vec::new());
    encoder.piece(&raw[0], &mut first).unwrap();
    encoder.piece(&raw[1], &mut second).unwrap();
    let mut decoder = StreamDecoder::new(17).unwrap();
    decoder.piece(&first, 5000, &mut out).unwrap();
    assert!(decoder.piece(&second, 4999, &mut out).is_err());
    assert!(out.is_empty());
    assert_eq!(decoder.piece(&second, 5000, &mut out), Err(CodecError::StreamFailed));
}

#[test]
fn a_stream_refuses_short_long_and_ended_pieces() {
    let raw = sample(2, 5000);
    let mut stored = Vec::new();
    StreamEncoder::new(3, 17).unwrap().piece(&raw, &mut stored).unwrap();
    for announced in [0, 4999, 5001] {
        assert!(StreamDecoder::new(17).unwrap().piece(&stored, announced, &mut Vec::new()).is_err());
    }
    for bytes in 0..stored.len() {
        assert!(StreamDecoder::new(17).unwrap().piece(&stored[..bytes], 5000, &mut Vec::new()).is_err(), "{bytes}");
    }
    let ended = encoded(Codec::Zstd, &raw);
    assert!(StreamDecoder::new(17).unwrap().piece(&ended, 5000, &mut Vec::new()).is_err());
}

/// Decodes mutated and random bytes with every codec and as streams; returns how many were refused
/// and accepted.
fn fuzz(seed: u64, rounds: usize) -> (usize, usize) {
    let mut rng = SplitMix64(seed);
    let (mut refused, mut accepted) = (0, 0);
    let mut out = Vec::new();
    for round in 0..rounds {
        let raw = sample(rng.next_u64(), rng.below(3000) as usize);
        let codec = Codec::ALL[round % 4];
        let mut stored = encoded(codec, &raw);
        match rng.below(4) {
            0 => stored = (0..rng.below(200)).map(|_| rng.next_u64() as u8).collect(),
            1 => stored.truncate(rng.below(stored.len() as u64 + 1) as usize),
            // The codecs carry no checksums, so a flipped literal may pass: the hash above them is
            // what notices.
            _ => {
                for _ in 0..rng.below(4) {
                    let at = rng.below(stored.len() as u64) as usize;
                    if let Some(byte) = stored.get_mut(at) {
                        *byte ^= 1 << rng.below(8);
                    }
                }
            }
        }
        match decode(codec, &stored, raw.len(), &mut out) {
            Ok(()) => {
                assert_eq!(out.len(), raw.len());
                accepted += 1;
            }
            Err(_) => {
                assert!(out.is_empty());
                refused += 1;
            }
        }
        if let Ok(mut decoder) = StreamDecoder::new(17) {
            let _ = decoder.piece(&stored, raw.len(), &mut out);
        }
    }
    (refused, accepted)
}

#[test]
fn fuzz_decoders_survive_hostile_bytes() {
    let (refused, accepted) = fuzz(1, 3000);
    // The canary: a fuzzer whose inputs are all refused, or all accepted, reaches nothing.
    assert!(refused > 300, "only {refused} refused");
    assert!(accepted > 300, "only {accepted} accepted");
}

#[test]
fn lz4_levels_shrink_and_are_clamped() {
    let raw = sample(6, 200_000);
    let stored = |level| {
        let mut stored = Vec::new();
        encode(Codec::Lz4, level, &raw, &mut stored).unwrap();
        stored
    };
    assert!(stored(12).len() < stored(3).len() && stored(3).len() < stored(0).len());
    assert_eq!(stored(100), stored(12));
    assert_eq!(stored(-1), stored(0));
}

/// The C library once read through the pointer of an empty slice, which points nowhere.
#[test]
fn regress_tiny_inputs_at_every_level() {
    for codec in Codec::ALL {
        for level in 0..=22 {
            for bytes in 0..20 {
                let raw: Box<[u8]> = sample(bytes, bytes as usize).into();
                let (mut stored, mut out) = (Vec::new(), Vec::new());
                encode(codec, level, &raw, &mut stored).unwrap();
                decode(codec, &stored, raw.len(), &mut out).unwrap();
                assert_eq!(out, *raw, "{codec} level {level}, {bytes} bytes");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The reader is another program than the writer: lz4_flex has to understand what the C library
    /// wrote.
    #[test]
    fn prop_lz4_flex_reads_what_hc_wrote(seed: u64, bytes in 0usize..200_000, noise in 0usize..2, level in 0i32..=12) {
        let mut raw = sample(seed, bytes);
        if noise == 1 {
            let mut rng = SplitMix64(seed);
            raw.iter_mut().step_by(7).for_each(|byte| *byte = rng.below(256) as u8);
        }
        let (mut stored, mut out) = (Vec::new(), Vec::new());
        encode(Codec::Lz4, level, &raw, &mut stored).unwrap();
        decode(Codec::Lz4, &stored, raw.len(), &mut out).unwrap();
        prop_assert_eq!(out, raw);
    }

    #[test]
    fn prop_round_trip(raw in proptest::collection::vec(any::<u8>(), 0..5000), which in 0usize..4, level in 0i32..12) {
        let codec = Codec::ALL[which];
        let (mut stored, mut out) = (Vec::new(), Vec::new());
        encode(codec, level, &raw, &mut stored).unwrap();
        decode(codec, &stored, raw.len(), &mut out).unwrap();
        prop_assert_eq!(out, raw);
    }

    #[test]
    fn prop_stream_round_trip(sizes in proptest::collection::vec(0usize..20_000, 1..8), seed: u32) {
        let mut encoder = StreamEncoder::new(3, 14).unwrap();
        let mut decoder = StreamDecoder::new(14).unwrap();
        let (mut stored, mut out) = (Vec::new(), Vec::new());
        for piece in pieces(seed.into(), &sizes) {
            encoder.piece(&piece, &mut stored).unwrap();
            decoder.piece(&stored, piece.len(), &mut out).unwrap();
            prop_assert_eq!(&out, &piece);
        }
    }
}
