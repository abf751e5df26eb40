//! The server's half of one connection: bytes and `now` in, events and bytes out.
//!
//! Frames leave in this order: control (hello, pongs, ends and starts of streams, cancelled requests), replies that are
//! waited for, replies to speculative requests, push. Speculation goes before push because it is bounded by what the
//! client asks, about what the link holds, and a client whose program is being pushed to asks for none; behind a push
//! that fills the link its requests would meet their deadlines. A push frame leaves only while fewer push bytes than the window are under way, so a reply never
//! queues behind more than one window; see `window`. A frame that was handed out in part is finished first.
//!
//! The server's connection task drives it: bytes from the socket to [`ServerConnection::receive`], then
//! [`ServerConnection::poll_event`] until it is empty or [`ServerConnection::is_congested`], then
//! [`ServerConnection::transmit`] to the socket; [`ServerConnection::tick`] at [`ServerConnection::deadline`]. It stops
//! reading while [`ServerConnection::wants_bytes`] is false, so that a client is slowed down by TCP itself.
//!
//! What a connection can hold: one arriving frame, `EVENTS_MAX` events with `EVENT_BYTES_MAX` bytes of uploads and those
//! of one read, `REPLY_QUEUE_BYTES_MAX` and one reply, `PUSH_QUEUE_BYTES_MAX` and one frame, `CONTROL_FRAMES_MAX` small
//! frames.
//! [`ServerConnection::queued_bytes`] tells what it holds now.

mod event;
mod intake;
mod push;
mod put;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use units::{Moment, PageId, RequestId, StreamId};

pub use event::ServerEvent;
pub use push::PushPosition;

use crate::encode;
use crate::error::{Refused, WireError};
use crate::format::{
    CONTROL_FRAMES_MAX, EVENT_BYTES_MAX, EVENTS_MAX, FRAME_BYTES_MAX, FRAME_BYTES_MAX_LEAST, FRAME_BYTES_MAX_WRITTEN,
    HELLO_DEADLINE, IDLE_MAX, PINGS_MAX, PUTS_ENDED_MAX, REPLY_QUEUE_BYTES_MAX, STALL_BYTES_MIN, STALL_MAX,
    WINDOW_BYTES_MAX,
};
use crate::inbox::Inbox;
use crate::message::{
    BlockRange, ErrorCode, Hello, PushEncoding, PushEndReason, PushHeader, PushPiece, Reply, Request, ServerMessage,
};
use crate::outbox::{Lane, Spout};
use crate::traffic::Traffic;
use crate::volume::VolumeReply;
use push::PushQueue;
use put::Put;

/// Limits of a server's connection; the defaults are those of `format`.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Largest payload to accept, `FRAME_BYTES_MAX_LEAST` to `FRAME_BYTES_MAX`.
    pub frame_bytes_max: u32,
    /// Largest in-flight push window, in bytes.
    pub window_bytes_max: u64,
    /// Time for the client's Hello.
    pub hello_deadline: Duration,
    /// Time without a byte received after which the connection is dropped.
    pub idle_max: Duration,
    /// Time in which the client must take `STALL_BYTES_MIN` while control frames or replies are queued.
    pub stall_max: Duration,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
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

/// Room for events that is kept while there are none.
const EVENTS_KEPT: usize = 16;

/// Memory of a request without a reply. The nodes of its map may be half full.
const ASKED_BYTES: usize = 2 * size_of::<(RequestId, Asked)>();

/// Memory that bytes from the client may become for each of them, at most: the smallest request is
/// a frame of 9 bytes, then an event and a request without a reply.
pub const MEMORY_PER_BYTE: usize = (size_of::<ServerEvent>() + ASKED_BYTES).div_ceil(9);

/// A request without a reply.
#[derive(Debug)]
struct Asked {
    ask: Request,
    /// Changes of a transaction, which `ask` does not hold any more.
    changes: usize,
    put: Option<Put>,
    /// Progress to report with the next transmit.
    progress: Option<u64>,
}

/// A time in which something was queued for the client.
#[derive(Clone, Copy, Debug)]
struct Stall {
    since: Moment,
    /// What it took since.
    taken_bytes: usize,
}

/// How many pings the client may send now: to answer one costs more than to send it.
#[derive(Debug)]
struct Pings {
    left: u32,
    /// Until when those that time grants were added.
    since: Moment,
}

impl Pings {
    fn take(&mut self, now: Moment) -> Result<(), WireError> {
        let seconds = now.since(self.since).as_secs();
        self.since = self.since.after(Duration::from_secs(seconds));
        self.left = self.left.saturating_add(u32::try_from(seconds).unwrap_or(u32::MAX)).min(PINGS_MAX);
        let too_many = WireError::TooMany { what: "pings within a short time", max: u64::from(PINGS_MAX) };
        self.left = self.left.checked_sub(1).ok_or(too_many)?;
        Ok(())
    }
}

/// The server's half of one connection.
#[derive(Debug)]
pub struct ServerConnection {
    config: ServerConfig,
    state: State,
    hello: Option<Hello>,
    inbox: Inbox,
    events: VecDeque<ServerEvent>,
    /// Memory of `events`.
    event_bytes: usize,
    asked: BTreeMap<RequestId, Asked>,
    /// Puts answered lately; what was on its way for them is dropped.
    puts_ended: VecDeque<RequestId>,
    control: Lane,
    replies: Lane,
    /// Replies nobody waits for yet.
    speculative: Lane,
    push: PushQueue,
    spout: Spout,
    opened: Moment,
    received: Moment,
    /// While something is queued: what the client took of it.
    stall: Option<Stall>,
    pings: Pings,
    /// What the client wants to get a second at most; 0 for no limit.
    rate_limit: u64,
    traffic: Traffic,
}

impl ServerConnection {
    /// A connection that was just accepted. Values outside their limits are brought within.
    pub fn new(mut config: ServerConfig, now: Moment) -> ServerConnection {
        config.frame_bytes_max = config.frame_bytes_max.clamp(FRAME_BYTES_MAX_LEAST as u32, FRAME_BYTES_MAX as u32);
        ServerConnection {
            push: PushQueue::new(config.window_bytes_max),
            config,
            state: State::Hello,
            hello: None,
            inbox: Inbox::default(),
            events: VecDeque::new(),
            event_bytes: 0,
            asked: BTreeMap::new(),
            puts_ended: VecDeque::new(),
            control: Lane::default(),
            replies: Lane::default(),
            speculative: Lane::default(),
            spout: Spout::default(),
            opened: now,
            received: now,
            stall: None,
            pings: Pings { left: PINGS_MAX, since: now },
            rate_limit: 0,
            traffic: Traffic::default(),
        }
    }

    /// Takes bytes from the client. An error closes the connection; the same error comes as [`ServerEvent::Closed`].
    pub fn receive(&mut self, now: Moment, bytes: &[u8]) -> Result<(), WireError> {
        self.check_open()?;
        self.received = now;
        self.traffic.bytes_received += bytes.len() as u64;
        self.take_frames(now, bytes).map_err(|error| self.close(error))
    }

    /// The next event. Call it while the connection [is not congested](Self::is_congested).
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        let event = self.events.pop_front();
        self.event_bytes -= event.as_ref().map_or(0, ServerEvent::memory_bytes);
        if self.events.is_empty() && self.events.capacity() > EVENTS_KEPT {
            self.events = VecDeque::new();
        }
        event
    }

    /// Appends up to `max` bytes for the client to `out`; returns their number. 0 means that nothing may be sent now.
    pub fn transmit(&mut self, now: Moment, out: &mut Vec<u8>, max: usize) -> usize {
        self.queue_progress();
        let (control, replies, speculative) = (&mut self.control, &mut self.replies, &mut self.speculative);
        let (push, traffic) = (&mut self.push, &mut self.traffic);
        let written = self.spout.drain(out, max, || {
            if let Some((_, frame)) = control.pop() {
                return Some(frame);
            }
            if let Some((_, frame)) = replies.pop().or_else(|| speculative.pop()) {
                traffic.reply_bytes += frame.bytes() as u64;
                return Some(frame);
            }
            let taken = push.take(now)?;
            traffic.push_bytes += taken.frame.bytes() as u64;
            if let Some(end) = taken.end {
                control.push(None, encode::server(&end));
            }
            Some(taken.frame)
        });
        let needed = self.stall_bytes_min();
        self.stall = match self.stall {
            _ if self.sendable_bytes() == 0 => None,
            Some(stall) if stall.taken_bytes + written < needed => {
                Some(Stall { taken_bytes: stall.taken_bytes + written, ..stall })
            }
            _ => Some(Stall { since: now, taken_bytes: 0 }),
        };
        self.traffic.bytes_sent += written as u64;
        written
    }

    /// When [`ServerConnection::tick`] is due; `None` once the connection is closed.
    pub fn deadline(&self) -> Option<Moment> {
        let first = match self.state {
            State::Closed(_) => return None,
            State::Hello => self.opened.after(self.config.hello_deadline),
            State::Ready => self.received.after(self.config.idle_max),
        };
        let stall = (self.sendable_bytes() > 0).then(|| self.stall.map_or(self.received, |stall| stall.since));
        let stall = stall.map(|since| since.after(self.config.stall_max));
        [Some(first), stall, self.inbox.deadline()].into_iter().flatten().min()
    }

    /// Looks at the time. An error closes the connection, as in [`ServerConnection::receive`].
    pub fn tick(&mut self, now: Moment) -> Result<(), WireError> {
        self.check_open()?;
        if self.sendable_bytes() > 0 {
            self.stall.get_or_insert(Stall { since: now, taken_bytes: 0 });
        }
        self.check_time(now).map_err(|error| self.close(error))
    }

    /// Tells the connection that its transport is gone.
    pub fn lost(&mut self) {
        if self.check_open().is_ok() {
            self.close(WireError::Lost);
        }
    }

    /// Closes the connection and tells the client why. Replies that were not handed out are dropped; the client asks
    /// for them elsewhere.
    pub fn shut_down(&mut self, code: ErrorCode, text: &str) {
        if self.check_open().is_ok() {
            self.finish(Some(code), text);
            let error = WireError::ShutDown { text: text.to_owned() };
            self.add_event(ServerEvent::Closed(error.clone()));
            self.state = State::Closed(error);
        }
    }

    /// Whether the connection is closed and all that was left to say is handed out.
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Closed(_)) && self.control.is_empty() && self.spout.is_empty()
    }

    /// The client's hello, once it came.
    pub fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// Whether the server should read further bytes: the events it has not taken yet are few and small.
    pub fn wants_bytes(&self) -> bool {
        self.events.len() < EVENTS_MAX && self.event_bytes < EVENT_BYTES_MAX
    }

    /// Whether so many reply bytes are queued that the server should not take up further requests before some left.
    pub fn is_congested(&self) -> bool {
        self.replies.bytes() + self.speculative.bytes() >= REPLY_QUEUE_BYTES_MAX
    }

    /// Bytes queued for the client.
    pub fn queued_bytes(&self) -> usize {
        self.sendable_bytes() + self.push.queued_bytes()
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

    /// What [`ServerConnection::received_bytes`] comes to when the frame that is arriving is whole.
    pub fn arriving_bytes(&self) -> usize {
        self.inbox.whole_bytes() + self.taken_bytes()
    }

    /// Bytes of the frame that is arriving that are still to come, as far as its size is known.
    pub fn missing_bytes(&self) -> usize {
        self.inbox.missing_bytes()
    }

    /// Memory of whole frames.
    fn taken_bytes(&self) -> usize {
        self.event_bytes + self.asked.len() * ASKED_BYTES
    }

    /// Whether a frame has begun and its size is known.
    pub fn is_amid_frame(&self) -> bool {
        self.inbox.whole_bytes() > 0
    }

    /// Requests that have no reply yet.
    pub fn requests_in_flight(&self) -> usize {
        self.asked.len()
    }

    /// What the connection carried so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Answers a request. The first reply counts: one that was cancelled meanwhile gives [`Refused::UnknownRequest`],
    /// which the server may ignore. A reply larger than the client accepts gives [`Refused::Limit`]; answer with an error then.
    pub fn reply(&mut self, request: RequestId, reply: Reply) -> Result<(), Refused> {
        self.check_ready()?;
        let asked = self.asked.get(&request).ok_or(Refused::UnknownRequest(request))?;
        let early = matches!(reply, Reply::PutDone { .. }) && !asked.put.as_ref().is_some_and(Put::is_committed);
        let miscounted = match &reply {
            Reply::Volume(VolumeReply::Committed { versions }) => versions.len() != asked.changes,
            _ => false,
        };
        if early || miscounted || !asked.ask.accepts(&reply) {
            return Err(Refused::WrongReply(request));
        }
        if let Reply::OnTheWay { stream } = &reply
            && !self.push.was_started(*stream)
        {
            return Err(Refused::UnknownStream(*stream));
        }
        let message = match reply {
            // In a frame with a hash: a wrong code is as bad as wrong data.
            Reply::Error { code, text } if asked.ask.is_of_volume() => {
                ServerMessage::VolumeError { request, code, text }
            }
            reply => ServerMessage::Reply { request, reply },
        };
        let frame = encode::server(&message);
        let peer_max = self.hello.as_ref().map_or(0, |hello| hello.frame_bytes_max as usize);
        let max = peer_max.min(FRAME_BYTES_MAX_WRITTEN);
        let found = frame.bytes() - crate::format::FRAME_HEADER_BYTES;
        if found > max {
            return Err(Refused::Limit { what: "bytes of a reply", found: found as u64, min: 0, max: max as u64 });
        }
        let speculative = matches!(asked.ask, Request::PullBlock { speculative: true, .. });
        self.queue_progress();
        self.retire(request);
        let lane = if speculative { &mut self.speculative } else { &mut self.replies };
        lane.push(Some(request), frame);
        Ok(())
    }

    /// Answers a request with an error.
    pub fn reply_error(&mut self, request: RequestId, code: ErrorCode, text: &str) -> Result<(), Refused> {
        self.reply(request, Reply::error(code, text))
    }

    /// Asks for blocks of an upload: ascending ranges, 1 to 1024 a call; `last` with the last call, which may name none.
    pub fn put_need(&mut self, request: RequestId, ranges: Vec<BlockRange>, last: bool) -> Result<(), Refused> {
        self.put_mut(request)?.need(request, &ranges, last)?;
        self.replies.push(Some(request), encode::server(&ServerMessage::PutNeed { request, ranges, last }));
        Ok(())
    }

    /// Reports that `bytes` of an upload are stored in all. Reports that do not grow, or exceed the file, are not sent.
    /// Each one that is sent puts off the client's deadline, so a server reports after each block or so.
    pub fn put_progress(&mut self, request: RequestId, bytes: u64) -> Result<(), Refused> {
        if self.put_mut(request)?.progress(bytes)
            && let Some(asked) = self.asked.get_mut(&request)
        {
            asked.progress = Some(bytes);
        }
        Ok(())
    }

    /// Starts a push stream. [`Refused::NoPush`] if the device wants none, or cannot afford the stream's zstd window.
    pub fn push_start(&mut self, push: PushHeader) -> Result<StreamId, Refused> {
        self.check_ready()?;
        let hello = self.hello.as_ref().ok_or(Refused::NotReady)?;
        let stored = push.encoding != PushEncoding::ZstdStream;
        let window_log_min = if stored { 0 } else { 1 };
        let window_log_max = if stored { 0 } else { hello.window_log_max };
        if hello.push_bytes_max == 0 || !(window_log_min..=window_log_max).contains(&push.window_log) {
            return Err(Refused::NoPush);
        }
        if self.control.len() >= CONTROL_FRAMES_MAX / 2 {
            return Err(Refused::Full { what: "control frames the client did not read", max: CONTROL_FRAMES_MAX / 2 });
        }
        let stream = self.push.start(push.encoding == PushEncoding::Volume)?;
        self.control.push(None, encode::server(&ServerMessage::PushStart { stream, push }));
        Ok(stream)
    }

    /// Queues a piece of an open stream. Queue no more than [`ServerConnection::push_room`] says, give or take a piece.
    pub fn push(&mut self, piece: PushPiece) -> Result<(), Refused> {
        self.check_ready()?;
        self.push.push(piece)
    }

    /// Ends a stream behind what is queued of it.
    pub fn push_end(&mut self, stream: StreamId, reason: PushEndReason) -> Result<(), Refused> {
        self.check_ready()?;
        if let Some(end) = self.push.end(stream, reason)? {
            self.control.push(None, encode::server(&end));
        }
        Ok(())
    }

    /// Drops what is queued of a stream and ends it at once. A frame that was handed out, even in part, cannot be
    /// recalled. Nothing happens if the stream has ended.
    pub fn cancel_push(&mut self, stream: StreamId, reason: PushEndReason) {
        if let Some((end, dropped)) = self.push.cancel(stream, reason) {
            self.traffic.push_bytes_dropped += dropped as u64;
            self.control.push(None, encode::server(&end));
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

    /// Push bytes queued and not handed out.
    pub fn queued_push_bytes(&self) -> usize {
        self.push.queued_bytes()
    }

    /// Push bytes handed out and not credited.
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

    /// Rate of the link in bytes a second and its round trip without the time that frames take; `None` before two frames in a row
    /// were credited.
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

    fn check_time(&self, now: Moment) -> Result<(), WireError> {
        let late = |since: Moment, limit: Duration, what| {
            if now >= since.after(limit) { Err(WireError::Deadline { what, limit }) } else { Ok(()) }
        };
        match self.state {
            State::Hello => late(self.opened, self.config.hello_deadline, "the client sent no Hello")?,
            _ => late(self.received, self.config.idle_max, "the client sent nothing")?,
        }
        if let Some(stall) = self.stall {
            late(stall.since, self.config.stall_max, "the client hardly reads its answers")?;
        }
        self.inbox.check(now)
    }

    /// What the client must take in the time for it: less if it wants its answers slower.
    fn stall_bytes_min(&self) -> usize {
        // A sender keeps to a limit in steps of a packet; a half leaves room for that.
        let limited = self.rate_limit.saturating_mul(self.config.stall_max.as_secs()) / 2;
        if self.rate_limit == 0 { STALL_BYTES_MIN } else { STALL_BYTES_MIN.min(limited as usize) }
    }

    /// Queues a control frame that the client provoked.
    fn answer(&mut self, message: ServerMessage) -> Result<(), WireError> {
        if self.control.len() >= CONTROL_FRAMES_MAX {
            return Err(WireError::TooMany { what: "answers the client did not read", max: CONTROL_FRAMES_MAX as u64 });
        }
        self.control.push(None, encode::server(&message));
        Ok(())
    }

    fn put_mut(&mut self, request: RequestId) -> Result<&mut Put, Refused> {
        self.check_ready()?;
        let asked = self.asked.get_mut(&request).ok_or(Refused::UnknownRequest(request))?;
        asked.put.as_mut().ok_or(Refused::WrongReply(request))
    }

    /// Progress is queued late, so that a client that does not read makes no queue of it.
    fn queue_progress(&mut self) {
        let replies = &mut self.replies;
        for (request, asked) in self.asked.iter_mut().filter(|(_, asked)| asked.put.is_some()) {
            if let Some(bytes) = asked.progress.take_if(|_| replies.bytes() < REPLY_QUEUE_BYTES_MAX) {
                let message = ServerMessage::PutProgress { request: *request, bytes };
                replies.push(Some(*request), encode::server(&message));
            }
        }
    }

    /// The request is answered.
    fn retire(&mut self, request: RequestId) {
        if self.asked.remove(&request).is_some_and(|asked| asked.put.is_some()) {
            self.puts_ended.push_back(request);
            let excess = self.puts_ended.len().saturating_sub(PUTS_ENDED_MAX);
            self.puts_ended.drain(..excess);
        }
    }

    /// Control frames and replies, which may leave at any time.
    fn sendable_bytes(&self) -> usize {
        self.control.bytes() + self.replies.bytes() + self.speculative.bytes() + self.spout.bytes()
    }

    fn close(&mut self, error: WireError) -> WireError {
        self.finish(error.code(), &error.to_string());
        self.add_event(ServerEvent::Closed(error.clone()));
        self.state = State::Closed(error.clone());
        error
    }

    /// Drops all that is queued but a frame handed out in part, and says why.
    fn finish(&mut self, code: Option<ErrorCode>, text: &str) {
        self.control.clear();
        self.replies.clear();
        self.speculative.clear();
        self.asked.clear();
        self.push = PushQueue::new(0);
        self.inbox = Inbox::default();
        match code {
            Some(code) => {
                let reply = Reply::error(code, text);
                self.control.push(None, encode::server(&ServerMessage::Reply { request: RequestId(0), reply }));
            }
            None => self.spout = Spout::default(),
        }
    }
}
