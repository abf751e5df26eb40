//! POSIX access control lists: permissions of users and groups on a file, beside its owner, its
//! group and all others.
//!
//! As bytes they have the form of Linux in `system.posix_acl_access` (permissions of the file) and
//! `system.posix_acl_default` (permissions of files that are made in the directory): a version
//! (u32: 2), then for each entry a tag (u16), permissions (u16: at most 7) and the number of a user
//! or group (u32; all ones where the tag names none), little-endian.

/// Entries at most: FUSE asks for no more than a page of bytes.
pub const ACL_ENTRIES_MAX: usize = 511;

const VERSION: u32 = 2;

/// In the place of a number that an entry does not have.
const NOBODY: u32 = u32::MAX;

/// The subject of an entry, in the order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    /// The permissions that users and groups other than the owner have at most.
    Mask = 0x10,
    Others = 0x20,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    /// Read, write and execute: 4, 2, 1.
    permissions: u16,
    id: u32,
}

/// A valid list: one owner, owning group and others, and a mask if it names anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Reads what [`Acl::to_bytes`] writes; `None` for what Linux would not take.
    pub fn parse(bytes: &[u8]) -> Option<Acl> {
        let (version, rest) = bytes.split_first_chunk::<4>()?;
        let (chunks, left) = rest.as_chunks::<8>();
        if u32::from_le_bytes(*version) != VERSION || !left.is_empty() || chunks.len() > ACL_ENTRIES_MAX {
            return None;
        }
        let entries = chunks.iter().map(Entry::parse).collect::<Option<Vec<_>>>()?;
        let count = |tag: Tag| entries.iter().filter(|entry| entry.tag == tag).count();
        let names_somebody = count(Tag::User) + count(Tag::Group) > 0;
        let ordered = entries.is_sorted_by_key(|entry| entry.tag);
        let single = [Tag::Owner, Tag::OwningGroup, Tag::Others].into_iter().all(|tag| count(tag) == 1);
        let masked = count(Tag::Mask) == 1 || count(Tag::Mask) == 0 && !names_somebody;
        (ordered && single && masked).then_some(Acl { entries })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for Entry { tag, permissions, id } in &self.entries {
            out.extend((*tag as u16).to_le_bytes());
            out.extend(permissions.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    }

    /// The permission bits of a file that has this list, 0777 at most: those of the group are the
    /// mask, if there is one.
    pub fn mode(&self) -> u16 {
        let of = |tag: Tag| self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions);
        let group = of(Tag::Mask).or(of(Tag::OwningGroup));
        of(Tag::Owner).unwrap_or(0) << 6 | group.unwrap_or(0) << 3 | of(Tag::Others).unwrap_or(0)
    }

    /// Whether it says no more than permission bits do.
    pub fn is_mode(&self) -> bool {
        !self.entries.iter().any(|entry| matches!(entry.tag, Tag::User | Tag::Group | Tag::Mask))
    }

    /// The list after chmod: the bits of the group set the mask, if there is one.
    #[must_use]
    pub fn with_mode(mut self, mode: u16) -> Acl {
        let has_mask = self.entries.iter().any(|entry| entry.tag == Tag::Mask);
        for entry in &mut self.entries {
            match entry.tag {
                Tag::Owner => entry.permissions = mode >> 6 & 7,
                Tag::Mask => entry.permissions = mode >> 3 & 7,
                Tag::OwningGroup if !has_mask => entry.permissions = mode >> 3 & 7,
                Tag::Others => entry.permissions = mode & 7,
                _ => {}
            }
        }
        self
    }

    /// What is made with permission bits in a folder that has this default list: its list, which
    /// allows nothing that the bits do not, and its bits.
    pub fn inherited(&self, mode: u16) -> (Acl, u16) {
        let granted = self.mode() & mode;
        (self.clone().with_mode(granted), mode & !0o777 | granted)
    }
}

impl Entry {
    fn parse(bytes: &[u8; 8]) -> Option<Entry> {
        let [tag, permissions] = [0, 2].map(|at| u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let tags = [Tag::Owner, Tag::User, Tag::OwningGroup, Tag::Group, Tag::Mask, Tag::Others];
        let tag = tags.into_iter().find(|known| *known as u16 == tag)?;
        let named = matches!(tag, Tag::User | Tag::Group);
        if permissions > 7 || (named && id == NOBODY) {
            return None;
        }
        Some(Entry { tag, permissions, id: if named { id } else { NOBODY } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, SplitMix64};

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            out.extend(tag.to_le_bytes());
            out.extend(permissions.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    }

    /// As `u::rwx,u:7:rw-,g::r-x,m::rwx,o::r--`.
    const FULL: [(u16, u16, u32); 5] =
        [(1, 7, NOBODY), (2, 6, 7), (4, 5, NOBODY), (0x10, 7, NOBODY), (0x20, 4, NOBODY)];

    #[test]
    fn lists_come_back_and_show_their_mask() {
        let acl = Acl::parse(&list(&FULL)).unwrap();
        assert_eq!(acl.to_bytes(), list(&FULL));
        assert_eq!((acl.mode(), acl.is_mode()), (0o774, false));
        assert_eq!(acl.clone().with_mode(0o640).mode(), 0o640);
        let plain = Acl::parse(&list(&[(1, 6, NOBODY), (4, 4, 9), (0x20, 0, NOBODY)])).unwrap();
        assert_eq!((plain.mode(), plain.is_mode(), plain.with_mode(0o777).mode()), (0o640, true, 0o777));
    }

    /// The mask goes with the bits, and the owning group stays below it.
    #[test]
    fn what_is_made_has_no_more_than_its_bits() {
        let default = Acl::parse(&list(&FULL)).unwrap();
        let (acl, mode) = default.inherited(0o100_660);
        assert_eq!((mode, acl.mode()), (0o100_660, 0o660));
        let expected = [(1, 6, NOBODY), (2, 6, 7), (4, 5, NOBODY), (0x10, 6, NOBODY), (0x20, 0, NOBODY)];
        assert_eq!(acl.to_bytes(), list(&expected));
        assert_eq!(default.inherited(0o2777).1, 0o2774);
    }

    #[test]
    fn what_makes_no_sense_is_none() {
        let without = |at: usize| list(&[&FULL[..at], &FULL[at + 1..]].concat());
        for at in [0, 2, 3, 4] {
            assert_eq!(Acl::parse(&without(at)), None, "{at}");
        }
        assert!(Acl::parse(&without(1)).is_some());
        let mut bytes = list(&FULL);
        bytes[0] = 1;
        assert_eq!(Acl::parse(&bytes), None, "another version");
        for (at, wrong) in [(4, 3), (6, 8), (5, 1)] {
            let mut bytes = list(&FULL);
            bytes[at] = wrong;
            assert_eq!(Acl::parse(&bytes), None, "{at}");
        }
        assert_eq!(Acl::parse(&list(&[FULL[1], FULL[0], FULL[2], FULL[3], FULL[4]])), None, "out of order");
        assert_eq!(Acl::parse(&list(&[FULL[0], FULL[0], FULL[2], FULL[3], FULL[4]])), None, "two owners");
        assert_eq!(Acl::parse(&list(&[FULL[0], (2, 6, NOBODY), FULL[2], FULL[3], FULL[4]])), None, "of nobody");
        let mut long = vec![FULL[0]];
        long.extend((0..ACL_ENTRIES_MAX as u32 - 3).map(|id| (2, 6, id)));
        long.extend(&FULL[2..]);
        assert_eq!(Acl::parse(&list(&long)), None, "too long");
        long.remove(1);
        assert!(Acl::parse(&list(&long)).is_some());
    }

    #[test]
    fn prop_garbage_is_none_or_comes_back() {
        let mut rng = SplitMix64(3);
        for _ in 0..20_000 {
            let mut bytes = list(&FULL);
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            if rng.below(3) == 0 {
                bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            }
            if let Some(acl) = Acl::parse(&bytes) {
                assert_eq!(Acl::parse(&acl.to_bytes()), Some(acl.clone()));
                let mode = rng.below(0o10000) as u16;
                assert_eq!(acl.clone().with_mode(mode).mode(), mode & 0o777);
                let (made, granted) = acl.inherited(mode);
                assert_eq!((granted & 0o777, granted & !mode), (made.mode(), 0));
            }
        }
    }
}
