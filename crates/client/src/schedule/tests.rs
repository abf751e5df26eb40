//! The schedule alone, driven by a seed: READs, answers, losses, pushes and time in random order,
//! against the plain bytes of the files as a model.

mod ahead;
mod hints;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use units::{PAGE_BYTES, Rng, SplitMix64, StreamId};

use super::*;
use crate::block_cache::{Decoded, StoredBlock};
use crate::command::{Failure, RequestKey, StreamKey, Wanted};
use crate::sink::StoreOutcome;
use crate::tests::tree::Tree;

const CONNECTIONS: usize = 2;

type Outcome = Result<Vec<u8>, ReadError>;

impl Schedule {
    pub fn connections_up(&self) -> usize {
        (0..CONNECTIONS).filter(|connection| self.connections.is_up(*connection)).count()
    }

    pub fn link_sample(&mut self, elapsed: Duration, bytes: u64) {
        self.connections.sample(elapsed, bytes);
    }
}

/// A session without threads.
struct Sim {
    tree: Arc<Tree>,
    schedule: Schedule,
    rng: SplitMix64,
    now: Moment,
    /// What each READ must give, and what it gave.
    expected: BTreeMap<u64, Vec<u8>>,
    outcomes: Arc<Mutex<BTreeMap<u64, Outcome>>>,
    reads: u64,
    /// Commands the connections have not obeyed yet.
    commands: Vec<(ConnectionIndex, Command)>,
    up: [bool; CONNECTIONS],
    generation: u64,
    /// Replies the kernel is still taking in.
    replying: Vec<Pages>,
    streams: Vec<(StreamKey, StreamInfo)>,
    streams_begun: u32,
    /// Pieces the storer has not digested.
    pieces: VecDeque<(StreamKey, StreamInfo, Vec<PageId>)>,
    /// Blocks with hinted pages that the storer has not seen.
    hinted: VecDeque<HintedBlock>,
    /// Answers were spoiled, so READs may fail.
    spoils: bool,
    stores: u64,
}

impl Sim {
    fn new(tree: Arc<Tree>, seed: u64, config: &Config) -> Sim {
        let pool = Arc::new(Allocator::start().unwrap());
        let schedule = Schedule::new(Arc::clone(&tree.metadata), pool, config, CONNECTIONS, true, None);
        Sim {
            tree,
            schedule,
            rng: SplitMix64(seed),
            now: Moment(0),
            expected: BTreeMap::new(),
            outcomes: Arc::default(),
            reads: 0,
            commands: Vec::new(),
            up: [false; CONNECTIONS],
            generation: 0,
            replying: Vec::new(),
            streams: Vec::new(),
            streams_begun: 0,
            pieces: VecDeque::new(),
            hinted: VecDeque::new(),
            spoils: false,
            stores: 0,
        }
    }

    fn pick(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    /// Carries out what the schedule wants, as the session does.
    fn settle(&mut self) {
        let mut evicted = Vec::new();
        loop {
            let effects = self.schedule.take_effects();
            self.hinted.extend(effects.hinted);
            if effects.commands.is_empty() && effects.finished.is_empty() && effects.evicted.is_empty() {
                break;
            }
            for (connection, command) in effects.commands {
                assert!(
                    self.up[connection] || command == Command::Close,
                    "a command for a connection that is down: {command:?}"
                );
                self.commands.push((connection, command));
            }
            for read in effects.finished {
                match read.outcome {
                    Ok(answer) => answer.hand_over(&mut Vec::new(), read.done),
                    Err(error) => (read.done)(Err(error)),
                }
                self.replying.push(read.pages);
            }
            evicted.extend(effects.evicted);
        }
        for gone in evicted {
            if !self.schedule.pushes().is_auditing() {
                let bytes = gone.bytes().expect("verified bytes");
                let mut candidates = evicted_candidates(&self.tree.metadata, &gone);
                if !bytes.is_verified() {
                    retain_good(&self.tree.metadata, &mut candidates, &bytes);
                }
                self.store(candidates, &bytes, None);
            }
        }
    }

    fn read(&mut self, inode: InodeId, offset: u64, bytes: u32) -> u64 {
        self.reads += 1;
        let (id, token) = (self.reads, Token(self.rng.below(3).into()));
        self.expected.insert(id, self.tree.range(inode, offset, bytes).to_vec());
        let outcomes = Arc::clone(&self.outcomes);
        let done = Box::new(move |outcome: Result<&[u8], ReadError>| {
            let before = outcomes.lock().unwrap().insert(id, outcome.map(<[u8]>::to_vec));
            assert!(before.is_none(), "READ {id} was answered twice");
        });
        self.schedule.read(self.now, token, inode, offset, bytes, done);
        self.settle();
        id
    }

    fn read_something(&mut self) {
        let file = self.pick(self.tree.files.len());
        let (inode, length) = (self.tree.files[file].0, self.tree.files[file].1.len());
        let offset =
            if self.pick(2) == 0 { self.pick(length + 10) } else { self.pick(length + 10) / PAGE_BYTES * PAGE_BYTES };
        let bytes = [1, 4096, 4096, 5000, 16_384, 131_072][self.pick(6)];
        self.read(inode, offset as u64, bytes);
    }

    /// A connection obeys one of its commands, honestly or not.
    fn obey(&mut self, honest: bool) {
        if self.commands.is_empty() {
            return;
        }
        let at = self.pick(self.commands.len());
        let (connection, command) = self.commands.remove(at);
        if let Command::Hint { token, pages } = command {
            return self.obey_hint(connection, token, &pages);
        }
        let Command::Request { key, wanted, force, .. } = command else { return };
        self.schedule.connections().moved(connection, 3000, 50);
        let mood = if honest { 99 } else { self.pick(100) };
        let stream = self.streams.iter().find(|(stream, _)| stream.connection == connection).map(|(stream, _)| *stream);
        match (mood, stream) {
            (0..3, _) => {
                self.spoils = true;
                self.schedule.failed(self.now, key, Failure::Corrupt);
            }
            (3..5, _) => {
                self.spoils = true;
                self.schedule.failed(self.now, key, Failure::Refused);
            }
            (5..10, _) => self.schedule.failed(self.now, key, Failure::Later),
            (10..40, Some(stream)) if !force => self.schedule.on_the_way(self.now, key, stream),
            _ => self.answer(key, &wanted, force, honest),
        }
        self.settle();
    }

    fn answer(&mut self, key: RequestKey, wanted: &Wanted, force: bool, honest: bool) {
        match wanted {
            Wanted::Block { page, .. } if !force && self.pick(5) == 0 => {
                let is_good = honest || self.pick(4) > 0;
                let lone = (*page, is_good.then(|| self.tree.page(*page)));
                self.schedule.pages_arrived(self.now, key, &[lone]);
            }
            Wanted::Block { block, .. } => {
                let mut raw = Vec::new();
                self.tree.metadata.decode_block(*block, self.tree.stored(*block), &mut raw).unwrap();
                if !force && self.pick(2) == 0 {
                    if !honest && self.pick(4) == 0 {
                        let at = self.pick(raw.len());
                        raw[at] ^= 1;
                    }
                    let raw = Some(Arc::new(Decoded::Unverified(raw.into())));
                    return self.schedule.block_arrived(self.now, key, *block, raw, None);
                }
                let stored = StoredBlock::of(&self.tree.metadata, *block, self.tree.stored(*block).to_vec().into());
                let raw = self.schedule.is_awaited(*block).then(|| Arc::new(Decoded::Here(raw)));
                self.schedule.block_arrived(self.now, key, *block, raw, stored);
            }
            Wanted::Pages(pages) => {
                let pages: Vec<_> = pages.iter().map(|page| (*page, Some(self.tree.page(*page)))).collect();
                self.schedule.pages_arrived(self.now, key, &pages);
            }
        }
    }

    fn toggle_connection(&mut self, connection: ConnectionIndex) {
        self.up[connection] = !self.up[connection];
        if self.up[connection] {
            self.schedule.connection_up(self.now, connection, true);
        } else {
            self.schedule.connection_down(self.now, connection);
            self.commands.retain(|(found, _)| *found != connection);
            self.generation += 1;
            let over: Vec<_> = self.streams.extract_if(.., |(stream, _)| stream.connection == connection).collect();
            // The storer hears of the end behind the pieces.
            while over.iter().any(|(stream, _)| self.pieces.iter().any(|piece| piece.0 == *stream)) {
                self.digest();
            }
            over.into_iter().for_each(|(stream, _)| self.schedule.stream_over(self.now, stream));
        }
        self.settle();
    }

    fn push(&mut self) {
        if self.streams.len() < 2 || self.pick(10) == 0 {
            let Some(connection) = (0..CONNECTIONS).find(|connection| self.up[*connection]) else { return };
            self.streams_begun += 1;
            let key = StreamKey { connection, generation: self.generation, stream: StreamId(self.streams_begun) };
            let info = StreamInfo { token: Token(self.rng.below(3).into()), audit: self.pick(4) == 0, hinted: false };
            self.schedule.stream_started(key, info);
            self.streams.push((key, info));
        }
        let at = self.pick(self.streams.len());
        let (key, info) = self.streams[at];
        let first = self.pick(100) as u32;
        let count = 1 + self.pick(8) as u32;
        let pages: Vec<PageId> =
            (first..(first + count).min(101)).map(|index| PageId::new(self.tree.big(), index)).collect();
        self.schedule.pushes().piece_received(pages.iter().copied());
        self.pieces.push_back((key, info, pages));
    }

    /// The storer digests its next piece.
    fn digest(&mut self) {
        let Some((_, info, pages)) = self.pieces.pop_front() else { return };
        if self.pick(10) == 0 {
            let corrupt = self.pick(2) == 0;
            self.schedule.piece_lost(self.now, &pages, corrupt);
            return self.settle();
        }
        let mut raw = Vec::new();
        let mut candidates = Vec::new();
        for page in pages {
            let start = raw.len();
            raw.extend_from_slice(self.tree.page(page));
            candidates.push(Candidate { page, bytes: start..raw.len() });
        }
        let opens = self.pick(4) > 0;
        let mut left = self.schedule.piece_digested(self.now, info, candidates, &raw, opens);
        self.settle();
        left.sort_by_key(|candidate| candidate.page);
        self.store(left, &raw, Some(info.token));
    }

    fn store(&mut self, mut candidates: Vec<Candidate>, raw: &[u8], keep_for: Option<Token>) {
        let mut run = Arc::new(Run::default());
        while self.schedule.next_run(&mut candidates, raw, &mut run, keep_for, self.now) {
            let pages = Pages { inode: run.inode, first: run.first, count: run.count };
            for page in pages.iter() {
                assert!(!self.replying.iter().any(|reply| reply.iter().any(|p| p == page)), "{page} is being replied");
                assert!(!self.schedule.reads.is_in_flight(page), "{page} has a READ in flight");
                assert_eq!(run.page(page), Some(self.tree.page(page)));
            }
            self.stores += 1;
            // A READ of a page being stored must be answered before the store can return.
            if self.pick(2) == 0 {
                self.read_around(&run);
            } else if self.pick(2) == 0 {
                let page = PageId::new(run.inode, run.first + self.pick(run.count as usize) as u32);
                let id = self.read(page.inode, u64::from(page.index) * PAGE_BYTES as u64, PAGE_BYTES as u32);
                assert!(
                    self.outcomes.lock().unwrap().contains_key(&id),
                    "a READ waits for the store that waits for it"
                );
            }
            let outcome =
                [StoreOutcome::Stored, StoreOutcome::Stored, StoreOutcome::UnknownInode, StoreOutcome::Failed]
                    [self.pick(4)];
            if outcome == StoreOutcome::UnknownInode && keep_for.is_some() {
                self.schedule.looked_up(run.inode, false);
            }
            self.schedule.store_ended(&run, outcome, keep_for);
        }
    }

    /// A READ of more than the run that is being stored: what it lacks must come without the
    /// storer.
    fn read_around(&mut self, run: &Run) {
        let first = u64::from(run.first.saturating_sub(self.pick(6) as u32));
        let end = u64::from(run.first + run.count) + self.pick(6) as u64;
        let bytes = (end - first) * PAGE_BYTES as u64;
        self.read(run.inode, first * PAGE_BYTES as u64, bytes as u32);
        let id = self.schedule.reads.last();
        for _ in 0..3 {
            assert!(self.schedule.reads.waits_for_demands_only(id), "a READ waits for the storer, which waits for it");
            self.obey(false);
        }
    }

    fn pass_time(&mut self, micros: u64) {
        self.now = self.now.after(Duration::from_micros(micros));
        self.schedule.expire(self.now);
        self.settle();
    }

    fn step(&mut self) {
        match self.pick(100) {
            0..35 => self.read_something(),
            35..65 => self.obey(false),
            65..75 => self.push(),
            75..84 => self.digest(),
            84 => self.store_hinted(),
            85..88 => {
                let connection = self.pick(CONNECTIONS);
                self.toggle_connection(connection);
            }
            88..90 if !self.streams.is_empty() => {
                let at = self.pick(self.streams.len());
                let (stream, _) = self.streams.remove(at);
                while self.pieces.iter().any(|piece| piece.0 == stream) {
                    self.digest();
                }
                self.schedule.stream_over(self.now, stream);
                self.settle();
            }
            90..92 => {
                let token = Token(self.rng.below(3).into());
                self.schedule.end(token);
                self.settle();
            }
            92 => self.hint(),
            93..97 => {
                let micros = self.rng.below(200_000);
                self.pass_time(micros);
            }
            _ => {
                for pages in std::mem::take(&mut self.replying) {
                    self.schedule.replied(pages);
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        for (id, outcome) in self.outcomes.lock().unwrap().iter() {
            match outcome {
                Ok(bytes) => assert!(*bytes == self.expected[id], "READ {id} got wrong bytes"),
                Err(error) => assert!(self.spoils, "READ {id} failed without a cause: {error}"),
            }
        }
        self.schedule.reads.check();
        self.schedule.requests.check(&self.schedule.connections);
        let counters = self.schedule.pushes.counters();
        let undecided = self.schedule.pushes.undecided_pages();
        assert_eq!(counters.pages_pushed, counters.pages_push_hit + counters.pages_wasted + undecided, "{counters:?}");
    }

    /// Everything comes to an end when connections are up and answer honestly.
    fn finish(mut self) -> Sim {
        for connection in 0..CONNECTIONS {
            if !self.up[connection] {
                self.toggle_connection(connection);
            }
        }
        for _ in 0..10_000 {
            while !self.pieces.is_empty() {
                self.digest();
            }
            while !self.hinted.is_empty() {
                self.store_hinted();
            }
            if let Some((stream, _)) = self.streams.pop() {
                self.schedule.stream_over(self.now, stream);
            }
            while !self.commands.is_empty() {
                self.obey(true);
            }
            self.pass_time(1_000_000);
            for pages in std::mem::take(&mut self.replying) {
                self.schedule.replied(pages);
            }
            let idle = self.commands.is_empty() && self.schedule.requests.is_empty() && self.schedule.reads.is_idle();
            if idle && self.streams.is_empty() && self.pieces.is_empty() && self.hinted.is_empty() {
                break;
            }
        }
        self.check();
        assert_eq!(self.outcomes.lock().unwrap().len(), self.expected.len(), "every READ is answered");
        let left = &self.schedule;
        assert!(left.reads.is_empty() && left.requests.is_empty() && left.pushes.is_nothing_arriving());
        assert!(!left.page_cache.is_storing());
        self
    }
}

fn small_config(seed: u64) -> Config {
    Config {
        granularity: [Granularity::Block, Granularity::Page, Granularity::Auto][(seed % 3) as usize],
        cache_bytes: 128 << 10,
        stored_bytes: if seed.is_multiple_of(2) { 192 << 10 } else { 0 },
        holding: crate::config::Holding { common_bytes: 16 << 10, audit_bytes: 32 << 10 },
        readahead_blocks: 4,
        ..Config::default()
    }
}

#[test]
fn sim_every_read_gets_the_bytes_of_its_file_whatever_happens() {
    for tree in [Arc::new(Tree::plain()), Arc::new(Tree::scattered())] {
        let (mut stores, mut late, mut replays, mut hints) = (0, 0, 0, 0);
        for seed in 0..60 {
            let mut sim = Sim::new(Arc::clone(&tree), seed, &small_config(seed));
            for _ in 0..400 {
                sim.step();
            }
            let sim = sim.finish();
            stores += sim.stores;
            late += sim.schedule.counters().reads.late_pushes;
            replays += sim.schedule.counters().demand.replays;
            hints += sim.schedule.counters().hints.pages_hint_pushed;
        }
        // The simulation would prove nothing if these never happened.
        let happened = [stores, late, replays, hints];
        assert!(happened.iter().all(|count| *count > 100), "{happened:?}");
    }
}

#[test]
fn sim_soft_reads_end_in_time_even_if_nothing_ever_answers() {
    let tree = Arc::new(Tree::plain());
    let config = Config { waiting: Waiting::Soft(Duration::from_secs(30)), ..small_config(0) };
    let mut sim = Sim::new(tree, 5, &config);
    sim.spoils = true;
    for _ in 0..50 {
        sim.read_something();
        sim.pass_time(100_000);
    }
    let due = sim.schedule.deadline().expect("READs wait");
    assert!(due <= Moment(0).after(Duration::from_secs(30)));
    sim.pass_time(29_900_000 - sim.now.0 % 1000);
    sim.pass_time(30_000_000);
    assert_eq!(sim.outcomes.lock().unwrap().len(), 50);
    assert!(sim.schedule.reads.is_idle());
}

#[test]
fn closing_answers_every_read() {
    let mut sim = Sim::new(Arc::new(Tree::plain()), 5, &small_config(0));
    sim.spoils = true;
    (0..50).for_each(|_| sim.read_something());
    sim.schedule.close(sim.now);
    sim.settle();
    sim.read_something();
    assert_eq!(sim.outcomes.lock().unwrap().len(), 51);
}

#[test]
fn a_cut_answer_is_the_canary_of_the_simulation() {
    // If a wrong page went unnoticed, the simulation would notice: spoil one byte on its way in.
    let mut sim = Sim::new(Arc::new(Tree::plain()), 5, &small_config(0));
    sim.toggle_connection(0);
    let page = PageId::new(sim.tree.big(), 3);
    sim.read(page.inode, 3 * PAGE_BYTES as u64, 4096);
    let mut bytes = sim.tree.page(page).to_vec();
    bytes[7] ^= 1;
    sim.schedule.reads.fulfil(sim.now, page, &bytes);
    sim.settle();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.check()));
    assert!(caught.is_err());
}
