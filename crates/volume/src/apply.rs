//! Applies records to the plain files, in order, on a disk that is as it was when they were staged.

use std::collections::HashMap;
use std::io;

use crate::disk::{Disk, DiskFile, Owner, is_full};
use crate::path::join;
use crate::record::{EntryName, Record};
use crate::table::{Table, Tracked};
use crate::{FileId, Inode, Kind};

/// Applies the records of one frame.
pub(crate) struct Applier<'a> {
    disk: &'a dyn Disk,
    /// Names of the files in the records.
    names: HashMap<FileId, Vec<EntryName>>,
    /// The file that was written last: the next record is most often about it.
    open: Option<(FileId, Box<dyn DiskFile>)>,
}

impl<'a> Applier<'a> {
    pub fn new(disk: &'a dyn Disk) -> Applier<'a> {
        Applier { disk, names: HashMap::new(), open: None }
    }

    /// Applies all records, or tells how many were. `make_room` is called when the disk is full,
    /// and the record then tried again, once.
    pub fn apply(
        &mut self,
        records: &[Record],
        sequence: u64,
        table: &mut Table,
        make_room: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<(), (usize, io::Error)> {
        for (index, record) in records.iter().enumerate() {
            let done = match self.one(record, sequence, table) {
                Err(error) if is_full(&error) => {
                    self.open = None;
                    make_room().and_then(|()| self.one(record, sequence, table))
                }
                other => other,
            };
            done.map_err(|error| (index, error))?;
        }
        Ok(())
    }

    fn one(&mut self, record: &Record, sequence: u64, table: &mut Table) -> io::Result<()> {
        match record {
            Record::Known { file, at, .. } => {
                let names = self.names.entry(*file).or_default();
                if !names.contains(at) {
                    names.push(at.clone());
                }
            }
            Record::New { file, at, kind, mode } => {
                let path = self.path_of(at)?;
                if *kind == Kind::Folder {
                    self.disk.make_folder(&path, *mode)?;
                } else {
                    self.open = Some((*file, self.disk.create(&path, *mode)?));
                }
                self.names.insert(*file, vec![at.clone()]);
            }
            Record::Link { file, at, target } => {
                self.disk.make_link(&self.path_of(at)?, target)?;
                self.names.insert(*file, vec![at.clone()]);
            }
            Record::LinkOwned { file, at, owner, target } => {
                self.replace_link(&self.path_of(at)?, *owner, target)?;
                self.names.insert(*file, vec![at.clone()]);
            }
            Record::Node { file, at, kind, mode, rdev } => {
                let inode = Inode { kind: *kind, mode: *mode, owner: self.disk.owner(), rdev: *rdev };
                self.disk.make_node(&self.path_of(at)?, &inode, &[])?;
                self.names.insert(*file, vec![at.clone()]);
            }
            Record::HardLink { file, at } => {
                self.disk.hard_link(&self.path(*file)?, &self.path_of(at)?)?;
                self.names.entry(*file).or_default().push(at.clone());
            }
            Record::Unlink { file, at, version } => self.unlink(*file, at, *version, sequence, table)?,
            Record::Move { file, from, to, replaced } => {
                self.rename(*file, from, to)?;
                replaced.iter().for_each(|replaced| table.remove(*replaced));
            }
            Record::Gone { file, at } => {
                let path = self.path_of(at)?;
                match self.disk.unlink(&path) {
                    Err(error) if error.kind() == io::ErrorKind::IsADirectory => self.disk.remove_folder(&path)?,
                    other => drop(other?),
                }
                table.remove(*file);
            }
            Record::Write { file, offset, bytes } => self.writable(*file)?.write_at(*offset, bytes)?,
            Record::Size { file, size } => self.writable(*file)?.set_size(*size)?,
            Record::Reserve { file, offset, length } => self.writable(*file)?.allocate(*offset, *length)?,
            Record::Zero { file, offset, length, reserved } => {
                self.writable(*file)?.zero(*offset, *length, *reserved)?;
            }
            Record::Time { file, mtime_ns } => self.disk.set_mtime(&self.path(*file)?, *mtime_ns)?,
            Record::AccessTime { file, atime_ns } => self.disk.set_atime(&self.path(*file)?, *atime_ns)?,
            Record::Mode { file, mode } => self.disk.set_mode(&self.path(*file)?, *mode)?,
            Record::Owner { file, owner, mode } => self.disk.set_owner(&self.path(*file)?, *owner, *mode)?,
            Record::SetXattr { file, name, value } => {
                self.disk.set_xattr(&self.path(*file)?, name, Some(value))?;
            }
            Record::RemoveXattr { file, name } => self.disk.set_xattr(&self.path(*file)?, name, None)?,
            Record::Answer { .. } | Record::Inherit { .. } => table.note(record),
            Record::Version { file, version } => {
                let stat = self.disk.stat(&self.path(*file)?)?;
                // Later than staged: somebody changed the file behind our back while this was on
                // its way to the journal, and a reader saw it. That was a version of its own.
                let seen = table.get(*file).map_or(0, |tracked| tracked.version);
                let version = if seen > *version { seen + 1 } else { *version };
                table.insert(*file, Tracked { identity: stat.identity, version, stamp: stat.stamp, changed: sequence });
            }
        }
        Ok(())
    }

    /// Makes a symbolic link, in the place of the one that is there.
    fn replace_link(&self, path: &[u8], owner: Owner, target: &[u8]) -> io::Result<()> {
        match make_link(self.disk, path, owner, target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.disk.unlink(path)?;
                make_link(self.disk, path, owner, target)
            }
            other => other,
        }
    }

    fn rename(&mut self, file: FileId, from: &EntryName, to: &EntryName) -> io::Result<()> {
        self.disk.rename(&self.path_of(from)?, &self.path_of(to)?)?;
        let names = self.names.entry(file).or_default();
        names.retain(|name| name != from);
        names.push(to.clone());
        Ok(())
    }

    /// Removes one of several names.
    fn unlink(
        &mut self,
        file: FileId,
        at: &EntryName,
        version: u64,
        sequence: u64,
        table: &mut Table,
    ) -> io::Result<()> {
        let path = self.path_of(at)?;
        let names = self.names.entry(file).or_default();
        names.retain(|name| name != at);
        // After a crash a recovery may not find the file under another name: what the journal says
        // of it must not be needed.
        if names.is_empty() && table.get(file).is_some_and(|tracked| tracked.changed > table.sequence) {
            self.disk.sync_file(&path)?;
        }
        let stat = self.disk.unlink(&path)?;
        table.insert(file, Tracked { identity: stat.identity, version, stamp: stat.stamp, changed: sequence });
        Ok(())
    }

    fn writable(&mut self, file: FileId) -> io::Result<&dyn DiskFile> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != file) {
            let path = self.path(file)?;
            self.open = Some((file, open_for_writing(self.disk, &path)?));
        }
        match &self.open {
            Some((_, open)) => Ok(open.as_ref()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn path(&self, file: FileId) -> io::Result<Vec<u8>> {
        if file == FileId::TOP {
            return Ok(Vec::new());
        }
        match self.names.get(&file).and_then(|names| names.last()) {
            Some(at) => self.path_of(at),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "a record names a file that none introduces")),
        }
    }

    fn path_of(&self, at: &EntryName) -> io::Result<Vec<u8>> {
        Ok(join(&self.path(at.folder)?, &at.name))
    }
}

/// Whether a record changes what is in an open file, or its room.
pub(crate) fn is_of_content(record: &Record) -> bool {
    matches!(record, Record::Write { .. } | Record::Size { .. } | Record::Zero { .. } | Record::Reserve { .. })
}

/// Repeats such a record after a crash. Room that others have taken since is not kept; the content
/// needs none of it.
pub(crate) fn redo_content(open: &dyn DiskFile, record: &Record) -> io::Result<()> {
    match record {
        Record::Write { offset, bytes, .. } => open.write_at(*offset, bytes),
        Record::Size { size, .. } => open.set_size(*size),
        Record::Zero { offset, length, reserved, .. } => match open.zero(*offset, *length, *reserved) {
            Err(error) if *reserved && is_full(&error) => open.zero(*offset, *length, false),
            other => other,
        },
        Record::Reserve { offset, length, .. } => match open.allocate(*offset, *length) {
            Err(error) if is_full(&error) => Ok(()),
            other => other,
        },
        _ => Ok(()),
    }
}

/// Makes a symbolic link: one of the file system if its owner is the one that all files here have.
pub(crate) fn make_link(disk: &dyn Disk, path: &[u8], owner: Owner, target: &[u8]) -> io::Result<()> {
    if owner == disk.owner() {
        return disk.make_link(path, target);
    }
    disk.make_node(path, &Inode { kind: Kind::Symlink, mode: 0o777, owner, rdev: 0 }, target)
}

/// Opens a file for writing even if its permission bits keep its owner from it: they were checked,
/// or made, by the transaction that is applied.
pub(crate) fn open_for_writing(disk: &dyn Disk, path: &[u8]) -> io::Result<Box<dyn DiskFile>> {
    match disk.open(path, true) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mode = disk.stat(path)?.mode;
            disk.set_mode(path, mode | 0o600)?;
            let file = disk.open(path, true);
            disk.set_mode(path, mode)?;
            file
        }
        other => other,
    }
}
