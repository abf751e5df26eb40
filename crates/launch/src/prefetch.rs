//! The thread that fetches groups: it opens what the program will open, and reads ahead what the
//! program will touch.
//!
//! On a rotating disk a few threads first open all files in the order of inode numbers, which is
//! the order of the inode tables. Then all extents are fetched in the order in which they lie on
//! the disk. On other disks two threads run side by side: one opens files in the order in which the
//! program will, the other fetches extents in windows of first touches.
//!
//! "To fetch" is `posix_fadvise(WILLNEED)`: the kernel reads into the page cache and nobody waits
//! for it. For files on a mount of ours, the mount gets a hint instead ([`Hints`]). The thread has
//! a low disk priority. It stops at a budget of bytes, and when memory runs short. Files that are
//! not the learned ones are left out.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use profile::plan::{Group, GroupExtent, LaunchPlan, order};
use rustix::fs::Advice;
use units::PAGE_BYTES;

use crate::disk::DiskKind;
use crate::fiemap::{self, DiskExtent};
use crate::files::{self, absolute};
use crate::{memory, priority};

/// Files held open between the open pass and the extents; beyond that they are opened again.
const OPEN_FILES_MAX: usize = 512;

/// Threads of the open pass on a rotating disk: each open waits for the disk, which chooses among
/// them. Four gain two thirds of what more can.
const OPENERS: usize = 4;

/// Names read of a directory: more than a search path has, and an end for a directory that never
/// ends.
const NAMES_MAX: usize = 100_000;

/// Memory that stays free of prefetched pages, bytes.
const MEMORY_FLOOR_BYTES: u64 = 64 << 20;

/// Bytes fetched between two looks at the free memory and at the request to stop.
const CHECK_BYTES: u64 = 8 << 20;

/// How to fetch.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The kind of disk.
    pub disk: DiskKind,
    /// Bytes to ask for at most, all groups together.
    pub budget_bytes: u64,
    /// Bytes of a window of first touches, inside which extents are sorted by file; not for
    /// rotating disks.
    pub window_bytes: u64,
}

impl Settings {
    /// For the disk of `program`: a budget of 512 MiB, or of a quarter of the free memory if that
    /// is less.
    pub fn of(program: &Path) -> Settings {
        let quarter = memory::available_bytes().map_or(u64::MAX, |bytes| bytes / 4);
        Settings {
            disk: DiskKind::of(program),
            budget_bytes: quarter.min(512 << 20),
            window_bytes: order::WINDOW_BYTES,
        }
    }
}

/// What was fetched so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Fetched {
    /// Groups begun.
    pub groups: u64,
    /// Bytes asked for, whole pages.
    pub bytes: u64,
    /// Files, directories and missing paths looked at.
    pub opens: u64,
    /// Files that are not those that were learned, or gone.
    pub stale: u64,
    /// Bytes left out because of the budget or of memory running short.
    pub left_out: u64,
}

/// Takes hints for files that are not on a local disk.
pub trait Hints: Send + Sync {
    /// Hints to the owner of `path` that these pages will be needed soon; `false` if it has none,
    /// and the disk is to be read.
    fn hint(&self, path: &Path, pages: &[Range<u32>]) -> bool;
}

/// All files are local.
#[derive(Clone, Copy, Debug)]
pub struct NoHints;

impl Hints for NoHints {
    fn hint(&self, _: &Path, _: &[Range<u32>]) -> bool {
        false
    }
}

/// A group to fetch.
#[derive(Debug)]
pub struct Job {
    /// Its position in the plan.
    pub group: usize,
    /// Dropped when all of the group is opened; the program may wait for it.
    pub opened: Option<Sender<()>>,
}

/// A thread that fetches groups one after the other.
#[derive(Debug)]
pub struct Prefetcher {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    fetched: Mutex<Fetched>,
    left: AtomicU64,
}

impl Prefetcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(plan: Arc<LaunchPlan>, settings: Settings, hints: Arc<dyn Hints>) -> std::io::Result<Prefetcher> {
        let (jobs, receiver) = mpsc::channel();
        let shared = Arc::new(Shared { left: AtomicU64::new(settings.budget_bytes), ..Shared::default() });
        let worker = Worker { plan, settings, hints, shared: Arc::clone(&shared) };
        let thread = thread::Builder::new().name("prefetch".into()).spawn(move || worker.work(&receiver))?;
        Ok(Prefetcher { jobs, shared, thread })
    }

    /// Where to send groups.
    pub fn jobs(&self) -> Sender<Job> {
        self.jobs.clone()
    }

    /// What was fetched so far.
    pub fn fetched(&self) -> Fetched {
        *lock(&self.shared.fetched)
    }

    /// Ends the thread after what it is asking the kernel for right now, without waiting for that;
    /// what was fetched.
    pub fn stop(self) -> Fetched {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.fetched()
    }

    /// Waits until all groups sent so far are asked for. Senders given out by [`Prefetcher::jobs`]
    /// must be gone.
    pub fn finish(self) -> Fetched {
        drop(self.jobs);
        let _ = self.thread.join();
        *lock(&self.shared.fetched)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    plan: Arc<LaunchPlan>,
    settings: Settings,
    hints: Arc<dyn Hints>,
    shared: Arc<Shared>,
}

/// Files of the plan, opened and found to be those that were learned; `None` for all others.
type Files = HashMap<u32, Option<File>>;

impl Worker {
    fn work(&self, jobs: &Receiver<Job>) {
        priority::lower();
        while let Ok(job) = jobs.recv() {
            let Some(group) = self.plan.groups.get(job.group) else { continue };
            if self.stopped() {
                return;
            }
            self.count(|fetched| fetched.groups += 1);
            match self.settings.disk {
                DiskKind::Rotating => self.fetch_sorted(group, job.opened),
                DiskKind::Other => self.fetch_in_order(group, job.opened),
            }
        }
    }

    fn fetch_sorted(&self, group: &Group, opened: Option<Sender<()>>) {
        let extents = group.extents.iter().map(|extent| extent.file);
        let mut seen = HashSet::new();
        let wanted: Vec<u32> = group.opens.iter().copied().chain(extents).filter(|file| seen.insert(*file)).collect();
        let (files, places) = self.open_all(&order::opens_by_inode(&self.plan, &wanted));
        // Starts a program that waits for it.
        drop(opened);
        let extents = order::physical(&group.extents, |file, offset| {
            let place = places.get(&file)?.iter().find(|place| offset < place.logical.saturating_add(place.length))?;
            Some(match offset.checked_sub(place.logical) {
                Some(into) => order::Physical { offset: place.physical + into, bytes: place.length - into },
                // In a hole: nothing is read for it, so it may as well come with what follows.
                None => order::Physical { offset: place.physical, bytes: place.logical - offset },
            })
        });
        self.fetch(&extents, files);
    }

    fn fetch_in_order(&self, group: &Group, opened: Option<Sender<()>>) {
        drop(opened);
        let extents = order::windows(&group.extents, self.settings.window_bytes);
        thread::scope(|scope| {
            let opens = thread::Builder::new().name("prefetch-open".into()).spawn_scoped(scope, || {
                priority::lower();
                let touched: HashSet<u32> = extents.iter().map(|extent| extent.file).collect();
                for file in group.opens.iter().filter(|file| !touched.contains(file)) {
                    if self.stopped() {
                        return;
                    }
                    self.look(*file);
                }
            });
            self.fetch(&extents, Files::new());
            // Without that thread the opens stay cold, which is no reason to stop.
            drop(opens);
        });
    }

    /// Opens all of `wanted` by some threads, about in that order, and asks where the files lie.
    fn open_all(&self, wanted: &[u32]) -> (Files, HashMap<u32, Vec<DiskExtent>>) {
        let next = AtomicUsize::new(0);
        let found = Mutex::new((Files::new(), HashMap::new()));
        let work = || {
            while let Some(number) = wanted.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !self.stopped()) {
                let is_file = self.plan.files.get(*number as usize).is_some_and(|file| file.identity.is_some());
                let file = self.look(*number);
                let place = file.as_ref().and_then(|file| fiemap::extents(file).ok());
                let (files, places) = &mut *lock(&found);
                places.extend(place.map(|place| (*number, place)));
                // Files beyond the limit are opened again, from memory.
                if is_file && (file.is_none() || files.len() < OPEN_FILES_MAX) {
                    files.insert(*number, file);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..OPENERS {
                let lowered = || {
                    priority::lower();
                    work();
                };
                // One thread does it too.
                let _ = thread::Builder::new().name("prefetch-open".into()).spawn_scoped(scope, lowered);
            }
            work();
        });
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file, which is the answer if it is the one that was learned; reads the names of a
    /// directory, or looks for what is not there.
    fn look(&self, number: u32) -> Option<File> {
        let file = self.plan.files.get(number as usize)?;
        self.count(|fetched| fetched.opens += 1);
        if file.identity.is_some() {
            return self.open(number);
        }
        // A path where nothing was is looked for in vain again; a directory is read.
        let path = absolute(&file.path);
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir())
            && let Ok(names) = fs::read_dir(&path)
        {
            names.take(NAMES_MAX).for_each(drop);
        }
        None
    }

    /// The open file, if it is still the one that was learned.
    fn open(&self, number: u32) -> Option<File> {
        let learned = self.plan.files.get(number as usize)?;
        let identity = learned.identity.as_ref()?;
        let file = files::open(&absolute(&learned.path)).ok();
        let same = file.filter(|file| files::is_same(file, identity).unwrap_or(false));
        if same.is_none() {
            self.count(|fetched| fetched.stale += 1);
        }
        same
    }

    fn fetch(&self, extents: &[GroupExtent], mut files: Files) {
        let mut unchecked = 0;
        let mut rest = extents;
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|extent| extent.file == first.file).count();
            let (run, later) = rest.split_at(run);
            if unchecked >= CHECK_BYTES {
                unchecked = 0;
                if memory::available_bytes().is_some_and(|bytes| bytes < MEMORY_FLOOR_BYTES) {
                    return self.leave_out(rest);
                }
            }
            if self.stopped() {
                return;
            }
            let allowed = self.allow(run);
            unchecked += bytes_of(allowed);
            self.fetch_run(first.file, allowed, &mut files);
            if allowed.len() < run.len() {
                self.leave_out(&rest[allowed.len()..]);
                return;
            }
            rest = later;
        }
    }

    /// Extents of one file.
    fn fetch_run(&self, number: u32, extents: &[GroupExtent], files: &mut Files) {
        if files.len() > OPEN_FILES_MAX {
            // Changed files stay known.
            files.retain(|_, file| file.is_none());
        }
        let Some(file) = files.entry(number).or_insert_with(|| self.open(number)) else { return };
        let pages: Vec<Range<u32>> = extents.iter().map(|extent| extent.page..extent.end()).collect();
        let path = absolute(&self.plan.files[number as usize].path);
        if !self.hints.hint(&path, &pages) {
            for extent in extents {
                let bytes = NonZeroU64::new(u64::from(extent.pages) * PAGE_BYTES as u64);
                // A file system that cannot read ahead is read when the program reads.
                let _ =
                    rustix::fs::fadvise(&*file, u64::from(extent.page) * PAGE_BYTES as u64, bytes, Advice::WillNeed);
            }
        }
        self.count(|fetched| fetched.bytes += bytes_of(extents));
    }

    /// The first of these extents that the budget allows.
    fn allow<'a>(&self, extents: &'a [GroupExtent]) -> &'a [GroupExtent] {
        let mut left = self.shared.left.load(Ordering::Relaxed);
        let taken = extents.iter().take_while(|extent| {
            let bytes = bytes_of(std::slice::from_ref(*extent));
            let fits = bytes <= left;
            left -= if fits { bytes } else { 0 };
            fits
        });
        let allowed = &extents[..taken.count()];
        // One thread fetches, so nothing came between.
        self.shared.left.store(left, Ordering::Relaxed);
        allowed
    }

    fn leave_out(&self, extents: &[GroupExtent]) {
        self.count(|fetched| fetched.left_out += bytes_of(extents));
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn count(&self, change: impl FnOnce(&mut Fetched)) {
        change(&mut lock(&self.shared.fetched));
    }
}

fn bytes_of(extents: &[GroupExtent]) -> u64 {
    extents.iter().map(|extent| u64::from(extent.pages) * PAGE_BYTES as u64).sum()
}
