//! Recovery: from a checkpoint of which an unknown part of the later changes reached the disk, and the journal of these
//! changes, to the state after the journal.
//!
//! Records are not replayed one by one, since a rename or a removal that is on the disk already cannot be repeated.
//! Instead the journal is read as a whole into the *final state* of every name and file that it touches, and the disk is
//! brought there, whatever part of it is there already:
//!
//! 1. *Old* files (older than the checkpoint) that were renamed are looked for, by inode, at every place that the journal
//!    ever gave them, and moved aside into our own folder. A rename is atomic, so each is at one of them.
//! 2. Every name that the journal touches is cleared: what is there now is dead, or *young* (made by the journal).
//! 3. Young files are made anew, old ones put in their last place. A file that had several names is
//!    found by any that the journal knows, has one more in our own folder until all is done, and so
//!    keeps the names that the journal does not know.
//! 4. Writes and changes of attributes are repeated in order, file by file. A byte that none of
//!    them touches is as it was at the checkpoint, one that is touched gets its last value:
//!    repeating is harmless.
//!
//! A recovery that is interrupted is begun anew; the folder of step 1 is one more place to look at. A folder that should
//! go but holds something that the journal does not know goes to `.runnel/lost`, never away.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;

use crate::apply::{is_of_content, make_link, open_for_writing, redo_content};
use crate::disk::{Disk, Identity, Kind, Owner, Stamp, is_full};
use crate::path::{OWN_FOLDER, join};
use crate::record::{Place, Record};
use crate::table::{Table, Tracked, is_derived};
use crate::{FileId, Inode, VolumeError};

#[derive(Debug)]
struct Node {
    /// What a young file is made as; of an old one the kind.
    made: Inode,
    /// Of an old file; a young one has none that we know.
    identity: Option<Identity>,
    /// Where a young symbolic link points.
    target: Vec<u8>,
    /// Every place that it ever had.
    chain: Vec<Place>,
    /// Those that it has in the end, as far as the journal tells; none if it was removed.
    at: BTreeSet<Place>,
    /// Names that were met after the first one: they may be new on the disk, and not reach it.
    met: Vec<Place>,
    /// It has had several names, of which the journal need not tell all.
    several: bool,
    removed: bool,
    version: Option<u64>,
    /// In its last place on the disk.
    placed: bool,
}

/// What a recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Group commits that were in the journal.
    pub groups: u64,
    /// A group commit that nobody was told of was cut off.
    pub torn: bool,
    /// Files and folders that the journal speaks of and that are not there: removed behind the server's back.
    pub missing: u64,
    /// Folders with unknown contents, moved to `.runnel/lost`.
    pub lost: u64,
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    nodes: BTreeMap<FileId, Node>,
    /// The names that the journal touches, and what they are in the end.
    entries: BTreeMap<Place, Option<FileId>>,
    /// Who has a place by what was noted so far. Somebody beside the server may have moved a file
    /// away, so that the journal tells of the next one there without the end of the one before.
    places: HashMap<Place, FileId>,
    /// Where on the disk the files are or may be.
    found: HashMap<FileId, BTreeSet<Vec<u8>>>,
    /// Version of the top folder.
    top: Option<u64>,
    result: Recovered,
}

/// Brings the disk and the table to the state after `records`. The caller syncs and writes the checkpoint.
pub(crate) fn recover(
    disk: &dyn Disk,
    records: &[Record],
    sequence: u64,
    table: &mut Table,
) -> Result<Recovered, VolumeError> {
    let mut recovery = Recovery {
        disk,
        nodes: BTreeMap::new(),
        entries: BTreeMap::new(),
        places: HashMap::new(),
        found: HashMap::new(),
        top: None,
        result: Recovered::default(),
    };
    for record in records {
        recovery.note(record);
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
    recovery.keep_met();
    let failed = |error| VolumeError::io("recovering", b"", error);
    recovery.search().map_err(failed)?;
    recovery.move_aside().map_err(failed)?;
    recovery.search().map_err(failed)?;
    recovery.clear().map_err(failed)?;
    let files: Vec<FileId> = recovery.nodes.keys().copied().collect();
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
    fn note(&mut self, record: &Record) {
        match record {
            Record::Known { file, at, identity, kind, several } => {
                let made = Inode { kind: *kind, mode: 0, owner: Owner::default(), rdev: 0 };
                let node = self.nodes.entry(*file).or_insert_with(|| Node::new(made, Some(*identity)));
                node.several |= several;
                let is_named = node.at.contains(at) && (*several || node.at.len() == 1);
                // Only names that the journal changes are cleared and made again; of a young file
                // all are.
                let is_met = node.chain.is_empty() || *several && node.identity.is_some();
                if !is_named && !is_met && !several {
                    // Somewhere else than it was: somebody beside the server moved it.
                    node.at.clear();
                }
                match is_named || is_met {
                    true => {
                        if !is_named {
                            let is_later = !node.chain.is_empty();
                            node.met.extend(is_later.then(|| at.clone()));
                            node.name(at);
                        }
                        self.occupy(at, *file);
                    }
                    false => self.note_name(*file, at),
                }
            }
            Record::New { file, at, kind, mode } => self.note_young(*file, at, self.made(*kind, *mode), &[]),
            Record::Link { file, at, target } => {
                self.note_young(*file, at, self.made(Kind::Symlink, 0o777), target);
            }
            Record::LinkOwned { file, at, owner, target } => {
                let made = Inode { owner: *owner, ..self.made(Kind::Symlink, 0o777) };
                self.note_young(*file, at, made, target);
            }
            Record::Node { file, at, kind, mode, rdev } => {
                self.note_young(*file, at, Inode { rdev: *rdev, ..self.made(*kind, *mode) }, &[]);
            }
            Record::HardLink { file, at } => {
                if let Some(node) = self.nodes.get_mut(file) {
                    node.several = true;
                }
                self.note_name(*file, at);
            }
            Record::Unlink { file, at, version } => {
                self.entries.insert(at.clone(), None);
                if let Some(node) = self.nodes.get_mut(file) {
                    (node.several, node.version) = (true, Some(*version));
                    node.at.remove(at);
                }
            }
            Record::Move { file, from, to, replaced } => {
                self.entries.insert(from.clone(), None);
                if let Some(node) = replaced.and_then(|replaced| self.nodes.get_mut(&replaced)) {
                    node.remove();
                }
                if let Some(node) = self.nodes.get_mut(file) {
                    node.at.remove(from);
                }
                self.note_name(*file, to);
            }
            Record::Gone { file, at } => {
                self.entries.insert(at.clone(), None);
                if let Some(node) = self.nodes.get_mut(file) {
                    node.remove();
                }
            }
            Record::Version { file: FileId::TOP, version } => self.top = Some(*version),
            Record::Version { file, version } => {
                if let Some(node) = self.nodes.get_mut(file) {
                    node.version = Some(*version);
                }
            }
            Record::Write { .. }
            | Record::Size { .. }
            | Record::Zero { .. }
            | Record::Reserve { .. }
            | Record::Time { .. } => {}
            Record::AccessTime { .. } | Record::Mode { .. } | Record::Owner { .. } => {}
            Record::SetXattr { .. } | Record::RemoveXattr { .. } => {}
            Record::Answer { .. } | Record::Inherit { .. } => {}
        }
    }

    /// Something of the owner that all files here have.
    fn made(&self, kind: Kind, mode: u16) -> Inode {
        Inode { kind, mode, owner: self.disk.owner(), rdev: 0 }
    }

    fn note_young(&mut self, file: FileId, at: &Place, made: Inode, target: &[u8]) {
        let mut node = Node { target: target.to_vec(), ..Node::new(made, None) };
        node.name(at);
        self.nodes.insert(file, node);
        self.entries.insert(at.clone(), Some(file));
        self.occupy(at, file);
    }

    fn note_name(&mut self, file: FileId, at: &Place) {
        if let Some(node) = self.nodes.get_mut(&file) {
            node.name(at);
        }
        self.entries.insert(at.clone(), Some(file));
        self.occupy(at, file);
    }

    /// Names that files with several ones got beside the server, as far as they still have them,
    /// are made again.
    fn keep_met(&mut self) {
        for (file, node) in self.nodes.iter().filter(|(_, node)| Recovery::waits_aside(node)) {
            for at in node.met.iter().filter(|at| node.at.contains(*at)) {
                self.entries.entry(at.clone()).or_insert(Some(*file));
            }
        }
    }

    /// A file is at this place now, and what was there before is not.
    fn occupy(&mut self, at: &Place, file: FileId) {
        let before = self.places.insert(at.clone(), file).filter(|before| *before != file);
        if let Some(node) = before.and_then(|before| self.nodes.get_mut(&before))
            && node.at.remove(at)
            && node.at.is_empty()
            && !node.is_elsewhere()
        {
            node.removed = true;
            self.result.missing += 1;
        }
    }

    /// Finds where files are, from the top, until nothing new is found. Of a young folder every folder counts that lies
    /// where it was and is no living old one: too many do no harm, since files in them are told by their inode.
    fn search(&mut self) -> io::Result<()> {
        self.found.clear();
        self.found.entry(FileId::TOP).or_default().insert(Vec::new());
        let living: HashSet<Identity> =
            self.nodes.values().filter(|node| !node.removed).filter_map(|node| node.identity).collect();
        loop {
            let mut new = Vec::new();
            for (file, node) in &self.nodes {
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

    /// Whether the file was there at the checkpoint, is still, and has a name that the journal touched.
    fn is_moved(&self, node: &Node) -> bool {
        node.identity.is_some() && !node.several && node.at.iter().any(|at| self.entries.contains_key(at))
    }

    /// Whether a file that was changed waits under a name of its own until its changes are
    /// repeated: one with several names was there at the checkpoint, and its other names may be
    /// unknown.
    fn waits_aside(node: &Node) -> bool {
        node.identity.is_some() && node.several && !node.removed && node.version.is_some()
    }

    fn move_aside(&mut self) -> io::Result<()> {
        self.link_aside()?;
        let mut moves = Vec::new();
        for (file, node) in &self.nodes {
            if self.is_moved(node)
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
        let waiting = self.nodes.iter().filter(|(_, node)| Recovery::waits_aside(node));
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
        for at in self.entries.keys() {
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
        let Some(node) = self.nodes.get_mut(&file) else {
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
        let waits = Recovery::waits_aside(node);
        let mut there = BTreeSet::new();
        for at in wanted {
            if self.place(at.folder)? && self.put(file, &at, there.first())? {
                there.insert(at);
            }
        }
        let waits = waits && self.found.get(&file).is_some_and(|found| found.contains(&aside(file)));
        let placed = !there.is_empty() || waits;
        if let Some(node) = self.nodes.get_mut(&file) {
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
    fn put(&mut self, file: FileId, at: &Place, first: Option<&Place>) -> io::Result<bool> {
        let path = join(&self.path(at.folder), &at.name);
        let first = first.map(|first| join(&self.path(first.folder), &first.name));
        let Some(node) = self.nodes.get_mut(&file) else { return Ok(false) };
        let made = node.made;
        match node.identity {
            Some(identity) if !self.entries.contains_key(at) => {
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
            if !self.nodes.get(&file).is_some_and(|node| node.placed) {
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

    /// The plan saw that there is room for it. If there is none any more, since others gave the
    /// file attributes, it goes without: a volume that nobody can open would be worse.
    fn redo_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        match self.disk.set_xattr(path, name, value) {
            Err(error) if is_full(&error) || error.kind() == io::ErrorKind::ArgumentListTooLong => Ok(()),
            other => other,
        }
    }

    fn stamp(&self, file: FileId, sequence: u64, table: &mut Table) -> io::Result<()> {
        let version = match self.nodes.get(&file) {
            None => self.top,
            Some(node) if node.placed => node.version,
            Some(Node { identity: Some(identity), version: Some(version), .. }) if self.nodes[&file].is_elsewhere() => {
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
        match self.nodes.get(&file) {
            Some(node) if Recovery::waits_aside(node) => aside(file),
            Some(node) => node.at.first().map_or(Vec::new(), |at| join(&self.path(at.folder), &at.name)),
            None => Vec::new(),
        }
    }
}

impl Node {
    fn new(made: Inode, identity: Option<Identity>) -> Node {
        Node {
            made,
            identity,
            target: Vec::new(),
            chain: Vec::new(),
            met: Vec::new(),
            at: BTreeSet::new(),
            several: false,
            removed: false,
            version: None,
            placed: false,
        }
    }

    fn name(&mut self, at: &Place) {
        self.chain.push(at.clone());
        self.at.insert(at.clone());
        self.removed = false;
    }

    /// Whether it has names that the journal does not know, and none that it knows.
    fn is_elsewhere(&self) -> bool {
        Recovery::waits_aside(self) && self.at.is_empty()
    }

    fn remove(&mut self) {
        self.at.clear();
        self.removed = true;
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

/// Where an old file waits for its last place.
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
