//! Fetches groups when a library is loaded, where breakpoints are impossible.
//!
//! The dynamic linker loads `librunnel_audit.so` (the crate `rtld-audit`) into the program. It
//! sends a datagram when the program, or a child of it, loads one of the libraries named to it.
//! This module receives: it has a socket with an abstract name, and a thread that sends the groups
//! of a library to the prefetcher at the first datagram about it. Anybody on the machine may send
//! to such a socket; the worst effect is a group that is fetched too early.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};

use probe::FileId;

use crate::prefetch::Job;

/// Libraries that the auditor looks for at most.
const LIBRARIES_MAX: usize = 64;

/// Names of sockets that are tried. A process that was killed leaves none behind, so a name is only
/// taken on purpose.
const NAMES_MAX: u32 = 8;

/// Sockets of this process so far.
static SOCKETS: AtomicU32 = AtomicU32::new(0);

/// A library, and the groups that are fetched when it is loaded.
pub(crate) type Awaited = (FileId, Vec<usize>);

/// Listens while the program runs.
#[derive(Debug)]
pub(crate) struct Listener {
    auditor: PathBuf,
    value: OsString,
    socket: Arc<UnixDatagram>,
    is_done: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Listener {
    /// Listens for the first [`LIBRARIES_MAX`] libraries.
    ///
    /// # Errors
    /// No socket or thread can be had; the kernel (before 5.9) does not say under how many filters
    /// a process is, so that the auditor cannot know what it may do.
    pub(crate) fn start(auditor: &Path, mut awaited: Vec<Awaited>, jobs: Sender<Job>) -> io::Result<Listener> {
        awaited.truncate(LIBRARIES_MAX);
        let filters = filters().ok_or(io::ErrorKind::Unsupported)?;
        let (socket, name) = bind()?;
        let mut value = format!("{name} {filters:x}");
        for (library, _) in &awaited {
            // Writing to a string does not fail.
            let _ = write!(value, " {:x}:{:x}", library.device, library.inode);
        }
        let (socket, is_done) = (Arc::new(socket), Arc::new(AtomicBool::new(false)));
        let mut awaited: HashMap<FileId, Vec<usize>> = awaited.into_iter().collect();
        let (receiver, done) = (Arc::clone(&socket), Arc::clone(&is_done));
        let listen = move || {
            let mut loaded = 0;
            while let Ok(library) = receive(&receiver) {
                // What was sent before the end is still read.
                if library.is_none() && done.load(Ordering::Acquire) {
                    break;
                }
                let Some(groups) = library.and_then(|library| awaited.remove(&library)) else { continue };
                loaded += 1;
                for group in groups {
                    let _ = jobs.send(Job { group, opened: None });
                }
            }
            loaded
        };
        let thread = thread::Builder::new().name("libraries".into()).spawn(listen)?;
        Ok(Listener { auditor: auditor.to_path_buf(), value: value.into(), socket, is_done, thread })
    }

    /// The variables that the program needs.
    pub(crate) fn variables(&self) -> [(OsString, OsString); 2] {
        [("LD_AUDIT".into(), before(&self.auditor, "LD_AUDIT")), ("RUNNEL_AUDIT".into(), self.value.clone())]
    }

    /// Ends it; how many of the libraries were loaded.
    pub(crate) fn stop(self) -> u32 {
        self.is_done.store(true, Ordering::Release);
        // Wakes the thread; a socket that cannot be shut down would keep it waiting, so then it is
        // left alone.
        match self.socket.shutdown(Shutdown::Both) {
            Ok(()) => self.thread.join().unwrap_or(0),
            Err(_) => 0,
        }
    }
}

/// One datagram; `None` if it is none of the auditor's.
fn receive(socket: &UnixDatagram) -> io::Result<Option<FileId>> {
    let mut message = [0; 17];
    let count = socket.recv(&mut message)?;
    let (words, _) = message.as_chunks::<8>();
    // Both ends are one machine, with one order of bytes.
    #[allow(clippy::host_endian_bytes)]
    let [device, inode] = [words[0], words[1]].map(u64::from_ne_bytes);
    Ok((count == 16).then_some(FileId { device, inode }))
}

fn bind() -> io::Result<(UnixDatagram, String)> {
    let mut tried = 0;
    loop {
        let name = format!("runnel-launch-{}-{}", process::id(), SOCKETS.fetch_add(1, Ordering::Relaxed));
        tried += 1;
        match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tried < NAMES_MAX => {}
            bound => return bound.map(|socket| (socket, name)),
        }
    }
}

/// System call filters that this process is under, and so what it starts.
fn filters() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:")?.trim().parse().ok())
}

/// A library before those that a variable of the linker names already.
pub(crate) fn before(library: &Path, variable: &str) -> OsString {
    let mut list = library.as_os_str().to_owned();
    // Behind a colon even if the list is empty, so that the linker sees the difference to no list.
    if let Some(others) = std::env::var_os(variable) {
        list.push(OsStr::new(":"));
        list.push(others);
    }
    list
}
