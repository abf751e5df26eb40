//! A mounted image: READs in, bytes out, whether the image is a local file or on a server.
//!
//! Threads of a session, all detached and ended by [`Session::shutdown`]: one per connection (or
//! one that reads hinted blocks of the local file), the storer, which digests pushes and stores
//! pages into the page cache, the timer, and the refill thread of the page pool. They share
//! ([`Shared`]) the [`Schedule`] behind one lock, which is held for microseconds (a tenth of a
//! millisecond when a kept block is decoded) and never across a callback or a system call other
//! than waking a thread.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use connection::{
    Attach, Clock, ConnectionError, VolumeConnection, VolumeHandler, VolumeMessage, random_number, spawn,
};
use image::Metadata;
use units::{InodeId, Moment, PageId, Token};

use crate::allocator::Allocator;
use crate::cached::{ImageCache, Worker};
use crate::command::{Command, VOLUME_CONNECTION};
use crate::config::Config;
use crate::counters::Counters;
use crate::error::ClientError;
use crate::job::Job;
use crate::local::LocalReader;
use crate::schedule::Schedule;
use crate::shared::{ConnectionHandle, Shared};
use crate::sink::{Done, PageSink};
use crate::storer::Storer;

/// Pages that may be hinted and not have come; [`Session::hint`] takes no more.
pub const HINT_PAGES_MAX: usize = wire::format::HINT_PAGES_WAITING_MAX;

/// Longest wait at the end for what is on its way to the device cache.
const CACHE_CLOSES: Duration = Duration::from_secs(1);

/// One mounted image.
pub struct Session {
    pub(crate) shared: Arc<Shared>,
    /// Of an image in a local file.
    local: Option<LocalReader>,
    /// Ends when the thread of the device cache does.
    cache: Mutex<Option<Receiver<()>>>,
    cached: Option<Arc<ImageCache>>,
}

impl Session {
    /// Starts what every session has; the caller starts the threads that `handles` lead to.
    pub(crate) fn start(
        metadata: Arc<Metadata>,
        config: Config,
        clock: Clock,
        device: u128,
        mut handles: Vec<ConnectionHandle>,
        local: Option<LocalReader>,
        cached: Option<Arc<ImageCache>>,
    ) -> Result<(Arc<Session>, Arc<Shared>), ClientError> {
        // READs of a local file take no pages of the pool.
        let pool = if config.ablation.allocated_pages || local.is_some() {
            Ok(Allocator::without_pool())
        } else {
            Allocator::start()
        };
        let pool = Arc::new(pool.map_err(ConnectionError::System)?);
        let cache = cached.map(|cached| {
            let (commands, receiver) = channel();
            handles.push(ConnectionHandle { commands, waker: None });
            (cached, receiver)
        });
        let cached = cache.as_ref().map(|(cached, _)| Arc::clone(cached));
        let mut schedule =
            Schedule::new(Arc::clone(&metadata), pool, &config, handles.len(), local.is_none(), cached.clone());
        schedule.set_hint_token(Token(random_number()?));
        let (storer, jobs) = channel();
        let shared = Shared::new(metadata, config, clock, device, schedule, handles, storer);
        let shared = Arc::new(shared);
        let session = Arc::new(Session { shared: Arc::clone(&shared), local, cache: Mutex::default(), cached });
        let timer = Arc::clone(&shared);
        spawn("runnel-timer", move || timer.keep_time())?;
        spawn_storer(Arc::clone(&shared), jobs)?;
        if let Some(((cached, receiver), index)) = cache.zip(shared.cache) {
            let worker = Worker::new(Arc::clone(&shared), index, receiver, cached);
            let (works, ended) = channel();
            spawn("runnel-cache", move || {
                worker.work();
                drop(works);
            })?;
            *session.cache.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        }
        Ok((session, shared))
    }

    /// The image's metadata, verified. Of a remote image the chunk hashes may come a moment after
    /// the session was opened.
    pub fn metadata(&self) -> &Arc<Metadata> {
        &self.shared.metadata
    }

    /// Tells where pages can be stored. Until then, pushed pages are held.
    pub fn attach(&self, sink: Arc<dyn PageSink>) {
        self.shared.set_sink(sink);
    }

    /// Reads `bytes` bytes at `offset` of a file, fewer at its end. `done` is called before this
    /// returns if the bytes are here or in a local file, else later from a thread of the session:
    /// always in the end, and in soft mode within the stated time. `token` is the running action
    /// that reads. Returns whether all bytes were in memory.
    pub fn read(&self, token: Token, inode: InodeId, offset: u64, bytes: u32, done: Done) -> bool {
        match &self.local {
            Some(local) => local.read(&self.shared, inode, offset, bytes, done),
            None => self.shared.run(|schedule, now| schedule.read(now, token, inode, offset, bytes, done)),
        }
    }

    /// Whether the image is a local file: nobody learns from what is read, and reading more than
    /// was asked for costs no link.
    pub fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Puts pages into the page cache without a READ. The caller knows that `pages` will be needed
    /// soon, in this order, and that they are not in the page cache. Pages that are here or on
    /// their way are left out, as are holes and pages that do not exist. Returns how many were
    /// asked for; the others are read as ever.
    ///
    /// A Runnel server pushes them. From others, and from a local file, their blocks are read
    /// behind all demands; a page that lies in several blocks is left to its READ then.
    pub fn hint(&self, pages: &[PageId]) -> usize {
        // In parts: the lock is held for each.
        let parts = pages.chunks(wire::format::HINT_PAGES_MAX);
        parts.map(|pages| self.shared.run(|schedule, now| schedule.hint(now, pages))).sum()
    }

    /// A running action ended.
    pub fn end(&self, token: Token) {
        self.shared.run(|schedule, _| schedule.end(token));
    }

    /// The counters of the session.
    pub fn counters(&self) -> Counters {
        let mut counters = self.shared.counters();
        if let Some(local) = &self.local {
            local.blocks.add_to(&mut counters);
        }
        counters
    }

    /// Why nothing more is written to the device cache, if that is so.
    pub fn cache_problem(&self) -> Option<String> {
        self.cached.as_ref()?.problem().map(Into::into)
    }

    /// Ends the session: READs that wait, and all later ones, get [`crate::ReadError::Shutdown`].
    /// Threads end soon after; the device cache has what came when this returns, unless its disk is
    /// slow.
    pub fn shutdown(&self) {
        self.shared.close();
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = cache {
            let _ = ended.recv_timeout(CACHE_CLOSES);
        }
    }
}

/// Demands of the image and of volumes go first, and pushes of both share one window.
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

fn spawn_storer(shared: Arc<Shared>, jobs: Receiver<Job>) -> Result<(), ConnectionError> {
    spawn("runnel-storer", move || Storer::new(shared).work(jobs))
}
