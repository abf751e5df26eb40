//! The disk cache: blocks in one file of slots on this device (docs/formats/outbox.md). Every block
//! has a hash, so a damaged one counts as absent. Nothing is synced, since nothing depends on it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;

use crate::format::{CACHE_HEADER_BYTES, CACHE_MAGIC, HASH_BYTES, SLOT_HEADER_BYTES};
use crate::job::BlockKey;
use crate::outbox::hash;
use crate::private;

/// The file of a disk cache.
pub(crate) struct Cache {
    file: File,
    block_bytes: u32,
    slots: u32,
}

impl Cache {
    /// Opens the cache of a volume; another volume's is overwritten. Tells what it holds.
    pub fn open(
        folder: &Path,
        bytes: u64,
        volume: u128,
        block_bytes: u32,
    ) -> io::Result<(Cache, Vec<(u32, BlockKey)>)> {
        private::folder(folder)?;
        let path = folder.join("blocks.cache");
        let file = private::file().create(true).truncate(false).read(true).write(true).open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        let slot = SLOT_HEADER_BYTES as u64 + u64::from(block_bytes);
        let slots = (bytes.saturating_sub(CACHE_HEADER_BYTES as u64) / slot).min(u64::from(u32::MAX)) as u32;
        let cache = Cache { file, block_bytes, slots };
        let mut head = CACHE_MAGIC.to_vec();
        head.extend(volume.to_le_bytes());
        head.extend(block_bytes.to_le_bytes());
        head.extend(slots.to_le_bytes());
        let check = hash(&head);
        head.extend(check);
        head.resize(CACHE_HEADER_BYTES, 0);
        let mut found = vec![0; CACHE_HEADER_BYTES];
        if cache.file.read_exact_at(&mut found, 0).is_ok() && found == head {
            let known = cache.scan()?;
            return Ok((cache, known));
        }
        cache.file.set_len(0)?;
        cache.file.write_all_at(&head, 0)?;
        Ok((cache, Vec::new()))
    }

    /// Number of blocks it can hold.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    fn scan(&self) -> io::Result<Vec<(u32, BlockKey)>> {
        let end = self.file.metadata()?.len();
        let mut found = Vec::new();
        let mut head = [0; SLOT_HEADER_BYTES];
        for slot in 0..self.slots {
            if self.offset(slot) + SLOT_HEADER_BYTES as u64 > end {
                break;
            }
            self.file.read_exact_at(&mut head, self.offset(slot))?;
            if let Some((key, _)) = parse_head(&head) {
                found.push((slot, key));
            }
        }
        Ok(found)
    }

    fn offset(&self, slot: u32) -> u64 {
        let bytes = SLOT_HEADER_BYTES as u64 + u64::from(self.block_bytes);
        CACHE_HEADER_BYTES as u64 + u64::from(slot) * bytes
    }

    pub fn write(&self, slot: u32, key: BlockKey, bytes: &[u8]) -> io::Result<()> {
        if slot >= self.slots || bytes.len() > self.block_bytes as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut out = head(key, bytes);
        out.extend(bytes);
        self.file.write_all_at(&out, self.offset(slot))
    }

    /// The block of a slot, if it is this one and whole.
    pub fn read(&self, slot: u32, key: BlockKey) -> Option<Bytes> {
        if slot >= self.slots {
            return None;
        }
        let mut stored = [0; SLOT_HEADER_BYTES];
        self.file.read_exact_at(&mut stored, self.offset(slot)).ok()?;
        let (found, length) = parse_head(&stored)?;
        if found != key || length > self.block_bytes {
            return None;
        }
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, self.offset(slot) + SLOT_HEADER_BYTES as u64).ok()?;
        (head(key, &bytes) == stored).then(|| bytes.into())
    }
}

fn head(key: BlockKey, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(SLOT_HEADER_BYTES + bytes.len());
    out.extend(key.file.to_le_bytes());
    out.extend(key.version.to_le_bytes());
    out.extend(key.index.to_le_bytes());
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend([0; 8]);
    let head_hash = hash(&out);
    let mut all = blake3::Hasher::new();
    all.update(&out).update(bytes);
    out.extend(&all.finalize().as_bytes()[..HASH_BYTES]);
    out.extend(head_hash);
    out
}

/// Which block a slot holds, and its length, if its header is whole.
fn parse_head(head: &[u8; SLOT_HEADER_BYTES]) -> Option<(BlockKey, u32)> {
    let (fields, hashes) = head.split_at(SLOT_HEADER_BYTES - 2 * HASH_BYTES);
    if hash(fields) != hashes[HASH_BYTES..] {
        return None;
    }
    let long = |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().unwrap_or_default());
    let short = |at: usize| u32::from_le_bytes(fields[at..at + 4].try_into().unwrap_or_default());
    Some((BlockKey { file: long(0), version: long(8), index: short(16) }, short(20)))
}
