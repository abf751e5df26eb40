//! A directory on disk as a source.
//!
//! Entries are listed in byte order of their names, so the result does not depend on the order of
//! the file system. Files with several names are recognised by device and inode number.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::content::{Content, LocalFile, open_plain};
use crate::tree::{Attributes, Body, Device, Listed, Node, NodeId, Time, Tree};
use crate::{PackError, Progress, xattrs};

/// Entries between two reports of progress.
const REPORT_ENTRIES: u64 = 256;

/// Puts files from disk into a tree, one after the other.
pub(crate) struct Lister<'a> {
    tree: &'a mut Tree,
    /// Nodes of files with several names, by device and inode number.
    links: HashMap<(u64, u64), NodeId>,
    /// Files to leave out, by device and inode number: the output itself, when it lies in the
    /// directory it packs.
    skipped: Vec<(u64, u64)>,
    progress: &'a dyn Progress,
    unreported: u64,
}

impl<'a> Lister<'a> {
    pub(crate) fn new(tree: &'a mut Tree, skipped: &[(u64, u64)], progress: &'a dyn Progress) -> Lister<'a> {
        Lister { tree, links: HashMap::new(), skipped: skipped.to_vec(), progress, unreported: 0 }
    }

    pub(crate) fn tree(&mut self) -> &mut Tree {
        self.tree
    }

    /// Gives the root of the tree the attributes of the directory at `path`.
    pub(crate) fn root(&mut self, path: &Path) -> Result<(), PackError> {
        let about = fs::metadata(path).map_err(|source| PackError::read(path, source))?;
        self.tree.node_mut(Tree::ROOT).attributes = attributes(path, &about)?;
        Ok(())
    }

    /// Places what lies at `path`, not followed and without what a directory holds, as `name` in
    /// `directory`. `None` if it is to be left out.
    pub(crate) fn entry(&mut self, directory: NodeId, name: &[u8], path: &Path) -> Result<Option<NodeId>, PackError> {
        let about = fs::symlink_metadata(path).map_err(|source| PackError::read(path, source))?;
        let identity = (about.dev(), about.ino());
        if self.skipped.contains(&identity) {
            return Ok(None);
        }
        self.unreported += 1;
        if self.unreported == REPORT_ENTRIES {
            self.progress.advance(self.unreported);
            self.unreported = 0;
        }
        let shared = about.nlink() > 1 && !about.is_dir();
        if shared && let Some(node) = self.links.get(&identity).copied() {
            self.tree.enter(directory, name, node);
            return Ok(Some(node));
        }
        let node = Node { attributes: attributes(path, &about)?, body: body(path, &about)? };
        let node = self.tree.place(directory, name, node);
        if !about.is_dir() {
            self.tree.remember(Listed::entry(path, node, &about));
        }
        if shared {
            self.links.insert(identity, node);
        }
        Ok(Some(node))
    }

    /// Places everything below the directory at `path` into `directory`. With `one_file_system`,
    /// what other file systems are mounted on stays an empty directory. `each` sees every entry
    /// placed.
    pub(crate) fn below(
        &mut self,
        directory: NodeId,
        path: &Path,
        one_file_system: bool,
        mut each: impl FnMut(&Tree, NodeId, &Path),
    ) -> Result<(), PackError> {
        let device = fs::metadata(path).map_err(|source| PackError::read(path, source))?.dev();
        let mut pending = vec![(directory, path.to_owned())];
        while let Some((directory, path)) = pending.pop() {
            let about = fs::metadata(&path).map_err(|source| PackError::read(&path, source))?;
            if one_file_system && about.dev() != device {
                continue;
            }
            self.tree.remember(Listed::directory(&path, directory, &about));
            for name in sorted_names(&path)? {
                let path = path.join(std::ffi::OsStr::from_bytes(&name));
                let Some(node) = self.entry(directory, &name, &path)? else { continue };
                each(self.tree, node, &path);
                if matches!(self.tree.node(node).body, Body::Directory(_)) {
                    pending.push((node, path));
                }
            }
        }
        self.progress.advance(self.unreported);
        self.unreported = 0;
        Ok(())
    }
}

/// Names in a directory on disk, in byte order.
pub(crate) fn sorted_names(path: &Path) -> Result<Vec<Vec<u8>>, PackError> {
    let failed = |source| PackError::read(path, source);
    let entries = fs::read_dir(path).map_err(failed)?;
    let names = entries.map(|entry| Ok(entry?.file_name().into_vec())).collect::<std::io::Result<Vec<_>>>();
    let mut names = names.map_err(failed)?;
    names.sort_unstable();
    Ok(names)
}

fn attributes(path: &Path, about: &Metadata) -> Result<Attributes, PackError> {
    Ok(Attributes {
        permissions: (about.mode() & 0o7777) as u16,
        uid: about.uid(),
        gid: about.gid(),
        mtime: mtime(about),
        xattrs: xattrs::read(path).map_err(|source| PackError::read(path, source))?,
    })
}

fn mtime(about: &Metadata) -> Time {
    Time { seconds: about.mtime(), nanoseconds: about.mtime_nsec() as u32 }
}

fn body(path: &Path, about: &Metadata) -> Result<Body, PackError> {
    let kind = about.file_type();
    let device = || Device { major: rustix::fs::major(about.rdev()), minor: rustix::fs::minor(about.rdev()) };
    Ok(if kind.is_dir() {
        Node::directory(Attributes::implied_directory()).body
    } else if kind.is_file() {
        if about.size() == 0 {
            check_empty(path)?;
        }
        file_body(path.to_owned(), about)
    } else if kind.is_symlink() {
        let target = fs::read_link(path).map_err(|source| PackError::read(path, source))?;
        Body::Symlink(target.into_os_string().into_vec())
    } else if kind.is_char_device() {
        Body::Character(device())
    } else if kind.is_block_device() {
        Body::Block(device())
    } else if kind.is_fifo() {
        Body::Fifo
    } else {
        Body::Socket
    })
}

/// Files of /proc and its like call themselves empty and are not. One that cannot be read is taken
/// at its word.
fn check_empty(path: &Path) -> Result<(), PackError> {
    let Ok(mut file) = open_plain(path) else { return Ok(()) };
    if matches!(std::io::Read::read(&mut file, &mut [0; 1]), Ok(1..)) {
        let problem = "it calls itself empty but has contents, as files of /proc do; such a tree cannot be packed";
        return Err(PackError::Source { path: path.to_owned(), problem: problem.into() });
    }
    Ok(())
}

/// A regular file on disk, to be read later.
pub(crate) fn file_body(path: PathBuf, about: &Metadata) -> Body {
    let size = about.size();
    let local = LocalFile { path, identity: (about.dev(), about.ino()), size, mtime: mtime(about) };
    Body::File { size, content: if size == 0 { Content::Hole } else { Content::Local(Arc::new(local)) } }
}
