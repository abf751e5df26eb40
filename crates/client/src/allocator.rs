//! The page pool (SYSFLOW's Allocator): page buffers that are ready before a demand needs one.
//!
//! A READ must not wait for the memory allocator, least of all on a device that is short of memory.
//! So 256 buffers of one page lie ready; buffers that are dropped come back, and a thread of its
//! own makes new ones when fewer than half are left. When the pool is empty all the same, the
//! demand allocates for itself and a miss is counted. The pool never holds more than 256 buffers (1
//! MiB); what comes back beyond that is freed.
//!
//! To measure what this is worth there is an allocator without a pool
//! ([`Allocator::without_pool`]): each buffer is memory that the system maps, zeroes at the first
//! write, and unmaps when the buffer is dropped.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use units::PAGE_BYTES;

/// Buffers that lie ready, as in SYSFLOW: 1 MiB.
pub const POOL_PAGES: usize = 256;

/// The refill thread starts when fewer are left than this; it then fills the pool up.
const REFILL_BELOW: usize = POOL_PAGES / 2;

/// Size of a buffer without a pool. musl maps what is over 128 KiB and unmaps it when it is freed.
/// So does glibc while its threshold stays where it is, which `runnel mount` sees to. Only the page
/// that is written to costs memory.
const MAPPED_BYTES: usize = 256 << 10;

/// One page of memory from the pool; goes back to it when dropped.
#[derive(Debug)]
pub struct PageBuffer {
    /// Always present until drop. The page is its start.
    bytes: Option<Box<[u8]>>,
    home: Weak<Pool>,
}

/// The pool and its refill thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Allocator {
    pool: Arc<Pool>,
    /// `None` if there is no pool to fill.
    refiller: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Pool {
    state: Mutex<PoolState>,
    low: Condvar,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Debug)]
struct PoolState {
    free: Vec<Box<[u8]>>,
    closed: bool,
}

impl Allocator {
    /// A full pool with its refill thread.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn start() -> std::io::Result<Allocator> {
        let pool = Arc::new(Pool::of((0..POOL_PAGES).map(|_| allocate(PAGE_BYTES)).collect()));
        let worker = Arc::clone(&pool);
        let refiller = std::thread::Builder::new().name("runnel-pages".into()).spawn(move || worker.refill())?;
        Ok(Allocator { pool, refiller: Some(refiller) })
    }

    /// An allocator that gets every buffer from the system, each a miss.
    pub fn without_pool() -> Allocator {
        Allocator { pool: Arc::new(Pool::of(Vec::new())), refiller: None }
    }

    /// A buffer with unspecified contents (bytes of an earlier page of this image): write before
    /// you read.
    pub fn page(&self) -> PageBuffer {
        if self.refiller.is_none() {
            self.pool.misses.fetch_add(1, Ordering::Relaxed);
            return PageBuffer { bytes: Some(allocate(MAPPED_BYTES)), home: Weak::new() };
        }
        let (buffer, left) = {
            let mut state = self.pool.lock();
            (state.free.pop(), state.free.len())
        };
        if left < REFILL_BELOW {
            self.pool.low.notify_one();
        }
        let counter = if buffer.is_some() { &self.pool.hits } else { &self.pool.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        let bytes = buffer.unwrap_or_else(|| allocate(PAGE_BYTES));
        PageBuffer { bytes: Some(bytes), home: Arc::downgrade(&self.pool) }
    }

    /// A buffer that begins with these bytes, of at most one page.
    pub fn page_of(&self, bytes: &[u8]) -> PageBuffer {
        let mut buffer = self.page();
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// Buffers that came from the pool so far.
    pub fn hits(&self) -> u64 {
        self.pool.hits.load(Ordering::Relaxed)
    }

    /// Buffers that had to be allocated on the spot so far.
    pub fn misses(&self) -> u64 {
        self.pool.misses.load(Ordering::Relaxed)
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        self.pool.lock().closed = true;
        self.pool.low.notify_all();
        if let Some(refiller) = self.refiller.take() {
            // The thread cannot panic, and nothing could be done about it here.
            let _ = refiller.join();
        }
    }
}

/// Zeroed memory, from the system as far as it is not at hand.
fn allocate(bytes: usize) -> Box<[u8]> {
    vec![0; bytes].into_boxed_slice()
}

impl Pool {
    fn of(free: Vec<Box<[u8]>>) -> Pool {
        let state = Mutex::new(PoolState { free, closed: false });
        Pool { state, low: Condvar::new(), hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// A panic elsewhere cannot leave a list of free buffers in a bad state, so a poisoned lock is
    /// used on.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refill(&self) {
        let mut state = self.lock();
        while !state.closed {
            if state.free.len() >= REFILL_BELOW {
                state = self.low.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let lacking = POOL_PAGES - state.free.len();
            drop(state);
            // Allocated outside the lock: that is the point of the thread.
            let fresh: Vec<_> = (0..lacking).map(|_| allocate(PAGE_BYTES)).collect();
            state = self.lock();
            let room = POOL_PAGES.saturating_sub(state.free.len());
            state.free.extend(fresh.into_iter().take(room));
        }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        if let (Some(bytes), Some(pool)) = (self.bytes.take(), self.home.upgrade()) {
            let mut state = pool.lock();
            if state.free.len() < POOL_PAGES && !state.closed {
                state.free.push(bytes);
            }
        }
    }
}

impl Deref for PageBuffer {
    type Target = [u8; PAGE_BYTES];

    fn deref(&self) -> &[u8; PAGE_BYTES] {
        self.bytes.as_ref().and_then(|bytes| bytes.first_chunk()).expect("a buffer keeps its bytes until it is dropped")
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8; PAGE_BYTES] {
        let bytes = self.bytes.as_mut().and_then(|bytes| bytes.first_chunk_mut());
        bytes.expect("a buffer keeps its bytes until it is dropped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_the_pool_stays_bounded() {
        let allocator = Allocator::start().unwrap();
        let held: Vec<_> = (0..POOL_PAGES * 3).map(|_| allocator.page()).collect();
        assert_eq!(allocator.hits() + allocator.misses(), (POOL_PAGES * 3) as u64);
        assert!(allocator.hits() >= POOL_PAGES as u64, "the pool was full at the start");
        drop(held);
        assert!(allocator.pool.lock().free.len() <= POOL_PAGES);
        assert!(allocator.pool.lock().free.len() >= REFILL_BELOW);
    }

    #[test]
    fn a_buffer_may_outlive_the_pool() {
        let allocator = Allocator::start().unwrap();
        let mut page = allocator.page();
        drop(allocator);
        page[0] = 7;
        assert_eq!(page[0], 7);
    }

    #[test]
    fn without_a_pool_every_buffer_is_fresh_and_none_is_kept() {
        let allocator = Allocator::without_pool();
        for _ in 0..POOL_PAGES {
            let mut page = allocator.page();
            assert_eq!(*page, [0; PAGE_BYTES]);
            page.fill(7);
        }
        assert_eq!((allocator.hits(), allocator.misses()), (0, POOL_PAGES as u64));
        assert!(allocator.pool.lock().free.is_empty());
    }

    #[test]
    fn the_thread_refills_what_is_kept() {
        let allocator = Allocator::start().unwrap();
        // Never returned: only the thread can make the pool serve more than it started with.
        for _ in 0..10_000_000u32 {
            if allocator.hits() > POOL_PAGES as u64 {
                return;
            }
            drop(allocator.page().bytes.take());
            std::thread::yield_now();
        }
        panic!("the pool was never refilled");
    }
}
