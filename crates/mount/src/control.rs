//! The control socket of a mount, for `runnel status`, `runnel umount`, and hints.
//!
//! A client sends one line, `status`, `unmount` or `replace`, and gets one line of JSON back.
//! Hints, of which a connection may send many, are described in `hint`. The sockets are in the
//! runtime directory, which only this user can enter. A socket without a listener is removed by any
//! client that finds it.

mod hints;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, getpid};
use serde::{Deserialize, Serialize};

use crate::counters::FuseCounters;
use crate::hint::{self, HintedFile};
use crate::keeper::Keeper;
use crate::report::UnmountReport;
use crate::{MountError, runtime};
use hints::Connections;

/// How long either side waits for the other's next bytes.
const WAIT: Duration = Duration::from_secs(2);

/// How long `unmount` may take: the daemon's own bound on it, twelve seconds for a volume with
/// unsent changes, and some more.
const UNMOUNT_WAIT: Duration = Duration::from_secs(15);

/// How long the next daemon may take to serve. One without its server takes longer.
const REPLACE_WAIT: Duration = Duration::from_secs(30);

/// Longest request line, but for hints.
const REQUEST_BYTES_MAX: u64 = 64;

/// Longest answer: a status holds some paths and some dozens of counters.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Extension of the sockets.
const EXTENSION: &str = "sock";

/// The status of one live mount: one element of `runnel status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The target, as given on the command line.
    pub target: String,
    /// Short name of the image.
    pub name: String,
    /// Identity of the image, 64 hexadecimal digits.
    pub image: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// The version of this program that the daemon is.
    #[serde(default)]
    pub version: String,
    /// Why the program that is installed now does not serve, if it cannot.
    #[serde(default)]
    pub refused: Option<String>,
    /// Folder that keeps the changes, if mounted with an overlay.
    pub overlay: Option<PathBuf>,
    /// Counters of the session: requests, bytes, pushes.
    pub session: client::Counters,
    /// Counters of the kernel's requests.
    pub fuse: FuseCounters,
    /// Device number of the FUSE mount, `(major, minor)`: what stat shows of its files, unless an
    /// overlay lies above. `None` if the kernel serves them.
    #[serde(default)]
    pub device: Option<(u32, u32)>,
    /// How often its daemon died and was replaced.
    #[serde(default)]
    pub restarts: u32,
    /// Why nothing more is kept in the device cache, if it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_problem: Option<String>,
    /// The status of a volume; `None` for an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<stream::Status>,
}

/// A mount that has a control socket.
pub(crate) trait Controlled: Send + Sync {
    /// The state of the mount now.
    fn status(&self) -> MountStatus;
    /// Detaches the mount; its daemon ends when the last user is gone. Returns what became of
    /// changes.
    fn detach(&self) -> Result<UnmountReport, MountError>;
    /// The process that can start another daemon in the place of this one.
    fn keeper(&self) -> Option<&Keeper> {
        None
    }
    /// Pages that will be needed. Returns how many were asked for, or why the hint is not taken.
    fn hint(&self, files: &[HintedFile]) -> Result<usize, String>;
}

/// The name of a socket; removed when dropped.
pub(crate) struct SocketName(PathBuf);

impl SocketName {
    /// Of a socket that is there.
    pub(crate) fn at(path: PathBuf) -> SocketName {
        SocketName(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

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
        "replace" => return make_way(reader.get_ref(), mount.keeper().filter(|keeper| keeper.can_replace())),
        _ => r#"{"error":"unknown request"}"#.to_string(),
    };
    say(reader.get_ref(), &text)
}

fn say(mut stream: &UnixStream, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.write_all(b"\n")
}

/// Answers first: this process ends then.
fn make_way(stream: &UnixStream, keeper: Option<&Keeper>) -> io::Result<()> {
    let Some(keeper) = keeper else {
        return say(stream, r#"{"error":"its daemon cannot be replaced while it is mounted"}"#);
    };
    if !keeper.is_there() {
        return say(stream, r#"{"error":"its keeper has ended, so no other daemon can be started"}"#);
    }
    say(stream, "{}")?;
    keeper.replace().map_err(io::Error::other)
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

/// The answer to `replace`.
#[derive(Deserialize)]
struct Replaced {
    #[serde(default)]
    error: Option<String>,
}

/// Has the daemon of a live mount replaced: by the program that is installed now, if that is
/// another one. The status from the new one.
///
/// # Errors
/// The mount does not survive its daemon, or the next daemon does not serve in time.
pub fn replace(mount: &MountStatus) -> Result<MountStatus, MountError> {
    let failed = |problem: &str| MountError::Keeper { problem: format!("{}: {problem}", mount.mountpoint.display()) };
    let is_it = |status: &MountStatus| status.mountpoint == mount.mountpoint;
    let found = live()?.into_iter().find(|(_, status)| is_it(status) && status.pid == mount.pid);
    let (path, _) = found.ok_or_else(|| failed("its daemon does not answer"))?;
    let answer: Replaced = ask(&path, "replace", WAIT).ok_or_else(|| failed("its daemon does not answer"))?;
    if let Some(error) = answer.error {
        return Err(failed(&error));
    }
    let until = Instant::now() + REPLACE_WAIT;
    while Instant::now() < until {
        // Until the next one serves, the socket takes requests that nobody reads yet.
        let status = ask::<MountStatus>(&path, "status", WAIT).filter(|status| status.pid != mount.pid);
        if let Some(status) = status {
            return Ok(status);
        }
    }
    Err(failed("the next daemon does not serve yet; programs wait for it"))
}

/// The answer to `unmount`.
#[derive(Deserialize)]
struct Unmounted {
    #[serde(default)]
    error: Option<String>,
    #[serde(flatten)]
    report: UnmountReport,
}

/// Ends the daemon of the mount at `mountpoint`, which then serves no other mount either; waits for
/// its end. False if there is none, or it did not end. For mounts that their daemon cannot detach.
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

/// Asks the daemon of the mount at `mountpoint` to detach it; `None` if there is none or it could
/// not.
pub(crate) fn ask_to_unmount(mountpoint: &Path) -> Option<UnmountReport> {
    let mut mounted = sockets()
        .ok()?
        .into_iter()
        .filter(|path| ask::<MountStatus>(path, "status", WAIT).is_some_and(|mount| mount.mountpoint == mountpoint));
    let answer: Unmounted = ask(&mounted.next()?, "unmount", UNMOUNT_WAIT)?;
    answer.error.is_none().then_some(answer.report)
}

#[cfg(test)]
mod tests;
