//! Reads: which blocks are here, which are asked for, and which come by themselves.
//!
//! A read ends when all its blocks are here at one moment in one version, or lie under what was
//! written here. It keeps the blocks that came for it, so a budget smaller than a read does no
//! harm.

use bytes::Bytes;
use codec::Codec;
use connection::Unanswered;
use units::{Moment, PageId, StreamId, Token};
use wire::volume::{Seen, VolumeAsk, VolumePiece, VolumeReply};
use wire::{ErrorCode, PushPiece, Reply};

use super::file::File;
use super::files::Open;
use super::read::Read;
use super::reader::Reader;
use super::requests::AskFor;
use super::session::ANSWER_TIME;
use super::table::Block;
use crate::call::{Done, Handle};
use crate::job::{BlockKey, Job};
use crate::{ErrorKind, READ_BYTES_MAX, StreamError, estimate};

/// Where a block is that a read needs.
enum Found {
    /// In memory; whether it was pushed and is used for the first time.
    Here(Bytes, bool),
    /// Somebody waits for it already.
    Awaited,
    /// It comes by itself from now on.
    Coming,
    /// It has to be asked for.
    Absent,
}

/// The result of a look at the table.
enum Look {
    Done(Bytes),
    /// These have to be asked for; others may be on their way.
    Missing(Vec<u32>),
}

impl Reader<'_> {
    pub fn read(&mut self, handle: Handle, token: Token, offset: u64, bytes: u32, done: Done<Bytes>) {
        let Some(Open { file, .. }) = self.files.handle(handle).filter(|open| open.how.read) else {
            return self.session.finish(done, Err(StreamError::bad_handle()));
        };
        let id = self.session.next_id();
        let read = Read::new(file, token, (offset, bytes.min(READ_BYTES_MAX)), done, self.session.now());
        self.reads.insert(id, read);
        self.files.works_on(file);
        if let Some(file) = self.files.get_mut(&file) {
            file.reads.insert(id);
            file.attributes.read(self.session.wall_ns());
        }
        self.advance_read(id);
    }

    /// Ends a read.
    pub fn end_read(&mut self, id: u64, outcome: Result<Bytes, StreamError>) {
        if let Some(read) = self.reads.remove(&id) {
            if let Some(file) = self.files.get_mut(&read.file) {
                file.reads.remove(&id);
            }
            let file = read.file;
            self.session.finish(read.into_done(), outcome);
            self.drop_unused(file);
        }
    }

    fn fail_reads(&mut self, key: u64, error: &StreamError) {
        let reads = self.files.get(&key).map(|file| file.reads.clone()).unwrap_or_default();
        reads.into_iter().for_each(|id| self.end_read(id, Err(error.clone())));
    }

    pub fn advance_reads(&mut self, key: u64) {
        let reads = self.files.get(&key).map(|file| file.reads.clone()).unwrap_or_default();
        reads.into_iter().for_each(|id| self.advance_read(id));
    }

    /// Brings a read as far as it gets.
    fn advance_read(&mut self, id: u64) {
        let Some(mut read) = self.reads.remove(&id) else { return };
        let key = read.file;
        let unsure = self.files.get(&key).is_some_and(|file| file.unsure && !file.gone);
        let look = if unsure { Ok(Look::Missing(Vec::new())) } else { self.look(&mut read) };
        let token = read.token();
        self.reads.insert(id, read);
        match look {
            Ok(Look::Done(bytes)) => self.end_read(id, Ok(bytes)),
            Ok(Look::Missing(_)) if unsure => self.open_number(key),
            Ok(Look::Missing(indexes)) => self.ask_blocks(key, token, indexes, false),
            Err(error) => self.end_read(id, Err(error)),
        }
    }

    fn look(&mut self, read: &mut Read) -> Result<Look, StreamError> {
        let block = u64::from(self.session.block_bytes());
        let Some(file) = self.files.get_mut(&read.file) else { return Err(StreamError::bad_handle()) };
        let (offset, end) = read.range(file.effective_size());
        if offset >= end {
            return Ok(Look::Done(Bytes::new()));
        }
        read.follow(file.seen);
        if read.is_hopeless() {
            let text = "it changes faster than it can be read; try again, or take a lease";
            return Err(StreamError::new(ErrorKind::Failed, &file.path, text));
        }
        let (first, last) = (offset / block, (end - 1) / block);
        if last > u64::from(u32::MAX) {
            return Err(StreamError::new(ErrorKind::TooLarge, &file.path, "it is too large for its data blocks"));
        }
        let zero_from = file.zero_from();
        let (mut absent, mut waiting, mut touches) = (Vec::new(), false, Vec::new());
        for index in first as u32..=last as u32 {
            let Some(file) = self.files.get(&read.file) else { return Err(StreamError::bad_handle()) };
            let start = u64::from(index) * block;
            let (from, until) = (start.max(offset), (start + block).min(end));
            // Behind what the server has of it there are zeros.
            let needed = until.min(zero_from);
            if from >= needed || file.table.present().is_hole(index) || file.unsent.overlay().covers(from, needed) {
                continue;
            }
            if read.has(index) {
                continue;
            }
            match self.find(read.file, index) {
                Found::Here(bytes, fresh) => {
                    read.put(index, bytes);
                    touches.push((index, fresh));
                }
                Found::Awaited => waiting = true,
                Found::Coming => {
                    waiting = true;
                    touches.push((index, false));
                }
                Found::Absent => absent.push(index),
            }
        }
        if read.touch() {
            // The server sees the first block of the first request itself.
            let (of, more) = ((read.file, read.token()), absent.get(1..).unwrap_or_default());
            self.touches.touch(of, &touches, absent.first().copied(), more, self.files, self.session);
        }
        if waiting || !absent.is_empty() {
            return Ok(Look::Missing(absent));
        }
        let Some(file) = self.files.get(&read.file) else { return Err(StreamError::bad_handle()) };
        Ok(Look::Done(read.assemble(file, end, block)))
    }

    /// Where a block of a file is. One that comes by itself is noted in the table.
    fn find(&mut self, key: u64, index: u32) -> Found {
        let Some(file) = self.files.get_mut(&key) else { return Found::Absent };
        if let Some(block) = file.table.get_mut(index) {
            return self.blocks.hit(block).map_or(Found::Awaited, |(bytes, fresh)| Found::Here(bytes, fresh));
        }
        let seen = file.seen.unwrap_or_default();
        let key = BlockKey { file: seen.file, version: seen.version, index };
        if let Some(slot) = self.blocks.find_on_disk(&key) {
            file.table.insert(index, Block::Reading { version: seen.version });
            self.session.push_job(Job::CacheRead { slot, key });
            return Found::Coming;
        }
        match self.session.link.expects(file, index, self.session.now()) {
            Some((stream, until)) => {
                file.table.insert(index, Block::OnTheWay { stream, until, told: false });
                Found::Coming
            }
            None => Found::Absent,
        }
    }

    /// Asks for blocks of a file, those first that are first in the list.
    fn ask_blocks(&mut self, key: u64, token: Token, indexes: Vec<u32>, force: bool) {
        let block = self.session.block_bytes() as usize;
        let bytes = estimate::answer_bytes(self.session.link.incoming()).min(wire::format::PULL_BLOCKS_BYTES_MAX);
        let at_once = (bytes / block).clamp(1, wire::format::PUSH_PAGES_MAX);
        if indexes.is_empty() || !self.session.link.is_open() {
            return;
        }
        let Some(file) = self.files.get_mut(&key) else { return };
        let Some(number) = file.numbering.number() else { return self.open_number(key) };
        for indexes in indexes.chunks(at_once) {
            let Some(file) = self.files.get_mut(&key) else { return };
            file.table.ask(indexes);
            self.blocks.count_asked(indexes.len());
            let blocks = indexes.iter().map(|index| PageId::new(number, *index)).collect();
            let ask = VolumeAsk::PullBlocks { token, blocks, force };
            self.session.ask(AskFor::Blocks { file: key, indexes: indexes.to_vec() }, ask, ANSWER_TIME);
        }
    }

    /// The answer to a request for blocks.
    pub fn blocks_answered(&mut self, key: u64, indexes: &[u32], answer: Result<Reply, Unanswered>) {
        let Some(file) = self.files.get_mut(&key) else { return };
        for index in indexes {
            if matches!(file.table.get(*index), Some(Block::Asked)) {
                file.table.remove(*index);
            }
        }
        let path = file.path.clone();
        match answer {
            Ok(Reply::Volume(VolumeReply::Blocks { version, size, codec, bytes })) => {
                match self.take_blocks(key, indexes, version, size, codec, &bytes, false) {
                    Ok(()) => self.advance_reads(key),
                    Err(why) => self.count_try(key, &StreamError::nonsense(&path, why)),
                }
            }
            Ok(Reply::OnTheWay { stream }) => {
                let until = self.session.now().after(estimate::patience(self.session.link.incoming()));
                let known = self.session.link.has_stream(stream);
                let Some(file) = self.files.get_mut(&key) else { return };
                let absent: Vec<u32> =
                    indexes.iter().copied().filter(|index| file.table.get(*index).is_none()).collect();
                let token = file.numbering.token();
                if known {
                    for index in absent {
                        file.table.insert(index, Block::OnTheWay { stream, until, told: true });
                    }
                } else {
                    // It ended without them.
                    let wanted = self.still_wanted(key, absent);
                    self.ask_blocks(key, token, wanted, true);
                }
            }
            // Asked again by those who wait.
            Ok(Reply::Error { code: ErrorCode::Cancelled | ErrorCode::Busy, .. }) | Err(Unanswered::Expired) => {
                self.count_try(key, &StreamError::timeout(&path, ANSWER_TIME));
            }
            // A number that was closed while it was opened anew, for example.
            Ok(Reply::Error { code: ErrorCode::BadRequest, text }) => {
                if let Some(number) = file.numbering.take() {
                    self.files.remove_number(number);
                }
                self.count_try(key, &StreamError::refused(ErrorCode::BadRequest, &path, &text));
            }
            Ok(Reply::Error { code, text }) => self.fail_reads(key, &StreamError::refused(code, &path, &text)),
            Ok(_) => self.fail_reads(key, &StreamError::nonsense(&path, "another kind of answer")),
            Err(Unanswered::Refused) => {
                let text = "too many reads at once; try again";
                self.fail_reads(key, &StreamError::new(ErrorKind::Failed, &path, text));
            }
        }
    }

    /// An answer was of no use: those who wait ask again, but not for ever.
    pub fn count_try(&mut self, key: u64, error: &StreamError) {
        let reads = self.files.get(&key).map(|file| file.reads.clone()).unwrap_or_default();
        for id in reads {
            let Some(read) = self.reads.get_mut(&id) else { continue };
            read.count_try();
            if read.is_hopeless() {
                self.end_read(id, Err(error.clone()));
            } else {
                self.advance_read(id);
            }
        }
    }

    /// Takes blocks of a file that came, asked for or pushed. The error says what is wrong with
    /// them.
    #[allow(clippy::too_many_arguments)]
    fn take_blocks(
        &mut self,
        key: u64,
        indexes: &[u32],
        version: u64,
        size: u64,
        codec: u8,
        encoded: &Bytes,
        pushed: bool,
    ) -> Result<(), &'static str> {
        let block = u64::from(self.session.block_bytes());
        let file = self.files.get_mut(&key).ok_or("of no file")?;
        let seen = file.seen.ok_or("of a file that is not there yet")?;
        if version < seen.version {
            // Older than what we know: whoever waits asks again.
            return if pushed { Ok(()) } else { Err("an old version") };
        }
        if version == seen.version && size != file.size && !file.unsure {
            return Err("two sizes of one version");
        }
        let length = |index: u32| size.saturating_sub(u64::from(index) * block).min(block) as usize;
        let total: usize = indexes.iter().map(|index| length(*index)).sum();
        let codec = Codec::from_u8(codec).ok_or("an unknown codec")?;
        let raw: Bytes = if codec == Codec::Stored {
            encoded.clone()
        } else {
            let mut raw = Vec::new();
            codec::decode(codec, encoded, total, &mut raw).map_err(|_| "blocks that cannot be decoded")?;
            raw.into()
        };
        if raw.len() != total {
            return Err("blocks of another length");
        }
        if version > seen.version {
            self.move_file(key, version, Some(size));
        }
        let mut at = 0;
        for index in indexes {
            let bytes = raw.slice(at..at + length(*index));
            at += bytes.len();
            self.install(key, *index, bytes, pushed);
        }
        Ok(())
    }

    /// Puts a clean block of the present version into the table, and gives it to those who wait for
    /// it.
    pub fn install(&mut self, key: u64, index: u32, bytes: Bytes, pushed: bool) {
        let Some(file) = self.files.get_mut(&key) else { return };
        let mut awaited = false;
        let block = u64::from(self.session.block_bytes());
        for id in &file.reads {
            let Some(read) = self.reads.get_mut(id) else { continue };
            read.follow(file.seen);
            let start = u64::from(index) * block;
            if read.overlaps(start, start + block) {
                awaited = true;
                read.put(index, bytes.clone());
            }
        }
        self.blocks.insert((key, file), index, &bytes, pushed, awaited);
        let jobs = self.blocks.make_room(self.files);
        self.session.push_jobs(jobs);
    }

    /// A block was read from the disk cache, or could not be.
    pub fn cache_read(&mut self, _slot: u32, block: BlockKey, bytes: Option<Bytes>) {
        if bytes.is_none() {
            self.blocks.forget_on_disk(&block);
        }
        let size = u64::from(self.session.block_bytes());
        let seen = Some(Seen { file: block.file, version: block.version });
        let waiting = |file: &File| {
            let entry = file.table.get(block.index);
            file.seen == seen && matches!(entry, Some(Block::Reading { version }) if *version == block.version)
        };
        let keys: Vec<u64> = self.files.iter().filter(|(_, file)| waiting(file)).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(file) = self.files.get_mut(&key) else { continue };
            file.table.remove(block.index);
            let valid = file.size.saturating_sub(u64::from(block.index) * size).min(size);
            if let Some(bytes) = bytes.clone().filter(|bytes| bytes.len() as u64 <= valid) {
                self.blocks.count_disk_hit();
                self.install(key, block.index, bytes, false);
            }
            self.advance_reads(key);
        }
    }

    /// A pushed piece.
    pub fn take_piece(&mut self, piece: PushPiece) {
        let count = piece.pages.len() as u64;
        self.blocks.count_pushed(count);
        let number = piece.pages.first().map(|page| page.inode);
        let key = number.and_then(|number| self.files.numbered(number));
        let one_file = piece.pages.iter().all(|page| Some(page.inode) == number);
        let parsed = VolumePiece::parse(piece.bytes);
        let (Some(key), Some(parsed), true) = (key, parsed, one_file) else {
            self.blocks.count_wasted(count);
            return;
        };
        let indexes: Vec<u32> = piece.pages.iter().map(|page| page.index).collect();
        let VolumePiece { version, size, codec, bytes } = parsed;
        let old = self.files.get(&key).and_then(|file| file.seen).is_none_or(|seen| version < seen.version);
        if old || self.take_blocks(key, &indexes, version, size, codec, &bytes, true).is_err() {
            self.blocks.count_wasted(count);
            return;
        }
        if let Some(file) = self.files.get_mut(&key) {
            file.table.arrived(piece.stream, &piece.pages, self.session.now());
        }
        self.advance_reads(key);
    }

    /// Blocks that were to come by this stream and did not are asked for.
    pub fn stream_ended(&mut self, stream: StreamId) {
        self.force(|on_the_way, _| on_the_way == stream);
    }

    /// Blocks that were to come by now and did not are asked for.
    pub fn patience_ended(&mut self) {
        let now = self.session.now();
        self.force(|_, until| now >= until);
    }

    fn force(&mut self, late: impl Fn(StreamId, Moment) -> bool) {
        let keys: Vec<u64> = self.files.reading().map(|(key, _)| key).collect();
        for key in keys {
            let Some(file) = self.files.get_mut(&key) else { continue };
            let mut late_ones = Vec::new();
            file.table.retain(|index, block| match block {
                Block::OnTheWay { stream, until, told } if late(*stream, *until) => {
                    late_ones.push((index, *told));
                    false
                }
                _ => true,
            });
            late_ones.sort_unstable();
            let token = file.numbering.token();
            // If a block was only expected, the server may say that it is on its way.
            for force in [true, false] {
                let indexes = late_ones.iter().filter(|(_, told)| *told == force).map(|(index, _)| *index).collect();
                let wanted = self.still_wanted(key, indexes);
                self.ask_blocks(key, token, wanted, force);
            }
        }
    }

    /// Those of the blocks that some read still waits for.
    fn still_wanted(&self, key: u64, indexes: Vec<u32>) -> Vec<u32> {
        let block = u64::from(self.session.block_bytes());
        let reads = self.files.get(&key).map(|file| &file.reads);
        let waits = |index: u32| {
            let (start, end) = (u64::from(index) * block, (u64::from(index) + 1) * block);
            let mut reads = reads.into_iter().flatten().filter_map(|id| self.reads.get(id));
            reads.any(|read| read.overlaps(start, end) && !read.has(index))
        };
        indexes.into_iter().filter(|index| waits(*index)).collect()
    }
}
