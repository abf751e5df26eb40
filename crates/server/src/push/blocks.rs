//! Pushes of data blocks: what profiles, hints and reading ahead foresee for the files that a
//! connection has open.
//!
//! What one program is sent of one file is a `FilePush`: the parts of the file with their shares of
//! the link (`shares`), each with blocks that are needed soon and, if the profile has stages, all
//! its others. The next piece is read and compressed on a builder's thread when the wire has room
//! for one. It has blocks of one file and version, one block on a thin link, so that a demand never
//! waits long. When a touch shows that the program goes another way, what is foreseen now takes the
//! place of what was foreseen before, and what is queued is dropped only if it is not foreseen any
//! more.
//!
//! All pieces for one program of one volume are one stream, which lives until the program ends.
//! Blocks that the device has from us are left out; that is a guess, and a demand for one corrects
//! it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use predict::{SURE, Speculation};
use units::{InodeId, PageId, SegmentIndex, StreamId, Token};
use volume::FileId;
use wire::volume::Share;
use wire::{ImageHandle, PushEndReason, PushPiece, ServerConnection};

use super::file_push::{FilePush, Target};
use super::file_pushes::FilePushes;
use super::queue::PieceQueue;
use super::shares::{FAR_BYTES, NEAR_BYTES};
use super::streams::Streams;
use crate::done::{BuiltBlocks, Done, DoneSender};
use crate::lock::locked;
use crate::peer::Owner;
use crate::record::{Record, RecordLimits};
use crate::shared::Shared;
use crate::volumes::{Foreseen, OpenVolume, answer};

/// What is remembered of files as being with the device.
const RECORD: RecordLimits =
    RecordLimits { keys_max: usize::MAX, key_bytes: 128, losses_max: 3, free_bytes: 1 << 10, forgets_all: true };

/// Blocks that are sent ahead of the last touch go before pages of images as long as the link takes
/// no more seconds for them.
const AHEAD_SECONDS: u64 = 8;

/// The same before the rate of the link is known.
const AHEAD_BYTES_START: u64 = 128 << 10;

/// A piece holds what the link carries in this part of a second, at most.
const PIECES_PER_SECOND: u64 = 50;

/// What a block that travels alone takes of the link besides itself: the head of its frame. Rates
/// count bytes of frames.
const FRAME_HEAD_BYTES: u64 = 45;

/// Bytes of data in one piece, at most: what the wire takes.
const PIECE_BYTES_MAX: usize = 128 << 10;

/// A file of a volume, for the record of what the device has.
type FileKey = (ImageHandle, FileId);

/// A piece that is being built.
struct Building {
    target: Target,
    pages: Vec<PageId>,
}

/// The pushes of data blocks of one connection.
///
/// Invariant: one piece is built at a time, and its blocks wait no more.
pub(crate) struct BlockPusher {
    shared: Arc<Shared>,
    files: FilePushes,
    streams: Streams,
    record: Record<FileKey>,
    pieces: PieceQueue,
    building: Option<Building>,
    /// Bytes of blocks sent ahead since the last touch.
    ahead_bytes: u64,
    /// Blocks that may not be needed, sent since then.
    guesses: usize,
}

impl BlockPusher {
    pub fn new(shared: Arc<Shared>, owner: Owner, done: DoneSender) -> BlockPusher {
        let memory = || shared.devices.memory().nothing(owner);
        BlockPusher {
            files: FilePushes::new(memory()),
            streams: Streams::default(),
            record: Record::new(RECORD, memory()),
            pieces: PieceQueue::new(shared.builders.clone(), owner, done),
            building: None,
            ahead_bytes: 0,
            guesses: 0,
            shared,
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
        let push = self.files.open(Target { volume, token, file, id }, open);
        // Opened once more, and not through with what was foreseen before.
        if !push.is_empty() {
            return;
        }
        if has_memory {
            staged.into_iter().for_each(|block| push.add_far(block));
        }
        for (block, chance) in first.blocks {
            push.order(block.index, chance);
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
        // Only files that this connection has open.
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
            let staged = self.files.forget_near(volume, token);
            let keep = |page: &PageId| wanted.contains(page) || staged.contains(&page.inode);
            self.drop_unwanted(wire, volume, token, keep);
        }
        if !self.has_memory_for(ordered.len() * NEAR_BYTES) {
            return;
        }
        for (file, id, block, chance) in ordered {
            self.files.open(Target { volume, token, file, id }, open).order(block, chance);
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
        let Some(stream) = self.streams.get(volume, token) else { return };
        let dropped = RefCell::new(Vec::new());
        wire.retain_pushes(stream, |pages| {
            let keep = pages.iter().any(&keep);
            if !keep {
                dropped.borrow_mut().extend_from_slice(pages);
            }
            keep
        });
        for page in dropped.into_inner() {
            if let Some(id) = self.files.id_of(volume, page.inode) {
                self.record.not_sent((volume, id), block_of_file(page));
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
            self.record.not_sent((volume, id), block_of_file(*page));
            let has_share = self.files.has_share(volume, page.inode);
            let push = self.files.open(Target { volume, token, file: page.inode, id }, open);
            if !push.has_stages() && push.is_empty() && !has_share {
                push.set_background();
            }
            push.order(page.index, 1.0);
            taken += 1;
        }
        taken
    }

    /// The device says what a file gets of the link.
    pub fn share(&mut self, volume: ImageHandle, file: InodeId, share: Share) {
        self.files.share(volume, file, share);
    }

    /// The file is not open any more.
    pub fn closed(&mut self, volume: ImageHandle, file: InodeId) {
        self.files.close_file(volume, file);
    }

    /// The program ended.
    pub fn ended(&mut self, wire: &mut ServerConnection, volume: ImageHandle, token: Token) {
        self.drop_unwanted(wire, volume, token, |_| false);
        self.files.end_program(volume, token);
        if let Some(stream) = self.streams.remove(volume, token) {
            wire.cancel_push(stream, PushEndReason::TokenEnded);
        }
    }

    /// The device does not want the stream: nothing more comes until a touch foresees something
    /// again.
    pub fn stopped(&mut self, stream: StreamId) {
        if let Some((volume, token)) = self.streams.remove_stream(stream) {
            self.files.end_program(volume, token);
            // What was dropped of its queue is not with the device; nobody knows how much that was.
            self.record.retain(|(of, _)| *of != volume);
            self.shared.metrics.pushes_cancelled.one();
        }
    }

    /// The device asks for blocks, and is sent them now. One that insists does not say that it lost
    /// them: a push was late.
    pub fn demanded(&mut self, volume: ImageHandle, id: FileId, blocks: &[PageId], force: bool) {
        self.files.release_memory();
        let key = (volume, id);
        if let Some(touched) = blocks.first().filter(|_| !force) {
            self.record.demanded(key, block_of_file(*touched));
        }
        self.record.sent(key, blocks.iter().copied().map(block_of_file));
    }

    /// A file has this version now, as the device knows: blocks of others are not what it has.
    pub fn version(&mut self, volume: ImageHandle, id: FileId, version: u64, by_device: bool) {
        self.record.set_version((volume, id), version, by_device);
    }

    /// Whether a block is being read for a piece: it will be on the way in a moment.
    pub fn is_building(&self, volume: ImageHandle, block: PageId) -> bool {
        let building = self.building.as_ref().filter(|building| building.target.volume == volume);
        building.is_some_and(|building| building.pages.contains(&block))
    }

    /// The stream that brings all of `blocks` soon: they were sent and are not credited, or leave
    /// within the window.
    pub fn on_the_way(&self, wire: &ServerConnection, volume: ImageHandle, blocks: &[PageId]) -> Option<StreamId> {
        self.streams.bringing(wire, volume, blocks)
    }

    /// A program uses data now.
    pub fn touched(&mut self) {
        (self.ahead_bytes, self.guesses) = (0, 0);
    }

    /// Whether blocks wait that are needed sooner than pages of images which nobody asked for: what
    /// a program reads next, some seconds ahead. Then pages have their turn, before it sleeps or
    /// computes long enough to need them.
    pub fn presses(&self, wire: &ServerConnection) -> bool {
        let most = wire.push_rate().map_or(AHEAD_BYTES_START, |rate| rate.saturating_mul(AHEAD_SECONDS));
        self.ahead_bytes < most && (self.building.is_some() || self.files.press())
    }

    /// Builds the next piece if the wire has room for it and no more than `bytes_max` are queued.
    pub fn pump(&mut self, wire: &ServerConnection, bytes_max: usize) {
        self.pieces.release(wire);
        if self.building.is_some() || self.files.is_empty() {
            return;
        }
        if wire.volume_push_room() == 0 || self.pieces.bytes() >= bytes_max {
            return;
        }
        while let Some((at, part)) = self.files.choose(self.shared.now()) {
            let Some(push) = self.files.get(at) else { return };
            let (target, open) = (push.target(), push.open().clone());
            let block_bytes = push.block_bytes().max(1) as usize;
            let bytes = piece_bytes(wire).max(push.worth_bytes(part));
            let count = (bytes.min(PIECE_BYTES_MAX) / block_bytes).clamp(1, wire::format::PUSH_PAGES_MAX);
            let Some(pages) = self.take(wire, at, part, count) else { return };
            if !pages.is_empty() {
                let bytes = pages.len() * block_bytes;
                self.files.charge((at, part), bytes);
                self.ahead_bytes += bytes as u64;
                self.build(target, open, pages, bytes);
                return;
            }
        }
    }

    /// Takes up to `count` blocks that the device has not got and that are worth their time. `None`
    /// if that can be told later only: as long as the link is not known, two guesses go at a time,
    /// unless it is likelier than all others together.
    fn take(&mut self, wire: &ServerConnection, at: usize, part: usize, count: usize) -> Option<Vec<PageId>> {
        let push: &mut FilePush = self.files.get_mut(at)?;
        let key = (push.target().volume, push.target().id);
        let link = speculation(wire, push.block_bytes());
        let block_bytes = u64::from(push.block_bytes());
        let mut pages = Vec::new();
        while pages.len() < count
            && let Some((page, chance)) = push.next(part)
        {
            if self.record.has(key, block_of_file(page)) || pages.contains(&page) {
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
            push.pop(part);
        }
        Some(pages)
    }

    fn build(&mut self, target: Target, open: Arc<OpenVolume>, pages: Vec<PageId>, bytes_max: usize) {
        self.building = Some(Building { target, pages: pages.clone() });
        let wanted = pages.clone();
        let read = move || open.served.volume().and_then(|volume| answer::read(&volume, &open.files, &wanted));
        self.pieces.build(bytes_max, read, move |piece, room| Done::BuiltBlocks(BuiltBlocks { pages, piece, room }));
    }

    /// Queues a piece that was built.
    pub fn built(&mut self, wire: &mut ServerConnection, built: BuiltBlocks) {
        let Some(Building { target, .. }) = self.building.take() else { return };
        let BuiltBlocks { mut pages, piece, room } = built;
        let Some(push) = self.files.find(target) else { return };
        let block_bytes = u64::from(push.block_bytes());
        // The file was removed, replaced or closed: the next read is told so.
        let Ok(piece) = piece else { return self.files.remove(target) };
        pages.retain(|page| u64::from(page.index) * block_bytes < piece.size);
        if pages.is_empty() {
            return;
        }
        let Some((stream, is_new)) = self.streams.open(wire, target.volume, target.token) else { return };
        if is_new {
            self.shared.metrics.pushes_started.one();
        }
        self.files.release_memory();
        let blocks = pages.iter().copied().map(block_of_file);
        self.record.sent_version((target.volume, target.id), piece.version, blocks);
        let bytes = piece.to_bytes();
        self.shared.metrics.volume_blocks_pushed.add(pages.len() as u64);
        self.shared.metrics.push_bytes.add(bytes.len() as u64);
        // Refused only if the connection is closed, or more is queued than the pump lets be.
        let _ = wire.push(PushPiece { stream, segment: SegmentIndex(0), pages, bytes });
        self.pieces.keep(room);
    }

    /// Whether there is memory for `bytes` more of what waits. If need be the device is taken to
    /// have nothing.
    fn has_memory_for(&mut self, bytes: usize) -> bool {
        if self.files.take_memory(bytes) {
            return true;
        }
        self.record.clear();
        self.files.take_memory(bytes)
    }
}

/// A block without the number of its open file, which changes from one opening to the next.
fn block_of_file(page: PageId) -> PageId {
    PageId::new(InodeId(0), page.index)
}

/// What a guess costs and saves on this connection, once that is known.
fn speculation(wire: &ServerConnection, block_bytes: u32) -> Option<Speculation> {
    let (rate, round_trip) = wire.push_path()?;
    let bytes = u64::from(block_bytes) + FRAME_HEAD_BYTES;
    Some(Speculation { block: Duration::from_micros(bytes.saturating_mul(1_000_000) / rate.max(1)), round_trip })
}

/// Bytes of data in the next piece: little of a second, and little of what the link holds, since a
/// rate alone is easily taken for too high when credits come in bursts.
fn piece_bytes(wire: &ServerConnection) -> usize {
    let Some((rate, round_trip)) = wire.push_rate().zip(wire.push_round_trip()) else { return 0 };
    let product = u128::from(rate) * round_trip.as_micros() / 1_000_000;
    u128::from(rate / PIECES_PER_SECOND).min(product / 2).min(PIECE_BYTES_MAX as u128) as usize
}
