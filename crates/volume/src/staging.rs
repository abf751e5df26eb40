//! Staging: checks transactions against the files and turns them into records. Nothing on the disk
//! changes here.
//!
//! One staging serves one group commit. It looks at the files through a tree that shows them as the
//! records so far will leave them. So transactions of one group may build on each other. A
//! transaction that fails leaves the tree as it was.

mod making;
mod naming;
mod node;
mod ranges;
mod running;
mod tree;
mod xattrs;

use crate::disk::{Disk, Kind};
use crate::lease::Leases;
use crate::record::{EntryName, Record};
use crate::reserve::RangeSupport;
use crate::table::Table;
use crate::transaction::OPERATIONS_MAX;
use crate::{Committed, FileId, Operation, Seen, Transaction, VolumeError, VolumePath, Writer};

use running::Running;
use tree::{NAME_ROOM_BYTES, Tree};

pub use tree::FILE_BYTES_MAX;
pub(crate) use tree::Needs;

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
    /// It is on stable storage, not in the group that is being staged.
    pub durable: bool,
}

/// The transactions of one group commit.
///
/// The records of the tree are those of the transactions that were added, in order, and of the one
/// that runs.
pub(crate) struct Staging<'a> {
    leases: &'a Leases,
    limits: Limits,
    tree: Tree<'a>,
    /// What the transactions that name their writer will be answered.
    answers: Vec<(Writer, Committed)>,
    running: Running,
}

impl<'a> Staging<'a> {
    /// An empty group on the files as they are.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        disk: &'a dyn Disk,
        leases: &'a Leases,
        table: &'a mut Table,
        limits: Limits,
    ) -> Result<Staging<'a>, VolumeError> {
        let tree = Tree::new(disk, table)?;
        Ok(Staging { leases, limits, tree, answers: Vec::new(), running: Running::default() })
    }

    /// What applying all records may need.
    pub fn needs(&self) -> Needs {
        self.tree.needs()
    }

    /// The records of all transactions that were added.
    pub fn records(&self) -> &[Record] {
        self.tree.records()
    }

    /// The records.
    pub fn into_records(self) -> Vec<Record> {
        self.tree.into_records()
    }

    /// What a transaction was answered that is on stable storage or in this group already.
    ///
    /// # Errors
    /// [`VolumeError::Outdated`].
    pub fn repeated(&self, writer: Writer) -> Result<Option<Repeated>, VolumeError> {
        let mut last = None;
        for (other, committed) in self.answers.iter().filter(|(other, _)| other.device == writer.device) {
            if other.number == writer.number {
                return Ok(Some(Repeated { committed: committed.clone(), durable: false }));
            }
            last = last.max(Some(other.number));
        }
        if let Some(committed) = self.tree.table().answers.find(writer)? {
            return Ok(Some(Repeated { committed, durable: true }));
        }
        match last {
            Some(last) if last > writer.number => Err(VolumeError::Outdated { number: writer.number, last }),
            _ => Ok(None),
        }
    }

    /// Adds a transaction, or on error nothing; `fits` may still refuse what it needs.
    ///
    /// # Errors
    /// Why the transaction cannot be committed.
    pub fn add(
        &mut self,
        transaction: &Transaction,
        fits: impl FnOnce(Needs, &[Record]) -> Result<(), VolumeError>,
    ) -> Result<Committed, VolumeError> {
        let before = self.tree.mark();
        let result = self.stage(transaction).and_then(|committed| {
            let peer = transaction.peer;
            let answers = &self.tree.table().answers;
            if let Some((device, from)) = transaction.inherits.filter(|(id, from)| answers.can_inherit(*id, *from)) {
                self.tree.record(Record::Inherit { device, peer, from });
            }
            if let Some(writer) = transaction.writer {
                self.tree.record(Record::Answer { writer, peer, versions: committed.versions.clone() });
            }
            fits(self.needs(), self.records())?;
            self.answers.extend(transaction.writer.map(|writer| (writer, committed.clone())));
            Ok(committed)
        });
        if result.is_err() {
            self.tree.roll_back(before);
        }
        result
    }

    fn stage(&mut self, transaction: &Transaction) -> Result<Committed, VolumeError> {
        let count = transaction.operations.len();
        if count > OPERATIONS_MAX {
            let (found, limit) = (count as u64, OPERATIONS_MAX as u64);
            return Err(VolumeError::TooLarge { what: "operations of a transaction", found, limit });
        }
        self.running = Running::new(self.records().len());
        let mut about = Vec::with_capacity(count);
        for operation in &transaction.operations {
            about.push(self.operation(operation, transaction)?);
        }
        for (file, mtime_ns) in self.running.take_times() {
            self.tree.set_mtime(file, mtime_ns);
        }
        for file in self.running.touched() {
            let node = self.tree.node(file);
            // What has only unknown names left got its version with the last known one.
            if node.alive && (file == FileId::TOP || !node.names.is_empty()) {
                let version = node.version;
                self.tree.record(Record::Version { file, version });
            }
        }
        let versions = about.into_iter().map(|file| Seen { file, version: self.tree.node(file).version });
        Ok(Committed { versions: versions.collect() })
    }

    /// Stages an operation; tells which file it is about.
    fn operation(&mut self, operation: &Operation, from: &Transaction) -> Result<FileId, VolumeError> {
        match operation {
            Operation::Write { path, base, offset, bytes } => {
                let file = self.file(path, base, from)?;
                self.write(file, *offset, bytes, from)
            }
            Operation::Append { path, base, bytes } => {
                let file = self.file(path, base, from)?;
                self.write(file, self.tree.node(file).size, bytes, from)
            }
            Operation::Truncate { path, base, size } => {
                let file = self.file(path, base, from)?;
                if *size > self.tree.node(file).size {
                    self.tree.need_bytes(NAME_ROOM_BYTES);
                }
                self.tree.set_size(file, *size)?;
                self.running.set_time(file, from.mtime_ns);
                Ok(self.change(file))
            }
            Operation::Allocate { .. } | Operation::Copy { .. } => self.range(operation, from),
            Operation::Create { .. }
            | Operation::MakeFolder { .. }
            | Operation::MakeNode { .. }
            | Operation::MakeLink { .. } => self.make(operation, from),
            Operation::Link { .. }
            | Operation::Rename { .. }
            | Operation::Unlink { .. }
            | Operation::OnlyName { .. }
            | Operation::RemoveFolder { .. } => self.name(operation, from),
            Operation::SetTime { .. }
            | Operation::SetAccessTime { .. }
            | Operation::SetOwner { .. }
            | Operation::SetMode { .. } => self.set(operation, from),
            Operation::SetXattr { path, base, name, value, how } => {
                self.set_xattr((path, base), (name, value), *how, from)
            }
            Operation::RemoveXattr { path, base, name } => self.remove_xattr((path, base), name, from),
        }
    }

    /// The regular file at `path`, which may be written.
    fn file(&mut self, path: &VolumePath, base: &Option<Seen>, from: &Transaction) -> Result<FileId, VolumeError> {
        let (_, file) = self.target(path, base, from)?;
        if self.tree.node(file).kind() != Kind::File {
            return Err(VolumeError::NotFile { path: path.to_string() });
        }
        self.tree.check_writable(path, file)?;
        // Its time is set, too.
        self.tree.check_owned(path, file)?;
        Ok(file)
    }

    /// What is at `path`, to be changed by this writer.
    fn target(
        &mut self,
        path: &VolumePath,
        base: &Option<Seen>,
        from: &Transaction,
    ) -> Result<(EntryName, FileId), VolumeError> {
        if path.is_top() {
            return Err(VolumeError::Invalid { path: path.to_string(), why: "the top folder stays as it is" });
        }
        let (at, found) = self.tree.resolve(path)?;
        let now = found.map(|file| {
            let version = self.running.version_before(file, self.tree.node(file).version);
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

    /// What is at `path`, of which attributes are changed.
    fn attributes(
        &mut self,
        path: &VolumePath,
        base: &Option<Seen>,
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        let (_, file) = self.target(path, base, from)?;
        self.tree.check_writable(path, file)?;
        self.tree.check_owned(path, file)?;
        self.tree.need_bytes(NAME_ROOM_BYTES);
        Ok(self.change(file))
    }

    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8], from: &Transaction) -> Result<FileId, VolumeError> {
        self.tree.write(file, offset, bytes)?;
        self.running.set_time(file, from.mtime_ns);
        Ok(self.change(file))
    }

    /// Counts a change of the file's content or attributes.
    fn change(&mut self, file: FileId) -> FileId {
        self.running.change(file, self.tree.version_mut(file));
        file
    }

    fn change_folder(&mut self, path: &VolumePath, folder: FileId) -> Result<(), VolumeError> {
        self.tree.check_writable(path, folder)?;
        self.change(folder);
        Ok(())
    }
}
