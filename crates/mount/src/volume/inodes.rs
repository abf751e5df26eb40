//! The inodes that the kernel knows of a volume: their numbers, and the names that lead to them.
//!
//! FUSE names files by number, a volume by path and by id. A number is the id where that is
//! possible, so that it is the same after the kernel forgot the file, or after a new mount (`git`,
//! `find` and `tar` compare numbers). A file that was made here and is not on the server yet has no
//! id: it gets a number of a range without ids, and keeps it while it is known. Each file has the
//! names by which it was found and that the server does not contradict: one, or several if the
//! server says that there are. A file that was removed while it is open has none.
//!
//! Pure: no call, no time. Ids and names come from a server, so nothing here trusts that they form
//! a tree. The table knows which of its nodes have changed, so that they can be written to a
//! journal (`kept`).

mod kept;

use std::collections::{BTreeSet, HashMap};

use fuse::INodeNo;
use stream::{FileInfo, FileKind, Handle, Seen};

/// Number and id of the top folder.
pub(super) const TOP: u64 = 1;

/// The first number for files without an id. Smaller ids are counted from 1 and never reach it; ids
/// with the highest bit are derived from the file on the server's disk.
const PROVISIONAL: u64 = 1 << 62;

/// Longest path of a volume, bytes.
const PATH_BYTES_MAX: usize = 4095;

/// The file has no name any more, or none that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nameless;

/// Names of one file that are kept; any of them is enough.
const NAMES_MAX: usize = 16;

/// A folder, and a name in it.
type Name = (u64, Box<[u8]>);

/// One file that the kernel knows.
#[derive(Debug)]
struct Node {
    /// Its names. The last one is that of the last look-up.
    names: Vec<Name>,
    /// Id on the server; 0 as long as it has none.
    file: u64,
    kind: FileKind,
    /// The kernel's look-up count.
    lookups: u64,
    /// Nodes that have this one as their folder.
    children: u32,
    /// Open handles, the oldest first, and whether each may change the file, by writing or by
    /// truncation at open.
    handles: Vec<(Handle, bool)>,
    /// The version and size that the kernel was told last.
    told: Option<(Seen, u64)>,
    /// The kernel may have pages of it that an earlier daemon should have dropped.
    is_doubtful: bool,
}

/// All inodes that the kernel knows.
#[derive(Debug)]
pub(super) struct Inodes {
    nodes: HashMap<u64, Node>,
    by_file: HashMap<u64, u64>,
    by_name: HashMap<Name, u64>,
    /// The last provisional number.
    next: u64,
    /// Nodes that have changed since they were last written to the journal.
    changed: BTreeSet<u64>,
}

impl Inodes {
    /// A table with the top folder, which stays for ever.
    pub fn new() -> Inodes {
        let top = Node {
            names: Vec::new(),
            file: TOP,
            kind: FileKind::Folder,
            lookups: 1,
            children: 0,
            handles: Vec::new(),
            told: None,
            is_doubtful: false,
        };
        let nodes = HashMap::from([(TOP, top)]);
        let (by_file, by_name) = (HashMap::new(), HashMap::new());
        Inodes { nodes, by_file, by_name, next: PROVISIONAL, changed: BTreeSet::new() }
    }

    /// A node that is about to change.
    fn changing(&mut self, number: u64) -> Option<&mut Node> {
        let node = self.nodes.get_mut(&number)?;
        self.changed.insert(number);
        Some(node)
    }

    /// A file has this id.
    fn put_id(&mut self, number: u64, id: u64) {
        if let Some(node) = self.changing(number) {
            node.file = id;
        }
        if let Some(before) = self.by_file.insert(id, number) {
            self.changed.insert(before);
        }
    }

    /// The file of a name now. The kernel's look-up count grows by one.
    pub fn found(&mut self, folder: u64, name: &[u8], info: &FileInfo) -> INodeNo {
        let number = self.number_of(folder, name, info);
        self.put_name(number, folder, name, info.links > 1 && info.kind != FileKind::Folder);
        if let Some(node) = self.changing(number) {
            node.lookups += 1;
            node.told = Some((info.seen, info.size));
        }
        INodeNo(number)
    }

    /// The number of the file of a name for a plain listing, without a look-up.
    pub fn peek(&self, folder: u64, name: &[u8], info: &FileInfo) -> INodeNo {
        let known = self.by_file.get(&info.seen.file).or_else(|| self.by_name.get(&(folder, name.into())));
        match known {
            Some(number) => INodeNo(*number),
            None if is_number(info.seen.file) => INodeNo(info.seen.file),
            // It gets one when it is looked at. 0 would mean that there is no entry.
            None => INodeNo(PROVISIONAL),
        }
    }

    fn number_of(&mut self, folder: u64, name: &[u8], info: &FileInfo) -> u64 {
        let id = info.seen.file;
        let fits = |node: &Node| node.kind == info.kind && (node.file == id || node.file == 0);
        if let Some(number) = self.by_name.get(&(folder, name.into())).copied()
            && let Some(node) = self.nodes.get(&number).filter(|node| fits(node))
        {
            if node.file == 0 && id != 0 {
                // It is on the server now.
                self.put_id(number, id);
            }
            return number;
        }
        if let Some(number) = self.by_file.get(&id).copied()
            && self.nodes.get(&number).is_some_and(|node| node.kind == info.kind)
        {
            return number;
        }
        let number = if is_number(id) && !self.nodes.contains_key(&id) {
            id
        } else {
            self.next += 1;
            self.next
        };
        let node = Node {
            names: vec![],
            file: id,
            kind: info.kind,
            lookups: 0,
            children: 0,
            handles: vec![],
            told: None,
            is_doubtful: false,
        };
        self.nodes.insert(number, node);
        self.changed.insert(number);
        if id != 0 {
            self.put_id(number, id);
        }
        number
    }

    /// Gives a file a name, and takes it from the file that had it. It is the only one unless the
    /// file has `several`.
    fn put_name(&mut self, number: u64, folder: u64, name: &[u8], several: bool) {
        let key: Name = (folder, name.into());
        if self.by_name.get(&key) == Some(&number) {
            if let Some(node) = self.changing(number).filter(|node| node.names.last() != Some(&key)) {
                node.names.retain(|other| *other != key);
                node.names.push(key);
            }
            return;
        }
        let left = if several { NAMES_MAX - 1 } else { 0 };
        let excess = self.nodes.get(&number).map_or(0, |node| node.names.len().saturating_sub(left));
        for _ in 0..excess {
            let oldest = self.nodes.get(&number).and_then(|node| node.names.first()).cloned();
            oldest.into_iter().for_each(|oldest| self.take_name(number, &oldest));
        }
        // A server may say that a folder lies in itself, or below. It has no path then.
        if !self.nodes.contains_key(&folder) || self.is_below(folder, number) {
            return;
        }
        if let Some(before) = self.by_name.get(&key).copied() {
            self.take_name(before, &key);
            self.drop_if_unused(before);
        }
        self.by_name.insert(key.clone(), number);
        if let Some(node) = self.changing(number) {
            node.names.push(key);
        }
        if let Some(node) = self.nodes.get_mut(&folder) {
            node.children += 1;
        }
    }

    /// Whether a folder is this one, or lies in it. Names form trees, so going up ends.
    fn is_below(&self, mut folder: u64, above: u64) -> bool {
        while folder != above {
            match self.nodes.get(&folder).and_then(|node| node.names.last()) {
                Some((next, _)) => folder = *next,
                None => return false,
            }
        }
        true
    }

    fn take_name(&mut self, number: u64, key: &Name) {
        let Some(node) = self.changing(number) else { return };
        let Some(at) = node.names.iter().position(|name| name == key) else { return };
        node.names.remove(at);
        if self.by_name.get(key) == Some(&number) {
            self.by_name.remove(key);
        }
        self.lose_child(key.0);
    }

    fn lose_child(&mut self, folder: u64) {
        if let Some(node) = self.nodes.get_mut(&folder) {
            node.children -= 1;
            self.drop_if_unused(folder);
        }
    }

    /// Removes a name. Its file stays in the table while it has others, or is open.
    pub fn removed(&mut self, folder: u64, name: &[u8]) {
        let key = (folder, name.into());
        if let Some(number) = self.by_name.get(&key).copied() {
            self.take_name(number, &key);
            self.drop_if_unused(number);
        }
    }

    /// Renames a file. The file that had the new name loses it.
    pub fn renamed(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) {
        let key = (from.0, from.1.into());
        let Some(number) = self.by_name.get(&key).copied() else {
            // Nobody knows the file, but there is another one of that name now.
            return self.removed(to.0, to.1);
        };
        if from == to {
            return;
        }
        self.put_name(number, to.0, to.1, true);
        self.take_name(number, &key);
    }

    /// The kernel forgot so many look-ups.
    pub fn forget(&mut self, number: INodeNo, lookups: u64) {
        if let Some(node) = self.changing(number.0).filter(|_| number.0 != TOP) {
            node.lookups = node.lookups.saturating_sub(lookups);
            self.drop_if_unused(number.0);
        }
    }

    fn drop_if_unused(&mut self, number: u64) {
        let unused = |node: &Node| node.lookups == 0 && node.children == 0 && node.handles.is_empty();
        if number == TOP || !self.nodes.get(&number).is_some_and(unused) {
            return;
        }
        self.changed.insert(number);
        let names = self.nodes.get(&number).map(|node| node.names.clone()).unwrap_or_default();
        names.iter().for_each(|name| self.take_name(number, name));
        if let Some(node) = self.nodes.remove(&number)
            && self.by_file.get(&node.file) == Some(&number)
        {
            self.by_file.remove(&node.file);
        }
    }

    /// The path of a file: names joined by `/`, empty for the top folder.
    ///
    /// # Errors
    /// [`Nameless`]: removed, unknown, or too long.
    pub fn path(&self, number: INodeNo) -> Result<Vec<u8>, Nameless> {
        let (mut names, mut bytes, mut at) = (Vec::new(), 0, number.0);
        while at != TOP {
            let (folder, name) = self.nodes.get(&at).and_then(|node| node.names.last()).ok_or(Nameless)?;
            bytes += name.len() + 1;
            if bytes > PATH_BYTES_MAX + 1 {
                return Err(Nameless);
            }
            names.push(&name[..]);
            at = *folder;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    /// The path of a name in a folder.
    ///
    /// # Errors
    /// As [`Inodes::path`].
    pub fn path_in(&self, folder: INodeNo, name: &[u8]) -> Result<Vec<u8>, Nameless> {
        let mut path = self.path(folder)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Ok(path)
    }

    /// The folder that a folder lies in; the top folder lies in itself.
    pub fn folder_of(&self, number: INodeNo) -> INodeNo {
        let above = self.nodes.get(&number.0).and_then(|node| node.names.last()).map(|(folder, _)| *folder);
        INodeNo(above.unwrap_or(TOP))
    }

    /// Whether the file at the path of a number is still the file of that number. A file that had
    /// no id gets it.
    pub fn is_same(&mut self, number: INodeNo, info: &FileInfo) -> bool {
        let Some(node) = self.nodes.get(&number.0) else { return false };
        if number.0 == TOP {
            return info.kind == FileKind::Folder;
        }
        if node.file == 0 && info.seen.file != 0 && !self.by_file.contains_key(&info.seen.file) {
            self.put_id(number.0, info.seen.file);
        }
        let node = &self.nodes[&number.0];
        node.kind == info.kind && (info.seen.file == 0 || node.file == info.seen.file)
    }

    /// Notes the attributes that the kernel is told.
    pub fn tell(&mut self, number: INodeNo, info: &FileInfo) {
        if let Some(node) = self.nodes.get_mut(&number.0) {
            node.told = Some((info.seen, info.size));
        }
    }

    /// Whether the kernel was told other attributes.
    pub fn differs(&self, number: INodeNo, info: &FileInfo) -> bool {
        self.nodes.get(&number.0).is_none_or(|node| node.told != Some((info.seen, info.size)))
    }

    /// A handle was opened. It may have been opened for an earlier daemon already.
    pub fn opened(&mut self, number: INodeNo, handle: Handle, changes: bool) {
        if let Some(node) = self.changing(number.0) {
            node.handles.retain(|(open, _)| *open != handle);
            node.handles.push((handle, changes));
        }
    }

    /// It was closed.
    pub fn closed(&mut self, number: INodeNo, handle: Handle) {
        if let Some(node) = self.changing(number.0) {
            node.handles.retain(|(open, _)| *open != handle);
            self.drop_if_unused(number.0);
        }
    }

    /// Whether a handle may change its file.
    pub fn writes(&self, number: INodeNo, handle: Handle) -> bool {
        self.nodes.get(&number.0).is_some_and(|node| node.handles.contains(&(handle, true)))
    }

    /// Whether the kernel may have pages of a file that an earlier daemon should have dropped.
    pub fn is_doubtful(&self, number: INodeNo) -> bool {
        self.nodes.get(&number.0).is_some_and(|node| node.is_doubtful)
    }

    /// The kernel has dropped them.
    pub fn dropped(&mut self, number: INodeNo) {
        if let Some(node) = self.nodes.get_mut(&number.0) {
            node.is_doubtful = false;
        }
    }

    /// The type of a file, if it is known.
    pub fn kind(&self, number: INodeNo) -> Option<FileKind> {
        self.nodes.get(&number.0).map(|node| node.kind)
    }

    /// Some open handle of a file.
    pub fn handle(&self, number: INodeNo) -> Option<Handle> {
        self.nodes.get(&number.0)?.handles.first().map(|(handle, _)| *handle)
    }

    /// Id of a file on the server; 0 if it has none, or is not known.
    pub fn file(&self, number: INodeNo) -> u64 {
        self.nodes.get(&number.0).map_or(0, |node| node.file)
    }

    /// This handle of a file if it is open, else another open one, if there is one.
    pub fn open_handle(&self, number: INodeNo, wanted: Handle) -> Handle {
        let open = self.nodes.get(&number.0).map_or(&[][..], |node| &node.handles);
        let is_open = open.iter().any(|(handle, _)| *handle == wanted);
        if is_open { wanted } else { open.first().map_or(wanted, |(handle, _)| *handle) }
    }

    /// Files that are known, the top folder among them.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.nodes.len()
    }
}

/// Whether an id can be a number for the kernel.
fn is_number(id: u64) -> bool {
    id > TOP && (id < PROVISIONAL || id >> 63 == 1)
}

#[cfg(test)]
mod tests;
