//! The file: golden bytes, damage, fuzzing.

use super::properties::check;
use super::*;

/// Gives changed bytes a hash that fits, so that deeper checks come to light.
fn rehash(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len().saturating_sub(format::HASH_BYTES);
    bytes.truncate(end);
    if let Some(length) = end.checked_sub(size_of::<format::FileHeader>()) {
        bytes[40..48].copy_from_slice(&(length as u64).to_le_bytes());
    }
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

#[test]
fn the_bytes_are_those_of_the_document() {
    let graph =
        graph("size 20000\nblock 4096\nupdates static\nstart -> 2 x5\n2 -> 3\nused 0\nstage \"a\" 0..1 3 share 7%");
    let bytes = graph.encode();
    assert_eq!(&bytes[..8], b"RNLFLOWG");
    assert_eq!(bytes[8..12], [1, 0, 0, 0], "version, flags");
    assert_eq!(bytes[12..16], 4096u32.to_le_bytes());
    assert_eq!(bytes[16..24], 20_000u64.to_le_bytes());
    assert_eq!(bytes[24..40], [1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], "entries, used blocks, stages");
    let payload = [
        4, 5, // first block 2 (zigzag from 0), weight 5
        0, 0, // block 0, no edges
        1, 1, 0, 1, // block 2: one is left out; one edge, to the block behind it, weight 1
        0, 0, // block 3
        1, b'a', 1, 7, 2, 0, 1, 1, 0, // name, percent, 7; two ranges: 0 and one more, a gap of one, none more
    ];
    assert_eq!(bytes[40..48], (payload.len() as u64).to_le_bytes());
    assert_eq!(bytes[48..bytes.len() - 32], payload);
    assert_eq!(decode(&bytes), Ok(graph));
}

#[test]
fn an_old_file_opens() {
    let bytes = include_bytes!("../../../testdata/sample-v1.flow");
    assert_eq!(decode(bytes), Ok(sample()));
    assert_eq!(sample().encode(), bytes, "written as it was");
}

#[test]
fn damage_is_told_with_its_place() {
    let good = sample().encode();
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        decode(&rehash(changed)).unwrap_err().to_string()
    };
    for (found, expected) in [
        (decode(&good[..20]).unwrap_err().to_string(), "has 20 bytes, expected 80"),
        (decode(&good[..100]).unwrap_err().to_string(), "has 100 bytes, expected"),
        (with(0, b"RNLLPLAN"), "not a flow graph file"),
        (with(8, &[2]), "version 2 is unknown"),
        (with(10, &[2]), "at offset 10: flags is 2: no other flag"),
        (with(12, &1000u32.to_le_bytes()), "a block of 1000 bytes"),
        (with(16, &(1u64 << 40).to_le_bytes()), "take larger blocks"),
        (with(16, &1u64.to_le_bytes()), "it is a block of the file"),
        (with(24, &65u32.to_le_bytes()), "there are at most 64"),
        (with(24, &0u32.to_le_bytes()), "there are some if blocks are used"),
        (with(32, &257u32.to_le_bytes()), "there are at most 256"),
        (with(36, &[1]), "it must be zero"),
        (with(28, &u32::MAX.to_le_bytes()), "a file has at most"),
    ] {
        assert!(found.contains(expected), "{found:?} is not {expected:?}");
    }
    let mut flipped = good.clone();
    flipped[60] ^= 1;
    assert!(matches!(decode(&flipped), Err(FlowError::Hash { .. })));
}

/// The invariant: no bytes make the reader panic, and what it accepts keeps all rules and encodes
/// to the very same bytes.
fn fuzz_one(bytes: &[u8], read: impl Fn(&[u8]) -> Result<FlowGraph, FlowError>) -> Result<bool, String> {
    let Ok(graph) = read(bytes) else { return Ok(false) };
    check(&graph);
    if graph.encode() != bytes {
        return Err(format!("accepted, but encoded otherwise: {bytes:02x?}"));
    }
    Ok(true)
}

#[test]
fn fuzz_decode() {
    let good = sample().encode();
    let mut rng = SplitMix64(7);
    let mut accepted = 0;
    for round in 0..30_000 {
        let mut bytes = good.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(5) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes.insert(at, rng.next_u64() as u8),
                2 => bytes[at] = rng.next_u64() as u8,
                _ => bytes[at] ^= 1 << rng.below(8),
            }
        }
        if round % 4 != 0 {
            bytes = rehash(bytes);
        }
        accepted += usize::from(fuzz_one(&bytes, decode).unwrap());
    }
    assert!(accepted > 300, "only {accepted} of the forged files got past the checks");
}

#[test]
fn fuzz_canary() {
    let good = sample().encode();
    assert_eq!(fuzz_one(&good, decode), Ok(true));
    // A reader that loses something must be found out.
    let careless = |bytes: &[u8]| {
        let mut graph = decode(bytes)?;
        graph.set_stages(graph.stages()[1..].to_vec())?;
        Ok(graph)
    };
    assert!(fuzz_one(&good, careless).is_err(), "the fuzzer is blind");
}
