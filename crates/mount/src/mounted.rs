//! One live mount of an image, from mounting to unmounting.
//!
//! `served` has the FUSE mount, its loops and their end. This module adds the session that answers,
//! the overlay above, and the control socket. The end of a mount releases the session: waiting
//! READs are answered with EIO.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use client::Session;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::MountError;
use crate::backend::MountBackend;
use crate::control::{Controlled, MountStatus, Server};
use crate::counters::{FuseCounters, Operations};
use crate::device::Access;
use crate::filesystem::{ImageFilesystem, Settings};
use crate::fuse_mount::{Action, MountPoint};
use crate::hint::{self, HintedFile};
use crate::keeper::Keeper;
use crate::record::Recorder;
use crate::report::UnmountReport;
use crate::served::{Made, Served, wait_any};
use crate::sink::Sink;
use crate::source::Source;
use crate::stop::Stop;

/// How often a mount with an overlay looks whether the overlay is still there, beside being told of
/// changes.
const OVERLAY_LOOK: Duration = Duration::from_secs(1);

/// Bytes that the kernel reads ahead in a local image: what it does on disks.
const LOCAL_READAHEAD_BYTES: u32 = 128 << 10;

/// Serving threads of a local image at most: each decodes one block at a time.
const LOCAL_THREADS_MAX: usize = 4;

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// Short name, shown in the mount table as `runnel#name`.
    pub name: String,
    /// The target, as the user gave it; shown by `runnel status`.
    pub target: String,
    /// Whether users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Whether set-user-id bits and file capabilities count. Images come over a network: off unless
    /// asked for.
    pub allow_suid: bool,
    /// Whether device nodes of the image work as devices.
    pub allow_devices: bool,
    /// Serving threads, 1 to 8; of a local image one per core, if that is more.
    pub threads: usize,
    /// Bytes the kernel may read ahead by itself. The default, one page, makes it ask for exactly
    /// the pages that are touched, so that the server learns the truth; what comes next is pushed,
    /// not guessed by the kernel. Of a local image it reads ahead as from any disk: nobody learns.
    pub readahead_bytes: u32,
    /// Present everything as owned by this user and group, as `runnel run` does without root.
    pub owner: Option<(u32, u32)>,
    /// Folder for a writable layer over the image.
    pub overlay: Option<PathBuf>,
    /// Whether `runnel status` shows this mount.
    pub control: bool,
    /// The observer of reads. A recorded mount has one serving thread, and the kernel reads
    /// nothing ahead.
    pub recorder: Option<Arc<dyn Recorder>>,
    /// Whether `fusermount3` may be used when the system call is not allowed.
    pub helper: bool,
    /// The process that mounts for this one, where this one cannot. It has the mount point already.
    pub keeper: Option<Arc<Keeper>>,
    /// Why the session has no device cache, if it should have one; shown by `runnel status`.
    pub cache_problem: Option<String>,
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
            keeper: None,
            cache_problem: None,
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
    /// FUSE, mounted where the user sees it, or at a private directory below an overlay.
    served: Arc<Served>,
    operations: Arc<Operations>,
}

impl Mounted {
    /// Mounts the image of `session` on `mountpoint` and serves it from threads of its own.
    ///
    /// # Errors
    /// The mount point is missing, no directory, in use or stale; FUSE cannot be used; the overlay
    /// cannot be made.
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
        } else if source.is_local() {
            options.readahead_bytes = options.readahead_bytes.max(LOCAL_READAHEAD_BYTES);
            let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
            options.threads = options.threads.max(cores.min(LOCAL_THREADS_MAX));
        }
        let backend = match options.keeper.clone() {
            None => MountBackend::Own(options.mount_point(mountpoint)),
            Some(keeper) => {
                keeper.set_image(source.metadata().id())?;
                MountBackend::Keeper(keeper)
            }
        };
        let operations = Arc::new(Operations::default());
        let settings = Settings { readahead_bytes: options.readahead_bytes, owner: options.owner };
        let filesystem = ImageFilesystem::new(source.clone(), operations.clone(), settings, options.recorder.clone());
        let mut made = Made::new(filesystem, backend, true, options.threads)?;
        let (lower, device) = (made.live.path.clone(), made.live.device);
        let sink = Arc::new(Sink::new(made.connection.clone(), source.metadata().clone(), lower, device));
        let listener = made.control.take();
        let (stored, closed) = (sink.clone(), source.clone());
        let served = made.serve(Box::new(move |_| {
            stored.close();
            closed.shutdown();
        }))?;
        source.attach(sink);
        let shared = Arc::new(Shared { source, options, served, operations });
        let mut mounted = Mounted { shared, _control: None };
        if mounted.shared.options.overlay.is_some() {
            mounted.shared.clone().start_overlay()?;
        }
        if mounted.shared.options.control {
            mounted._control = Some(match listener {
                Some(listener) => Server::start_on(listener, None, mounted.shared.clone())?,
                None => Server::start(mounted.shared.clone())?,
            });
        }
        Ok(mounted)
    }

    /// The mount point, absolute.
    pub fn mountpoint(&self) -> &Path {
        &self.shared.served.live.mountpoint
    }

    /// FUSE requests so far.
    pub fn fuse_counters(&self) -> FuseCounters {
        self.shared.operations.read()
    }

    /// The status that `runnel status` shows.
    pub fn status(&self) -> MountStatus {
        self.shared.status()
    }

    /// Waits until the mount is gone: somebody unmounted it and its last user ended.
    ///
    /// # Errors
    /// The serving loops failed; the mount has been aborted then.
    pub fn wait(&self) -> Result<(), MountError> {
        self.shared.served.wait()
    }

    /// Waits like [`Mounted::wait`], and unmounts when one of the signals comes.
    ///
    /// # Errors
    /// Those of [`Mounted::wait`] and [`Mounted::unmount`].
    pub fn wait_or_stop(&self, stop: &Stop) -> Result<(), MountError> {
        if wait_any(&[&self.shared.served], stop) { self.wait() } else { self.unmount() }
    }

    /// The served FUSE mount.
    pub(crate) fn served(&self) -> &Served {
        &self.shared.served
    }

    /// Whether the mount is gone: [`Mounted::wait`] would return at once.
    pub fn is_over(&self) -> bool {
        self.shared.served.is_over()
    }

    /// Unmounts now, also under running programs: their waiting reads fail with EIO. Ends within
    /// six seconds.
    ///
    /// # Errors
    /// Even aborting the connection did not end the serving loops; they end with the process.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.shared.served.unmount()
    }
}

impl Options {
    /// The mount point and its options, for the process that mounts.
    pub fn mount_point(&self, mountpoint: &Path) -> MountPoint {
        let access = Access {
            name: self.name.clone(),
            is_read_only: true,
            allow_other: self.allow_other,
            allow_suid: self.allow_suid,
            allow_devices: self.allow_devices,
            helper: self.helper,
        };
        MountPoint::new(mountpoint, access, self.overlay.clone())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Callers that want the error call `unmount`.
        let _ = self.shared.served.unmount();
    }
}

impl Shared {
    /// Puts the overlay on the mount point and watches for its end, which must end the image below
    /// it.
    fn start_overlay(self: Arc<Self>) -> Result<(), MountError> {
        self.served.backend.act(Action::Overlay)?;
        let watched = self.clone();
        thread::Builder::new()
            .name("runnel-overlay".into())
            .spawn(move || watched.watch_overlay())
            .map_err(|error| MountError::step("watch", &self.served.live.mountpoint, error))?;
        Ok(())
    }

    fn watch_overlay(&self) {
        let Ok(table) = fs::File::open("/proc/self/mountinfo") else { return };
        let timeout = Timespec { tv_sec: OVERLAY_LOOK.as_secs() as i64, tv_nsec: 0 };
        while !self.served.is_over() {
            if !self.served.live.overlay_is_there() {
                // Its users keep the image below alive until they end.
                let _ = self.served.backend.act(Action::Detach);
                return;
            }
            // The kernel marks the table as exceptional whenever it changes; the timeout covers the
            // end of the loops.
            let _ = rustix::event::poll(&mut [PollFd::new(&table, PollFlags::PRI)], Some(&timeout));
        }
    }
}

impl Controlled for Shared {
    fn status(&self) -> MountStatus {
        MountStatus {
            mountpoint: self.served.live.mountpoint.clone(),
            target: self.options.target.clone(),
            name: self.options.name.clone(),
            image: self.source.metadata().id().to_string(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            refused: self.options.keeper.as_ref().and_then(|keeper| keeper.refused()).map(str::to_string),
            overlay: self.options.overlay.clone(),
            session: self.source.counters(),
            fuse: self.operations.read(),
            device: Some(self.served.live.device),
            restarts: self.options.keeper.as_ref().map_or(0, |keeper| keeper.deaths()),
            cache_problem: self.options.cache_problem.clone().or_else(|| self.source.cache_problem()),
            volume: None,
        }
    }

    fn hint(&self, files: &[HintedFile]) -> Result<usize, String> {
        if self.options.recorder.is_some() {
            return Err("this mount is recorded: nothing is read ahead".into());
        }
        Ok(self.source.hint(&hint::pages(self.source.metadata(), self.options.overlay.as_deref(), files)?))
    }

    fn detach(&self) -> Result<UnmountReport, MountError> {
        self.served.backend.act(Action::Detach)?;
        Ok(UnmountReport::default())
    }

    fn keeper(&self) -> Option<&Keeper> {
        self.options.keeper.as_deref()
    }
}

#[cfg(test)]
mod tests;
