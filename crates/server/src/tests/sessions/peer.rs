//! A hostile client: what it knows of its connection, and what it sends next.

use super::*;
use wire::Notice;

/// An upload of a hostile client.
#[derive(Default)]
struct Put {
    request: u32,
    sent_meta: usize,
    needed: Option<Vec<u32>>,
}

/// A hostile client.
pub(super) struct Peer<S> {
    stream: S,
    /// Bytes for the server that found no room.
    out: Vec<u8>,
    input: Vec<u8>,
    reads: bool,
    credits: bool,
    /// Handles of the image of programs, the other one, and the volume, as they are guessed until
    /// the answers come.
    handles: [u32; 3],
    requests: u32,
    transactions: u64,
    /// Streams with the bytes that came and are not credited.
    streams: BTreeMap<u32, u32>,
    places: HashMap<u64, usize>,
    put: Option<Put>,
    /// The volume's id, and what proofs are made over.
    proofs: (u128, u128),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub fn new(stream: S, rng: &mut SplitMix64) -> Peer<S> {
        let mut peer = Peer {
            stream,
            out: Vec::new(),
            input: Vec::new(),
            reads: rng.below(5) > 0,
            credits: rng.below(4) > 0,
            handles: [1, 2, 0],
            requests: 0,
            transactions: 0,
            streams: BTreeMap::new(),
            places: HashMap::new(),
            put: None,
            proofs: (0, 0),
        };
        peer.send(&ClientMessage::Hello(Hello {
            version: VERSION,
            device: u128::from(rng.below(4)),
            features: [FEATURES, FEATURES, FEATURES & !FEATURE_PIECES][rng.below(3) as usize],
            frame_bytes_max: 1 << 20,
            window_log_max: [0, 18, 21][rng.below(3) as usize],
            push_bytes_max: [0, 64 << 10, 8 << 20, 8 << 20][rng.below(4) as usize],
        }));
        for name in ["app", "noise"] {
            peer.ask(Request::Open { name: name.to_owned() });
        }
        peer.ask(Request::VolumeOpen { name: "data".to_owned() });
        peer
    }

    fn send(&mut self, message: &ClientMessage) {
        self.out.extend_from_slice(&encode(message));
    }

    fn ask(&mut self, ask: Request) -> u32 {
        self.requests += 1;
        self.send(&ClientMessage::Request { request: RequestId(self.requests), ask });
        self.requests
    }

    /// Writes what there is room for. False once the server has closed.
    pub fn write(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        while !self.out.is_empty() {
            match Pin::new(&mut self.stream).poll_write(&mut context, &self.out) {
                Poll::Ready(Ok(count)) if count > 0 => drop(self.out.drain(..count)),
                Poll::Ready(_) => return false,
                Poll::Pending => break,
            }
        }
        self.out.len() < 4 * PIPE_BYTES
    }

    /// Reads what is there. False once the server has closed.
    pub fn read(&mut self) -> bool {
        if !self.reads {
            return true;
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut bytes = [0; 16 << 10];
        for _ in 0..16 {
            let mut buf = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(&mut context, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => self.input.extend_from_slice(buf.filled()),
                Poll::Ready(_) => return false,
                Poll::Pending => break,
            }
        }
        let u128_at = |payload: &[u8], at: usize| {
            payload.get(at..at + 16).map_or(0, |bytes| u128::from_le_bytes(bytes.try_into().unwrap()))
        };
        let mut asks = Vec::new();
        let mut at = 0;
        while let Some(head) = self.input.get(at..at + 5) {
            let bytes = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
            let kind = head[4];
            let Some(payload) = self.input.get(at + 5..at + 5 + bytes) else { break };
            let number = payload.get(..4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
            let opened = kind == ServerKind::Opened as u8 || kind == ServerKind::VolumeOpened as u8;
            if let Some(place) = self.handles.get_mut(number.wrapping_sub(1) as usize).filter(|_| opened) {
                *place = u32::from_le_bytes(payload[4..8].try_into().unwrap());
                if kind == ServerKind::VolumeOpened as u8 {
                    self.proofs = (u128_at(payload, 8), u128_at(payload, 29));
                    asks.push(VolumeAsk::Enrol);
                }
            } else if kind == ServerKind::Enrolled as u8 {
                let (number, (id, nonce)) = (u128_at(payload, 4), self.proofs);
                let secret = Secret(payload[20..52].try_into().unwrap());
                asks.push(VolumeAsk::Prove { number, proof: secret.proof(id, nonce, number), previous: 0 });
            } else if kind == ServerKind::PushStart as u8 {
                self.streams.insert(number, 0);
            } else if kind == ServerKind::Push as u8 {
                *self.streams.entry(number).or_default() += bytes as u32 + 5;
            } else if kind == ServerKind::PutNeed as u8
                && let Some(put) = self.put.as_mut().filter(|put| put.request == number)
            {
                put.needed = Some(needed_blocks(payload.get(5..).unwrap_or_default()));
            }
            at += 5 + bytes;
        }
        self.input.drain(..at);
        for ask in asks {
            self.ask(Request::Volume { volume: ImageHandle(self.handles[2]), ask });
        }
        true
    }

    /// Handles that were given, mostly.
    fn handle(&self, rng: &mut SplitMix64, usual: usize) -> ImageHandle {
        ImageHandle(if rng.below(40) > 0 { self.handles[usual] } else { rng.below(70) as u32 })
    }

    /// A stream that was begun, if there is one, and what is not credited of it.
    fn stream(&self, rng: &mut SplitMix64) -> Option<(u32, u32)> {
        let at = rng.below(self.streams.len() as u64) as usize;
        self.streams.iter().nth(at).map(|(stream, bytes)| (*stream, *bytes))
    }

    fn pages(&mut self, rng: &mut SplitMix64, world: &World, token: u64, count: usize) -> Vec<PageId> {
        let program = &world.programs[token as usize % PROGRAMS];
        let place = self.places.entry(token).or_default();
        if rng.below(30) == 0 {
            *place = rng.below(program.len() as u64) as usize;
        }
        let pages: Vec<PageId> = program.iter().cycle().skip(*place).take(count).copied().collect();
        *place = (*place + count) % program.len();
        pages
    }

    /// Sends one frame, or what belongs to one.
    pub fn act(&mut self, rng: &mut SplitMix64, world: &World) {
        let before = self.out.len();
        let number = rng.below(TOKENS);
        let token = Token(u128::from(number));
        let count = 1 + rng.below(40) as usize;
        match rng.below(100) {
            0..20 => {
                let (image, pages) = (self.handle(rng, 0), self.pages(rng, world, number, count));
                self.send(&ClientMessage::Notice(Notice::Touch { image, token, pages }));
            }
            20..36 => self.hint(rng, world, count as u32),
            36..44 => {
                let page = self.pages(rng, world, number, 1)[0];
                let block = BlockId(rng.below(12) as u32);
                let (force, speculative) = (rng.below(8) == 0, rng.below(8) == 0);
                let image = self.handle(rng, 0);
                self.ask(Request::PullBlock { image, token, page, block, force, speculative });
            }
            44..49 => {
                let pages = self.pages(rng, world, number, count.min(32));
                let (image, force) = (self.handle(rng, 0), rng.below(8) == 0);
                self.ask(Request::PullPages { image, token, pages, force });
            }
            49..55 => {
                if let Some((stream, _)) = self.stream(rng) {
                    self.send(&ClientMessage::Notice(Notice::StopPush { stream: StreamId(stream) }));
                }
            }
            55..66 => self.credit(rng),
            66..71 => {
                self.places.remove(&number);
                let image = self.handle(rng, rng.clone().below(3) as usize);
                let token = if rng.below(4) == 0 { Token(100) } else { token };
                self.send(&ClientMessage::Notice(Notice::TokenEnd { image, token }));
            }
            71..74 => {
                let request = RequestId(self.requests.saturating_sub(rng.below(8) as u32).max(1));
                self.send(&ClientMessage::Cancel { request });
            }
            74 => {
                let request = RequestId(self.requests.saturating_sub(rng.below(8) as u32).max(1));
                self.send(&ClientMessage::Hurry { request });
            }
            75 => self.send(&ClientMessage::Ping { nonce: rng.next_u64() }),
            76..79 => {
                let (image, offset) = (self.handle(rng, 0), rng.below(9000));
                self.ask(Request::MetaRead { image, offset, bytes: rng.below(5000) as u32 });
            }
            79 => match rng.below(30) {
                0 => drop(self.ask(Request::List)),
                1 => drop(self.ask(Request::Status)),
                _ => {
                    let name = world.names[rng.below(world.names.len() as u64) as usize];
                    self.ask(Request::Open { name: name.to_owned() });
                }
            },
            80..94 => self.volume(rng, token, number),
            94..99 => self.put(rng, world),
            _ => match rng.below(30) {
                0..3 => self.reads = !self.reads,
                3 => self.out.extend((0..rng.below(40)).map(|_| rng.next_u64() as u8)),
                _ => {}
            },
        }
        // A flipped byte, mostly the end of the connection.
        if rng.below(500) == 0 && self.out.len() > before {
            let at = before + rng.below((self.out.len() - before) as u64) as usize;
            self.out[at] ^= 1 << rng.below(8);
        }
    }

    fn hint(&mut self, rng: &mut SplitMix64, world: &World, count: u32) {
        let token = if rng.below(8) == 0 { Token(101) } else { Token(100) };
        let first = rng.below(600) as u32;
        let inode = if rng.below(30) == 0 { InodeId(rng.below(9) as u32) } else { world.noise };
        let pages = (first..first + 3 * count).map(|index| PageId::new(inode, index)).collect();
        let image = self.handle(rng, 1);
        self.send(&ClientMessage::Notice(Notice::Hint { image, token, pages }));
    }

    fn credit(&mut self, rng: &mut SplitMix64) {
        let Some((stream, bytes)) = self.stream(rng).filter(|_| self.credits) else { return };
        let bytes = if rng.below(4) == 0 { bytes / 2 } else { bytes };
        // More than came is the end of the connection.
        let bytes = if rng.below(400) == 0 { bytes.saturating_add(1 << rng.below(31)) } else { bytes };
        if bytes > 0 {
            self.send(&ClientMessage::Notice(Notice::Credit { stream: StreamId(stream), bytes }));
            self.streams.entry(stream).and_modify(|left| *left = left.saturating_sub(bytes));
        }
    }

    fn volume(&mut self, rng: &mut SplitMix64, token: Token, number: u64) {
        let volume = self.handle(rng, 2);
        let path = format!("f{}", rng.below(6)).into_bytes();
        let file = InodeId(FILE_NUMBER_MIN + rng.below(4) as u32);
        let first = self.places.get(&number).map_or(0, |place| *place as u32 % 60);
        let blocks = |count: u32| (first..first + count).map(|index| PageId::new(file, index)).collect::<Vec<_>>();
        let ask = match rng.below(20) {
            0..4 => VolumeAsk::FileOpen { token, path },
            4..9 => VolumeAsk::PullBlocks { token, blocks: blocks(1 + rng.below(8) as u32), force: rng.below(8) == 0 },
            9 => VolumeAsk::FileStat { path },
            10 => VolumeAsk::FolderList { path: Vec::new(), after: Vec::new(), limit: 1 + rng.below(4000) as u16 },
            11 => VolumeAsk::Lease {
                file: rng.below(20),
                kind: [None, Some(LeaseKind::Shared), Some(LeaseKind::Exclusive)][rng.below(3) as usize],
                duration_ms: 1000,
            },
            12 | 13 => {
                let bytes = Bytes::from(vec![7; rng.below(9000) as usize + 1]);
                let change = match rng.below(6) {
                    0 => Change::Append { path, base: None, bytes },
                    1 => Change::Create { path, mode: 0o644, exclusive: false, owner: None },
                    2 => Change::Unlink { path, base: None },
                    3 => Change::Truncate { path, base: None, size: rng.below(1 << 18) },
                    _ => Change::Write { path, base: None, offset: rng.below(1 << 18), bytes },
                };
                self.transactions += rng.below(3);
                VolumeAsk::Commit { number: self.transactions.max(1), mtime_ns: 0, changes: vec![change] }
            }
            14 => return self.send(&ClientMessage::Notice(Notice::FileClose { volume, file })),
            15 => {
                let share = [Share::Rest, Share::Percent(1 + rng.below(101) as u8), Share::Rate(rng.below(1 << 40))];
                let share = share[rng.below(3) as usize];
                return self.send(&ClientMessage::Notice(Notice::FileShare { volume, file, share }));
            }
            16 if rng.below(20) == 0 => {
                return self.send(&ClientMessage::Notice(Notice::RateLimit { bytes_per_second: rng.below(1 << 22) }));
            }
            16 if rng.below(20) == 0 => {
                let [round_trip, zstd, lz4] = std::array::from_fn(|_| rng.next_u64() as u32);
                return self.send(&ClientMessage::Notice(Notice::DeviceSpeed { round_trip, zstd, lz4 }));
            }
            16 if rng.below(4) == 0 => VolumeAsk::Enrol,
            16 if rng.below(4) == 0 => VolumeAsk::SpaceStat,
            16 if rng.below(4) == 0 => {
                let start = rng.below(9);
                VolumeAsk::Lock(LockAsk {
                    file: rng.below(4),
                    owner: rng.below(3),
                    is_flock: rng.below(2) == 0,
                    test: false,
                    start,
                    end: start + rng.below(9),
                    kind: [None, Some(LockKind::Shared), Some(LockKind::Exclusive)][rng.below(3) as usize],
                    pid: 0,
                })
            }
            16 => VolumeAsk::Prove {
                number: u128::from(1 + rng.below(4)),
                proof: [rng.below(2) as u8; 32],
                previous: rng.below(4).into(),
            },
            17 => return self.send(&ClientMessage::Notice(Notice::Hint { image: volume, token, pages: blocks(20) })),
            _ => return self.send(&ClientMessage::Notice(Notice::Touch { image: volume, token, pages: blocks(4) })),
        };
        self.ask(Request::Volume { volume, ask });
    }

    /// The next frame of an upload.
    fn put(&mut self, rng: &mut SplitMix64, world: &World) {
        let region = world.metadata.metadata_region();
        let Some(mut put) = self.put.take() else {
            let request = self.ask(Request::PutOpen {
                name: format!("up:{}", rng.below(3)),
                file_bytes: world.uploaded.len() as u64,
                metadata_offset: region.start,
                metadata_bytes: region.end - region.start - u64::from(rng.below(60) == 0),
            });
            self.put = Some(Put { request, ..Put::default() });
            return;
        };
        let request = RequestId(put.request);
        let parts = [0..4096, region.start as usize..region.end as usize];
        if let Some(part) = parts.get(put.sent_meta) {
            let bytes = Bytes::copy_from_slice(&world.uploaded[part.clone()]);
            self.send(&ClientMessage::PutMeta { request, offset: part.start as u64, bytes });
            put.sent_meta += 1;
        } else if let Some(needed) = &mut put.needed {
            let Some(block) = needed.pop() else {
                self.send(&ClientMessage::PutCommit { request });
                return;
            };
            let Some(entry) = world.metadata.block(BlockId(block)) else { return };
            let from = entry.file_offset as usize;
            let mut bytes = world.uploaded[from..from + entry.stored_bytes as usize].to_vec();
            if rng.below(10) == 0 {
                bytes[0] ^= 1;
            }
            self.send(&ClientMessage::PutBlock { request, block: BlockId(block), bytes: bytes.into() });
        }
        if rng.below(100) > 0 {
            self.put = Some(put);
        }
    }
}

/// The blocks that a PutNeed names: a count of ranges, then of each the gap before it and its
/// length.
fn needed_blocks(payload: &[u8]) -> Vec<u32> {
    let mut bytes = payload.iter();
    let mut number = || {
        let mut value = 0;
        for shift in (0..32).step_by(7) {
            let byte = bytes.next().copied().unwrap_or(0);
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    };
    let (mut blocks, mut end) = (Vec::new(), 0);
    for _ in 0..number() {
        let first = end + number();
        end = first + number();
        blocks.extend(first..end);
    }
    blocks
}
