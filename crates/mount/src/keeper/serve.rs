//! The keeper itself: it starts daemons, serves their requests, and decides what follows their end.

use std::ffi::OsString;
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

use super::program::{Newer, Program};
use super::store::{Left, ServiceManager};
use super::{
    ACCEPT, ANSWER_BYTES_MAX, Before, CLONES, DESCRIPTORS_MAX, DONE, END, ERROR, Keeper, MEMORIES_MAX, MOUNT, NOT_DONE,
    READY, REPLACE,
};
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

/// The exit code of a daemon that could not be executed: that of shells.
const EXECUTE_FAILED: i32 = 126;

/// How a mount is kept.
pub struct Keeping {
    /// Whether a daemon that died is replaced.
    pub survives: bool,
    /// Whether it is a volume: a daemon keeps more for the next one than requests.
    pub is_volume: bool,
    /// How long programs may wait until a new daemon serves them; for ever by default. Then the
    /// mount is taken away, and what waits fails.
    pub patience: Option<Duration>,
    /// Called in the keeper once the first daemon is ready.
    pub on_ready: OnReady,
    /// The arguments of this process, with which a newer program serves the mount
    /// ([`super::Inherited`]); without them it is always this one.
    pub arguments: Option<Vec<OsString>>,
    /// Keeps the mount while the keeper is restarted as a service.
    pub manager: Option<ServiceManager>,
    /// Tells the user that something went wrong which nobody waits for.
    pub tell: fn(&str),
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
pub fn keep(mut place: MountPoint, mut keeping: Keeping, stop: &Stop) -> Result<Started, MountError> {
    place.resolve();
    let path = place.path().to_path_buf();
    let failed = |error: io::Error| MountError::step("start the daemon of", &path, error);
    let (mut before, mut soon) = (Before::default(), 0);
    let left = keeping.manager.as_mut().filter(|_| keeping.survives).and_then(|manager| manager.take(&place));
    let left = left.filter(|left| left.memories.len() == memories_of(&keeping));
    let mut kept = match left {
        Some(left) => {
            (before.deaths, before.was_served) = (left.deaths, true);
            Kept::of(place, left)
        }
        None => Kept::new(place, memories(&keeping).map_err(failed)?),
    };
    let mut program = keeping.arguments.as_ref().filter(|_| keeping.survives).and_then(|_| Program::this());
    let mut waits_since = Instant::now();
    loop {
        let newer = program.as_ref().filter(|_| before.was_served).and_then(Program::newer);
        let refused = program.as_ref().filter(|_| newer.is_none()).and_then(Program::problem);
        let began = Instant::now();
        let (daemon, socket, alive) = match kept.start(newer.as_ref(), &keeping, (before, refused)).map_err(failed)? {
            Begun::Here(keeper) => {
                // Its parts belong to the keeper, which removes what has a name.
                std::mem::forget(kept);
                return Ok(Started::Daemon(keeper?));
            }
            Begun::There(daemon, socket, alive) => (daemon, socket, alive),
        };
        let was_asked = kept.serve(socket, &alive, &daemon, (&keeping, before), stop);
        let exit = if daemon.has_ended() {
            daemon.wait().map_err(failed)?
        } else {
            kept.dying.push(daemon);
            KILLED
        };
        let was_served = kept.phase == Phase::Served;
        let died = match exit {
            Exit::Signal(_) | Exit::Code(PANIC) => true,
            // A new daemon that could not begin, such as because its server is away.
            Exit::Code(_) => before.was_served && kept.phase == Phase::Opening,
        };
        if was_asked || !died || kept.memories.is_empty() || !kept.place.is_connected() {
            return Ok(Started::Over(exit));
        }
        if kept.leaves && kept.dying.is_empty() {
            // The next keeper has it all.
            std::mem::forget(kept);
            return Ok(Started::Over(Exit::Code(0)));
        }
        if was_served {
            (before.was_served, waits_since) = (true, Instant::now());
        }
        let is_refused = newer.is_some() && kept.refuses(exit, soon);
        if let (Some(newer), Some(program), true) = (&newer, &mut program, is_refused) {
            program.refuse(newer, kept.why_refused(exit));
            let problem = program.problem().unwrap_or_default();
            (keeping.tell)(&format!("note: {problem}; the one before serves on"));
        }
        if std::mem::take(&mut kept.replaces) || kept.leaves {
            program.as_mut().map(Program::forgive);
        } else if !is_refused {
            soon = if was_served && began.elapsed() >= SOON { 0 } else { soon + 1 };
            before.deaths += 1;
            kept.note(keeping.manager.as_ref(), before.deaths);
            // Who is killed from outside has not died of a request.
            before.gives_up = soon > SOON_DEATHS_MAX && exit != KILLED;
            let is_late = keeping.patience.is_some_and(|patience| waits_since.elapsed() >= patience);
            let was_asked = !is_late && pause(soon, stop);
            if is_late || was_asked || !kept.place.is_connected() {
                // What waits for a daemon fails.
                let _ = kept.place.act(Action::Abort);
                return Ok(Started::Over(if was_asked { Exit::Code(0) } else { exit }));
            }
        }
        (kept.phase, kept.understands) = (Phase::Opening, false);
    }
}

/// The end of a daemon that was killed, which comes from outside.
const KILLED: Exit = Exit::Signal(Signal::KILL.as_raw());

/// The two sides of the start of a daemon.
enum Begun {
    /// In the daemon.
    Here(Result<Arc<Keeper>, MountError>),
    /// In the keeper: the daemon, and the ends of its socket and its lifeline.
    There(Copy, OwnedFd, PipeReader),
}

/// How many memories outlive a daemon: that of requests, and of a volume the journals of `stream`
/// and of the mount.
fn memories_of(keeping: &Keeping) -> usize {
    if keeping.is_volume { MEMORIES_MAX } else { 1 }
}

fn memories(keeping: &Keeping) -> io::Result<Vec<OwnedFd>> {
    let memory = |index| if index == 0 { handover::create() } else { stream::Journal::memory() };
    (0..memories_of(keeping)).filter(|_| keeping.survives).map(memory).collect()
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
    /// What the next daemon gets; nothing if there is to be none.
    memories: Vec<OwnedFd>,
    control: Option<(UnixListener, SocketName)>,
    clones: Vec<OwnedFd>,
    phase: Phase,
    /// The daemon is a program that understands this keeper.
    understands: bool,
    /// Daemons that were killed and have a thread that waits for the next one.
    dying: Vec<Copy>,
    /// The daemon has asked for another one in its place.
    replaces: bool,
    /// The service manager has the descriptors, too.
    is_stored: bool,
    /// This process is to end without unmounting.
    leaves: bool,
}

/// An answer with its descriptors.
type Answer = (Vec<u8>, Vec<OwnedFd>);

impl Kept {
    fn new(place: MountPoint, memories: Vec<OwnedFd>) -> Kept {
        Kept {
            place,
            memories,
            control: None,
            clones: Vec::new(),
            phase: Phase::Opening,
            understands: false,
            dying: Vec::new(),
            replaces: false,
            is_stored: false,
            leaves: false,
        }
    }

    /// What an earlier keeper has mounted at `place`.
    fn of(place: MountPoint, left: Left) -> Kept {
        let mut kept = Kept::new(place, left.memories);
        kept.control = Some((left.control, SocketName::at(left.socket)));
        (kept.clones, kept.is_stored) = (left.clones, true);
        kept
    }

    /// Whether a newer program that has ended is of no use. One that understands may lack its
    /// server for a while.
    fn refuses(&self, exit: Exit, soon: u32) -> bool {
        let is_wrong = !self.understands || matches!(exit, Exit::Signal(_) | Exit::Code(PANIC | EXECUTE_FAILED));
        self.phase != Phase::Served && exit != KILLED && (is_wrong || soon >= SOON_DEATHS_MAX)
    }

    fn why_refused(&self, exit: Exit) -> String {
        match exit {
            Exit::Code(EXECUTE_FAILED) => "it cannot be executed on this machine".into(),
            Exit::Code(_) if !self.understands => "it does not understand the one that mounted".into(),
            Exit::Code(code) => format!("it ended with code {code} before it served"),
            Exit::Signal(signal) => format!("it ended by signal {signal} before it served"),
        }
    }

    /// Starts a daemon: a copy of this process, or a newer program. A copy is told why there is no
    /// newer one.
    fn start(
        &self,
        newer: Option<&Newer>,
        keeping: &Keeping,
        (before, refused): (Before, Option<String>),
    ) -> io::Result<Begun> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        let (alive, lifeline) = io::pipe()?;
        let lifeline = OwnedFd::from(lifeline);
        let memories = self.memories.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        match fork()? {
            Forked::Parent(daemon) => Ok(Begun::There(daemon, ours, alive)),
            Forked::Child => {
                drop((ours, alive));
                if let (Some(newer), Some(arguments)) = (newer, &keeping.arguments) {
                    let error = newer.execute(arguments, [&theirs, &lifeline], &memories, before);
                    (keeping.tell)(&format!("the new program cannot be executed: {error}"));
                    std::process::exit(EXECUTE_FAILED);
                }
                Ok(Begun::Here(Keeper::new(theirs, lifeline, memories, (before, refused))))
            }
        }
    }

    /// Answers a daemon until it has ended. Whether this process was asked to end meanwhile.
    fn serve(
        &mut self,
        socket: OwnedFd,
        alive: &PipeReader,
        daemon: &Copy,
        (keeping, before): (&Keeping, Before),
        stop: &Stop,
    ) -> bool {
        let (mut was_asked, mut is_open, mut dies) = (false, true, None);
        loop {
            let mut fds = vec![
                PollFd::new(daemon, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN),
                // Whoever has closed it is always ready.
                if is_open { PollFd::new(&socket, PollFlags::IN) } else { PollFd::new(daemon, PollFlags::IN) },
                PollFd::from_borrowed_fd(keeping.manager.as_ref().map_or(stop.fd(), ServiceManager::fd), PollFlags::IN),
            ];
            if dies.is_none() {
                fds.push(PollFd::new(alive, PollFlags::IN));
            }
            // Interruptions and shortness of memory pass.
            let _ = rustix::event::poll(&mut fds, (dies.is_some() || self.leaves).then_some(&DEATH_LOOK));
            if fds.get(4).is_some_and(|fd| !fd.revents().is_empty()) {
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
            if keeping.manager.as_ref().is_some_and(ServiceManager::leaves) {
                // What nobody has kept ends.
                (self.leaves, was_asked) = (self.is_stored, was_asked || !self.is_stored);
                if was_asked {
                    let _ = daemon.send(Signal::TERM);
                }
            }
            if self.leaves && self.dying.is_empty() && !was_asked {
                let _ = daemon.send(Signal::KILL);
            }
            while is_open {
                let mut request = [0u8];
                match retry_on_intr(|| rustix::net::recv(&socket, &mut request, RecvFlags::DONTWAIT)) {
                    Ok((1, _)) => {
                        is_open = self.take(socket.as_fd(), request[0], keeping, before);
                        if request[0] == READY {
                            // From now on this process waits.
                            host::memory::give_back();
                            host::memory::give_back_code();
                        }
                        if self.replaces {
                            // It has told who asked for it.
                            let _ = daemon.send(Signal::KILL);
                        }
                    }
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
    fn take(&mut self, socket: BorrowedFd<'_>, request: u8, keeping: &Keeping, before: Before) -> bool {
        let answered = match request {
            READY => {
                self.phase = Phase::Served;
                keeping.manager.as_ref().map(ServiceManager::ready);
                let told = if before.was_served { Ok(()) } else { (keeping.on_ready)() };
                told.map(|()| (vec![DONE], Vec::new()))
                    .map_err(|error| MountError::step("tell that it is served:", self.place.path(), error))
            }
            END => {
                self.phase = Phase::Ended;
                self.clean_up();
                Ok((vec![DONE], Vec::new()))
            }
            ACCEPT => {
                self.understands = true;
                Ok((vec![DONE], Vec::new()))
            }
            REPLACE => {
                self.replaces = !self.memories.is_empty();
                Ok((vec![if self.replaces { DONE } else { NOT_DONE }], Vec::new()))
            }
            _ => match MOUNT.iter().position(|known| *known == request) {
                Some(read_only) => self.mount(read_only == 1, keeping.manager.as_ref()),
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
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        send(socket, &text, &descriptors).is_ok()
    }

    /// Mounts, unless that was done for an earlier daemon.
    fn mount(&mut self, read_only: bool, manager: Option<&ServiceManager>) -> Result<Answer, MountError> {
        if self.control.is_none() {
            let control = control::listen()?;
            let device = self.place.mount(read_only)?.mount.device;
            if !self.memories.is_empty() {
                // Without them the threads share the device.
                self.clones = (0..CLONES).map_while(|_| fuse::clone_of(&device).ok()).collect();
            }
            self.control = Some(control);
            self.store(manager);
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

    /// Has the service manager keep what was mounted, if it can.
    fn store(&mut self, manager: Option<&ServiceManager>) {
        let (Some(manager), Some((control, _))) = (manager, &self.control) else { return };
        let Some((_, device)) = self.place.live().filter(|_| !self.place.is_overlaid()) else { return };
        self.is_stored = manager.keep([device.as_fd(), control.as_fd()], &self.memories, &self.clones).is_ok();
        self.note(Some(manager), 0);
    }

    /// Tells the next keeper how many daemons have died.
    fn note(&mut self, manager: Option<&ServiceManager>, deaths: u32) {
        let (Some(manager), Some((_, name)), Some((live, _))) = (manager, &self.control, self.place.live()) else {
            return;
        };
        self.is_stored &= manager.note(deaths, name.path(), &live).is_ok();
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

pub(super) fn send(socket: BorrowedFd<'_>, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(text)], &mut ancillary, SendFlags::NOSIGNAL))?;
    Ok(())
}
