//! The files of a recording: which of them belong in a trace, and whether they stayed as they were.
//!
//! A file is known by its path as the kernel gives it, with all links resolved. It is checked when
//! it is first seen and again at the end. Left out are files that are not regular, are gone or were
//! replaced, lie in /proc, /sys or /dev, or were written while the program ran: a list of their
//! pages would be stale before it was used.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::makedev;
use rustix::time::{ClockId, Timespec};
use units::{InodeId, PAGE_BYTES};

/// Where files are made up by the kernel, or are memory.
const LEFT_OUT: [&[u8]; 4] = [b"/proc/", b"/sys/", b"/dev/", b"/memfd:"];

/// How the kernel marks a path that leads nowhere any more.
const DELETED: &[u8] = b" (deleted)";

/// A file of this recording, in the order of being met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileIndex(pub(crate) u32);

impl FileIndex {
    /// The number it has in the trace. Zero stays free.
    pub(crate) fn inode(self) -> InodeId {
        InodeId(self.0 + 1)
    }
}

/// A file as the kernel names it: its file system and number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// Device number, as in `st_dev`.
    pub(crate) device: u64,
    /// Inode number.
    pub(crate) inode: u64,
}

impl Identity {
    /// From the two halves of a device number.
    pub(crate) fn new((major, minor): (u32, u32), inode: u64) -> Identity {
        Identity { device: makedev(major, minor), inode }
    }
}

/// A file that belongs in a trace, unless it changes.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// From the root, links resolved, with the leading slash.
    pub(crate) path: Vec<u8>,
    /// Bytes, when it was first met.
    pub(crate) size: u64,
    state: State,
}

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    identity: Identity,
    size: u64,
    modified: (i64, i64),
}

impl Known {
    /// Pages of 4 KiB that it has.
    pub(crate) fn pages(&self) -> u32 {
        u32::try_from(self.size.div_ceil(PAGE_BYTES as u64)).unwrap_or(u32::MAX)
    }
}

/// All files met.
#[derive(Debug)]
pub(crate) struct Files {
    known: Vec<Known>,
    by_path: HashMap<Vec<u8>, Option<FileIndex>>,
    by_identity: HashMap<Identity, FileIndex>,
    /// Files of our own, such as the preloaded library.
    ours: HashSet<PathBuf>,
    /// When the recording began, by the clock of file times; see [`next_stamp`].
    began: (i64, i64),
}

impl Files {
    /// No file yet; what is written from now on does not count.
    pub(crate) fn new(ours: impl IntoIterator<Item = PathBuf>) -> Files {
        let now = next_stamp();
        Files {
            known: Vec::new(),
            by_path: HashMap::new(),
            by_identity: HashMap::new(),
            ours: ours.into_iter().filter_map(|path| path.canonicalize().ok()).collect(),
            began: (now.tv_sec, now.tv_nsec),
        }
    }

    /// The file at `path`, which the kernel says is `identity`; `None` if it does not belong in a
    /// trace.
    pub(crate) fn find(&mut self, path: &[u8], identity: Identity) -> Option<FileIndex> {
        if let Some(found) = self.by_path.get(path) {
            return *found;
        }
        let found = self.admit(path, identity).map(|known| {
            let index = FileIndex(self.known.len() as u32);
            self.by_identity.insert(known.state.identity, index);
            self.by_identity.insert(identity, index);
            self.known.push(known);
            index
        });
        // A path may be used again for another file, but then the first one is gone or changed.
        self.by_path.insert(path.to_vec(), found);
        found
    }

    /// A file that was met before.
    pub(crate) fn by_identity(&self, identity: Identity) -> Option<FileIndex> {
        self.by_identity.get(&identity).copied()
    }

    /// What is known of a file.
    pub(crate) fn get(&self, index: FileIndex) -> &Known {
        &self.known[index.0 as usize]
    }

    /// The ranges of a file that are in memory; `None` if the kernel does not give us the truth
    /// about this file, because it is not ours and we may not write to it.
    pub(crate) fn resident(&self, index: FileIndex) -> Option<Vec<(u64, u64)>> {
        let path = OsStr::from_bytes(&self.get(index).path);
        let file = std::fs::File::open(path).ok()?;
        let is_ours = file.metadata().ok()?.uid() == rustix::process::geteuid().as_raw();
        let may_write = rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
        (is_ours || may_write).then(|| probe::residency::resident(&file).ok())?
    }

    /// All files with their numbers, in the order of being met.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FileIndex, &Known)> {
        self.known.iter().enumerate().map(|(index, known)| (FileIndex(index as u32), known))
    }

    /// The files that were written, replaced or removed while the program ran.
    pub(crate) fn changed(&self) -> HashSet<FileIndex> {
        let changed = |known: &Known| state_of(&known.path).is_none_or(|now| now != known.state);
        self.iter().filter(|(_, known)| changed(known)).map(|(index, _)| index).collect()
    }

    fn admit(&self, path: &[u8], identity: Identity) -> Option<Known> {
        let plain = path.strip_prefix(b"/")?;
        if is_left_out(path)
            || trace::path_fault(plain).is_some()
            || self.ours.contains(Path::new(OsStr::from_bytes(path)))
        {
            return None;
        }
        let state = state_of(path)?;
        // File systems without a disk of their own (overlayfs, btrfs) answer with other numbers
        // than the kernel's events.
        let has_disk = rustix::fs::major(state.identity.device) != 0;
        let is_same = state.identity == identity || (!has_disk && state.identity.device != identity.device);
        let is_old = state.modified < self.began;
        (is_same && is_old).then(|| Known { path: path.to_vec(), size: state.size, state })
    }
}

/// Whether a path is not one of files on a disk.
pub(crate) fn is_left_out(path: &[u8]) -> bool {
    LEFT_OUT.iter().any(|folder| path.starts_with(folder)) || path.ends_with(DELETED)
}

/// A time that no file written so far can bear and all written from now on reach. The kernel stamps
/// files by a coarse clock, so two files written within one of its ticks (1 to 10 ms) cannot be
/// told apart: this waits for the next tick.
fn next_stamp() -> Timespec {
    let called = rustix::time::clock_gettime(ClockId::Realtime);
    // A clock that is set back meanwhile ends the wait too.
    for _ in 0..50 {
        let coarse = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        if coarse > called {
            return coarse;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    called
}

/// How a regular file is now; `None` for all else.
fn state_of(path: &[u8]) -> Option<State> {
    let metadata = std::fs::symlink_metadata(OsStr::from_bytes(path)).ok().filter(|metadata| metadata.is_file())?;
    Some(State {
        identity: Identity { device: metadata.dev(), inode: metadata.ino() },
        size: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    })
}
