//! The storer: a thread that decodes pushes and stores pages into the page cache.
//!
//! Storing may block: the kernel makes a store of a page wait while a READ of it is in flight. So
//! nothing that answers READs may wait for this thread; the schedule answers READs from the pages
//! that the storer has at hand. A piece is decoded and cut into pages, and every page is checked
//! against the image before any of it is used. After a bad page the rest of its stream is dropped.
//! Chunk hashes come before the pages, with a proof. A server that sends no proofs is asked for all
//! of them (`hashes`): until they are here pushes wait in their order. If they cannot be had,
//! pushes are refused, until another connection brings them or a server that sends proofs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use bytes::Bytes;
use codec::{Codec, StreamDecoder};
use image::Metadata;
use rustix::time::{ClockId, clock_gettime};
use units::{PageId, SegmentIndex, Token};
use wire::{PieceForm, PushEncoding, PushPiece};

use crate::block_cache::Evicted;
use crate::command::{Command, Kept, StreamKey};
use crate::decode_rate::DecodeRate;
use crate::job::Job;
use crate::schedule::{Candidate, HintedBlock, Run, StreamInfo, evicted_candidates, retain_good};
use crate::shared::Shared;
use crate::sink::{PageSink, StoreOutcome};

/// Memory of the decoders of all streams together: two streams with the default window, or more
/// with smaller ones.
const DECODER_BYTES_MAX: usize = 4 << 20;

/// Pushes that may wait for the chunk hashes, counted in starts, pieces and ends. Their bytes are
/// bounded by credit; this bounds what they cost beside. A server that sends more before it sends
/// the hashes is not served further.
const WAITING_JOBS_MAX: usize = 4096;

/// The storer's own state.
pub(crate) struct Storer {
    shared: Arc<Shared>,
    streams: HashMap<StreamKey, Stream>,
    /// Decoded bytes of the piece at hand.
    raw: Vec<u8>,
    /// Reused for every run.
    run: Arc<Run>,
    /// Pushes that came before the chunk hashes, in order. Their bytes count as undigested, so
    /// credit bounds them.
    waiting: VecDeque<Job>,
    /// The chunk hashes could not be had: what is pushed can be verified with proofs only.
    lacks_hashes: bool,
    rate: DecodeRate,
    /// What the server was told of it, over connections of up to this generation.
    told: (u64, DecodeRate),
}

struct Stream {
    info: StreamInfo,
    decoder: Decoder,
    /// Segment of the piece before.
    segment: Option<SegmentIndex>,
}

enum Decoder {
    Stored,
    Zstd {
        decoder: Box<StreamDecoder>,
        window_bytes: usize,
    },
    /// Each piece says how it is encoded.
    Pieces {
        /// Made with the first zstd piece: most streams of a fast link have none.
        decoder: Option<Box<StreamDecoder>>,
        window_log: u8,
    },
    /// A piece was bad, or there is no memory for the stream.
    Dead,
}

impl Storer {
    pub fn new(shared: Arc<Shared>) -> Storer {
        Storer {
            shared,
            streams: HashMap::new(),
            raw: Vec::new(),
            run: Arc::new(Run::default()),
            waiting: VecDeque::new(),
            lacks_hashes: false,
            rate: DecodeRate::default(),
            told: (0, DecodeRate::default()),
        }
    }

    /// Works until the session closes.
    pub fn work(mut self, jobs: Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Close => return,
                Job::Evicted(gone) => {
                    self.store_evicted(&gone);
                    self.shared.undigested_bytes.fetch_sub(gone.held_bytes(), Ordering::AcqRel);
                }
                Job::Hinted(block) => self.store_hinted(&block),
                Job::Hashes { good } => {
                    self.lacks_hashes = !good;
                    self.catch_up();
                }
                push if self.must_wait() => {
                    self.waiting.push_back(push);
                    if self.waiting.len() > WAITING_JOBS_MAX {
                        self.lacks_hashes = true;
                        self.catch_up();
                    }
                }
                push => {
                    self.catch_up();
                    self.take_push(push);
                }
            }
            if self.shared.is_closed() {
                return;
            }
        }
    }

    /// Whether pushes can be neither verified nor refused yet.
    fn must_wait(&self) -> bool {
        !self.lacks_hashes && !self.shared.metadata.takes_pages()
    }

    /// Whether there is nothing that pushes could be verified with.
    fn refuses(&self) -> bool {
        self.lacks_hashes && !self.shared.metadata.takes_pages()
    }

    /// Does what had to wait.
    fn catch_up(&mut self) {
        while let Some(job) = self.waiting.pop_front() {
            self.take_push(job);
        }
    }

    fn take_push(&mut self, job: Job) {
        match job {
            Job::Started { key, info, encoding, window_log } => self.start(key, info, encoding, window_log),
            Job::Piece { key, piece, credit, announced } => {
                if !announced {
                    self.shared.run(|schedule, _| schedule.pushes().piece_received(piece.pages.iter().copied()));
                }
                let bytes = piece.bytes.len();
                self.digest(key, &piece);
                drop(piece);
                self.shared.undigested_bytes.fetch_sub(bytes, Ordering::AcqRel);
                if credit > 0 {
                    self.shared.command(key.connection, Command::Credit { stream: key, bytes: credit });
                }
            }
            Job::Over { key } => {
                self.streams.remove(&key);
                self.shared.run(|schedule, now| schedule.stream_over(now, key));
            }
            // Not about pushes.
            Job::Evicted(_) | Job::Hinted(_) | Job::Hashes { .. } | Job::Close => {}
        }
    }

    fn start(&mut self, key: StreamKey, info: StreamInfo, encoding: PushEncoding, window_log: u8) {
        let refuses = self.refuses();
        if refuses {
            self.shared.run(|schedule, _| schedule.pushes().count_refused());
        }
        let decoder = match encoding {
            // Those of volumes are for the volume client.
            PushEncoding::Volume => Decoder::Dead,
            _ if refuses => Decoder::Dead,
            PushEncoding::Stored => Decoder::Stored,
            PushEncoding::ZstdStream => self.zstd_decoder(window_log),
            PushEncoding::Pieces => Decoder::Pieces { decoder: None, window_log },
        };
        if matches!(decoder, Decoder::Dead) {
            self.shared.command(key.connection, Command::StopPush { stream: key });
        }
        self.streams.insert(key, Stream { info, decoder, segment: None });
    }

    fn zstd_decoder(&self, window_log: u8) -> Decoder {
        if window_bytes(window_log) > self.window_room() {
            return Decoder::Dead;
        }
        match StreamDecoder::new(window_log.into()) {
            Ok(decoder) => Decoder::Zstd { decoder: Box::new(decoder), window_bytes: window_bytes(window_log) },
            Err(_) => Decoder::Dead,
        }
    }

    /// Bytes of window that a further decoder may have.
    fn window_room(&self) -> usize {
        let used: usize = self.streams.values().map(|stream| stream.decoder.window_bytes()).sum();
        DECODER_BYTES_MAX.saturating_sub(used)
    }

    /// Tells the server how fast the device decodes, if it does not know.
    fn tell_rate(&mut self, key: StreamKey) {
        let (generation, told) = self.told;
        // After a loss it may be another server.
        let told = if key.generation > generation { DecodeRate::default() } else { told };
        if self.rate.is_news(told) {
            self.told = (generation.max(key.generation), self.rate);
            self.shared.command(key.connection, Command::DecodeRate { zstd: self.rate.zstd, lz4: self.rate.lz4 });
        }
    }

    fn digest(&mut self, key: StreamKey, piece: &PushPiece) {
        let window_room = self.window_room();
        let dead = |stream: &Stream| matches!(stream.decoder, Decoder::Dead);
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| !dead(stream)) else {
            self.shared.run(|schedule, now| schedule.piece_lost(now, &piece.pages, false));
            return;
        };
        let opens_segment = stream.segment != Some(piece.segment);
        stream.segment = Some(piece.segment);
        let info = stream.info;
        let mut timed = Timed { rate: &mut self.rate };
        // The device cache verified what it pushes, some of it by the hashes of blocks alone.
        let is_verified = self.shared.cache == Some(key.connection);
        let decoded = stream.decoder.decode(&self.shared.metadata, piece, window_room, &mut self.raw, &mut timed);
        let is_good =
            |candidates: &Vec<Candidate>| is_verified || is_good(&self.shared.metadata, candidates, &self.raw);
        let Some(candidates) = decoded.filter(is_good) else {
            stream.decoder = Decoder::Dead;
            self.shared.run(|schedule, now| schedule.piece_lost(now, &piece.pages, true));
            self.shared.command(key.connection, Command::StopPush { stream: key });
            return;
        };
        let raw = std::mem::take(&mut self.raw);
        if self.shared.cache != Some(key.connection) {
            self.shared.keep(|| {
                let (pages, raw) = (piece.pages.clone(), Bytes::copy_from_slice(&raw));
                match info.hinted {
                    true => Kept::Pages { pages, raw },
                    false => Kept::Pushed { token: info.token, pages, raw },
                }
            });
        }
        let mut left =
            self.shared.run(|schedule, now| schedule.piece_digested(now, info, candidates, &raw, opens_segment));
        left.sort_by_key(|candidate| candidate.page);
        self.store(left, &raw, Some(info.token));
        self.raw = raw;
        self.tell_rate(key);
    }

    fn store_evicted(&mut self, gone: &Evicted) {
        let auditing = self.shared.run(|schedule, _| schedule.pushes().is_auditing());
        if auditing {
            return;
        }
        // Decoded here, on the storer's thread, if only its stored bytes were kept.
        if let Some(bytes) = gone.bytes() {
            let mut candidates = evicted_candidates(&self.shared.metadata, gone);
            if !bytes.is_verified() {
                retain_good(&self.shared.metadata, &mut candidates, &bytes);
            }
            self.store(candidates, &bytes, None);
        }
    }

    fn store_hinted(&mut self, block: &HintedBlock) {
        let mut raw = std::mem::take(&mut self.raw);
        let mut candidates = block.candidates(&self.shared.metadata, &mut raw);
        if !block.bytes.is_verified() {
            retain_good(&self.shared.metadata, &mut candidates, &raw);
        }
        if let Some(token) = self.shared.run(|schedule, now| schedule.hinted_arriving(now, &candidates)) {
            self.store(candidates, &raw, Some(token));
        }
        self.raw = raw;
        self.shared.run(|schedule, now| schedule.hinted_stored(now, block.block));
    }

    /// Stores pages in runs. `keep_for`: they belong to a push of this action, and are held if the
    /// kernel cannot take them; others are dropped then.
    fn store(&mut self, mut candidates: Vec<Candidate>, raw: &[u8], keep_for: Option<Token>) {
        let sink = self.shared.sink();
        let usable = || !self.shared.is_closed() && self.shared.metadata.contradiction().is_none();
        while !candidates.is_empty() && usable() {
            let run = &mut self.run;
            let more = self.shared.run(|schedule, now| schedule.next_run(&mut candidates, raw, run, keep_for, now));
            if !more {
                return;
            }
            let run = Arc::clone(&self.run);
            let outcome = match &sink {
                None => StoreOutcome::UnknownInode,
                Some(sink) => match sink.store(run.inode, run.first, &run.bytes) {
                    StoreOutcome::UnknownInode if self.look_up(sink.as_ref(), &run) => {
                        sink.store(run.inode, run.first, &run.bytes)
                    }
                    outcome => outcome,
                },
            };
            if outcome == StoreOutcome::UnknownInode && keep_for.is_none() {
                candidates.retain(|candidate| candidate.page.inode != run.inode);
            }
            self.shared.run(|schedule, _| schedule.store_ended(&run, outcome, keep_for));
        }
    }

    fn look_up(&self, sink: &dyn PageSink, run: &Run) -> bool {
        let known = sink.look_up(run.inode);
        self.shared.run(|schedule, _| schedule.looked_up(run.inode, known));
        known
    }
}

impl Decoder {
    fn window_bytes(&self) -> usize {
        match self {
            Decoder::Zstd { window_bytes, .. } => *window_bytes,
            Decoder::Pieces { decoder: Some(_), window_log } => window_bytes(*window_log),
            Decoder::Pieces { decoder: None, .. } | Decoder::Stored | Decoder::Dead => 0,
        }
    }

    /// Decodes a piece into `raw`, which the caller checks. `None` if it cannot be decoded.
    fn decode(
        &mut self,
        metadata: &Metadata,
        piece: &PushPiece,
        window_room: usize,
        raw: &mut Vec<u8>,
        timed: &mut Timed<'_>,
    ) -> Option<Vec<Candidate>> {
        let mut candidates = Vec::with_capacity(piece.pages.len());
        let mut start = 0;
        for page in &piece.pages {
            // Bytes beyond the end of a file would make it grow in the kernel's eyes.
            let bytes = metadata.page_bytes(*page)?;
            candidates.push(Candidate { page: *page, bytes: start..start + bytes });
            start += bytes;
        }
        match self {
            Decoder::Stored => {
                raw.clear();
                raw.extend_from_slice(&piece.bytes);
            }
            Decoder::Zstd { decoder, .. } => {
                timed.decode(PieceForm::ZstdContinues, start, || decoder.piece(&piece.bytes, start, raw).ok())?;
            }
            Decoder::Pieces { decoder, window_log } => {
                let (form, stored) = PieceForm::split(&piece.bytes)?;
                let window = (*window_log, window_room);
                timed.decode(form, start, || decode_piece(decoder, window, (form, stored), start, raw))?;
            }
            Decoder::Dead => return None,
        }
        (raw.len() == start).then_some(candidates)
    }
}

/// Whether every page of a piece matches the image.
fn is_good(metadata: &Metadata, candidates: &[Candidate], raw: &[u8]) -> bool {
    let pages: Option<Vec<(PageId, &[u8])>> =
        candidates.iter().map(|candidate| Some((candidate.page, raw.get(candidate.bytes.clone())?))).collect();
    pages.is_some_and(|pages| metadata.verify_pages(&pages).is_ok())
}

/// Decodes a piece of this form, which holds `raw_bytes` bytes. A decoder is made if its window has
/// room.
fn decode_piece(
    decoder: &mut Option<Box<StreamDecoder>>,
    (window_log, window_room): (u8, usize),
    (form, stored): (PieceForm, &[u8]),
    raw_bytes: usize,
    raw: &mut Vec<u8>,
) -> Option<()> {
    match form {
        PieceForm::Stored => codec::decode(Codec::Stored, stored, raw_bytes, raw).ok(),
        PieceForm::Lz4 => codec::decode(Codec::Lz4, stored, raw_bytes, raw).ok(),
        PieceForm::ZstdContinues => decoder.as_mut()?.piece(stored, raw_bytes, raw).ok(),
        PieceForm::ZstdBegins => {
            match decoder {
                Some(decoder) => decoder.restart().ok()?,
                None if window_bytes(window_log) > window_room => return None,
                None => *decoder = Some(Box::new(StreamDecoder::new(window_log.into()).ok()?)),
            }
            decoder.as_mut()?.piece(stored, raw_bytes, raw).ok()
        }
    }
}

/// Measures decoding, in processor time of the thread: on a device with one core, the program that
/// waits for other pages runs meanwhile.
struct Timed<'a> {
    rate: &'a mut DecodeRate,
}

impl Timed<'_> {
    fn decode(&mut self, form: PieceForm, raw_bytes: usize, work: impl FnOnce() -> Option<()>) -> Option<()> {
        let begun = processor_time();
        work()?;
        self.rate.note(form, raw_bytes, processor_time().saturating_sub(begun));
        Some(())
    }
}

/// Processor time of this thread so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Bytes of the window of a zstd stream.
fn window_bytes(window_log: u8) -> usize {
    1usize.checked_shl(window_log.into()).unwrap_or(usize::MAX)
}
