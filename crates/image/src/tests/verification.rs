//! Chunk hashes, blocks and sources that are wrong: what opens, and what is refused when it is
//! read.

use super::hostile::image;
use super::parts::{Parts, seal};
use super::tree::{everything, plain};
use super::{check, open};
use crate::fixture::Node;
use crate::format::*;
use crate::{Codec, Filter, HashTree, ImageError, Limits, Metadata};

#[test]
fn hashes_that_are_not_stored_are_derived_and_checked() {
    let mut fixture = plain();
    fixture.filters = vec![Filter::X86_64];
    let stored = fixture.pack(&everything()).unwrap();
    fixture.params.derive_hashes = true;
    let mut image = fixture.pack(&everything()).unwrap();
    let metadata = Metadata::open(&&image[..], &Limits::default()).unwrap();
    assert!(metadata.derives_chunk_hashes() && !metadata.has_chunk_hashes());
    let expected = open(&stored).unwrap();
    // The hashes of blocks stand in the block table then.
    let (chunks, blocks) = (metadata.chunk_count() as usize, metadata.block_count() as usize);
    assert_eq!(stored.len() - image.len(), chunks * CHUNK_HASH_BYTES - blocks * 16);
    metadata.derive_chunk_hashes(&&image[..]).unwrap();
    let derived = metadata.chunk_hash_bytes().unwrap().to_vec();
    let region = metadata.chunk_hash_region();
    assert_eq!((region.start, region.end - region.start), (image.len() as u64, derived.len() as u64));
    // As a server offers them: after the end of the file.
    let offered = [&image[..], &derived].concat();
    let mut wrong = offered.clone();
    wrong[image.len()] ^= 1;
    let fetching = Metadata::open_early(&&image[..], &Limits::default()).unwrap();
    assert!(matches!(fetching.load_chunk_hashes(&&wrong[..]), Err(ImageError::SectionHash { .. })));
    assert!(!fetching.has_chunk_hashes() && fetching.contradiction().is_none());
    fetching.load_chunk_hashes(&&offered[..]).unwrap();
    assert_eq!(fetching.chunk_hash_bytes(), Some(&derived[..]));
    let ids = (0..metadata.chunk_count()).map(units::ChunkId);
    assert!(ids.into_iter().all(|id| metadata.chunk_hash(id) == expected.chunk_hash(id)));
    check(&image).unwrap();
    for at in 0..image.len() {
        image[at] ^= 0x11;
        assert!(check(&image).is_err(), "byte {at} went unnoticed");
        image[at] ^= 0x11;
    }
    // Every rule: the feature and the flag go together, and the section follows the end.
    let at = 128 + 64 * 10;
    let cases: [(usize, u8, &str); 5] = [
        (12, FEATURE_FILTERS as u8, "flag of a derived section"),
        (at + 5, 0, "flag of a derived section"),
        (128 + 5, SECTION_DERIVED, "flag of a derived section"),
        (at + 8, 0, "start of a section"),
        (at + 32, image[at + 32] ^ 1, "contradicts itself"),
    ];
    for (at, value, expected) in cases {
        let mut broken = image.clone();
        broken[at] = value;
        seal(&mut broken);
        let error = check(&broken).unwrap_err().to_string();
        assert!(error.contains(expected), "byte {at}: {error}");
    }
}

#[test]
fn wrong_chunk_hashes_and_undecodable_blocks_are_found_by_check() {
    let mut parts = Parts::of(&image());
    parts.section(SECTION_CHUNK_HASHES)[3] ^= 1;
    let image = parts.assemble();
    open(&image).unwrap();
    assert!(matches!(check(&image), Err(ImageError::ChunkHash { .. })));
    // A block whose stored bytes are hashed rightly and are no zstd frame.
    let mut parts = Parts::of(&plain().pack(&everything()).unwrap());
    parts.section(SECTION_BLOCKS)[24] = Codec::Zstd.to_u8();
    parts.set(SECTION_BLOCKS, 20, parts.clone().get(SECTION_BLOCKS, 20));
    let error = open(&parts.assemble()).unwrap_err();
    assert!(error.to_string().contains("stored size"), "{error}");
}

#[test]
fn a_wrong_block_names_itself() {
    let image = image();
    let metadata = open(&image).unwrap();
    let block = metadata.block(units::BlockId(0)).unwrap();
    let stored = &image[4096..4096 + block.stored_bytes as usize];
    let mut out = vec![1];
    metadata.decode_block(units::BlockId(0), stored, &mut out).unwrap();
    assert_eq!(out.len(), block.raw_bytes as usize);
    let error = metadata.decode_block(units::BlockId(0), &stored[1..], &mut out).unwrap_err();
    assert!(matches!(error, ImageError::BlockLength { .. }), "{error}");
    assert!(out.is_empty());
    let mut wrong = stored.to_vec();
    wrong[9] ^= 4;
    let error = metadata.decode_block(units::BlockId(0), &wrong, &mut out).unwrap_err();
    assert!(matches!(error, ImageError::BlockHash { .. }), "{error}");
    assert!(error.to_string().contains("block 0 at offset 4096"), "{error}");
}

/// A source whose reads fail.
struct Broken;

impl crate::ReadAt for Broken {
    fn read_exact_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        Err(std::io::ErrorKind::TimedOut.into())
    }

    fn len(&self) -> std::io::Result<u64> {
        Ok(1 << 20)
    }
}

#[test]
fn a_failing_source_is_an_error() {
    let error = Metadata::open(&Broken, &Limits::default()).unwrap_err();
    assert!(matches!(error, ImageError::Read { .. }), "{error}");
}

/// Reads only below an offset; what lies above has not arrived yet.
struct Arriving<'a> {
    image: &'a [u8],
    end: u64,
}

impl crate::ReadAt for Arriving<'_> {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        if offset + buf.len() as u64 > self.end {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        self.image.read_exact_at(offset, buf)
    }

    fn len(&self) -> std::io::Result<u64> {
        Ok(self.image.len() as u64)
    }
}

/// A block is verified by a hash that came with a proof, and by no other.
#[test]
fn blocks_are_verified_by_hashes_that_came_with_proofs() {
    let mut fixture = super::tree::plain();
    fixture.block_bytes = 4096;
    let image = fixture.pack(&[Node::file(b"file", &super::tree::text(7, 100 * 4096))]).unwrap();
    let whole = open(&image).unwrap();
    assert_eq!((whole.block_count(), whole.block_leaf_count()), (100, 4));
    let hashes = whole.block_hash_bytes().unwrap();
    let proof = HashTree::of_blocks(hashes).proof(hashes, &[2]).unwrap();
    let metadata = Metadata::open_early(&&image[..], &Limits::default()).unwrap();
    assert!(!metadata.takes_blocks());
    metadata.expect_proofs(true);
    assert!(metadata.takes_blocks() && !metadata.has_block_hashes());
    let stored = |block: u32| {
        let entry = whole.block(units::BlockId(block)).unwrap();
        &image[entry.file_offset as usize..][..entry.stored_bytes as usize]
    };
    let verify = |block: u32, of: u32| metadata.verify_block(units::BlockId(block), stored(of));
    assert!(matches!(verify(70, 70), Err(ImageError::NoBlockHash { .. })));
    // A proof of other hashes, a damaged one, and one of chunk hashes that these bytes might be.
    let mut bad = proof.clone();
    bad[100] ^= 1;
    assert!(matches!(metadata.load_proof(&bad), Err(ImageError::Proof { .. })));
    assert!(metadata.load_proof(&HashTree::of(hashes).proof(hashes, &[2]).unwrap()).is_err());
    assert!(verify(70, 70).is_err());
    metadata.load_proof(&proof).unwrap();
    verify(64, 64).unwrap();
    verify(95, 95).unwrap();
    assert!(matches!(verify(70, 71), Err(ImageError::BlockHash { .. })));
    for unproven in [63, 96] {
        assert!(matches!(verify(unproven, unproven), Err(ImageError::NoBlockHash { .. })));
    }
    assert_eq!(metadata.block_hash(units::BlockId(70)), whole.block_hash(units::BlockId(70)));
}

#[test]
fn an_image_opens_before_its_chunk_hashes_arrive() {
    let mut parts = Parts::of(&image());
    parts.sections.push((SECTION_PROFILE, SECTION_OPTIONAL, vec![7; 999]));
    let image = parts.assemble();
    let whole = open(&image).unwrap();
    let end = whole.section_report().iter().find(|s| s.kind == SECTION_CHUNK_HASHES).unwrap().offset;
    let early = Arriving { image: &image, end };
    let needed = whole.superblock().hash_region().unwrap();
    assert!(needed.start < end && needed.end == image.len() as u64 - 999);
    assert!(matches!(Metadata::open(&early, &Limits::default()), Err(ImageError::Read { .. })));
    let metadata = Metadata::open_early(&Arriving { image: &image, end: needed.start }, &Limits::default()).unwrap();
    assert!(!metadata.has_block_hashes() && !metadata.takes_blocks());
    assert!(metadata.load_block_hashes(&Arriving { image: &image, end: end - 1 }).is_err());
    metadata.load_block_hashes(&early).unwrap();
    let page = whole.chunk_owner(units::ChunkId(0)).unwrap();
    let bytes = super::tree::text(1, 600);
    whole.verify_page(page, &bytes).unwrap();
    assert!(matches!(metadata.verify_page(page, &bytes), Err(ImageError::NoChunkHashes { .. })));
    assert!(!metadata.has_chunk_hashes() && metadata.memory_bytes() < whole.memory_bytes());
    assert!(metadata.load_chunk_hashes(&early).is_err());
    metadata.load_chunk_hashes(&&image[..]).unwrap();
    metadata.load_chunk_hashes(&&image[..]).unwrap();
    metadata.verify_page(page, &bytes).unwrap();
    assert_eq!(metadata.memory_bytes(), whole.memory_bytes());
}

#[test]
fn pages_are_verified_by_hashes_that_came_with_proofs_and_by_no_others() {
    // Four leaves, the last one short.
    let content = super::tree::text(7, 200 * 4096);
    let mut fixture = super::tree::plain();
    fixture.params.chunk_shift = 12;
    let image = fixture.pack(&[Node::file(b"file", &content)]).unwrap();
    let whole = open(&image).unwrap();
    let hashes = whole.chunk_hash_bytes().unwrap();
    let prove = |leaves: &[u32]| HashTree::of(hashes).proof(hashes, leaves).unwrap();
    let metadata = Metadata::open_early(&&image[..], &Limits::default()).unwrap();
    let page = |index: usize| units::PageId::new(metadata.resolve(b"file").unwrap(), index as u32);
    let verify = |index: usize| metadata.verify_page(page(index), &content[index * 4096..][..4096]);
    assert_eq!((metadata.hash_leaf_count(), metadata.hash_leaves(&[page(3), page(199), page(0)])), (4, vec![0, 3]));
    let mut of_blocks: Vec<u32> =
        (0..metadata.block_count()).flat_map(|block| metadata.block_hash_leaves(units::BlockId(block))).collect();
    assert_eq!(of_blocks.first(), Some(&0));
    of_blocks.dedup();
    assert_eq!(of_blocks, [0, 1, 2, 3]);
    assert!(!metadata.takes_pages());
    metadata.expect_proofs(true);
    assert!(metadata.takes_pages() && !metadata.has_chunk_hashes());
    let mut bad = prove(&[1]);
    *bad.last_mut().unwrap() ^= 1;
    assert!(matches!(metadata.load_proof(&bad), Err(ImageError::Proof { .. })));
    assert!(matches!(verify(64), Err(ImageError::NoChunkHashes { .. })));
    metadata.load_proof(&prove(&[1, 3])).unwrap();
    metadata.load_proof(&prove(&[3])).unwrap();
    for (index, proven) in [(63, false), (64, true), (127, true), (128, false), (192, true), (199, true)] {
        assert_eq!(verify(index).is_ok(), proven, "page {index}");
    }
    assert!(metadata.verify_page(page(64), &content[..4096]).is_err());
    // What came whole is the same.
    metadata.load_chunk_hashes(&&image[..]).unwrap();
    assert!((0..200).all(|index| verify(index).is_ok()));
    metadata.load_proof(&prove(&[0])).unwrap();
}

#[test]
fn regress_proven_hashes_are_found_while_all_are_loaded() {
    let content = super::tree::text(7, 64 * 4096);
    let mut fixture = super::tree::plain();
    fixture.params.chunk_shift = 12;
    let image = fixture.pack(&[Node::file(b"file", &content)]).unwrap();
    let whole = open(&image).unwrap();
    let hashes = whole.chunk_hash_bytes().unwrap();
    let proof = HashTree::of(hashes).proof(hashes, &[0]).unwrap();
    for round in 0..300 {
        let metadata = Metadata::open_early(&&image[..], &Limits::default()).unwrap();
        metadata.load_proof(&proof).unwrap();
        let page = units::PageId::new(metadata.resolve(b"file").unwrap(), 0);
        let chunk = metadata.page_chunks(page).unwrap().chunks().next().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !metadata.has_chunk_hashes() {
                    assert!(metadata.chunk_hash(chunk).is_some(), "round {round}");
                }
            });
            metadata.load_chunk_hashes(&&image[..]).unwrap();
            reader.join().unwrap();
        });
    }
}
