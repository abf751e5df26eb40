//! The one error type of this crate. Each value names the thing it is about; the command line adds
//! hints.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why packing, extracting or reading an image's files failed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file or directory of the source could not be read.
    #[error("cannot read {}: {source}", shown(path))]
    Read {
        /// What was being read.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// Something of the source is no longer what it was when the tree was listed.
    #[error(
        "{} changed while it was being packed; pack a tree that nobody writes to, a snapshot for example",
        shown(path)
    )]
    Changed {
        /// The file, or the directory whose entries or attributes changed.
        path: PathBuf,
    },
    /// The source is of no kind we can pack.
    #[error("{}: {problem}", shown(path))]
    Source {
        /// The source as it was named.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A tar archive is damaged or holds something that cannot be packed.
    #[error("{archive}: at byte {offset}: {problem}")]
    Tar {
        /// The archive, or the layer of a container image.
        archive: String,
        /// Offset of the header in the uncompressed archive.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// A container image is damaged, or the choice among its manifests is not clear.
    #[error("{archive}: {problem}")]
    Oci {
        /// The container image as it was named.
        archive: String,
        /// What is wrong.
        problem: String,
    },
    /// The closure of a program could not be found.
    #[error(transparent)]
    Closure(#[from] elf::ClosureError),
    /// Programs need libraries that are not there.
    #[error("missing libraries: {}", list.join("; "))]
    MissingLibraries {
        /// `NAME (needed by FILE)`, at most 20 of them.
        list: Vec<String>,
    },
    /// An entry of the source has a name, size or number that no image can hold.
    #[error("{}: {source}", shown(path))]
    Entry {
        /// Its path in the source.
        path: PathBuf,
        /// The rule that it breaks.
        source: image::ImageError,
    },
    /// Most of what a trace names is not in the tree, or not in this size.
    #[error(
        "the traces are of another tree: {missing} of the {files} files they name are not here, or not in that size; \
         record them again on this one"
    )]
    ForeignTrace {
        /// Files that are not in the tree.
        missing: usize,
        /// Files that the traces name.
        files: usize,
    },
    /// An option is out of its range.
    #[error("{name} is {found}, must be {expected}")]
    Option {
        /// The option.
        name: &'static str,
        /// What was given.
        found: String,
        /// What is possible.
        expected: String,
    },
    /// The base of an update is damaged or is no image.
    #[error(
        "{} cannot be the base: {source}; give an image that `runnel check` calls whole, or pack without a base",
        shown(path)
    )]
    Base {
        /// The file that was to be the base.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<image::ImageError>,
    },
    /// The tree was to be bootable, and is not.
    #[error("no system can start from this tree: it lacks {}", lacks.join(", "))]
    NotBootable {
        /// What it lacks.
        lacks: Vec<String>,
    },
    /// The file system of the output is full; the temporary file is removed and an old output
    /// untouched.
    #[error("no space left for {}; the unfinished file was removed", shown(path))]
    DiskFull {
        /// The output.
        path: PathBuf,
    },
    /// The output could not be written.
    #[error("cannot write {}: {source}", shown(path))]
    Write {
        /// The output.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// The temporary file that holds the contents of a compressed or piped archive could not be
    /// written.
    #[error("cannot write temporary data to {}: {source}", shown(directory))]
    Spool {
        /// The directory of the temporary file.
        directory: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// The directory to extract into holds something already.
    #[error("{} is not empty", shown(path))]
    TargetNotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// An extraction that ended midway.
    #[error(
        "{source}\nnote: {} holds the {entries} entries ({bytes} bytes of files) that came before, complete but for the \
         attributes of directories; the file that failed was removed",
        shown(target)
    )]
    Incomplete {
        /// The directory extracted into.
        target: PathBuf,
        /// Entries that are complete.
        entries: u64,
        /// Bytes of regular files among them.
        bytes: u64,
        /// What ended it.
        source: Box<PackError>,
    },
    /// A path does not exist in the image, or is not of the kind asked for.
    #[error("{path} in the image: {problem}")]
    ImagePath {
        /// The path, escaped where it is not UTF-8.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The image is damaged, or a limit of the format was passed while building it.
    #[error(transparent)]
    Image(#[from] image::ImageError),
    /// The process may not have the memory that a phase of packing needs.
    #[error(
        "no memory for {phase}: {megabytes} MB more are needed; raise the limit (ulimit -v), or use fewer --threads"
    )]
    Memory {
        /// Memory that the phase asked for.
        megabytes: u64,
        /// What was to be done.
        phase: &'static str,
    },
    /// A codec failed, which happens only when memory runs out.
    #[error(transparent)]
    Codec(#[from] codec::CodecError),
    /// Worker threads could not be started.
    #[error("cannot start {count} worker threads: {problem}")]
    Threads {
        /// Threads asked for.
        count: usize,
        /// The failure.
        problem: String,
    },
}

impl PackError {
    /// The error for a failed write to `path`; a full disk has a kind of its own.
    pub(crate) fn write(path: impl Into<PathBuf>, source: io::Error) -> PackError {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => PackError::DiskFull { path },
            _ => PackError::Write { path, source },
        }
    }

    /// The error for a base that cannot be used.
    pub(crate) fn base(path: &Path, source: image::ImageError) -> PackError {
        PackError::Base { path: path.into(), source: Box::new(source) }
    }

    /// The error for a failed read of `path`.
    pub(crate) fn read(path: impl Into<PathBuf>, source: impl Into<io::Error>) -> PackError {
        PackError::Read { path: path.into(), source: source.into() }
    }
}

/// A path as one line: names in it may come from an archive or an image.
fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

/// Text of others as one line.
pub(crate) fn printable(bytes: &[u8]) -> String {
    units::printable_line(bytes).into_owned()
}
