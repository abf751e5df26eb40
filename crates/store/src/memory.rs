//! A store in memory, for tests and simulation. Committed objects are what a crash leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::UPLOAD;
use crate::key::check_folder;
use crate::{LIST_ENTRIES_MAX, Listed, Object, Store, StoreError, Upload, check_key};

/// Longest object: an upload that writes at a wild offset must not take the machine's memory.
const OBJECT_BYTES_MAX: u64 = 1 << 30;

type Objects = Arc<Mutex<BTreeMap<String, Arc<Vec<u8>>>>>;

/// Objects in a map. Clones share the map.
#[derive(Clone, Default)]
pub struct Memory {
    objects: Objects,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Memory {
        Memory::default()
    }
}

/// The map cannot be half-changed by a panic elsewhere: every change is one call.
fn locked(objects: &Objects) -> MutexGuard<'_, BTreeMap<String, Arc<Vec<u8>>>> {
    objects.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for Memory {
    fn open(&self, key: &str) -> Result<Arc<dyn Object>, StoreError> {
        check_key(key)?;
        match locked(&self.objects).get(key) {
            Some(bytes) => Ok(Arc::new(MemoryObject { key: key.to_owned(), bytes: bytes.clone() })),
            None => Err(StoreError::NotFound { key: key.to_owned() }),
        }
    }

    fn create(&self) -> Result<Box<dyn Upload>, StoreError> {
        Ok(Box::new(MemoryUpload { objects: self.objects.clone(), bytes: Vec::new() }))
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError> {
        check_folder(folder)?;
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let mut found = BTreeSet::new();
        for key in locked(&self.objects).range(prefix.clone()..).map(|(key, _)| key) {
            let Some(rest) = key.strip_prefix(&prefix) else { break };
            found.insert(match rest.split_once('/') {
                Some((first, _)) => (format!("{prefix}{first}"), true),
                None => (key.clone(), false),
            });
            if found.len() > LIST_ENTRIES_MAX {
                return Err(StoreError::TooMany { folder: folder.to_owned() });
            }
        }
        Ok(found
            .into_iter()
            .map(|(key, is_folder)| if is_folder { Listed::Folder(key) } else { Listed::Object(key) })
            .collect())
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        locked(&self.objects).remove(key);
        Ok(())
    }
}

struct MemoryObject {
    key: String,
    bytes: Arc<Vec<u8>>,
}

impl Object for MemoryObject {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        read_slice(&self.key, &self.bytes, offset, buf)
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<bool, StoreError> {
        self.read_at(offset, buf).map(|()| true)
    }
}

struct MemoryUpload {
    objects: Objects,
    bytes: Vec<u8>,
}

impl Upload for MemoryUpload {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end > OBJECT_BYTES_MAX {
            return Err(StoreError::Full { key: UPLOAD.to_owned() });
        }
        if end as usize > self.bytes.len() {
            self.bytes.resize(end as usize, 0);
        }
        self.bytes[offset as usize..end as usize].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        read_slice(UPLOAD, &self.bytes, offset, buf)
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<bool, StoreError> {
        self.read_at(offset, buf).map(|()| true)
    }

    fn commit(self: Box<Self>, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        let mut objects = locked(&self.objects);
        let above = key.match_indices('/').any(|(at, _)| objects.contains_key(&key[..at]));
        let folder = format!("{key}/");
        let below = objects.range(folder.clone()..).next().is_some_and(|(next, _)| next.starts_with(&folder));
        if above || below {
            return Err(StoreError::Conflict { key: key.to_owned() });
        }
        objects.insert(key.to_owned(), Arc::new(self.bytes));
        Ok(())
    }
}

fn read_slice(key: &str, bytes: &[u8], offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
    let end = offset.saturating_add(buf.len() as u64);
    if end > bytes.len() as u64 {
        return Err(StoreError::Truncated { key: key.to_owned(), expected: end, found: bytes.len() as u64 });
    }
    buf.copy_from_slice(&bytes[offset as usize..end as usize]);
    Ok(())
}
