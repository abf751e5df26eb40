//! The outbox: changes on this device's storage that the server has not got yet
//! (docs/formats/outbox.md).
//!
//! It is a folder with a file that has the number of the device and its secret, and a file for each
//! transaction, named by its number. Files are synced before anybody is told that they are there.

mod sealed;
mod stored;

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use encryption::StorageKey;
use wire::format::SECRET_BYTES;
use wire::volume::{Change, Secret};

use crate::error::path_text;
use crate::format::{DEVICE_BYTES, DEVICE_MAGIC, DEVICE_MAGIC_1, HASH_BYTES, TRANSACTION_BYTES_MAX};
use crate::{ErrorKind, Lost, StreamError, private};
pub use sealed::unseal;
use sealed::{Sealing, What};
pub(crate) use stored::{Stored, StoredBase, hash};

/// Name of the file of a transaction; in the order of numbers. One that got another number says in
/// its name how those that follow it know it, so that one rename changes both.
pub(crate) fn file_name(number: u64, known_as: u64) -> String {
    if number == known_as { format!("{number:020}.txn") } else { format!("{number:020}-{known_as:020}.txn") }
}

/// The numbers that the name of a file holds.
fn numbers_of(name: &str) -> Option<(u64, u64)> {
    let numbers = name.strip_suffix(".txn")?;
    let (number, known_as) = numbers.split_once('-').unwrap_or((numbers, numbers));
    Some((number.parse().ok()?, known_as.parse().ok()?))
}

/// A number that a server gave to a device, and what shows that it is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub number: u128,
    pub secret: Secret,
}

/// The identity of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Who {
    /// Missing until a server gave it one.
    pub identity: Option<Identity>,
    /// The number that it drew itself before servers gave them out, as long as transactions may be
    /// known by it; or 0.
    pub previous: u128,
}

/// The folder in which unsent changes lie.
#[derive(Debug)]
pub(crate) struct Outbox {
    folder: PathBuf,
    sealing: Sealing,
    who: Who,
    next_number: u64,
    /// Numbers of transactions that are known by another one, and that one.
    known: BTreeMap<u64, u64>,
    /// Keeps other processes out.
    _lock: File,
}

/// The contents of an outbox when it was opened.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub who: Who,
    pub next_number: u64,
    pub stored: Vec<Stored>,
    /// Transactions that could not be read.
    pub lost: Vec<Lost>,
}

impl Outbox {
    /// Opens an outbox for this process alone, and reads it. Damaged transactions are moved to
    /// `lost`; a folder of another key, or of none, is refused as a whole. Who goes on for a
    /// process that was killed does not wait until that has ended: one of its threads may wait in
    /// the kernel for what only the next process does.
    pub(crate) fn open(folder: &Path, key: Option<&StorageKey>, goes_on: bool) -> Result<(Outbox, Held), StreamError> {
        private::folder(folder).map_err(failed(folder))?;
        private::folder(&folder.join("lost")).map_err(failed(folder))?;
        let lock_path = folder.join("lock");
        let lock = private::file().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(failed(&lock_path))?;
        let locked = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        if locked.is_err() && !(goes_on && is_held_by_the_dead(&lock)) {
            let text = "another process uses this outbox; give each volume a folder of its own";
            return Err(about(folder, text));
        }
        let sealing = Sealing::new(key);
        let (who, next_number) = read_device(folder, &sealing)?.unwrap_or((Who::default(), 1));
        let (folder_there, known) = (folder.to_owned(), BTreeMap::new());
        let mut outbox = Outbox { folder: folder_there, sealing, who, next_number, known, _lock: lock };
        outbox.write_device().map_err(failed(folder))?;
        let held = outbox.read_all(next_number).map_err(failed(folder))?;
        Ok((outbox, held))
    }

    fn read_all(&mut self, next_number: u64) -> io::Result<Held> {
        let mut held = Held { who: self.who, next_number, ..Held::default() };
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name.ends_with(".new")) && private::is_ours(&name) {
                // Of a process that died while it wrote. What cannot be removed does no harm.
                let _ = fs::remove_file(entry.path());
            }
            numbers.extend(name.to_str().and_then(numbers_of));
        }
        numbers.sort_unstable();
        for (number, known_as) in numbers {
            if number != known_as {
                self.known.insert(number, known_as);
            }
            let mut bytes = Vec::new();
            let read = File::open(self.path(number))
                .and_then(|file| file.take(TRANSACTION_BYTES_MAX + 1).read_to_end(&mut bytes));
            let parsed = match read {
                Ok(_) => self.parse(number, known_as, &bytes).map_err(str::to_owned),
                Err(error) => Err(error.to_string()),
            };
            match parsed {
                Ok(stored) => held.stored.push(stored),
                Err(why) => {
                    let reason = format!("the stored transaction cannot be read: {why}");
                    self.lose(number, &reason)?;
                    let kept_as = Some(format!("lost/{}", file_name(number, number)));
                    let (path, bytes) = ("a file that is not known any more".to_owned(), bytes.len() as u64);
                    held.lost.push(Lost { path, bytes, reason, kept_as });
                }
            }
            // Whatever `device` says, a number that is seen was used.
            held.next_number = held.next_number.max(number.max(known_as).saturating_add(1));
        }
        Ok(held)
    }

    fn parse(&self, number: u64, known_as: u64, bytes: &[u8]) -> Result<Stored, &'static str> {
        Stored::parse(number, known_as, &self.sealing.open(What::Transaction(known_as), bytes)?)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(file_name(number, self.known_as(number)))
    }

    fn known_as(&self, number: u64) -> u64 {
        self.known.get(&number).copied().unwrap_or(number)
    }

    /// Numbers below this one may have been used.
    pub(crate) fn reserve(&mut self, next: u64) -> io::Result<()> {
        self.next_number = next;
        self.write_device()
    }

    /// Stores the identity of this device.
    pub(crate) fn identify(&mut self, who: Who) -> io::Result<()> {
        self.who = who;
        self.write_device()
    }

    fn write_device(&self) -> io::Result<()> {
        let Who { identity, previous } = self.who;
        let (number, secret) = identity.map_or((0, [0; SECRET_BYTES]), |known| (known.number, known.secret.0));
        let mut out = DEVICE_MAGIC.to_vec();
        out.extend(number.to_le_bytes());
        out.extend(self.next_number.to_le_bytes());
        out.extend(secret);
        out.extend(previous.to_le_bytes());
        let hash = hash(&out);
        out.extend(hash);
        debug_assert_eq!(out.len(), DEVICE_BYTES);
        self.replace("device", &self.sealing.seal(What::Device, &out))
    }

    pub(crate) fn store(&mut self, number: u64, known_as: u64, bytes: &[u8]) -> io::Result<()> {
        self.replace(&file_name(number, known_as), &self.sealing.seal(What::Transaction(known_as), bytes))?;
        if number != known_as {
            self.known.insert(number, known_as);
        }
        Ok(())
    }

    pub(crate) fn renumber(&mut self, from: u64, to: u64) -> io::Result<()> {
        let known_as = self.known_as(from);
        fs::rename(self.path(from), self.folder.join(file_name(to, known_as)))?;
        self.known.remove(&from);
        self.known.insert(to, known_as);
        self.sync()
    }

    pub(crate) fn remove(&mut self, number: u64) -> io::Result<()> {
        fs::remove_file(self.path(number))?;
        self.known.remove(&number);
        self.sync()
    }

    /// Moves a transaction aside, with a text that says why.
    pub(crate) fn lose(&mut self, number: u64, reason: &str) -> io::Result<()> {
        let lost = self.folder.join("lost");
        let about =
            fs::read(self.path(number)).ok().and_then(|bytes| self.parse(number, self.known_as(number), &bytes).ok());
        let mut text = format!("{reason}\n");
        for change in about.iter().flat_map(|stored| &stored.changes).take(16) {
            text.push_str(&describe(change));
        }
        let text = self.sealing.seal(What::Reason(number), text.as_bytes());
        let told = lost.join(format!("{number:020}.txt"));
        private::file().create(true).truncate(true).write(true).open(told)?.write_all(&text)?;
        fs::rename(self.path(number), lost.join(file_name(number, number)))?;
        self.known.remove(&number);
        File::open(&lost)?.sync_all()?;
        self.sync()
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = self.folder.join(format!("{name}.new"));
        let write = || {
            let mut file = private::file().create(true).truncate(true).write(true).open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, self.folder.join(name))
        };
        if let Err(error) = write() {
            // On a full disk an empty file would stay for each try.
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

/// Whether a file is locked by nobody but a process that was killed, which does nothing any more
/// even if it has not ended.
fn is_held_by_the_dead(lock: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(file), Ok(locks)) = (lock.metadata(), fs::read_to_string("/proc/locks")) else { return false };
    let holders = holders(&locks, file.ino());
    let is_dead = |process: &i64| match fs::read_to_string(format!("/proc/{process}/stat")) {
        // The state follows the name, which may have any bytes.
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X'])),
        Err(_) => true,
    };
    !holders.is_empty() && holders.iter().all(is_dead)
}

/// Processes that have locked a file as a whole, by the kernel's list of locks. Files of other file
/// systems that have the same inode number count, too.
fn holders(locks: &str, inode: u64) -> Vec<i64> {
    let inode = format!(":{inode}");
    let of_it = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, file, ..] = words[..] else { return None };
        file.ends_with(&inode).then(|| process.parse().ok()).flatten()
    });
    of_it.collect()
}

fn describe(change: &Change) -> String {
    match change {
        Change::Write { path, offset, bytes, .. } => {
            format!("{}: {} bytes at {offset}\n", path_text(path), bytes.len())
        }
        Change::Append { path, bytes, .. } => format!("{}: {} bytes at the end\n", path_text(path), bytes.len()),
        Change::Truncate { path, size, .. } => format!("{}: size {size}\n", path_text(path)),
        Change::Create { path, .. } => format!("{}: made\n", path_text(path)),
        _ => String::new(),
    }
}

/// The device and the next number; `None` if there is no such file yet.
fn read_device(folder: &Path, sealing: &Sealing) -> Result<Option<(Who, u64)>, StreamError> {
    let path = folder.join("device");
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other.map_err(failed(&path))?),
    };
    sealing.check_device(folder, bytes.as_deref())?;
    let Some(bytes) = bytes else { return Ok(None) };
    // One that was begun without a key and holds no changes goes on with it.
    let is_plain = bytes.starts_with(&DEVICE_MAGIC) || bytes.starts_with(&DEVICE_MAGIC_1);
    let opened = if is_plain { Ok(Cow::Borrowed(&bytes[..])) } else { sealing.open(What::Device, &bytes) };
    opened.ok().and_then(|bytes| parse_device(&bytes)).map(Some).ok_or_else(|| {
        let text = "it is damaged; to go on as another device, move the outbox away, and look for changes in it";
        about(&path, text)
    })
}

pub(crate) fn parse_device(bytes: &[u8]) -> Option<(Who, u64)> {
    let (content, stored) = bytes.split_last_chunk::<HASH_BYTES>()?;
    let (magic, rest) = content.split_first_chunk::<8>()?;
    let (number, rest) = rest.split_first_chunk::<16>()?;
    let (next, rest) = rest.split_first_chunk::<8>()?;
    let number = u128::from_le_bytes(*number);
    let who = match *magic {
        DEVICE_MAGIC_1 if rest.is_empty() => Who { identity: None, previous: number },
        DEVICE_MAGIC => {
            let (secret, previous) = rest.split_first_chunk::<SECRET_BYTES>()?;
            let identity = (number != 0).then_some(Identity { number, secret: Secret(*secret) });
            Who { identity, previous: u128::from_le_bytes(previous.try_into().ok()?) }
        }
        _ => return None,
    };
    (hash(content) == *stored).then(|| (who, u64::from_le_bytes(*next).max(1)))
}

fn about(path: &Path, text: &str) -> StreamError {
    use std::os::unix::ffi::OsStrExt;
    StreamError::new(ErrorKind::Failed, path.as_os_str().as_bytes(), text)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> StreamError {
    move |error| about(path, &error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_lock_is_read_from_the_list_of_the_kernel() {
        let locks = "1: FLOCK  ADVISORY  WRITE 1234 fe:00:77 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 9 fe:00:77 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 5 fe:00:77 0 EOF\n3: FLOCK  ADVISORY  WRITE 6 fe:00:177 0 EOF\nnonsense";
        assert_eq!(holders(locks, 77), [1234]);
        assert!(holders(locks, 7).is_empty());
    }
}
