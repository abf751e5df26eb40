//! Opening an image on a server: connect, open, fetch the metadata, start the threads of the
//! connections.
//!
//! Hello and Open leave together, and the server sends the superblock and what is needed of the
//! metadata before it answers. So a mount takes one round trip beside that of the connection. From
//! a server that does not, the superblock and the first part of the metadata are asked for at once:
//! that is one round trip more, or two if the first part does not hold all that is needed. The
//! chunk hashes are not needed: they come with proofs before the pages they are for, or, from a
//! server that sends none, follow while programs run already (`hashes`). Sizes that the server
//! announces are checked against our limits before a byte is fetched, and nothing is believed
//! before [`Metadata::open_early`] has checked it.

use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use cache::Cache;
use connection::{
    Clock, Connection, ConnectionError, Dialer, Driver, ImageName, Remote, Waker, answer_time, random_number, spawn,
};
use image::{Metadata, Superblock};
use units::{Moment, RequestId};
use wire::format::{FEATURE_PROOFS, FEATURE_START};
use wire::{ClientEvent, ImageHandle, Reply, Request};

use crate::ask::{Begun, Opened, open_image};
use crate::cached::{CachedStart, ImageCache, Name, keep, load_proofs};
use crate::command::Failure;
use crate::config::{Config, Granularity};
use crate::error::ClientError;
use crate::fetched::{Fetched, SUPERBLOCK_BYTES};
use crate::handler::ImageHandler;
use crate::hashes::HashFetch;
use crate::link::FirstAnswers;
use crate::pin::{InForce, in_force};
use crate::session::Session;
use crate::shared::ConnectionHandle;
use crate::signed::Opening;
use crate::tell::Teller;

/// Bytes of metadata asked for at once. Several answers are under way together.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;

/// Part of the metadata that is asked for before the superblock is known, in percent. The chunk
/// hashes, which stand last, are 70 to 80 of a hundred.
const HEAD_PERCENT: u64 = 30;

/// The same in bytes at least: small images come whole.
const HEAD_BYTES_MIN: u64 = 64 << 10;

/// Pieces under way together; the server bounds what it queues for one connection in the same way.
const PIECES_MAX: usize = 16;

/// Fetches the start of an image. Offsets are those of [`Fetched::bytes`].
pub(crate) struct Fetcher<'a> {
    connection: &'a mut Connection,
    image: ImageHandle,
    clock: Clock,
    until: Moment,
    pub fetched: Fetched,
    asked: HashMap<RequestId, Range<u64>>,
    /// Where the next piece to ask for starts.
    next: u64,
}

/// An image that was opened, and how.
struct Start {
    metadata: Metadata,
    /// The connection, unless the server is away, with the number of the image on it.
    ready: Option<(Connection, ImageHandle)>,
    hashes: Option<HashFetch>,
    answers: Option<FirstAnswers>,
}

pub(crate) fn open(remote: &Remote, config: Config, cache: Option<&Arc<Cache>>) -> Result<Arc<Session>, ClientError> {
    let clock = Clock::start();
    let device = random_number()?;
    let dialer = Dialer::new(&remote.server, &config.connection.trust)?;
    let opening = Opening::begin(&config.signed, remote)?;
    let pinned = cache.and_then(|cache| in_force(cache, remote));
    let mut by_id = remote.clone();
    if let Some((pinned, cache)) = pinned.as_ref().zip(cache) {
        tell_newer(remote, pinned);
        if let Some(opening) = &opening
            && !opening.has_accepted(pinned.id)?
        {
            return Err(ClientError::UnverifiedPin { name: opening.title() });
        }
        let known = CachedStart::of(cache, pinned.id, &config.limits);
        if let Some(metadata) = known.and_then(|known| known.metadata(&config.limits)) {
            return run(Start::alone(metadata), config, (clock, device), dialer, Some(cache));
        }
        // Its metadata was lost. No other version will do.
        by_id.image = ImageName::Id(pinned.id);
    }
    let remote = &by_id;
    let mut known = cache.and_then(|cache| CachedStart::find(cache, &Name::of(remote), &config.limits));
    let mut wire = config.connection.wire(device);
    if known.is_none() {
        wire.features |= FEATURE_START;
    }
    let start = match Connection::connect(&dialer, wire, clock, config.connection.open_deadline) {
        Ok(connection) => ask(connection, remote, &config, clock, (&mut known, cache)),
        Err(away) => Err(away.into()),
    };
    let start = match start {
        Err(ClientError::Connection(away)) if !is_no(&away) => {
            let signed = opening.as_ref().filter(|_| pinned.is_none()).zip(cache);
            if let Some((opening, cache)) = signed {
                // The newest that this device has seen signed, whatever the server said last.
                let id = opening.without_server().map(|found| found.image);
                known = id.ok().and_then(|id| CachedStart::of(cache, id, &config.limits));
            }
            without_server(known, &config, away)?
        }
        start => start?,
    };
    run(start, config, (clock, device), dialer, cache)
}

/// Whether the server is there and says no.
fn is_no(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::Refused { code, .. } if Failure::of(*code) != Failure::Later)
}

/// The image that the name stood for when the server was there.
fn without_server(known: Option<CachedStart>, config: &Config, away: ConnectionError) -> Result<Start, ClientError> {
    let Some(metadata) = CachedStart::alone(known, &away, &config.limits) else { return Err(away.into()) };
    Ok(Start::alone(metadata))
}

/// One line for whoever waits for a new version.
fn tell_newer(remote: &Remote, pinned: &InForce) {
    let Some(newer) = pinned.newer else { return };
    let text = format!(
        "note: {}/{} is pinned at version {}; its server has {newer}, which is not all here\n",
        remote.server, remote.image, pinned.id
    );
    let _ = std::io::stderr().write_all(units::printable_text(&text).as_bytes());
}

impl Start {
    /// Of an image that is in the cache. A connection follows for what is missing.
    fn alone(metadata: Metadata) -> Start {
        metadata.expect_proofs(true);
        Start { metadata, ready: None, hashes: None, answers: None }
    }
}

/// Opens the image on the server, and fetches what a mount needs unless the cache has it.
fn ask(
    mut connection: Connection,
    remote: &Remote,
    config: &Config,
    clock: Clock,
    (known, cache): (&mut Option<CachedStart>, Option<&Arc<Cache>>),
) -> Result<Start, ClientError> {
    let asked = clock.now();
    let mut begun = Begun::default();
    let opened = open_image(&mut connection, remote, config, clock, &mut begun)?;
    let answered = (clock.now(), connection.machine.traffic().bytes_received);
    // Parts that follow the hello take no round trip of their own: that of the hello stands for it.
    let (round_trip, (began, before), more) = match begun.ready.zip(begun.first) {
        Some((ready, first)) => (ready.since(asked), first, ready.since(asked)),
        None => (answered.0.since(asked), answered, Duration::ZERO),
    };
    // What contradicts itself is not there.
    let kept = known.take_if(|known| known.id == opened.id && known.metadata(&config.limits).is_some());
    let is_kept = kept.is_some();
    let fetched = kept.map_or_else(|| begun.assemble(&opened), |known| known.fetched);
    let (metadata, hashes, bytes) = fetch(&mut connection, &opened, fetched, remote, config, clock)?;
    let fetched = Fetched { bytes, region: opened.region.clone(), file_bytes: opened.file_bytes };
    if is_kept {
        // Blocks of a pinned image came without proofs, and their hashes are here.
        let _ = metadata.load_block_hashes(&fetched);
    }
    if let Some(cache) = cache {
        keep(cache, &Name::of(remote), opened.id, &fetched.bytes, is_kept);
    }
    let received_bytes = connection.machine.traffic().bytes_received - before;
    let answers = FirstAnswers { round_trip, elapsed: clock.now().since(began) + more, received_bytes };
    Ok(Start { metadata, ready: Some((connection, opened.image)), hashes, answers: Some(answers) })
}

/// Starts the threads of a session.
fn run(
    start: Start,
    config: Config,
    (clock, device): (Clock, u128),
    dialer: Dialer,
    cache: Option<&Arc<Cache>>,
) -> Result<Arc<Session>, ClientError> {
    let Start { metadata, mut ready, mut hashes, answers } = start;
    let metadata = Arc::new(metadata);
    let new = |cache| Arc::new(ImageCache::new(cache, Arc::clone(&metadata), Some(&dialer.server)));
    let cached = cache.cloned().map(new);
    if let Some(cached) = &cached {
        load_proofs(cached, &metadata);
    }
    let mut handles = Vec::new();
    let mut threads = Vec::new();
    for _ in 0..config.connection_count() {
        let (commands, receiver) = channel();
        let waker = Arc::new(Waker::new().map_err(ConnectionError::System)?);
        handles.push(ConnectionHandle { commands, waker: Some(Arc::clone(&waker)) });
        threads.push((receiver, waker));
    }
    let (session, shared) = Session::start(metadata, config, clock, device, handles, None, cached.clone())?;
    let mut teller = cached.map(|cached| Teller::new(Arc::clone(&shared), cached, dialer.clone()));
    shared.takes_volumes.store(true, Ordering::Release);
    // Up before its thread runs: requests from now on wait in the channel.
    if let Some(((connection, _), answers)) = ready.as_ref().zip(answers) {
        let traffic = connection.machine.traffic();
        shared.run(|schedule, now| {
            schedule.connections().moved(0, traffic.bytes_received, traffic.bytes_sent);
            schedule.connections().opened(answers);
            schedule.connection_up(now, 0, false);
        });
    }
    for (index, (commands, waker)) in threads.into_iter().enumerate() {
        let (ready, image) = ready.take().unzip();
        let parts = (hashes.take(), teller.take());
        let handler = ImageHandler::new(Arc::clone(&shared), dialer.clone(), index, parts, image);
        let config = shared.config.connection.clone();
        let (dialer, seed) = (dialer.clone(), device as u64 ^ index as u64);
        let driver = Driver { dialer, config, device, seed, clock, commands, waker, handler };
        spawn("runnel-connect", move || driver.run(ready))?;
    }
    Ok(session)
}

/// Fetches what a mount needs to begin, as far as it is not here. The superblock and the region's
/// first part are asked for together; the rest of what is needed follows as soon as the superblock
/// tells where it ends. Chunk hashes that came along are loaded; if some are missing, and will not
/// come with proofs, they are left to a connection.
fn fetch(
    connection: &mut Connection,
    opened: &Opened,
    fetched: Fetched,
    remote: &Remote,
    config: &Config,
    clock: Clock,
) -> Result<(Metadata, Option<HashFetch>, Vec<u8>), ClientError> {
    let failed = |source| ClientError::Image { name: format!("{}/{}", remote.server, remote.image), source };
    let whole = SUPERBLOCK_BYTES + (opened.region.end - opened.region.start);
    let until = clock.now().after(answer_time(config.connection.open_deadline, whole));
    // Hashes that come with a proof before the pages they are for need not be here.
    let features = connection.machine.hello().map_or(0, |hello| hello.features);
    let proofs = features & FEATURE_PROOFS != 0 && !config.ablation.short_connections;
    // Pages that are asked for one by one cannot be verified without hashes.
    let at_once = config.granularity == Granularity::Page || whole <= config.whole_metadata_bytes;
    let at_once = at_once && !proofs;
    let next = fetched.bytes.len() as u64;
    let head = match at_once {
        true => whole,
        false if next > SUPERBLOCK_BYTES => next,
        false => whole.min(head_bytes(whole)),
    };
    let mut fetcher = Fetcher::new(connection, opened.image, (clock, until), fetched);
    fetcher.fetch(SUPERBLOCK_BYTES, head)?;
    let mut start = [0; SUPERBLOCK_BYTES as usize];
    start.copy_from_slice(&fetcher.fetched.bytes[..SUPERBLOCK_BYTES as usize]);
    let superblock = Superblock::parse(&start, &config.limits).map_err(failed)?;
    check_promise(opened, &superblock, remote)?;
    let chunk_hashes = superblock.sections.iter().find(|section| section.kind == image::format::SECTION_CHUNK_HASHES);
    let chunk_hashes = chunk_hashes.map(|section| section.offset..section.offset + section.stored_bytes);
    let hashes = superblock.hash_region().filter(|_| proofs).or(chunk_hashes);
    let early = hashes.as_ref().map_or(whole, |hashes| SUPERBLOCK_BYTES + (hashes.start - opened.region.start));
    let needed = early.max(head);
    fetcher.fetch(needed, needed)?;
    let fetched = fetcher.fetched;
    let metadata = Metadata::open_early(&fetched, &config.limits).map_err(failed)?;
    if !proofs {
        metadata.load_block_hashes(&fetched).map_err(failed)?;
    }
    let Some(hashes) = hashes else { return Ok((metadata, None, fetched.bytes)) };
    // The superblock was checked: sections lie within the region, and the hashes come last of those
    // that are required.
    if SUPERBLOCK_BYTES + (hashes.end - opened.region.start) <= needed {
        metadata.load_block_hashes(&fetched).map_err(failed)?;
        metadata.load_chunk_hashes(&fetched).map_err(failed)?;
        return Ok((metadata, None, fetched.bytes));
    }
    metadata.expect_proofs(proofs);
    let missing = (!metadata.takes_pages()).then(|| HashFetch::new(hashes, &fetched.bytes[early as usize..]));
    Ok((metadata, missing, fetched.bytes))
}

/// Checks the server's answer to Open against the image itself.
pub(crate) fn check_promise(opened: &Opened, superblock: &Superblock, remote: &Remote) -> Result<(), ClientError> {
    let contradiction =
        |what, expected, found| ClientError::Contradiction { server: remote.server.clone(), what, expected, found };
    if superblock.id != opened.id {
        return Err(contradiction("id of the image", opened.id.to_string(), superblock.id.to_string()));
    }
    let (expected, found) = (&opened.region, superblock.metadata_region());
    if *expected != found {
        return Err(contradiction("place of the metadata", format!("{expected:?}"), format!("{found:?}")));
    }
    Ok(())
}

impl<'a> Fetcher<'a> {
    /// Goes on behind what was fetched, until `until`.
    pub fn new(
        connection: &'a mut Connection,
        image: ImageHandle,
        (clock, until): (Clock, Moment),
        fetched: Fetched,
    ) -> Fetcher<'a> {
        let next = fetched.bytes.len() as u64;
        Fetcher { connection, image, clock, until, fetched, asked: HashMap::new(), next }
    }

    /// Asks for everything up to `end`, and returns once everything up to `needed` is here.
    pub fn fetch(&mut self, needed: u64, end: u64) -> Result<(), ClientError> {
        if (self.fetched.bytes.len() as u64) < end {
            self.fetched.bytes.resize(end as usize, 0);
        }
        let began = self.clock.now();
        while self.next < needed || self.asked.values().any(|piece| piece.start < needed) {
            while self.next < end && self.asked.len() < PIECES_MAX {
                let piece = self.next..piece_end(self.next, end);
                let (image, bytes) = (self.image, (piece.end - piece.start) as u32);
                let ask = Request::MetaRead { image, offset: self.fetched.file_offset(piece.start), bytes };
                let request = self.connection.machine.request_until(self.clock.now(), ask, self.until);
                self.next = piece.end;
                self.asked.insert(request.map_err(|why| self.connection.refused(why))?, piece);
            }
            match self.connection.event(self.until)? {
                ClientEvent::Reply { request, reply } => {
                    let reply = self.connection.accept(reply)?;
                    let (Some(piece), Reply::MetaData { bytes, .. }) = (self.asked.remove(&request), reply) else {
                        continue;
                    };
                    // The state machine lets only answers of the right length through.
                    self.fetched.bytes[piece.start as usize..piece.end as usize].copy_from_slice(&bytes);
                }
                ClientEvent::Expired { .. } => {
                    let waited = self.clock.now().since(began);
                    return Err(ConnectionError::NoAnswer { server: self.connection.server.clone(), waited }.into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// How much is asked for before the superblock is known. Nearly all of it is needed to begin, and
/// the rest are chunk hashes, which are needed soon.
fn head_bytes(whole: u64) -> u64 {
    (whole * HEAD_PERCENT / 100).max(HEAD_BYTES_MIN)
}

/// Pieces end at the superblock's end and every [`PIECE_BYTES`] after it.
fn piece_end(start: u64, end: u64) -> u64 {
    if start < SUPERBLOCK_BYTES { SUPERBLOCK_BYTES } else { end.min(start + PIECE_BYTES) }
}
