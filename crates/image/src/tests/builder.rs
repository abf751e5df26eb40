//! What the builder refuses, and that it repairs the order of names and the numbers of chunks.

use super::model::compare_image;
use super::open;
use super::tree::noise;
use crate::fixture::{Fixture, Node};
use crate::format::*;
use crate::{
    BlockRecord, Builder, BuilderParams, ChunkRecord, Codec, Content, Filter, ImageError, InodeRecord, Limits,
    Metadata, ReadAt,
};
use units::{BlockId, ChunkId, InodeId};

fn record(content: Content) -> InodeRecord {
    InodeRecord { permissions: 0o644, uid: 0, gid: 0, mtime_sec: 0, mtime_ns: 0, content, xattrs: Vec::new() }
}

/// A builder with a root and a file of `bytes` bytes in it.
fn with_file(bytes: u64) -> (Builder, InodeId) {
    let mut builder = Builder::new(BuilderParams::default());
    builder.add_inode(record(Content::Dir)).unwrap();
    let file = builder.add_inode(record(Content::File { bytes })).unwrap();
    builder.add_entry(InodeId::ROOT, b"file", file).unwrap();
    (builder, file)
}

const BLOCK: BlockRecord = BlockRecord {
    codec: Codec::Stored,
    filter: Filter::None,
    expansion_bytes: 0,
    dictionary: None,
    stored_bytes: 8192,
    raw_bytes: 8192,
    hash: [0; 32],
};

fn chunk(offset: u32, bytes: u32) -> ChunkRecord {
    ChunkRecord { block: BlockId(0), offset, bytes, hash: [offset as u8; 32] }
}

fn refused(result: Result<impl Sized, ImageError>, expected: &str) {
    let Err(error) = result else { panic!("accepted, expected: {expected}") };
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn records_that_no_image_can_hold_are_refused() {
    let mut builder = Builder::new(BuilderParams::default());
    refused(builder.add_inode(record(Content::Fifo)), "root");
    builder.add_inode(record(Content::Dir)).unwrap();
    refused(builder.add_inode(InodeRecord { permissions: 0o10000, ..record(Content::Fifo) }), "twelve bits");
    refused(builder.add_inode(InodeRecord { mtime_ns: 1_000_000_000, ..record(Content::Fifo) }), "nanoseconds");
    refused(builder.add_inode(record(Content::Symlink(Vec::new()))), "link target");
    refused(builder.add_inode(record(Content::Symlink(vec![b'x'; 4096]))), "link target");
    refused(builder.add_inode(record(Content::Symlink(b"a\0".to_vec()))), "link target");
    refused(builder.add_inode(record(Content::File { bytes: 1 << 44 })), "2^32 - 1 chunks");
    let twice = vec![(b"user.a".to_vec(), vec![1]), (b"user.a".to_vec(), vec![2])];
    refused(builder.add_inode(InodeRecord { xattrs: twice, ..record(Content::Fifo) }), "distinct");
    let (fifo, dir) =
        (builder.add_inode(record(Content::Fifo)).unwrap(), builder.add_inode(record(Content::Dir)).unwrap());
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        refused(builder.add_entry(InodeId::ROOT, name, fifo), "1 to 255 bytes");
    }
    refused(builder.add_entry(fifo, b"x", fifo), "added to directories");
    refused(builder.add_entry(InodeId::ROOT, b"x", InodeId(9)), "added before");
    refused(builder.add_entry(dir, b"x", InodeId::ROOT), "before those in it");
    refused(builder.add_entry(dir, b"x", dir), "before those in it");
    refused(builder.add_extent(dir, None, 1), "added to files");
    refused(builder.add_optional_section(1, Vec::new()), "kind of its own");
}

#[test]
fn trees_that_contradict_themselves_are_refused() {
    refused(Builder::new(BuilderParams::default()).finish(&[], &[]), "root directory");
    let (mut builder, file) = with_file(0);
    builder.add_entry(InodeId::ROOT, b"file", file).unwrap();
    refused(builder.finish(&[], &[]), "names of a directory are distinct");
    let (mut builder, _) = with_file(0);
    builder.add_inode(record(Content::Fifo)).unwrap();
    refused(builder.finish(&[], &[]), "inode 3 has none");
    let (mut builder, _) = with_file(0);
    let dir = builder.add_inode(record(Content::Dir)).unwrap();
    builder.add_entry(InodeId::ROOT, b"a", dir).unwrap();
    builder.add_entry(InodeId::ROOT, b"b", dir).unwrap();
    refused(builder.finish(&[], &[]), "one name");
}

#[test]
fn data_that_contradicts_itself_is_refused() {
    refused(with_file(1).0.finish(&[], &[]), "add up to its size");
    let (mut builder, file) = with_file(4096);
    builder.add_extent(file, Some(ChunkId(3)), 1).unwrap();
    refused(builder.finish(&[BLOCK], &[chunk(0, 4096)]), "chunks that exist");
    let (mut builder, file) = with_file(4096);
    builder.add_extent(file, Some(ChunkId(0)), 1).unwrap();
    refused(builder.finish(&[BLOCK], &[chunk(0, 4096), chunk(4096, 4096)]), "chunk 1 is not");
    let (mut builder, file) = with_file(4096);
    builder.add_extent(file, Some(ChunkId(0)), 1).unwrap();
    refused(builder.finish(&[BLOCK], &[chunk(8000, 4096)]), "inside its block");
    let (mut builder, file) = with_file(4096);
    builder.add_extent(file, Some(ChunkId(0)), 1).unwrap();
    refused(builder.finish(&[], &[chunk(0, 4096)]), "block that exists");
    let (mut builder, file) = with_file(4096);
    builder.add_extent(file, Some(ChunkId(0)), 1).unwrap();
    refused(builder.finish(&[BLOCK], &[chunk(0, 100)]), "last chunk of a run");
    let (mut builder, file) = with_file(4096);
    builder.add_extent(file, Some(ChunkId(0)), 1).unwrap();
    let grown = BlockRecord { codec: Codec::Zstd, stored_bytes: 8192, ..BLOCK };
    refused(builder.finish(&[grown], &[chunk(0, 4096)]), "stored size of a block");
}

#[test]
fn the_writer_keeps_its_limits() {
    let params = BuilderParams { limits: Limits { inodes_max: 1, ..Limits::WRITTEN }, ..BuilderParams::default() };
    let mut builder = Builder::new(params);
    builder.add_inode(record(Content::Dir)).unwrap();
    refused(builder.add_inode(record(Content::Fifo)), "limit of 1");
    let (mut builder, file) = with_file(4096);
    builder.add_extent(file, Some(ChunkId(0)), 1).unwrap();
    let large = BlockRecord { stored_bytes: 2 << 20, raw_bytes: 2 << 20, ..BLOCK };
    refused(builder.finish(&[large], &[chunk(0, 4096)]), "the size of a block");
}

#[test]
fn written_limits_lie_within_accepted_ones() {
    let (written, accepted) = (Limits::WRITTEN, Limits::ACCEPTED);
    assert!(written.metadata_bytes_max <= accepted.metadata_bytes_max);
    assert!(written.inodes_max <= accepted.inodes_max && written.entries_max <= accepted.entries_max);
    assert!(written.chunks_max <= accepted.chunks_max && written.blocks_max <= accepted.blocks_max);
    assert!(written.block_bytes_max <= accepted.block_bytes_max && written.depth_max <= accepted.depth_max);
}

/// The parts of an image without blocks, back to back.
struct Headless(crate::Built);

impl ReadAt for Headless {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let start = self.0.metadata_offset;
        if offset < start {
            return self.0.superblock.read_exact_at(offset, buf);
        }
        self.0.metadata.read_exact_at(offset - start, buf)
    }

    fn len(&self) -> std::io::Result<u64> {
        Ok(self.0.file_bytes)
    }
}

#[test]
fn chunks_are_renumbered_by_first_reference() {
    let (mut builder, file) = with_file(5 * 4096);
    // The packer's numbers run backwards; chunk 0 comes twice, and runs that happen to continue are
    // merged.
    for (chunk, chunks) in [(Some(1), 1), (Some(0), 1), (None, 1), (None, 1), (Some(0), 1)] {
        builder.add_extent(file, chunk.map(ChunkId), chunks).unwrap();
    }
    let built = builder.finish(&[BLOCK], &[chunk(0, 4096), chunk(4096, 4096)]).unwrap();
    let id = built.id;
    let metadata = Metadata::open(&Headless(built), &Limits::default()).unwrap();
    assert_eq!(metadata.id(), id);
    let runs: Vec<_> =
        metadata.extents(file).map(|run| (run.file_chunk, run.chunk.map(|chunk| chunk.0), run.chunks)).collect();
    assert_eq!(runs, [(0, Some(0), 2), (2, None, 2), (4, Some(1), 1)]);
    assert_eq!(metadata.chunk(ChunkId(0)).unwrap().offset, 4096);
    assert_eq!(metadata.chunk_hash(ChunkId(1)), Some([0; 16]));
    let in_block: Vec<_> = metadata.block_chunks(BlockId(0)).collect();
    assert_eq!(in_block, [ChunkId(1), ChunkId(0)]);
}

#[test]
fn equal_attributes_and_targets_are_kept_once() {
    let image = super::tree::plain().pack(&super::tree::everything()).unwrap();
    assert_eq!(open(&image).unwrap().tables.xattr_sets.len(), 1);
    let mut nodes = vec![crate::fixture::Node::dir(b"")];
    nodes.extend((0..50).map(|i| crate::fixture::Node::symlink(format!("applet-{i}").as_bytes(), b"busybox")));
    assert_eq!(open(&super::tree::plain().pack(&nodes).unwrap()).unwrap().tables.targets.len(), 7);
}

#[test]
fn optional_sections_are_written_in_order() {
    let mut builder = Builder::new(BuilderParams::default());
    builder.add_inode(record(Content::Dir)).unwrap();
    builder.add_optional_section(33, b"signature".to_vec()).unwrap();
    builder.add_optional_section(32, vec![7; 5000]).unwrap();
    refused(builder.add_optional_section(32, Vec::new()), "kind of its own");
    let image = Headless(builder.finish(&[], &[]).unwrap());
    let metadata = Metadata::open(&image, &Limits::default()).unwrap();
    assert_eq!(metadata.optional_section(&image, 32).unwrap().as_deref(), Some(&[7u8; 5000][..]));
    assert_eq!(metadata.optional_section(&image, 33).unwrap().as_deref(), Some(&b"signature"[..]));
}

#[test]
fn sections_of_numbers_that_grow_hold_differences() {
    let name = |file: u32| format!("file {}", file * 7919 % 1000).into_bytes();
    let file = |file: u32| Node::file(&name(file), &noise(file.into(), 4096 + file as usize));
    let nodes: Vec<Node> = std::iter::once(Node::dir(b"")).chain((1..300).map(file)).collect();
    let image = Fixture::default().pack(&nodes).unwrap();
    let metadata = open(&image).unwrap();
    for kind in [SECTION_INODES, SECTION_ENTRIES, SECTION_EXTENTS, SECTION_CHUNKS] {
        let section = metadata.superblock().section(kind).unwrap();
        assert_eq!(section.filter, FILTER_DIFFERENCES, "{}", section.name());
    }
    let chunks = metadata.superblock().section(SECTION_CHUNKS).unwrap();
    assert!(chunks.stored_bytes * 3 < chunks.raw_bytes, "{chunks:?}");
    compare_image(&image, &nodes);
    assert!(open(&image).unwrap().lookup(InodeId::ROOT, &name(299)).is_some());
}
