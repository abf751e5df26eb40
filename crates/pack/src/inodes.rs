//! Makes the records of the image from the tree: numbers for inodes, entries, and the list of files
//! to read.

use std::path::PathBuf;

use image::{Builder, BuilderParams, Content as RecordContent, ImageError, InodeRecord, device_number};
use units::InodeId;

use crate::PackError;
use crate::content::Content;
use crate::tree::{Body, Device, Node, NodeId, Tree};

/// A regular file whose contents are to be packed.
pub(crate) struct FileWork<'a> {
    pub(crate) inode: InodeId,
    pub(crate) size: u64,
    pub(crate) content: &'a Content,
}

/// What the tree became.
pub(crate) struct Inodes<'a> {
    pub(crate) builder: Builder,
    /// In the order in which their contents fill blocks, which is also that of their numbers.
    pub(crate) files: Vec<FileWork<'a>>,
    /// Bytes of all files, holes included.
    pub(crate) bytes: u64,
    /// Inodes of all kinds.
    pub(crate) count: u64,
    /// The inode of each node of the tree that has a name.
    pub(crate) numbers: Vec<Option<InodeId>>,
}

/// Numbers the inodes in the order of [`Tree::walk`]: the files of a directory lie together,
/// directories after their parents.
pub(crate) fn number(tree: &Tree, params: BuilderParams) -> Result<Inodes<'_>, PackError> {
    let mut found =
        Inodes { builder: Builder::new(params), files: Vec::new(), bytes: 0, count: 0, numbers: Vec::new() };
    let mut numbers: Vec<Option<InodeId>> = vec![None; tree.node_count()];
    let mut failed: Option<(NodeId, Vec<u8>, ImageError)> = None;
    let root = add(tree.node(Tree::ROOT), &mut found)?;
    numbers[Tree::ROOT.0 as usize] = Some(root);
    tree.walk(|directory, name, node| {
        if failed.is_some() {
            return;
        }
        let mut place = || -> Result<(), ImageError> {
            let inode = match numbers[node.0 as usize] {
                Some(inode) => inode,
                None => *numbers[node.0 as usize].insert(add(tree.node(node), &mut found)?),
            };
            let directory = numbers[directory.0 as usize].expect("a directory is visited before its entries");
            found.builder.add_entry(directory, name, inode)
        };
        if let Err(error) = place() {
            failed = Some((directory, name.to_vec(), error));
        }
    });
    match failed {
        Some((directory, name, source)) => Err(PackError::Entry { path: path_of(tree, directory, &name), source }),
        None => Ok(Inodes { numbers, ..found }),
    }
}

fn add<'a>(node: &'a Node, found: &mut Inodes<'a>) -> Result<InodeId, ImageError> {
    let content = match &node.body {
        Body::Directory(_) => RecordContent::Dir,
        Body::File { size, .. } => RecordContent::File { bytes: *size },
        Body::Symlink(target) => RecordContent::Symlink(target.clone()),
        Body::Character(device) => RecordContent::Char(number_of(*device)?),
        Body::Block(device) => RecordContent::Block(number_of(*device)?),
        Body::Fifo => RecordContent::Fifo,
        Body::Socket => RecordContent::Socket,
    };
    let attributes = &node.attributes;
    let inode = found.builder.add_inode(InodeRecord {
        permissions: attributes.permissions,
        uid: attributes.uid,
        gid: attributes.gid,
        mtime_sec: attributes.mtime.seconds,
        mtime_ns: attributes.mtime.nanoseconds,
        content,
        xattrs: attributes.xattrs.clone(),
    })?;
    found.count += 1;
    if let Body::File { size, content } = &node.body {
        found.files.push(FileWork { inode, size: *size, content });
        found.bytes = found.bytes.saturating_add(*size);
    }
    Ok(inode)
}

fn number_of(device: Device) -> Result<u32, ImageError> {
    device_number(device.major, device.minor).ok_or_else(|| ImageError::Unwritable {
        what: "a device has a major number below 4096 and a minor number below 1048576",
        detail: format!("{}:{}", device.major, device.minor),
    })
}

/// The path of `name` in `directory`, found by searching: only for messages.
fn path_of(tree: &Tree, directory: NodeId, name: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut parents = std::collections::HashMap::new();
    tree.walk(|parent, name, node| {
        parents.entry(node).or_insert_with(|| (parent, name.to_vec()));
    });
    let mut names = vec![name.to_vec()];
    let mut here = directory;
    while let Some((parent, name)) = parents.get(&here) {
        names.push(name.clone());
        here = *parent;
    }
    names.reverse();
    PathBuf::from(std::ffi::OsString::from_vec([b"/".to_vec(), names.join(&b'/')].concat()))
}
