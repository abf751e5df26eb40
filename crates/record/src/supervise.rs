//! Waits for the processes that the program has started.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use host::signals::Signals;
use nix::poll::{PollFd, PollFlags};

/// Milliseconds between two looks at how many processes still run.
const LOOK_MILLISECONDS: u16 = 50;

/// Waits until no process of the program is left, or a signal says that this is enough.
pub(crate) fn wait_all(running: &AtomicUsize, signals: &Signals) -> io::Result<()> {
    while running.load(Ordering::Relaxed) > 0 {
        let mut fds = [PollFd::new(signals.fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, LOOK_MILLISECONDS) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
