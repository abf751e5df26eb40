//! Where the bytes of a file are, and reading them.
//!
//! There are three kinds: a file on disk that is opened when its turn comes; a stretch (or several,
//! for a sparse file) of an archive or of the temporary file beside it; or nothing, for an empty or
//! all-zero file. Readers ask for the next range that holds data and skip the rest, so that a
//! sparse file of terabytes costs what its data costs.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::PackError;
use crate::time::Time;

/// Files up to this many bytes are read whole: asking for their holes costs more than reading them.
const ASK_FOR_HOLES_BYTES: u64 = 128 << 10;

/// Where the bytes of a file are.
#[derive(Clone, Debug)]
pub enum Content {
    /// All bytes are zero, or there are none.
    Hole,
    /// In a file on disk.
    Local(Arc<LocalFile>),
    /// In stretches of an open file; what no stretch covers is zero.
    Stored {
        /// The open file.
        file: Arc<File>,
        /// Its name in messages.
        name: Arc<str>,
        /// In order of their place in the content, without overlap.
        stretches: Box<[Stretch]>,
    },
}

/// A file on disk as it was when the tree was listed.
#[derive(Debug)]
pub struct LocalFile {
    /// Its path.
    pub path: PathBuf,
    /// Device and inode number.
    pub identity: (u64, u64),
    /// Bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: Time,
}

/// Some bytes of a content that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Place in the content.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Place in the open file.
    pub at: u64,
}

/// A content ready to be read.
pub(crate) enum OpenContent<'a> {
    Hole,
    Local { file: File, about: &'a LocalFile },
    Stored { file: &'a File, name: &'a str, stretches: &'a [Stretch] },
}

impl Content {
    /// Opens the content for reading.
    pub(crate) fn open(&self) -> Result<OpenContent<'_>, PackError> {
        match self {
            Content::Hole => Ok(OpenContent::Hole),
            Content::Stored { file, name, stretches } => Ok(OpenContent::Stored { file, name, stretches }),
            Content::Local(about) => {
                let file = open_plain(&about.path).map_err(|source| PackError::read(&about.path, source))?;
                let content = OpenContent::Local { file, about };
                content.check_unchanged()?;
                Ok(content)
            }
        }
    }
}

/// Opens a regular file for reading; a symlink or fifo that took its place is not followed or
/// waited for.
pub(crate) fn open_plain(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    File::options().read(true).custom_flags(flags.bits() as i32).open(path)
}

impl OpenContent<'_> {
    /// Fails if a file on disk is not the one that was listed, or was written since.
    pub(crate) fn check_unchanged(&self) -> Result<(), PackError> {
        let OpenContent::Local { file, about } = self else { return Ok(()) };
        let now = file.metadata().map_err(|source| PackError::read(&about.path, source))?;
        let mtime = Time { seconds: now.mtime(), nanoseconds: now.mtime_nsec() as u32 };
        if now.is_file() && (now.dev(), now.ino()) == about.identity && now.size() == about.size && mtime == about.mtime
        {
            return Ok(());
        }
        Err(PackError::Changed { path: about.path.clone() })
    }

    /// The first range at or after `from`, within the `size` bytes of the content, that may hold
    /// other bytes than zero.
    pub(crate) fn next_data(&self, from: u64, size: u64) -> Result<Option<Range<u64>>, PackError> {
        if from >= size {
            return Ok(None);
        }
        match self {
            OpenContent::Hole => Ok(None),
            OpenContent::Stored { stretches, .. } => {
                let index = stretches.partition_point(|stretch| stretch.start + stretch.bytes <= from);
                let next = stretches.get(index).map(|next| next.start.max(from)..next.start + next.bytes);
                Ok(next.filter(|range| range.start < size))
            }
            OpenContent::Local { .. } if size <= ASK_FOR_HOLES_BYTES => Ok(Some(from..size)),
            OpenContent::Local { file, about } => {
                let range = next_data(file, from, size);
                range.map_err(|source| PackError::read(&about.path, source))
            }
        }
    }

    /// Fills `buffer` with the bytes at `position`, which must lie within the content.
    pub(crate) fn read_at(&self, position: u64, buffer: &mut [u8]) -> Result<(), PackError> {
        match self {
            OpenContent::Hole => buffer.fill(0),
            OpenContent::Local { file, about } => {
                file.read_exact_at(buffer, position).map_err(|source| match source.kind() {
                    io::ErrorKind::UnexpectedEof => PackError::Changed { path: about.path.clone() },
                    _ => PackError::read(&about.path, source),
                })?;
            }
            OpenContent::Stored { file, name, stretches } => {
                read_stretches(file, stretches, position, buffer)
                    .map_err(|source| PackError::read(PathBuf::from(name), source))?;
            }
        }
        Ok(())
    }
}

/// The next data of a file on disk, asked from the file system. One that knows no holes has only
/// data.
pub(crate) fn next_data(file: &File, from: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some(from..size)),
        Err(error) => return Err(error.into()),
    };
    if start >= size {
        return Ok(None);
    }
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    // A file system that answers nonsense must not make us stand still.
    Ok(Some(start.max(from)..end.clamp(start + 1, size)))
}

fn read_stretches(file: &File, stretches: &[Stretch], position: u64, buffer: &mut [u8]) -> io::Result<()> {
    buffer.fill(0);
    let end = position + buffer.len() as u64;
    let first = stretches.partition_point(|stretch| stretch.start + stretch.bytes <= position);
    for stretch in stretches[first..].iter().take_while(|stretch| stretch.start < end) {
        let from = stretch.start.max(position);
        let to = (stretch.start + stretch.bytes).min(end);
        let target = &mut buffer[(from - position) as usize..(to - position) as usize];
        file.read_exact_at(target, stretch.at + (from - stretch.start))?;
    }
    Ok(())
}
