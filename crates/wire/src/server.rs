//! The server's half of one connection, without sockets and clocks: bytes and `now` in, events and
//! bytes out.
//!
//! The owner passes bytes from the socket to [`ServerConnection::receive`]. It takes events with
//! [`ServerConnection::poll_event`] until there are none or [`ServerConnection::is_congested`], and
//! writes to the socket what [`ServerConnection::transmit`] returns. It calls
//! [`ServerConnection::tick`] at [`ServerConnection::deadline`]. It stops reading while
//! [`ServerConnection::wants_bytes`] is false, so that TCP slows the client down.
//!
//! Replies to speculative requests are sent before pushes. The client bounds them to about what the
//! link holds, and sends none while its program is pushed to. Behind a push that fills the link
//! they would miss their deadlines. A push frame is sent only while fewer push bytes than the
//! window are in flight, so a reply never queues behind more than one window; see `window`.
//!
//! A connection holds at most: one arriving frame, `EVENTS_MAX` events with `EVENT_BYTES_MAX` bytes
//! of uploads and those of one read, `REPLY_QUEUE_BYTES_MAX` and one reply, `PUSH_QUEUE_BYTES_MAX`
//! and one frame, `CONTROL_FRAMES_MAX` small frames. [`ServerConnection::queued_bytes`] and
//! [`ServerConnection::received_bytes`] tell what it holds now.

mod event;
mod intake;
mod liveness;
mod outgoing;
mod push;
mod put;
mod requests;

use std::time::Duration;

use units::{Moment, PageId, RequestId, StreamId};

pub use event::ServerEvent;
pub use push::PushPosition;

use crate::coding::Output;
use crate::encode;
use crate::error::{Refused, WireError};
use crate::format::{
    FEATURE_PIECES, FEATURES, FRAME_BYTES_MAX, FRAME_BYTES_MAX_LEAST, FRAME_BYTES_MAX_WRITTEN, FRAME_HEADER_BYTES,
    HELLO_DEADLINE, IDLE_MAX, REPLY_QUEUE_BYTES_MAX, STALL_MAX, WINDOW_BYTES_MAX,
};
use crate::inbox::Inbox;
use crate::message::{
    BlockRange, ErrorCode, Hello, PushEncoding, PushEndReason, PushHeader, PushPiece, Reply, Request, ServerMessage,
};
use crate::traffic::Traffic;
use event::Events;
use liveness::Liveness;
use outgoing::Outgoing;
use push::PushQueue;
use put::Put;
use requests::{REQUEST_BYTES, Requests};

/// Limits of a server's connection; the defaults are those of `format`.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Optional features to use, of those that this crate knows.
    pub features: u64,
    /// Largest payload to accept, `FRAME_BYTES_MAX_LEAST` to `FRAME_BYTES_MAX`.
    pub frame_bytes_max: u32,
    /// Largest in-flight push window, in bytes.
    pub window_bytes_max: u64,
    /// Time for the client's Hello.
    pub hello_deadline: Duration,
    /// Time without a byte received after which the connection is dropped.
    pub idle_max: Duration,
    /// Time in which the client must take `STALL_BYTES_MIN` while control frames or replies are
    /// queued.
    pub stall_max: Duration,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            features: FEATURES,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            window_bytes_max: WINDOW_BYTES_MAX,
            hello_deadline: HELLO_DEADLINE,
            idle_max: IDLE_MAX,
            stall_max: STALL_MAX,
        }
    }
}

#[derive(Debug)]
enum State {
    Hello,
    Ready,
    Closed(WireError),
}

/// Memory that bytes from the client may become for each of them, at most: the smallest request is
/// a frame of 9 bytes, then an event and a request without a reply.
pub const MEMORY_PER_BYTE: usize = (size_of::<ServerEvent>() + REQUEST_BYTES).div_ceil(9);

/// The server's half of one connection: the coordinator of its parts.
#[derive(Debug)]
pub struct ServerConnection {
    config: ServerConfig,
    state: State,
    hello: Option<Hello>,
    inbox: Inbox,
    events: Events,
    requests: Requests,
    outgoing: Outgoing,
    push: PushQueue,
    liveness: Liveness,
    traffic: Traffic,
}

impl ServerConnection {
    /// A connection that was just accepted. Values outside their limits are brought within.
    pub fn new(mut config: ServerConfig, now: Moment) -> ServerConnection {
        config.frame_bytes_max = config.frame_bytes_max.clamp(FRAME_BYTES_MAX_LEAST as u32, FRAME_BYTES_MAX as u32);
        config.features &= FEATURES;
        ServerConnection {
            state: State::Hello,
            hello: None,
            inbox: Inbox::default(),
            events: Events::default(),
            requests: Requests::default(),
            outgoing: Outgoing::default(),
            push: PushQueue::new(config.window_bytes_max),
            liveness: Liveness::new(&config, now),
            traffic: Traffic::default(),
            config,
        }
    }

    /// Takes bytes from the client.
    ///
    /// # Errors
    /// The fault in the bytes. It closes the connection, and comes as [`ServerEvent::Closed`]
    /// too.
    pub fn receive(&mut self, now: Moment, bytes: &[u8]) -> Result<(), WireError> {
        self.check_open()?;
        self.liveness.received(now);
        self.traffic.bytes_received += bytes.len() as u64;
        self.take_frames(now, bytes).map_err(|error| self.close(error))
    }

    /// The next event. Call it while the connection [is not congested](Self::is_congested).
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.events.pop()
    }

    /// Writes up to `max` bytes for the client to `out`; returns their number. 0 means that
    /// nothing may be sent now.
    pub fn transmit(&mut self, now: Moment, out: &mut impl Output, max: usize) -> usize {
        self.queue_progress();
        let written = self.outgoing.drain(now, out, max, &mut self.push, &mut self.traffic);
        self.liveness.sent(now, written, self.outgoing.bytes());
        self.traffic.bytes_sent += written as u64;
        written
    }

    /// When [`ServerConnection::tick`] is due; `None` once the connection is closed.
    pub fn deadline(&self) -> Option<Moment> {
        self.check_open().ok()?;
        let liveness = self.liveness.deadline(!self.outgoing.is_empty());
        Some(self.inbox.deadline().map_or(liveness, |deadline| deadline.min(liveness)))
    }

    /// Checks the deadlines.
    ///
    /// # Errors
    /// The deadline that is over, as in [`ServerConnection::receive`].
    pub fn tick(&mut self, now: Moment) -> Result<(), WireError> {
        self.check_open()?;
        if !self.outgoing.is_empty() {
            self.liveness.waits(now);
        }
        let checked = self.liveness.check(now).and_then(|()| self.inbox.check(now));
        checked.map_err(|error| self.close(error))
    }

    /// Tells the connection that its transport is gone.
    pub fn lost(&mut self) {
        if self.check_open().is_ok() {
            self.close(WireError::Lost);
        }
    }

    /// Closes the connection and tells the client why. Replies that were not sent are
    /// dropped; the client asks for them elsewhere.
    pub fn shut_down(&mut self, code: ErrorCode, text: &str) {
        if self.check_open().is_ok() {
            self.finish(Some(code), text);
            let error = WireError::ShutDown { text: text.to_owned() };
            self.events.push(ServerEvent::Closed(error.clone()));
            self.state = State::Closed(error);
        }
    }

    /// Whether the connection is closed and everything is sent.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Closed(_)) && self.outgoing.is_empty()
    }

    /// The client's hello, once it came.
    pub fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// Whether the server should read further bytes: the events it has not taken yet are few and
    /// small.
    pub fn wants_bytes(&self) -> bool {
        self.events.has_room()
    }

    /// Whether so many reply bytes are queued that the server should not take up further requests
    /// before some left.
    pub fn is_congested(&self) -> bool {
        self.outgoing.reply_bytes() >= REPLY_QUEUE_BYTES_MAX
    }

    /// Bytes queued for the client.
    pub fn queued_bytes(&self) -> usize {
        self.outgoing.bytes() + self.push.queued_bytes()
    }

    /// Memory of what the client sent: of the frame that is arriving, of events, and of requests
    /// without a reply.
    pub fn received_bytes(&self) -> usize {
        self.inbox.held_bytes() + self.taken_bytes()
    }

    /// Of [`ServerConnection::received_bytes`], what is free for further bytes of the frame that is
    /// arriving.
    pub fn spare_bytes(&self) -> usize {
        self.inbox.spare_bytes()
    }

    /// [`ServerConnection::received_bytes`] once the arriving frame is whole.
    pub fn arriving_bytes(&self) -> usize {
        self.inbox.whole_bytes() + self.taken_bytes()
    }

    /// Bytes of the frame that is arriving that are still to come, as far as its size is known.
    pub fn missing_bytes(&self) -> usize {
        self.inbox.missing_bytes()
    }

    /// Memory of whole frames.
    fn taken_bytes(&self) -> usize {
        self.events.memory_bytes() + self.requests.memory_bytes()
    }

    /// Whether a frame has begun and its size is known.
    pub fn is_amid_frame(&self) -> bool {
        self.inbox.whole_bytes() > 0
    }

    /// Requests that have no reply yet.
    pub fn requests_in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Counters of the connection so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Answers a request. The first reply counts.
    ///
    /// # Errors
    /// [`Refused::UnknownRequest`] for a request that was cancelled meanwhile: the server may
    /// ignore it. [`Refused::Limit`] for a reply that is larger than the client accepts: answer
    /// with an error then. Others if the connection is not ready, or the reply does not fit the
    /// request.
    pub fn reply(&mut self, request: RequestId, reply: Reply) -> Result<(), Refused> {
        self.check_ready()?;
        let ask = self.requests.answered_by(request, &reply)?;
        if let Reply::OnTheWay { stream } = &reply
            && !self.push.was_started(*stream)
        {
            return Err(Refused::UnknownStream(*stream));
        }
        if matches!(reply, Reply::Decoded { .. }) && !self.takes_decoded() {
            return Err(Refused::NoFeature("decoded blocks"));
        }
        let is_lone = matches!((&ask, &reply), (Request::PullBlock { .. }, Reply::Pages { .. }));
        if is_lone && !self.takes_lone_pages() {
            return Err(Refused::NoFeature("lone pages"));
        }
        let message = match reply {
            // In a frame with a hash: a wrong code is as bad as wrong data.
            Reply::Error { code, text } if ask.is_of_volume() => ServerMessage::VolumeError { request, code, text },
            reply => ServerMessage::Reply { request, reply },
        };
        let frame = encode::server(&message);
        let peer_max = self.hello.as_ref().map_or(0, |hello| hello.frame_bytes_max as usize);
        let max = peer_max.min(FRAME_BYTES_MAX_WRITTEN);
        let found = frame.bytes() - FRAME_HEADER_BYTES;
        if found > max {
            return Err(Refused::Limit { what: "bytes of a reply", found: found as u64, min: 0, max: max as u64 });
        }
        let speculative = matches!(ask, Request::PullBlock { speculative: true, .. });
        self.queue_progress();
        self.requests.remove(request);
        self.outgoing.push_reply(request, frame, speculative);
        Ok(())
    }

    /// Answers a request with an error.
    ///
    /// # Errors
    /// As [`ServerConnection::reply`].
    pub fn reply_error(&mut self, request: RequestId, code: ErrorCode, text: &str) -> Result<(), Refused> {
        self.reply(request, Reply::error(code, text))
    }

    /// Asks for blocks of an upload: ascending ranges, 1 to 1024 a call; `last` with the last call,
    /// which may name none.
    ///
    /// # Errors
    /// [`Refused`] if no such upload is open, or the ranges break a limit.
    pub fn put_need(&mut self, request: RequestId, ranges: Vec<BlockRange>, last: bool) -> Result<(), Refused> {
        self.put_mut(request)?.need(request, &ranges, last)?;
        let frame = encode::server(&ServerMessage::PutNeed { request, ranges, last });
        self.outgoing.push_reply(request, frame, false);
        Ok(())
    }

    /// Reports that `bytes` of an upload are stored in all. Reports that do not grow, or exceed the
    /// file, are not sent. Each one that is sent puts off the client's deadline, so a server
    /// reports after each block or so.
    ///
    /// # Errors
    /// [`Refused`] if no such upload is open.
    pub fn put_progress(&mut self, request: RequestId, bytes: u64) -> Result<(), Refused> {
        self.put_mut(request)?.progress(bytes);
        Ok(())
    }

    /// Starts a push stream.
    ///
    /// # Errors
    /// [`Refused::NoPush`] if the device wants no push, or cannot afford the zstd window of the
    /// stream; [`Refused::NoFeature`] if it does not know the encoding. Others if the connection is
    /// not ready or too much is open.
    pub fn push_start(&mut self, push: PushHeader) -> Result<StreamId, Refused> {
        self.check_ready()?;
        let hello = self.hello.as_ref().ok_or(Refused::NotReady)?;
        let windows = match push.encoding {
            PushEncoding::Stored | PushEncoding::Volume => 0..=0,
            PushEncoding::ZstdStream => 1..=hello.window_log_max,
            PushEncoding::Pieces if hello.features & FEATURE_PIECES == 0 => return Err(Refused::NoFeature("pieces")),
            PushEncoding::Pieces => 0..=hello.window_log_max,
        };
        if hello.push_bytes_max == 0 || !windows.contains(&push.window_log) {
            return Err(Refused::NoPush);
        }
        self.outgoing.check_control_room()?;
        let stream = self.push.start(push.encoding == PushEncoding::Volume)?;
        self.outgoing.push_control(&ServerMessage::PushStart { stream, push });
        Ok(stream)
    }

    /// Queues a piece of an open stream. Queue no more than [`ServerConnection::push_room`] says,
    /// give or take a piece.
    ///
    /// # Errors
    /// [`Refused`] if the stream is not open, the queue is full, or the piece breaks a limit.
    pub fn push(&mut self, piece: PushPiece) -> Result<(), Refused> {
        self.check_ready()?;
        self.push.push(piece)
    }

    /// Ends a stream behind what is queued of it.
    ///
    /// # Errors
    /// [`Refused`] if the stream is not open.
    pub fn push_end(&mut self, stream: StreamId, reason: PushEndReason) -> Result<(), Refused> {
        self.check_ready()?;
        if let Some(end) = self.push.end(stream, reason)? {
            self.outgoing.push_control(&end);
        }
        Ok(())
    }

    /// Drops what is queued of a stream and ends it at once. A frame that was sent, even in
    /// part, cannot be recalled. Nothing happens if the stream has ended.
    pub fn cancel_push(&mut self, stream: StreamId, reason: PushEndReason) {
        if let Some((end, dropped)) = self.push.cancel(stream, reason) {
            self.traffic.push_bytes_dropped += dropped as u64;
            self.outgoing.push_control(&end);
        }
    }

    /// Where a page of a stream is, for the choice between a reply and `OnTheWay`.
    pub fn push_position(&self, stream: StreamId, page: PageId) -> PushPosition {
        self.push.position(stream, page)
    }

    /// Push bytes the server should queue now. 0 if the device wants no push.
    pub fn push_room(&self) -> usize {
        let wanted = matches!(self.state, State::Ready) && self.hello.is_some_and(|hello| hello.push_bytes_max > 0);
        if wanted { self.push.room() } else { 0 }
    }

    /// Push bytes queued and not sent.
    pub fn queued_push_bytes(&self) -> usize {
        self.push.queued_bytes()
    }

    /// Push bytes sent and not credited.
    pub fn in_flight_push_bytes(&self) -> u64 {
        self.push.in_flight_bytes()
    }

    /// Push bytes that may be under way now.
    pub fn push_window_bytes(&self) -> u64 {
        self.push.window.bytes()
    }

    /// Best recent push rate, in bytes a second; `None` before the first credit.
    pub fn push_rate(&self) -> Option<u64> {
        self.push.window.rate()
    }

    /// Rate of the link in bytes a second and its round trip without the time that frames take;
    /// `None` before two frames in a row were credited.
    pub fn push_path(&self) -> Option<(u64, Duration)> {
        self.push.window.path()
    }

    /// Least recent time from a push frame to its credit; `None` before the first credit.
    pub fn push_round_trip(&self) -> Option<Duration> {
        self.push.window.round_trip()
    }
}

// state
impl ServerConnection {
    fn check_open(&self) -> Result<(), WireError> {
        match &self.state {
            State::Closed(error) => Err(error.clone()),
            State::Hello | State::Ready => Ok(()),
        }
    }

    fn check_ready(&self) -> Result<(), Refused> {
        match self.state {
            State::Closed(_) => Err(Refused::Closed),
            State::Hello => Err(Refused::NotReady),
            State::Ready => Ok(()),
        }
    }

    fn put_mut(&mut self, request: RequestId) -> Result<&mut Put, Refused> {
        self.check_ready()?;
        self.requests.put_mut(request)
    }

    /// Queues the progress of uploads while there is room.
    fn queue_progress(&mut self) {
        for (request, put) in self.requests.puts_mut() {
            if self.outgoing.has_reply_room()
                && let Some(bytes) = put.take_progress()
            {
                let message = ServerMessage::PutProgress { request, bytes };
                self.outgoing.push_reply(request, encode::server(&message), false);
            }
        }
    }

    fn close(&mut self, error: WireError) -> WireError {
        self.finish(error.code(), &error.to_string());
        self.events.push(ServerEvent::Closed(error.clone()));
        self.state = State::Closed(error.clone());
        error
    }

    /// Drops all that is queued but a frame sent in part, and tells the client why.
    fn finish(&mut self, code: Option<ErrorCode>, text: &str) {
        self.requests = Requests::default();
        self.push = PushQueue::new(0);
        self.inbox = Inbox::default();
        match code {
            Some(code) => {
                self.outgoing.clear_queues();
                let reply = Reply::error(code, text);
                self.outgoing.push_control(&ServerMessage::Reply { request: RequestId(0), reply });
            }
            None => self.outgoing = Outgoing::default(),
        }
    }
}
