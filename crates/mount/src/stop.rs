//! The signals that stop a daemon.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use host::signals::Signals;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::MountError;

/// The signals that ask a daemon to stop (TERM, INT, HUP), blocked for this process so that
/// [`crate::Mounted::wait_or_stop`] can act on them. Without this they would end the process and
/// leave a dead mount behind.
pub struct Stop {
    signals: Signals,
}

impl Stop {
    /// Blocks the signals from now on, for this thread and all it starts: call it before the first
    /// thread.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub fn listen() -> Result<Stop, MountError> {
        let signals = Signals::block(host::signals::STOP)
            .map_err(|error| MountError::step("receive signals in", "/proc/self", error))?;
        Ok(Stop { signals })
    }

    /// Runs `work`, which waits for a server and leaves nothing behind: one of the signals ends
    /// this process meanwhile.
    pub fn ending_during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.signals.ending_during(work)
    }

    /// Waits for one of the signals, but no longer than until `other` can be read; then there is no
    /// number.
    ///
    /// # Errors
    /// The kernel refuses to wait, or nothing came in time.
    pub fn wait_beside(&self, other: BorrowedFd<'_>, patience: Duration) -> Result<Option<i32>, MountError> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [self.signals.fd(), other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let failed = |error| MountError::step("receive signals in", "/proc/self", error);
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Err(failed(io::ErrorKind::TimedOut.into())),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
                Ok(_) => match self.signals.next().map_err(failed)? {
                    Some(signal) => return Ok(Some(signal)),
                    None if !fds[1].revents().is_empty() => return Ok(None),
                    None => {}
                },
            }
        }
    }

    /// Waits for one of the signals; returns its number.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn wait(&self) -> Result<i32, MountError> {
        loop {
            let polled = rustix::event::poll(&mut [PollFd::from_borrowed_fd(self.signals.fd(), PollFlags::IN)], None);
            match polled.map_err(io::Error::from).and_then(|_| self.signals.next()) {
                Ok(Some(signal)) => return Ok(signal),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(MountError::step("receive signals in", "/proc/self", error)),
            }
        }
    }

    /// Readable when a signal came.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.signals.fd()
    }

    /// Takes a signal that came; its number.
    pub(crate) fn arrived(&self) -> Option<i32> {
        self.signals.next().ok().flatten()
    }
}
