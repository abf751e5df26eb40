//! What is pinned: logs that stay whatever needs their room, and the bytes that fetching them cost
//! in a month.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};

use crate::folder::{busy, log_bytes_max, try_lock, try_share, unlock};
use crate::format::{Header, Key, Kind, Owner};
use crate::log;
use crate::sealed::Form;
use crate::store::{Cache, STEPS_PER_LOG};

/// Where the file of the lock has the month and the bytes that pins cost in it.
const SPENT_OFFSET: u64 = 24;

/// A clock that says an earlier month than January 2020 was never set: what is spent then is
/// spent in the month that was counted last. 50 years of 12 months after 1970.
const MONTH_FIRST: u32 = 50 * 12;

/// A month that was counted so far ahead of now was of a clock that ran wrong.
const MONTHS_AHEAD_MAX: u32 = 12;

/// Longest label of what is pinned.
const PIN_LABEL_BYTES: usize = 8;

/// What is needed grows with the size of logs, a hundredth of what that grows with: after so many
/// steps it is found.
const ROUNDS: u32 = 4;

/// Room for what is to be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinRoom {
    /// Bytes that the records would take at most.
    pub needed: u64,
    /// Bytes that there are, since all that is not pinned would go; those that it takes count.
    pub free: u64,
    /// What the cache may take.
    pub max: u64,
}

/// Bytes taken from the budget of a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Those taken now.
    pub granted: u64,
    /// Those taken in this month.
    pub all: u64,
}

impl Cache {
    /// Puts a record that stays until its owner is unpinned, as [`Cache::put`]; how much was
    /// written lately does not matter.
    ///
    /// # Errors
    /// What the disk says.
    pub fn put_pinned(&self, owner: &Owner, kind: Kind, key: &Key, label: &[u8], payload: &[u8]) -> io::Result<bool> {
        self.put_in(&Header { owner: *owner, is_pinned: true }, kind, key, label, payload)
    }

    /// The keys of the records of a kind that are pinned for an owner. One may turn out to be
    /// damaged.
    pub fn pinned_keys(&self, owner: &Owner, kind: Kind) -> HashSet<Key> {
        let header = Header { owner: *owner, is_pinned: true };
        let known = self.known();
        let entries = known.logs.values().filter(|log| log.header == header).flat_map(|log| &log.entries);
        entries.filter(|entry| entry.head.kind == kind && !entry.head.is_void()).map(|entry| entry.head.key).collect()
    }

    /// The images that are pinned, with the bytes of their payloads.
    pub fn pins(&self) -> BTreeMap<Owner, u64> {
        let mut found: BTreeMap<Owner, HashMap<(Kind, Key), u64>> = BTreeMap::new();
        for log in self.known().logs.values().filter(|log| log.header.is_pinned) {
            let payloads = found.entry(log.header.owner).or_default();
            // One that was damaged is there twice.
            payloads.extend(log.entries.iter().filter(|entry| !entry.head.is_void()).map(|entry| {
                let head = &entry.head;
                ((head.kind, head.key), u64::from(head.payload_bytes))
            }));
        }
        found.into_iter().map(|(owner, payloads)| (owner, payloads.values().sum())).collect()
    }

    /// Keeps an image pinned as long as this cache is open, whatever becomes of its names. False if
    /// it is not pinned.
    pub fn use_pinned(&self, owner: &Owner) -> bool {
        let header = Header { owner: *owner, is_pinned: true };
        let known = self.known();
        let mut is_used = false;
        for file in known.logs.values().filter(|log| log.header == header).map(|log| &log.file) {
            // One that is written at the moment is kept by its writer, and the others keep it.
            if !try_share(file) {
                continue;
            }
            // It may have been unpinned since it was read.
            if file.header() == Some(header) {
                is_used = true;
            } else {
                unlock(file);
            }
        }
        is_used
    }

    /// Bytes that pinned logs take.
    ///
    /// # Errors
    /// What the disk says.
    pub fn pinned_bytes(&self) -> io::Result<u64> {
        self.folder.pinned_bytes(&[])
    }

    /// What pinning records with payloads of these sizes takes, which are all that an owner has,
    /// and what there is beside others that are pinned, but for those of `leaving`. If that is too
    /// little, it would fit into a cache that may take `needed` bytes more than those.
    ///
    /// # Errors
    /// What the disk says.
    pub fn pin_room(&self, owner: &Owner, leaving: Option<Owner>, payloads: &[usize]) -> io::Result<PinRoom> {
        let but: Vec<Owner> = leaving.into_iter().chain([*owner]).collect();
        let pinned = self.folder.pinned_bytes(&but)?;
        let form = self.folder.form();
        let (free, max) = (self.bytes_max.saturating_sub(pinned), self.bytes_max);
        let mut needed = needed_by(form, payloads, self.log_bytes_max);
        if needed > free {
            // A larger cache has larger logs.
            for _ in 0..ROUNDS {
                needed = needed.max(needed_by(form, payloads, log_bytes_max(pinned.saturating_add(needed))));
            }
        }
        Ok(PinRoom { needed, free, max })
    }

    /// What is pinned of an owner stays after a power cut.
    ///
    /// # Errors
    /// What the disk says.
    pub fn sync_pinned(&self, owner: &Owner) -> io::Result<()> {
        let header = Header { owner: *owner, is_pinned: true };
        self.close_pinned(&header)?;
        let files: Vec<_> = {
            let known = self.known();
            known.logs.values().filter(|log| log.header == header).map(|log| Arc::clone(&log.file)).collect()
        };
        files.iter().try_for_each(|file| file.sync_data())?;
        self.folder.sync()
    }

    /// The logs of an owner stay no longer than others.
    ///
    /// # Errors
    /// What the disk says; another process pins it just now, runs a program from it, or keeps the
    /// lock of the folder.
    pub fn unpin(&self, owner: &Owner) -> io::Result<()> {
        let header = Header { owner: *owner, is_pinned: true };
        self.close_pinned(&header)?;
        let Some(_lock) = self.folder.lock()? else { return Err(busy()) };
        self.unpin_locked(&header)
    }

    /// The same under the lock of the folder, of logs that this process does not write.
    pub(crate) fn unpin_locked(&self, header: &Header) -> io::Result<()> {
        let header = *header;
        let mut known = self.known();
        let logs: Vec<_> = known.logs.values_mut().filter(|log| log.header == header).collect();
        let locked = logs.iter().take_while(|log| try_lock(&log.file)).count();
        let outcome = if locked == logs.len() { Ok(()) } else { Err(busy_pin()) };
        let now = Header { is_pinned: false, ..header };
        for log in logs.into_iter().take(locked) {
            // One that was emptied stays empty.
            if outcome.is_ok() && log.file.header() == Some(header) {
                log.file.begin(&now)?;
                log.header = now;
            }
            unlock(&log.file);
        }
        outcome
    }

    fn close_pinned(&self, header: &Header) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.close_log(&mut writer, header)
    }

    /// Takes at least `least` bytes and at most `most` from the budget of a month, which is counted
    /// in the folder for all processes; none if it has less. Months count from January 1970.
    ///
    /// # Errors
    /// What the disk says; another process keeps the lock of the folder.
    pub fn spend(&self, month: u32, least: u64, most: u64, budget: u64) -> io::Result<Spent> {
        let Some(lock) = self.folder.lock()? else { return Err(busy()) };
        let (month, all) = counted(&lock.file, month);
        let left = budget.saturating_sub(all);
        let granted = if left < least { 0 } else { most.min(left) };
        let all = all.saturating_add(granted);
        if granted > 0 {
            count(&lock.file, month, all)?;
        }
        Ok(Spent { granted, all })
    }

    /// Gives back what was taken from the budget of a month and not used.
    ///
    /// # Errors
    /// As [`Cache::spend`].
    pub fn unspend(&self, month: u32, bytes: u64) -> io::Result<()> {
        let Some(lock) = self.folder.lock()? else { return Err(busy()) };
        let (month, all) = counted(&lock.file, month);
        count(&lock.file, month, all.saturating_sub(bytes))
    }
}

/// Bytes that records take in logs of this size.
fn needed_by(form: Form, payloads: &[usize], log_bytes_max: u64) -> u64 {
    let (mut needed, mut log_bytes) = (0u64, u64::MAX);
    for payload in payloads {
        let bytes = log::record_bytes(form, PIN_LABEL_BYTES, *payload);
        if log_bytes.saturating_add(bytes) > log_bytes_max {
            log_bytes = form.header() + form.end(0);
            needed += log_bytes;
        }
        log_bytes += bytes;
        needed += bytes;
    }
    // What is reserved in one step and not used.
    needed + 2 * log_bytes_max / STEPS_PER_LOG
}

/// The month that counts, and what was spent in it.
fn counted(file: &std::fs::File, now: u32) -> (u32, u64) {
    let mut bytes = [0; 16];
    if file.read_exact_at(&mut bytes, SPENT_OFFSET).is_err() {
        return (now, 0);
    }
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    let month = u32::try_from(long(0)).unwrap_or(0);
    // A clock that was set back must not renew the budget.
    let is_later = now > month || (now >= MONTH_FIRST && month - now > MONTHS_AHEAD_MAX);
    if is_later { (now, 0) } else { (month, long(8)) }
}

/// It stays after a power cut: bytes may cost money.
fn count(file: &std::fs::File, month: u32, all: u64) -> io::Result<()> {
    let mut bytes = u64::from(month).to_le_bytes().to_vec();
    bytes.extend(all.to_le_bytes());
    file.write_all_at(&bytes, SPENT_OFFSET)?;
    file.sync_data()
}

fn busy_pin() -> io::Error {
    let why = "another process pins this image, or runs a program from it; try again when it has ended";
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}
