//! Signals that a user sends to the launcher are meant for the program.
//!
//! They are blocked here and read from a descriptor, which tells who sent them: what a terminal sends it sends to the program as well,
//! so only what a process sent to us alone is passed on.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

/// What is passed on.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Blocks the signals in this thread and all it starts from now on, and passes them on to the process that is sent to the answer.
/// The program itself starts with none blocked.
///
/// # Errors
/// No descriptor or thread can be had; then the signals end the launcher and not the program.
pub(crate) fn pass_on() -> io::Result<Sender<u32>> {
    let mask: SigSet = FORWARDED.iter().copied().collect();
    let before = mask.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    let (sender, receiver) = mpsc::channel::<u32>();
    let passing = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC).map_err(io::Error::from).and_then(|signals| {
        let pass = move || {
            let Ok(process) = receiver.recv() else { return };
            while let Ok(Some(arrived)) = signals.read_signal() {
                // Codes of signals sent by processes (kill, tgkill, sigqueue) are zero or negative.
                if arrived.ssi_code <= 0
                    && let Ok(signal) = Signal::try_from(arrived.ssi_signo as i32)
                {
                    // The program may have ended this moment.
                    let _ = kill(Pid::from_raw(process as i32), signal);
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(pass)
    });
    match passing {
        Ok(_) => Ok(sender),
        Err(error) => {
            before.thread_set_mask()?;
            Err(error)
        }
    }
}
