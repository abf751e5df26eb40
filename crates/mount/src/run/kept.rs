//! The image of a program, served by another process that survives its daemons.

use std::ffi::OsString;
use std::io::{self, PipeReader, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::Session;
use host::Exit;
use host::fork::{Copy, Forked, fork};
use host::signals::{STOP, Signals};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, set_parent_process_death_signal, setpgid};
use units::ImageId;

use crate::MountError;
use crate::gone::serve_gone;
use crate::keeper::{self, Keeper, Keeping};
use crate::mounted::{Mounted, Options};
use crate::stop::Stop;

/// What [`start`] returns, and where.
pub(super) enum Started {
    /// In this process: the image is mounted.
    Served(Served),
    /// In this process: it could not be mounted, which has been told.
    Over(Exit),
    /// In the keeper, or a daemon: the mount is over.
    InChild(Exit),
}

/// An image that a keeper has mounted.
pub(super) struct Served(Copy);

impl Served {
    /// Unmounts, and waits until that is done.
    pub(super) fn end(self) -> Result<(), MountError> {
        let ended = self.0.send(Signal::TERM).and_then(|()| self.0.wait());
        ended.map(drop).map_err(|error| MountError::step("end the keeper of", "/proc/self", error))
    }
}

/// How the image is kept: see [`Keeping`].
pub(super) struct How {
    pub(super) patience: Option<Duration>,
    pub(super) arguments: Option<Vec<OsString>>,
    pub(super) tell: fn(&str),
}

/// Starts the keeper of an image, and waits until that is served at `place`. Signals that come
/// meanwhile are passed on to it.
pub(super) fn start(
    options: Options,
    place: &Path,
    signals: &Signals,
    how: How,
    open: impl FnOnce(Option<ImageId>) -> Result<Arc<Session>, MountError>,
) -> Result<Started, MountError> {
    let failed = |error: io::Error| MountError::step("start the keeper of", place, error);
    let (ready, told) = io::pipe().map_err(failed)?;
    match fork().map_err(failed)? {
        Forked::Parent(keeper) => {
            drop(told);
            wait(keeper, &ready, signals).map_err(failed)
        }
        Forked::Child => {
            drop(ready);
            let on_ready = Box::new(move || (&told).write_all(b"1"));
            let How { patience, arguments, tell } = how;
            serve(
                options,
                place,
                Keeping { survives: true, is_volume: false, patience, on_ready, arguments, manager: None, tell },
                open,
            )
            .map(Started::InChild)
        }
    }
}

/// Waits until the image is served, or the keeper has ended.
fn wait(keeper: Copy, ready: &PipeReader, signals: &Signals) -> io::Result<Started> {
    // What the keeper was told to end by: what is served then is not for long.
    let mut ends_by = None;
    loop {
        let mut fds = [
            PollFd::new(&keeper, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN),
            PollFd::new(ready, PollFlags::IN),
        ];
        let wanted = if ends_by.is_none() { fds.len() } else { 2 };
        // Interruptions and shortness of memory pass.
        let _ = rustix::event::poll(&mut fds[..wanted], None);
        let [has_ended, has_signal, is_ready] = fds.map(|fd| fd.revents());
        if !has_ended.is_empty() {
            let exit = keeper.wait()?;
            return Ok(Started::Over(ends_by.map_or(exit, Exit::Signal)));
        }
        // First: the keeper may have the same signal of a terminal.
        if !has_signal.is_empty()
            && let Some(signal) = signals.next()?
            && (STOP.contains(&signal) || signal == Signal::QUIT.as_raw())
        {
            keeper.send(Signal::from_named_raw(signal).unwrap_or(Signal::TERM))?;
            ends_by = Some(signal);
        }
        if ends_by.is_none() && is_ready.contains(PollFlags::IN) {
            return Ok(Started::Served(Served(keeper)));
        }
    }
}

/// The keeper and its daemons.
fn serve(
    options: Options,
    place: &Path,
    keeping: Keeping,
    open: impl FnOnce(Option<ImageId>) -> Result<Arc<Session>, MountError>,
) -> Result<Exit, MountError> {
    let failed = |error: rustix::io::Errno| MountError::step("start the keeper of", place, error);
    // What a terminal sends to the group of the program does not end what the program runs from.
    setpgid(None, None).map_err(failed)?;
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    let stop = Stop::listen()?;
    let tell = keeping.tell;
    match keeper::keep(options.mount_point(place), keeping, &stop)? {
        keeper::Started::Over(exit) => Ok(exit),
        keeper::Started::Daemon(keeper) => daemon(keeper, options, place, (&stop, tell), open),
    }
}

/// A daemon. A `place` that was mounted for an earlier one need not be known.
pub(super) fn daemon(
    keeper: Arc<Keeper>,
    mut options: Options,
    place: &Path,
    (stop, tell): (&Stop, fn(&str)),
    open: impl FnOnce(Option<ImageId>) -> Result<Arc<Session>, MountError>,
) -> Result<Exit, MountError> {
    let failed = |error: rustix::io::Errno| MountError::step("start the daemon of", place, error);
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    options.keeper = Some(Arc::clone(&keeper));
    let session = match stop.ending_during(|| open(keeper.image())) {
        Err(MountError::Session(error)) if keeper.was_served() && error.is_gone() => {
            tell(&format!("error: {error}\nhint: the program gets I/O errors where it reads what it has not read yet"));
            serve_gone(options, stop)?;
            return Ok(Exit::Code(1));
        }
        opened => opened?,
    };
    let mounted = Mounted::start(session, place, options)?;
    keeper.ready()?;
    mounted.wait_or_stop(stop)?;
    Ok(Exit::Code(0))
}
