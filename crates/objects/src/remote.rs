//! The store.

use std::future::Future;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutResult, UpdateVersion,
};
use store::{Claim, LIST_ENTRIES_MAX, Listed, Local, Object, Sharing, Store, StoreError, Upload, Version, check_key};

use crate::BLOCK_BYTES;
use crate::address::Place;
use crate::bridge::Bridge;
use crate::cache::{Cache, Source};
use crate::failure::Failure;
use crate::health::Health;
use crate::object::RemoteObject;
use crate::upload::RemoteUpload;

/// Objects whose state is remembered, to open them while the service is away.
const KNOWN_MAX: usize = 1 << 16;

/// Time that a look whether the service is back may take: other upkeep waits for it.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// Time for writing cached blocks to the disk at the end.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// The least part of the disk: the cache is given up by pieces of it.
const DISK_BYTES_LEAST: u64 = 256 << 20;

/// What a store may take of this machine.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// The folder of cached blocks and of what is about to go up; of one process at a time.
    pub folder: PathBuf,
    /// Bytes of cached blocks on the disk; at least 256 MiB.
    pub disk_bytes: u64,
    /// Bytes of cached blocks in memory.
    pub memory_bytes: usize,
}

/// A state of an object.
#[derive(Clone)]
struct Known {
    e_tag: Option<String>,
    bytes: u64,
}

/// What a store, its objects and its uploads share.
pub(crate) struct Shared {
    pub service: Arc<dyn ObjectStore>,
    pub bridge: Bridge,
    health: Arc<Health>,
    place: Place,
    known: foyer::Cache<String, Known>,
}

impl Shared {
    pub fn path(&self, key: &str) -> Path {
        // As it is, unlike `from`: `check_key` allows nothing that must be encoded.
        Path::parse(self.place.key_in_bucket(key)).unwrap_or_default()
    }

    pub fn failed(&self, failure: Failure, what: &'static str, key: &str) -> StoreError {
        failure.into_error(&self.place.to_string(), what, key)
    }

    /// Sends a request and waits for its end.
    pub fn request<T: Send + 'static>(
        &self,
        future: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, Failure> {
        self.health.admit()?;
        let result = match self.bridge.wait(future) {
            Ok(result) => result.map_err(|error| Failure::of(&error)),
            Err(error) => Err(Failure::Other(error.to_string())),
        };
        self.health.note(&result);
        result
    }

    /// The object has another state than the one that was seen last.
    pub fn forget(&self, key: &str) {
        self.known.remove(key);
    }
}

/// A store in object storage. Other processes may use it at the same time.
pub struct Remote {
    shared: Arc<Shared>,
    cache: Arc<Cache>,
    /// What is about to go up.
    staging: Local,
    /// The folder of the cache is ours.
    _claim: Option<Claim>,
}

/// As [`Remote::open`], for who needs any store.
///
/// # Errors
/// As [`Remote::open`].
pub fn open(place: &Place, options: &CacheOptions) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(Remote::open(place, options)?))
}

impl Remote {
    /// Opens the store at `place` with the credentials of the environment, and looks whether it can
    /// be read.
    ///
    /// # Errors
    /// [`StoreError::Refused`]: the service knows no such bucket or credentials;
    /// [`StoreError::Away`]; [`StoreError::Io`] of the cache's folder.
    pub fn open(place: &Place, options: &CacheOptions) -> Result<Remote, StoreError> {
        let name = place.to_string();
        let refused = |reason| StoreError::Refused { key: name.clone(), reason };
        let store = Remote::on(place.connect().map_err(refused)?, place, options)?;
        match store.list("tags") {
            Ok(_) => Ok(store),
            Err(StoreError::NotFound { .. }) => Err(refused("there is no such bucket".to_owned())),
            Err(StoreError::Refused { reason, .. }) => Err(refused(reason)),
            Err(error) => Err(error),
        }
    }

    /// The same over a service that is connected.
    pub(crate) fn on(
        service: Arc<dyn ObjectStore>,
        place: &Place,
        options: &CacheOptions,
    ) -> Result<Remote, StoreError> {
        let folder = &options.folder;
        let failed = |source| StoreError::Io { what: "use the cache", key: folder.display().to_string(), source };
        let staging = Local::open(folder.join("staging"))?;
        let claim = match staging.claim(Sharing::Alone) {
            Err(StoreError::InUse { .. }) => {
                let text = "another server uses it; choose another folder (--store-cache)";
                return Err(failed(io::Error::other(text)));
            }
            other => other?,
        };
        let bridge = Bridge::start().map_err(failed)?;
        let disk_bytes = options.disk_bytes.max(DISK_BYTES_LEAST);
        let blocks = blocks_folder(folder, disk_bytes).map_err(failed)?;
        let (runtime, memory_bytes) = (bridge.handle().clone(), options.memory_bytes);
        let cache = bridge.wait(async move { Cache::open(&blocks, disk_bytes, memory_bytes, runtime).await });
        let cache = cache.and_then(|opened| opened).map_err(failed)?;
        let known = foyer::CacheBuilder::new(KNOWN_MAX).build();
        let shared = Shared { service, bridge, health: Arc::default(), place: place.clone(), known };
        Ok(Remote { shared: Arc::new(shared), cache, staging, _claim: claim })
    }

    fn source(&self, key: &str, state: &Known) -> Arc<Source> {
        let mut hasher = blake3::Hasher::new();
        let place = self.shared.place.to_string();
        for part in [&place, key, state.e_tag.as_deref().unwrap_or_default(), &state.bytes.to_string()] {
            hasher.update(part.as_bytes());
            hasher.update(&[0]);
        }
        let mut name = [0; 16];
        name.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Arc::new(Source {
            service: self.shared.service.clone(),
            health: self.shared.health.clone(),
            path: self.shared.path(key),
            e_tag: state.e_tag.clone(),
            bytes: state.bytes,
            state: name,
        })
    }

    fn object(&self, key: &str, source: Arc<Source>, whole: Option<Bytes>) -> Arc<dyn Object> {
        let (place, cache) = (self.shared.place.to_string(), self.cache.clone());
        Arc::new(RemoteObject { key: key.to_owned(), place, source, cache, whole })
    }

    /// Opens a state that was seen before.
    fn reopen(&self, key: &str, state: &Known) -> Result<Arc<dyn Object>, StoreError> {
        let source = self.source(key, state);
        if state.bytes > BLOCK_BYTES {
            return Ok(self.object(key, source, None));
        }
        let whole = match state.bytes {
            0 => Bytes::new(),
            _ => {
                let read = self.cache.read(&source, 0..1).pop().unwrap_or(Err(Failure::NotFound));
                read.map_err(|failure| self.shared.failed(failure, "read", key))?
            }
        };
        Ok(self.object(key, source, Some(whole)))
    }

    /// The first block of an object, and its state; [`Failure::NotModified`] if that is `known`.
    fn first_block(&self, key: &str, known: Option<String>) -> Result<(ObjectMeta, Bytes), Failure> {
        let (service, path) = (self.shared.service.clone(), self.shared.path(key));
        let range = Some(GetRange::Bounded(0..BLOCK_BYTES));
        let options = GetOptions { range, if_none_match: known, ..GetOptions::default() };
        let first = self.shared.request(async move {
            let result = service.get_opts(&path, options).await?;
            let meta = result.meta.clone();
            Ok((meta, result.bytes().await?))
        });
        let Err(Failure::Other(_)) = &first else { return first };
        // An empty object has no first byte to ask for.
        let (service, path) = (self.shared.service.clone(), self.shared.path(key));
        match self.shared.request(async move { service.head(&path).await }) {
            Ok(meta) if meta.size == 0 => Ok((meta, Bytes::new())),
            _ => first,
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let cache = self.cache.clone();
        // A runtime that is gone has nothing to write.
        let _ = self.shared.bridge.wait(async move { tokio::time::timeout(CLOSE_TIME, cache.close()).await });
    }
}

/// The folder of blocks for a cache of this size; those of other sizes go.
fn blocks_folder(folder: &FilePath, disk_bytes: u64) -> io::Result<PathBuf> {
    let name = format!("blocks-{}", disk_bytes >> 20);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.file_name();
        if found.to_str().is_some_and(|found| found.starts_with("blocks-") && found != name) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(folder.join(name))
}

fn version_of(e_tag: Option<&str>, version: Option<&str>) -> Version {
    Version::new(format!("{}\n{}", e_tag.unwrap_or_default(), version.unwrap_or_default()))
}

fn update_of(version: &Version) -> UpdateVersion {
    let (e_tag, version) = version.as_str().split_once('\n').unwrap_or((version.as_str(), ""));
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    UpdateVersion { e_tag: some(e_tag), version: some(version) }
}

impl Store for Remote {
    fn open(&self, key: &str) -> Result<Arc<dyn Object>, StoreError> {
        check_key(key)?;
        let known = self.shared.known.get(key).map(|entry| entry.value().clone());
        match self.first_block(key, known.as_ref().and_then(|known| known.e_tag.clone())) {
            Ok((meta, first)) => {
                let state = Known { e_tag: meta.e_tag, bytes: meta.size };
                let source = self.source(key, &state);
                self.shared.known.insert(key.to_owned(), state);
                // What one request brought, and no more of it than a block.
                let first = Bytes::copy_from_slice(&first);
                if !first.is_empty() {
                    self.cache.insert(source.key(0), first.clone());
                }
                let is_whole = first.len() as u64 == source.bytes;
                Ok(self.object(key, source, is_whole.then_some(first)))
            }
            Err(failure) => match (failure, known) {
                (Failure::NotModified | Failure::Away(_), Some(known)) => self.reopen(key, &known),
                (failure, _) => {
                    self.shared.forget(key);
                    Err(self.shared.failed(failure, "read", key))
                }
            },
        }
    }

    fn put_atomic(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        check_key(key)?;
        let (service, path, payload) = (self.shared.service.clone(), self.shared.path(key), bytes.to_vec());
        let put = self.shared.request(async move { service.put(&path, payload.into()).await });
        self.shared.forget(key);
        put.map(drop).map_err(|failure| self.shared.failed(failure, "write", key))
    }

    fn put_if(&self, key: &str, bytes: &[u8], expected: Option<&Version>) -> Result<Version, StoreError> {
        check_key(key)?;
        let (service, path, payload) = (self.shared.service.clone(), self.shared.path(key), bytes.to_vec());
        let mode = expected.map_or(PutMode::Create, |version| PutMode::Update(update_of(version)));
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = self.shared.request(async move { service.put_opts(&path, payload.into(), options).await });
        self.shared.forget(key);
        match put {
            Ok(PutResult { e_tag, version, .. }) => Ok(version_of(e_tag.as_deref(), version.as_deref())),
            // The object that was expected is there no more.
            Err(Failure::NotFound) => Err(StoreError::Changed { key: key.to_owned() }),
            Err(failure) => Err(self.shared.failed(failure, "write", key)),
        }
    }

    fn get_versioned(&self, key: &str, limit: u64) -> Result<(Vec<u8>, Version), StoreError> {
        check_key(key)?;
        let (service, path) = (self.shared.service.clone(), self.shared.path(key));
        let got = self.shared.request(async move {
            let result = service.get(&path).await?;
            let meta = result.meta.clone();
            // Without its bytes if there are too many.
            Ok(if meta.size > limit { (meta, None) } else { (meta, Some(result.bytes().await?)) })
        });
        match got.map_err(|failure| self.shared.failed(failure, "read", key))? {
            (meta, None) => Err(StoreError::TooLarge { key: key.to_owned(), bytes: meta.size, limit }),
            (meta, Some(bytes)) => Ok((bytes.into(), version_of(meta.e_tag.as_deref(), meta.version.as_deref()))),
        }
    }

    fn create(&self) -> Result<Box<dyn Upload>, StoreError> {
        let staged = self.staging.create()?;
        Ok(Box::new(RemoteUpload { shared: self.shared.clone(), staged, bytes: 0 }))
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, StoreError> {
        if !folder.is_empty() {
            check_key(folder)?;
        }
        let (service, path) = (self.shared.service.clone(), self.shared.path(folder));
        let listed = self.shared.request(async move { service.list_with_delimiter(Some(&path)).await });
        let listed = listed.map_err(|failure| self.shared.failed(failure, "list", folder))?;
        if listed.objects.len() + listed.common_prefixes.len() > LIST_ENTRIES_MAX {
            return Err(StoreError::TooMany { folder: folder.to_owned() });
        }
        let key = |path: &Path| {
            let key = self.shared.place.key_of(path.as_ref())?;
            // What has no valid key cannot be asked for.
            check_key(key).is_ok().then(|| key.to_owned())
        };
        let objects = listed.objects.iter().filter_map(|meta| key(&meta.location)).map(Listed::Object);
        let folders = listed.common_prefixes.iter().filter_map(key).map(Listed::Folder);
        let mut found: Vec<Listed> = objects.chain(folders).collect();
        found.sort_by(|one, other| name_of(one).cmp(name_of(other)));
        Ok(found)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_key(key)?;
        let (service, path) = (self.shared.service.clone(), self.shared.path(key));
        let deleted = self.shared.request(async move { service.delete(&path).await });
        self.shared.forget(key);
        match deleted {
            Ok(()) | Err(Failure::NotFound) => Ok(()),
            Err(failure) => Err(self.shared.failed(failure, "delete", key)),
        }
    }

    fn is_shared(&self) -> bool {
        true
    }

    /// Asks a service that did not answer last whether it is back.
    fn check(&self) -> Result<(), StoreError> {
        if self.shared.health.away().is_none() {
            return Ok(());
        }
        let (service, path) = (self.shared.service.clone(), self.shared.path("tags"));
        let asked = self.shared.health.admit().and_then(|()| {
            let asked =
                self.shared.bridge.wait(async move { tokio::time::timeout(CHECK_TIME, service.head(&path)).await });
            let asked = match asked {
                Ok(Ok(answer)) => answer.map(drop).map_err(|error| Failure::of(&error)),
                Ok(Err(_)) => Err(Failure::Away(format!("no answer in {CHECK_TIME:?}"))),
                Err(error) => Err(Failure::Other(error.to_string())),
            };
            self.shared.health.note(&asked);
            asked
        });
        match asked {
            Err(failure @ Failure::Away(_)) => Err(self.shared.failed(failure, "read", "tags")),
            _ => Ok(()),
        }
    }

    /// Of the disk on which uploads are staged.
    fn free_bytes(&self) -> Option<u64> {
        self.staging.free_bytes()
    }

    fn len(&self, key: &str) -> Result<u64, StoreError> {
        check_key(key)?;
        let (service, path) = (self.shared.service.clone(), self.shared.path(key));
        let known = || self.shared.known.get(key).map(|entry| entry.value().bytes);
        match self.shared.request(async move { service.head(&path).await }) {
            Ok(meta) => Ok(meta.size),
            Err(failure) => match (known(), &failure) {
                (Some(bytes), Failure::Away(_)) => Ok(bytes),
                _ => Err(self.shared.failed(failure, "read", key)),
            },
        }
    }
}

fn name_of(entry: &Listed) -> &str {
    match entry {
        Listed::Object(key) | Listed::Folder(key) => key,
    }
}
