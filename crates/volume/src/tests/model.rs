//! The model: a tree in memory that does what a transaction says, or nothing. And random
//! transactions.

use std::collections::{BTreeMap, BTreeSet};

use units::{Rng, SplitMix64};

use super::content;
use crate::*;

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub kind: Kind,
    pub mode: u16,
    pub owner: Owner,
    pub rdev: u32,
    /// Not of folders.
    pub mtime_ns: i64,
    /// If somebody set it.
    pub atime_ns: Option<i64>,
    /// Of a file the content, of a symbolic link the target.
    pub bytes: Vec<u8>,
    pub xattrs: Xattrs,
}

/// The tree: names by path, and what they stand for by numbers of no meaning.
#[derive(Clone, Default)]
pub(crate) struct Model {
    names: BTreeMap<Vec<u8>, u64>,
    nodes: BTreeMap<u64, Node>,
    /// Files that the running transaction writes.
    written: BTreeSet<u64>,
    /// Whose files are that belong to nobody else.
    pub owner: Owner,
    next: u64,
}

/// Why the model refuses; bases and leases are not its affair.
#[derive(Debug)]
pub(crate) struct Refused;

impl PartialEq for Model {
    fn eq(&self, other: &Model) -> bool {
        self.shown() == other.shown()
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (path, (node, first)) in self.shown() {
            let Node { kind, mode, owner, rdev, mtime_ns, atime_ns, bytes, xattrs } = node;
            let (path, first) = (String::from_utf8_lossy(path), String::from_utf8_lossy(first));
            let hash = blake3::hash(bytes).to_hex();
            writeln!(
                f,
                "{path} = {first}: {kind:?} {mode:o} {}:{} {rdev} {mtime_ns} {atime_ns:?} {} {} {xattrs:x?}",
                owner.uid,
                owner.gid,
                bytes.len(),
                &hash[..8]
            )?;
        }
        Ok(())
    }
}

impl Model {
    /// An empty tree of the simulated disk.
    pub fn simulated() -> Model {
        Model { owner: crate::world::OWNER, ..Model::default() }
    }

    /// What each path is, and the first path of the same file.
    fn shown(&self) -> BTreeMap<&[u8], (&Node, &[u8])> {
        let mut first = BTreeMap::new();
        let names = self.names.iter().map(|(path, number)| {
            let first: &[u8] = first.entry(number).or_insert(path.as_slice());
            (path.as_slice(), (&self.nodes[number], first))
        });
        names.collect()
    }

    pub fn get(&self, path: &[u8]) -> Option<&Node> {
        self.names.get(path).map(|number| &self.nodes[number])
    }

    fn get_mut(&mut self, path: &[u8]) -> Result<&mut Node, Refused> {
        let number = self.names.get(path).ok_or(Refused)?;
        self.nodes.get_mut(number).ok_or(Refused)
    }

    pub fn paths(&self) -> Vec<Vec<u8>> {
        self.names.keys().cloned().collect()
    }

    /// Something new under a name.
    pub fn insert(&mut self, path: &[u8], node: Node) {
        self.next += 1;
        self.nodes.insert(self.next, node);
        self.names.insert(path.to_vec(), self.next);
    }

    /// The same, for a file that may have other names, with a number of its own.
    pub fn insert_as(&mut self, path: &[u8], node: Node, number: Option<u64>) {
        let Some(number) = number else { return self.insert(path, node) };
        self.nodes.entry(number | 1 << 63).or_insert(node);
        self.names.insert(path.to_vec(), number | 1 << 63);
    }

    /// A plain file or folder of nobody else.
    pub fn plain(&self, kind: Kind, mode: u16, mtime_ns: i64, bytes: Vec<u8>) -> Node {
        Node { kind, mode, owner: self.owner, rdev: 0, mtime_ns, atime_ns: None, bytes, xattrs: Xattrs::new() }
    }

    /// Does all of a transaction or nothing.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), Refused> {
        let mut after = Model { written: BTreeSet::new(), ..self.clone() };
        for operation in &transaction.operations {
            after.operate(operation, transaction.mtime_ns)?;
        }
        *self = after;
        Ok(())
    }

    fn operate(&mut self, operation: &Operation, now: i64) -> Result<(), Refused> {
        match operation {
            Operation::Write { .. }
            | Operation::Append { .. }
            | Operation::Truncate { .. }
            | Operation::Allocate { .. }
            | Operation::Copy { .. } => self.write(operation, now)?,
            Operation::Create { path, mode, exclusive, owner } => {
                self.parent(path.as_bytes())?;
                match self.get(path.as_bytes()) {
                    Some(node) if node.kind == Kind::File && !exclusive => {}
                    Some(_) => return Err(Refused),
                    None => self.make(path, Kind::File, *mode, *owner, now)?,
                }
            }
            Operation::MakeFolder { path, mode, owner } => self.make(path, Kind::Folder, *mode, *owner, 0)?,
            Operation::MakeLink { path, target, owner } => {
                self.make(path, Kind::Symlink, 0o777, *owner, now)?;
                self.get_mut(path.as_bytes())?.bytes = target.clone();
            }
            Operation::MakeNode { path, kind, mode, rdev, owner } => {
                self.make(path, *kind, *mode, *owner, now)?;
                let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
                self.get_mut(path.as_bytes())?.rdev = if is_device { *rdev } else { 0 };
            }
            Operation::Link { from, to, .. } => {
                let number = *self.names.get(from.as_bytes()).ok_or(Refused)?;
                self.parent(to.as_bytes())?;
                if self.nodes[&number].kind == Kind::Folder || self.names.contains_key(to.as_bytes()) || to.is_top() {
                    return Err(Refused);
                }
                self.names.insert(to.as_bytes().to_vec(), number);
            }
            Operation::Rename { from, to, replace, .. } => self.rename(from.as_bytes(), to.as_bytes(), *replace)?,
            Operation::Unlink { path, .. } => {
                if self.get(path.as_bytes()).is_none_or(|node| node.kind == Kind::Folder) {
                    return Err(Refused);
                }
                self.names.remove(path.as_bytes());
            }
            Operation::OnlyName { path } => {
                self.parent(path.as_bytes())?;
                let number = self.names.get(path.as_bytes());
                let count = self.names.values().filter(|other| Some(*other) == number).count();
                if number.is_some() && count > 1 {
                    return Err(Refused);
                }
            }
            Operation::RemoveFolder { path } => {
                if self.get(path.as_bytes()).is_none_or(|node| node.kind != Kind::Folder) {
                    return Err(Refused);
                }
                self.empty(path.as_bytes())?;
                self.names.remove(path.as_bytes());
            }
            _ => self.set(operation)?,
        }
        Ok(())
    }

    /// Changes what a file holds.
    fn write(&mut self, operation: &Operation, now: i64) -> Result<(), Refused> {
        match operation {
            Operation::Write { path, offset, bytes: new, .. } => put(self.content(path, now)?, *offset as usize, new),
            Operation::Append { path, bytes: new, .. } => self.content(path, now)?.extend_from_slice(new),
            Operation::Truncate { path, size, .. } => self.content(path, now)?.resize(*size as usize, 0),
            Operation::Allocate { path, offset, length, allocation, .. } => {
                let bytes = self.content(path, now)?;
                let (offset, end, size) = (*offset as usize, (offset + length) as usize, bytes.len());
                bytes.resize(if allocation.extend { size.max(end) } else { size }, 0);
                if allocation.zero && offset < size {
                    bytes[offset..end.min(size)].fill(0);
                }
            }
            Operation::Copy { path, offset, from, from_offset, length, .. } => {
                let number = *self.names.get(from.as_bytes()).ok_or(Refused)?;
                if self.written.contains(&number) || self.nodes[&number].kind != Kind::File {
                    return Err(Refused);
                }
                let bytes = &self.nodes[&number].bytes;
                let end = bytes.len().min(*from_offset as usize + *length as usize);
                let copied = bytes.get(*from_offset as usize..end).unwrap_or_default().to_vec();
                put(self.content(path, now)?, *offset as usize, &copied);
            }
            _ => unreachable!("{operation:?}"),
        }
        Ok(())
    }

    /// Changes attributes.
    fn set(&mut self, operation: &Operation) -> Result<(), Refused> {
        match operation {
            Operation::SetTime { path, mtime_ns: new, .. } => {
                let node = self.get_mut(path.as_bytes())?;
                if node.kind != Kind::Folder {
                    node.mtime_ns = *new;
                }
            }
            Operation::SetAccessTime { path, atime_ns, .. } => {
                self.get_mut(path.as_bytes())?.atime_ns = Some(*atime_ns);
            }
            Operation::SetOwner { path, uid, gid, .. } => {
                let number = self.names.get(path.as_bytes()).ok_or(Refused)?;
                let several = self.names.values().filter(|other| *other == number).count() > 1;
                let (node, stays) = (&self.nodes[number], |new: &Option<u32>, now| new.is_none_or(|new| new == now));
                let changes = !stays(uid, node.owner.uid) || !stays(gid, node.owner.gid);
                if node.kind == Kind::Symlink && several && changes {
                    return Err(Refused);
                }
                let owner = &mut self.get_mut(path.as_bytes())?.owner;
                *owner = Owner { uid: uid.unwrap_or(owner.uid), gid: gid.unwrap_or(owner.gid) };
            }
            Operation::SetMode { path, mode: new, .. } => match self.get_mut(path.as_bytes())? {
                Node { kind: Kind::Symlink, .. } => return Err(Refused),
                node => node.mode = *new,
            },
            Operation::SetXattr { path, name, value, how, .. } => {
                let xattrs = self.xattrs(path)?;
                let there = xattrs.contains_key(name);
                if (*how == XattrHow::Create && there) || (*how == XattrHow::Replace && !there) {
                    return Err(Refused);
                }
                xattrs.insert(name.clone(), value.clone());
            }
            Operation::RemoveXattr { path, name, .. } => drop(self.xattrs(path)?.remove(name).ok_or(Refused)?),
            _ => unreachable!("{operation:?}"),
        }
        Ok(())
    }

    fn make(
        &mut self,
        path: &VolumePath,
        kind: Kind,
        mode: u16,
        owner: Option<Owner>,
        mtime_ns: i64,
    ) -> Result<(), Refused> {
        self.parent(path.as_bytes())?;
        if self.names.contains_key(path.as_bytes()) || path.is_top() {
            return Err(Refused);
        }
        let (folder, _) = crate::path::split(path.as_bytes());
        let inherits = self.get(folder).filter(|folder| folder.mode & 0o2000 != 0).cloned();
        let mut node = self.plain(kind, mode, mtime_ns, Vec::new());
        node.owner = owner.unwrap_or(self.owner);
        if let Some(folder) = inherits {
            if owner.is_some() {
                node.owner.gid = folder.owner.gid;
            }
            if kind == Kind::Folder {
                node.mode |= 0o2000;
            }
        }
        self.insert(path.as_bytes(), node);
        Ok(())
    }

    fn rename(&mut self, from: &[u8], to: &[u8], replace: bool) -> Result<(), Refused> {
        self.parent(from)?;
        self.parent(to)?;
        let is_folder = self.get(from).ok_or(Refused)?.kind == Kind::Folder;
        if self.names.get(from) == self.names.get(to) {
            return Ok(());
        }
        let inside = [from, b"/"].concat();
        if to.starts_with(&inside) {
            return Err(Refused);
        }
        if let Some(there) = self.get(to) {
            match (is_folder, there.kind == Kind::Folder) {
                _ if !replace => return Err(Refused),
                (true, true) => self.empty(to)?,
                (true, false) | (false, true) => return Err(Refused),
                _ => {}
            }
        }
        let below: Vec<Vec<u8>> = self.names.keys().filter(|path| path.starts_with(&inside)).cloned().collect();
        for path in below {
            let node = self.names.remove(&path).unwrap();
            self.names.insert([to, &path[from.len()..]].concat(), node);
        }
        let moved = self.names.remove(from).unwrap();
        self.names.insert(to.to_vec(), moved);
        Ok(())
    }

    fn parent(&self, path: &[u8]) -> Result<(), Refused> {
        let (folder, _) = crate::path::split(path);
        match self.get(folder) {
            Some(node) if node.kind == Kind::Folder => Ok(()),
            None if folder.is_empty() => Ok(()),
            _ => Err(Refused),
        }
    }

    fn empty(&self, folder: &[u8]) -> Result<(), Refused> {
        let inside = [folder, b"/"].concat();
        if self.names.keys().any(|path| path.starts_with(&inside)) { Err(Refused) } else { Ok(()) }
    }

    fn xattrs(&mut self, path: &VolumePath) -> Result<&mut Xattrs, Refused> {
        let node = self.get_mut(path.as_bytes())?;
        if matches!(node.kind, Kind::File | Kind::Folder) { Ok(&mut node.xattrs) } else { Err(Refused) }
    }

    /// What a file holds that is written now.
    fn content(&mut self, path: &VolumePath, now: i64) -> Result<&mut Vec<u8>, Refused> {
        let file = self.file(path)?;
        file.mtime_ns = now;
        Ok(&mut file.bytes)
    }

    fn file(&mut self, path: &VolumePath) -> Result<&mut Node, Refused> {
        let number = *self.names.get(path.as_bytes()).ok_or(Refused)?;
        self.written.insert(number);
        Some(self.get_mut(path.as_bytes())?).filter(|node| node.kind == Kind::File).ok_or(Refused)
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
    let (mut files, mut links) = (BTreeMap::new(), BTreeMap::new());
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
                let bytes = match info.kind {
                    Kind::Symlink => volume.read_link(&path).unwrap(),
                    Kind::File => {
                        let (seen, bytes) = content(volume, &path).unwrap();
                        assert_eq!(seen, info.seen);
                        versions.insert(path.as_bytes().to_vec(), seen);
                        bytes
                    }
                    _ => {
                        assert!(content(volume, &path).is_err(), "{path} is no file, and has no bytes");
                        Vec::new()
                    }
                };
                let mtime_ns = if info.kind == Kind::Folder { 0 } else { info.mtime_ns };
                if info.kind == Kind::Folder {
                    open.push(path.clone());
                }
                let Info { kind, mode, owner, rdev, .. } = info;
                // Reading may change it on a real disk, but not to what random transactions set.
                let atime_ns = Some(info.atime_ns).filter(|atime| ACCESS_TIMES.contains(atime));
                let (again, xattrs) = volume.xattrs(&path).unwrap();
                assert_eq!((again.seen, info.has_xattrs), (info.seen, !xattrs.is_empty()));
                let node = Node { kind, mode, owner, rdev, mtime_ns, atime_ns, bytes, xattrs };
                match files.get(&info.seen.file) {
                    Some(number) if kind != Kind::Folder => drop(model.names.insert(path.as_bytes().to_vec(), *number)),
                    _ => {
                        model.insert(path.as_bytes(), node);
                        files.insert(info.seen.file, model.next);
                    }
                }
                links.entry(info.seen.file).or_insert((0, info)).0 += 1;
            }
            match page.entries.last() {
                Some(last) if page.more => after = last.name.clone(),
                _ => break,
            }
        }
    }
    for (file, (count, info)) in links {
        assert!(info.kind == Kind::Folder || info.links == count, "{file}: {count} names, {info:?}");
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

/// The times of access that random transactions set: after all others, so that no reading changes
/// them.
const ACCESS_TIMES: std::ops::Range<i64> = 1 << 61..i64::MAX;

fn some_owner(rng: &mut SplitMix64) -> Option<Owner> {
    let owner = Owner { uid: rng.below(3) as u32, gid: rng.below(3) as u32 };
    (rng.below(3) == 0).then_some(owner)
}

fn some_attribute(rng: &mut SplitMix64) -> Vec<u8> {
    [b"user.a", b"user.b"][rng.below(2) as usize].to_vec()
}

fn operation(rng: &mut SplitMix64) -> Operation {
    let (path, owner) = (some_path(rng), some_owner(rng));
    let base = None;
    let mode = [0o600, 0o644, 0o755, 0o444, 0o4755, 0o2640][rng.below(6) as usize];
    match rng.below(40) {
        31..33 => {
            let (zero, extend) = (rng.below(2) == 0, rng.below(2) == 0);
            let allocation = Allocation { zero, reserve: rng.below(2) == 0, extend };
            Operation::Allocate { path, base, offset: rng.below(3000), length: 1 + rng.below(2000), allocation }
        }
        33..36 => {
            let (from, offset, from_offset) = (some_path(rng), rng.below(3000), rng.below(2000));
            Operation::Copy {
                path,
                base,
                offset,
                from,
                from_base: None,
                from_offset,
                length: 1 + rng.below(2000) as u32,
            }
        }
        36..39 => {
            let how = [XattrHow::Any, XattrHow::Any, XattrHow::Create, XattrHow::Replace][rng.below(4) as usize];
            // Two of them fit into what an ext4 has for a file.
            let value = some_bytes(rng).into_iter().take(900).collect();
            Operation::SetXattr { path, base, name: some_attribute(rng), value, how }
        }
        39 => Operation::RemoveXattr { path, base, name: some_attribute(rng) },
        30 => Operation::OnlyName { path },
        27..30 => Operation::Link { from: path, base, to: some_path(rng) },
        26 => Operation::SetAccessTime { path, base, atime_ns: ACCESS_TIMES.start + rng.below(1 << 50) as i64 },
        24 | 25 => {
            let kind = [Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice][rng.below(4) as usize];
            Operation::MakeNode { path, kind, mode, rdev: rng.below(1 << 20) as u32, owner }
        }
        22 | 23 => {
            let (uid, gid) = (Some(rng.below(4) as u32), Some(rng.below(4) as u32).filter(|gid| *gid > 0));
            Operation::SetOwner { path, base, uid: uid.filter(|uid| *uid > 0), gid }
        }
        20 | 21 => Operation::MakeLink { path, target: some_path(rng).as_bytes().to_vec(), owner },
        0..4 => Operation::Create { path, mode, exclusive: rng.below(2) == 0, owner },
        4..7 => Operation::MakeFolder { path, mode: mode | 0o700, owner },
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
