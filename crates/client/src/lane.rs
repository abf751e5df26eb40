//! The Networker: one persistent connection per lane, each owned by one thread.
//!
//! A lane's thread drives its connection and nothing else: commands come over a channel, and a waker interrupts its
//! sleep. Replies are verified and decoded here, before the schedule's lock is taken, so that lanes decode in parallel.
//! A lost connection hands its requests back to the schedule, which gives them to other lanes or keeps them until this
//! one is connected again; the wait between attempts doubles from 100 ms to 10 s, with jitter, so that the devices of a
//! restarted server do not all come at the same instant. On every new connection the image is opened by its id: what was
//! mounted stays what it is, or READs fail.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use codec::Codec;
use units::{Moment, PageId, RequestId, Rng, SplitMix64, StreamId, Token};
use wire::format::{FRAME_BYTES_PER_SECOND_MIN, HINT_ACTION, TOUCH_PAGES_MAX};
use wire::{ClientConfig, ClientEvent, ErrorCode, ImageHandle, PushHeader, PushPiece, Refused, Reply, Request};

use crate::ablation;
use crate::block_cache::StoredBlock;
use crate::carry::{Hold, Passenger};
use crate::command::{AskKey, Command, LaneIndex, StreamKey, Wanted};
use crate::config::Config;
use crate::connection::Connection;
use crate::hashes::{HashFetch, Step};
use crate::schedule::{Failure, StreamInfo};
use crate::session::Shared;
use crate::storer::{Job, UNDIGESTED_BYTES_MAX};
use crate::transport::{Dialer, timespec};
use crate::waker::Waker;

/// First wait before a new connection.
pub(crate) const BACK_OFF_MIN: Duration = Duration::from_millis(100);

/// Longest wait: a server that is back is found within ten seconds.
pub(crate) const BACK_OFF_MAX: Duration = Duration::from_secs(10);

/// The lane that carries the frames of volumes: one connection, so that their order of importance holds.
pub(crate) const CARRYING_LANE: LaneIndex = 0;

/// What a lane's thread owns.
pub(crate) struct Lane {
    pub shared: Arc<Shared>,
    pub dialer: Dialer,
    pub lane: LaneIndex,
    pub commands: Receiver<Command>,
    pub waker: Arc<Waker>,
    /// The first lane fetches the chunk hashes if the image was opened without them.
    pub hashes: Option<HashFetch>,
}

/// A connection that lives.
struct Live {
    connection: Connection,
    generation: u64,
    /// The Open that was sent, until it is answered.
    opening: Option<RequestId>,
    image: Option<ImageHandle>,
    asked: HashMap<RequestId, (AskKey, Wanted)>,
    /// What the answers to `asked` will take, roughly.
    asked_bytes: u64,
    /// Commands the connection had no room for.
    backlog: VecDeque<Command>,
    streams: HashSet<StreamId>,
    hashes: Option<HashFetch>,
    hold: Hold,
    /// The passenger knows of this connection.
    boarded: bool,
    /// Why the connection ended, if it is known.
    ended: Option<String>,
}

/// Why a lane stopped serving a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Lost,
    Closed,
}

/// What every connection of a session says of itself.
pub(crate) fn wire_config(config: &Config, device: u128) -> ClientConfig {
    ClientConfig {
        device,
        window_log_max: config.window_log_max,
        push_bytes_max: if config.push { config.push_bytes_max } else { 0 },
        hello_deadline: config.open_deadline,
        request_deadline: config.open_deadline,
        silence_max: config.answer_deadline,
        ..ClientConfig::default()
    }
}

/// Time in which an answer of so many bytes must come: the stated deadline, and the time the slowest link we serve takes.
pub(crate) fn answer_time(deadline: Duration, bytes: u64) -> Duration {
    deadline + Duration::from_micros(bytes.saturating_mul(1_000_000) / FRAME_BYTES_PER_SECOND_MIN)
}

impl Lane {
    /// Serves until the session closes. `ready` is a connection on which the image is open already.
    pub fn work(mut self, ready: Option<(Connection, ImageHandle)>) {
        self.keep_connected(ready);
        if let Some(passenger) = self.passenger() {
            passenger.closed();
        }
    }

    fn keep_connected(&mut self, mut ready: Option<(Connection, ImageHandle)>) {
        let mut hashes = self.hashes.take();
        let mut rng = SplitMix64(self.shared.device as u64 ^ self.lane as u64);
        let mut back_off = BACK_OFF_MIN;
        let mut generation = 0;
        let mut was_up = ready.is_some();
        loop {
            let connected = match ready.take() {
                Some((connection, image)) => Ok(Live::new(connection, generation, None, Some(image))),
                None => self.connect(generation),
            };
            if let Ok(mut live) = connected {
                live.hashes = hashes.take();
                let ended = self.serve(&mut live, &mut was_up);
                if live.image.is_some() {
                    back_off = BACK_OFF_MIN;
                }
                hashes = self.give_up(live);
                if ended == Ended::Closed {
                    return;
                }
            }
            generation += 1;
            // Between half of it and all of it.
            let micros = back_off.as_micros() as u64;
            let time = Duration::from_micros(micros / 2 + rng.below(micros / 2 + 1));
            if !self.wait(time) {
                return;
            }
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
    }

    fn connect(&self, generation: u64) -> Result<Live, ()> {
        let config = wire_config(&self.shared.config, self.shared.device);
        let connection = Connection::connect(&self.dialer, config, self.shared.clock, self.shared.config.open_deadline);
        // Nobody is told: READs wait, or fail in soft mode. `runnel status` shows the counters.
        let mut connection = connection.map_err(drop)?;
        let name = format!("@{}", self.shared.metadata.id());
        let now = self.shared.clock.now();
        let opening = connection.machine.request(now, Request::Open { name }).map_err(drop)?;
        Ok(Live::new(connection, generation, Some(opening), None))
    }

    /// Sleeps between attempts. False when the session closes.
    fn wait(&self, time: Duration) -> bool {
        let until = self.shared.clock.now().after(time);
        loop {
            self.waker.reset();
            // The lane is down, so what is left here was handed to others already.
            while let Ok(command) = self.commands.try_recv() {
                if command == Command::Close {
                    return false;
                }
            }
            let now = self.shared.clock.now();
            if now >= until {
                return true;
            }
            let mut descriptors = [rustix::event::PollFd::new(self.waker.as_ref(), rustix::event::PollFlags::IN)];
            // Interrupted or not: the loop looks again.
            let _ = rustix::event::poll(&mut descriptors, Some(&timespec(until.since(now))));
        }
    }

    fn serve(&self, live: &mut Live, was_up: &mut bool) -> Ended {
        loop {
            self.waker.reset();
            for command in std::mem::take(&mut live.backlog) {
                self.obey(live, command);
            }
            while let Ok(command) = self.commands.try_recv() {
                if command == Command::Close {
                    return Ended::Closed;
                }
                self.obey(live, command);
            }
            self.ask_hashes(live);
            self.board(live);
            let moved = live.connection.turn(Some(&self.waker), Moment(u64::MAX));
            if moved.received + moved.sent > 0 {
                self.shared.run(|schedule, _| schedule.lane_traffic(self.lane, moved.received, moved.sent));
            }
            while let Some(event) = live.connection.machine.poll_event() {
                let event = match self.passenger() {
                    Some(passenger) => live.hold.take(event, &**passenger),
                    None => Some(event),
                };
                let Some(event) = event else { continue };
                if self.take(live, event, was_up) == Some(Ended::Lost) {
                    return Ended::Lost;
                }
            }
        }
    }

    /// The connection is gone: others take over, and streams are over. Returns what the next connection goes on with.
    fn give_up(&self, live: Live) -> Option<HashFetch> {
        self.shared.run(|schedule, now| schedule.lane_down(now, self.lane));
        for stream in live.streams {
            let key = StreamKey { lane: self.lane, generation: live.generation, stream };
            let _ = self.shared.storer.send(Job::Over { key });
        }
        if live.boarded
            && let Some(passenger) = self.passenger()
        {
            passenger.lost(live.ended.as_deref().unwrap_or("the connection to the server is lost"));
        }
        let mut hashes = live.hashes;
        hashes.iter_mut().for_each(HashFetch::lost);
        hashes
    }

    /// Who is carried by this lane.
    fn passenger(&self) -> Option<&Arc<dyn Passenger>> {
        self.shared.passenger.get().filter(|_| self.lane == CARRYING_LANE)
    }

    /// Tells a passenger of the connection, and runs what had to wait.
    fn board(&self, live: &mut Live) {
        let Some(passenger) = self.passenger() else { return };
        if let Some(features) = live.connection.machine.hello().map(|hello| hello.features).filter(|_| !live.boarded) {
            live.boarded = true;
            passenger.connected(live.generation, live.connection.connected(features));
        }
        live.hold.run_waiting(&mut live.connection.machine, &**passenger, self.shared.clock.now());
    }

    /// Asks for the next piece of the chunk hashes, if none is under way.
    fn ask_hashes(&self, live: &mut Live) {
        let (Some(image), Some(hashes)) = (live.image, &mut live.hashes) else { return };
        let Some((offset, bytes)) = hashes.next() else { return };
        let now = self.shared.clock.now();
        let time = answer_time(self.shared.config.answer_deadline, live.asked_bytes + u64::from(bytes));
        let ask = Request::MetaRead { image, offset, bytes };
        // Refused for want of room: the next turn tries again.
        if let Ok(request) = live.connection.machine.request_until(now, ask, now.after(time)) {
            hashes.sent(request, now);
        }
    }

    /// A piece of the chunk hashes came, or a refusal.
    fn take_hashes(&self, live: &mut Live, reply: &Reply) {
        let Some(hashes) = &mut live.hashes else { return };
        let mut step = hashes.take(self.shared.clock.now(), reply);
        if step == Step::Complete && self.shared.metadata.load_chunk_hashes(hashes).is_err() {
            self.shared.run(|schedule, _| schedule.counters.verify_failures += 1);
            step = hashes.damaged();
        }
        if step != Step::Going {
            live.hashes = None;
            let _ = self.shared.storer.send(Job::Hashes { good: step == Step::Complete });
        }
    }

    fn obey(&self, live: &mut Live, command: Command) {
        let command = match command {
            Command::Errand { generation, errand } => {
                if let Some(passenger) = self.passenger().filter(|_| generation == live.generation) {
                    let now = self.shared.clock.now();
                    live.hold.run(&mut live.connection.machine, &**passenger, now, errand);
                }
                return;
            }
            // The loop looks whether somebody is on board.
            Command::Board => return,
            other => other,
        };
        let Some(image) = live.image else { return };
        // Order matters to the server, so nothing overtakes what is waiting for room.
        let ordered = matches!(
            command,
            Command::Ask { .. }
                | Command::Hurry { .. }
                | Command::Touch { .. }
                | Command::TokenEnd { .. }
                | Command::Hint { .. }
        );
        if ordered && !live.backlog.is_empty() {
            live.backlog.push_back(command);
            return;
        }
        let machine = &mut live.connection.machine;
        let refused = match &command {
            Command::Ask { key, token, wanted, force, speculative } => {
                self.ask(live, image, *key, *token, wanted, (*force, *speculative))
            }
            Command::Hurry { key } => {
                let request = live.asked.iter().find(|(_, (asked, _))| asked == key).map(|(request, _)| *request);
                // Without the request its answer is here, and waits for the schedule's lock.
                request.map_or(Ok(()), |request| machine.hurry(request))
            }
            Command::Touch { token, pages } => {
                pages.chunks(TOUCH_PAGES_MAX).try_for_each(|pages| machine.touch(image, *token, pages.to_vec()))
            }
            Command::TokenEnd { token } => machine.token_end(image, *token),
            Command::Hint { token, pages } => {
                let refused = machine.hint(image, *token, pages.clone());
                if matches!(refused, Err(Refused::NoFeature(_))) {
                    self.shared.run(|schedule, now| schedule.pull_hinted(now, pages));
                }
                refused
            }
            Command::Credit { stream, bytes } if stream.generation == live.generation => {
                machine.credit(stream.stream, *bytes)
            }
            Command::StopPush { stream } if stream.generation == live.generation => machine.stop_push(stream.stream),
            Command::Credit { .. }
            | Command::StopPush { .. }
            | Command::Board
            | Command::Errand { .. }
            | Command::Close => Ok(()),
        };
        match refused {
            Err(Refused::Full { .. }) if ordered => live.backlog.push_back(command),
            // Closed: the requests are handed back when the loop sees it. Nothing else can be refused.
            _ => {}
        }
    }

    fn ask(
        &self,
        live: &mut Live,
        image: ImageHandle,
        key: AskKey,
        token: Token,
        wanted: &Wanted,
        (force, speculative): (bool, bool),
    ) -> Result<(), Refused> {
        let bytes = self.answer_bytes(wanted);
        // Pushed pages are of no use yet without hashes: what is needed now must not wait for them.
        let force = force || !live.streams.is_empty() && !self.shared.metadata.has_chunk_hashes();
        let ask = match wanted {
            Wanted::Block { block, page } => {
                Request::PullBlock { image, token, page: *page, block: *block, force, speculative }
            }
            Wanted::Pages(pages) => Request::PullPages { image, token, pages: pages.clone(), force },
        };
        if self.shared.config.ablation.short_connections && !speculative {
            self.ask_alone(live, key, wanted, ask);
            return Ok(());
        }
        let now = self.shared.clock.now();
        let deadline = now.after(answer_time(self.shared.config.answer_deadline, live.asked_bytes + bytes));
        let request = live.connection.machine.request_until(now, ask, deadline)?;
        live.asked_bytes += bytes;
        live.asked.insert(request, (key, wanted.clone()));
        Ok(())
    }

    /// Asks over a connection that is made for this one demand. If there is none to be had, the lane is down.
    fn ask_alone(&self, live: &mut Live, key: AskKey, wanted: &Wanted, ask: Request) {
        if live.connection.machine.is_closed() {
            return;
        }
        let (answer, traffic) = ablation::ask(&self.shared, &self.dialer, ask, self.answer_bytes(wanted));
        let (received, sent) = (traffic.bytes_received, traffic.bytes_sent);
        self.shared.run(|schedule, _| schedule.lane_traffic(self.lane, received, sent));
        match answer {
            Ok(reply) => self.take_reply(live, key, wanted, reply),
            Err(_) => live.connection.machine.lost(),
        }
    }

    fn answer_bytes(&self, wanted: &Wanted) -> u64 {
        match wanted {
            Wanted::Block { block, .. } => {
                self.shared.metadata.block(*block).map_or(0, |entry| entry.stored_bytes.into())
            }
            Wanted::Pages(pages) => (pages.len() * units::PAGE_BYTES) as u64,
        }
    }

    fn take(&self, live: &mut Live, event: ClientEvent, was_up: &mut bool) -> Option<Ended> {
        match event {
            ClientEvent::Reply { request, reply } if live.opening == Some(request) => {
                live.opening = None;
                return self.take_opened(live, reply, was_up);
            }
            ClientEvent::Reply { request, reply } if live.hashes.as_ref().is_some_and(|it| it.owns(request)) => {
                self.take_hashes(live, &reply);
            }
            ClientEvent::Reply { request, reply } => {
                let (key, wanted) = live.asked.remove(&request)?;
                live.asked_bytes -= self.answer_bytes(&wanted);
                self.take_reply(live, key, &wanted, reply);
            }
            // No answer in time although the link had time for it: this connection is of no use.
            ClientEvent::Expired { .. } => {
                live.connection.machine.lost();
                return Some(Ended::Lost);
            }
            ClientEvent::PushStart { stream, push } => self.take_push_start(live, stream, push),
            ClientEvent::Push { piece, credit } => self.take_push(live, piece, credit),
            ClientEvent::PushEnd { stream, .. } => {
                if live.streams.remove(&stream) {
                    let key = StreamKey { lane: self.lane, generation: live.generation, stream };
                    let _ = self.shared.storer.send(Job::Over { key });
                }
            }
            ClientEvent::Closed(error) => {
                live.ended = Some(live.connection.explain(error).to_string());
                return Some(Ended::Lost);
            }
            ClientEvent::Ready(_) | ClientEvent::PutNeed { .. } | ClientEvent::PutProgress { .. } => {}
        }
        None
    }

    fn take_opened(&self, live: &mut Live, reply: Reply, was_up: &mut bool) -> Option<Ended> {
        match reply {
            Reply::Opened { image, id, .. } if id == self.shared.metadata.id() => {
                live.image = Some(image);
                let again = std::mem::replace(was_up, true);
                self.shared.run(|schedule, now| schedule.lane_up(now, self.lane, again));
                None
            }
            // Busy, or going down: like a lost connection.
            Reply::Error { code, .. } if code != ErrorCode::NotFound => Some(Ended::Lost),
            _ => {
                self.shared.run(|schedule, now| schedule.image_gone(now));
                Some(Ended::Lost)
            }
        }
    }

    fn take_reply(&self, live: &Live, key: AskKey, wanted: &Wanted, reply: Reply) {
        let failure = match (wanted, reply) {
            (Wanted::Block { block, .. }, Reply::Block { bytes, .. }) => {
                let mut raw = self.shared.run(|schedule, _| schedule.spare());
                match self.shared.metadata.decode_block(*block, &bytes, &mut raw) {
                    Ok(()) => {
                        let raw = Arc::new(raw);
                        let stored = StoredBlock::of(&self.shared.metadata, *block, bytes);
                        return self.shared.run(|schedule, now| schedule.block_arrived(now, key, *block, raw, stored));
                    }
                    Err(_) => Failure::Corrupt,
                }
            }
            (Wanted::Pages(pages), Reply::Pages { codec, bytes }) => {
                return self.take_pages(key, pages, codec, &bytes);
            }
            (_, Reply::OnTheWay { stream }) => {
                let stream = StreamKey { lane: self.lane, generation: live.generation, stream };
                return self.shared.run(|schedule, now| schedule.on_the_way(now, key, stream));
            }
            (_, Reply::Error { code: ErrorCode::Busy | ErrorCode::Shutdown | ErrorCode::Cancelled, .. }) => {
                Failure::Later
            }
            _ => Failure::Refused,
        };
        self.shared.run(|schedule, now| schedule.failed(now, key, failure));
    }

    /// Pages asked for one by one: each is checked for itself.
    fn take_pages(&self, key: AskKey, pages: &[PageId], codec: u8, stored: &[u8]) {
        let metadata = &self.shared.metadata;
        let sizes: Vec<usize> = pages.iter().map(|page| metadata.page_bytes(*page).unwrap_or(0)).collect();
        let mut raw = Vec::new();
        let decoded = Codec::from_u8(codec)
            .is_some_and(|codec| codec::decode(codec, stored, sizes.iter().sum(), &mut raw).is_ok());
        if !decoded {
            return self.shared.run(|schedule, now| schedule.failed(now, key, Failure::Corrupt));
        }
        let mut rest = raw.as_slice();
        let checked: Vec<(PageId, Option<&[u8]>)> = pages
            .iter()
            .zip(sizes)
            .map(|(page, bytes)| {
                let (bytes, after) = rest.split_at(bytes);
                rest = after;
                (*page, Some(bytes).filter(|bytes| metadata.verify_page(*page, bytes).is_ok()))
            })
            .collect();
        self.shared.run(|schedule, now| schedule.pages_arrived(now, key, &checked));
    }

    fn take_push_start(&self, live: &mut Live, stream: StreamId, push: PushHeader) {
        if Some(push.image) != live.image {
            // Not of this image; a refusal can only mean that the connection is closed.
            let _ = live.connection.machine.stop_push(stream);
            return;
        }
        live.streams.insert(stream);
        let key = StreamKey { lane: self.lane, generation: live.generation, stream };
        let info = StreamInfo { token: push.token, audit: push.audit, hinted: push.action == HINT_ACTION };
        self.shared.run(|schedule, _| schedule.stream_started(key, info));
        let job = Job::Started { key, info, encoding: push.encoding, window_log: push.window_log };
        let _ = self.shared.storer.send(job);
    }

    fn take_push(&self, live: &mut Live, piece: PushPiece, credit: u32) {
        let stream = piece.stream;
        if !live.streams.contains(&stream) {
            let _ = live.connection.machine.credit(stream, credit);
            return;
        }
        let key = StreamKey { lane: self.lane, generation: live.generation, stream };
        // READs wait for a piece only if it can be verified when its turn comes.
        let announced = self.shared.metadata.has_chunk_hashes();
        if announced {
            self.shared.run(|schedule, _| schedule.piece_arriving(&piece.pages));
        }
        let bytes = piece.bytes.len();
        let before = self.shared.undigested_bytes.fetch_add(bytes, Ordering::AcqRel);
        // Credit at once keeps the server's estimate of the link right; credit after digestion keeps memory bounded.
        let later = if before + bytes > UNDIGESTED_BYTES_MAX { credit } else { 0 };
        let sent = self.shared.storer.send(Job::Piece { key, piece, credit: later, announced });
        if sent.is_ok() && later == 0 {
            let _ = live.connection.machine.credit(stream, credit);
        }
    }
}

impl Live {
    fn new(connection: Connection, generation: u64, opening: Option<RequestId>, image: Option<ImageHandle>) -> Live {
        Live {
            connection,
            generation,
            opening,
            image,
            asked: HashMap::new(),
            asked_bytes: 0,
            backlog: VecDeque::new(),
            streams: HashSet::new(),
            hashes: None,
            hold: Hold::default(),
            boarded: false,
            ended: None,
        }
    }
}
