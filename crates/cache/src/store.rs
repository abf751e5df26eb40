//! The cache itself: an index of all logs, and the logs that this process writes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::FileTimes;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use encryption::StorageKey;

use crate::folder::{Folder, RATE_PERIOD, Unreadable, log_bytes_max, try_lock, unlock};
use crate::format::{self, Head, Header, Key, Kind, Owner, PinnedName};
use crate::log::{self, End, Entry};
use crate::names;
use crate::sealed::{self, LogFile};

/// The time of use of a log is set again after this long.
const USED_EVERY: Duration = Duration::from_secs(3600);

/// Records from further ahead of the clock, in nanoseconds, say nothing about time.
const WRITTEN_AHEAD_MAX: u64 = 24 * 3600 * 1_000_000_000;

/// Room is reserved in steps, as a part of a log: each takes the lock of the folder.
pub(crate) const STEPS_PER_LOG: u64 = 16;

/// A cache in a folder. All calls may come from several threads, and several processes may have the
/// folder open.
///
/// Memory: about 200 bytes a record, and its label.
#[derive(Debug)]
pub struct Cache {
    pub(crate) folder: Folder,
    pub(crate) bytes_max: u64,
    pub(crate) log_bytes_max: u64,
    pub(crate) names_at_open: HashMap<Key, PinnedName>,
    pub(crate) unreadable: Unreadable,
    known: Mutex<Known>,
    pub(crate) writer: Mutex<Writer>,
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
pub(crate) struct Known {
    pub logs: BTreeMap<u64, Log>,
    /// The log and the place in it of the record that counts.
    pub index: HashMap<(Kind, Key), (u64, usize)>,
}

#[derive(Debug)]
pub(crate) struct Log {
    pub header: Header,
    pub file: Arc<LogFile>,
    pub entries: Vec<Entry>,
    /// When its time of use was set.
    used: Option<Instant>,
}

/// The logs that this process writes, one for each owner, and another one for what is pinned of it.
/// Its lock is held while bytes are written.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub open: HashMap<Header, (u64, End)>,
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
        Cache::open_with(folder, bytes_max, None, RATE_PERIOD)
    }

    /// The limit that a cache in `folder` has for who opens it with this one or with none.
    ///
    /// # Errors
    /// Those of [`Cache::open`] that follow from the free space.
    pub fn limit(folder: &Path, bytes_max: Option<u64>) -> io::Result<u64> {
        Folder::limit(folder, bytes_max)
    }

    pub(crate) fn open_with(
        folder: &Path,
        bytes_max: Option<u64>,
        key: Option<&StorageKey>,
        period: Duration,
    ) -> io::Result<Cache> {
        let folder = Folder::open(folder, bytes_max, period, key.map(sealed::purpose))?;
        let bytes_max = folder.bytes_max();
        folder.shrink()?;
        // Before the logs: what a name stands for has all of its logs then.
        let names_at_open = names::all(&folder)?.into_iter().collect();
        let (mut known, mut unreadable) = (Known::default(), Unreadable::default());
        for number in folder.numbers()? {
            // One that cannot be opened or read may be gone by now.
            let Ok(file) = folder.file(number, false) else { continue };
            let Ok(Some(mut log)) = log::read(&file) else {
                unreadable.count(&file);
                continue;
            };
            if !log.is_closed && try_lock(&file) {
                // Its writer was killed, or has just closed it. If this fails, it is read more
                // slowly next time, too.
                if let Ok(Some(now)) = log::read(&file) {
                    log = now;
                }
                if !log.is_closed {
                    let _ = End::behind(folder.form(), &log.entries, 0).close(&file, &log.entries);
                }
                unlock(&file);
            }
            known.add(number, log.header, Arc::new(file), log.entries);
        }
        let written = known.logs.values().flat_map(|log| &log.entries).map(|entry| entry.head.written);
        // A clock may have been set back since, but not by years.
        let last = written.filter(|written| *written < now().saturating_add(WRITTEN_AHEAD_MAX)).max();
        Ok(Cache {
            folder,
            bytes_max,
            log_bytes_max: log_bytes_max(bytes_max),
            names_at_open,
            unreadable,
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

    /// A record is whole and yet wrong, as its reader knows: it counts no more here, and one that
    /// was put under its key before counts again. One that is put under its key counts for all.
    pub fn forget(&self, kind: Kind, key: &Key) {
        self.known().forget((kind, *key));
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

    /// The records of an owner, in the order in which they were put. Others may have put the same.
    pub fn records(&self, owner: &Owner, kind: Kind) -> Vec<Found> {
        let known = self.known();
        let logs = known.logs.iter().filter(|(_, log)| log.header.owner == *owner);
        let entries = logs.flat_map(|(number, log)| (0..).zip(&log.entries).map(|(at, entry)| (*number, at, entry)));
        let mut found: Vec<_> = entries
            .filter(|(number, at, entry)| {
                let counts = known.index.get(&(kind, entry.head.key)).filter(|_| entry.head.kind == kind);
                counts.is_some_and(|counts| *counts == (*number, *at) || known.is_same(*counts, entry))
            })
            .map(|(_, _, entry)| entry)
            .collect();
        found.sort_by_key(|entry| (entry.head.key, std::cmp::Reverse(entry.head.written)));
        found.dedup_by_key(|entry| entry.head.key);
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
        self.put_in(&Header { owner: *owner, is_pinned: false }, kind, key, label, payload)
    }

    /// Puts a record into a log of this kind.
    pub(crate) fn put_in(
        &self,
        header: &Header,
        kind: Kind,
        key: &Key,
        label: &[u8],
        payload: &[u8],
    ) -> io::Result<bool> {
        if !log::takes(label, payload) {
            return Ok(false);
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((number, file)) = self.log_for(&mut writer, header, label.len(), payload.len())? else {
            return Ok(false);
        };
        let Writer { open, last, written } = &mut *writer;
        let Some((_, end)) = open.get_mut(header) else { return Ok(false) };
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

    /// Forgets everything but what is pinned and what other processes are writing.
    ///
    /// # Errors
    /// What the disk says.
    pub fn clear(&self) -> io::Result<()> {
        self.close();
        self.folder.clear()?;
        let mut known = self.known();
        let gone: Vec<u64> = known.logs.iter().filter(|(_, log)| !log.header.is_pinned).map(|(at, _)| *at).collect();
        gone.into_iter().for_each(|number| known.remove(number));
        Ok(())
    }

    /// A log of the owner with room for a record, which this process writes.
    fn log_for(
        &self,
        writer: &mut Writer,
        header: &Header,
        label: usize,
        payload: usize,
    ) -> io::Result<Option<(u64, Arc<LogFile>)>> {
        if let Some((_, end)) = writer.open.get(header)
            && (end.needs(label, payload) > self.log_bytes_max || end.is_full())
        {
            self.close_log(writer, header)?;
        }
        if !writer.open.contains_key(header) && !self.adopt(writer, header, label, payload) {
            self.create(writer, header)?;
        }
        let Some((number, end)) = writer.open.get_mut(header) else { return Ok(None) };
        let number = *number;
        let Some(file) = self.known().logs.get(&number).map(|log| Arc::clone(&log.file)) else { return Ok(None) };
        let needed = end.needs(label, payload);
        if needed > end.room {
            let step = self.log_bytes_max / STEPS_PER_LOG;
            let room = needed.div_ceil(step).saturating_mul(step).min(self.log_bytes_max).max(needed);
            let found = self.folder.reserve(&file, end.room..room, header.is_pinned, &mut writer.written)?;
            let mut known = self.known();
            found.removed.into_iter().for_each(|number| known.remove(number));
            if !found.is_granted {
                return Ok(None);
            }
            end.room = room;
        }
        if end.is_new() {
            file.begin(header)?;
            writer.written += file.form().header();
        }
        Ok(Some((number, file)))
    }

    /// Goes on with a log of the owner that nobody writes.
    fn adopt(&self, writer: &mut Writer, header: &Header, label: usize, payload: usize) -> bool {
        let mut known = self.known();
        let mut logs = known.logs.iter_mut().rev().filter(|(_, log)| log.header == *header);
        logs.any(|(number, log)| {
            let end = End::behind(self.folder.form(), &log.entries, 0);
            if end.needs(label, payload) > self.log_bytes_max || end.is_full() || !try_lock(&log.file) {
                return false;
            }
            // Another process may have written to it since, or emptied it.
            let found = log::read(&log.file).ok().flatten().filter(|found| found.header == *header);
            let found = found.filter(|found| found.entries.len() == log.entries.len());
            let about = log.file.metadata().ok().filter(|about| found.is_some() && about.nlink() > 0);
            match &about {
                Some(about) => drop(
                    writer.open.insert(*header, (*number, End::behind(self.folder.form(), &log.entries, about.len()))),
                ),
                None => unlock(&log.file),
            }
            about.is_some()
        })
    }

    fn create(&self, writer: &mut Writer, header: &Header) -> io::Result<()> {
        let Some((number, file)) = self.folder.create(now().max(writer.last.saturating_add(1)))? else {
            return Ok(());
        };
        self.known().add(number, *header, Arc::new(file), Vec::new());
        writer.open.insert(*header, (number, End::of_new(self.folder.form())));
        Ok(())
    }

    /// Closes a log that this process writes, so that others can read it at once.
    pub(crate) fn close_log(&self, writer: &mut Writer, header: &Header) -> io::Result<()> {
        let Some((number, mut end)) = writer.open.remove(header) else { return Ok(()) };
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
        let headers: Vec<Header> = writer.open.keys().copied().collect();
        for header in headers {
            let _ = self.close_log(&mut writer, &header);
        }
    }

    /// What is left when the process is killed: the logs that it wrote are not closed.
    #[cfg(test)]
    pub(crate) fn killed(self) {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).open.clear();
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.close();
    }
}

impl Known {
    fn add(&mut self, number: u64, header: Header, file: Arc<LogFile>, entries: Vec<Entry>) {
        self.logs.insert(number, Log { header, file, entries: Vec::new(), used: None });
        entries.into_iter().for_each(|entry| self.append(number, entry));
    }

    /// A log is gone, and all that was in it. Others may have the same.
    pub(crate) fn remove(&mut self, number: u64) {
        let Some(gone) = self.logs.remove(&number) else { return };
        self.index.retain(|_, (log, _)| *log != number);
        let names = gone.entries.iter().map(|entry| (entry.head.kind, entry.head.key));
        let lost: HashSet<_> = names.filter(|name| !self.index.contains_key(name)).collect();
        self.find_again(&lost, u64::MAX);
    }

    pub(crate) fn forget(&mut self, name: (Kind, Key)) {
        let Some((number, at)) = self.index.remove(&name) else { return };
        let wrong = self.logs.get(&number).and_then(|log| log.entries.get(at));
        let before = wrong.map_or(0, |entry| entry.head.written);
        self.find_again(&HashSet::from([name]), before);
    }

    /// Finds the newest records with these names that were written before.
    fn find_again(&mut self, names: &HashSet<(Kind, Key)>, before: u64) {
        if names.is_empty() {
            return;
        }
        let mut found: HashMap<_, (u64, (u64, usize))> = HashMap::new();
        for (number, log) in &self.logs {
            for (at, Entry { head, .. }) in log.entries.iter().enumerate() {
                let name = (head.kind, head.key);
                let is_newer = found.get(&name).is_none_or(|(written, _)| *written < head.written);
                if head.written < before && is_newer && !head.is_void() && names.contains(&name) {
                    found.insert(name, (head.written, (*number, at)));
                }
            }
        }
        self.index.extend(found.into_iter().map(|(name, (_, place))| (name, place)));
    }

    /// Whether the record there has the payload of this one.
    fn is_same(&self, (number, at): (u64, usize), entry: &Entry) -> bool {
        let there = self.logs.get(&number).and_then(|log| log.entries.get(at));
        there.is_some_and(|there| there.head.hash == entry.head.hash)
    }

    fn append(&mut self, number: u64, entry: Entry) {
        let name = (entry.head.kind, entry.head.key);
        let before = self.index.get(&name).and_then(|(log, at)| self.logs.get(log)?.entries.get(*at));
        let is_newer = before.is_none_or(|before| before.head.written < entry.head.written);
        let Some(log) = self.logs.get_mut(&number) else { return };
        if is_newer && !entry.head.is_void() {
            self.index.insert(name, (number, log.entries.len()));
        }
        log.entries.push(entry);
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
