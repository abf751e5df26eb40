//! The meaning of system calls that stopped for us: reads and mappings of programs that load no
//! library.
//!
//! The caller is stopped meanwhile, so /proc shows its descriptors and its memory as they are at
//! the call.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use probe::exact::process_of;
use probe::follow::{Call, Seen};
use probe::perf::{Map, What};
use probe::seccomp::{MMAP, MMAP_UNIT, READS};
use rustix::fs::{major, minor};

use crate::collector::now;
use crate::files::Identity;
use crate::library::Folders;
use crate::raw::{Did, Raw};

/// Threads whose process is remembered; then all are forgotten.
const THREADS_MAX: usize = 4096;

/// Bytes of a path at most.
const PATH_BYTES_MAX: usize = 4096;

/// `-ENOENT`, as calls return it.
const NO_SUCH_FILE: i64 = -2;

/// Bits of `open` that say that nothing is read: write only, or no more than a place.
const OPEN_WRITE: u64 = 1;
const OPEN_PATH: u64 = 0o10_000_000;

/// Turns calls into what a recording takes.
#[derive(Debug)]
pub(crate) struct Interpreter {
    to: Sender<Raw>,
    processes: HashMap<u32, u32>,
    folders: Folders,
}

impl Interpreter {
    /// Sends what it understands to a collector.
    pub(crate) fn new(to: Sender<Raw>) -> Interpreter {
        Interpreter { to, processes: HashMap::new(), folders: Folders::default() }
    }

    /// Something was seen of a thread.
    pub(crate) fn seen(&mut self, seen: Seen) {
        match seen {
            Seen::Call(call) => self.call(&call),
            Seen::Exact { thread, range } => self.send(thread, Did::Exact(range)),
        }
    }

    /// A call returned.
    fn call(&mut self, call: &Call) {
        let [first, second, third, fourth, fifth, sixth] = call.arguments;
        let number = call.number;
        if number == MMAP {
            // Errors are the last page of addresses.
            if !(-4095..0).contains(&call.result) {
                self.mapped(
                    call,
                    fifth as i32,
                    call.result as u64,
                    second,
                    sixth.saturating_mul(MMAP_UNIT),
                    third as u32,
                );
            }
        } else if READS.contains(&number) {
            let is_placed = probe::seccomp::PLACED_READS.contains(&number);
            self.read(call, first as i32, is_placed.then_some(fourth));
        } else if number == probe::seccomp::GETDENTS {
            if call.result > 0 {
                self.open(call, first as i32);
            }
        } else {
            // Where the path is, and the flags of an open.
            let is_at = probe::seccomp::is_relative(number);
            let (folder, path) = if is_at { (first as i32, second) } else { (AT_CWD, first) };
            let flags = if is_at { third } else { second };
            if call.result == NO_SUCH_FILE {
                self.missed(call, folder, path);
            } else if call.result >= 0 && probe::seccomp::is_open(number) && flags & (OPEN_WRITE | OPEN_PATH) == 0 {
                self.open_file(call, call.result as i32);
            }
        }
    }

    fn send(&mut self, thread: u32, what: Did) {
        let process = self.process(thread);
        // The collector may have ended after a failure of its own.
        let _ = self.to.send(Raw { at: now(), process, what });
    }

    /// The process of a thread.
    fn process(&mut self, thread: u32) -> u32 {
        if self.processes.len() >= THREADS_MAX {
            self.processes.clear();
        }
        *self.processes.entry(thread).or_insert_with(|| process_of(thread))
    }

    fn mapped(&mut self, call: &Call, fd: i32, start: u64, bytes: u64, offset: u64, protection: u32) {
        let Some((path, metadata)) = behind(call.thread, fd) else { return };
        let device = (major(metadata.dev()), minor(metadata.dev()));
        let map = Map { start, bytes, offset, device, inode: metadata.ino(), protection, path };
        self.send(call.thread, Did::Perf(What::Map(map)));
    }

    fn read(&mut self, call: &Call, fd: i32, offset: Option<u64>) {
        let Ok(bytes) = u64::try_from(call.result) else { return };
        let Some((path, metadata)) = behind(call.thread, fd).filter(|(_, metadata)| metadata.is_file()) else { return };
        let Some(offset) = offset.or_else(|| Some(place(call.thread, fd)?.saturating_sub(bytes))) else { return };
        let identity = identity(&metadata);
        self.send(call.thread, Did::Opened { identity, path, directory: false });
        self.send(call.thread, Did::Range { identity, offset, bytes, missing: false });
    }

    fn open(&mut self, call: &Call, fd: i32) {
        if let Some((path, metadata)) = behind(call.thread, fd) {
            let directory = metadata.is_dir();
            self.send(call.thread, Did::Opened { identity: identity(&metadata), path, directory });
        }
    }

    /// A directory that is opened is not one whose names are read yet.
    fn open_file(&mut self, call: &Call, fd: i32) {
        if let Some((path, metadata)) = behind(call.thread, fd).filter(|(_, metadata)| metadata.is_file()) {
            self.send(call.thread, Did::Opened { identity: identity(&metadata), path, directory: false });
        }
    }

    fn missed(&mut self, call: &Call, folder: i32, address: u64) {
        let Some(path) = string(call.thread, address).filter(|path| !path.is_empty()) else { return };
        let from = match folder {
            AT_CWD => format!("/proc/{}/cwd", call.thread),
            fd => format!("/proc/{}/fd/{fd}", call.thread),
        };
        let path = Path::new(OsStr::from_bytes(&path)).to_path_buf();
        let path = if path.is_absolute() { path } else { fs::read_link(from).unwrap_or_default().join(path) };
        if let Some(path) = self.folders.resolve(path.as_os_str().as_bytes()) {
            self.send(call.thread, Did::Missed { path });
        }
    }
}

/// `AT_FDCWD`.
const AT_CWD: i32 = -100;

fn identity(metadata: &Metadata) -> Identity {
    Identity { device: metadata.dev(), inode: metadata.ino() }
}

/// What is behind a descriptor of a thread.
fn behind(thread: u32, fd: i32) -> Option<(Vec<u8>, Metadata)> {
    let link = PathBuf::from(format!("/proc/{thread}/fd/{fd}"));
    let path = fs::read_link(&link).ok()?.into_os_string().into_vec();
    path.starts_with(b"/").then_some(())?;
    Some((path, fs::metadata(&link).ok()?))
}

/// Where a descriptor stands in its file.
fn place(thread: u32, fd: i32) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/{thread}/fdinfo/{fd}")).ok()?;
    info.lines().find_map(|line| line.strip_prefix("pos:"))?.trim().parse().ok()
}

/// A string in a thread's memory.
fn string(thread: u32, address: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; PATH_BYTES_MAX];
    let read = File::open(format!("/proc/{thread}/mem")).ok()?.read_at(&mut bytes, address).ok()?;
    bytes.truncate(read);
    bytes.truncate(bytes.iter().position(|byte| *byte == 0)?);
    Some(bytes)
}
