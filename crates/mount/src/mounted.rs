//! One live mount: made, served, and taken away, with a bound on every wait.
//!
//! `device` makes the FUSE mount, fuser's loops serve it. A supervisor thread waits for the serving loops; when they end, for whatever reason,
//! the session is shut down and the device closed, so that no program waits for a daemon that no longer serves.
//!
//! Ending: whoever unmounts from outside (`runnel umount`, `umount -l`) leaves running programs their files; the
//! daemon serves on until the last of them ends. [`Mounted::unmount`] is for a daemon that must go now: it asks the
//! kernel nicely, then answers all waiting READs with EIO and aborts the connection.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use client::Session;
use fuser::{Config, SessionACL};
use host::signals::Signals;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::connection::Connection;
use crate::control::{Controlled, MountStatus, Server};
use crate::counters::{FuseCounters, Operations};
use crate::filesystem::{ImageFilesystem, Settings};
use crate::hint::HintedFile;
use crate::mountpoint;
use crate::record::Recorder;
use crate::runtime::{PrivateDirectory, Purpose};
use crate::sink::Sink;
use crate::source::Source;
use crate::{MountError, device, hint, overlay};

/// How long the kernel may take to end the session once nothing uses the mount, and again after each harder step.
const END_WAIT: Duration = Duration::from_secs(2);

/// How often a mount with an overlay looks whether the overlay is still there, beside being told of changes.
const OVERLAY_LOOK: Duration = Duration::from_secs(1);

/// Serving threads at most: they only parse requests and look into memory, so more of them only cost memory.
const THREADS_MAX: usize = 8;

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// Short name, shown in the mount table as `runnel#name`.
    pub name: String,
    /// What is mounted, as the user gave it; shown by `runnel status`.
    pub target: String,
    /// Whether users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Whether set-user-id bits and file capabilities count. Images come over a network: off unless asked for.
    pub allow_suid: bool,
    /// Whether device nodes of the image work as devices.
    pub allow_devices: bool,
    /// Serving threads, 1 to 8.
    pub threads: usize,
    /// Bytes the kernel may read ahead by itself. The default, one page, makes it ask for exactly the pages that are
    /// touched, so that the server learns the truth; what comes next is pushed, not guessed by the kernel.
    pub readahead_bytes: u32,
    /// Present everything as owned by this user and group, as `runnel run` does without root.
    pub owner: Option<(u32, u32)>,
    /// Folder for a writable layer over the image.
    pub overlay: Option<PathBuf>,
    /// Whether `runnel status` shows this mount.
    pub control: bool,
    /// Who is told what is read. A recorded mount has one serving thread, and the kernel reads nothing ahead.
    pub recorder: Option<Arc<dyn Recorder>>,
    /// Whether `fusermount3` may be used when the system call is not allowed.
    pub helper: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "image".into(),
            target: String::new(),
            allow_other: false,
            allow_suid: false,
            allow_devices: false,
            threads: 2,
            readahead_bytes: units::PAGE_BYTES as u32,
            owner: None,
            overlay: None,
            control: true,
            recorder: None,
            helper: true,
        }
    }
}

/// A live mount. Dropping it unmounts.
pub struct Mounted {
    shared: Arc<Shared>,
    /// Answers `runnel status`; `None` if not wanted.
    _control: Option<Server>,
}

struct Shared {
    source: Arc<dyn Source>,
    options: Options,
    /// Where the user sees it.
    mountpoint: PathBuf,
    /// Where FUSE is mounted: the same, or a private directory below an overlay.
    lower: PathBuf,
    /// Keeps the private directory until the end.
    _private: Option<PrivateDirectory>,
    /// Device number of the FUSE mount.
    device: (u32, u32),
    connection: Arc<Connection>,
    sink: Arc<Sink>,
    operations: Arc<Operations>,
    /// How the serving loops ended, once they have.
    ended: Mutex<Option<Result<(), String>>>,
    changed: Condvar,
    /// Readable once they have ended.
    over: OwnedFd,
}

/// The signals that ask a daemon to stop (TERM, INT, HUP), held back from this process so that
/// [`Mounted::wait_or_stop`] can act on them. Without this they would end the process and leave a dead mount behind.
pub struct Stop {
    pub(crate) signals: Signals,
}

impl Stop {
    /// Blocks the signals from now on, for this thread and all it starts: call it before the first thread.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn listen() -> Result<Stop, MountError> {
        let signals = Signals::block(host::signals::STOP)
            .map_err(|error| MountError::step("receive signals in", "/proc/self", error))?;
        Ok(Stop { signals })
    }

    /// Waits for one of the signals; returns its number.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn wait(&self) -> Result<i32, MountError> {
        loop {
            let polled = rustix::event::poll(&mut [PollFd::from_borrowed_fd(self.signals.fd(), PollFlags::IN)], None);
            match polled.map_err(io::Error::from).and_then(|_| self.signals.next()) {
                Ok(Some(signal)) => return Ok(signal),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(MountError::step("receive signals in", "/proc/self", error)),
            }
        }
    }
}

impl Mounted {
    /// Mounts the image of `session` on `mountpoint` and serves it from threads of its own.
    ///
    /// # Errors
    /// The mount point is missing, no directory, in use or stale; FUSE cannot be used; the overlay cannot be made.
    pub fn start(session: Arc<Session>, mountpoint: &Path, options: Options) -> Result<Mounted, MountError> {
        Mounted::start_source(session, mountpoint, options)
    }

    pub(crate) fn start_source(
        source: Arc<dyn Source>,
        mountpoint: &Path,
        mut options: Options,
    ) -> Result<Mounted, MountError> {
        if options.recorder.is_some() {
            (options.threads, options.readahead_bytes) = (1, 0);
        }
        let mountpoint = mountpoint::validate(mountpoint)?;
        let private = options.overlay.as_ref().map(|_| PrivateDirectory::new(Purpose::Lower)).transpose()?;
        let lower = private.as_ref().map_or_else(|| mountpoint.clone(), |private| private.path().to_path_buf());
        let operations = Arc::new(Operations::default());
        let settings = Settings { readahead_bytes: options.readahead_bytes, owner: options.owner };
        let filesystem = ImageFilesystem::new(source.clone(), operations.clone(), settings, options.recorder.clone());
        let fuse = make(filesystem, &lower, &options)?;
        let started = serve(fuse, source, operations, mountpoint, lower.clone(), private, options);
        if started.is_err() {
            // The mount would outlive us as a dead one.
            let _ = mountpoint::detach(&lower);
        }
        let shared = started?;
        let mut mounted = Mounted { shared, _control: None };
        if mounted.shared.options.overlay.is_some() {
            mounted.shared.clone().start_overlay()?;
        }
        if mounted.shared.options.control {
            mounted._control = Some(Server::start(mounted.shared.clone())?);
        }
        Ok(mounted)
    }

    /// The mount point, absolute.
    pub fn mountpoint(&self) -> &Path {
        &self.shared.mountpoint
    }

    /// FUSE requests so far.
    pub fn fuse_counters(&self) -> FuseCounters {
        self.shared.operations.read()
    }

    /// What `runnel status` shows.
    pub fn status(&self) -> MountStatus {
        self.shared.status()
    }

    /// Waits until the mount is gone: somebody unmounted it and its last user ended.
    ///
    /// # Errors
    /// The serving loops failed; the mount has been aborted then.
    pub fn wait(&self) -> Result<(), MountError> {
        let mut ended = self.shared.lock();
        loop {
            match ended.as_ref() {
                Some(Ok(())) => return Ok(()),
                Some(Err(text)) => {
                    let error = io::Error::other(text.clone());
                    return Err(MountError::step("serve", &self.shared.mountpoint, error));
                }
                None => ended = self.shared.changed.wait(ended).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Waits like [`Mounted::wait`], and unmounts when one of the signals comes.
    ///
    /// # Errors
    /// Those of [`Mounted::wait`] and [`Mounted::unmount`].
    pub fn wait_or_stop(&self, stop: &Stop) -> Result<(), MountError> {
        if wait_any(&[self], stop) { self.wait() } else { self.unmount() }
    }

    /// Whether the mount is gone: [`Mounted::wait`] would return at once.
    pub fn is_over(&self) -> bool {
        self.shared.lock().is_some()
    }

    /// Unmounts now, also under running programs: their waiting reads fail with EIO. Ends within six seconds.
    ///
    /// # Errors
    /// Even aborting the connection did not end the serving loops; they end with the process.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.shared.unmount()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Whoever wants the error calls `unmount`.
        let _ = self.shared.unmount();
    }
}

/// Waits until one of the mounts is over (`true`), or a signal to stop came.
pub(crate) fn wait_any(mounts: &[&Mounted], stop: &Stop) -> bool {
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(stop.signals.fd(), PollFlags::IN)];
        fds.extend(mounts.iter().map(|mounted| PollFd::new(&mounted.shared.over, PollFlags::IN)));
        // Interruptions and shortness of memory pass.
        let _ = rustix::event::poll(&mut fds, None);
        drop(fds);
        if mounts.iter().any(|mounted| mounted.is_over()) {
            return true;
        }
        if stop.signals.next().is_ok_and(|arrived| arrived.is_some()) {
            return false;
        }
    }
}

/// A mounted file system whose loops do not run yet.
struct Fuse {
    session: fuser::Session<ImageFilesystem>,
    device: OwnedFd,
}

fn make(filesystem: ImageFilesystem, lower: &Path, options: &Options) -> Result<Fuse, MountError> {
    let mut config = Config::default();
    config.n_threads = Some(options.threads.clamp(1, THREADS_MAX));
    let handed = device::mount(lower, options)?;
    let fail = |error| {
        // The mount would outlive us as a dead one.
        let _ = mountpoint::detach(lower);
        MountError::step("start FUSE on", lower, error)
    };
    let device = handed.try_clone().map_err(fail)?;
    // The kernel itself keeps other users out; fuser's check beside it would only compare the same ids again.
    let session = fuser::Session::from_fd(filesystem, handed, SessionACL::All, config).map_err(fail)?;
    Ok(Fuse { session, device })
}

/// Starts the loops, the supervisor, and the session's way into the page cache.
fn serve(
    fuse: Fuse,
    source: Arc<dyn Source>,
    operations: Arc<Operations>,
    mountpoint: PathBuf,
    lower: PathBuf,
    private: Option<PrivateDirectory>,
    options: Options,
) -> Result<Arc<Shared>, MountError> {
    let entry = mountpoint::mounted_at(&lower)
        .and_then(|entry| entry.ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(|error| MountError::step("find in the mount table", &lower, error))?;
    let connection = Arc::new(Connection::new(fuse.device, entry.device.1));
    let sink = Arc::new(Sink::new(connection.clone(), source.metadata().clone(), lower.clone(), entry.device));
    let over = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
        .map_err(|error| MountError::step("start serving", &lower, error))?;
    let shared = Arc::new(Shared {
        source,
        options,
        mountpoint,
        lower,
        _private: private,
        device: entry.device,
        connection,
        sink,
        operations,
        ended: Mutex::new(None),
        changed: Condvar::new(),
        over,
    });
    let fail = |error| MountError::step("start serving", &shared.lower, error);
    let supervised = shared.clone();
    thread::Builder::new()
        .name("runnel-mount".into())
        .spawn(move || {
            // Starts the serving threads and waits for them; one that panicked is among the errors.
            let result = fuse.session.run().map_err(|error| error.to_string());
            supervised.finish(result);
        })
        .map_err(fail)?;
    shared.source.attach(shared.sink.clone());
    Ok(shared)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs when the serving loops are over: nothing may wait for them any more.
    fn finish(&self, result: Result<(), String>) {
        if result.is_err() {
            self.abort();
        }
        self.sink.close();
        self.source.shutdown();
        self.connection.close();
        *self.lock() = Some(result);
        self.changed.notify_all();
        // Written once, so there is room.
        let _ = rustix::io::write(&self.over, &1u64.to_le_bytes());
    }

    /// Waits until the loops are over, at most `wait`.
    fn wait_ended(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut ended = self.lock();
        while ended.is_none() {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            ended = self.changed.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn unmount(&self) -> Result<(), MountError> {
        if self.lock().is_some() {
            return Ok(());
        }
        if self.options.overlay.is_some() && self.overlay_is_there() {
            // Detached rather than unmounted: programs that still use it must not keep the image below.
            mountpoint::detach(&self.mountpoint)?;
        }
        let gone = match self.is_there() {
            // Somebody has taken it away already, and it still has users; what is mounted there now is not ours.
            false => true,
            true => match rustix::mount::unmount(&self.lower, UnmountFlags::NOFOLLOW) {
                Ok(()) => true,
                Err(Errno::PERM) => mountpoint::detach(&self.lower).map(|()| true)?,
                Err(_) => false,
            },
        };
        if gone && self.wait_ended(END_WAIT) {
            return Ok(());
        }
        // In use. Waiting READs end with EIO, then the kernel is told to expect nothing more of us.
        self.sink.close();
        self.source.shutdown();
        let force = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        let forced = !gone && rustix::mount::unmount(&self.lower, force).is_ok();
        if !forced || !self.wait_ended(END_WAIT) {
            self.abort();
        }
        if self.wait_ended(END_WAIT) {
            return Ok(());
        }
        let error = io::Error::from(io::ErrorKind::TimedOut);
        Err(MountError::step("end the serving of", &self.mountpoint, error))
    }

    /// The last resort: ends the FUSE connection from the side, through the control file system of FUSE.
    fn abort(&self) {
        if self.connection.abort().is_ok() {
            return;
        }
        // It is not mounted everywhere; root can do so for a moment, anyone else has to end the process.
        let Ok(private) = PrivateDirectory::new(Purpose::Control) else { return };
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        if rustix::mount::mount("fusectl", private.path(), "fusectl", flags, None).is_ok() {
            let path = private.path().join(self.connection.minor().to_string()).join("abort");
            let _ = fs::write(path, "1");
            let _ = mountpoint::detach(private.path());
        }
    }

    /// Puts the overlay on the mount point and watches for its end, which must end the image below it.
    fn start_overlay(self: Arc<Self>) -> Result<(), MountError> {
        let Some(folder) = &self.options.overlay else { return Ok(()) };
        overlay::mount(&self.lower, folder, &self.mountpoint, &device::shown(&self.options.name))?;
        let watched = self.clone();
        thread::Builder::new()
            .name("runnel-overlay".into())
            .spawn(move || watched.watch_overlay())
            .map_err(|error| MountError::step("watch", &self.mountpoint, error))?;
        Ok(())
    }

    fn watch_overlay(&self) {
        let Ok(table) = fs::File::open("/proc/self/mountinfo") else { return };
        let timeout = Timespec { tv_sec: OVERLAY_LOOK.as_secs() as i64, tv_nsec: 0 };
        while self.lock().is_none() {
            if !self.overlay_is_there() {
                // Its users keep the image below alive until they end.
                let _ = mountpoint::detach(&self.lower);
                return;
            }
            // The kernel marks the table as exceptional whenever it changes; the timeout covers the end of the loops.
            let _ = rustix::event::poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&timeout));
        }
    }

    /// Whether our FUSE mount is still in the mount table.
    fn is_there(&self) -> bool {
        mountpoint::mounted_at(&self.lower)
            .is_ok_and(|entry| entry.is_some_and(|entry| entry.device.1 == self.connection.minor()))
    }

    fn overlay_is_there(&self) -> bool {
        // If the table cannot be read, assume nothing changed.
        mountpoint::mounted_at(&self.mountpoint)
            .map_or(true, |entry| entry.is_some_and(|entry| entry.kind == "overlay"))
    }
}

impl Controlled for Shared {
    fn status(&self) -> MountStatus {
        MountStatus {
            mountpoint: self.mountpoint.clone(),
            target: self.options.target.clone(),
            name: self.options.name.clone(),
            image: self.source.metadata().id().to_string(),
            pid: std::process::id(),
            overlay: self.options.overlay.clone(),
            session: self.source.counters(),
            fuse: self.operations.read(),
            device: Some(self.device),
        }
    }

    fn hint(&self, files: &[HintedFile]) -> Result<usize, String> {
        if self.options.recorder.is_some() {
            return Err("this mount is recorded: nothing is read ahead".into());
        }
        Ok(self.source.hint(&hint::pages(self.source.metadata(), self.options.overlay.as_deref(), files)?))
    }

    fn detach(&self) -> Result<(), MountError> {
        if self.options.overlay.is_some() {
            mountpoint::detach(&self.mountpoint)?;
            // The watcher may be quicker; either way it is gone.
            let _ = mountpoint::detach(&self.lower);
            return Ok(());
        }
        mountpoint::detach(&self.lower)
    }
}

#[cfg(test)]
mod tests;
