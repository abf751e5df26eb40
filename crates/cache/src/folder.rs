//! The folder of a cache: its logs, and the room that they take together.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::{disk, log};

/// The file whose lock guards the room; it holds how much was written.
const LOCK: &str = "lock";
/// Ends the name of a log.
const SUFFIX: &str = ".log";

/// Files in the folder that are looked at: a bound on the time of opening one that somebody filled.
const LOGS_MAX: usize = 4096;

/// No more is written in an hour than the cache holds.
pub(crate) const RATE_PERIOD: Duration = Duration::from_secs(3600);

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

/// The lock of the folder.
struct Locked {
    file: File,
}

impl Folder {
    /// Opens the folder, which is made if there is none.
    ///
    /// # Errors
    /// What the system says; a folder that others can write to.
    pub fn open(path: &Path, bytes_max: u64, period: Duration) -> io::Result<Folder> {
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
        Ok(Folder { path: path.into(), bytes_max, period })
    }

    /// Numbers of the logs, ascending.
    pub fn numbers(&self) -> io::Result<Vec<u64>> {
        Ok(self.list()?.into_iter().map(|log| log.number).collect())
    }

    /// Opens a log, or makes one; it may be gone, or be there.
    pub fn file(&self, number: u64, is_new: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(is_new).mode(0o600);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(self.path(number))
    }

    /// Makes an empty log with a number that none has, and locks it.
    pub fn create(&self, mut number: u64) -> io::Result<(u64, File)> {
        // Else it could be removed before it is locked, and its room would count for nobody.
        let _lock = self.lock()?;
        loop {
            match self.file(number, true) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
                Ok(file) if try_lock(&file) => return Ok((number, file)),
                Ok(_) => number += 1,
            }
        }
    }

    /// Reserves room: makes `file`, which has `from` bytes, `to` bytes long. Other logs go for it.
    /// False if there is no room to be had, or too much was written lately. `written`: bytes that
    /// were written since the last call.
    pub fn reserve(&self, file: &File, from: u64, to: u64, written: &mut u64) -> io::Result<bool> {
        let lock = self.lock()?;
        let mut all = lock.written();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        all.bytes = all.bytes.saturating_add(std::mem::take(written));
        // A clock that was set back begins a new period, too.
        if now.checked_sub(all.period_start).is_none_or(|passed| passed >= self.period.as_secs()) {
            (all.period_start, all.period_bytes) = (now, 0);
        }
        let granted = all.period_bytes.saturating_add(to - from) <= self.bytes_max && self.make_room(to - from)?;
        if granted {
            disk::grow(file, from, to)?;
            all.period_bytes += to - from;
        }
        lock.set_written(all);
        Ok(granted)
    }

    /// Brings the folder within its limit, as when the limit became smaller.
    pub fn shrink(&self) -> io::Result<()> {
        let _lock = self.lock()?;
        self.make_room(0).map(drop)
    }

    /// Removes all logs that nobody is writing.
    pub fn clear(&self) -> io::Result<()> {
        let _lock = self.lock()?;
        for log in self.list()? {
            self.remove(log.number);
        }
        Ok(())
    }

    /// Notes bytes that were written, and tells about all.
    pub fn written(&self, bytes: &mut u64) -> io::Result<Written> {
        let lock = self.lock()?;
        let mut all = lock.written();
        all.bytes = all.bytes.saturating_add(std::mem::take(bytes));
        lock.set_written(all);
        Ok(all)
    }

    /// Bytes that the logs take now.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.list()?.iter().map(|log| log.bytes).sum())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:016x}{SUFFIX}"))
    }

    fn list(&self) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)?.take(LOGS_MAX) {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) else { continue };
            let Ok(number) = u64::from_str_radix(name, 16) else { continue };
            // It may be gone by now.
            let Ok(about) = entry.metadata() else { continue };
            found.push(Listed { number, bytes: about.len(), used: about.modified().unwrap_or(UNIX_EPOCH) });
        }
        found.sort_by_key(|log| log.number);
        Ok(found)
    }

    /// Removes logs until there is room for `wanted` bytes; false if that is not to be had. Under
    /// the lock.
    fn make_room(&self, wanted: u64) -> io::Result<bool> {
        let logs = self.list()?;
        let mut used: u64 = logs.iter().map(|log| log.bytes).sum();
        if used + wanted <= self.bytes_max {
            return Ok(true);
        }
        let mut victims: Vec<_> = logs.iter().map(|log| (self.counts_as_used(log), log)).collect();
        victims.sort_by_key(|(used, log)| (*used, log.number));
        for (_, log) in victims {
            if self.remove(log.number) {
                used -= log.bytes;
            }
            if used + wanted <= self.bytes_max {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// When a log was used, and later if it would be dear to fetch again.
    fn counts_as_used(&self, log: &Listed) -> SystemTime {
        let count = self.file(log.number, false).map_or(0, |file| log::count(&file, log.bytes));
        let times = (u64::from(count) * REQUEST_BYTES / log.bytes.max(1)).min(COST_BONUS_MAX);
        log.used + COST_BONUS * times as u32
    }

    /// Removes a log unless somebody is writing it. It is emptied first: who has it open still must
    /// not keep its room.
    fn remove(&self, number: u64) -> bool {
        let Ok(file) = self.file(number, false) else { return true };
        try_lock(&file) && file.set_len(0).is_ok() && fs::remove_file(self.path(number)).is_ok()
    }

    fn lock(&self) -> io::Result<Locked> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(self.path.join(LOCK))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Locked { file })
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

/// Takes the lock of a log, which ends with the descriptor.
pub(crate) fn try_lock(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Gives it back.
pub(crate) fn unlock(file: &File) {
    let _ = flock(file, FlockOperation::Unlock);
}
