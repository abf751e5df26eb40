//! An image file on any web server: the same session, with threads that read blocks by Range
//! requests.
//!
//! A web server does not push or learn, so there is only readahead. Blocks that lie side by side
//! and are wanted together are one request. Every block is verified as always. The id of the image
//! identifies the file: when the server's ETag, date or length changes, the superblock is read
//! again. If it is another image now, READs fail until the old one is back. Connections that the
//! server closes while they are idle are made anew. A server that is away is tried again with
//! growing pauses, as one of ours. The device cache keeps blocks as it does those of our servers,
//! and learns which of them a program uses.

mod exchange;
pub(crate) mod signed;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cache::Cache;
use connection::{BackOff, Clock, Dialer, HttpFile, answer_time, random_number, spawn};
use image::{ImageError, Metadata, Superblock};
use units::BlockId;

use crate::cached::{CachedStart, ImageCache, Name, keep};
use crate::command::{Command, ConnectionIndex, Failure, RequestKey, Wanted};
use crate::config::{Config, Granularity};
use crate::error::ClientError;
use crate::fetched::{Fetched, SUPERBLOCK_BYTES};
use crate::session::Session;
use crate::shared::{ConnectionHandle, Shared};
use crate::signed::Opening;
use exchange::{Edition, Exchange, Fault};

/// Blocks that lie side by side are read together up to so many bytes: what one connection is busy
/// with while another miss waits.
const GROUP_BYTES_MAX: u64 = 256 << 10;

/// Chunk hashes of at most this size are fetched with the rest of the metadata, and every block is
/// held to them: those of 64 MiB of files, an instant of a link that is any good. Larger ones would
/// make a start wait.
const HASHES_AT_ONCE_BYTES: u64 = 256 << 10;

/// The thread of one connection.
struct Worker {
    shared: Arc<Shared>,
    dialer: Dialer,
    file: HttpFile,
    edition: Edition,
    index: ConnectionIndex,
    commands: Receiver<Command>,
    exchange: Option<Exchange>,
    /// Asked for and not begun yet, what somebody waits for first.
    waiting: VecDeque<Asked>,
    /// Blocks that came, so that pauses grow only while nothing does.
    delivered: u64,
}

/// A block that the schedule wants.
#[derive(Clone, Copy)]
struct Asked {
    key: RequestKey,
    block: BlockId,
    speculative: bool,
}

/// Why a worker stopped reading.
enum Ended {
    Closed,
    /// The server is away, or the file may have changed.
    Lost,
}

/// How a session starts: without a connection if the server is away and the cache has the image.
struct Start {
    metadata: Metadata,
    ready: Option<(Exchange, Edition)>,
}

pub(crate) fn open(file: &HttpFile, config: Config, cache: Option<&Arc<Cache>>) -> Result<Arc<Session>, ClientError> {
    // A web server knows no pages, and pushes nothing.
    let mut config = Config { granularity: Granularity::Block, ..config };
    config.connection.push = false;
    let dialer = Dialer::new(&file.server, &config.connection.trust)?;
    let Start { metadata, ready } = start(&dialer, file, &config, cache)?;
    let seed = random_number()?;
    let mut handles = Vec::new();
    let mut receivers = Vec::new();
    for _ in 0..config.connection_count() {
        let (commands, receiver) = channel();
        handles.push(ConnectionHandle { commands, waker: None });
        receivers.push(receiver);
    }
    let metadata = Arc::new(metadata);
    let cached = cache.map(|cache| Arc::new(ImageCache::new(Arc::clone(cache), Arc::clone(&metadata), None)));
    let (session, shared) = Session::start(metadata, config, Clock::start(), seed, handles, None, cached)?;
    let (mut exchange, edition) = ready.unzip();
    // Up before its thread runs: requests from now on wait in the channel.
    if let Some(exchange) = &mut exchange {
        let (received, sent) = std::mem::take(&mut exchange.moved);
        shared.run(|schedule, now| {
            schedule.connections().moved(0, received, sent);
            schedule.connection_up(now, 0, false);
        });
    }
    // Without a connection it is learned when there is one.
    let edition = edition.unwrap_or_default();
    for (index, commands) in receivers.into_iter().enumerate() {
        let worker = Worker {
            shared: Arc::clone(&shared),
            dialer: dialer.clone(),
            file: file.clone(),
            edition: edition.clone(),
            index,
            commands,
            exchange: exchange.take(),
            waiting: VecDeque::new(),
            delivered: 0,
        };
        spawn("runnel-http", move || worker.work())?;
    }
    Ok(session)
}

/// Looks which image the file is, and fetches what a mount needs unless the cache has it.
fn start(dialer: &Dialer, file: &HttpFile, config: &Config, cache: Option<&Arc<Cache>>) -> Result<Start, ClientError> {
    let name = Name::of_file(file);
    let known = cache.and_then(|cache| CachedStart::find(cache, &name, &config.limits));
    let begun = begin(dialer, file, config.connection.open_deadline);
    let (mut exchange, edition, superblock) = match begun {
        Ok(begun) => begun,
        Err(fault) => {
            let is_away = fault.is_away();
            let error = fault.explain(dialer, file);
            // The newest that this device has seen signed, whatever the server said last.
            let opening = Opening::of_file(&config.signed, file)?;
            let known = match opening.zip(cache).filter(|_| is_away) {
                Some((opening, cache)) => {
                    let id = opening.without_server().map(|found| found.image);
                    id.ok().and_then(|id| CachedStart::of(cache, id, &config.limits))
                }
                None => known,
            };
            let metadata = CachedStart::alone(known.filter(|_| is_away), &error, &config.limits);
            return metadata.map(|metadata| Start { metadata, ready: None }).ok_or(error);
        }
    };
    let parsed = check(&superblock, &edition, file, config)?;
    signed::check(dialer, file, config, parsed.id)?;
    if let Some(metadata) = known.filter(|known| known.id == parsed.id).and_then(|known| known.metadata(&config.limits))
        && metadata.has_block_hashes()
    {
        return Ok(Start { metadata, ready: Some((exchange, edition)) });
    }
    let (metadata, bytes) = fetch(&mut exchange, &edition, (&superblock, &parsed), (dialer, file), config)?;
    if let Some(cache) = cache {
        keep(cache, &name, parsed.id, &bytes, false);
    }
    Ok(Start { metadata, ready: Some((exchange, edition)) })
}

/// Connects and reads the superblock.
fn begin(
    dialer: &Dialer,
    file: &HttpFile,
    time: Duration,
) -> Result<(Exchange, Edition, [u8; SUPERBLOCK_BYTES as usize]), Fault> {
    let mut exchange = Exchange::dial(dialer, file, time)?;
    let mut superblock = [0; SUPERBLOCK_BYTES as usize];
    let edition = read(&mut exchange, 0, &mut superblock, time)?;
    Ok((exchange, edition, superblock))
}

fn check(
    superblock: &[u8; SUPERBLOCK_BYTES as usize],
    edition: &Edition,
    file: &HttpFile,
    config: &Config,
) -> Result<Superblock, ClientError> {
    let bad = |source| ClientError::Image { name: file.to_string(), source };
    let parsed = Superblock::parse(superblock, &config.limits).map_err(bad)?;
    if parsed.file_bytes != edition.file_bytes {
        let (expected, found) = (parsed.file_bytes, edition.file_bytes);
        return Err(bad(ImageError::FileLength { expected, found }));
    }
    let max = config.limits.metadata_bytes_max;
    if parsed.metadata_bytes > max {
        let (server, found) = (file.server.clone(), parsed.metadata_bytes);
        return Err(ClientError::MetadataTooLarge { server, found, max });
    }
    Ok(parsed)
}

/// Fetches what a mount needs of the metadata.
fn fetch(
    exchange: &mut Exchange,
    edition: &Edition,
    (superblock, parsed): (&[u8], &Superblock),
    (dialer, file): (&Dialer, &HttpFile),
    config: &Config,
) -> Result<(Metadata, Vec<u8>), ClientError> {
    let failed = |fault: Fault| fault.explain(dialer, file);
    let bad = |source| ClientError::Image { name: file.to_string(), source };
    let time = config.connection.open_deadline;
    let whole = parsed.metadata_region();
    // The chunk hashes are the last required section. Nothing is pushed, so a session without them
    // knows the blocks alone.
    let hashes = parsed.sections.iter().find(|section| section.kind == image::format::SECTION_CHUNK_HASHES);
    let hashes = hashes.filter(|hashes| hashes.stored_bytes > HASHES_AT_ONCE_BYTES);
    let end = hashes.map_or(whole.end, |hashes| hashes.offset.clamp(whole.start, whole.end));
    let region = whole.start..end;
    let mut bytes = superblock.to_vec();
    bytes.resize(superblock.len() + (end - whole.start) as usize, 0);
    if !exchange.is_reusable() {
        *exchange = redial(exchange, dialer, file, time).map_err(failed)?;
    }
    if !region.is_empty() {
        let found = read(exchange, region.start, &mut bytes[superblock.len()..], time).map_err(failed)?;
        if found != *edition {
            return Err(failed(Fault::Changed));
        }
    }
    let fetched = Fetched { bytes, region, file_bytes: edition.file_bytes };
    let metadata = Metadata::open_early(&fetched, &config.limits).map_err(bad)?;
    metadata.load_block_hashes(&fetched).map_err(bad)?;
    if hashes.is_none() && !metadata.derives_chunk_hashes() {
        metadata.load_chunk_hashes(&fetched).map_err(bad)?;
    }
    Ok((metadata, fetched.bytes))
}

/// A new connection that goes on counting.
fn redial(old: &Exchange, dialer: &Dialer, file: &HttpFile, time: Duration) -> Result<Exchange, Fault> {
    let mut exchange = Exchange::dial(dialer, file, time)?;
    exchange.moved = old.moved;
    Ok(exchange)
}

/// Reads one range whole.
fn read(exchange: &mut Exchange, start: u64, bytes: &mut [u8], time: Duration) -> Result<Edition, Fault> {
    let until = Instant::now() + answer_time(time, bytes.len() as u64);
    let edition = exchange.get(start..start + bytes.len() as u64, until)?;
    exchange.body(bytes, until)?;
    Ok(edition)
}

impl Worker {
    /// Serves until the session closes.
    fn work(mut self) {
        let mut back_off = BackOff::new(self.shared.device as u64 ^ self.index as u64);
        let mut up = self.exchange.is_some();
        let mut was_up = up;
        loop {
            if !up && self.is_same_image() {
                up = true;
                let again = std::mem::replace(&mut was_up, true);
                self.shared.run(|schedule, now| schedule.connection_up(now, self.index, again));
            }
            if up {
                let before = self.delivered;
                if matches!(self.serve(), Ended::Closed) {
                    return;
                }
                up = false;
                self.exchange = None;
                self.waiting.clear();
                // Its requests go to other connections, or wait.
                self.shared.run(|schedule, now| schedule.connection_down(now, self.index));
                if self.delivered > before {
                    back_off.reset();
                }
            }
            if !self.rest(back_off.wait()) {
                return;
            }
        }
    }

    /// Connects and looks whether the file is the image that is mounted.
    fn is_same_image(&mut self) -> bool {
        let time = self.shared.config.connection.open_deadline;
        let mut superblock = [0; SUPERBLOCK_BYTES as usize];
        let found = Exchange::dial(&self.dialer, &self.file, time).and_then(|mut exchange| {
            let edition = read(&mut exchange, 0, &mut superblock, time);
            self.count(&mut exchange);
            Ok((exchange, edition?))
        });
        let same = match found {
            Ok((exchange, edition)) => {
                let metadata = &self.shared.metadata;
                let same = edition.file_bytes == metadata.file_bytes()
                    && Superblock::parse(&superblock, &self.shared.config.limits)
                        .is_ok_and(|superblock| superblock.id == metadata.id());
                if same {
                    self.edition = edition;
                    self.exchange = Some(exchange);
                }
                same
            }
            Err(Fault::Status { status: 404 | 410 | 416, .. }) => false,
            // The server is away: READs wait, or fail in soft mode.
            Err(_) => return false,
        };
        if !same {
            self.shared.run(|schedule, now| schedule.image_gone(now));
        }
        same
    }

    /// Sleeps between attempts. False when the session closes.
    fn rest(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            match self.commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Command::Close) | Err(RecvTimeoutError::Disconnected) => return false,
                // The connection is down, so this was handed to others already.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return true,
            }
        }
    }

    fn serve(&mut self) -> Ended {
        loop {
            if self.waiting.is_empty() {
                match self.commands.recv() {
                    Ok(Command::Close) | Err(_) => return Ended::Closed,
                    Ok(command) => self.obey(command),
                }
            }
            while let Ok(command) = self.commands.try_recv() {
                if command == Command::Close {
                    return Ended::Closed;
                }
                self.obey(command);
            }
            let (group, range) = self.next_group();
            let mut done = 0;
            match self.fetch(&group, range, &mut done) {
                Ok(()) => {}
                Err(fault) if fault.is_refusal() => {
                    for asked in &group[done..] {
                        self.shared.run(|schedule, now| schedule.failed(now, asked.key, Failure::Refused));
                    }
                }
                Err(_) => return Ended::Lost,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Request { key, wanted: Wanted::Block { block, .. }, speculative, .. } => {
                let asked = Asked { key, block, speculative };
                let behind = |other: &Asked| other.speculative && !speculative;
                let at = self.waiting.iter().position(behind).unwrap_or(self.waiting.len());
                self.waiting.insert(at, asked);
            }
            Command::Request { key, wanted: Wanted::Pages(_), .. } => {
                self.shared.run(|schedule, now| schedule.failed(now, key, Failure::Refused));
            }
            Command::Hurry { key } => {
                if let Some(at) = self.waiting.iter().position(|asked| asked.key == key)
                    && let Some(asked) = self.waiting.remove(at)
                {
                    self.waiting.push_front(Asked { speculative: false, ..asked });
                }
            }
            Command::Hint { pages, .. } => self.shared.run(|schedule, now| schedule.pull_hinted(now, &pages)),
            // A web server does not learn or push.
            _ => {}
        }
    }

    /// The first block that waits, those that lie right behind it, and where all that is. Empty if
    /// it is no block.
    fn next_group(&mut self) -> (Vec<Asked>, Range<u64>) {
        let metadata = Arc::clone(&self.shared.metadata);
        let mut group = Vec::new();
        let mut range = 0..0;
        while let Some(asked) = self.waiting.front() {
            match metadata.block(asked.block) {
                None => {
                    let key = asked.key;
                    self.waiting.pop_front();
                    self.shared.run(|schedule, now| schedule.failed(now, key, Failure::Refused));
                }
                Some(entry) => {
                    range = entry.file_offset..entry.file_offset + u64::from(entry.stored_bytes);
                    group.extend(self.waiting.pop_front());
                    break;
                }
            }
        }
        while range.end - range.start < GROUP_BYTES_MAX && !group.is_empty() {
            let next = self.waiting.iter().enumerate().find_map(|(at, asked)| {
                let entry = metadata.block(asked.block).filter(|entry| entry.file_offset == range.end)?;
                Some((at, entry.stored_bytes))
            });
            let Some((at, bytes)) = next else { break };
            range.end += u64::from(bytes);
            group.extend(self.waiting.remove(at));
        }
        (group, range)
    }

    /// Reads blocks that lie side by side and hands each over as soon as it is here; `done` counts
    /// them.
    fn fetch(&mut self, group: &[Asked], range: Range<u64>, done: &mut usize) -> Result<(), Fault> {
        if group.is_empty() {
            return Ok(());
        }
        loop {
            let config = &self.shared.config;
            let time = config.connection.answer_time(range.end - range.start);
            let mut exchange = match self.exchange.take().filter(Exchange::is_reusable) {
                Some(exchange) => exchange,
                None => Exchange::dial(&self.dialer, &self.file, config.connection.open_deadline)?,
            };
            let outcome = self.read_group(&mut exchange, group, range.clone(), Instant::now() + time, done);
            self.count(&mut exchange);
            match outcome {
                Ok(()) => {
                    self.exchange = Some(exchange);
                    return Ok(());
                }
                // Closed while it was idle; a new connection has not been used.
                Err(Fault::Lost(error))
                    if exchange.used && !exchange.answered && error.kind() != io::ErrorKind::TimedOut => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    fn read_group(
        &mut self,
        exchange: &mut Exchange,
        group: &[Asked],
        range: Range<u64>,
        until: Instant,
        done: &mut usize,
    ) -> Result<(), Fault> {
        if exchange.get(range, until)? != self.edition {
            return Err(Fault::Changed);
        }
        for asked in group {
            // Every one was looked up when the group was made.
            let bytes = self.shared.metadata.block(asked.block).map_or(0, |entry| entry.stored_bytes as usize);
            let mut stored = vec![0; bytes];
            exchange.body(&mut stored, until)?;
            self.count(exchange);
            self.deliver(*asked, stored);
            *done += 1;
        }
        Ok(())
    }

    fn deliver(&mut self, asked: Asked, stored: Vec<u8>) {
        self.delivered += u64::from(self.shared.take_block(asked.key, asked.block, stored.into()));
    }

    fn count(&self, exchange: &mut Exchange) {
        let (received, sent) = std::mem::take(&mut exchange.moved);
        if received + sent > 0 {
            self.shared.run(|schedule, _| schedule.connections().moved(self.index, received, sent));
        }
    }
}
