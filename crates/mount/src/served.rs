//! A served FUSE mount: its loops, the supervisor, and the end, with a bound on every wait.
//!
//! A [`MountBackend`] makes the FUSE mount, and the loops of a `fuse::Session` serve it. A
//! supervisor thread waits for the serving loops. When they end, for whatever reason, it releases
//! everything that waits for an answer and closes the device, so that no program waits for a daemon
//! that no longer serves.
//!
//! An unmount from outside (`runnel umount`, `umount -l`) leaves running programs their files; the
//! daemon serves until the last of them ends. [`Served::unmount`] is for a daemon that must end
//! now. It first asks the kernel, then lets all waiting requests fail and aborts the connection.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fuse::Filesystem;
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::MountError;
use crate::backend::MountBackend;
use crate::connection::Connection;
use crate::fuse_mount::{Action, Fresh, Live};
use crate::stop::Stop;

/// How long the kernel may take to end the session once nothing uses the mount, and again after
/// each harder step.
const END_WAIT: Duration = Duration::from_secs(2);

/// Serving threads at most: they only parse requests and look into memory, so more of them only
/// cost memory.
const THREADS_MAX: usize = 8;

/// Why waiting requests are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The mount must go though it is in use: all waiting requests, and all later ones, have to
    /// fail.
    Forced,
    /// The serving loops are over: no request waits, and none will come.
    Over,
}

/// Releases waiting requests; may be called more than once.
pub(crate) type LetGo = Box<dyn Fn(Ending) + Send + Sync>;

/// A mounted file system whose loops do not run yet. Unmounts if it is dropped.
pub(crate) struct Made<F: Filesystem> {
    session: Option<fuse::Session<F>>,
    backend: Option<MountBackend>,
    pub(crate) live: Live,
    pub(crate) connection: Arc<Connection>,
    /// Where `runnel status` asks, if a keeper listens there already.
    pub(crate) control: Option<UnixListener>,
}

/// A mounted file system that is served.
pub(crate) struct Served {
    pub(crate) backend: MountBackend,
    pub(crate) live: Live,
    connection: Arc<Connection>,
    let_go: LetGo,
    /// How the serving loops ended, once they have.
    ended: Mutex<Option<Result<(), String>>>,
    changed: Condvar,
    /// Readable once they have ended.
    over: OwnedFd,
}

/// Waits until one of the mounts is over (`true`), or a signal to stop came.
pub(crate) fn wait_any(mounts: &[&Served], stop: &Stop) -> bool {
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN)];
        fds.extend(mounts.iter().map(|served| PollFd::new(&served.over, PollFlags::IN)));
        // Interruptions and shortness of memory pass.
        let _ = rustix::event::poll(&mut fds, None);
        drop(fds);
        if mounts.iter().any(|served| served.is_over()) {
            return true;
        }
        if stop.arrived().is_some() {
            return false;
        }
    }
}

impl<F: Filesystem> Made<F> {
    /// Mounts FUSE, to be served by `threads` threads.
    ///
    /// # Errors
    /// Those of [`MountBackend::mount`].
    pub(crate) fn new(
        filesystem: F,
        backend: MountBackend,
        read_only: bool,
        threads: usize,
    ) -> Result<Made<F>, MountError> {
        let Fresh { mount, live, control } = backend.mount(read_only)?;
        let start = || -> Result<_, io::Error> {
            let device = mount.device.try_clone()?;
            let session = fuse::Session::new(filesystem, mount, threads.clamp(1, THREADS_MAX))?;
            Ok((session, Arc::new(Connection::new(device, live.device.1))))
        };
        match start() {
            Ok((session, connection)) => {
                Ok(Made { session: Some(session), backend: Some(backend), live, connection, control })
            }
            Err(error) => {
                // The mount would outlive us as a dead one.
                let _ = backend.act(Action::Detach);
                Err(MountError::step("start FUSE on", live.path, error))
            }
        }
    }

    /// Starts the loops and the supervisor.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub(crate) fn serve(mut self, let_go: LetGo) -> Result<Arc<Served>, MountError> {
        let path = self.live.path.clone();
        let fail = |error: io::Error| MountError::step("start serving", &path, error);
        let over = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| fail(error.into()))?;
        let backend = self.backend.take().ok_or_else(|| fail(io::ErrorKind::NotFound.into()))?;
        let served = Arc::new(Served {
            backend,
            live: self.live.clone(),
            connection: self.connection.clone(),
            let_go,
            ended: Mutex::new(None),
            changed: Condvar::new(),
            over,
        });
        let supervised = served.clone();
        let session = self.session.take();
        let started = thread::Builder::new().name("runnel-mount".into()).spawn(move || {
            // Starts the serving threads and waits for them; one that panicked is among the errors.
            let result = session.map_or(Ok(()), |session| session.run().map_err(|error| error.to_string()));
            supervised.finish(result);
        });
        match started {
            Ok(_) => Ok(served),
            Err(error) => {
                // The mount would outlive us as a dead one.
                let _ = served.backend.act(Action::Detach);
                Err(fail(error))
            }
        }
    }
}

impl<F: Filesystem> Drop for Made<F> {
    fn drop(&mut self) {
        if let Some(backend) = &self.backend {
            // The mount would outlive us as a dead one.
            let _ = backend.act(Action::Detach);
        }
    }
}

impl Served {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the loops have ended: [`Served::wait`] would return at once.
    pub(crate) fn is_over(&self) -> bool {
        self.lock().is_some()
    }

    /// Waits until the mount is gone: somebody unmounted it and its last user ended.
    ///
    /// # Errors
    /// The serving loops failed; the mount has been aborted then.
    pub(crate) fn wait(&self) -> Result<(), MountError> {
        let mut ended = self.lock();
        loop {
            match ended.as_ref() {
                Some(Ok(())) => return Ok(()),
                Some(Err(text)) => {
                    return Err(MountError::step("serve", &self.live.path, io::Error::other(text.clone())));
                }
                None => ended = self.changed.wait(ended).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Runs when the serving loops are over: nothing may wait for them any more.
    fn finish(&self, result: Result<(), String>) {
        if result.is_err() {
            let _ = self.backend.act(Action::Abort);
        }
        (self.let_go)(Ending::Over);
        self.connection.close();
        self.backend.end();
        *self.lock() = Some(result);
        self.changed.notify_all();
        // Written once, so there is room.
        let _ = rustix::io::write(&self.over, &1u64.to_le_bytes());
    }

    /// Waits until the loops are over, at most `wait`.
    pub(crate) fn wait_ended(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut ended = self.lock();
        while ended.is_none() {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return false };
            ended = self.changed.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Unmounts now, also under running programs: their waiting requests fail. Ends within six
    /// seconds.
    ///
    /// # Errors
    /// Even aborting the connection did not end the serving loops; they end with the process.
    pub(crate) fn unmount(&self) -> Result<(), MountError> {
        if self.is_over() {
            return Ok(());
        }
        let gone = match self.backend.act(Action::Unmount) {
            // The loops have ended meanwhile, and the keeper with them.
            Err(_) if self.is_over() => return Ok(()),
            done => done?,
        };
        if gone && self.wait_ended(END_WAIT) {
            return Ok(());
        }
        // In use. Waiting requests fail, then the kernel is told to expect nothing more of us.
        (self.let_go)(Ending::Forced);
        let forced = !gone && self.backend.act(Action::Force).unwrap_or(false);
        if !forced || !self.wait_ended(END_WAIT) {
            // The wait below tells if that fails.
            let _ = self.backend.act(Action::Abort);
        }
        if self.wait_ended(END_WAIT) {
            return Ok(());
        }
        Err(MountError::step("end the serving of", &self.live.path, io::Error::from(io::ErrorKind::TimedOut)))
    }

    /// As a connection that breaks.
    #[cfg(test)]
    pub(crate) fn abort(&self) {
        self.connection.abort().expect("root can");
    }
}
