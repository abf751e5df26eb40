//! Checks before the image is complete that a directory on disk is still as it was listed.
//!
//! Contents are compared by hash when they are read the second time. All else of a tree is read
//! once: names, owners, modes, times, targets of symlinks, extended attributes. If the tree changed
//! meanwhile, the image would be of a tree that never existed, so it is refused.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::tree::{Body, Listed, Time, Tree};
use crate::{PackError, xattrs};

impl Listed {
    fn is_unchanged(&self, tree: &Tree) -> std::io::Result<bool> {
        let node = tree.node(self.node);
        let is_directory = matches!(node.body, Body::Directory(_));
        // The directory to pack may be named by a symlink; the identity shows whether it is still
        // the same.
        let now = if is_directory { fs::metadata(&self.path) } else { fs::symlink_metadata(&self.path) };
        let now = match now {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            now => now?,
        };
        let then = &node.attributes;
        let mtime = Time { seconds: now.mtime(), nanoseconds: now.mtime_nsec() as u32 };
        let same = (now.dev(), now.ino()) == self.identity
            && is_body(&node.body, &now)
            && (now.mode() & 0o7777) as u16 == then.permissions
            && (now.uid(), now.gid(), mtime) == (then.uid, then.gid, then.mtime);
        let ctime = Time { seconds: now.ctime(), nanoseconds: now.ctime_nsec() as u32 };
        if !same || self.ctime == Some(ctime) {
            return Ok(same);
        }
        // The inode changed, perhaps only by another hard link to it.
        if let Body::Symlink(target) = &node.body
            && fs::read_link(&self.path)?.as_os_str().as_bytes() != target
        {
            return Ok(false);
        }
        Ok(xattrs::read(&self.path)? == then.xattrs)
    }
}

fn is_body(body: &Body, now: &Metadata) -> bool {
    let kind = now.file_type();
    let is_device = |device: &crate::tree::Device| {
        (device.major, device.minor) == (rustix::fs::major(now.rdev()), rustix::fs::minor(now.rdev()))
    };
    match body {
        Body::Directory(_) => kind.is_dir(),
        Body::File { size, .. } => kind.is_file() && now.size() == *size,
        Body::Symlink(_) => kind.is_symlink(),
        Body::Character(device) => kind.is_char_device() && is_device(device),
        Body::Block(device) => kind.is_block_device() && is_device(device),
        Body::Fifo => kind.is_fifo(),
        Body::Socket => kind.is_socket(),
    }
}

/// Fails with the first path of which anything is no longer as it was listed.
pub(crate) fn check_unchanged(tree: &Tree) -> Result<(), PackError> {
    for listed in tree.listed() {
        let same = listed.is_unchanged(tree).map_err(|source| PackError::read(&listed.path, source))?;
        if !same {
            return Err(PackError::Changed { path: listed.path.clone() });
        }
    }
    Ok(())
}
