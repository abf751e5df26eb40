//! The client's half of one connection, without sockets and clocks: bytes and `now` in, events and
//! bytes out.
//!
//! The owner passes bytes from the socket to [`ClientConnection::receive`], takes events with
//! [`ClientConnection::poll_event`], and writes to the socket what [`ClientConnection::transmit`]
//! returns. It calls [`ClientConnection::tick`] at [`ClientConnection::deadline`]. Requests may be
//! made from the start: they follow the Hello without waiting for its answer, which saves a round
//! trip.
//!
//! Each request ends in exactly one of three ways: [`ClientEvent::Reply`],
//! [`ClientEvent::Expired`], or it is among [`ClientConnection::unanswered`] after
//! [`ClientEvent::Closed`], to be asked again on another connection. Image handles belong to a
//! connection; see [`Request::with_image`]. An upload is not replayed. It starts again with another
//! `PutOpen`, and the server then asks only for the blocks that it lacks.

mod event;
mod intake;
mod liveness;
mod outgoing;
mod requests;
mod streams;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use units::{BlockId, Moment, PageId, RequestId, StreamId, Token};

pub use event::ClientEvent;
pub use requests::Unanswered;

use crate::encode;
use crate::error::{Refused, WireError};
use crate::format::{
    FEATURE_HINTS, FEATURE_PIECES, FEATURE_VOLUMES, FEATURES, FEATURES_USUAL, FRAME_BYTES_MAX, FRAME_BYTES_MAX_LEAST,
    FRAME_BYTES_MAX_WRITTEN, HELLO_DEADLINE, HINT_PAGES_MAX, KEEPALIVE, PUT_DEADLINE, PUT_QUEUE_BYTES_MAX,
    REQUEST_DEADLINE, SILENCE_MAX, TOUCH_PAGES_MAX, VERSION, WINDOW_BYTES_MAX, WINDOW_LOG_MAX,
};
use crate::inbox::Inbox;
use crate::message::{ClientMessage, Hello, HelloReply, ImageHandle, Notice, Request};
use crate::traffic::Traffic;
use crate::volume::VolumeAsk;
use liveness::Liveness;
use outgoing::Outgoing;
use requests::{Pending, Requests};
use streams::Streams;

/// Identity and limits of a client's connection; the defaults are those of `format`.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The device.
    pub device: u128,
    /// Optional features to use, of those that this crate knows.
    pub features: u64,
    /// Largest payload to accept, `FRAME_BYTES_MAX_LEAST` to `FRAME_BYTES_MAX`.
    pub frame_bytes_max: u32,
    /// Largest zstd window for push streams, as a power of two.
    pub window_log_max: u8,
    /// Push bytes that may stand uncredited; a piece more may come. 0: no push.
    pub push_bytes_max: u32,
    /// Time for the server's hello.
    pub hello_deadline: Duration,
    /// Time for an answer to a request made without a deadline of its own.
    pub request_deadline: Duration,
    /// Time an upload may make no progress.
    pub put_deadline: Duration,
    /// Silence after which a Ping is sent while nothing is outstanding.
    pub keepalive: Duration,
    /// Silence, while something is outstanding, after which the connection is dead; a Ping is sent
    /// after half of it.
    pub silence_max: Duration,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            device: 0,
            features: FEATURES_USUAL,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            window_log_max: 21,
            push_bytes_max: WINDOW_BYTES_MAX as u32,
            hello_deadline: HELLO_DEADLINE,
            request_deadline: REQUEST_DEADLINE,
            put_deadline: PUT_DEADLINE,
            keepalive: KEEPALIVE,
            silence_max: SILENCE_MAX,
        }
    }
}

#[derive(Debug)]
enum State {
    Hello,
    Ready(HelloReply),
    Closed(WireError),
}

/// The client's half of one connection: the coordinator of its parts.
#[derive(Debug)]
pub struct ClientConnection {
    config: ClientConfig,
    state: State,
    inbox: Inbox,
    events: VecDeque<ClientEvent>,
    requests: Requests,
    streams: Streams,
    outgoing: Outgoing,
    liveness: Liveness,
    traffic: Traffic,
}

impl ClientConnection {
    /// A connection whose transport was just opened. The Hello is queued. Values outside their
    /// limits are brought within.
    pub fn new(mut config: ClientConfig, now: Moment) -> ClientConnection {
        config.frame_bytes_max = config.frame_bytes_max.clamp(FRAME_BYTES_MAX_LEAST as u32, FRAME_BYTES_MAX as u32);
        config.features &= FEATURES;
        config.window_log_max = config.window_log_max.min(WINDOW_LOG_MAX);
        let hello = Hello {
            version: VERSION,
            device: config.device,
            features: config.features,
            frame_bytes_max: config.frame_bytes_max,
            window_log_max: config.window_log_max,
            push_bytes_max: config.push_bytes_max,
        };
        let mut outgoing = Outgoing::default();
        outgoing.push_control(&ClientMessage::Hello(hello));
        ClientConnection {
            state: State::Hello,
            inbox: Inbox::default(),
            events: VecDeque::new(),
            requests: Requests::default(),
            streams: Streams::new(config.push_bytes_max),
            outgoing,
            liveness: Liveness::new(&config, now),
            traffic: Traffic::default(),
            config,
        }
    }

    /// Takes bytes from the server.
    ///
    /// # Errors
    /// The fault in the bytes. It closes the connection, and comes as [`ClientEvent::Closed`]
    /// too.
    pub fn receive(&mut self, now: Moment, bytes: &[u8]) -> Result<(), WireError> {
        self.check_open()?;
        if !bytes.is_empty() {
            self.liveness.alive(now);
        }
        self.traffic.bytes_received += bytes.len() as u64;
        let result = self.take_frames(now, bytes);
        self.liveness.note_outstanding(now, !self.requests.is_empty());
        result.map_err(|error| self.close(error))
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// Appends up to `max` bytes for the server to `out`; returns their number. 0 means that there
    /// is nothing to send.
    pub fn transmit(&mut self, now: Moment, out: &mut Vec<u8>, max: usize) -> usize {
        if self.is_closed() {
            return 0;
        }
        let (streams, traffic) = (&mut self.streams, &mut self.traffic);
        let drained = self.outgoing.drain(out, max, || {
            let (stream, bytes) = streams.take_credit()?;
            traffic.push_bytes_credited += u64::from(bytes);
            Some(encode::client(&ClientMessage::Notice(Notice::Credit { stream, bytes })))
        });
        if let Some(request) = drained.upload {
            // a transport that takes data is alive: on a thin link no answer can come meanwhile
            self.traffic.put_bytes_sent += drained.bytes as u64;
            self.liveness.alive(now);
            if let Some(pending) = self.requests.get_mut(request) {
                pending.put_off(now, self.config.put_deadline);
            }
        }
        self.traffic.bytes_sent += drained.bytes as u64;
        drained.bytes
    }

    /// Whether [`ClientConnection::transmit`] has something to send.
    pub fn has_output(&self) -> bool {
        !self.is_closed() && (!self.outgoing.is_empty() || self.streams.has_credit())
    }

    /// When [`ClientConnection::tick`] is due; `None` once the connection is closed.
    pub fn deadline(&self) -> Option<Moment> {
        if self.is_closed() {
            return None;
        }
        [self.liveness.deadline(), self.requests.deadline(), self.inbox.deadline()].into_iter().flatten().min()
    }

    /// Checks the deadlines: expires requests, sends a Ping.
    ///
    /// # Errors
    /// The deadline that is over, as in [`ClientConnection::receive`].
    pub fn tick(&mut self, now: Moment) -> Result<(), WireError> {
        self.check_open()?;
        let checked = self.liveness.check(now).and_then(|()| self.inbox.check(now));
        checked.map_err(|error| self.close(error))?;
        for request in self.requests.overdue(now) {
            self.abandon(request);
            self.events.push_back(ClientEvent::Expired { request });
        }
        if let Some(nonce) = self.liveness.ping(now) {
            self.outgoing.push_control(&ClientMessage::Ping { nonce });
        }
        self.liveness.note_outstanding(now, !self.requests.is_empty());
        Ok(())
    }

    /// Tells the connection that its transport is gone.
    pub fn lost(&mut self) {
        if self.check_open().is_ok() {
            self.close(WireError::Lost);
        }
    }

    /// Whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// The server's hello, once it came and while the connection lives.
    pub fn hello(&self) -> Option<&HelloReply> {
        if let State::Ready(hello) = &self.state { Some(hello) } else { None }
    }

    /// Asks, with the configured deadline.
    ///
    /// # Errors
    /// As [`ClientConnection::request_until`].
    pub fn request(&mut self, now: Moment, ask: Request) -> Result<RequestId, Refused> {
        let is_put = matches!(ask, Request::PutOpen { .. });
        let time = if is_put { self.config.put_deadline } else { self.config.request_deadline };
        self.request_until(now, ask, now.after(time))
    }

    /// Asks, with a deadline of its own. That of a put is put off whenever the put makes progress.
    ///
    /// # Errors
    /// [`Refused`] if the connection is closed, too much is in flight, or the request breaks a
    /// limit.
    pub fn request_until(&mut self, now: Moment, ask: Request, deadline: Moment) -> Result<RequestId, Refused> {
        self.check_room()?;
        // Changes of files are data: demands go before them.
        let is_data = matches!(ask, Request::Volume { ask: VolumeAsk::Commit { .. }, .. });
        if is_data && !self.outgoing.has_data_room() {
            return Err(Refused::Full { what: "queued bytes of uploads", max: PUT_QUEUE_BYTES_MAX });
        }
        let request = self.requests.add(&ask, deadline)?;
        let message = ClientMessage::Request { request, ask };
        if is_data {
            self.outgoing.push_data(request, &message);
        } else {
            self.outgoing.push_request(Some(request), &message);
        }
        self.liveness.note_outstanding(now, !self.requests.is_empty());
        Ok(request)
    }

    /// The answer is no longer wanted: none comes as an event. A request that was not sent yet is
    /// not sent at all.
    ///
    /// # Errors
    /// [`Refused`] if the connection is closed, or nobody waits for the request.
    pub fn cancel(&mut self, now: Moment, request: RequestId) -> Result<(), Refused> {
        self.check_open().map_err(|_| Refused::Closed)?;
        match self.requests.get_mut(request) {
            Some(pending) if !pending.abandoned => self.abandon(request),
            _ => return Err(Refused::UnknownRequest(request)),
        }
        self.liveness.note_outstanding(now, !self.requests.is_empty());
        Ok(())
    }

    /// Somebody waits for the answer to a speculative request now. An answer that is under way is
    /// no fault.
    ///
    /// # Errors
    /// As [`ClientConnection::cancel`], and [`Refused::Full`] if too many requests are queued.
    pub fn hurry(&mut self, request: RequestId) -> Result<(), Refused> {
        self.check_room()?;
        match self.requests.get_mut(request) {
            Some(pending) if !pending.abandoned => {}
            _ => return Err(Refused::UnknownRequest(request)),
        }
        // Behind the request itself, which may not have left yet, and taken back with it.
        self.outgoing.push_request(Some(request), &ClientMessage::Hurry { request });
        Ok(())
    }

    /// Tells the server something that gets no answer. Hints and what concerns volumes come after
    /// the handshake, since only then it is known whether the server takes them.
    ///
    /// # Errors
    /// [`Refused`] if the connection is closed or not ready, the server lacks the feature, the
    /// queue is full, or the number of pages is wrong.
    pub fn notify(&mut self, notice: Notice) -> Result<(), Refused> {
        match notice {
            Notice::Credit { stream, bytes } => return self.credit(stream, bytes),
            Notice::StopPush { stream } => return self.stop_push(stream),
            _ => self.check_room()?,
        }
        match &notice {
            Notice::Touch { pages, .. } => check_pages("pages of a touch", pages, TOUCH_PAGES_MAX)?,
            Notice::Hint { pages, .. } => {
                self.check_feature(FEATURE_HINTS, "hints")?;
                if self.config.push_bytes_max == 0 {
                    return Err(Refused::NoFeature("hints"));
                }
                check_pages("pages of a hint", pages, HINT_PAGES_MAX)?;
            }
            Notice::DeviceSpeed { .. } => self.check_feature(FEATURE_PIECES, "pieces")?,
            Notice::FileClose { .. } | Notice::FileShare { .. } | Notice::RateLimit { .. } => {
                self.check_feature(FEATURE_VOLUMES, "volumes")?;
            }
            Notice::TokenEnd { .. } | Notice::Bearer(_) | Notice::Credit { .. } | Notice::StopPush { .. } => {}
        }
        self.outgoing.push_request(None, &ClientMessage::Notice(notice));
        Ok(())
    }

    /// Reports first touches that needed no network, in order: 1 to 1024 pages.
    ///
    /// # Errors
    /// As [`ClientConnection::notify`].
    pub fn touch(&mut self, image: ImageHandle, token: Token, pages: Vec<PageId>) -> Result<(), Refused> {
        self.notify(Notice::Touch { image, token, pages })
    }

    /// Asks the server to push 1 to 1024 pages that will be needed soon, in this order.
    ///
    /// # Errors
    /// As [`ClientConnection::notify`].
    pub fn hint(&mut self, image: ImageHandle, token: Token, pages: Vec<PageId>) -> Result<(), Refused> {
        self.notify(Notice::Hint { image, token, pages })
    }

    /// Reports the end of a running action.
    ///
    /// # Errors
    /// As [`ClientConnection::notify`].
    pub fn token_end(&mut self, image: ImageHandle, token: Token) -> Result<(), Refused> {
        self.notify(Notice::TokenEnd { image, token })
    }

    /// Gives credit for pushed bytes that were taken care of. Also due for streams that ended or
    /// were stopped: their pieces came as events before.
    ///
    /// # Errors
    /// [`Refused`] if the connection is closed, or so much of the stream was not received.
    pub fn credit(&mut self, stream: StreamId, bytes: u32) -> Result<(), Refused> {
        self.check_open().map_err(|_| Refused::Closed)?;
        self.streams.credit(stream, bytes)
    }

    /// The stream is not wanted. No further piece of it comes as an event; its end does. Nothing
    /// happens if it has ended.
    ///
    /// # Errors
    /// [`Refused::Closed`].
    pub fn stop_push(&mut self, stream: StreamId) -> Result<(), Refused> {
        self.check_open().map_err(|_| Refused::Closed)?;
        if self.streams.stop(stream) {
            self.outgoing.push_control(&ClientMessage::Notice(Notice::StopPush { stream }));
        }
        Ok(())
    }

    /// Sends part of the superblock or metadata region of an upload, before the server asks for
    /// blocks.
    ///
    /// # Errors
    /// [`Refused`] if no such upload is open, the queue is full, or the number of bytes is wrong.
    pub fn put_meta(&mut self, request: RequestId, offset: u64, bytes: Bytes) -> Result<(), Refused> {
        self.put_data(request, bytes.len(), ClientMessage::PutMeta { request, offset, bytes })
    }

    /// Sends a block the server asked for. A transport that takes bytes counts as alive; keep its
    /// send buffer small (what the link carries in half of `silence_max`), or the answers that
    /// queue behind it look like silence.
    ///
    /// # Errors
    /// As [`ClientConnection::put_meta`].
    pub fn put_block(&mut self, request: RequestId, block: BlockId, bytes: Bytes) -> Result<(), Refused> {
        self.put_data(request, bytes.len(), ClientMessage::PutBlock { request, block, bytes })
    }

    /// Ends an upload; every block that was asked for was sent.
    ///
    /// # Errors
    /// [`Refused`] if no such upload is open.
    pub fn put_commit(&mut self, request: RequestId) -> Result<(), Refused> {
        self.check_open().map_err(|_| Refused::Closed)?;
        if let Some(put) = &mut self.requests.put_mut(request)?.put {
            put.committed = true;
        }
        self.outgoing.push_data(request, &ClientMessage::PutCommit { request });
        Ok(())
    }

    /// Whether [`ClientConnection::put_meta`] and [`ClientConnection::put_block`] would take data
    /// now.
    pub fn put_room(&self) -> bool {
        matches!(self.state, State::Ready(_)) && self.outgoing.has_data_room()
    }

    /// Requests somebody waits for, in the order of asking; after a loss, those to ask again on
    /// another connection.
    pub fn unanswered(&self) -> impl Iterator<Item = Unanswered<'_>> {
        let waiting = self.requests.waiting().into_iter();
        waiting.map(|(request, Pending { ask, deadline, .. })| Unanswered { request, ask, deadline: *deadline })
    }

    /// Requests without an answer, those nobody waits for included; at most 1024.
    pub fn requests_in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Least round trip of hello and pings so far.
    pub fn round_trip(&self) -> Option<Duration> {
        self.liveness.round_trip()
    }

    /// Counters of the connection so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }
}

// state
impl ClientConnection {
    fn check_open(&self) -> Result<(), WireError> {
        if let State::Closed(error) = &self.state { Err(error.clone()) } else { Ok(()) }
    }

    /// Whether requests and touches are taken.
    fn check_room(&self) -> Result<(), Refused> {
        self.check_open().map_err(|_| Refused::Closed)?;
        self.outgoing.check_request_room()
    }

    pub(crate) fn check_feature(&self, feature: u64, name: &'static str) -> Result<(), Refused> {
        let hello = self.hello().ok_or(Refused::NotReady)?;
        if hello.features & feature == 0 { Err(Refused::NoFeature(name)) } else { Ok(()) }
    }

    fn put_data(&mut self, request: RequestId, bytes: usize, message: ClientMessage) -> Result<(), Refused> {
        let hello = match &self.state {
            State::Closed(_) => return Err(Refused::Closed),
            State::Hello => return Err(Refused::NotReady),
            State::Ready(hello) => hello,
        };
        self.requests.put_mut(request)?;
        // twelve bytes of fields at most stand before the data
        let max = (hello.frame_bytes_max as usize).min(FRAME_BYTES_MAX_WRITTEN) - 12;
        if bytes == 0 || bytes > max {
            return Err(Refused::Limit { what: "bytes of a put frame", found: bytes as u64, min: 1, max: max as u64 });
        }
        if !self.outgoing.has_data_room() {
            return Err(Refused::Full { what: "queued put bytes", max: PUT_QUEUE_BYTES_MAX });
        }
        self.outgoing.push_data(request, &message);
        Ok(())
    }

    /// Nobody waits for the request any more.
    fn abandon(&mut self, request: RequestId) {
        let is_put = self.requests.get_mut(request).is_some_and(|pending| pending.put.is_some());
        if self.outgoing.take_back(request, is_put) {
            self.requests.remove(request);
            return;
        }
        if let Some(pending) = self.requests.get_mut(request) {
            pending.abandoned = true;
            self.outgoing.push_control(&ClientMessage::Cancel { request });
        }
    }

    fn close(&mut self, error: WireError) -> WireError {
        self.state = State::Closed(error.clone());
        self.inbox = Inbox::default();
        self.outgoing = Outgoing::default();
        self.events.push_back(ClientEvent::Closed(error.clone()));
        error
    }
}

fn check_pages(what: &'static str, pages: &[PageId], max: usize) -> Result<(), Refused> {
    let (found, max) = (pages.len() as u64, max as u64);
    if (1..=max).contains(&found) { Ok(()) } else { Err(Refused::Limit { what, found, min: 1, max }) }
}
