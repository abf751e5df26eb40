//! Recovery. The files are as of a checkpoint, with an unknown part of the later changes. The
//! journal tells these changes. Recovery brings the files to the state after the journal.
//!
//! Records are not replayed one by one, since a rename or a removal that is on the disk already
//! cannot be repeated. Instead the journal is read as a whole into the *final state* of every name
//! and file that it touches (`state`). Then the disk is brought to this state, whatever part of it
//! is there already:
//!
//! 1. *Old* files are older than the checkpoint. Those that were renamed are looked for, by inode,
//!    at every place that the journal ever gave them, and moved into our own folder. A rename is
//!    atomic, so each is at one of these places.
//! 2. Every name that the journal touches is removed. What has such a name now is dead, or *young*:
//!    made by the journal.
//! 3. Young files are made again, and old ones put in their last place. A file with several names
//!    is found by any name that the journal knows. It has one more in our own folder until all is
//!    done, so it keeps the names that the journal does not know.
//! 4. Writes and changes of attributes are repeated in order, file by file. A byte that none of
//!    them touches is as it was at the checkpoint. One that is touched gets its last value. So
//!    repeating is harmless.
//!
//! A recovery that was interrupted starts again; the folder of step 1 is one more place to look at.
//! A folder that should go but holds files that the journal does not know moves to `.runnel/lost`.

mod state;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use crate::apply::{is_of_content, make_link, open_for_writing, redo_content};
use crate::disk::{Disk, Identity, Kind, Stamp, is_full};
use crate::path::{OWN_FOLDER, join};
use crate::record::{EntryName, Record};
use crate::table::{Table, Tracked, is_derived};
use crate::{FileId, VolumeError};

use state::{FinalState, Node};

/// The result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Group commits that were in the journal.
    pub groups: u64,
    /// A group commit that nobody was told of was cut off.
    pub torn: bool,
    /// Files and folders that the journal names and that are not there: removed behind the
    /// server's back.
    pub missing: u64,
    /// Folders with unknown contents, moved to `.runnel/lost`.
    pub lost: u64,
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    state: FinalState,
    /// Where on the disk the files are or may be.
    found: HashMap<FileId, BTreeSet<Vec<u8>>>,
    result: Recovered,
}

/// Brings the disk and the table to the state after `records`. The caller syncs and writes the
/// checkpoint.
pub(crate) fn recover(
    disk: &dyn Disk,
    records: &[Record],
    sequence: u64,
    table: &mut Table,
) -> Result<Recovered, VolumeError> {
    let mut state = FinalState::new(disk.owner());
    for record in records {
        state.note(record);
        if let Record::New { file, .. }
        | Record::Link { file, .. }
        | Record::LinkOwned { file, .. }
        | Record::Node { file, .. } = record
            && !is_derived(*file)
        {
            table.next = table.next.max(file.0 + 1);
        }
        table.note(record);
    }
    state.keep_met();
    let result = Recovered { missing: state.missing, ..Recovered::default() };
    let mut recovery = Recovery { disk, state, found: HashMap::new(), result };
    let failed = |error| VolumeError::io("recovering", b"", error);
    recovery.search().map_err(failed)?;
    recovery.move_aside().map_err(failed)?;
    recovery.search().map_err(failed)?;
    recovery.clear().map_err(failed)?;
    let files: Vec<FileId> = recovery.state.nodes.keys().copied().collect();
    for file in &files {
        recovery.place(*file).map_err(failed)?;
    }
    recovery.redo(records).map_err(failed)?;
    for file in files.into_iter().chain([FileId::TOP]) {
        recovery.stamp(file, sequence, table).map_err(failed)?;
    }
    Ok(recovery.result)
}

impl Recovery<'_> {
    /// Finds where files are, from the top, until nothing new is found. Of a young folder every
    /// folder counts that lies where it was and is no living old one: too many do no harm, since
    /// files in them are told by their inode.
    fn search(&mut self) -> io::Result<()> {
        self.found.clear();
        self.found.entry(FileId::TOP).or_default().insert(Vec::new());
        let living: HashSet<Identity> =
            self.state.nodes.values().filter(|node| !node.removed).filter_map(|node| node.identity).collect();
        loop {
            let mut new = Vec::new();
            for (file, node) in &self.state.nodes {
                let mut paths: Vec<Vec<u8>> = Vec::new();
                if node.identity.is_some() {
                    paths.push(aside(*file));
                }
                for at in &node.chain {
                    paths.extend(self.found.get(&at.folder).into_iter().flatten().map(|path| join(path, &at.name)));
                }
                for path in paths {
                    if self.found.get(file).is_some_and(|found| found.contains(&path)) {
                        continue;
                    }
                    let Some(stat) = there(self.disk.stat(&path))? else {
                        continue;
                    };
                    let is_it = match node.identity {
                        Some(identity) => stat.identity == identity && stat.kind == node.made.kind,
                        None => {
                            node.made.kind == Kind::Folder
                                && stat.kind == Kind::Folder
                                && !living.contains(&stat.identity)
                        }
                    };
                    if is_it {
                        new.push((*file, path));
                    }
                }
            }
            if new.is_empty() {
                return Ok(());
            }
            for (file, path) in new {
                self.found.entry(file).or_default().insert(path);
            }
        }
    }

    fn move_aside(&mut self) -> io::Result<()> {
        self.link_aside()?;
        let mut moves = Vec::new();
        for (file, node) in &self.state.nodes {
            if self.state.is_moved(node)
                && let Some(path) = self.found.get(file).and_then(|found| found.iter().next())
                && *path != aside(*file)
            {
                moves.push((path.clone(), *file));
            }
        }
        if moves.is_empty() {
            return Ok(());
        }
        make_folder(self.disk, b".runnel/moved")?;
        // What lies deeper first, so that the paths of the others stay right.
        moves.sort_by_key(|(path, _)| std::cmp::Reverse(path.iter().filter(|byte| **byte == b'/').count()));
        for (path, file) in moves {
            self.disk.rename(&path, &aside(file))?;
        }
        Ok(())
    }

    /// Gives those that wait aside the name there, while their other names may still go.
    fn link_aside(&mut self) -> io::Result<()> {
        let waiting = self.state.nodes.iter().filter(|(_, node)| node.waits_aside());
        for (file, _) in waiting {
            let Some(found) = self.found.get(file).filter(|found| !found.contains(&aside(*file))) else { continue };
            let Some(path) = found.iter().next() else { continue };
            make_folder(self.disk, b".runnel/moved")?;
            self.disk.hard_link(path, &aside(*file))?;
        }
        Ok(())
    }

    /// Removes whatever bears a name that the journal touched.
    fn clear(&mut self) -> io::Result<()> {
        let mut paths = BTreeSet::new();
        for at in self.state.entries.keys() {
            paths.extend(self.found.get(&at.folder).into_iter().flatten().map(|path| join(path, &at.name)));
        }
        let mut paths: Vec<_> = paths.into_iter().collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.iter().filter(|byte| **byte == b'/').count()));
        for path in paths {
            let Some(stat) = there(self.disk.stat(&path))? else {
                continue;
            };
            if stat.kind != Kind::Folder {
                self.disk.unlink(&path)?;
                continue;
            }
            match self.disk.remove_folder(&path) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    make_folder(self.disk, b".runnel/lost")?;
                    let name = format!(".runnel/lost/{}-{}", stat.identity.inode, stat.stamp.ctime_ns);
                    self.disk.rename(&path, name.as_bytes())?;
                    self.result.lost += 1;
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Puts a living file in its last places, their folders first. Returns whether it is there.
    fn place(&mut self, file: FileId) -> io::Result<bool> {
        let Some(node) = self.state.nodes.get_mut(&file) else {
            return Ok(file == FileId::TOP);
        };
        if node.placed {
            return Ok(true);
        }
        if node.removed {
            return Ok(false);
        }
        // Taken out meanwhile: folders that lie in each other, which no writer makes, are missing
        // and no endless loop.
        let wanted = std::mem::take(&mut node.at);
        let waits = node.waits_aside();
        let mut there = BTreeSet::new();
        for at in wanted {
            if self.place(at.folder)? && self.put(file, &at, there.first())? {
                there.insert(at);
            }
        }
        let waits = waits && self.found.get(&file).is_some_and(|found| found.contains(&aside(file)));
        let placed = !there.is_empty() || waits;
        if let Some(node) = self.state.nodes.get_mut(&file) {
            // The journal knows no name that it has left, and what it says of it was on stable
            // storage before.
            let elsewhere = !placed && node.is_elsewhere();
            (node.at, node.placed, node.removed) = (there, placed, !placed && !elsewhere);
            // Only once.
            self.result.missing += u64::from(node.removed);
        }
        Ok(placed)
    }

    /// Puts a file in one of its places; `first` is another one, where it is already.
    fn put(&mut self, file: FileId, at: &EntryName, first: Option<&EntryName>) -> io::Result<bool> {
        let path = join(&self.path(at.folder), &at.name);
        let first = first.map(|first| join(&self.path(first.folder), &first.name));
        let Some(node) = self.state.nodes.get_mut(&file) else { return Ok(false) };
        let made = node.made;
        match node.identity {
            Some(identity) if !self.state.entries.contains_key(at) => {
                return Ok(there(self.disk.stat(&path))?.is_some_and(|stat| stat.identity == identity));
            }
            Some(_) if node.several => return Ok(there(self.disk.hard_link(&aside(file), &path))?.is_some()),
            Some(_) => return Ok(there(self.disk.rename(&aside(file), &path))?.is_some()),
            None => {}
        }
        match (first, made.kind) {
            (Some(first), _) => self.disk.hard_link(&first, &path)?,
            (None, Kind::Folder) => self.disk.make_folder(&path, made.mode)?,
            (None, Kind::File) => drop(self.disk.create(&path, made.mode)?),
            (None, Kind::Symlink) => make_link(self.disk, &path, made.owner, &node.target)?,
            (None, _) => self.disk.make_node(&path, &made, &[])?,
        }
        Ok(true)
    }

    fn redo(&mut self, records: &[Record]) -> io::Result<()> {
        let mut open = None;
        for record in records {
            let file = match record {
                Record::Write { file, .. }
                | Record::Size { file, .. }
                | Record::Zero { file, .. }
                | Record::Reserve { file, .. }
                | Record::Time { file, .. }
                | Record::AccessTime { file, .. }
                | Record::Mode { file, .. }
                | Record::Owner { file, .. }
                | Record::SetXattr { file, .. }
                | Record::RemoveXattr { file, .. } => *file,
                _ => continue,
            };
            if !self.state.nodes.get(&file).is_some_and(|node| node.placed) {
                continue;
            }
            let path = self.path(file);
            if is_of_content(record) && open.as_ref().is_none_or(|(before, _)| *before != file) {
                open = Some((file, open_for_writing(self.disk, &path)?));
            }
            match (record, &open) {
                (_, Some((_, open))) if is_of_content(record) => redo_content(open.as_ref(), record)?,
                (Record::Time { mtime_ns, .. }, _) => self.disk.set_mtime(&path, *mtime_ns)?,
                (Record::AccessTime { atime_ns, .. }, _) => self.disk.set_atime(&path, *atime_ns)?,
                (Record::Mode { mode, .. }, _) => self.disk.set_mode(&path, *mode)?,
                (Record::Owner { owner, mode, .. }, _) => self.disk.set_owner(&path, *owner, *mode)?,
                (Record::SetXattr { name, value, .. }, _) => self.redo_xattr(&path, name, Some(value))?,
                (Record::RemoveXattr { name, .. }, _) => self.redo_xattr(&path, name, None)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The transaction was staged only if there was room for it. If there is none any more, since
    /// others gave the file attributes, it goes without: a volume that nobody can open would be
    /// worse.
    fn redo_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        match self.disk.set_xattr(path, name, value) {
            Err(error) if is_full(&error) || error.kind() == io::ErrorKind::ArgumentListTooLong => Ok(()),
            other => other,
        }
    }

    fn stamp(&self, file: FileId, sequence: u64, table: &mut Table) -> io::Result<()> {
        let version = match self.state.nodes.get(&file) {
            None => self.state.top,
            Some(node) if node.placed => node.version,
            Some(Node { identity: Some(identity), version: Some(version), .. })
                if self.state.nodes[&file].is_elsewhere() =>
            {
                let (identity, version, stamp) = (*identity, *version, Stamp::UNKNOWN);
                table.insert(file, Tracked { identity, version, stamp, changed: sequence });
                None
            }
            Some(_) => {
                table.remove(file);
                None
            }
        };
        if let Some(version) = version {
            let stat = self.disk.stat(&self.path(file))?;
            table.insert(file, Tracked { identity: stat.identity, version, stamp: stat.stamp, changed: sequence });
        }
        Ok(())
    }

    fn path(&self, file: FileId) -> Vec<u8> {
        match self.state.nodes.get(&file) {
            Some(node) if node.waits_aside() => aside(file),
            Some(node) => node.at.first().map_or(Vec::new(), |at| join(&self.path(at.folder), &at.name)),
            None => Vec::new(),
        }
    }
}

/// After all is on stable storage: takes away the names under which files waited. They have others.
pub(crate) fn tidy_up(disk: &dyn Disk, table: &mut Table) -> io::Result<()> {
    let folder = join(OWN_FOLDER, b"moved");
    let mut names = Vec::new();
    let listed = disk.list(&folder, &mut |name, _| {
        names.push(name.to_vec());
        true
    });
    if there(listed)?.is_none() {
        return Ok(());
    }
    let mut done = false;
    for path in names.iter().map(|name| join(&folder, name)) {
        let before = disk.stat(&path)?;
        // What has no other name is a file whose folder is gone; somebody may look for it.
        if before.kind == Kind::Folder || before.links < 2 {
            continue;
        }
        let seen = table.seen(&before);
        let stat = disk.unlink(&path)?;
        done = true;
        if let Some(tracked) = table.get(seen.file).copied() {
            table.insert(seen.file, Tracked { stamp: stat.stamp, ..tracked });
        }
    }
    // The time of change of each, which the table has, must not be lost.
    if done { disk.sync_all() } else { Ok(()) }
}

/// The path where an old file waits for its last place.
fn aside(file: FileId) -> Vec<u8> {
    [OWN_FOLDER, format!("/moved/{file}").as_bytes()].concat()
}

/// Makes one of our own folders if it is not there.
pub(crate) fn make_folder(disk: &dyn Disk, path: &[u8]) -> io::Result<()> {
    match disk.make_folder(path, 0o700) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// `None` if there is nothing of this name, or a file where a folder should be.
fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        other => other.map(Some),
    }
}
