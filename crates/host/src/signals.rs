//! Signals as readable events: blocked for this process, read from a descriptor, then acted on or
//! forwarded to the program that this process runs.
//!
//! A signal that was sent to us alone is meant for the program, which must get it. A signal that
//! was sent to our process group (by a terminal, or by `kill -- -GROUP`) has reached the program
//! too, which must not get it twice. The kernel does not distinguish the two. So a small process in
//! our group, the [`witness`], blocks the same signals: a signal that both got was sent to the
//! group. The kernel serves the newest member of a group first, so when a signal is here the
//! witness has it. One case is not distinguished: signals sent to each process of a container one
//! by one. They come twice then, and mostly as one.
//!
//! Signals that the kernel sends for a fault, or for a limit of ours, are ours. Stop signals stop
//! this process as well, as job control expects.
//!
//! Signals must be blocked before the first thread starts, since threads inherit the mask. So do
//! children.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};

use crate::exit::Exit;

mod pass_on;
mod witness;

pub use pass_on::Passing;

/// The signals that end a daemon.
pub const STOP: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The signals that a wrapper forwards: all that would end or stop it, or that a program may wait
/// for, but faults, what nobody can hold back, and what this process causes itself (CHLD, PIPE,
/// URG, XCPU, XFSZ).
pub fn passed_on() -> impl Iterator<Item = i32> {
    const ORDINARY: [i32; 17] = [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGTERM,
        libc::SIGSTKFLT,
        libc::SIGCONT,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGWINCH,
        libc::SIGIO,
        libc::SIGPWR,
    ];
    ORDINARY.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// Unblocks for this thread the signals that [`Signals::of_wrapper`] blocks and a child inherited.
/// Pending ones are delivered now.
///
/// # Errors
/// The kernel refuses, which it has no reason to.
pub fn unblock() -> io::Result<()> {
    forget_file_size();
    Ok(set_of(passed_on().chain([libc::SIGXFSZ])).thread_unblock()?)
}

/// Takes away a SIGXFSZ that waits for this thread: it was told by the error of the write.
fn forget_file_size() {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointers lead to a set and a time that outlive the call; nothing is written.
    unsafe { libc::sigtimedwait(set_of([libc::SIGXFSZ]).as_ref(), std::ptr::null_mut(), &now) };
}

/// Makes a file size limit an error of a write in this thread, and not the end of this process.
///
/// # Errors
/// The kernel refuses, which it has no reason to.
pub fn block_file_size() -> io::Result<()> {
    Ok(set_of([libc::SIGXFSZ]).thread_block()?)
}

/// A set of signals, blocked and readable.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    before: SigSet,
}

impl Signals {
    /// Blocks `signals` in this thread and all it starts from now on.
    ///
    /// # Errors
    /// No descriptor can be had; nothing is blocked then.
    pub fn block(signals: impl IntoIterator<Item = i32>) -> io::Result<Signals> {
        Signals::block_with(signals, None)
    }

    /// Blocks all that a wrapper passes on, and SIGXFSZ: a file size limit is an error then, and
    /// not the end.
    ///
    /// # Errors
    /// Those of [`Signals::block`].
    pub fn of_wrapper() -> io::Result<Signals> {
        Signals::block_with(passed_on(), Some(libc::SIGXFSZ))
    }

    fn block_with(signals: impl IntoIterator<Item = i32>, unread: Option<i32>) -> io::Result<Signals> {
        let signals: Vec<i32> = signals.into_iter().collect();
        let fd =
            SignalFd::with_flags(&set_of(signals.iter().copied()), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let before = set_of(signals.into_iter().chain(unread)).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Signals { fd, before })
    }

    /// The number of the next signal, if one came.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn next(&self) -> io::Result<Option<i32>> {
        Ok(self.next_info()?.map(|info| info.ssi_signo as i32))
    }

    fn next_info(&self) -> io::Result<Option<siginfo>> {
        Ok(self.fd.read_signal()?)
    }

    /// The descriptor to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Runs `work`, which waits for others. What asks this process to end meanwhile (TERM, INT,
    /// HUP, QUIT) ends it, as if it were not blocked; other signals are dropped. So `work` leaves
    /// nothing behind that has to be undone.
    pub fn ending_during<T>(&self, work: impl FnOnce() -> T) -> T {
        // Without a pipe or a thread it cannot be ended so soon, and that is all.
        let Ok((over, done)) = io::pipe() else { return work() };
        std::thread::scope(|scope| {
            let watch = move || self.end_by_signal(&over);
            let _ = std::thread::Builder::new().name("signals".into()).spawn_scoped(scope, watch);
            let result = work();
            drop(done);
            result
        })
    }

    /// Until the other side of `over` is closed.
    fn end_by_signal(&self, over: &io::PipeReader) {
        loop {
            let mut fds = [(self.fd(), PollFlags::POLLIN), (over.as_fd(), PollFlags::POLLIN)]
                .map(|(fd, flags)| PollFd::new(fd, flags));
            // Interruptions and shortness of memory pass.
            let _ = poll(&mut fds, PollTimeout::NONE);
            if fds[1].any() == Some(true) {
                return;
            }
            match self.next() {
                Ok(Some(signal)) if STOP.contains(&signal) || signal == libc::SIGQUIT => {
                    std::process::exit(Exit::Signal(signal).follow().into());
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// The mask that this thread had, and a program is to have.
    pub fn mask_before(&self) -> SigSet {
        self.before
    }

    /// Gives this thread its mask back. What came and was not read is dropped: it was for a program
    /// that has ended.
    pub fn restore(self) {
        while let Ok(Some(_)) = self.next_info() {}
        forget_file_size();
        // It was this thread's mask before, so it can be again.
        let _ = self.before.thread_set_mask();
    }
}

/// Numbers that the C library does not give away are left out.
fn set_of(signals: impl IntoIterator<Item = i32>) -> SigSet {
    // SAFETY: the C library initialises the set, and refuses numbers of no signal.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        SigSet::from_sigset_t_unchecked(set)
    }
}
