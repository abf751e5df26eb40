//! `runnel push FILE runnel://host/name[:tag]`: publishes an image file on a server.
//!
//! The superblock and the metadata go first. They tell the server the hash of every block, and it
//! asks only for the blocks that it lacks. Blocks are checked against the file's own hashes before
//! they are sent, so a damaged file is found here. The commit makes the server move the tag at
//! once. A lost connection starts the upload anew; blocks that had arrived by then are not asked
//! for again.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use connection::{Clock, Connection, ConnectionError, Dialer, ImageName, Remote, Trust};
use image::{Metadata, ReadAt};
use units::{BlockId, ImageId, Moment, RequestId};
use wire::{BlockRange, ClientConfig, ClientEvent, ErrorCode, Refused, Reply, Request, WireError};

use crate::error::ClientError;
use crate::local::{ImageFile, open_file};

/// Metadata bytes of one frame.
const META_BYTES: u64 = 256 << 10;

/// Attempts after which a connection that breaks again and again is reported.
const ATTEMPTS_MAX: u32 = 5;

/// Wait before the second attempt; doubled each time.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Time to connect, and for the server's hello.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// How far an upload is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of metadata and blocks sent, over all attempts.
    pub sent_bytes: u64,
    /// Bytes this attempt has to send: known once the server has said what it lacks.
    pub wanted_bytes: u64,
    /// Blocks the server had already.
    pub blocks_present: u32,
    /// Blocks of the image.
    pub blocks: u32,
}

/// An upload on one connection.
struct Upload<'a> {
    connection: Connection,
    file: &'a ImageFile,
    metadata: &'a Metadata,
    request: RequestId,
    /// Ranges of the file that hold superblock and metadata and were not queued yet.
    meta: VecDeque<(u64, u64)>,
    needed: VecDeque<BlockRange>,
    need_complete: bool,
    committed: bool,
    progress: &'a mut Progress,
    tell: &'a mut dyn FnMut(Progress),
}

/// Uploads an image file under a name and tag; tells `progress` now and then. Returns the image's
/// id.
///
/// # Errors
/// The file is damaged, the target is no tag, or the server is away, refuses, or has no room.
pub fn upload(
    path: &Path,
    target: &Remote,
    limits: &image::Limits,
    trust: &Trust,
    progress: &mut dyn FnMut(Progress),
) -> Result<ImageId, ClientError> {
    let ImageName::Tagged { .. } = &target.image else {
        return Err(ClientError::NotATag(format!("{}/{}", target.server, target.image)));
    };
    let (file, metadata) = open_file(path, limits)?;
    let dialer = Dialer::new(&target.server, trust)?;
    let mut state = Progress { blocks: metadata.block_count(), ..Progress::default() };
    let mut attempt = 1;
    loop {
        let before = state.sent_bytes;
        let outcome = Upload::begin(target, &dialer, &file, &metadata, &mut state, progress).and_then(Upload::run);
        match outcome {
            Err(error) if is_worth_another_try(&error) && attempt < ATTEMPTS_MAX => {
                // An attempt that moved something was worth it, however often the link breaks.
                attempt = if state.sent_bytes > before + META_BYTES { 1 } else { attempt + 1 };
                std::thread::sleep(RETRY_DELAY * (1 << attempt));
            }
            other => return other,
        }
    }
}

fn is_worth_another_try(error: &ClientError) -> bool {
    use ConnectionError::{Lost, NoAnswer, NoGreeting, Refused, Wire};
    let ClientError::Connection(error) = error else { return false };
    match error {
        Lost { .. } | NoAnswer { .. } | NoGreeting { .. } => true,
        Wire { source: WireError::Lost | WireError::Deadline { .. }, .. } => true,
        Wire { source: WireError::Peer { code, .. }, .. } | Refused { code, .. } => {
            matches!(code, ErrorCode::Busy | ErrorCode::Shutdown)
        }
        _ => false,
    }
}

impl<'a> Upload<'a> {
    fn begin(
        target: &Remote,
        dialer: &Dialer,
        file: &'a ImageFile,
        metadata: &'a Metadata,
        progress: &'a mut Progress,
        tell: &'a mut dyn FnMut(Progress),
    ) -> Result<Upload<'a>, ClientError> {
        let clock = Clock::start();
        let config = ClientConfig { push_bytes_max: 0, hello_deadline: CONNECT_TIME, ..ClientConfig::default() };
        let mut connection = Connection::connect(dialer, config, clock, CONNECT_TIME)?;
        let region = metadata.metadata_region();
        let ask = Request::PutOpen {
            name: target.image.to_string(),
            file_bytes: metadata.file_bytes(),
            metadata_offset: region.start,
            metadata_bytes: region.end - region.start,
        };
        let request = connection.machine.request(clock.now(), ask);
        let request = request.map_err(|why| connection.refused(why))?;
        let mut meta = VecDeque::from([(0, image::format::SUPERBLOCK_BYTES as u64)]);
        let mut start = region.start;
        while start < region.end {
            let end = region.end.min(start + META_BYTES);
            meta.push_back((start, end));
            start = end;
        }
        Ok(Upload {
            connection,
            file,
            metadata,
            request,
            meta,
            needed: VecDeque::new(),
            need_complete: false,
            committed: false,
            progress,
            tell,
        })
    }

    fn run(mut self) -> Result<ImageId, ClientError> {
        self.progress.wanted_bytes = self.meta.iter().map(|(start, end)| end - start).sum();
        self.progress.blocks_present = self.metadata.block_count();
        loop {
            self.fill()?;
            (self.tell)(*self.progress);
            // Sleep only when the socket takes no more, or when everything was handed over; a
            // deadline of the protocol ends the sleep too.
            let until = if self.connection.is_flushed() && self.has_more() { Moment(0) } else { Moment(u64::MAX) };
            self.connection.turn(None, until);
            while let Some(event) = self.connection.machine.poll_event() {
                if let Some(id) = self.take(event)? {
                    return Ok(id);
                }
            }
        }
    }

    /// Queues data until the connection has enough.
    fn fill(&mut self) -> Result<(), ClientError> {
        if self.connection.machine.hello().is_none() {
            return Ok(());
        }
        while let Some((start, end)) = self.meta.front().copied() {
            let bytes = self.read(start, (end - start) as usize)?;
            if !self.queue(|upload| upload.connection.machine.put_meta(upload.request, start, bytes))? {
                return Ok(());
            }
            self.meta.pop_front();
            self.progress.sent_bytes += end - start;
        }
        while let Some(range) = self.needed.front().copied() {
            let block = range.first;
            let entry = self.block(block)?;
            let bytes = self.read(entry.file_offset, entry.stored_bytes as usize)?;
            self.metadata.verify_block(block, &bytes).map_err(|source| self.damaged(source))?;
            if !self.queue(|upload| upload.connection.machine.put_block(upload.request, block, bytes))? {
                return Ok(());
            }
            self.progress.sent_bytes += u64::from(entry.stored_bytes);
            self.needed.pop_front();
            if range.count > 1 {
                self.needed.push_front(BlockRange { first: BlockId(block.0 + 1), count: range.count - 1 });
            }
        }
        if self.need_complete && !self.committed {
            self.committed = self.queue(|upload| upload.connection.machine.put_commit(upload.request))?;
        }
        Ok(())
    }

    /// Whether there is something to queue as soon as there is room.
    fn has_more(&self) -> bool {
        let left = !self.meta.is_empty() || !self.needed.is_empty() || (self.need_complete && !self.committed);
        left && self.connection.machine.hello().is_some()
    }

    /// False if there is no room at present.
    fn queue(&mut self, call: impl FnOnce(&mut Self) -> Result<(), Refused>) -> Result<bool, ClientError> {
        match call(self) {
            Ok(()) => Ok(true),
            // Closed: the event that says why is waiting.
            Err(Refused::Full { .. } | Refused::Closed | Refused::UnknownRequest(_)) => Ok(false),
            Err(why) => Err(self.connection.refused(why).into()),
        }
    }

    fn take(&mut self, event: ClientEvent) -> Result<Option<ImageId>, ClientError> {
        let server = self.connection.server.clone();
        match event {
            ClientEvent::PutNeed { ranges, last, .. } => {
                for range in ranges {
                    let past = u64::from(range.first.0) + u64::from(range.count);
                    let blocks = self.metadata.block_count();
                    if past > u64::from(blocks) {
                        return Err(ClientError::NoSuchBlock { server, block: past - 1, blocks });
                    }
                    self.progress.blocks_present -= range.count.min(self.progress.blocks_present);
                    for block in range.first.0..range.first.0 + range.count {
                        self.progress.wanted_bytes += u64::from(self.block(BlockId(block))?.stored_bytes);
                    }
                    self.needed.push_back(range);
                }
                self.need_complete = last;
            }
            ClientEvent::Reply { request, reply } if request == self.request => {
                if let Reply::PutDone { id } = self.connection.accept(reply)? {
                    let expected = self.metadata.id();
                    return if id == expected {
                        Ok(Some(id))
                    } else {
                        Err(ClientError::WrongUpload { server, expected, found: id })
                    };
                }
            }
            ClientEvent::Expired { .. } => {
                return Err(ConnectionError::NoAnswer { server, waited: wire::format::PUT_DEADLINE }.into());
            }
            ClientEvent::Closed(error) => return Err(self.connection.explain(error).into()),
            _ => {}
        }
        Ok(None)
    }

    fn block(&self, block: BlockId) -> Result<image::BlockEntry, ClientError> {
        let (server, blocks) = (self.connection.server.clone(), self.metadata.block_count());
        self.metadata.block(block).ok_or(ClientError::NoSuchBlock { server, block: block.0.into(), blocks })
    }

    fn read(&self, offset: u64, bytes: usize) -> Result<Bytes, ClientError> {
        let mut buffer = vec![0; bytes];
        let what = "part of an upload";
        self.file
            .read_exact_at(offset, &mut buffer)
            .map_err(|source| self.damaged(image::ImageError::Read { what, offset, source }))?;
        Ok(buffer.into())
    }

    fn damaged(&self, source: image::ImageError) -> ClientError {
        ClientError::Image { name: format!("image {}", self.metadata.id()), source }
    }
}
