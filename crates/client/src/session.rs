//! A mounted image: READs in, bytes out, whether the image is a local file or on a server.
//!
//! Threads of a session, all detached and ended by [`Session::shutdown`]: one per connection (or one that reads the local
//! file), the storer, which digests pushes and stores pages into the page cache, the timer, and the refill thread of the
//! page pool. They share the [`Schedule`] behind one lock, which is held for microseconds (a tenth of a millisecond when
//! a kept block is decoded again) and never across a callback or a system call other than waking a thread.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use connection::{
    Attach, Clock, ConnectionError, Target, VolumeConnection, VolumeHandler, VolumeMessage, Waker, random_number, spawn,
};
use image::Metadata;
use units::{InodeId, Moment, PageId, Token};

use crate::allocator::Allocator;
use crate::command::{Command, ConnectionIndex};
use crate::config::Config;
use crate::counters::Counters;
use crate::error::{ClientError, ReadError};
use crate::handler::VOLUME_CONNECTION;
use crate::schedule::Schedule;
use crate::storer::{Job, Storer};
use crate::{http, local, remote};

/// What became of pages offered to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// They are in the page cache.
    Stored,
    /// The kernel has not looked the inode up, so it cannot take pages of it.
    UnknownInode,
    /// The kernel refused for another reason.
    Failed,
}

/// The kernel's side, implemented by the mount. Called from the storer thread only, and never under a lock; READs of the
/// pages being stored are answered meanwhile.
pub trait PageSink: Send + Sync {
    /// Puts consecutive pages of a file into the page cache: at most 32, all whole but the last page of the file.
    fn store(&self, inode: InodeId, first_page: u32, bytes: &[u8]) -> StoreOutcome;

    /// Makes the kernel know an inode, for example by a stat of its path on the mount. False if that is impossible.
    fn look_up(&self, inode: InodeId) -> bool;
}

/// Receives the bytes of a READ, or why there are none. Called exactly once, from any thread of the session or from
/// within [`Session::read`].
pub type Done = Box<dyn FnOnce(Result<&[u8], ReadError>) + Send>;

/// Pages that may be hinted and not have come; [`Session::hint`] takes no more.
pub const HINT_PAGES_MAX: usize = wire::format::HINT_PAGES_WAITING_MAX;

/// One mounted image.
pub struct Session {
    pub(crate) shared: Arc<Shared>,
}

/// What the threads of a session share.
pub(crate) struct Shared {
    pub metadata: Arc<Metadata>,
    pub config: Config,
    pub clock: Clock,
    pub device: u128,
    pub storer: Sender<Job>,
    /// Stored bytes of push pieces that lie with the storer.
    pub undigested_bytes: AtomicUsize,
    pool: Arc<Allocator>,
    connections: Vec<ConnectionHandle>,
    guarded: Mutex<Guarded>,
    timer: Condvar,
    sink: RwLock<Option<Arc<dyn PageSink>>>,
    /// The volume client whose frames go along; see [`Attach`].
    pub volumes: OnceLock<Arc<dyn VolumeHandler>>,
    /// The connections lead to a server that speaks our protocol.
    pub takes_volumes: AtomicBool,
}

/// How to reach the thread of a connection.
pub(crate) struct ConnectionHandle {
    pub commands: Sender<Command>,
    /// The local file's thread waits on the channel itself and needs none.
    pub waker: Option<Arc<Waker>>,
}

struct Guarded {
    schedule: Schedule,
    closed: bool,
    /// It was said that the image contradicts itself.
    told: bool,
    /// When the timer thread wakes by itself.
    timer_wakes: Moment,
}

impl Session {
    /// Opens an image: fetches and checks its metadata, then starts the threads.
    ///
    /// # Errors
    /// [`ClientError`]: no server, no such image, damaged or oversized metadata, no threads.
    pub fn open(target: &Target, config: Config) -> Result<Arc<Session>, ClientError> {
        match target {
            Target::File(path) => local::open(path, config),
            Target::Remote(image) => remote::open(image, config),
            Target::Volume(_) => Err(ClientError::NoImage { target: target.to_string() }),
            Target::Http(file) => http::open(file, config),
        }
    }

    /// Starts what every session has; the caller starts the threads that `handles` lead to.
    pub(crate) fn start(
        metadata: Arc<Metadata>,
        config: Config,
        clock: Clock,
        device: u128,
        handles: Vec<ConnectionHandle>,
        remote: bool,
    ) -> Result<(Arc<Session>, Arc<Shared>), ClientError> {
        let pool = if config.ablation.allocated_pages { Ok(Allocator::without_pool()) } else { Allocator::start() };
        let pool = Arc::new(pool.map_err(ConnectionError::System)?);
        let mut schedule = Schedule::new(Arc::clone(&metadata), Arc::clone(&pool), &config, handles.len(), remote);
        schedule.set_hint_token(Token(random_number()?));
        let (storer, jobs) = channel();
        let shared = Arc::new(Shared {
            device,
            metadata,
            config,
            clock,
            storer,
            undigested_bytes: AtomicUsize::new(0),
            pool,
            connections: handles,
            guarded: Mutex::new(Guarded { schedule, closed: false, told: false, timer_wakes: Moment(u64::MAX) }),
            timer: Condvar::new(),
            sink: RwLock::new(None),
            volumes: OnceLock::new(),
            takes_volumes: AtomicBool::new(false),
        });
        let session = Arc::new(Session { shared: Arc::clone(&shared) });
        let timer = Arc::clone(&shared);
        spawn("runnel-timer", move || timer.keep_time())?;
        spawn_storer(Arc::clone(&shared), jobs)?;
        Ok((session, shared))
    }

    /// The image's metadata, verified. Of a remote image the chunk hashes may come a moment after the session was opened.
    pub fn metadata(&self) -> &Arc<Metadata> {
        &self.shared.metadata
    }

    /// Tells where pages can be stored. Until then, pushed pages are held.
    pub fn attach(&self, sink: Arc<dyn PageSink>) {
        *self.shared.sink.write().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    /// Reads `bytes` bytes at `offset` of a file, fewer at its end. `done` is called before this returns if the bytes
    /// are here, else later from a thread of the session: always in the end, and in soft mode within the stated time.
    /// `token` is the running action that reads.
    pub fn read(&self, token: Token, inode: InodeId, offset: u64, bytes: u32, done: Done) {
        self.shared.run(|schedule, now| schedule.read(now, token, inode, offset, bytes, done));
    }

    /// Somebody knows that `pages` will be needed soon, in this order, and that they are not in the page cache: they are
    /// put there without being read. Pages that are here or on their way are left out, as are holes and what is no page.
    /// Returns how many were asked for; what is not taken does no harm, it is read as ever.
    ///
    /// A Runnel server pushes them. From others, and from a local file, their blocks are read behind all that is waited
    /// for; a page that lies in several blocks is left to its READ then.
    pub fn hint(&self, pages: &[PageId]) -> usize {
        // In parts: the lock is held for each.
        let parts = pages.chunks(wire::format::HINT_PAGES_MAX);
        parts.map(|pages| self.shared.run(|schedule, now| schedule.hint(now, pages))).sum()
    }

    /// A running action ended.
    pub fn end(&self, token: Token) {
        self.shared.run(|schedule, _| schedule.end(token));
    }

    /// What the session did so far.
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Ends the session: READs that wait, and all later ones, get [`ReadError::Shutdown`]. Threads end soon after.
    pub fn shutdown(&self) {
        self.shared.close();
    }
}

/// What somebody waits for goes first, whether of the image or of a volume, and pushes of both share
/// one window.
impl Attach for Session {
    fn attach_volumes(&self, handler: Arc<dyn VolumeHandler>) -> Option<Arc<dyn VolumeConnection>> {
        let shared = &self.shared;
        let takes = !shared.is_closed() && shared.takes_volumes.load(Ordering::Acquire);
        if !takes || shared.volumes.set(handler).is_err() {
            return None;
        }
        shared.wake(VOLUME_CONNECTION);
        Some(Arc::new(SharedConnection { shared: Arc::clone(shared) }))
    }
}

/// The connection of a session that frames of volumes go over.
struct SharedConnection {
    shared: Arc<Shared>,
}

impl VolumeConnection for SharedConnection {
    fn send(&self, generation: u64, message: VolumeMessage) {
        self.shared.command(VOLUME_CONNECTION, Command::Volume { generation, message });
    }

    fn now(&self) -> Moment {
        self.shared.clock.now()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Shared {
    /// A panic under the lock is a bug that release builds abort on; tests go on to report it.
    fn lock(&self) -> MutexGuard<'_, Guarded> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the schedule and carries out what it wants: commands under the lock, callbacks without it.
    pub fn run<R>(&self, call: impl FnOnce(&mut Schedule, Moment) -> R) -> R {
        let refused;
        let (result, finished, evicted, hinted, woken) = {
            let mut guarded = self.lock();
            let now = self.clock.now();
            let result = call(&mut guarded.schedule, now);
            refused = guarded.schedule.refuse_contradiction(now).filter(|_| !guarded.told);
            guarded.told |= refused.is_some();
            let effects = guarded.schedule.take_effects();
            let mut woken = [false; crate::config::CONNECTIONS_MAX];
            for (connection, command) in effects.commands {
                // A thread that is gone has handed its requests back, or the session is closed.
                let _ = self.connections[connection].commands.send(command);
                woken[connection] = true;
            }
            if guarded.schedule.deadline().is_some_and(|deadline| deadline < guarded.timer_wakes) {
                self.timer.notify_one();
            }
            (result, effects.finished, effects.evicted, effects.hinted, woken)
        };
        for (handle, _) in self.connections.iter().zip(woken).filter(|(_, woken)| *woken) {
            if let Some(waker) = &handle.waker {
                waker.wake();
            }
        }
        if let Some(error) = refused {
            let text = format!("error: image {}: {error}\n", self.metadata.id());
            // Where standard error is closed, reads fail all the same.
            let _ = std::io::stderr().write_all(units::printable_text(&text).as_bytes());
        }
        for gone in evicted {
            self.offer_evicted(gone);
        }
        for block in hinted {
            // Without a storer the session is closed.
            let _ = self.storer.send(Job::Hinted(block));
        }
        if !finished.is_empty() {
            self.reply(finished);
        }
        result
    }

    fn reply(&self, finished: Vec<crate::schedule::Finished>) {
        let mut scratch = Vec::new();
        let mut replied = Vec::with_capacity(finished.len());
        for read in finished {
            replied.push(read.pages);
            match read.outcome {
                Ok(answer) => answer.hand_over(&mut scratch, read.done),
                Err(error) => (read.done)(Err(error)),
            }
        }
        let mut guarded = self.lock();
        replied.into_iter().for_each(|pages| guarded.schedule.replied(pages));
    }

    /// A block left the cache. The storer takes it unless it has enough to do: nothing is lost but a convenience.
    fn offer_evicted(&self, gone: crate::block_cache::Evicted) {
        let bytes = gone.held_bytes();
        let before = self.undigested_bytes.fetch_add(bytes, Ordering::AcqRel);
        if before > crate::storer::UNDIGESTED_BYTES_MAX || self.storer.send(Job::Evicted(gone)).is_err() {
            self.undigested_bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// Sends a command to a connection outside of any call of the schedule.
    pub fn command(&self, connection: ConnectionIndex, command: Command) {
        let _ = self.connections[connection].commands.send(command);
        self.wake(connection);
    }

    fn wake(&self, connection: ConnectionIndex) {
        if let Some(waker) = &self.connections[connection].waker {
            waker.wake();
        }
    }

    pub fn sink(&self) -> Option<Arc<dyn PageSink>> {
        self.sink.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn counters(&self) -> Counters {
        let mut counters = self.lock().schedule.counters();
        (counters.pool_hits, counters.pool_misses) = (self.pool.hits(), self.pool.misses());
        counters
    }

    fn close(&self) {
        {
            let mut guarded = self.lock();
            if guarded.closed {
                return;
            }
            guarded.closed = true;
        }
        self.run(|schedule, now| schedule.close(now));
        self.timer.notify_all();
        // A storer that is gone needs no goodbye.
        let _ = self.storer.send(Job::Close);
        // Dropped after the lock: the sink is the mount's, and dropping it may take its own time.
        let sink = self.sink.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(sink);
    }

    /// The timer thread.
    fn keep_time(&self) {
        let mut guarded = self.lock();
        while !guarded.closed {
            let now = self.clock.now();
            let deadline = guarded.schedule.deadline();
            if deadline.is_some_and(|deadline| deadline <= now) {
                drop(guarded);
                self.run(|schedule, now| schedule.expire(now));
                guarded = self.lock();
                continue;
            }
            guarded.timer_wakes = deadline.unwrap_or(Moment(u64::MAX));
            guarded = match deadline {
                None => self.timer.wait(guarded).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    // A microsecond more, so that the deadline has passed by then.
                    let time = deadline.since(now) + Duration::from_micros(1);
                    self.timer.wait_timeout(guarded, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

fn spawn_storer(shared: Arc<Shared>, jobs: Receiver<Job>) -> Result<(), ConnectionError> {
    spawn("runnel-storer", move || Storer::new(shared).work(jobs))
}
