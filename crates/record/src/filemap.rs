//! The kernel's `filemap` trace points: every range of a file that a fault maps or a read takes, of
//! static programs too.
//!
//! They are switched on in a trace instance of our own, for our thread and its children
//! (`event-fork`), and read as text. The instance is named after our process and removed at the
//! end. If its process is killed, the next recording removes it. The trace points name files by
//! number; their paths come from mappings, from the preloaded library, or from the descriptors of
//! the process.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::files::Identity;
use crate::raw::{Did, Raw};

/// Where the kernel's own page says that it belongs.
const TRACEFS: &str = "/sys/kernel/tracing";

/// Trace points that we switch on. The third is younger (Linux 6.13): without it reads are not
/// seen.
const POINTS: [&str; 3] = ["mm_filemap_fault", "mm_filemap_map_pages", "mm_filemap_get_pages"];

/// How our instances are named, before the number of our process.
const PREFIX: &str = "runnel-";

/// KiB of a processor's buffer: 40,000 events. A round comes every 20 ms.
const BUFFER_KIB: u32 = 4096;

/// Bytes of text read at once.
const TEXT_BYTES: usize = 256 << 10;

/// A trace instance, open for reading.
#[derive(Debug)]
pub(crate) struct Filemap {
    folder: PathBuf,
    pipe: File,
    /// The beginning of a line whose end has not come.
    rest: Vec<u8>,
    /// Files whose path was asked for.
    asked: HashSet<Identity>,
    me: u32,
    sees_reads: bool,
    /// Dropped last: our instance lies on it.
    _mount: Mount,
}

/// The file system of the trace points, kept mounted.
#[derive(Debug)]
struct Mount {
    /// Keeps others from unmounting it.
    root: Option<File>,
    /// Whether it is there because of us.
    is_ours: bool,
}

impl Mount {
    fn new() -> io::Result<Mount> {
        let is_there = || Path::new(TRACEFS).join("instances").is_dir();
        let root = Some(File::open(TRACEFS)?);
        if is_there() {
            return Ok(Mount { root, is_ours: false });
        }
        let none: Option<&std::ffi::CStr> = None;
        rustix::mount::mount("nodev", TRACEFS, "tracefs", MountFlags::empty(), none)?;
        Ok(Mount { root: Some(File::open(TRACEFS)?), is_ours: true })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.root = None;
        if self.is_ours {
            // Refused while another recording uses it.
            let _ = rustix::mount::unmount(TRACEFS, UnmountFlags::empty());
        }
    }
}

impl Filemap {
    /// Makes an instance that records nothing yet.
    ///
    /// # Errors
    /// Not root, no tracefs, or no such trace points in this kernel.
    pub(crate) fn open() -> io::Result<Filemap> {
        let mount = Mount::new()?;
        let instances = Path::new(TRACEFS).join("instances");
        remove_old(&instances);
        let me = std::process::id();
        let folder = (0..100)
            .map(|number| instances.join(format!("{PREFIX}{me}-{number}")))
            .find(|folder| !folder.exists())
            .ok_or(io::ErrorKind::AlreadyExists)?;
        fs::create_dir(&folder)?;
        let opened = Filemap::set_up(&folder, me, mount);
        if opened.is_err() {
            // The error is what matters.
            let _ = fs::remove_dir(&folder);
        }
        opened
    }

    fn set_up(folder: &Path, me: u32, mount: Mount) -> io::Result<Filemap> {
        fs::write(folder.join("trace_clock"), "mono")?;
        fs::write(folder.join("buffer_size_kb"), BUFFER_KIB.to_string())?;
        fs::write(folder.join("options/event-fork"), "1")?;
        fs::write(folder.join("options/record-tgid"), "1")?;
        let pipe = File::options()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(folder.join("trace_pipe"))?;
        let sees_reads = folder.join("events/filemap").join(POINTS[2]).is_dir();
        let (folder, rest, asked) = (folder.to_path_buf(), Vec::new(), HashSet::new());
        Ok(Filemap { folder, pipe, rest, asked, me, sees_reads, _mount: mount })
    }

    /// Records what the calling thread starts from now on.
    ///
    /// # Errors
    /// The kernel lacks the trace points.
    pub(crate) fn start(&self) -> io::Result<()> {
        let thread = rustix::thread::gettid();
        fs::write(self.folder.join("set_event_pid"), thread.as_raw_nonzero().to_string())?;
        let count = if self.sees_reads { 3 } else { 2 };
        for point in &POINTS[..count] {
            fs::write(self.folder.join("events/filemap").join(point).join("enable"), "1")?;
        }
        Ok(())
    }

    /// Whether the kernel reports reads.
    pub(crate) fn sees_reads(&self) -> bool {
        self.sees_reads
    }

    /// Takes out all that came.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(Raw)) -> io::Result<()> {
        let mut text = vec![0; TEXT_BYTES];
        loop {
            let read = match self.pipe.read(&mut text) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.rest.extend_from_slice(&text[..read]);
            let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let lines: Vec<u8> = self.rest.drain(..whole).collect();
            for line in lines.split(|byte| *byte == b'\n') {
                self.line(line, &mut take);
            }
        }
    }

    fn line(&mut self, line: &[u8], take: &mut impl FnMut(Raw)) {
        let Ok(line) = std::str::from_utf8(line) else { return };
        if let Some(lost) = lost_of(line) {
            take(Raw { at: 0, process: 0, what: Did::Perf(probe::perf::What::Lost(lost)) });
        }
        let Some(seen) = parse(line).filter(|seen| seen.process != self.me) else { return };
        let is_new = self.asked.insert(seen.identity);
        if let Some(path) = is_new.then(|| path_of(seen.process, seen.identity)).flatten() {
            let what = Did::Opened { identity: seen.identity, path, directory: false };
            take(Raw { at: seen.at, process: seen.process, what });
        }
        let what =
            Did::Range { identity: seen.identity, offset: seen.first, bytes: seen.end - seen.first, missing: false };
        take(Raw { at: seen.at, process: seen.process, what });
    }
}

impl Drop for Filemap {
    fn drop(&mut self) {
        // Nobody else uses it; what cannot be removed now, the next recording removes.
        let _ = fs::write(self.folder.join("events/enable"), "0");
        let _ = fs::File::open("/dev/null").map(|nothing| self.pipe = nothing);
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Removes instances whose process is gone.
fn remove_old(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists() {
            let _ = fs::write(entry.path().join("events/enable"), "0");
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A range of a file that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    at: u64,
    process: u32,
    identity: Identity,
    first: u64,
    end: u64,
}

/// Reads a line such as `bash-25999 ( 25999) [001] ..... 26125.582237: mm_filemap_map_pages:
/// dev=254:0 ino=4fa7d ofs=827392-892927`. A name may hold spaces and parentheses, so it is read
/// from the end.
fn parse(line: &str) -> Option<Seen> {
    let (head, fields) = line.rsplit_once(": dev=")?;
    let mut words = fields.split_whitespace();
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = u64::from_str_radix(words.next()?.strip_prefix("ino=")?, 16).ok()?;
    let range = words.next()?.strip_prefix("ofs=")?;
    let (first, last) = range.split_once('-').unwrap_or((range, ""));
    let first: u64 = first.parse().ok()?;
    // A fault is one page.
    let last = last.parse().unwrap_or(first + 4095);
    let (head, _) = head.rsplit_once(": ")?;
    let (head, time) = head.rsplit_once(' ')?;
    let (seconds, micros) = time.split_once('.')?;
    let at = seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1000;
    let (head, _) = head.rsplit_once(" [")?;
    let (name, process) = head.rsplit_once('(')?;
    // The kernel remembers the process of a thread for a while; if not, the thread stands for it.
    let thread = || name.trim_end().rsplit_once('-')?.1.parse().ok();
    let process = process.trim_end_matches(')').trim().parse().ok().or_else(thread)?;
    let identity = Identity::new((major.parse().ok()?, minor.parse().ok()?), inode);
    Some(Seen { at, process, identity, first, end: (last + 1).max(first) })
}

/// `CPU:1 [LOST 123 EVENTS]`.
fn lost_of(line: &str) -> Option<u64> {
    line.split_once("[LOST ")?.1.split_once(' ')?.0.parse().ok()
}

/// The path of a file that a process has open, if it still has.
fn path_of(process: u32, identity: Identity) -> Option<Vec<u8>> {
    let folder = format!("/proc/{process}/fd");
    let found = fs::read_dir(folder).ok()?.flatten().find(|entry| {
        let metadata = fs::metadata(entry.path());
        metadata.is_ok_and(|file| file.is_file() && file.dev() == identity.device && file.ino() == identity.inode)
    })?;
    fs::read_link(found.path()).ok().map(|path| path.into_os_string().into_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = "            bash-25999   (  25999) [001] ..... 26125.582237: mm_filemap_map_pages: dev=254:0 ino=4fa7d ofs=827392-892927";
        let seen = parse(line).expect("a line");
        assert_eq!((seen.at, seen.process, seen.first, seen.end), (26_125_582_237_000, 25999, 827_392, 892_928));
        assert_eq!(seen.identity, Identity::new((254, 0), 0x4fa7d));
        let line = " a (b) c-7   (-------) [000] d..1. 1.000002: mm_filemap_fault: dev=8:1 ino=2 ofs=4096";
        let seen = parse(line).expect("a line");
        assert_eq!((seen.at, seen.process, seen.first, seen.end), (1_000_002_000, 7, 4096, 8192));
        assert_eq!(parse("CPU:1 [LOST 17 EVENTS]"), None);
        assert_eq!(lost_of("CPU:1 [LOST 17 EVENTS]"), Some(17));
        for cut in 0..line.len() {
            let _ = parse(&line[..cut]);
        }
    }
}
