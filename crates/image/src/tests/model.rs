//! The reference model: the list of nodes a tree was made from. Everything the metadata says must
//! follow from it.

use super::tree::{everything, plain, random_fixture, random_tree};
use super::{check, open};
use crate::fixture::{Body, Fixture, Node, Part};
use crate::{Content, Kind, Metadata};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use units::{BlockId, ChunkId, InodeId, PAGE_BYTES, PageId, SplitMix64};

/// The node that holds the attributes of `node`: itself, or the target of a hard link.
fn target<'a>(nodes: &'a [Node], node: &'a Node) -> &'a Node {
    match &node.body {
        Body::HardLink(path) => nodes.iter().find(|other| other.path == *path).unwrap(),
        _ => node,
    }
}

fn names_of<'a>(nodes: &'a [Node], dir: &[u8]) -> BTreeSet<&'a [u8]> {
    nodes
        .iter()
        .filter(|node| !node.path.is_empty())
        .filter_map(|node| match node.path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) if node.path[..slash] == *dir => Some(&node.path[slash + 1..]),
            None if dir.is_empty() => Some(&node.path[..]),
            _ => None,
        })
        .collect()
}

/// Decoded blocks of an image, by number.
fn decode_all(metadata: &Metadata, image: &[u8]) -> Vec<Vec<u8>> {
    (0..metadata.block_count())
        .map(BlockId)
        .map(|id| {
            let block = metadata.block(id).unwrap();
            let start = block.file_offset as usize;
            let mut raw = Vec::new();
            metadata.decode_block(id, &image[start..start + block.stored_bytes as usize], &mut raw).unwrap();
            raw
        })
        .collect()
}

/// The bytes of a page, put together from decoded blocks.
fn page(metadata: &Metadata, blocks: &[Vec<u8>], id: PageId) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in metadata.page_chunks(id).unwrap().pieces() {
        assert_eq!(piece.start, bytes.len());
        match piece.chunk {
            Some(chunk) => {
                let place = metadata.chunk(chunk).unwrap();
                let start = place.offset as usize;
                assert_eq!(place.bytes as usize, piece.bytes);
                bytes.extend_from_slice(&blocks[place.block.0 as usize][start..start + piece.bytes]);
            }
            None => bytes.resize(bytes.len() + piece.bytes, 0),
        }
    }
    bytes
}

fn compare_file(metadata: &Metadata, blocks: &[Vec<u8>], inode: InodeId, parts: &[Part]) {
    let size: u64 = parts
        .iter()
        .map(|part| match part {
            Part::Data(bytes) => bytes.len() as u64,
            Part::Hole(bytes) => *bytes,
        })
        .sum();
    assert_eq!(metadata.inode(inode).unwrap().size(), size);
    let pages = metadata.page_count(inode);
    assert_eq!(u64::from(pages), size.div_ceil(PAGE_BYTES as u64));
    assert_eq!(metadata.page_bytes(PageId::new(inode, pages)), None);
    assert_eq!(metadata.page_chunks(PageId::new(inode, pages)), None);
    let run_chunks: u64 = metadata.extents(inode).map(|run| u64::from(run.chunks)).sum();
    assert_eq!(run_chunks, size.div_ceil(metadata.chunk_bytes() as u64));
    if size > 1 << 20 {
        return; // Holes of gigabytes are compared by their ends in a test of their own.
    }
    let mut bytes = Vec::new();
    for index in 0..pages {
        let id = PageId::new(inode, index);
        let mut page = page(metadata, blocks, id);
        assert_eq!(metadata.page_bytes(id), Some(page.len()));
        metadata.verify_page(id, &page).unwrap();
        bytes.extend_from_slice(&page);
        let at = index as usize * 7 % page.len();
        page[at] ^= 1;
        assert!(metadata.verify_page(id, &page).is_err());
        page[at] ^= 1;
        page.push(0);
        assert!(metadata.verify_page(id, &page).is_err());
    }
    let mut expected = Vec::new();
    for part in parts {
        match part {
            Part::Data(data) => expected.extend_from_slice(data),
            Part::Hole(hole) => expected.resize(expected.len() + *hole as usize, 0),
        }
    }
    assert!(bytes == expected, "contents of inode {inode} differ");
}

fn compare_node(metadata: &Metadata, blocks: &[Vec<u8>], nodes: &[Node], node: &Node) -> InodeId {
    let id = metadata.resolve(&node.path).unwrap();
    let inode = metadata.inode(id).unwrap();
    let of = target(nodes, node);
    assert_eq!((inode.permissions(), inode.uid(), inode.gid()), (of.permissions, of.uid, of.gid));
    assert_eq!(inode.mtime(), of.mtime);
    let xattrs: BTreeMap<&[u8], &[u8]> = metadata.xattrs(id).collect();
    let expected: BTreeMap<&[u8], &[u8]> = of.xattrs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    assert_eq!(xattrs, expected);
    assert_eq!(inode.has_xattrs(), !expected.is_empty());
    for (name, value) in &expected {
        assert_eq!(metadata.xattr(id, name), Some(*value));
    }
    let names: BTreeSet<&[u8]> = metadata.entries(id).map(|entry| entry.name).collect();
    match &of.body {
        Body::File(parts) => {
            assert_eq!(inode.kind(), Kind::File);
            compare_file(metadata, blocks, id, parts);
        }
        Body::Other(content) => {
            assert_eq!(inode.kind(), content.kind());
            match content {
                Content::Symlink(target) => assert_eq!(metadata.symlink(id), Some(&target[..])),
                Content::Char(number) | Content::Block(number) => assert_eq!(inode.rdev(), *number),
                Content::Dir => assert_eq!(names, names_of(nodes, &of.path)),
                _ => {}
            }
        }
        Body::HardLink(_) => panic!("a target is no link"),
    }
    if inode.kind() != Kind::Dir {
        let links = nodes.iter().filter(|other| target(nodes, other).path == of.path).count();
        assert_eq!(inode.nlink() as usize, links);
        assert!(names.is_empty());
    } else {
        let dirs = metadata.entries(id).filter(|entry| entry.kind == Kind::Dir).count();
        assert_eq!(inode.nlink() as usize, 2 + dirs);
        compare_directory(metadata, id);
    }
    id
}

fn compare_directory(metadata: &Metadata, dir: InodeId) {
    assert_eq!(metadata.entries(dir).len(), metadata.entry_count(dir) as usize);
    for (position, entry) in (0..).zip(metadata.entries(dir)) {
        assert_eq!(metadata.entry(dir, position), Some(entry));
        assert_eq!(metadata.lookup(dir, entry.name), Some(entry.inode));
        assert_eq!(metadata.inode(entry.inode).unwrap().kind(), entry.kind);
        assert_eq!(metadata.lookup(dir, &[entry.name, b"\0"].concat()), None);
        let parent = if entry.kind == Kind::Dir { Some(dir) } else { None };
        assert_eq!(metadata.parent(entry.inode), parent);
    }
    assert_eq!(metadata.entry(dir, metadata.entry_count(dir)), None);
}

/// For each chunk the first page that refers to it, by walking everything.
fn owners(metadata: &Metadata) -> BTreeMap<ChunkId, PageId> {
    let mut owners = BTreeMap::new();
    for inode in (1..=metadata.inode_count()).map(InodeId) {
        for run in metadata.extents(inode).filter(|run| run.chunk.is_some()) {
            for i in 0..run.chunks {
                let chunk = ChunkId(run.chunk.unwrap().0 + i);
                let index = u64::from(run.file_chunk + i) * metadata.chunk_bytes() as u64 / PAGE_BYTES as u64;
                owners.entry(chunk).or_insert(PageId::new(inode, index as u32));
            }
        }
    }
    owners
}

/// Packs `nodes` and compares everything with them.
fn compare(fixture: &Fixture, nodes: &[Node]) {
    let image = fixture.pack(nodes).unwrap();
    assert_eq!(image, fixture.pack(nodes).unwrap(), "the same input gives the same bytes");
    compare_image(&image, nodes);
}

/// Compares everything an image says with the nodes it was made from.
pub(super) fn compare_image(image: &[u8], nodes: &[Node]) {
    let metadata = open(image).unwrap();
    let report = check(image).unwrap();
    assert_eq!((report.id, report.chunks), (metadata.id(), metadata.chunk_count()));
    assert_eq!(*blake3::hash(&image[..4096]).as_bytes(), metadata.id().0);
    let blocks = decode_all(&metadata, image);
    let mut inodes = BTreeSet::new();
    for node in nodes {
        let id = compare_node(&metadata, &blocks, nodes, node);
        let first = inodes.insert(id);
        assert_eq!(first, target(nodes, node) == node);
    }
    assert_eq!(inodes.len(), metadata.inode_count() as usize);
    for id in inodes {
        assert_eq!(metadata.resolve(&metadata.path(id).unwrap()), Some(id));
    }
    for (chunk, owner) in owners(&metadata) {
        assert_eq!(metadata.chunk_owner(chunk), Some(owner), "owner of chunk {chunk}");
    }
    assert_eq!(metadata.chunk_owner(ChunkId(metadata.chunk_count())), None);
    let in_blocks: BTreeMap<ChunkId, BlockId> = (0..metadata.block_count())
        .map(BlockId)
        .flat_map(|block| metadata.block_chunks(block).map(move |chunk| (chunk, block)))
        .collect();
    assert_eq!(in_blocks.len(), metadata.chunk_count() as usize);
    assert!(in_blocks.iter().all(|(&chunk, &block)| metadata.chunk(chunk).unwrap().block == block));
}

#[test]
fn a_tree_with_everything_comes_back() {
    compare(&plain(), &everything());
    compare(&Fixture::default(), &everything());
    compare(&Fixture { shuffle: Some(9), block_bytes: 4096, ..Fixture::default() }, &everything());
}

#[test]
fn an_empty_tree_comes_back() {
    compare(&plain(), &[Node::dir(b"")]);
    compare(&Fixture::default(), &[Node::dir(b""), Node::file(b"empty", b"")]);
}

#[test]
fn many_extents_keep_their_owners() {
    // More extents than a few samples, with runs that start anew, continue, and go back.
    let noise = super::tree::noise(1, 300 * 256);
    let mut fixture = plain();
    fixture.params.chunk_shift = 8;
    let mut nodes = vec![Node::dir(b"")];
    for i in 0..400usize {
        let (start, chunks) = ((i * 37) % 300, 1 + i % 5);
        let bytes: Vec<u8> = noise.iter().cycle().skip(start * 256).take(chunks * 256).copied().collect();
        let body = Body::File(vec![Part::Data(bytes.clone()), Part::Hole(512), Part::Data(bytes)]);
        nodes.push(Node::new(format!("file-{i:03}").as_bytes(), body));
    }
    compare(&fixture, &nodes);
}

#[test]
fn a_file_over_4_gib_has_pages_at_both_ends() {
    let image = plain().pack(&everything()).unwrap();
    let metadata = open(&image).unwrap();
    let huge = metadata.resolve(b"/home/huge").unwrap();
    let last = ((5u64 << 30) / PAGE_BYTES as u64) as u32;
    assert_eq!(metadata.inode(huge).unwrap().size(), (5 << 30) + 7);
    assert!(metadata.page_chunks(PageId::new(huge, 0)).unwrap().is_hole());
    assert!(metadata.page_chunks(PageId::new(huge, last - 1)).unwrap().is_hole());
    let id = PageId::new(huge, last);
    assert_eq!(page(&metadata, &decode_all(&metadata, &image), id), b"the end");
    metadata.verify_page(id, b"the end").unwrap();
    metadata.verify_page(PageId::new(huge, 5), &[0; PAGE_BYTES]).unwrap();
    assert!(metadata.verify_page(PageId::new(huge, last + 1), b"").is_err());
}

#[test]
fn paths_resolve_as_in_a_file_system() {
    let image = plain().pack(&everything()).unwrap();
    let metadata = open(&image).unwrap();
    let sudo = metadata.resolve(b"/bin/sudo");
    assert!(sudo.is_some());
    assert_eq!(metadata.resolve(b"//bin/./../bin/sudo"), sudo);
    assert_eq!(metadata.resolve(b"../../bin/sudoedit"), sudo);
    assert_eq!(metadata.resolve(b""), Some(InodeId::ROOT));
    assert_eq!(metadata.resolve(b"/bin/"), metadata.resolve(b"/bin"));
    for nowhere in [&b"/bin/sudo/"[..], b"/bin/sudo/x", b"/bin/sudo/..", b"/nothing", b"/bin/nothing/x"] {
        assert_eq!(metadata.resolve(nowhere), None);
        assert_eq!(metadata.resolve_following(nowhere), None);
    }
    assert_ne!(metadata.resolve(b"/bin/sh"), sudo);
    assert_eq!(metadata.resolve_following(b"/bin/sh"), sudo);
    assert_eq!(metadata.resolve_following(b"/bin/absolute/../empty"), None);
    assert_eq!(metadata.resolve_following(b"/bin/absolute/../../empty"), metadata.resolve(b"/home/empty"));
    assert_eq!(metadata.resolve_following(b"/loop"), None);
    assert_eq!(metadata.path(InodeId::ROOT), Some(b"/".to_vec()));
    assert_eq!(metadata.path(sudo.unwrap()), Some(b"/bin/sudo".to_vec()));
    assert_eq!(metadata.parent(InodeId::ROOT), Some(InodeId::ROOT));
}

#[test]
fn what_does_not_exist_is_none() {
    let metadata = open(&plain().pack(&everything()).unwrap()).unwrap();
    for id in [InodeId(0), InodeId(metadata.inode_count() + 1), InodeId(u32::MAX)] {
        assert_eq!(metadata.inode(id), None);
        assert_eq!(metadata.entries(id).count() + metadata.extents(id).count() + metadata.xattrs(id).count(), 0);
        assert_eq!((metadata.path(id), metadata.symlink(id), metadata.parent(id)), (None, None, None));
        assert_eq!((metadata.lookup(id, b"bin"), metadata.entry(id, u32::MAX)), (None, None));
        assert_eq!(metadata.page_chunks(PageId::new(id, 0)), None);
        assert_eq!(metadata.page_chunks(PageId::new(id, u32::MAX)), None);
    }
    assert_eq!(metadata.page_chunks(PageId::new(InodeId::ROOT, 0)), None);
    assert_eq!(metadata.block(BlockId(u32::MAX)), None);
    assert_eq!(metadata.block_chunks(BlockId(u32::MAX)).count(), 0);
    assert_eq!(metadata.chunk(ChunkId(u32::MAX)), None);
    assert!(metadata.decode_block(BlockId(metadata.block_count()), b"", &mut Vec::new()).is_err());
}

#[test]
fn memory_stays_close_to_the_sections() {
    let nodes: Vec<Node> = (0..20_000).map(|i| Node::file(format!("file-{i}").as_bytes(), b"")).collect();
    let metadata = open(&Fixture::default().pack(&nodes).unwrap()).unwrap();
    let raw: u64 = metadata.section_report().iter().map(|section| section.raw_bytes).sum();
    assert!(metadata.memory_bytes() as u64 <= raw + raw / 64 + 4096);
    // 172,000 inodes of this shape take 13 MB; naive structs took 74 MB.
    assert!(metadata.memory_bytes() < 20_000 * 80);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn prop_random_trees_come_back(seed: u64) {
        let mut rng = SplitMix64(seed);
        let fixture = random_fixture(&mut rng);
        compare(&fixture, &random_tree(&mut rng, 1 << fixture.params.chunk_shift));
    }
}
