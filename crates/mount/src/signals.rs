//! Signals as readable events: blocked for the process, read from a descriptor, passed on to a child or taken as "stop".
//!
//! Must be set up before the first thread starts, since threads inherit the mask. So do children: a program that is to
//! be ended by signals calls [`unblock`] before it becomes one that knows nothing of this.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// What ends a daemon.
pub(crate) const STOP: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// What a wrapper passes on to the program it runs.
pub(crate) const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Lets signals through to this thread again; those that waited are delivered now.
pub(crate) fn unblock(signals: &[Signal]) -> io::Result<()> {
    let mask: SigSet = signals.iter().copied().collect();
    Ok(mask.thread_unblock()?)
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Which one.
    pub(crate) signal: Signal,
    /// Sent by the kernel, as a terminal does to its whole process group, not by a process to us alone.
    pub(crate) from_kernel: bool,
}

/// A set of signals, blocked and readable.
pub(crate) struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks `signals` in this thread and all it starts from now on.
    pub(crate) fn block(signals: &[Signal]) -> io::Result<Signals> {
        let mask: SigSet = signals.iter().copied().collect();
        mask.thread_block()?;
        let fd = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Signals { fd })
    }

    /// The next signal, if one came.
    pub(crate) fn next(&self) -> io::Result<Option<Arrived>> {
        let Some(info) = self.fd.read_signal()? else { return Ok(None) };
        let signal = Signal::try_from(info.ssi_signo as i32)?;
        // Codes of signals sent by processes (kill, tgkill, sigqueue) are zero or negative.
        Ok(Some(Arrived { signal, from_kernel: info.ssi_code > 0 }))
    }

    /// The descriptor to poll.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_this_thread_is_read_and_not_delivered() {
        let signals = Signals::block(&[Signal::SIGUSR2]).expect("blocked");
        assert_eq!(signals.next().expect("readable"), None);
        nix::sys::signal::raise(Signal::SIGUSR2).expect("raised");
        let arrived = signals.next().expect("readable").expect("came");
        assert_eq!((arrived.signal, arrived.from_kernel), (Signal::SIGUSR2, false));
        unblock(&[Signal::SIGUSR2]).expect("unblocked");
        assert!(!SigSet::thread_get_mask().expect("mask").contains(Signal::SIGUSR2));
    }
}
