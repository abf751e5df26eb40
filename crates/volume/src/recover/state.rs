//! The final state of the names and files that a journal touches.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::disk::{Identity, Kind, Owner};
use crate::record::{EntryName, Record};
use crate::{FileId, Inode};

/// A file that the journal names.
#[derive(Debug)]
pub(super) struct Node {
    /// The inode of a young file; of an old one only the kind.
    pub made: Inode,
    /// Of an old file; a young one has none that we know.
    pub identity: Option<Identity>,
    /// The target of a young symbolic link.
    pub target: Vec<u8>,
    /// Every place that it ever had.
    pub chain: Vec<EntryName>,
    /// Those that it has in the end, as far as the journal tells; none if it was removed.
    pub at: BTreeSet<EntryName>,
    /// Names that were met after the first one: they may be new on the disk, and not reach it.
    pub met: Vec<EntryName>,
    /// It has had several names, of which the journal need not tell all.
    pub several: bool,
    pub removed: bool,
    pub version: Option<u64>,
    /// In its last place on the disk.
    pub placed: bool,
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

    fn name(&mut self, at: &EntryName) {
        self.chain.push(at.clone());
        self.at.insert(at.clone());
        self.removed = false;
    }

    /// Whether it has names that the journal does not know, and none that it knows.
    pub fn is_elsewhere(&self) -> bool {
        self.waits_aside() && self.at.is_empty()
    }

    fn remove(&mut self) {
        self.at.clear();
        self.removed = true;
    }

    /// Whether a file that was changed waits under a name of its own until its changes are
    /// repeated: one with several names was there at the checkpoint, and its other names may be
    /// unknown.
    pub fn waits_aside(&self) -> bool {
        self.identity.is_some() && self.several && !self.removed && self.version.is_some()
    }
}

/// The state after all records that were noted.
///
/// A name belongs to one file at most, so a file that comes to a name takes it from the one before.
/// Every file that has a name in the end has had it before, so that its chain tells where to look
/// for it.
pub(super) struct FinalState {
    /// Who owns what is made here.
    owner: Owner,
    /// The files.
    pub nodes: BTreeMap<FileId, Node>,
    /// The names that the journal touches, and what they are in the end.
    pub entries: BTreeMap<EntryName, Option<FileId>>,
    /// Who has a name by what was noted so far. Somebody beside the server may have moved a file
    /// away, so that the journal tells of the next one there without the end of the one before.
    occupants: HashMap<EntryName, FileId>,
    /// Version of the top folder.
    pub top: Option<u64>,
    /// Files that are gone without the journal telling.
    pub missing: u64,
}

impl FinalState {
    /// Nothing was noted.
    pub fn new(owner: Owner) -> FinalState {
        FinalState {
            owner,
            nodes: BTreeMap::new(),
            entries: BTreeMap::new(),
            occupants: HashMap::new(),
            top: None,
            missing: 0,
        }
    }

    /// Takes a record in, which comes after those before.
    pub fn note(&mut self, record: &Record) {
        match record {
            Record::Known { file, at, identity, kind, several } => {
                self.note_known(*file, at, *identity, *kind, *several);
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

    /// A file of before the journal has this name.
    fn note_known(&mut self, file: FileId, at: &EntryName, identity: Identity, kind: Kind, several: bool) {
        let made = Inode { kind, mode: 0, owner: Owner::default(), rdev: 0 };
        let node = self.nodes.entry(file).or_insert_with(|| Node::new(made, Some(identity)));
        node.several |= several;
        let is_named = node.at.contains(at) && (several || node.at.len() == 1);
        // Only names that the journal changes are cleared and made again; of a young file
        // all are.
        let is_met = node.chain.is_empty() || several && node.identity.is_some();
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
                self.occupy(at, file);
            }
            false => self.note_name(file, at),
        }
    }

    /// Something of the owner that all files here have.
    fn made(&self, kind: Kind, mode: u16) -> Inode {
        Inode { kind, mode, owner: self.owner, rdev: 0 }
    }

    fn note_young(&mut self, file: FileId, at: &EntryName, made: Inode, target: &[u8]) {
        let mut node = Node { target: target.to_vec(), ..Node::new(made, None) };
        node.name(at);
        self.nodes.insert(file, node);
        self.entries.insert(at.clone(), Some(file));
        self.occupy(at, file);
    }

    fn note_name(&mut self, file: FileId, at: &EntryName) {
        if let Some(node) = self.nodes.get_mut(&file) {
            node.name(at);
        }
        self.entries.insert(at.clone(), Some(file));
        self.occupy(at, file);
    }

    /// Names that files with several ones got beside the server, as far as they still have them,
    /// are made again.
    pub fn keep_met(&mut self) {
        for (file, node) in self.nodes.iter().filter(|(_, node)| node.waits_aside()) {
            for at in node.met.iter().filter(|at| node.at.contains(*at)) {
                self.entries.entry(at.clone()).or_insert(Some(*file));
            }
        }
    }

    /// A file is at this place now, and what was there before is not.
    fn occupy(&mut self, at: &EntryName, file: FileId) {
        let before = self.occupants.insert(at.clone(), file).filter(|before| *before != file);
        if let Some(node) = before.and_then(|before| self.nodes.get_mut(&before))
            && node.at.remove(at)
            && node.at.is_empty()
            && !node.is_elsewhere()
        {
            node.removed = true;
            self.missing += 1;
        }
    }

    /// Whether the file was there at the checkpoint, is still, and has a name that the journal
    /// touched.
    pub fn is_moved(&self, node: &Node) -> bool {
        node.identity.is_some() && !node.several && node.at.iter().any(|at| self.entries.contains_key(at))
    }
}
