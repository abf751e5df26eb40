//! The model: a tree in memory that does what a transaction says, or nothing. And random transactions.

use std::collections::BTreeMap;

use units::{Rng, SplitMix64};

use super::content;
use crate::*;

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Folder { mode: u16 },
    File { bytes: Vec<u8>, mode: u16, mtime_ns: i64 },
    Link { target: Vec<u8>, mtime_ns: i64 },
}

/// The tree, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model(pub BTreeMap<Vec<u8>, Node>);

/// Why the model refuses; bases and leases are not its affair.
#[derive(Debug)]
pub(crate) struct Refused;

impl Model {
    /// Does all of a transaction or nothing.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), Refused> {
        let mut after = self.clone();
        for operation in &transaction.operations {
            after.operate(operation, transaction.mtime_ns)?;
        }
        *self = after;
        Ok(())
    }

    fn operate(&mut self, operation: &Operation, now: i64) -> Result<(), Refused> {
        match operation {
            Operation::Write { path, offset, bytes: new, .. } => {
                let (bytes, mtime_ns) = self.file(path)?;
                put(bytes, *offset as usize, new);
                *mtime_ns = now;
            }
            Operation::Append { path, bytes: new, .. } => {
                let (bytes, mtime_ns) = self.file(path)?;
                bytes.extend_from_slice(new);
                *mtime_ns = now;
            }
            Operation::Truncate { path, size, .. } => {
                let (bytes, mtime_ns) = self.file(path)?;
                bytes.resize(*size as usize, 0);
                *mtime_ns = now;
            }
            Operation::Create { path, mode, exclusive } => {
                self.parent(path.as_bytes())?;
                match self.0.get(path.as_bytes()) {
                    Some(Node::File { .. }) if !exclusive => {}
                    Some(_) => return Err(Refused),
                    None => {
                        let file = Node::File { bytes: Vec::new(), mode: *mode, mtime_ns: now };
                        self.0.insert(path.as_bytes().to_vec(), file);
                    }
                }
            }
            Operation::MakeFolder { path, mode } => {
                self.parent(path.as_bytes())?;
                if self.0.contains_key(path.as_bytes()) || path.is_top() {
                    return Err(Refused);
                }
                self.0.insert(path.as_bytes().to_vec(), Node::Folder { mode: *mode });
            }
            Operation::MakeLink { path, target } => {
                self.parent(path.as_bytes())?;
                if self.0.contains_key(path.as_bytes()) || path.is_top() {
                    return Err(Refused);
                }
                self.0.insert(path.as_bytes().to_vec(), Node::Link { target: target.clone(), mtime_ns: now });
            }
            Operation::Rename { from, to, replace, .. } => self.rename(from.as_bytes(), to.as_bytes(), *replace)?,
            Operation::Unlink { path, .. } => {
                let Some(Node::File { .. } | Node::Link { .. }) = self.0.get(path.as_bytes()) else {
                    return Err(Refused);
                };
                self.0.remove(path.as_bytes());
            }
            Operation::RemoveFolder { path } => {
                let Some(Node::Folder { .. }) = self.0.get(path.as_bytes()) else {
                    return Err(Refused);
                };
                self.empty(path.as_bytes())?;
                self.0.remove(path.as_bytes());
            }
            Operation::SetTime { path, mtime_ns: new, .. } => match self.0.get_mut(path.as_bytes()) {
                Some(Node::File { mtime_ns, .. } | Node::Link { mtime_ns, .. }) => *mtime_ns = *new,
                Some(Node::Folder { .. }) => {}
                None => return Err(Refused),
            },
            Operation::SetMode { path, mode: new, .. } => match self.0.get_mut(path.as_bytes()).ok_or(Refused)? {
                Node::File { mode, .. } | Node::Folder { mode } => *mode = *new,
                Node::Link { .. } => return Err(Refused),
            },
        }
        Ok(())
    }

    fn rename(&mut self, from: &[u8], to: &[u8], replace: bool) -> Result<(), Refused> {
        self.parent(from)?;
        self.parent(to)?;
        let moved = self.0.get(from).ok_or(Refused)?.clone();
        if from == to {
            return Ok(());
        }
        let inside = [from, b"/"].concat();
        if to.starts_with(&inside) {
            return Err(Refused);
        }
        if let Some(there) = self.0.get(to) {
            match (&moved, there) {
                _ if !replace => return Err(Refused),
                (Node::Folder { .. }, Node::Folder { .. }) => self.empty(to)?,
                (Node::Folder { .. }, _) | (_, Node::Folder { .. }) => return Err(Refused),
                _ => {}
            }
        }
        let below: Vec<Vec<u8>> = self.0.keys().filter(|path| path.starts_with(&inside)).cloned().collect();
        for path in below {
            let node = self.0.remove(&path).unwrap();
            self.0.insert([to, &path[from.len()..]].concat(), node);
        }
        self.0.remove(from);
        self.0.insert(to.to_vec(), moved);
        Ok(())
    }

    fn parent(&self, path: &[u8]) -> Result<(), Refused> {
        let (folder, _) = crate::path::split(path);
        match self.0.get(folder) {
            Some(Node::Folder { .. }) => Ok(()),
            None if folder.is_empty() => Ok(()),
            _ => Err(Refused),
        }
    }

    fn empty(&self, folder: &[u8]) -> Result<(), Refused> {
        let inside = [folder, b"/"].concat();
        if self.0.keys().any(|path| path.starts_with(&inside)) { Err(Refused) } else { Ok(()) }
    }

    fn file(&mut self, path: &VolumePath) -> Result<(&mut Vec<u8>, &mut i64), Refused> {
        match self.0.get_mut(path.as_bytes()) {
            Some(Node::File { bytes, mtime_ns, .. }) => Ok((bytes, mtime_ns)),
            _ => Err(Refused),
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if new.is_empty() {
        return;
    }
    bytes.resize(bytes.len().max(offset + new.len()), 0);
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

/// What a volume shows, and the version of each path.
pub(crate) fn walk(volume: &Volume) -> (Model, BTreeMap<Vec<u8>, Seen>) {
    let mut model = Model::default();
    let mut versions = BTreeMap::new();
    let mut open = vec![VolumePath::top()];
    while let Some(folder) = open.pop() {
        let mut after = Vec::new();
        loop {
            // Small pages, so that going on is tested too.
            let page = volume.list(&folder, &after, 2).unwrap();
            for entry in &page.entries {
                let path = folder.join(&entry.name).unwrap();
                let info = volume.stat(&path).unwrap();
                assert_eq!(info.kind, entry.kind);
                let node = if info.kind == Kind::Folder {
                    open.push(path.clone());
                    Node::Folder { mode: info.mode }
                } else if info.kind == Kind::Symlink {
                    Node::Link { target: volume.read_link(&path).unwrap(), mtime_ns: info.mtime_ns }
                } else {
                    let (seen, bytes) = content(volume, &path).unwrap();
                    assert_eq!(seen, info.seen);
                    versions.insert(path.as_bytes().to_vec(), seen);
                    Node::File { bytes, mode: info.mode, mtime_ns: info.mtime_ns }
                };
                model.0.insert(path.as_bytes().to_vec(), node);
            }
            match page.entries.last() {
                Some(last) if page.more => after = last.name.clone(),
                _ => break,
            }
        }
    }
    (model, versions)
}

/// A random transaction of up to five operations over a few names.
pub(crate) fn random(rng: &mut SplitMix64) -> Transaction {
    let count = 1 + rng.below(5);
    let operations = (0..count).map(|_| operation(rng)).collect();
    Transaction { mtime_ns: 1_000 + rng.below(1 << 40) as i64, operations, ..Transaction::default() }
}

fn some_path(rng: &mut SplitMix64) -> VolumePath {
    let depth = 1 + rng.below(3);
    let names: Vec<&str> = (0..depth).map(|_| ["a", "b", "c"][rng.below(3) as usize]).collect();
    VolumePath::new(names.join("/").as_bytes()).unwrap()
}

fn some_bytes(rng: &mut SplitMix64) -> Vec<u8> {
    let fill = rng.next_u64() as u8;
    let count = if rng.below(4) == 0 { rng.below(2500) } else { rng.below(300) };
    (0..count).map(|index| fill.wrapping_add(index as u8) | 1).collect()
}

fn operation(rng: &mut SplitMix64) -> Operation {
    let path = some_path(rng);
    let base = None;
    let mode = [0o600, 0o644, 0o755, 0o444][rng.below(4) as usize];
    match rng.below(22) {
        20 | 21 => Operation::MakeLink { path, target: some_path(rng).as_bytes().to_vec() },
        0..4 => Operation::Create { path, mode, exclusive: rng.below(2) == 0 },
        4..7 => Operation::MakeFolder { path, mode: mode | 0o700 },
        7..10 => Operation::Write { path, base, offset: rng.below(3000), bytes: some_bytes(rng) },
        10..12 => Operation::Append { path, base, bytes: some_bytes(rng) },
        12 => Operation::Truncate { path, base, size: rng.below(3000) },
        13..16 => Operation::Rename { from: path, base, to: some_path(rng), replace: rng.below(4) != 0 },
        16 => Operation::Unlink { path, base },
        17 => Operation::RemoveFolder { path },
        18 => Operation::SetTime { path, base, mtime_ns: rng.below(1 << 50) as i64 },
        _ => Operation::SetMode { path, base, mode: mode | 0o700 },
    }
}
