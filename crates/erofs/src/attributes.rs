//! Extended attributes: each distinct one is stored once in an area of its own, inodes refer to
//! them by number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use image::Metadata;
use units::InodeId;
use zerocopy::IntoBytes;

use crate::ErofsError;
use crate::format::{XATTR_HEADER_BYTES, XATTR_PREFIXES, XATTR_VALUE_BYTES_MAX, XATTRS_SHARED_MAX, XattrEntry};

/// The shared area and who refers to what in it.
#[derive(Default)]
pub(crate) struct Attributes {
    /// The entries, each at a multiple of 4; a reference is the offset divided by 4.
    pub(crate) area: Vec<u8>,
    /// References of each distinct set.
    sets: Vec<Box<[u32]>>,
    /// Inode and set, ascending by inode.
    owners: Vec<(u32, u32)>,
    /// Attributes that EROFS cannot hold.
    pub(crate) left_out: u64,
}

type Pair<'a> = (&'a [u8], &'a [u8]);

impl Attributes {
    pub(crate) fn collect(image: &Metadata) -> Result<Attributes, ErofsError> {
        let mut made = Attributes::default();
        let mut known: HashMap<Pair<'_>, u32> = HashMap::new();
        let mut known_sets: HashMap<Box<[u32]>, u32> = HashMap::new();
        for id in (1..=image.inode_count()).map(InodeId) {
            if image.inode(id).is_none_or(|inode| !inode.has_xattrs()) {
                continue;
            }
            let mut set = Vec::new();
            for (name, value) in image.xattrs(id) {
                if set.len() == XATTRS_SHARED_MAX || value.len() > XATTR_VALUE_BYTES_MAX {
                    made.left_out += 1;
                    continue;
                }
                let Some((index, rest)) = split(name) else {
                    made.left_out += 1;
                    continue;
                };
                set.push(match known.entry((name, value)) {
                    Entry::Occupied(found) => *found.get(),
                    Entry::Vacant(place) => *place.insert(made.add(index, rest, value)?),
                });
            }
            if set.is_empty() {
                continue;
            }
            let next = made.sets.len() as u32;
            let number = *known_sets.entry(set.clone().into()).or_insert(next);
            if number == next {
                made.sets.push(set.into());
            }
            made.owners.push((id.0, number));
        }
        Ok(made)
    }

    fn add(&mut self, index: u8, rest: &[u8], value: &[u8]) -> Result<u32, ErofsError> {
        let at = (self.area.len() / 4) as u64;
        let reference = u32::try_from(at).map_err(|_| ErofsError::Limit {
            what: "the size of all extended attributes in 4 bytes",
            limit: u32::MAX.into(),
            found: at,
        })?;
        let entry =
            XattrEntry { name_len: rest.len() as u8, name_index: index, value_size: (value.len() as u16).into() };
        self.area.extend_from_slice(entry.as_bytes());
        self.area.extend_from_slice(rest);
        self.area.extend_from_slice(value);
        self.area.resize(self.area.len().next_multiple_of(4), 0);
        Ok(reference)
    }

    /// References of the attributes of an inode.
    pub(crate) fn of(&self, id: InodeId) -> &[u32] {
        match self.owners.binary_search_by_key(&id.0, |owner| owner.0) {
            Ok(at) => &self.sets[self.owners[at].1 as usize],
            Err(_) => &[],
        }
    }

    /// Bytes behind the inode that say which attributes it has.
    pub(crate) fn bytes_of(&self, id: InodeId) -> u64 {
        match self.of(id).len() {
            0 => 0,
            count => (XATTR_HEADER_BYTES + 4 * count) as u64,
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let sets: usize = self.sets.iter().map(|set| size_of_val(&**set) + size_of::<Box<[u32]>>()).sum();
        self.area.len() + sets + size_of_val(&*self.owners)
    }
}

/// The number of a name's prefix and what follows it; `None` if EROFS has no number for it.
fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    XATTR_PREFIXES.into_iter().find_map(|(index, prefix)| {
        let rest = name.strip_prefix(prefix)?;
        // A prefix that ends in a dot wants a name behind it, the others want none.
        (prefix.ends_with(b".") != rest.is_empty()).then_some((index, rest))
    })
}
