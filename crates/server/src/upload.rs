//! Uploads: an image arrives block by block, is checked as it comes, and is published in one step.
//!
//! Each upload has a worker on a blocking thread with a short queue in front of it; a full queue makes the connection
//! stop reading, so that a fast client is slowed down to the speed of the disk. The order of things:
//!
//! 1. superblock and metadata come in and are validated as any reader would;
//! 2. blocks that other images of the store hold (by the hash of their stored bytes) are copied, the others asked for;
//! 3. each block that comes in is checked against its hash, decoded, held to the hashes of its chunks (an image that says
//!    one thing in its blocks and another in its chunk hashes is refused), and written to its place;
//! 4. on commit the file is made durable under `images/<id>.rnl`, and only then the tag is switched to it.
//!
//! Until the last step the tag resolves to what it did before, whatever happens. An upload that
//! loses its connection is kept for a while ([`Parked`]): the client's next try then sends only
//! what is still missing. So is one that stands still while another client waits for its place.

mod client;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use image::{Metadata, ReadAt, Superblock, format::SUPERBLOCK_BYTES};
use store::Store;
use tokio::sync::mpsc;
use units::{BlockId, ImageId};
use wire::{BlockRange, ErrorCode};

use crate::accept::Shared;
use crate::blocks::locked;
use crate::budget::Room;
use crate::catalog::image_key;
use crate::error::Failure;
use crate::metadata_memory::Reserved;
use crate::name::Name;
use crate::panics::caught_blocking;
use crate::peer::Owner;
use crate::published::{ImageObject, io_error};
use client::{Client, Next, yielded};

/// Parts of an upload queued before its worker: enough to keep it busy while the connection reads on.
const QUEUE_MAX: usize = 4;

/// Uploads at once. Each holds a thread, a file and the metadata of one image.
pub(crate) const UPLOADS_MAX: usize = 8;

/// Time that an upload waits for a place, if all are taken by uploads that move.
const PLACE_WAIT: Duration = Duration::from_secs(20);

/// Memory of an upload that waits for a place. It takes nothing from its connection meanwhile.
const WAITING_BYTES: usize = 2 << 10;

/// Interrupted uploads that are kept; each holds disk space and the metadata of one image.
const PARKED_MAX: usize = 4;

/// Bytes of other images' block tables that an upload may look at for blocks that it need not send, for each byte of its
/// own metadata. The tables of images of its kind are about as large as its own, so this is some dozens of them.
const SCAN_BYTES_PER_BYTE: u64 = 32;

/// The same for the smallest upload, and what a table costs beside its bytes: a file is opened, a superblock hashed.
const SCAN_BYTES_MIN: u64 = 1 << 20;
const SCAN_BYTES_OF_FILE: u64 = 32 << 10;

/// Processor time that an upload may take for decoding its blocks, and what each MiB of them adds: the slowest codec makes
/// a MiB in a tenth of a second. Blocks can be made to cost seconds each.
const DECODING_TIME: Duration = Duration::from_secs(30);
const DECODING_TIME_PER_MIB: Duration = Duration::from_secs(1);

/// Bytes of the disk that uploads leave: what is learned, bundles and journals of volumes need some to go on.
const DISK_BYTES_LEFT: u64 = 256 << 20;

/// How often that is looked at, in bytes of an upload.
const DISK_CHECK_BYTES: u64 = 16 << 20;

/// Parts the metadata may arrive in that do not touch each other.
const GAPS_MAX: usize = 1024;

/// What the connection hands to the worker.
#[derive(Debug)]
pub(crate) enum Command {
    Meta { offset: u64, bytes: Bytes },
    Block { block: BlockId, bytes: Bytes },
    Commit,
}

/// What the worker reports.
#[derive(Debug)]
pub(crate) enum Event {
    /// These blocks must be sent.
    Need(Vec<BlockRange>),
    /// So many bytes of the file are stored.
    Progress(u64),
    /// It is over.
    Finished(Result<ImageId, Failure>),
}

/// What a `PutOpen` announces.
#[derive(Clone, Debug)]
pub(crate) struct Announced {
    pub name: String,
    pub tag: String,
    pub file_bytes: u64,
    pub metadata_offset: u64,
    pub metadata_bytes: u64,
}

impl Announced {
    /// Refuses what cannot become an image before a byte of it is taken.
    pub fn check(
        config: &crate::Config,
        name: &str,
        file_bytes: u64,
        metadata_offset: u64,
        metadata_bytes: u64,
    ) -> Result<Announced, Failure> {
        if config.uploads == crate::Uploads::Refused {
            return Err(Failure::new(ErrorCode::Forbidden, "this server takes no uploads"));
        }
        let (name, tag) = match Name::parse(name) {
            Ok(Name::Tag { name, tag }) => (name, tag),
            Ok(Name::Id(_)) => return Err(Failure::bad_request("an upload needs a name, not an image id")),
            Err(reason) => return Err(Failure::bad_request(reason)),
        };
        let too_large = |what: &str, found: u64, max: u64| {
            Err(Failure::new(ErrorCode::TooLarge, format!("{what} has {found} bytes, this server takes at most {max}")))
        };
        if file_bytes > config.upload_bytes_max {
            return too_large("the image", file_bytes, config.upload_bytes_max);
        }
        if metadata_bytes > config.image_limits.metadata_bytes_max {
            return too_large("its metadata", metadata_bytes, config.image_limits.metadata_bytes_max);
        }
        let fits = metadata_offset >= SUPERBLOCK_BYTES as u64
            && metadata_offset.checked_add(metadata_bytes) == Some(file_bytes);
        if !fits {
            return Err(Failure::bad_request(format!(
                "metadata of {metadata_bytes} bytes at {metadata_offset} does not end a file of {file_bytes} bytes"
            )));
        }
        Ok(Announced { name, tag, file_bytes, metadata_offset, metadata_bytes })
    }
}

/// The connection's end of an upload. Dropping it interrupts the upload.
pub(crate) struct Upload {
    pub commands: mpsc::Sender<Command>,
    /// Bytes of uploads that its connection has brought.
    arrived: Arc<AtomicU64>,
}

impl Upload {
    /// Starts the worker, as soon as it has a place among [`UPLOADS_MAX`].
    ///
    /// # Errors
    /// The peer has its share of them, or there is no memory for what its client sends meanwhile.
    pub fn start(
        shared: Arc<Shared>,
        announced: Announced,
        owner: Owner,
        report: impl Fn(Event) + Send + 'static,
    ) -> Result<Upload, Failure> {
        let (commands, receiver) = mpsc::channel(QUEUE_MAX);
        let arrived = Arc::new(AtomicU64::new(0));
        let upload = Upload { commands, arrived: arrived.clone() };
        if let Some(place) = shared.uploads.try_take(owner, 1) {
            tokio::task::spawn_blocking(move || work(&shared, &announced, receiver, arrived, Ok(place), &report));
            return Ok(upload);
        }
        if shared.uploads.is_over_share(owner, 1) {
            return Err(no_place());
        }
        let waiting = shared.catalog.try_reserve(WAITING_BYTES).ok_or_else(no_place)?;
        // All of the queue: the session reads on when there is a place.
        let queue: Vec<_> = (0..QUEUE_MAX).filter_map(|_| upload.commands.clone().try_reserve_owned().ok()).collect();
        tokio::spawn(async move {
            let place = tokio::time::timeout(PLACE_WAIT, shared.uploads.take(owner, 1)).await;
            let place = place.map_err(|_| no_place());
            drop((waiting, queue));
            tokio::task::spawn_blocking(move || work(&shared, &announced, receiver, arrived, place, &report));
        });
        Ok(upload)
    }

    /// Its connection has brought so many bytes of uploads.
    pub fn note_bytes(&self, arrived: u64) {
        self.arrived.store(arrived, Ordering::Relaxed);
    }
}

fn no_place() -> Failure {
    Failure::new(ErrorCode::Busy, "the server has too many uploads in progress; try again later")
}

/// The worker, from its place to its last report.
fn work(
    shared: &Shared,
    announced: &Announced,
    commands: mpsc::Receiver<Command>,
    arrived: Arc<AtomicU64>,
    place: Result<Room, Failure>,
    report: &dyn Fn(Event),
) {
    let mut client = place.map(|place| Client::new(shared, commands, arrived, place));
    let finished = match &mut client {
        Ok(client) => caught_blocking(|| run(announced, client, report)).unwrap_or_else(|reason| {
            Err(Failure::new(ErrorCode::Internal, format!("the server failed while it took the upload: {reason}")))
        }),
        Err(failure) => Err(failure.clone()),
    };
    match &finished {
        Ok(Some(id)) => {
            shared.metrics.uploads.one();
            shared.log.info(format_args!("published {}:{} as image {id}", announced.name, announced.tag));
        }
        Ok(None) => shared.metrics.uploads_failed.one(),
        Err(failure) => {
            shared.metrics.uploads_failed.one();
            let Announced { name, tag, .. } = announced;
            shared.log.warning(format_args!("the upload of {name}:{tag} failed: {failure}"));
        }
    }
    drop(client);
    if let Some(result) = finished.transpose() {
        report(Event::Finished(result));
    }
}

/// An upload whose metadata is complete.
struct Staged {
    upload: Box<dyn store::Upload>,
    metadata: Metadata,
    /// Blocks that are not written yet.
    lacking: Vec<bool>,
    lacking_count: u32,
    stored_bytes: u64,
    /// The block at hand, decoded.
    raw: Vec<u8>,
    /// Time spent on decoding.
    decoding: Duration,
    /// Of `stored_bytes` when the disk is looked at again.
    disk_checked_at: u64,
    /// Memory of the metadata and of blocks on their way.
    _reserved: Reserved,
}

/// Uploads that lost their connection, by image.
#[derive(Default)]
pub(crate) struct Parked {
    uploads: Mutex<HashMap<ImageId, (Instant, Staged)>>,
}

impl Parked {
    fn take(&self, id: ImageId) -> Option<Staged> {
        locked(&self.uploads).remove(&id).map(|(_, staged)| staged)
    }

    fn put(&self, mut staged: Staged) {
        staged.raw = Vec::new();
        let mut uploads = locked(&self.uploads);
        if uploads.len() >= PARKED_MAX
            && let Some(oldest) = uploads.iter().min_by_key(|(_, (since, _))| *since).map(|(id, _)| *id)
        {
            uploads.remove(&oldest);
        }
        uploads.insert(staged.metadata.id(), (Instant::now(), staged));
    }

    /// Drops the one that has been kept for longest; false if there is none.
    pub fn drop_oldest(&self) -> bool {
        let mut uploads = locked(&self.uploads);
        let oldest = uploads.iter().min_by_key(|(_, (since, _))| *since).map(|(id, _)| *id);
        let gone = oldest.and_then(|id| uploads.remove(&id));
        drop(uploads);
        gone.is_some()
    }

    /// Drops what has been kept for longer than `kept`.
    pub fn expire(&self, kept: Duration) {
        locked(&self.uploads).retain(|_, (since, _)| since.elapsed() < kept);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        locked(&self.uploads).len()
    }
}

/// Runs an upload to its end; `None` if it was interrupted.
fn run(announced: &Announced, client: &mut Client<'_>, report: &dyn Fn(Event)) -> Result<Option<ImageId>, Failure> {
    let shared = client.shared;
    let Some(mut staged) = take_metadata(announced, client)? else { return Ok(None) };
    copy_known_blocks(shared, announced, &mut staged, report)?;
    report(Event::Need(ranges(&staged.lacking)));
    loop {
        match client.next()? {
            Next::Gone => {
                shared.parked.put(staged);
                return Ok(None);
            }
            Next::Yield => {
                shared.parked.put(staged);
                return Err(yielded());
            }
            Next::Command(Command::Meta { .. }) => return Err(Failure::bad_request("metadata after it was complete")),
            Next::Command(Command::Block { block, bytes }) => {
                shared.metrics.upload_bytes_received.add(bytes.len() as u64);
                staged.take_block(&*shared.store, block, &bytes)?;
                report(Event::Progress(staged.stored_bytes));
            }
            Next::Command(Command::Commit) => return publish(shared, announced, staged).map(Some),
        }
    }
}

/// Takes superblock and metadata and validates them. `None` if the connection was lost on the way.
fn take_metadata(announced: &Announced, client: &mut Client<'_>) -> Result<Option<Staged>, Failure> {
    let shared = client.shared;
    check_disk(&*shared.store, announced.metadata_bytes)?;
    let mut upload = shared.store.create()?;
    let wanted = [(0, SUPERBLOCK_BYTES as u64), (announced.metadata_offset, announced.file_bytes)];
    let mut arrived = Arrived::default();
    while !wanted.iter().all(|(start, end)| arrived.covers(*start, *end)) {
        let (offset, bytes) = match client.next()? {
            Next::Gone => return Ok(None),
            Next::Yield => return Err(yielded()),
            Next::Command(Command::Meta { offset, bytes }) => (offset, bytes),
            Next::Command(_) => return Err(Failure::bad_request("blocks of an upload before its metadata")),
        };
        let end = offset.saturating_add(bytes.len() as u64);
        if !wanted.iter().any(|(from, to)| *from <= offset && end <= *to) {
            return Err(Failure::bad_request(format!("bytes {offset} to {end} are neither superblock nor metadata")));
        }
        upload.write_at(offset, &bytes)?;
        arrived.add(offset, end)?;
        shared.metrics.upload_bytes_received.add(bytes.len() as u64);
    }
    let source = Source { upload: &*upload, bytes: announced.file_bytes };
    let limits = &shared.config.image_limits;
    let superblock = Superblock::read(&source, limits).map_err(invalid)?;
    if let Some(staged) = shared.parked.take(superblock.id) {
        return Ok(Some(staged));
    }
    // What a superblock announces is taken only if there is room for it: its metadata, a block, blocks that are queued.
    let queued = (QUEUE_MAX as u64 + 2) * u64::from(superblock.block_bytes);
    let blocks = (superblock.block_memory_bytes() + queued) as usize;
    let held = superblock.metadata_memory_bytes() + blocks as u64;
    let mut reserved = shared.catalog.reserve((held + superblock.opening_memory_bytes()) as usize, &shared.parked)?;
    let metadata = Metadata::open(&source, limits).map_err(invalid)?;
    reserved.shrink_to((held as usize).max(metadata.memory_bytes() + blocks));
    let count = metadata.block_count();
    let stored_bytes = SUPERBLOCK_BYTES as u64 + announced.metadata_bytes;
    let lacking = vec![true; count as usize];
    Ok(Some(Staged {
        upload,
        metadata,
        lacking,
        lacking_count: count,
        stored_bytes,
        raw: Vec::new(),
        decoding: Duration::ZERO,
        disk_checked_at: stored_bytes,
        _reserved: reserved,
    }))
}

impl Staged {
    /// Checks and writes one block.
    fn take_block(&mut self, store: &dyn Store, block: BlockId, bytes: &[u8]) -> Result<(), Failure> {
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
}

fn invalid(error: image::ImageError) -> Failure {
    Failure::corrupt(format!("the uploaded image is not valid: {error}"))
}

/// Refuses to write `bytes` more if that leaves the disk too little.
fn check_disk(store: &dyn Store, bytes: u64) -> Result<(), Failure> {
    match store.free_bytes() {
        Some(free) if free < DISK_BYTES_LEFT.saturating_add(bytes) => Err(Failure::new(
            ErrorCode::NoSpace,
            format!("the store has {} MiB left, too little to take uploads; free some space there", free >> 20),
        )),
        _ => Ok(()),
    }
}

/// Copies blocks that other images hold. Looks at so many of them that the work is in proportion to what was uploaded.
fn copy_known_blocks(
    shared: &Shared,
    announced: &Announced,
    staged: &mut Staged,
    report: &dyn Fn(Event),
) -> Result<(), Failure> {
    let mut wanted: HashMap<[u8; 32], Vec<BlockId>> = HashMap::new();
    for block in (0..staged.metadata.block_count()).map(BlockId) {
        if staged.lacking[block.0 as usize]
            && let Some(entry) = staged.metadata.block(block)
        {
            wanted.entry(entry.hash).or_default().push(block);
        }
    }
    let mut scan_left = SCAN_BYTES_MIN + SCAN_BYTES_PER_BYTE * announced.metadata_bytes;
    for key in shared.catalog.keys_for(&announced.name)? {
        if wanted.is_empty() || scan_left < SCAN_BYTES_OF_FILE {
            break;
        }
        scan_left -= SCAN_BYTES_OF_FILE;
        // A broken image in the store is no reason to refuse a good one: its blocks are simply asked for.
        let Ok(object) = shared.store.open(&key) else { continue };
        let source = ImageObject(object.clone());
        let Ok(superblock) = Superblock::read(&source, &shared.config.image_limits) else { continue };
        let Some(left) = scan_left.checked_sub(superblock.block_table_bytes()) else { continue };
        scan_left = left;
        let Ok(places) = superblock.block_places(&source) else { continue };
        for entry in places {
            let Some(blocks) = wanted.get(&entry.hash) else { continue };
            let as_long = |block: &BlockId| {
                staged.metadata.block(*block).is_some_and(|block| block.stored_bytes == entry.stored_bytes)
            };
            if !blocks.iter().all(as_long) {
                continue;
            }
            let mut bytes = vec![0; entry.stored_bytes as usize];
            if object.read_at(entry.file_offset, &mut bytes).is_err() || *blake3::hash(&bytes).as_bytes() != entry.hash
            {
                continue;
            }
            for block in blocks.clone() {
                staged.take_block(&*shared.store, block, &bytes)?;
                shared.metrics.upload_bytes_copied.add(bytes.len() as u64);
            }
            wanted.remove(&entry.hash);
            report(Event::Progress(staged.stored_bytes));
        }
    }
    Ok(())
}

/// Makes the image durable, then switches the tag.
fn publish(shared: &Shared, announced: &Announced, staged: Staged) -> Result<ImageId, Failure> {
    if staged.lacking_count > 0 {
        return Err(Failure::bad_request(format!("{} blocks of the upload are missing", staged.lacking_count)));
    }
    let source = Source { upload: &*staged.upload, bytes: staged.metadata.file_bytes() };
    // Every block was decoded, so this only says whether hashes that are not in the file are those it was made with.
    staged.metadata.derive_chunk_hashes(&source).map_err(invalid)?;
    let id = staged.metadata.id();
    let key = image_key(id);
    // One at a time, so that taking back an image nobody has a tag for cannot hit another upload of the same image.
    let _publishing = locked(&shared.publishing);
    let was_there = shared.store.open(&key).is_ok();
    staged.upload.commit(&key)?;
    if let Err(error) = shared.catalog.set_tag(&announced.name, &announced.tag, id) {
        if !was_there && let Err(error) = shared.store.delete(&key) {
            shared.log.warning(format_args!("image {id} has no tag and stays in the store: {error}"));
        }
        return Err(error.into());
    }
    Ok(id)
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

/// Which bytes have arrived, as runs that do not touch.
#[derive(Default)]
struct Arrived {
    runs: std::collections::BTreeMap<u64, u64>,
}

impl Arrived {
    fn add(&mut self, mut start: u64, mut end: u64) -> Result<(), Failure> {
        // Runs that begin at or before `end` and reach `start` melt into the new one.
        while let Some((from, to)) = self.runs.range(..=end).next_back().map(|(from, to)| (*from, *to)) {
            if to < start {
                break;
            }
            self.runs.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.runs.insert(start, end);
        if self.runs.len() > GAPS_MAX {
            return Err(Failure::bad_request("the metadata of the upload comes in too many separate parts"));
        }
        Ok(())
    }

    fn covers(&self, start: u64, end: u64) -> bool {
        start >= end || self.runs.range(..=start).next_back().is_some_and(|(_, to)| *to >= end)
    }
}

/// An unfinished upload as the source of an image: its length is what was announced.
struct Source<'a> {
    upload: &'a dyn store::Upload,
    bytes: u64,
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
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Runs agree with a set of bytes.
        #[test]
        fn ref_arrived_agrees_with_a_set_of_bytes(parts in prop::collection::vec((0u64..60, 1u64..12), 0..30)) {
            let mut arrived = Arrived::default();
            let mut bytes = std::collections::BTreeSet::new();
            for (start, count) in parts {
                arrived.add(start, start + count).unwrap();
                bytes.extend(start..start + count);
                for (from, to) in [(0, 5), (10, 30), (start, start + count), (0, 72)] {
                    prop_assert_eq!(arrived.covers(from, to), (from..to).all(|byte| bytes.contains(&byte)));
                }
            }
        }
    }

    #[test]
    fn lacking_blocks_become_ascending_runs() {
        let range = |first, count| BlockRange { first: BlockId(first), count };
        assert_eq!(ranges(&[]), []);
        assert_eq!(ranges(&[false, true, true, false, true]), [range(1, 2), range(4, 1)]);
    }

    #[test]
    fn metadata_in_too_many_parts_is_refused() {
        let mut arrived = Arrived::default();
        let refused = (0..10_000u64).position(|part| arrived.add(part * 2, part * 2 + 1).is_err());
        assert_eq!(refused, Some(GAPS_MAX));
    }
}
