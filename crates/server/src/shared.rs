//! What all connections share, and the upkeep of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use predict::Predictor;
use store::{Claim, Local, Sharing as StoreSharing, Store};
use tokio::time::Instant;
use units::{ActionId, Moment};

use crate::admission::Admission;
use crate::blocks::{BlockCache, locked};
use crate::budget::Budget;
use crate::builders::Builders;
use crate::bundle::workshop::Workshop;
use crate::catalog::Catalog;
use crate::config::{Config, StoreAt};
use crate::device::Devices;
use crate::learned;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::panics::caught_blocking;
use crate::processor::Processor;
use crate::published::Published;
use crate::slow::SlowPeers;
use crate::tls::Acceptor;
use crate::upload::{Parked, UPLOADS_AT_WORK, UPLOADS_MAX};
use crate::volumes::Volumes;
use crate::{Provider, ServerError, descriptors, provider};

/// Images opened at once. Opening reads and validates all metadata of an image.
const OPENS_MAX: usize = 4;

/// Memory of the encoder of a push that is compressed live: 2.5 MiB with a window of 1 MiB.
const ENCODER_BYTES: usize = 5 << 19;

/// Time for which a peer goes last where it had to give way, and in turns of listings if one of its
/// own took long.
const SLOW_FOR: Duration = Duration::from_secs(600);
const LISTER_FOR: Duration = Duration::from_secs(10);

/// What all connections share.
pub(crate) struct Shared {
    pub config: Config,
    pub store: Arc<dyn Store>,
    pub catalog: Catalog,
    pub volumes: Volumes,
    pub blocks: Arc<BlockCache>,
    pub metrics: Arc<Metrics>,
    pub log: Logger,
    pub devices: Devices,
    pub parked: Parked,
    /// Peers that lately had to give way to others.
    pub slow: SlowPeers,
    /// Memory of what arrives, until it is taken up or answered.
    pub received: Budget,
    /// Memory of replies.
    pub replies: Budget,
    /// Memory of pieces of pushes.
    pub pushes: Budget,
    pub live_streams: Budget,
    pub reads: Budget,
    pub builds: Budget,
    pub builders: Arc<Builders>,
    /// Single pages that are decoded and compressed for demands.
    pub pages: Budget,
    /// Folders of volumes that are listed. Peers whose listings took long go last.
    pub listings: Budget,
    pub listers: SlowPeers,
    pub opens: Budget,
    /// Uploads of which something came.
    pub uploads: Budget,
    pub uploads_at_work: Budget,
    /// Turns of the tasks that serve connections.
    pub processor: Processor,
    /// Held while an upload is published.
    pub publishing: Mutex<()>,
    /// `None` if no bundles are made.
    pub workshop: Option<Workshop>,
    pub started: Instant,
    /// That the store is gone was said.
    store_is_gone: AtomicBool,
    /// The folder of the store is ours.
    _claim: Option<Claim>,
    pub admission: Arc<Admission>,
    pub acceptor: Acceptor,
    pub connections: AtomicU64,
}

impl Shared {
    /// Opens the store and the volumes.
    pub fn new(config: Config) -> Result<Shared, ServerError> {
        let (store, claim): (Arc<dyn Store>, _) = match &config.store {
            StoreAt::Folder(path) => {
                let store = Local::open(path)?;
                let claim = store.claim(config.sharing())?;
                (Arc::new(store), claim)
            }
            StoreAt::Open(store) => (store.clone(), None),
        };
        if let (true, StoreAt::Folder(path)) =
            (store.is_read_only() && config.sharing() == StoreSharing::Alone, &config.store)
        {
            config.log.warning(format_args!(
                "the store is read-only: {} cannot be written, so uploads are refused and what is learned is not saved; \
                 give the server's user the right to write there, or serve with --read-only and --frozen",
                path.display()
            ));
        }
        let volumes = Volumes::open(&config)?;
        let acceptor = Acceptor::new(config.tls.as_ref(), config.uploads)?;
        let shares = config.shares();
        let places = config.connections_max.min(descriptors::connections_max(&config));
        if places < config.connections_max {
            let wanted = config.connections_max;
            config.log.warning(format_args!(
                "only {places} connections are taken, not {wanted}: the limit of open files is too low (ulimit -n, LimitNOFILE=)"
            ));
        }
        // With one alone a peer that does not end its stream would keep it from all others.
        let live_streams = config.live_streams_max.min((shares.encoders / ENCODER_BYTES).max(2));
        let metrics = Arc::new(Metrics::default());
        let (slow, listers) = (SlowPeers::for_time(SLOW_FOR), SlowPeers::for_time(LISTER_FOR));
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| ServerError::Runtime(std::io::Error::other(error.to_string())))?;
        let blocks = Arc::new(BlockCache::new(&shares));
        let workshop = (config.provider == Provider::Bundle && config.learning && !store.is_read_only())
            .then(|| Workshop::start(store.clone(), metrics.clone(), config.log.clone()))
            .transpose()
            .map_err(ServerError::Runtime)?;
        Ok(Shared {
            catalog: Catalog::new(store.clone(), &config, blocks.clone(), metrics.clone()),
            volumes,
            blocks,
            log: config.log.clone(),
            devices: Devices::new(Budget::memory(shares.devices), secret),
            parked: Parked::default(),
            received: Budget::frames(shares.received).with_slow(&slow),
            replies: Budget::memory(shares.replies).with_slow(&slow),
            pushes: Budget::memory(shares.pushes),
            live_streams: Budget::slots(live_streams),
            reads: Budget::reads(config.reads_max),
            builds: Budget::turns(config.builds_max),
            builders: Arc::new(Builders::start(config.builds_max).map_err(ServerError::Runtime)?),
            // Whoever reads blocks finds a processor, however many ask for pages.
            pages: Budget::turns((config.builds_max / 2).max(1)),
            listings: Budget::turns((config.builds_max / 2).max(1)).with_slow(&listers),
            listers,
            opens: Budget::slots(OPENS_MAX),
            uploads: Budget::slots(UPLOADS_MAX).with_slow(&slow),
            slow,
            uploads_at_work: Budget::slots(UPLOADS_AT_WORK),
            processor: Processor::default(),
            publishing: Mutex::new(()),
            workshop,
            started: Instant::now(),
            store_is_gone: AtomicBool::new(false),
            _claim: claim,
            admission: Arc::new(Admission::new(places, config.connections_per_address(places))),
            acceptor,
            connections: AtomicU64::new(0),
            metrics,
            store,
            config,
        })
    }

    /// The present moment, as the pure crates count it. The runtime's clock, which tests can hold.
    pub fn now(&self) -> Moment {
        Moment(self.started.elapsed().as_micros() as u64)
    }

    /// When `moment` is, for the runtime's timers.
    pub fn instant(&self, moment: Moment) -> Instant {
        self.started + Duration::from_micros(moment.0)
    }

    /// An image was opened for the first time, or by a device with a smaller window: get ready to
    /// push from it. Blocks.
    pub fn prepare(&self, image: &Arc<Published>) {
        if !self.config.learning {
            return;
        }
        if let Some(workshop) = &self.workshop {
            workshop.open_all(image);
        }
        match self.config.provider {
            Provider::None => {}
            Provider::Madvise => image.advise_whole(),
            Provider::Nv | Provider::NvAsync | Provider::Bundle => {
                provider::preload(image, self.config.provider_threshold);
            }
        }
    }

    /// A bundle turned out to be damaged: delete it and make it anew, on a blocking thread.
    pub fn replace_bundle(self: &Arc<Self>, image: Arc<Published>, action: ActionId, key: String) {
        // Two connections may meet the same damage.
        let Some(grade) = image.bundles.discard(action) else { return };
        let shared = self.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = shared.store.delete(&key) {
                shared.log.warning(format_args!("a damaged bundle stays: {error}"));
            } else if let Some(workshop) = &shared.workshop {
                workshop.build(&image, action, grade);
            }
        });
    }

    /// Ends idle runs, saves what changed, orders the bundles that pay. Blocks.
    pub fn upkeep(&self) {
        self.log.sum_up(std::time::Instant::now());
        self.part("the store", || {
            let gone = self.store.check().err();
            if let (Some(error), false) = (&gone, self.store_is_gone.swap(gone.is_some(), Ordering::Relaxed)) {
                self.log.warning(error);
            }
        });
        self.part("uploads", || self.parked.expire(self.config.upload_kept));
        self.part("volumes", || self.volumes.upkeep(self.now(), &*self.store, &self.metrics, &self.log));
        for image in self.catalog.opened() {
            self.part("an image", || self.keep_up(&image));
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
        }
        if let Some(workshop) = &self.workshop {
            workshop.keep_up(image, changed);
        }
    }

    fn save(&self, image: &Published) {
        if let Err(failure) = learned::save(&*self.store, image, &self.metrics) {
            self.log.warning(format_args!("what was learned of image {} is not saved: {failure}", image.id));
        }
    }

    /// Saves everything. Blocks.
    pub fn finish(&self) {
        if let Some(workshop) = &self.workshop {
            workshop.stop();
        }
        self.part("volumes", || self.volumes.finish(&*self.store, &self.metrics, &self.log));
        if self.config.learning {
            for image in self.catalog.opened() {
                self.part("an image", || {
                    locked(&image.predictor).expire(self.now());
                    self.save(&image);
                });
            }
        }
    }
}
