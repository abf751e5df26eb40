//! Directories: looking up a name, listing, and the parent.

use crate::{Kind, Metadata, format};
use units::InodeId;

/// One name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name: any bytes but '/' and NUL.
    pub name: &'a [u8],
    /// The inode it names.
    pub inode: InodeId,
    /// What that inode is.
    pub kind: Kind,
}

impl Metadata {
    /// The inode called `name` in `dir`: a binary search over the names, which are sorted by their
    /// bytes.
    pub fn lookup(&self, dir: InodeId, name: &[u8]) -> Option<InodeId> {
        let range = self.entry_range(dir);
        let (mut low, mut high) = (range.start, range.end);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry_name(middle)?.cmp(name) {
                std::cmp::Ordering::Equal => return Some(InodeId(self.tables.entries.get(middle)?.inode.get())),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// The entries of `dir` in the order of their names; none if `dir` is no directory.
    pub fn entries(&self, dir: InodeId) -> impl ExactSizeIterator<Item = Entry<'_>> + DoubleEndedIterator {
        let range = self.entry_range(dir);
        // The validated tables have every entry of the range; the fallback is unreachable and
        // harmless.
        let nothing = Entry { name: b"", inode: InodeId::ROOT, kind: Kind::Dir };
        (range.start as usize..range.end as usize).map(move |i| self.entry_at(i as u32).unwrap_or(nothing))
    }

    /// Number of entries of `dir`.
    pub fn entry_count(&self, dir: InodeId) -> u32 {
        self.entry_range(dir).len() as u32
    }

    /// The entry at `position` (from 0) of `dir`: positions are stable, so they serve as directory
    /// offsets.
    pub fn entry(&self, dir: InodeId, position: u32) -> Option<Entry<'_>> {
        let range = self.entry_range(dir);
        let index = range.start.checked_add(position)?;
        if index < range.end { self.entry_at(index) } else { None }
    }

    /// The directory that holds `dir`; the root is its own parent. `None` if `dir` is no directory.
    pub fn parent(&self, dir: InodeId) -> Option<InodeId> {
        if !self.is_kind(dir, Kind::Dir) {
            return None;
        }
        self.first_link(dir).map_or(Some(InodeId::ROOT), |(parent, _)| Some(parent))
    }

    /// The directory and the name of the first entry that names `id`; `None` for the root and for
    /// no inode.
    pub fn first_link(&self, id: InodeId) -> Option<(InodeId, &[u8])> {
        let index = self.raw_inode(id)?.entry.get();
        if index == format::NO_ENTRY {
            return None;
        }
        Some((self.entry_owner(index)?, self.entry_name(index)?))
    }

    /// The directory an entry belongs to: the last inode whose run starts at or before it.
    fn entry_owner(&self, index: u32) -> Option<InodeId> {
        let inodes = &self.tables.inodes;
        let after = inodes.partition_point(0..inodes.len(), |raw| raw.entry_first.get() <= index);
        if after == 0 { None } else { Some(InodeId(after)) }
    }

    fn entry_at(&self, index: u32) -> Option<Entry<'_>> {
        let inode = InodeId(self.tables.entries.get(index)?.inode.get());
        let kind = Kind::from_mode(self.raw_inode(inode)?.mode.get())?;
        Some(Entry { name: self.entry_name(index)?, inode, kind })
    }

    fn entry_name(&self, index: u32) -> Option<&[u8]> {
        let start = self.tables.entries.get(index)?.name.get() as usize;
        let next = index.checked_add(1).and_then(|next| self.tables.entries.get(next));
        let end = next.map_or(self.tables.names.len(), |next| next.name.get() as usize);
        self.tables.names.get(start..end)
    }
}
