//! Makes the tables of the format from the builder's records.

use super::{BlockRecord, Builder, ChunkRecord, Content, InodeRecord, NewEntry, NewExtent, printable, unwritable};
use crate::{ImageError, format};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use units::{ChunkId, InodeId};
use zerocopy::little_endian::U32;

/// The raw tables, ready to be written.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) inodes: Vec<format::Inode>,
    pub(super) entries: Vec<format::Entry>,
    pub(super) names: Vec<u8>,
    pub(super) targets: Vec<u8>,
    pub(super) xattr_sets: Vec<U32>,
    pub(super) xattrs: Vec<format::Xattr>,
    pub(super) xattr_bytes: Vec<u8>,
    pub(super) extents: Vec<format::Extent>,
    pub(super) chunks: Vec<format::Chunk>,
    pub(super) chunk_hashes: Vec<format::ChunkHash>,
    pub(super) blocks: Vec<format::Block>,
    pub(super) block_hashes: Vec<[u8; 32]>,
    pub(super) block_bytes: u32,
    pub(super) metadata_offset: u64,
}

/// Numbers of the sets of extended attributes placed so far.
type XattrSets<'a> = BTreeMap<&'a [(Vec<u8>, Vec<u8>)], u32>;

/// Offset at the end of a pool. Pools beyond 32 bits are refused.
fn end_of(pool: &[u8]) -> Result<u32, ImageError> {
    let (limit, found) = (u32::MAX.into(), pool.len() as u64);
    u32::try_from(pool.len()).map_err(|_| ImageError::Limit { what: "the size of a section", limit, found })
}

impl Layout {
    pub(super) fn new(
        builder: &mut Builder,
        blocks: &[BlockRecord],
        chunks: &[ChunkRecord],
    ) -> Result<Layout, ImageError> {
        if builder.inodes.is_empty() {
            return Err(unwritable("an image has a root directory", "no inode was added"));
        }
        let mut layout = Layout::default();
        layout.place_blocks(blocks);
        let links = Links::new(builder)?;
        // Stable, so the runs of one file stay in the order they came.
        builder.extents.sort_by_key(|extent| extent.file);
        let mut numbers = Numbers::new(chunks.len());
        let (mut entries, mut extents) = (builder.entries.as_slice(), builder.extents.as_slice());
        let (mut sets, mut targets) = (BTreeMap::new(), BTreeMap::new());
        for (index, record) in builder.inodes.iter().enumerate() {
            let id = InodeId(index as u32 + 1);
            let mut inode = layout.inode(record, &mut sets, &mut targets)?;
            inode.entry.set(links.first[index]);
            inode.nlink.set(links.count[index]);
            let of_dir = entries.partition_point(|entry| entry.dir <= id);
            layout.place_entries(&entries[..of_dir])?;
            entries = &entries[of_dir..];
            let of_file = extents.partition_point(|extent| extent.file <= id);
            if let Content::File { bytes } = record.content {
                let file_chunks = bytes.div_ceil(1 << builder.params.chunk_shift);
                layout.place_extents(id, &extents[..of_file], file_chunks, &mut numbers)?;
            }
            extents = &extents[of_file..];
            layout.inodes.push(inode);
        }
        layout.place_chunks(&numbers, chunks)?;
        Ok(layout)
    }

    fn place_blocks(&mut self, blocks: &[BlockRecord]) {
        let (mut file_end, mut raw_end) = (format::SUPERBLOCK_BYTES as u64, 0u64);
        for block in blocks {
            self.blocks.push(format::Block {
                file_offset: file_end.into(),
                raw_start: raw_end.into(),
                stored_bytes: block.stored_bytes.into(),
                raw_bytes: block.raw_bytes.into(),
                codec: block.codec.to_u8(),
                filter: block.filter.to_u8(),
                dictionary: block.dictionary.map_or(0, |index| index + 1),
                reserved: 0,
                expansion_bytes: block.expansion_bytes.into(),
            });
            self.block_hashes.push(block.hash);
            file_end += u64::from(block.stored_bytes);
            raw_end += u64::from(block.raw_bytes);
            self.block_bytes = self.block_bytes.max(block.raw_bytes);
        }
        self.metadata_offset = file_end;
    }

    fn inode<'a>(
        &mut self,
        record: &'a InodeRecord,
        sets: &mut XattrSets<'a>,
        targets: &mut BTreeMap<&'a [u8], u32>,
    ) -> Result<format::Inode, ImageError> {
        let (size, payload) = match &record.content {
            Content::File { bytes } => (*bytes, 0),
            Content::Symlink(target) => {
                // Links of equal target share it: version links of libraries mostly differ, but
                // /bin/busybox does not.
                let offset = match targets.entry(target.as_slice()) {
                    MapEntry::Occupied(known) => *known.get(),
                    MapEntry::Vacant(new) => {
                        let offset = end_of(&self.targets)?;
                        self.targets.extend_from_slice(target);
                        *new.insert(offset)
                    }
                };
                (target.len() as u64, offset)
            }
            Content::Char(number) | Content::Block(number) => (0, *number),
            Content::Dir | Content::Fifo | Content::Socket => (0, 0),
        };
        Ok(format::Inode {
            mode: (record.content.kind().mode_bits() | record.permissions).into(),
            reserved: 0.into(),
            uid: record.uid.into(),
            gid: record.gid.into(),
            nlink: 0.into(),
            size: size.into(),
            mtime_sec: record.mtime_sec.into(),
            mtime_ns: record.mtime_ns.into(),
            xattr_set: self.xattr_set(&record.xattrs, sets)?.into(),
            extent_first: (self.extents.len() as u32).into(),
            entry_first: (self.entries.len() as u32).into(),
            entry: format::NO_ENTRY.into(),
            payload: payload.into(),
        })
    }

    /// The number of the set with exactly these attributes, placing it if it is new; 0 for none.
    fn xattr_set<'a>(&mut self, xattrs: &'a [(Vec<u8>, Vec<u8>)], sets: &mut XattrSets<'a>) -> Result<u32, ImageError> {
        if xattrs.is_empty() {
            return Ok(0);
        }
        let MapEntry::Vacant(new) = sets.entry(xattrs) else { return Ok(sets[xattrs]) };
        self.xattr_sets.push((self.xattrs.len() as u32).into());
        for (name, value) in xattrs {
            let start = end_of(&self.xattr_bytes)?;
            self.xattr_bytes.extend_from_slice(name);
            let middle = end_of(&self.xattr_bytes)?;
            self.xattr_bytes.extend_from_slice(value);
            self.xattrs.push(format::Xattr { name: start.into(), value: middle.into() });
        }
        Ok(*new.insert(self.xattr_sets.len() as u32))
    }

    fn place_entries(&mut self, entries: &[NewEntry]) -> Result<(), ImageError> {
        for entry in entries {
            let name = end_of(&self.names)?;
            self.names.extend_from_slice(&entry.name);
            self.entries.push(format::Entry { name: name.into(), inode: entry.inode.0.into() });
        }
        Ok(())
    }

    /// Places the extents of one file: renumbers their chunks, splits and merges runs accordingly.
    fn place_extents(
        &mut self,
        id: InodeId,
        extents: &[NewExtent],
        file_chunks: u64,
        numbers: &mut Numbers,
    ) -> Result<(), ImageError> {
        let placed = extents.iter().map(|extent| u64::from(extent.chunks)).sum::<u64>();
        if placed != file_chunks {
            let detail = format!("inode {id} has {placed} chunks, its size needs {file_chunks}");
            return Err(unwritable("the extents of a file add up to its size", detail));
        }
        // The run being built: its start in the file and the chunk that would continue it.
        let mut next: Option<u32> = None;
        let mut at = 0u32;
        for extent in extents {
            let Some(chunk) = extent.chunk else {
                if at == 0 || next != Some(format::HOLE) {
                    self.push_extent(at, format::HOLE);
                }
                next = Some(format::HOLE);
                at += extent.chunks;
                continue;
            };
            for i in 0..extent.chunks {
                let old = chunk.0.checked_add(i).map(ChunkId);
                let new = old.and_then(|old| numbers.number(old)).ok_or_else(|| {
                    unwritable("extents name chunks that exist", format_args!("inode {id}, chunk {chunk} + {i}"))
                })?;
                if next != Some(new) {
                    self.push_extent(at, new);
                }
                next = Some(new + 1);
                at += 1;
            }
        }
        Ok(())
    }

    fn push_extent(&mut self, file_chunk: u32, chunk_first: u32) {
        self.extents.push(format::Extent { file_chunk: file_chunk.into(), chunk_first: chunk_first.into() });
    }

    fn place_chunks(&mut self, numbers: &Numbers, chunks: &[ChunkRecord]) -> Result<(), ImageError> {
        if numbers.order.len() != chunks.len() {
            let unused = numbers.new_of.iter().position(|&new| new == UNUSED).unwrap_or(0);
            return Err(unwritable("every chunk is used by a file", format_args!("chunk {unused} is not")));
        }
        for &old in &numbers.order {
            let chunk = &chunks[old as usize];
            let Some(block) = self.blocks.get(chunk.block.0 as usize) else {
                return Err(unwritable("a chunk lies in a block that exists", format_args!("block {}", chunk.block)));
            };
            let end = u64::from(chunk.offset) + u64::from(chunk.bytes);
            if end > block.raw_bytes.get().into() || chunk.bytes == 0 || chunk.bytes > 1 << 15 {
                let detail =
                    format!("chunk {old} at {} with {} bytes, block {}", chunk.offset, chunk.bytes, chunk.block);
                return Err(unwritable("a chunk lies inside its block", detail));
            }
            let position = block.raw_start.get() + u64::from(chunk.offset);
            let length = u64::from(chunk.bytes) << format::CHUNK_LENGTH_SHIFT;
            self.chunks.push(format::Chunk { place: (position | length).into() });
            let mut short = [0; format::CHUNK_HASH_BYTES];
            short.copy_from_slice(&chunk.hash[..format::CHUNK_HASH_BYTES]);
            self.chunk_hashes.push(format::ChunkHash(short));
        }
        Ok(())
    }
}

/// Directory entries in their final order, and what follows from it for inodes.
struct Links {
    /// For each inode the index of the first entry that names it.
    first: Vec<u32>,
    /// For each inode its link count.
    count: Vec<u32>,
}

impl Links {
    /// Sorts the entries of `builder` and checks that they make a tree.
    fn new(builder: &mut Builder) -> Result<Links, ImageError> {
        builder.entries.sort_by(|a, b| (a.dir, &a.name).cmp(&(b.dir, &b.name)));
        let entries = &builder.entries;
        if let Some(two) = entries.windows(2).find(|two| two[0].dir == two[1].dir && two[0].name == two[1].name) {
            let detail = format!("{} in inode {}", printable(&two[0].name), two[0].dir);
            return Err(unwritable("the names of a directory are distinct", detail));
        }
        let is_dir = |id: InodeId| builder.inodes[id.0 as usize - 1].content == Content::Dir;
        let count = builder.inodes.len();
        let mut links = Links { first: vec![format::NO_ENTRY; count], count: vec![0; count] };
        for id in (1..=count as u32).map(InodeId).filter(|&id| is_dir(id)) {
            links.count[id.0 as usize - 1] = 2;
        }
        for (index, entry) in (0u32..).zip(entries) {
            let child = entry.inode.0 as usize - 1;
            let is_first = links.first[child] == format::NO_ENTRY;
            if is_first {
                links.first[child] = index;
            }
            if !is_dir(entry.inode) {
                links.count[child] += 1;
                continue;
            }
            if !is_first {
                let detail = format!("{} is inode {}", printable(&entry.name), entry.inode);
                return Err(unwritable("a directory has one name", detail));
            }
            links.count[entry.dir.0 as usize - 1] += 1;
        }
        if let Some(index) = (1..count).find(|&index| links.first[index] == format::NO_ENTRY) {
            return Err(unwritable("every inode has a name", format_args!("inode {} has none", index + 1)));
        }
        Ok(links)
    }
}

/// Marks a chunk no extent has named yet.
const UNUSED: u32 = u32::MAX;

/// The new numbers of chunks: order of first reference.
struct Numbers {
    /// New number by old number.
    new_of: Vec<u32>,
    /// Old number by new number.
    order: Vec<u32>,
}

impl Numbers {
    fn new(count: usize) -> Numbers {
        Numbers { new_of: vec![UNUSED; count], order: Vec::with_capacity(count) }
    }

    /// The new number of a chunk; `None` if there is no such chunk.
    fn number(&mut self, old: ChunkId) -> Option<u32> {
        let new = self.new_of.get_mut(old.0 as usize)?;
        if *new == UNUSED {
            *new = self.order.len() as u32;
            self.order.push(old.0);
        }
        Some(*new)
    }
}
