//! Waiting for a socket.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Sleeps until there is something to read, there is room to write (if that is asked for), `other`
/// becomes readable or the time is over. True if reading is worth a try; an error of the connection
/// is found by reading.
pub(crate) fn wait(
    socket: BorrowedFd<'_>,
    writing: bool,
    other: Option<BorrowedFd<'_>>,
    time: Option<Duration>,
) -> io::Result<bool> {
    let mut interest = PollFlags::IN;
    interest.set(PollFlags::OUT, writing);
    let mut descriptors = vec![PollFd::from_borrowed_fd(socket, interest)];
    descriptors.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
    match poll(&mut descriptors, time.map(timespec).as_ref()) {
        Ok(_) => Ok(descriptors[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// As [`wait`], for callers with nothing else to do; `TimedOut` when the time is over.
pub(crate) fn wait_until(socket: BorrowedFd<'_>, writing: bool, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    wait(socket, writing, None, Some(left)).map(drop)
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    // A year at most, so that no conversion can overflow; callers look at their clock again anyway.
    let time = time.min(Duration::from_secs(365 * 24 * 3600)) + Duration::from_micros(1);
    Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ }
}
