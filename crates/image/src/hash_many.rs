//! BLAKE3 of many pages at once.
//!
//! BLAKE3 is fast because it hashes several chunks of 1024 bytes of its input in the lanes of the
//! vector unit. A page has only four, so hashing pages one by one leaves half of the lanes of AVX2
//! empty, three quarters of those of AVX-512, and computes the three parents of each page without
//! any. Here the same chunk of many pages fills the lanes, then the parents of all pages do. The
//! result is the BLAKE3 hash of each page; with AVX2 it takes 2.5 instructions a byte, not 3.95.
//!
//! The lanes are reached through `blake3::platform`, which is public, but not part of that crate's
//! documented interface: `blake3::hazmat` has subtrees of one input only. The alternative would be
//! vector code of our own, with `unsafe` for each processor. So the workspace names one exact
//! version of `blake3`, and the tests here compare with its documented interface.

use blake3::IncrementCounter;
use blake3::hazmat::{ChainingValue, HasherExt};
use blake3::platform::Platform;
use units::PAGE_BYTES;

/// Pages whose intermediate results are on the stack together: as many as a piece of a push has,
/// and a multiple of all numbers of lanes.
const PAGES_AT_ONCE: usize = 32;

/// Bytes that BLAKE3 calls a chunk.
const LEAF_BYTES: usize = 1024;

/// Bytes of a chaining value, and of a hash.
const VALUE_BYTES: usize = 32;

const LEAVES: usize = PAGE_BYTES / LEAF_BYTES;

/// The starting value and the flags as the BLAKE3 specification has them.
const IV: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
const CHUNK_START: u8 = 1;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;

/// The BLAKE3 hash of each of `inputs`, in their order. Whole pages are hashed together, as many as
/// fill the lanes; what is left over is cheaper alone.
pub fn hash_many(inputs: &[&[u8]]) -> Vec<blake3::Hash> {
    let platform = Platform::detect();
    let mut pages: Vec<(usize, &[u8; PAGE_BYTES])> = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        if let Ok(page) = (*input).try_into() {
            pages.push((index, page));
        }
    }
    let lanes = platform.simd_degree();
    pages.truncate(if lanes < LEAVES { 0 } else { pages.len() - pages.len() % lanes });
    let mut together = pages.chunks(PAGES_AT_ONCE).flat_map(|batch| {
        let mut out = [[0; VALUE_BYTES]; PAGES_AT_ONCE];
        hash_pages(platform, batch, &mut out);
        batch.iter().zip(out).map(|((index, _), value)| (*index, blake3::Hash::from_bytes(value)))
    });
    let mut next = together.next();
    let hash = |(index, input): (usize, &&[u8])| match next {
        Some((place, hash)) if place == index => {
            next = together.next();
            hash
        }
        _ => blake3::hash(input),
    };
    inputs.iter().enumerate().map(hash).collect()
}

/// The nodes above the leaves of the tree over `bytes` (`proof`).
pub(crate) fn leaf_values(bytes: &[u8]) -> Vec<ChainingValue> {
    let (leaves, last) = bytes.as_chunks::<LEAF_BYTES>();
    let mut values = vec![[0; VALUE_BYTES]; leaves.len()];
    let platform = Platform::detect();
    for (batch, (leaves, out)) in leaves.chunks(PAGES_AT_ONCE).zip(values.chunks_mut(PAGES_AT_ONCE)).enumerate() {
        let inputs: Vec<&[u8; LEAF_BYTES]> = leaves.iter().collect();
        let first = (batch * PAGES_AT_ONCE) as u64;
        let out = out.as_flattened_mut();
        platform.hash_many(&inputs, &IV, first, IncrementCounter::Yes, 0, CHUNK_START, CHUNK_END, out);
    }
    if !last.is_empty() {
        let offset = (bytes.len() - last.len()) as u64;
        values.push(blake3::Hasher::new().set_input_offset(offset).update(last).finalize_non_root());
    }
    values
}

/// The nodes above `values`; one that has no second stays as it is.
pub(crate) fn parent_values(values: &[ChainingValue]) -> Vec<ChainingValue> {
    let (pairs, last) = values.as_chunks::<2>();
    let mut parents = vec![[0; VALUE_BYTES]; pairs.len()];
    let platform = Platform::detect();
    for (pairs, out) in pairs.chunks(2 * PAGES_AT_ONCE).zip(parents.chunks_mut(2 * PAGES_AT_ONCE)) {
        merge(platform, pairs, PARENT, out.as_flattened_mut());
    }
    parents.extend_from_slice(last);
    parents
}

/// Hashes at most [`PAGES_AT_ONCE`] pages. Their trees have the same shape: four leaves, two
/// parents and the root.
fn hash_pages(platform: Platform, pages: &[(usize, &[u8; PAGE_BYTES])], out: &mut [[u8; VALUE_BYTES]; PAGES_AT_ONCE]) {
    let mut leaves = [[[0; VALUE_BYTES]; PAGES_AT_ONCE]; LEAVES];
    for (number, values) in leaves.iter_mut().enumerate() {
        let mut inputs: [&[u8; LEAF_BYTES]; PAGES_AT_ONCE] = [&[0; LEAF_BYTES]; PAGES_AT_ONCE];
        for (input, (_, page)) in inputs.iter_mut().zip(pages) {
            if let Some(leaf) = page.as_chunks().0.get(number) {
                *input = leaf;
            }
        }
        let inputs = &inputs[..pages.len()];
        let out = values.as_flattened_mut();
        platform.hash_many(inputs, &IV, number as u64, IncrementCounter::No, 0, CHUNK_START, CHUNK_END, out);
    }
    // The children of a parent lie side by side: those of page i at 2i and 2i + 1.
    let mut children = [[[0; VALUE_BYTES]; 2]; 2 * PAGES_AT_ONCE];
    for (page, [left, right]) in children.as_chunks_mut().0.iter_mut().enumerate().take(pages.len()) {
        *left = [leaves[0][page], leaves[1][page]];
        *right = [leaves[2][page], leaves[3][page]];
    }
    let mut parents = [[[0; VALUE_BYTES]; 2]; PAGES_AT_ONCE];
    let nodes = 2 * pages.len();
    merge(platform, &children[..nodes], PARENT, parents.as_flattened_mut().as_flattened_mut());
    merge(platform, &parents[..pages.len()], PARENT | ROOT, out.as_flattened_mut());
}

/// Hashes pairs of chaining values, at most twice [`PAGES_AT_ONCE`].
fn merge(platform: Platform, pairs: &[[[u8; VALUE_BYTES]; 2]], flags: u8, out: &mut [u8]) {
    let mut inputs: [&[u8; 2 * VALUE_BYTES]; 2 * PAGES_AT_ONCE] = [&[0; 2 * VALUE_BYTES]; 2 * PAGES_AT_ONCE];
    for (input, pair) in inputs.iter_mut().zip(pairs) {
        if let Ok(pair) = pair.as_flattened().try_into() {
            *input = pair;
        }
    }
    platform.hash_many(&inputs[..pairs.len()], &IV, 0, IncrementCounter::No, flags, 0, 0, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes without a pattern that a mistake about offsets could hide behind.
    fn bytes(seed: usize, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
        out
    }

    #[test]
    fn hashes_are_those_that_the_documented_interface_gives() {
        let pages: Vec<Vec<u8>> = (0..70).map(|seed| bytes(seed, PAGE_BYTES)).collect();
        for count in 0..pages.len() {
            let inputs: Vec<&[u8]> = pages.iter().take(count).map(Vec::as_slice).collect();
            let expected: Vec<_> = inputs.iter().map(|input| blake3::hash(input)).collect();
            assert_eq!(hash_many(&inputs), expected, "{count} pages");
        }
    }

    #[test]
    fn nodes_of_a_tree_are_those_that_the_documented_interface_gives() {
        use blake3::hazmat::{Mode, merge_subtrees_root};
        for length in [1025, 4096, 33 * 1024, 200_000, 300 * 1024] {
            let bytes = bytes(length, length);
            let mut values = leaf_values(&bytes);
            while values.len() > 2 {
                values = parent_values(&values);
            }
            let [left, right] = values[..].try_into().unwrap();
            assert_eq!(merge_subtrees_root(&left, &right, Mode::Hash), blake3::hash(&bytes), "{length} bytes");
        }
    }

    #[test]
    fn inputs_of_other_lengths_keep_their_places() {
        let lengths = [0, 4096, 1, 4095, 4096, 4097, 1024, 256, 4096, 8192, 64, 4096];
        let inputs: Vec<Vec<u8>> = lengths.iter().enumerate().map(|(seed, length)| bytes(seed, *length)).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let expected: Vec<_> = inputs.iter().map(|input| blake3::hash(input)).collect();
        assert_eq!(hash_many(&inputs), expected);
    }

    #[test]
    fn every_platform_of_this_machine_gives_the_same() {
        let pages: Vec<Vec<u8>> = (0..PAGES_AT_ONCE).map(|seed| bytes(seed, PAGE_BYTES)).collect();
        let inputs: Vec<(usize, &[u8; PAGE_BYTES])> =
            pages.iter().enumerate().map(|(index, page)| (index, page.as_slice().try_into().unwrap())).collect();
        #[allow(unused_mut)]
        let mut platforms = vec![Platform::portable(), Platform::detect()];
        #[cfg(target_arch = "x86_64")]
        platforms.extend([Platform::sse2(), Platform::sse41(), Platform::avx2()].into_iter().flatten());
        for platform in platforms {
            let mut out = [[0; VALUE_BYTES]; PAGES_AT_ONCE];
            hash_pages(platform, &inputs, &mut out);
            for (found, page) in out.iter().zip(&pages) {
                assert_eq!(found, blake3::hash(page).as_bytes(), "{platform:?}");
            }
        }
    }
}
