//! Reading the files to pack, in order, into batches of chunks. Runs on a thread of its own, one
//! batch ahead of the hashing and compressing.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::PackError;
use crate::group::FileKind;
use crate::inodes::FileWork;

/// Some data of some files.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) pieces: Vec<Piece>,
    /// What the files are, by [`Piece::kind`].
    pub(crate) kinds: Vec<Arc<FileKind>>,
    /// Bytes of files that are done with this batch, holes included.
    pub(crate) progress: u64,
}

/// Consecutive chunks of one file.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    /// Index in the list of files.
    pub(crate) file: u32,
    /// Index of what the file is.
    pub(crate) kind: u32,
    /// Position in the file, in chunks.
    pub(crate) chunk_first: u32,
    /// Where it starts in the batch.
    pub(crate) start: usize,
    /// Its bytes; a whole number of chunks unless the file ends here.
    pub(crate) bytes: usize,
}

impl Piece {
    /// Position in the file, place in the batch and length of each chunk.
    pub(crate) fn chunks(self, chunk_bytes: usize) -> impl Iterator<Item = (u32, usize, usize)> {
        (0..self.bytes.div_ceil(chunk_bytes)).map(move |index| {
            let offset = index * chunk_bytes;
            (self.chunk_first + index as u32, self.start + offset, chunk_bytes.min(self.bytes - offset))
        })
    }
}

/// How files are read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// Bytes of a chunk.
    pub(crate) chunk: usize,
    /// Bytes of a batch, about; a multiple of a chunk's.
    pub(crate) batch: usize,
    /// Whether it matters what a file is.
    pub(crate) kinds: bool,
}

/// Reads all files and sends them in batches. Ends early, without a word, when nobody receives any
/// more.
pub(crate) fn read_files(files: &[FileWork<'_>], reading: Reading, send: &SyncSender<Result<Batch, PackError>>) {
    let mut batch = Batch::default();
    for (index, file) in files.iter().enumerate() {
        match read_file(index as u32, file, reading, &mut batch, send) {
            Ok(Flow::Continue) => {}
            Ok(Flow::Stop) => return,
            Err(error) => {
                // The receiver may be gone after an error of its own; that one counts then.
                let _ = send.send(Err(error));
                return;
            }
        }
    }
    let _ = send.send(Ok(batch));
}

enum Flow {
    Continue,
    Stop,
}

fn read_file(
    index: u32,
    file: &FileWork<'_>,
    reading: Reading,
    batch: &mut Batch,
    send: &SyncSender<Result<Batch, PackError>>,
) -> Result<Flow, PackError> {
    let chunk = reading.chunk as u64;
    let content = file.content.open()?;
    let kind = Arc::new(if reading.kinds { FileKind::of(&content, file.size) } else { FileKind::Unknown });
    let mut position = 0;
    while let Some(range) = content.next_data(position, file.size)? {
        // Chunks that hold any data are read whole; `position` is at a border of chunks already.
        let mut from = (range.start - range.start % chunk).max(position);
        let end = range.end.next_multiple_of(chunk).min(file.size);
        batch.progress += from - position;
        while from < end {
            // A multiple of the chunk size, since chunks at the end of files are rounded up to the
            // next border.
            let room = reading.batch - batch.bytes.len().next_multiple_of(reading.chunk).min(reading.batch);
            if room == 0 {
                if send.send(Ok(std::mem::take(batch))).is_err() {
                    return Ok(Flow::Stop);
                }
                continue;
            }
            let bytes = (end - from).min(room as u64) as usize;
            let start = batch.bytes.len();
            batch.bytes.reserve(reading.batch - start);
            batch.bytes.resize(start + bytes, 0);
            content.read_at(from, &mut batch.bytes[start..])?;
            if batch.kinds.last().is_none_or(|last| !Arc::ptr_eq(last, &kind)) {
                batch.kinds.push(Arc::clone(&kind));
            }
            let number = batch.kinds.len() as u32 - 1;
            batch.pieces.push(Piece { file: index, kind: number, chunk_first: (from / chunk) as u32, start, bytes });
            batch.progress += bytes as u64;
            from += bytes as u64;
        }
        position = end;
    }
    batch.progress += file.size - position;
    content.check_unchanged()?;
    Ok(Flow::Continue)
}
