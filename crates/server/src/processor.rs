//! Processor time of the tasks that serve connections: whose turn it is when more are ready than
//! there are threads.
//!
//! The runtime runs tasks in the order in which they became ready, whoever they belong to. So a
//! peer with two hundred busy connections would get two hundred turns for one of a device that
//! reads a block now and then. Therefore the time that tasks run is counted by peer. A peer that
//! lately used more than a part of a processor is *busy*. It has all processors while nobody else
//! wants one; while tasks of other peers are ready, it has one turn for each turn of theirs. Among
//! busy peers the runtime's order stays.
//!
//! This needs short turns ([`Slices`]): a task gives its thread back after a while even if more
//! bytes are there, and a task of a busy peer takes few of them at a time.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::lock::locked;
use crate::peer::Peer;

/// Time over which use is counted.
const WINDOW: Duration = Duration::from_millis(100);

/// A peer that used more than this of the present window, or of the one before it, is busy: a tenth
/// of a processor. A device that reads ten blocks and commits twice a second uses half a hundredth.
const BUSY: Duration = Duration::from_millis(10);

/// Time after which a task reads nothing more before others had a turn.
const SLICE: Duration = Duration::from_micros(200);

/// What a turn counts for at most: one that seems longer was most likely interrupted by the kernel
/// for something else.
const TURN_MAX: Duration = Duration::from_micros(400);

/// Bytes that a busy peer's task reads at a time: some hundreds of the smallest frames, a fraction
/// of a millisecond.
const BUSY_READ_BYTES: usize = 8 << 10;

/// How many tasks a thread runs before it looks for bytes that arrived: with slices, about a
/// millisecond.
pub(crate) const TASKS_BETWEEN_EVENTS: u32 = 5;

/// The time that peers used, and the tasks that tasks of busy peers wait for.
pub(crate) struct Processor {
    begun: Instant,
    queue: Arc<RunQueue>,
    peers: Mutex<HashMap<Peer, Weak<Usage>>>,
}

/// Tasks that are ready, and tasks of busy peers that wait until there are none.
#[derive(Default)]
struct RunQueue {
    /// Tasks of peers that are not busy which are ready and have no thread yet.
    ready: AtomicUsize,
    /// Tasks of busy peers that wait for them.
    postponed: Mutex<Postponed>,
}

#[derive(Default)]
struct Postponed {
    tasks: VecDeque<Arc<Turns>>,
    /// One of them may have a turn all the same: each turn of the others gives one.
    allowed: bool,
}

/// What the tasks of a peer used.
struct Usage {
    /// Number of the window that is counted, from 1.
    window: AtomicU64,
    /// Nanoseconds used in it, and in the one before.
    present: AtomicU64,
    before: AtomicU64,
}

/// The turns of one task.
pub(crate) struct Turns {
    begun: Instant,
    usage: Arc<Usage>,
    queue: Arc<RunQueue>,
    /// It is among those in `ready`.
    counted: AtomicBool,
    ended: AtomicBool,
    /// It waits among those of busy peers.
    is_postponed: AtomicBool,
    /// When its present turn began, nanoseconds after `begun`.
    since: AtomicU64,
    task: Mutex<Option<Waker>>,
}

/// A task that takes turns.
pub(crate) struct Sharing<F> {
    turns: Arc<Turns>,
    waker: Waker,
    future: Pin<Box<F>>,
}

/// The stream of a task: it has nothing more once the turn has lasted for long enough.
pub(crate) struct Slices<S> {
    turns: Arc<Turns>,
    stream: S,
}

impl Default for Processor {
    fn default() -> Processor {
        Processor { begun: Instant::now(), queue: Arc::default(), peers: Mutex::default() }
    }
}

impl Processor {
    /// The turns of a new task of `peer`.
    pub fn turns(&self, peer: Peer) -> Arc<Turns> {
        let mut peers = locked(&self.peers);
        let known = peers.get(&peer).and_then(Weak::upgrade);
        let usage = known.unwrap_or_else(|| {
            // Use is remembered as long as the peer has a connection; the others make room now and
            // then.
            if peers.len() == peers.capacity() {
                peers.retain(|_, usage| usage.strong_count() > 0);
            }
            let zero = || AtomicU64::new(0);
            let usage = Arc::new(Usage { window: zero(), present: zero(), before: zero() });
            peers.insert(peer, Arc::downgrade(&usage));
            usage
        });
        Arc::new(Turns {
            begun: self.begun,
            usage,
            queue: self.queue.clone(),
            counted: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            is_postponed: AtomicBool::new(false),
            since: AtomicU64::new(0),
            task: Mutex::default(),
        })
    }
}

impl RunQueue {
    /// Whether a task of a busy peer is to wait. It is woken when it is to look again.
    fn postpones(&self, turns: &Arc<Turns>) -> bool {
        let mut postponed = locked(&self.postponed);
        // Under the lock: a task that is not ready any more after this finds the postponed one.
        if self.ready.load(Ordering::SeqCst) == 0 || std::mem::take(&mut postponed.allowed) {
            return false;
        }
        if !turns.is_postponed.swap(true, Ordering::Relaxed) {
            postponed.tasks.push_back(turns.clone());
        }
        true
    }

    /// A task that others wait for has a thread, or is gone. The tasks that are to look again.
    fn task_left(&self) -> Vec<Arc<Turns>> {
        let is_last = self.ready.fetch_sub(1, Ordering::SeqCst) == 1;
        let mut postponed = locked(&self.postponed);
        let count = if is_last { postponed.tasks.len() } else { postponed.tasks.len().min(1) };
        postponed.allowed = count > 0;
        let tasks: Vec<_> = postponed.tasks.drain(..count).collect();
        tasks.iter().for_each(|turns| turns.is_postponed.store(false, Ordering::Relaxed));
        tasks
    }
}

impl Usage {
    /// Begins another window if it is time. Two threads may do so at once: a little use is lost
    /// then.
    fn turn_over(&self, window: u64) {
        let last = self.window.swap(window, Ordering::Relaxed);
        if last != window {
            let present = self.present.swap(0, Ordering::Relaxed);
            self.before.store(if last + 1 == window { present } else { 0 }, Ordering::Relaxed);
        }
    }
}

impl Turns {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn is_busy(&self) -> bool {
        self.usage.turn_over(1 + self.now() / WINDOW.as_nanos() as u64);
        let used = self.usage.present.load(Ordering::Relaxed).max(self.usage.before.load(Ordering::Relaxed));
        used > BUSY.as_nanos() as u64
    }

    fn used(&self, nanos: u64) {
        self.usage.present.fetch_add(nanos.min(TURN_MAX.as_nanos() as u64), Ordering::Relaxed);
    }

    /// The task is ready: tasks of busy peers wait for it if its own peer is not busy.
    fn set_ready(&self) {
        if !self.is_busy() && !self.counted.swap(true, Ordering::SeqCst) {
            self.queue.ready.fetch_add(1, Ordering::SeqCst);
            // It may have ended meanwhile: no task waits for one that never runs again.
            if self.ended.load(Ordering::SeqCst) {
                wake_all(&self.unset_ready());
            }
        }
    }

    /// It has a thread, or is gone. The tasks that are to look again.
    #[must_use]
    fn unset_ready(&self) -> Vec<Arc<Turns>> {
        if self.counted.swap(false, Ordering::SeqCst) { self.queue.task_left() } else { Vec::new() }
    }

    fn wake_up(&self) {
        self.set_ready();
        let task = locked(&self.task).clone();
        if let Some(task) = task {
            task.wake();
        }
    }

    fn is_over(&self) -> bool {
        self.now().saturating_sub(self.since.load(Ordering::Relaxed)) >= SLICE.as_nanos() as u64
    }
}

fn wake_all(tasks: &[Arc<Turns>]) {
    tasks.iter().for_each(|turns| turns.wake_up());
}

impl Wake for Turns {
    fn wake(self: Arc<Self>) {
        self.wake_up();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_up();
    }
}

impl<F: Future> Sharing<F> {
    /// A task that waits for others if its peer is busy.
    pub fn new(turns: Arc<Turns>, future: F) -> Sharing<F> {
        // It is ready from the start.
        turns.set_ready();
        Sharing { waker: Waker::from(turns.clone()), turns, future: Box::pin(future) }
    }
}

impl<F: Future> Future for Sharing<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let waiting = this.turns.unset_ready();
        {
            let mut task = locked(&this.turns.task);
            if !task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
                *task = Some(context.waker().clone());
            }
        }
        let queue = &this.turns.queue;
        let others = queue.ready.load(Ordering::SeqCst) > 0;
        if others && this.turns.is_busy() && queue.postpones(&this.turns) {
            wake_all(&waiting);
            return Poll::Pending;
        }
        let since = this.turns.now();
        this.turns.since.store(since, Ordering::Relaxed);
        let outcome = this.future.as_mut().poll(&mut Context::from_waker(&this.waker));
        this.turns.used(this.turns.now().saturating_sub(since));
        // Behind its own work: they may be hundreds.
        wake_all(&waiting);
        outcome
    }
}

impl<F> Drop for Sharing<F> {
    fn drop(&mut self) {
        self.turns.ended.store(true, Ordering::SeqCst);
        wake_all(&self.turns.unset_ready());
        // A waker that is left somewhere would keep the task in memory.
        locked(&self.turns.task).take();
    }
}

impl<S> Slices<S> {
    pub fn new(turns: Arc<Turns>, stream: S) -> Slices<S> {
        Slices { turns, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Slices<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.turns.is_over() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if buf.remaining() <= BUSY_READ_BYTES || !self.turns.is_busy() {
            return Pin::new(&mut self.stream).poll_read(context, buf);
        }
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(BUSY_READ_BYTES));
        let outcome = Pin::new(&mut self.stream).poll_read(context, &mut part);
        let read = part.filled().len();
        buf.advance(read);
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Slices<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
