//! Waiting for the program, with signals passed on.

use std::io::{self, PipeReader};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{Pid, PidfdFlags};

/// What a wrapper passes on to the program it runs.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Milliseconds between two looks at how many processes still run.
const LOOK_MILLISECONDS: u16 = 50;

/// Signals of this thread, blocked and readable until it is dropped.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: SignalFd,
    before: SigSet,
}

impl Signals {
    /// Blocks what is passed on.
    pub(crate) fn block() -> io::Result<Signals> {
        let mask: SigSet = FORWARDED.iter().copied().collect();
        let before = mask.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        match SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK) {
            Ok(fd) => Ok(Signals { fd, before }),
            Err(error) => before.thread_set_mask().and(Err(error)).map_err(io::Error::from),
        }
    }

    /// The mask that this thread had, and the program is to have.
    pub(crate) fn mask_before(&self) -> SigSet {
        self.before
    }

    /// Passes on to `to` what came; says whether anything did.
    fn forward(&self, to: nix::unistd::Pid) -> io::Result<bool> {
        let mut came = false;
        while let Some(info) = self.fd.read_signal()? {
            came = true;
            // Codes of signals sent by processes are zero or negative. What a terminal sends, it sends to the program as well.
            if info.ssi_code <= 0 {
                // The program may have ended this moment.
                let _ = nix::sys::signal::kill(to, Signal::try_from(info.ssi_signo as i32)?);
            }
        }
        Ok(came)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // It was this thread's mask before, so it can be again.
        let _ = self.before.thread_set_mask();
    }
}

/// Waits for the program to end.
pub(crate) fn wait(child: &mut Child, signals: &Signals) -> io::Result<ExitStatus> {
    let exit = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let to = nix::unistd::Pid::from_raw(child.id() as i32);
    loop {
        let mut fds =
            [PollFd::new(exit.as_fd(), PollFlags::POLLIN), PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds[0].revents().is_some_and(|events| !events.is_empty()) {
            return child.wait();
        }
        signals.forward(to)?;
    }
}

/// Passes signals on to the process `to` until the other end of `stop` is closed.
pub(crate) fn forward(to: u32, signals: &Signals, stop: &PipeReader) -> io::Result<()> {
    loop {
        let mut fds =
            [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds[0].revents().is_some_and(|events| !events.is_empty()) {
            return Ok(());
        }
        signals.forward(nix::unistd::Pid::from_raw(to as i32))?;
    }
}

/// Waits until no process of the program is left, or a signal says that this is enough.
pub(crate) fn wait_all(running: &AtomicUsize, signals: &Signals) -> io::Result<()> {
    while running.load(Ordering::Relaxed) > 0 {
        let mut fds = [PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, LOOK_MILLISECONDS) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// As shells put it.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
