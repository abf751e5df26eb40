//! The layout of the metadata, computed once, from sizes alone.

use image::{Inode, Kind, Metadata};
use units::{ChunkId, InodeId, PAGE_BYTES};

use crate::ErofsError;
use crate::attributes::Attributes;
use crate::directory::Listing;
use crate::format;
use crate::format::{BLOCK_BYTES, INDEX_ALIGN, INODE_SLOT_BYTES};
use crate::slots::Slots;

/// A directory's last block or a link stands behind its inode up to this size. Larger ones would
/// leave gaps, since they may not cross a border of blocks.
const INLINE_BYTES_MAX: u64 = 2048;

/// Offset of the first inode: the superblock has a block of its own.
pub(crate) const INODES_OFFSET: u64 = BLOCK_BYTES as u64;

/// An EROFS file system whose data lie on the virtual blob. Everything is computed from the image's
/// metadata, which must be the same in all calls.
pub struct Volume {
    /// Number of each inode: its offset in units of 32 bytes, by image inode number from 1.
    pub(crate) nids: Vec<u32>,
    /// Ascending by inode.
    pub(crate) outside: Vec<Outside>,
    /// Positions at which the blocks of directories start.
    pub(crate) starts: Vec<u32>,
    pub(crate) attributes: Attributes,
    pub(crate) slots: Slots,
    /// First block of the shared attributes.
    pub(crate) attributes_block: u32,
    /// First block of directories and links that stand by themselves.
    pub(crate) outside_block: u32,
    /// Blocks of the metadata.
    pub(crate) blocks: u32,
    /// Largest modification time, the time at which the volume says it was made.
    pub(crate) time: i64,
}

/// A directory or long link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outside {
    pub(crate) inode: u32,
    /// Its first whole block, counted from the first of all such blocks.
    pub(crate) block: u32,
    /// For a directory: where its blocks are in the list of positions.
    pub(crate) start: u32,
}

/// How the data of an inode are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Blocks that stand by themselves.
    pub(crate) blocks: u64,
    /// Bytes behind the inode, inside one block.
    pub(crate) inline: u64,
    /// Entries of the index behind the inode.
    pub(crate) pages: u64,
    /// What `i_size` says.
    pub(crate) size: u64,
}

impl Shape {
    fn new(inode: &Inode, directory: Option<(usize, usize)>) -> Shape {
        let block = BLOCK_BYTES as u64;
        let size = match directory {
            Some((blocks, last)) => (blocks as u64 - 1) * block + last as u64,
            None => inode.size(),
        };
        match inode.kind() {
            Kind::File => Shape { blocks: 0, inline: 0, pages: size.div_ceil(PAGE_BYTES as u64), size },
            Kind::Dir | Kind::Symlink if size % block > INLINE_BYTES_MAX => {
                Shape { blocks: size.div_ceil(block), inline: 0, pages: 0, size }
            }
            Kind::Dir | Kind::Symlink => Shape { blocks: size / block, inline: size % block, pages: 0, size },
            _ => Shape { blocks: 0, inline: 0, pages: 0, size: 0 },
        }
    }
}

impl Volume {
    /// Decides the layout for an image. Takes time for each inode, name and extended attribute, and
    /// with chunks smaller than a page for each page.
    ///
    /// # Errors
    /// The image passes a limit of the format ([`ErofsError`]).
    pub fn build(image: &Metadata) -> Result<Volume, ErofsError> {
        let mut volume = Volume {
            nids: Vec::with_capacity(image.inode_count() as usize),
            outside: Vec::new(),
            starts: Vec::new(),
            attributes: Attributes::collect(image)?,
            slots: Slots::assign(image)?,
            attributes_block: 0,
            outside_block: 0,
            blocks: 0,
            time: 0,
        };
        let mut end = INODES_OFFSET;
        let mut outside_blocks = 0u64;
        for id in (1..=image.inode_count()).map(InodeId) {
            let Some(inode) = image.inode(id) else { break };
            let start = volume.starts.len();
            let listing = (inode.kind() == Kind::Dir)
                .then(|| Listing::new(image, id).divide(&mut volume.starts))
                .map(|last| (volume.starts.len() - start, last));
            let shape = Shape::new(&inode, listing);
            if listing.is_some() || shape.blocks > 0 {
                let block = u32::try_from(outside_blocks).unwrap_or(u32::MAX);
                volume.outside.push(Outside { inode: id.0, block, start: start as u32 });
            }
            outside_blocks += shape.blocks;
            end = volume.place(id, &shape, end)?;
            volume.time = volume.time.max(inode.mtime_sec());
        }
        volume.finish(end, outside_blocks)
    }

    /// Gives the next inode its number; returns where it ends.
    fn place(&mut self, id: InodeId, shape: &Shape, end: u64) -> Result<u64, ErofsError> {
        let block = BLOCK_BYTES as u64;
        let head = size_of::<format::Inode>() as u64 + self.attributes.bytes_of(id);
        let mut start = end.next_multiple_of(INODE_SLOT_BYTES);
        let room = block - (start + head) % block;
        if shape.inline > room {
            start = (start + room).next_multiple_of(INODE_SLOT_BYTES);
        }
        let number = start / INODE_SLOT_BYTES;
        self.nids.push(u32::try_from(number).map_err(|_| ErofsError::Limit {
            what: "the number of an inode",
            limit: u32::MAX.into(),
            found: number,
        })?);
        let head_end = start + head + shape.inline;
        Ok(match shape.pages {
            0 => head_end,
            pages => head_end.next_multiple_of(INDEX_ALIGN) + pages * size_of::<format::ChunkIndex>() as u64,
        })
    }

    fn finish(mut self, end: u64, outside_blocks: u64) -> Result<Volume, ErofsError> {
        let block = BLOCK_BYTES as u64;
        let attributes = end.div_ceil(block);
        let outside = attributes + (self.attributes.area.len() as u64).div_ceil(block);
        let blocks = outside + outside_blocks;
        let limit = u64::from(u32::MAX) - 1;
        if blocks > limit {
            return Err(ErofsError::Limit { what: "the number of metadata blocks", limit, found: blocks });
        }
        (self.attributes_block, self.outside_block) = (attributes as u32, outside as u32);
        self.blocks = blocks as u32;
        Ok(self)
    }

    /// Bytes of the metadata: a whole number of blocks of 4 KiB.
    pub fn metadata_bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES as u64
    }

    /// Bytes of the virtual blob: its slots, empty ones included, of 4 KiB each.
    pub fn blob_bytes(&self) -> u64 {
        u64::from(self.slots.count()) * PAGE_BYTES as u64
    }

    /// Calls `visit` with each chunk that lies in a slot of the blob and its offset in the slot;
    /// all else there is zero. `false` if no page has this slot: nothing refers to it.
    pub fn slot_chunks(&self, image: &Metadata, slot: u32, visit: impl FnMut(usize, ChunkId)) -> bool {
        self.slots.chunks(image, slot, visit)
    }

    /// Extended attributes that EROFS has no form for, so that the volume lacks them: names outside
    /// of `user.`, `trusted.`, `security.` and the access control lists, values of exactly 65,536
    /// bytes, and what an inode has beyond 255 attributes.
    pub fn attributes_left_out(&self) -> u64 {
        self.attributes.left_out
    }

    /// Bytes of memory this value holds.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Volume>()
            + size_of_val(&*self.nids)
            + size_of_val(&*self.outside)
            + size_of_val(&*self.starts)
            + self.attributes.memory_bytes()
            + self.slots.memory_bytes()
    }

    pub(crate) fn nid(&self, id: InodeId) -> u64 {
        self.nids[id.0 as usize - 1].into()
    }

    pub(crate) fn outside_of(&self, id: InodeId) -> Option<Outside> {
        let at = self.outside.binary_search_by_key(&id.0, |outside| outside.inode).ok()?;
        Some(self.outside[at])
    }

    /// Where the blocks of a directory start, by position in its listing.
    pub(crate) fn directory_starts(&self, outside: Outside) -> &[u32] {
        let all = &self.starts[outside.start as usize..];
        // Each directory's list begins with 0, and no other entry is 0.
        let next = all.iter().skip(1).position(|start| *start == 0).map_or(all.len(), |found| found + 1);
        &all[..next]
    }

    /// How the data of an inode are kept; `last` is the last block of a directory.
    pub(crate) fn shape(&self, inode: &Inode, outside: Option<Outside>, last: Option<usize>) -> Shape {
        let directory = outside.zip(last).map(|(outside, last)| (self.directory_starts(outside).len(), last));
        Shape::new(inode, directory)
    }
}
