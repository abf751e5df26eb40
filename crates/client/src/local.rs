//! An image file on this machine: the same session without connections.
//!
//! There is nothing to wait for and nobody who learns. So the thread that brings a READ decodes
//! what it needs and answers: no other thread is woken, and as many READs as there are serving
//! threads are answered at the same time. The schedule only knows which pages are in flight. One
//! thread reads the blocks of hinted pages, for the storer.

pub(crate) mod blocks;

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use connection::{Clock, spawn};
use image::{Metadata, PageChunks, ReadAt};
use units::{BlockId, InodeId};

use self::blocks::{BlockFailure, FileBlocks, NearBlock};
use crate::block_cache::{Evicted, Taken};
use crate::command::{Command, Failure, RequestKey, Wanted};
use crate::config::Config;
use crate::error::{ClientError, ReadError};
use crate::schedule::Span;
use crate::session::Session;
use crate::shared::{ConnectionHandle, Shared};
use crate::sink::Done;

/// Bytes of decoded blocks kept. A reader of whole files needs the block it is in; what more is
/// worth shows in programs that go back and forth between files.
const CACHE_BYTES: usize = 2 << 20;

/// A file that an image is read from.
pub struct ImageFile(pub File);

impl ReadAt for ImageFile {
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// Opens an image file and its metadata, chunk hashes included: every block that is read is held to
/// them.
///
/// # Errors
/// The file cannot be read, or is no good image.
pub fn open_file(path: &Path, limits: &image::Limits) -> Result<(ImageFile, Metadata), ClientError> {
    let named = |source| ClientError::File { path: path.into(), source };
    let file = host::file::open(path).map_err(named)?;
    let file = ImageFile(file);
    let metadata = Metadata::open(&file, limits)
        .map_err(|source| ClientError::Image { name: path.display().to_string(), source })?;
    Ok((file, metadata))
}

pub(crate) fn open(path: &Path, config: Config) -> Result<Arc<Session>, ClientError> {
    let (file, metadata) = open_file(path, &config.limits)?;
    let metadata = Arc::new(metadata);
    let blocks = FileBlocks::new(file, Arc::clone(&metadata), CACHE_BYTES);
    let blocks = Arc::new(if config.store_evicted { blocks.handing_on() } else { blocks });
    let (commands, receiver) = channel();
    let handles = vec![ConnectionHandle { commands, waker: None }];
    let source = Some(LocalReader { blocks: Arc::clone(&blocks), hands_on: config.store_evicted });
    let (session, shared) = Session::start(metadata, config, Clock::start(), 0, handles, source, None)?;
    let worker = Arc::clone(&shared);
    spawn("runnel-file", move || serve(&worker, &blocks, &receiver))?;
    shared.run(|schedule, now| schedule.connection_up(now, 0, false));
    Ok(session)
}

fn serve(shared: &Shared, blocks: &FileBlocks, commands: &Receiver<Command>) {
    while let Ok(command) = commands.recv() {
        match command {
            Command::Request { key, wanted: Wanted::Block { block, .. }, .. } => {
                read_block(shared, blocks, key, block);
            }
            Command::Close => return,
            // There is no server that learns or pushes.
            _ => {}
        }
    }
}

fn read_block(shared: &Shared, blocks: &FileBlocks, key: RequestKey, block: BlockId) {
    let outcome = blocks.get(block);
    let gone = shared.run(|schedule, now| match outcome {
        Ok(found) => {
            schedule.block_arrived(now, key, block, Some(found.bytes), None);
            found.gone
        }
        Err(failure) => {
            let corrupt = failure == BlockFailure::Corrupt;
            schedule.failed(now, key, if corrupt { Failure::Corrupt } else { Failure::Refused });
            Vec::new()
        }
    });
    gone.into_iter().for_each(|gone| shared.offer_evicted(gone));
}

/// Answers READs from an image file, on the threads that bring them.
pub(crate) struct LocalReader {
    pub blocks: Arc<FileBlocks>,
    /// The pages of hot blocks go to the kernel at once, those of others when they leave the cache.
    hands_on: bool,
}

/// Consecutive bytes of a file that lie together in a block, or in a hole.
struct Piece {
    place: Option<(BlockId, usize)>,
    bytes: usize,
}

thread_local! {
    /// Answers that do not lie in one piece are put together here.
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl LocalReader {
    /// Answers a READ. Whether all of its bytes were in memory.
    pub fn read(&self, shared: &Shared, inode: InodeId, offset: u64, bytes: u32, done: Done) -> bool {
        let span = match shared.run(|schedule, _| schedule.read_begins(inode, offset, bytes)) {
            Ok(span) => span,
            Err(error) => {
                done(Err(error));
                return true;
            }
        };
        let pieces = self.pieces(&span);
        let mut near = NearBlock::default();
        let mut answer = ANSWER.take();
        let outcome = self.assemble(&span, &pieces, &mut near, &mut answer);
        let error = outcome.err();
        done(outcome);
        ANSWER.set(answer);
        shared.run(|schedule, _| schedule.read_ended(span.pages, error));
        let (decoded, gone) = near.into_changes();
        if !decoded.is_empty() {
            self.blocks.count_demanded(span.pages.count);
        }
        gone.into_iter().for_each(|gone| shared.offer_evicted(gone));
        if self.hands_on {
            self.blocks.take(pieces.iter().filter_map(|piece| piece.place.map(|(block, at)| (block, at, piece.bytes))));
            self.hand_on(shared, &pieces, &decoded);
        }
        decoded.is_empty()
    }

    /// Where the bytes of a READ lie. A chunk that does not fit is left out: an opened image has
    /// none, and [`LocalReader::assemble`] fails then.
    fn pieces(&self, span: &Span) -> Vec<Piece> {
        let metadata = self.blocks.metadata();
        let mut pieces: Vec<Piece> = Vec::new();
        for page in span.pages.iter() {
            for part in metadata.page_chunks(page).iter().flat_map(PageChunks::pieces) {
                let place = match part.chunk {
                    None => None,
                    Some(chunk) => match metadata.chunk(chunk).filter(|chunk| chunk.bytes as usize == part.bytes) {
                        Some(chunk) => Some((chunk.block, chunk.offset as usize)),
                        None => continue,
                    },
                };
                match pieces.last_mut().filter(|last| last.goes_on(place)) {
                    Some(last) => last.bytes += part.bytes,
                    None => pieces.push(Piece { place, bytes: part.bytes }),
                }
            }
        }
        pieces
    }

    /// The bytes of a READ: as they lie in their block if they lie in one piece, else copied to
    /// `answer`.
    fn assemble<'a>(
        &self,
        span: &Span,
        pieces: &[Piece],
        near: &'a mut NearBlock,
        answer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], ReadError> {
        let wanted = span.skip..span.skip + span.bytes;
        if let [Piece { place: Some((block, at)), bytes }] = pieces {
            let raw = near.block(&self.blocks, *block)?;
            let piece = raw.get(*at..at + bytes);
            return piece.and_then(|piece| piece.get(wanted)).ok_or(ReadError::Corrupt);
        }
        answer.clear();
        for piece in pieces {
            match piece.place {
                None => answer.resize(answer.len() + piece.bytes, 0),
                Some((block, at)) => {
                    let raw = near.block(&self.blocks, block)?;
                    answer.extend_from_slice(raw.get(at..at + piece.bytes).ok_or(ReadError::Corrupt)?);
                }
            }
        }
        answer.get(wanted).ok_or(ReadError::Corrupt)
    }

    /// A local start reads hot blocks whole, so the storer gives their other pages to the kernel.
    fn hand_on(&self, shared: &Shared, pieces: &[Piece], decoded: &[BlockId]) {
        let hot_blocks = self.blocks.metadata().hot_blocks();
        for block in decoded.iter().copied().filter(|block| block.0 < hot_blocks) {
            let Ok(found) = self.blocks.get(block) else { continue };
            found.gone.into_iter().for_each(|gone| shared.offer_evicted(gone));
            let mut taken = Taken::of(found.bytes.len());
            for piece in pieces {
                if let Some((_, at)) = piece.place.filter(|(of, _)| *of == block) {
                    taken.mark(at, piece.bytes);
                }
            }
            self.blocks.take(std::iter::once((block, 0, found.bytes.len())));
            shared.offer_evicted(Evicted::handed_on(block, found.bytes, taken));
        }
    }
}

impl Piece {
    /// Whether what lies at `place` goes on where this piece ends.
    fn goes_on(&self, place: Option<(BlockId, usize)>) -> bool {
        match (self.place, place) {
            (None, None) => true,
            (Some((block, at)), Some((next, start))) => block == next && at + self.bytes == start,
            _ => false,
        }
    }
}

impl From<BlockFailure> for ReadError {
    fn from(failure: BlockFailure) -> ReadError {
        match failure {
            BlockFailure::Read => ReadError::Io,
            BlockFailure::Corrupt => ReadError::Corrupt,
        }
    }
}
