//! Whether files are still those that a plan was learned from.
//!
//! A file is the same if its inode, length and time of last change are. If only inode or time
//! differ (a restored backup, a container's layer), length and build id decide. A check costs what
//! an open costs on a cold disk. So the prefetcher checks a file when it opens it anyway, and
//! nobody checks all files beforehand.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use profile::plan::{Identity, LaunchPlan};

/// How well a plan fits the files of this machine. Numbers of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesFit {
    /// As they were learned.
    pub same: usize,
    /// Changed: their entries are left out.
    pub changed: usize,
    /// Gone, or not to be opened.
    pub gone: usize,
}

/// What the regular file at `path` is; `None` if it is no regular file or cannot be looked at.
pub fn identity(path: &Path) -> Option<Identity> {
    let file = open(path).ok()?;
    let metadata = file.metadata().ok().filter(Metadata::is_file)?;
    Some(Identity {
        inode: metadata.ino(),
        size: metadata.size(),
        mtime_ns: mtime_ns(&metadata),
        build_id: build_id(&file),
    })
}

/// Looks at every file of a plan. Reads no content but build ids.
pub fn fit(plan: &LaunchPlan) -> FilesFit {
    let mut fit = FilesFit::default();
    for (path, identity) in plan.files.iter().filter_map(|file| Some((absolute(&file.path), file.identity.as_ref()?))) {
        match open(&path).and_then(|file| is_same(&file, identity)) {
            Ok(true) => fit.same += 1,
            Ok(false) => fit.changed += 1,
            Err(_) => fit.gone += 1,
        }
    }
    fit
}

/// Whether the open file is the one that was learned.
pub(crate) fn is_same(file: &File, learned: &Identity) -> io::Result<bool> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.size() != learned.size {
        return Ok(false);
    }
    if metadata.ino() == learned.inode && mtime_ns(&metadata) == learned.mtime_ns {
        return Ok(true);
    }
    Ok(!learned.build_id.is_empty() && build_id(file) == learned.build_id)
}

/// Opens for prefetching: never a terminal, never waiting for a pipe's other end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

/// The path of a plan as one of this machine.
pub(crate) fn absolute(path: &[u8]) -> PathBuf {
    Path::new("/").join(std::ffi::OsStr::from_bytes(path))
}

fn mtime_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

fn build_id(file: &File) -> Vec<u8> {
    elf::build_id(&OnDisk(file)).ok().flatten().unwrap_or_default()
}

/// An open file, read in pieces.
pub(crate) struct OnDisk<'a>(pub(crate) &'a File);

impl elf::Bytes for OnDisk<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
}
