//! Entries of a directory listing, as the kernel reads them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use zerocopy::IntoBytes;

use crate::abi::{Dirent, EntryOut};
use crate::{FileType, INodeNo};

/// Most bytes that a listing may take, whatever the kernel asks for.
const BYTES_MAX: usize = 1 << 20;

/// One entry.
pub(crate) struct Entry<'a> {
    pub inode: INodeNo,
    /// Where the listing goes on behind it.
    pub next: u64,
    pub kind: FileType,
    pub name: &'a OsStr,
}

/// Entries, as many as the kernel has room for.
#[derive(Debug)]
pub(crate) struct Entries {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Entries {
    pub fn new(bytes_max: u32) -> Entries {
        Entries { bytes: Vec::new(), bytes_max: (bytes_max as usize).min(BYTES_MAX) }
    }

    /// Adds an entry, with what a look-up would answer if `found` is given. `true` if there is no
    /// room for it.
    pub fn add(&mut self, entry: &Entry<'_>, found: Option<&EntryOut>) -> bool {
        let name = entry.name.as_bytes();
        let Ok(name_bytes) = u32::try_from(name.len()) else { return true };
        let found = found.map_or(&[][..], IntoBytes::as_bytes);
        let bytes = (found.len() + size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + bytes > self.bytes_max {
            return true;
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(self.bytes_max);
        }
        let end = self.bytes.len() + bytes;
        let header = Dirent { ino: entry.inode.0, next: entry.next, name_bytes, kind: entry.kind.entry() };
        self.bytes.extend_from_slice(found);
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        false
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_filled_up_and_bounded() {
        let mut entries = Entries::new(72);
        let entry =
            |name: &'static str| Entry { inode: INodeNo(5), next: 1, kind: FileType::Directory, name: name.as_ref() };
        assert!(!entries.add(&entry("a"), None));
        assert_eq!(entries.as_bytes().len(), 32);
        assert_eq!(entries.as_bytes()[24..], *b"a\0\0\0\0\0\0\0");
        assert_eq!((entries.as_bytes()[0], entries.as_bytes()[8]), (5, 1));
        assert_eq!((entries.as_bytes()[16], entries.as_bytes()[20]), (1, 4));
        assert!(entries.add(&entry("too long for it."), None) || entries.as_bytes().len() == 72);
        assert!(entries.add(&entry("b"), None), "there is no room for it");
        assert_eq!(entries.as_bytes().len(), 72);
    }
}
