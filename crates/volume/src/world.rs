//! The contents of a simulated disk, now and after a crash.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use units::{Rng, SplitMix64};

use crate::disk::{FileStat, Identity, Kind, Owner, Stamp};
use crate::inode::shown;
use crate::path::split;
use crate::xattrs::Xattrs;

/// Bytes of a sector: it is written at once or not at all.
pub(crate) const SECTOR_BYTES: u64 = 512;

pub(crate) type Sector = Arc<[u8; SECTOR_BYTES as usize]>;

/// Content and attributes of a file; of a folder only the attributes count.
#[derive(Clone, Default)]
pub(crate) struct Content {
    pub size: u64,
    pub mode: u16,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    /// Set by hand alone: reading changes nothing here.
    pub atime_ns: i64,
    /// The extended attribute that tells what the file system cannot.
    pub attribute: Option<Vec<u8>>,
    /// Those that devices see.
    pub xattrs: Xattrs,
    pub sectors: BTreeMap<u64, Sector>,
}

pub(crate) struct Inode {
    pub kind: Kind,
    pub current: Content,
    pub durable: Content,
    /// Of a folder.
    pub names: BTreeMap<Vec<u8>, u64>,
    pub durable_names: BTreeMap<Vec<u8>, u64>,
    pub target: Vec<u8>,
    /// Number of names.
    pub links: u32,
}

/// A change of names that is not on the disk yet.
pub(crate) struct Change {
    pub sets: Vec<(u64, Vec<u8>, Option<u64>)>,
    pub renames_folder: bool,
    pub makes_folder: Option<u64>,
    pub removes_folder: Option<u64>,
    /// Files that get a name and that lose one.
    pub named: Vec<u64>,
    pub unnamed: Vec<u64>,
}

pub(crate) struct World {
    pub inodes: HashMap<u64, Inode>,
    pub next: u64,
    pub clock: i64,
    pub pending: Vec<Change>,
    pub rng: SplitMix64,
    pub changes: u64,
    pub listings: u64,
    pub crash_at: Option<u64>,
    pub fail_at: Option<u64>,
    /// This call always fails, with this number of an error.
    pub refused: Option<(&'static str, i32)>,
    pub down: bool,
    pub capacity_bytes: Option<u64>,
    pub used_bytes: u64,
    pub locks: HashSet<u64>,
    /// Files can have attributes.
    pub has_attributes: bool,
}

pub(crate) const ROOT: u64 = 2;

/// The owner of all files for the file system.
pub(crate) const OWNER: Owner = Owner { uid: 1000, gid: 100 };

impl World {
    pub fn new(seed: u64) -> World {
        let mut world = World {
            inodes: HashMap::new(),
            next: ROOT,
            clock: 1_000_000,
            pending: Vec::new(),
            rng: SplitMix64(seed),
            changes: 0,
            listings: 0,
            crash_at: None,
            fail_at: None,
            refused: None,
            down: false,
            capacity_bytes: None,
            used_bytes: 0,
            locks: HashSet::new(),
            has_attributes: true,
        };
        world.inode(Kind::Folder, 0o755, Vec::new());
        world
    }

    pub fn inode(&mut self, kind: Kind, mode: u16, target: Vec<u8>) -> u64 {
        let id = self.next;
        self.next += 1;
        let attributes = Content { mode, mtime_ns: self.clock, ctime_ns: self.clock, ..Content::default() };
        let inode = Inode {
            kind,
            current: attributes.clone(),
            durable: attributes,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            target,
            links: 0,
        };
        self.inodes.insert(id, inode);
        id
    }

    pub fn get(&self, inode: u64) -> io::Result<&Inode> {
        self.inodes.get(&inode).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub fn get_mut(&mut self, inode: u64) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&inode).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub fn find(&self, path: &[u8]) -> io::Result<u64> {
        let mut at = ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let inode = self.get(at)?;
            if inode.kind != Kind::Folder {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            at = *inode.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    pub fn find_folder(&self, path: &[u8]) -> io::Result<u64> {
        let folder = self.find(path)?;
        match self.get(folder)?.kind {
            Kind::Folder => Ok(folder),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// A name that is free, in a folder that is there.
    pub fn vacant(&self, path: &[u8]) -> io::Result<(u64, Vec<u8>)> {
        let (folder, name) = split(path);
        let folder = self.find_folder(folder)?;
        match self.get(folder)?.names.contains_key(name) {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => Ok((folder, name.to_vec())),
        }
    }

    /// What is shown of a file.
    pub fn stat(&self, inode: u64) -> io::Result<FileStat> {
        let content = &self.get(inode)?.current;
        let stat = shown(self.plain(inode)?, content.attribute.as_deref());
        Ok(FileStat { has_xattrs: !content.xattrs.is_empty(), ..stat })
    }

    /// What the file system says.
    pub fn plain(&self, inode: u64) -> io::Result<FileStat> {
        let Inode { kind, current, links, .. } = self.get(inode)?;
        Ok(FileStat {
            kind: *kind,
            identity: Identity { inode, born_ns: 0 },
            stamp: Stamp { size: current.size, mtime_ns: current.mtime_ns, ctime_ns: current.ctime_ns },
            mode: current.mode,
            links: if *kind == Kind::Folder { 1 } else { *links },
            owner: OWNER,
            rdev: 0,
            atime_ns: current.atime_ns,
            stored_bytes: current.sectors.len() as u64 * SECTOR_BYTES,
            has_xattrs: false,
        })
    }

    /// Changes names now, and on the disk at some time.
    pub fn set_names(
        &mut self,
        sets: Vec<(u64, Vec<u8>, Option<u64>)>,
        makes_folder: Option<u64>,
        removes_folder: Option<u64>,
    ) {
        let clock = self.clock;
        let mut renames_folder = false;
        let (mut named, mut unnamed) = (Vec::new(), Vec::new());
        for (folder, name, inode) in &sets {
            let is_folder = inode.and_then(|inode| self.inodes.get(&inode)).is_some_and(|i| i.kind == Kind::Folder);
            renames_folder |= is_folder && makes_folder.is_none();
            if let Some(folder) = self.inodes.get_mut(folder) {
                folder.current.mtime_ns = clock;
                folder.current.ctime_ns = clock;
                let before = match inode {
                    Some(inode) => folder.names.insert(name.clone(), *inode),
                    None => folder.names.remove(name),
                };
                named.extend(inode);
                unnamed.extend(before);
            }
        }
        for inode in &named {
            self.inodes.get_mut(inode).into_iter().for_each(|inode| inode.links += 1);
        }
        for inode in &unnamed {
            self.inodes.get_mut(inode).into_iter().for_each(|inode| inode.links -= 1);
        }
        self.pending.push(Change { sets, renames_folder, makes_folder, removes_folder, named, unnamed });
    }

    /// Counts the bytes of a file as free, if it has no name any more.
    pub fn free_nameless(&mut self, inode: u64) {
        let nameless = self.inodes.get(&inode).filter(|inode| inode.links == 0);
        let sectors = nameless.map_or(0, |inode| inode.current.sectors.len() as u64);
        self.used_bytes = self.used_bytes.saturating_sub(sectors * SECTOR_BYTES);
    }

    /// Whether `later` cannot reach the disk without `earlier`.
    pub fn depends(earlier: &Change, later: &Change) -> bool {
        let touches = |change: &Change, folder: u64| change.sets.iter().any(|(at, ..)| *at == folder);
        let same = |(a, b, _): &(u64, Vec<u8>, Option<u64>)| later.sets.iter().any(|(c, d, _)| a == c && b == d);
        earlier.sets.iter().any(same)
            || earlier.renames_folder && later.renames_folder
            // A file never loses a name before the ones that it got earlier.
            || later.unnamed.iter().any(|inode| earlier.named.contains(inode))
            || later.removes_folder.is_some_and(|folder| touches(earlier, folder))
            || earlier.makes_folder.is_some_and(|folder| touches(later, folder))
    }

    /// Brings those changes to the disk that `wanted` names, and what they depend on.
    pub fn sync_names(&mut self, wanted: impl Fn(usize, &Change) -> bool) {
        let mut keep: Vec<bool> =
            self.pending.iter().enumerate().map(|(index, change)| wanted(index, change)).collect();
        for later in (0..keep.len()).rev() {
            if keep[later] {
                for (earlier, kept) in keep.iter_mut().enumerate().take(later) {
                    *kept |= World::depends(&self.pending[earlier], &self.pending[later]);
                }
            }
        }
        let mut keep = keep.into_iter();
        let (synced, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(|_| keep.next().unwrap_or_default());
        self.pending = pending;
        self.keep_names(synced);
    }

    pub fn keep_names(&mut self, changes: Vec<Change>) {
        for (folder, name, inode) in changes.into_iter().flat_map(|change| change.sets) {
            if let Some(folder) = self.inodes.get_mut(&folder) {
                match inode {
                    Some(inode) => folder.durable_names.insert(name, inode),
                    None => folder.durable_names.remove(&name),
                };
            }
        }
    }

    /// Writes some changes back, as a disk does by itself now and then.
    pub fn write_back(&mut self) {
        if !self.pending.is_empty() {
            let chosen = self.rng.below(self.pending.len() as u64) as usize;
            self.sync_names(|index, _| index == chosen);
        }
        let mut inodes: Vec<u64> = self.inodes.keys().copied().collect();
        inodes.sort_unstable();
        let chosen = inodes[self.rng.below(inodes.len() as u64) as usize];
        let Some(inode) = self.inodes.get_mut(&chosen) else {
            return;
        };
        inode.durable = merge(&inode.durable, &inode.current, &mut self.rng, 2);
    }

    pub fn crash(&mut self) {
        // From nearly everything to nearly nothing.
        let share = 1 + self.rng.below(8);
        let mut kept = Vec::new();
        let mut lost: Vec<Change> = Vec::new();
        for change in std::mem::take(&mut self.pending) {
            let possible = !lost.iter().any(|earlier| World::depends(earlier, &change));
            if possible && self.rng.below(9) < share { kept.push(change) } else { lost.push(change) }
        }
        self.keep_names(kept);
        let mut order: Vec<u64> = self.inodes.keys().copied().collect();
        order.sort_unstable();
        for id in order {
            if let Some(inode) = self.inodes.get_mut(&id) {
                inode.current = merge(&inode.durable, &inode.current, &mut self.rng, share);
                inode.durable = inode.current.clone();
                inode.names = inode.durable_names.clone();
            }
        }
        // What has no name is gone.
        let mut reached = HashSet::from([ROOT]);
        let mut open = vec![ROOT];
        while let Some(next) = open.pop() {
            let names = self.inodes.get(&next).map(|inode| inode.names.values().copied().collect::<Vec<_>>());
            open.extend(names.into_iter().flatten().filter(|inode| reached.insert(*inode)));
        }
        self.inodes.retain(|inode, _| reached.contains(inode));
        let mut links: HashMap<u64, u32> = HashMap::new();
        for named in self.inodes.values().flat_map(|inode| inode.names.values()) {
            *links.entry(*named).or_default() += 1;
        }
        self.inodes.iter_mut().for_each(|(id, inode)| inode.links = links.get(id).copied().unwrap_or(0));
        self.used_bytes =
            self.inodes.values().map(|inode| inode.current.sectors.len() as u64 * SECTOR_BYTES).sum::<u64>();
    }

    pub fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = offset;
        let end = offset + bytes.len() as u64;
        while at < end {
            let index = at / SECTOR_BYTES;
            let from = (at % SECTOR_BYTES) as usize;
            let count = (SECTOR_BYTES as usize - from).min((end - at) as usize);
            self.allocate(inode, index)?;
            let content = &mut self.get_mut(inode)?.current;
            if let Some(sector) = content.sectors.get_mut(&index) {
                let start = (at - offset) as usize;
                Arc::make_mut(sector)[from..from + count].copy_from_slice(&bytes[start..start + count]);
            }
            at += count as u64;
            content.size = content.size.max(at);
        }
        self.touch(inode)
    }

    pub fn allocate(&mut self, inode: u64, index: u64) -> io::Result<()> {
        if self.get(inode)?.current.sectors.contains_key(&index) {
            return Ok(());
        }
        if self.capacity_bytes.is_some_and(|capacity| self.used_bytes + SECTOR_BYTES > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.used_bytes += SECTOR_BYTES;
        self.get_mut(inode)?.current.sectors.insert(index, Arc::new([0; SECTOR_BYTES as usize]));
        Ok(())
    }

    pub fn set_size(&mut self, inode: u64, size: u64) -> io::Result<()> {
        let content = &mut self.get_mut(inode)?.current;
        let before = content.sectors.len();
        content.size = size;
        trim(content);
        let freed = (before - content.sectors.len()) as u64 * SECTOR_BYTES;
        self.used_bytes = self.used_bytes.saturating_sub(freed);
        self.touch(inode)
    }

    /// Makes zeros of a range.
    pub fn zero(&mut self, inode: u64, offset: u64, end: u64, reserved: bool) -> io::Result<()> {
        let content = &mut self.get_mut(inode)?.current;
        let end = end.min(content.size.next_multiple_of(SECTOR_BYTES));
        let before = content.sectors.len();
        for index in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let start = index * SECTOR_BYTES;
            let (from, until) = (offset.max(start) - start, end.min(start + SECTOR_BYTES) - start);
            if until - from == SECTOR_BYTES && !reserved {
                content.sectors.remove(&index);
            } else if let Some(sector) = content.sectors.get_mut(&index) {
                Arc::make_mut(sector)[from as usize..until as usize].fill(0);
            }
        }
        let freed = (before - content.sectors.len()) as u64 * SECTOR_BYTES;
        self.used_bytes = self.used_bytes.saturating_sub(freed);
        if reserved {
            (offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)).try_for_each(|index| self.allocate(inode, index))?;
        }
        self.touch(inode)
    }

    pub fn touch(&mut self, inode: u64) -> io::Result<()> {
        let clock = self.clock;
        let content = &mut self.get_mut(inode)?.current;
        (content.mtime_ns, content.ctime_ns) = (clock, clock);
        Ok(())
    }
}

/// Forgets what lies after the end.
fn trim(content: &mut Content) {
    content.sectors.split_off(&content.size.div_ceil(SECTOR_BYTES));
    if let Some(last) = content.sectors.get_mut(&(content.size / SECTOR_BYTES)) {
        Arc::make_mut(last)[(content.size % SECTOR_BYTES) as usize..].fill(0);
    }
}

/// What is on a disk of which `share` in 9 of the changes since `durable` were written.
fn merge(durable: &Content, current: &Content, rng: &mut SplitMix64, share: u64) -> Content {
    let mut merged = durable.clone();
    let mut written = || rng.below(9) < share;
    if written() {
        merged.size = current.size;
    }
    if written() {
        (merged.mode, merged.mtime_ns, merged.ctime_ns) = (current.mode, current.mtime_ns, current.ctime_ns);
    }
    if written() {
        merged.atime_ns = current.atime_ns;
    }
    if written() {
        merged.attribute = current.attribute.clone();
    }
    let names = durable.xattrs.keys().chain(current.xattrs.keys());
    for name in names.filter(|name| durable.xattrs.get(*name) != current.xattrs.get(*name)) {
        match current.xattrs.get(name) {
            _ if !written() => {}
            Some(value) => drop(merged.xattrs.insert(name.clone(), value.clone())),
            None => drop(merged.xattrs.remove(name)),
        }
    }
    let indexes: Vec<u64> = durable.sectors.keys().chain(current.sectors.keys()).copied().collect();
    for index in indexes {
        match (durable.sectors.get(&index), current.sectors.get(&index)) {
            (Some(before), Some(now)) if Arc::ptr_eq(before, now) => {}
            (_, now) if written() => match now {
                Some(now) => drop(merged.sectors.insert(index, now.clone())),
                None => drop(merged.sectors.remove(&index)),
            },
            _ => {}
        }
    }
    trim(&mut merged);
    merged
}
