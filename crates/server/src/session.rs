//! One connection: it takes bytes from the socket to the wire's state machine, and events to the
//! part that can answer them.
//!
//! The task never blocks. Work that needs the disk runs on a blocking thread and comes back as
//! [`Done`]. While more than the connection's share of memory is queued or being read, no further
//! event is taken up, and once the wire's event queue is full, no further byte is read. So TCP
//! slows down a client that asks faster than it reads.

mod access;
mod block_touches;
mod client;
mod commits;
mod far;
mod manage;
mod metadata;
mod near;
mod outgoing;
mod pace;
mod pushes;
mod rates;
mod receiving;
mod replies;
mod requests;
mod signed;
mod socket;
mod throttle;
mod touches;
mod uploads;
mod volumes;
mod workers;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::watch;
use units::{Moment, RequestId};
use wire::{ErrorCode, Hello, Notice, Refused, Reply, ServerConnection, ServerEvent, WireError};

use crate::access::Rules;
use crate::advice::Advice;
use crate::done::Done;
use crate::error::Failure;
use crate::handles::Handles;
use crate::shared::Shared;
use crate::upload::{self, Command};
use block_touches::BlockTouches;
pub(crate) use client::{Client, Rights};
use outgoing::Outgoing;
use pace::{AGAIN, Paces};
use pushes::Pushes;
use rates::Rates;
use receiving::Receiving;
use replies::Replies;
pub(crate) use socket::send_last;
use socket::{READ_BYTES, fit_reads, write_on};
use uploads::Uploads;
use workers::Workers;

/// Reports of uploads that wait for the connection; a worker with more to say waits.
const REPORTS_MAX: usize = 64;

/// Time that a client has to read why its connection is closed.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// One connection. It hands what the wire reports to the part that keeps it, and what others did
/// for it back to the wire.
///
/// Invariant: every request that was taken up is answered once, by [`Session::reply`] or
/// [`Session::fail`], unless it is cancelled or the connection ends.
struct Session {
    shared: Arc<Shared>,
    wire: ServerConnection,
    client: Client,
    handles: Handles,
    /// `None` before the client's Hello.
    pushes: Option<Pushes>,
    /// Touches of data blocks that were not taken up yet.
    touches: BlockTouches,
    uploads: Uploads,
    receiving: Receiving,
    replies: Replies,
    outgoing: Outgoing,
    paces: Paces,
    rates: Rates,
    workers: Workers,
    advice: UnboundedSender<Box<Advice>>,
    closed: Option<WireError>,
}

/// What comes to a connection from elsewhere in the server.
struct Inbox {
    done: UnboundedReceiver<Box<Done>>,
    advice: UnboundedReceiver<Box<Advice>>,
    reports: Receiver<(RequestId, upload::Event)>,
    /// The rules of access change.
    rules: Option<watch::Receiver<Arc<Rules>>>,
    /// The server ends.
    stopped: watch::Receiver<bool>,
}

/// Serves one connection to its end.
pub(crate) async fn run<S>(shared: Arc<Shared>, mut stream: S, client: Client, stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut session, mut inbox) = Session::new(shared.clone(), client, stopped);
    let rest = session.serve(&mut stream, &mut inbox).await;
    let peer_left = matches!(session.closed, None | Some(WireError::Lost));
    // The end of the server itself is not a fault.
    let fault = session.closed.take().filter(|error| !matches!(error, WireError::Lost) && !*inbox.stopped.borrow());
    if let Some(error) = fault {
        shared.metrics.connections_failed.one();
        shared.log.warning(format_args!("{}: connection closed: {error}", session.client.name()));
    }
    // The slot is taken until the socket is closed.
    let _client = session.end();
    if !peer_left {
        let _ = tokio::time::timeout(END_DEADLINE, send_last(stream, &rest)).await;
    }
}

impl Session {
    fn new(shared: Arc<Shared>, client: Client, stopped: watch::Receiver<bool>) -> (Session, Inbox) {
        let (done, results) = unbounded_channel();
        let (advice, advised) = unbounded_channel();
        let (reports, reported) = channel(REPORTS_MAX);
        let (owner, rules) = (client.owner(), client.rules());
        let session = Session {
            wire: ServerConnection::new(shared.config.wire.clone(), shared.now()),
            client,
            handles: Handles::new(shared.catalog.uses.clone()),
            pushes: None,
            touches: BlockTouches::default(),
            uploads: Uploads::new(reports),
            receiving: Receiving::new(&shared, owner),
            replies: Replies::new(&shared, owner),
            outgoing: Outgoing::default(),
            paces: Paces::default(),
            rates: Rates::default(),
            workers: Workers::new(shared.clone(), owner, done),
            advice,
            closed: None,
            shared,
        };
        (session, Inbox { done: results, advice: advised, reports: reported, rules, stopped })
    }

    /// Gives back all that the connection held but its slot.
    fn end(self) -> Client {
        self.client
    }

    /// Runs until the connection is over; returns the bytes that are still to be sent.
    async fn serve<S>(&mut self, stream: &mut S, inbox: &mut Inbox) -> Vec<u8>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut input = vec![0; *READ_BYTES.start()];
        let mut alarm = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            let opens = self.advance().map(|moment| self.shared.instant(moment));
            if self.closed.is_some() {
                return self.outgoing.finish(&mut self.wire, self.shared.now());
            }
            let reads = match self.wire.wants_bytes() {
                true => self.receiving.allowed(&self.wire, &self.shared, self.workers.done()).min(input.len()),
                false => 0,
            };
            let reads = reads.min(self.rates.receiving.bytes());
            let deadline = self.deadline().map(|moment| self.shared.instant(moment));
            // Every byte received puts it off: to be early once in a while costs less than to set
            // the alarm each time.
            if let Some(deadline) = deadline.filter(|deadline| alarm.is_elapsed() || *deadline < alarm.deadline()) {
                alarm.as_mut().reset(deadline);
            }
            let full_queue = self.uploads.full_queue();
            tokio::select! {
                biased;
                Some(done) = inbox.done.recv() => {
                    self.take_done(*done);
                    while let Ok(done) = inbox.done.try_recv() {
                        self.take_done(*done);
                    }
                }
                sent = write_on(&mut writer, &self.outgoing), if self.outgoing.has_work() => match sent {
                    Ok(bytes) => {
                        self.outgoing.wrote(bytes);
                        self.paces.took(bytes);
                    }
                    Err(_) => self.wire.lost(),
                },
                received = reader.read(&mut input[..reads]), if reads > 0 => match received {
                    // An error closes the connection and comes back as an event.
                    Ok(bytes) if bytes > 0 => {
                        self.paces.sent(bytes);
                        self.rates.receiving.spend(bytes);
                        drop(self.wire.receive(self.shared.now(), &input[..bytes]));
                        fit_reads(&mut input, bytes);
                    }
                    _ => self.wire.lost(),
                },
                Some(advice) = inbox.advice.recv() => self.advise(*advice),
                Some((request, event)) = inbox.reports.recv() => self.take_report(request, event),
                () = room_for_command(full_queue.as_ref()), if full_queue.is_some() => self.uploads.resume(),
                _ = inbox.stopped.changed() => {
                    self.wire.shut_down(ErrorCode::Shutdown, "the server is going down");
                }
                (code, reason) = self.client.dismissed() => self.wire.shut_down(code, reason),
                () = changed(inbox.rules.as_mut()) => {}
                () = until(opens), if opens.is_some() => {}
                () = alarm.as_mut(), if deadline.is_some() => drop(self.wire.tick(self.shared.now())),
                () = tokio::task::yield_now(), if !self.touches.is_empty() => {}
            }
        }
    }

    /// Takes up what has arrived, pushes, and asks the wire for bytes. The moment at which bytes
    /// may leave if none may now.
    fn advance(&mut self) -> Option<Moment> {
        access::follow_rules(self);
        if let Some(reason) = self.must_give_way() {
            self.wire.shut_down(ErrorCode::Busy, reason);
        }
        self.touch_some_blocks();
        if self.take_events() {
            self.client.asked(self.shared.now());
        }
        // Replies go first: pushes get what they leave of the connection's share.
        if let Some(pushes) = &mut self.pushes {
            pushes.pump(&mut self.wire, self.replies.bytes_left());
        }
        let is_near = self.is_near();
        self.rates.refill(self.client.usage());
        let opens = self.outgoing.fill(&mut self.wire, self.shared.now(), is_near, &mut self.rates.sending);
        self.replies.release(&self.wire);
        [opens, self.rates.opens()].into_iter().flatten().min()
    }

    /// When to look after the connection again if nothing happens.
    fn deadline(&self) -> Option<Moment> {
        // Whether an upload waits for its client is not an event.
        let uploading = (!self.uploads.is_empty()).then(|| self.shared.now().after(AGAIN));
        [self.paces.deadline(), uploading, self.wire.deadline()].into_iter().flatten().min()
    }

    /// Whether a further request may be taken up.
    fn has_room(&self) -> bool {
        !self.wire.is_congested()
            && !self.uploads.is_stalled()
            && !self.rates.holds_requests()
            && self.touches.is_empty()
            && self.replies.has_room()
    }

    /// Whether the client asked for something.
    fn take_events(&mut self) -> bool {
        let mut asked = false;
        if let Some((request, ask)) = self.rates.take_waiting() {
            access::begin(self, request, ask);
            asked = !self.rates.holds_requests();
        }
        while self.closed.is_none() && self.has_room() {
            let Some(event) = self.wire.poll_event() else { return asked };
            asked |= matches!(event, ServerEvent::Request { .. });
            self.take_event(event);
        }
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
            ServerEvent::Request { request, ask } => access::begin(self, request, ask),
            ServerEvent::Cancelled { request } => {
                access::end_upload(self, request, &Err(Failure::new(ErrorCode::Cancelled, "cancelled")));
            }
            ServerEvent::Notice(notice) => self.take_notice(notice),
            ServerEvent::PushStopped { stream } => self.pushes.iter_mut().for_each(|pushes| pushes.stopped(stream)),
            ServerEvent::PutMeta { request, offset, bytes } => {
                let room = self.receiving.split(bytes.len());
                self.uploads.command(request, Command::Meta { offset, bytes, room });
            }
            ServerEvent::PutBlock { request, block, bytes } => {
                let room = self.receiving.split(bytes.len());
                self.uploads.command(request, Command::Block { block, bytes, room });
            }
            ServerEvent::PutCommit { request } => self.uploads.command(request, Command::Commit),
            ServerEvent::Closed(error) => self.closed = Some(error),
        }
    }

    fn take_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Touch { image, token, pages } => self.take_touches(image, token, &pages),
            Notice::Hint { image, token, pages } => self.take_hint(image, token, pages),
            Notice::TokenEnd { image, token } => self.take_token_end(image, token),
            Notice::FileClose { volume, file } => self.close_file(volume, file),
            Notice::FileShare { volume, file, share } => self.share_file(volume, file, share),
            Notice::RateLimit { bytes_per_second } => self.outgoing.limit(bytes_per_second, self.shared.now()),
            Notice::DeviceSpeed { round_trip, zstd, lz4 } => {
                self.pushes.iter_mut().for_each(|pushes| pushes.told_speed(round_trip, zstd, lz4))
            }
            Notice::Bearer(token) => {
                let shown = self.client.show_token(&token);
                access::end_unless(self, shown);
            }
            // The connection acts on these itself.
            Notice::Credit { .. } | Notice::StopPush { .. } => {}
        }
    }

    fn ready(&mut self, hello: Hello) {
        let owner = self.client.owner();
        let device = self.shared.devices.join(owner.peer, hello.device);
        self.pushes = Some(Pushes::new(&self.shared, device, owner, self.workers.done(), &self.advice));
    }

    fn take_done(&mut self, done: Done) {
        match done {
            Done::Received(room) => self.receiving.granted(room),
            Done::Granted => self.replies.granted(),
            Done::Reply { request, reply, room, bytes } => {
                self.replies.end(bytes, room);
                match reply {
                    Ok(reply) => self.reply(request, reply),
                    Err(failure) => {
                        if matches!(failure.code, ErrorCode::Corrupt | ErrorCode::Storage) {
                            self.shared.metrics.reads_failed.one();
                        }
                        self.shared.log.warning(format_args!("a request failed: {failure}"));
                        self.fail(request, &failure);
                    }
                }
                self.replies.release(&self.wire);
            }
            Done::Opened { request, opened, opening } => {
                self.replies.end_opening();
                access::opened(self, request, opened, &opening);
            }
            Done::OpenedAgain { request, ask, opened } => {
                self.replies.end_opening();
                if let Err(failure) = opened.and_then(|image| self.opened_again(request, ask, &image)) {
                    self.fail(request, &failure);
                }
            }
            Done::Volume(done) => self.take_volume_done(done),
            Done::BuiltBlocks(built) => {
                if let Some(pushes) = &mut self.pushes {
                    pushes.blocks().built(&mut self.wire, built);
                }
                self.resume_postponed();
            }
            Done::Built(built) => {
                if let Some(pushes) = &mut self.pushes {
                    pushes.built(&mut self.wire, built);
                }
            }
        }
    }

    fn reply(&mut self, request: RequestId, reply: Reply) {
        if let Reply::Pages { bytes, .. } = &reply {
            self.shared.metrics.page_bytes_demanded.add(bytes.len() as u64);
        }
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

/// Waits until the rules change, if there are any.
async fn changed(rules: Option<&mut watch::Receiver<Arc<Rules>>>) {
    let is_open = match rules {
        Some(rules) => rules.changed().await.is_ok(),
        None => false,
    };
    if !is_open {
        std::future::pending().await
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
