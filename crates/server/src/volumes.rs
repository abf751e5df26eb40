//! Volumes that are served beside images: plain folders, opened when the server starts, each with
//! the order in which its files are used.
//!
//! [`answer`] answers one request. Connections do the rest: file numbers and the order of
//! transactions (`opened`), pushes (`push::blocks`). Profiles are flow graphs, kept in the store
//! under [`profile_key`].

pub(crate) mod answer;
mod files;
mod opened;
mod present;
mod profiles;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use profile::flow::Updates;
use store::Store;
use units::Moment;
use volume::{FileId, Mode, Options, Volume, VolumeError, VolumePath};
use wire::ErrorCode;

pub use answer::{Caller, answer, transaction};
pub use files::{FILES_OPEN_MAX, OpenFiles};
pub(crate) use opened::{OpenVolume, Waiting};
use present::Present;
pub(crate) use profiles::{Foreseen, Profiles};

use crate::error::Failure;
use crate::lock::locked;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::{Config, ServerError, VolumeConfig};

/// Time without a transaction after which a checkpoint is made: what others change behind our back
/// between a crash and its recovery is not seen.
const IDLE: Duration = Duration::from_secs(2);

/// How often profiles that live use changed are saved.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// Where the profile of a file lies in the store: a flow graph file.
pub fn profile_key(volume: &str, path: &[u8]) -> String {
    let hash = blake3::hash(path).to_hex();
    format!("volumes/{volume}/{}.flow", &hash[..32])
}

/// Opens a volume, again if need be.
type Opener = Box<dyn Fn(&Logger) -> Result<Volume, VolumeError> + Send + Sync>;

/// A volume that is served.
pub(crate) struct Served {
    pub name: String,
    pub id: u128,
    pub options: Options,
    open: Opener,
    /// Missing while a volume that stopped is opened again.
    volume: RwLock<Option<Arc<Volume>>>,
    /// A warning said that it cannot be opened.
    warned: AtomicBool,
    pub profiles: Mutex<Profiles>,
    present: Mutex<present::Counts>,
    /// Moment of the last transaction.
    committed: AtomicU64,
    saved: AtomicU64,
}

/// All volumes of a server.
pub(crate) struct Volumes {
    all: Vec<Arc<Served>>,
}

impl Volumes {
    /// Opens the volumes of a configuration that was checked, and recovers those that were not
    /// closed cleanly. Blocks.
    pub fn open(config: &Config) -> Result<Volumes, ServerError> {
        config.check_volumes()?;
        let open = |wanted: &VolumeConfig| {
            let (name, folder, wanted) = (wanted.name.clone(), wanted.folder.clone(), wanted.clone());
            let served = Served::new(&name, config, Box::new(move |log| open(&wanted, log)));
            served.map(Arc::new).map_err(|error| ServerError::Volume { name, folder, error })
        };
        Ok(Volumes { all: config.volumes.iter().map(open).collect::<Result<_, ServerError>>()? })
    }

    /// The volume of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Served>> {
        self.all.iter().find(|served| served.name == name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.all.iter()
    }

    /// Checkpoints of volumes that are idle; profiles that changed. Blocks.
    pub fn upkeep(&self, now: Moment, store: &dyn Store, metrics: &Metrics, log: &Logger) {
        for served in &self.all {
            served.recover(log);
            if now.since(Moment(served.committed.load(Ordering::Relaxed))) >= IDLE {
                served.checkpoint(log);
            }
            locked(&served.profiles).expire(now);
            if now.since(Moment(served.saved.load(Ordering::Relaxed))) >= SAVE_EVERY {
                served.saved.store(now.0, Ordering::Relaxed);
                served.save(store, metrics, log);
            }
        }
    }

    /// Checkpoints and profiles of all. Blocks.
    pub fn finish(&self, store: &dyn Store, metrics: &Metrics, log: &Logger) {
        for served in &self.all {
            served.save(store, metrics, log);
            served.checkpoint(log);
        }
    }
}

impl Served {
    fn new(name: &str, config: &Config, open: Opener) -> Result<Served, VolumeError> {
        let volume = open(&config.log)?;
        let (id, options) = (volume.id(), *volume.options());
        Ok(Served {
            name: name.to_owned(),
            id,
            options,
            open,
            volume: RwLock::new(Some(Arc::new(volume))),
            warned: AtomicBool::new(false),
            profiles: Mutex::new(Profiles::new(options.block_bytes, config)),
            present: Mutex::default(),
            committed: AtomicU64::new(0),
            saved: AtomicU64::new(0),
        })
    }

    /// The volume.
    ///
    /// # Errors
    /// It stopped, and is not open again yet.
    pub fn volume(&self) -> Result<Arc<Volume>, Failure> {
        let volume = self.volume.read().unwrap_or_else(PoisonError::into_inner).clone();
        volume.ok_or_else(|| Failure::new(ErrorCode::Busy, format!("volume {} is recovering; try again", self.name)))
    }

    /// Opens the volume again if a failure of its disk stopped it. Blocks.
    fn recover(&self, log: &Logger) {
        let write = || self.volume.write().unwrap_or_else(PoisonError::into_inner);
        {
            let mut volume = write();
            if volume.as_ref().is_some_and(|volume| !volume.is_broken()) {
                return;
            }
            // Its folder is locked as long as somebody works with it.
            if let Some(Err(busy)) = volume.take().map(Arc::try_unwrap) {
                *volume = Some(busy);
                return;
            }
        }
        // Requests that come now are told to try again.
        match (self.open)(log) {
            Ok(opened) => {
                log.warning(format_args!("volume {}: it stopped, and is open again", self.name));
                *write() = Some(Arc::new(opened));
                self.warned.store(false, Ordering::Relaxed);
            }
            Err(error) if !self.warned.swap(true, Ordering::Relaxed) => {
                log.warning(format_args!("volume {}: it stopped, and cannot be opened again: {error}", self.name));
            }
            Err(_) => {}
        }
    }

    /// A transaction was committed.
    pub fn committed(&self, now: Moment) {
        self.committed.store(now.0, Ordering::Relaxed);
    }

    /// A file was opened: from now on its profile is known, if there is one. Blocks. Whether the
    /// order of its use is known.
    pub fn opened(&self, path: &VolumePath, file: FileId, size: u64, store: &dyn Store, log: &Logger) -> bool {
        // The store is read without the lock, which connections take at every touch.
        if locked(&self.profiles).wants(path, file, size) {
            let graph = profiles::load(store, &self.name, path, log);
            locked(&self.profiles).insert(file, graph);
        }
        locked(&self.profiles).is_profiled(file)
    }

    fn checkpoint(&self, log: &Logger) {
        let Ok(volume) = self.volume() else { return };
        if volume.journal_bytes() == 0 || volume.is_broken() {
            return;
        }
        if let Err(error) = volume.checkpoint() {
            log.warning(format_args!("volume {}: no checkpoint was made: {error}", self.name));
        }
    }

    fn save(&self, store: &dyn Store, metrics: &Metrics, log: &Logger) {
        // A warning at the start said so.
        if store.is_read_only() {
            return;
        }
        let changed = locked(&self.profiles).take_changed();
        for (file, path, graph) in changed {
            // One that was written by hand meanwhile stays.
            if let Some(found) = profiles::load(store, &self.name, &path, log)
                && found.updates == Updates::Static
            {
                locked(&self.profiles).insert(file, Some(found));
                continue;
            }
            let key = profile_key(&self.name, path.as_bytes());
            match store.put_atomic(&key, &graph.encode()) {
                Ok(()) => metrics.learned_saved.one(),
                Err(error) => {
                    log.warning(format_args!("volume {}: the profile of {path} is not saved: {error}", self.name));
                }
            }
        }
    }
}

fn open(wanted: &VolumeConfig, log: &Logger) -> Result<Volume, VolumeError> {
    let mode = if wanted.writable { Mode::ReadWrite } else { Mode::ReadOnly };
    let options =
        Options { mode, block_bytes: wanted.block_bytes, quota_bytes: wanted.quota_bytes, ..Options::default() };
    let open = |options| Volume::open(&wanted.folder, wanted.journal.as_deref(), options);
    let volume = match open(options) {
        // Served for reading, but what was acknowledged must be in its files first.
        Err(VolumeError::NeedsRecovery) => {
            log.warning(format_args!("volume {}: it was not closed cleanly, recovering", wanted.name));
            drop(open(Options { mode: Mode::ReadWrite, ..options })?);
            open(options)?
        }
        other => other?,
    };
    let recovered = volume.recovered();
    if recovered != volume::Recovered::default() {
        log.warning(format_args!(
            "volume {}: it was not closed cleanly; {} group(s) of transactions recovered, {} file(s) missing, {} \
             folder(s) with unknown contents put into .runnel/lost",
            wanted.name, recovered.groups, recovered.missing, recovered.lost
        ));
    }
    Ok(volume)
}

#[cfg(test)]
mod tests {
    use volume::{Disk, OWN_FOLDER, Operation, SimulatedDisk, Transaction};

    use super::*;
    use crate::StoreAt;

    fn create(name: &str) -> Transaction {
        let path = VolumePath::new(name.as_bytes()).unwrap();
        let operations = vec![Operation::Create { path, mode: 0o644, exclusive: true, owner: None }];
        Transaction { operations, ..Transaction::default() }
    }

    #[test]
    fn a_volume_that_stopped_is_opened_again() {
        let disk = SimulatedDisk::new(1);
        disk.make_folder(OWN_FOLDER, 0o700).unwrap();
        let mut config = Config::new(StoreAt::Folder("none".into()), ([127, 0, 0, 1], 0).into());
        config.log = Logger::silent();
        let tree = disk.clone();
        let open: Opener = Box::new(move |_| {
            Volume::on(Arc::new(tree.clone()), Some(Arc::new(tree.folder(OWN_FOLDER))), Options::default())
        });
        let served = Served::new("data", &config, open).unwrap();
        served.volume().unwrap().commit(create("a")).unwrap();
        // The journal cannot be written.
        disk.fail_at(Some(disk.changes() + 1));
        let stopped = served.volume().unwrap().commit(create("b")).unwrap_err();
        assert!(matches!(stopped, VolumeError::Broken { .. }), "{stopped}");
        assert_eq!(Failure::from(stopped).code, ErrorCode::Busy, "devices try again");
        let busy = served.volume().unwrap();
        assert!(matches!(busy.stat(&VolumePath::top()), Err(VolumeError::Broken { .. })));
        served.recover(&config.log);
        assert!(served.volume().unwrap().is_broken(), "somebody works with it");
        drop(busy);
        served.recover(&config.log);
        let again = served.volume().unwrap();
        again.commit(create("c")).unwrap();
        assert!(again.stat(&VolumePath::new(b"a").unwrap()).is_ok());
    }
}
