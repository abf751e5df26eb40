//! What is made, and whose it is.

use super::{NAME_ROOM_BYTES, Node, Plan};
use crate::disk::{Kind, Owner};
use crate::inode::SET_ID;
use crate::record::{Place, Record};
use crate::transaction::is_link_target;
use crate::{FileId, Operation, Seen, Transaction, VolumeError, VolumePath};

impl Plan<'_> {
    /// Plans the operations that make something.
    pub(super) fn make(&mut self, operation: &Operation, from: &Transaction) -> Result<FileId, VolumeError> {
        match operation {
            Operation::Create { path, mode, exclusive, owner } => {
                let (at, found) = self.resolve(path)?;
                match found {
                    Some(_) if *exclusive => Err(VolumeError::Exists { path: path.to_string() }),
                    Some(file) if self.overlay.nodes[&file].kind == Kind::File => Ok(file),
                    Some(_) => Err(VolumeError::NotFile { path: path.to_string() }),
                    None => {
                        let file = self.make_plain(path, at, Kind::File, *mode, *owner)?;
                        self.times.insert(file, from.mtime_ns);
                        Ok(file)
                    }
                }
            }
            Operation::MakeFolder { path, mode, owner } => {
                let at = self.vacant(path)?;
                let inherited = self.overlay.nodes[&at.folder].mode & 0o2000;
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
        at: Place,
        kind: Kind,
        mode: u16,
        owner: Option<Owner>,
    ) -> Result<FileId, VolumeError> {
        let mode = self.kept_mode(path, mode)?;
        let owner = self.owner_in(at.folder, owner);
        let file = self.enter(path, at.clone(), kind, mode, owner)?;
        self.records.push(Record::New { file, at, kind, mode });
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
        let at = self.vacant(path)?;
        if !self.disk.has_attributes() {
            return Err(VolumeError::Unsupported { path: path.to_string(), what: "special files" });
        }
        let mode = self.kept_mode(path, mode)?;
        let owner = self.owner_in(at.folder, owner);
        let file = self.enter(path, at.clone(), kind, mode, owner)?;
        self.records.push(Record::Node { file, at, kind, mode, rdev });
        self.give(file);
        self.times.insert(file, from.mtime_ns);
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
        let at = self.vacant(path)?;
        let owner = self.owner_in(at.folder, owner);
        let file = self.enter(path, at.clone(), Kind::Symlink, 0o777, owner)?;
        let target = target.to_vec();
        self.records.push(match owner == self.disk.owner() {
            true => Record::Link { file, at, target: target.clone() },
            false => Record::LinkOwned { file, at, owner, target: target.clone() },
        });
        if let Some(node) = self.overlay.nodes.get_mut(&file) {
            node.target = target;
        }
        self.times.insert(file, from.mtime_ns);
        Ok(file)
    }

    /// Where something can be made.
    pub(super) fn vacant(&mut self, path: &VolumePath) -> Result<Place, VolumeError> {
        match self.resolve(path)? {
            (_, Some(_)) => Err(VolumeError::Exists { path: path.to_string() }),
            (at, None) => Ok(at),
        }
    }

    /// The permission bits that a file can have here.
    pub(super) fn kept_mode(&self, path: &VolumePath, mode: u16) -> Result<u16, VolumeError> {
        let why = "permission bits are at most 07777";
        match mode {
            0o10000.. => Err(VolumeError::Invalid { path: path.to_string(), why }),
            // They would be the server's own: as a file system that is mounted `nosuid` drops them.
            _ if !self.disk.has_attributes() => Ok(mode & !SET_ID),
            _ => Ok(mode),
        }
    }

    /// Whose something becomes that is made in a folder.
    fn owner_in(&self, folder: FileId, wanted: Option<Owner>) -> Owner {
        let folder = &self.overlay.nodes[&folder];
        match wanted.filter(|_| self.disk.has_attributes()) {
            Some(wanted) if folder.mode & 0o2000 != 0 => Owner { gid: folder.owner.gid, ..wanted },
            Some(wanted) => wanted,
            None => self.disk.owner(),
        }
    }

    /// Gives something new its owner, unless that is the one that all files have.
    fn give(&mut self, file: FileId) {
        let Node { owner, mode, .. } = self.overlay.nodes[&file];
        if owner != self.disk.owner() {
            self.records.push(Record::Owner { file, owner, mode });
        }
    }

    /// Gives something new its id and its name.
    fn enter(
        &mut self,
        path: &VolumePath,
        at: Place,
        kind: Kind,
        mode: u16,
        owner: Owner,
    ) -> Result<FileId, VolumeError> {
        self.change_folder(path, at.folder)?;
        let file = FileId(self.table.next);
        self.table.next += 1;
        self.overlay.needs.files += 1;
        self.overlay.needs.bytes += NAME_ROOM_BYTES;
        let node = Node {
            kind,
            at: at.clone(),
            disk: None,
            alive: true,
            size: 0,
            stored_bytes: 0,
            links: 1,
            version: 1,
            writable: true,
            owned: true,
            mode,
            owner,
            target: Vec::new(),
            mtime_ns: 0,
            atime_ns: None,
            names: vec![at.clone()],
            xattrs: None,
            has_xattrs: false,
        };
        self.overlay.nodes.insert(file, node);
        self.overlay.entries.insert(at, Some(file));
        self.changed.insert(file, 0);
        Ok(file)
    }

    /// Plans a change of owner or group.
    pub(super) fn set_owner(
        &mut self,
        path: &VolumePath,
        base: &Option<Seen>,
        (uid, gid): (Option<u32>, Option<u32>),
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        let file = self.attributes(path, base, from)?;
        let node = &self.overlay.nodes[&file];
        let (kind, mode, at, before) = (node.kind, node.mode, node.at.clone(), node.owner);
        let owner = Owner { uid: uid.unwrap_or(before.uid), gid: gid.unwrap_or(before.gid) };
        if owner == before {
            return Ok(file);
        }
        if !self.disk.has_attributes() {
            return Err(VolumeError::Unsupported { path: path.to_string(), what: "owners" });
        }
        if kind == Kind::Symlink {
            if node.links > 1 {
                let what = "owners of symbolic links with several names";
                return Err(VolumeError::Unsupported { path: path.to_string(), what });
            }
            let (mtime_ns, atime_ns) = (node.mtime_ns, node.atime_ns);
            // It is removed and made anew.
            self.check_writable(path, at.folder)?;
            self.check_removable(path, at.folder, file)?;
            let target = self.target_of(path, file)?;
            self.records.push(Record::LinkOwned { file, at, owner, target });
            // It is made anew, and keeps its times.
            self.times.entry(file).or_insert(mtime_ns);
            self.records.extend(atime_ns.map(|atime_ns| Record::AccessTime { file, atime_ns }));
        } else {
            self.records.push(Record::Owner { file, owner, mode });
        }
        if let Some(node) = self.overlay.nodes.get_mut(&file) {
            node.owner = owner;
        }
        Ok(file)
    }

    /// Where a symbolic link points.
    fn target_of(&self, path: &VolumePath, file: FileId) -> Result<Vec<u8>, VolumeError> {
        let node = &self.overlay.nodes[&file];
        match &node.disk {
            Some(disk) => self.disk.read_link(disk).map_err(|error| VolumeError::io("reading", path.as_bytes(), error)),
            None => Ok(node.target.clone()),
        }
    }
}
