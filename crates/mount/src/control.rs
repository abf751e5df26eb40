//! A small Unix socket per mount, for `runnel status`, `runnel umount`, and hints.
//!
//! A client sends one line, `status` or `unmount`, and gets one line of JSON back; hints, of which a connection may send
//! many, are described in `hint`. The sockets lie in the runtime directory, which only this user can enter; one that
//! nobody listens on any more is removed by whoever notices.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, getpid};
use serde::{Deserialize, Serialize};

use crate::counters::FuseCounters;
use crate::hint::{self, Answer, Connections, HintedFile};
use crate::hinter::Link;
use crate::volume::UnmountReport;
use crate::{MountError, runtime};

/// How long either side waits for the other's next bytes.
const WAIT: Duration = Duration::from_secs(2);

/// How long `unmount` may take: the daemon's own bound on it, twelve seconds for a volume with unsent changes, and some more.
const UNMOUNT_WAIT: Duration = Duration::from_secs(15);

/// Longest request line, but for hints.
const REQUEST_BYTES_MAX: u64 = 64;

/// Longest answer: a status holds some paths and some dozens of counters.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Extension of the sockets.
const EXTENSION: &str = "sock";

/// What one live mount says of itself: one element of `runnel status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// What was asked to be mounted, as given on the command line.
    pub target: String,
    /// Short name of the image.
    pub name: String,
    /// Identity of the image, 64 hexadecimal digits.
    pub image: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Folder that keeps the changes, if mounted with an overlay.
    pub overlay: Option<PathBuf>,
    /// What the session did: requests, bytes, pushes.
    pub session: client::Counters,
    /// What the kernel asked.
    pub fuse: FuseCounters,
    /// Device number of the FUSE mount, `(major, minor)`: what stat shows of its files, unless an overlay lies above.
    /// `None` if the kernel serves them.
    #[serde(default)]
    pub device: Option<(u32, u32)>,
    /// What a volume holds and did; `None` for an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<stream::Status>,
}

/// What a control socket speaks for.
pub(crate) trait Controlled: Send + Sync {
    /// The state of the mount now.
    fn status(&self) -> MountStatus;
    /// Detaches the mount; its daemon ends when the last user is gone. Tells what became of changes.
    fn detach(&self) -> Result<UnmountReport, MountError>;
    /// Pages that will be needed. Returns how many were asked for, or why the hint is not taken.
    fn hint(&self, files: &[HintedFile]) -> Result<usize, String>;
}

/// The name of a socket; removed when dropped.
pub(crate) struct SocketName(PathBuf);

/// The listening side of one mount; stops and removes its socket when dropped.
pub(crate) struct Server {
    /// `None` if somebody else removes it.
    name: Option<SocketName>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Drop for SocketName {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A new socket in the runtime directory.
///
/// # Errors
/// The directory cannot be used.
pub(crate) fn listen() -> Result<(UnixListener, SocketName), MountError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = runtime::directory()?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("mount-{}-{number}.{EXTENSION}", std::process::id()));
    // A socket of that name can only be left over from an earlier process with our id.
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|error| MountError::step("listen on", &path, error))?;
    Ok((listener, SocketName(path)))
}

impl Server {
    pub(crate) fn start(mount: Arc<dyn Controlled>) -> Result<Server, MountError> {
        let (listener, name) = listen()?;
        Server::start_on(listener, Some(name), mount)
    }

    /// Listens on a socket that is there, and removes `name`.
    pub(crate) fn start_on(
        listener: UnixListener,
        name: Option<SocketName>,
        mount: Arc<dyn Controlled>,
    ) -> Result<Server, MountError> {
        let fail = |error: io::Error| MountError::step("listen in", "/proc/self", error);
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| fail(error.into()))?;
        let stopped = stop.try_clone().map_err(fail)?;
        let thread = thread::Builder::new()
            .name("runnel-control".into())
            .spawn(move || serve(&listener, stopped, &mount))
            .map_err(fail)?;
        Ok(Server { name, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.name.take());
        // Cannot fail for an event descriptor with room, and it has counted to 1 at most.
        let _ = rustix::io::write(&self.stop, &1u64.to_le_bytes());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, stop: OwnedFd, mount: &Arc<dyn Controlled>) {
    let Ok(stop_hints) = stop.try_clone() else { return };
    let hints = Connections::new(stop_hints);
    loop {
        let mut fds = [PollFd::new(&stop, PollFlags::IN), PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        if rustix::event::poll(&mut fds, None).is_err() {
            continue;
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        if let Ok((stream, _)) = listener.accept() {
            // A client that went away or sent nonsense concerns nobody.
            let _ = answer(stream, mount, &hints);
        }
    }
}

fn answer(stream: UnixStream, mount: &Arc<dyn Controlled>, hints: &Connections) -> io::Result<()> {
    stream.set_read_timeout(Some(WAIT))?;
    stream.set_write_timeout(Some(WAIT))?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    reader.by_ref().take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.starts_with(hint::REQUEST.as_bytes()) {
        return hints.take(mount, reader, line);
    }
    let text = match String::from_utf8_lossy(&line).trim_end() {
        "status" => serde_json::to_string(&mount.status())?,
        "unmount" => match mount.detach() {
            Ok(report) => serde_json::to_string(&report)?,
            Err(error) => serde_json::json!({ "error": error.to_string() }).to_string(),
        },
        _ => r#"{"error":"unknown request"}"#.to_string(),
    };
    let mut stream = reader.get_ref();
    stream.write_all(text.as_bytes())?;
    stream.write_all(b"\n")
}

/// Sends `request` to one socket; `None` if nobody is there or the answer is not a line of JSON.
fn ask<T: for<'a> Deserialize<'a>>(path: &Path, request: &str, wait: Duration) -> Option<T> {
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Its daemon died without removing it, or is about to listen.
            if !daemon_lives(path) {
                let _ = fs::remove_file(path);
            }
            return None;
        }
        Err(_) => return None,
    };
    stream.set_read_timeout(Some(wait)).ok()?;
    stream.set_write_timeout(Some(WAIT)).ok()?;
    stream.write_all(format!("{request}\n").as_bytes()).ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// Whether the process named in `mount-<pid>-<number>.sock` exists.
fn daemon_lives(path: &Path) -> bool {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let process = name.split('-').nth(1).and_then(|process| process.parse::<u32>().ok());
    process.is_none_or(|process| Path::new(&format!("/proc/{process}")).exists())
}

fn sockets() -> Result<Vec<PathBuf>, MountError> {
    let folder = runtime::directory()?;
    let entries = fs::read_dir(&folder).map_err(|error| MountError::step("list", &folder, error))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
        .collect();
    found.sort();
    Ok(found)
}

/// All live mounts of this user, by mount point.
///
/// # Errors
/// The runtime directory cannot be used. A mount whose daemon does not answer is left out.
pub fn mounts() -> Result<Vec<MountStatus>, MountError> {
    let mut found: Vec<MountStatus> = live()?.into_iter().map(|(_, status)| status).collect();
    found.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    Ok(found)
}

/// All live mounts of this user with their sockets.
pub(crate) fn live() -> Result<Vec<(PathBuf, MountStatus)>, MountError> {
    let asked = sockets()?.into_iter().filter_map(|path| {
        let status = ask::<MountStatus>(&path, "status", WAIT)?;
        Some((path, status))
    });
    Ok(asked.collect())
}

/// Tells the mount that `path` lies on which pages of which of its files will be needed: paths inside the mount, and
/// ranges of pages. False if no mount of this user is there, or the kernel serves it. See [`crate::Hinter`] for many hints.
///
/// # Errors
/// There is no such path; the mount says what is wrong with the hint, or does not answer.
pub fn hint(path: &Path, files: &[(PathBuf, Vec<Range<u32>>)]) -> Result<bool, MountError> {
    let absolute = fs::canonicalize(path).map_err(|error| MountError::step("examine", path, error))?;
    let above = live()?.into_iter().filter(|(_, status)| absolute.starts_with(&status.mountpoint));
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

/// What a daemon answers that was asked to unmount.
#[derive(Deserialize)]
struct Unmounted {
    #[serde(default)]
    error: Option<String>,
    #[serde(flatten)]
    report: UnmountReport,
}

/// Ends the daemon of the mount at `mountpoint`, which then serves no other mount either; waits for its end. False if there
/// is none, or it did not end. For mounts that their daemon cannot detach.
pub(crate) fn end_daemon(mountpoint: &Path) -> bool {
    let mounts = mounts().unwrap_or_default();
    let Some(mount) = mounts.iter().find(|mount| mount.mountpoint == mountpoint) else { return false };
    // A program that mounts by this library is not ours to end.
    let Some(pid) = i32::try_from(mount.pid).ok().and_then(Pid::from_raw).filter(|pid| *pid != getpid()) else {
        return false;
    };
    let Ok(daemon) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return false };
    if rustix::process::pidfd_send_signal(&daemon, Signal::TERM).is_err() {
        return false;
    }
    let wait = Timespec { tv_sec: UNMOUNT_WAIT.as_secs() as i64, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(&daemon, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0)
}

/// Asks the daemon of the mount at `mountpoint` to detach it; `None` if there is none or it could not.
pub(crate) fn ask_to_unmount(mountpoint: &Path) -> Option<UnmountReport> {
    let mut mounted = sockets()
        .ok()?
        .into_iter()
        .filter(|path| ask::<MountStatus>(path, "status", WAIT).is_some_and(|mount| mount.mountpoint == mountpoint));
    let answer: Unmounted = ask(&mounted.next()?, "unmount", UNMOUNT_WAIT)?;
    answer.error.is_none().then_some(answer.report)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct Fake {
        mountpoint: PathBuf,
        detached: AtomicBool,
    }

    impl Controlled for Fake {
        fn status(&self) -> MountStatus {
            MountStatus {
                mountpoint: self.mountpoint.clone(),
                target: "runnel://host/name".into(),
                name: "name".into(),
                image: "00".repeat(32),
                pid: std::process::id(),
                overlay: None,
                session: client::Counters::default(),
                fuse: FuseCounters { lookup: 3, ..FuseCounters::default() },
                device: Some((0, 77)),
                volume: None,
            }
        }

        fn hint(&self, files: &[HintedFile]) -> Result<usize, String> {
            match &files.first().and_then(|file| file.path.clone()) {
                Some(path) if path == "/none" => Err("the image has no file /none".into()),
                _ => Ok(files.iter().flat_map(|file| &file.pages).map(|(first, end)| (end - first) as usize).sum()),
            }
        }

        fn detach(&self) -> Result<UnmountReport, MountError> {
            if self.detached.swap(true, Ordering::SeqCst) {
                return Err(MountError::NotMounted { path: self.mountpoint.clone() });
            }
            Ok(UnmountReport { unsent_transactions: 3, ..UnmountReport::default() })
        }
    }

    #[test]
    fn a_mount_answers_until_it_is_gone() {
        let folder = tempfile::tempdir().expect("tempdir");
        let fake = Arc::new(Fake { mountpoint: folder.path().join("mnt"), detached: AtomicBool::new(false) });
        let server = Server::start(fake.clone()).expect("starts");
        let ours = |mounts: Vec<MountStatus>| mounts.into_iter().find(|mount| mount.mountpoint == fake.mountpoint);
        assert_eq!(ours(mounts().expect("listed")), Some(fake.status()));
        assert_eq!(ask_to_unmount(&fake.mountpoint).map(|report| report.unsent_transactions), Some(3));
        assert_eq!(ask_to_unmount(&fake.mountpoint), None, "the second time it fails and says so");
        assert_eq!(ask_to_unmount(&folder.path().join("other")), None);
        let socket = server.name.as_ref().expect("its own").0.clone();
        let unknown: serde_json::Value = ask(&socket, "dance", WAIT).expect("answered");
        assert_eq!(unknown["error"], "unknown request");
        drop(server);
        assert!(!socket.exists());
        assert_eq!(ours(mounts().expect("listed")), None);
    }

    #[test]
    fn hints_come_many_to_a_connection_and_status_is_answered_beside_them() {
        let folder = tempfile::tempdir().expect("tempdir");
        let mountpoint = fs::canonicalize(folder.path()).expect("there");
        let fake = Arc::new(Fake { mountpoint: mountpoint.clone(), detached: AtomicBool::new(false) });
        let server = Server::start(fake.clone()).expect("starts");
        let socket = server.name.as_ref().expect("its own").0.clone();
        let mut link = Link::connect(&socket).expect("connects");
        let mut say = |text: &str| link.ask(&format!("{text}\n")).expect("answered");
        assert_eq!(say(r#"hint [{"path":"/a","pages":[[0,3]]},{"inode":2,"pages":[[7,8]]}]"#), Answer::Hinted(4));
        for (text, what) in [
            (r#"hint [{"path":"/none","pages":[]}]"#, "no file /none"),
            ("hint garbage", "not a hint: expected value"),
            (r#"hint [{"path":"/a","pages":[[0,3]],"more":1}]"#, "unknown field `more`"),
            (r#"hint [{"path":"/a","pages":[[0,-3]]}]"#, "not a hint"),
            ("status", "unknown request"),
        ] {
            let Answer::Error(problem) = say(text) else { panic!("{text} was taken") };
            assert!(problem.contains(what), "{problem}");
        }
        assert_eq!(ask::<MountStatus>(&socket, "status", WAIT), Some(fake.status()), "while the link is open");
        let many = format!("hint [{}]", vec![r#"{"path":"/a","pages":[[0,3]]}"#; 2000].join(","));
        assert_eq!(say(&many), Answer::Hinted(6000));
        let long = format!("hint [{}]", " ".repeat(hint::LINE_BYTES_MAX as usize));
        assert!(matches!(say(&long), Answer::Error(problem) if problem.contains("longer than 65536 bytes")));

        let below = mountpoint.join("sub");
        fs::create_dir(&below).expect("mkdir");
        assert!(super::hint(&below, &[("/a".into(), vec![0..9, 12..13])]).expect("taken"));
        let error = super::hint(&mountpoint, &[("/none".into(), vec![0..1, 2..3])]).expect_err("refused").to_string();
        assert!(error.contains("no file /none"), "{error}");
        assert!(!super::hint(Path::new("/"), &[]).expect("nobody is there"));
        // A connection that is open does not keep the mount from ending.
        let mut link = Link::connect(&socket).expect("connects");
        assert_eq!(link.ask("hint []\n").ok(), Some(Answer::Hinted(0)));
        drop(server);
        assert!(link.ask("hint []\n").is_err());
    }

    #[test]
    fn a_socket_nobody_listens_on_is_removed() {
        let folder = runtime::directory().expect("directory");
        // Above the largest process id Linux gives out.
        let dead = folder.join("mount-4294967295-0.sock");
        let starting = folder.join(format!("mount-{}-99999.sock", std::process::id()));
        for path in [&dead, &starting] {
            // It is there once bound; a test that lists the mounts beside this one may remove the first already.
            drop(UnixListener::bind(path).expect("bind"));
        }
        mounts().expect("listed");
        assert!(!dead.exists());
        assert!(starting.exists(), "its daemon lives and may be about to listen");
        fs::remove_file(starting).expect("removed");
    }
}
