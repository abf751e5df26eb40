//! The requests of an image's session on one connection to a server.
//!
//! Replies are verified and decoded here, before the schedule's lock is taken, so that connections
//! decode in parallel. When the connection is lost, its requests go back to the schedule, which
//! gives them to other connections or keeps them until this one is up again. On every new
//! connection the image is opened by its id: it is the mounted image, or READs fail.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use codec::Codec;
use connection::{Connection, Dialer, Handler, Moved, VolumeFrames};
use units::{PageId, RequestId, StreamId, Token};
use wire::format::{FEATURE_PROOFS, HINT_ACTION, TOUCH_PAGES_MAX};
use wire::{ClientEvent, ErrorCode, ImageHandle, Notice, PushHeader, PushPiece, Refused, Reply, Request};

use crate::ablation::ShortConnections;
use crate::command::{Command, ConnectionIndex, Failure, Kept, RequestKey, StreamKey, VOLUME_CONNECTION, Wanted};
use crate::hashes::{HashFetch, Step};
use crate::job::{Job, UNDIGESTED_BYTES_MAX};
use crate::schedule::StreamInfo;
use crate::shared::Shared;
use crate::tell::{Teller, tell_round_trip};

/// Wrong proofs of chunk hashes on connections of one index, after which the server counts as one
/// that sends none: damage on the way is not repeated so often.
const BAD_PROOFS_MAX: u32 = 3;

/// The handler of one connection of a session.
pub(crate) struct ImageHandler {
    shared: Arc<Shared>,
    dialer: Dialer,
    index: ConnectionIndex,
    /// Used by an ablation only.
    short: ShortConnections,
    /// The first connection fetches the chunk hashes if the image was opened without them, and they
    /// do not come with proofs.
    hashes: Option<HashFetch>,
    /// The first connection has it, if there is a device cache.
    teller: Option<Teller>,
    /// Proofs that were wrong.
    bad_proofs: u32,
    /// The volume client whose frames go along, once there is one.
    volumes: Option<VolumeFrames>,
    /// The image was open on a connection of this index before.
    was_up: bool,
    /// The present connection, or the last one.
    live: Live,
}

/// State of the present connection.
#[derive(Default)]
struct Live {
    generation: u64,
    /// There is a connection.
    is_connected: bool,
    /// The Open that was sent, until it is answered.
    opening: Option<RequestId>,
    image: Option<ImageHandle>,
    asked: HashMap<RequestId, (RequestKey, Wanted)>,
    /// Bytes of the answers to `asked`, roughly.
    asked_bytes: u64,
    /// Commands the connection had no room for.
    backlog: VecDeque<Command>,
    streams: HashSet<StreamId>,
}

impl ImageHandler {
    /// The handler of a connection. `image`: it is open on the connection that is there already.
    pub fn new(
        shared: Arc<Shared>,
        dialer: Dialer,
        index: ConnectionIndex,
        (hashes, teller): (Option<HashFetch>, Option<Teller>),
        image: Option<ImageHandle>,
    ) -> ImageHandler {
        let live = Live { image, ..Live::default() };
        let (short, was_up) = (ShortConnections::default(), image.is_some());
        ImageHandler { shared, dialer, index, short, hashes, teller, bad_proofs: 0, volumes: None, was_up, live }
    }
}

impl Handler for ImageHandler {
    type Command = Command;

    fn connected(&mut self, connection: &mut Connection, generation: u64) {
        (self.live.generation, self.live.is_connected) = (generation, true);
        if self.live.image.is_none() {
            let name = format!("@{}", self.shared.metadata.id());
            // Refused only by a connection that is closed, which its event tells.
            self.live.opening = connection.machine.request(connection.now(), Request::Open { name }).ok();
        } else {
            self.greet(connection);
        }
    }

    fn command(&mut self, connection: &mut Connection, command: Command) -> ControlFlow<()> {
        match command {
            Command::Close => return ControlFlow::Break(()),
            Command::Volume { generation, message } => {
                if let Some(volumes) = &mut self.volumes {
                    volumes.send(connection, generation, message);
                }
            }
            other => self.live.backlog.push_back(other),
        }
        ControlFlow::Continue(())
    }

    /// The connection is down, so its requests were handed to others already.
    fn drop_command(&mut self, command: Command) -> ControlFlow<()> {
        if command == Command::Close { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn before_turn(&mut self, connection: &mut Connection) {
        for command in std::mem::take(&mut self.live.backlog) {
            self.obey(connection, command);
        }
        self.ask_hashes(connection);
        if self.index == VOLUME_CONNECTION && self.volumes.is_none() {
            self.volumes = self.shared.volumes.get().cloned().map(VolumeFrames::new);
        }
        if let Some(volumes) = &mut self.volumes {
            if let Some(features) = connection.machine.hello().map(|hello| hello.features) {
                volumes.connected(connection, self.live.generation, features);
            }
            volumes.send_waiting(connection);
        }
    }

    fn moved(&mut self, moved: Moved) {
        self.shared.run(|schedule, _| schedule.connections().moved(self.index, moved.received, moved.sent));
    }

    fn event(&mut self, connection: &mut Connection, event: ClientEvent) -> ControlFlow<()> {
        let event = match &mut self.volumes {
            Some(volumes) => volumes.take(event),
            None => Some(event),
        };
        event.map_or(ControlFlow::Continue(()), |event| self.take(connection, event))
    }

    /// Other connections take over, and streams are over. The reason is not reported: READs wait,
    /// or fail in soft mode. `runnel status` shows the counters.
    fn lost(&mut self, reason: &str) -> bool {
        let live = std::mem::take(&mut self.live);
        if live.is_connected {
            self.shared.run(|schedule, now| schedule.connection_down(now, self.index));
        }
        for stream in live.streams {
            let key = StreamKey { connection: self.index, generation: live.generation, stream };
            let _ = self.shared.storer.send(Job::Over { key });
        }
        if let Some(volumes) = &mut self.volumes {
            volumes.lost(reason);
        }
        self.hashes.iter_mut().for_each(HashFetch::lost);
        live.image.is_some()
    }

    fn closed(&mut self) {
        match (&self.volumes, self.shared.volumes.get().filter(|_| self.index == VOLUME_CONNECTION)) {
            (Some(volumes), _) => volumes.closed(),
            (None, Some(handler)) => handler.closed(),
            (None, None) => {}
        }
    }
}

impl ImageHandler {
    /// Asks for the next piece of the hashes, if none is under way.
    fn ask_hashes(&mut self, connection: &mut Connection) {
        let (Some(image), Some(hashes)) = (self.live.image, &mut self.hashes) else { return };
        let Some((offset, bytes)) = hashes.next() else { return };
        let now = self.shared.clock.now();
        let time = self.shared.config.connection.answer_time(self.live.asked_bytes + u64::from(bytes));
        let ask = Request::MetaRead { image, offset, bytes };
        // Refused for want of room: the next turn tries again.
        if let Ok(request) = connection.machine.request_until(now, ask, now.after(time)) {
            hashes.sent(request, now);
        }
    }

    /// The server of a new connection may be another one.
    fn take_hello(&mut self, features: u64) {
        let metadata = &self.shared.metadata;
        // Pages that come over connections of their own come without.
        let proves = features & FEATURE_PROOFS != 0 && !self.shared.config.ablation.short_connections;
        let is_wrong = self.bad_proofs >= BAD_PROOFS_MAX;
        metadata.expect_proofs(proves && !is_wrong);
        let lacks = !metadata.takes_blocks() || !metadata.takes_pages() && (self.index == 0 || is_wrong);
        if lacks && self.hashes.is_none() {
            // Those of blocks are loaded from the same bytes, if they are not here.
            let both = metadata.superblock().hash_region().filter(|_| !metadata.has_block_hashes());
            self.hashes = Some(HashFetch::new(both.unwrap_or(metadata.chunk_hash_region()), b""));
        }
    }

    /// Hashes came with a proof, before what they are for. They come once on a
    /// connection, so one on which they were damaged cannot bring these pages any more: the next
    /// connection does.
    fn take_proof(&mut self, connection: &mut Connection, proof: &[u8]) -> ControlFlow<()> {
        let metadata = &self.shared.metadata;
        if metadata.load_proof(proof).is_ok() {
            self.shared.keep(|| Kept::Proof(Bytes::copy_from_slice(proof)));
            return ControlFlow::Continue(());
        }
        self.shared.run(|schedule, _| schedule.verify_failed());
        let has_all = metadata.has_chunk_hashes() && metadata.has_block_hashes();
        if has_all || metadata.contradiction().is_some() || self.bad_proofs >= BAD_PROOFS_MAX {
            return ControlFlow::Continue(());
        }
        self.bad_proofs += 1;
        connection.machine.lost();
        ControlFlow::Break(())
    }

    /// A piece of the hashes came, or a refusal.
    fn take_hashes(&mut self, reply: &Reply) {
        let Some(hashes) = &mut self.hashes else { return };
        let mut step = hashes.take(self.shared.clock.now(), reply);
        let metadata = &self.shared.metadata;
        let load = |hashes| metadata.load_block_hashes(hashes).and_then(|()| metadata.load_chunk_hashes(hashes));
        if step == Step::Complete && load(hashes).is_err() {
            self.shared.run(|schedule, _| schedule.verify_failed());
            step = hashes.damaged();
        }
        if step != Step::Going {
            self.hashes = None;
            let _ = self.shared.storer.send(Job::Hashes { good: step == Step::Complete });
        }
    }

    fn obey(&mut self, connection: &mut Connection, command: Command) {
        let Some(image) = self.live.image else { return };
        // The server needs the order, so no command overtakes one that waits for room.
        let ordered = matches!(
            command,
            Command::Request { .. }
                | Command::Hurry { .. }
                | Command::Touch { .. }
                | Command::TokenEnd { .. }
                | Command::Hint { .. }
        );
        // Blocks could not be verified before the hashes are here.
        let waits = self.hashes.is_some() && !self.shared.metadata.takes_blocks();
        if ordered && (waits || !self.live.backlog.is_empty()) {
            self.live.backlog.push_back(command);
            return;
        }
        let refused = match &command {
            Command::Request { key, token, wanted, force, speculative } => {
                self.ask(connection, image, *key, *token, wanted, (*force, *speculative))
            }
            Command::Hurry { key } => {
                let request = self.live.asked.iter().find(|(_, (asked, _))| asked == key).map(|(request, _)| *request);
                // Without the request its answer is here, and waits for the schedule's lock.
                request.map_or(Ok(()), |request| connection.machine.hurry(request))
            }
            Command::Touch { token, pages } => pages
                .chunks(TOUCH_PAGES_MAX)
                .try_for_each(|pages| connection.machine.touch(image, *token, pages.to_vec())),
            Command::TokenEnd { token, .. } => connection.machine.token_end(image, *token),
            Command::Hint { token, pages } => {
                let refused = connection.machine.hint(image, *token, pages.clone());
                if matches!(refused, Err(Refused::NoFeature(_))) {
                    self.shared.run(|schedule, now| schedule.pull_hinted(now, pages));
                }
                refused
            }
            Command::Credit { stream, bytes } if stream.generation == self.live.generation => {
                connection.machine.credit(stream.stream, *bytes)
            }
            Command::StopPush { stream } if stream.generation == self.live.generation => {
                connection.machine.stop_push(stream.stream)
            }
            // An old server has no use for it: the machine refuses.
            Command::DecodeRate { zstd, lz4 } => {
                connection.machine.notify(Notice::DeviceSpeed { round_trip: 0, zstd: *zstd, lz4: *lz4 })
            }
            Command::Credit { .. } | Command::StopPush { .. } | Command::Volume { .. } => Ok(()),
            Command::Keep(_) | Command::Close => Ok(()),
        };
        match refused {
            Err(Refused::Full { .. }) if ordered => self.live.backlog.push_back(command),
            // Closed: the requests are handed back when the loop sees it. Nothing else can be
            // refused.
            _ => {}
        }
    }

    fn ask(
        &mut self,
        connection: &mut Connection,
        image: ImageHandle,
        key: RequestKey,
        token: Token,
        wanted: &Wanted,
        (force, speculative): (bool, bool),
    ) -> Result<(), Refused> {
        let bytes = wanted.answer_bytes(&self.shared.metadata);
        // Pushed pages are of no use yet without hashes: a demand must not wait for them.
        let force = force || !self.live.streams.is_empty() && !self.shared.metadata.takes_pages();
        let ask = match wanted {
            Wanted::Block { block, page } => {
                Request::PullBlock { image, token, page: *page, block: *block, force, speculative }
            }
            Wanted::Pages(pages) => Request::PullPages { image, token, pages: pages.clone(), force },
        };
        if self.shared.config.ablation.short_connections && !speculative {
            self.ask_alone(connection, key, wanted, ask);
            return Ok(());
        }
        let now = self.shared.clock.now();
        let deadline = now.after(self.shared.config.connection.answer_time(self.live.asked_bytes + bytes));
        let request = connection.machine.request_until(now, ask, deadline)?;
        self.live.asked_bytes += bytes;
        self.live.asked.insert(request, (key, wanted.clone()));
        Ok(())
    }

    /// Asks over a connection that is made for this one demand. If there is none to be had, this
    /// one is down too.
    fn ask_alone(&mut self, connection: &mut Connection, key: RequestKey, wanted: &Wanted, ask: Request) {
        if connection.machine.is_closed() {
            return;
        }
        let bytes = wanted.answer_bytes(&self.shared.metadata);
        let (answer, traffic) = self.short.ask(&self.shared, &self.dialer, ask, bytes);
        let (received, sent) = (traffic.bytes_received, traffic.bytes_sent);
        self.shared.run(|schedule, _| schedule.connections().moved(self.index, received, sent));
        match answer {
            Ok(reply) => self.take_reply(key, wanted, reply),
            Err(_) => connection.machine.lost(),
        }
    }

    fn take(&mut self, connection: &mut Connection, event: ClientEvent) -> ControlFlow<()> {
        match event {
            ClientEvent::Reply { request, reply } if self.live.opening == Some(request) => {
                self.live.opening = None;
                return self.take_opened(connection, reply);
            }
            ClientEvent::Reply { request, reply } if self.hashes.as_ref().is_some_and(|it| it.owns(request)) => {
                self.take_hashes(&reply);
            }
            ClientEvent::Reply { request, reply } => {
                if let Some((key, wanted)) = self.live.asked.remove(&request) {
                    self.live.asked_bytes -= wanted.answer_bytes(&self.shared.metadata);
                    self.take_reply(key, &wanted, reply);
                }
            }
            // No answer in time although the link had time for it: this connection is of no use.
            ClientEvent::Expired { .. } => {
                connection.machine.lost();
                return ControlFlow::Break(());
            }
            ClientEvent::Ready(hello) => self.take_hello(hello.features),
            ClientEvent::Hashes { image, proof } if Some(image) == self.live.image => {
                return self.take_proof(connection, &proof);
            }
            ClientEvent::PushStart { stream, push } => self.take_push_start(connection, stream, push),
            ClientEvent::Push { piece, credit } => self.take_push(connection, piece, credit),
            ClientEvent::PushEnd { stream, .. } => {
                if self.live.streams.remove(&stream) {
                    let key = StreamKey { connection: self.index, generation: self.live.generation, stream };
                    let _ = self.shared.storer.send(Job::Over { key });
                }
            }
            ClientEvent::Closed(_)
            | ClientEvent::Hashes { .. }
            | ClientEvent::Start { .. }
            | ClientEvent::PutNeed { .. }
            | ClientEvent::PutProgress { .. } => {}
        }
        ControlFlow::Continue(())
    }

    /// The image is open on the connection.
    fn greet(&self, connection: &mut Connection) {
        tell_round_trip(connection);
        self.teller.iter().for_each(Teller::start);
    }

    fn take_opened(&mut self, connection: &mut Connection, reply: Reply) -> ControlFlow<()> {
        match reply {
            Reply::Opened { image, id, .. } if id == self.shared.metadata.id() => {
                self.live.image = Some(image);
                self.greet(connection);
                let again = std::mem::replace(&mut self.was_up, true);
                self.shared.run(|schedule, now| schedule.connection_up(now, self.index, again));
                ControlFlow::Continue(())
            }
            // Busy, or going down: like a lost connection.
            Reply::Error { code, .. } if code != ErrorCode::NotFound => ControlFlow::Break(()),
            _ => {
                self.shared.run(|schedule, now| schedule.image_gone(now));
                ControlFlow::Break(())
            }
        }
    }

    fn take_reply(&self, key: RequestKey, wanted: &Wanted, reply: Reply) {
        let failure = match (wanted, reply) {
            (Wanted::Block { block, .. }, Reply::Block { bytes, .. }) => {
                self.shared.take_block(key, *block, bytes);
                return;
            }
            (Wanted::Block { block, .. }, Reply::Decoded { bytes, .. }) => {
                return self.shared.take_decoded(key, *block, bytes);
            }
            (wanted, Reply::Pages { codec, bytes }) => {
                return self.take_pages(key, wanted.pages(), codec, &bytes);
            }
            (_, Reply::OnTheWay { stream }) => {
                let stream = StreamKey { connection: self.index, generation: self.live.generation, stream };
                return self.shared.run(|schedule, now| schedule.on_the_way(now, key, stream));
            }
            (_, Reply::Error { code, .. }) => Failure::of(code),
            _ => Failure::Refused,
        };
        self.shared.run(|schedule, now| schedule.failed(now, key, failure));
    }

    /// Pages asked for one by one: each is checked for itself.
    fn take_pages(&self, key: RequestKey, pages: &[PageId], codec: u8, stored: &[u8]) {
        let metadata = &self.shared.metadata;
        let sizes: Vec<usize> = pages.iter().map(|page| metadata.page_bytes(*page).unwrap_or(0)).collect();
        let mut raw = Vec::new();
        let decoded = Codec::from_u8(codec)
            .is_some_and(|codec| codec::decode(codec, stored, sizes.iter().sum(), &mut raw).is_ok());
        if !decoded {
            return self.shared.run(|schedule, now| schedule.failed(now, key, Failure::Corrupt));
        }
        let mut rest = raw.as_slice();
        let parts: Vec<(PageId, &[u8])> = pages
            .iter()
            .zip(sizes)
            .map(|(page, bytes)| {
                let (bytes, after) = rest.split_at(bytes);
                rest = after;
                (*page, bytes)
            })
            .collect();
        let all_good = metadata.verify_pages(&parts).is_ok();
        let is_good = |page: PageId, bytes: &[u8]| all_good || metadata.verify_page(page, bytes).is_ok();
        let checked: Vec<(PageId, Option<&[u8]>)> =
            parts.into_iter().map(|(page, bytes)| (page, Some(bytes).filter(|bytes| is_good(page, bytes)))).collect();
        if all_good {
            self.shared.keep(|| Kept::Pages { pages: pages.to_vec(), raw: Bytes::copy_from_slice(&raw) });
        }
        self.shared.run(|schedule, now| schedule.pages_arrived(now, key, &checked));
    }

    fn take_push_start(&mut self, connection: &mut Connection, stream: StreamId, push: PushHeader) {
        if Some(push.image) != self.live.image {
            // Not of this image; a refusal can only mean that the connection is closed.
            let _ = connection.machine.stop_push(stream);
            return;
        }
        self.live.streams.insert(stream);
        let key = StreamKey { connection: self.index, generation: self.live.generation, stream };
        let info = StreamInfo { token: push.token, audit: push.audit, hinted: push.action == HINT_ACTION };
        self.shared.run(|schedule, _| schedule.stream_started(key, info));
        let job = Job::Started { key, info, encoding: push.encoding, window_log: push.window_log };
        let _ = self.shared.storer.send(job);
    }

    fn take_push(&mut self, connection: &mut Connection, piece: PushPiece, credit: u32) {
        let stream = piece.stream;
        if !self.live.streams.contains(&stream) {
            let _ = connection.machine.credit(stream, credit);
            return;
        }
        let key = StreamKey { connection: self.index, generation: self.live.generation, stream };
        // READs wait for a piece only if it can be verified when its turn comes.
        let announced = self.shared.metadata.takes_pages();
        if announced {
            self.shared.run(|schedule, _| schedule.pushes().piece_received(piece.pages.iter().copied()));
        }
        let bytes = piece.bytes.len();
        let before = self.shared.undigested_bytes.fetch_add(bytes, Ordering::AcqRel);
        // Credit at once keeps the server's estimate of the link right; credit after digestion
        // keeps memory bounded.
        let later = if before + bytes > UNDIGESTED_BYTES_MAX { credit } else { 0 };
        let sent = self.shared.storer.send(Job::Piece { key, piece, credit: later, announced });
        if sent.is_ok() && later == 0 {
            let _ = connection.machine.credit(stream, credit);
        }
    }
}
