//! Stages changes of names: links, renames, removals.

use super::Staging;
use crate::disk::Kind;
use crate::record::{EntryName, Record};
use crate::{FileId, Operation, Seen, Transaction, VolumeError, VolumePath};

/// Names of a file, at most: what most file systems can hold, with some to spare.
const NAMES_MAX: u32 = 60_000;

impl Staging<'_> {
    /// Stages the operations on names.
    pub(super) fn name(&mut self, operation: &Operation, from: &Transaction) -> Result<FileId, VolumeError> {
        match operation {
            Operation::Link { from: source, base, to } => self.link(source, base, to, from),
            Operation::Rename { from: source, base, to, replace } => self.rename(source, base, to, *replace, from),
            Operation::Unlink { path, base } => {
                let (at, file) = self.target(path, base, from)?;
                if self.tree.node(file).kind() == Kind::Folder {
                    return Err(VolumeError::NotFile { path: path.to_string() });
                }
                self.remove(path, at, file)
            }
            Operation::OnlyName { path } => match self.tree.resolve(path)?.1 {
                Some(file) if self.tree.node(file).links > 1 => Err(VolumeError::Linked { path: path.to_string() }),
                found => Ok(found.unwrap_or(FileId::TOP)),
            },
            Operation::RemoveFolder { path } => {
                let (at, file) = self.target(path, &None, from)?;
                self.tree.check_empty_folder(path, file)?;
                self.remove(path, at, file)
            }
            // Asked of the others by nobody.
            _ => Err(VolumeError::Invalid { path: String::new(), why: "no name is meant" }),
        }
    }

    /// Gives a file one more name.
    fn link(
        &mut self,
        source: &VolumePath,
        base: &Option<Seen>,
        to: &VolumePath,
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        let (_, file) = self.target(source, base, from)?;
        let node = &self.tree.node(file);
        if node.kind() == Kind::Folder {
            return Err(VolumeError::NotFile { path: source.to_string() });
        }
        if node.links >= NAMES_MAX {
            let (found, limit) = (u64::from(node.links) + 1, u64::from(NAMES_MAX));
            return Err(VolumeError::TooLarge { what: "names of a file", found, limit });
        }
        // Linux lets only who owns a file, or may read and write it, give it names.
        self.tree.check_writable(source, file)?;
        self.tree.check_owned(source, file)?;
        let at = self.tree.vacant(to)?;
        self.change_folder(to, at.folder)?;
        self.tree.link(file, at);
        self.running.change_name(file);
        Ok(file)
    }

    fn remove(&mut self, path: &VolumePath, at: EntryName, file: FileId) -> Result<FileId, VolumeError> {
        self.change_folder(path, at.folder)?;
        self.tree.check_removable(path, at.folder, file)?;
        // Needs no room: on a full disk it must still be possible to remove files.
        if self.tree.node(file).links > 1 {
            self.tree.check_linked(path, file)?;
            self.unlink_one(at, file);
        } else {
            self.tree.remove(at, file);
        }
        Ok(file)
    }

    /// Removes one of several names.
    fn unlink_one(&mut self, at: EntryName, file: FileId) {
        // By that name if there is no other that is known.
        if let Some(mtime_ns) = self.running.take_time(file) {
            self.tree.record(Record::Time { file, mtime_ns });
        }
        self.tree.unlink(at, file);
        self.running.change_name(file);
    }

    fn rename(
        &mut self,
        source: &VolumePath,
        base: &Option<Seen>,
        to: &VolumePath,
        replace: bool,
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        let (source_at, file) = self.target(source, base, from)?;
        if to.is_top() {
            return Err(VolumeError::Exists { path: to.to_string() });
        }
        let (to_at, mut found) = self.tree.resolve(to)?;
        if found == Some(file) {
            return Ok(file);
        }
        let kind = self.tree.node(file).kind();
        let mut folder = to_at.folder;
        while folder != FileId::TOP {
            if folder == file {
                return Err(VolumeError::Invalid { path: to.to_string(), why: "a folder cannot move into itself" });
            }
            folder = self.tree.node(folder).at.folder;
        }
        if let Some(replaced) = found {
            if !replace {
                return Err(VolumeError::Exists { path: to.to_string() });
            }
            self.target(to, &None, from)?;
            match (kind == Kind::Folder, self.tree.node(replaced).kind() == Kind::Folder) {
                (true, false) => return Err(VolumeError::NotFolder { path: to.to_string() }),
                (false, true) => return Err(VolumeError::NotFile { path: to.to_string() }),
                (true, true) => self.tree.check_empty_folder(to, replaced)?,
                (false, false) => {}
            }
        }
        if kind == Kind::Folder {
            // Its ".." may change.
            self.tree.check_writable(source, file)?;
        }
        self.change_folder(source, source_at.folder)?;
        self.change_folder(to, to_at.folder)?;
        self.tree.check_removable(source, source_at.folder, file)?;
        self.tree.check_linked(source, file)?;
        if let Some(replaced) = found {
            self.tree.check_removable(to, to_at.folder, replaced)?;
            self.tree.check_linked(to, replaced)?;
        }
        if let Some(replaced) = found.filter(|replaced| self.tree.node(*replaced).links > 1) {
            self.unlink_one(to_at.clone(), replaced);
            found = None;
        }
        self.tree.rename(file, source_at, to_at, found);
        self.running.change_name(file);
        Ok(file)
    }
}
