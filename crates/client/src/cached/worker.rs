//! The thread of the device cache: answers requests from it, puts what a program will need next
//! into the page cache, and writes what servers sent.
//!
//! To the schedule it is one more connection. It gets the touches of programs at once, and pushes
//! through the storer as a server does: the first page of each segment is held back, and its READ
//! tells how far the program is.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use predict::{ActionPredictor, Audits, Predictor, PushOrder, Verdict};
use units::{BlockId, Moment, PageId, SegmentIndex, StreamId, Token};
use wire::{PushEncoding, PushPiece};

use super::reader::Reader;
use super::untold::Watch;
use super::writer::Writer;
use super::{ImageCache, start};
use crate::command::{Command, ConnectionIndex, Failure, Kept, RequestKey, StreamKey, Wanted};
use crate::job::Job;
use crate::schedule::StreamInfo;
use crate::shared::Shared;

/// Bytes of pushed pages that the storer may have at once.
const PUSHED_BYTES_MAX: usize = 512 << 10;

/// How often runs that are over are looked for.
const TICK: Duration = Duration::from_secs(1);

/// Time for what is on its way to the disk when the session ends.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);

/// What is learned is written so often at most, and when the session ends.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The thread's own state.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    index: ConnectionIndex,
    commands: Receiver<Command>,
    reader: Reader,
    writer: Writer,
    predictor: ActionPredictor,
    runs: HashMap<Token, Run>,
    watch: Watch,
    /// Streams that were begun.
    streams: u32,
    /// Bytes that the storer has.
    pushed_bytes: usize,
    /// What servers sent, to be written when there is nothing else to do.
    keeping: VecDeque<Kept>,
    /// When it was looked last for runs that are over, and when what was learned was written.
    ticked: Moment,
    saved: Moment,
}

/// A program whose next pages are pushed.
#[derive(Default)]
struct Run {
    /// While there are pages to push.
    stream: Option<StreamKey>,
    /// Positions and pages of its action that are to be pushed, in order.
    queue: VecDeque<(u32, PageId)>,
    sent: HashSet<PageId>,
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        index: ConnectionIndex,
        commands: Receiver<Command>,
        image: Arc<ImageCache>,
    ) -> Worker {
        let metadata = Arc::clone(&shared.metadata);
        let config = predict::Config { audits: Audits::NONE, ..predict::Config::default() };
        let predictor = match start::actions(&image, metadata.id()) {
            Some(actions) => ActionPredictor::with_actions(actions, config),
            None => ActionPredictor::new(metadata.id(), config),
        };
        let now = shared.clock.now();
        Worker {
            index,
            commands,
            reader: Reader::new(Arc::clone(&image), Arc::clone(&metadata)),
            writer: Writer::new(image, metadata),
            predictor,
            runs: HashMap::new(),
            watch: Watch::default(),
            streams: 0,
            pushed_bytes: 0,
            keeping: VecDeque::new(),
            ticked: now,
            saved: now,
            shared,
        }
    }

    /// Works until the session closes. Programs wait for requests and pushes; writing comes last.
    pub fn work(mut self) {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => break,
                Ok(command) => {
                    self.obey(command);
                    continue;
                }
                Err(TryRecvError::Empty) => {}
            }
            if self.shared.clock.now().since(self.ticked) >= TICK {
                self.tick();
            }
            if self.push_some() {
                continue;
            }
            if let Some(kept) = self.keeping.pop_front() {
                self.write(kept);
                continue;
            }
            match self.commands.recv_timeout(TICK) {
                Ok(Command::Close) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.close();
    }

    /// Writes what came and was learned, as far as there is time.
    fn close(mut self) {
        let until = self.shared.clock.now().after(CLOSES_WITHIN);
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Keep(kept) = command {
                self.keeping.push_back(kept);
            }
        }
        // All of them.
        self.predictor.expire(Moment(u64::MAX));
        self.save();
        while let Some(kept) = self.keeping.pop_front()
            && self.shared.clock.now() < until
        {
            self.write(kept);
        }
        self.writer.flush();
        self.writer.close();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Request { key, wanted, .. } => self.answer(key, &wanted),
            Command::Touch { token, pages } => pages.into_iter().for_each(|page| self.touched(token, page)),
            Command::TokenEnd { token, is_untold } => {
                let is_new = self.end(token);
                let touched = self.watch.end(token, is_new);
                if is_untold {
                    self.writer.run(&touched);
                }
                if self.shared.clock.now().since(self.saved) >= SAVE_EVERY {
                    self.save();
                }
            }
            Command::Credit { bytes, .. } => self.pushed_bytes = self.pushed_bytes.saturating_sub(bytes as usize),
            Command::StopPush { stream } => {
                let of = self.runs.values_mut().filter(|run| run.stream == Some(stream));
                of.for_each(|run| run.queue.clear());
            }
            Command::Keep(kept) => self.keep(kept),
            // For servers.
            _ => {}
        }
    }

    fn tick(&mut self) {
        self.ticked = self.shared.clock.now();
        self.writer.flush();
        for ended in self.predictor.expire(self.ticked) {
            self.watch.over(ended.token, ended.changed);
            self.end(ended.token);
        }
    }

    /// Answers a request, or says that it must go to a server.
    fn answer(&mut self, key: RequestKey, wanted: &Wanted) {
        let answered = match wanted {
            Wanted::Block { block, .. } => self.answer_block(key, *block),
            Wanted::Pages(pages) => self.answer_pages(key, pages),
        };
        if !answered {
            self.shared.run(|schedule, now| schedule.failed(now, key, Failure::Absent));
        }
    }

    fn answer_block(&mut self, key: RequestKey, block: BlockId) -> bool {
        let Some(stored) = self.reader.stored_block(block) else { return false };
        self.shared.take_block(key, block, stored.into());
        true
    }

    fn answer_pages(&mut self, key: RequestKey, pages: &[PageId]) -> bool {
        let (mut raw, mut ends) = (Vec::new(), Vec::new());
        for page in pages {
            if !self.reader.page(*page, &mut raw) {
                return false;
            }
            ends.push(raw.len());
        }
        let mut start = 0;
        let mut found = Vec::with_capacity(pages.len());
        for (page, end) in pages.iter().zip(ends) {
            found.push((*page, Some(&raw[start..end])));
            start = end;
        }
        self.shared.run(|schedule, now| schedule.pages_arrived(now, key, &found));
        true
    }

    /// A program touched a page: what comes next may be here.
    fn touched(&mut self, token: Token, page: PageId) {
        self.watch.touched(token, page);
        let verdict = self.predictor.touch(token, page, self.shared.clock.now());
        self.follow(token, verdict);
    }

    fn follow(&mut self, token: Token, verdict: Verdict) {
        if verdict.cancel
            && let Some(run) = self.runs.get_mut(&token)
        {
            run.queue.clear();
        }
        if let Some((from, run)) = verdict.hold.zip(self.runs.get_mut(&token)) {
            run.queue.retain(|(position, _)| *position < from);
        }
        if let Some(order) = verdict.push {
            self.order(token, &order);
        }
    }

    fn order(&mut self, token: Token, order: &PushOrder) {
        let pages = self.predictor.pages(token, order).to_vec();
        if order.begins {
            self.end_stream(token);
        }
        let run = self.runs.entry(token).or_default();
        if order.begins {
            run.queue.clear();
        }
        run.queue.extend((order.from..).zip(pages));
    }

    /// The stream of pages for a program, which begins if there is none.
    fn stream(&mut self, token: Token) -> StreamKey {
        if let Some(stream) = self.runs.get(&token).and_then(|run| run.stream) {
            return stream;
        }
        self.streams = self.streams.wrapping_add(1);
        let stream = StreamKey { connection: self.index, generation: 0, stream: StreamId(self.streams) };
        let info = StreamInfo { token, audit: false, hinted: false };
        self.shared.run(|schedule, _| schedule.stream_started(stream, info));
        let job = Job::Started { key: stream, info, encoding: PushEncoding::Stored, window_log: 0 };
        let _ = self.shared.storer.send(job);
        self.runs.entry(token).or_default().stream = Some(stream);
        stream
    }

    fn end_stream(&mut self, token: Token) {
        if let Some(key) = self.runs.get_mut(&token).and_then(|run| run.stream.take()) {
            let _ = self.shared.storer.send(Job::Over { key });
        }
    }

    /// Pushes a segment, or what is left of it, for one program. False if there is nothing to push
    /// now.
    fn push_some(&mut self) -> bool {
        if self.pushed_bytes >= PUSHED_BYTES_MAX {
            return false;
        }
        let segment_pages = self.predictor.config().segment_pages.max(1);
        let Some((token, run)) = self.runs.iter_mut().find(|(_, run)| !run.queue.is_empty()) else { return false };
        let token = *token;
        let segment = run.queue.front().map_or(0, |(position, _)| position / segment_pages);
        let (mut pages, mut raw) = (Vec::new(), Vec::new());
        while let Some((position, page)) = run.queue.front().copied() {
            if position / segment_pages != segment || pages.len() >= super::RECORD_PAGES_MAX {
                break;
            }
            run.queue.pop_front();
            if !run.sent.contains(&page) && self.reader.page(page, &mut raw) {
                run.sent.insert(page);
                pages.push(page);
            }
        }
        let is_last = run.queue.is_empty();
        if !pages.is_empty() {
            self.watch.hidden(token);
            let stream = self.stream(token);
            let bytes = raw.len();
            self.pushed_bytes += bytes;
            self.shared.run(|schedule, _| schedule.pushes().piece_received(pages.iter().copied()));
            self.shared.undigested_bytes.fetch_add(bytes, Ordering::AcqRel);
            let piece = PushPiece { stream: stream.stream, segment: SegmentIndex(segment), pages, bytes: raw.into() };
            let _ = self.shared.storer.send(Job::Piece { key: stream, piece, credit: bytes as u32, announced: true });
        }
        if is_last {
            self.end_stream(token);
        }
        true
    }

    /// A program ended. Returns whether something was learned from it at last.
    fn end(&mut self, token: Token) -> bool {
        let ended = self.predictor.end(token, self.shared.clock.now());
        self.end_stream(token);
        self.runs.remove(&token);
        ended.changed
    }

    /// Takes what a server sent, and learns from pages that it pushed.
    fn keep(&mut self, kept: Kept) {
        if let Kept::Pushed { token, pages, .. } = &kept {
            // What a server pushes comes in the order of its action, and is not touched visibly. A
            // program that has ended needs nothing more.
            for page in pages {
                if self.predictor.phase(*token).is_some() && !self.reader.has(*page) {
                    let verdict = self.predictor.touch(*token, *page, self.shared.clock.now());
                    self.follow(*token, verdict);
                }
            }
        }
        self.keeping.push_back(kept);
    }

    fn write(&mut self, kept: Kept) {
        self.shared.kept_bytes.fetch_sub(kept.bytes(), Ordering::AcqRel);
        self.writer.keep(kept);
    }

    /// Writes what was learned, if it changed.
    fn save(&mut self) {
        self.saved = self.shared.clock.now();
        if !self.predictor.take_changed().is_empty() {
            self.writer.actions(&self.predictor.actions().encode());
        }
    }
}
