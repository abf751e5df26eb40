//! Forwarding of signals to a program, on a thread of its own.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::signalfd::{SignalFd, siginfo};
use rustix::process::{Pid, PidfdFlags};

use super::witness::Witness;
use super::{Signals, set_of};

/// Forwards signals until [`Passing::stop`].
#[derive(Debug)]
pub struct Passing {
    thread: JoinHandle<SignalFd>,
    to: Sender<u32>,
    stop: PipeWriter,
    before: SigSet,
}

impl Signals {
    /// Begins to pass signals on to the process that is sent to [`Passing::to`]. To be called just
    /// before that process is made: what came to our group earlier did not reach it, and is passed
    /// on as well.
    ///
    /// # Errors
    /// No pipe or thread can be had, and the signals are let through to this thread again.
    pub fn pass_on(self) -> io::Result<Passing> {
        let before = self.before;
        let (to, targets) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel::<()>();
        let begun = io::pipe().and_then(|(stopped, stop)| {
            let pass = move || {
                // The witness inherits this mask.
                let _ = SigSet::all().thread_set_mask();
                // Without one (no process may be made), only signals of terminals are known to be
                // sent to all.
                let witness = Witness::start().ok();
                drop(ready);
                pass(self, &targets, &stopped, witness)
            };
            Ok((thread::Builder::new().name("signals".into()).spawn(pass)?, stop))
        });
        // The end of the other side is the word.
        let _ = is_ready.recv();
        match begun {
            Ok((thread, stop)) => Ok(Passing { thread, to, stop, before }),
            Err(error) => {
                before.thread_set_mask()?;
                Err(error)
            }
        }
    }
}

impl Passing {
    /// Takes the number of the process that signals are for, once.
    pub fn to(&self) -> Sender<u32> {
        self.to.clone()
    }

    /// The mask that this thread had, and the program is to have.
    pub fn mask_before(&self) -> SigSet {
        self.before
    }

    /// Stops forwarding; signals stay blocked. Must be called by the thread that called
    /// [`Signals::pass_on`].
    ///
    /// # Errors
    /// The thread has panicked.
    pub fn stop(self) -> io::Result<Signals> {
        let Passing { thread, to, stop, before } = self;
        drop((to, stop));
        let fd = thread.join().map_err(|_| io::Error::other("the thread that passes signals on panicked"))?;
        Ok(Signals { fd, before })
    }
}

fn pass(signals: Signals, targets: &Receiver<u32>, stopped: &PipeReader, witness: Option<Witness>) -> SignalFd {
    // A program that has ended already gets no signals.
    let target = target(targets, stopped);
    if let Some(target) = target.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()) {
        // A failure here leaves signals blocked, which does less harm than an end.
        let _ = pass_to(&signals, &target, stopped, witness);
    }
    signals.fd
}

/// Waits for the number of the program, or for the word that there will be none: senders may
/// outlive [`Passing::stop`].
fn target(targets: &Receiver<u32>, stopped: &PipeReader) -> Option<Pid> {
    /// Between two looks; signals wait meanwhile.
    const LOOK: std::time::Duration = std::time::Duration::from_millis(50);
    loop {
        match targets.recv_timeout(LOOK) {
            Ok(pid) => return Pid::from_raw(pid as i32),
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let mut fds = [PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
                if nix::poll::poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0) {
                    return None;
                }
            }
        }
    }
}

fn pass_to(signals: &Signals, target: &OwnedFd, stopped: &PipeReader, mut witness: Option<Witness>) -> io::Result<()> {
    loop {
        let mut fds = [PollFd::new(stopped.as_fd(), PollFlags::POLLIN), PollFd::new(signals.fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds[0].revents().is_some_and(|events| !events.is_empty()) {
            return Ok(());
        }
        while let Some(info) = signals.next_info()? {
            let signal = info.ssi_signo as i32;
            let asked = witness.as_mut().and_then(|witness| witness.got(signal));
            // Codes of signals sent by processes are zero or negative.
            let to_all = asked.unwrap_or(info.ssi_code > 0);
            if !to_all {
                send(target, &info);
            }
            if [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal) {
                stop_too(signal);
            }
        }
    }
}

/// `siginfo_t` of a queued signal, as the kernel takes it.
#[repr(C, align(8))]
struct Queued {
    signal: i32,
    error: i32,
    code: i32,
    gap: i32,
    pid: u32,
    uid: u32,
    value: u64,
    rest: [u8; 96],
}

const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());

/// Sends a signal as it came: a queued one with its value and its sender.
fn send(target: &OwnedFd, info: &siginfo) {
    let signal = info.ssi_signo as i32;
    let queued = Queued {
        signal,
        error: 0,
        code: libc::SI_QUEUE,
        gap: 0,
        pid: info.ssi_pid,
        uid: info.ssi_uid,
        value: info.ssi_ptr,
        rest: [0; 96],
    };
    let is_queued = info.ssi_code == libc::SI_QUEUE;
    let how = if is_queued { &raw const queued } else { std::ptr::null() };
    // The program may have ended this moment.
    // SAFETY: the pointer is null or leads to a struct of the size and layout of `siginfo_t`.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, target.as_raw_fd(), signal, how, 0) };
}

/// Stops this process by the default action of a stop signal; returns when it goes on.
fn stop_too(signal: i32) {
    let set = set_of([signal]);
    // SAFETY: sends a signal to this thread, by numbers only.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal) };
    // It is delivered in between.
    if sent == 0 && set.thread_swap_mask(SigmaskHow::SIG_UNBLOCK).is_ok() {
        let _ = set.thread_block();
    }
}
