//! The daemon: applies learned plans to programs that are started plainly, from menus and shells.
//! For root.
//!
//! The kernel reports that a program with a plan is opened for execution (`watch`). The plan is
//! fetched while the program starts (`follow`), and uprobes report when later groups are due. There
//! is no wrapper, no ptrace and no preloaded library. No program waits: on a rotating disk the
//! prefetch can only overlap with the start, which `runnel launch` does better.
//!
//! *Which plan.* At the report the process still has its old memory. For most programs the file
//! names the plan, and the fetch begins at once. The plan of an interpreter depends on its command
//! line, which is the old one until the exec is through, and the kernel does not report that. So
//! the command line counts when the process executes the watched file and its command line is not
//! that of its parent (a forked shell looks just like its parent). Until then the daemon looks
//! again, at most [`TRIES`] times at growing intervals. A process that executes the same
//! interpreter again and again without forking may be taken for what it was before: its plan is
//! then found warm, which costs a look.
//!
//! *Whose plan.* That of the user who started the program, or root's (`plans`). Files are opened
//! with the rights of that user (`rights`).
//!
//! *Bounds.* [`FOLLOWED_MAX`] launches at once are followed to their end, as many more get their
//! first group, the rest nothing. A plan that was used is not used again for [`REST`]: a script
//! that starts a program a thousand times costs one look. Programs that `runnel` itself starts are
//! left to it. Warm starts are not recorded in the history, for the same reason.

mod event;
mod follow;
mod notify;
mod plans;
mod process;
mod rights;
pub mod unit;
mod watch;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use probe::FileId;
use probe::uprobe::{Disabled, Uprobes};
use rustix::process::{Resource, getrlimit, setrlimit};

use self::follow::{Start, Tools};
use self::plans::{Known, Store};
use self::process::Process;
use self::rights::Rights;
use self::watch::Watch;
use crate::{Hints, LaunchError, Program};

pub use event::Event;
pub use plans::make_folder;

/// Launches followed at once: people start one or two programs, a session at log-in some more.
const FOLLOWED_MAX: usize = 8;

/// Threads for launches; those beyond [`FOLLOWED_MAX`] fetch the first group and end.
const STARTED_MAX: usize = 2 * FOLLOWED_MAX;

/// Interpreters waited for at once.
const WAITING_MAX: usize = 64;

/// Looks at an interpreter: at once, and after 1, 2, 4 .. 512 ms more.
const TRIES: u32 = 11;

/// How long a plan rests that was used: what it fetched is still there, and a warm look costs a
/// millisecond.
const REST: Duration = Duration::from_secs(5);

/// From the first change of a plan to the look at all of them: an update changes many files.
const SETTLE: Duration = Duration::from_millis(200);

/// Between two looks at all plans lies at least this many times what a look took.
const SCAN_SHARE: u32 = 20;

/// Notes reported of one look at all plans.
const NOTES_MAX: usize = 16;

/// What the end of the daemon waits for: threads that close probes or ask a slow disk.
const END_MAX: Duration = Duration::from_secs(5);

/// Gets every event of the daemon.
pub type EventSink = Box<dyn Fn(&Event) + Send + Sync>;

/// What the daemon works with.
pub struct Config {
    /// The folder that is made if it is not there: root's own.
    pub own: PathBuf,
    /// More folders of plans.
    pub folders: Vec<PathBuf>,
    /// Owners of files that are not local.
    pub hints: Arc<dyn Hints>,
    /// Gets every event, from any thread.
    pub events: EventSink,
}

/// Works until SIGTERM or SIGINT; SIGHUP makes it look at all plans again.
///
/// # Errors
/// It is not root, the kernel has no fanotify, or a folder of plans cannot be used.
pub fn run(config: Config) -> Result<(), LaunchError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(failed("watch programs", "start it as root, or let systemd do so: `runnel launchd --install`")(
            denied(),
        ));
    }
    // Before any thread starts, because threads inherit what is blocked.
    let mask: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    let signals =
        mask.thread_block().and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK));
    let signals = signals.map_err(io::Error::from).map_err(failed("receive signals", "see errno(3)"))?;
    let mut daemon = Daemon::open(config)?;
    daemon.scan()?;
    (daemon.tools.events)(&Event::Ready {
        programs: daemon.known.programs.len(),
        plans: daemon.known.plans.len(),
        probes: daemon.tools.probes,
    });
    notify::notify("READY=1");
    let worked = daemon.work(&signals);
    notify::notify("STOPPING=1");
    daemon.end();
    worked
}

fn denied() -> io::Error {
    io::Error::from(io::ErrorKind::PermissionDenied)
}

fn failed(what: &'static str, hint: &'static str) -> impl FnOnce(io::Error) -> LaunchError {
    move |source| LaunchError::Daemon { what, source, hint }
}

/// An interpreter whose command line is awaited.
struct Waiting {
    process: Process,
    file: FileId,
    began: Instant,
    tries: u32,
    next: Instant,
}

struct Daemon {
    tools: Arc<Tools>,
    /// Hung up when the daemon ends.
    running: OwnedFd,
    own: Rights,
    executable: Option<FileId>,
    stores: Vec<Store>,
    watch: Watch,
    known: Known,
    waiting: Vec<Waiting>,
    /// When a plan was used last.
    used: HashMap<PathBuf, Instant>,
    scan_at: Option<Instant>,
    /// How long the last look took.
    scan_took: Duration,
    threads: Vec<JoinHandle<()>>,
    /// Cloned by all threads, to know when none is left.
    alive: (Sender<()>, mpsc::Receiver<()>),
    closer: (Sender<Disabled>, JoinHandle<()>),
}

impl Daemon {
    fn open(config: Config) -> Result<Daemon, LaunchError> {
        const FANOTIFY: &str = "Linux 5.0 with CONFIG_FANOTIFY, and CAP_SYS_ADMIN outside containers, are needed";
        let watch = Watch::new().map_err(failed("watch programs that start (fanotify)", FANOTIFY))?;
        make_folder(&config.own)?;
        let mut stores: Vec<Store> = Vec::new();
        for folder in std::iter::once(&config.own).chain(&config.folders) {
            let store = Store::open(folder)?;
            if stores.iter().all(|other| other.plans.folder() != store.plans.folder()) {
                stores.push(store);
            }
        }
        // A probe is a descriptor for each processor.
        let files = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: files.maximum, ..files });
        let probes = Uprobes::open().map(drop);
        if let Err(error) = &probes {
            let text = format!("the kernel allows no uprobes ({error}): only the first group of each plan is fetched");
            (config.events)(&Event::Note { text });
        }
        let thread = |source| failed("start a thread", "see errno(3)")(source);
        let (closer, disabled) = mpsc::channel::<Disabled>();
        let closing = thread::Builder::new().name("probe-close".into());
        let closing = closing.spawn(move || disabled.iter().for_each(drop)).map_err(thread)?;
        let (stop, running) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| failed("make a pipe", "see errno(3)")(error.into()))?;
        let tools = Tools { hints: config.hints, events: config.events, stop, probes: probes.is_ok() };
        Ok(Daemon {
            tools: Arc::new(tools),
            running,
            own: Rights::own().map_err(failed("look at own rights", "see errno(3)"))?,
            executable: FileId::of(Path::new("/proc/self/exe")).ok(),
            stores,
            watch,
            known: Known::default(),
            waiting: Vec::new(),
            used: HashMap::new(),
            scan_at: None,
            scan_took: Duration::ZERO,
            threads: Vec::new(),
            alive: mpsc::channel(),
            closer: (closer, closing),
        })
    }

    /// Looks at all plans, and watches their programs.
    fn scan(&mut self) -> Result<(), LaunchError> {
        let mut notes = Vec::new();
        let began = Instant::now();
        // Watched before they are read, so that no change is missed.
        for store in &self.stores {
            self.watch.folder(store.plans.folder(), &mut notes);
        }
        self.known =
            Known::scan(&self.stores, &self.own, &mut notes).map_err(failed("be root again", "start it anew"))?;
        self.watch.programs(&self.known.programs, &mut notes);
        let more = notes.len().saturating_sub(NOTES_MAX);
        notes.truncate(NOTES_MAX);
        notes.extend((more > 0).then(|| format!("and {more} more")));
        for text in notes {
            (self.tools.events)(&Event::Note { text });
        }
        self.scan_took = began.elapsed();
        Ok(())
    }

    fn work(&mut self, signals: &SignalFd) -> Result<(), LaunchError> {
        loop {
            let next = self.waiting.iter().map(|waiting| waiting.next).chain(self.scan_at).min();
            let left = next.map(|next| next.saturating_duration_since(Instant::now()));
            // Rounded up: to wake early is to look in vain.
            let left = left.map(|left| PollTimeout::try_from(left + Duration::from_millis(1)));
            let timeout = left.map_or(PollTimeout::NONE, |left| left.unwrap_or(PollTimeout::MAX));
            let [starts, changes, mounts] = self.watch.descriptors();
            let mut fds = [starts, changes, mounts, PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            // An interrupted wait finds nothing and begins again.
            let _ = poll(&mut fds, timeout);
            let mounted = fds[2].revents().is_some_and(|events| !events.is_empty());
            while let Ok(Some(signal)) = signals.read_signal() {
                if signal.ssi_signo != Signal::SIGHUP as u32 {
                    return Ok(());
                }
                self.scan_at = Some(Instant::now());
            }
            self.starts()?;
            self.look_again()?;
            if self.watch.has_changed() || (mounted && self.known.lacks) {
                self.scan_at.get_or_insert(Instant::now() + SETTLE.max(self.scan_took * SCAN_SHARE));
            }
            if self.scan_at.is_some_and(|at| at <= Instant::now()) {
                self.scan_at = None;
                self.scan()?;
                let (programs, plans) = (self.known.programs.len(), self.known.plans.len());
                (self.tools.events)(&Event::Plans { programs, plans });
            }
        }
    }

    /// Looks at all programs that are being started.
    fn starts(&mut self) -> Result<(), LaunchError> {
        let (starts, dropped) = self.watch.starts();
        let began = Instant::now();
        if dropped {
            (self.tools.events)(&Event::Note { text: "too many programs started at once, some were missed".into() });
        }
        for start in starts {
            let Some(real) = self.known.programs.get(&start.file) else { continue };
            let Some(process) = Process::read(start.process).filter(|process| self.is_for_us(process)) else {
                continue;
            };
            if !Program::is_interpreter(real) {
                let program = Program::running(real.clone(), &[], Path::new(""));
                self.launch(program, process, began);
            } else if self.waiting.len() < WAITING_MAX {
                self.waiting.push(Waiting { process, file: start.file, began, tries: 0, next: began });
            }
        }
        Ok(())
    }

    /// Not for programs that `runnel launch` starts or becomes, which fetches itself, and `runnel
    /// record`, which learns. A launcher that has become its program already and is not traced
    /// looks like any other program; then both fetch, and the page cache reads each page once.
    fn is_for_us(&self, process: &Process) -> bool {
        let is_ours = |id: u32| self.executable.is_some() && Process::executable(id) == self.executable;
        let by_us = [process.id, process.parent, process.tracer].into_iter().any(is_ours);
        process.id != std::process::id() && !by_us && Process::shares_our_files(process.id)
    }

    /// Looks at interpreters whose time has come.
    fn look_again(&mut self) -> Result<(), LaunchError> {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.next <= now);
        self.waiting = later;
        let due: Vec<Waiting> = due;
        for mut waiting in due {
            let id = waiting.process.id;
            let line = Process::command_line(id);
            let runs = Process::executable(id) == Some(waiting.file) && !line.is_empty();
            waiting.tries += 1;
            let is_last = waiting.tries >= TRIES;
            if runs && (is_last || line != Process::command_line(waiting.process.parent)) {
                let Some(real) = self.known.programs.get(&waiting.file).cloned() else { continue };
                let arguments = process::arguments(&line);
                // A name of a script is looked for as the program would.
                let program = waiting
                    .process
                    .rights
                    .assume()
                    .ok()
                    .and_then(|()| Some(Program::running(real, &arguments, &Process::folder(id)?)));
                self.own.assume().map_err(failed("be root again", "start it anew"))?;
                if let Some(program) = program {
                    self.launch(program, waiting.process, waiting.began);
                }
            } else if !is_last {
                waiting.next = now + Duration::from_millis(1 << (waiting.tries - 1));
                self.waiting.push(waiting);
            }
        }
        Ok(())
    }

    /// Starts a thread for a program that has a plan.
    fn launch(&mut self, program: Program, process: Process, began: Instant) {
        let Some((number, plan)) = self.known.find(&self.stores, &program, &process) else { return };
        self.used.retain(|_, used| began.saturating_duration_since(*used) < REST);
        self.threads.retain(|thread| !thread.is_finished());
        if self.used.contains_key(&plan) || self.threads.len() >= STARTED_MAX {
            return;
        }
        self.used.insert(plan, began);
        let followed = self.threads.len() < FOLLOWED_MAX;
        let start = Start { process, program, store: self.stores[number].clone(), began, followed };
        let (tools, closer, alive) = (Arc::clone(&self.tools), self.closer.0.clone(), self.alive.0.clone());
        let work = move || {
            follow::follow(&start, &tools, &closer);
            drop(alive);
        };
        match thread::Builder::new().name("follow".into()).spawn(work) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => (self.tools.events)(&Event::Note { text: format!("no thread for a launch: {error}") }),
        }
    }

    /// Ends all threads; one that does not come back from the kernel ends with the process.
    fn end(self) {
        drop(self.running);
        let (alive, none_left) = self.alive;
        drop(alive);
        if none_left.recv_timeout(END_MAX) == Err(RecvTimeoutError::Disconnected) {
            for thread in self.threads {
                // Its end does not matter if it panicked.
                let _ = thread.join();
            }
            let (closer, closing) = self.closer;
            drop(closer);
            let _ = closing.join();
        }
    }
}
