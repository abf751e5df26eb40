//! A pin on one connection.

use std::collections::VecDeque;
use std::io;

use cache::{Kind, Owner};
use connection::{Connection, ConnectionError, Dialer, answer_time, random_number};
use image::{Metadata, Superblock};
use units::{BlockId, ImageId, Moment, RequestId, Token};
use wire::{ClientEvent, ImageHandle, Reply, Request};

use super::pinned::PinnedImage;
use super::{Change, News, Overall, PinError, Progress};
use crate::ask::{Begun, Opened, open_image};
use crate::cached::{CachedStart, Untold, metadata_parts};
use crate::error::ClientError;
use crate::fetched::{Fetched, SUPERBLOCK_BYTES};
use crate::remote::{Fetcher, PIECE_BYTES, check_promise};
use crate::tell::{quiet, run_bytes, send_run};

/// Bytes of blocks under way together: enough for a far link that is not thin.
const UNDER_WAY_BYTES: u64 = 512 << 10;

/// What a request and the head of its answer take on the link, and what opening an image takes
/// beside its metadata.
const REQUEST_BYTES: u64 = 128;
const OPENING_BYTES: u64 = 4096;

/// One connection.
pub(super) struct Attempt<'a, 'b> {
    connection: Connection,
    /// Bytes of it that were counted.
    counted: u64,
    overall: &'a mut Overall<'b>,
}

/// Blocks that are missing, and those under way.
struct Missing {
    blocks: VecDeque<BlockId>,
    asked: VecDeque<(RequestId, BlockId)>,
    asked_bytes: u64,
}

impl<'a, 'b> Attempt<'a, 'b> {
    pub fn run(overall: &'a mut Overall<'b>, dialer: &Dialer) -> Result<(ImageId, Change), PinError> {
        if overall.pin.stop.is_wanted() {
            return Err(PinError::Stopped);
        }
        overall.allowance.need(OPENING_BYTES, 0, overall.missing())?;
        let connecting = &overall.pin.config.connection;
        let wire = connecting.wire(random_number().map_err(ClientError::from)?);
        // Hashes of blocks come with the metadata.
        let connection = Connection::connect(dialer, quiet(wire), overall.clock, connecting.open_deadline);
        let connection = connection.map_err(ClientError::from)?;
        let mut attempt = Attempt { connection, counted: 0, overall };
        let outcome = attempt.fetch_all();
        attempt.count();
        outcome
    }

    fn fetch_all(&mut self) -> Result<(ImageId, Change), PinError> {
        let (pin, cache, clock, claim) = (self.overall.pin, self.overall.cache, self.overall.clock, self.overall.claim);
        let opened = open_image(&mut self.connection, pin.remote, pin.config, clock, &mut Begun::default())?;
        self.overall.greeted = true;
        let owner = Owner(opened.id.0);
        if !pin.is_forced && !claim.wants(owner)? {
            claim.hold_back()?;
            return Ok((opened.id, Change::HeldBack));
        }
        let (metadata, bytes) = self.metadata(&opened)?;
        let pinned = PinnedImage { cache, owner, metadata: &metadata };
        let missing = self.missing(&pinned, &bytes)?;
        self.put(&pinned, || pinned.keep_metadata(&bytes))?;
        self.fetch_blocks(&pinned, opened.image, missing)?;
        // What is said to be complete is complete after a power cut, too.
        cache.sync_pinned(&owner)?;
        let change = claim.switch(owner, pin.is_checked)?;
        // What the server does not take is told another time: the pin is complete.
        let _ = self.tell_runs(&opened, &metadata);
        Ok((opened.id, change))
    }

    /// Tells the server of runs of the image that it does not know of.
    fn tell_runs(&mut self, opened: &Opened, metadata: &Metadata) -> Result<(), PinError> {
        let (pin, cache) = (self.overall.pin, self.overall.cache);
        let untold = Untold::of(&pin.remote.server, &opened.id);
        for (key, pages) in untold.runs(cache, metadata) {
            if !pages.is_empty() {
                self.wait_for(run_bytes(&pages) + REQUEST_BYTES, 0)?;
                let answer = pin.config.connection.answer_deadline;
                let request = send_run(&mut self.connection, opened.image, &pages, answer)?;
                self.answer(request)?;
            }
            untold.told(cache, &key);
        }
        Ok(())
    }

    /// Waits for the answer to the only request that is under way.
    fn answer(&mut self, request: RequestId) -> Result<(), PinError> {
        loop {
            match self.event(Moment(u64::MAX))? {
                ClientEvent::Reply { request: found, reply } if found == request => {
                    return self.connection.accept(reply).map(drop).map_err(|why| ClientError::from(why).into());
                }
                ClientEvent::Expired { .. } => return Err(self.no_answer()),
                _ => {}
            }
        }
    }

    fn no_answer(&self) -> PinError {
        let waited = self.overall.pin.config.connection.answer_deadline;
        ClientError::from(ConnectionError::NoAnswer { server: self.connection.server.clone(), waited }).into()
    }

    /// The metadata as far as a mount needs it, and the hashes of all blocks.
    fn metadata(&mut self, opened: &Opened) -> Result<(Metadata, Vec<u8>), PinError> {
        let (pin, clock) = (self.overall.pin, self.overall.clock);
        let limits = &pin.config.limits;
        let failed =
            |source| ClientError::Image { name: format!("{}/{}", pin.remote.server, pin.remote.image), source };
        let kept = CachedStart::of(self.overall.cache, opened.id, limits);
        let none = || Fetched { bytes: Vec::new(), region: opened.region.clone(), file_bytes: opened.file_bytes };
        let mut fetched = kept.map_or_else(none, |kept| kept.fetched);
        self.fetch(opened, &mut fetched, SUPERBLOCK_BYTES)?;
        let start = fetched.bytes.first_chunk().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let superblock = Superblock::parse(start, limits).map_err(failed)?;
        check_promise(opened, &superblock, pin.remote)?;
        let end = block_hashes_end(&superblock);
        let mut at = fetched.bytes.len() as u64;
        while at < end {
            at = end.min(at + PIECE_BYTES);
            self.fetch(opened, &mut fetched, at)?;
        }
        let metadata = Metadata::open_early(&fetched, limits).map_err(failed)?;
        metadata.load_block_hashes(&fetched).map_err(failed)?;
        self.overall.moved = clock.now();
        Ok((metadata, fetched.bytes))
    }

    /// Fetches the start of the image up to there.
    fn fetch(&mut self, opened: &Opened, fetched: &mut Fetched, end: u64) -> Result<(), PinError> {
        let next = fetched.bytes.len() as u64;
        if next >= end {
            return Ok(());
        }
        self.wait_for(end - next + REQUEST_BYTES, 0)?;
        let clock = self.overall.clock;
        let until = clock.now().after(answer_time(self.overall.pin.config.connection.open_deadline, end - next));
        let none = Fetched { bytes: Vec::new(), region: fetched.region.clone(), file_bytes: fetched.file_bytes };
        let begun = std::mem::replace(fetched, none);
        let mut fetcher = Fetcher::new(&mut self.connection, opened.image, (clock, until), begun);
        fetcher.fetch(end, end)?;
        *fetched = fetcher.fetched;
        self.count();
        Ok(())
    }

    /// Finds what is missing; all of it must fit into the cache. What an earlier run left there is
    /// pinned without the server.
    fn missing(&mut self, pinned: &PinnedImage<'_>, metadata: &[u8]) -> Result<Missing, PinError> {
        let mut sizes: Vec<_> = metadata_parts(metadata.len()).map(|part| part.len()).collect();
        let transferred_bytes = self.overall.progress.transferred_bytes;
        let mut progress = Progress { transferred_bytes, ..Progress::default() };
        for entry in pinned.blocks().filter_map(|block| pinned.metadata.block(block)) {
            sizes.push(entry.stored_bytes as usize);
            progress.blocks += 1;
            progress.bytes += u64::from(entry.stored_bytes);
        }
        self.make_room(pinned.owner, &sizes)?;
        self.overall.claim.begin(pinned.owner, progress.bytes + metadata.len() as u64)?;
        // What is pinned from here on stays so.
        let mut blocks = Vec::new();
        let there = pinned.cache.pinned_keys(&pinned.owner, Kind::Block);
        for block in pinned.blocks() {
            let stored = pinned.metadata.block(block).map_or(0, |entry| u64::from(entry.stored_bytes));
            if pinned.has(&there, block) {
                progress.blocks_present += 1;
                progress.pinned_bytes += stored;
            } else {
                blocks.push((block, stored));
            }
        }
        let is_first = self.overall.progress.blocks == 0;
        if !is_first {
            progress.blocks_present = self.overall.progress.blocks_present;
        }
        self.overall.progress = progress;
        let mut missing = Missing { blocks: VecDeque::new(), asked: VecDeque::new(), asked_bytes: 0 };
        for (block, stored) in blocks {
            match pinned.kept(block) {
                Some(bytes) => {
                    self.put(pinned, || pinned.put_block(block, &bytes))?;
                    self.overall.progress.pinned_bytes += stored;
                    self.overall.progress.blocks_present += u32::from(is_first);
                }
                None => missing.blocks.push_back(block),
            }
            if self.overall.pin.stop.is_wanted() {
                return Err(PinError::Stopped);
            }
        }
        (self.overall.tell)(News::Progress(self.overall.progress));
        Ok(missing)
    }

    /// All of it must fit beside what others have pinned; the previous version of the name goes if
    /// that is enough.
    fn make_room(&mut self, owner: Owner, sizes: &[usize]) -> Result<(), PinError> {
        let (cache, claim) = (self.overall.cache, self.overall.claim);
        let mut room = cache.pin_room(&owner, None, sizes)?;
        if room.needed > room.free {
            // Programs may have ended that ran from versions of before.
            cache.unpin_unnamed()?;
            room = cache.pin_room(&owner, None, sizes)?;
        }
        if room.needed <= room.free {
            return Ok(());
        }
        if let Some(previous) = claim.previous(owner)? {
            let without = cache.pin_room(&owner, Some(previous), sizes)?;
            if without.needed <= without.free && self.give_up(previous)? {
                return Ok(());
            }
        }
        Err(PinError::TooLarge { needed: room.needed, pinned: room.max.saturating_sub(room.free), max: room.max })
    }

    /// Puts something into the cache. The previous version of the name goes if the disk is full.
    fn put(&mut self, pinned: &PinnedImage<'_>, put: impl Fn() -> Result<(), PinError>) -> Result<(), PinError> {
        let outcome = put();
        match &outcome {
            Err(PinError::Cache(error)) if error.kind() == io::ErrorKind::StorageFull => {}
            _ => return outcome,
        }
        match self.overall.claim.previous(pinned.owner)? {
            Some(previous) if self.give_up(previous)? => put(),
            _ => outcome,
        }
    }

    /// Gives up the previous version, and tells that. False if it is used.
    fn give_up(&mut self, previous: Owner) -> Result<bool, PinError> {
        let is_gone = self.overall.claim.give_up_previous(previous)?;
        if is_gone {
            (self.overall.tell)(News::GivenUp(ImageId(previous.0)));
        }
        Ok(is_gone)
    }

    fn fetch_blocks(
        &mut self,
        pinned: &PinnedImage<'_>,
        image: ImageHandle,
        mut missing: Missing,
    ) -> Result<(), PinError> {
        let token = Token(random_number().map_err(ClientError::from)?);
        loop {
            self.ask(pinned, image, token, &mut missing)?;
            if missing.asked.is_empty() {
                return Ok(());
            }
            let server = self.connection.server.clone();
            match self.event(Moment(u64::MAX))? {
                ClientEvent::Reply { request, reply } => {
                    let Some(at) = missing.asked.iter().position(|(asked, _)| *asked == request) else { continue };
                    let Some((_, block)) = missing.asked.remove(at) else { continue };
                    let reply = self.connection.accept(reply).map_err(ClientError::from)?;
                    let Reply::Block { bytes, .. } = reply else { continue };
                    let verified = pinned.metadata.verify_block(block, &bytes);
                    verified.map_err(|source| ClientError::Image { name: server.to_string(), source })?;
                    self.put(pinned, || pinned.put_block(block, &bytes))?;
                    missing.asked_bytes -= bytes.len() as u64;
                    self.overall.moved = self.overall.clock.now();
                    self.overall.progress.pinned_bytes += bytes.len() as u64;
                    self.count();
                    (self.overall.tell)(News::Progress(self.overall.progress));
                }
                ClientEvent::Expired { .. } => return Err(self.no_answer()),
                _ => {}
            }
        }
    }

    /// Requests blocks, as many as may be under way.
    fn ask(
        &mut self,
        pinned: &PinnedImage<'_>,
        image: ImageHandle,
        token: Token,
        missing: &mut Missing,
    ) -> Result<(), PinError> {
        while let Some(block) = missing.blocks.front().copied() {
            let (Some(page), Some(entry)) = (pinned.page_of(block), pinned.metadata.block(block)) else {
                missing.blocks.pop_front();
                continue;
            };
            let stored = u64::from(entry.stored_bytes);
            if !missing.asked.is_empty() && missing.asked_bytes + stored > UNDER_WAY_BYTES {
                return Ok(());
            }
            let clock = self.overall.clock;
            if !missing.asked.is_empty() && self.overall.allowance.ready(clock.now()) > clock.now() {
                // What is under way is written first.
                return Ok(());
            }
            match self.wait_for(stored + REQUEST_BYTES, missing.asked_bytes) {
                // So is what was paid for.
                Err(PinError::Budget { .. }) if !missing.asked.is_empty() => return Ok(()),
                other => other?,
            }
            let ask = Request::PullBlock { image, token, page, block, force: true, speculative: true };
            let time = answer_time(self.overall.pin.config.connection.answer_deadline, missing.asked_bytes + stored);
            let request = self.connection.machine.request_until(clock.now(), ask, clock.now().after(time));
            let request = request.map_err(|why| ClientError::from(self.connection.refused(why)))?;
            missing.blocks.pop_front();
            missing.asked.push_back((request, block));
            missing.asked_bytes += stored;
        }
        Ok(())
    }

    /// Waits until so many bytes may be requested. `under_way`: bytes that were, and did not come.
    fn wait_for(&mut self, bytes: u64, under_way: u64) -> Result<(), PinError> {
        let missing = self.overall.missing();
        self.count();
        self.overall.allowance.need(bytes, under_way, missing)?;
        let clock = self.overall.clock;
        let ready = self.overall.allowance.ready(clock.now());
        while clock.now() < ready {
            // Nothing is under way, but the protocol has its own deadlines.
            self.turn(ready)?;
            if let Some(ClientEvent::Closed(error)) = self.connection.machine.poll_event() {
                return Err(ClientError::from(self.connection.explain(error)).into());
            }
        }
        self.overall.allowance.requested(clock.now(), bytes);
        Ok(())
    }

    fn event(&mut self, until: Moment) -> Result<ClientEvent, PinError> {
        loop {
            match self.connection.machine.poll_event() {
                Some(ClientEvent::Closed(error)) => {
                    return Err(ClientError::from(self.connection.explain(error)).into());
                }
                Some(event) => return Ok(event),
                None => self.turn(until)?,
            }
        }
    }

    fn turn(&mut self, until: Moment) -> Result<(), PinError> {
        let stop = self.overall.pin.stop;
        self.connection.turn(Some(&stop.waker), until);
        if stop.is_wanted() { Err(PinError::Stopped) } else { Ok(()) }
    }

    /// Counts what was transferred since the last call.
    fn count(&mut self) {
        let traffic = self.connection.machine.traffic();
        let all = traffic.bytes_received + traffic.bytes_sent;
        let more = all.saturating_sub(self.counted);
        self.counted = all;
        self.overall.progress.transferred_bytes += more;
        self.overall.allowance.used(more);
    }
}

/// Where the hashes of blocks end, in [`Fetched::bytes`]: they follow what a mount needs.
fn block_hashes_end(superblock: &Superblock) -> u64 {
    let region = superblock.metadata_region();
    let needed = superblock
        .sections
        .iter()
        .filter(|section| !section.optional && section.kind != image::format::SECTION_CHUNK_HASHES);
    let end = needed.map(|section| section.offset + section.stored_bytes).max().unwrap_or(region.start);
    SUPERBLOCK_BYTES + end.clamp(region.start, region.end) - region.start
}
