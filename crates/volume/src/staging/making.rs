//! Stages new files, and changes of owner, permission bits and times.

use super::Staging;
use crate::disk::{Kind, Owner};
use crate::inode::{Inode, SET_ID};
use crate::record::{EntryName, Record};
use crate::transaction::is_link_target;
use crate::{FileId, Operation, Seen, Transaction, VolumeError, VolumePath};

impl Staging<'_> {
    /// Stages the operations that make something.
    pub(super) fn make(&mut self, operation: &Operation, from: &Transaction) -> Result<FileId, VolumeError> {
        match operation {
            Operation::Create { path, mode, exclusive, owner } => {
                let (at, found) = self.tree.resolve(path)?;
                match found {
                    Some(_) if *exclusive => Err(VolumeError::Exists { path: path.to_string() }),
                    Some(file) if self.tree.node(file).kind() == Kind::File => Ok(file),
                    Some(_) => Err(VolumeError::NotFile { path: path.to_string() }),
                    None => {
                        let file = self.make_plain(path, at, Kind::File, *mode, *owner)?;
                        self.running.set_time(file, from.mtime_ns);
                        Ok(file)
                    }
                }
            }
            Operation::MakeFolder { path, mode, owner } => {
                let at = self.tree.vacant(path)?;
                let inherited = self.tree.node(at.folder).inode.mode & 0o2000;
                self.make_plain(path, at, Kind::Folder, *mode | inherited, *owner)
            }
            Operation::MakeNode { path, kind, mode, rdev, owner } => {
                self.make_special(path, *kind, *mode, *rdev, *owner, from)
            }
            Operation::MakeLink { path, target, owner } => self.make_symlink(path, target, *owner, from),
            // Asked of the others by nobody.
            _ => Err(VolumeError::Invalid { path: String::new(), why: "nothing is made" }),
        }
    }

    fn make_plain(
        &mut self,
        path: &VolumePath,
        at: EntryName,
        kind: Kind,
        mode: u16,
        owner: Option<Owner>,
    ) -> Result<FileId, VolumeError> {
        let mode = self.kept_mode(path, mode)?;
        let owner = self.owner_in(at.folder, owner);
        let file = self.enter(path, at.clone(), Inode { kind, mode, owner, rdev: 0 })?;
        self.tree.record(Record::New { file, at, kind, mode });
        self.give(file);
        Ok(file)
    }

    fn make_special(
        &mut self,
        path: &VolumePath,
        kind: Kind,
        mode: u16,
        rdev: u32,
        owner: Option<Owner>,
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        if !matches!(kind, Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice) {
            return Err(VolumeError::Invalid { path: path.to_string(), why: "it is no special file" });
        }
        let rdev = if matches!(kind, Kind::CharDevice | Kind::BlockDevice) { rdev } else { 0 };
        let at = self.tree.vacant(path)?;
        if !self.tree.disk().has_attributes() {
            return Err(VolumeError::Unsupported { path: path.to_string(), what: "special files" });
        }
        let mode = self.kept_mode(path, mode)?;
        let owner = self.owner_in(at.folder, owner);
        let file = self.enter(path, at.clone(), Inode { kind, mode, owner, rdev: 0 })?;
        self.tree.record(Record::Node { file, at, kind, mode, rdev });
        self.give(file);
        self.running.set_time(file, from.mtime_ns);
        Ok(file)
    }

    fn make_symlink(
        &mut self,
        path: &VolumePath,
        target: &[u8],
        owner: Option<Owner>,
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        if !is_link_target(target) {
            let why = "a symbolic link points to 1 to 4095 bytes without zeros";
            return Err(VolumeError::Invalid { path: path.to_string(), why });
        }
        let at = self.tree.vacant(path)?;
        let owner = self.owner_in(at.folder, owner);
        let file = self.enter(path, at.clone(), Inode { kind: Kind::Symlink, mode: 0o777, owner, rdev: 0 })?;
        let target = target.to_vec();
        self.tree.record(match owner == self.tree.disk().owner() {
            true => Record::Link { file, at, target: target.clone() },
            false => Record::LinkOwned { file, at, owner, target: target.clone() },
        });
        self.tree.set_target(file, target);
        self.running.set_time(file, from.mtime_ns);
        Ok(file)
    }

    /// The permission bits that a file can have here.
    fn kept_mode(&self, path: &VolumePath, mode: u16) -> Result<u16, VolumeError> {
        let why = "permission bits are at most 07777";
        match mode {
            0o10000.. => Err(VolumeError::Invalid { path: path.to_string(), why }),
            // They would be the server's own: as a file system that is mounted `nosuid` drops them.
            _ if !self.tree.disk().has_attributes() => Ok(mode & !SET_ID),
            _ => Ok(mode),
        }
    }

    /// Whose something becomes that is made in a folder.
    fn owner_in(&self, folder: FileId, wanted: Option<Owner>) -> Owner {
        let folder = self.tree.node(folder).inode;
        match wanted.filter(|_| self.tree.disk().has_attributes()) {
            Some(wanted) if folder.mode & 0o2000 != 0 => Owner { gid: folder.owner.gid, ..wanted },
            Some(wanted) => wanted,
            None => self.tree.disk().owner(),
        }
    }

    /// Gives something new its owner, unless that is the one that all files have.
    fn give(&mut self, file: FileId) {
        let Inode { owner, mode, .. } = self.tree.node(file).inode;
        if owner != self.tree.disk().owner() {
            self.tree.record(Record::Owner { file, owner, mode });
        }
    }

    /// Gives something new its id and its name.
    fn enter(&mut self, path: &VolumePath, at: EntryName, inode: Inode) -> Result<FileId, VolumeError> {
        self.change_folder(path, at.folder)?;
        let file = self.tree.make(at, inode);
        self.running.make(file);
        Ok(file)
    }

    /// Stages the operations that set times, owner or permission bits.
    pub(super) fn set(&mut self, operation: &Operation, from: &Transaction) -> Result<FileId, VolumeError> {
        match operation {
            Operation::SetTime { path, base, mtime_ns } => {
                let file = self.attributes(path, base, from)?;
                self.running.set_time(file, *mtime_ns);
                Ok(file)
            }
            Operation::SetAccessTime { path, base, atime_ns } => {
                let file = self.attributes(path, base, from)?;
                self.tree.set_atime(file, *atime_ns);
                Ok(file)
            }
            Operation::SetOwner { path, base, uid, gid } => self.set_owner(path, base, (*uid, *gid), from),
            Operation::SetMode { path, base, mode } => {
                let mode = self.kept_mode(path, *mode)?;
                let file = self.attributes(path, base, from)?;
                if self.tree.node(file).kind() == Kind::Symlink {
                    return Err(VolumeError::NotFile { path: path.to_string() });
                }
                self.tree.set_mode(file, mode);
                self.chmod_acl(path, file, mode)?;
                Ok(file)
            }
            // Asked of the others by nobody.
            _ => Err(VolumeError::Invalid { path: String::new(), why: "nothing is set" }),
        }
    }

    /// Stages a change of owner or group.
    fn set_owner(
        &mut self,
        path: &VolumePath,
        base: &Option<Seen>,
        (uid, gid): (Option<u32>, Option<u32>),
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        let file = self.attributes(path, base, from)?;
        let node = &self.tree.node(file);
        let (at, Inode { kind, mode, owner: before, .. }) = (node.at.clone(), node.inode);
        let owner = Owner { uid: uid.unwrap_or(before.uid), gid: gid.unwrap_or(before.gid) };
        if owner == before {
            return Ok(file);
        }
        if !self.tree.disk().has_attributes() {
            return Err(VolumeError::Unsupported { path: path.to_string(), what: "owners" });
        }
        if kind == Kind::Symlink {
            if node.links > 1 {
                let what = "owners of symbolic links with several names";
                return Err(VolumeError::Unsupported { path: path.to_string(), what });
            }
            let (mtime_ns, atime_ns) = (node.mtime_ns, node.atime_ns);
            // It is removed and made anew.
            self.tree.check_writable(path, at.folder)?;
            self.tree.check_removable(path, at.folder, file)?;
            let target = self.tree.target_of(path, file)?;
            self.tree.record(Record::LinkOwned { file, at, owner, target });
            // It is made anew, and keeps its times.
            self.running.keep_time(file, mtime_ns);
            if let Some(atime_ns) = atime_ns {
                self.tree.set_atime(file, atime_ns);
            }
        } else {
            self.tree.record(Record::Owner { file, owner, mode });
        }
        self.tree.set_owner(file, owner);
        Ok(file)
    }
}
