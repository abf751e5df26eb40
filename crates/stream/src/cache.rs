//! The disk cache: blocks in one file of slots on this device (docs/formats/outbox.md). Every block
//! has a hash, so a damaged one counts as absent. Nothing is synced, since nothing depends on it.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use encryption::{KEY_ID_BYTES, OVERHEAD_BYTES, PurposeKey, StorageKey};

use crate::Room;
use crate::format::{CACHE_HEADER_BYTES, CACHE_MAGIC, CACHE_MAGIC_SEALED, HASH_BYTES, SLOT_HEADER_BYTES};
use crate::job::BlockKey;
use crate::outbox::hash;
use crate::private;

/// Bytes of a slot's header before its hashes.
const FIELD_BYTES: usize = SLOT_HEADER_BYTES - 2 * HASH_BYTES;

/// The file of a disk cache.
pub(crate) struct Cache {
    file: File,
    block_bytes: u32,
    slots: u32,
    volume: u128,
    key: Option<PurposeKey>,
}

impl Cache {
    /// Opens the cache of a volume; that of another volume, or without a key where one is wanted,
    /// is overwritten. Tells what it holds.
    pub fn open(
        Room { folder, bytes }: &Room,
        key: Option<&StorageKey>,
        volume: u128,
        block_bytes: u32,
    ) -> io::Result<(Cache, Vec<(u32, BlockKey)>)> {
        private::folder(folder)?;
        let path = folder.join("blocks.cache");
        let file = private::file().create(true).truncate(false).read(true).write(true).open(path)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
        let mut cache = Cache { file, block_bytes, slots: 0, volume, key: key.map(purpose) };
        let room = bytes.saturating_sub(CACHE_HEADER_BYTES as u64);
        cache.slots = (room / cache.slot_bytes()).min(u64::from(u32::MAX)) as u32;
        let mut head = if cache.key.is_some() { CACHE_MAGIC_SEALED } else { CACHE_MAGIC }.to_vec();
        head.extend(volume.to_le_bytes());
        head.extend(block_bytes.to_le_bytes());
        head.extend(cache.slots.to_le_bytes());
        head.extend(cache.key.iter().flat_map(|key| key.id().0));
        let check = hash(&head);
        head.extend(check);
        head.resize(CACHE_HEADER_BYTES, 0);
        let mut found = vec![0; CACHE_HEADER_BYTES];
        if cache.file.read_exact_at(&mut found, 0).is_ok() && found == head {
            let known = cache.scan()?;
            return Ok((cache, known));
        }
        // What others may read is not only forgotten: the file becomes empty.
        cache.file.set_len(0)?;
        cache.file.write_all_at(&head, 0)?;
        Ok((cache, Vec::new()))
    }

    /// Refuses the cache in a folder if it has another key than this one.
    pub fn check_key(folder: &Path, key: Option<&StorageKey>) -> io::Result<()> {
        let mut head = [0; CACHE_HEADER_BYTES];
        let read = File::open(folder.join("blocks.cache")).and_then(|file| file.read_exact_at(&mut head, 0));
        if read.is_err() || head[..8] != CACHE_MAGIC_SEALED {
            return Ok(());
        }
        let (fields, check) = head.split_at(CACHE_HEADER_BYTES - HASH_BYTES);
        let id = &fields[fields.len() - KEY_ID_BYTES..];
        if hash(fields) != check || key.is_some_and(|key| purpose(key).id().0 == id) {
            return Ok(());
        }
        let which = if key.is_some() { "with another key than the one given" } else { "with a key, and none is given" };
        let text = format!("the cache in it is encrypted {which}; give its key, or remove blocks.cache");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
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
        CACHE_HEADER_BYTES as u64 + u64::from(slot) * self.slot_bytes()
    }

    fn slot_bytes(&self) -> u64 {
        SLOT_HEADER_BYTES as u64 + u64::from(self.block_bytes) + self.overhead() as u64
    }

    /// Bytes by which a stored block is longer.
    fn overhead(&self) -> usize {
        self.key.as_ref().map_or(0, |_| OVERHEAD_BYTES)
    }

    /// What a sealed block is.
    fn identity(&self, fields: &[u8]) -> Vec<u8> {
        [&self.volume.to_le_bytes(), fields].concat()
    }

    pub fn write(&self, slot: u32, key: BlockKey, bytes: &[u8]) -> io::Result<()> {
        if slot >= self.slots || bytes.len() > self.block_bytes as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fields = fields(key, bytes.len() as u32);
        let stored = match &self.key {
            Some(sealing) => Cow::Owned(sealing.seal(&self.identity(&fields), bytes)),
            None => Cow::Borrowed(bytes),
        };
        let mut out = head(fields, &stored);
        out.extend_from_slice(&stored);
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
        let mut bytes = vec![0; length as usize + self.overhead()];
        self.file.read_exact_at(&mut bytes, self.offset(slot) + SLOT_HEADER_BYTES as u64).ok()?;
        let fields = fields(key, length);
        if head(fields, &bytes) != stored {
            return None;
        }
        match &self.key {
            Some(sealing) => sealing.open(&self.identity(&fields), &bytes).map(Bytes::from),
            None => Some(bytes.into()),
        }
    }
}

fn purpose(key: &StorageKey) -> PurposeKey {
    key.purpose("volume cache")
}

/// Which block a slot holds, as its first bytes.
fn fields(key: BlockKey, length: u32) -> [u8; FIELD_BYTES] {
    let mut out = [0; FIELD_BYTES];
    out[..8].copy_from_slice(&key.file.to_le_bytes());
    out[8..16].copy_from_slice(&key.version.to_le_bytes());
    out[16..20].copy_from_slice(&key.index.to_le_bytes());
    out[20..24].copy_from_slice(&length.to_le_bytes());
    out
}

/// The header of a slot. The hash is over the block as it is stored: that of a block says what is
/// in it.
fn head(fields: [u8; FIELD_BYTES], stored: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(SLOT_HEADER_BYTES + stored.len());
    out.extend(fields);
    let mut all = blake3::Hasher::new();
    all.update(&fields).update(stored);
    out.extend(&all.finalize().as_bytes()[..HASH_BYTES]);
    out.extend(hash(&fields));
    out
}

/// Which block a slot holds, and its length, if its header is whole.
fn parse_head(head: &[u8; SLOT_HEADER_BYTES]) -> Option<(BlockKey, u32)> {
    let (fields, hashes) = head.split_at(FIELD_BYTES);
    if hash(fields) != hashes[HASH_BYTES..] {
        return None;
    }
    let long = |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().unwrap_or_default());
    let short = |at: usize| u32::from_le_bytes(fields[at..at + 4].try_into().unwrap_or_default());
    Some((BlockKey { file: long(0), version: long(8), index: short(16) }, short(20)))
}
