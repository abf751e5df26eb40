//! A store in memory, for tests and simulation. Committed objects are what a crash leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::UPLOAD;
use crate::key::check_folder;
use crate::{LIST_ENTRIES_MAX, Listed, Object, Store, StoreError, Upload, Version, check_key};

/// Longest object: an upload that writes at a wild offset must not take the machine's memory.
const OBJECT_BYTES_MAX: u64 = 1 << 30;

/// The objects of a store, each with its version.
#[derive(Default)]
struct Map {
    objects: BTreeMap<String, (Arc<Vec<u8>>, u64)>,
    /// Puts so far: the version of the object that was put last.
    puts: u64,
}

type Objects = Arc<Mutex<Map>>;

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
fn locked(objects: &Objects) -> MutexGuard<'_, Map> {
    objects.lock().unwrap_or_else(PoisonError::into_inner)
}

fn version(number: u64) -> Version {
    Version::new(number.to_string())
}

impl Map {
    fn put(&mut self, key: &str, bytes: Vec<u8>) -> Result<Version, StoreError> {
        let above = key.match_indices('/').any(|(at, _)| self.objects.contains_key(&key[..at]));
        let folder = format!("{key}/");
        let below = self.objects.range(folder.clone()..).next().is_some_and(|(next, _)| next.starts_with(&folder));
        if above || below {
            return Err(StoreError::Conflict { key: key.to_owned() });
        }
        self.puts += 1;
        self.objects.insert(key.to_owned(), (Arc::new(bytes), self.puts));
        Ok(version(self.puts))
    }
}

impl Store for Memory {
    fn open(&self, key: &str) -> Result<Arc<dyn Object>, StoreError> {
        check_key(key)?;
        match locked(&self.objects).objects.get(key) {
            Some((bytes, _)) => Ok(Arc::new(MemoryObject { key: key.to_owned(), bytes: bytes.clone() })),
            None => Err(StoreError::NotFound { key: key.to_owned() }),
        }
    }

    fn put_if(&self, key: &str, bytes: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        check_key(key)?;
        let mut map = locked(&self.objects);
        let found = map.objects.get(key).map(|(_, number)| version(*number));
        if found.as_ref() != expected {
            return Err(StoreError::Changed { key: key.to_owned() });
        }
        map.put(key, bytes.to_vec())
    }

    fn get_versioned(&self, key: &str, limit: u64) -> Result<(Vec<u8>, Version), StoreError> {
        check_key(key)?;
        let map = locked(&self.objects);
        let Some((found, number)) = map.objects.get(key) else {
            return Err(StoreError::NotFound { key: key.to_owned() });
        };
        match found.len() as u64 {
            bytes if bytes > limit => Err(StoreError::TooLarge { key: key.to_owned(), bytes, limit }),
            _ => Ok((found.to_vec(), version(*number))),
        }
    }

    fn create(&self) -> Result<Box<dyn Upload>, StoreError> {
        Ok(Box::new(MemoryUpload { objects: self.objects.clone(), bytes: Vec::new() }))
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError> {
        check_folder(folder)?;
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let mut found = BTreeSet::new();
        for key in locked(&self.objects).objects.range(prefix.clone()..).map(|(key, _)| key) {
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
        locked(&self.objects).objects.remove(key);
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
        locked(&self.objects).put(key, self.bytes).map(drop)
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
