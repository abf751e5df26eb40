//! An image in a local file, mounted by the kernel's EROFS: `runnel mount --kernel`.
//!
//! The crate `erofs` derives the metadata of an EROFS file system from the image, and the position
//! of each chunk on a virtual blob. A small FUSE file system (`files`) serves both as two files. It
//! decodes blocks when slots of the blob are read (`blocks`). The kernel mounts the first file over
//! the second. Names, attributes and pages that were read once then cost the daemon nothing.
//!
//! The FUSE mount is detached as soon as EROFS has opened its files. So no path leads to it, and it
//! lives exactly as long as EROFS is mounted or in use. Hence `umount` by any means ends both. If
//! the daemon dies, one ordinary mount is left, which `runnel umount` removes.

mod files;
mod seal;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use client::{Counters, FileBlocks};
use erofs::Volume;
use image::Limits;
use nix::sched::CloneFlags;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use self::files::{BLOB_NAME, Files};
pub use self::seal::{FileCheck, Sealing, SignedFile};
use crate::connection::Connection;
use crate::control::{Controlled, MountStatus, Server};
use crate::counters::Operations;
use crate::device::Access;
use crate::hint::HintedFile;
use crate::mounted::Options;
use crate::mountpoint::{EROFS_TYPE, SOURCE_PREFIX};
use crate::report::UnmountReport;
use crate::runtime::{PrivateDirectory, Purpose};
use crate::stop::Stop;
use crate::{FuseCounters, MountError, device, mountpoint};

/// How long the kernel may take to end the serving once nothing uses the mount, and again after
/// being forced.
const END_WAIT: Duration = Duration::from_secs(2);

/// Bytes of decoded blocks kept: with blocks of 64 KiB the 128 used last. A program that starts
/// goes back and forth between the blocks of a few dozen files. Blocks decoded for one start of
/// Python from an image in the order of its tree, and from one with similar chunks together: 626
/// and 1,088 with 1 MiB, 526 and 825 with 8, 489 and 694 with 16, 471 and 614 with all kept. A
/// block costs some 150 us to decode, and a device has other uses for the memory.
const CACHE_BYTES: usize = 8 << 20;

/// Serving threads at most: each decodes one block at a time.
const THREADS_MAX: usize = 4;

/// Where the administrator may lower the pages of a FUSE request (from Linux 6.13 on).
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

/// A live mount by EROFS. Dropping it unmounts.
pub struct KernelMount {
    shared: Arc<Shared>,
    /// Answers `runnel status`; `None` if not wanted.
    _control: Option<Server>,
}

struct Shared {
    blocks: Arc<FileBlocks>,
    options: Options,
    mountpoint: PathBuf,
    /// Minor device number of the EROFS mount, to tell it from what others mount there.
    minor: u32,
    connection: Connection,
    operations: Arc<Operations>,
    left_out: u64,
    /// Why the image file is not sealed, if it should be.
    not_sealed: Option<String>,
    /// How the serving loops ended, once they have.
    ended: Mutex<Option<Result<(), String>>>,
    changed: Condvar,
    /// Readable once they have ended.
    over: OwnedFd,
}

impl KernelMount {
    /// Mounts the image in the file `image` on `mountpoint`. Of `options`, the name, the target,
    /// the two permissions, and whether there is a control socket count.
    ///
    /// # Errors
    /// The caller is not root, the kernel cannot do it, the image is damaged or passes a limit of
    /// EROFS, or the mount point cannot be used.
    pub fn start(image: &Path, mountpoint: &Path, options: Options) -> Result<KernelMount, MountError> {
        KernelMount::start_checked(image, mountpoint, options, &FileCheck::default())
    }

    /// The same with a file that must be what its publisher signed, and is sealed.
    ///
    /// # Errors
    /// Those of [`KernelMount::start`]; the file does not pass.
    pub fn start_checked(
        image: &Path,
        mountpoint: &Path,
        options: Options,
        check: &FileCheck,
    ) -> Result<KernelMount, MountError> {
        if !rustix::process::geteuid().is_root() {
            return Err(MountError::Kernel { problem: "this needs root: EROFS is mounted by the kernel".into() });
        }
        check_request_limit(fs::read_to_string(PAGES_LIMIT).ok().as_deref())?;
        let mountpoint = mountpoint::validate(mountpoint)?;
        let (file, metadata) = client::open_file(image, &Limits::default())?;
        let not_sealed = check.run(&file.0, image, metadata.id())?;
        let volume = Volume::build(&metadata).map_err(|error| MountError::Kernel { problem: error.to_string() })?;
        let left_out = volume.attributes_left_out();
        let blocks = Arc::new(FileBlocks::new(file, Arc::new(metadata), CACHE_BYTES));
        let operations = Arc::new(Operations::default());
        let name = format!("{SOURCE_PREFIX}{}", device::shown(&options.name).replace('/', "_"));
        let files = Files::new(blocks.clone(), volume, name.clone(), operations.clone());

        let private = PrivateDirectory::new(Purpose::Kernel)?;
        let served = Served::start(files, private.path(), &options)?;
        let flags = flags(&options);
        let mounted = mount_from(private.path(), &name, &mountpoint, flags);
        // From here on EROFS alone keeps it alive; if EROFS is not there, the serving ends.
        let detached = mountpoint::detach(private.path());
        drop(private);
        mounted?;
        let minor = detached.and_then(|()| minor_of(&mountpoint)).inspect_err(|_| {
            let _ = mountpoint::detach(&mountpoint);
        })?;
        let Served { connection, ended, over } = served;
        let shared = Arc::new(Shared {
            blocks,
            options,
            mountpoint,
            minor,
            connection,
            operations,
            left_out,
            not_sealed,
            ended: Mutex::new(None),
            changed: Condvar::new(),
            over,
        });
        let supervised = shared.clone();
        let watching = thread::Builder::new().name("runnel-kernel".into()).spawn(move || {
            let result = ended.join().unwrap_or_else(|_| Err("a serving thread panicked".into()));
            supervised.finish(result);
        });
        let mut mounted = KernelMount { shared, _control: None };
        watching.map_err(|error| MountError::step("watch", &mounted.shared.mountpoint, error))?;
        if mounted.shared.options.control {
            mounted._control = Some(Server::start(mounted.shared.clone())?);
        }
        Ok(mounted)
    }

    /// The mount point, absolute.
    pub fn mountpoint(&self) -> &Path {
        &self.shared.mountpoint
    }

    /// The status that `runnel status` shows. Of the session's counters, those of READs, blocks and
    /// errors are filled.
    pub fn status(&self) -> MountStatus {
        self.shared.status()
    }

    /// FUSE requests so far: what EROFS read from its two files.
    pub fn fuse_counters(&self) -> FuseCounters {
        self.shared.operations.read()
    }

    /// Extended attributes of the image that EROFS has no form for, so that the mount lacks them.
    pub fn attributes_left_out(&self) -> u64 {
        self.shared.left_out
    }

    /// Why the image file is not sealed, if it should be where that is possible.
    pub fn not_sealed(&self) -> Option<&str> {
        self.shared.not_sealed.as_deref()
    }

    /// Waits until the mount is gone: somebody unmounted it and its last user ended.
    ///
    /// # Errors
    /// The serving loops failed; reads of what the kernel has not cached fail then.
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

    /// Waits like [`KernelMount::wait`], and unmounts when one of the signals comes.
    ///
    /// # Errors
    /// Those of [`KernelMount::wait`] and [`KernelMount::unmount`].
    pub fn wait_or_stop(&self, stop: &Stop) -> Result<(), MountError> {
        loop {
            let mut fds =
                [PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN), PollFd::new(&self.shared.over, PollFlags::IN)];
            // Interruptions and shortness of memory pass.
            let _ = rustix::event::poll(&mut fds, None);
            if self.shared.lock().is_some() {
                return self.wait();
            }
            if stop.arrived().is_some() {
                return self.unmount();
            }
        }
    }

    /// Unmounts now, also under running programs: reads of what the kernel has not cached fail from
    /// then on. Ends within four seconds.
    ///
    /// # Errors
    /// The mount cannot be detached, or even aborting the connection did not end the serving loops.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.shared.unmount()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        // Callers that want the error call `unmount`.
        let _ = self.shared.unmount();
    }
}

/// A run of slots must fit into one request: EROFS would take the rest of a read of which only a
/// part succeeds for zeros. `limit` is the text of [`PAGES_LIMIT`], if the kernel has that.
fn check_request_limit(limit: Option<&str>) -> Result<(), MountError> {
    let limit = limit.and_then(|text| text.trim().parse::<u32>().ok());
    match limit.filter(|limit| *limit < erofs::RUN_SLOTS_MAX) {
        None => Ok(()),
        Some(limit) => Err(MountError::Kernel {
            problem: format!("{PAGES_LIMIT} is {limit}; with less than its usual 256 damage could read as zeros"),
        }),
    }
}

/// The FUSE mount below, being served.
struct Served {
    connection: Connection,
    ended: thread::JoinHandle<Result<(), String>>,
    over: OwnedFd,
}

impl Served {
    fn start(files: Files, path: &Path, options: &Options) -> Result<Served, MountError> {
        let over = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|error| MountError::step("start serving", path, error))?;
        let private = Access {
            name: options.name.clone(),
            is_read_only: true,
            allow_other: false,
            allow_suid: false,
            allow_devices: false,
            helper: false,
        };
        let handed = device::mount(path, &private)?;
        let start = || -> Result<Served, io::Error> {
            let device = handed.try_clone()?;
            let entry = mountpoint::mounted_at(path)?.ok_or(io::ErrorKind::NotFound)?;
            let threads = thread::available_parallelism().map_or(1, usize::from).clamp(1, THREADS_MAX);
            let session = fuse::Session::new(files, handed.into(), threads)?;
            let ended = thread::Builder::new()
                .name("runnel-serve".into())
                .spawn(move || session.run().map_err(|error| error.to_string()))?;
            Ok(Served { connection: Connection::new(device, entry.device.1), ended, over })
        };
        start().map_err(|error| {
            // The mount would outlive us as a dead one.
            let _ = mountpoint::detach(path);
            MountError::step("start FUSE on", path, error)
        })
    }
}

fn flags(options: &Options) -> MountFlags {
    let mut flags = MountFlags::RDONLY | MountFlags::NOATIME;
    if !options.allow_suid {
        flags |= MountFlags::NOSUID;
    }
    if !options.allow_devices {
        flags |= MountFlags::NODEV;
    }
    flags
}

/// Mounts EROFS from the file `name` in the directory `folder`, its blob beside it.
///
/// The source stands in the mount table as it was given. A thread with a working directory of its
/// own gives it relative to `folder`, so that the table shows the image's name and not a path that
/// is about to vanish.
fn mount_from(folder: &Path, name: &str, target: &Path, flags: MountFlags) -> Result<(), MountError> {
    let data = CString::new(format!("device={BLOB_NAME}")).map_err(io::Error::from);
    let data = data.map_err(|error| MountError::step("mount EROFS on", target, error))?;
    let work = || -> Result<(), Errno> {
        nix::sched::unshare(CloneFlags::CLONE_FS).map_err(|error| Errno::from_raw_os_error(error as i32))?;
        rustix::process::chdir(folder)?;
        rustix::mount::mount(name, target, EROFS_TYPE, flags, Some(data.as_c_str()))
    };
    let result = thread::scope(|scope| scope.spawn(work).join()).unwrap_or(Err(Errno::IO));
    result.map_err(|error| refusal(error, target))
}

/// The meaning of the kernel's refusal to mount EROFS.
fn refusal(error: Errno, target: &Path) -> MountError {
    let problem = match error {
        Errno::NODEV => "this kernel has no EROFS (CONFIG_EROFS_FS; `modprobe erofs` loads it where it is a module)",
        Errno::NOTBLK => {
            "this kernel's EROFS mounts only block devices: from Linux 6.12 on, with CONFIG_EROFS_FS_BACKED_BY_FILE, \
             it mounts files"
        }
        Errno::PERM | Errno::ACCESS => "this process may not mount file systems, though it is root (in a container?)",
        Errno::INVAL | Errno::OPNOTSUPP => {
            "this kernel's EROFS does not know the features used (files in chunks over a second device, Linux 6.12)"
        }
        _ => return MountError::step("mount EROFS on", target, error),
    };
    MountError::Kernel { problem: problem.into() }
}

fn minor_of(mountpoint: &Path) -> Result<u32, MountError> {
    let entry =
        mountpoint::mounted_at(mountpoint).and_then(|entry| entry.ok_or_else(|| io::ErrorKind::NotFound.into()));
    Ok(entry.map_err(|error| MountError::step("find in the mount table", mountpoint, error))?.device.1)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs when the serving loops are over.
    fn finish(&self, result: Result<(), String>) {
        if result.is_err() {
            let _ = self.connection.abort();
        }
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
        if self.is_there() && rustix::mount::unmount(&self.mountpoint, UnmountFlags::NOFOLLOW).is_err() {
            // In use.
            mountpoint::detach(&self.mountpoint)?;
        }
        if self.wait_ended(END_WAIT) {
            return Ok(());
        }
        self.connection.abort().map_err(|error| MountError::step("end the serving of", &self.mountpoint, error))?;
        if self.wait_ended(END_WAIT) {
            return Ok(());
        }
        let error = io::Error::from(io::ErrorKind::TimedOut);
        Err(MountError::step("end the serving of", &self.mountpoint, error))
    }

    fn is_there(&self) -> bool {
        mountpoint::mounted_at(&self.mountpoint)
            .is_ok_and(|entry| entry.is_some_and(|entry| entry.kind == EROFS_TYPE && entry.device.1 == self.minor))
    }
}

impl Controlled for Shared {
    fn status(&self) -> MountStatus {
        let fuse = self.operations.read();
        let mut session = Counters::default();
        session.reads.reads = fuse.read;
        session.transfer.bytes_received = self.blocks.bytes_read();
        self.blocks.add_to(&mut session);
        MountStatus {
            mountpoint: self.mountpoint.clone(),
            target: self.options.target.clone(),
            name: self.options.name.clone(),
            image: self.blocks.metadata().id().to_string(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            refused: None,
            overlay: None,
            session,
            fuse,
            device: None,
            restarts: 0,
            cache_problem: None,
            volume: None,
        }
    }

    fn hint(&self, _files: &[HintedFile]) -> Result<usize, String> {
        Err("the kernel serves this mount and takes no hints: read ahead".into())
    }

    fn detach(&self) -> Result<UnmountReport, MountError> {
        if self.is_there() {
            mountpoint::detach(&self.mountpoint)?;
        }
        Ok(UnmountReport::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_is_missing() {
        for (error, what) in [
            (Errno::NODEV, "modprobe erofs"),
            (Errno::NOTBLK, "Linux 6.12"),
            (Errno::PERM, "container"),
            (Errno::INVAL, "features"),
        ] {
            let error = refusal(error, Path::new("/mnt"));
            let text = error.to_string();
            assert!(text.contains(what) && text.contains("leave out --kernel"), "{text}");
            assert_eq!(error.exit_code(), 1);
        }
        assert!(matches!(refusal(Errno::NOMEM, Path::new("/mnt")), MountError::Step { .. }));
    }

    #[test]
    fn requests_must_hold_a_run_of_slots() {
        assert!(check_request_limit(None).is_ok());
        assert!(check_request_limit(Some("256\n")).is_ok());
        assert!(check_request_limit(Some("32\n")).is_err());
    }
}
