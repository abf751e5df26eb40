//! What all connections share, and the upkeep of it.

use std::sync::Arc;

use predict::Predictor;
use store::Store;
use tokio::time::Instant;
use units::{ActionId, Moment};

use crate::blocks::BlockCache;
use crate::budget::Budget;
use crate::buffers::Buffers;
use crate::builders::Builders;
use crate::bundler::Bundler;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::{Config, Provider};
use crate::decoder::Decoder;
use crate::device::Devices;
use crate::error::ServerError;
use crate::lock::locked;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::panics::caught_blocking;
use crate::published::Published;
use crate::readers::Readers;
use crate::storage::Storage;
use crate::upload::UploadService;
use crate::volumes::Volumes;
use crate::{learned, provider};

/// Memory of the encoder of a push that is compressed live: 2.5 MiB with a window of 1 MiB.
const ENCODER_BYTES: usize = 5 << 19;

/// What all connections share. Each part keeps its own limits.
pub(crate) struct Shared {
    pub config: Config,
    pub clock: Clock,
    pub log: Logger,
    pub metrics: Arc<Metrics>,
    pub catalog: Arc<Catalog>,
    pub blocks: Arc<BlockCache>,
    pub volumes: Volumes,
    pub uploads: Arc<UploadService>,
    pub devices: Devices,
    pub buffers: Buffers,
    pub readers: Readers,
    pub builders: Arc<Builders>,
    pub decoder: Decoder,
    /// `None` if no bundles are made.
    pub bundler: Option<Bundler>,
    /// Last, so that the claim on the store ends after all that writes.
    storage: Storage,
}

impl Shared {
    /// Opens the store and the volumes.
    pub fn new(config: Config) -> Result<Shared, ServerError> {
        let storage = Storage::open(&config)?;
        let store = storage.store();
        let volumes = Volumes::open(&config)?;
        let shares = config.shares();
        // With one alone a peer that does not end its stream would keep it from all others.
        let live_streams = config.work.live_streams_max.min((shares.encoders / ENCODER_BYTES).max(2));
        let metrics = Arc::new(Metrics::default());
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| ServerError::Runtime(std::io::Error::other(error.to_string())))?;
        let blocks = Arc::new(BlockCache::new(&shares));
        let makes_bundles =
            config.learning.provider == Provider::Bundle && config.learning.enabled && !store.is_read_only();
        let bundler = makes_bundles
            .then(|| Bundler::start(store.clone(), metrics.clone(), config.log.clone()))
            .transpose()
            .map_err(ServerError::Runtime)?;
        let builders = Builders::start(config.work.builds_max, shares.pushes, live_streams);
        let buffers = Buffers::new(&shares);
        let catalog = Arc::new(Catalog::new(store.clone(), &config, blocks.clone(), metrics.clone())?);
        let uploads = UploadService::new(&storage, catalog.clone(), metrics.clone(), &config, buffers.slow());
        Ok(Shared {
            clock: Clock::start(),
            log: config.log.clone(),
            catalog,
            blocks,
            volumes,
            uploads: Arc::new(uploads),
            devices: Devices::new(Budget::memory(shares.devices), secret),
            buffers,
            readers: Readers::new(&config.work),
            builders: Arc::new(builders.map_err(ServerError::Runtime)?),
            decoder: Decoder::start(store.clone()).map_err(ServerError::Runtime)?,
            bundler,
            metrics,
            storage,
            config,
        })
    }

    /// Where images, tags and what was learned are kept.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.storage.store()
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// When `moment` is, for the runtime's timers.
    pub fn instant(&self, moment: Moment) -> Instant {
        self.clock.instant(moment)
    }

    /// An image was opened that was not open before: gets ready to push from it. Blocks.
    pub fn prepare(&self, image: &Arc<Published>) {
        if !self.config.learning.enabled {
            return;
        }
        if let Some(bundler) = &self.bundler {
            bundler.open_all(image);
        }
        match self.config.learning.provider {
            Provider::None => {}
            Provider::Madvise => image.advise_whole(),
            Provider::Nv | Provider::NvAsync | Provider::Bundle => {
                provider::preload(image, self.config.learning.provider_threshold);
            }
        }
    }

    /// A bundle turned out to be damaged: delete it and make it anew, on a blocking thread.
    pub fn replace_bundle(self: &Arc<Self>, image: Arc<Published>, action: ActionId, key: String) {
        // Two connections may meet the same damage.
        let Some(forms) = image.bundles.discard(action) else { return };
        let shared = self.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = shared.store().delete(&key) {
                shared.log.warning(format_args!("a damaged bundle stays: {error}"));
            } else if let Some(bundler) = &shared.bundler {
                bundler.build(&image, action, forms);
            }
        });
    }

    /// Ends idle runs, saves what changed, orders the bundles that pay. Blocks.
    pub fn upkeep(&self) {
        self.log.sum_up(std::time::Instant::now());
        self.part("the store", || self.storage.check(&self.log));
        self.part("open images", || self.hold_opened());
        self.part("uploads", || self.uploads.interrupted().expire(self.config.uploads.kept));
        self.part("volumes", || self.volumes.upkeep(self.now(), &**self.store(), &self.metrics, &self.log));
        self.part("signed names", || self.catalog.signed.keep_fresh(self.now(), self.clock.utc()));
        for image in self.catalog.opened() {
            self.part("an image", || self.keep_up(&image));
        }
    }

    /// Has no other server collect what clients have open here.
    fn hold_opened(&self) {
        if !self.store().is_read_only()
            && let Err(failure) = self.catalog.hold_opened()
        {
            self.log.warning(format_args!("open images may be collected: {failure}"));
        }
    }

    /// Does a part of the upkeep. A panic in it is logged, and ends only this part.
    fn part(&self, what: &str, work: impl FnOnce()) {
        if let Err(reason) = caught_blocking(work) {
            self.log.warning(format_args!("the upkeep of {what} failed: {reason}"));
        }
    }

    fn keep_up(&self, image: &Arc<Published>) {
        let changed = {
            let mut predictor = locked(&image.predictor);
            predictor.keep_up(self.now());
            predictor.take_changed()
        };
        if !changed.is_empty() {
            self.save(image);
        } else if let Err(failure) = learned::look(&**self.store(), image, &self.config.learning) {
            self.log.warning(format_args!("what others learned of image {} is not known: {failure}", image.id));
        }
        if let Some(bundler) = &self.bundler {
            bundler.keep_up(image, changed, self.now());
        }
    }

    fn save(&self, image: &Published) {
        if let Err(failure) = learned::save(&**self.store(), image, &self.metrics) {
            self.log.warning(format_args!("what was learned of image {} is not saved: {failure}", image.id));
        }
    }

    /// Saves everything. Blocks.
    pub fn finish(&self) {
        if let Some(bundler) = &self.bundler {
            bundler.stop();
        }
        self.part("volumes", || self.volumes.finish(&**self.store(), &self.metrics, &self.log));
        if self.config.learning.enabled {
            for image in self.catalog.opened() {
                self.part("an image", || {
                    locked(&image.predictor).expire(self.now());
                    self.save(&image);
                });
            }
        }
    }
}
