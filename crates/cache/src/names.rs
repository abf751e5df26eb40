//! Names that are pinned: which version of an image each stands for.
//!
//! Each name has a file with two slots. A change is written into the older one and synced, so after
//! a power cut either the old or the new state is there. It needs no room on the disk: a full disk
//! must not keep anybody from returning to a version that works. All changes are made under the
//! lock of the folder. Whoever fetches a version has a lock on the file of the name meanwhile.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use crate::disk;
use crate::folder::{Folder, Locked, busy, try_lock};
use crate::format::{self, BAD_MAX, Header, Key, Owner, PinnedName, SLOT_BYTES, TARGET_BYTES_MAX};
use crate::sealed;
use crate::store::Cache;

const SUFFIX: &str = ".pin";

/// Names in one folder: all of them are read when one is unpinned.
const NAMES_MAX: usize = 512;

/// How often the lock of the folder is tried for, a tenth of a second each: its holders are quick,
/// and a version that does not work must go.
const LOCKS_MAX: usize = 50;

/// How often a file is read that is being changed: one read sees two changes rarely.
const READS_MAX: usize = 4;

/// The sole right to fetch versions of a name, until it is dropped.
#[derive(Debug)]
pub struct NameClaim<'a> {
    cache: &'a Cache,
    key: Key,
    path: PathBuf,
    file: File,
}

/// The slots of a file: the generation and the place of the newest one.
struct Slots {
    newest: Option<(u64, usize, (Key, PinnedName))>,
    is_new: bool,
}

impl Cache {
    /// What pinned names stood for just before the logs were read: versions that are complete were
    /// so then.
    pub fn names_at_open(&self) -> &HashMap<Key, PinnedName> {
        &self.names_at_open
    }

    /// What a pinned name stands for; `None` if it is not pinned, or its file is damaged.
    ///
    /// # Errors
    /// What the disk says.
    pub fn pinned_name(&self, key: &Key) -> io::Result<Option<PinnedName>> {
        Ok(read(&self.folder, &id_of(&self.folder, key))?.map(|(_, name)| name))
    }

    /// All pinned names, in no order that matters.
    ///
    /// # Errors
    /// What the disk says.
    pub fn pinned_names(&self) -> io::Result<Vec<(Key, PinnedName)>> {
        all(&self.folder)
    }

    /// Claims a name, whether it is pinned or not; `None` if another process has claimed it.
    ///
    /// # Errors
    /// What the disk says; too many names.
    pub fn claim_name(&self, key: &Key) -> io::Result<Option<NameClaim<'_>>> {
        let path = path_of(&self.folder, &id_of(&self.folder, key));
        loop {
            if !path.exists() && ids(&self.folder)?.len() >= NAMES_MAX {
                return Err(io::Error::other(format!("{NAMES_MAX} names are pinned already; unpin another one")));
            }
            let file = disk::open(&path, true)?;
            if !try_lock(&file) {
                return Ok(None);
            }
            // The one who had it may have removed it.
            if file.metadata()?.nlink() > 0 {
                return Ok(Some(NameClaim { cache: self, key: *key, path, file }));
            }
        }
    }

    /// Changes what a name stands for, which is pinned or claimed. The change stays after a power
    /// cut once this returns; before, the old state does.
    ///
    /// # Errors
    /// What the disk says; another process keeps the lock of the folder; the name is too long. Then
    /// nothing was changed, unless the disk could not be written and yet has it later.
    pub fn change_name<T>(&self, key: &Key, change: impl FnOnce(&mut PinnedName) -> T) -> io::Result<T> {
        let _lock = self.lock_patiently()?;
        let file = disk::open(&path_of(&self.folder, &id_of(&self.folder, key)), false)?;
        self.look_again();
        let slots = Slots::read(&self.folder, &id_of(&self.folder, key), &file)?;
        let before = slots.newest.as_ref().map(|(.., (_, name))| name);
        let mut name = before.cloned().unwrap_or_default();
        let outcome = change(&mut name);
        if before != Some(&name) {
            slots.write(&self.folder, key, &file, &name)?;
            if slots.is_new {
                self.folder.sync()?;
            }
        }
        Ok(outcome)
    }

    /// Unpins all images that no name has a version of. Returns those that others still use.
    ///
    /// # Errors
    /// What the disk says; another process keeps the lock of the folder.
    pub fn unpin_unnamed(&self) -> io::Result<Vec<Owner>> {
        self.close();
        let _lock = self.lock_patiently()?;
        let mut named = HashSet::new();
        for (_, name) in self.pinned_names()? {
            named.extend([name.current, name.previous, name.next].into_iter().flatten().map(|version| version.owner));
        }
        let mut used = Vec::new();
        for owner in self.pins().into_keys().filter(|owner| !named.contains(owner)) {
            let header = Header { owner, is_pinned: true };
            match self.unpin_locked(&header) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => used.push(owner),
                outcome => outcome?,
            }
        }
        Ok(used)
    }

    fn lock_patiently(&self) -> io::Result<Locked> {
        for _ in 0..LOCKS_MAX {
            if let Some(lock) = self.folder.lock()? {
                return Ok(lock);
            }
        }
        Err(busy())
    }

    /// Logs that were pinned when they were read may not be any more. Under the lock.
    fn look_again(&self) {
        for log in self.known().logs.values_mut().filter(|log| log.header.is_pinned) {
            if let Some(header) = log.file.header() {
                log.header = header;
            }
        }
    }
}

impl NameClaim<'_> {
    /// The name is pinned no more.
    ///
    /// # Errors
    /// What the disk says; another process keeps the lock of the folder.
    pub fn remove(self) -> io::Result<()> {
        let _lock = self.cache.lock_patiently()?;
        fs::remove_file(&self.path)?;
        self.cache.folder.sync()
    }
}

impl Drop for NameClaim<'_> {
    /// Nothing stays of a name that was not pinned in the end.
    fn drop(&mut self) {
        let folder = &self.cache.folder;
        if Slots::read(folder, &id_of(folder, &self.key), &self.file).is_ok_and(|slots| slots.newest.is_none()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Slots {
    fn read(folder: &Folder, id: &[u8; 32], file: &File) -> io::Result<Slots> {
        let mut is_new = true;
        for _ in 0..READS_MAX {
            let mut bytes = [0; 2 * SLOT_BYTES];
            let read = file.read_at(&mut bytes, 0)?;
            is_new = read < bytes.len();
            let slots = bytes.as_chunks::<SLOT_BYTES>().0.iter().enumerate();
            let found = slots.filter_map(|(at, slot)| {
                let (key, generation, name) = sealed::parse_slot(folder.key(), id, slot)?;
                Some((generation, at, (key, name)))
            });
            let newest = found.max_by_key(|(generation, ..)| *generation);
            if newest.is_some() || read == 0 {
                return Ok(Slots { newest, is_new });
            }
        }
        Ok(Slots { newest: None, is_new })
    }

    fn write(&self, folder: &Folder, key: &Key, file: &File, name: &PinnedName) -> io::Result<()> {
        if name.target.len() > TARGET_BYTES_MAX || name.bad.len() > BAD_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let generation = self.newest.as_ref().map_or(1, |(generation, ..)| generation.saturating_add(1));
        let slot = sealed::slot(folder.key(), key, generation, name);
        match &self.newest {
            // Over bytes that the file has.
            Some((_, newest, _)) if !self.is_new => file.write_all_at(&slot, ((1 - newest) * SLOT_BYTES) as u64)?,
            _ => {
                // Room for both, from now on, before there is a state.
                disk::grow(file, 0, 2 * SLOT_BYTES as u64)?;
                file.write_all_at(&[slot, slot].concat(), 0)?;
            }
        }
        file.sync_all()
    }
}

/// All names in a folder that have its key.
pub(crate) fn all(folder: &Folder) -> io::Result<Vec<(Key, PinnedName)>> {
    let mut found = Vec::new();
    for id in ids(folder)? {
        found.extend(read(folder, &id)?);
    }
    Ok(found)
}

/// Removes names that have no key from a folder that has one, unless somebody fetches a version of
/// them.
pub(crate) fn remove_plain(folder: &Folder) -> io::Result<()> {
    let ids = if folder.key().is_some() { ids(folder)? } else { Vec::new() };
    for id in ids {
        let path = path_of(folder, &id);
        let Ok(file) = disk::open(&path, false) else { continue };
        let mut bytes = [0; 2 * SLOT_BYTES];
        let _ = file.read_at(&mut bytes, 0)?;
        let is_plain = bytes.as_chunks::<SLOT_BYTES>().0.iter().any(|slot| format::parse_slot(slot).is_some());
        if is_plain && try_lock(&file) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn read(folder: &Folder, id: &[u8; 32]) -> io::Result<Option<(Key, PinnedName)>> {
    match disk::open(&path_of(folder, id), false) {
        Ok(file) => Ok(Slots::read(folder, id, &file)?.newest.map(|(.., named)| named)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn id_of(folder: &Folder, key: &Key) -> [u8; 32] {
    sealed::name_id(folder.key(), key)
}

fn path_of(folder: &Folder, id: &[u8; 32]) -> PathBuf {
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    folder.folder().join(digits + SUFFIX)
}

/// The ids of the names that have a file.
fn ids(folder: &Folder) -> io::Result<Vec<[u8; 32]>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder.folder())? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)).and_then(parse_id) else { continue };
        if entry.file_type()?.is_file() {
            found.push(id);
        }
    }
    Ok(found)
}

fn parse_id(digits: &str) -> Option<[u8; 32]> {
    let is_hex = digits.len() == 64 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let mut id = [0; 32];
    for (at, byte) in id.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    is_hex.then_some(id)
}
