//! An open file of a simulated disk.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::SimulatedDisk;
use crate::disk::{DiskFile, FileStat};
use crate::world::SECTOR_BYTES;

pub(super) struct SimulatedFile {
    disk: SimulatedDisk,
    inode: u64,
    locked: Mutex<bool>,
}

impl SimulatedFile {
    pub fn new(disk: SimulatedDisk, inode: u64) -> SimulatedFile {
        SimulatedFile { disk, inode, locked: Mutex::new(false) }
    }
}

impl DiskFile for SimulatedFile {
    fn stat(&self) -> io::Result<FileStat> {
        self.disk.look(|world| world.plain(self.inode))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.disk.look(|world| {
            let content = &world.get(self.inode)?.current;
            let count = (buf.len() as u64).min(content.size.saturating_sub(offset)) as usize;
            let mut done = 0;
            while done < count {
                let at = offset + done as u64;
                let from = (at % SECTOR_BYTES) as usize;
                let step = (SECTOR_BYTES as usize - from).min(count - done);
                match content.sectors.get(&(at / SECTOR_BYTES)) {
                    Some(sector) => buf[done..done + step].copy_from_slice(&sector[from..from + step]),
                    None => buf[done..done + step].fill(0),
                }
                done += step;
            }
            Ok(count)
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.check_refused("write_at")?;
        self.disk.change(|world| world.write(self.inode, offset, bytes))
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.disk.change(|world| world.set_size(self.inode, size))
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        self.disk.change(|world| {
            (0..size.div_ceil(SECTOR_BYTES)).try_for_each(|index| world.allocate(self.inode, index))?;
            let content = &mut world.get_mut(self.inode)?.current;
            content.size = content.size.max(size);
            world.touch(self.inode)
        })
    }

    fn zero(&self, offset: u64, length: u64, reserved: bool) -> io::Result<()> {
        self.disk.change(|world| world.zero(self.inode, offset, offset.saturating_add(length), reserved))
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.disk.change(|world| {
            let end = (offset + length).div_ceil(SECTOR_BYTES);
            (offset / SECTOR_BYTES..end).try_for_each(|index| world.allocate(self.inode, index))?;
            world.touch(self.inode)
        })
    }

    fn data_after(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        self.disk.look(|world| {
            let content = &world.get(self.inode)?.current;
            let Some((start, _)) = content.sectors.range(offset / SECTOR_BYTES..).next() else {
                return Ok(None);
            };
            if *start * SECTOR_BYTES >= content.size {
                return Ok(None);
            }
            let mut end = *start;
            while content.sectors.contains_key(&end) {
                end += 1;
            }
            Ok(Some(((start * SECTOR_BYTES).max(offset), (end * SECTOR_BYTES).min(content.size))))
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.change(|world| {
            let inode = world.get_mut(self.inode)?;
            inode.durable = inode.current.clone();
            Ok(())
        })
    }

    fn lock(&self) -> io::Result<()> {
        let world = &mut *self.disk.world();
        if !world.locks.insert(self.inode) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        *self.locked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        Ok(())
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        if *self.locked.lock().unwrap_or_else(PoisonError::into_inner) {
            self.disk.world().locks.remove(&self.inode);
        }
    }
}
