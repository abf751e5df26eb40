//! Images with two contents: the blocks say one thing, the chunk hashes another.

use super::check;
use super::tree::plain;
use crate::fixture::{Fixture, Node};
use crate::{Codec, Filter, HashTree, ImageError, Limits, Metadata};
use units::{BlockId, ChunkId, PageId};

const REAL: u8 = b'a';
const PRETENDED: u8 = b'b';

/// Three files of a page each, each in a block of its own; of the second the hashes say something
/// else.
fn two_faced(derive: bool, fixture: Fixture) -> Vec<u8> {
    let mut fixture = Fixture { block_bytes: 4096, ..fixture };
    fixture.params.derive_hashes = derive;
    fixture.params.chunk_shift = 12;
    fixture.pretended = Some((vec![REAL; 4096], vec![PRETENDED; 4096]));
    let nodes = [
        Node::file(b"first", &[b'1'; 4096]),
        Node::file(b"second", &[REAL; 4096]),
        Node::file(b"third", &[b'3'; 4096]),
    ];
    fixture.pack(&nodes).unwrap()
}

/// One fixture for each way in which a block can be coded.
pub(super) fn codecs() -> Vec<Fixture> {
    let with = |codec, filter| Fixture { codecs: vec![codec], filters: vec![filter], ..plain() };
    vec![
        with(Codec::Stored, Filter::None),
        with(Codec::Lz4, Filter::None),
        with(Codec::Zstd, Filter::X86_64),
        with(Codec::Xz, Filter::None),
        with(Codec::Zstd, Filter::Deflate),
        Fixture { dictionary: Some(super::tree::dictionary()), codecs: vec![Codec::Zstd], ..plain() },
    ]
}

/// Decodes a block of `image` as a reader does.
fn decode(metadata: &Metadata, image: &[u8], block: u32) -> Result<Vec<u8>, ImageError> {
    let mut raw = Vec::new();
    metadata.read_block(&image, BlockId(block), &mut Vec::new(), &mut raw).map(|_| raw)
}

/// The block of a file, and its page.
fn place(metadata: &Metadata, path: &[u8]) -> (u32, PageId) {
    let page = PageId::new(metadata.resolve(path).unwrap(), 0);
    let chunk: ChunkId = metadata.page_chunks(page).unwrap().chunks().next().unwrap();
    (metadata.chunk(chunk).unwrap().block.0, page)
}

/// Neither content is handed out any more, nor anything else of the image.
fn assert_refused(metadata: &Metadata, image: &[u8]) {
    assert!(metadata.contradiction().unwrap().to_string().contains("contradicts itself"));
    for (path, bytes) in [(&b"first"[..], b'1'), (b"second", REAL), (b"second", PRETENDED), (b"third", b'3')] {
        let (block, page) = place(metadata, path);
        assert!(decode(metadata, image, block).unwrap_err().to_string().contains("contradicts itself"));
        assert!(metadata.verify_page(page, &[bytes; 4096]).unwrap_err().to_string().contains("contradicts itself"));
    }
}

#[test]
fn a_block_is_held_to_hashes_that_are_loaded() {
    for fixture in codecs() {
        let image = two_faced(false, fixture);
        let metadata = Metadata::open(&&image[..], &Limits::default()).unwrap();
        let (first, page) = place(&metadata, b"first");
        assert_eq!(decode(&metadata, &image, first).unwrap(), [b'1'; 4096]);
        metadata.verify_page(page, &[b'1'; 4096]).unwrap();
        let (second, page) = place(&metadata, b"second");
        // Until a block says otherwise nobody can know.
        metadata.verify_page(page, &[PRETENDED; 4096]).unwrap();
        assert!(matches!(decode(&metadata, &image, second), Err(ImageError::ChunkHash { .. })));
        assert_refused(&metadata, &image);
        assert!(matches!(check(&image), Err(ImageError::ChunkHash { .. })));
    }
}

/// An image whose blocks can be verified, and whose chunk hashes are not loaded.
fn early(image: &[u8]) -> Metadata {
    let metadata = Metadata::open_early(&image, &Limits::default()).unwrap();
    metadata.load_block_hashes(&image).unwrap();
    metadata
}

#[test]
fn blocks_that_came_first_are_held_to_hashes_that_come_later() {
    for fixture in codecs() {
        let image = two_faced(false, fixture);
        let metadata = early(&image);
        for path in [&b"first"[..], b"second"] {
            decode(&metadata, &image, place(&metadata, path).0).unwrap();
        }
        assert!(matches!(metadata.load_chunk_hashes(&&image[..]), Err(ImageError::ChunkHash { .. })));
        assert!(!metadata.has_chunk_hashes());
        assert_refused(&metadata, &image);
        assert!(metadata.load_chunk_hashes(&&image[..]).is_err(), "nor later");
    }
}

#[test]
fn blocks_are_held_to_hashes_that_are_not_in_the_file() {
    for fixture in codecs() {
        let image = two_faced(true, fixture);
        assert!(matches!(check(&image), Err(ImageError::DerivedHashes { .. })));
        // A reader of everything finds it with the last block.
        let metadata = Metadata::open(&&image[..], &Limits::default()).unwrap();
        let blocks = metadata.block_count();
        let last = (0..blocks).map(|block| decode(&metadata, &image, block)).collect::<Vec<_>>().pop().unwrap();
        assert!(matches!(last, Err(ImageError::DerivedHashes { .. })));
        assert_refused(&metadata, &image);
        // And so does one that derives them after some blocks were read.
        let metadata = Metadata::open(&&image[..], &Limits::default()).unwrap();
        decode(&metadata, &image, 1).unwrap();
        assert!(matches!(metadata.derive_chunk_hashes(&&image[..]), Err(ImageError::DerivedHashes { .. })));
        assert_refused(&metadata, &image);
    }
}

/// A server may know bytes whose hashes are those of the superblock.
#[test]
fn blocks_are_held_to_derived_hashes_that_a_server_offers() {
    let image = two_faced(true, plain());
    let honest = two_faced(false, plain());
    let pretended = Metadata::open(&&honest[..], &Limits::default()).unwrap().chunk_hash_bytes().unwrap().to_vec();
    let offered = [&image[..], &pretended].concat();
    let after = early(&image);
    let (second, page) = place(&after, b"second");
    decode(&after, &image, second).unwrap();
    assert!(matches!(after.load_chunk_hashes(&&offered[..]), Err(ImageError::ChunkHash { .. })));
    assert_refused(&after, &image);
    let before = early(&image);
    before.load_chunk_hashes(&&offered[..]).unwrap();
    before.verify_page(page, &[PRETENDED; 4096]).unwrap();
    assert!(matches!(decode(&before, &image, second), Err(ImageError::ChunkHash { .. })));
    assert_refused(&before, &image);
}

#[test]
fn blocks_are_held_to_hashes_that_come_with_proofs() {
    let image = two_faced(false, plain());
    let whole = Metadata::open(&&image[..], &Limits::default()).unwrap();
    let hashes = whole.chunk_hash_bytes().unwrap();
    let proof = HashTree::of(hashes).proof(hashes, &[0]).unwrap();
    let before = early(&image);
    before.load_proof(&proof).unwrap();
    let (second, page) = place(&before, b"second");
    before.verify_page(page, &[PRETENDED; 4096]).unwrap();
    assert!(matches!(decode(&before, &image, second), Err(ImageError::ChunkHash { .. })));
    assert_refused(&before, &image);
    let after = early(&image);
    decode(&after, &image, second).unwrap();
    assert!(matches!(after.load_proof(&proof), Err(ImageError::ChunkHash { .. })));
    assert_refused(&after, &image);
    assert!(after.load_proof(&proof).is_err(), "nor later");
}

#[test]
fn an_honest_image_derives_its_hashes_by_being_read() {
    let mut fixture = plain();
    fixture.params.derive_hashes = true;
    let image = fixture.pack(&super::tree::everything()).unwrap();
    let metadata = early(&image);
    for block in 0..metadata.block_count() {
        assert!(!metadata.has_chunk_hashes());
        decode(&metadata, &image, block).unwrap();
    }
    assert!(metadata.has_chunk_hashes());
}
