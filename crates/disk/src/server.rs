//! The file below the disk: a FUSE file system with one file whose READs wait for the moment that
//! the model names.
//!
//! One thread receives requests and puts them into the [`Timeline`] with the moment of their
//! arrival. Another takes the next request, reads its bytes from the image, sleeps until its moment
//! and answers. Both run at a high priority, and the second with the finest timers of the kernel,
//! since their delays count as the disk's.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, UNIX_EPOCH};

use fuse::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo, KernelConfig, ReplyAttr, ReplyData, ReplyEntry,
    ReplyOpen, Request as FuseRequest, capability, open_flag,
};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::ClockId;
use rustix::time::Timespec;

use crate::error::DiskError;
use crate::model::{Model, SECOND};
use crate::timeline::{Counters, Moment, Request, Timeline};

/// Name of the file.
const NAME: &str = "disk";

const ROOT: u64 = 1;
const DISK: u64 = 2;

/// The file never changes.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Largest READ: what FUSE sends at most.
const READ_BYTES_MAX: u32 = 1 << 20;

/// READs that the kernel may have in flight: more than any model's queue, so that the model limits
/// and not FUSE.
const IN_FLIGHT_MAX: u16 = 128;

/// Real-time priority of the two threads, which mostly sleep: low among its kind, before all that
/// is measured.
const REAL_TIME: &str = "5";

/// Their nice value where real time cannot be had.
const NICE: i32 = -15;

/// A served image. Dropping it ends the serving; whoever uses the file must be gone by then.
pub struct Server {
    shared: Arc<Shared>,
    folder: PathBuf,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    image: File,
    bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
    /// The clock when the disk began to turn, nanoseconds.
    start: u64,
}

struct State {
    timeline: Timeline,
    /// READs that were not answered yet.
    replies: HashMap<u64, (Request, ReplyData)>,
    next: u64,
    lateness: Lateness,
    over: bool,
}

/// How much later than the model answers were: what the machine adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Answers.
    pub answers: u64,
    /// Sum over them, nanoseconds.
    pub sum: u64,
    /// Of the latest, nanoseconds.
    pub worst: u64,
}

impl Lateness {
    /// Mean, nanoseconds; 0 without answers.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.answers.max(1) as f64
    }

    fn add(&mut self, late: u64) {
        *self = Lateness { answers: self.answers + 1, sum: self.sum + late, worst: self.worst.max(late) };
    }
}

impl Server {
    /// Serves the file `image` as a disk of `model`, on the empty folder `folder`.
    ///
    /// # Errors
    /// The image cannot be read, or FUSE cannot be mounted.
    pub fn start(image: &Path, model: Model, folder: &Path) -> Result<Server, DiskError> {
        let file = File::open(image).map_err(|error| DiskError::step("open", image, error))?;
        let bytes = file.metadata().map_err(|error| DiskError::step("examine", image, error))?.len();
        let timeline = Timeline::new(model);
        let state = State { timeline, replies: HashMap::new(), next: 0, lateness: Lateness::default(), over: false };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { image: file, bytes, state, changed, start: clock() });
        let device = mount(folder)?;
        let mut server = Server { shared: shared.clone(), folder: folder.to_path_buf(), threads: Vec::new() };
        let session = fuse::Session::new(Files(shared.clone()), device.into(), 1);
        let session = session.map_err(|error| DiskError::step("serve", folder, error))?;
        let named = |name: &str| thread::Builder::new().name(name.into());
        let failed = |error| DiskError::step("start a thread for", folder, error);
        // It ends when the mount is gone.
        let receiving = named("disk-receive").spawn(move || {
            prioritise();
            drop(session.run());
        });
        server.threads.push(receiving.map_err(failed)?);
        let answering = named("disk-answer").spawn(move || shared.answer());
        server.threads.push(answering.map_err(failed)?);
        Ok(server)
    }

    /// The file to put a loop device on.
    pub fn file(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    /// Goes on as a disk of another model.
    pub fn change(&self, model: Model) {
        let mut state = self.shared.lock();
        state.timeline.change(model);
        state.lateness = Lateness::default();
    }

    /// How late answers were since the model was last changed.
    pub fn lateness(&self) -> Lateness {
        self.shared.lock().lateness
    }

    /// What was read so far.
    pub fn counters(&self) -> Counters {
        self.shared.lock().timeline.counters()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Lazily: a loop device lets go of its file after `losetup` has returned.
        let _ = rustix::mount::unmount(&self.folder, UnmountFlags::DETACH);
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
        // The receiving thread ends when the kernel has let go of the mount; a user that hangs must
        // not hang us.
        let _ = self.threads.pop().map(JoinHandle::join);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The moment of the model.
    fn now(&self) -> Moment {
        clock() - self.start
    }

    /// Answers requests at their moments, until the server is dropped.
    fn answer(&self) {
        prioritise();
        // Best effort: without it timers are 50 us late.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut buffer = vec![0; READ_BYTES_MAX as usize];
        loop {
            let mut state = self.lock();
            let (done, id) = loop {
                if let Some(next) = state.timeline.next_done() {
                    break next;
                }
                if state.over {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            let Some((request, reply)) = state.replies.remove(&id) else { continue };
            drop(state);
            let out = &mut buffer[..request.bytes as usize];
            let read = self.image.read_exact_at(out, request.offset);
            sleep_until(self.start + done);
            let late = clock().saturating_sub(self.start + done);
            match read {
                Ok(()) => reply.data(out),
                Err(_) => reply.error(Errno::IO),
            }
            self.lock().lateness.add(late);
        }
    }
}

fn mount(folder: &Path) -> Result<std::os::fd::OwnedFd, DiskError> {
    let fuse = Path::new("/dev/fuse");
    let device = rustix::fs::open(fuse, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| DiskError::step("open", fuse, error))?;
    let text = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let text = CString::new(text).map_err(|error| DiskError::step("mount FUSE on", folder, error))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount("runnel-disk", folder, "fuse.runnel-disk", flags, Some(text.as_c_str()))
        .map_err(|error| DiskError::step("mount FUSE on", folder, error))?;
    Ok(device)
}

/// Nanoseconds of the monotonic clock.
fn clock() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

fn sleep_until(clock: u64) {
    let time = Timespec { tv_sec: (clock / SECOND) as i64, tv_nsec: (clock % SECOND) as i64 };
    // A signal may end it early; then it sleeps on. A moment that is past ends it at once.
    while rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &time) == Err(rustix::io::Errno::INTR) {}
}

/// Makes the calling thread, and those it starts, more urgent, where that is allowed. Real-time if
/// that can be had: with automatic groups of sessions, a nice value counts only within the session.
fn prioritise() {
    let thread = rustix::thread::gettid();
    let mut command = Command::new("chrt");
    command.args(["--fifo", "--pid", REAL_TIME, &thread.as_raw_nonzero().to_string()]);
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !done.is_ok_and(|status| status.success()) {
        let _ = rustix::process::setpriority_process(Some(thread), NICE);
    }
}

/// What FUSE sees.
struct Files(Arc<Shared>);

impl Files {
    fn attributes(&self, number: u64) -> Option<FileAttr> {
        let (kind, size, perm) = match number {
            ROOT => (FileType::Directory, 0, 0o500),
            DISK => (FileType::RegularFile, self.0.bytes, 0o600),
            _ => return None,
        };
        Some(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        })
    }
}

impl Filesystem for Files {
    fn init(&mut self, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = capability::ASYNC_READ | capability::ASYNC_DIO;
        // Without them requests come one by one, which `Disk` would show as a queue that is never
        // used.
        config.add_capabilities(wanted);
        config.set_max_write(READ_BYTES_MAX);
        config.set_max_background(IN_FLIGHT_MAX);
        config.set_congestion_threshold(IN_FLIGHT_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &FuseRequest, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(DISK).filter(|_| parent.0 == ROOT && name == NAME) {
            // Look-ups are not counted, so one that did not arrive changes nothing.
            Some(attributes) => drop(reply.entry(&FOR_EVER, &attributes, 0)),
            None => reply.error(Errno::NOENT),
        }
    }

    fn getattr(&self, _request: &FuseRequest, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number.0) {
            Some(attributes) => reply.attr(&FOR_EVER, &attributes),
            None => reply.error(Errno::NOENT),
        }
    }

    fn open(&self, _request: &FuseRequest, _number: INodeNo, _flags: i32, reply: ReplyOpen) {
        let _ = reply.opened(FileHandle(0), open_flag::KEEP_CACHE);
    }

    fn read(&self, _request: &FuseRequest, _number: INodeNo, read: fuse::Read, reply: ReplyData) {
        let now = self.0.now();
        let fuse::Read { offset, size, .. } = read;
        let bytes = u64::from(size.min(READ_BYTES_MAX)).min(self.0.bytes.saturating_sub(offset));
        if bytes == 0 {
            return reply.data(&[]);
        }
        let mut state = self.0.lock();
        if state.over {
            return reply.error(Errno::IO);
        }
        let request = Request { id: state.next, offset, bytes };
        state.next += 1;
        state.replies.insert(request.id, (request, reply));
        state.timeline.arrive(now, request);
        drop(state);
        self.0.changed.notify_one();
    }
}
