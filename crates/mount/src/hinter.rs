//! The sender of hints: tells mounts of this user which pages a program will need, by the paths
//! that it will use.
//!
//! A path costs one stat. Its device number identifies the mount: without an overlay, every file
//! shows the mount's own number, and its inode number is that of the image, whatever path or bind
//! mount leads there. A file below an overlay is found by its path. Other devices are remembered as
//! foreign for some seconds, so that no socket is asked.
//!
//! Each mount has one connection. The first hint on it waits for its answer. If the mount takes
//! hints, later ones are only written, and their answers are read when they are there. Where
//! [`Hinter::hint`] returns `false`, the caller must read ahead itself.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use units::PAGE_BYTES;

use crate::MountError;
use crate::control::{self, MountStatus};
use crate::hint::{self, Answer, HintedFile, RANGES_MAX};

/// How long a device is taken to be foreign: a mount that was made since then may have its number.
const FOREIGN_AGE_MAX: Duration = Duration::from_secs(5);

/// Devices remembered as foreign.
const FOREIGN_MAX: usize = 1024;

/// How long a mount may take to answer, or to take a hint. It does so from memory.
const WAIT: Duration = Duration::from_secs(1);

/// Answers that may be outstanding: they fit into the socket, so a mount that answers never waits
/// for us.
const PENDING_MAX: usize = 64;

/// Device number, `(major, minor)`.
type Device = (u32, u32);

/// Sends hints to mounts. Safe to use from several threads.
#[derive(Debug, Default)]
pub struct Hinter {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the device that stat shows.
    mounts: HashMap<Device, Known>,
    foreign: HashSet<Device>,
    /// When the mounts were looked for last.
    looked: Option<Instant>,
    links: HashMap<PathBuf, Link>,
}

/// A mount whose socket is known.
#[derive(Clone, Debug)]
struct Known {
    socket: PathBuf,
    /// The mount point, if files are found by their path.
    root: Option<PathBuf>,
}

/// A file as stat shows it.
struct Found {
    device: Device,
    inode: u64,
    pages: u64,
}

impl Hinter {
    /// One that knows no mount yet.
    pub fn new() -> Hinter {
        Hinter::default()
    }

    /// These pages of the file at `path` will be needed soon and are not in the page cache. True if
    /// a mount of this user serves the file and takes care of it; false if somebody else has to:
    /// foreign file systems, mounts by the kernel's EROFS, recorded mounts, files changed in an
    /// overlay. Pages behind the end of the file are left out.
    pub fn hint(&self, path: &Path, pages: &[Range<u32>]) -> bool {
        let Some(found) = examine(path) else { return false };
        let end = u32::try_from(found.pages).unwrap_or(u32::MAX);
        let ranges = pages.iter().map(|range| (range.start, range.end.min(end))).filter(|(first, end)| first < end);
        let ranges: Vec<(u32, u32)> = ranges.collect();
        let mut state = self.lock();
        let Some(known) = state.mount_of(found.device, path) else { return false };
        let (path, inode) = match &known.root {
            None => (None, u32::try_from(found.inode).ok()),
            Some(root) => (inside(path, root), None),
        };
        if path.is_none() && inode.is_none() {
            return false;
        }
        let parts = ranges.chunks(RANGES_MAX);
        let mut files = parts.map(|part| HintedFile { path: path.clone(), inode, pages: part.to_vec() });
        files.all(|file| state.send(&known.socket, found.device, &file))
    }

    /// A panic elsewhere leaves at worst a connection that is made anew.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at a file; `None` if it cannot be on a mount of ours.
fn examine(path: &Path) -> Option<Found> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE;
    let status = rustix::fs::statx(CWD, path, AtFlags::NO_AUTOMOUNT, wanted).ok()?;
    // File systems without a device, as FUSE and overlays, have major number 0.
    let ours = status.stx_dev_major == 0 && FileType::from_raw_mode(status.stx_mode.into()) == FileType::RegularFile;
    ours.then(|| Found {
        device: (status.stx_dev_major, status.stx_dev_minor),
        inode: status.stx_ino,
        pages: status.stx_size.div_ceil(PAGE_BYTES as u64),
    })
}

/// The path of a file as the mount at `root` knows it.
fn inside(path: &Path, root: &Path) -> Option<String> {
    let absolute = path.canonicalize().ok()?;
    Some(format!("/{}", absolute.strip_prefix(root).ok()?.to_str()?))
}

impl State {
    /// The mount that serves files which show `device`.
    fn mount_of(&mut self, device: Device, path: &Path) -> Option<Known> {
        if let Some(known) = self.mounts.get(&device) {
            return Some(known.clone());
        }
        let fresh = self.looked.is_some_and(|looked| looked.elapsed() < FOREIGN_AGE_MAX);
        if fresh && self.foreign.contains(&device) {
            return None;
        }
        if !fresh || self.foreign.len() >= FOREIGN_MAX {
            self.foreign.clear();
        }
        self.looked = Some(Instant::now());
        let live = control::live().unwrap_or_default();
        let direct = |(_, status): &&(PathBuf, MountStatus)| status.device == Some(device) && status.overlay.is_none();
        let above = |(_, status): &&(PathBuf, MountStatus)| {
            status.overlay.is_some() && status.device.is_some() && inside(path, &status.mountpoint).is_some()
        };
        let known = match (live.iter().find(direct), live.iter().find(above)) {
            (Some((socket, _)), _) => Some(Known { socket: socket.clone(), root: None }),
            (None, Some((socket, status))) => {
                Some(Known { socket: socket.clone(), root: Some(status.mountpoint.clone()) })
            }
            (None, None) => None,
        };
        match &known {
            Some(known) => drop(self.mounts.insert(device, known.clone())),
            None => drop(self.foreign.insert(device)),
        }
        known
    }

    /// Sends one hint, over the connection there is or a new one.
    fn send(&mut self, socket: &Path, device: Device, file: &HintedFile) -> bool {
        let Ok(line) = hint::line(std::slice::from_ref(file)) else { return false };
        if let Some(link) = self.links.get_mut(socket) {
            if let Ok(taken) = link.send(&line) {
                return taken;
            }
            self.links.remove(socket);
        }
        let sent = Link::connect(socket).and_then(|mut link| {
            let taken = link.send(&line)?;
            self.links.insert(socket.to_path_buf(), link);
            Ok(taken)
        });
        if sent.is_err() {
            // The mount is gone; its number may be that of another one soon.
            self.mounts.remove(&device);
        }
        sent.unwrap_or(false)
    }
}

/// Tells the mount at `path` which pages of which files will be needed: paths inside the mount, and
/// ranges of pages. False if no mount of this user is there, or the kernel serves it. For many
/// hints, see [`Hinter`].
///
/// # Errors
/// There is no such path; the mount says what is wrong with the hint, or does not answer.
pub fn hint_files(path: &Path, files: &[(PathBuf, Vec<Range<u32>>)]) -> Result<bool, MountError> {
    let absolute = fs::canonicalize(path).map_err(|error| MountError::step("examine", path, error))?;
    let above = control::live()?.into_iter().filter(|(_, status)| absolute.starts_with(&status.mountpoint));
    let nearest = above.max_by_key(|(_, status)| status.mountpoint.components().count());
    let Some((socket, _)) = nearest.filter(|(_, status)| status.device.is_some()) else { return Ok(false) };
    let fail = |error| MountError::step("give a hint to", path, error);
    let mut link = Link::connect(&socket).map_err(fail)?;
    for (file, ranges) in files {
        for part in ranges.chunks(hint::RANGES_MAX) {
            let pages = part.iter().map(|range| (range.start, range.end)).collect();
            let file = HintedFile { path: Some(file.to_string_lossy().into_owned()), inode: None, pages };
            let line = hint::line(&[file]).map_err(fail)?;
            if let Answer::Error(problem) = link.ask(&line).map_err(fail)? {
                return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, problem)));
            }
        }
    }
    Ok(true)
}

/// A connection to one mount.
#[derive(Debug)]
pub(crate) struct Link {
    reader: BufReader<UnixStream>,
    /// Hints without an answer.
    pending: usize,
    /// The last answer was a good one, so the next is not waited for.
    trusted: bool,
}

impl Link {
    /// # Errors
    /// Nobody listens.
    pub fn connect(socket: &Path) -> io::Result<Link> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(WAIT))?;
        stream.set_write_timeout(Some(WAIT))?;
        Ok(Link { reader: BufReader::new(stream), pending: 0, trusted: false })
    }

    /// Sends a line and waits for its answer.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn ask(&mut self, line: &str) -> io::Result<Answer> {
        self.reader.get_ref().write_all(line.as_bytes())?;
        self.pending += 1;
        let mut last = Answer::Hinted(0);
        while self.pending > 0 {
            last = self.answer()?;
        }
        Ok(last)
    }

    fn send(&mut self, line: &str) -> io::Result<bool> {
        self.catch_up()?;
        if !self.trusted || self.pending >= PENDING_MAX {
            let answer = self.ask(line)?;
            self.trusted = matches!(answer, Answer::Hinted(_));
            return Ok(self.trusted);
        }
        self.reader.get_ref().write_all(line.as_bytes())?;
        self.pending += 1;
        Ok(true)
    }

    /// Takes the answers that are here.
    fn catch_up(&mut self) -> io::Result<()> {
        while self.pending > 0 {
            if !self.reader.buffer().contains(&b'\n') {
                self.reader.get_ref().set_nonblocking(true)?;
                let ready = rustix::net::recv(self.reader.get_ref(), &mut [0u8; 1], rustix::net::RecvFlags::PEEK);
                self.reader.get_ref().set_nonblocking(false)?;
                match ready {
                    Ok((1.., _)) => {}
                    Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(rustix::io::Errno::AGAIN) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            self.trusted &= matches!(self.answer()?, Answer::Hinted(_));
        }
        Ok(())
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let mut line = String::new();
        io::Read::take(&mut self.reader, hint::LINE_BYTES_MAX).read_line(&mut line)?;
        self.pending -= 1;
        Ok(serde_json::from_str(&line)?)
    }
}
