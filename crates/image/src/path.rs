//! Paths: from an inode to its first path, and from a path to its inode.

use crate::limits::SYMLINKS_FOLLOWED_MAX;
use crate::{Kind, Metadata};
use units::InodeId;

impl Metadata {
    /// The first path of an inode, absolute, such as `/usr/bin/python3`: the one whose directory
    /// has the lowest number, then whose name sorts first. `None` if there is no such inode.
    pub fn path(&self, id: InodeId) -> Option<Vec<u8>> {
        self.raw_inode(id)?;
        let mut names = Vec::new();
        let mut at = id;
        // Ends: a parent always has a lower number than its subdirectory.
        while let Some((parent, name)) = self.first_link(at) {
            names.push(name);
            at = parent;
        }
        let mut path = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum::<usize>().max(1));
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }

    /// The inode at `path`, taken from the root, whether or not it starts with '/'. Follows no
    /// symbolic link. Empty and "." components are skipped, ".." goes up and stays at the root.
    pub fn resolve(&self, path: &[u8]) -> Option<InodeId> {
        let mut at = InodeId::ROOT;
        for name in path.split(|&byte| byte == b'/') {
            at = self.step(at, name)?;
        }
        Some(at)
    }

    /// As [`Metadata::resolve`], but follows symbolic links, also the last one, within the image;
    /// an absolute target starts at the image's root. `None` after 40 links, as on Linux.
    pub fn resolve_following(&self, path: &[u8]) -> Option<InodeId> {
        let mut left = SYMLINKS_FOLLOWED_MAX;
        let mut at = InodeId::ROOT;
        // What is still to walk, the next part on top; grows by one for each link followed.
        let mut parts = vec![path];
        while let Some(part) = parts.pop() {
            let (name, rest) = match part.iter().position(|&byte| byte == b'/') {
                Some(slash) => (&part[..slash], Some(&part[slash + 1..])),
                None => (part, None),
            };
            parts.extend(rest);
            let next = self.step(at, name)?;
            match self.symlink(next) {
                Some(target) => {
                    left = left.checked_sub(1)?;
                    if target.starts_with(b"/") {
                        at = InodeId::ROOT;
                    }
                    parts.push(target);
                }
                None => at = next,
            }
        }
        Some(at)
    }

    /// One component from `at`, which must be a directory.
    fn step(&self, at: InodeId, name: &[u8]) -> Option<InodeId> {
        match name {
            b"" | b"." if self.is_kind(at, Kind::Dir) => Some(at),
            b".." => self.parent(at),
            _ => self.lookup(at, name),
        }
    }
}
