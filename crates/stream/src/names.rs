//! Attributes, listings and extended attributes by path, believed for a short time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use units::Moment;
use wire::volume::{FileInfo, FileKind, FolderEntry, Xattr};

use crate::call::Xattrs;
use crate::{ErrorKind, StreamError};

/// Names that are remembered at most; all are forgotten when there are more.
const NAMES_MAX: usize = 16 << 10;

/// Entries of all listings that are remembered at most.
const LISTED_MAX: usize = 32 << 10;

/// Attributes and listings, with the moment until which they are believed.
#[derive(Debug, Default)]
pub(crate) struct Names {
    time: Duration,
    known: HashMap<Vec<u8>, (Moment, Option<FileInfo>)>,
    listed: BTreeMap<Vec<u8>, (Moment, Arc<Vec<FolderEntry>>)>,
    listed_entries: usize,
    /// Extended attributes of files that have some, with their bytes.
    xattrs: HashMap<Vec<u8>, (Moment, usize, Xattrs)>,
    xattr_bytes: usize,
    /// Where some were changed here, until when: an answer from before may still come.
    xattrs_changed: HashMap<Vec<u8>, Moment>,
    /// Folders without extended attributes, as the server said last: what is made in them gets
    /// none.
    plain_folders: HashSet<Vec<u8>>,
    /// Folders that give their group to what is made in them, with it, as the server said last.
    groups: HashMap<Vec<u8>, u32>,
    folder_times: FolderTimes,
}

/// Folders with the set-group-id bit that are remembered at most; all are forgotten when there are
/// more.
const GROUPS_MAX: usize = 1024;

/// Bytes of extended attributes that are remembered at most, and of each file besides them; all are
/// forgotten when there are more.
const XATTR_BYTES_MAX: usize = 4 << 20;
const XATTR_FILE_BYTES: usize = 256;

/// For so long after a change what the server says of extended attributes may be from before it:
/// connections answer within seconds, or are given up.
const XATTRS_OLD_TIME: Duration = Duration::from_secs(5);

/// Changes that are remembered for that; a program would have to make so many within that time.
const XATTRS_CHANGED_MAX: usize = 64 << 10;

/// Folders that are remembered to have no extended attributes; beyond that all are asked for again.
const PLAIN_FOLDERS_MAX: usize = 4096;

/// The set-group-id bit.
const SET_GROUP_ID: u16 = 0o2000;

impl Names {
    pub fn new(time: Duration) -> Names {
        Names { time, ..Names::default() }
    }

    /// The attributes of a path, if they are believed; `Some(None)`: there is nothing.
    pub fn get(&self, path: &[u8], now: Moment) -> Option<Option<FileInfo>> {
        self.known.get(path).filter(|(until, _)| now < *until).map(|(_, info)| *info)
    }

    pub fn put(&mut self, path: &[u8], info: Option<FileInfo>, now: Moment) {
        match info {
            Some(info) if info.kind == FileKind::Folder && info.mode & SET_GROUP_ID != 0 => {
                if self.groups.len() >= GROUPS_MAX {
                    self.groups.clear();
                }
                self.groups.insert(path.to_vec(), info.owner.gid);
            }
            _ if self.groups.is_empty() => {}
            _ => drop(self.groups.remove(path)),
        }
        match info {
            Some(info) if info.kind == FileKind::Folder && !info.has_xattrs => {
                if self.plain_folders.len() >= PLAIN_FOLDERS_MAX {
                    self.plain_folders.clear();
                }
                self.plain_folders.insert(path.to_vec());
            }
            _ => drop(self.plain_folders.remove(path)),
        }
        if self.time.is_zero() {
            return;
        }
        if self.known.len() >= NAMES_MAX {
            self.known.clear();
        }
        self.known.insert(path.to_vec(), (now.after(self.time), info));
    }

    /// The extended attributes of a path, if they need not be asked for.
    pub fn xattrs(&self, path: &[u8], now: Moment) -> Option<Xattrs> {
        if self.xattrs_changed.get(path).is_some_and(|until| now < *until) {
            return None;
        }
        if let Some((_, _, xattrs)) = self.xattrs.get(path).filter(|(until, ..)| now < *until) {
            return Some(Arc::clone(xattrs));
        }
        let known = self.get(path, now).flatten();
        known.filter(|info| !info.has_xattrs).map(|_| Xattrs::default())
    }

    /// Whether a folder had no extended attributes when it was last looked at. What was said last
    /// counts, however long ago, as for its group.
    pub fn is_plain_folder(&self, path: &[u8]) -> bool {
        self.plain_folders.contains(path)
    }

    /// At this path and below it are other folders now, or none.
    pub fn forget_folders(&mut self, path: &[u8]) {
        self.plain_folders.retain(|folder| folder != path && !is_below(folder, path));
    }

    /// Remembers what the server said.
    pub fn put_xattrs(&mut self, path: &[u8], xattrs: &Xattrs, now: Moment) {
        let size = |xattr: &Xattr| xattr.name.len() + xattr.value.len() + size_of::<Xattr>();
        let bytes = XATTR_FILE_BYTES + path.len() + xattrs.iter().map(size).sum::<usize>();
        if self.time.is_zero() || bytes > XATTR_BYTES_MAX {
            return;
        }
        if self.xattr_bytes + bytes > XATTR_BYTES_MAX {
            self.xattrs.clear();
            self.xattr_bytes = 0;
        }
        self.xattr_bytes += bytes;
        let entry = (now.after(self.time), bytes, Arc::clone(xattrs));
        if let Some((_, old, _)) = self.xattrs.insert(path.to_vec(), entry) {
            self.xattr_bytes -= old;
        }
    }

    /// The server changed extended attributes of a path for this device.
    pub fn xattrs_changed(&mut self, path: &[u8], now: Moment) {
        self.plain_folders.remove(path);
        if self.time.is_zero() {
            return;
        }
        if self.xattrs_changed.len() >= XATTRS_CHANGED_MAX {
            self.xattrs_changed.retain(|_, until| now < *until);
        }
        if self.xattrs_changed.len() >= XATTRS_CHANGED_MAX {
            // None is worth more than another; what is asked once too often is right.
            self.known.clear();
            self.xattrs_changed.clear();
        }
        self.xattrs_changed.insert(path.to_vec(), now.after(XATTRS_OLD_TIME));
    }

    /// The group that files get which are made in a folder, if not that of who makes them. What was
    /// said last counts, however long ago: kernels look at a folder before they make something in
    /// it.
    pub fn group_in(&self, folder: &[u8]) -> Option<u32> {
        self.groups.get(folder).copied()
    }

    pub fn listing(&self, path: &[u8], now: Moment) -> Option<Arc<Vec<FolderEntry>>> {
        self.listed.get(path).filter(|(until, _)| now < *until).map(|(_, entries)| Arc::clone(entries))
    }

    /// Remembers a whole listing and what it says of each name.
    pub fn put_listing(&mut self, path: &[u8], entries: &Arc<Vec<FolderEntry>>, now: Moment) {
        if self.time.is_zero() || entries.len() > LISTED_MAX {
            return;
        }
        if self.listed_entries + entries.len() > LISTED_MAX {
            self.listed.clear();
            self.listed_entries = 0;
        }
        for entry in entries.iter().take(NAMES_MAX / 2) {
            self.put(&join(path, &entry.name), Some(entry.info), now);
        }
        self.listed_entries += entries.len();
        if let Some((_, old)) = self.listed.insert(path.to_vec(), (now.after(self.time), Arc::clone(entries))) {
            self.listed_entries -= old.len();
        }
    }

    /// A path changed: it and its folder are forgotten, and the listings that tell of either.
    pub fn forget(&mut self, path: &[u8]) {
        let folder = parent(path);
        self.forget_file(path);
        self.known.remove(folder);
        self.forget_listing(parent(folder));
    }

    /// What is at a path changed, and nothing of its folder: it is forgotten, and the listing that
    /// tells of it.
    pub fn forget_file(&mut self, path: &[u8]) {
        self.known.remove(path);
        if let Some((_, bytes, _)) = self.xattrs.remove(path) {
            self.xattr_bytes -= bytes;
        }
        self.forget_listing(parent(path));
    }

    /// This device made or removed the name of a file: of its folder that is known to change
    /// nothing but the times. Kernels ask for a folder before each name in it.
    pub fn name_changed(&mut self, path: &[u8], wall_ns: i64) {
        let folder = parent(path);
        self.forget_file(path);
        if let Some((_, Some(info))) = self.known.get_mut(folder) {
            info.mtime_ns = info.mtime_ns.max(wall_ns);
            info.ctime_ns = info.ctime_ns.max(wall_ns);
        }
        self.forget_listing(parent(folder));
    }

    /// A name was made or removed in a folder, and the server was not told, since the file was only
    /// here.
    pub fn folder_changed(&mut self, folder: &[u8], wall_ns: i64) {
        self.folder_times.note(folder, wall_ns);
    }

    /// Whether folders show a time that the server does not know.
    pub fn has_folder_times(&self) -> bool {
        !self.folder_times.times.is_empty()
    }

    /// The server's attributes of a path, with the time that programs here expect.
    pub fn shown(&self, path: &[u8], info: FileInfo) -> FileInfo {
        self.folder_times.shown(path, info)
    }

    /// The server's time of a folder holds.
    pub fn forget_folder_time(&mut self, folder: &[u8]) {
        self.folder_times.times.remove(folder);
    }

    /// A folder has another path.
    pub fn folder_renamed(&mut self, from: &[u8], to: &[u8]) {
        self.folder_times.rename(from, to);
    }

    fn forget_listing(&mut self, folder: &[u8]) {
        if let Some((_, old)) = self.listed.remove(folder) {
            self.listed_entries -= old.len();
        }
    }

    /// Whether a file is known that has several names.
    pub fn has_linked(&self) -> bool {
        let linked = |info: &FileInfo| info.kind == FileKind::File && info.links > 1;
        self.known.values().any(|(_, info)| info.as_ref().is_some_and(linked))
    }

    /// Everything changed.
    pub fn forget_all(&mut self) {
        self.known.clear();
        self.xattrs.clear();
        self.xattr_bytes = 0;
        self.listed.clear();
        self.listed_entries = 0;
    }
}

/// Folders whose times are remembered at most; all are forgotten when there are more.
const FOLDER_TIMES_MAX: usize = 4096;

/// When names were last made or removed in folders of which the server was not told, since the
/// files were only here. Nanoseconds since 1970.
#[derive(Debug, Default)]
struct FolderTimes {
    times: HashMap<Vec<u8>, i64>,
}

impl FolderTimes {
    fn note(&mut self, folder: &[u8], wall_ns: i64) {
        if self.times.len() >= FOLDER_TIMES_MAX {
            self.times.clear();
        }
        self.times.insert(folder.to_vec(), wall_ns);
    }

    /// The server's attributes of a path, with the time that programs here expect.
    fn shown(&self, path: &[u8], info: FileInfo) -> FileInfo {
        let changed = self.times.get(path).filter(|_| info.kind == FileKind::Folder);
        FileInfo { mtime_ns: changed.map_or(info.mtime_ns, |changed| info.mtime_ns.max(*changed)), ..info }
    }

    /// A folder has another path.
    fn rename(&mut self, from: &[u8], to: &[u8]) {
        if self.times.is_empty() {
            return;
        }
        let there = |path: &[u8], folder: &[u8]| path == folder || is_below(path, folder);
        self.times.retain(|path, _| !there(path, to));
        let moved: Vec<Vec<u8>> = self.times.keys().filter(|path| there(path, from)).cloned().collect();
        for path in moved {
            if let Some(time) = self.times.remove(&path) {
                self.times.insert([to, &path[from.len()..]].concat(), time);
            }
        }
    }
}

/// `name` in `folder`.
pub(crate) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() }
}

/// The folder that a path lies in; that of the top folder is itself.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |at| &path[..at])
}

/// The last name of a path.
pub(crate) fn last(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(path, |at| &path[at + 1..])
}

/// Whether `path` lies below `folder`.
pub(crate) fn is_below(path: &[u8], folder: &[u8]) -> bool {
    path.len() > folder.len() && path.starts_with(folder) && path[folder.len()] == b'/'
}

/// Checks the rules of a path.
pub(crate) fn check_path(path: &[u8]) -> Result<(), StreamError> {
    let invalid = |why: &str| Err(StreamError::new(ErrorKind::Invalid, path, why));
    if path.len() > wire::format::PATH_BYTES_MAX {
        return Err(StreamError::new(ErrorKind::NameTooLong, &path[..80], "a path has 4095 bytes at most"));
    }
    for name in path.split(|byte| *byte == b'/').filter(|_| !path.is_empty()) {
        match name {
            b"" => return invalid("a name in the path is empty; join names by one `/`, with none at either end"),
            b"." | b".." => return invalid("a path holds neither `.` nor `..`"),
            _ if name.len() > wire::format::FILE_NAME_BYTES_MAX => {
                return Err(StreamError::new(ErrorKind::NameTooLong, path, "a name has 255 bytes at most"));
            }
            _ if name.contains(&0) => return invalid("a name holds no zero byte"),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_in_a_folder_is_a_change_of_the_folder() {
        let now = Moment(5);
        let mut names = Names::new(Duration::from_secs(1));
        let entry = |name: &[u8]| FolderEntry { name: name.to_vec(), info: FileInfo::default() };
        for (folder, name) in [("", "a"), ("a", "b"), ("a/b", "c"), ("x", "y")] {
            names.put_listing(folder.as_bytes(), &Arc::new(vec![entry(name.as_bytes())]), now);
        }
        names.forget(b"a/b/c");
        for forgotten in ["a/b/c", "a/b"] {
            assert_eq!(names.get(forgotten.as_bytes(), now), None, "{forgotten}");
        }
        // That of `a` says what `a/b` was before.
        assert!(names.listing(b"a/b", now).is_none() && names.listing(b"a", now).is_none());
        assert!(names.listing(b"", now).is_some() && names.listing(b"x", now).is_some());
        assert_eq!(names.listed_entries, 2);
    }
}
