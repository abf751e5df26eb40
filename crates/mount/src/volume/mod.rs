//! Volumes as file systems: files on a server that are read block by block and written back, for
//! any program.
//!
//! The crate `stream` keeps the blocks, the unsent changes and the connection. Here is what FUSE
//! needs beside it. Bottom up: `inodes` (numbers and names; pure), `record` and `kept` (what the
//! next daemon needs), `attributes`, `state` (shared by operations), `names`, `files`, `locking`,
//! `xattrs`, `acls` and `lease` (the operations), `filesystem` (the FUSE trait), and in this file
//! one live mount and its end. docs/semantics.md tells what programs can rely on.
//!
//! At the end, unsent changes get some seconds to reach the server. The rest stays in the outbox
//! or, without one, is lost. The [`UnmountReport`] tells which.

mod acls;
mod attributes;
mod files;
mod filesystem;
mod inodes;
mod kept;
mod lease;
mod locking;
mod locks;
mod names;
mod record;
mod state;
mod xattrs;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stream::{Owner, RemoteVolume};

use self::filesystem::VolumeFilesystem;
use self::kept::Kept;
pub(crate) use self::record::VERSION as RECORDS_VERSION;
use self::state::{Settings, State};
use crate::MountError;
use crate::backend::MountBackend;
use crate::control::{Controlled, MountStatus, Server};
use crate::counters::{FuseCounters, Operations};
use crate::device::Access;
use crate::fuse_mount::{Action, MountPoint};
use crate::hint::HintedFile;
use crate::keeper::Keeper;
use crate::report::UnmountReport;
use crate::served::{Ending, Made, Served, wait_any};
use crate::stop::Stop;

/// How long unsent changes may take to reach the server when the mount ends: once while it is still
/// served, and once after.
const SYNC_WAIT: Duration = Duration::from_secs(5);

/// How long programs may use a detached mount, before the report says that it is in use.
const LEAVE_WAIT: Duration = Duration::from_secs(2);

/// The owners of the files of a mounted volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owners {
    /// The owners that the server tells. A new file belongs to its maker, chown changes the owner,
    /// and special files can be made.
    Keep,
    /// All files belong to the user of the mounting process, and on the server to the server's
    /// user.
    #[default]
    User,
}

/// How to mount a volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Short name, shown in the mount table as `runnel#name`.
    pub name: String,
    /// The target, as the user gave it; shown by `runnel status`.
    pub target: String,
    /// Refuse all changes, also if the volume takes them.
    pub read_only: bool,
    /// Whether users other than the one who mounts may use it.
    pub allow_other: bool,
    /// Honour set-id bits of its files.
    pub allow_suid: bool,
    /// Let its device nodes work.
    pub allow_devices: bool,
    /// The owners of its files.
    pub owners: Owners,
    /// Serving threads, 1 to 8.
    pub threads: usize,
    /// How long the kernel believes names and attributes. The volume believes the server for a time
    /// of its own (`stream::Options::names_ttl`); a change of another device is seen after both at
    /// the latest.
    pub names_ttl: Duration,
    /// Reads and writes go past the page cache, each with its exact range.
    pub direct: bool,
    /// Bytes the kernel may read ahead by itself when a file is read from its start to its end.
    pub readahead_bytes: u32,
    /// Whether `runnel status` shows this mount.
    pub control: bool,
    /// Whether `fusermount3` may be used when the system call is not allowed.
    pub helper: bool,
    /// The process that mounts for this one, where this one cannot. It has the mount point already.
    pub keeper: Option<Arc<Keeper>>,
}

impl Default for VolumeOptions {
    fn default() -> VolumeOptions {
        VolumeOptions {
            name: "volume".into(),
            target: String::new(),
            read_only: false,
            allow_other: false,
            allow_suid: false,
            allow_devices: false,
            owners: Owners::default(),
            threads: 2,
            names_ttl: Duration::from_millis(500),
            direct: false,
            readahead_bytes: units::PAGE_BYTES as u32,
            control: true,
            helper: true,
            keeper: None,
        }
    }
}

/// A live mount of a volume. Dropping it unmounts.
pub struct VolumeMount {
    shared: Arc<Shared>,
    /// Answers `runnel status`; `None` if not wanted.
    _control: Option<Server>,
}

struct Shared {
    volume: Arc<RemoteVolume>,
    options: VolumeOptions,
    served: Arc<Served>,
    operations: Arc<Operations>,
    report: Mutex<Option<UnmountReport>>,
}

impl VolumeMount {
    /// Mounts a volume on `mountpoint` and serves it from threads of its own. Ending the mount
    /// shuts the volume down.
    ///
    /// # Errors
    /// The mount point is missing, no directory, in use or stale; FUSE cannot be used.
    pub fn start(
        volume: Arc<RemoteVolume>,
        mountpoint: &Path,
        options: VolumeOptions,
    ) -> Result<VolumeMount, MountError> {
        let backend = match options.keeper.clone() {
            None => MountBackend::Own(options.mount_point(mountpoint)),
            Some(keeper) => MountBackend::Keeper(keeper),
        };
        let operations = Arc::new(Operations::default());
        let own = Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        let kept = kept(&volume, options.keeper.as_deref())?;
        let settings = Settings {
            writable: kept.is_writable(),
            ttl: options.names_ttl,
            owner: (options.owners == Owners::User).then_some(own),
            direct: options.direct,
            readahead_bytes: options.readahead_bytes,
        };
        let read_only = !settings.writable;
        let state = State::new(volume.clone(), settings, operations.clone(), kept);
        let mut made = Made::new(VolumeFilesystem::new(state.clone()), backend, read_only, options.threads)?;
        let listener = made.control.take();
        state.attach(made.connection.clone());
        let closed = volume.clone();
        let served = made.serve(Box::new(move |ending| {
            if ending == Ending::Forced {
                // Changes that it cannot keep are in its status.
                drop(closed.shutdown());
            }
        }))?;
        let shared = Arc::new(Shared { volume, options, served, operations, report: Mutex::new(None) });
        let mut mounted = VolumeMount { shared, _control: None };
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

    /// The status that `runnel status` shows.
    pub fn status(&self) -> MountStatus {
        self.shared.status()
    }

    /// FUSE requests so far.
    pub fn fuse_counters(&self) -> FuseCounters {
        self.shared.operations.read()
    }

    /// Waits until the mount is gone: somebody unmounted it and its last user ended.
    ///
    /// # Errors
    /// The serving loops failed; the mount has been aborted then.
    pub fn wait(&self) -> Result<UnmountReport, MountError> {
        let served = self.shared.served.wait();
        let report = self.shared.finish();
        served.map(|()| report)
    }

    /// Waits like [`VolumeMount::wait`], and unmounts when one of the signals comes.
    ///
    /// # Errors
    /// Those of [`VolumeMount::wait`] and [`VolumeMount::unmount`].
    pub fn wait_or_stop(&self, stop: &Stop) -> Result<UnmountReport, MountError> {
        if wait_any(&[&self.shared.served], stop) { self.wait() } else { self.unmount() }
    }

    /// Unmounts now, also under running programs: their waiting calls fail. Ends within seventeen
    /// seconds, and at once if nothing is unsent.
    ///
    /// # Errors
    /// Even aborting the connection did not end the serving loops; they end with the process.
    pub fn unmount(&self) -> Result<UnmountReport, MountError> {
        // If the mount is in use, this is the last chance to send the data that was written so far.
        self.shared.sync();
        let ended = self.shared.served.unmount();
        let report = self.shared.finish();
        ended.map(|()| report)
    }
}

/// What an earlier daemon has left, or nothing yet.
fn kept(volume: &RemoteVolume, keeper: Option<&Keeper>) -> Result<Kept, MountError> {
    let info = volume.info();
    let Some(keeper) = keeper else { return Kept::open(None, info.writable) };
    let kept = keeper.set_volume(info.id).and_then(|()| Kept::open(keeper.mount_journal()?, info.writable));
    // No later daemon could do it either.
    kept.inspect_err(|_| keeper.end())
}

impl VolumeOptions {
    /// The mount point and its options, for the process that mounts.
    pub fn mount_point(&self, mountpoint: &Path) -> MountPoint {
        let access = Access {
            name: self.name.clone(),
            is_read_only: self.read_only,
            allow_other: self.allow_other,
            allow_suid: self.allow_suid,
            allow_devices: self.allow_devices,
            helper: self.helper,
        };
        MountPoint::new(mountpoint, access, None)
    }
}

impl Drop for VolumeMount {
    fn drop(&mut self) {
        // Callers that want the error or the report call `unmount`.
        let _ = self.unmount();
    }
}

impl Shared {
    /// Sends unsent changes to the server, in bounded time. Failures are in the volume's status.
    fn sync(&self) {
        let status = self.volume.status();
        if status.unsent.unsent_bytes > 0 || status.unsent.unsent_transactions > 0 {
            let _ = self.volume.wait(SYNC_WAIT, |volume, done| volume.sync_all(done));
        }
    }

    /// Ends the volume when nobody uses the mount any more. Later calls return the same.
    fn finish(&self) -> UnmountReport {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(report) = report.as_ref() {
            return report.clone();
        }
        self.sync();
        let not_kept = self.volume.shutdown();
        let mut said = self.so_far(false);
        for lost in not_kept {
            if !said.lost.contains(&lost) {
                said.lost.push(lost);
            }
        }
        report.insert(said).clone()
    }

    fn so_far(&self, in_use: bool) -> UnmountReport {
        let stream::Status { unsent, lost, .. } = self.volume.status();
        UnmountReport {
            in_use,
            unsent_transactions: if in_use { unsent.unsent_transactions } else { unsent.stored_transactions },
            unsent_bytes: unsent.unsent_bytes,
            lost,
        }
    }
}

impl Controlled for Shared {
    fn status(&self) -> MountStatus {
        MountStatus {
            mountpoint: self.served.live.mountpoint.clone(),
            target: self.options.target.clone(),
            name: self.options.name.clone(),
            image: format!("{:032x}", self.volume.info().id),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            refused: self.options.keeper.as_ref().and_then(|keeper| keeper.refused()).map(str::to_string),
            overlay: None,
            session: client::Counters::default(),
            fuse: self.operations.read(),
            device: Some(self.served.live.device),
            restarts: self.options.keeper.as_ref().map_or(0, |keeper| keeper.deaths()),
            cache_problem: None,
            volume: Some(self.volume.status()),
        }
    }

    fn hint(&self, _files: &[HintedFile]) -> Result<usize, String> {
        Err("this is a mount of a volume, which takes no hints".into())
    }

    fn detach(&self) -> Result<UnmountReport, MountError> {
        self.sync();
        self.served.backend.act(Action::Detach)?;
        if self.served.wait_ended(LEAVE_WAIT) { Ok(self.finish()) } else { Ok(self.so_far(true)) }
    }
}

/// A volume for a program: where it appears, and how it is mounted.
#[derive(Clone, Debug)]
pub struct Data {
    /// Path inside the program's name space.
    pub inside: PathBuf,
    /// How to mount.
    pub options: VolumeOptions,
}
