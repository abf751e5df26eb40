//! An upload whose metadata is complete: its blocks come in, or are copied from other images, and
//! it is published.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use image::format::SUPERBLOCK_BYTES;
use image::{Metadata, ReadAt, Superblock};
use store::Store;
use units::{BlockId, ImageId};
use wire::{BlockRange, ErrorCode};

use super::{Announced, Event, Reports, UploadService};
use crate::catalog::{UploadMemory, image_key};
use crate::error::Failure;
use crate::lock::locked;
use crate::peer::Peer;
use crate::published::{ImageObject, io_error};

/// Bytes of other images' block tables that an upload may look at for blocks that it need not send,
/// for each byte of its own metadata. The tables of images of its kind are about as large as its
/// own, so this is some dozens of them.
const SCAN_BYTES_PER_BYTE: u64 = 32;

/// The same for the smallest upload, and what a table costs beside its bytes: a file is opened, a
/// superblock hashed.
const SCAN_BYTES_MIN: u64 = 1 << 20;
const SCAN_BYTES_OF_FILE: u64 = 32 << 10;

/// Processor time that an upload may take for decoding its blocks, and what each MiB of them adds:
/// the slowest codec makes a MiB in a tenth of a second. Blocks can be made to cost seconds each.
const DECODING_TIME: Duration = Duration::from_secs(30);
const DECODING_TIME_PER_MIB: Duration = Duration::from_secs(1);

/// Bytes of the disk that uploads leave: what is learned, bundles and journals of volumes need some
/// to go on.
pub(crate) const DISK_BYTES_LEFT: u64 = 256 << 20;

/// How often that is looked at, in bytes of an upload.
const DISK_CHECK_BYTES: u64 = 16 << 20;

/// An upload whose metadata is complete.
pub(crate) struct Staged {
    upload: Box<dyn store::Upload>,
    metadata: Metadata,
    /// Blocks that are not written yet.
    lacking: Vec<bool>,
    lacking_count: u32,
    /// Bytes of the file that are stored.
    pub stored_bytes: u64,
    /// The block at hand, decoded.
    raw: Vec<u8>,
    /// Time spent on decoding.
    decoding: Duration,
    /// Of `stored_bytes` when the disk is looked at again.
    disk_checked_at: u64,
    /// Memory of the metadata and of a block.
    reserved: UploadMemory,
}

impl Staged {
    pub fn new(
        upload: Box<dyn store::Upload>,
        metadata: Metadata,
        announced: &Announced,
        reserved: UploadMemory,
    ) -> Staged {
        let count = metadata.block_count();
        let stored_bytes = SUPERBLOCK_BYTES as u64 + announced.metadata_bytes;
        Staged {
            upload,
            metadata,
            lacking: vec![true; count as usize],
            lacking_count: count,
            stored_bytes,
            raw: Vec::new(),
            decoding: Duration::ZERO,
            disk_checked_at: stored_bytes,
            reserved,
        }
    }

    /// The image.
    pub fn id(&self) -> ImageId {
        self.metadata.id()
    }

    /// Whose memory it takes.
    pub fn peer(&self) -> Peer {
        self.reserved.peer()
    }

    /// Gives back what is needed only while blocks come in.
    pub fn rest(&mut self) {
        self.raw = Vec::new();
    }

    /// Blocks that must be sent, as runs.
    pub fn lacking(&self) -> Vec<BlockRange> {
        ranges(&self.lacking)
    }

    /// Checks and writes one block.
    pub fn take_block(&mut self, store: &dyn Store, block: BlockId, bytes: &[u8]) -> Result<(), Failure> {
        if !self.lacking.get(block.0 as usize).copied().unwrap_or(false) {
            return Err(Failure::bad_request(format!("block {block} was not asked for")));
        }
        let wrong = |error| Failure::corrupt(format!("the upload sent a wrong block: {error}"));
        let entry = self.metadata.verify_block(block, bytes).map_err(wrong)?;
        let begun = Instant::now();
        self.metadata.decode_verified(block, bytes, &mut self.raw).map_err(wrong)?;
        self.decoding += begun.elapsed();
        let mib = (self.stored_bytes >> 20) as u32;
        if self.decoding > DECODING_TIME + DECODING_TIME_PER_MIB * mib {
            return Err(Failure::new(ErrorCode::TooLarge, "the blocks of the upload take too long to decode"));
        }
        if self.stored_bytes >= self.disk_checked_at {
            check_disk(store, DISK_CHECK_BYTES)?;
            self.disk_checked_at = self.stored_bytes + DISK_CHECK_BYTES;
        }
        self.upload.write_at(entry.file_offset, bytes)?;
        self.lacking[block.0 as usize] = false;
        self.lacking_count -= 1;
        self.stored_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Copies blocks that other images hold. Looks at so many of them that the work is in
    /// proportion to what was uploaded.
    pub fn copy_known_blocks(
        &mut self,
        service: &UploadService,
        announced: &Announced,
        reports: &Reports,
    ) -> Result<(), Failure> {
        let mut wanted: HashMap<[u8; 32], Vec<BlockId>> = HashMap::new();
        for block in (0..self.metadata.block_count()).map(BlockId) {
            if self.lacking[block.0 as usize]
                && let Some(hash) = self.metadata.block_hash(block)
            {
                wanted.entry(hash).or_default().push(block);
            }
        }
        let mut scan_left = SCAN_BYTES_MIN + SCAN_BYTES_PER_BYTE * announced.metadata_bytes;
        for key in service.catalog.names().keys_for(&announced.name)? {
            if wanted.is_empty() || scan_left < SCAN_BYTES_OF_FILE {
                break;
            }
            scan_left -= SCAN_BYTES_OF_FILE;
            // A broken image in the store is no reason to refuse a good one: its blocks are simply
            // asked for.
            let Ok(object) = service.store.open(&key) else { continue };
            let source = ImageObject(object.clone());
            let Ok(superblock) = Superblock::read(&source, &service.limits) else { continue };
            let Some(left) = scan_left.checked_sub(superblock.block_table_bytes()) else { continue };
            scan_left = left;
            let Ok(places) = superblock.block_places(&source) else { continue };
            for entry in places {
                let Some(blocks) = wanted.get(&entry.hash) else { continue };
                let as_long = |block: &BlockId| {
                    self.metadata.block(*block).is_some_and(|block| block.stored_bytes == entry.stored_bytes)
                };
                if !blocks.iter().all(as_long) {
                    continue;
                }
                let mut bytes = vec![0; entry.stored_bytes as usize];
                if object.read_at(entry.file_offset, &mut bytes).is_err()
                    || *blake3::hash(&bytes).as_bytes() != entry.hash
                {
                    continue;
                }
                for block in blocks.clone() {
                    self.take_block(&*service.store, block, &bytes)?;
                    service.metrics.upload_bytes_copied.add(bytes.len() as u64);
                }
                wanted.remove(&entry.hash);
                reports.send(Event::Progress(self.stored_bytes));
            }
        }
        Ok(())
    }

    /// Makes the image durable, then switches the tag.
    pub fn publish(self, service: &UploadService, announced: &Announced) -> Result<ImageId, Failure> {
        if self.lacking_count > 0 {
            return Err(Failure::bad_request(format!("{} blocks of the upload are missing", self.lacking_count)));
        }
        let source = Source { upload: &*self.upload, bytes: self.metadata.file_bytes() };
        // Every block was decoded, so this only says whether hashes that are not in the file are
        // those it was made with.
        self.metadata.derive_chunk_hashes(&source).map_err(invalid)?;
        let id = self.metadata.id();
        let key = image_key(id);
        // One at a time, so that taking back an image nobody has a tag for cannot hit another
        // upload of the same image.
        let _publishing = locked(&service.publishing);
        let was_there = service.store.open(&key).is_ok();
        if let Some(publisher) = &announced.publisher {
            publisher.check(&*service.store, announced.place(), id, announced.file_bytes)?;
            publisher.note(&*service.store, announced.place(), id)?;
        }
        service.catalog.hold(id)?;
        service.catalog.save_expected(&self.metadata, &source, &announced.name, &announced.tag);
        self.upload.commit(&key)?;
        if let Err(error) = service.catalog.set_tag(&announced.name, &announced.tag, id) {
            // Another server of the store may have a tag for it by now; else a collection finds it.
            if !was_there
                && !service.store.is_shared()
                && let Err(error) = service.store.delete(&key)
            {
                service.log.warning(format_args!("image {id} has no tag and stays in the store: {error}"));
            }
            return Err(error.into());
        }
        Ok(id)
    }
}

pub(super) fn invalid(error: image::ImageError) -> Failure {
    Failure::corrupt(format!("the uploaded image is not valid: {error}"))
}

/// Refuses to write `bytes` more if that leaves the disk too little.
pub(super) fn check_disk(store: &dyn Store, bytes: u64) -> Result<(), Failure> {
    match store.free_bytes() {
        Some(free) if free < DISK_BYTES_LEFT.saturating_add(bytes) => Err(Failure::new(
            ErrorCode::NoSpace,
            format!(
                "the disk of the store has {} MiB left, too little to take uploads: {} MiB must stay free; free some \
                 space there",
                free >> 20,
                DISK_BYTES_LEFT >> 20
            ),
        )),
        _ => Ok(()),
    }
}

/// Lacking blocks as runs.
fn ranges(lacking: &[bool]) -> Vec<BlockRange> {
    let mut ranges: Vec<BlockRange> = Vec::new();
    for (block, _) in lacking.iter().enumerate().filter(|(_, lacking)| **lacking) {
        match ranges.last_mut() {
            Some(last) if last.first.0 + last.count == block as u32 => last.count += 1,
            _ => ranges.push(BlockRange { first: BlockId(block as u32), count: 1 }),
        }
    }
    ranges
}

/// An unfinished upload as the source of an image: its length is what was announced.
pub(super) struct Source<'a> {
    pub upload: &'a dyn store::Upload,
    pub bytes: u64,
}

impl ReadAt for Source<'_> {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.upload.read_at(offset, buf).map_err(io_error)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacking_blocks_become_ascending_runs() {
        let range = |first, count| BlockRange { first: BlockId(first), count };
        assert_eq!(ranges(&[]), []);
        assert_eq!(ranges(&[false, true, true, false, true]), [range(1, 2), range(4, 1)]);
    }
}
