//! What the listing of a directory on disk saw, to look at again before the image is complete.
//!
//! Contents are compared by hash when they are read the second time. All else of a tree was read once: names, owners,
//! modes, times, targets of symlinks, extended attributes. An image of a tree that changed meanwhile would be one that
//! never was, so it is refused.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::tree::{Body, NodeId, Time, Tree};
use crate::{PackError, xattrs};

/// Something on disk as it was when it was listed; its attributes are those of its node.
#[derive(Debug)]
pub(crate) struct Listed {
    path: PathBuf,
    node: NodeId,
    identity: (u64, u64),
    /// When its inode changed last; not known of directories, of which less is trusted then.
    ctime: Option<Time>,
}

impl Listed {
    /// Anything but a directory.
    pub(crate) fn entry(path: &Path, node: NodeId, about: &Metadata) -> Listed {
        let ctime = Time { seconds: about.ctime(), nanoseconds: about.ctime_nsec() as u32 };
        Listed { path: path.into(), node, identity: (about.dev(), about.ino()), ctime: Some(ctime) }
    }

    /// A directory of which all entries are listed: a name that comes or goes changes its time of modification.
    pub(crate) fn directory(path: &Path, node: NodeId, about: &Metadata) -> Listed {
        Listed { path: path.into(), node, identity: (about.dev(), about.ino()), ctime: None }
    }

    fn is_unchanged(&self, tree: &Tree) -> std::io::Result<bool> {
        let node = tree.node(self.node);
        let is_directory = matches!(node.body, Body::Directory(_));
        // The directory to pack may be named by a symlink; the identity tells whether it is still the same.
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
