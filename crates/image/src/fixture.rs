//! A small in-memory packer for tests, here and in crates that need an image without a file system.
//!
//! It splits files into chunks, deduplicates them, fills blocks in a chosen (or shuffled) order and
//! compresses them with a cycle of codecs. Only what tests need: the real packer is the crate
//! `pack`.

use crate::{BlockRecord, Builder, BuilderParams, ChunkRecord, Codec, Content, Filter, ImageError, InodeRecord};
use std::collections::BTreeMap;
use units::{BlockId, ChunkId, InodeId, Rng, SplitMix64};

/// One name of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Path from the root, without a leading '/'; empty for the root itself.
    pub path: Vec<u8>,
    /// Lower twelve bits of the mode.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// What it is.
    pub body: Body,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Regular file: parts in order; all but the last are a whole number of chunks long.
    File(Vec<Part>),
    /// A hard link to the node of this path, which comes earlier. Attributes are those of the
    /// target.
    HardLink(Vec<u8>),
    /// Anything else.
    Other(Content),
}

/// Part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes.
    Data(Vec<u8>),
    /// Bytes of hole.
    Hole(u64),
}

impl Node {
    /// A node with plain attributes.
    pub fn new(path: &[u8], body: Body) -> Node {
        let permissions = if body == Body::Other(Content::Dir) { 0o755 } else { 0o644 };
        Node { path: path.to_vec(), permissions, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new(), body }
    }

    /// A directory.
    pub fn dir(path: &[u8]) -> Node {
        Node::new(path, Body::Other(Content::Dir))
    }

    /// A file.
    pub fn file(path: &[u8], bytes: &[u8]) -> Node {
        Node::new(path, Body::File(vec![Part::Data(bytes.to_vec())]))
    }

    /// A symbolic link.
    pub fn symlink(path: &[u8], target: &[u8]) -> Node {
        Node::new(path, Body::Other(Content::Symlink(target.to_vec())))
    }
}

/// How to pack.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// Parameters of the builder.
    pub params: BuilderParams,
    /// Raw bytes a block holds at most.
    pub block_bytes: usize,
    /// Codecs of the blocks, in turn.
    pub codecs: Vec<Codec>,
    /// Filters of the blocks, in turn.
    pub filters: Vec<Filter>,
    /// A dictionary for the blocks of codec zstd.
    pub dictionary: Option<Vec<u8>>,
    /// Blocks that are marked hot.
    pub hot_blocks: u32,
    /// Seed for placing chunks in random order; `None` keeps the order of first reference.
    pub shuffle: Option<u64>,
    /// An image with two contents: the hash of a chunk with these bytes is said to be that of the
    /// other ones.
    pub pretended: Option<(Vec<u8>, Vec<u8>)>,
    /// The profile that travels with the image.
    pub profile: Option<Vec<u8>>,
}

impl Default for Fixture {
    fn default() -> Fixture {
        let codecs = vec![Codec::Zstd];
        Fixture {
            params: BuilderParams::default(),
            block_bytes: 64 << 10,
            codecs,
            filters: vec![Filter::None],
            dictionary: None,
            hot_blocks: 0,
            shuffle: None,
            pretended: None,
            profile: None,
        }
    }
}

/// Chunks found so far.
#[derive(Default)]
struct Chunks {
    bytes: Vec<Vec<u8>>,
    /// Where each lies in the first file that has it.
    positions: Vec<u64>,
    known: BTreeMap<[u8; 32], ChunkId>,
}

impl Chunks {
    fn add(&mut self, bytes: &[u8], position: u64) -> ChunkId {
        let id = ChunkId(self.bytes.len() as u32);
        let found = *self.known.entry(*blake3::hash(bytes).as_bytes()).or_insert(id);
        if found == id {
            self.bytes.push(bytes.to_vec());
            self.positions.push(position);
        }
        found
    }
}

impl Fixture {
    /// Packs `nodes`, parents before what is in them, into the bytes of an image. A root with plain
    /// attributes is added if the first node is not the root.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn pack(&self, nodes: &[Node]) -> Result<Vec<u8>, ImageError> {
        let mut builder = Builder::new(self.params.clone());
        let mut chunks = Chunks::default();
        let mut inodes: BTreeMap<&[u8], InodeId> = BTreeMap::new();
        let root = Node::dir(b"");
        let implied = if nodes.first().is_some_and(|node| node.path.is_empty()) { None } else { Some(&root) };
        for node in implied.into_iter().chain(nodes) {
            let inode = match &node.body {
                Body::HardLink(target) => inodes.get(target.as_slice()).copied().ok_or_else(|| missing(target))?,
                _ => self.add_inode(&mut builder, &mut chunks, node)?,
            };
            if !node.path.is_empty() {
                let slash = node.path.iter().rposition(|&byte| byte == b'/');
                let (parent, name) = match slash {
                    Some(slash) => (&node.path[..slash], &node.path[slash + 1..]),
                    None => (&b""[..], node.path.as_slice()),
                };
                let parent = inodes.get(parent).copied().ok_or_else(|| missing(parent))?;
                builder.add_entry(parent, name, inode)?;
            }
            inodes.insert(&node.path, inode);
        }
        self.write(builder, &chunks)
    }

    fn add_inode(&self, builder: &mut Builder, chunks: &mut Chunks, node: &Node) -> Result<InodeId, ImageError> {
        let content = match &node.body {
            Body::File(parts) => Content::File { bytes: parts.iter().map(Part::len).sum() },
            Body::Other(content) => content.clone(),
            Body::HardLink(target) => return Err(missing(target)),
        };
        let id = builder.add_inode(InodeRecord {
            permissions: node.permissions,
            uid: node.uid,
            gid: node.gid,
            mtime_sec: node.mtime.0,
            mtime_ns: node.mtime.1,
            content,
            xattrs: node.xattrs.clone(),
        })?;
        let chunk_bytes = 1usize << self.params.chunk_shift;
        if let Body::File(parts) = &node.body {
            let mut position = 0;
            for part in parts {
                match part {
                    Part::Data(bytes) => {
                        for (index, chunk) in bytes.chunks(chunk_bytes).enumerate() {
                            let at = position + (index * chunk_bytes) as u64;
                            builder.add_extent(id, Some(chunks.add(chunk, at)), 1)?;
                        }
                    }
                    Part::Hole(bytes) => {
                        builder.add_extent(id, None, bytes.div_ceil(chunk_bytes as u64) as u32)?;
                    }
                }
                position += part.len();
            }
        }
        Ok(id)
    }

    /// Fills and compresses blocks, and puts the image together.
    fn write(&self, mut builder: Builder, chunks: &Chunks) -> Result<Vec<u8>, ImageError> {
        let mut order: Vec<usize> = (0..chunks.bytes.len()).collect();
        if let Some(seed) = self.shuffle {
            let mut rng = SplitMix64(seed);
            (1..order.len()).rev().for_each(|i| order.swap(i, rng.below(i as u64 + 1) as usize));
        }
        let mut raw_blocks: Vec<Vec<u8>> = Vec::new();
        let nowhere = ChunkRecord { block: BlockId(0), offset: 0, bytes: 0, hash: [0; 32] };
        let mut records = vec![nowhere; chunks.bytes.len()];
        for index in order {
            let bytes = &chunks.bytes[index];
            if raw_blocks.last().is_none_or(|block| block.len() + bytes.len() > self.block_bytes) {
                raw_blocks.push(Vec::new());
            }
            let block = raw_blocks.len() - 1;
            let offset = raw_blocks[block].len() as u32;
            raw_blocks[block].extend_from_slice(bytes);
            let filter = self.filters[block % self.filters.len()];
            codec::filter::encode(filter, chunks.positions[index], &mut raw_blocks[block][offset as usize..]);
            let pretended = self.pretended.as_ref().filter(|(real, _)| real == bytes).map(|(_, pretended)| pretended);
            let hash = *blake3::hash(pretended.unwrap_or(bytes)).as_bytes();
            records[index] = ChunkRecord { block: BlockId(block as u32), offset, bytes: bytes.len() as u32, hash };
        }
        let mut image = vec![0; crate::format::SUPERBLOCK_BYTES];
        let mut blocks = Vec::new();
        let failed = |e: codec::CodecError| ImageError::Unwritable { what: "the codec failed", detail: e.to_string() };
        let dictionary = self.dictionary.as_ref().map(|raw| codec::EncodeDictionary::new(3, raw)).transpose();
        let dictionary = dictionary.map_err(failed)?;
        for (index, (raw, codec)) in raw_blocks.iter().zip(self.codecs.iter().cycle()).enumerate() {
            let mut packed = Vec::new();
            let mut filter = self.filters[index % self.filters.len()];
            let expansion = (filter == Filter::Deflate).then(|| {
                let mut expansion = codec::deflate::Expansion::default();
                expansion.bytes(raw);
                expansion.to_bytes()
            });
            let helped = dictionary.as_ref().filter(|_| *codec == Codec::Zstd);
            codec::encode_with(*codec, codec.default_level(), helped, expansion.as_ref().unwrap_or(raw), &mut packed)
                .map_err(failed)?;
            let is_packed = packed.len() < raw.len();
            if filter == Filter::Deflate && (!is_packed || *codec == Codec::Stored) {
                filter = Filter::None;
            }
            let (codec, stored) = if is_packed { (*codec, &packed) } else { (Codec::Stored, raw) };
            blocks.push(BlockRecord {
                codec,
                filter,
                expansion_bytes: expansion.filter(|_| filter == Filter::Deflate).map_or(0, |bytes| bytes.len() as u32),
                dictionary: helped.filter(|_| is_packed).map(|_| 0),
                stored_bytes: stored.len() as u32,
                raw_bytes: raw.len() as u32,
                hash: *blake3::hash(stored).as_bytes(),
            });
            image.extend_from_slice(stored);
        }
        if let Some(profile) = &self.profile {
            builder.add_optional_section(crate::format::SECTION_PROFILE, profile.clone())?;
        }
        builder.set_hot_blocks(self.hot_blocks);
        builder.set_dictionaries(self.dictionary.iter().cloned().collect())?;
        let built = builder.finish(&blocks, &records)?;
        image.extend_from_slice(&built.metadata);
        image[..built.superblock.len()].copy_from_slice(&built.superblock);
        Ok(image)
    }
}

impl Part {
    fn len(&self) -> u64 {
        match self {
            Part::Data(bytes) => bytes.len() as u64,
            Part::Hole(bytes) => *bytes,
        }
    }
}

fn missing(path: &[u8]) -> ImageError {
    ImageError::Unwritable { what: "a node comes after its parent or target", detail: path.escape_ascii().to_string() }
}
