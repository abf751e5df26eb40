//! Pinned results: the dump and the identity of a fixed image, and an image file of version 1 that
//! must always open.
//!
//! The fixed image stores everything uncompressed, so what is pinned depends on this crate alone.
//! The file testdata/image-v1.bin was written by the first version, with all codecs; it is never
//! written again.

use super::model::compare_image;
use super::tree::{everything, plain};
use super::{check, open};
use units::BlockId;

/// The first image file of version 1.
const VERSION_1: &[u8] = include_bytes!("../../testdata/image-v1.bin");

#[test]
fn golden_dump_of_the_fixed_image() {
    let metadata = open(&plain().pack(&everything()).unwrap()).unwrap();
    let mut text = String::new();
    crate::dump(&metadata, &mut text).unwrap();
    let expected = include_str!("../../testdata/image-v1.dump");
    for (line, (found, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {}", line + 1);
    }
    assert_eq!(text.len(), expected.len());
}

#[test]
fn golden_identity_of_the_fixed_image() {
    let image = plain().pack(&everything()).unwrap();
    let id = open(&image).unwrap().id();
    assert_eq!(id.to_string(), "fd98a27e7ced678c68243697382d5938d56c838608fed99e89665c69a3f68b4b");
    assert_eq!(blake3::hash(&image).to_string(), "19be99b5d42664e600c13c97bccbc23e304e37a7605ccac218e52e7e4259834e");
}

#[test]
fn an_image_of_version_1_opens() {
    let report = check(VERSION_1).unwrap();
    assert_eq!(report.id.to_string(), "9d0569e4a3d2492a76a3002bb4ceb10bae3524c5420b9a5d8ab6dae624586009");
    compare_image(VERSION_1, &everything());
    let metadata = open(VERSION_1).unwrap();
    let mut codecs: Vec<_> = (0..metadata.block_count()).map(|id| metadata.block(BlockId(id)).unwrap().codec).collect();
    codecs.sort();
    codecs.dedup();
    assert_eq!(codecs, crate::Codec::ALL);
}

/// Every byte is in the superblock, whose hash is the identity, or in exactly one section or block,
/// whose hash is in the superblock or in a section.
#[test]
fn the_identity_covers_every_byte() {
    let mut image = VERSION_1.to_vec();
    let metadata = open(&image).unwrap();
    assert_eq!(blake3::hash(&image[..4096]), metadata.id().0);
    let blocks = (0..metadata.block_count()).map(BlockId).map(|id| {
        let block = metadata.block(id).unwrap();
        (block.file_offset, block.stored_bytes.into(), metadata.block_hash(id).unwrap())
    });
    let sections = metadata.section_report().iter().map(|s| (s.offset, s.stored_bytes, s.hash));
    let mut end = 4096;
    for (offset, bytes, hash) in blocks.chain(sections) {
        assert_eq!(offset, end);
        end += bytes;
        assert_eq!(blake3::hash(&image[offset as usize..end as usize]), hash);
    }
    assert_eq!(end, image.len() as u64);
    // Whoever knows the identity is not deceived by a superblock whose own hash was made right.
    for at in 0..4096 {
        image[at] ^= 1;
        super::parts::seal(&mut image);
        if (96..128).contains(&at) {
            assert_eq!(image, VERSION_1, "this is the hash itself");
            continue;
        }
        assert!(open(&image).is_err() || open(&image).unwrap().id() != metadata.id(), "byte {at}");
        image[..4096].copy_from_slice(&VERSION_1[..4096]);
    }
}
