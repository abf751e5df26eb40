//! The threads that open and make bundles: three of low priority for the whole server, each fed by
//! a queue.
//!
//! They are enough, because a bundle only saves bytes. Until it is there, pushes are compressed
//! live or come from an older bundle. [`policy`](crate::bundle::policy) decides what is made. The
//! best bundles take ten times longer than others, and opening one takes next to no time. So each
//! [`Kind`] of work has a thread of its own, and none waits for another.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use predict::ActionPredictor;
use profile::Action;
use store::{Listed, Store};
use units::{ActionId, Moment};
use wire::ErrorCode;

use crate::builders::lower_priority;
use crate::bundle::policy::{Forms, Grade, IdleTime, Start};
use crate::bundle::{Bundle, PIECE_PAGES_MAX, Recipe, build, folder, key};
use crate::error::Failure;
use crate::lock::locked;
use crate::log::Logger;
use crate::metrics::Metrics;
use crate::panics::caught_blocking;
use crate::published::Published;

/// Niceness of the thread: it gives way to those who serve, but not for ever. On a busy host a
/// bundle that is never made costs every push a fifth more bytes.
const NICENESS: i32 = 10;

/// Bundles of one image. The actions used last have one.
const BUNDLES_MAX: usize = 256;

/// All bundles of an image, with each page in up to three codecs, take at most this many times the
/// room of its file. Programs share pages, so more than once is of use; but everyone who may touch
/// pages decides what is bundled.
const IMAGE_SHARE: u64 = 4;

/// Pages of all actions of an image that nobody followed yet, up to which the run that taught one
/// counts as a start: 128 MiB, which are bundled in less than two seconds.
const UNTRIED_PAGES_MAX: usize = 32 << 10;

/// Variants of one first page that nobody followed yet, up to which the same holds: a program has
/// so many tasks that are learned at the same time.
const UNTRIED_VARIANTS_MAX: usize = 2;

/// Bundles of a small image may take so much all the same.
const BUNDLE_BYTES_MIN: u64 = 16 << 20;

/// Orders waiting; more are dropped, and the next upkeep jobs again what is still missing.
const QUEUE_MAX: usize = 4096;

/// The threads.
pub(crate) struct Bundler {
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Time for the best bundles.
    idle: Mutex<IdleTime>,
    worker: Arc<Worker>,
}

struct Worker {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    log: Logger,
    stop: AtomicBool,
    /// Where orders go, by [`Kind`]; empty once the threads are to end.
    queues: Mutex<Vec<Sender<Message>>>,
    waiting: AtomicUsize,
    /// What is ordered and not made yet, so that nothing is ordered twice.
    ordered: Mutex<HashSet<(u64, ActionId, Kind)>>,
    /// A warning said that there is no room for bundles.
    lacks_room: AtomicBool,
}

/// What the thread is sent.
enum Message {
    Job(Job),
    /// All that was ordered before is done.
    Reached(Sender<()>),
}

struct Job {
    image: Weak<Published>,
    serial: u64,
    action: ActionId,
    work: Work,
}

impl Job {
    /// What it is in [`Worker::ordered`].
    fn ordered(&self) -> (u64, ActionId, Kind) {
        (self.serial, self.action, self.work.kind())
    }
}

/// What to do for an action.
#[derive(Clone, Copy)]
enum Work {
    /// Open the bundle that the store has; without one, count the starts that nobody counted.
    Open,
    /// Make one.
    Build(Forms),
}

/// Work that is done by one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Bundles are opened, and starts counted.
    Open,
    /// Quick bundles are made.
    Quick,
    /// The best ones are.
    Best,
}

impl Kind {
    /// With the names of their threads, in the order of the declaration.
    const ALL: [(Kind, &str); 3] =
        [(Kind::Open, "opening bundles"), (Kind::Quick, "bundles"), (Kind::Best, "best bundles")];
}

impl Work {
    fn kind(self) -> Kind {
        match self {
            Work::Open => Kind::Open,
            Work::Build(Forms { grade: Grade::Quick, .. }) => Kind::Quick,
            Work::Build(Forms { grade: Grade::Best, .. }) => Kind::Best,
        }
    }
}

impl Bundler {
    /// Starts the threads.
    pub fn start(store: Arc<dyn Store>, metrics: Arc<Metrics>, log: Logger) -> std::io::Result<Bundler> {
        let (senders, receivers): (Vec<_>, Vec<_>) = Kind::ALL.iter().map(|_| channel()).unzip();
        let worker = Arc::new(Worker {
            store,
            metrics,
            log,
            stop: AtomicBool::new(false),
            queues: Mutex::new(senders),
            waiting: AtomicUsize::new(0),
            ordered: Mutex::default(),
            lacks_room: AtomicBool::new(false),
        });
        let bundler = Bundler { threads: Mutex::default(), idle: Mutex::new(IdleTime::new()), worker };
        for ((_, name), receiver) in Kind::ALL.into_iter().zip(receivers) {
            let worker = bundler.worker.clone();
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                lower_priority();
                worker.run(receiver)
            })?;
            locked(&bundler.threads).push(thread);
        }
        Ok(bundler)
    }

    /// Orders what pays now, and looks at actions that came, changed or went.
    pub fn keep_up(&self, image: &Arc<Published>, changed: Vec<ActionId>, now: Moment) {
        for action in changed {
            let found = locked(&image.predictor).action(action).map(|action| (action.pages.clone(), action.uses));
            let bundle = image.bundles.get(action);
            if found.is_none() || image.bundles.is_unsought(action) {
                self.worker.order(image, action, Work::Open);
            } else if let (Some((pages, uses)), Some(bundle)) = (found, bundle) {
                // What the run has found is pushed live from the next start on.
                let live_pages = bundle.fit(&pages).lacking as u32;
                let (count, held) = (pages.len() as u32, Some(bundle.forms));
                let rate = image.bundles.rate();
                let start = Start { rate, live_pages, held_pages: count - live_pages, held, surplus_pages: 0 };
                image.bundles.foresee(action, count, uses, &start);
            }
        }
        let due = image.bundles.take_all_due(&mut locked(&self.idle), now);
        for (action, forms) in due {
            self.build(image, action, forms);
        }
    }

    /// Orders a new bundle of an action.
    pub fn build(&self, image: &Arc<Published>, action: ActionId, forms: Forms) {
        self.worker.order(image, action, Work::Build(forms));
    }

    /// Opens the bundles of an image, that of the action used last first.
    pub fn open_all(&self, image: &Arc<Published>) {
        let actions: Vec<ActionId> =
            locked(&image.predictor).actions().ranked().iter().take(BUNDLES_MAX).map(|action| action.id).collect();
        actions.into_iter().for_each(|action| self.worker.order(image, action, Work::Open));
    }

    /// Waits until all work of this kind that was ordered before is done, at most so long.
    pub fn wait(&self, kind: Kind, most: Duration) {
        let (reached, done) = channel();
        if self.worker.send(kind, Message::Reached(reached)) {
            // Whatever is not done by then is done later.
            let _ = done.recv_timeout(most);
        }
    }

    /// Bundles ordered and not made yet, the one being made included.
    pub fn waiting(&self) -> usize {
        self.worker.waiting.load(Ordering::SeqCst)
    }

    /// Stops at the next segment and waits for the threads. Blocks for some milliseconds.
    pub fn stop(&self) {
        self.worker.stop.store(true, Ordering::SeqCst);
        locked(&self.worker.queues).clear();
        for thread in locked(&self.threads).drain(..) {
            // A panic there was reported by the panic hook already.
            let _ = thread.join();
        }
    }
}

impl Drop for Bundler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Worker {
    fn order(&self, image: &Arc<Published>, action: ActionId, work: Work) {
        let job = Job { image: Arc::downgrade(image), serial: image.serial, action, work };
        if self.waiting.load(Ordering::SeqCst) >= QUEUE_MAX || !locked(&self.ordered).insert(job.ordered()) {
            return;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.send(work.kind(), Message::Job(job));
    }

    /// Whether the thread will get it: not after the end.
    fn send(&self, kind: Kind, message: Message) -> bool {
        locked(&self.queues).get(kind as usize).is_some_and(|queue| queue.send(message).is_ok())
    }

    fn run(&self, messages: Receiver<Message>) {
        if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS) {
            self.log.info(format_args!("bundles are made at normal priority: {error}"));
        }
        for message in messages {
            let job = match message {
                Message::Job(job) => job,
                Message::Reached(reached) => {
                    // Nobody may be waiting any more.
                    let _ = reached.send(());
                    continue;
                }
            };
            // A best bundle is not ordered again while it is made.
            let is_best = job.work.kind() == Kind::Best;
            if !is_best {
                locked(&self.ordered).remove(&job.ordered());
            }
            if let (false, Some(image)) = (self.stopped(), job.image.upgrade()) {
                let made = caught_blocking(|| {
                    self.work(&image, &job);
                    // Looking for bundles that have to go lists the folder: when the work is done,
                    // or there are too many.
                    let (count, bytes) = image.bundles.count_and_bytes();
                    let is_full = count > BUNDLES_MAX || bytes > bundle_bytes_max(&image);
                    if is_full || self.waiting.load(Ordering::SeqCst) == 1 {
                        self.tidy(&image);
                    }
                });
                if let Err(reason) = made {
                    self.metrics.bundles_failed.one();
                    self.log.warning(format_args!("making a bundle of image {} failed: {reason}", image.id));
                }
            }
            if is_best {
                locked(&self.ordered).remove(&job.ordered());
            }
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn work(&self, image: &Arc<Published>, job: &Job) {
        let recipe = |forms| {
            let predictor = locked(&image.predictor);
            let segment_pages = predictor.config().segment_pages;
            predictor.action(job.action).map(|found| Recipe {
                image: image.id,
                action: job.action,
                pages: found.pages.as_slice().into(),
                piece_pages: segment_pages.clamp(1, PIECE_PAGES_MAX),
                forms,
            })
        };
        let forms = match job.work {
            Work::Open => {
                self.open(image, job.action);
                if let Some(forms) = image.bundles.take_quick_due(job.action) {
                    self.order(image, job.action, Work::Build(forms));
                }
                return;
            }
            Work::Build(forms) => forms,
        };
        let done = recipe(forms).map_or(Ok(()), |recipe| self.build(image, &recipe));
        let Err(failure) = done else { return };
        self.metrics.bundles_failed.one();
        if failure.code != ErrorCode::NoSpace {
            self.log.warning(format_args!("no bundle for action {} of image {}: {failure}", job.action, image.id));
        } else if !self.lacks_room.swap(true, Ordering::SeqCst) {
            // Each start would say it again.
            self.log.warning(
                "no bundles are made: the disk of the store has too little room left, so starts are compressed live; \
                 free some space",
            );
        }
    }

    fn open(&self, image: &Published, action: ActionId) {
        let Some((starts, pages)) = unseen_starts(&locked(&image.predictor), action) else {
            return image.bundles.forget(action);
        };
        if !image.bundles.is_unsought(action) {
            return;
        }
        match Bundle::open(&*self.store, image.id, action) {
            Ok(Some(bundle)) => return image.bundles.put(action, Arc::new(bundle)),
            Ok(None) => {}
            Err(failure) => {
                self.metrics.bundles_failed.one();
                self.log.warning(format_args!("a bundle is of no use: {failure}"));
            }
        }
        image.bundles.not_found(action);
        if starts > 0 {
            image.bundles.charge(action, pages, &Start::unseen(pages, image.bundles.rate()));
        }
    }

    fn build(&self, image: &Published, recipe: &Recipe) -> Result<(), Failure> {
        let page = |page, out: &mut Vec<u8>| image.page(page, out);
        // The action may change while its best bundle is made: then another one is there by now.
        let before = image.bundles.get(recipe.action);
        let is_old =
            || image.bundles.get(recipe.action).map(|bundle| bundle.serial) != before.as_ref().map(|it| it.serial);
        if !build(&*self.store, recipe, &page, &|| self.stopped() || is_old())? {
            return Ok(());
        }
        self.lacks_room.store(false, Ordering::SeqCst);
        self.metrics.bundles_built.one();
        self.metrics.bundle_pages_built.add(recipe.pages.len() as u64);
        if let Some(bundle) = Bundle::open(&*self.store, image.id, recipe.action)? {
            image.bundles.put(recipe.action, Arc::new(bundle));
        }
        Ok(())
    }

    /// Deletes bundles of the image whose action is no more, and those of the actions used longest
    /// ago if there are too many or they take too much room. One that is being pushed stays
    /// readable.
    fn tidy(&self, image: &Published) {
        let Ok(listed) = self.store.list(&folder(image.id)) else { return };
        let mut stored: HashSet<String> = HashSet::new();
        stored.extend(listed.into_iter().filter_map(|entry| match entry {
            Listed::Object(key) => Some(key),
            Listed::Folder(_) => None,
        }));
        let ranked: Vec<ActionId> =
            locked(&image.predictor).actions().ranked().iter().map(|action| action.id).collect();
        let (mut count, mut bytes) = (0, 0);
        for action in ranked {
            let key = key(image.id, action);
            let Some(found) = stored.get(&key).and_then(|key| self.store.len(key).ok()) else { continue };
            count += 1;
            bytes += found;
            if count > BUNDLES_MAX || bytes > bundle_bytes_max(image) {
                image.bundles.discard(action);
            } else {
                stored.remove(&key);
            }
        }
        for key in stored {
            if let Err(error) = self.store.delete(&key) {
                self.log.warning(format_args!("an old bundle stays: {error}"));
            }
        }
    }
}

/// Room for all bundles of an image, in bytes.
fn bundle_bytes_max(image: &Published) -> u64 {
    (image.object().len() * IMAGE_SHARE).max(BUNDLE_BYTES_MIN)
}

/// Starts of an action that were counted before anything was known of its bundle, and its pages.
/// `None` if there is no such action. The run that taught it counts, since the program will start
/// again. It counts for nothing if it is
/// - one of several variants that nobody followed since: a program whose runs have little in common
///   makes a variant with each, and may follow none of them again;
/// - one of many that taught an action which nobody followed since: a stranger can teach any
///   number.
pub(crate) fn unseen_starts(predictor: &ActionPredictor, action: ActionId) -> Option<(u64, u32)> {
    let found = predictor.action(action)?;
    let actions = predictor.actions();
    let is_untried = |action: &&Action| action.uses <= 1;
    let variants = actions.variants(found.first_page()).into_iter().filter(is_untried).count();
    let pages: usize = actions.iter().filter(is_untried).map(|action| action.pages.len()).sum();
    let are_many = variants > UNTRIED_VARIANTS_MAX || pages > UNTRIED_PAGES_MAX;
    let starts = if are_many { found.uses.saturating_sub(1) } else { found.uses };
    Some((starts, found.pages.len() as u32))
}
