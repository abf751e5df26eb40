//! Directories: how the names of one are divided into blocks, and the bytes of a block.
//!
//! A block holds an array of [`Dirent`], then the names in the same order. Names ascend by their
//! bytes over all blocks, `.` and `..` among them, and the kernel seeks by bisection, first over
//! blocks.

use image::{Entry, Kind, Metadata};
use units::InodeId;
use zerocopy::IntoBytes;

use crate::format::{BLOCK_BYTES, Dirent, file_type};

/// The names of a directory with `.` and `..` where they belong.
pub(crate) struct Listing<'a> {
    image: &'a Metadata,
    directory: InodeId,
    parent: InodeId,
    /// Position of `.`
    dot: u32,
    /// Position of `..`
    dots: u32,
    count: u32,
}

impl<'a> Listing<'a> {
    pub(crate) fn new(image: &'a Metadata, directory: InodeId) -> Listing<'a> {
        let before = |name: &[u8]| {
            let (mut low, mut high) = (0, image.entry_count(directory));
            while low < high {
                let middle = low + (high - low) / 2;
                match image.entry(directory, middle) {
                    Some(entry) if entry.name < name => low = middle + 1,
                    _ => high = middle,
                }
            }
            low
        };
        Listing {
            image,
            directory,
            parent: image.parent(directory).unwrap_or(InodeId::ROOT),
            dot: before(b"."),
            dots: before(b"..") + 1,
            count: image.entry_count(directory) + 2,
        }
    }

    fn at(&self, position: u32) -> Option<Entry<'a>> {
        if position == self.dot {
            return Some(Entry { name: b".", inode: self.directory, kind: Kind::Dir });
        }
        if position == self.dots {
            return Some(Entry { name: b"..", inode: self.parent, kind: Kind::Dir });
        }
        let dots_before = u32::from(position > self.dot) + u32::from(position > self.dots);
        self.image.entry(self.directory, position - dots_before)
    }

    /// Appends the position at which each block starts to `starts`; returns the bytes used in the
    /// last one.
    pub(crate) fn divide(&self, starts: &mut Vec<u32>) -> usize {
        starts.push(0);
        let mut used = 0;
        for position in 0..self.count {
            let bytes = self.at(position).map_or(0, |entry| size_of::<Dirent>() + entry.name.len());
            if used + bytes > BLOCK_BYTES {
                starts.push(position);
                used = 0;
            }
            used += bytes;
        }
        used
    }

    /// The bytes of the block that starts at position `start`, of which the next starts at `end`;
    /// without padding. `nid` gives the inode number that EROFS knows an inode by.
    pub(crate) fn block(&self, start: u32, end: Option<u32>, nid: impl Fn(InodeId) -> u64) -> Vec<u8> {
        let end = end.unwrap_or(self.count);
        let entries: Vec<Entry<'_>> = (start..end).filter_map(|position| self.at(position)).collect();
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        let mut name_at = entries.len() * size_of::<Dirent>();
        for entry in &entries {
            let nameoff = (name_at as u16).into();
            let file_type = file_type(entry.kind);
            bytes
                .extend_from_slice(Dirent { nid: nid(entry.inode).into(), nameoff, file_type, reserved: 0 }.as_bytes());
            name_at += entry.name.len();
        }
        for entry in &entries {
            bytes.extend_from_slice(entry.name);
        }
        bytes
    }
}
