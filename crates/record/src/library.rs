//! The reading side of the ring that the preloaded library writes to.
//!
//! The ring is a memfd that the library opens by our path in /proc. So nothing is left behind, and
//! programs that close all their descriptors find it again after an exec. It is read by `pread`,
//! which needs no shared references to memory that others change: first the commits, then the
//! entries that they cover.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::MemfdFlags;

use crate::files::Identity;
use crate::raw::{Did, Raw};
use crate::ring;

/// The library's file name.
pub const LIBRARY: &str = "librunnel_trace.so";

/// The file name of the library that reports loaded libraries to a launcher; it lies beside
/// [`LIBRARY`].
pub const AUDITOR: &str = "librunnel_audit.so";

/// The variable with the path of the ring.
const VARIABLE: &str = "RUNNEL_TRACE_RING";

/// Slots read at once.
const BATCH_SLOTS: usize = 1024;

/// Rounds after which a slot that was reserved and not committed is given up: its writer was
/// killed. A writer that is only preempted takes a few rounds at most.
const PATIENCE_ROUNDS: u32 = 50;

/// Where the library is: beside this program, or in `../lib/runnel` or `../lib` from there. None if
/// LD_PRELOAD cannot name it.
pub fn find_library() -> Option<PathBuf> {
    find(LIBRARY)
}

/// Where the auditor is: as [`find_library`], for LD_AUDIT.
pub fn find_auditor() -> Option<PathBuf> {
    find(AUDITOR)
}

fn find(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    let candidates = [folder.to_path_buf(), folder.join("../lib/runnel"), folder.join("../lib")];
    let found = candidates.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file())?;
    // LD_PRELOAD separates by these, LD_AUDIT by the colon, and both have no way to quote them.
    (!found.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte))).then_some(found)
}

/// The reading side.
#[derive(Debug)]
pub(crate) struct Library {
    ring: File,
    tail: u64,
    lost: u64,
    /// Rounds that the slot at the tail has kept us waiting.
    waited: u32,
    folders: Folders,
}

impl Library {
    /// An empty ring.
    pub(crate) fn new() -> io::Result<Library> {
        let ring = File::from(rustix::fs::memfd_create("runnel-reads", MemfdFlags::CLOEXEC)?);
        ring.set_len(ring::WORDS as u64 * 8)?;
        let library = Library { ring, tail: 0, lost: 0, waited: 0, folders: Folders::default() };
        library.store(ring::MAGIC_AT, ring::MAGIC)?;
        Ok(library)
    }

    /// The variables that a program needs so that the library at `path` loads into it and finds the
    /// ring; `preload` is what is preloaded already.
    pub(crate) fn environment(&self, path: &Path, preload: Option<OsString>) -> Vec<(OsString, OsString)> {
        let ring = format!("/proc/{}/fd/{}", std::process::id(), self.ring.as_raw_fd());
        let mut libraries = path.as_os_str().to_os_string();
        if let Some(preload) = preload.filter(|preload| !preload.is_empty()) {
            libraries.push(":");
            libraries.push(preload);
        }
        vec![("LD_PRELOAD".into(), libraries), (VARIABLE.into(), ring.into())]
    }

    /// Takes out all that is complete.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(Raw)) -> io::Result<()> {
        loop {
            let new = (self.load(ring::HEAD_AT)? - self.tail).min(BATCH_SLOTS as u64) as usize;
            if new == 0 {
                return Ok(());
            }
            let slots = self.slots(new)?;
            let committed = (0..new).take_while(|slot| word(&slots, *slot, 0) == self.tail + *slot as u64 + 1).count();
            // Again: what a commit covers may have been copied before the commit.
            let slots = self.slots(committed)?;
            let mut used = self.entries(&slots, &mut take);
            if used == 0 {
                // A writer that is only preempted goes on; one that was killed never finishes its
                // entry.
                self.waited += 1;
                if self.waited <= PATIENCE_ROUNDS {
                    return Ok(());
                }
                (used, self.lost) = (1, self.lost + 1);
            }
            self.waited = 0;
            self.tail += used as u64;
            self.store(ring::TAIL_AT, self.tail)?;
        }
    }

    /// So many slots from the tail on; the ring goes round.
    fn slots(&self, count: usize) -> io::Result<Vec<u8>> {
        let place = self.tail as usize % ring::SLOTS;
        let first = count.min(ring::SLOTS - place);
        let mut slots = vec![0; count * SLOT_BYTES];
        let (before, after) = slots.split_at_mut(first * SLOT_BYTES);
        self.ring.read_exact_at(before, (ring::HEADER_BYTES + place * SLOT_BYTES) as u64)?;
        self.ring.read_exact_at(after, ring::HEADER_BYTES as u64)?;
        Ok(slots)
    }

    /// Takes whole entries out of committed slots; says how many slots they were.
    fn entries(&mut self, slots: &[u8], take: &mut impl FnMut(Raw)) -> usize {
        let count = slots.len() / SLOT_BYTES;
        let mut used = 0;
        while used < count {
            let what = word(slots, used, 1);
            let (kind, bytes) = (what as u8, (what >> 16) as u16 as usize);
            let needs = ring::slots_of(bytes);
            if used + needs > count {
                break;
            }
            let mut payload = slots[used * SLOT_BYTES + 24..(used + 1) * SLOT_BYTES].to_vec();
            for slot in used + 1..used + needs {
                payload.extend_from_slice(&slots[slot * SLOT_BYTES + 8..(slot + 1) * SLOT_BYTES]);
            }
            payload.truncate(bytes);
            if let Some(did) = self.understand(kind, payload) {
                take(Raw { at: word(slots, used, 2), process: (what >> 32) as u32, what: did });
            }
            used += needs;
        }
        used
    }

    fn understand(&mut self, kind: u8, payload: Vec<u8>) -> Option<Did> {
        let number = |index: usize| payload.get(index * 8..)?.first_chunk().map(|bytes| native(*bytes));
        let identity = || Some(Identity { device: number(0)?, inode: number(1)? });
        match kind {
            ring::KIND_HELLO => Some(Did::Hello { path: payload }),
            ring::KIND_FILE | ring::KIND_DIRECTORY => Some(Did::Opened {
                identity: identity()?,
                path: payload.get(16..)?.to_vec(),
                directory: kind == ring::KIND_DIRECTORY,
            }),
            ring::KIND_MISSED => Some(Did::Missed { path: self.folders.resolve(&payload)? }),
            ring::KIND_CALL | ring::KIND_CALL_AGAIN => {
                Some(Did::Called { address: number(0)?, again: kind == ring::KIND_CALL_AGAIN })
            }
            ring::KIND_READ => {
                Some(Did::Range { identity: identity()?, offset: number(2)?, bytes: number(3)?, missing: false })
            }
            _ => None,
        }
    }

    /// Entries that the library or we had to drop.
    pub(crate) fn lost(&self) -> u64 {
        self.lost + self.load(ring::LOST_AT).unwrap_or(0)
    }

    fn load(&self, at: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.ring.read_exact_at(&mut bytes, at as u64 * 8)?;
        Ok(native(bytes))
    }

    #[allow(clippy::host_endian_bytes)]
    fn store(&self, at: usize, word: u64) -> io::Result<()> {
        self.ring.write_all_at(&word.to_ne_bytes(), at as u64 * 8)
    }
}

const SLOT_BYTES: usize = ring::SLOT_WORDS * 8;

/// Words of the ring are in the machine's own order: they never leave it.
#[allow(clippy::host_endian_bytes)]
fn native(bytes: [u8; 8]) -> u64 {
    u64::from_ne_bytes(bytes)
}

fn word(slots: &[u8], slot: usize, number: usize) -> u64 {
    slots[slot * SLOT_BYTES + number * 8..].first_chunk().map_or(0, |bytes| native(*bytes))
}

/// Folders with their links resolved, each asked for once.
#[derive(Debug, Default)]
pub(crate) struct Folders {
    known: HashMap<PathBuf, PathBuf>,
}

/// Folders remembered at most; then all are forgotten.
const FOLDERS_MAX: usize = 65_536;

impl Folders {
    /// A path where nothing is, as the file system would spell it: the folders that exist with
    /// their links resolved, the rest without its `.` and `..`.
    pub(crate) fn resolve(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        let path = Path::new(OsStr::from_bytes(path));
        let (parent, name) = (path.parent()?, path.file_name()?);
        if self.known.len() >= FOLDERS_MAX {
            self.known.clear();
        }
        let folder = self.known.entry(parent.to_path_buf()).or_insert_with(|| existing(parent));
        Some(folder.join(name).into_os_string().into_vec())
    }
}

fn existing(folder: &Path) -> PathBuf {
    let found = folder.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    let Some((ancestor, mut resolved)) = found else { return folder.to_path_buf() };
    for part in folder.strip_prefix(ancestor).into_iter().flat_map(Path::components) {
        match part {
            std::path::Component::ParentDir => drop(resolved.pop()),
            std::path::Component::Normal(name) => resolved.push(name),
            _ => {}
        }
    }
    resolved
}

#[cfg(test)]
mod tests;
