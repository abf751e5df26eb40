//! The cache itself: an index of all logs, and the logs that this process writes.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, FileTimes};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::folder::{Folder, RATE_PERIOD, try_lock, unlock};
use crate::format::{self, HEADER_BYTES, Head, Key, Kind, Owner};
use crate::log::{self, End, Entry};

/// A log goes as a whole when room is needed, so it is a small part of the cache.
const LOGS_PER_CACHE: u64 = 16;
const LOG_BYTES_MAX: u64 = 4 << 20;
const LOG_BYTES_MIN: u64 = 64 << 10;

/// The time of use of a log is set again after this long.
const USED_EVERY: Duration = Duration::from_secs(3600);

/// Records from further ahead of the clock, in nanoseconds, say nothing about time.
const WRITTEN_AHEAD_MAX: u64 = 24 * 3600 * 1_000_000_000;

/// Room is reserved in steps, as a part of a log: each takes the lock of the folder.
const STEPS_PER_LOG: u64 = 16;

/// A cache in a folder. All calls may come from several threads, and several processes may have the
/// folder open.
///
/// Memory: about 200 bytes a record, and its label.
#[derive(Debug)]
pub struct Cache {
    folder: Folder,
    bytes_max: u64,
    log_bytes_max: u64,
    known: Mutex<Known>,
    writer: Mutex<Writer>,
}

/// A record that is there, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its key.
    pub key: Key,
    /// Its label, as it was put.
    pub label: Box<[u8]>,
    /// Size of its payload, in bytes.
    pub payload_bytes: u32,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Size of all logs, in bytes.
    pub bytes: u64,
    /// What they may take together.
    pub bytes_max: u64,
    /// Number of logs that could be read.
    pub logs: usize,
    /// Records that are found.
    pub records: usize,
    /// Payloads of these, in bytes.
    pub payload_bytes: u64,
    /// Bytes written to the folder since it was made: the wear of the flash memory below.
    pub written_bytes: u64,
}

/// What is where. Its lock is held for moments, never while the disk is busy.
#[derive(Debug, Default)]
struct Known {
    logs: BTreeMap<u64, Log>,
    /// The log and the place in it of the record that counts.
    index: HashMap<(Kind, Key), (u64, usize)>,
}

#[derive(Debug)]
struct Log {
    owner: Owner,
    file: Arc<File>,
    entries: Vec<Entry>,
    /// When its time of use was set.
    used: Option<Instant>,
}

/// The logs that this process writes, one for each owner. Its lock is held while bytes are written.
#[derive(Debug, Default)]
struct Writer {
    open: HashMap<Owner, (u64, End)>,
    /// The number of the record that was written last, in nanoseconds since 1970 unless two came
    /// at once.
    last: u64,
    /// Bytes written that the folder was not told of.
    written: u64,
}

impl Cache {
    /// Opens the cache in `folder`, which is made if there is none, and brings it within
    /// `bytes_max` bytes. Without a limit these are 64 MiB, or as much less as makes a tenth of the
    /// free space.
    ///
    /// # Errors
    /// What the system says; a folder that others can enter; without a limit also a disk with
    /// next to no free space.
    pub fn open(folder: &Path, bytes_max: Option<u64>) -> io::Result<Cache> {
        Cache::open_with(folder, bytes_max, RATE_PERIOD)
    }

    /// The limit that a cache in `folder` has for who opens it with this one or with none.
    ///
    /// # Errors
    /// Those of [`Cache::open`] that follow from the free space.
    pub fn limit(folder: &Path, bytes_max: Option<u64>) -> io::Result<u64> {
        Folder::limit(folder, bytes_max)
    }

    pub(crate) fn open_with(folder: &Path, bytes_max: Option<u64>, period: Duration) -> io::Result<Cache> {
        let folder = Folder::open(folder, bytes_max, period)?;
        let bytes_max = folder.bytes_max();
        folder.shrink()?;
        let mut known = Known::default();
        for number in folder.numbers()? {
            // One that cannot be opened or read may be gone by now.
            let Ok(file) = folder.file(number, false) else { continue };
            let Ok(Some(mut log)) = log::read(&file) else { continue };
            if !log.is_closed && try_lock(&file) {
                // Its writer was killed, or has just closed it. If this fails, it is read more
                // slowly next time, too.
                if let Ok(Some(now)) = log::read(&file) {
                    log = now;
                }
                if !log.is_closed {
                    let _ = End::behind(&log.entries, 0).close(&file, &log.entries);
                }
                unlock(&file);
            }
            known.add(number, log.owner, Arc::new(file), log.entries);
        }
        let written = known.logs.values().flat_map(|log| &log.entries).map(|entry| entry.head.written);
        // A clock may have been set back since, but not by years.
        let last = written.filter(|written| *written < now().saturating_add(WRITTEN_AHEAD_MAX)).max();
        Ok(Cache {
            folder,
            bytes_max,
            log_bytes_max: (bytes_max / LOGS_PER_CACHE).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX),
            known: Mutex::new(known),
            writer: Mutex::new(Writer { last: last.unwrap_or(0), ..Writer::default() }),
        })
    }

    /// Whether there is a record. It may turn out to be damaged.
    pub fn has(&self, kind: Kind, key: &Key) -> bool {
        self.known().index.contains_key(&(kind, *key))
    }

    /// The payload of a record, if it is there and whole. A damaged one is forgotten.
    pub fn read(&self, kind: Kind, key: &Key) -> Option<Vec<u8>> {
        let (number, file, entry, is_used) = {
            let mut known = self.known();
            let (number, at) = *known.index.get(&(kind, *key))?;
            let log = known.logs.get_mut(&number)?;
            let is_used = log.used.is_some_and(|used| used.elapsed() < USED_EVERY);
            if !is_used {
                log.used = Some(Instant::now());
            }
            (number, Arc::clone(&log.file), log.entries.get(at)?.clone(), is_used)
        };
        if !is_used {
            // Without it the log goes sooner.
            let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        }
        let payload = entry.read(&file);
        if payload.is_none() {
            match file.metadata() {
                // Another process needed its room.
                Ok(about) if about.len() == 0 => self.known().remove(number),
                _ => self.forget(kind, key),
            }
        }
        payload
    }

    /// A record is whole and yet wrong, as its reader knows: it counts no more here. One that is
    /// put under its key counts for all.
    pub fn forget(&self, kind: Kind, key: &Key) {
        self.known().index.remove(&(kind, *key));
    }

    /// The label and the payload of a record, as [`Cache::read`] finds it.
    pub fn read_all(&self, kind: Kind, key: &Key) -> Option<(Box<[u8]>, Vec<u8>)> {
        let label = {
            let known = self.known();
            let (number, at) = known.index.get(&(kind, *key))?;
            known.logs.get(number)?.entries.get(*at)?.label.clone()
        };
        Some((label, self.read(kind, key)?))
    }

    /// The records of an owner, in the order in which they were put.
    pub fn records(&self, owner: &Owner, kind: Kind) -> Vec<Found> {
        let known = self.known();
        let logs = known.logs.iter().filter(|(_, log)| log.owner == *owner);
        let entries = logs.flat_map(|(number, log)| (0..).zip(&log.entries).map(|(at, entry)| (*number, at, entry)));
        let mut found: Vec<_> = entries
            .filter(|(number, at, entry)| {
                entry.head.kind == kind && known.index.get(&(kind, entry.head.key)) == Some(&(*number, *at))
            })
            .map(|(_, _, entry)| entry)
            .collect();
        found.sort_by_key(|entry| entry.head.written);
        let found = found.into_iter();
        let of = |entry: &Entry| Found {
            key: entry.head.key,
            label: entry.label.clone(),
            payload_bytes: entry.head.payload_bytes,
        };
        found.map(of).collect()
    }

    /// Puts a record; one of the same kind and key that was there counts no more. False if it is
    /// not taken: it is too large, there is no room, or too much was written lately.
    ///
    /// # Errors
    /// What the disk says. The caller had better put nothing more.
    pub fn put(&self, owner: &Owner, kind: Kind, key: &Key, label: &[u8], payload: &[u8]) -> io::Result<bool> {
        if !log::takes(label, payload) {
            return Ok(false);
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((number, file)) = self.log_for(&mut writer, owner, label.len(), payload.len())? else {
            return Ok(false);
        };
        let Writer { open, last, written } = &mut *writer;
        let Some((_, end)) = open.get_mut(owner) else { return Ok(false) };
        *last = now().max(last.saturating_add(1));
        let head = Head {
            kind,
            label_bytes: label.len() as u16,
            payload_bytes: payload.len() as u32,
            written: *last,
            key: *key,
            hash: format::hash(payload),
        };
        let before = end.at;
        let entry = end.append(&file, head, label, payload)?;
        *written += end.at - before;
        self.known().append(number, entry);
        Ok(true)
    }

    /// What the cache holds now.
    ///
    /// # Errors
    /// What the disk says.
    pub fn status(&self) -> io::Result<Status> {
        let written = {
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            self.folder.written(&mut writer.written, 0)?
        };
        let bytes = self.folder.bytes()?;
        let known = self.known();
        let payloads = known.index.values().filter_map(|(number, at)| known.logs.get(number)?.entries.get(*at));
        Ok(Status {
            bytes,
            bytes_max: self.bytes_max,
            logs: known.logs.len(),
            records: known.index.len(),
            payload_bytes: payloads.map(|entry| u64::from(entry.head.payload_bytes)).sum(),
            written_bytes: written.bytes,
        })
    }

    /// Reads every record. Returns how many are whole, and how many were damaged and are forgotten.
    pub fn verify(&self) -> (usize, usize) {
        let keys: Vec<_> = self.known().index.keys().copied().collect();
        let good = keys.iter().filter(|(kind, key)| self.read(*kind, key).is_some()).count();
        (good, keys.len() - good)
    }

    /// Forgets everything but what other processes are writing.
    ///
    /// # Errors
    /// What the disk says.
    pub fn clear(&self) -> io::Result<()> {
        self.close();
        self.folder.clear()?;
        *self.known() = Known::default();
        Ok(())
    }

    /// A log of the owner with room for a record, which this process writes.
    fn log_for(
        &self,
        writer: &mut Writer,
        owner: &Owner,
        label: usize,
        payload: usize,
    ) -> io::Result<Option<(u64, Arc<File>)>> {
        if let Some((_, end)) = writer.open.get(owner)
            && end.needs(label, payload) > self.log_bytes_max
        {
            self.close_log(writer, owner)?;
        }
        if !writer.open.contains_key(owner) && !self.adopt(writer, owner, label, payload) {
            self.create(writer, owner)?;
        }
        let Some((number, end)) = writer.open.get_mut(owner) else { return Ok(None) };
        let number = *number;
        let Some(file) = self.known().logs.get(&number).map(|log| Arc::clone(&log.file)) else { return Ok(None) };
        let needed = end.needs(label, payload);
        if needed > end.room {
            let step = self.log_bytes_max / STEPS_PER_LOG;
            let room = needed.div_ceil(step).saturating_mul(step).min(self.log_bytes_max).max(needed);
            let found = self.folder.reserve(&file, end.room, room, &mut writer.written)?;
            let mut known = self.known();
            found.removed.into_iter().for_each(|number| known.remove(number));
            if !found.is_granted {
                return Ok(None);
            }
            end.room = room;
        }
        if end.at == HEADER_BYTES as u64 {
            log::begin(&file, owner)?;
            writer.written += HEADER_BYTES as u64;
        }
        Ok(Some((number, file)))
    }

    /// Goes on with a log of the owner that nobody writes.
    fn adopt(&self, writer: &mut Writer, owner: &Owner, label: usize, payload: usize) -> bool {
        let mut known = self.known();
        let mut logs = known.logs.iter_mut().rev().filter(|(_, log)| log.owner == *owner);
        logs.any(|(number, log)| {
            if End::behind(&log.entries, 0).needs(label, payload) > self.log_bytes_max || !try_lock(&log.file) {
                return false;
            }
            // Another process may have written to it since, or emptied it.
            let found = log::read(&log.file).ok().flatten().filter(|found| found.entries.len() == log.entries.len());
            let about = log.file.metadata().ok().filter(|about| found.is_some() && about.nlink() > 0);
            match &about {
                Some(about) => drop(writer.open.insert(*owner, (*number, End::behind(&log.entries, about.len())))),
                None => unlock(&log.file),
            }
            about.is_some()
        })
    }

    fn create(&self, writer: &mut Writer, owner: &Owner) -> io::Result<()> {
        let Some((number, file)) = self.folder.create(now().max(writer.last.saturating_add(1)))? else {
            return Ok(());
        };
        self.known().add(number, *owner, Arc::new(file), Vec::new());
        writer.open.insert(*owner, (number, End::of_new()));
        Ok(())
    }

    /// Closes a log that this process writes, so that others can read it at once.
    fn close_log(&self, writer: &mut Writer, owner: &Owner) -> io::Result<()> {
        let Some((number, mut end)) = writer.open.remove(owner) else { return Ok(()) };
        let Some((file, entries)) =
            self.known().logs.get(&number).map(|log| (Arc::clone(&log.file), log.entries.clone()))
        else {
            return Ok(());
        };
        if entries.is_empty() {
            // Nothing came of it.
            file.set_len(0)?;
            self.folder.discard(number);
            self.known().remove(number);
            return Ok(());
        }
        let closed = end.close(&file, &entries);
        unlock(&file);
        let closed = closed?;
        writer.written += closed;
        // This is for the next start, and tells nothing that matters.
        let _ = self.folder.written(&mut writer.written, end.room.saturating_sub(end.at + closed));
        Ok(())
    }

    /// Closes the logs that this process writes. Without it they are read more slowly next time.
    pub fn close(&self) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let owners: Vec<Owner> = writer.open.keys().copied().collect();
        for owner in owners {
            let _ = self.close_log(&mut writer, &owner);
        }
    }

    /// What is left when the process is killed: the logs that it wrote are not closed.
    #[cfg(test)]
    pub(crate) fn killed(self) {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).open.clear();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.close();
    }
}

impl Known {
    fn add(&mut self, number: u64, owner: Owner, file: Arc<File>, entries: Vec<Entry>) {
        self.logs.insert(number, Log { owner, file, entries: Vec::new(), used: None });
        entries.into_iter().for_each(|entry| self.append(number, entry));
    }

    /// A log is gone, and all that was in it.
    fn remove(&mut self, number: u64) {
        self.logs.remove(&number);
        self.index.retain(|_, (log, _)| *log != number);
    }

    fn append(&mut self, number: u64, entry: Entry) {
        let name = (entry.head.kind, entry.head.key);
        let before = self.index.get(&name).and_then(|(log, at)| self.logs.get(log)?.entries.get(*at));
        let is_newer = before.is_none_or(|before| before.head.written < entry.head.written);
        let Some(log) = self.logs.get_mut(&number) else { return };
        if is_newer {
            self.index.insert(name, (number, log.entries.len()));
        }
        log.entries.push(entry);
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
