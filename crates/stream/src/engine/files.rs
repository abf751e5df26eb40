//! The files that this device knows, and the handles by which they are open.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

use units::{InodeId, Moment};
use wire::volume::{Change, FileInfo, FileKind, Seen};

use super::dirty::Dirty;
use super::file::File;
use super::marks::Marks;
use super::table::Block;
use crate::call::{Handle, OpenHow, SetAttributes};
use crate::linked::Linked;
use crate::names::{check_path, is_below, parent};
use crate::{ErrorKind, FileRef, StreamError};

/// Files without a handle that are remembered for their blocks.
const FILES_KEPT_MAX: usize = 1024;

/// An open handle.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Open {
    pub file: u64,
    pub how: OpenHow,
    /// The request that opened it; 0: none with a number.
    pub request: u64,
}

/// Files by key, by path, and by the number that the present connection has for them.
///
/// Invariant: a path stands for one file at most, and that is not gone. A number belongs to the
/// file that has it. Each handle is of a file that is here. All files with changes or reads are
/// among the busy ones: a device knows a thousand files and works on a few, and after each call and
/// answer it asks what is due, which must not walk through files that are only kept.
#[derive(Default)]
pub(super) struct Files {
    files: BTreeMap<u64, File>,
    by_path: HashMap<Vec<u8>, u64>,
    by_number: HashMap<InodeId, u64>,
    handles: HashMap<Handle, Open>,
    /// Handles of an earlier process, by the requests that opened them, which may come again.
    by_request: HashMap<u64, Handle>,
    /// Keys of all files that are busy, and of some that were since the last [`Files::rest`].
    busy: BTreeSet<u64>,
    /// Paths that are names of one file.
    linked: Linked,
    /// Times that a file was opened; says which was used last.
    uses: u64,
    pub marks: FileMarks,
}

/// What of the files changed since it was recorded last.
#[derive(Default)]
pub(super) struct FileMarks {
    pub files: Marks<u64>,
    pub handles: Marks<Handle>,
    pub linked: Marks<()>,
}

impl Files {
    pub fn get(&self, key: &u64) -> Option<&File> {
        self.files.get(key)
    }

    pub fn get_mut(&mut self, key: &u64) -> Option<&mut File> {
        self.marks.files.add(*key);
        self.files.get_mut(key)
    }

    /// The same for who records what changed.
    pub fn unmarked_mut(&mut self, key: u64) -> Option<&mut File> {
        self.files.get_mut(&key)
    }

    /// All handles are to be recorded.
    pub fn mark_handles(&mut self) {
        self.handles.keys().for_each(|handle| self.marks.handles.add(*handle));
    }

    /// Goes on with a file of an earlier process, whose handles come after it.
    pub fn resume(&mut self, key: u64, mut file: File) {
        file.unsent.resumed(Moment(0));
        file.unsent.overlay_mut().keep_steps();
        self.uses = self.uses.max(file.used);
        if file.unsent.is_dirty() {
            self.busy.insert(key);
        }
        if !file.gone {
            self.by_path.insert(file.path.clone(), key);
        }
        self.files.insert(key, file);
    }

    /// Goes on with a handle of an earlier process.
    pub fn resume_handle(&mut self, handle: Handle, open: Open) {
        if open.request != 0 {
            self.by_request.insert(open.request, handle);
        }
        self.open(handle, open);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&u64, &File)> {
        self.files.iter()
    }

    pub fn values(&self) -> impl Iterator<Item = &File> {
        self.files.values()
    }

    /// The connection is gone, and with it what was under way on it; nobody records that.
    pub fn disconnected(&mut self) {
        self.by_number.clear();
        for file in self.files.values_mut() {
            file.numbering.disconnected();
            file.table.disconnected();
        }
    }

    /// A file is known from now on, under its path.
    pub fn insert(&mut self, key: u64, mut file: File) {
        self.marks.files.add(key);
        if self.marks.files.is_on() {
            file.unsent.overlay_mut().keep_steps();
        }
        self.by_path.insert(file.path.clone(), key);
        self.files.insert(key, file);
    }

    /// Forgets a file.
    pub fn remove(&mut self, key: u64) -> Option<File> {
        self.marks.files.add(key);
        let file = self.files.remove(&key)?;
        self.leave_path(key, &file.path);
        Some(file)
    }

    /// The file at this path.
    pub fn at(&self, path: &[u8]) -> Option<u64> {
        self.by_path.get(path).copied()
    }

    /// The files at all paths.
    pub fn paths(&self) -> impl Iterator<Item = (&Vec<u8>, &u64)> {
        self.by_path.iter()
    }

    /// Files below a folder.
    pub fn below(&self, folder: &[u8]) -> Vec<u64> {
        let below = self.by_path.iter().filter(|(path, _)| is_below(path, folder));
        below.map(|(_, key)| *key).collect()
    }

    /// A file has another path.
    pub fn move_to(&mut self, key: u64, path: Vec<u8>) {
        self.marks.files.add(key);
        let Some(file) = self.files.get_mut(&key) else { return };
        self.by_path.remove(&file.path);
        self.by_path.insert(path.clone(), key);
        file.path = path;
    }

    /// The path of a file does not stand for it any more.
    pub fn mark_gone(&mut self, key: u64) {
        self.marks.files.add(key);
        let Some(file) = self.files.get_mut(&key) else { return };
        file.gone = true;
        let path = file.path.clone();
        self.leave_path(key, &path);
    }

    fn leave_path(&mut self, key: u64, path: &[u8]) {
        if self.by_path.get(path) == Some(&key) {
            self.by_path.remove(path);
        }
    }

    /// The file with this number.
    pub fn numbered(&self, number: InodeId) -> Option<u64> {
        self.by_number.get(&number).copied()
    }

    /// Blocks that are pushed by this number are of this file.
    pub fn set_number(&mut self, number: InodeId, key: u64) {
        self.by_number.insert(number, key);
    }

    /// A number stands for nothing any more.
    pub fn remove_number(&mut self, number: InodeId) {
        self.by_number.remove(&number);
    }

    /// Opens a file by a handle.
    pub fn open(&mut self, handle: Handle, open: Open) {
        self.uses += 1;
        self.marks.files.add(open.file);
        self.marks.handles.add(handle);
        if let Some(file) = self.files.get_mut(&open.file) {
            file.handles += 1;
            file.used = self.uses;
        }
        self.handles.insert(handle, open);
    }

    /// A handle is not used any more; the file counts it until it is released.
    pub fn close(&mut self, handle: Handle) -> Option<Open> {
        self.marks.handles.add(handle);
        let open = self.handles.remove(&handle)?;
        self.by_request.remove(&open.request);
        Some(open)
    }

    pub fn handle(&self, handle: Handle) -> Option<Open> {
        self.handles.get(&handle).copied()
    }

    /// The handle that a request has opened in an earlier process.
    pub fn opened_for(&self, request: u64) -> Option<Handle> {
        self.by_request.get(&request).copied()
    }

    pub fn handles(&self) -> usize {
        self.handles.len()
    }

    /// The file of a handle, with its key.
    pub fn opened(&self, handle: Handle) -> Option<(u64, &File)> {
        let key = self.handles.get(&handle)?.file;
        Some((key, self.files.get(&key)?))
    }

    /// The file of a handle that is open for writing.
    pub fn opened_to_write(&self, handle: Handle) -> Option<(u64, &File)> {
        self.handles.get(&handle).filter(|open| open.how.write || open.how.append)?;
        self.opened(handle)
    }

    /// Path of the file of a handle, for people.
    pub fn path_of(&self, handle: Handle) -> &[u8] {
        self.opened(handle).map(|(_, file)| file.path.as_slice()).unwrap_or_default()
    }

    /// A file gets changes, or a read.
    pub fn works_on(&mut self, key: u64) {
        self.busy.insert(key);
    }

    /// Files with changes that no transaction has, by their keys.
    pub fn changed(&self) -> impl Iterator<Item = (u64, &File)> {
        self.busy().filter(|(_, file)| file.unsent.is_dirty())
    }

    /// Files with reads, by their keys.
    pub fn reading(&self) -> impl Iterator<Item = (u64, &File)> {
        self.busy().filter(|(_, file)| !file.reads.is_empty())
    }

    fn busy(&self) -> impl Iterator<Item = (u64, &File)> {
        self.busy.iter().filter_map(|key| Some((*key, self.files.get(key)?)))
    }

    /// Forgets those that are busy no more.
    pub fn rest(&mut self) {
        let files = &self.files;
        let is_busy = |file: &File| file.unsent.is_dirty() || !file.reads.is_empty();
        self.busy.retain(|key| files.get(key).is_some_and(is_busy));
        #[cfg(test)]
        for (key, file) in files {
            assert!(!is_busy(file) || self.busy.contains(key), "{key} is busy and not noted");
        }
    }

    /// The file that is known here by this path, or as one with several names of which this is one.
    pub fn known_at(&self, path: &[u8]) -> Option<u64> {
        self.at(path).or_else(|| self.with_id(self.linked.file(path)?))
    }

    /// The file that the server calls so, under whatever name.
    pub fn with_id(&self, id: u64) -> Option<u64> {
        let is_it = |file: &File| !file.gone && file.seen.is_some_and(|seen| seen.file == id);
        self.files.iter().find(|(_, file)| is_it(file)).map(|(key, _)| *key)
    }

    /// Which paths are names of one file.
    pub fn linked(&self) -> &Linked {
        &self.linked
    }

    pub fn linked_mut(&mut self) -> &mut Linked {
        self.marks.linked.add(());
        &mut self.linked
    }

    /// The server says what a path is.
    pub fn note_linked(&mut self, path: &[u8], info: &FileInfo) {
        if info.kind != FileKind::Folder && info.links > 1 {
            self.linked_mut().add(info.seen.file, path);
        }
    }

    /// Whether the server has a file under other names than the one that it has here.
    pub fn has_other_names(&self, key: u64) -> bool {
        self.get(&key).is_some_and(|file| file.attributes.links > 1)
    }

    /// Whether the server had something else than this file at its name.
    pub fn is_another(&self, key: u64, there: Option<u64>) -> bool {
        let seen = self.get(&key).and_then(|file| file.seen);
        seen.is_some_and(|seen| there.is_some_and(|there| there != seen.file))
    }

    /// Whether a path stands for a file that the server does not know.
    pub fn is_only_here_at(&self, path: &[u8]) -> bool {
        self.at(path).and_then(|key| self.get(&key)).is_some_and(|file| file.seen.is_none())
    }

    /// Whether there are files in a folder, or below, that the server does not know: for it, the
    /// folder may be empty.
    pub fn has_only_here_below(&self, folder: &[u8]) -> bool {
        self.values().any(|file| !file.gone && file.seen.is_none() && is_below(&file.path, folder))
    }

    /// Whether a file at a path is on its way to the server, which cannot be asked about it yet.
    pub fn is_being_made(&self, path: &[u8]) -> bool {
        let file = self.known_at(path).and_then(|key| self.get(&key));
        file.is_some_and(|file| file.seen.is_none() && !file.unsent.sealed().is_empty())
    }

    /// Bytes of all files without a name.
    pub fn nameless_bytes(&self) -> u64 {
        self.values().filter(|file| file.is_nameless()).map(|file| file.unsent.overlay().bytes()).sum()
    }

    /// Bytes of changes that no transaction has. What files that are gone have over their blocks is
    /// never sent.
    pub fn unsealed_bytes(&self) -> u64 {
        self.changed().map(|(_, file)| file.unsent.overlay().open_bytes()).sum()
    }

    /// Whether what is known of a file is the one that is meant.
    pub fn check_is(&self, of: &FileRef, key: Option<u64>) -> Result<(), StreamError> {
        let FileRef::File { path, id } = of else { return Ok(()) };
        let seen = key.and_then(|key| self.get(&key)).and_then(|file| file.seen);
        match seen.is_none_or(|seen| seen.file == *id) {
            true => Ok(()),
            false => Err(StreamError::refused(wire::ErrorCode::Stale, path, "")),
        }
    }

    /// A file that is to be forgotten now that this one is not used; `None`: none.
    pub fn unused(&self, key: u64) -> Option<u64> {
        let idle = |file: &File| file.handles == 0 && file.reads.is_empty() && !file.is_changed();
        let file = self.get(&key).filter(|file| idle(file))?;
        if file.gone || file.stale.is_some() || file.seen.is_none() {
            return Some(key);
        }
        if self.files.len() <= FILES_KEPT_MAX {
            return None;
        }
        let unused = self.iter().filter(|(_, file)| idle(file));
        unused.min_by_key(|(_, file)| file.used).map(|(key, _)| *key)
    }

    pub fn is_nameless(&self, handle: Handle) -> bool {
        let file = self.opened(handle).map(|(_, file)| file);
        file.is_some_and(File::is_nameless)
    }

    /// Whether a file can be opened without asking the server: it begins empty, whether it is there
    /// or not. Its folder must have files that the server told of, or it is the top one, so that a
    /// wrong path is told now and not by the next sync.
    pub fn may_replace(&self, path: &[u8], how: OpenHow) -> bool {
        let folder = parent(path);
        let begins_empty = how.truncate && !how.append && self.known_at(path).is_none();
        let there = |file: &File| file.seen.is_some() && !file.gone && parent(&file.path) == folder;
        begins_empty && (folder.is_empty() || self.values().any(there))
    }

    /// The file that is meant, if it is known here, and its path. By path only a file with changes
    /// is meant here, others are the server's.
    pub fn resolve(&self, of: &FileRef, write: bool) -> Result<(Option<u64>, Vec<u8>), StreamError> {
        match of {
            FileRef::Handle(handle) => {
                let open = self.handle(*handle).filter(|open| !write || open.how.write || open.how.append);
                let open = open.ok_or_else(StreamError::bad_handle)?;
                let path = self.get(&open.file).map(|file| file.path.clone()).unwrap_or_default();
                Ok((Some(open.file), path))
            }
            FileRef::Path(path) | FileRef::File { path, .. } => {
                check_path(path)?;
                let changed = |key: &u64| self.get(key).is_some_and(|file| file.is_changed());
                Ok((self.known_at(path).filter(changed), path.clone()))
            }
        }
    }

    /// The file that is meant, if it is known here, and its path.
    pub fn meant(&self, of: &FileRef) -> Result<(Option<u64>, Vec<u8>), StreamError> {
        match of {
            FileRef::Path(path) | FileRef::File { path, .. } => {
                check_path(path).map(|()| (self.known_at(path), path.clone()))
            }
            FileRef::Handle(handle) => {
                let key = self.handle(*handle).map(|open| open.file);
                let file = key.and_then(|key| self.get(&key)).ok_or_else(StreamError::bad_handle)?;
                Ok((key, file.path.clone()))
            }
        }
    }

    pub fn patience_due(&self) -> Option<Moment> {
        let blocks = self.reading().flat_map(|(_, file)| file.table.iter().map(|(_, block)| block));
        blocks.filter_map(|block| if let Block::OnTheWay { until, .. } = block { Some(*until) } else { None }).min()
    }

    /// A file that is not at its path any more: the server is not asked to change it.
    pub fn gone_file(&mut self, key: Option<u64>) -> Option<&mut File> {
        self.get_mut(&key?).filter(|file| file.gone)
    }

    /// Takes what was changed of a file, if that is nothing but attributes which nothing on its way
    /// must go before.
    pub fn take_attributes(&mut self, key: u64) -> Vec<Change> {
        let Some(file) = self.get_mut(&key) else { return Vec::new() };
        let alone = file.unsent.has_only_attributes() && file.unsent.sealed().is_empty() && !file.gone;
        let Some(seen) = file.seen.filter(|_| alone) else { return Vec::new() };
        let Some(Dirty { mode, atime, mtime, owner: (None, None), .. }) = file.unsent.dirty() else {
            return Vec::new();
        };
        let (mode, atime, mtime) = (*mode, *atime, *mtime);
        file.unsent.take_dirty();
        // A cut to the size that it had, or changes that were committed meanwhile, left it behind.
        file.unsent.forget_size();
        let wanted = SetAttributes { mode, atime_ns: atime, mtime_ns: mtime, ..SetAttributes::default() };
        wanted.changes(&file.path, Some(Seen::of_file(seen.file)))
    }

    /// The same of the file at a path that is about to be renamed, with its key. What is written to
    /// an open file meanwhile would be based on the version before.
    pub fn take_attributes_at(&mut self, path: &[u8]) -> Option<(u64, Vec<Change>)> {
        let key = self.at(path)?;
        self.get(&key).filter(|file| file.handles == 0)?;
        let changes = self.take_attributes(key);
        (!changes.is_empty()).then_some((key, changes))
    }

    /// Whether so many bytes more of a file without a name find room.
    pub fn check_nameless(&self, key: u64, length: u64, limit: u64) -> Result<(), StreamError> {
        if length == 0 || self.nameless_bytes() + length <= limit {
            return Ok(());
        }
        let path = self.get(&key).map(|file| file.path.as_slice()).unwrap_or_default();
        let text = format!(
            "it was removed while it is open, and such files have {limit} bytes on this device at most; close some"
        );
        Err(StreamError::new(ErrorKind::OutboxFull, path, text))
    }
}
