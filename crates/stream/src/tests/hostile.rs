//! A server that answers what it likes: nothing wrong is handed out as a file's data without an
//! error, nothing panics, every call ends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use connection::{Tag, Unanswered, VolumeMessage};
use units::{
    ActionId, BlockId, InodeId, LockKind, LockRange, Moment, PageId, Rng, SegmentIndex, SplitMix64, StreamId, Token,
};
use wire::volume::{
    FileInfo, FileKind, FolderEntry, HeldLock, Secret, Seen, Space, VolumeAsk, VolumePiece, VolumeReply, Xattr,
};
use wire::{BlockRange, ErrorCode, ImageHandle, PushEncoding, PushEndReason, PushHeader, PushPiece, Reply, Request};

use crate::call::{Call, Done};
use crate::engine::{Engine, Time};
use crate::job::{Job, JobDone};
use crate::outbox::Held;
use crate::{Handle, OpenHow, Options, StreamError, Waiting};

const BLOCK: u64 = 512;

/// What a block of a version holds, on a server that is honest about it.
fn content(version: u64, size: u64, blocks: &[PageId]) -> Vec<u8> {
    let mut out = Vec::new();
    for block in blocks {
        let start = u64::from(block.index) * BLOCK;
        let end = (start + BLOCK).min(size);
        out.extend((start..end).map(|at| (version as u8).wrapping_mul(31).wrapping_add(at as u8)));
    }
    out
}

struct Liar {
    rng: SplitMix64,
    version: u64,
}

impl Liar {
    fn version(&mut self) -> u64 {
        match self.rng.below(6) {
            0 => self.version += 1,
            1 => return self.rng.below(self.version + 2),
            _ => {}
        }
        self.version
    }

    fn info(&mut self) -> FileInfo {
        let version = self.version();
        let file = if self.rng.below(20) == 0 { self.rng.below(3) } else { 7 };
        let kind = if self.rng.below(20) == 0 { FileKind::Folder } else { FileKind::File };
        FileInfo { seen: Seen { file, version }, kind, size: size_of(version), mode: 0o644, ..FileInfo::default() }
    }

    #[expect(clippy::too_many_lines, reason = "one story, told in its order")]
    fn answer(&mut self, ask: &Request) -> Option<Result<Reply, Unanswered>> {
        match self.rng.below(24) {
            0 => return Some(Err(Unanswered::Expired)),
            1 => {
                let code = ErrorCode::from_u16(self.rng.below(26) as u16);
                return Some(Ok(Reply::error(code, "a lie")));
            }
            2 => return Some(Ok(Reply::Volume(VolumeReply::Leased { duration_ms: 1 }))),
            3 => return Some(Ok(Reply::OnTheWay { stream: StreamId(self.rng.below(4) as u32) })),
            _ => {}
        }
        let reply = match ask {
            Request::VolumeOpen { .. } => {
                let volume = ImageHandle(1);
                return Some(Ok(Reply::VolumeOpened {
                    volume,
                    id: 1,
                    block_bytes: BLOCK as u32,
                    writable: true,
                    nonce: 5,
                }));
            }
            Request::Volume { ask, .. } => match ask {
                VolumeAsk::FileOpen { .. } => {
                    let (info, rng) = (self.info(), &mut self.rng);
                    let present = match rng.below(4) {
                        0 => {
                            let range = |rng: &mut SplitMix64| BlockRange {
                                first: BlockId(rng.next_u64() as u32),
                                count: 1 + rng.below(9) as u32,
                            };
                            vec![range(rng), range(rng)]
                        }
                        _ => vec![BlockRange { first: BlockId(0), count: u32::MAX }],
                    };
                    let file = InodeId(2 + rng.below(3) as u32);
                    VolumeReply::FileOpened { file, info, profiled: false, present, cut: rng.below(2) == 0 }
                }
                VolumeAsk::Lock(ask) => {
                    let range = LockRange { start: ask.start, end: ask.end, kind: LockKind::Shared };
                    let held = HeldLock { range, pid: 1, is_own: false };
                    VolumeReply::Locked(Some(held).filter(|_| self.rng.below(2) == 0))
                }
                VolumeAsk::SpaceStat => {
                    VolumeReply::Space(Space { free_bytes: self.rng.next_u64(), ..Space::default() })
                }
                VolumeAsk::PullBlocks { blocks, .. } => {
                    let version = self.version();
                    let size = size_of(version);
                    let mut bytes = content(version, size, blocks);
                    let mut told = size;
                    let mut codec = 0;
                    match self.rng.below(12) {
                        0 => bytes.truncate(bytes.len() / 2),
                        1 => bytes.push(0),
                        2 => told = self.rng.next_u64(),
                        3 => codec = self.rng.next_u64() as u8,
                        _ => {}
                    }
                    VolumeReply::Blocks { version, size: told, codec, bytes: bytes.into() }
                }
                VolumeAsk::Commit { changes, .. } => {
                    let count = if self.rng.below(6) == 0 { self.rng.below(3) } else { changes.len() as u64 };
                    let version = self.version();
                    VolumeReply::Committed { versions: (0..count).map(|_| Seen { file: 7, version }).collect() }
                }
                VolumeAsk::FolderList { .. } => {
                    let entry = |rng: &mut SplitMix64| FolderEntry {
                        name: vec![b'a' + rng.below(26) as u8],
                        info: FileInfo::default(),
                    };
                    let entries = (0..self.rng.below(4)).map(|_| entry(&mut self.rng)).collect();
                    VolumeReply::Entries { folder: Seen { file: 1, version: 1 }, more: self.rng.below(3) > 0, entries }
                }
                VolumeAsk::FileStat { .. } => VolumeReply::Attributes(self.info()),
                VolumeAsk::XattrsRead { .. } => {
                    let xattr = Xattr { name: b"user.a".to_vec(), value: Bytes::from_static(b"lie") };
                    VolumeReply::Xattrs { info: self.info(), xattrs: vec![xattr; self.rng.below(3) as usize] }
                }
                VolumeAsk::LinkRead { .. } => VolumeReply::LinkTarget(Bytes::new()),
                VolumeAsk::Lease { .. } => VolumeReply::Leased { duration_ms: 5 },
                VolumeAsk::Enrol => VolumeReply::Enrolled { number: 9, secret: Secret([3; 32]) },
                VolumeAsk::Prove { .. } => VolumeReply::Proven,
            },
            _ => return None,
        };
        Some(Ok(Reply::Volume(reply)))
    }
}

/// Two versions have different sizes now and then.
fn size_of(version: u64) -> u64 {
    3000 + version % 5 * 400
}

struct World {
    engine: Engine,
    liar: Liar,
    now: u64,
    generation: u64,
    asked: Vec<(u64, Tag, Request)>,
}

impl World {
    fn time(&self) -> Time {
        Time { now: Moment(self.now), wall_ns: 0 }
    }

    fn call<T: Send + 'static>(&mut self, call: impl FnOnce(Done<T>) -> Call) -> Option<Result<T, StreamError>> {
        let outcome: Arc<Mutex<Option<Result<T, StreamError>>>> = Arc::default();
        let theirs = outcome.clone();
        let time = self.time();
        self.engine.call(time, 0, call(Box::new(move |result| *theirs.lock().unwrap() = Some(result))));
        for _ in 0..20_000 {
            if let Some(result) = outcome.lock().unwrap().take() {
                return Some(result);
            }
            self.step();
        }
        panic!("a call does not end: {:?}", self.engine.status());
    }

    fn step(&mut self) {
        let effects = self.engine.take_effects();
        for (generation, message) in effects.messages {
            if let VolumeMessage::Request { tag, ask, .. } = message {
                self.asked.push((generation, tag, ask));
            }
        }
        for job in effects.jobs {
            let done = match job {
                Job::Store { number, .. } => JobDone::Stored { number, outcome: Err("no".to_owned()) },
                Job::Reserve { next } => JobDone::Reserved { next, outcome: Ok(()) },
                Job::CacheRead { slot, key } => JobDone::CacheRead { slot, key, bytes: None },
                _ => continue,
            };
            self.engine.job_done(self.time(), done);
        }
        effects.finished.into_iter().for_each(|finish| finish());
        let time = self.time();
        if self.liar.rng.below(400) == 0 {
            self.engine.lost(time, "gone");
            self.generation += 1;
            self.asked.clear();
            self.engine.connected(time, self.generation, super::HERE);
            return;
        }
        if self.liar.rng.below(6) == 0 {
            self.push();
        }
        if self.asked.is_empty() {
            self.now = self.engine.deadline().map_or(self.now + 1000, |due| due.0.max(self.now + 1));
            let time = self.time();
            self.engine.tick(time);
            return;
        }
        self.now += self.liar.rng.below(30_000);
        let (generation, tag, ask) = self.asked.swap_remove(self.liar.rng.below(self.asked.len() as u64) as usize);
        if generation == self.generation
            && let Some(answer) = self.liar.answer(&ask)
        {
            let time = self.time();
            self.engine.answered(time, tag, answer);
        }
    }

    fn push(&mut self) {
        let (time, rng) = (self.time(), &mut self.liar.rng);
        let stream = StreamId(rng.below(4) as u32);
        let header = PushHeader {
            image: ImageHandle(1),
            token: Token(1),
            action: ActionId(0),
            encoding: PushEncoding::Volume,
            window_log: 0,
            audit: false,
        };
        match rng.below(3) {
            0 => self.engine.push_started(time, stream, header),
            1 => self.engine.push_ended(time, stream, PushEndReason::Complete),
            _ => {
                let file = InodeId(2 + rng.below(3) as u32);
                let pages: Vec<PageId> =
                    (0..1 + rng.below(4)).map(|_| PageId::new(file, rng.below(9) as u32)).collect();
                let version = self.liar.version();
                let size = size_of(version);
                let mut bytes = content(version, size, &pages);
                if self.liar.rng.below(5) == 0 {
                    bytes.pop();
                }
                let piece = VolumePiece { version, size, codec: 0, bytes: bytes.into() };
                let piece = PushPiece { stream, segment: SegmentIndex(0), pages, bytes: piece.to_bytes() };
                self.engine.pushed(time, piece, 100);
            }
        }
    }
}

#[test]
fn sim_a_server_that_lies_is_never_believed() {
    let mut whole = 0;
    for seed in 0..120 {
        let options = Options {
            waiting: Waiting::Soft(Duration::from_secs(20)),
            memory_bytes: if seed % 2 == 0 { 1000 } else { 1 << 20 },
            names_ttl: Duration::ZERO,
            ..Options::default()
        };
        let engine = Engine::new("data", options, Held { next_number: 1, ..Held::default() }, Box::new(|_| ()));
        let liar = Liar { rng: SplitMix64(seed), version: 1 };
        let mut world = World { engine, liar, now: 1000, generation: 1, asked: Vec::new() };
        let time = world.time();
        world.engine.connected(time, 1, super::HERE);
        (0..50).for_each(|_| world.step());
        for round in 0..30 {
            let how = OpenHow { write: round % 3 == 0, create: Some(0o644), ..OpenHow::READ };
            let path = b"f".to_vec();
            let opened = world.call(|done| Call::Open { path, how, token: Token(1), done });
            let Some(Ok(opened)) = opened else { continue };
            let handle = opened.handle;
            for _ in 0..4 {
                let (offset, bytes) = (world.liar.rng.below(5000), world.liar.rng.below(3000) as u32);
                let read = world.call(|done| Call::Read { handle, token: Token(1), offset, bytes, done });
                // Only while nothing was written here: all of it is what one version holds, or
                // zeros of a hole that it told of.
                if let Some(Ok(found)) = read
                    && !found.is_empty()
                    && !wrote(&world, handle)
                {
                    assert!(is_of_one_version(&found, offset), "a mixture, seed {seed}");
                    whole += 1;
                }
            }
            if how.write {
                let bytes = Bytes::from(vec![1; 700]);
                let _ = world.call(|done| Call::Write { handle, offset: 100, bytes, done });
                let _ = world.call(|done| Call::Sync { handle, done });
            }
            let _ = world.call(|done| Call::List { path: Vec::new(), done });
            let _ = world.call(|done| Call::Stat { of: (&b"g"[..]).into(), done });
            let _ = world.call(|done| Call::Remove { path: b"h".to_vec(), done });
            let _ = world.call(|done| Call::Close { handle, done });
        }
        let time = world.time();
        world.engine.shut_down(time);
    }
    assert!(whole > 100, "something is read at all: {whole}");
}

fn wrote(world: &World, _handle: Handle) -> bool {
    world.engine.status().committed > 0 || world.engine.status().unsent.unsent_bytes > 0
}

fn is_of_one_version(found: &[u8], offset: u64) -> bool {
    let of = |version: u64| {
        found.iter().enumerate().all(|(at, byte)| {
            let place = offset + at as u64;
            *byte == (version as u8).wrapping_mul(31).wrapping_add(place as u8) || *byte == 0
        })
    };
    (0..256).any(of)
}
