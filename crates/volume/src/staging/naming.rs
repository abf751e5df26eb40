//! Names that are given, changed and removed.

use super::{NAME_ROOM_BYTES, Plan};
use crate::disk::Kind;
use crate::record::{Place, Record};
use crate::{FileId, Seen, Transaction, VolumeError, VolumePath};

/// Names of a file, at most: what most file systems can hold, with some to spare.
const NAMES_MAX: u32 = 60_000;

impl Plan<'_> {
    /// Gives a file one more name.
    pub(super) fn link(
        &mut self,
        source: &VolumePath,
        base: &Option<Seen>,
        to: &VolumePath,
        from: &Transaction,
    ) -> Result<FileId, VolumeError> {
        let (_, file) = self.target(source, base, from)?;
        let node = &self.overlay.nodes[&file];
        if node.kind == Kind::Folder {
            return Err(VolumeError::NotFile { path: source.to_string() });
        }
        if node.links >= NAMES_MAX {
            let (found, limit) = (u64::from(node.links) + 1, u64::from(NAMES_MAX));
            return Err(VolumeError::TooLarge { what: "names of a file", found, limit });
        }
        // Linux lets only who owns a file, or may read and write it, give it names.
        self.check_writable(source, file)?;
        self.check_owned(source, file)?;
        let at = self.vacant(to)?;
        self.change_folder(to, at.folder)?;
        self.overlay.needs.bytes += 2 * NAME_ROOM_BYTES;
        let node = self.overlay.nodes.get_mut(&file).expect("resolved before");
        node.links += 1;
        node.names.push(at.clone());
        self.overlay.entries.insert(at.clone(), Some(file));
        self.moved.insert(file);
        self.records.push(Record::HardLink { file, at });
        Ok(file)
    }

    pub(super) fn remove(&mut self, path: &VolumePath, at: Place, file: FileId) -> Result<FileId, VolumeError> {
        self.change_folder(path, at.folder)?;
        self.check_removable(path, at.folder, file)?;
        // Needs no room: on a full disk it must still be possible to remove files.
        if self.overlay.nodes[&file].links > 1 {
            self.check_linked(path, file)?;
            self.unlink_one(at, file);
            return Ok(file);
        }
        self.bury(file);
        self.overlay.entries.insert(at.clone(), None);
        self.records.push(Record::Gone { file, at });
        Ok(file)
    }

    /// A recovery gives a file with several names one more, which Linux allows the owner.
    fn check_linked(&mut self, path: &VolumePath, file: FileId) -> Result<(), VolumeError> {
        if self.overlay.nodes[&file].links > 1 { self.check_owned(path, file) } else { Ok(()) }
    }

    /// Removes one of several names.
    fn unlink_one(&mut self, at: Place, file: FileId) {
        // By that name if there is no other that is known.
        if let Some(mtime_ns) = self.times.remove(&file) {
            self.records.push(Record::Time { file, mtime_ns });
        }
        let node = self.overlay.nodes.get_mut(&file).expect("resolved before");
        node.links -= 1;
        node.names.retain(|name| *name != at);
        if let Some(other) = node.names.last() {
            node.at = other.clone();
        }
        let version = node.version;
        self.overlay.entries.insert(at.clone(), None);
        self.moved.insert(file);
        self.records.push(Record::Unlink { file, at, version });
    }

    fn bury(&mut self, file: FileId) {
        let node = self.overlay.nodes.get_mut(&file).expect("resolved before");
        (node.alive, node.links) = (false, 0);
        node.names.clear();
        if node.kind == Kind::File {
            self.overlay.needs.size_change -= node.size as i64;
        }
    }

    pub(super) fn rename(
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
        let (to_at, mut found) = self.resolve(to)?;
        if found == Some(file) {
            return Ok(file);
        }
        let kind = self.overlay.nodes[&file].kind;
        let mut folder = to_at.folder;
        while folder != FileId::TOP {
            if folder == file {
                return Err(VolumeError::Invalid { path: to.to_string(), why: "a folder cannot move into itself" });
            }
            folder = self.overlay.nodes[&folder].at.folder;
        }
        if let Some(replaced) = found {
            if !replace {
                return Err(VolumeError::Exists { path: to.to_string() });
            }
            self.target(to, &None, from)?;
            match (kind == Kind::Folder, self.overlay.nodes[&replaced].kind == Kind::Folder) {
                (true, false) => return Err(VolumeError::NotFolder { path: to.to_string() }),
                (false, true) => return Err(VolumeError::NotFile { path: to.to_string() }),
                (true, true) => self.check_empty_folder(to, replaced)?,
                (false, false) => {}
            }
        }
        if kind == Kind::Folder {
            // Its ".." may change.
            self.check_writable(source, file)?;
        }
        self.change_folder(source, source_at.folder)?;
        self.change_folder(to, to_at.folder)?;
        self.check_removable(source, source_at.folder, file)?;
        self.check_linked(source, file)?;
        if let Some(replaced) = found {
            self.check_removable(to, to_at.folder, replaced)?;
            self.check_linked(to, replaced)?;
        }
        match found {
            Some(replaced) if self.overlay.nodes[&replaced].links > 1 => {
                self.unlink_one(to_at.clone(), replaced);
                found = None;
            }
            Some(replaced) => self.bury(replaced),
            None => {}
        }
        self.moved.insert(file);
        let node = self.overlay.nodes.get_mut(&file).expect("resolved before");
        node.at = to_at.clone();
        node.names.retain(|name| *name != source_at);
        node.names.push(to_at.clone());
        self.overlay.entries.insert(source_at.clone(), None);
        self.overlay.entries.insert(to_at.clone(), Some(file));
        self.overlay.needs.bytes += 2 * NAME_ROOM_BYTES;
        self.records.push(Record::Move { file, from: source_at, to: to_at, replaced: found });
        Ok(file)
    }
}
