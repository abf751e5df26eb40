//! The push streams of one connection: queued frames, frames in flight, and the window that limits
//! them.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use units::{Moment, PageId, StreamId};

use crate::coding::Frame;
use crate::encode;
use crate::error::{Refused, WireError};
use crate::format::{
    FEATURE_DECODED, FEATURE_LONE_PAGES, FEATURE_PROOFS, FEATURE_START, PROOF_BYTES_MAX, PROOF_QUEUE_BYTES_MAX,
    PUSH_BYTES_MAX, PUSH_FRAMES_MAX, PUSH_PAGES_MAX, PUSH_QUEUE_BYTES_MAX, PUSH_READY_BYTES, START_BYTES_MAX,
    STREAMS_MAX, ServerKind,
};
use crate::message::{ImageHandle, PushEndReason, PushPiece, ServerMessage};
use crate::server::{ServerConnection, State};
use crate::window::{Stamp, Window};

/// Where a page of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushPosition {
    /// Sent and not credited yet: the client has it or will soon.
    Sent,
    /// Queued; it is complete after so many further push bytes, those of its own frame included.
    Queued {
        /// Push bytes to send until then.
        bytes_ahead: usize,
    },
    /// Not in the stream, or credited already.
    Absent,
}

/// Push streams of one connection.
#[derive(Debug)]
pub(crate) struct PushQueue {
    pub window: Window,
    last: u32,
    streams: BTreeMap<u32, Stream>,
    live: usize,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    in_flight_bytes: u64,
    in_flight_frames: usize,
    /// The part of `queued_bytes` and `in_flight_bytes` that is of volumes.
    volume_queued_bytes: usize,
    volume_in_flight_bytes: u64,
}

#[derive(Debug, Default)]
struct Stream {
    /// It carries blocks of a volume.
    volume: bool,
    /// Set when no further frame is accepted; the end follows the last queued frame.
    ending: Option<PushEndReason>,
    queued: usize,
    sent: VecDeque<Sent>,
    /// Credited bytes of the oldest sent frame.
    credited: u64,
}

#[derive(Debug)]
struct Queued {
    stream: StreamId,
    volume: bool,
    pages: Vec<PageId>,
    frame: Frame,
}

#[derive(Debug)]
struct Sent {
    pages: Vec<PageId>,
    bytes: u64,
    stamp: Stamp,
}

/// A frame to send, from `PushQueue::take`.
pub(crate) struct Taken {
    pub frame: Frame,
    /// The frame was the last of its stream.
    pub end: Option<ServerMessage>,
}

impl PushQueue {
    pub fn new(window_bytes_max: u64) -> PushQueue {
        PushQueue {
            window: Window::new(window_bytes_max),
            last: 0,
            streams: BTreeMap::new(),
            live: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            in_flight_bytes: 0,
            in_flight_frames: 0,
            volume_queued_bytes: 0,
            volume_in_flight_bytes: 0,
        }
    }

    /// Starts a stream of an image or a volume.
    pub fn start(&mut self, volume: bool) -> Result<StreamId, Refused> {
        if self.live >= STREAMS_MAX {
            return Err(Refused::Full { what: "push streams", max: STREAMS_MAX });
        }
        let number = self.last.checked_add(1).ok_or(Refused::Full { what: "streams", max: u32::MAX as usize })?;
        self.last = number;
        self.live += 1;
        self.streams.insert(number, Stream { volume, ..Stream::default() });
        Ok(StreamId(number))
    }

    pub fn push(&mut self, piece: PushPiece) -> Result<(), Refused> {
        let limit = |what, found: usize, max: usize| {
            let (found, max) = (found as u64, max as u64);
            if found < 1 || found > max { Err(Refused::Limit { what, found, min: 1, max }) } else { Ok(()) }
        };
        limit("pages of a push", piece.pages.len(), PUSH_PAGES_MAX)?;
        limit("bytes of a push", piece.bytes.len(), PUSH_BYTES_MAX)?;
        if self.queued_bytes >= PUSH_QUEUE_BYTES_MAX {
            return Err(Refused::Full { what: "queued push bytes", max: PUSH_QUEUE_BYTES_MAX });
        }
        if self.queue.len() + self.in_flight_frames >= PUSH_FRAMES_MAX {
            return Err(Refused::Full { what: "push frames", max: PUSH_FRAMES_MAX });
        }
        let state = self.streams.get_mut(&piece.stream.0).filter(|state| state.ending.is_none());
        let state = state.ok_or(Refused::UnknownStream(piece.stream))?;
        state.queued += 1;
        let volume = state.volume;
        let kind = if volume { ServerKind::VolumePush } else { ServerKind::Push };
        let frame = encode::push(kind, &piece);
        self.queued_bytes += frame.bytes();
        self.volume_queued_bytes += if volume { frame.bytes() } else { 0 };
        self.queue.push_back(Queued { stream: piece.stream, volume, pages: piece.pages, frame });
        Ok(())
    }

    /// Ends the stream behind its queued frames; the end itself, if nothing is queued.
    pub fn end(&mut self, stream: StreamId, reason: PushEndReason) -> Result<Option<ServerMessage>, Refused> {
        let state = self.streams.get_mut(&stream.0).filter(|state| state.ending.is_none());
        let state = state.ok_or(Refused::UnknownStream(stream))?;
        state.ending = Some(reason);
        Ok(if state.queued == 0 { Some(self.close(stream, reason)) } else { None })
    }

    /// Drops what is queued of the stream and ends it; `None` if it has ended already.
    pub fn cancel(&mut self, stream: StreamId, reason: PushEndReason) -> Option<(ServerMessage, usize)> {
        let state = self.streams.get_mut(&stream.0)?;
        if state.ending.is_some() && state.queued == 0 {
            return None;
        }
        state.ending = Some(reason);
        let dropped = self.retain(stream, |_| false);
        Some((self.close(stream, reason), dropped))
    }

    /// Drops queued frames of the stream, unless `keep` wants their pages; returns their bytes.
    pub fn retain(&mut self, stream: StreamId, keep: impl Fn(&[PageId]) -> bool) -> usize {
        let (before, frames) = (self.queued_bytes, self.queue.len());
        self.queue.retain(|queued| queued.stream != stream || keep(&queued.pages));
        self.queued_bytes = self.queue.iter().map(|queued| queued.frame.bytes()).sum();
        let volumes = self.queue.iter().filter(|queued| queued.volume);
        self.volume_queued_bytes = volumes.map(|queued| queued.frame.bytes()).sum();
        if let Some(state) = self.streams.get_mut(&stream.0) {
            state.queued -= frames - self.queue.len();
        }
        before - self.queued_bytes
    }

    /// Bytes of volumes that may be under way.
    fn volume_window_bytes(&self) -> u64 {
        let volumes = self.streams.values().filter(|stream| stream.volume);
        let largest = volumes.flat_map(|stream| &stream.sent).map(|sent| sent.bytes).max();
        self.window.volume_bytes(largest.unwrap_or(0))
    }

    /// The next frame, if a window lets one go. Frames of images and of volumes overtake each other
    /// when only one of their windows is open.
    pub fn take(&mut self, now: Moment) -> Option<Taken> {
        let image_open = self.in_flight_bytes < self.window.bytes();
        let volume_open = self.volume_in_flight_bytes < self.volume_window_bytes();
        let open = |queued: &Queued| if queued.volume { volume_open } else { image_open };
        // With nothing queued, a window that is full is what limits the rate, not the want of data.
        if self.queue.is_empty() && image_open && (volume_open || self.volume_in_flight_bytes == 0) {
            self.window.idle(self.in_flight_bytes);
            return None;
        }
        let at = self.queue.iter().position(open)?;
        let Queued { stream, volume, pages, frame } = self.queue.remove(at)?;
        let bytes = frame.bytes() as u64;
        self.queued_bytes -= frame.bytes();
        if volume {
            self.volume_queued_bytes -= frame.bytes();
            self.volume_in_flight_bytes += bytes;
        }
        let stamp = self.window.sent(now, self.in_flight_bytes);
        self.in_flight_bytes += bytes;
        self.in_flight_frames += 1;
        let mut end = None;
        if let Some(state) = self.streams.get_mut(&stream.0) {
            state.sent.push_back(Sent { pages, bytes, stamp });
            state.queued -= 1;
            if let Some(reason) = state.ending.filter(|_| state.queued == 0) {
                end = Some(self.close(stream, reason));
            }
        }
        Some(Taken { frame, end })
    }

    /// The client took `bytes` of the stream.
    pub fn credit(&mut self, now: Moment, stream: StreamId, bytes: u32) -> Result<(), WireError> {
        if stream.0 > self.last {
            return Err(WireError::UnknownStream { kind: "Credit", stream });
        }
        let found = u64::from(bytes);
        let overrun = |expected| WireError::CreditOverrun { stream, found, expected };
        let state = self.streams.get_mut(&stream.0).ok_or_else(|| overrun(0))?;
        let in_flight = state.sent.iter().map(|sent| sent.bytes).sum::<u64>() - state.credited;
        if found > in_flight {
            return Err(overrun(in_flight));
        }
        self.in_flight_bytes -= found;
        self.volume_in_flight_bytes -= if state.volume { found } else { 0 };
        state.credited += found;
        while let Some(front) = state.sent.front().filter(|front| front.bytes <= state.credited) {
            self.window.credited(now, front.stamp, front.bytes, self.in_flight_bytes);
            state.credited -= front.bytes;
            state.sent.pop_front();
            self.in_flight_frames -= 1;
        }
        if state.sent.is_empty() && state.queued == 0 && state.ending.is_some() {
            self.streams.remove(&stream.0);
        }
        Ok(())
    }

    /// Whether the number was given to a stream, open or not.
    pub fn was_started(&self, stream: StreamId) -> bool {
        (1..=self.last).contains(&stream.0)
    }

    pub fn position(&self, stream: StreamId, page: PageId) -> PushPosition {
        let Some(state) = self.streams.get(&stream.0) else { return PushPosition::Absent };
        if state.sent.iter().any(|sent| sent.pages.contains(&page)) {
            return PushPosition::Sent;
        }
        let mut bytes_ahead = 0;
        for queued in &self.queue {
            bytes_ahead += queued.frame.bytes();
            if queued.stream == stream && queued.pages.contains(&page) {
                return PushPosition::Queued { bytes_ahead };
            }
        }
        PushPosition::Absent
    }

    /// Bytes a caller should queue now: what the window allows and a little more that stands
    /// ready.
    pub fn room(&self) -> usize {
        if self.queue.len() + self.in_flight_frames >= PUSH_FRAMES_MAX {
            return 0;
        }
        // Frames that are ready would be sent before blocks that are needed sooner.
        let ready = if self.window.is_shared() { 0 } else { PUSH_READY_BYTES };
        let wanted = self.window.bytes() + ready;
        wanted.saturating_sub(self.in_flight_bytes + self.queued_bytes as u64) as usize
    }

    /// The same for volumes: what their window allows, and one frame that stands ready, so that a
    /// touch which decides between ways finds little queued.
    pub fn volume_room(&self) -> usize {
        if self.queue.len() + self.in_flight_frames >= PUSH_FRAMES_MAX {
            return 0;
        }
        let window = self.volume_window_bytes().saturating_sub(self.volume_in_flight_bytes) as usize;
        window.saturating_sub(self.volume_queued_bytes).max(usize::from(self.volume_queued_bytes == 0))
    }

    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// The frame that ends the stream. Its record stays until everything sent is credited.
    fn close(&mut self, stream: StreamId, reason: PushEndReason) -> ServerMessage {
        self.live -= 1;
        if self.streams.get(&stream.0).is_some_and(|state| state.sent.is_empty()) {
            self.streams.remove(&stream.0);
        }
        ServerMessage::PushEnd { stream, reason }
    }
}

// volumes
impl ServerConnection {
    /// A volume is open: its blocks and pages of images share the link from now on.
    pub fn share_pushes(&mut self) {
        self.push.window.share();
    }

    /// Push bytes of volumes that the server should queue now. 0 if the device wants no push.
    pub fn volume_push_room(&self) -> usize {
        let wanted = matches!(self.state, State::Ready) && self.hello.is_some_and(|hello| hello.push_bytes_max > 0);
        if wanted { self.push.volume_room() } else { 0 }
    }

    /// Drops what is queued of a stream, unless `keep` wants the pages of a frame. A frame that was
    /// sent, even in part, cannot be recalled.
    pub fn retain_pushes(&mut self, stream: StreamId, keep: impl Fn(&[PageId]) -> bool) {
        // One that is ending stays, so that its end comes behind its last frame.
        if self.push.streams.get(&stream.0).is_some_and(|state| state.ending.is_none()) {
            self.traffic.push_bytes_dropped += self.push.retain(stream, keep) as u64;
        }
    }
}

// what is sent unasked
impl ServerConnection {
    /// Whether the client takes the start of an image before the answer to Open.
    pub fn takes_start(&self) -> bool {
        self.hello.is_some_and(|hello| hello.features & FEATURE_START != 0)
    }

    /// Sends a part of superblock or metadata, before the answer to Open: the superblock, then the
    /// metadata from its beginning on, as much as a mount needs or less.
    ///
    /// # Errors
    /// [`Refused`] if the connection is not ready, the client does not take it, or there are too
    /// many bytes or none.
    pub fn start(&mut self, image: ImageHandle, offset: u64, bytes: Bytes) -> Result<(), Refused> {
        self.check_ready()?;
        if !self.takes_start() {
            return Err(Refused::NoFeature("start"));
        }
        let found = bytes.len() as u64;
        if !(1..=START_BYTES_MAX as u64).contains(&found) {
            return Err(Refused::Limit { what: "bytes of a start", found, min: 1, max: START_BYTES_MAX as u64 });
        }
        self.outgoing.push_unasked(encode::server(&ServerMessage::Start { image, offset, bytes }));
        Ok(())
    }

    /// Whether the client takes proofs of chunk hashes.
    pub fn takes_proofs(&self) -> bool {
        self.hello.is_some_and(|hello| hello.features & FEATURE_PROOFS != 0)
    }

    /// Whether the client takes decoded blocks.
    pub fn takes_decoded(&self) -> bool {
        self.hello.is_some_and(|hello| hello.features & FEATURE_DECODED != 0)
    }

    /// Whether the client takes a page as the answer to a demand of its block.
    pub fn takes_lone_pages(&self) -> bool {
        self.hello.is_some_and(|hello| hello.features & FEATURE_LONE_PAGES != 0)
    }

    /// Sends chunk hashes with a proof. They leave after replies that are queued, and before
    /// replies and pushes that will be.
    ///
    /// # Errors
    /// [`Refused`] if the connection is not ready, the client does not take proofs, or the proof is
    /// too long.
    pub fn hashes(&mut self, image: ImageHandle, proof: Bytes) -> Result<(), Refused> {
        self.check_ready()?;
        if !self.takes_proofs() {
            return Err(Refused::NoFeature("proofs"));
        }
        let found = proof.len() as u64;
        if !(1..=PROOF_BYTES_MAX as u64).contains(&found) {
            return Err(Refused::Limit { what: "bytes of a proof", found, min: 1, max: PROOF_BYTES_MAX as u64 });
        }
        self.outgoing.push_unasked(encode::server(&ServerMessage::Hashes { image, proof }));
        Ok(())
    }

    /// Whether so many bytes of proofs and replies are queued that no push should be built.
    pub fn has_proof_room(&self) -> bool {
        self.outgoing.reply_bytes() < PROOF_QUEUE_BYTES_MAX
    }
}
