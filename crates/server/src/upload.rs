//! Uploads: an image arrives block by block, is checked as it comes, and is published in one step.
//!
//! The connection hands what arrives to a task through a short queue. The task does each part of
//! the work on a blocking thread, when it is its turn ([`UPLOADS_AT_WORK`]). A full queue makes the
//! connection stop reading, so that a fast client is slowed down to the speed of the disk. An
//! upload whose client sends nothing keeps no other from working. The steps:
//!
//! 1. Superblock and metadata come in (`arriving`) and are validated as any reader would.
//! 2. Blocks that other images of the store have (by the hash of their stored bytes) are copied;
//!    the others are asked for (`staged`).
//! 3. Each block that comes in is checked against its hash, decoded, compared with the hashes of
//!    its chunks, and written to its place. An image whose blocks and chunk hashes differ is
//!    refused.
//! 4. On commit the file is made durable under `images/<id>.rnl`, and only then the tag is pointed
//!    to it.
//!
//! Until the last step the tag means what it did before, whatever happens. An upload that loses its
//! connection, or stands still, is kept for a while (`parked`): the client's next try then sends
//! only what is missing.

mod arriving;
mod parked;
mod publisher;
mod staged;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use image::format::SUPERBLOCK_BYTES;
use store::{Claim, Store};
use tokio::sync::mpsc;
use units::{BlockId, ImageId, RequestId};
use wire::format::PUT_DEADLINE;
use wire::{BlockRange, ErrorCode};

use crate::budget::{Budget, Room};
use crate::catalog::{Catalog, UPLOAD_PATIENCE};
use crate::config::{Config, Uploads};
use crate::error::Failure;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::name::Name;
use crate::panics::caught_blocking;
use crate::peer::Owner;
use crate::slow::SlowPeers;
use crate::storage::Storage;
use arriving::{Arriving, Complete};
use parked::Parked;
pub(crate) use publisher::Publisher;
pub(crate) use staged::DISK_BYTES_LEFT;
use staged::Staged;

/// Parts of an upload queued before its task: enough to keep it busy while the connection reads on.
const QUEUE_MAX: usize = 4;

/// Uploads that work at once. Each takes a blocking thread for the time of a few parts.
pub(crate) const UPLOADS_AT_WORK: usize = 8;

/// Uploads of which something came and that are not over. Each has a file.
pub(crate) const UPLOADS_MAX: usize = 64;

/// What the connection hands to the upload, with the memory that the bytes take.
pub(crate) enum Command {
    Meta { offset: u64, bytes: Bytes, room: Room },
    Block { block: BlockId, bytes: Bytes, room: Room },
    Commit,
}

/// What the upload reports.
#[derive(Debug)]
pub(crate) enum Event {
    /// These blocks must be sent.
    Need(Vec<BlockRange>),
    /// So many bytes of the file are stored.
    Progress(u64),
    /// It is over.
    Finished(Result<ImageId, Failure>),
}

/// Where events of an upload go.
#[derive(Clone)]
pub(crate) struct Reports {
    pub request: RequestId,
    pub events: mpsc::Sender<(RequestId, Event)>,
}

impl Reports {
    /// From a blocking thread.
    fn send(&self, event: Event) {
        // The connection may be gone.
        let _ = self.events.blocking_send((self.request, event));
    }
}

/// What a `PutOpen` announces.
#[derive(Clone, Debug)]
pub(crate) struct Announced {
    pub name: String,
    pub tag: String,
    pub file_bytes: u64,
    pub metadata_offset: u64,
    pub metadata_bytes: u64,
    /// Who publishes it; `None` without access rules.
    pub publisher: Option<Publisher>,
}

impl Announced {
    /// Name and tag.
    fn place(&self) -> (&str, &str) {
        (&self.name, &self.tag)
    }

    /// Refuses what cannot become an image before a byte of it is taken.
    pub fn check(
        config: &Config,
        name: &str,
        file_bytes: u64,
        metadata_offset: u64,
        metadata_bytes: u64,
    ) -> Result<Announced, Failure> {
        if config.uploads.from == Uploads::Refused {
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
        if file_bytes > config.uploads.bytes_max {
            return too_large("the image", file_bytes, config.uploads.bytes_max);
        }
        if metadata_bytes > config.images.limits.metadata_bytes_max {
            return too_large("its metadata", metadata_bytes, config.images.limits.metadata_bytes_max);
        }
        let fits = metadata_offset >= SUPERBLOCK_BYTES as u64
            && metadata_offset.checked_add(metadata_bytes) == Some(file_bytes);
        if !fits {
            return Err(Failure::bad_request(format!(
                "metadata of {metadata_bytes} bytes at {metadata_offset} does not end a file of {file_bytes} bytes"
            )));
        }
        Ok(Announced { name, tag, file_bytes, metadata_offset, metadata_bytes, publisher: None })
    }
}

/// What all uploads share.
///
/// Invariant: at most [`UPLOADS_MAX`] uploads have a file, at most [`UPLOADS_AT_WORK`] of them
/// work, and one is published at a time.
pub(crate) struct UploadService {
    store: Arc<dyn Store>,
    catalog: Arc<Catalog>,
    metrics: Arc<Metrics>,
    log: Logger,
    limits: image::Limits,
    interrupted: Parked,
    /// Uploads of which something came.
    slots: Budget,
    at_work: Budget,
    /// Held while an upload is published.
    publishing: Mutex<()>,
    /// An upload at work may outlive the server.
    _claim: Option<Arc<Claim>>,
}

impl UploadService {
    /// For these images. `slow` peers go last.
    pub fn new(
        storage: &Storage,
        catalog: Arc<Catalog>,
        metrics: Arc<Metrics>,
        config: &Config,
        slow: &SlowPeers,
    ) -> UploadService {
        UploadService {
            store: storage.store().clone(),
            catalog,
            metrics,
            log: config.log.clone(),
            limits: config.images.limits,
            interrupted: Parked::default(),
            slots: Budget::slots(UPLOADS_MAX).with_slow(slow),
            at_work: Budget::slots(UPLOADS_AT_WORK),
            publishing: Mutex::new(()),
            _claim: storage.claim(),
        }
    }

    /// Begins an upload.
    pub fn begin(self: &Arc<Self>, announced: Announced, owner: Owner, reports: Reports) -> UploadHandle {
        let (commands, receiver) = mpsc::channel(QUEUE_MAX);
        let awaits_client = Arc::new(AtomicBool::new(false));
        let (service, announced) = (self.clone(), Arc::new(announced));
        let upload = Upload { service, announced, owner, reports, awaits_client: awaits_client.clone() };
        tokio::spawn(upload.run(receiver));
        UploadHandle { commands, awaits_client }
    }

    /// Uploads that were interrupted.
    pub fn interrupted(&self) -> &Parked {
        &self.interrupted
    }

    /// Whether somebody waits for a slot or for memory.
    pub fn is_lacking(&self) -> bool {
        self.slots.is_lacking() || self.catalog.is_upload_memory_lacking()
    }

    /// Uploads that have a slot, and those that work.
    #[cfg(test)]
    pub fn taken(&self) -> (usize, usize) {
        (self.slots.taken(), self.at_work.taken())
    }
}

/// An upload as its connection sees it. Dropping it interrupts the upload.
pub(crate) struct UploadHandle {
    /// Where parts of it go.
    pub commands: mpsc::Sender<Command>,
    awaits_client: Arc<AtomicBool>,
}

impl UploadHandle {
    /// Whether it has a slot and all that came is taken up: the client is to send more.
    pub fn awaits_client(&self) -> bool {
        self.awaits_client.load(Ordering::Relaxed)
    }
}

/// An upload from its announcement to its last report.
#[derive(Clone)]
struct Upload {
    service: Arc<UploadService>,
    announced: Arc<Announced>,
    owner: Owner,
    reports: Reports,
    awaits_client: Arc<AtomicBool>,
}

/// How far an upload is.
enum Stage {
    /// Superblock and metadata come in.
    Metadata(Arriving),
    /// They are here.
    Complete(Box<Complete>),
    /// Blocks come in.
    Blocks(Box<Staged>),
    /// It is published.
    Done(ImageId),
}

impl Upload {
    async fn run(self, commands: mpsc::Receiver<Command>) {
        let finished = self.take_all(commands).await;
        let (metrics, log) = (&self.service.metrics, &self.service.log);
        let Announced { name, tag, .. } = &*self.announced;
        match &finished {
            Ok(Some(id)) => {
                metrics.uploads.one();
                log.info(format_args!("published {name}:{tag} as image {id}"));
            }
            Ok(None) => metrics.uploads_failed.one(),
            Err(failure) => {
                metrics.uploads_failed.one();
                log.warning(format_args!("the upload of {name}:{tag} failed: {failure}"));
            }
        }
        if let Some(result) = finished.transpose() {
            // The connection may be gone.
            let _ = self.reports.events.send((self.reports.request, Event::Finished(result))).await;
        }
    }

    /// `None` if the connection went.
    async fn take_all(&self, mut commands: mpsc::Receiver<Command>) -> Result<Option<ImageId>, Failure> {
        let mut stage = None;
        // Counts from the first part that comes: what was only announced has no file.
        let mut slot = None;
        loop {
            self.awaits_client.store(slot.is_some(), Ordering::Relaxed);
            let received = tokio::time::timeout(PUT_DEADLINE, commands.recv()).await;
            self.awaits_client.store(false, Ordering::Relaxed);
            let first = match received {
                Ok(Some(command)) => command,
                Ok(None) => {
                    self.park(stage);
                    return Ok(None);
                }
                Err(_) => {
                    self.park(stage);
                    let text = format!("the upload stood still for {PUT_DEADLINE:?}; try again to go on with it");
                    return Err(Failure::new(ErrorCode::Busy, text));
                }
            };
            if slot.is_none() {
                slot = Some(self.service.slots.take_soon(self.owner, 1, UPLOAD_PATIENCE).await.ok_or_else(no_slot)?);
            }
            let mut batch = vec![first];
            batch.extend(std::iter::from_fn(|| commands.try_recv().ok()).take(QUEUE_MAX - 1));
            let mut next = self.blocking(move |upload| upload.work(stage, batch)).await?;
            if let Stage::Complete(complete) = next {
                let share =
                    self.service.catalog.upload_share(self.owner, complete.memory_bytes(), &self.service.interrupted);
                let share = share.await?;
                next = self.blocking(move |upload| upload.stage(*complete, share)).await?;
            }
            match next {
                Stage::Done(id) => return Ok(Some(id)),
                next => stage = Some(next),
            }
        }
    }

    /// Has `work` done on a blocking thread, when it is this upload's turn.
    async fn blocking(
        &self,
        work: impl FnOnce(&Upload) -> Result<Stage, Failure> + Send + 'static,
    ) -> Result<Stage, Failure> {
        let turn = self.service.at_work.take(self.owner, 1).await;
        let upload = self.clone();
        let work = tokio::task::spawn_blocking(move || {
            let stage = caught_blocking(|| work(&upload));
            drop(turn);
            stage
        });
        let failed =
            |reason| Failure::new(ErrorCode::Internal, format!("the server failed while it took the upload: {reason}"));
        work.await.map_err(|error| failed(error.to_string()))?.map_err(failed)?
    }

    /// Keeps what came, for the client's next try, unless others wait for the memory of it.
    fn park(&self, stage: Option<Stage>) {
        if let Some(Stage::Blocks(staged)) = stage
            && !self.service.catalog.is_upload_memory_lacking()
        {
            self.service.interrupted.put(*staged);
        }
    }

    /// Does what the commands say. Blocks.
    fn work(&self, stage: Option<Stage>, batch: Vec<Command>) -> Result<Stage, Failure> {
        let mut stage = match stage {
            Some(stage) => stage,
            None => Stage::Metadata(Arriving::new(&*self.service.store, &self.announced)?),
        };
        for command in batch {
            stage = self.step(stage, command)?;
        }
        Ok(stage)
    }

    fn step(&self, stage: Stage, command: Command) -> Result<Stage, Failure> {
        let service = &*self.service;
        match (stage, command) {
            (Stage::Metadata(mut arriving), Command::Meta { offset, bytes, room }) => {
                arriving.take(offset, &bytes)?;
                service.metrics.upload_bytes_received.add(bytes.len() as u64);
                drop((bytes, room));
                match arriving.is_complete() {
                    true => Ok(Stage::Complete(Box::new(arriving.complete(service, &self.announced)?))),
                    false => Ok(Stage::Metadata(arriving)),
                }
            }
            (Stage::Metadata(_), _) => Err(Failure::bad_request("blocks of an upload before its metadata")),
            (Stage::Blocks(mut staged), Command::Block { block, bytes, room: _room }) => {
                service.metrics.upload_bytes_received.add(bytes.len() as u64);
                staged.take_block(&*service.store, block, &bytes)?;
                self.reports.send(Event::Progress(staged.stored_bytes));
                Ok(Stage::Blocks(staged))
            }
            (Stage::Blocks(staged), Command::Commit) => staged.publish(service, &self.announced).map(Stage::Done),
            (Stage::Complete(_), _) => Err(Failure::bad_request("parts of an upload before they were asked for")),
            (_, Command::Meta { .. }) => Err(Failure::bad_request("metadata after it was complete")),
            (Stage::Done(_), _) => Err(Failure::bad_request("parts of an upload after its commit")),
        }
    }

    /// Asks for the blocks that no image of the store holds. Blocks.
    fn stage(&self, complete: Complete, share: Room) -> Result<Stage, Failure> {
        let service = &*self.service;
        if let Some(publisher) = &self.announced.publisher {
            // Before its blocks are asked for.
            let Announced { file_bytes, .. } = *self.announced;
            publisher.check(&*service.store, self.announced.place(), complete.id(), file_bytes)?;
        }
        let mut staged = complete.stage(service, &self.announced, share)?;
        staged.copy_known_blocks(service, &self.announced, &self.reports)?;
        self.reports.send(Event::Need(staged.lacking()));
        Ok(Stage::Blocks(Box::new(staged)))
    }
}

fn no_slot() -> Failure {
    Failure::new(ErrorCode::Busy, "the server has too many uploads in progress; try again later")
}
