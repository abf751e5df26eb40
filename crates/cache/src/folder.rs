//! The folder of a cache: its logs, and the room that they take together.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use encryption::PurposeKey;
use rustix::fs::{FlockOperation, flock};

use crate::format::Owner;
use crate::sealed::{Form, LogFile, Standing};
use crate::{disk, log};

/// The file whose lock guards the room; it holds how much was written. A volume may keep files of
/// its own in the same folder, one of which is named `lock`.
const LOCK: &str = "images.lock";

/// The lock is held for milliseconds. If its holder was stopped meanwhile, nobody waits for it for
/// longer than these times together: what is not cached is fetched again.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Ends the name of a log.
const SUFFIX: &str = ".log";

/// Logs in a folder, each of which takes a descriptor. Those beyond it are removed as if there was
/// no room.
const LOGS_MAX: usize = 512;

/// No more is written in an hour than the cache holds.
pub(crate) const RATE_PERIOD: Duration = Duration::from_secs(3600);

/// The usual limit, and which part of the free space it is at most.
const USUAL_BYTES: u64 = 64 << 20;
const USUAL_SHARE: u64 = 10;
/// With less, a cache is of no use.
const USUAL_BYTES_MIN: u64 = 1 << 20;

/// A log goes as a whole when room is needed, so it is a small part of the cache.
const LOGS_PER_CACHE: u64 = 16;
const LOG_BYTES_MAX: u64 = 4 << 20;
const LOG_BYTES_MIN: u64 = 64 << 10;
/// As many logs at most make up a large cache.
const LOGS_PER_LARGE_CACHE: u64 = 256;

/// What a request costs, in bytes that could be sent meanwhile: a log of many small records is
/// worth more than one of a few large ones.
const REQUEST_BYTES: u64 = 16 << 10;
/// A log whose records cost twice as much as their bytes counts as used so much later.
const COST_BONUS: Duration = Duration::from_secs(24 * 3600);
const COST_BONUS_MAX: u64 = 7;

/// The folder of a cache.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    bytes_max: u64,
    /// The time in which no more may be written than the cache holds.
    period: Duration,
    /// Seals what is in it.
    key: Option<PurposeKey>,
}

/// What was written to a cache since it was made, by all processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub bytes: u64,
    /// When the period began in which no more may be written, in seconds since 1970, and how much
    /// was reserved in it.
    period_start: u64,
    period_bytes: u64,
}

/// A log in the folder.
struct Listed {
    number: u64,
    bytes: u64,
    used: SystemTime,
}

/// What became of a wish for room.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub is_granted: bool,
    /// Logs that went for it.
    pub removed: Vec<u64>,
}

/// What lies in a cache that its key does not open, or that has a key where none is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// Bytes that go: they can be fetched again, or have no key and must not stay like this.
    pub bytes: u64,
    /// Those of them that were pinned.
    pub pinned_bytes: u64,
    /// Bytes that are pinned with another key, and stay.
    pub kept_bytes: u64,
}

/// The lock of the folder.
pub(crate) struct Locked {
    pub file: File,
}

impl Folder {
    /// Opens the folder, which is made if there is none. Without a limit, the usual one. What is in
    /// it is sealed with the key.
    ///
    /// # Errors
    /// What the system says; a folder that others can enter, or of another user; too little free
    /// space for the usual limit.
    pub fn open(path: &Path, bytes_max: Option<u64>, period: Duration, key: Option<PurposeKey>) -> io::Result<Folder> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let about = fs::metadata(path)?;
        let user = rustix::process::geteuid();
        if about.uid() != user.as_raw() || about.mode() & 0o077 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "a cache needs a folder of its own that nobody else can enter (mode 700, user {}); this one \
                     has mode {:o} and belongs to user {}",
                    user.as_raw(),
                    about.permissions().mode() & 0o7777,
                    about.uid()
                ),
            ));
        }
        let mut folder = Folder { path: path.into(), bytes_max: bytes_max.unwrap_or(0), period, key };
        if bytes_max.is_none() {
            folder.bytes_max = folder.usual_limit()?;
        }
        Ok(folder)
    }

    /// The limit that nobody chose, from the free space of the disk.
    fn usual_limit(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.path)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let held = self.bytes()?;
        let limit = usual_limit(held, free);
        if limit < USUAL_BYTES_MIN {
            if self.pinned_bytes(&[])? > 0 {
                // It is there on a full disk, too, and nothing is added.
                return Ok(held);
            }
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("its disk has {free} bytes of free space, and a cache takes a tenth of that at most"),
            ));
        }
        Ok(limit)
    }

    /// The limit of a folder for who opens it with this one or with none, which is not opened.
    pub fn limit(path: &Path, bytes_max: Option<u64>) -> io::Result<u64> {
        let folder = Folder { path: path.into(), bytes_max: 0, period: RATE_PERIOD, key: None };
        bytes_max.map_or_else(|| folder.usual_limit(), Ok)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// What seals its files.
    pub fn key(&self) -> Option<&PurposeKey> {
        self.key.as_ref()
    }

    /// The sizes of what its logs consist of.
    pub fn form(&self) -> Form {
        Form::of(self.key())
    }

    /// What the logs may take together.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Numbers of the logs, ascending.
    pub fn numbers(&self) -> io::Result<Vec<u64>> {
        Ok(self.list()?.into_iter().map(|log| log.number).collect())
    }

    /// Opens a log, or makes one; it may be gone, or be there.
    pub fn file(&self, number: u64, is_new: bool) -> io::Result<LogFile> {
        let path = self.path(number);
        let file = match is_new {
            false => disk::open(&path, false),
            true => OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path),
        };
        Ok(LogFile::new(file?, number, self.key.clone()))
    }

    /// Makes an empty log with a number that none has, and locks it; `None` if the folder is busy.
    pub fn create(&self, mut number: u64) -> io::Result<Option<(u64, LogFile)>> {
        // Else it could be removed before it is locked, and its room would count for nobody.
        let Some(_lock) = self.lock()? else { return Ok(None) };
        loop {
            match self.file(number, true) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
                Ok(file) if try_lock(&file) => return Ok(Some((number, file))),
                Ok(_) => number += 1,
            }
        }
    }

    /// Takes away a log that nothing came of.
    pub fn discard(&self, number: u64) {
        if let Ok(Some(_lock)) = self.lock() {
            let _ = fs::remove_file(self.path(number));
        }
    }

    /// Reserves room: makes `file` longer, from the start to the end of a range. Other logs go for
    /// it. Not granted if there is no room to be had, the folder is busy, or too much was written
    /// lately, unless the log is pinned: somebody asked for that. `written`: bytes that were
    /// written since the last call.
    pub fn reserve(
        &self,
        file: &File,
        Range { start: from, end: to }: Range<u64>,
        is_pinned: bool,
        written: &mut u64,
    ) -> io::Result<Room> {
        let Some(lock) = self.lock()? else { return Ok(Room::default()) };
        let mut all = lock.written();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        all.bytes = all.bytes.saturating_add(std::mem::take(written));
        // A clock that was set back begins a new period, too.
        if now.checked_sub(all.period_start).is_none_or(|passed| passed >= self.period.as_secs()) {
            (all.period_start, all.period_bytes) = (now, 0);
        }
        let mut room = Room::default();
        if is_pinned || all.period_bytes.saturating_add(to - from) <= self.bytes_max {
            room = self.make_room(to - from)?;
        }
        if room.is_granted {
            let mut grown = disk::grow(file, from, to);
            // What is pinned was asked for, so the disk has it instead of what is not.
            while is_pinned && grown.as_ref().is_err_and(is_full) && self.remove_oldest(&mut room)? {
                grown = disk::grow(file, from, to);
            }
            grown?;
            all.period_bytes = all.period_bytes.saturating_add(to - from);
        }
        lock.set_written(all);
        Ok(room)
    }

    /// Brings the folder within its limit, as when the limit became smaller.
    pub fn shrink(&self) -> io::Result<()> {
        let Some(_lock) = self.lock()? else { return Ok(()) };
        self.make_room(0).map(drop)
    }

    /// Removes all logs that nobody is writing and that are not pinned.
    pub fn clear(&self) -> io::Result<()> {
        let Some(_lock) = self.lock()? else { return Err(busy()) };
        for log in self.list()? {
            if !self.is_pinned(log.number, &[]) {
                self.remove(log.number);
            }
        }
        Ok(())
    }

    /// Notes bytes that were written, and reserved bytes that were not; tells about all.
    pub fn written(&self, bytes: &mut u64, given_back: u64) -> io::Result<Written> {
        let Some(lock) = self.lock()? else { return Err(busy()) };
        let mut all = lock.written();
        all.bytes = all.bytes.saturating_add(std::mem::take(bytes));
        all.period_bytes = all.period_bytes.saturating_sub(given_back);
        lock.set_written(all);
        Ok(all)
    }

    /// The names of the logs stay after a power cut.
    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Bytes that the logs take now.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(total(&self.list()?))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:016x}{SUFFIX}"))
    }

    fn list(&self) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(digits) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) else { continue };
            let Ok(number) = u64::from_str_radix(digits, 16) else { continue };
            if format!("{number:016x}") != digits {
                continue;
            }
            // It may be gone by now.
            let Ok(about) = entry.metadata() else { continue };
            found.push(Listed { number, bytes: about.len(), used: about.modified().unwrap_or(UNIX_EPOCH) });
        }
        found.sort_by_key(|log| log.number);
        Ok(found)
    }

    /// Removes logs until there is room for `wanted` bytes, if that is to be had. Under the lock.
    fn make_room(&self, wanted: u64) -> io::Result<Room> {
        let logs = self.list()?;
        let (mut used, mut count) = (total(&logs), logs.len());
        let mut room = Room::default();
        let fits = |used: u64, count| used.saturating_add(wanted) <= self.bytes_max && count <= LOGS_MAX;
        if fits(used, count) {
            room.is_granted = true;
            return Ok(room);
        }
        for log in self.victims(&logs) {
            if self.remove(log.number) {
                (used, count) = (used.saturating_sub(log.bytes), count - 1);
                room.removed.push(log.number);
            }
            if fits(used, count) {
                room.is_granted = true;
                break;
            }
        }
        Ok(room)
    }

    /// Logs that may go, the first one first.
    fn victims<'a>(&self, logs: &'a [Listed]) -> Vec<&'a Listed> {
        let mut victims: Vec<_> = logs.iter().filter(|log| !self.is_pinned(log.number, &[])).collect();
        victims.sort_by_cached_key(|log| (self.counts_as_used(log), log.number));
        victims
    }

    /// Removes the first log that may go. False if there is none. Under the lock.
    fn remove_oldest(&self, room: &mut Room) -> io::Result<bool> {
        let logs = self.list()?;
        let gone = self.victims(&logs).into_iter().find(|log| self.remove(log.number));
        room.removed.extend(gone.map(|log| log.number));
        Ok(gone.is_some())
    }

    /// Whether a log stays, of an owner who is none of these. One with another key may be all that
    /// somebody has of an image.
    fn is_pinned(&self, number: u64, but: &[Owner]) -> bool {
        match self.file(number, false).map_or(Standing::Nothing, |file| file.standing()) {
            Standing::Readable(header) => header.is_pinned && !but.contains(&header.owner),
            Standing::Foreign { is_pinned } => is_pinned,
            Standing::Plain { .. } | Standing::Nothing => false,
        }
    }

    /// Bytes that pinned logs take, but for those of some owners.
    pub fn pinned_bytes(&self, but: &[Owner]) -> io::Result<u64> {
        let logs: Vec<_> = self.list()?.into_iter().filter(|log| self.is_pinned(log.number, but)).collect();
        Ok(total(&logs))
    }

    /// Removes the logs that the key does not open and that nobody uses. With a key those that have
    /// none go even if they are pinned: others could read them.
    pub fn remove_unreadable(&self, _lock: &Locked) -> io::Result<()> {
        for log in self.list()? {
            let standing = self.file(log.number, false).map_or(Standing::Nothing, |file| file.standing());
            if matches!(standing, Standing::Plain { .. } | Standing::Foreign { is_pinned: false }) {
                self.remove(log.number);
            }
        }
        Ok(())
    }

    /// When a log was used, and later if it would be dear to fetch again.
    fn counts_as_used(&self, log: &Listed) -> SystemTime {
        let count = self.file(log.number, false).map_or(0, |file| log::count(&file, log.bytes));
        let times = (u64::from(count) * REQUEST_BYTES / log.bytes.max(1)).min(COST_BONUS_MAX);
        log.used.checked_add(COST_BONUS * times as u32).unwrap_or(log.used)
    }

    /// Removes a log unless somebody is writing it. It is emptied first: who has it open still must
    /// not keep its room.
    fn remove(&self, number: u64) -> bool {
        let file = match self.file(number, false) {
            Ok(file) => file,
            Err(error) => return error.kind() == io::ErrorKind::NotFound,
        };
        try_lock(&file) && file.set_len(0).is_ok() && fs::remove_file(self.path(number)).is_ok()
    }

    /// The lock of the folder, unless another process keeps it.
    pub(crate) fn lock(&self) -> io::Result<Option<Locked>> {
        let file = disk::open(&self.path.join(LOCK), true)?;
        for _ in 0..LOCK_TRIES {
            if try_lock(&file) {
                return Ok(Some(Locked { file }));
            }
            // The holder is at work; no descriptor tells its end.
            std::thread::sleep(LOCK_PAUSE);
        }
        Ok(None)
    }
}

impl Locked {
    fn written(&self) -> Written {
        let mut bytes = [0; 24];
        // A new one is empty. What is in it is a number to show and a bound on wear, no more.
        if self.file.read_exact_at(&mut bytes, 0).is_err() {
            return Written::default();
        }
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        Written { bytes: long(0), period_start: long(8), period_bytes: long(16) }
    }

    fn set_written(&self, written: Written) {
        let mut bytes = written.bytes.to_le_bytes().to_vec();
        bytes.extend(written.period_start.to_le_bytes());
        bytes.extend(written.period_bytes.to_le_bytes());
        let _ = self.file.write_all_at(&bytes, 0);
    }
}

impl Unreadable {
    /// Counts a log.
    pub(crate) fn count(&mut self, file: &LogFile) {
        let bytes = file.metadata().map_or(0, |about| about.len());
        match file.standing() {
            Standing::Plain { is_pinned } => {
                self.bytes += bytes;
                self.pinned_bytes += if is_pinned { bytes } else { 0 };
            }
            Standing::Foreign { is_pinned: false } => self.bytes += bytes,
            Standing::Foreign { is_pinned: true } => self.kept_bytes += bytes,
            Standing::Readable(_) | Standing::Nothing => {}
        }
    }
}

/// Whether there is no room on the disk.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

/// The limit of a cache that nobody chose one for, when it takes `held` bytes of a disk with so
/// much free space beside them. A cache that is full has a tenth of what is free then.
pub(crate) fn usual_limit(held: u64, free: u64) -> u64 {
    (free.saturating_add(held) / (USUAL_SHARE + 1)).min(USUAL_BYTES)
}

/// Bytes of a log at most in a cache with this limit.
pub(crate) fn log_bytes_max(bytes_max: u64) -> u64 {
    let usual = (bytes_max / LOGS_PER_CACHE).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
    usual.max(bytes_max / LOGS_PER_LARGE_CACHE)
}

fn total(logs: &[Listed]) -> u64 {
    logs.iter().fold(0, |sum, log| sum.saturating_add(log.bytes))
}

pub(crate) fn busy() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another process keeps the lock of the cache; try again")
}

/// Takes the lock of a log, which ends with the descriptor.
pub(crate) fn try_lock(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Takes a lock that others may have, too, but no writer.
pub(crate) fn try_share(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared).is_ok()
}

/// Gives it back.
pub(crate) fn unlock(file: &File) {
    let _ = flock(file, FlockOperation::Unlock);
}
