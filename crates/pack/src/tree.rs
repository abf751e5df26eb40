//! The tree of files to pack, in memory: every source fills one and the packer reads it.
//!
//! It holds names and attributes but no contents: a [`Content`] says where the bytes are. A file
//! with several names is one node with several entries. Layers of a container image are applied in
//! order onto one tree; every entry has the number of its layer, because a whiteout hides only
//! entries of lower layers.
//!
//! Memory: about 200 bytes a node plus its name, and 80 bytes plus the path for each entry of a
//! directory on disk, to check it again; some 70 MB for a Debian desktop of 200,000 files.

mod listed;
mod room;

use std::collections::{BTreeMap, VecDeque};

pub(crate) use self::listed::Listed;
use self::room::Room;
use crate::content::Content;

pub use crate::time::Time;

/// Symlinks followed while finding the place of one entry, as in Linux.
const SYMLINKS_MAX: usize = 40;

/// Index of a node in its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) u32);

/// Extended attributes: name and value, sorted by name.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What a file system keeps about a file besides its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The twelve permission bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Time,
    /// Extended attributes.
    pub xattrs: Xattrs,
}

impl Attributes {
    /// What a directory gets that a source implies but does not describe: root's, 0755, 1970.
    pub fn implied_directory() -> Attributes {
        Attributes { permissions: 0o755, uid: 0, gid: 0, mtime: Time::default(), xattrs: Xattrs::new() }
    }
}

/// What a node is.
#[derive(Debug)]
pub enum Body {
    /// A directory and its entries in byte order.
    Directory(BTreeMap<Box<[u8]>, Entry>),
    /// A regular file.
    File {
        /// Bytes, holes included.
        size: u64,
        /// Where they are.
        content: Content,
    },
    /// A symlink and its target.
    Symlink(Vec<u8>),
    /// A character device.
    Character(Device),
    /// A block device.
    Block(Device),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// The number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Which driver.
    pub major: u32,
    /// Which device of it.
    pub minor: u32,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What it names.
    pub node: NodeId,
    /// The layer that brought it.
    layer: u32,
}

/// A node: one inode of the image to be.
#[derive(Debug)]
pub struct Node {
    /// Everything but the contents.
    pub attributes: Attributes,
    /// The contents, by kind.
    pub body: Body,
}

impl Node {
    /// An empty directory.
    pub fn directory(attributes: Attributes) -> Node {
        Node { attributes, body: Body::Directory(BTreeMap::new()) }
    }

    fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }
}

/// Why an entry has no place in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Something that is no directory stands where the path goes through.
    #[error("a part of the path is not a directory")]
    NotADirectory,
    /// Too many symlinks.
    #[error("too many symlinks in the path")]
    SymlinkLoop,
    /// The path names the root itself, which can only be a directory.
    #[error("the path names the root directory")]
    Root,
    /// A hard link to something that is not there.
    #[error("the target of the hard link is not there")]
    NoTarget,
    /// A hard link to a directory.
    #[error("the target of the hard link is a directory")]
    LinkToDirectory,
    /// The tree would be larger than any image.
    #[error("the archive has more {what} than can be packed ({limit}); pack a part of it")]
    Limit {
        /// The things that there are too many of.
        what: &'static str,
        /// How many there may be.
        limit: u64,
    },
}

/// The tree. Node 0 is the root directory. Nodes that lost all their entries stay in memory and are
/// not packed.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    layer: u32,
    room: Room,
    /// What is on disk, to be looked at again.
    listed: Vec<Listed>,
}

impl Tree {
    /// The root directory, always there.
    pub const ROOT: NodeId = NodeId(0);

    /// A tree with an empty root.
    pub fn new() -> Tree {
        Tree {
            nodes: vec![Node::directory(Attributes::implied_directory())],
            layer: 0,
            room: Room::default(),
            listed: Vec::new(),
        }
    }

    /// Entries placed from now on belong to a new layer above all others.
    pub fn begin_layer(&mut self) {
        self.layer += 1;
    }

    /// Remembers something on disk.
    pub(crate) fn remember(&mut self, listed: Listed) {
        self.listed.push(listed);
    }

    /// All that was remembered.
    pub(crate) fn listed(&self) -> &[Listed] {
        &self.listed
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A node, to be changed.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// Nodes in memory, reachable or not: an upper bound for ids.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Entries of a directory in byte order; none for all else.
    pub fn entries(&self, directory: NodeId) -> impl DoubleEndedIterator<Item = (&[u8], NodeId)> {
        let entries = match &self.node(directory).body {
            Body::Directory(entries) => Some(entries),
            _ => None,
        };
        entries.into_iter().flatten().map(|(name, entry)| (&**name, entry.node))
    }

    /// What `name` in `directory` names.
    pub fn child(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.node(directory).body {
            Body::Directory(entries) => entries.get(name).map(|entry| entry.node),
            _ => None,
        }
    }

    /// The node at `path`, symlinks followed within the tree; `None` if there is none.
    pub fn find(&self, path: &[u8]) -> Option<NodeId> {
        let mut walk = Walk::new(path);
        while let Some(component) = walk.next_component() {
            let next = self.child(walk.here(), &component)?;
            match &self.node(next).body {
                Body::Symlink(target) => walk.follow(target).ok()?,
                _ => walk.stack.push(next),
            }
        }
        Some(walk.here())
    }

    /// The directory at `path`. Missing ones are made, also at the end of a dangling symlink;
    /// symlinks are followed within the tree, `..` stops at the root: no path leads out.
    ///
    /// # Errors
    /// Something that is no directory stands in the way, there are too many symlinks, or the tree
    /// has no room.
    pub fn directory_at(&mut self, path: &[u8]) -> Result<NodeId, PathError> {
        let mut walk = Walk::new(path);
        while let Some(component) = walk.next_component() {
            let here = walk.here();
            let Some(next) = self.child(here, &component) else {
                let implied = Node::directory(Attributes::implied_directory());
                Room::check_depth(walk.stack.len())?;
                self.check_room(&component, Some(&implied))?;
                walk.stack.push(self.place(here, &component, implied));
                continue;
            };
            match &self.node(next).body {
                Body::Symlink(target) => walk.follow(target)?,
                Body::Directory(_) => walk.stack.push(next),
                _ => return Err(PathError::NotADirectory),
            }
        }
        Ok(walk.here())
    }

    /// Places `node` at `path`, whose last component is taken as it stands: a symlink there is
    /// replaced, not followed. A directory over a directory keeps its entries; anything else
    /// replaces what was there.
    ///
    /// # Errors
    /// As [`Tree::directory_at`] of the parent; the path names the root and `node` is no directory.
    pub fn place_at(&mut self, path: &[u8], node: Node) -> Result<NodeId, PathError> {
        match split_last(path) {
            Some((parent, name)) => {
                let directory = self.directory_at(parent)?;
                self.check_room(name, Some(&node))?;
                Ok(self.place(directory, name, node))
            }
            // `.`, `/`, `a/..`: a directory that is there already, whose attributes the source
            // gives.
            None if node.is_directory() => {
                let directory = self.directory_at(path)?;
                self.node_mut(directory).attributes = node.attributes;
                Ok(directory)
            }
            None => Err(PathError::Root),
        }
    }

    /// Whether one more entry fits, and the node that it brings.
    fn check_room(&self, name: &[u8], node: Option<&Node>) -> Result<(), PathError> {
        self.room.check_entry(name)?;
        node.map_or(Ok(()), |node| self.room.check_node(node))
    }

    /// Places `node` as `name` in `directory`; see [`Tree::place_at`].
    pub fn place(&mut self, directory: NodeId, name: &[u8], node: Node) -> NodeId {
        if let Some(old) = self.child(directory, name)
            && self.node(old).is_directory()
            && node.is_directory()
        {
            self.node_mut(old).attributes = node.attributes;
            self.enter(directory, name, old);
            return old;
        }
        let id = NodeId(u32::try_from(self.nodes.len()).expect("fewer than 2^32 nodes fit into memory"));
        self.room.node(&node);
        self.nodes.push(node);
        self.enter(directory, name, id);
        id
    }

    /// Makes `path` another name of `node`, which must not be a directory.
    ///
    /// # Errors
    /// As [`Tree::place_at`]; `node` is a directory.
    pub fn link_at(&mut self, path: &[u8], node: NodeId) -> Result<(), PathError> {
        if self.node(node).is_directory() {
            return Err(PathError::LinkToDirectory);
        }
        let (parent, name) = split_last(path).ok_or(PathError::Root)?;
        let directory = self.directory_at(parent)?;
        self.check_room(name, None)?;
        self.enter(directory, name, node);
        Ok(())
    }

    /// The node that a hard link to `path` means: the last component is not followed.
    ///
    /// # Errors
    /// There is no such node, or the path to it is broken.
    pub fn link_target(&self, path: &[u8]) -> Result<NodeId, PathError> {
        let (parent, name) = split_last(path).ok_or(PathError::LinkToDirectory)?;
        let directory = self.find(parent).ok_or(PathError::NoTarget)?;
        self.child(directory, name).ok_or(PathError::NoTarget)
    }

    /// Makes `name` in `directory` another name of `node`.
    pub fn enter(&mut self, directory: NodeId, name: &[u8], node: NodeId) {
        let layer = self.layer;
        match &mut self.nodes[directory.0 as usize].body {
            Body::Directory(entries) => {
                let before = entries.insert(name.into(), Entry { node, layer });
                if before.is_none_or(|before| before.node != node) {
                    self.room.entry(name, before.is_some());
                }
            }
            _ => unreachable!("entries are placed in directories"),
        }
    }

    /// Removes `name` from `directory` as far as lower layers brought it: a directory stays with
    /// what the current layer put into it.
    pub fn whiteout(&mut self, directory: NodeId, name: &[u8]) {
        let layer = self.layer;
        let Body::Directory(entries) = &self.node(directory).body else { return };
        let Some(entry) = entries.get(name).copied() else { return };
        if self.node(entry.node).is_directory() {
            self.whiteout_all(entry.node);
            if self.entries(entry.node).next().is_some() {
                return;
            }
        }
        if entry.layer < layer
            && let Body::Directory(entries) = &mut self.nodes[directory.0 as usize].body
        {
            entries.remove(name);
            self.room.removed(1);
        }
    }

    /// Removes everything from `directory` that lower layers brought. Its depth is bounded by an
    /// explicit stack.
    pub fn whiteout_all(&mut self, directory: NodeId) {
        let layer = self.layer;
        // Top-down list of directories, then bottom-up removal: a directory of a lower layer goes
        // once it is empty.
        let mut order = vec![directory];
        let mut next = 0;
        while next < order.len() {
            let inner: Vec<NodeId> =
                self.entries(order[next]).map(|(_, id)| id).filter(|id| self.node(*id).is_directory()).collect();
            order.extend(inner);
            next += 1;
        }
        for directory in order.into_iter().rev() {
            let Body::Directory(entries) = &self.node(directory).body else { continue };
            let gone: Vec<Box<[u8]>> = entries
                .iter()
                .filter(|(_, entry)| entry.layer < layer && self.entries(entry.node).next().is_none())
                .map(|(name, _)| name.clone())
                .collect();
            if let Body::Directory(entries) = &mut self.nodes[directory.0 as usize].body {
                gone.iter().for_each(|name| {
                    entries.remove(name);
                });
                self.room.removed(gone.len());
            }
        }
    }

    /// All reachable nodes: a directory, then all its entries that are no directories, then each of
    /// its directories in turn, so that the files of a directory come together. `visit` is called
    /// once per entry with the directory that holds it, its name and the node; a node with several
    /// names is visited several times.
    pub fn walk(&self, mut visit: impl FnMut(NodeId, &[u8], NodeId)) {
        let mut pending = vec![Tree::ROOT];
        while let Some(directory) = pending.pop() {
            let (inner, files): (Vec<_>, Vec<_>) =
                self.entries(directory).partition(|(_, node)| self.node(*node).is_directory());
            files.into_iter().for_each(|(name, node)| visit(directory, name, node));
            inner.iter().for_each(|(name, node)| visit(directory, name, *node));
            pending.extend(inner.into_iter().rev().map(|(_, node)| node));
        }
    }
}

impl Default for Tree {
    fn default() -> Tree {
        Tree::new()
    }
}

/// A path being followed: the directories passed so far, for `..`, and what is left of the path.
struct Walk {
    stack: Vec<NodeId>,
    pending: VecDeque<Box<[u8]>>,
    symlinks: usize,
}

impl Walk {
    fn new(path: &[u8]) -> Walk {
        Walk { stack: vec![Tree::ROOT], pending: components(path).map(Box::from).collect(), symlinks: 0 }
    }

    fn here(&self) -> NodeId {
        *self.stack.last().expect("the root is never popped")
    }

    /// The next component that is not `..`; those are taken here and stop at the root.
    fn next_component(&mut self) -> Option<Box<[u8]>> {
        while let Some(component) = self.pending.pop_front() {
            if &*component != b".." {
                return Some(component);
            }
            if self.stack.len() > 1 {
                self.stack.pop();
            }
        }
        None
    }

    fn follow(&mut self, target: &[u8]) -> Result<(), PathError> {
        self.symlinks += 1;
        if self.symlinks > SYMLINKS_MAX {
            return Err(PathError::SymlinkLoop);
        }
        if target.first() == Some(&b'/') {
            self.stack.truncate(1);
        }
        for component in components(target).collect::<Vec<_>>().into_iter().rev() {
            self.pending.push_front(component.into());
        }
        Ok(())
    }
}

/// Components of a path without empty ones and `.`.
pub(crate) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty() && *component != b".")
}

/// Splits a path into its directory and last component; `None` if that is nothing or `..`.
pub(crate) fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let name = components(path).next_back()?;
    if name == b".." {
        return None;
    }
    // The last component is the last run that is neither a slash nor a lone dot; everything before
    // it is the parent.
    let mut end = path.len();
    loop {
        let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        if &path[start..end] == name {
            return Some((&path[..start], name));
        }
        end = start.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
