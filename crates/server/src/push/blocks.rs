//! Pushes of data blocks: what profiles, hints and reading ahead foresee for the files that a connection has open.
//!
//! A *course* is what one program is sent of one file: the parts of the file with their shares of the link (`shares`), each with
//! blocks that are needed soon and, if the profile has stages, all its others. The next piece is read and compressed on a
//! blocking thread when the wire has room for one: blocks of one file and version, one block on a thin link, so that a demand
//! never waits long. When a touch shows that the program goes another way, what is foreseen now takes the place of what was
//! foreseen before, and what is queued goes only if it is not foreseen any more.
//!
//! All pieces for one program of one volume are one stream, which lives until the program ends. Blocks that the
//! device has from us are left out; like [`crate::device`], that is a guess, and a demand for one corrects it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use predict::{SURE, Speculation};
use units::{ActionId, InodeId, PageId, SegmentIndex, StreamId, Token};
use volume::FileId;
use wire::volume::Share;
use wire::{ImageHandle, PushEncoding, PushEndReason, PushHeader, PushPiece, PushPosition, ServerConnection};

use super::course::{Course, PIECE_BYTES_MANY, next_parts};
use super::shares::{Class, Clock, FAR_BYTES, NEAR_BYTES, Part};
use crate::budget::Room;
use crate::done::{BuiltBlocks, Done, DoneSender};
use crate::error::Failure;
use crate::lock::locked;
use crate::peer::Owner;
use crate::shared::Shared;
use crate::volumes::{Foreseen, OpenVolume, answer};

/// Courses of one connection; the one that was foreseen longest ago goes.
const COURSES_MAX: usize = 128;

/// Streams of one connection for volumes, beside those of images.
const STREAMS_MAX: usize = 24;

/// Memory of a block that is remembered as being with the device, bytes.
const HAD_BYTES: usize = 12;

/// Memory of a file of which blocks are remembered, bytes.
const FILE_BYTES: usize = 128;

/// What waits and is remembered takes no memory of [`Devices`](crate::device::Devices) up to this.
const FREE_BYTES: usize = 4 << 10;

/// Steps in which memory is taken beyond that.
const STEP_BYTES: usize = 16 << 10;

/// Demands for blocks that were sent after which a file counts as dropped by the device.
const LOSSES_MAX: u32 = 3;

/// Blocks that are sent ahead of the last touch go before pages of images as long as the link takes no more seconds for them.
const AHEAD_SECONDS: u64 = 8;

/// The same before the rate of the link is known.
const AHEAD_BYTES_START: u64 = 128 << 10;

/// A piece holds what the link carries in this part of a second, at most.
const PIECES_PER_SECOND: u64 = 50;

/// What a block that travels alone takes of the link besides itself: the head of its frame. Rates count bytes of frames.
const FRAME_HEAD_BYTES: u64 = 45;

/// Bytes of data in one piece, at most: what the wire takes.
const PIECE_BYTES_MAX: usize = 128 << 10;

/// Blocks that the device has of one file.
#[derive(Default)]
struct Had {
    version: u64,
    blocks: HashSet<u32>,
    losses: u32,
}

struct Stream {
    volume: ImageHandle,
    token: Token,
    stream: StreamId,
    used: u64,
}

/// A piece that is being built.
struct Building {
    volume: ImageHandle,
    token: Token,
    file: InodeId,
    id: FileId,
    pages: Vec<PageId>,
}

/// The pushes of data blocks of one connection.
pub(crate) struct BlockPusher {
    shared: Arc<Shared>,
    owner: Owner,
    done: DoneSender,
    courses: Vec<Course>,
    streams: Vec<Stream>,
    /// What the device said of files.
    file_shares: HashMap<(ImageHandle, InodeId), Share>,
    had: HashMap<(ImageHandle, FileId), Had>,
    building: Option<Building>,
    clock: Clock,
    /// Bytes of blocks sent ahead since the last touch.
    ahead_bytes: u64,
    /// Blocks that may not be needed, sent since then.
    guesses: usize,
    uses: u64,
    /// Memory of what waits, and of what is remembered as being with the device.
    memory: Room,
    held: Room,
}

impl BlockPusher {
    pub fn new(shared: Arc<Shared>, owner: Owner, done: DoneSender) -> BlockPusher {
        let held = shared.builders.memory().nothing(owner);
        let memory = shared.devices.memory().nothing(owner);
        BlockPusher {
            shared,
            owner,
            done,
            courses: Vec::new(),
            streams: Vec::new(),
            file_shares: HashMap::new(),
            had: HashMap::new(),
            building: None,
            clock: Clock::default(),
            ahead_bytes: 0,
            guesses: 0,
            uses: 0,
            memory,
            held,
        }
    }

    /// A program opened a file: its first blocks are foreseen, and all its stages.
    pub fn opened(&mut self, volume: ImageHandle, open: &Arc<OpenVolume>, token: Token, file: InodeId, id: FileId) {
        let (first, staged) = {
            let profiles = locked(&open.served.profiles);
            (profiles.first(id), profiles.staged(id))
        };
        if first.blocks.is_empty() {
            return;
        }
        // Without memory for all of it the background is left to demand.
        let has_memory = self.has_memory_for(first.blocks.len() * NEAR_BYTES + staged.len() * FAR_BYTES);
        if !has_memory && !self.has_memory_for(first.blocks.len() * NEAR_BYTES) {
            return;
        }
        let course = self.course(volume, open, token, file, id);
        // Opened once more, and not through with what was foreseen before.
        if course.parts.iter().any(|part| !part.is_empty()) {
            return;
        }
        if has_memory {
            staged.into_iter().for_each(|block| course.add_far(block, &open.served));
        }
        for (block, chance) in first.blocks {
            course.order(block.index, chance, &open.served);
        }
    }

    /// Acts on what follows from a touch of a program.
    pub fn foreseen(
        &mut self,
        wire: &mut ServerConnection,
        volume: ImageHandle,
        open: &Arc<OpenVolume>,
        token: Token,
        foreseen: Foreseen,
    ) {
        // Files that this connection has not open are none of its business.
        let known = |number: InodeId| {
            let id = locked(&open.served.profiles).file(number)?;
            Some((locked(&open.files).number(id)?, id))
        };
        let mut files: HashMap<InodeId, Option<(InodeId, FileId)>> = HashMap::new();
        let mut wanted = HashSet::new();
        let mut ordered = Vec::new();
        for (PageId { inode: number, index }, chance) in foreseen.blocks {
            if let Some((file, id)) = *files.entry(number).or_insert_with(|| known(number)) {
                wanted.insert(PageId::new(file, index));
                ordered.push((file, id, index, chance));
            }
        }
        if foreseen.begins {
            let mine = |course: &&mut Course| course.volume == volume && course.token == token;
            for course in self.courses.iter_mut().filter(mine) {
                course.parts.iter_mut().for_each(Part::forget_near);
            }
            // What has stages is background, and stays.
            let mine = self.courses.iter().filter(|course| course.volume == volume && course.token == token);
            let staged: HashSet<InodeId> =
                mine.filter(|course| !course.stages.is_empty()).map(|course| course.file).collect();
            let keep = |page: &PageId| wanted.contains(page) || staged.contains(&page.inode);
            self.drop_unwanted(wire, volume, token, keep);
        }
        if !self.has_memory_for(ordered.len() * NEAR_BYTES) {
            return;
        }
        for (file, id, block, chance) in ordered {
            self.course(volume, open, token, file, id).order(block, chance, &open.served);
        }
    }

    /// Takes back what is queued for a program, unless it is to be kept.
    fn drop_unwanted(
        &mut self,
        wire: &mut ServerConnection,
        volume: ImageHandle,
        token: Token,
        keep: impl Fn(&PageId) -> bool,
    ) {
        let mine = |stream: &&Stream| stream.volume == volume && stream.token == token;
        let Some(stream) = self.streams.iter().find(mine).map(|stream| stream.stream) else { return };
        let dropped = RefCell::new(Vec::new());
        wire.retain_pushes(stream, |pages| {
            let keep = pages.iter().any(&keep);
            if !keep {
                dropped.borrow_mut().extend_from_slice(pages);
            }
            keep
        });
        let courses = &self.courses;
        for page in dropped.into_inner() {
            let file = courses.iter().find(|course| course.volume == volume && course.file == page.inode);
            if let Some(had) = file.and_then(|course| self.had.get_mut(&(volume, course.id))) {
                had.blocks.remove(&page.index);
            }
        }
    }

    /// Blocks that the device asks for in advance: background, unless it said what the file gets.
    pub fn hint(&mut self, volume: ImageHandle, open: &Arc<OpenVolume>, token: Token, pages: &[PageId]) -> usize {
        if !self.has_memory_for(pages.len() * NEAR_BYTES) {
            return 0;
        }
        let mut taken = 0;
        for page in pages {
            let Some((_, id)) = locked(&open.files).get(page.inode) else { continue };
            // What the device has is for the device to say.
            if let Some(had) = self.had.get_mut(&(volume, id)) {
                had.blocks.remove(&page.index);
            }
            let shared = self.file_shares.contains_key(&(volume, page.inode));
            let course = self.course(volume, open, token, page.inode, id);
            if course.stages.is_empty() && course.parts.iter().all(Part::is_empty) && !shared {
                course.parts.iter_mut().for_each(|part| part.class = Class::Rest);
            }
            course.order(page.index, 1.0, &open.served);
            taken += 1;
        }
        taken
    }

    /// The device says what a file gets of the link.
    pub fn share(&mut self, volume: ImageHandle, file: InodeId, share: Share) {
        self.file_shares.insert((volume, file), share);
        self.set_share(volume, file, share);
    }

    fn set_share(&mut self, volume: ImageHandle, file: InodeId, share: Share) {
        for course in self.courses.iter_mut().filter(|course| course.volume == volume && course.file == file) {
            course.overrule(share);
        }
    }

    /// The file is not open any more.
    pub fn closed(&mut self, volume: ImageHandle, file: InodeId) {
        self.courses.retain(|course| course.volume != volume || course.file != file);
        self.file_shares.remove(&(volume, file));
    }

    /// The program ended.
    pub fn ended(&mut self, wire: &mut ServerConnection, volume: ImageHandle, token: Token) {
        self.drop_unwanted(wire, volume, token, |_| false);
        self.courses.retain(|course| course.volume != volume || course.token != token);
        let mine = |stream: &Stream| stream.volume == volume && stream.token == token;
        if let Some(at) = self.streams.iter().position(mine) {
            wire.cancel_push(self.streams.remove(at).stream, PushEndReason::TokenEnded);
        }
    }

    /// The device does not want the stream: nothing more comes until a touch foresees something again.
    pub fn stopped(&mut self, stream: StreamId) {
        if let Some(at) = self.streams.iter().position(|known| known.stream == stream) {
            let Stream { volume, token, .. } = self.streams.remove(at);
            self.courses.retain(|course| course.volume != volume || course.token != token);
            // What was dropped of its queue is not with the device; nobody knows how much that was.
            self.had.retain(|(of, _), _| *of != volume);
            self.shared.metrics.pushes_cancelled.one();
        }
    }

    /// The device asks for blocks, and is sent them now. One that insists does not say that it lost them: a push was late.
    pub fn demanded(&mut self, volume: ImageHandle, id: FileId, blocks: &[PageId], force: bool) {
        self.has_memory_for(FILE_BYTES + blocks.len() * HAD_BYTES);
        let had = self.had.entry((volume, id)).or_default();
        if !force && blocks.first().is_some_and(|touched| had.blocks.contains(&touched.index)) {
            had.losses += 1;
            if had.losses >= LOSSES_MAX {
                (had.losses, had.blocks) = Default::default();
            }
        }
        had.blocks.extend(blocks.iter().map(|block| block.index));
    }

    /// A file has this version now, as the device knows: blocks of others are not what it has.
    pub fn version(&mut self, volume: ImageHandle, id: FileId, version: u64, by_device: bool) {
        if let Some(had) = self.had.get_mut(&(volume, id)) {
            if had.version != version && had.version != 0 && !by_device {
                had.blocks.clear();
            }
            had.version = version;
        }
    }

    /// Whether a block is being read for a piece: it will be on the way in a moment.
    pub fn is_building(&self, volume: ImageHandle, block: PageId) -> bool {
        let building = self.building.as_ref().filter(|building| building.volume == volume);
        building.is_some_and(|building| building.pages.contains(&block))
    }

    /// The stream that brings all of `blocks` soon: they were sent and are not credited, or leave within the window.
    pub fn on_the_way(&self, wire: &ServerConnection, volume: ImageHandle, blocks: &[PageId]) -> Option<StreamId> {
        let room = (wire.push_window_bytes() as usize).max(2 * PIECE_BYTES_MANY);
        let soon = |stream: StreamId, block: &PageId| match wire.push_position(stream, *block) {
            PushPosition::Sent => true,
            PushPosition::Queued { bytes_ahead } => bytes_ahead <= room,
            PushPosition::Absent => false,
        };
        let mine = self.streams.iter().filter(|stream| stream.volume == volume).map(|stream| stream.stream);
        mine.into_iter().find(|stream| blocks.iter().all(|block| soon(*stream, block)))
    }

    /// A program uses data now.
    pub fn touched(&mut self) {
        (self.ahead_bytes, self.guesses) = (0, 0);
    }

    /// Whether blocks wait that are needed sooner than pages of images which nobody asked for: what a program reads next,
    /// some seconds ahead. Then pages have their turn, before it sleeps or computes long enough to need them.
    pub fn presses(&self, wire: &ServerConnection) -> bool {
        let most = wire.push_rate().map_or(AHEAD_BYTES_START, |rate| rate.saturating_mul(AHEAD_SECONDS));
        let waits = |part: &Part| part.class != Class::Rest && part.has_near();
        self.ahead_bytes < most
            && (self.building.is_some() || self.courses.iter().flat_map(|course| &course.parts).any(waits))
    }

    /// Builds the next piece if the wire has room for it and no more than `bytes_max` are queued.
    pub fn pump(&mut self, wire: &ServerConnection, bytes_max: usize) {
        self.held.shrink_to(wire.queued_push_bytes());
        if self.building.is_some() || self.courses.is_empty() {
            return;
        }
        if wire.volume_push_room() == 0 || self.held.amount() >= bytes_max {
            return;
        }
        while let Some((at, part)) = self.choose() {
            let Some(course) = self.courses.get(at) else { return };
            let block_bytes = course.open.served.options.block_bytes.max(1) as usize;
            let bytes = piece_bytes(wire).max(course.worth_bytes(part, block_bytes));
            let count = (bytes.min(PIECE_BYTES_MAX) / block_bytes).clamp(1, wire::format::PUSH_PAGES_MAX);
            let Some(pages) = self.take(wire, at, part, count) else { return };
            if !pages.is_empty() {
                let mut parts = next_parts(&mut self.courses);
                let index = parts.iter().position(|(course, of, _)| (*course, *of) == (at, part));
                let mut open: Vec<&mut Part> = parts.iter_mut().map(|(_, _, part)| &mut **part).collect();
                if let Some(index) = index {
                    self.clock.charge(&mut open, index, pages.len() * block_bytes);
                }
                self.ahead_bytes += (pages.len() * block_bytes) as u64;
                self.build(at, pages, block_bytes);
                return;
            }
        }
    }

    /// The course, and its part, that sends now.
    fn choose(&mut self) -> Option<(usize, usize)> {
        let now = self.shared.now();
        let mut parts = next_parts(&mut self.courses);
        let mut open: Vec<&mut Part> = parts.iter_mut().map(|(_, _, part)| &mut **part).collect();
        let chosen = self.clock.choose(&mut open, now)?;
        parts.get(chosen).map(|(course, part, _)| (*course, *part))
    }

    /// Takes up to `count` blocks that the device has not got and that are worth their time. `None` if that can be told later only: as
    /// long as the link is not known, two guesses go at a time, unless it is likelier than all others together.
    fn take(&mut self, wire: &ServerConnection, at: usize, part: usize, count: usize) -> Option<Vec<PageId>> {
        let course = self.courses.get_mut(at)?;
        let waiting = course.parts.get_mut(part)?;
        let had = self.had.get(&(course.volume, course.id));
        let block_bytes = course.open.served.options.block_bytes;
        let link = speculation(wire, block_bytes);
        let block_bytes = u64::from(block_bytes);
        let mut pages = Vec::new();
        while pages.len() < count
            && let Some((block, chance)) = waiting.next()
        {
            let page = PageId::new(course.file, block);
            if had.is_some_and(|had| had.blocks.contains(&block)) || pages.contains(&page) {
                self.shared.metrics.pages_push_skipped.one();
            } else if chance >= SURE {
                pages.push(page);
            } else {
                let under_way = wire.in_flight_push_bytes() + wire.queued_push_bytes() as u64;
                // Two in a row tell what the link is.
                let few = under_way < 2 * block_bytes && pages.is_empty();
                match link {
                    None if !few && chance <= 0.5 => return (!pages.is_empty()).then_some(pages),
                    Some(link) if !link.admits(chance, self.guesses) => {}
                    _ => {
                        self.guesses += 1;
                        pages.push(page);
                    }
                }
            }
            waiting.pop();
        }
        Some(pages)
    }

    fn build(&mut self, at: usize, pages: Vec<PageId>, block_bytes: usize) {
        let Some(course) = self.courses.get_mut(at) else { return };
        course.sent_bytes += pages.len() * block_bytes;
        let (volume, token, file, id) = (course.volume, course.token, course.file, course.id);
        let open = course.open.clone();
        self.building = Some(Building { volume, token, file, id, pages: pages.clone() });
        let (done, wanted) = (self.done.clone(), pages.clone());
        let read = move || open.served.volume().and_then(|volume| answer::read(&volume, &open.files, &wanted));
        self.shared.builders.build(self.owner, pages.len() * block_bytes, read, move |piece, room| {
            let failed = |_| Err(Failure::new(wire::ErrorCode::Internal, "building a piece of a push failed"));
            let piece = piece.unwrap_or_else(failed);
            // The connection may be gone.
            let _ = done.send(Box::new(Done::BuiltBlocks(BuiltBlocks { pages, piece, room })));
        });
    }

    /// Queues a piece that was built.
    pub fn built(&mut self, wire: &mut ServerConnection, built: BuiltBlocks) {
        let Some(Building { volume, token, file, id, .. }) = self.building.take() else { return };
        let BuiltBlocks { mut pages, piece, room } = built;
        let mine = |course: &Course| course.volume == volume && course.token == token && course.file == file;
        let Some(course) = self.courses.iter().find(|course| mine(course)) else { return };
        let block_bytes = u64::from(course.open.served.options.block_bytes);
        let piece = match piece {
            Ok(piece) => piece,
            // The file was removed, replaced or closed: whoever reads on is told then.
            Err(_) => {
                self.courses.retain(|course| !mine(course));
                return;
            }
        };
        pages.retain(|page| u64::from(page.index) * block_bytes < piece.size);
        if pages.is_empty() {
            return;
        }
        let Some(stream) = self.stream(wire, volume, token) else { return };
        self.version(volume, id, piece.version, false);
        self.has_memory_for(FILE_BYTES + pages.len() * HAD_BYTES);
        let had = self.had.entry((volume, id)).or_default();
        had.version = piece.version;
        had.blocks.extend(pages.iter().map(|page| page.index));
        let bytes = piece.to_bytes();
        self.shared.metrics.volume_blocks_pushed.add(pages.len() as u64);
        self.shared.metrics.push_bytes.add(bytes.len() as u64);
        // Refused only if the connection is closed, or more is queued than the pump lets be.
        let _ = wire.push(PushPiece { stream, segment: SegmentIndex(0), pages, bytes });
        self.held.merge(room);
    }

    /// The stream of a program, begun if need be.
    fn stream(&mut self, wire: &mut ServerConnection, volume: ImageHandle, token: Token) -> Option<StreamId> {
        self.uses += 1;
        if let Some(known) = self.streams.iter_mut().find(|known| known.volume == volume && known.token == token) {
            known.used = self.uses;
            return Some(known.stream);
        }
        if self.streams.len() >= STREAMS_MAX
            && let Some(at) = (0..self.streams.len()).min_by_key(|at| self.streams[*at].used)
        {
            // Refused only if it has ended.
            let _ = wire.push_end(self.streams.remove(at).stream, PushEndReason::Complete);
        }
        let header = PushHeader {
            image: volume,
            token,
            action: ActionId(0),
            encoding: PushEncoding::Volume,
            window_log: 0,
            audit: false,
        };
        let stream = wire.push_start(header).ok()?;
        self.shared.metrics.pushes_started.one();
        self.streams.push(Stream { volume, token, stream, used: self.uses });
        Some(stream)
    }

    /// The course of a program in a file, begun if need be.
    fn course(
        &mut self,
        volume: ImageHandle,
        open: &Arc<OpenVolume>,
        token: Token,
        file: InodeId,
        id: FileId,
    ) -> &mut Course {
        self.uses += 1;
        let mine = |course: &Course| course.volume == volume && course.token == token && course.file == file;
        let at = match self.courses.iter().position(mine) {
            Some(at) => at,
            None => {
                if self.courses.len() >= COURSES_MAX
                    && let Some(oldest) = (0..self.courses.len()).min_by_key(|at| self.courses[*at].used)
                {
                    self.courses.remove(oldest);
                }
                let mut course = Course::new(volume, open.clone(), token, file, id);
                if let Some(share) = self.file_shares.get(&(volume, file)) {
                    course.overrule(*share);
                }
                self.courses.push(course);
                self.courses.len() - 1
            }
        };
        self.courses[at].used = self.uses;
        &mut self.courses[at]
    }

    /// Whether there is memory for `bytes` more of what waits or is remembered. If need be the
    /// device is taken to have nothing.
    fn has_memory_for(&mut self, bytes: usize) -> bool {
        if self.takes_memory(bytes) {
            return true;
        }
        self.had.clear();
        self.takes_memory(bytes)
    }

    fn takes_memory(&mut self, bytes: usize) -> bool {
        let waiting: usize = self.courses.iter().flat_map(|course| &course.parts).map(Part::memory_bytes).sum();
        let had: usize = self.had.values().map(|had| FILE_BYTES + had.blocks.len() * HAD_BYTES).sum();
        let needed = (waiting + had + bytes).saturating_sub(FREE_BYTES).next_multiple_of(STEP_BYTES);
        self.memory.shrink_to(needed);
        let lacking = needed - self.memory.amount();
        let room = self.memory.try_more(lacking);
        let found = room.is_some();
        room.into_iter().for_each(|room| self.memory.merge(room));
        found
    }
}

/// What a guess costs and saves on this connection, once that is known.
fn speculation(wire: &ServerConnection, block_bytes: u32) -> Option<Speculation> {
    let (rate, round_trip) = wire.push_path()?;
    let bytes = u64::from(block_bytes) + FRAME_HEAD_BYTES;
    Some(Speculation { block: Duration::from_micros(bytes.saturating_mul(1_000_000) / rate.max(1)), round_trip })
}

/// Bytes of data in the next piece: little of a second, and little of what the link holds, since a rate alone is easily taken for
/// too high when credits come in bursts.
fn piece_bytes(wire: &ServerConnection) -> usize {
    let Some((rate, round_trip)) = wire.push_rate().zip(wire.push_round_trip()) else { return 0 };
    let product = u128::from(rate) * round_trip.as_micros() / 1_000_000;
    u128::from(rate / PIECES_PER_SECOND).min(product / 2).min(PIECE_BYTES_MAX as u128) as usize
}
