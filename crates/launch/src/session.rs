//! One launch: decide, delay, start, follow, record what it took.
//!
//! Before the program starts, the launcher decides whether to prefetch: is there a plan, is the
//! plan on, is anything of it cold? Then there are two ways. The launcher becomes the program, and
//! a helper process does the work ([`become_program`]). Or the program is a child ([`launch`]), if
//! somebody asks for a report or the launcher cannot be split. On a rotating disk the program then
//! waits (at most [`HOLD_MAX`]) while its files are opened in the order of the disk; elsewhere it
//! starts at once beside the prefetch. Later groups are fetched when their breakpoint is hit; after
//! the last one the program runs untraced. Where the user or the kernel forbids breakpoints, the
//! load of a library replaces them (`auditor`). No error makes the launch fail: it becomes a note
//! in [`Outcome::notes`], and the program starts as if started plainly.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use host::Exit;
use host::signals::{Passing, Signals};
use probe::helper::{self, Origin, Side};
use probe::{Breakpoints, End, FileId, Hit, Observer, Site, StartError, Traced, Untraced};
use profile::plan::LaunchPlan;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::auditor::{self, Awaited, Listener};
use crate::files::{OnDisk, open};
use crate::history::{History, Launch, Mode};
use crate::prefetch::{Fetched, Hints, Job, Prefetcher, Settings};
use crate::sites::{followers, learned_file, trigger_sites};
use crate::store::PlanStore;
use crate::{DiskKind, Program, quiet};

/// A program that waits for its files starts after this at the latest: people notice more.
pub const HOLD_MAX: Duration = Duration::from_secs(2);

/// A program to launch, and how.
pub struct Request {
    /// The command line as the user gave it.
    pub command: Vec<OsString>,
    /// Whose plan.
    pub program: Program,
    /// Where plans lie; without one the program starts plainly.
    pub store: Option<PlanStore>,
    /// A plan from elsewhere instead; it has no history.
    pub plan: Option<LaunchPlan>,
    /// The kind of disk, if not to be asked for.
    pub disk: Option<DiskKind>,
    /// Bytes to prefetch at most, if not the default of [`Settings::of`].
    pub budget_bytes: Option<u64>,
    /// Use the plan even if all is in memory, and whatever its history says.
    pub always: bool,
    /// Breakpoints for later groups.
    pub breakpoints: bool,
    /// The library that makes a program go on past breakpoints if this process is killed.
    pub preload: Option<PathBuf>,
    /// The library that reports loads of libraries, where there are no breakpoints.
    pub auditor: Option<PathBuf>,
    /// Owners of files that are not local.
    pub hints: Arc<dyn Hints>,
}

/// What a launch came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the program ended.
    pub exit: Exit,
    /// How it was launched; `None` without a plan.
    pub mode: Option<Mode>,
    /// Until the program rested or ended; zero without a plan.
    pub launch: Duration,
    /// What was prefetched.
    pub fetched: Fetched,
    /// Breakpoints and stops; why there were none; `None` if none were wanted.
    pub traced: Option<Result<Traced, Untraced>>,
    /// Libraries whose load started later groups; `None` if loads were not reported.
    pub libraries: Option<u32>,
    /// What did not go as it should, for the curious.
    pub notes: Vec<String>,
}

/// How a program is to be launched.
#[derive(Debug)]
pub struct Decision {
    began: Instant,
    mode: Option<Mode>,
    plan: Option<Arc<LaunchPlan>>,
    notes: Vec<String>,
}

impl Decision {
    /// Whether there is nothing to do beside the program, and nothing to measure: this process may
    /// then execute the program.
    pub fn is_plain(&self) -> bool {
        matches!(self.mode, None | Some(Mode::Warm))
    }

    /// Adds a plain start to the history, before this process executes the program.
    pub fn enter(&self, request: &Request) {
        enter(request, self.mode, Duration::ZERO, 0);
    }
}

/// Decides how to launch: is there a plan, is it on, is anything of it cold?
pub fn decide(request: &Request) -> Decision {
    let began = Instant::now();
    let mut notes = Vec::new();
    let (plan, history) = match &request.plan {
        Some(plan) => (Some(plan.clone()), History::default()),
        None => {
            let found = request.store.as_ref().map_or(Ok(None), |store| store.load(&request.program));
            let found = found.map_err(|error| notes.push(error.to_string())).ok().flatten();
            found.map_or((None, History::default()), |(plan, history)| (Some(plan), history))
        }
    };
    let mode = plan.as_ref().map(|plan| mode(request, plan, &history));
    Decision { began, mode, plan: plan.map(Arc::new), notes }
}

/// Launches as decided and waits for the program's end.
///
/// # Errors
/// The program itself cannot be started.
pub fn launch(request: &Request, decision: Decision) -> Result<Outcome, StartError> {
    let Decision { began, mode, plan, mut notes } = decision;
    // Before any thread starts, because threads inherit what is blocked.
    let signals = Signals::of_wrapper().map_err(|error| notes.push(format!("signals are not passed on: {error}"))).ok();
    let prepared = Prepared::new(request, mode, plan.as_ref(), &mut notes);
    let prepared = Prepared { signals, ..prepared };
    let outcome = start(request, prepared, began, notes, |breakpoints, program, follower| {
        // The clock sees the end by that of its channel.
        breakpoints.launch(program, follower)
    })?;
    enter(request, outcome.mode, outcome.launch, outcome.fetched.bytes);
    Ok(outcome)
}

/// Launches as decided by becoming the program: this process executes it, and a helper process
/// ([`probe::helper`]) does all the work and ends when there is none left. Returns only if the
/// program cannot be executed.
///
/// # Errors
/// This process cannot be split. The decision comes back, and can still be [launched](launch).
pub fn become_program(request: &Request, decision: Decision) -> Result<StartError, Decision> {
    match helper::split() {
        Err(_) => Err(decision),
        Ok(Side::Program(waiter)) => Ok(waiter.become_program(probe::Program::new(request.command.clone()))),
        Ok(Side::Helper(origin)) => {
            help(request, decision, origin);
            helper::end()
        }
    }
}

/// The work of the helper process. Errors are reported to nobody: the program runs on in any case.
fn help(request: &Request, decision: Decision, origin: Origin) {
    let Decision { began, mode, plan, mut notes } = decision;
    let prepared = Prepared::new(request, mode, plan.as_ref(), &mut notes);
    let listens = prepared.listener.is_some();
    let outcome = start(request, prepared, began, notes, |breakpoints, program, follower| {
        let end = pidfd_open(origin.pid());
        let traced = breakpoints.beside(program, origin, follower)?;
        let rests = || follower.clock.as_ref().is_none_or(JoinHandle::is_finished);
        let untraced = traced.is_err();
        // Libraries may be loaded as long as it runs; else all is over when it rests.
        while let Ok(end) = &end
            && !has_ended(end)
            && ((listens && untraced) || !rests())
        {}
        // The exit is not used here.
        Ok(probe::Outcome { exit: Exit::Code(0), traced })
    });
    if let Ok(outcome) = outcome {
        enter(request, outcome.mode, outcome.launch, outcome.fetched.bytes);
    }
}

fn pidfd_open(process: u32) -> rustix::io::Result<OwnedFd> {
    let process = Pid::from_raw(process as i32).ok_or(rustix::io::Errno::SRCH)?;
    rustix::process::pidfd_open(process, PidfdFlags::empty())
}

/// Whether a process has ended, after waiting for that a little.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    rustix::event::poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
}

fn mode(request: &Request, plan: &LaunchPlan, history: &History) -> Mode {
    if request.always { Mode::With } else { history.mode(plan) }
}

/// A plan from elsewhere has no history.
fn enter(request: &Request, mode: Option<Mode>, launch: Duration, bytes: u64) {
    let (Some(mode), Some(store), None) = (mode, &request.store, &request.plan) else { return };
    // A limit of file sizes is then an error, and does not end this process.
    let blocked = Signals::block([libc::SIGXFSZ]);
    // A full disk costs an entry of the history.
    let _ = store.enter(&request.program, Launch::new(mode, launch, bytes));
    if let Ok(blocked) = blocked {
        blocked.restore();
    }
}

/// What runs beside the program.
#[derive(Default)]
struct Prepared {
    mode: Option<Mode>,
    /// What is to be passed on.
    signals: Option<Signals>,
    prefetcher: Option<Prefetcher>,
    /// Hangs up when the launch group is opened.
    opened: Option<Receiver<()>>,
    sites: Vec<Site>,
    /// Groups by the number of their site.
    groups: BTreeMap<u32, Vec<usize>>,
    /// Breakpoints start later groups, and loads of libraries only if the kernel forbids
    /// breakpoints.
    traces: bool,
    listener: Option<Listener>,
    /// Groups without a library, which go with the launch only if there are no breakpoints.
    without_library: Vec<usize>,
}

impl Prepared {
    fn new(request: &Request, mode: Option<Mode>, plan: Option<&Arc<LaunchPlan>>, notes: &mut Vec<String>) -> Prepared {
        let mut prepared = Prepared { mode, ..Prepared::default() };
        if let (Some(Mode::With), Some(plan)) = (mode, plan) {
            prepared.prefetch(request, plan, notes);
        }
        prepared
    }

    fn prefetch(&mut self, request: &Request, plan: &Arc<LaunchPlan>, notes: &mut Vec<String>) {
        let mut settings = Settings::of(&request.program.real);
        settings.disk = request.disk.unwrap_or(settings.disk);
        settings.budget_bytes = request.budget_bytes.unwrap_or(settings.budget_bytes);
        let prefetcher = match Prefetcher::start(Arc::clone(plan), settings, Arc::clone(&request.hints)) {
            Ok(prefetcher) => prefetcher,
            Err(error) => return notes.push(format!("no thread for prefetching: {error}")),
        };
        let (sender, receiver) = mpsc::channel();
        let hold = settings.disk == DiskKind::Rotating;
        let jobs = prefetcher.jobs();
        self.traces = request.breakpoints && request.preload.is_some();
        match (request.breakpoints, &request.preload) {
            (true, Some(_)) => self.plant(plan, notes),
            // Without it a program whose launcher is killed dies at the next breakpoint.
            (true, None) => notes.push("no breakpoints: librunnel_trace.so is not beside this program".into()),
            (false, _) => {}
        }
        let without_library = (0..plan.groups.len()).filter(|group| plan.library_leader(*group) == 0);
        let first: Vec<usize> = if self.traces { followers(plan, 0) } else { without_library.clone().collect() };
        self.without_library = without_library.filter(|group| !first.contains(group)).collect();
        self.listen(request, plan, &first, &jobs, notes);
        for group in first {
            let opened = (group == 0 && hold).then(|| sender.clone());
            // The thread lives until it is stopped.
            let _ = jobs.send(Job { group, opened });
        }
        self.opened = hold.then_some(receiver);
        self.prefetcher = Some(prefetcher);
    }

    /// Listens for the libraries of all groups that are not fetched `first` anyway.
    fn listen(
        &mut self,
        request: &Request,
        plan: &LaunchPlan,
        first: &[usize],
        jobs: &Sender<Job>,
        notes: &mut Vec<String>,
    ) {
        let mut awaited: Vec<Awaited> = Vec::new();
        for (group, found) in plan.groups.iter().enumerate() {
            let Some(library) = &found.library else { continue };
            let led = (group..plan.groups.len()).take_while(|later| plan.library_leader(*later) == group);
            let led: Vec<usize> = led.filter(|later| !first.contains(later)).collect();
            match learned_file(plan, library.file, None).and_then(|file| FileId::of_open(&file).ok()) {
                Some(file) => awaited.push((file, led)),
                None => notes.push(format!("group {group}: its library has changed")),
            }
        }
        if awaited.iter().all(|(_, groups)| groups.is_empty()) {
            return;
        }
        let started = match &request.auditor {
            Some(auditor) => Listener::start(auditor, awaited, jobs.clone()),
            None => {
                return notes
                    .push("loads of libraries are not reported: librunnel_audit.so is not beside this program".into());
            }
        };
        let failed = |error| notes.push(format!("loads of libraries are not reported: {error}"));
        self.listener = started.map_err(failed).ok();
    }

    fn plant(&mut self, plan: &LaunchPlan, notes: &mut Vec<String>) {
        let (sites, changed) = trigger_sites(plan);
        notes.extend(changed.iter().map(|group| format!("group {group}: the file of its breakpoint has changed")));
        for site in sites {
            let id = site.group as u32;
            let Ok(file) = FileId::of_open(&site.file) else { continue };
            self.sites.push(Site { file, offset: site.offset, executable: Some(site.process), id });
            self.groups.insert(id, followers(plan, site.group));
        }
    }
}

/// Sends groups to the prefetcher as the program reaches them, and starts the clock.
struct Follower {
    opened: Option<Receiver<()>>,
    jobs: Option<Sender<Job>>,
    groups: BTreeMap<u32, Vec<usize>>,
    /// Groups to fetch at once if there are no breakpoints.
    without_library: Vec<usize>,
    /// Get the number of the process.
    started: [Option<Sender<u32>>; 2],
    /// Waits until the launch is over.
    clock: Option<JoinHandle<()>>,
}

impl Follower {
    fn send(&self, groups: &[usize]) {
        for group in groups {
            // The thread lives until it is stopped.
            let _ = self.jobs.as_ref().map(|jobs| jobs.send(Job { group: *group, opened: None }));
        }
    }
}

impl Observer for Follower {
    fn started(&mut self, pid: u32) {
        // Waits until all is opened: the sender is dropped then.
        if let Some(opened) = self.opened.take() {
            let _ = opened.recv_timeout(HOLD_MAX);
        }
        for receiver in self.started.iter().flatten() {
            let _ = receiver.send(pid);
        }
    }

    fn untraced(&mut self, _: &Untraced) {
        self.send(&self.without_library);
    }

    fn hit(&mut self, hit: Hit) {
        self.send(self.groups.get(&hit.id).map_or(&[], Vec::as_slice));
    }

    fn released(&mut self, _: End) {
        self.jobs = None;
    }
}

fn start(
    request: &Request,
    prepared: Prepared,
    began: Instant,
    mut notes: Vec<String>,
    run: impl FnOnce(&Breakpoints, &probe::Program, &mut Follower) -> Result<probe::Outcome, StartError>,
) -> Result<Outcome, StartError> {
    let Prepared { mode, signals, prefetcher, opened, sites, groups, traces, listener, without_library } = prepared;
    let wanted = !sites.is_empty();
    let (started, start) = mpsc::channel();
    let (ended, end) = mpsc::channel::<()>();
    let jobs = prefetcher.as_ref().map(Prefetcher::jobs);
    let passing = signals.and_then(|signals| signals.pass_on().ok());
    let to = passing.as_ref().map(Passing::to);
    let rested = Arc::new(Mutex::new(None));
    let clock = mode.filter(|mode| *mode != Mode::Warm).and_then(|_| {
        let rested = Arc::clone(&rested);
        let watch = move || {
            if let Ok(pid) = start.recv() {
                let launch = quiet::wait(pid, began, &end);
                *rested.lock().unwrap_or_else(PoisonError::into_inner) = Some(launch);
            }
        };
        thread::Builder::new().name("launch-clock".into()).spawn(watch).ok()
    });
    let mut follower = Follower { opened, jobs, groups, without_library, started: [to, Some(started)], clock };
    // Children that no breakpoint is meant for run free: they may be debuggers, or programs with
    // privileges.
    let own = FileId::of(&request.program.real).ok();
    let children = sites.iter().any(|site| site.executable != own);
    let mut program = probe::Program::new(request.command.clone());
    let loads = |_: &&PathBuf| wanted && (children || !is_static(&request.program.real));
    if let Some(library) = request.preload.as_ref().filter(loads) {
        // Children start without the library too: it takes both variables away once it is loaded.
        let stays = if children { "1" } else { "once" };
        let list = auditor::before(library, "LD_PRELOAD");
        program = program.variable_if(true, "LD_PRELOAD", list).variable_if(true, "RUNNEL_TRAP", stays);
    }
    if let Some(listener) = &listener {
        if program.would_lose_privileges() {
            notes.push("loads of libraries are not reported: the program gets privileges from its file".into());
        }
        for (name, value) in listener.variables() {
            program = if traces { program.variable_if(false, name, value) } else { program.variable(name, value) };
        }
    }
    let outcome = run(&Breakpoints::new(sites).follow_children(children), &program, &mut follower);
    let clock = follower.clock.take();
    drop((ended, follower));
    if let Some(clock) = clock {
        // Its end does not matter if it panicked.
        let _ = clock.join();
    }
    let libraries = listener.map(Listener::stop);
    let fetched = prefetcher.map_or_else(Fetched::default, Prefetcher::stop);
    if let Some(signals) = passing.and_then(|passing| passing.stop().ok()) {
        signals.restore();
    }
    let outcome = outcome?;
    let launch = rested.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or_default();
    let libraries = libraries.filter(|_| !traces || outcome.traced.is_err());
    let traced = wanted.then_some(outcome.traced);
    Ok(Outcome { exit: outcome.exit, mode, launch, fetched, traced, libraries, notes })
}

/// Whether nothing can be preloaded into a program, because it names no dynamic linker.
fn is_static(program: &std::path::Path) -> bool {
    let Ok(file) = open(program) else { return false };
    elf::Program::parse(&OnDisk(&file)).is_ok_and(|program| program.interpreter.is_none())
}
