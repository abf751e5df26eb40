//! Renders the bytes of any range of the metadata on demand.

use image::{Inode, Kind, Metadata};
use units::InodeId;
use zerocopy::IntoBytes;

use crate::Volume;
use crate::directory::Listing;
use crate::format::{
    self, BLOB_DEVICE, BLOCK_BYTES, BLOCK_SHIFT, CHUNK_FORMAT_INDEXES, COMPAT_MTIME, ChunkIndex, DeviceSlot,
    FORMAT_EXTENDED, FORMAT_LAYOUT_SHIFT, INCOMPAT_CHUNKED_FILE, INCOMPAT_DEVICE_TABLE, INDEX_ALIGN, INODE_SLOT_BYTES,
    LAYOUT_CHUNKED, LAYOUT_INLINE, LAYOUT_PLAIN, MAGIC, NULL_ADDRESS, SUPER_OFFSET, SuperBlock, XATTR_HEADER_BYTES,
};
use crate::layout::{INODES_OFFSET, Outside};

/// Index entries made at a time.
const INDEXES_STEP: u64 = 512;

/// A part of the metadata that is being filled.
struct Window<'a> {
    offset: u64,
    out: &'a mut [u8],
}

impl Window<'_> {
    fn end(&self) -> u64 {
        self.offset + self.out.len() as u64
    }

    /// Copies what of `bytes`, which lie at `at`, falls into the window.
    fn put(&mut self, at: u64, bytes: &[u8]) {
        let (start, stop) = (at.max(self.offset), (at + bytes.len() as u64).min(self.end()));
        if start < stop {
            let target = (start - self.offset) as usize..(stop - self.offset) as usize;
            self.out[target].copy_from_slice(&bytes[(start - at) as usize..(stop - at) as usize]);
        }
    }
}

impl Volume {
    /// Fills `out` with the metadata at `offset`; what lies beyond the end is zero.
    pub fn read(&self, image: &Metadata, offset: u64, out: &mut [u8]) {
        out.fill(0);
        if out.is_empty() || offset >= self.metadata_bytes() {
            return;
        }
        let mut window = Window { offset, out };
        let block = BLOCK_BYTES as u64;
        let attributes = u64::from(self.attributes_block) * block;
        if offset < INODES_OFFSET {
            self.put_super(image, &mut window);
        }
        if offset < attributes && window.end() > INODES_OFFSET {
            self.put_inodes(image, &mut window);
        }
        window.put(attributes, &self.attributes.area);
        if window.end() > u64::from(self.outside_block) * block {
            self.put_outside(image, &mut window);
        }
    }

    fn put_super(&self, image: &Metadata, window: &mut Window<'_>) {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&image.id().0[..16]);
        let superblock = SuperBlock {
            magic: MAGIC.into(),
            checksum: 0.into(),
            feature_compat: COMPAT_MTIME.into(),
            blkszbits: BLOCK_SHIFT,
            sb_extslots: 0,
            root_nid: (self.nid(InodeId::ROOT) as u16).into(),
            inos: u64::from(image.inode_count()).into(),
            build_time: (self.time as u64).into(),
            build_time_nsec: 0.into(),
            blocks: self.blocks.into(),
            // Inode numbers count from the start of the file.
            meta_blkaddr: 0.into(),
            xattr_blkaddr: self.attributes_block.into(),
            uuid,
            volume_name: [0; 16],
            feature_incompat: (INCOMPAT_CHUNKED_FILE | INCOMPAT_DEVICE_TABLE).into(),
            compression: 0.into(),
            extra_devices: 1.into(),
            devt_slotoff: ((SUPER_OFFSET + size_of::<SuperBlock>()).div_ceil(size_of::<DeviceSlot>()) as u16).into(),
            reserved: [0; 38],
        };
        let device =
            DeviceSlot { tag: [0; 64], blocks: self.slots.count().into(), mapped_blkaddr: 0.into(), reserved: [0; 56] };
        window.put(SUPER_OFFSET as u64, superblock.as_bytes());
        window.put((SUPER_OFFSET + size_of::<SuperBlock>()) as u64, device.as_bytes());
    }

    fn put_inodes(&self, image: &Metadata, window: &mut Window<'_>) {
        let first = self.nids.partition_point(|nid| u64::from(*nid) * INODE_SLOT_BYTES <= window.offset);
        for index in first.saturating_sub(1)..self.nids.len() {
            let at = u64::from(self.nids[index]) * INODE_SLOT_BYTES;
            if at >= window.end() {
                break;
            }
            let id = InodeId(index as u32 + 1);
            if let Some(inode) = image.inode(id) {
                self.put_inode(image, &inode, at, window);
            }
        }
    }

    fn put_inode(&self, image: &Metadata, inode: &Inode, at: u64, window: &mut Window<'_>) {
        let id = inode.id();
        let references = self.attributes.of(id);
        let head_bytes = size_of::<format::Inode>() as u64 + self.attributes.bytes_of(id);
        if inode.kind() == Kind::File && at + head_bytes <= window.offset {
            // Deep inside a long index.
            return self.put_indexes(image, inode, at + head_bytes, window);
        }
        let outside = self.outside_of(id);
        let last = (inode.kind() == Kind::Dir).then_some(outside).flatten().map(|outside| self.last(image, outside));
        let shape = self.shape(inode, outside, last.as_ref().map(Vec::len));
        let first_block = outside.filter(|_| shape.blocks > 0).map(|outside| self.outside_block + outside.block);
        let (layout, union) = match inode.kind() {
            Kind::File if shape.pages > 0 => (LAYOUT_CHUNKED, CHUNK_FORMAT_INDEXES),
            Kind::Dir | Kind::Symlink if shape.inline > 0 => (LAYOUT_INLINE, first_block.unwrap_or(0)),
            Kind::Char | Kind::Block => (LAYOUT_PLAIN, inode.rdev()),
            _ => (LAYOUT_PLAIN, first_block.unwrap_or(0)),
        };
        let (seconds, nanoseconds) = inode.mtime();
        let units = if references.is_empty() { 0 } else { 1 + references.len() as u16 };
        let raw = format::Inode {
            format: (FORMAT_EXTENDED | layout << FORMAT_LAYOUT_SHIFT).into(),
            xattr_icount: units.into(),
            mode: (inode.mode() as u16).into(),
            reserved: 0.into(),
            size: shape.size.into(),
            union: union.into(),
            ino: id.0.into(),
            uid: inode.uid().into(),
            gid: inode.gid().into(),
            mtime: (seconds as u64).into(),
            mtime_nsec: nanoseconds.into(),
            nlink: inode.nlink().into(),
            reserved2: [0; 16],
        };
        let mut head = raw.as_bytes().to_vec();
        if !references.is_empty() {
            let mut header = [0; XATTR_HEADER_BYTES];
            header[4] = references.len() as u8;
            head.extend_from_slice(&header);
            references.iter().for_each(|reference| head.extend_from_slice(&reference.to_le_bytes()));
        }
        if shape.inline > 0 {
            match (last, image.symlink(id)) {
                (Some(last), _) => head.extend_from_slice(&last),
                (None, Some(target)) => head.extend_from_slice(target),
                (None, None) => {}
            }
        }
        window.put(at, &head);
        if shape.pages > 0 {
            self.put_indexes(image, inode, at + head_bytes, window);
        }
    }

    /// The last block of a directory.
    fn last(&self, image: &Metadata, outside: Outside) -> Vec<u8> {
        let start = self.directory_starts(outside).last().copied().unwrap_or(0);
        Listing::new(image, InodeId(outside.inode)).block(start, None, |id| self.nid(id))
    }

    /// The part of a file's index that falls into the window; the index starts at `at`, aligned.
    fn put_indexes(&self, image: &Metadata, inode: &Inode, at: u64, window: &mut Window<'_>) {
        let entry = size_of::<ChunkIndex>() as u64;
        let at = at.next_multiple_of(INDEX_ALIGN);
        let pages = u64::from(image.page_count(inode.id()));
        let mut first = window.offset.saturating_sub(at) / entry;
        let end = window.end().saturating_sub(at).div_ceil(entry).min(pages);
        while first < end {
            let count = (end - first).min(INDEXES_STEP);
            let mut bytes = Vec::with_capacity((count * entry) as usize);
            self.slots.of_file(image, inode.id(), first as u32, count as u32, |slot| {
                let (device_id, blkaddr) = slot.map_or((0, NULL_ADDRESS), |slot| (BLOB_DEVICE, slot));
                let index = ChunkIndex { advise: 0.into(), device_id: device_id.into(), blkaddr: blkaddr.into() };
                bytes.extend_from_slice(index.as_bytes());
            });
            window.put(at + first * entry, &bytes);
            first += count;
        }
    }

    fn put_outside(&self, image: &Metadata, window: &mut Window<'_>) {
        let block = BLOCK_BYTES as u64;
        let base = u64::from(self.outside_block);
        let low = (window.offset / block).saturating_sub(base);
        // Those without blocks of their own have the number of the next one that has some.
        let first = self.outside.partition_point(|outside| u64::from(outside.block) <= low).saturating_sub(1);
        for (index, outside) in self.outside.iter().enumerate().skip(first) {
            let start = base + u64::from(outside.block);
            if start * block >= window.end() {
                break;
            }
            let next = self.outside.get(index + 1).map_or(u64::from(self.blocks), |next| base + u64::from(next.block));
            let id = InodeId(outside.inode);
            if let Some(target) = image.symlink(id) {
                window.put(start * block, target);
                continue;
            }
            let starts = self.directory_starts(*outside);
            let skipped = (window.offset / block).max(start);
            let end = window.end().div_ceil(block).min(next);
            let listing = (skipped < end).then(|| Listing::new(image, id));
            for (number, listing) in (skipped..end).zip(listing.iter().cycle()) {
                let place = (number - start) as usize;
                let bytes = listing.block(starts[place], starts.get(place + 1).copied(), |id| self.nid(id));
                window.put(number * block, &bytes);
            }
        }
    }
}
