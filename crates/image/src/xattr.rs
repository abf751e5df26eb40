//! Extended attributes: sets shared between inodes.

use crate::Metadata;
use units::InodeId;

impl Metadata {
    /// Names and values of the extended attributes of an inode, sorted by name. Names carry their
    /// namespace (`security.capability`), values are any bytes.
    pub fn xattrs(&self, id: InodeId) -> impl Iterator<Item = (&[u8], &[u8])> {
        let set = self.raw_inode(id).and_then(|raw| raw.xattr_set.get().checked_sub(1));
        let sets = &self.tables.xattr_sets;
        let range = set.and_then(|set| {
            let end = sets.get(set + 1).map_or(self.tables.xattrs.len(), |next| next.get());
            Some(sets.get(set)?.get()..end)
        });
        range.unwrap_or(0..0).filter_map(|index| self.xattr_at(index))
    }

    /// The value of one extended attribute.
    pub fn xattr(&self, id: InodeId, name: &[u8]) -> Option<&[u8]> {
        self.xattrs(id).find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    fn xattr_at(&self, index: u32) -> Option<(&[u8], &[u8])> {
        let raw = self.tables.xattrs.get(index)?;
        let (name, value) = (raw.name.get() as usize, raw.value.get() as usize);
        let end =
            self.tables.xattrs.get(index + 1).map_or(self.tables.xattr_bytes.len(), |next| next.name.get() as usize);
        Some((self.tables.xattr_bytes.get(name..value)?, self.tables.xattr_bytes.get(value..end)?))
    }
}
