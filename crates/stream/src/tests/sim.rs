//! A world in one thread: a volume on a disk that crashes, links that are cut after any byte,
//! devices that start anew, and a clock that jumps to what is due next. One seed makes all of it.

mod again;
mod traffic;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use connection::{Tag, Unanswered, VolumeMessage};
use server::volumes::{Caller, OpenFiles, answer};
use units::{ActionId, Moment, RequestId, Rng, SegmentIndex, SplitMix64, StreamId};
use volume::{Holder, Mode, SimulatedDisk, Volume};
use wire::volume::{Change, VolumeAsk, VolumePiece, VolumeReply};
use wire::{
    ClientConfig, ClientConnection, ClientEvent, ImageHandle, PushEncoding, PushEndReason, PushHeader, PushPiece,
    Refused, Reply, Request, ServerConfig, ServerConnection, ServerEvent,
};

use super::flip::damage;
use super::storage::Storage;
use crate::call::{Call, Done};
use crate::engine::{Engine, Time};
use crate::job::Job;
use crate::outbox::{Held, Stored, Who};
use crate::{FileRef, Options, Room, SetAttributes, StreamError};
use traffic::{deliver_up, push_some, run_messages, serve, take_events};

pub const BLOCK: u32 = 512;
const VOLUME: ImageHandle = ImageHandle(3);

/// What came of a call, once it did.
pub type Outcome<T> = Arc<Mutex<Option<Result<T, StreamError>>>>;

/// Takes what came of a call.
pub fn taken<T>(outcome: &Outcome<T>) -> Option<Result<T, StreamError>> {
    outcome.lock().unwrap().take()
}

/// Makes a folder.
pub fn folder(path: Vec<u8>, done: Done<()>) -> Call {
    let change = Change::MakeFolder { path: path.clone(), mode: 0o755, owner: None };
    Call::Make { path, change, done }
}

/// Sets attributes.
pub fn set(of: FileRef, wanted: SetAttributes, done: Done<()>) -> Call {
    Call::SetAttributes { of, wanted, done }
}

/// How often what goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// One in so many connections is cut, after up to 20,000 bytes; 0: none.
    pub cuts: u64,
    /// One in so many commits stops the server's machine at one of its next changes; 0: none.
    pub crashes: u64,
    /// One bit of every connection is damaged, among so many bytes; 0: none.
    pub flips: u64,
    /// Pushes in place of answers.
    pub pushes: bool,
    /// One in so many answers leaves after those of later requests, as a server has it that does
    /// requests side by side; 0: none.
    pub late: u64,
}

/// One connection.
struct Pipe {
    client: ClientConnection,
    server: ServerConnection,
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    messages: VecDeque<VolumeMessage>,
    asked: HashMap<RequestId, Tag>,
    files: Mutex<OpenFiles>,
    nonce: u128,
    /// The device that was proven on it, or 0.
    proven: u128,
    /// Bytes that still pass, in both directions together.
    passes: u64,
    /// Bytes until a bit is damaged.
    flip_in: u64,
    pushing: VecDeque<(StreamId, Option<PushPiece>)>,
    late: VecDeque<(RequestId, Reply)>,
}

pub struct Device {
    pub engine: Engine,
    pub storage: Storage,
    pub options: Options,
    /// What the process has recorded, if the next one is to go on from it.
    pub records: Option<Vec<u8>>,
    jobs: VecDeque<Job>,
    pipe: Option<Pipe>,
    /// Connections so far.
    pub generation: u64,
    connects: u64,
}

impl Device {
    /// It does not connect before this time.
    pub fn hold_off(&mut self, until: u64) {
        self.connects = until;
    }

    /// Its connection is cut.
    pub fn cut(&mut self) {
        if let Some(pipe) = &mut self.pipe {
            pipe.passes = 0;
        }
    }

    /// No job waits.
    pub fn idle(&self) -> bool {
        self.jobs.is_empty()
    }
}

pub struct Sim {
    pub rng: SplitMix64,
    pub now: u64,
    pub faults: Faults,
    pub disk: SimulatedDisk,
    pub volume: Option<Volume>,
    pub devices: Vec<Device>,
    /// When the server is up again.
    restarts: u64,
    /// Nobody can connect.
    pub away: bool,
    pub restarted: u64,
    /// Damaged bits so far.
    pub flipped: u64,
    /// One in so many calls is under way, or was just done, when the process of its device is
    /// killed; the next one goes on from the records, and gets the call again. 0: none.
    pub kills: u64,
    pub killed: u64,
    /// Of the last request.
    request: u64,
}

pub fn options() -> Options {
    Options { memory_bytes: 8 << 10, dirty_bytes: 64 << 10, names_ttl: Duration::from_millis(50), ..Options::default() }
}

pub fn with_outbox(options: Options) -> Options {
    let room = Room { folder: "outbox".into(), bytes: 1 << 20 };
    Options { outbox: Some(room), ..options }
}

fn volume_options() -> volume::Options {
    volume::Options { mode: Mode::ReadWrite, block_bytes: BLOCK, journal_bytes: 8 << 20, ..Default::default() }
}

impl Sim {
    pub fn new(seed: u64, faults: Faults) -> Sim {
        let disk = SimulatedDisk::new(seed ^ 0x5eed);
        use volume::Disk as _;
        disk.make_folder(b"tree", 0o755).unwrap();
        disk.make_folder(b"own", 0o755).unwrap();
        disk.sync_all().unwrap();
        let mut sim = Sim {
            rng: SplitMix64(seed),
            now: 1000,
            faults,
            disk,
            volume: None,
            devices: Vec::new(),
            restarts: 0,
            away: false,
            restarted: 0,
            flipped: 0,
            kills: 0,
            killed: 0,
            request: 0,
        };
        sim.open_volume();
        sim
    }

    fn open_volume(&mut self) {
        let (tree, own) = (self.disk.folder(b"tree"), self.disk.folder(b"own"));
        // A machine that stopped while it recovered.
        match Volume::on(Arc::new(tree), Some(Arc::new(own)), volume_options()) {
            Ok(volume) => self.volume = Some(volume),
            Err(error) => {
                assert!(self.disk.is_down(), "{error}");
                self.restarts = self.now + 100_000;
            }
        }
    }

    pub fn add_device(&mut self, options: Options) -> usize {
        let storage = Storage { next: 1, ..Storage::default() };
        self.devices.push(Device {
            engine: engine(&options, &storage, None),
            storage,
            options,
            records: None,
            jobs: VecDeque::new(),
            pipe: None,
            generation: 0,
            connects: 0,
        });
        let at = self.devices.len() - 1;
        self.settle(at);
        at
    }

    /// The process of a device ends at once, and another one begins with what is on its storage,
    /// and with its records.
    pub fn restart_device(&mut self, at: usize) {
        let device = &mut self.devices[at];
        // The job that was being done has its effect or not.
        if self.rng.below(2) == 0
            && let Some(job) = device.jobs.pop_front()
        {
            device.storage.run(job);
        }
        device.jobs.clear();
        // What the server has received it may still do.
        if let Some(mut pipe) = device.pipe.take() {
            if self.rng.below(2) == 0 {
                deliver_up(&mut pipe, Moment(self.now), u64::MAX, self.rng.next_u64());
            }
            serve(&mut self.rng, &self.volume, &self.faults, &mut pipe, self.now);
        }
        device.connects = self.now;
        device.engine = engine(&device.options, &device.storage, device.records.as_deref());
        if let Some(records) = &mut device.records {
            *records = device.engine.take_records(true);
        }
        self.settle(at);
        self.note_crash();
    }

    pub fn time(&self) -> Time {
        Time { now: Moment(self.now), wall_ns: self.now as i64 * 1000 }
    }

    /// Makes a call.
    pub fn call<T: Send + 'static>(&mut self, at: usize, call: impl FnOnce(Done<T>) -> Call) -> Outcome<T> {
        let outcome: Outcome<T> = Arc::default();
        let theirs = outcome.clone();
        let done = Box::new(move |result| {
            let before = theirs.lock().unwrap().replace(result);
            assert!(before.is_none(), "a callback runs once");
        });
        self.make(at, 0, call(done));
        outcome
    }

    fn make(&mut self, at: usize, request: u64, call: Call) {
        let time = self.time();
        self.devices[at].engine.call(time, request, call);
        self.settle(at);
    }

    /// Makes a call and lets the world go on until it is done.
    pub fn wait<T: Send + 'static>(&mut self, at: usize, call: impl FnOnce(Done<T>) -> Call) -> Result<T, StreamError> {
        if self.kills > 0 && self.rng.below(self.kills) == 0 {
            return self.wait_killed(at, call);
        }
        let outcome = self.call(at, call);
        self.until(|_| outcome.lock().unwrap().is_some());
        taken(&outcome).unwrap()
    }

    /// Lets the world go on.
    pub fn until(&mut self, done: impl Fn(&Sim) -> bool) {
        for _ in 0..400_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        let waiting: Vec<_> = self.devices.iter().map(|device| device.engine.waiting()).collect();
        let status: Vec<_> = self.devices.iter().map(|device| device.engine.status()).collect();
        panic!("the world hangs: {waiting:#?} {status:?}");
    }

    /// Carries out what an engine wants.
    fn settle(&mut self, at: usize) {
        let rewrites = self.devices[at].records.is_some() && self.rng.below(40) == 0;
        let device = &mut self.devices[at];
        loop {
            if let Some(records) = &mut device.records {
                match rewrites {
                    true => *records = device.engine.take_records(true),
                    false => records.extend(device.engine.take_records(false)),
                }
            }
            let effects = device.engine.take_effects();
            if effects.messages.is_empty() && effects.jobs.is_empty() && effects.finished.is_empty() {
                return;
            }
            for (generation, message) in effects.messages {
                if let Some(pipe) = device.pipe.as_mut().filter(|_| generation == device.generation) {
                    pipe.messages.push_back(message);
                }
            }
            device.jobs.extend(effects.jobs);
            effects.finished.into_iter().for_each(|finish| finish());
        }
    }

    /// One thing happens.
    pub fn step(&mut self) {
        if self.volume.is_none() && self.now >= self.restarts {
            self.disk.restart();
            self.restarted += 1;
            self.open_volume();
        }
        let at = self.rng.below(self.devices.len() as u64) as usize;
        let moved = match self.rng.below(4) {
            0 => self.step_job(at),
            _ => self.step_pipe(at),
        };
        if !moved {
            self.step_time();
        }
        self.note_crash();
    }

    fn step_job(&mut self, at: usize) -> bool {
        let time = self.time();
        let device = &mut self.devices[at];
        let Some(job) = device.jobs.pop_front() else { return false };
        if let Some(done) = device.storage.run(job) {
            device.engine.job_done(time, done);
        }
        self.settle(at);
        true
    }

    #[expect(clippy::too_many_lines, reason = "one story, told in its order")]
    fn step_pipe(&mut self, at: usize) -> bool {
        let (time, now) = (self.time(), Moment(self.now));
        let up = self.volume.is_some() && !self.away;
        let device = &mut self.devices[at];
        let Some(pipe) = &mut device.pipe else {
            if !up || self.now < device.connects {
                return false;
            }
            let config = ClientConfig { push_bytes_max: 1 << 20, ..ClientConfig::default() };
            let cut = self.faults.cuts > 0 && self.rng.below(self.faults.cuts) == 0;
            let passes = if cut { self.rng.below(20_000) } else { u64::MAX };
            device.pipe = Some(Pipe {
                client: ClientConnection::new(config, now),
                server: ServerConnection::new(ServerConfig::default(), now),
                up: VecDeque::new(),
                down: VecDeque::new(),
                messages: VecDeque::new(),
                asked: HashMap::new(),
                files: Mutex::default(),
                nonce: self.rng.next_u64().into(),
                proven: 0,
                passes,
                flip_in: if self.faults.flips > 0 { self.rng.below(self.faults.flips) } else { u64::MAX },
                pushing: VecDeque::new(),
                late: VecDeque::new(),
            });
            device.generation += 1;
            device.engine.connected(time, device.generation, super::HERE);
            self.settle(at);
            return true;
        };
        if pipe.passes == 0 || !up {
            if let Some(volume) = self.volume.as_ref().filter(|_| pipe.proven != 0) {
                volume.locks().left(Holder(pipe.proven), now);
            }
            device.pipe = None;
            device.connects = self.now + 20_000 + self.rng.below(200_000);
            device.engine.lost(time, "cut");
            self.settle(at);
            return true;
        }
        let part = 1 + self.rng.below(3000);
        let moved = match self.rng.below(3) {
            0 => {
                run_messages(pipe, time);
                let mut out = Vec::new();
                pipe.client.transmit(now, &mut out, 4096);
                pipe.up.extend(&out);
                let flip_in = pipe.flip_in;
                let moved = deliver_up(pipe, now, part, self.rng.next_u64());
                self.flipped += u64::from(flip_in != u64::MAX && pipe.flip_in == u64::MAX);
                serve(&mut self.rng, &self.volume, &self.faults, pipe, self.now);
                moved | !out.is_empty()
            }
            1 => {
                push_some(pipe);
                let mut out = Vec::new();
                pipe.server.transmit(now, &mut out, 4096);
                pipe.down.extend(&out);
                let part = part.min(pipe.passes).min(pipe.down.len() as u64);
                pipe.passes -= if pipe.passes == u64::MAX { 0 } else { part };
                let mut bytes: Vec<u8> = pipe.down.drain(..part as usize).collect();
                self.flipped += u64::from(damage(&mut pipe.flip_in, &mut bytes, self.rng.next_u64()));
                if !bytes.is_empty() && pipe.client.receive(now, &bytes).is_err() {
                    assert!(self.faults.flips > 0, "the server keeps the rules");
                    pipe.passes = 0;
                }
                take_events(pipe, &mut device.engine, time);
                part > 0
            }
            _ => {
                // Both ends look at the time.
                let closed = pipe.client.tick(now).is_err() || pipe.server.tick(now).is_err();
                take_events(pipe, &mut device.engine, time);
                if closed {
                    pipe.passes = 0;
                }
                false
            }
        };
        self.settle(at);
        moved
    }

    /// Nothing moved: a little time passes, or if nothing can move at all, time until something is
    /// due.
    fn step_time(&mut self) {
        let busy = self.devices.iter().any(|device| {
            !device.jobs.is_empty()
                || device.pipe.as_ref().is_some_and(|pipe| {
                    !pipe.up.is_empty()
                        || !pipe.down.is_empty()
                        || !pipe.messages.is_empty()
                        || !pipe.pushing.is_empty()
                        || !pipe.late.is_empty()
                        || pipe.client.has_output()
                        || pipe.passes == 0
                        || pipe.client.deadline().is_some_and(|due| due.0 <= self.now)
                        || self.volume.is_none()
                })
        });
        let mut next = self.now + 1 + self.rng.below(500);
        if !busy {
            let due = self.devices.iter().flat_map(|device| {
                let pipe = device.pipe.as_ref();
                [
                    device.engine.deadline(),
                    pipe.and_then(|pipe| pipe.client.deadline()),
                    pipe.is_none().then_some(Moment(device.connects)).filter(|_| !self.away),
                ]
            });
            let due = due.flatten().map(|moment| moment.0);
            let due = due.chain(self.volume.is_none().then_some(self.restarts)).filter(|due| *due > self.now).min();
            next = next.max(due.unwrap_or(0).min(self.now + 60_000_000));
        }
        self.now = next;
        let time = self.time();
        for at in 0..self.devices.len() {
            if self.devices[at].engine.deadline().is_some_and(|due| due.0 <= self.now) {
                self.devices[at].engine.tick(time);
                self.settle(at);
            }
        }
    }

    fn note_crash(&mut self) {
        if self.disk.is_down() && self.volume.is_some() {
            self.volume = None;
            self.restarts = self.now + self.rng.below(300_000);
        }
    }

    /// What the server has of a file, past all that goes wrong.
    pub fn on_server(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        self.until(|sim| sim.volume.is_some());
        let volume = self.volume.as_ref().unwrap();
        let path = volume::VolumePath::new(path).unwrap();
        let info = volume.stat(&path).ok()?;
        let count = info.size.div_ceil(u64::from(BLOCK)) as u32;
        Some(volume.read(&path, None, 0, count).unwrap().bytes)
    }
}

fn engine(options: &Options, storage: &Storage, records: Option<&[u8]>) -> Engine {
    let stored: Vec<Stored> =
        storage.stored.iter().map(|(number, (known, bytes))| Stored::parse(*number, *known, bytes).unwrap()).collect();
    let who = if options.outbox.is_some() { storage.who } else { Who::default() };
    let held = Held { who, next_number: storage.next, stored, lost: Vec::new() };
    match records {
        None => Engine::new("data", options.clone(), held, Box::new(|_| ())),
        Some(records) => Engine::recorded("data", options.clone(), held, records, Box::new(|_| ())).unwrap(),
    }
}
