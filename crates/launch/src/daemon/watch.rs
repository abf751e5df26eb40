//! Reports of the kernel: a program with a plan is being started, plans or programs have changed.
//!
//! Programs are marked one by one (fanotify(7), FAN_OPEN_EXEC), so the start of any other program
//! does not wake this process. A program file that is replaced, as an update does, is another file;
//! inotify(7) reports that, and new plans. A missing program may come with a disk that is mounted,
//! which /proc/self/mountinfo reports (proc_pid_mounts(5)). The kernel queues at most 16,384 events
//! and says if it had to drop some.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::fcntl::AT_FDCWD;
use nix::poll::{PollFd, PollFlags};
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags as InotifyFlags, Inotify, WatchDescriptor};
use probe::FileId;

/// What makes a plan another one, or a folder.
const FOLDER: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF);

/// A program that is replaced loses its last name.
const PROGRAM: AddWatchFlags =
    AddWatchFlags::IN_ATTRIB.union(AddWatchFlags::IN_DELETE_SELF).union(AddWatchFlags::IN_MOVE_SELF);

/// A program that is being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// Its file.
    pub(crate) file: FileId,
    /// The process, which may still be what it was before.
    pub(crate) process: u32,
}

pub(crate) struct Watch {
    starts: Fanotify,
    changes: Inotify,
    mounts: File,
    marked: HashMap<FileId, (PathBuf, Option<WatchDescriptor>)>,
}

impl Watch {
    /// Nothing is watched yet.
    ///
    /// # Errors
    /// The kernel or a container does not allow it.
    pub(crate) fn new() -> io::Result<Watch> {
        let flags = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
        let opened_as = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_LARGEFILE;
        Ok(Watch {
            starts: Fanotify::init(flags, opened_as)?,
            changes: Inotify::init(InotifyFlags::IN_CLOEXEC | InotifyFlags::IN_NONBLOCK)?,
            mounts: File::open("/proc/self/mountinfo")?,
            marked: HashMap::new(),
        })
    }

    /// What to wait for: starts, changes, mounts.
    pub(crate) fn descriptors(&self) -> [PollFd<'_>; 3] {
        [
            PollFd::new(self.starts.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.changes.as_fd(), PollFlags::POLLIN),
            // Reported once for each change, by poll(2) itself.
            PollFd::new(self.mounts.as_fd(), PollFlags::POLLPRI),
        ]
    }

    /// Watches a folder of plans; more than once does no harm.
    pub(crate) fn folder(&mut self, folder: &Path, notes: &mut Vec<String>) {
        if let Err(error) = self.changes.add_watch(folder, FOLDER | AddWatchFlags::IN_ONLYDIR) {
            notes.push(format!("changes in {} are not seen: {error}", folder.display()));
        }
    }

    /// Watches these programs and no others; those that cannot be watched are noted. How many are.
    pub(crate) fn programs(&mut self, programs: &BTreeMap<FileId, PathBuf>, notes: &mut Vec<String>) -> usize {
        let gone: Vec<FileId> = self.marked.keys().filter(|file| !programs.contains_key(file)).copied().collect();
        for file in gone {
            let Some((path, watch)) = self.marked.remove(&file) else { continue };
            // The marks of a file that is gone went with it.
            if FileId::of(&path).is_ok_and(|found| found == file) {
                let _ = self.mark(MarkFlags::FAN_MARK_REMOVE, &path);
            }
            let _ = watch.map(|watch| self.changes.rm_watch(watch));
        }
        for (file, path) in programs {
            if self.marked.contains_key(file) {
                continue;
            }
            match self.mark(MarkFlags::FAN_MARK_ADD, path) {
                Ok(()) => {
                    let watch = self.changes.add_watch(path, PROGRAM).ok();
                    self.marked.insert(*file, (path.clone(), watch));
                }
                Err(error) => notes.push(format!("starts of {} are not seen: {error}", path.display())),
            }
        }
        self.marked.len()
    }

    fn mark(&self, flags: MarkFlags, path: &Path) -> nix::Result<()> {
        self.starts.mark(flags, MaskFlags::FAN_OPEN_EXEC, AT_FDCWD, Some(path))
    }

    /// Programs that are being started; whether the kernel had to drop some.
    pub(crate) fn starts(&self) -> (Vec<Start>, bool) {
        let mut starts = Vec::new();
        // An event whose file cannot be opened is taken out all the same.
        let events = self.starts.read_events().unwrap_or_default();
        let dropped = events.iter().any(|event| event.mask().contains(MaskFlags::FAN_Q_OVERFLOW));
        for event in events.iter().filter(|event| event.check_version()) {
            let file = event.fd().and_then(|fd| fd.try_clone_to_owned().ok());
            let file = file.and_then(|fd| FileId::of_open(&File::from(fd)).ok());
            if let (Some(file), Ok(process)) = (file, u32::try_from(event.pid())) {
                starts.push(Start { file, process });
            }
        }
        (starts, dropped)
    }

    /// Whether a plan or a program has changed. Histories, which change with each launch, do not
    /// count.
    pub(crate) fn has_changed(&mut self) -> bool {
        let mut changed = false;
        while let Ok(events) = self.changes.read_events() {
            for event in &events {
                if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                    // The file is gone, and another one may get its number.
                    self.marked.retain(|_, (_, watch)| *watch != Some(event.wd));
                } else {
                    changed |= event.name.as_ref().is_none_or(|name| is_plan(Path::new(name)));
                }
            }
        }
        changed
    }
}

fn is_plan(name: &Path) -> bool {
    name.extension().is_some_and(|extension| extension == "plan")
}
