//! Clean data blocks in memory and in the disk cache, over all files.

use bytes::Bytes;

use super::file::{Block, File};
use super::files::Files;
use crate::cache_index::CacheIndex;
use crate::job::{BlockKey, Job};
use crate::memory::Memory;

/// Numbers of what became of blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockCounters {
    pub hits: u64,
    pub disk_hits: u64,
    pub asked: u64,
    pub pushed: u64,
    pub used: u64,
    pub wasted: u64,
}

/// Clean blocks of all files.
///
/// Invariant: each block in the table of a file that is in memory has its stamp in `memory`, and no
/// other stamp is there. What is beyond the budget goes to the disk cache, least recently used
/// first.
pub(super) struct Blocks {
    memory: Memory,
    disk: CacheIndex,
    counters: BlockCounters,
}

impl Blocks {
    pub fn new(memory_bytes: usize) -> Blocks {
        Blocks { memory: Memory::new(memory_bytes), disk: CacheIndex::default(), counters: BlockCounters::default() }
    }

    pub fn counters(&self) -> BlockCounters {
        self.counters
    }

    /// Bytes in memory.
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Number of blocks in the disk cache.
    pub fn on_disk(&self) -> usize {
        self.disk.len()
    }

    /// The disk cache is open, and holds these.
    pub fn disk_found(&mut self, slots: u32, found: Vec<(u32, BlockKey)>) {
        self.disk = CacheIndex::new(slots);
        found.into_iter().for_each(|(slot, key)| self.disk.put(slot, key));
    }

    /// The slot of a block in the disk cache.
    pub fn find_on_disk(&self, key: &BlockKey) -> Option<u32> {
        self.disk.find(key)
    }

    /// The disk cache does not hold this block after all.
    pub fn forget_on_disk(&mut self, key: &BlockKey) {
        self.disk.forget(key);
    }

    /// A block that is in memory is read: its bytes, and whether it was pushed and is used for the
    /// first time.
    pub fn hit(&mut self, block: &mut Block) -> Option<(Bytes, bool)> {
        let Block::Memory { bytes, stamp, fresh } = block else { return None };
        *stamp = self.memory.touch(*stamp);
        self.counters.hits += 1;
        self.counters.used += u64::from(*fresh);
        Some((bytes.clone(), std::mem::take(fresh)))
    }

    /// So many blocks are asked for.
    pub fn count_asked(&mut self, blocks: usize) {
        self.counters.asked += blocks as u64;
    }

    /// A block came from the disk cache.
    pub fn count_disk_hit(&mut self) {
        self.counters.disk_hits += 1;
    }

    /// So many blocks were pushed.
    pub fn count_pushed(&mut self, blocks: u64) {
        self.counters.pushed += blocks;
    }

    /// So many blocks were pushed for nothing.
    pub fn count_wasted(&mut self, blocks: u64) {
        self.counters.wasted += blocks;
    }

    /// Puts a clean block of the present version into the table of its file. `pushed`: nobody asked
    /// for it; `awaited`: a read has taken it.
    pub fn insert(&mut self, (key, file): (u64, &mut File), index: u32, bytes: &Bytes, pushed: bool, awaited: bool) {
        let fresh = pushed && !awaited;
        match file.blocks.get(&index) {
            Some(Block::Memory { .. }) => {
                self.counters.wasted += u64::from(pushed);
                return;
            }
            _ if bytes.is_empty() => {
                file.blocks.remove(&index);
                return;
            }
            _ => {}
        }
        self.counters.used += u64::from(pushed && awaited);
        if fresh && !self.memory.takes_fresh(bytes.len()) {
            // Of the table it is absent again, unless somebody asked for it.
            if matches!(file.blocks.get(&index), Some(Block::OnTheWay { .. })) {
                file.blocks.remove(&index);
            }
            self.counters.wasted += 1;
            return;
        }
        // A slice of a large answer would keep all of it alive.
        let bytes = Bytes::copy_from_slice(bytes);
        let stamp = self.memory.insert((key, index), bytes.len(), fresh);
        file.blocks.insert(index, Block::Memory { bytes, stamp, fresh });
    }

    /// Brings what is beyond the budget to the disk cache: the jobs for that, in order.
    pub fn make_room(&mut self, files: &mut Files) -> Vec<Job> {
        let mut jobs = Vec::new();
        while let Some((key, index)) = self.memory.pop_excess() {
            let Some(file) = files.get_mut(&key) else { continue };
            let Some(Block::Memory { bytes, fresh, .. }) = file.blocks.remove(&index) else { continue };
            self.counters.wasted += u64::from(fresh);
            let Some(seen) = file.seen else { continue };
            let key = BlockKey { file: seen.file, version: seen.version, index };
            if self.disk.find(&key).is_none()
                && let Some(slot) = self.disk.assign(key)
            {
                jobs.push(Job::CacheWrite { slot, key, bytes });
            }
        }
        jobs
    }

    /// Drops clean blocks of a file.
    pub fn drop_some(&mut self, file: &mut File, which: impl Fn(u32) -> bool) {
        let Blocks { memory, counters, .. } = self;
        file.blocks.retain(|index, block| match block {
            _ if !which(*index) => true,
            Block::Memory { stamp, fresh, .. } => {
                memory.remove(*stamp);
                counters.wasted += u64::from(*fresh);
                false
            }
            // What is under way clears its own entry when it comes.
            Block::Asked => true,
            Block::OnTheWay { .. } | Block::Reading { .. } => false,
        });
    }
}
