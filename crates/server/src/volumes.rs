//! Volumes that are served beside images: plain folders, opened when the server starts, each with what is known of the order
//! in which its files are used.
//!
//! [`answer`] maps one request to its answer; connections do the rest (`session::volumes`): file numbers, order of
//! transactions, pushes (`push::blocks`). Profiles are flow graphs, kept in the store under [`profile_key`].

pub(crate) mod answer;
mod config;
mod files;
mod profiles;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use profile::flow::Updates;
use store::Store;
use units::Moment;
use volume::{FileId, Mode, Options, Volume, VolumeError, VolumePath};

pub use answer::{Caller, answer, transaction};
pub use config::VolumeConfig;
pub use files::{FILES_OPEN_MAX, OpenFiles};
pub(crate) use profiles::{Foreseen, Profiles};

use crate::blocks::locked;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::{Config, ServerError};

/// Time without a transaction after which a checkpoint is made: what others change behind our back between a crash and its
/// recovery is not seen.
const IDLE: Duration = Duration::from_secs(2);

/// How often profiles that live use changed are saved.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// Where the profile of a file lies in the store: a flow graph file.
pub fn profile_key(volume: &str, path: &[u8]) -> String {
    let hash = blake3::hash(path).to_hex();
    format!("volumes/{volume}/{}.flow", &hash[..32])
}

/// A volume that is served.
pub(crate) struct Served {
    pub name: String,
    pub volume: Volume,
    pub profiles: Mutex<Profiles>,
    /// Moment of the last transaction.
    committed: AtomicU64,
    saved: AtomicU64,
}

/// All volumes of a server.
pub(crate) struct Volumes {
    all: Vec<Arc<Served>>,
}

impl Volumes {
    /// Opens the volumes of a configuration that was checked, and recovers those that were not closed cleanly. Blocks.
    pub fn open(config: &Config) -> Result<Volumes, ServerError> {
        config::check(config)?;
        let open = |wanted: &VolumeConfig| {
            let volume = open(wanted, &config.log);
            let volume = volume.map_err(|source| ServerError::Volume { name: wanted.name.clone(), source })?;
            let profiles = Mutex::new(Profiles::new(volume.options().block_bytes, config));
            let (committed, saved) = Default::default();
            Ok(Arc::new(Served { name: wanted.name.clone(), volume, profiles, committed, saved }))
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
            let idle = now.since(Moment(served.committed.load(Ordering::Relaxed))) >= IDLE;
            if idle && served.volume.journal_bytes() > 0 {
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
    /// A transaction was committed.
    pub fn committed(&self, now: Moment) {
        self.committed.store(now.0, Ordering::Relaxed);
    }

    /// A file was opened: from now on its profile is known, if there is one. Blocks. Whether the order of its use is known.
    pub fn opened(&self, path: &VolumePath, file: FileId, size: u64, store: &dyn Store, log: &Logger) -> bool {
        // The store is read without the lock, which connections take at every touch.
        if locked(&self.profiles).wants(path, file, size) {
            let graph = profiles::load(store, &self.name, path, log);
            locked(&self.profiles).insert(file, graph);
        }
        locked(&self.profiles).is_profiled(file)
    }

    fn checkpoint(&self, log: &Logger) {
        if let Err(error) = self.volume.checkpoint() {
            log.warning(format_args!("volume {}: no checkpoint was made: {error}", self.name));
        }
    }

    fn save(&self, store: &dyn Store, metrics: &Metrics, log: &Logger) {
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
