//! The push streams of one connection: the pages that the predictor orders become pieces, as fast
//! as the wire takes them.
//!
//! A *sequence* is what one running program is being pushed: pages of one action, from a first
//! position to the last one ordered so far. Later orders extend it. A mismatch, the client, or the
//! end of the program ends it. A zstd stream is made in order, so a sequence has at most one
//! piece being built; several sequences take turns. No more is built than the wire's in-flight
//! window has room for.
//!
//! The pieces come from the action's bundle if there is one that fits (`choose`), from wherever the
//! push begins (`bundled`). Pages that it lacks, or all pages if there is no bundle, are compressed
//! live, without those that the device has from us.

mod blocks;
mod bundled;
mod choose;
mod file_push;
mod file_pushes;
mod hint;
mod part;
mod piece;
mod progress;
mod queue;
mod sequence;
mod shares;
mod streams;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;
use units::{ImageId, PAGE_BYTES, PageId, SEGMENT_PAGES_MAX, StreamId, Token};
use wire::{ErrorCode, ImageHandle, PushEndReason, PushPiece, PushPosition, ServerConnection};

use crate::advice::Advice;
use crate::config::Provider;
use crate::device::Device;
use crate::done::{Built, Done, DoneSender, Piece};
use crate::error::Failure;
use crate::handles::Handles;
use crate::peer::Owner;
use crate::proofs::{Proofs, Proven};
use crate::published::Published;
use crate::shared::Shared;
pub(crate) use blocks::BlockPusher;
use bundled::Step;
use piece::{Coding, Work, compress};
use queue::PieceQueue;
pub(crate) use sequence::PAGE_BYTES_EXPECTED;
use sequence::{LiveCoding, Pushing, Sequence, Source};

/// Ended sequences that are remembered, so that their last pages are still found to be on the way.
const ENDED_MAX: usize = 32;

/// What a piece under construction is expected to add to the queue.
const PIECE_BYTES_EXPECTED: usize = PAGE_BYTES_EXPECTED * SEGMENT_PAGES_MAX;

/// Pieces begun before bytes go to the socket again. One out of the page cache takes 20
/// microseconds, in which a connection does nothing else.
const PIECES_AT_ONCE: usize = 8;

/// Pieces looked at for that, those included of which the device needs nothing: some microseconds
/// each, and more pieces than the Predictor orders ahead.
const PIECES_LOOKED_AT: usize = 256;

/// A demanded page that is so many times the bytes of its answer away in a push comes with the
/// push. Answering would delay all that the program needs next by these bytes, to bring one page of
/// them sooner; and the block holds pages that are pushed all the same. Four blocks are three to
/// four segments: less than the client waits before it insists.
const ANSWERS_AHEAD_MAX: usize = 4;

// Panics where a touch found a piece of a stopped push under construction: the fuzzer of sessions
// must find that.
#[cfg(test)]
thread_local!(pub(crate) static CANARY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });

/// The push side of one connection.
pub(crate) struct PagePusher {
    shared: Arc<Shared>,
    device: Arc<Device>,
    owner: Owner,
    advice: UnboundedSender<Box<Advice>>,
    pieces: PieceQueue,
    /// Chunk hashes that were sent on this connection, for pages that are pushed or demanded.
    proofs: Proofs,
    sequences: Vec<Sequence>,
    numbers: u64,
    /// Sequence whose turn it is.
    turn: usize,
    /// A page was touched that is not coming yet, since the last piece was begun: one piece goes
    /// before anything else.
    touched: bool,
    /// Stopped sequences of which a piece is being built.
    #[cfg(test)]
    orphans: std::collections::HashSet<u64>,
}

impl PagePusher {
    pub fn new(
        shared: Arc<Shared>,
        device: Arc<Device>,
        owner: Owner,
        done: DoneSender,
        advice: UnboundedSender<Box<Advice>>,
    ) -> PagePusher {
        PagePusher {
            device,
            owner,
            pieces: PieceQueue::new(shared.builders.clone(), owner, done),
            advice,
            proofs: Proofs::default(),
            sequences: Vec::new(),
            numbers: 0,
            turn: 0,
            touched: false,
            shared,
            #[cfg(test)]
            orphans: std::collections::HashSet::new(),
        }
    }

    /// Acts on what the Predictor said of a token.
    pub fn advise(&mut self, wire: &mut ServerConnection, handles: &Handles, advice: Advice) {
        let (image, token) = (advice.image, advice.token);
        if advice.ended {
            self.end_token(wire, image, token, PushEndReason::TokenEnded);
            return;
        }
        if advice.cancel {
            self.end_token(wire, image, token, PushEndReason::Mismatch);
        }
        if let Some(position) = advice.hold {
            let mine = self.sequences.iter_mut().filter(|sequence| sequence.is_for(image, token));
            mine.filter_map(Sequence::pushing_mut).for_each(|pushing| pushing.hold(position));
        }
        let Some(order) = advice.order else { return };
        if self.sequences.iter().any(|sequence| sequence.is_unwanted() && sequence.is_for(image, token)) {
            return;
        }
        let mine = self.sequences.iter_mut().filter(|sequence| sequence.is_for(image, token));
        let mut mine = mine.filter_map(Sequence::pushing_mut).peekable();
        if mine.peek().is_some() {
            // A bundle and what it lacks go on together.
            if !order.begins && mine.all(|pushing| pushing.extend(&order)) {
                return;
            }
            self.end_token(wire, image, token, PushEndReason::Mismatch);
        }
        self.begin(wire, handles, image, token, order, advice.cold);
    }

    /// Sends the chunk hashes of what is about to be sent, if the device takes them so.
    pub fn prove(
        &mut self,
        wire: &mut ServerConnection,
        handle: ImageHandle,
        image: &Published,
        of: Proven<'_>,
    ) -> Result<(), Failure> {
        self.proofs.send(wire, handle, image, of)
    }

    /// A program needs a page: if it is not coming yet, pages have their turn.
    pub fn touched(&mut self, wire: &ServerConnection, image: ImageId, page: PageId) {
        #[cfg(test)]
        assert!(!CANARY.get() || self.orphans.is_empty(), "canary");
        let coming = |sequence: &Sequence| {
            let sent = |stream| wire.push_position(stream, page) != PushPosition::Absent;
            sequence.image.id == image && (sequence.builds(page) || sequence.stream().is_some_and(sent))
        };
        self.touched |= !self.sequences.iter().any(coming);
    }

    /// Builds pieces while the wire has room for them and no more than `bytes_max` are queued.
    /// While something else `presses`, only what a touch called for: one piece.
    pub fn pump(&mut self, wire: &mut ServerConnection, bytes_max: usize, presses: bool) {
        self.pieces.release(wire);
        let mut begun = 0;
        for _ in 0..PIECES_LOOKED_AT {
            if begun == PIECES_AT_ONCE || presses && !self.touched {
                return;
            }
            let pushing = || self.sequences.iter().map(Sequence::pushing);
            let building = self.sequences.iter().filter(|sequence| sequence.is_building()).count();
            let expected = building * PIECE_BYTES_EXPECTED;
            if !wire.has_proof_room() || wire.push_room() <= expected || self.pieces.bytes() + expected >= bytes_max {
                return;
            }
            let count = self.sequences.len();
            let turns = pushing().enumerate().cycle().skip(self.turn.min(count)).take(count);
            let can_prove =
                |at: usize| self.sequences.get(at).is_some_and(|it| !wire.takes_proofs() || it.image.proves());
            let ready =
                |(at, pushing): (usize, Option<&Pushing>)| Some((at, pushing?.piece_end()?)).filter(|_| can_prove(at));
            let Some((at, through)) = turns.filter_map(ready).next() else { return };
            self.turn = (at + 1) % count;
            // What the device has is passed over at once.
            if self.build_piece(wire, at, through) {
                begun += 1;
                self.touched = false;
            }
        }
    }

    /// Builds the piece of a sequence that ends at position `through`; false if the device needs
    /// nothing of it.
    fn build_piece(&mut self, wire: &mut ServerConnection, at: usize, through: u32) -> bool {
        let Some((image, work)) = self.next_work(wire, at, through) else {
            if let Some(pushing) = self.sequences.get_mut(at).and_then(Sequence::pushing_mut) {
                pushing.progress.finish_piece();
            }
            self.finish_if_complete(wire, at);
            return false;
        };
        let Some(sequence) = self.sequences.get_mut(at) else { return false };
        let number = sequence.number;
        let Some(pushing) = sequence.pushing_mut() else { return false };
        let bytes_max = work.pages.len() * PAGE_BYTES;
        if let Coding::Bundle { bundle, piece, codec } = &work.coding
            && let Some(room) = self.pieces.try_room(bytes_max)
            && let Some(bytes) = bundle.cached_piece(*piece, *codec, &self.shared.blocks)
        {
            let piece = bytes.map(|bytes| Piece { pages: work.pages, bytes, encoder: None });
            self.built(wire, Built { sequence: number, from_bundle: true, piece, room });
            return true;
        }
        let ahead = match self.shared.config.learning.provider {
            Provider::Nv => image.absent_blocks(&pushing.take_ahead(self.shared.config.learning.pages_ahead())),
            _ => Vec::new(),
        };
        let blocks = self.shared.blocks.clone();
        let from_bundle = matches!(work.coding, Coding::Bundle { .. });
        let work = move || {
            let Work { pages, coding } = work;
            let made = match coding {
                Coding::Bundle { bundle, piece, codec } => {
                    bundle.load_piece(piece, codec, &blocks).map(|bytes| (bytes, None))
                }
                Coding::Live(coding) => compress(&image, &pages, coding),
            };
            image.read_ahead(&ahead);
            made.map(|(bytes, encoder)| Piece { pages, bytes, encoder })
        };
        let built = move |piece, room| Done::Built(Built { sequence: number, from_bundle, piece, room });
        self.pieces.build(bytes_max, work, built);
        true
    }

    /// Begins the piece of a sequence that ends at position `through`. `None` if the device needs
    /// nothing of it.
    fn next_work(&mut self, wire: &ServerConnection, at: usize, through: u32) -> Option<(Arc<Published>, Work)> {
        let speed = self.speed(wire);
        let device = self.device.clone();
        let sequence = self.sequences.get_mut(at)?;
        let image = sequence.image.clone();
        let lacks = |pages: &[PageId]| device.lacks(&image, pages);
        let pushing = sequence.pushing_mut()?;
        let from = pushing.progress.next();
        let wanted = pushing.progress.begin_piece(through);
        let wanted_count = wanted.len();
        let work = match &mut pushing.source {
            Source::Bundle(bundled) => {
                let (bundle, piece) = (bundled.bundle.clone(), from / bundled.bundle.piece_pages.max(1));
                match bundled.step(piece, &lacks, &speed) {
                    Step::Skip => None,
                    Step::Whole(codec) => Some((wanted, Coding::Bundle { bundle, piece, codec })),
                    Step::Some(codec, pages) => Some((pages, Coding::Live(LiveCoding::Independent(codec)))),
                }
            }
            source => {
                let lacking = lacks(&wanted);
                let pages: Vec<PageId> =
                    wanted.into_iter().zip(lacking).filter(|(_, lacks)| *lacks).map(|(page, _)| page).collect();
                (!pages.is_empty()).then(|| (pages, Coding::Live(source.take_coding(&speed))))
            }
        };
        let pages = work.as_ref().map_or(0, |(pages, _)| pages.len());
        self.shared.metrics.pages_push_skipped.add((wanted_count - pages) as u64);
        work.map(|(pages, coding)| (image, Work { pages, coding }))
    }

    /// Reads the blocks of the next segments while the piece before them is on its way (SYSFLOW's
    /// Provider).
    fn read_ahead(&mut self, at: usize) {
        if !matches!(self.shared.config.learning.provider, Provider::NvAsync | Provider::Bundle) {
            return;
        }
        // It only saves time: if the disk is busy already, it would take time from demands.
        let Some(slot) = self.shared.readers.reads().try_take(self.owner, 1) else { return };
        let Some(sequence) = self.sequences.get_mut(at) else { return };
        let (image, span) = (sequence.image.clone(), self.shared.config.learning.pages_ahead());
        let pages = sequence.pushing_mut().map_or_else(Vec::new, |pushing| pushing.take_ahead(span));
        let blocks = image.absent_blocks(&pages);
        if blocks.is_empty() {
            return;
        }
        tokio::task::spawn_blocking(move || {
            image.read_ahead(&blocks);
            drop(slot);
        });
    }

    /// Queues a piece that was built.
    pub fn built(&mut self, wire: &mut ServerConnection, built: Built) {
        let Built { sequence: number, from_bundle, piece, room } = built;
        #[cfg(test)]
        self.orphans.remove(&number);
        // A sequence that ended meanwhile is gone, or takes no more pieces.
        let Some(at) = self.sequences.iter().position(|sequence| sequence.number == number) else { return };
        let Some(sequence) = self.sequences.get_mut(at) else { return };
        let image = sequence.image.id;
        let Some(pushing) = sequence.pushing_mut() else { return };
        let queued = match piece {
            Ok(Piece { pages, bytes, encoder: next }) => {
                if let Source::Live { encoder, .. } = &mut pushing.source {
                    *encoder = next;
                }
                if from_bundle {
                    self.shared.metrics.pages_from_bundle.add(pages.len() as u64);
                }
                self.queue(wire, at, &pages, bytes).map(|()| pages)
            }
            Err(failure) => {
                if from_bundle {
                    self.bundle_failed(at);
                }
                Err(failure)
            }
        };
        match queued {
            Ok(pages) => {
                self.device.sent(image, &pages);
                self.pieces.keep(room);
                self.read_ahead(at);
                self.finish_if_complete(wire, at);
            }
            Err(failure) => self.fail(wire, at, &failure),
        }
    }

    fn queue(&mut self, wire: &mut ServerConnection, at: usize, pages: &[PageId], bytes: Bytes) -> Result<(), Failure> {
        let refused = |refused: wire::Refused| Failure::new(ErrorCode::Internal, refused.to_string());
        let ended = || Failure::new(ErrorCode::Internal, "the push has ended");
        let sequence = self.sequences.get_mut(at).ok_or_else(ended)?;
        let header = sequence.header().ok_or_else(ended)?;
        let image = sequence.image.clone();
        let stream = match sequence.stream() {
            Some(stream) => stream,
            None => {
                let stream = wire.push_start(header).map_err(refused)?;
                sequence.set_stream(stream);
                stream
            }
        };
        let pushing = sequence.pushing_mut().ok_or_else(ended)?;
        let segment = pushing.segment();
        self.proofs.send(wire, header.image, &image, Proven::Pages(pages))?;
        self.shared.metrics.pages_pushed.add(pages.len() as u64);
        self.shared.metrics.push_bytes.add(bytes.len() as u64);
        wire.push(PushPiece { stream, segment, pages: pages.to_vec(), bytes }).map_err(refused)?;
        pushing.progress.finish_piece();
        sequence.remember(pages.to_vec());
        Ok(())
    }

    fn finish_if_complete(&mut self, wire: &mut ServerConnection, at: usize) {
        let Some(sequence) = self.sequences.get(at) else { return };
        if !sequence.pushing().is_some_and(|pushing| pushing.progress.is_complete()) {
            return;
        }
        if let Some(stream) = sequence.stream() {
            // Refused only if the connection is closed.
            let _ = wire.push_end(stream, PushEndReason::Complete);
        }
        self.shared.metrics.pushes_completed.one();
        self.charge(wire, at);
        self.close(at);
    }

    /// A piece of the bundle does not match its hash, or cannot be read: the bundle is made anew.
    fn bundle_failed(&self, at: usize) {
        let Some(sequence) = self.sequences.get(at) else { return };
        if let Some(Pushing { action, source: Source::Bundle(bundled), .. }) = sequence.pushing() {
            self.shared.metrics.bundles_failed.one();
            self.shared.replace_bundle(sequence.image.clone(), *action, bundled.bundle.key.clone());
        }
    }

    fn fail(&mut self, wire: &mut ServerConnection, at: usize, failure: &Failure) {
        let Some(sequence) = self.sequences.get(at) else { return };
        self.shared.log.warning(format_args!("a push of image {} failed: {failure}", sequence.image.id));
        self.cancel(wire, at, PushEndReason::Failed);
    }

    /// The client does not want the stream. The wire has dropped what was queued, and nobody knows
    /// how much that was.
    pub fn stopped(&mut self, stream: StreamId) {
        let Some(at) = self.sequences.iter().position(|sequence| sequence.stream() == Some(stream)) else { return };
        #[cfg(test)]
        self.orphans.extend(self.sequences.get(at).filter(|known| known.is_building()).map(|known| known.number));
        if self.close(at) {
            self.shared.metrics.pushes_cancelled.one();
        }
        let Some(sequence) = self.sequences.get_mut(at) else { return };
        sequence.queued().iter().for_each(|pages| self.device.not_sent(sequence.image.id, pages));
        sequence.set_unwanted();
    }

    fn end_token(&mut self, wire: &mut ServerConnection, image: ImageId, token: Token, reason: PushEndReason) {
        while let Some(at) = self.sequences.iter().position(|sequence| sequence.is_for(image, token)) {
            self.cancel(wire, at, reason);
            self.sequences.remove(at);
        }
        self.device.disown(self.owner.connection, image, token);
    }

    /// Ends a sequence at once; pages that were not handed out count as not sent.
    fn cancel(&mut self, wire: &mut ServerConnection, at: usize, reason: PushEndReason) {
        let Some(sequence) = self.sequences.get(at) else { return };
        if let Some(stream) = sequence.stream() {
            for pages in sequence.queued().iter().rev() {
                let waiting = |page: &PageId| matches!(wire.push_position(stream, *page), PushPosition::Queued { .. });
                if !pages.first().is_some_and(waiting) {
                    break;
                }
                self.device.not_sent(sequence.image.id, pages);
            }
            wire.cancel_push(stream, reason);
        }
        self.charge(wire, at);
        if self.close(at) {
            self.shared.metrics.pushes_cancelled.one();
        }
    }

    /// Nothing more is built for the sequence; its stream is remembered for a while. False if it
    /// had ended already.
    fn close(&mut self, at: usize) -> bool {
        let Some(sequence) = self.sequences.get_mut(at) else { return false };
        let (image, token) = (sequence.image.id, sequence.token);
        let goes = sequence.end();
        if !self.sequences.iter().any(|other| other.is_for(image, token) && !other.has_ended()) {
            self.device.disown(self.owner.connection, image, token);
        }
        goes
    }

    fn forget_ended(&mut self) {
        let ended = self.sequences.iter().filter(|sequence| sequence.has_ended()).count();
        let mut excess = ended.saturating_sub(ENDED_MAX);
        self.sequences.retain(|sequence| {
            let goes = sequence.has_ended() && excess > 0;
            excess -= usize::from(goes);
            !goes
        });
    }

    /// The stream that brings `page` so soon that an answer of `answer_bytes` to a demand would do
    /// more harm than good: the page was sent and is not credited yet, or leaves within the
    /// in-flight window, or not long after it.
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
        mine.filter_map(|sequence| sequence.stream().filter(|stream| soon(sequence, *stream))).next()
    }

    fn bytes_until(&self, sequence: &Sequence, page: PageId) -> Option<usize> {
        let pushing = sequence.pushing()?;
        let bytes = pushing.bytes_until(page)?;
        // What the device is thought to have is left out.
        self.device.lacks(&sequence.image, &[page]).contains(&true).then_some(bytes)
    }
}

impl Drop for PagePusher {
    fn drop(&mut self) {
        for sequence in &self.sequences {
            self.device.disown(self.owner.connection, sequence.image.id, sequence.token);
        }
    }
}
