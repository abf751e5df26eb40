//! Where bundles are made: one thread of low priority for the whole server, fed through a queue.
//!
//! One at a time is enough, because a bundle only saves bytes: until it is there, pushes are compressed live.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use store::{Listed, Store};
use units::ActionId;

use super::{Bundle, Recipe, build};
use crate::blocks::locked;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::published::Published;

/// Niceness of the thread: it gives way to those who serve, but not for ever. On a busy host a bundle that is never made costs
/// every push a fifth more bytes.
const NICENESS: i32 = 10;

/// Bundles of one image. The actions used last get one.
const BUNDLES_MAX: usize = 256;

/// Orders waiting; more are dropped, and the next upkeep orders again what is still missing.
const QUEUE_MAX: usize = 4096;

/// The thread and its queue.
pub(crate) struct Workshop {
    orders: Mutex<Option<Sender<Order>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    log: Logger,
    stop: AtomicBool,
    waiting: AtomicUsize,
    /// What is ordered and not made yet, so that nothing is ordered twice.
    ordered: Mutex<HashSet<(u64, ActionId)>>,
}

struct Order {
    image: Weak<Published>,
    serial: u64,
    action: ActionId,
}

impl Workshop {
    /// Starts the thread.
    pub fn start(store: Arc<dyn Store>, metrics: Arc<Metrics>, log: Logger) -> std::io::Result<Workshop> {
        let shared = Arc::new(Shared {
            store,
            metrics,
            log,
            stop: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            ordered: Mutex::default(),
        });
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("bundles".to_owned()).spawn({
            let shared = shared.clone();
            move || shared.run(receiver)
        })?;
        Ok(Workshop { orders: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)), shared })
    }

    /// Orders the bundle of an action. It is opened if it exists, made if not.
    pub fn order(&self, image: &Arc<Published>, action: ActionId) {
        if self.waiting() >= QUEUE_MAX || !locked(&self.shared.ordered).insert((image.serial, action)) {
            return;
        }
        let order = Order { image: Arc::downgrade(image), serial: image.serial, action };
        if let Some(orders) = &*locked(&self.orders) {
            self.shared.waiting.fetch_add(1, Ordering::SeqCst);
            // The thread outlives the sender, so this cannot fail before the end.
            let _ = orders.send(order);
        }
    }

    /// Orders the bundles of all actions of an image, the one used last first.
    pub fn order_all(&self, image: &Arc<Published>) {
        let actions: Vec<ActionId> =
            locked(&image.predictor).actions().ranked().iter().take(BUNDLES_MAX).map(|action| action.id).collect();
        actions.into_iter().for_each(|action| self.order(image, action));
    }

    /// Bundles ordered and not made yet, the one being made included.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::SeqCst)
    }

    /// Stops at the next segment and waits for the thread. Blocks for some milliseconds.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(locked(&self.orders).take());
        if let Some(thread) = locked(&self.thread).take() {
            // A panic there was reported by the panic hook already.
            let _ = thread.join();
        }
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self, orders: Receiver<Order>) {
        if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS) {
            self.log.info(format_args!("bundles are made at normal priority: {error}"));
        }
        for order in orders {
            locked(&self.ordered).remove(&(order.serial, order.action));
            if let (false, Some(image)) = (self.stopped(), order.image.upgrade()) {
                self.make(&image, order.action);
                // Old bundles go when the work is done: looking for them costs a hash of every action.
                if self.waiting.load(Ordering::SeqCst) == 1 {
                    self.tidy(&image);
                }
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn make(&self, image: &Published, action: ActionId) {
        let recipe = {
            let predictor = locked(&image.predictor);
            let segment_pages = predictor.config().segment_pages;
            predictor.action(action).map(|found| {
                let pages = found.pages.as_slice().into();
                (found.revision, Recipe::new(image.id, pages, segment_pages, image.window_log()))
            })
        };
        let Some((revision, recipe)) = recipe else {
            locked(&image.bundles).remove(&action);
            return;
        };
        let opened = match Bundle::open(&*self.store, &recipe) {
            Ok(Some(bundle)) => Ok(Some(bundle)),
            Ok(None) => self.build(image, &recipe),
            Err(failure) => {
                self.metrics.bundles_failed.one();
                self.log.warning(format_args!("a bundle is made anew: {failure}"));
                self.build(image, &recipe)
            }
        };
        match opened {
            Ok(Some(bundle)) => {
                locked(&image.bundles).insert(action, (revision, Arc::new(bundle)));
            }
            Ok(None) => {}
            Err(failure) => {
                self.metrics.bundles_failed.one();
                self.log.warning(format_args!("no bundle for action {action} of image {}: {failure}", image.id));
            }
        }
    }

    fn build(&self, image: &Published, recipe: &Recipe) -> Result<Option<Bundle>, crate::error::Failure> {
        if !build(&*self.store, image, recipe, &|| self.stopped())? {
            return Ok(None);
        }
        self.metrics.bundles_built.one();
        Bundle::open(&*self.store, recipe)
    }

    /// Deletes bundles of the image that no action has any more. One that is being pushed stays readable.
    fn tidy(&self, image: &Published) {
        let Ok(listed) = self.store.list(&Recipe::folder(image.id)) else { return };
        let wanted: HashSet<String> = {
            let predictor = locked(&image.predictor);
            let segment_pages = predictor.config().segment_pages;
            let recipes = predictor
                .actions()
                .iter()
                .map(|action| Recipe::new(image.id, action.pages.as_slice().into(), segment_pages, image.window_log()));
            // Collected first: hashing page lists is no work for under the lock.
            recipes.collect::<Vec<_>>()
        }
        .iter()
        .map(Recipe::key)
        .collect();
        for entry in listed {
            if let Listed::Object(key) = entry
                && !wanted.contains(&key)
                && let Err(error) = self.store.delete(&key)
            {
                self.log.warning(format_args!("an old bundle stays: {error}"));
            }
        }
    }
}
