//! One connection: bytes between the socket and the wire's state machine, events to those who know the answer.
//!
//! The task never blocks. What needs the disk is started on a blocking thread and comes back as [`Done`]. While more than
//! its share of memory is queued or being read for this connection, no further event is taken up and, once the wire's
//! event queue is full, no further byte read: a client that asks faster than it reads is slowed down by TCP.

mod hints;
mod pace;
mod requests;
mod socket;
mod throttle;
mod touches;
mod uploads;
mod volumes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::watch;
use units::RequestId;
use wire::{ErrorCode, Hello, MEMORY_PER_BYTE, Refused, Reply, ServerConnection, ServerEvent, WireError};

use crate::access::Pushing;
use crate::admission::ConnectionSlot;
use crate::advice::Advice;
use crate::budget::{Budget, Room};
use crate::config::RECEIVED_FREE_BYTES;
use crate::demand::Reading;
use crate::device::Device;
use crate::done::{Done, DoneSender};
use crate::error::Failure;
use crate::handles::Handles;
use crate::peer::Owner;
use crate::push::{BlockPusher, Pusher};
use crate::shared::Shared;
use crate::upload::{self, Command, UploadHandle};
use pace::{AGAIN, Paces};
pub(crate) use socket::send_last;
use socket::{READ_BYTES, fit_reads, write_on};
use throttle::Throttle;
use volumes::{BlockTouches, Postponed};

/// Bytes handed to the socket at a time: what the link takes in a millisecond, so that a demand
/// reply waits behind little, and within these bounds.
const WRITE_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=256 << 10;

/// Images that are being opened for a connection before it takes up further requests.
const OPENING_MAX: usize = 4;

/// Room for what arrives that is asked for ahead, so that cancels and credits can be read while
/// requests wait.
const RECEIVED_AHEAD_BYTES: usize = 4 << 10;

/// Memory of a request while it is answered, however small its reply is.
const REQUEST_BYTES: usize = 4 << 10;

/// Reports of uploads that wait for the connection; a worker with more to say waits.
const REPORTS_MAX: usize = 64;

/// A part of an upload that found its worker's queue full.
struct Stalled {
    request: RequestId,
    command: Command,
}

/// Memory of what arrived on the connection and was not taken up or committed yet.
struct Received {
    room: Room,
    /// More of it was asked for.
    is_waiting: bool,
    /// Bytes of transactions that wait without memory of their own: small ones, part of
    /// [`RECEIVED_FREE_BYTES`].
    uncovered: usize,
}

struct Session {
    shared: Arc<Shared>,
    wire: ServerConnection,
    pushing: Pushing,
    owner: Owner,
    handles: Handles,
    device: Option<Arc<Device>>,
    pusher: Option<Pusher>,
    blocks: Option<BlockPusher>,
    /// Demands that wait for a piece that is being built.
    postponed: Vec<Postponed>,
    throttle: Throttle,
    /// Touches of blocks that were not taken up yet.
    touches: BlockTouches,
    done: DoneSender,
    advice: UnboundedSender<Box<Advice>>,
    reports: Sender<(RequestId, upload::Event)>,
    uploads: HashMap<RequestId, UploadHandle>,
    stalled: Option<Stalled>,
    /// Memory of what arrived.
    received: Received,
    /// Images that are being opened for it.
    opening: usize,
    /// Bytes of replies that are being read.
    reading_bytes: usize,
    /// Requests that wait for memory for their replies.
    ungranted: usize,
    /// Room of replies that are queued.
    held: Room,
    closed: Option<WireError>,
}

/// Serves one connection to its end. `peer` is for log lines.
pub(crate) async fn run<S>(
    shared: Arc<Shared>,
    stream: S,
    peer: &str,
    pushing: Pushing,
    owner: Owner,
    slot: ConnectionSlot,
    mut stopped: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Boxed, since a channel has room for 32 messages from the start, and most connections are
    // idle.
    let (done, mut results) = unbounded_channel();
    let (advice, mut advised) = unbounded_channel();
    let (reports, mut reported) = channel(REPORTS_MAX);
    let mut session = Session {
        wire: ServerConnection::new(shared.config.wire.clone(), shared.now()),
        pushing,
        owner,
        handles: Handles::default(),
        device: None,
        pusher: None,
        blocks: None,
        postponed: Vec::new(),
        throttle: Throttle::default(),
        touches: BlockTouches::default(),
        done,
        advice,
        reports,
        uploads: HashMap::new(),
        stalled: None,
        received: Received { room: shared.buffers.received().nothing(owner), is_waiting: false, uncovered: 0 },
        opening: 0,
        reading_bytes: 0,
        ungranted: 0,
        held: shared.buffers.replies().nothing(owner),
        closed: None,
        shared: shared.clone(),
    };
    let mut stream = stream;
    let rest = session.serve(&mut stream, &slot, &mut results, &mut advised, &mut reported, &mut stopped).await;
    let peer_left = matches!(session.closed, None | Some(WireError::Lost));
    // The end of the server itself is nobody's fault.
    let fault = session.closed.take().filter(|error| !matches!(error, WireError::Lost) && !*stopped.borrow());
    if let Some(error) = fault {
        shared.metrics.connections_failed.one();
        shared.log.warning(format_args!("{peer}: connection closed: {error}"));
    }
    drop(session);
    if !peer_left {
        let _ = tokio::time::timeout(Duration::from_secs(2), send_last(stream, &rest)).await;
    }
}

impl Session {
    /// Runs until the connection is over; returns the bytes that are still to be said.
    async fn serve<S>(
        &mut self,
        stream: &mut S,
        slot: &ConnectionSlot,
        results: &mut UnboundedReceiver<Box<Done>>,
        advised: &mut UnboundedReceiver<Box<Advice>>,
        reported: &mut Receiver<(RequestId, upload::Event)>,
        stopped: &mut watch::Receiver<bool>,
    ) -> Vec<u8>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut input = vec![0; *READ_BYTES.start()];
        let mut out = Vec::new();
        let mut written = 0;
        // What was written may lie in the stream's own buffer, if it encrypts.
        let mut unflushed = false;
        let mut paces = Paces::default();
        let mut alarm = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            if let Some(reason) = self.must_give_way(&mut paces) {
                self.wire.shut_down(ErrorCode::Busy, reason);
            }
            self.touch_some_blocks();
            if self.take_events() {
                slot.asked(self.shared.now());
            }
            // Replies go first: pushes get what they leave of the connection's share.
            let left = self.shared.config.connections.bytes_max.saturating_sub(self.reading_bytes + self.held.amount());
            let presses = self.blocks.as_ref().is_some_and(|blocks| blocks.presses(&self.wire));
            if let Some(pusher) = &mut self.pusher {
                pusher.pump(&mut self.wire, left, presses);
            }
            if let Some(pusher) = &mut self.blocks {
                pusher.pump(&self.wire, left);
            }
            let mut opens = None;
            if written == out.len() {
                out.clear();
                written = 0;
                let now = self.shared.now();
                let per_millisecond = self.wire.push_rate().map_or(0, |rate| rate as usize / 1000);
                let wanted = per_millisecond.clamp(*WRITE_BYTES.start(), *WRITE_BYTES.end());
                let allowed = self.throttle.allowed(now, wanted);
                if allowed > 0 {
                    // Grown step by step it would be copied as often.
                    out.reserve(allowed.min(self.wire.queued_bytes()));
                    self.throttle.spend(self.wire.transmit(now, &mut out, allowed));
                    self.release();
                } else {
                    opens = self.throttle.opens(now).map(|moment| self.shared.instant(moment));
                }
            }
            if out.is_empty() {
                // Most connections are idle most of the time.
                out = Vec::new();
            }
            if self.closed.is_some() {
                self.wire.transmit(self.shared.now(), &mut out, usize::MAX);
                return out.split_off(written);
            }
            let reads = if self.wire.wants_bytes() { self.may_receive().min(input.len()) } else { 0 };
            let now = self.shared.now();
            // Whether an upload waits for its client is not an event.
            let uploading = (!self.uploads.is_empty()).then(|| now.after(AGAIN));
            let slow = [paces.deadline(), uploading];
            let deadline = slow.into_iter().chain([self.wire.deadline()]).flatten().min();
            let deadline = deadline.map(|moment| self.shared.instant(moment));
            // Every byte received puts it off: to be early once in a while costs less than to set
            // the alarm each time.
            if let Some(deadline) = deadline.filter(|deadline| alarm.is_elapsed() || *deadline < alarm.deadline()) {
                alarm.as_mut().reset(deadline);
            }
            let stalled = self.stalled.as_ref().and_then(|stalled| self.uploads.get(&stalled.request));
            let stalled = stalled.map(|upload| upload.commands.clone());
            tokio::select! {
                biased;
                Some(done) = results.recv() => {
                    self.take_done(*done);
                    while let Ok(done) = results.try_recv() {
                        self.take_done(*done);
                    }
                }
                sent = write_on(&mut writer, &out[written..]), if written < out.len() || unflushed => match sent {
                    Ok(bytes) => {
                        written += bytes;
                        paces.took(bytes);
                        unflushed = bytes > 0;
                    }
                    Err(_) => self.wire.lost(),
                },
                received = reader.read(&mut input[..reads]), if reads > 0 => match received {
                    // An error closes the connection and comes back as an event.
                    Ok(bytes) if bytes > 0 => {
                        paces.sent(bytes);
                        drop(self.wire.receive(self.shared.now(), &input[..bytes]));
                        fit_reads(&mut input, bytes);
                    }
                    _ => self.wire.lost(),
                },
                Some(advice) = advised.recv() => self.advise(*advice),
                Some((request, event)) = reported.recv() => self.take_report(request, event),
                () = room_for_command(stalled.as_ref()), if stalled.is_some() => self.resume_stalled(),
                _ = stopped.changed() => {
                    self.wire.shut_down(ErrorCode::Shutdown, "the server is going down");
                }
                () = slot.displaced() => {
                    self.wire.shut_down(ErrorCode::Busy, "the server needs its place for another connection (--connections); connect again");
                }
                () = until(opens), if opens.is_some() => {}
                () = alarm.as_mut(), if deadline.is_some() => drop(self.wire.tick(self.shared.now())),
                () = tokio::task::yield_now(), if !self.touches.is_empty() => {}
            }
        }
    }

    /// Bytes that may be read from the socket now. A frame that has begun is read on when there is
    /// memory for all of it. What follows it may become many small requests.
    fn may_receive(&mut self) -> usize {
        let held = self.wire.received_bytes() + self.received.uncovered;
        let whole = self.wire.arriving_bytes() + self.received.uncovered;
        let beyond_free = |bytes: usize| (bytes + RECEIVED_AHEAD_BYTES).saturating_sub(RECEIVED_FREE_BYTES);
        let wanted = beyond_free(held.max(whole));
        let lacking = wanted.saturating_sub(self.received.room.amount());
        // Who waits for more keeps no more than it needs now: others may wait for that.
        self.received.room.shrink_to(if lacking == 0 { wanted } else { beyond_free(held) });
        if lacking > 0 && !self.received.is_waiting {
            match self.received.room.try_more(wanted - self.received.room.amount()) {
                Some(room) => self.received.room.merge(room),
                None => {
                    self.received.is_waiting = true;
                    let (received, owner, done) =
                        (self.shared.buffers.received().clone(), self.owner, self.done.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            // All of it, since what it has now it may have given back by then.
                            room = received.take(owner, wanted) => drop(done.send(Box::new(Done::Received(room)))),
                            () = done.closed() => {}
                        }
                    });
                }
            }
        }
        let filled = held - self.wire.spare_bytes();
        let left = (self.received.room.amount() + RECEIVED_FREE_BYTES).saturating_sub(filled);
        let frame = self.wire.missing_bytes().min(left);
        frame + (left - frame) / MEMORY_PER_BYTE
    }

    /// Memory for a reply, which is given at once or later. No further request is taken up before
    /// that: what waits takes memory too.
    fn read_reply(&mut self, bytes: usize, slots: Budget) -> Reading {
        let bytes = bytes.max(REQUEST_BYTES);
        self.reading_bytes += bytes;
        let room = self.shared.buffers.replies().try_take(self.owner, bytes);
        self.ungranted += usize::from(room.is_none());
        Reading { owner: self.owner, bytes, room, slots }
    }

    /// Gives back the memory of replies that have left.
    fn release(&mut self) {
        self.held.shrink_to(self.wire.queued_bytes().saturating_sub(self.wire.queued_push_bytes()));
    }

    /// Whether a further request may be taken up.
    fn has_room(&self) -> bool {
        !self.wire.is_congested()
            && self.stalled.is_none()
            && self.touches.is_empty()
            && self.ungranted == 0
            && self.opening < OPENING_MAX
            && self.reading_bytes + self.held.amount() < self.shared.config.connections.bytes_max
    }

    /// Whether the client asked for something.
    fn take_events(&mut self) -> bool {
        let mut asked = false;
        while self.closed.is_none() && self.has_room() {
            let Some(event) = self.wire.poll_event() else { return asked };
            asked |= matches!(event, ServerEvent::Request { .. });
            self.take_event(event);
        }
        // An upload that ended takes its stalled part with it.
        self.stalled.take_if(|stalled| !self.uploads.contains_key(&stalled.request));
        // What is over must be noticed even by a connection that is waiting for room.
        if self.closed.is_none()
            && self.wire.deadline().is_none()
            && let Some(ServerEvent::Closed(error)) = std::iter::from_fn(|| self.wire.poll_event()).last()
        {
            self.closed = Some(error);
        }
        asked
    }

    fn take_event(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::Ready(hello) => self.ready(hello),
            ServerEvent::Request { request, ask } => {
                self.shared.metrics.requests.one();
                if let Err(failure) = self.take_request(request, ask) {
                    self.fail(request, &failure);
                }
            }
            ServerEvent::Cancelled { request } => drop(self.uploads.remove(&request)),
            ServerEvent::Touch { image, token, pages } => self.take_touches(image, token, &pages),
            ServerEvent::Hint { image, token, pages } => self.take_hint(image, token, pages),
            ServerEvent::TokenEnd { image, token } => self.take_token_end(image, token),
            ServerEvent::PushStopped { stream } => {
                if let Some(pusher) = &mut self.pusher {
                    pusher.stopped(stream);
                }
                if let Some(pusher) = &mut self.blocks {
                    pusher.stopped(stream);
                }
            }
            ServerEvent::PutMeta { request, offset, bytes } => {
                let room = self.received.room.split(bytes.len());
                self.command(request, Command::Meta { offset, bytes, room });
            }
            ServerEvent::PutBlock { request, block, bytes } => {
                let room = self.received.room.split(bytes.len());
                self.command(request, Command::Block { block, bytes, room });
            }
            ServerEvent::PutCommit { request } => self.command(request, Command::Commit),
            ServerEvent::FileClose { volume, file } => self.close_file(volume, file),
            ServerEvent::FileShare { volume, file, share } => self.share_file(volume, file, share),
            ServerEvent::RateLimit { bytes_per_second } => self.throttle.set(bytes_per_second, self.shared.now()),
            ServerEvent::Closed(error) => self.closed = Some(error),
        }
    }

    fn ready(&mut self, hello: Hello) {
        let device = self.shared.devices.join(self.owner.peer, hello.device);
        self.pusher =
            Some(Pusher::new(self.shared.clone(), device.clone(), self.owner, self.done.clone(), self.advice.clone()));
        self.blocks = Some(BlockPusher::new(self.shared.clone(), self.owner, self.done.clone()));
        self.device = Some(device);
    }

    fn take_done(&mut self, done: Done) {
        match done {
            Done::Received(room) => {
                self.received.room.merge(room);
                self.received.is_waiting = false;
            }
            Done::Granted => self.ungranted -= 1,
            Done::Reply { request, reply, room, bytes } => {
                self.reading_bytes = self.reading_bytes.saturating_sub(bytes);
                self.held.merge(room);
                match reply {
                    Ok(reply) => {
                        if let Reply::Pages { bytes, .. } = &reply {
                            self.shared.metrics.page_bytes_demanded.add(bytes.len() as u64);
                        }
                        self.reply(request, reply);
                    }
                    Err(failure) => {
                        self.shared.log.warning(format_args!("a request failed: {failure}"));
                        self.fail(request, &failure);
                    }
                }
                self.release();
            }
            Done::Opened { request, opened } => {
                self.opening -= 1;
                let answered = opened.and_then(|image| self.opened(request, &image));
                if let Err(failure) = answered {
                    self.fail(request, &failure);
                }
            }
            Done::OpenedAgain { request, ask, opened } => {
                self.opening -= 1;
                if let Err(failure) = opened.and_then(|image| self.opened_again(request, ask, &image)) {
                    self.fail(request, &failure);
                }
            }
            Done::Volume(done) => self.take_volume_done(done),
            Done::BuiltBlocks(built) => {
                if let Some(pusher) = &mut self.blocks {
                    pusher.built(&mut self.wire, built);
                }
                self.resume_postponed();
            }
            Done::Built(built) => {
                if let Some(pusher) = &mut self.pusher {
                    pusher.built(&mut self.wire, built);
                }
            }
        }
    }

    fn reply(&mut self, request: RequestId, reply: Reply) {
        match self.wire.reply(request, reply) {
            // A request that was cancelled meanwhile has its answer already.
            Ok(()) | Err(Refused::UnknownRequest(_) | Refused::Closed) => {}
            Err(refused) => {
                let failure = Failure::new(ErrorCode::TooLarge, format!("the answer cannot be sent: {refused}"));
                self.fail(request, &failure);
            }
        }
    }

    fn fail(&mut self, request: RequestId, failure: &Failure) {
        self.shared.metrics.requests_failed.one();
        // Refused only if the request was cancelled or the connection is closed.
        let _ = self.wire.reply_error(request, failure.code, &failure.text);
    }
}

/// Waits until a worker can take a command, or is gone.
async fn room_for_command(commands: Option<&Sender<Command>>) {
    if let Some(commands) = commands {
        let _ = commands.reserve().await;
    }
}

async fn until(deadline: Option<tokio::time::Instant>) {
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline).await;
    }
}
