//! Wakes a thread that sleeps in `poll`, by an event descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// See the module.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
    /// The descriptor is readable, or about to be: no need to write again.
    signalled: AtomicBool,
}

impl Waker {
    /// A waker that was not used.
    ///
    /// # Errors
    /// The system refuses an event descriptor.
    pub fn new() -> io::Result<Waker> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker { event, signalled: AtomicBool::new(false) })
    }

    /// Wakes the thread, or the next sleep ends at once.
    pub fn wake(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // The same number in either byte order. A full counter is readable all the same, so no
            // error matters.
            let _ = rustix::io::write(&self.event, &[1; 8]);
        }
    }

    /// Called by the woken thread before it looks for work: what comes after wakes it again.
    pub fn reset(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        self.signalled.store(false, Ordering::Release);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
