//! Planning: transactions against what the files hold, checked and turned into records. Nothing is changed here.
//!
//! A plan serves one group commit. It looks at the disk through an overlay of what the transactions planned so far will
//! have done, so transactions of one group may build on each other. One that fails leaves the overlay as it was.

mod making;
mod naming;
mod ranges;
mod xattrs;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use crate::disk::{Disk, FileStat, Kind, Owner};
use crate::lease::Leases;
use crate::path::join;
use crate::record::{Place, Record};
use crate::reserve::RangeSupport;
use crate::table::Table;
use crate::transaction::OPERATIONS_MAX;
use crate::xattrs::Xattrs;
use crate::{Committed, FileId, Operation, Seen, Transaction, VolumeError, VolumePath, Writer};

/// Longest file that a transaction can make, bytes: what every file system of today can hold.
pub const FILE_BYTES_MAX: u64 = 1 << 42;

/// Room that a change of a name may need on the disk, bytes: a block of the folder, one of its index, one of the inode.
const NAME_ROOM_BYTES: u64 = 3 * 4096;

/// A file that the plan has met.
#[derive(Clone, Debug)]
struct Node {
    kind: Kind,
    at: Place,
    /// Where it lies before the group is applied; `None` if the group makes it.
    disk: Option<Vec<u8>>,
    alive: bool,
    size: u64,
    /// What it took on the disk before the group.
    stored_bytes: u64,
    links: u32,
    version: u64,
    writable: bool,
    /// Its attributes may be set.
    owned: bool,
    mode: u16,
    owner: Owner,
    /// Where a symbolic link points that this group makes.
    target: Vec<u8>,
    mtime_ns: i64,
    /// Unless it is made by this group, and nobody set it.
    atime_ns: Option<i64>,
    /// Its names, as far as the group knows them.
    names: Vec<Place>,
    /// Its extended attributes, once somebody changed them; until then those on the disk.
    xattrs: Option<Arc<Xattrs>>,
    /// It may have some.
    has_xattrs: bool,
}

/// What may be needed to apply the group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Bytes on the disk, at most.
    pub bytes: u64,
    /// Inodes.
    pub files: u64,
    /// Change of the sum of all file sizes.
    pub size_change: i64,
}

/// What a volume allows, and its file system can.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most bytes of all files together.
    pub quota_bytes: Option<u64>,
    /// What its file system can do with ranges.
    pub ranges: RangeSupport,
}

/// The answer to a transaction that came before.
pub(crate) struct Repeated {
    pub committed: Committed,
    /// It is on stable storage, not in the group that is being planned.
    pub durable: bool,
}

#[derive(Clone, Default)]
struct Overlay {
    nodes: HashMap<FileId, Node>,
    entries: HashMap<Place, Option<FileId>>,
    needs: Needs,
}

/// The plan of one group.
pub(crate) struct Plan<'a> {
    disk: &'a dyn Disk,
    leases: &'a Leases,
    table: &'a mut Table,
    limits: Limits,
    overlay: Overlay,
    pub records: Vec<Record>,
    /// What the transactions of this group that name their writer will be answered.
    answers: Vec<(Writer, Committed)>,
    /// Files that the running transaction changes, with the version from before it.
    changed: HashMap<FileId, u64>,
    /// Files with a name that the running transaction changes; their content stays.
    moved: HashSet<FileId>,
    /// Times that files get at the end of the running transaction.
    times: BTreeMap<FileId, i64>,
    /// Where the records of the running transaction begin.
    from_record: usize,
    /// Bytes that it copies.
    copied: u32,
}

impl<'a> Plan<'a> {
    pub fn new(
        disk: &'a dyn Disk,
        leases: &'a Leases,
        table: &'a mut Table,
        limits: Limits,
    ) -> Result<Plan<'a>, VolumeError> {
        let stat = disk.stat(b"").map_err(|error| VolumeError::io("looking at", b"", error))?;
        let version = table.seen(&stat).version;
        let at = Place { folder: FileId::TOP, name: Vec::new() };
        let mut overlay = Overlay::default();
        overlay.nodes.insert(FileId::TOP, Node::met(&stat, at, Vec::new(), version));
        Ok(Plan {
            disk,
            leases,
            table,
            limits,
            overlay,
            records: Vec::new(),
            answers: Vec::new(),
            changed: HashMap::new(),
            moved: HashSet::new(),
            times: BTreeMap::new(),
            from_record: 0,
            copied: 0,
        })
    }

    /// What applying all records may need.
    pub fn needs(&self) -> Needs {
        self.overlay.needs
    }

    /// What a transaction was answered that is on stable storage or in this group already.
    pub fn repeated(&self, writer: Writer) -> Result<Option<Repeated>, VolumeError> {
        let mut last = None;
        for (other, committed) in self.answers.iter().filter(|(other, _)| other.device == writer.device) {
            if other.number == writer.number {
                return Ok(Some(Repeated { committed: committed.clone(), durable: false }));
            }
            last = last.max(Some(other.number));
        }
        if let Some(committed) = self.table.answers.find(writer)? {
            return Ok(Some(Repeated { committed, durable: true }));
        }
        match last {
            Some(last) if last > writer.number => Err(VolumeError::Outdated { number: writer.number, last }),
            _ => Ok(None),
        }
    }

    /// Adds a transaction, or on error nothing; `fits` may still refuse what it needs.
    pub fn add(
        &mut self,
        transaction: &Transaction,
        fits: impl FnOnce(Needs, &[Record]) -> Result<(), VolumeError>,
    ) -> Result<Committed, VolumeError> {
        let before = (self.overlay.clone(), self.records.len(), self.table.next);
        let result = self.plan(transaction).and_then(|committed| {
            let peer = transaction.peer;
            if let Some((device, from)) =
                transaction.inherits.filter(|(id, from)| self.table.answers.can_inherit(*id, *from))
            {
                self.records.push(Record::Inherit { device, peer, from });
            }
            if let Some(writer) = transaction.writer {
                self.records.push(Record::Answer { writer, peer, versions: committed.versions.clone() });
            }
            fits(self.overlay.needs, &self.records)?;
            self.answers.extend(transaction.writer.map(|writer| (writer, committed.clone())));
            Ok(committed)
        });
        if result.is_err() {
            let (overlay, records, next) = before;
            self.overlay = overlay;
            self.records.truncate(records);
            self.table.next = next;
        }
        result
    }

    fn plan(&mut self, transaction: &Transaction) -> Result<Committed, VolumeError> {
        let count = transaction.operations.len();
        if count > OPERATIONS_MAX {
            let (found, limit) = (count as u64, OPERATIONS_MAX as u64);
            return Err(VolumeError::TooLarge { what: "operations of a transaction", found, limit });
        }
        self.changed.clear();
        self.moved.clear();
        self.times.clear();
        (self.from_record, self.copied) = (self.records.len(), 0);
        let mut about = Vec::with_capacity(count);
        for operation in &transaction.operations {
            about.push(self.operation(operation, transaction)?);
        }
        for (file, mtime_ns) in std::mem::take(&mut self.times) {
            if let Some(node) = self.overlay.nodes.get_mut(&file).filter(|node| node.alive) {
                node.mtime_ns = mtime_ns;
                self.records.push(Record::Time { file, mtime_ns });
            }
        }
        let mut touched: Vec<FileId> = self.changed.keys().chain(&self.moved).copied().collect();
        touched.sort_unstable();
        touched.dedup();
        for file in touched {
            let node = &self.overlay.nodes[&file];
            // What has only unknown names left got its version with the last known one.
            if node.alive && (file == FileId::TOP || !node.names.is_empty()) {
                self.records.push(Record::Version { file, version: node.version });
            }
        }
        let versions = about.into_iter().map(|file| Seen { file, version: self.overlay.nodes[&file].version });
        Ok(Committed { versions: versions.collect() })
    }

    fn operation(&mut self, operation: &Operation, from: &Transaction) -> Result<FileId, VolumeError> {
        match operation {
            Operation::Write { path, base, offset, bytes } => {
                let file = self.file(path, base, from)?;
                self.write(file, *offset, bytes, from)
            }
            Operation::Append { path, base, bytes } => {
                let file = self.file(path, base, from)?;
                self.write(file, self.overlay.nodes[&file].size, bytes, from)
            }
            Operation::Truncate { path, base, size } => {
                let file = self.file(path, base, from)?;
                if *size > self.overlay.nodes[&file].size {
                    self.overlay.needs.bytes += NAME_ROOM_BYTES;
                }
                self.resize(file, *size)?;
                self.records.push(Record::Size { file, size: *size });
                self.times.insert(file, from.mtime_ns);
                Ok(self.change(file))
            }
            Operation::Allocate { .. } | Operation::Copy { .. } => self.range(operation, from),
            Operation::Create { .. }
            | Operation::MakeFolder { .. }
            | Operation::MakeNode { .. }
            | Operation::MakeLink { .. } => self.make(operation, from),
            Operation::Link { from: source, base, to } => self.link(source, base, to, from),
            Operation::Rename { from: source, base, to, replace } => self.rename(source, base, to, *replace, from),
            Operation::Unlink { path, base } => {
                let (at, file) = self.target(path, base, from)?;
                if self.overlay.nodes[&file].kind == Kind::Folder {
                    return Err(VolumeError::NotFile { path: path.to_string() });
                }
                self.remove(path, at, file)
            }
            Operation::OnlyName { path } => match self.resolve(path)?.1 {
                Some(file) if self.overlay.nodes[&file].links > 1 => {
                    Err(VolumeError::Linked { path: path.to_string() })
                }
                found => Ok(found.unwrap_or(FileId::TOP)),
            },
            Operation::RemoveFolder { path } => {
                let (at, file) = self.target(path, &None, from)?;
                self.check_empty_folder(path, file)?;
                self.remove(path, at, file)
            }
            Operation::SetTime { path, base, mtime_ns } => {
                let file = self.attributes(path, base, from)?;
                self.times.insert(file, *mtime_ns);
                Ok(file)
            }
            Operation::SetAccessTime { path, base, atime_ns } => {
                let file = self.attributes(path, base, from)?;
                self.records.push(Record::AccessTime { file, atime_ns: *atime_ns });
                if let Some(node) = self.overlay.nodes.get_mut(&file) {
                    node.atime_ns = Some(*atime_ns);
                }
                Ok(file)
            }
            Operation::SetOwner { path, base, uid, gid } => self.set_owner(path, base, (*uid, *gid), from),
            Operation::SetMode { path, base, mode } => {
                let mode = self.kept_mode(path, *mode)?;
                let file = self.attributes(path, base, from)?;
                if self.overlay.nodes[&file].kind == Kind::Symlink {
                    return Err(VolumeError::NotFile { path: path.to_string() });
                }
                self.set_mode(file, mode);
                self.chmod_acl(path, file, mode)?;
                Ok(file)
            }
            Operation::SetXattr { path, base, name, value, how } => {
                self.set_xattr((path, base), (name, value), *how, from)
            }
            Operation::RemoveXattr { path, base, name } => self.remove_xattr((path, base), name, from),
        }
    }

    /// The regular file at `path`, which may be written.
    fn file(&mut self, path: &VolumePath, base: &Option<Seen>, from: &Transaction) -> Result<FileId, VolumeError> {
        let (_, file) = self.target(path, base, from)?;
        if self.overlay.nodes[&file].kind != Kind::File {
            return Err(VolumeError::NotFile { path: path.to_string() });
        }
        self.check_writable(path, file)?;
        // Its time is set, too.
        self.check_owned(path, file)?;
        Ok(file)
    }

    /// What is at `path`, to be changed by this writer.
    fn target(
        &mut self,
        path: &VolumePath,
        base: &Option<Seen>,
        from: &Transaction,
    ) -> Result<(Place, FileId), VolumeError> {
        if path.is_top() {
            return Err(VolumeError::Invalid { path: path.to_string(), why: "the top folder stays as it is" });
        }
        let (at, found) = self.resolve(path)?;
        let now = found.map(|file| {
            let version = self.changed.get(&file).copied().unwrap_or(self.overlay.nodes[&file].version);
            Seen { file, version }
        });
        match (base, now) {
            (Some(base), found) if !found.is_some_and(|found| base.is(found)) => {
                Err(VolumeError::Conflict { path: path.to_string(), found })
            }
            (_, None) => Err(VolumeError::not_found(path)),
            (_, Some(seen)) => {
                self.leases.check(seen.file, from.holder, from.now)?;
                Ok((at, seen.file))
            }
        }
    }

    fn attributes(
        &mut self,
        path: &VolumePath,
        base: &Option<Seen>,
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        let (_, file) = self.target(path, base, from)?;
        self.check_writable(path, file)?;
        self.check_owned(path, file)?;
        self.overlay.needs.bytes += NAME_ROOM_BYTES;
        Ok(self.change(file))
    }

    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8], from: &Transaction) -> Result<FileId, VolumeError> {
        let end = offset.saturating_add(bytes.len() as u64);
        if !bytes.is_empty() {
            if end > self.overlay.nodes[&file].size {
                self.resize(file, end)?;
            }
            // Whole blocks of the file system at both ends, and one of its tables for each 2 MiB
            // and at both ends.
            let count = bytes.len() as u64;
            self.overlay.needs.bytes += count.next_multiple_of(4096) + 4096 * (4 + count / (2 << 20));
            self.records.push(Record::Write { file, offset, bytes: bytes.to_vec() });
        }
        self.times.insert(file, from.mtime_ns);
        Ok(self.change(file))
    }

    fn resize(&mut self, file: FileId, size: u64) -> Result<(), VolumeError> {
        if size > FILE_BYTES_MAX {
            return Err(VolumeError::TooLarge { what: "bytes of a file", found: size, limit: FILE_BYTES_MAX });
        }
        let node = self.overlay.nodes.get_mut(&file).expect("resolved before");
        self.overlay.needs.size_change += size as i64 - node.size as i64;
        node.size = size;
        Ok(())
    }

    /// Counts a change of the file's content or attributes: one more version for each transaction.
    fn change(&mut self, file: FileId) -> FileId {
        let node = self.overlay.nodes.get_mut(&file).expect("resolved before");
        if self.changed.insert(file, node.version).is_none() {
            node.version += 1;
        } else {
            // Not the first change: what was recorded first stays.
            self.changed.insert(file, node.version - 1);
        }
        file
    }

    fn change_folder(&mut self, path: &VolumePath, folder: FileId) -> Result<(), VolumeError> {
        self.check_writable(path, folder)?;
        self.change(folder);
        Ok(())
    }

    /// The system will let us change this; asked before anything is promised.
    fn check_writable(&mut self, path: &VolumePath, file: FileId) -> Result<(), VolumeError> {
        let node = self.overlay.nodes.get_mut(&file).expect("resolved before");
        if let (Some(disk), false) = (&node.disk, node.writable) {
            self.disk.check_writable(disk, node.kind).map_err(|source| denied(path, source))?;
            node.writable = true;
        }
        Ok(())
    }

    /// The same of its attributes, and of one more name.
    fn check_owned(&mut self, path: &VolumePath, file: FileId) -> Result<(), VolumeError> {
        let node = self.overlay.nodes.get_mut(&file).expect("resolved before");
        if let (Some(disk), false) = (&node.disk, node.owned) {
            self.disk.check_owned(disk).map_err(|source| denied(path, source))?;
            node.owned = true;
        }
        Ok(())
    }

    /// The same of a name that goes.
    fn check_removable(&self, path: &VolumePath, folder: FileId, file: FileId) -> Result<(), VolumeError> {
        let [folder, file] = [folder, file].map(|id| self.overlay.nodes[&id].disk.as_deref());
        self.disk.check_removable(folder, file).map_err(|source| denied(path, source))
    }

    fn check_empty_folder(&mut self, path: &VolumePath, folder: FileId) -> Result<(), VolumeError> {
        let node = &self.overlay.nodes[&folder];
        if node.kind != Kind::Folder {
            return Err(VolumeError::NotFolder { path: path.to_string() });
        }
        let entries = &self.overlay.entries;
        let mut empty = !entries.iter().any(|(at, found)| at.folder == folder && found.is_some());
        if let Some(disk) = &node.disk {
            let listed = self.disk.list(disk, &mut |name, _| {
                let gone = entries.get(&Place { folder, name: name.to_vec() }) == Some(&None);
                empty &= gone;
                empty
            });
            listed.map_err(|error| VolumeError::io("listing", disk, error))?;
        }
        if empty { Ok(()) } else { Err(VolumeError::NotEmpty { path: path.to_string() }) }
    }

    /// Where `path` leads: its last folder and name, and what is there. All folders before must be there.
    fn resolve(&mut self, path: &VolumePath) -> Result<(Place, Option<FileId>), VolumeError> {
        let mut at = self.overlay.nodes[&FileId::TOP].at.clone();
        let mut found = Some(FileId::TOP);
        for name in path.names() {
            let folder = found.ok_or_else(|| VolumeError::not_found(path))?;
            if self.overlay.nodes[&folder].kind != Kind::Folder {
                return Err(VolumeError::NotFolder { path: path.to_string() });
            }
            at = Place { folder, name: name.to_vec() };
            found = self.entry(path, &at)?;
        }
        Ok((at, found))
    }

    fn entry(&mut self, path: &VolumePath, at: &Place) -> Result<Option<FileId>, VolumeError> {
        if let Some(found) = self.overlay.entries.get(at) {
            return Ok(*found);
        }
        let Some(folder) = &self.overlay.nodes[&at.folder].disk else {
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
        let met = || Node::met(&stat, at.clone(), disk, version);
        self.overlay.nodes.entry(file).or_insert_with(met).names.push(at.clone());
        self.overlay.entries.insert(at.clone(), Some(file));
        Ok(Some(file))
    }
}

/// What the system said to a question that is asked before anything is promised.
fn denied(path: &VolumePath, source: io::Error) -> VolumeError {
    match source.kind() {
        io::ErrorKind::NotFound => VolumeError::Busy { path: path.to_string() },
        _ => VolumeError::Denied { path: path.to_string(), source },
    }
}

impl Node {
    fn met(stat: &FileStat, at: Place, disk: Vec<u8>, version: u64) -> Node {
        Node {
            kind: stat.kind,
            at,
            disk: Some(disk),
            alive: true,
            size: stat.stamp.size,
            stored_bytes: stat.stored_bytes,
            // Folders have a link for each folder in them.
            links: if stat.kind == Kind::Folder { 1 } else { stat.links },
            version,
            writable: false,
            owned: false,
            mode: stat.mode,
            owner: stat.owner,
            target: Vec::new(),
            mtime_ns: stat.stamp.mtime_ns,
            atime_ns: Some(stat.atime_ns),
            names: Vec::new(),
            xattrs: None,
            has_xattrs: stat.has_xattrs,
        }
    }
}
