//! State that the threads of a session share: the [`Schedule`] behind one lock, and the channels of
//! the threads.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use connection::{Clock, VolumeHandler, Waker};
use image::Metadata;
use units::{BlockId, InodeId, Moment, PAGE_BYTES, PageId};

use crate::block_cache::{BlockBytes, Decoded, StoredBlock};
use crate::command::{Command, ConnectionIndex, Failure, Kept, RequestKey};
use crate::config::{CONNECTIONS_MAX, Config};
use crate::counters::Counters;
use crate::error::ReadError;
use crate::job::{Job, UNDIGESTED_BYTES_MAX};
use crate::schedule::{Finished, Schedule};
use crate::sink::PageSink;

/// Bytes that may wait to be written to the device cache: a start over a fast link is there sooner
/// than a slow core compresses it.
const KEPT_BYTES_MAX: usize = 8 << 20;

/// Files of an image of which it is said that they cannot be read: enough to see what is wrong.
const TOLD_FILES_MAX: usize = 16;

/// State that the threads of a session share.
pub(crate) struct Shared {
    pub metadata: Arc<Metadata>,
    pub config: Config,
    pub clock: Clock,
    pub device: u128,
    pub storer: Sender<Job>,
    /// Stored bytes of push pieces that lie with the storer.
    pub undigested_bytes: AtomicUsize,
    connections: Vec<ConnectionHandle>,
    /// The one that leads to the device cache.
    pub cache: Option<ConnectionIndex>,
    /// Bytes that lie with the device cache to be written.
    pub kept_bytes: AtomicUsize,
    guarded: Mutex<Guarded>,
    timer: Condvar,
    sink: RwLock<Option<Arc<dyn PageSink>>>,
    /// The volume client whose frames go along; see [`connection::Attach`].
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
    /// Files of which it was said that they cannot be read.
    told_files: BTreeSet<InodeId>,
    /// When the timer thread wakes by itself.
    timer_wakes: Moment,
}

impl Shared {
    /// Makes it; the caller starts the threads.
    pub fn new(
        metadata: Arc<Metadata>,
        config: Config,
        clock: Clock,
        device: u128,
        mut schedule: Schedule,
        connections: Vec<ConnectionHandle>,
        storer: Sender<Job>,
    ) -> Shared {
        Shared {
            cache: schedule.connections().cache(),
            kept_bytes: AtomicUsize::new(0),
            device,
            metadata,
            config,
            clock,
            storer,
            undigested_bytes: AtomicUsize::new(0),
            connections,
            guarded: Mutex::new(Guarded {
                schedule,
                closed: false,
                told: false,
                told_files: BTreeSet::new(),
                timer_wakes: Moment(u64::MAX),
            }),
            timer: Condvar::new(),
            sink: RwLock::new(None),
            volumes: OnceLock::new(),
            takes_volumes: AtomicBool::new(false),
        }
    }

    /// Tells where pages can be stored.
    pub fn set_sink(&self, sink: Arc<dyn PageSink>) {
        *self.sink.write().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    /// A panic under the lock is a bug that release builds abort on; tests go on to report it.
    fn lock(&self) -> MutexGuard<'_, Guarded> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the schedule and carries out its effects: commands under the lock, callbacks without
    /// it.
    pub fn run<R>(&self, call: impl FnOnce(&mut Schedule, Moment) -> R) -> R {
        let (refused, mut unreadable);
        let (result, finished, evicted, hinted, woken) = {
            let mut guarded = self.lock();
            let now = self.clock.now();
            let result = call(&mut guarded.schedule, now);
            refused = guarded.schedule.refuse_contradiction(now).filter(|_| !guarded.told);
            guarded.told |= refused.is_some();
            let effects = guarded.schedule.take_effects();
            unreadable = effects.given_up;
            unreadable
                .retain(|(page, _)| guarded.told_files.len() < TOLD_FILES_MAX && guarded.told_files.insert(page.inode));
            // With the device cache.
            let mut woken = [false; CONNECTIONS_MAX + 1];
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
            self.tell(format_args!("{error}"));
        }
        for (page, error) in unreadable {
            self.tell_unreadable(page, error);
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

    fn tell(&self, error: std::fmt::Arguments<'_>) {
        let text = format!("error: image {}: {error}\n", self.metadata.id());
        // Where standard error is closed, reads fail all the same.
        let _ = std::io::stderr().write_all(units::printable_text(&text).as_bytes());
    }

    /// A program gets an error, or dies of a bus error, which says nothing of the reason.
    fn tell_unreadable(&self, page: PageId, error: ReadError) {
        let path = self.metadata.path(page.inode).unwrap_or_default();
        let path = String::from_utf8_lossy(&path);
        let at = u64::from(page.index) * PAGE_BYTES as u64;
        let what = match error {
            ReadError::Corrupt => "what the server sends does not match the image",
            _ => "the server cannot read it",
        };
        self.tell(format_args!(
            "{path} at byte {at}: {what}; let `runnel check` look at the image file there, and push or copy it there again"
        ));
    }

    /// The stored bytes of a block came. They are verified, and decoded if somebody waits for them:
    /// what was only guessed at may never be needed. Whether they are good.
    pub fn take_block(&self, key: RequestKey, block: BlockId, bytes: Bytes) -> bool {
        let spare = self.run(|schedule, _| schedule.is_awaited(block).then(|| schedule.spare()));
        let good = match spare {
            None => self.metadata.verify_block(block, &bytes).map(|_| None),
            Some(mut raw) => {
                self.metadata.decode_block(block, &bytes, &mut raw).map(|()| Some(BlockBytes::new(Decoded::Here(raw))))
            }
        };
        let Ok(raw) = good else {
            self.run(|schedule, now| schedule.failed(now, key, Failure::Corrupt));
            return false;
        };
        // Before the READ is answered: what a program has got is there next time.
        self.keep(|| Kept::Block { block, stored: bytes.clone() });
        let stored = StoredBlock::of(&self.metadata, block, bytes);
        self.run(|schedule, now| schedule.block_arrived(now, key, block, raw, stored));
        true
    }

    /// The decoded bytes of a block came.
    pub fn take_decoded(&self, key: RequestKey, block: BlockId, bytes: Bytes) {
        let raw_bytes = self.metadata.block(block).map(|entry| entry.raw_bytes as usize);
        if raw_bytes != Some(bytes.len()) {
            return self.run(|schedule, now| schedule.failed(now, key, Failure::Corrupt));
        }
        self.keep(|| Kept::Decoded { block, raw: bytes.clone() });
        let raw = BlockBytes::new(Decoded::Unverified(bytes));
        self.run(|schedule, now| schedule.block_arrived(now, key, block, Some(raw), None));
    }

    fn reply(&self, finished: Vec<Finished>) {
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

    /// A block left the cache. The storer takes it unless it has enough to do: nothing is lost but
    /// a convenience.
    pub fn offer_evicted(&self, gone: crate::block_cache::Evicted) {
        let bytes = gone.held_bytes();
        let before = self.undigested_bytes.fetch_add(bytes, Ordering::AcqRel);
        if before > UNDIGESTED_BYTES_MAX || self.storer.send(Job::Evicted(gone)).is_err() {
            self.undigested_bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// Gives the device cache what a server sent, unless it has enough to do: it is fetched again
    /// another time.
    pub fn keep(&self, kept: impl FnOnce() -> Kept) {
        let Some(cache) = self.cache else { return };
        if self.kept_bytes.load(Ordering::Acquire) > KEPT_BYTES_MAX {
            return;
        }
        let kept = kept();
        self.kept_bytes.fetch_add(kept.bytes(), Ordering::AcqRel);
        self.command(cache, Command::Keep(kept));
    }

    /// Sends a command to a connection outside of any call of the schedule.
    pub fn command(&self, connection: ConnectionIndex, command: Command) {
        let _ = self.connections[connection].commands.send(command);
        self.wake(connection);
    }

    pub fn wake(&self, connection: ConnectionIndex) {
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

    pub fn counters(&self) -> Counters {
        self.lock().schedule.counters()
    }

    pub fn close(&self) {
        {
            let mut guarded = self.lock();
            if guarded.closed {
                return;
            }
            guarded.closed = true;
        }
        self.run(|schedule, now| schedule.close(now));
        self.timer.notify_all();
        // Without a storer there is nothing to close.
        let _ = self.storer.send(Job::Close);
        // Dropped after the lock: the sink is the mount's, and dropping it may take its own time.
        let sink = self.sink.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(sink);
    }

    /// The timer thread.
    pub fn keep_time(&self) {
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
