//! The keeper itself: it starts daemons, serves their requests, and decides what follows their end.

use std::io::{self, IoSlice, PipeReader};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse::handover;
use host::Exit;
use host::fork::{Copy, Forked, fork};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::Signal;

use super::{ANSWER_BYTES_MAX, Before, CLONES, DESCRIPTORS_MAX, DONE, END, ERROR, Keeper, MOUNT, NOT_DONE, READY};
use crate::MountError;
use crate::control::{self, SocketName};
use crate::fuse_mount::{Action, MountPoint};
use crate::keeper::link::encode;
use crate::stop::Stop;

/// A daemon that dies sooner after its start has not got far.
const SOON: Duration = Duration::from_secs(1);

/// Longest pause before a daemon is started again. The first one has none.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Shortest pause after that.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Daemons that may die soon one after the other. The next one answers with EIO what they had not
/// answered: one of these requests may be what they died of.
const SOON_DEATHS_MAX: u32 = 5;

/// How long a process that was killed takes to end at most, unless one of its threads waits for an
/// answer that only the next daemon gives.
const DEATH_TAKES: Duration = Duration::from_millis(10);

/// How often a daemon that dies is looked at.
const DEATH_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// The exit code of a panic.
const PANIC: i32 = 101;

/// How a mount is kept.
pub struct Keeping {
    /// Whether a daemon that died is replaced.
    pub survives: bool,
    /// How long programs may wait until a new daemon serves them; for ever by default. Then the
    /// mount is taken away, and what waits fails.
    pub patience: Option<Duration>,
    /// Called in the keeper once the first daemon is ready.
    pub on_ready: OnReady,
}

/// See [`Keeping::on_ready`].
pub type OnReady = Box<dyn Fn() -> io::Result<()>>;

/// What [`keep`] returns, and where.
pub enum Started {
    /// In a daemon: it has to serve the mount.
    Daemon(Arc<Keeper>),
    /// In the keeper: the mount is gone, and its last daemon ended so.
    Over(Exit),
}

/// Starts a daemon for a mount point, and another one whenever one dies. Returns in each daemon at
/// its start, and in this process when the mount is over. `stop` is inherited by the daemons, which
/// act on it; what only this process gets is passed on to them.
///
/// # Errors
/// This process has several threads; the system has no process or descriptor left.
pub fn keep(mut place: MountPoint, keeping: &Keeping, stop: &Stop) -> Result<Started, MountError> {
    place.resolve();
    let path = place.path().to_path_buf();
    let failed = |error: io::Error| MountError::step("start the daemon of", &path, error);
    let memory = keeping.survives.then(handover::create).transpose().map_err(failed)?;
    let mut kept = Kept { place, memory, control: None, clones: Vec::new(), phase: Phase::Opening, dying: Vec::new() };
    let (mut before, mut soon) = (Before::default(), 0);
    let mut waits_since = Instant::now();
    loop {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) =
            rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).map_err(|error| failed(error.into()))?;
        let (alive, lifeline) = io::pipe().map_err(failed)?;
        let memory = kept.memory.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?;
        let began = Instant::now();
        let daemon = match fork().map_err(failed)? {
            Forked::Child => {
                drop(ours);
                // Its parts belong to the keeper, which removes what has a name.
                std::mem::forget(kept);
                drop(alive);
                return Ok(Started::Daemon(Keeper::new(theirs, lifeline.into(), memory, before)?));
            }
            Forked::Parent(daemon) => daemon,
        };
        drop((theirs, lifeline));
        let on_ready = (!before.was_served).then_some(&keeping.on_ready);
        let was_asked = kept.serve(&ours, &alive, &daemon, on_ready, stop);
        drop(ours);
        let exit = if daemon.has_ended() {
            daemon.wait().map_err(failed)?
        } else {
            kept.dying.push(daemon);
            Exit::Signal(Signal::KILL.as_raw())
        };
        let died = match exit {
            Exit::Signal(_) | Exit::Code(PANIC) => true,
            // A new daemon that could not begin, such as because its server is away.
            Exit::Code(_) => before.was_served && kept.phase == Phase::Opening,
        };
        if was_asked || !died || kept.memory.is_none() || !kept.place.is_connected() {
            return Ok(Started::Over(exit));
        }
        let was_served = kept.phase == Phase::Served;
        if was_served {
            waits_since = Instant::now();
        }
        soon = if was_served && began.elapsed() >= SOON { 0 } else { soon + 1 };
        before = Before {
            deaths: before.deaths + 1,
            was_served: before.was_served || was_served,
            // Who is killed from outside has not died of a request.
            gives_up: soon > SOON_DEATHS_MAX && exit != Exit::Signal(Signal::KILL.as_raw()),
        };
        let is_late = keeping.patience.is_some_and(|patience| waits_since.elapsed() >= patience);
        let was_asked = !is_late && pause(soon, stop);
        if is_late || was_asked || !kept.place.is_connected() {
            // What waits for a daemon fails.
            let _ = kept.place.act(Action::Abort);
            return Ok(Started::Over(if was_asked { Exit::Code(0) } else { exit }));
        }
        kept.phase = Phase::Opening;
    }
}

/// How far a daemon has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Served,
    /// It needs nothing any more.
    Ended,
}

/// What a keeper holds.
struct Kept {
    place: MountPoint,
    memory: Option<OwnedFd>,
    control: Option<(UnixListener, SocketName)>,
    clones: Vec<OwnedFd>,
    phase: Phase,
    /// Daemons that were killed and have a thread that waits for the next one.
    dying: Vec<Copy>,
}

/// An answer with its descriptors.
type Answer = (Vec<u8>, Vec<OwnedFd>);

impl Kept {
    /// Answers a daemon until it has ended. Whether this process was asked to end meanwhile.
    fn serve(
        &mut self,
        socket: &OwnedFd,
        alive: &PipeReader,
        daemon: &Copy,
        on_ready: Option<&OnReady>,
        stop: &Stop,
    ) -> bool {
        let (mut was_asked, mut is_open, mut dies) = (false, true, None);
        loop {
            let mut fds = vec![
                PollFd::new(daemon, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN),
                // Whoever has closed it is always ready.
                if is_open { PollFd::new(socket, PollFlags::IN) } else { PollFd::new(daemon, PollFlags::IN) },
            ];
            if dies.is_none() {
                fds.push(PollFd::new(alive, PollFlags::IN));
            }
            // Interruptions and shortness of memory pass.
            let _ = rustix::event::poll(&mut fds, dies.is_some().then_some(&DEATH_LOOK));
            if fds.get(3).is_some_and(|fd| !fd.revents().is_empty()) {
                dies = Some(Instant::now());
            }
            let lingers = dies.is_some_and(|since| since.elapsed() >= DEATH_TAKES);
            let is_stuck = lingers && self.phase == Phase::Served && !serves(daemon);
            let has_ended = !fds[0].revents().is_empty() || is_stuck;
            self.reap();
            if let Some(signal) = stop.arrived() {
                was_asked = true;
                let _ = daemon.send(Signal::from_named_raw(signal).unwrap_or(Signal::TERM));
            }
            while is_open {
                let mut request = [0u8];
                match retry_on_intr(|| rustix::net::recv(socket, &mut request, RecvFlags::DONTWAIT)) {
                    Ok((1, _)) => is_open = self.take(socket.as_fd(), request[0], on_ready),
                    Err(Errno::AGAIN) => break,
                    _ => is_open = false,
                }
            }
            if has_ended {
                return was_asked;
            }
        }
    }

    /// Daemons that have ended after all go from the table of processes.
    fn reap(&mut self) {
        let (ended, dying): (Vec<Copy>, Vec<Copy>) = self.dying.drain(..).partition(Copy::has_ended);
        self.dying = dying;
        for daemon in ended {
            let _ = daemon.wait();
        }
    }

    /// Answers one request; whether the daemon could be told.
    fn take(&mut self, socket: BorrowedFd<'_>, request: u8, on_ready: Option<&OnReady>) -> bool {
        let answered = match request {
            READY => {
                self.phase = Phase::Served;
                on_ready
                    .map_or(Ok(()), |on_ready| on_ready())
                    .map(|()| (vec![DONE], Vec::new()))
                    .map_err(|error| MountError::step("tell that it is served:", self.place.path(), error))
            }
            END => {
                self.phase = Phase::Ended;
                self.clean_up();
                Ok((vec![DONE], Vec::new()))
            }
            _ => match MOUNT.iter().position(|known| *known == request) {
                Some(read_only) => self.mount(read_only == 1),
                None => match Action::ALL.iter().find(|(known, _)| *known == request) {
                    Some((_, action)) => {
                        self.place.act(*action).map(|done| (vec![if done { DONE } else { NOT_DONE }], Vec::new()))
                    }
                    None => Ok((vec![NOT_DONE], Vec::new())),
                },
            },
        };
        let (text, descriptors) = answered.unwrap_or_else(|error| {
            let mut text = format!("{}{error}", char::from(ERROR)).into_bytes();
            text.truncate(ANSWER_BYTES_MAX);
            (text, Vec::new())
        });
        send(socket, &text, &descriptors).is_ok()
    }

    /// Mounts, unless that was done for an earlier daemon.
    fn mount(&mut self, read_only: bool) -> Result<Answer, MountError> {
        if self.control.is_none() {
            let control = control::listen()?;
            let device = self.place.mount(read_only)?.mount.device;
            if self.memory.is_some() {
                // Without them the threads share the device.
                self.clones = (0..CLONES).map_while(|_| fuse::clone_of(&device).ok()).collect();
            }
            self.control = Some(control);
        }
        let copies = || -> Result<Answer, io::Error> {
            let (live, device) = self.place.live().ok_or(io::ErrorKind::NotFound)?;
            let mut descriptors = vec![device];
            for clone in &self.clones {
                descriptors.push(clone.try_clone()?);
            }
            if let Some((listener, _)) = &self.control {
                descriptors.push(listener.try_clone()?.into());
            }
            Ok((encode(&live), descriptors))
        };
        copies().map_err(|error| MountError::step("start FUSE on", self.place.path(), error))
    }

    /// Takes away what is mounted, and what has a name.
    fn clean_up(&mut self) {
        if self.place.is_there() {
            // Nobody is there to be told.
            let _ = self.place.act(Action::Detach);
        }
        self.place.end();
        self.clones.clear();
        self.control = None;
    }
}

/// However the keeper ends, no dead mount stays behind.
impl Drop for Kept {
    fn drop(&mut self) {
        self.clean_up();
    }
}

/// Whether a daemon that was killed may still read a request, which the next one must find. Other
/// threads may wait for an answer that only the next one gives, and are not waited for.
fn serves(daemon: &Copy) -> bool {
    daemon.threads().iter().any(|name| name.starts_with(fuse::THREAD_NAME))
}

/// Waits before the next daemon starts. True if this process was asked to end meanwhile.
fn pause(soon: u32, stop: &Stop) -> bool {
    let pause = if soon <= 1 { Duration::ZERO } else { PAUSE_MIN * (1 << soon.min(10)) }.min(PAUSE_MAX);
    let timeout = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
    let mut fds = [PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN)];
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
    stop.arrived().is_some()
}

fn send(socket: BorrowedFd<'_>, text: &[u8], descriptors: &[OwnedFd]) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(text)], &mut ancillary, SendFlags::NOSIGNAL))?;
    Ok(())
}
