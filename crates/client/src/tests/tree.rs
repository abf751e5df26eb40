//! A small image for tests, with the bytes of its files.

use std::sync::Arc;

use image::fixture::{Fixture, Node, Part};
use image::{BuilderParams, HashTree, Metadata};
use units::{InodeId, PAGE_BYTES, PageId, Rng, SplitMix64};

use image::fixture::Body;

/// An image and what is in it.
pub(crate) struct Tree {
    pub bytes: Vec<u8>,
    pub metadata: Arc<Metadata>,
    /// Big, holey, small, tiny, empty.
    pub files: Vec<(InodeId, Vec<u8>)>,
}

impl Tree {
    /// One chunk a page, 16 pages a block, in order.
    pub fn plain() -> Tree {
        Tree::of(Fixture::default(), 1)
    }

    /// Four chunks a page, scattered over small blocks: a page may need four of them.
    pub fn scattered() -> Tree {
        let params = BuilderParams { chunk_shift: 10, ..BuilderParams::default() };
        Tree::of(Fixture { params, block_bytes: 16 << 10, shuffle: Some(7), ..Fixture::default() }, 2)
    }

    /// Many small chunks: their hashes do not come with the first part of the metadata.
    pub fn large() -> Tree {
        let params = BuilderParams { chunk_shift: 8, ..BuilderParams::default() };
        Tree::sized(Fixture { params, ..Fixture::default() }, 3, 600)
    }

    /// An image with two contents: what the chunk hashes say of the first chunk of page `page` of
    /// the big file is true of `pretended` and not of its block.
    pub fn two_faced(large: bool, page: u32, pretended: u8) -> Tree {
        let honest = if large { Tree::large() } else { Tree::plain() };
        let bytes = honest.metadata.chunk_bytes();
        let chunk = honest.page(PageId::new(honest.big(), page))[..bytes].to_vec();
        let params = BuilderParams { chunk_shift: bytes.trailing_zeros() as u8, ..BuilderParams::default() };
        let fixture = Fixture { params, pretended: Some((chunk, vec![pretended; bytes])), ..Fixture::default() };
        if large { Tree::sized(fixture, 3, 600) } else { Tree::of(fixture, 1) }
    }

    pub fn of(fixture: Fixture, seed: u64) -> Tree {
        Tree::sized(fixture, seed, 100)
    }

    pub fn sized(fixture: Fixture, seed: u64, big_pages: usize) -> Tree {
        let mut rng = SplitMix64(seed);
        let mut data = |bytes: usize| -> Vec<u8> { (0..bytes).map(|_| rng.below(16) as u8 + 1).collect() };
        let big = data(big_pages * PAGE_BYTES + 123);
        let (left, right) = (data(3 * PAGE_BYTES), data(PAGE_BYTES + 7));
        let (small, tiny) = (data(2 * PAGE_BYTES), data(10));
        let holey = [left.clone(), vec![0; 5 * PAGE_BYTES], right.clone()].concat();
        let parts = vec![Part::Data(left), Part::Hole(5 * PAGE_BYTES as u64), Part::Data(right)];
        let nodes = [
            Node::file(b"big", &big),
            Node::new(b"holey", Body::File(parts)),
            Node::file(b"small", &small),
            Node::file(b"tiny", &tiny),
            Node::file(b"empty", b""),
        ];
        let bytes = fixture.pack(&nodes).unwrap();
        let metadata = Arc::new(Metadata::open(&bytes, &image::Limits::default()).unwrap());
        let contents = [big, holey, small, tiny, Vec::new()];
        let inodes = nodes.iter().map(|node| metadata.resolve(&[b"/", node.path.as_slice()].concat()).unwrap());
        let files = inodes.zip(contents).collect();
        Tree { bytes, metadata, files }
    }

    pub fn big(&self) -> InodeId {
        self.files[0].0
    }

    /// The valid bytes of a page.
    pub fn page(&self, page: PageId) -> &[u8] {
        let (_, contents) = self.files.iter().find(|(inode, _)| *inode == page.inode).unwrap();
        let start = page.index as usize * PAGE_BYTES;
        &contents[start..contents.len().min(start + PAGE_BYTES)]
    }

    /// What a READ must give.
    pub fn range(&self, inode: InodeId, offset: u64, bytes: u32) -> &[u8] {
        let (_, contents) = self.files.iter().find(|(found, _)| *found == inode).unwrap();
        let start = contents.len().min(offset as usize);
        &contents[start..contents.len().min(start + bytes as usize)]
    }

    /// The chunk hashes of pages with a proof.
    pub fn proof(&self, pages: &[PageId]) -> Vec<u8> {
        let hashes = self.metadata.chunk_hash_bytes().unwrap();
        HashTree::of(hashes).proof(hashes, &self.metadata.hash_leaves(pages)).unwrap()
    }

    /// The hash of a block with a proof.
    pub fn block_proof(&self, block: units::BlockId) -> Vec<u8> {
        let hashes = self.metadata.block_hash_bytes().unwrap();
        HashTree::of_blocks(hashes).proof(hashes, &[self.metadata.leaf_of_block(block)]).unwrap()
    }

    /// The stored bytes of a block.
    pub fn stored(&self, block: units::BlockId) -> &[u8] {
        let entry = self.metadata.block(block).unwrap();
        &self.bytes[entry.file_offset as usize..][..entry.stored_bytes as usize]
    }
}
