//! A disk in memory that loses on a crash what was not synced. A seed chooses what is lost.
//!
//! Of a file, any of the sectors, the size and the attributes that changed since the last sync may
//! be lost, each by itself. Changes of names may be lost too, in any choice that a journaling or
//! soft-updates file system can leave. A rename is one change. A change of a name is not kept
//! without the earlier changes of this name. A folder is not removed before its contents were moved
//! out, nothing appears in a folder that is not there yet, and renames of folders keep their order.
//! Now and then something reaches the disk without any sync, as on a real one.
//!
//! Every changing call is counted, so that a test can stop the machine at the N-th. That call has
//! its effect or not. Then every call fails until [`SimulatedDisk::restart`]. Clones are the same
//! disk.

mod file;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use units::Rng;

use crate::disk::{Disk, DiskFile, FileStat, Kind, Owner, Space};
use crate::inode::{Inode, SET_ID};
use crate::path::{join, split};
use crate::world::{OWNER, World};
use crate::xattrs::Xattrs;

use file::SimulatedFile;

/// A disk in memory.
#[derive(Clone)]
pub struct SimulatedDisk {
    world: Arc<Mutex<World>>,
    folder: Vec<u8>,
}

impl SimulatedDisk {
    /// An empty disk; `seed` chooses what a crash loses.
    pub fn new(seed: u64) -> SimulatedDisk {
        SimulatedDisk { world: Arc::new(Mutex::new(World::new(seed))), folder: Vec::new() }
    }

    /// A folder of this disk as a root of its own; it need not be there yet.
    pub fn folder(&self, path: &[u8]) -> SimulatedDisk {
        SimulatedDisk { world: self.world.clone(), folder: join(&self.folder, path) }
    }

    /// Changing calls so far.
    pub fn changes(&self) -> u64 {
        self.world().changes
    }

    /// Folders that were listed so far.
    pub fn listings(&self) -> u64 {
        self.world().listings
    }

    /// Stops the machine at this changing call, counted from 1 since the disk was made.
    pub fn crash_at(&self, change: Option<u64>) {
        self.world().crash_at = change;
    }

    /// Lets this changing call fail, once and without effect.
    pub fn fail_at(&self, change: Option<u64>) {
        self.world().fail_at = change;
    }

    /// Refuses every call of one kind on this disk, but not on the folders of it, with this number
    /// of an error: `hard_link`, `make_link`, `rename`, `set_mtime` or `write_at`.
    pub fn refuse(&self, call: Option<(&'static str, i32)>) {
        self.world().refused = call;
    }

    /// Whether the machine was stopped.
    pub fn is_down(&self) -> bool {
        self.world().down
    }

    /// Whether files can have attributes.
    pub fn set_attributes(&self, has: bool) {
        self.world().has_attributes = has;
    }

    /// Limits the bytes of all files together.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.world().capacity_bytes = bytes;
    }

    /// The machine comes up again, with what the crash left.
    pub fn restart(&self) {
        let world = &mut *self.world();
        world.crash();
        world.down = false;
        world.crash_at = None;
        world.locks.clear();
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() { self.folder.clone() } else { join(&self.folder, path) }
    }

    fn look<T>(&self, look: impl FnOnce(&World) -> io::Result<T>) -> io::Result<T> {
        let world = self.world();
        if world.down { Err(down()) } else { look(&world) }
    }

    fn change<T>(&self, change: impl FnOnce(&mut World) -> io::Result<T>) -> io::Result<T> {
        let world = &mut *self.world();
        if world.down {
            return Err(down());
        }
        world.changes += 1;
        world.clock += 1;
        if Some(world.changes) == world.fail_at {
            return Err(io::Error::other("a fault on purpose"));
        }
        // Or after it, if that call was one that failed.
        if world.crash_at.is_some_and(|change| world.changes >= change) {
            if world.rng.below(2) == 0 {
                let _ = change(world);
            }
            world.down = true;
            return Err(down());
        }
        if world.rng.below(16) == 0 {
            world.write_back();
        }
        change(world)
    }

    fn check_refused(&self, call: &str) -> io::Result<()> {
        match self.world().refused {
            Some((refused, number)) if refused == call && self.folder.is_empty() => {
                Err(io::Error::from_raw_os_error(number))
            }
            _ => Ok(()),
        }
    }

    /// Sets permission bits and attribute, one after the other: a crash may come in between.
    fn set_inode(&self, id: u64, wanted: &Inode) -> io::Result<()> {
        let plain = wanted.is_plain(OWNER);
        let mode = if plain { wanted.mode } else { wanted.host_mode() };
        self.change(|world| {
            let clock = world.clock;
            let content = &mut world.get_mut(id)?.current;
            (content.mode, content.ctime_ns) = (mode, clock);
            Ok(())
        })?;
        if plain && self.look(|world| Ok(world.get(id)?.current.attribute.is_none()))? {
            return Ok(());
        }
        self.change(|world| {
            if !world.has_attributes {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let clock = world.clock;
            let content = &mut world.get_mut(id)?.current;
            (content.attribute, content.ctime_ns) = ((!plain).then(|| wanted.encode()), clock);
            Ok(())
        })
    }

    /// The inode at a path, and what it shows.
    fn find(&self, path: &[u8]) -> io::Result<(u64, Inode)> {
        let (id, stat) = self.look(|world| {
            let id = world.find(&self.full(path))?;
            Ok((id, world.stat(id)?))
        })?;
        let is_link = self.look(|world| Ok(world.get(id)?.kind == Kind::Symlink))?;
        if is_link || stat.kind == Kind::Special {
            Err(io::ErrorKind::InvalidInput.into())
        } else {
            Ok((id, Inode::of(&stat)))
        }
    }

    fn handle(&self, inode: u64) -> Box<dyn DiskFile> {
        Box::new(SimulatedFile::new(self.clone(), inode))
    }
}

fn down() -> io::Error {
    io::Error::other("the machine is down")
}

impl Disk for SimulatedDisk {
    fn stat(&self, path: &[u8]) -> io::Result<FileStat> {
        self.look(|world| world.stat(world.find(&self.full(path))?))
    }

    fn list(&self, path: &[u8], each: &mut dyn FnMut(&[u8], Kind) -> bool) -> io::Result<()> {
        let names = self.look(|world| {
            let names = &world.get(world.find_folder(&self.full(path))?)?.names;
            let kind = |inode: &u64| world.inodes.get(inode).map_or(Kind::Special, |inode| inode.kind);
            Ok(names.iter().map(|(name, inode)| (name.clone(), kind(inode))).collect::<Vec<_>>())
        })?;
        self.world().listings += 1;
        let _ = names.iter().all(|(name, kind)| each(name, *kind));
        Ok(())
    }

    fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let (id, stat, target) = self.look(|world| {
            let id = world.find(&self.full(path))?;
            Ok((id, world.stat(id)?, world.get(id)?.target.clone()))
        })?;
        if stat.kind == Kind::Symlink && target.is_empty() {
            return crate::table::read_whole(self.handle(id).as_ref(), stat.stamp.size);
        }
        Ok(target)
    }

    fn open(&self, path: &[u8], _write: bool) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.look(|world| {
            let inode = world.find(&self.full(path))?;
            match world.stat(inode)?.kind {
                Kind::File => Ok(inode),
                Kind::Folder => Err(io::ErrorKind::IsADirectory.into()),
                _ => Err(io::ErrorKind::InvalidInput.into()),
            }
        })?;
        Ok(self.handle(inode))
    }

    fn create(&self, path: &[u8], mode: u16) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.change(|world| {
            let (folder, name) = world.vacant(&self.full(path))?;
            let inode = world.inode(Kind::File, mode & !SET_ID, Vec::new());
            world.set_names(vec![(folder, name, Some(inode))], None, None);
            Ok(inode)
        })?;
        if mode & SET_ID != 0 {
            self.set_mode(path, mode)?;
        }
        Ok(self.handle(inode))
    }

    fn make_folder(&self, path: &[u8], mode: u16) -> io::Result<()> {
        self.change(|world| {
            let (folder, name) = world.vacant(&self.full(path))?;
            let inode = world.inode(Kind::Folder, mode & !SET_ID, Vec::new());
            world.set_names(vec![(folder, name, Some(inode))], Some(inode), None);
            Ok(())
        })?;
        if mode & SET_ID == 0 { Ok(()) } else { self.set_mode(path, mode) }
    }

    fn make_link(&self, path: &[u8], target: &[u8]) -> io::Result<()> {
        self.check_refused("make_link")?;
        self.change(|world| {
            let (folder, name) = world.vacant(&self.full(path))?;
            let inode = world.inode(Kind::Symlink, 0o777, target.to_vec());
            world.set_names(vec![(folder, name, Some(inode))], None, None);
            Ok(())
        })
    }

    fn make_node(&self, path: &[u8], inode: &Inode, content: &[u8]) -> io::Result<()> {
        let file = self.create(path, 0o600)?;
        file.write_at(0, content)?;
        let id = self.look(|world| world.find(&self.full(path)))?;
        self.set_inode(id, inode)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        self.check_refused("rename")?;
        self.change(|world| {
            let (from, to) = (self.full(from), self.full(to));
            let inode = world.find(&from)?;
            let ((from_folder, from_name), (to_folder, to_name)) = (split(&from), split(&to));
            let (from_folder, to_folder) = (world.find_folder(from_folder)?, world.find_folder(to_folder)?);
            let is_folder = world.get(inode)?.kind == Kind::Folder;
            let (mut removed, mut unlinked) = (None, None);
            if let Some(replaced) = world.get(to_folder)?.names.get(to_name).copied() {
                let there = world.get(replaced)?;
                match (is_folder, there.kind == Kind::Folder) {
                    (true, false) => return Err(io::ErrorKind::NotADirectory.into()),
                    (false, true) => return Err(io::ErrorKind::IsADirectory.into()),
                    (true, true) if !there.names.is_empty() => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
                    (true, true) => removed = Some(replaced),
                    (false, false) if replaced == inode => return Ok(()),
                    (false, false) => unlinked = Some(replaced),
                }
            }
            let sets = vec![(from_folder, from_name.to_vec(), None), (to_folder, to_name.to_vec(), Some(inode))];
            world.set_names(sets, None, removed);
            unlinked.into_iter().for_each(|unlinked| world.free_nameless(unlinked));
            let clock = world.clock;
            world.get_mut(inode)?.current.ctime_ns = clock;
            Ok(())
        })
    }

    fn hard_link(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        self.check_refused("hard_link")?;
        self.change(|world| {
            let inode = world.find(&self.full(from))?;
            let (folder, name) = world.vacant(&self.full(to))?;
            if world.get(inode)?.kind == Kind::Folder {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            world.set_names(vec![(folder, name, Some(inode))], None, None);
            let clock = world.clock;
            world.get_mut(inode)?.current.ctime_ns = clock;
            Ok(())
        })
    }

    fn sync_file(&self, path: &[u8]) -> io::Result<()> {
        self.change(|world| {
            let inode = world.find(&self.full(path))?;
            let inode = world.get_mut(inode)?;
            inode.durable = inode.current.clone();
            Ok(())
        })
    }

    fn unlink(&self, path: &[u8]) -> io::Result<FileStat> {
        self.change(|world| {
            let path = self.full(path);
            let inode = world.find(&path)?;
            if world.get(inode)?.kind == Kind::Folder {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let (folder, name) = split(&path);
            let folder = world.find_folder(folder)?;
            world.set_names(vec![(folder, name.to_vec(), None)], None, None);
            let clock = world.clock;
            world.get_mut(inode)?.current.ctime_ns = clock;
            world.free_nameless(inode);
            world.stat(inode)
        })
    }

    fn remove_folder(&self, path: &[u8]) -> io::Result<()> {
        self.change(|world| {
            let path = self.full(path);
            let inode = world.find_folder(&path)?;
            if !world.get(inode)?.names.is_empty() {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            let (folder, name) = split(&path);
            let folder = world.find_folder(folder)?;
            world.set_names(vec![(folder, name.to_vec(), None)], None, Some(inode));
            Ok(())
        })
    }

    fn set_mtime(&self, path: &[u8], mtime_ns: i64) -> io::Result<()> {
        self.check_refused("set_mtime")?;
        self.change(|world| {
            let inode = world.find(&self.full(path))?;
            let clock = world.clock;
            let content = &mut world.get_mut(inode)?.current;
            (content.mtime_ns, content.ctime_ns) = (mtime_ns, clock);
            Ok(())
        })
    }

    fn set_atime(&self, path: &[u8], atime_ns: i64) -> io::Result<()> {
        self.change(|world| {
            let inode = world.find(&self.full(path))?;
            let clock = world.clock;
            let content = &mut world.get_mut(inode)?.current;
            (content.atime_ns, content.ctime_ns) = (atime_ns, clock);
            Ok(())
        })
    }

    fn set_mode(&self, path: &[u8], mode: u16) -> io::Result<()> {
        let (id, inode) = self.find(path)?;
        self.set_inode(id, &Inode { mode, ..inode })
    }

    fn set_owner(&self, path: &[u8], owner: Owner, mode: u16) -> io::Result<()> {
        let (id, inode) = self.find(path)?;
        self.set_inode(id, &Inode { mode, owner, ..inode })
    }

    fn owner(&self) -> Owner {
        OWNER
    }

    fn has_attributes(&self) -> bool {
        self.world().has_attributes
    }

    fn xattrs(&self, path: &[u8]) -> io::Result<Xattrs> {
        self.look(|world| Ok(world.get(world.find(&self.full(path))?)?.current.xattrs.clone()))
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let (id, _) = self.find(path)?;
        self.change(|world| {
            let clock = world.clock;
            let content = &mut world.get_mut(id)?.current;
            content.ctime_ns = clock;
            match value {
                Some(value) => drop(content.xattrs.insert(name.to_vec(), value.to_vec())),
                None => drop(content.xattrs.remove(name)),
            }
            Ok(())
        })
    }

    fn fits_xattrs(&self, _all: &Xattrs) -> io::Result<bool> {
        Ok(true)
    }

    fn check_writable(&self, path: &[u8], _kind: Kind) -> io::Result<()> {
        self.stat(path).map(|_| ())
    }

    fn check_owned(&self, path: &[u8]) -> io::Result<()> {
        self.stat(path).map(|_| ())
    }

    fn check_removable(&self, folder: Option<&[u8]>, file: Option<&[u8]>) -> io::Result<()> {
        folder.into_iter().chain(file).try_for_each(|path| self.stat(path).map(|_| ()))
    }

    fn sync_folder(&self, path: &[u8]) -> io::Result<()> {
        self.change(|world| {
            let folder = world.find_folder(&self.full(path))?;
            world.sync_names(|_, change| change.sets.iter().any(|(at, ..)| *at == folder));
            Ok(())
        })
    }

    fn sync_all(&self) -> io::Result<()> {
        self.change(|world| {
            world.sync_names(|_, _| true);
            for inode in world.inodes.values_mut() {
                inode.durable = inode.current.clone();
            }
            Ok(())
        })
    }

    fn space(&self) -> io::Result<Space> {
        self.look(|world| {
            let bytes = world.capacity_bytes.map_or(u64::MAX, |capacity| capacity.saturating_sub(world.used_bytes));
            let all_bytes = world.capacity_bytes.unwrap_or(u64::MAX);
            Ok(Space { all_bytes, bytes, all_files: u64::MAX, files: u64::MAX })
        })
    }
}
