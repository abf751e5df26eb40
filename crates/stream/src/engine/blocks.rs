//! Clean data blocks in memory and in the disk cache, over all files.

use bytes::Bytes;

use super::file::File;
use super::files::Files;
use super::table::Block;
use crate::BlockStatus;
use crate::cache_index::CacheIndex;
use crate::job::{BlockKey, Job};
use crate::memory::Memory;

/// Clean blocks of all files.
///
/// Invariant: each block in the table of a file that is in memory has its stamp in `memory`, and no
/// other stamp is there. What is beyond the budget goes to the disk cache, least recently used
/// first.
pub(super) struct Blocks {
    memory: Memory,
    disk: CacheIndex,
    /// Counts of what became of blocks.
    counters: BlockStatus,
}

impl Blocks {
    pub fn new(memory_bytes: usize) -> Blocks {
        Blocks { memory: Memory::new(memory_bytes), disk: CacheIndex::default(), counters: BlockStatus::default() }
    }

    /// The status of the blocks. Blocks have so many bytes; the budgets are
    /// for people.
    pub fn status(&self, block_bytes: u32, memory_bytes_max: u64, disk_bytes_max: u64) -> BlockStatus {
        let memory_bytes = self.memory.bytes() as u64;
        let disk_bytes = self.disk.len() as u64 * u64::from(block_bytes);
        BlockStatus { memory_bytes, memory_bytes_max, disk_bytes, disk_bytes_max, ..self.counters }
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
        self.counters.blocks_used += u64::from(*fresh);
        Some((bytes.clone(), std::mem::take(fresh)))
    }

    /// So many blocks are asked for.
    pub fn count_asked(&mut self, blocks: usize) {
        self.counters.blocks_asked += blocks as u64;
    }

    /// A block came from the disk cache.
    pub fn count_disk_hit(&mut self) {
        self.counters.disk_hits += 1;
    }

    /// So many blocks were pushed.
    pub fn count_pushed(&mut self, blocks: u64) {
        self.counters.blocks_pushed += blocks;
    }

    /// So many blocks were pushed for nothing.
    pub fn count_wasted(&mut self, blocks: u64) {
        self.counters.blocks_wasted += blocks;
    }

    /// Puts a clean block of the present version into the table of its file. `pushed`: nobody asked
    /// for it; `awaited`: a read has taken it.
    pub fn insert(&mut self, (key, file): (u64, &mut File), index: u32, bytes: &Bytes, pushed: bool, awaited: bool) {
        let fresh = pushed && !awaited;
        match file.table.get(index) {
            Some(Block::Memory { .. }) => {
                self.counters.blocks_wasted += u64::from(pushed);
                return;
            }
            _ if bytes.is_empty() => {
                file.table.remove(index);
                return;
            }
            _ => {}
        }
        self.counters.blocks_used += u64::from(pushed && awaited);
        if fresh && !self.memory.takes_fresh(bytes.len()) {
            // Of the table it is absent again, unless somebody asked for it.
            if matches!(file.table.get(index), Some(Block::OnTheWay { .. })) {
                file.table.remove(index);
            }
            self.counters.blocks_wasted += 1;
            return;
        }
        // A slice of a large answer would keep all of it alive.
        let bytes = Bytes::copy_from_slice(bytes);
        let stamp = self.memory.insert((key, index), bytes.len(), fresh);
        file.table.insert(index, Block::Memory { bytes, stamp, fresh });
    }

    /// Brings what is beyond the budget to the disk cache: the jobs for that, in order.
    pub fn make_room(&mut self, files: &mut Files) -> Vec<Job> {
        let mut jobs = Vec::new();
        while let Some((key, index)) = self.memory.pop_excess() {
            let Some(file) = files.get_mut(&key) else { continue };
            let Some(Block::Memory { bytes, fresh, .. }) = file.table.remove(index) else { continue };
            self.counters.blocks_wasted += u64::from(fresh);
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
        file.table.retain(|index, block| match block {
            _ if !which(index) => true,
            Block::Memory { stamp, fresh, .. } => {
                memory.remove(*stamp);
                counters.blocks_wasted += u64::from(*fresh);
                false
            }
            // The entry of a request under way is removed by its answer.
            Block::Asked => true,
            Block::OnTheWay { .. } | Block::Reading { .. } => false,
        });
    }
}
