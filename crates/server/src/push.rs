//! The push streams of one connection: what the Predictor orders becomes pieces, as fast as the wire takes them.
//!
//! A *sequence* is what one running program is being pushed: pages of one action from a first position to the last one
//! ordered so far. Later orders extend it; a mismatch, the client, or the end of the program ends it. Each sequence has
//! at most one piece being built at a time, on a blocking thread, because a compressed stream is made in order; several
//! sequences take turns. No more is built than the wire's in-flight window has room for.
//!
//! The pieces come from the action's bundle if there is one and it fits ([`Pusher::choose`]), otherwise they are
//! compressed live, leaving out pages that the device has from us already.

mod blocks;
mod course;
mod hint;
mod sequence;
mod shares;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use codec::StreamEncoder;
use tokio::sync::mpsc::UnboundedSender;
use units::{ActionId, ImageId, PAGE_BYTES, PageId, SEGMENT_PAGES_MAX, SegmentIndex, StreamId, Token};
use wire::{ImageHandle, PushEncoding, PushEndReason, PushHeader, PushPiece, PushPosition, ServerConnection};

use crate::accept::Shared;
use crate::blocks::locked;
use crate::budget::Room;
use crate::device::Device;
use crate::error::Failure;
use crate::provider::Provider;
use crate::published::Published;
use crate::session::{Done, Images};
pub(crate) use blocks::{BlockPusher, BuiltBlocks};
pub(crate) use sequence::PAGE_BYTES_EXPECTED;
use sequence::{Sequence, Source};

/// Programs pushed to at once on one connection. More than a small device starts at a time.
const SEQUENCES_MAX: usize = 16;

/// Ended sequences that are remembered, so that their last pages are still found to be on the way.
const ENDED_MAX: usize = 32;

/// zstd level of live streams. Level 6 takes 7 % off the bytes, but a program waits for the compressor: gcc, whose processes
/// share pages and so are pushed live, started in 1.41 s with level 6 and in 1.09 s with level 3 (the lab, WiFi).
const LIVE_LEVEL: i32 = 3;

/// Largest window of live streams: 1 MiB, so that an encoder takes about 5 MiB.
const LIVE_WINDOW_LOG_MAX: u8 = 20;

/// Smallest window worth compressing for; below it pieces are sent as they are.
const LIVE_WINDOW_LOG_MIN: u8 = 10;

/// What a piece under construction is expected to add to the queue.
const PIECE_BYTES_EXPECTED: usize = PAGE_BYTES_EXPECTED * SEGMENT_PAGES_MAX;

/// Push frames in flight or queued of one stream that are remembered for a cancel.
const QUEUED_MAX: usize = 128;

/// A demanded page that is so many times the bytes of its answer away in a push comes with the push. Answering would delay all
/// that the program needs next by these bytes, to bring one page of them sooner; and the block holds pages that are
/// pushed all the same. Four blocks are three to four segments: less than the client waits before it insists.
const ANSWERS_AHEAD_MAX: usize = 4;

/// Part of an action (in percent) that the device may have already and still be sent the whole bundle.
const BUNDLE_SENT_PERCENT_MAX: usize = 25;

/// What the Predictor says of one token, on its way to the connection that pushes to it.
#[derive(Debug)]
pub(crate) struct Advice {
    pub image: ImageId,
    pub token: Token,
    /// Stop what is being pushed.
    pub cancel: bool,
    /// The program ended.
    pub ended: bool,
    /// The touch showed that the device lost what it had been sent.
    pub cold: bool,
    pub order: Option<Ordered>,
}

impl Advice {
    /// The program ended.
    pub fn ended(image: ImageId, token: Token) -> Advice {
        Advice { image, token, cancel: false, ended: true, cold: false, order: None }
    }
}

/// A push order with its pages.
#[derive(Debug)]
pub(crate) struct Ordered {
    pub action: ActionId,
    pub revision: u32,
    /// A sequence begins here, whatever was pushed before; otherwise the order extends the current one.
    pub begins: bool,
    /// Position of the first of `pages` in the action.
    pub from: u32,
    pub pages: Vec<PageId>,
    /// The pages after `pages`, as many as the Provider reads ahead. Nobody ordered them yet.
    pub coming: Vec<PageId>,
    /// The page before `pages`, for an order that extends.
    pub before: Option<PageId>,
    /// Pages of the whole action.
    pub total: u32,
    pub segment_pages: u32,
    pub audit: bool,
}

impl Ordered {
    fn through(&self) -> u32 {
        self.from + self.pages.len() as u32
    }
}

/// A piece that was built.
pub(crate) struct Built {
    sequence: u64,
    pages: Vec<PageId>,
    bytes: Result<Bytes, Failure>,
    encoder: Option<Box<StreamEncoder>>,
    room: Option<Room>,
}

/// The push side of one connection.
pub(crate) struct Pusher {
    shared: Arc<Shared>,
    device: Arc<Device>,
    connection: u64,
    done: UnboundedSender<Done>,
    advice: UnboundedSender<Advice>,
    sequences: Vec<Sequence>,
    numbers: u64,
    /// Sequence whose turn it is.
    turn: usize,
    /// A page was touched that is not coming yet, since the last piece was begun: one piece goes before anything else.
    touched: bool,
    held: Room,
}

impl Pusher {
    pub fn new(
        shared: Arc<Shared>,
        device: Arc<Device>,
        connection: u64,
        done: UnboundedSender<Done>,
        advice: UnboundedSender<Advice>,
    ) -> Pusher {
        let held = shared.pushes.nothing();
        Pusher {
            shared,
            device,
            connection,
            done,
            advice,
            sequences: Vec::new(),
            numbers: 0,
            turn: 0,
            touched: false,
            held,
        }
    }

    /// Acts on what the Predictor said of a token.
    pub fn advise(&mut self, wire: &mut ServerConnection, images: &Images, advice: Advice) {
        let (image, token) = (advice.image, advice.token);
        if advice.ended {
            self.end_token(wire, image, token, PushEndReason::TokenEnded);
            return;
        }
        if advice.cancel {
            self.end_token(wire, image, token, PushEndReason::Mismatch);
        }
        let Some(order) = advice.order else { return };
        let unwanted = |sequence: &Sequence| sequence.unwanted && sequence.token == token && sequence.image.id == image;
        if self.sequences.iter().any(unwanted) {
            return;
        }
        let current = self
            .sequences
            .iter_mut()
            .find(|sequence| sequence.token == token && sequence.image.id == image && !sequence.ended);
        if let Some(sequence) = current {
            if !order.begins && sequence.extend(&order) {
                return;
            }
            self.end_token(wire, image, token, PushEndReason::Mismatch);
        }
        self.begin(wire, images, image, token, order, advice.cold);
    }

    /// Begins a sequence; false if nothing can be pushed now.
    fn begin(
        &mut self,
        wire: &ServerConnection,
        images: &Images,
        image: ImageId,
        token: Token,
        order: Ordered,
        cold: bool,
    ) -> bool {
        let Some(hello) = wire.hello().filter(|hello| hello.push_bytes_max > 0) else { return false };
        let Some((handle, image)) = images.by_id(image) else { return false };
        let active = self.sequences.iter().filter(|sequence| !sequence.ended).count();
        if active >= SEQUENCES_MAX || order.pages.is_empty() {
            return false;
        }
        // A program that starts over from its first page, which the device has dropped, starts cold. One page lost in the middle
        // of an action says nothing about the others.
        if cold && order.from <= 1 {
            self.device.forget(image.id);
        }
        let Some(source) = self.choose(&image, &order, hello.window_log_max) else { return false };
        if !self.device.own(self.connection, image.id, token, &self.advice) {
            return false;
        }
        self.shared.metrics.pushes_started.one();
        // A bundle is one stream from its first page on, even if the program is a page or two into it.
        let (base, next, pages, coming) = match &source {
            Source::Bundle(bundle) => {
                self.shared.metrics.pushes_from_bundle.one();
                (0, 0, bundle.pages[..order.through() as usize].to_vec(), Vec::new())
            }
            _ => (order.from, order.from, order.pages, order.coming),
        };
        self.numbers += 1;
        self.sequences.push(Sequence {
            number: self.numbers,
            token,
            handle,
            image,
            action: order.action,
            revision: order.revision,
            audit: order.audit,
            total: order.total,
            segment_pages: order.segment_pages,
            base,
            pages,
            coming,
            next,
            queued_through: next,
            ahead: next,
            source,
            building: false,
            stream: None,
            ended: false,
            unwanted: false,
            queued: VecDeque::new(),
        });
        self.forget_ended();
        true
    }

    /// A bundle if the push starts in the first segment, the device affords its window and has little of it; otherwise
    /// live compression. `None` if too many streams are compressed already.
    fn choose(&self, image: &Published, order: &Ordered, window_log_max: u8) -> Option<Source> {
        let bundle = locked(&image.bundles).get(&order.action).cloned();
        if let Some((revision, bundle)) = bundle
            && revision == order.revision
            && order.from < bundle.piece_pages
            && bundle.window_log <= window_log_max
            && bundle.pages.len() == order.total as usize
        {
            let has = self.device.has(image.id, &bundle.pages).iter().filter(|has| **has).count();
            if has * 100 <= bundle.pages.len() * BUNDLE_SENT_PERCENT_MAX {
                return Some(Source::Bundle(bundle));
            }
        }
        if window_log_max < LIVE_WINDOW_LOG_MIN {
            return Some(Source::Stored);
        }
        let slot = self.shared.live_streams.clone().try_acquire_owned().ok()?;
        let window_log = window_log_max.min(LIVE_WINDOW_LOG_MAX);
        match StreamEncoder::new(LIVE_LEVEL, window_log.into()) {
            Ok(encoder) => Some(Source::Live { encoder: Some(Box::new(encoder)), window_log, _slot: slot }),
            Err(error) => {
                self.shared.log.warning(format_args!("a push stream cannot be compressed: {error}"));
                None
            }
        }
    }

    /// A program needs a page: if it is not coming yet, pages have their turn.
    pub fn touched(&mut self, wire: &ServerConnection, image: ImageId, page: PageId) {
        let coming = |sequence: &Sequence| {
            let sent = |stream| wire.push_position(stream, page) != PushPosition::Absent;
            sequence.image.id == image && (sequence.is_building(page) || sequence.stream.is_some_and(sent))
        };
        self.touched |= !self.sequences.iter().any(coming);
    }

    /// Builds pieces while the wire has room for them and no more than `bytes_max` are queued. While something else `presses`, only
    /// what a touch called for: one piece.
    pub fn pump(&mut self, wire: &mut ServerConnection, bytes_max: usize, presses: bool) {
        self.held.shrink_to(wire.queued_push_bytes());
        while !presses || self.touched {
            let building = self.sequences.iter().filter(|sequence| sequence.building).count();
            let expected = building * PIECE_BYTES_EXPECTED;
            if wire.push_room() <= expected || self.held.bytes() + expected >= bytes_max {
                return;
            }
            let count = self.sequences.len();
            let next = (0..count).map(|step| (self.turn + step) % count).find(|at| {
                let sequence = &self.sequences[*at];
                !sequence.building && !sequence.ended && sequence.next_piece().is_some()
            });
            let Some(at) = next else { return };
            self.turn = (at + 1) % count;
            self.build_piece(wire, at);
            self.touched = false;
        }
    }

    fn build_piece(&mut self, wire: &mut ServerConnection, at: usize) {
        let sequence = &mut self.sequences[at];
        let Some((from, through)) = sequence.next_piece() else { return };
        sequence.next = through;
        let wanted = sequence.page_range(from, through);
        let (pages, from_bundle) = match &sequence.source {
            Source::Bundle(bundle) => (wanted.to_vec(), Some((bundle.clone(), from / bundle.piece_pages))),
            _ => {
                let has = self.device.has(sequence.image.id, wanted);
                let lacking = wanted.iter().zip(&has).filter(|(page, has)| !**has && sequence.image.is_stored(**page));
                let pages: Vec<PageId> = lacking.map(|(page, _)| *page).collect();
                self.shared.metrics.pages_push_skipped.add((wanted.len() - pages.len()) as u64);
                (pages, None)
            }
        };
        if pages.is_empty() {
            sequence.queued_through = through;
            self.finish_if_complete(wire, at);
            return;
        }
        let encoder = match &mut sequence.source {
            Source::Live { encoder, .. } => encoder.take(),
            _ => None,
        };
        sequence.building = true;
        let (image, number) = (sequence.image.clone(), sequence.number);
        let (done, budget, builds) = (self.done.clone(), self.shared.pushes.clone(), self.shared.builds.clone());
        let ahead = match self.shared.config.provider {
            Provider::Nv => sequence.take_ahead(self.shared.config.pages_ahead()),
            _ => Vec::new(),
        };
        tokio::spawn(async move {
            let room = budget.take(pages.len() * PAGE_BYTES).await;
            let slot = builds.acquire_owned().await;
            let work = tokio::task::spawn_blocking(move || {
                let _slot = slot;
                let (bytes, encoder) = match from_bundle {
                    Some((bundle, piece)) => (bundle.piece(piece), None),
                    None => compress(&image, &pages, encoder),
                };
                image.read_ahead(&ahead);
                Built { sequence: number, pages, bytes, encoder, room: Some(room) }
            });
            let built = work.await.unwrap_or_else(|_| Built {
                sequence: number,
                pages: Vec::new(),
                bytes: Err(Failure::new(wire::ErrorCode::Internal, "building a piece of a push failed")),
                encoder: None,
                room: None,
            });
            // The connection may be gone.
            let _ = done.send(Done::Built(built));
        });
    }

    /// Reads the blocks of the next segments while the piece before them is on its way (SYSFLOW's Provider).
    fn read_ahead(&mut self, at: usize) {
        if !matches!(self.shared.config.provider, Provider::NvAsync | Provider::Bundle) {
            return;
        }
        // It only saves time: if the disk is busy already, it would take time from demands.
        let Ok(slot) = self.shared.reads.clone().try_acquire_owned() else { return };
        let sequence = &mut self.sequences[at];
        let (image, pages) = (sequence.image.clone(), sequence.take_ahead(self.shared.config.pages_ahead()));
        if pages.is_empty() {
            return;
        }
        tokio::task::spawn_blocking(move || {
            image.read_ahead(&pages);
            drop(slot);
        });
    }

    /// Queues a piece that was built.
    pub fn built(&mut self, wire: &mut ServerConnection, built: Built) {
        let Built { sequence: number, pages, bytes, encoder, room } = built;
        // A sequence that ended meanwhile is gone or marked so; its piece is dropped.
        let Some(at) = self.sequences.iter().position(|sequence| sequence.number == number) else { return };
        let sequence = &mut self.sequences[at];
        sequence.building = false;
        if let Source::Live { encoder: place, .. } = &mut sequence.source {
            *place = encoder;
        }
        if sequence.ended {
            return;
        }
        let queued = bytes.and_then(|bytes| self.queue(wire, at, &pages, bytes));
        match queued {
            Ok(()) => {
                self.device.sent(self.sequences[at].image.id, &pages);
                room.into_iter().for_each(|room| self.held.merge(room));
                self.read_ahead(at);
                self.finish_if_complete(wire, at);
            }
            Err(failure) => self.fail(wire, at, &failure),
        }
    }

    fn queue(&mut self, wire: &mut ServerConnection, at: usize, pages: &[PageId], bytes: Bytes) -> Result<(), Failure> {
        let refused = |refused: wire::Refused| Failure::new(wire::ErrorCode::Internal, refused.to_string());
        let sequence = &mut self.sequences[at];
        let stream = match sequence.stream {
            Some(stream) => stream,
            None => {
                let (encoding, window_log) = match &sequence.source {
                    Source::Bundle(bundle) => (PushEncoding::ZstdStream, bundle.window_log),
                    Source::Live { window_log, .. } => (PushEncoding::ZstdStream, *window_log),
                    Source::Stored => (PushEncoding::Stored, 0),
                };
                let stream = wire.push_start(PushHeader {
                    image: sequence.handle,
                    token: sequence.token,
                    action: sequence.action,
                    encoding,
                    window_log,
                    audit: sequence.audit,
                });
                *sequence.stream.insert(stream.map_err(refused)?)
            }
        };
        // `next` lies behind the piece, so the page before it tells the segment.
        let segment = SegmentIndex((sequence.next - 1) / sequence.segment_pages);
        self.shared.metrics.pages_pushed.add(pages.len() as u64);
        self.shared.metrics.push_bytes.add(bytes.len() as u64);
        wire.push(PushPiece { stream, segment, pages: pages.to_vec(), bytes }).map_err(refused)?;
        sequence.queued_through = sequence.next;
        sequence.queued.push_back(pages.to_vec());
        if sequence.queued.len() > QUEUED_MAX {
            sequence.queued.pop_front();
        }
        Ok(())
    }

    fn finish_if_complete(&mut self, wire: &mut ServerConnection, at: usize) {
        let sequence = &mut self.sequences[at];
        if sequence.next < sequence.total || sequence.building || sequence.ended {
            return;
        }
        if let Some(stream) = sequence.stream {
            // Refused only if the connection is closed.
            let _ = wire.push_end(stream, PushEndReason::Complete);
        }
        self.shared.metrics.pushes_completed.one();
        self.retire(at);
    }

    fn fail(&mut self, wire: &mut ServerConnection, at: usize, failure: &Failure) {
        let sequence = &mut self.sequences[at];
        self.shared.log.warning(format_args!("a push of image {} failed: {failure}", sequence.image.id));
        if let Source::Bundle(bundle) = &sequence.source {
            // It does not match its hashes, or cannot be read: make it anew.
            self.shared.metrics.bundles_failed.one();
            locked(&sequence.image.bundles).remove(&sequence.action);
            self.shared.replace_bundle(sequence.image.clone(), sequence.action, bundle.key.clone());
        }
        self.cancel(wire, at, PushEndReason::Failed);
    }

    /// The client does not want the stream. The wire has dropped what was queued, and nobody knows how much that was.
    pub fn stopped(&mut self, stream: StreamId) {
        let Some(at) = self.sequences.iter().position(|sequence| sequence.stream == Some(stream)) else { return };
        let sequence = &self.sequences[at];
        sequence.queued.iter().for_each(|pages| self.device.not_sent(sequence.image.id, pages));
        if !sequence.ended {
            self.shared.metrics.pushes_cancelled.one();
        }
        self.retire(at);
        self.sequences[at].unwanted = true;
    }

    fn end_token(&mut self, wire: &mut ServerConnection, image: ImageId, token: Token, reason: PushEndReason) {
        let mine = |sequence: &Sequence| sequence.token == token && sequence.image.id == image;
        while let Some(at) = self.sequences.iter().position(mine) {
            self.cancel(wire, at, reason);
            self.sequences.remove(at);
        }
        self.device.disown(self.connection, image, token);
    }

    /// Ends a sequence at once; pages that were not handed out count as not sent.
    fn cancel(&mut self, wire: &mut ServerConnection, at: usize, reason: PushEndReason) {
        let sequence = &self.sequences[at];
        if let Some(stream) = sequence.stream {
            for pages in sequence.queued.iter().rev() {
                let waiting = |page: &PageId| matches!(wire.push_position(stream, *page), PushPosition::Queued { .. });
                if !pages.first().is_some_and(waiting) {
                    break;
                }
                self.device.not_sent(sequence.image.id, pages);
            }
            wire.cancel_push(stream, reason);
        }
        if !sequence.ended {
            self.shared.metrics.pushes_cancelled.one();
            self.retire(at);
        }
    }

    /// Nothing more is built for the sequence. What it holds goes; its stream is remembered for a while.
    fn retire(&mut self, at: usize) {
        let sequence = &mut self.sequences[at];
        sequence.ended = true;
        sequence.source = Source::Stored;
        (sequence.pages, sequence.coming) = (Vec::new(), Vec::new());
        sequence.base = sequence.queued_through;
        self.device.disown(self.connection, sequence.image.id, sequence.token);
    }

    fn forget_ended(&mut self) {
        let ended = self.sequences.iter().filter(|sequence| sequence.ended).count();
        let mut excess = ended.saturating_sub(ENDED_MAX);
        self.sequences.retain(|sequence| {
            let goes = sequence.ended && excess > 0;
            excess -= usize::from(goes);
            !goes
        });
    }

    /// The stream that brings `page` so soon that an answer of `answer_bytes` to a demand would do more harm than good: the
    /// page was sent and is not credited yet, or leaves within the in-flight window, or not long after it.
    pub fn on_the_way(
        &self,
        wire: &ServerConnection,
        image: ImageHandle,
        page: PageId,
        answer_bytes: usize,
    ) -> Option<StreamId> {
        let room = wire.push_window_bytes().saturating_sub(wire.in_flight_push_bytes()) as usize;
        let ahead_max = room.max(answer_bytes.saturating_mul(ANSWERS_AHEAD_MAX));
        let soon = |sequence: &Sequence, stream| match wire.push_position(stream, page) {
            PushPosition::Sent => true,
            PushPosition::Queued { bytes_ahead } => bytes_ahead <= ahead_max,
            PushPosition::Absent => self
                .bytes_until(sequence, page)
                .is_some_and(|bytes| wire.queued_push_bytes().saturating_add(bytes) <= ahead_max),
        };
        let mine = self.sequences.iter().filter(|sequence| sequence.handle == image);
        mine.filter_map(|sequence| sequence.stream.filter(|stream| soon(sequence, *stream))).next()
    }

    fn bytes_until(&self, sequence: &Sequence, page: PageId) -> Option<usize> {
        let bytes = sequence.bytes_until(page)?;
        // Live streams leave out what the device is thought to have.
        let skipped = !matches!(sequence.source, Source::Bundle(_))
            && (self.device.has(sequence.image.id, &[page])[0] || !sequence.image.is_stored(page));
        (!skipped).then_some(bytes)
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        for sequence in &self.sequences {
            self.device.disown(self.connection, sequence.image.id, sequence.token);
        }
    }
}

/// The bytes of a piece: the pages' valid bytes in order, compressed if there is an encoder.
fn compress(
    image: &Published,
    pages: &[PageId],
    encoder: Option<Box<StreamEncoder>>,
) -> (Result<Bytes, Failure>, Option<Box<StreamEncoder>>) {
    let mut raw = Vec::with_capacity(pages.len() * PAGE_BYTES);
    for page in pages {
        if let Err(failure) = image.page(*page, &mut raw) {
            return (Err(failure), encoder);
        }
    }
    let Some(mut encoder) = encoder else { return (Ok(Bytes::from(raw)), None) };
    let mut stored = Vec::new();
    let bytes = match encoder.piece(&raw, &mut stored) {
        Ok(()) => Ok(Bytes::from(stored)),
        Err(error) => Err(Failure::new(wire::ErrorCode::Internal, error.to_string())),
    };
    (bytes, Some(encoder))
}
