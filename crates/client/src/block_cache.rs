//! A bounded cache of blocks in two levels, least recently used out first.
//!
//! A block holds pages beside the one that was asked for, and the next READs often want those. The
//! first level keeps few blocks decoded. The second level keeps many as they were stored, verified
//! and still compressed: it holds three in the memory of one decoded block, and a block is decoded
//! again when it is wanted. A block that nobody waits for when it comes is not decoded before it
//! is wanted. While a block is here, the server sees every touch of its pages, which
//! matters most in a run that it learns from. Blocks of which every part was taken leave the second
//! level first. That level lies in one piece of memory (`slab`), and buffers of decoded blocks are
//! used again, so the cache costs what its budgets say.
//!
//! Each entry knows which parts were taken. When a block leaves both levels, the session can store
//! its other pages into the page cache: the cache returns the blocks that it evicts.
//!
//! A block without its stored bytes (decoded by a near server) is in the first level alone. Sizes
//! are in bytes; the second level counts stored bytes.

mod taken;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use image::Metadata;
use units::{BlockId, PageId};

use crate::allocator::{Allocator, PageBuffer};
use crate::counters::MemoryCounters;
use crate::page_parts::PageParts;
use crate::slab::{Slab, Slots};
pub(crate) use taken::Taken;

/// A decoded block, shared with whoever is copying from it.
pub(crate) type BlockBytes = Arc<Decoded>;

/// The bytes of a decoded block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// Decoded here, from bytes that match the block's hash.
    Here(Vec<u8>),
    /// As a near server sent them. Few of its pages are used, so each page is checked when it is
    /// taken.
    Unverified(Bytes),
}

impl Decoded {
    /// Whether pages of it can be used as they are.
    pub fn is_verified(&self) -> bool {
        matches!(self, Decoded::Here(_))
    }

    /// Its memory, if the next block can be decoded into that.
    pub fn into_buffer(self) -> Option<Vec<u8>> {
        match self {
            Decoded::Here(buffer) => Some(buffer),
            Decoded::Unverified(_) => None,
        }
    }
}

impl Deref for Decoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Decoded::Here(bytes) => bytes,
            Decoded::Unverified(bytes) => bytes,
        }
    }
}

/// Buffers of decoded blocks kept for the next ones: two connections, and a READ at the same time.
const SPARES_MAX: usize = 3;

/// How a stored block is decoded.
#[derive(Clone, Debug)]
enum Coding {
    /// As the image says of this block.
    Block(Arc<Metadata>, BlockId),
    /// By a codec alone.
    #[cfg(test)]
    Plain(codec::Codec),
}

impl Coding {
    /// Decodes `stored` into `raw`; `None` only if the bytes were never verified.
    fn decode(&self, stored: &[u8], _raw_bytes: usize, raw: &mut Vec<u8>) -> Option<()> {
        match self {
            Coding::Block(metadata, block) => metadata.decode_verified(*block, stored, raw).ok(),
            #[cfg(test)]
            Coding::Plain(codec) => codec::decode(*codec, stored, _raw_bytes, raw).ok(),
        }
    }
}

/// A block as it lies in the image, its hash checked.
#[derive(Clone, Debug)]
pub(crate) struct StoredBlock {
    coding: Coding,
    pub raw_bytes: usize,
    pub bytes: Bytes,
}

/// The cache.
///
/// Invariants:
/// - An entry is decoded, stored, or both; each level lists exactly the entries that are in it, by
///   the time of their last use.
/// - `used_bytes` of a level is the sum over its entries, at most its capacity after every call; of
///   the first level, with what the second lends it.
#[derive(Debug)]
pub(crate) struct BlockCache {
    decoded: Level,
    stored: Level,
    entries: HashMap<BlockId, Entry>,
    prefers_decoded: bool,
    /// Blocks that left both levels while another was decoded again.
    left: Vec<Evicted>,
    clock: u64,
    hits: u64,
    decodes: u64,
    wrong_pages: u64,
    slab: Slab,
    spares: Vec<Vec<u8>>,
    /// The stored bytes of the block that is being decoded, in one piece.
    joined: Vec<u8>,
}

/// One level: its budget, and its blocks by time of last use (times are unique).
#[derive(Debug)]
struct Level {
    capacity_bytes: usize,
    used_bytes: usize,
    order: BTreeMap<u64, BlockId>,
}

/// A block in one level or both.
#[derive(Debug)]
struct Entry {
    decoded: Option<BlockBytes>,
    stored: Option<Kept>,
    raw_bytes: usize,
    taken: Taken,
    speculated: bool,
    used: bool,
    used_at: u64,
}

/// A stored block in the slab.
#[derive(Debug)]
struct Kept {
    coding: Coding,
    slots: Slots,
}

/// A block that left the cache.
#[derive(Debug)]
pub(crate) struct Evicted {
    pub block: BlockId,
    pub taken: Taken,
    /// Readahead asked for it.
    pub speculated: bool,
    /// At least one page of it was read.
    pub used: bool,
    decoded: Option<BlockBytes>,
    stored: Option<StoredBlock>,
}

impl StoredBlock {
    /// The stored bytes of a block that were checked against its hash.
    pub fn of(metadata: &Arc<Metadata>, block: BlockId, bytes: Bytes) -> Option<StoredBlock> {
        let entry = metadata.block(block)?;
        let coding = Coding::Block(Arc::clone(metadata), block);
        Some(StoredBlock { coding, raw_bytes: entry.raw_bytes as usize, bytes })
    }

    /// Decodes the block; `None` only if its bytes were never verified.
    fn decode(&self) -> Option<BlockBytes> {
        let mut raw = Vec::new();
        self.coding.decode(&self.bytes, self.raw_bytes, &mut raw)?;
        Some(Arc::new(Decoded::Here(raw)))
    }
}

impl Evicted {
    /// A block whose pages are to be stored as if it had left the cache, but for what was taken.
    pub fn handed_on(block: BlockId, bytes: BlockBytes, taken: Taken) -> Evicted {
        Evicted { block, taken, speculated: false, used: true, decoded: Some(bytes), stored: None }
    }

    /// Its bytes, decoded again if only the stored ones were kept.
    pub fn bytes(&self) -> Option<BlockBytes> {
        let decoded = self.decoded.clone();
        decoded.or_else(|| self.stored.as_ref().and_then(StoredBlock::decode))
    }

    /// Whether its bytes are at hand without decoding it.
    pub fn is_decoded(&self) -> bool {
        self.decoded.is_some()
    }

    /// Memory it holds.
    pub fn held_bytes(&self) -> usize {
        let decoded = self.decoded.as_ref().map_or(0, |bytes| bytes.len());
        decoded + self.stored.as_ref().map_or(0, |stored| stored.bytes.len())
    }
}

impl Level {
    fn new(capacity_bytes: usize) -> Level {
        Level { capacity_bytes, used_bytes: 0, order: BTreeMap::new() }
    }

    fn add(&mut self, at: u64, block: BlockId, bytes: usize) {
        self.order.insert(at, block);
        self.used_bytes += bytes;
    }

    fn remove(&mut self, at: u64, bytes: usize) {
        self.order.remove(&at);
        self.used_bytes -= bytes;
    }

    fn used(&mut self, before: u64, now: u64) {
        if let Some(block) = self.order.remove(&before) {
            self.order.insert(now, block);
        }
    }

    /// The block that has to leave next, if one has to. `more_bytes`: room beside its own.
    fn surplus(&self, more_bytes: usize) -> Option<BlockId> {
        let over = self.used_bytes > self.capacity_bytes + more_bytes;
        self.order.first_key_value().filter(|_| over).map(|(_, block)| *block)
    }
}

impl BlockCache {
    /// An empty cache for at most `decoded_bytes` of decoded blocks and `stored_bytes` of blocks as
    /// they are stored.
    pub fn new(decoded_bytes: usize, stored_bytes: usize) -> BlockCache {
        let slab = Slab::new(stored_bytes);
        BlockCache {
            decoded: Level::new(decoded_bytes),
            stored: Level::new(slab.capacity_bytes()),
            entries: HashMap::new(),
            prefers_decoded: false,
            left: Vec::new(),
            clock: 0,
            hits: 0,
            decodes: 0,
            wrong_pages: 0,
            slab,
            spares: Vec::new(),
            joined: Vec::new(),
        }
    }

    /// Whether most of the memory is for decoded blocks, and the second level only for those that
    /// were not decoded yet: where a block is soon asked for again, what counts is that few are
    /// decoded twice.
    pub fn prefer_decoded(&mut self, prefers: bool) {
        self.prefers_decoded = prefers;
    }

    /// Whether [`BlockCache::get`] would find the block.
    pub fn contains(&self, block: BlockId) -> bool {
        self.entries.contains_key(&block)
    }

    /// Bytes of decoded blocks, and of stored ones with what the slab adds.
    #[cfg(test)]
    pub fn used_bytes(&self) -> (usize, usize) {
        (self.decoded.used_bytes, self.stored.used_bytes)
    }

    /// Blocks that READs found so far, and blocks that were decoded again.
    pub fn counters(&self) -> MemoryCounters {
        MemoryCounters { cache_hits: self.hits, cache_decodes: self.decodes, ..MemoryCounters::default() }
    }

    /// The blocks, if all of them are here. Each becomes the most recently used one.
    fn find(&mut self, blocks: &[BlockId]) -> Option<Vec<(BlockId, BlockBytes)>> {
        if !blocks.iter().all(|block| self.contains(*block)) {
            return None;
        }
        let found = blocks.iter().map(|block| Some((*block, self.get(*block)?))).collect::<Option<Vec<_>>>()?;
        self.hits += found.len() as u64;
        Some(found)
    }

    /// A page, if all its blocks are here. One that does not match the image is not, and neither
    /// are the blocks from then on that it was taken from without a check.
    pub fn page(
        &mut self,
        metadata: &Metadata,
        page: PageId,
        parts: &PageParts,
        pool: &Arc<Allocator>,
    ) -> Option<PageBuffer> {
        let found = self.find(&parts.blocks(metadata))?;
        let mut buffer = pool.page();
        let bytes_of = |block| found.iter().find(|(id, _)| *id == block).map(|(_, bytes)| &bytes[..]);
        if !parts.assemble(metadata, &mut buffer[..], bytes_of) {
            return None;
        }
        let mut unverified = found.iter().filter(|(_, bytes)| !bytes.is_verified()).peekable();
        if unverified.peek().is_some() && metadata.verify_page(page, &buffer[..parts.bytes()]).is_err() {
            self.wrong_pages += 1;
            unverified.for_each(|(block, _)| self.discard(*block));
            return None;
        }
        Some(buffer)
    }

    /// Pages that did not match the image.
    pub fn wrong_pages(&self) -> u64 {
        self.wrong_pages
    }

    /// A buffer to decode a block into, one that was used before if there is one.
    pub fn spare(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// The block, which becomes the most recently used one. It is decoded if need be: a tenth of a
    /// millisecond for a block of 64 KiB, spent by the caller.
    pub fn get(&mut self, block: BlockId) -> Option<BlockBytes> {
        self.clock += 1;
        let entry = self.entries.get_mut(&block)?;
        self.decoded.used(entry.used_at, self.clock);
        self.stored.used(entry.used_at, self.clock);
        entry.used_at = self.clock;
        if let Some(bytes) = &entry.decoded {
            return Some(Arc::clone(bytes));
        }
        // Room first: the block that leaves gives its buffer.
        let raw_bytes = entry.raw_bytes;
        self.decoded.used_bytes += raw_bytes;
        let evicted = self.shed_decoded();
        self.left.extend(evicted);
        self.decoded.used_bytes -= raw_bytes;
        let mut raw = self.spare();
        let kept = self.entries.get(&block)?.stored.as_ref()?;
        self.slab.read(&kept.slots, &mut self.joined);
        kept.coding.decode(&self.joined, raw_bytes, &mut raw)?;
        self.decodes += 1;
        let bytes = Arc::new(Decoded::Here(raw));
        self.entries.get_mut(&block)?.decoded = Some(Arc::clone(&bytes));
        self.decoded.add(self.clock, block, bytes.len());
        if self.prefers_decoded {
            self.forget_stored(block);
        }
        Some(bytes)
    }

    /// Notes that `bytes` bytes at `offset` of the block were taken. True at the first use of a
    /// block that readahead brought: the moment to read on.
    pub fn take(&mut self, block: BlockId, offset: usize, bytes: usize) -> bool {
        let Some(entry) = self.entries.get_mut(&block) else { return false };
        entry.taken.mark(offset, bytes);
        let first_use = !entry.used;
        entry.used = true;
        first_use && entry.speculated
    }

    /// Adds a block to the first level if it is given decoded, and to the second if `stored` is
    /// given and has room there; it replaces an older copy of itself. What had to leave both levels
    /// is returned, oldest first: the new block itself if it is too large.
    pub fn insert(
        &mut self,
        block: BlockId,
        bytes: Option<BlockBytes>,
        stored: Option<StoredBlock>,
        speculated: bool,
    ) -> Vec<Evicted> {
        self.clock += 1;
        let mut evicted = std::mem::take(&mut self.left);
        let too_large = |stored: &StoredBlock| Slab::held_bytes(stored.bytes.len()) > self.stored_bytes_max();
        let (raw_bytes, stored) = match (&bytes, stored) {
            (Some(bytes), stored) => (bytes.len(), stored.filter(|stored| !self.prefers_decoded && !too_large(stored))),
            (None, Some(stored)) if !too_large(&stored) => (stored.raw_bytes, Some(stored)),
            (None, stored) => {
                let taken = Taken::default();
                evicted.push(Evicted { block, taken, speculated, used: false, decoded: None, stored });
                return evicted;
            }
        };
        let taken = Taken::of(raw_bytes);
        let mut entry =
            Entry { decoded: None, stored: None, raw_bytes, taken, speculated, used: false, used_at: self.clock };
        if let Some(old) = self.remove(block) {
            // Same contents; only the record of taken parts goes on.
            (entry.taken, entry.speculated, entry.used) = (old.taken, old.speculated, old.used);
        }
        if let Some(stored) = stored {
            let wanted = Slab::held_bytes(stored.bytes.len());
            while self.stored.used_bytes + wanted > self.stored_bytes_max() {
                let Some(next) = self.least_wanted() else { break };
                evicted.extend(self.remove(next));
            }
            if let Some(slots) = self.slab.put(&stored.bytes) {
                self.stored.add(self.clock, block, wanted);
                entry.stored = Some(Kept { coding: stored.coding, slots });
            }
        }
        if let Some(bytes) = bytes {
            entry.decoded = Some(bytes);
            self.decoded.add(self.clock, block, raw_bytes);
        }
        self.entries.insert(block, entry);
        evicted.extend(self.shed_decoded());
        evicted
    }

    /// The block of the second level that leaves next: the oldest that was taken wholly, else the
    /// oldest.
    fn least_wanted(&self) -> Option<BlockId> {
        let spent = |block: &&BlockId| self.entries.get(block).is_some_and(|entry| entry.taken.is_all(entry.raw_bytes));
        let oldest = || self.stored.order.values().next();
        self.stored.order.values().find(spent).or_else(oldest).copied()
    }

    /// Brings the first level within its budget; returns the blocks that were in no other.
    fn shed_decoded(&mut self) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        while let Some(oldest) = self.decoded.surplus(self.lent_bytes()) {
            match self.entries.get_mut(&oldest) {
                Some(Entry { decoded, stored: Some(_), used_at, raw_bytes, .. }) => {
                    self.decoded.remove(*used_at, *raw_bytes);
                    if let Some(raw) = decoded.take().and_then(Arc::into_inner).and_then(Decoded::into_buffer)
                        && self.spares.len() < SPARES_MAX
                    {
                        self.spares.push(raw);
                    }
                }
                _ => evicted.extend(self.remove(oldest)),
            }
        }
        evicted
    }

    /// What the second level lends to the first: half of what it does not use, or a fixed part.
    /// Together both take no more than their budgets.
    fn lent_bytes(&self) -> usize {
        match self.prefers_decoded {
            true => self.stored.capacity_bytes - self.stored_bytes_max(),
            false => (self.stored.capacity_bytes - self.stored.used_bytes) / 2,
        }
    }

    /// What the second level may hold.
    fn stored_bytes_max(&self) -> usize {
        if self.prefers_decoded { self.stored.capacity_bytes / 8 } else { self.stored.capacity_bytes }
    }

    /// Forgets a block whose bytes turned out to be wrong.
    pub fn discard(&mut self, block: BlockId) {
        self.remove(block);
    }

    /// Takes a block out of the second level alone.
    fn forget_stored(&mut self, block: BlockId) {
        let Some(entry) = self.entries.get_mut(&block) else { return };
        if let Some(Kept { slots, .. }) = entry.stored.take() {
            self.stored.remove(entry.used_at, Slab::held_bytes(slots.bytes()));
            self.slab.free(slots);
        }
    }

    fn remove(&mut self, block: BlockId) -> Option<Evicted> {
        let Entry { decoded, stored, raw_bytes, taken, speculated, used, used_at } = self.entries.remove(&block)?;
        if decoded.is_some() {
            self.decoded.remove(used_at, raw_bytes);
        }
        let stored = stored.map(|Kept { coding, slots }| {
            self.stored.remove(used_at, Slab::held_bytes(slots.bytes()));
            let mut bytes = Vec::with_capacity(slots.bytes());
            self.slab.read(&slots, &mut bytes);
            self.slab.free(slots);
            StoredBlock { coding, raw_bytes, bytes: bytes.into() }
        });
        Some(Evicted { block, taken, speculated, used, decoded, stored })
    }
}
