//! The events of a trace.

use std::fmt;

use units::{ImageId, InodeId, Moment, PageId, Token};

use crate::format;

/// Who recorded a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The FUSE mount of a client: what its daemon was asked to read.
    Mount,
    /// A server: what its clients asked for and reported.
    Server,
    /// A tracer beside the program.
    Ptrace,
    /// Page faults as perf events (64 KiB windows around each, as the kernel maps them), and reads
    /// as a tracer saw them.
    Perf,
    /// The kernel's `filemap` trace points: ranges of faults and of reads.
    Filemap,
    /// What of the files was in memory afterwards. Touches are in the order of files and offsets,
    /// all at the end.
    Residency,
}

impl Source {
    pub(crate) const fn to_u8(self) -> u8 {
        match self {
            Source::Mount => format::SOURCE_MOUNT,
            Source::Server => format::SOURCE_SERVER,
            Source::Ptrace => format::SOURCE_PTRACE,
            Source::Perf => format::SOURCE_PERF,
            Source::Filemap => format::SOURCE_FILEMAP,
            Source::Residency => format::SOURCE_RESIDENCY,
        }
    }

    pub(crate) const fn from_u8(code: u8) -> Option<Source> {
        match code {
            format::SOURCE_MOUNT => Some(Source::Mount),
            format::SOURCE_SERVER => Some(Source::Server),
            format::SOURCE_PTRACE => Some(Source::Ptrace),
            format::SOURCE_PERF => Some(Source::Perf),
            format::SOURCE_FILEMAP => Some(Source::Filemap),
            format::SOURCE_RESIDENCY => Some(Source::Residency),
            _ => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Mount => "mount",
            Source::Server => "server",
            Source::Ptrace => "ptrace",
            Source::Perf => "perf",
            Source::Filemap => "filemap",
            Source::Residency => "residency",
        })
    }
}

/// What all events of a trace have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The image whose inodes the pages belong to; [`LOCAL`] if they are files of this machine.
    pub image: ImageId,
    /// Who recorded.
    pub source: Source,
}

/// Stands for an image where a program was recorded that lives on the machine itself: inodes are
/// numbers that the recorder gave, each named by a [`Event::File`], and paths start at the root of
/// the machine's files.
pub const LOCAL: ImageId = ImageId([0; 32]);

impl Header {
    /// Whether the files are those of a machine, not of an image.
    pub fn is_local(&self) -> bool {
        self.image == LOCAL
    }
}

/// How a touched page came to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It was missing and had to be asked for: one round trip.
    Demand,
    /// It was read, and the daemon had it: from an earlier block, or held back during an audit run.
    Local,
    /// It had been pushed ahead into the page cache, and this is the one touch of its segment that
    /// can be seen. Touches of its neighbours are hidden, so a run with such touches is not exact.
    Pushed,
}

impl How {
    pub(crate) const fn to_u8(self) -> u8 {
        match self {
            How::Demand => 0,
            How::Local => 1,
            How::Pushed => 2,
        }
    }

    pub(crate) const fn from_u8(code: u8) -> Option<How> {
        match code {
            0 => Some(How::Demand),
            1 => Some(How::Local),
            2 => Some(How::Pushed),
            _ => None,
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            How::Demand => "demand",
            How::Local => "local",
            How::Pushed => "pushed",
        })
    }
}

/// What a look-up of a path found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Found {
    /// A file, which was opened.
    File,
    /// A directory, whose names were read.
    Directory,
    /// Nothing. Search paths make most of these, and on a cold disk each costs what a file costs.
    Nothing,
}

impl Found {
    pub(crate) const fn to_u8(self) -> u8 {
        match self {
            Found::File => format::FOUND_FILE,
            Found::Directory => format::FOUND_DIRECTORY,
            Found::Nothing => format::FOUND_NOTHING,
        }
    }

    pub(crate) const fn from_u8(code: u8) -> Option<Found> {
        match code {
            format::FOUND_FILE => Some(Found::File),
            format::FOUND_DIRECTORY => Some(Found::Directory),
            format::FOUND_NOTHING => Some(Found::Nothing),
            _ => None,
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Found::File => "file",
            Found::Directory => "directory",
            Found::Nothing => "nothing",
        })
    }
}

/// One record. A token starts, touches pages and ends, in this order; after its end it may start
/// again. A file is named at most once, before any page of it is touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A program starts.
    Start {
        /// Its token.
        token: Token,
        /// When.
        at: Moment,
        /// Path of the executable, as bytes; empty if the recorder does not know it (a server).
        name: Vec<u8>,
    },
    /// A program touches a page.
    Touch {
        /// Its token.
        token: Token,
        /// When.
        at: Moment,
        /// The page.
        page: PageId,
        /// How the page was got.
        how: How,
    },
    /// A program ends.
    End {
        /// Its token.
        token: Token,
        /// When.
        at: Moment,
    },
    /// A program looks up a path. Local recorders only.
    Lookup {
        /// Its token.
        token: Token,
        /// When.
        at: Moment,
        /// What was there.
        found: Found,
        /// The path from the root, without a leading slash and links resolved where that can be;
        /// see [`path_fault`].
        path: Vec<u8>,
    },
    /// A program runs code of a file for the first time since its start, as far as page faults
    /// show it. It can get a breakpoint.
    Code {
        /// Its token.
        token: Token,
        /// When.
        at: Moment,
        /// The file.
        inode: InodeId,
        /// Where in the file the instruction starts, in bytes. It is the start of an instruction:
        /// it was being executed.
        offset: u64,
    },
    /// What the file is called whose pages are touched from here on: with it a trace fits other
    /// images, and plain trees.
    File {
        /// Its inode in the image of the trace.
        inode: InodeId,
        /// Its length in bytes.
        size: u64,
        /// Its path from the root of the image, without a leading slash; see [`path_fault`].
        path: Vec<u8>,
    },
}

impl Event {
    /// Its token; a file has none.
    pub const fn token(&self) -> Option<Token> {
        match self {
            Event::Start { token, .. }
            | Event::Touch { token, .. }
            | Event::End { token, .. }
            | Event::Lookup { token, .. }
            | Event::Code { token, .. } => Some(*token),
            Event::File { .. } => None,
        }
    }

    /// When it happened. Moments of a trace may go backwards a little where several threads record.
    /// A file has none.
    pub const fn at(&self) -> Option<Moment> {
        match self {
            Event::Start { at, .. }
            | Event::Touch { at, .. }
            | Event::End { at, .. }
            | Event::Lookup { at, .. }
            | Event::Code { at, .. } => Some(*at),
            Event::File { .. } => None,
        }
    }
}

/// What is wrong with the path of a file, if anything: a trace holds only paths that can be
/// appended to any folder and stay inside it.
pub fn path_fault(path: &[u8]) -> Option<&'static str> {
    if path.len() > format::PATH_BYTES_MAX {
        return Some("a path over 4096 bytes");
    }
    if path.contains(&0) {
        return Some("a path with a zero byte");
    }
    // An empty path has one empty part, and so has each slash at an end.
    path.split(|byte| *byte == b'/').find_map(|part| match part {
        b"" => Some("a path with an empty part"),
        b"." | b".." => Some("a path with a part . or .."),
        _ => None,
    })
}
