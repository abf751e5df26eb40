//! The files of a volume as the staged records will leave them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::node::{Node, NodeXattrs};
use crate::disk::{Disk, FileStat, Kind, Owner};
use crate::inode::Inode;
use crate::path::join;
use crate::record::{EntryName, Record};
use crate::table::Table;
use crate::xattrs::Xattrs;
use crate::{FileId, Seen, VolumeError, VolumePath};

/// Longest file that a transaction can make, bytes: what every file system of today can hold.
pub const FILE_BYTES_MAX: u64 = 1 << 42;

/// Room that a change of a name may need on the disk, bytes: a block of the folder, one of its
/// index, one of the inode.
pub(super) const NAME_ROOM_BYTES: u64 = 3 * 4096;

/// What applying the records may need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Bytes on the disk, at most.
    pub bytes: u64,
    /// Inodes.
    pub files: u64,
    /// Change of the sum of all file sizes.
    pub size_change: i64,
}

/// The files as they will be.
///
/// Applied in order to the disk as it is, the records make the nodes and entries that are known
/// here; what is not known is as it is on the disk. Every entry leads to a node, and every file
/// that a caller names was found before.
pub(super) struct Tree<'a> {
    disk: &'a dyn Disk,
    table: &'a mut Table,
    overlay: Overlay,
    records: Vec<Record>,
}

/// What is known of the files.
#[derive(Clone, Default)]
struct Overlay {
    nodes: HashMap<FileId, Node>,
    entries: HashMap<EntryName, Option<FileId>>,
    needs: Needs,
}

/// A state to come back to.
pub(super) struct Mark {
    overlay: Overlay,
    records: usize,
    next: u64,
}

impl<'a> Tree<'a> {
    /// The files as they are.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(disk: &'a dyn Disk, table: &'a mut Table) -> Result<Tree<'a>, VolumeError> {
        let stat = disk.stat(b"").map_err(|error| VolumeError::io("looking at", b"", error))?;
        let version = table.seen(&stat).version;
        let at = EntryName { folder: FileId::TOP, name: Vec::new() };
        let mut overlay = Overlay::default();
        overlay.nodes.insert(FileId::TOP, Node::found(&stat, at, Vec::new(), version));
        Ok(Tree { disk, table, overlay, records: Vec::new() })
    }

    /// The disk as it is.
    pub fn disk(&self) -> &'a dyn Disk {
        self.disk
    }

    /// Which files the volume has changed.
    pub fn table(&self) -> &Table {
        self.table
    }

    /// The records so far.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The records.
    pub fn into_records(self) -> Vec<Record> {
        self.records
    }

    /// What applying them may need.
    pub fn needs(&self) -> Needs {
        self.overlay.needs
    }

    /// Remembers the state.
    pub fn mark(&self) -> Mark {
        Mark { overlay: self.overlay.clone(), records: self.records.len(), next: self.table.next }
    }

    /// Takes back what was done since.
    pub fn roll_back(&mut self, mark: Mark) {
        self.overlay = mark.overlay;
        self.records.truncate(mark.records);
        self.table.next = mark.next;
    }

    /// A file that was found or made.
    pub fn node(&self, file: FileId) -> &Node {
        &self.overlay.nodes[&file]
    }

    fn node_mut(&mut self, file: FileId) -> &mut Node {
        self.overlay.nodes.get_mut(&file).expect("found before")
    }

    /// Adds a record that changes nothing which is known here.
    pub fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Counts bytes that a record may need on the disk.
    pub fn need_bytes(&mut self, bytes: u64) {
        self.overlay.needs.bytes += bytes;
    }

    /// Where `path` leads: its last folder and name, and what is there. All folders before must be
    /// there.
    ///
    /// # Errors
    /// [`VolumeError::NotFound`], [`VolumeError::NotFolder`], [`VolumeError::Special`],
    /// [`VolumeError::Busy`], or what the system says.
    pub fn resolve(&mut self, path: &VolumePath) -> Result<(EntryName, Option<FileId>), VolumeError> {
        let mut at = self.node(FileId::TOP).at.clone();
        let mut found = Some(FileId::TOP);
        for name in path.names() {
            let folder = found.ok_or_else(|| VolumeError::not_found(path))?;
            if self.node(folder).kind() != Kind::Folder {
                return Err(VolumeError::NotFolder { path: path.to_string() });
            }
            at = EntryName { folder, name: name.to_vec() };
            found = self.entry(path, &at)?;
        }
        Ok((at, found))
    }

    fn entry(&mut self, path: &VolumePath, at: &EntryName) -> Result<Option<FileId>, VolumeError> {
        if let Some(found) = self.overlay.entries.get(at) {
            return Ok(*found);
        }
        let Some(folder) = &self.node(at.folder).disk else {
            return Ok(None);
        };
        let disk = join(folder, &at.name);
        let stat = match self.disk.stat(&disk) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| VolumeError::io("looking at", &disk, error))?,
        };
        if stat.kind == Kind::Special {
            return Err(VolumeError::Special { path: path.to_string() });
        }
        let Seen { file, version } = self.table.seen(&stat);
        if self.overlay.nodes.contains_key(&file) && (stat.kind == Kind::Folder || stat.links < 2) {
            // One inode at two places, and no hard link: somebody moves files while we look.
            return Err(VolumeError::Busy { path: path.to_string() });
        }
        let FileStat { identity, kind, .. } = stat;
        let several = stat.kind != Kind::Folder && stat.links > 1;
        self.records.push(Record::Known { file, at: at.clone(), identity, kind, several });
        let found = || Node::found(&stat, at.clone(), disk, version);
        self.overlay.nodes.entry(file).or_insert_with(found).names.push(at.clone());
        self.overlay.entries.insert(at.clone(), Some(file));
        Ok(Some(file))
    }

    /// Where something can be made.
    ///
    /// # Errors
    /// [`VolumeError::Exists`], or as [`Tree::resolve`].
    pub fn vacant(&mut self, path: &VolumePath) -> Result<EntryName, VolumeError> {
        match self.resolve(path)? {
            (_, Some(_)) => Err(VolumeError::Exists { path: path.to_string() }),
            (at, None) => Ok(at),
        }
    }

    /// Whether the system will let us change this; asked before anything is promised.
    ///
    /// # Errors
    /// [`VolumeError::Denied`], [`VolumeError::Busy`].
    pub fn check_writable(&mut self, path: &VolumePath, file: FileId) -> Result<(), VolumeError> {
        let node = self.overlay.nodes.get_mut(&file).expect("found before");
        if let (Some(disk), false) = (&node.disk, node.rights.writable) {
            self.disk.check_writable(disk, node.kind()).map_err(|source| denied(path, source))?;
            node.rights.writable = true;
        }
        Ok(())
    }

    /// The same of its attributes, and of one more name.
    ///
    /// # Errors
    /// As [`Tree::check_writable`].
    pub fn check_owned(&mut self, path: &VolumePath, file: FileId) -> Result<(), VolumeError> {
        let node = self.overlay.nodes.get_mut(&file).expect("found before");
        if let (Some(disk), false) = (&node.disk, node.rights.owned) {
            self.disk.check_owned(disk).map_err(|source| denied(path, source))?;
            node.rights.owned = true;
        }
        Ok(())
    }

    /// The same of a name that goes.
    ///
    /// # Errors
    /// As [`Tree::check_writable`].
    pub fn check_removable(&self, path: &VolumePath, folder: FileId, file: FileId) -> Result<(), VolumeError> {
        let [folder, file] = [folder, file].map(|id| self.node(id).disk.as_deref());
        self.disk.check_removable(folder, file).map_err(|source| denied(path, source))
    }

    /// The same of a name that goes while others may stay: a recovery gives the file one more,
    /// which Linux allows the owner.
    ///
    /// # Errors
    /// As [`Tree::check_writable`].
    pub fn check_linked(&mut self, path: &VolumePath, file: FileId) -> Result<(), VolumeError> {
        if self.node(file).links > 1 { self.check_owned(path, file) } else { Ok(()) }
    }

    /// Whether this is a folder that will be empty.
    ///
    /// # Errors
    /// [`VolumeError::NotFolder`], [`VolumeError::NotEmpty`], or what the system says.
    pub fn check_empty_folder(&self, path: &VolumePath, folder: FileId) -> Result<(), VolumeError> {
        let node = self.node(folder);
        if node.kind() != Kind::Folder {
            return Err(VolumeError::NotFolder { path: path.to_string() });
        }
        let entries = &self.overlay.entries;
        let mut empty = !entries.iter().any(|(at, found)| at.folder == folder && found.is_some());
        if let Some(disk) = &node.disk {
            let listed = self.disk.list(disk, &mut |name, _| {
                let gone = entries.get(&EntryName { folder, name: name.to_vec() }) == Some(&None);
                empty &= gone;
                empty
            });
            listed.map_err(|error| VolumeError::io("listing", disk, error))?;
        }
        if empty { Ok(()) } else { Err(VolumeError::NotEmpty { path: path.to_string() }) }
    }

    /// Gives something new an id and its name. The caller records how it is made.
    pub fn make(&mut self, at: EntryName, inode: Inode) -> FileId {
        let file = FileId(self.table.next);
        self.table.next += 1;
        self.overlay.needs.files += 1;
        self.overlay.needs.bytes += NAME_ROOM_BYTES;
        self.overlay.nodes.insert(file, Node::made(inode, at.clone()));
        self.overlay.entries.insert(at, Some(file));
        file
    }

    /// Gives a file one more name.
    pub fn link(&mut self, file: FileId, at: EntryName) {
        self.overlay.needs.bytes += 2 * NAME_ROOM_BYTES;
        let node = self.node_mut(file);
        node.links += 1;
        node.names.push(at.clone());
        self.overlay.entries.insert(at.clone(), Some(file));
        self.records.push(Record::HardLink { file, at });
    }

    /// Removes one of several names of a file.
    pub fn unlink(&mut self, at: EntryName, file: FileId) {
        let node = self.node_mut(file);
        node.links -= 1;
        node.names.retain(|name| *name != at);
        if let Some(other) = node.names.last() {
            node.at = other.clone();
        }
        let version = node.version;
        self.overlay.entries.insert(at.clone(), None);
        self.records.push(Record::Unlink { file, at, version });
    }

    /// Removes a file with its last name.
    pub fn remove(&mut self, at: EntryName, file: FileId) {
        self.end(file);
        self.overlay.entries.insert(at.clone(), None);
        self.records.push(Record::Gone { file, at });
    }

    /// Renames a file. What is replaced is removed; it has no other name.
    pub fn rename(&mut self, file: FileId, from: EntryName, to: EntryName, replaced: Option<FileId>) {
        if let Some(replaced) = replaced {
            self.end(replaced);
        }
        let node = self.node_mut(file);
        node.at = to.clone();
        node.names.retain(|name| *name != from);
        node.names.push(to.clone());
        self.overlay.entries.insert(from.clone(), None);
        self.overlay.entries.insert(to.clone(), Some(file));
        self.overlay.needs.bytes += 2 * NAME_ROOM_BYTES;
        self.records.push(Record::Move { file, from, to, replaced });
    }

    fn end(&mut self, file: FileId) {
        let node = self.overlay.nodes.get_mut(&file).expect("found before");
        (node.alive, node.links) = (false, 0);
        node.names.clear();
        if node.kind() == Kind::File {
            self.overlay.needs.size_change -= node.size as i64;
        }
    }

    /// Writes bytes; the file becomes longer if it must.
    ///
    /// # Errors
    /// [`VolumeError::TooLarge`].
    pub fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        let end = offset.saturating_add(bytes.len() as u64);
        if bytes.is_empty() {
            return Ok(());
        }
        if end > self.node(file).size {
            self.resize(file, end)?;
        }
        // Whole blocks of the file system at both ends, and one of its tables for each 2 MiB
        // and at both ends.
        let count = bytes.len() as u64;
        self.overlay.needs.bytes += count.next_multiple_of(4096) + 4096 * (4 + count / (2 << 20));
        self.records.push(Record::Write { file, offset, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Cuts a file, or extends it with a hole.
    ///
    /// # Errors
    /// [`VolumeError::TooLarge`].
    pub fn set_size(&mut self, file: FileId, size: u64) -> Result<(), VolumeError> {
        self.resize(file, size)?;
        self.records.push(Record::Size { file, size });
        Ok(())
    }

    fn resize(&mut self, file: FileId, size: u64) -> Result<(), VolumeError> {
        if size > FILE_BYTES_MAX {
            return Err(VolumeError::TooLarge { what: "bytes of a file", found: size, limit: FILE_BYTES_MAX });
        }
        let node = self.overlay.nodes.get_mut(&file).expect("found before");
        self.overlay.needs.size_change += size as i64 - node.size as i64;
        node.size = size;
        Ok(())
    }

    /// The version of a file, to be counted up.
    pub fn version_mut(&mut self, file: FileId) -> &mut u64 {
        &mut self.node_mut(file).version
    }

    /// Sets the time of the last change, unless the file is removed.
    pub fn set_mtime(&mut self, file: FileId, mtime_ns: i64) {
        if self.node(file).alive {
            self.node_mut(file).mtime_ns = mtime_ns;
            self.records.push(Record::Time { file, mtime_ns });
        }
    }

    /// Sets the time of the last access.
    pub fn set_atime(&mut self, file: FileId, atime_ns: i64) {
        self.node_mut(file).atime_ns = Some(atime_ns);
        self.records.push(Record::AccessTime { file, atime_ns });
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// What the system says.
    pub fn target_of(&self, path: &VolumePath, file: FileId) -> Result<Vec<u8>, VolumeError> {
        let node = self.node(file);
        match &node.disk {
            Some(disk) => self.disk.read_link(disk).map_err(|error| VolumeError::io("reading", path.as_bytes(), error)),
            None => Ok(node.target.clone()),
        }
    }

    /// Says where a symbolic link points that a record makes.
    pub fn set_target(&mut self, file: FileId, target: Vec<u8>) {
        self.node_mut(file).target = target;
    }

    /// Sets the permission bits.
    pub fn set_mode(&mut self, file: FileId, mode: u16) {
        self.node_mut(file).inode.mode = mode;
        self.records.push(Record::Mode { file, mode });
    }

    /// Sets the owner. The caller records it: a symbolic link is made anew.
    pub fn set_owner(&mut self, file: FileId, owner: Owner) {
        self.node_mut(file).inode.owner = owner;
    }

    /// The extended attributes of a file.
    ///
    /// # Errors
    /// What the system says.
    pub fn xattrs(&self, file: FileId) -> io::Result<Arc<Xattrs>> {
        let node = self.node(file);
        match (&node.xattrs, &node.disk) {
            (NodeXattrs::Set(known), _) => Ok(known.clone()),
            (_, Some(disk)) => Ok(Arc::new(self.disk.xattrs(disk)?)),
            (_, None) => Ok(Arc::default()),
        }
    }

    /// Gives a file an attribute; `xattrs` are all that it has then.
    pub fn set_xattr(&mut self, file: FileId, xattrs: Arc<Xattrs>, name: &[u8], value: Vec<u8>) {
        self.node_mut(file).xattrs = NodeXattrs::Set(xattrs);
        self.records.push(Record::SetXattr { file, name: name.to_vec(), value });
    }

    /// Takes an attribute from those that a file has; false if there is none.
    pub fn remove_xattr(&mut self, file: FileId, mut xattrs: Arc<Xattrs>, name: &[u8]) -> bool {
        let removed = Arc::make_mut(&mut xattrs).remove(name).is_some();
        if removed {
            self.node_mut(file).xattrs = NodeXattrs::Set(xattrs);
            self.records.push(Record::RemoveXattr { file, name: name.to_vec() });
        }
        removed
    }
}

/// What the system said to a question that is asked before anything is promised.
fn denied(path: &VolumePath, source: io::Error) -> VolumeError {
    match source.kind() {
        io::ErrorKind::NotFound => VolumeError::Busy { path: path.to_string() },
        _ => VolumeError::Denied { path: path.to_string(), source },
    }
}
