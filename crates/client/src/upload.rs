//! `runnel push FILE runnel://host/name[:tag]`: publishes an image file on a server.
//!
//! The superblock and the metadata go first. They tell the server the hash of every block, and it
//! asks only for the blocks that it lacks. Blocks are checked against the file's own hashes before
//! they are sent, so a damaged file is found here. The commit makes the server move the tag at
//! once. A lost connection starts the upload anew; blocks that had arrived by then are not asked
//! for again. So it goes on until an attempt gets no further than those before for a stated time.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use connection::{BackOff, Clock, Connection, ConnectionError, Dialer, ImageName, Remote, random_number};
use image::{Metadata, ReadAt};
use units::{BlockId, ImageId, Moment, RequestId};
use wire::{BlockRange, ClientConfig, ClientEvent, ErrorCode, Refused, Reply, Request, WireError};

use crate::config::Config;
use crate::error::ClientError;
use crate::local::{ImageFile, open_file};

/// Metadata bytes of one frame.
const META_BYTES: u64 = 256 << 10;

/// How often a server may store as many blocks as the image has. A restart may lose what it stored;
/// one that loses it time and again gets no further.
const STORED_TIMES_MAX: u64 = 4;

/// How far an upload is, over all attempts. What is sent again after a loss counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of metadata and blocks sent.
    pub sent_bytes: u64,
    /// Bytes to send: known once the server has said what it lacks.
    pub wanted_bytes: u64,
    /// Blocks that the server had already.
    pub blocks_present: u32,
    /// Blocks of the image.
    pub blocks: u32,
}

/// What an upload tells while it goes on.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// It is so far.
    Progress(Progress),
    /// An attempt failed, and another one follows.
    Interrupted(&'a ClientError),
}

/// What is known of an upload beyond one attempt.
struct Overall<'a> {
    progress: Progress,
    tell: &'a mut dyn FnMut(News<'_>),
    /// Bytes of superblock and metadata sent in the attempt that sent most of them.
    meta_bytes: u64,
    /// For each block, whether the server has asked for it, and whether it was sent.
    asked: Vec<bool>,
    sent: Vec<bool>,
    /// Blocks that the server said it stored.
    stored: u64,
    /// When something happened last that no attempt had got to before.
    moved: Moment,
    /// Bytes of data that the attempt which got furthest gave to its transport.
    transport_bytes: u64,
    /// The server has greeted us.
    greeted: bool,
}

/// An upload on one connection.
struct Upload<'a, 'b> {
    connection: Connection,
    file: &'a ImageFile,
    metadata: &'a Metadata,
    request: RequestId,
    /// Ranges of the file that hold superblock and metadata and were not queued yet.
    meta: VecDeque<(u64, u64)>,
    /// Bytes of those that were queued.
    meta_bytes: u64,
    needed: VecDeque<BlockRange>,
    need_complete: bool,
    committed: bool,
    /// Time in which something must happen.
    deadline: Duration,
    overall: &'a mut Overall<'b>,
}

/// Uploads an image file under a name and tag; tells how it goes now and then. Returns the image's
/// id.
///
/// # Errors
/// The file is damaged, the target is no tag, or the server is away, refuses, or has no room.
pub fn upload(
    path: &Path,
    target: &Remote,
    config: &Config,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<ImageId, ClientError> {
    let ImageName::Tagged { .. } = &target.image else {
        return Err(ClientError::NotATag(format!("{}/{}", target.server, target.image)));
    };
    let (file, metadata) = open_file(path, &config.limits)?;
    let dialer = Dialer::new(&target.server, &config.connection.trust)?;
    let clock = Clock::start();
    let mut overall = Overall::new(&metadata, tell);
    let mut back_off = BackOff::new(random_number()? as u64);
    loop {
        let began = overall.moved;
        let upload = Upload::begin(target, &dialer, config, clock, (&file, &metadata), &mut overall);
        let error = match upload.and_then(Upload::run) {
            Err(error) if is_worth_another_try(&error, overall.greeted) => error,
            other => return other,
        };
        let end = overall.moved.after(config.upload_deadline);
        if clock.now() >= end {
            return Err(ClientError::NoProgress { source: Box::new(error), time: config.upload_deadline });
        }
        if overall.moved != began {
            back_off.reset();
        }
        (overall.tell)(News::Interrupted(&error));
        std::thread::sleep(back_off.wait().min(end.since(clock.now())));
    }
}

/// Whether the server may be there again soon. One that was never there is told at once.
pub(crate) fn is_worth_another_try(error: &ClientError, greeted: bool) -> bool {
    use ConnectionError::{Connect, Lost, NoAnswer, NoGreeting, Refused, Wire};
    let ClientError::Connection(error) = error else { return false };
    match error {
        Connect { .. } | NoGreeting { .. } => greeted,
        Lost { .. } | NoAnswer { .. } => true,
        Wire { source: WireError::Lost | WireError::Deadline { .. }, .. } => true,
        Wire { source: WireError::Peer { code, .. }, .. } | Refused { code, .. } => {
            matches!(code, ErrorCode::Busy | ErrorCode::Shutdown)
        }
        _ => false,
    }
}

impl Overall<'_> {
    fn new<'a>(metadata: &Metadata, tell: &'a mut dyn FnMut(News<'_>)) -> Overall<'a> {
        let blocks = metadata.block_count();
        Overall {
            progress: Progress { blocks, blocks_present: blocks, ..Progress::default() },
            tell,
            meta_bytes: 0,
            asked: vec![false; blocks as usize],
            sent: vec![false; blocks as usize],
            stored: 0,
            moved: Moment(0),
            transport_bytes: 0,
            greeted: false,
        }
    }

    /// The attempt has sent so many bytes of superblock and metadata.
    fn sent_meta(&mut self, bytes: u64) {
        self.progress.sent_bytes += bytes.saturating_sub(self.meta_bytes);
        self.meta_bytes = self.meta_bytes.max(bytes);
    }

    /// The server asks for a block, perhaps again.
    fn ask(&mut self, block: BlockId, bytes: u32) {
        if let Some(asked) = self.asked.get_mut(block.0 as usize)
            && !std::mem::replace(asked, true)
        {
            self.progress.blocks_present -= 1;
            self.progress.wanted_bytes += u64::from(bytes);
        }
    }

    /// The server has stored a block, which it will not ask for again.
    fn stored(&mut self, now: Moment) {
        self.stored += 1;
        if self.stored <= STORED_TIMES_MAX * u64::from(self.progress.blocks) {
            self.moved = now;
        }
    }

    /// A block was sent, perhaps again.
    fn sent(&mut self, block: BlockId, bytes: u32) {
        if let Some(sent) = self.sent.get_mut(block.0 as usize)
            && !std::mem::replace(sent, true)
        {
            self.progress.sent_bytes += u64::from(bytes);
        }
    }
}

impl<'a, 'b> Upload<'a, 'b> {
    fn begin(
        target: &Remote,
        dialer: &Dialer,
        config: &Config,
        clock: Clock,
        (file, metadata): (&'a ImageFile, &'a Metadata),
        overall: &'a mut Overall<'b>,
    ) -> Result<Upload<'a, 'b>, ClientError> {
        let connecting = &config.connection;
        let wire = ClientConfig { push_bytes_max: 0, put_deadline: config.upload_deadline, ..connecting.wire(0) };
        let mut connection = Connection::connect(dialer, wire, clock, connecting.open_deadline)?;
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
            meta_bytes: 0,
            needed: VecDeque::new(),
            need_complete: false,
            committed: false,
            deadline: config.upload_deadline,
            overall,
        })
    }

    fn run(mut self) -> Result<ImageId, ClientError> {
        let meta_bytes = self.meta.iter().map(|(start, end)| end - start).sum();
        self.overall.progress.wanted_bytes = self.overall.progress.wanted_bytes.max(meta_bytes);
        loop {
            self.fill()?;
            (self.overall.tell)(News::Progress(self.overall.progress));
            // Sleep only when the socket takes no more, or when everything was handed over; a
            // deadline of the protocol ends the sleep too.
            let until = if self.connection.is_flushed() && self.has_more() { Moment(0) } else { Moment(u64::MAX) };
            self.connection.turn(None, until);
            self.note_moved();
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
            self.meta_bytes += end - start;
            self.overall.sent_meta(self.meta_bytes);
        }
        while let Some(range) = self.needed.front().copied() {
            let block = range.first;
            let entry = self.block(block)?;
            let bytes = self.read(entry.file_offset, entry.stored_bytes as usize)?;
            self.metadata.verify_block(block, &bytes).map_err(|source| self.damaged(source))?;
            if !self.queue(|upload| upload.connection.machine.put_block(upload.request, block, bytes))? {
                return Ok(());
            }
            self.overall.sent(block, entry.stored_bytes);
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

    /// Notes when the transport has taken more data than in any attempt before.
    fn note_moved(&mut self) {
        let bytes = self.connection.machine.traffic().put_bytes_sent;
        if bytes > self.overall.transport_bytes {
            self.overall.transport_bytes = bytes;
            self.overall.moved = self.connection.now();
        }
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
                    for block in (range.first.0..range.first.0 + range.count).map(BlockId) {
                        let bytes = self.block(block)?.stored_bytes;
                        self.overall.ask(block, bytes);
                    }
                    self.needed.push_back(range);
                }
                self.need_complete = last;
            }
            ClientEvent::Ready(_) => self.overall.greeted = true,
            ClientEvent::PutProgress { .. } => self.overall.stored(self.connection.now()),
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
                return Err(ConnectionError::NoAnswer { server, waited: self.deadline }.into());
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
